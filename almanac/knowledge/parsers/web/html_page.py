"""Web pages: the text that a reader would see.

A page is treated as a stream of tags, because broken pages are common: nothing here expects tags to match. Tables that
are only used for layout, as in mails, are replaced by their content.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from html import unescape
from pathlib import Path
from typing import Literal

from almanac.core.text import one_line
from almanac.knowledge.parsers.parsed_file import ParsedFile
from almanac.knowledge.parsers.text import encodings
from almanac.knowledge.parsers.text_builder import TextBuilder, list_item, single_spaces

MAX_TABLE_DEPTH = 30
MAX_TITLE_CHARS = 2_000
MAX_CELL_CHARS = 1_000  # a table with a longer cell is used for layout
MAX_SPAN = 100  # columns or rows of a cell

_TOKEN = re.compile(
    r"<!--.*?(?:-->|(?P<open>\Z))"
    r"|<(?P<close>/?)(?P<name>[a-zA-Z][^\s/>]*+)(?P<rest>(?:[^>\"']++|\"[^\"]*+\"|'[^']*+'){0,100}+)>"
    r"|<(?P<close2>/?)(?P<name2>[a-zA-Z][^\s/>]*+)(?P<rest2>[^>]*+)>"
    r"|<[!?][^>]*+>",
    re.DOTALL,
)
_ATTRIBUTE = re.compile(r"([a-zA-Z_:][\w:.-]*)(?:\s*=\s*(?:\"([^\"]*)\"|'([^']*)'|([^\s\"'>]+)))?")
_CHARSET = re.compile(rb"<(?:meta[^>]{1,200}charset|\?xml[^>]{1,200}encoding)\s*=\s*[\"']?\s*([\w:.-]{2,40})", re.I)
_TAG = re.compile(r"<(/?)([a-zA-Z][^\s/<>]*+)")
_TITLE = re.compile(r"<title\b[^<>]{0,500}>", re.I)
_WHITE_SPACE = re.compile(r"\s+")
_HIDDEN_STYLE = re.compile(r"display\s*:\s*none|visibility\s*:\s*hidden", re.I)

_RAW_TEXT = {"script", "style", "textarea", "xmp", "noembed", "noframes"}  # elements whose content has no tags
_OMITTED = {"head", "template", "svg", "nav", "button", "select", "datalist", "iframe", "object", "canvas", "video",
            "audio", "dialog", "map", "rt", "rp"}  # fmt: skip
_VOID = {"area", "base", "br", "col", "embed", "hr", "img", "input", "link", "meta", "source", "track", "wbr"}
_BLOCKS = {"address", "article", "aside", "blockquote", "body", "caption", "center", "dd", "details", "dialog", "div",
           "dl", "dt", "fieldset", "figcaption", "figure", "footer", "form", "header", "hgroup", "hr", "html", "legend",
           "li", "main", "menu", "ol", "p", "pre", "section", "summary", "table", "tbody", "td", "tfoot", "th", "thead",
           "title", "tr", "ul", "h1", "h2", "h3", "h4", "h5", "h6"}  # fmt: skip
_METADATA = {"author": "author", "description": "description", "keywords": "keywords", "date": "created",
             "dcterms.date": "created", "article:published_time": "created", "og:title": "title"}  # fmt: skip


@dataclass(slots=True)
class HtmlBlock:
    """A part of a page."""

    kind: Literal["heading", "text", "item", "code", "table"]
    text: str = ""
    level: int = 0  # of a heading; of a list item its depth
    mark: str = "-"  # of a list item
    rows: list[list[str]] = field(default_factory=list[list[str]])


@dataclass(slots=True)
class HtmlTable:
    """An unfinished table."""

    rows: list[list[str]] = field(default_factory=list[list[str]])
    cell: list[HtmlBlock] | None = None
    span: tuple[int, int] = (1, 1)  # columns and rows of the current cell
    below: dict[int, tuple[int, str]] = field(default_factory=dict[int, tuple[int, str]])  # column → rows left, text
    content: list[HtmlBlock] = field(default_factory=list[HtmlBlock])  # all blocks, in case it is a layout table
    outside_cells: list[HtmlBlock] = field(default_factory=list[HtmlBlock])  # such as a caption
    is_layout: bool = False


@dataclass(slots=True)
class HtmlReader:
    """The state while a page is read."""

    blocks: list[HtmlBlock] = field(default_factory=list[HtmlBlock])
    words: list[str] = field(default_factory=list[str])  # of the current paragraph
    tables: list[HtmlTable] = field(default_factory=list[HtmlTable])  # the open ones, the innermost last
    lists: list[int] = field(default_factory=list[int])  # of each open list, the last item's number, or -1 for bullets
    item_mark: str = ""  # of an item that has no text yet
    heading: int = 0
    preformatted: int = 0
    superscript_start: int = -1  # as an index into `words`
    note_start: int = -1  # of a reference to a footnote
    title: str = ""
    has_head: bool = False
    metadata: dict[str, str] = field(default_factory=dict[str, str])

    def write(self, text: str) -> None:
        """Add text to the current paragraph."""
        unescaped = unescape(text) if "&" in text else text
        self.words.append(unescaped if self.preformatted else _WHITE_SPACE.sub(" ", unescaped))

    def open(self, name: str, attributes: dict[str, str]) -> None:
        if name in _BLOCKS:
            self.flush()
        if name == "br":
            self.words.append("\n")
        elif name in ("ul", "ol", "menu"):
            self.lists.append(_number(attributes.get("start", "")) - 1 if name == "ol" else -1)
        elif name == "li":
            self._open_item()
        elif name in ("td", "th"):
            self._open_cell(attributes)
        elif name == "tr" and self.tables:
            self._close_cell()
            self.tables[-1].rows.append([])
        elif name == "table" and len(self.tables) < MAX_TABLE_DEPTH:
            self.tables.append(HtmlTable())
        elif len(name) == 2 and name[0] == "h" and name[1] in "123456":
            self.heading = int(name[1])
        elif name == "pre":
            self.preformatted += 1
        elif name == "img" and one_line(attributes.get("alt", "")):
            self.words.append(f"[{one_line(unescape(attributes['alt']))}]")
        elif name == "sup":
            self.superscript_start = len(self.words)
        elif name == "a" and "noteref" in (attributes.get("role", "") + attributes.get("epub:type", "")):
            self.note_start = len(self.words)

    def close(self, name: str) -> None:
        if name in _BLOCKS:
            self.flush()
        if name in ("ul", "ol", "menu") and self.lists:
            self.lists.pop()
        elif name in ("td", "th", "tr") and self.tables:
            self._close_cell()
        elif name == "table" and self.tables:
            self._close_table()
        elif name == "pre":
            self.preformatted = max(0, self.preformatted - 1)
        elif len(name) == 2 and name[0] == "h":
            self.heading = 0
        elif name == "sup" and self.superscript_start >= 0:
            self._close_superscript()
        elif name == "a" and self.note_start >= 0:
            self._close_note_reference()

    def flush(self) -> None:
        """Finish the current paragraph."""
        if not self.words:
            return
        text = "".join(self.words)
        self.words.clear()
        self.note_start = -1
        spaced = text if self.preformatted else single_spaces(text)
        if spaced.strip():
            self._add(self._block(spaced))

    def _block(self, text: str) -> HtmlBlock:
        if self.preformatted:
            return HtmlBlock("code", text)
        if self.heading:
            return HtmlBlock("heading", one_line(text), self.heading)
        if self.lists:
            mark, self.item_mark = self.item_mark, ""
            return HtmlBlock("item", text, len(self.lists) - 1, mark)
        return HtmlBlock("text", text)

    def _add(self, block: HtmlBlock) -> None:
        """Add a block to the innermost open cell, or to the page."""
        if not self.tables:
            self.blocks.append(block)
            return
        table = self.tables[-1]
        table.content.append(block)
        (table.outside_cells if table.cell is None else table.cell).append(block)
        if table.cell is not None:
            table.is_layout |= block.kind in ("heading", "table", "code") or len(block.text) > MAX_CELL_CHARS

    def _open_item(self) -> None:
        self.item_mark = "-"
        if self.lists and self.lists[-1] >= 0:
            self.lists[-1] += 1
            self.item_mark = f"{self.lists[-1]}."

    def _open_cell(self, attributes: dict[str, str]) -> None:
        if not self.tables:
            return
        self._close_cell()
        table = self.tables[-1]
        if not table.rows:
            table.rows.append([])
        self._fill_from_above(table)
        table.cell = []
        columns, rows = (_number(attributes.get(name, "")) or 1 for name in ("colspan", "rowspan"))
        table.span = (min(columns, MAX_SPAN), min(rows, MAX_SPAN))

    def _fill_from_above(self, table: HtmlTable) -> None:
        """Repeat the text of cells above that span this row, so that each row is complete."""
        row = table.rows[-1]
        while len(row) in table.below and len(row) < MAX_SPAN:
            rows_left, text = table.below.pop(len(row))
            if rows_left > 1:
                table.below[len(row)] = (rows_left - 1, text)
            row.append(text)

    def _close_cell(self) -> None:
        table = self.tables[-1]
        if table.cell is None:
            return
        text = " ".join(block.text for block in table.cell)
        table.cell = None
        columns, rows = table.span
        row = table.rows[-1]
        if rows > 1:
            table.below |= {len(row) + extra: (rows - 1, "" if extra else text) for extra in range(columns)}
        row += [text, *[""] * (columns - 1)]

    def _close_table(self) -> None:
        self._close_cell()
        table = self.tables.pop()
        for block in table.content if table.is_layout else [*table.outside_cells, HtmlBlock("table", rows=table.rows)]:
            self._add(block)

    def _close_superscript(self) -> None:
        if "".join(self.words[self.superscript_start :]).strip().isdigit():
            self.words.insert(self.superscript_start, "^")
        self.superscript_start = -1

    def _close_note_reference(self) -> None:
        number = one_line("".join(self.words[self.note_start :])).strip("^[]")
        self.words[self.note_start :] = [f"[^{number}]"]
        self.note_start = -1


def _number(value: str) -> int:
    """The number in an attribute; 1 if it is not a number."""
    return int(value) if value.isascii() and value.isdigit() and len(value) < 10 else 1


def parse(path: Path, name: str) -> ParsedFile:
    page = read(decode(path.read_bytes()))
    builder = TextBuilder()
    write(page.blocks, builder)
    title = page.metadata.pop("title", "")
    return builder.finish(page.title or title, page.metadata)


def decode(content: bytes) -> str:
    """The text of a page, in its declared encoding if that fits."""
    declared = _CHARSET.search(content[:4096])
    return encodings.decode_declared(content, declared[1].decode("ascii") if declared else "utf-8")


def read(text: str) -> HtmlReader:
    """Read a page. If nothing is left, for example because a menu is never closed, read it again without omissions."""
    page = _read(text, _OMITTED | {"footer"})
    return page if page.blocks else _read(text, {"head", "template"})


def _read(text: str, omitted: set[str]) -> HtmlReader:
    page = HtmlReader()
    position, end = 0, text.rfind(">") + 1  # no search runs beyond the last tag to the end of the text in vain
    while token := _TOKEN.search(text, position, end):
        if token["open"] is not None:
            break
        if token.start() > position:
            page.write(text[position : token.start()])
        position = token.end()
        name = (token["name"] or token["name2"] or "").lower()
        if not name:
            continue
        if token["close"] or token["close2"]:
            page.close(name)
            continue
        attributes = _attributes(token["rest"] or token["rest2"] or "")
        _note_metadata(page, name, attributes)
        if name in _RAW_TEXT or _is_omitted(name, attributes, omitted):
            position = _skip_element(text, position, end, name, page)
        else:
            page.open(name, attributes)
    page.write(text[position:].partition("<!--")[0])
    page.flush()
    while page.tables:
        page.close("table")
    return page


def _attributes(text: str) -> dict[str, str]:
    if not text.strip(" /\n"):
        return {}
    return {match[1].lower(): match[2] or match[3] or match[4] or "" for match in _ATTRIBUTE.finditer(text)}


def _is_omitted(name: str, attributes: dict[str, str], omitted: set[str]) -> bool:
    if name in omitted:
        return True
    return name not in _VOID and (
        "hidden" in attributes
        or attributes.get("aria-hidden") == "true"
        or attributes.get("role") in ("navigation", "doc-backlink", "doc-toc")
        or ("style" in attributes and _HIDDEN_STYLE.search(attributes["style"]) is not None)
    )


def _note_metadata(page: HtmlReader, name: str, attributes: dict[str, str]) -> None:
    if name == "html" and attributes.get("lang"):
        page.metadata["language"] = attributes["lang"]
    elif name == "meta":
        key = _METADATA.get((attributes.get("name") or attributes.get("property") or "").lower())
        if key and attributes.get("content"):
            page.metadata.setdefault(key, one_line(unescape(attributes["content"])))


def _skip_element(text: str, position: int, end: int, name: str, page: HtmlReader) -> int:
    """The end of an omitted element: its closing tag, after those of nested elements with the same name."""
    if name == "head" and page.has_head:
        return position
    page.has_head |= name == "head"
    depth = 1
    for tag in _TAG.finditer(text, position, end):
        if tag[2].lower() != name:
            continue
        tag_end = text.index(">", tag.end()) + 1
        depth += -1 if tag[1] else 0 if name in _RAW_TEXT or text[tag_end - 2] == "/" else 1
        if depth == 0:
            if name == "head":
                _read_head(page, text[position : tag.start()])
            return tag_end
    return position if name == "head" else len(text)


def _read_head(page: HtmlReader, text: str) -> None:
    if tag := _TITLE.search(text):
        title, closing_tag, _ = text[tag.end() : tag.end() + MAX_TITLE_CHARS].partition("</")
        page.title = one_line(unescape(title)) if closing_tag else ""
    for token in _TOKEN.finditer(text, 0, text.rfind(">") + 1):
        if (token["name"] or "").lower() == "meta":
            _note_metadata(page, "meta", _attributes(token["rest"]))


def write(blocks: Iterable[HtmlBlock], builder: TextBuilder) -> None:
    """Write the blocks of a page."""
    for block in blocks:
        if block.kind == "item":
            builder.add_item(list_item(block.text, block.level, block.mark) if block.mark else f"  {block.text}")
            continue
        builder.flush()
        if block.kind == "heading":
            builder.add_heading(block.text, block.level)
        elif block.kind == "table":
            builder.add_table(block.rows)
        elif block.kind == "code":
            builder.add_code(block.text)
        else:
            builder.add_text(block.text)
    builder.flush()
