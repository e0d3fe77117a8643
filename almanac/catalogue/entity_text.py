"""Prose: what an entity says, as text that can be searched, cut into passages."""

import re
from html.parser import HTMLParser
from typing import Any, cast

from almanac.search.passage import Passage

PASSAGE_CHARS = 1_800  # characters of a passage: about as many words as one of a document has
MAX_ENTITY_CHARS = 400_000  # characters of an entity that are searched

_TAG = re.compile(r"<\s*(?:p|br|div|ul|ol|li|table|tr|td|th|h[1-6]|span|strong|em|b|i|a|img|section)\b[^>]*>", re.I)
_BREAKS = frozenset(("p", "br", "div", "li", "tr", "h1", "h2", "h3", "h4", "h5", "h6", "section", "table", "ul", "ol"))
_SILENT = frozenset(("script", "style", "template"))
_PARAGRAPH = re.compile(r"\n\s*\n")


def entity_passages(parts: tuple[str, ...], facts: dict[str, Any], category: str) -> list[Passage]:
    """What is written of an entity and what is known of it, under the name of its category."""
    written = [plain(part).strip() for part in parts if part.strip()]
    text = "\n\n".join((*written, "\n".join(_lines(facts))))[:MAX_ENTITY_CHARS].strip()
    heading = (category,) if category else ()
    return [Passage(start, end, text[start:end], headings=heading) for start, end in _cut(text)] or [
        Passage(0, 0, "", headings=heading)
    ]


def plain(text: str) -> str:
    """A text without markup, if it looks like HTML; Markdown reads well enough as it is."""
    if not _TAG.search(text):
        return text
    reader = _Reader()
    reader.feed(text)
    reader.close()
    return re.sub(r"\n{3,}", "\n\n", re.sub(r"[ \t]+", " ", "".join(reader.pieces)))


class _Reader(HTMLParser):
    """Keeps what a reader would see."""

    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.pieces: list[str] = []
        self._silent = 0

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        self._silent += tag in _SILENT
        if tag in _BREAKS:
            self.pieces.append("\n\n")

    def handle_endtag(self, tag: str) -> None:
        self._silent = max(0, self._silent - (tag in _SILENT))
        if tag in _BREAKS:
            self.pieces.append("\n")

    def handle_data(self, data: str) -> None:
        if not self._silent:
            self.pieces.append(data)


def _lines(facts: dict[str, Any]) -> list[str]:
    """Facts as one would say them: psi: 1800."""
    found: list[str] = []
    for name, value in facts.items():
        values = cast("list[Any]", value) if isinstance(value, list) else [value]
        said = [str(each) for each in values if isinstance(each, str | int | float) and str(each).strip()]
        if said:
            found.append(f"{name}: {', '.join(said)}")
    return found


def _cut(text: str) -> list[tuple[int, int]]:
    """Where passages begin and end: between paragraphs, or wherever a long one can be cut."""
    ends = [match.end() for match in _PARAGRAPH.finditer(text)] + [len(text)]
    found: list[tuple[int, int]] = []
    start = at = 0
    for end in ends:
        if end - start > PASSAGE_CHARS and at > start:
            found.append((start, at))
            start = at
        while end - start > PASSAGE_CHARS:
            cut = max(
                text.rfind(" ", start + PASSAGE_CHARS // 2, start + PASSAGE_CHARS),
                text.rfind("\n", start + PASSAGE_CHARS // 2, start + PASSAGE_CHARS),
            )
            cut = cut if cut > start else start + PASSAGE_CHARS
            found.append((start, cut))
            start = cut
        at = end
    if text[start:].strip():
        found.append((start, len(text)))
    return found
