"""The searchable text of entities and image attachments, split into passages."""

import re
from html.parser import HTMLParser
from typing import Any, cast

from almanac.search.passage import Passage
from almanac.search.splitting import split_prose

PASSAGE_CHARS = 1_800  # about the length of a document passage
MAX_ENTITY_CHARS = 400_000  # the rest of a longer text is not searched

_TAG = re.compile(r"<\s*(?:p|br|div|ul|ol|li|table|tr|td|th|h[1-6]|span|strong|em|b|i|a|img|section)\b[^>]*>", re.I)
_BLOCK_TAGS = frozenset(
    ("p", "br", "div", "li", "tr", "h1", "h2", "h3", "h4", "h5", "h6", "section", "table", "ul", "ol")
)
_HIDDEN_TAGS = frozenset(("script", "style", "template"))


def entity_passages(texts: tuple[str, ...], fields: dict[str, Any], category: str) -> list[Passage]:
    """Passages of the texts and the fields, with the category as heading. An empty text gives one empty passage."""
    stripped = [strip_markup(text).strip() for text in texts if text.strip()]
    text = "\n\n".join((*stripped, "\n".join(_field_lines(fields))))[:MAX_ENTITY_CHARS].strip()
    headings = (category,) if category else ()
    spans = split_prose(text, PASSAGE_CHARS)
    return [Passage(start, end, text[start:end], headings=headings) for start, end in spans]


def strip_markup(text: str) -> str:
    """The visible text of HTML. Text without HTML tags is returned as it is; Markdown needs no conversion."""
    if not _TAG.search(text):
        return text
    parser = _VisibleText()
    parser.feed(text)
    parser.close()
    return re.sub(r"\n{3,}", "\n\n", re.sub(r"[ \t]+", " ", "".join(parser.parts)))


class _VisibleText(HTMLParser):
    """Collects the text outside of scripts and styles, with line breaks around block elements."""

    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.parts: list[str] = []
        self._hidden_depth = 0

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        self._hidden_depth += tag in _HIDDEN_TAGS
        if tag in _BLOCK_TAGS:
            self.parts.append("\n\n")

    def handle_endtag(self, tag: str) -> None:
        self._hidden_depth = max(0, self._hidden_depth - (tag in _HIDDEN_TAGS))
        if tag in _BLOCK_TAGS:
            self.parts.append("\n")

    def handle_data(self, data: str) -> None:
        if not self._hidden_depth:
            self.parts.append(data)


def _field_lines(fields: dict[str, Any]) -> list[str]:
    """One line per field with a value: `psi: 1800`, `tags: electric, quiet`."""
    lines: list[str] = []
    for name, value in fields.items():
        members = cast("list[Any]", value) if isinstance(value, list) else [value]
        texts = [str(item) for item in members if isinstance(item, str | int | float) and str(item).strip()]
        if texts:
            lines.append(f"{name}: {', '.join(texts)}")
    return lines
