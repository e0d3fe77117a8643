"""Web pages: what a reader would see of them.

A page is a stream of tags, and a broken page is still one: nothing here expects tags to match. Tables that only
arrange other things, as in mails, are taken apart again.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from html import unescape
from pathlib import Path

from almanac.knowledge.parsers.parsed_file import ParsedFile
from almanac.knowledge.parsers.text import encodings
from almanac.knowledge.parsers.text_builder import TextBuilder, bullet, squeeze, tidy

DEEPEST_TABLE = 30
LONGEST_TITLE = 2_000  # characters
LONGEST_CELL = 1_000  # characters; a cell with more is a part of the page
WIDEST_SPAN = 100

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
_WHITE = re.compile(r"\s+")
_HIDDEN = re.compile(r"display\s*:\s*none|visibility\s*:\s*hidden", re.I)

_RAW = {"script", "style", "textarea", "xmp", "noembed", "noframes"}  # whose content has no tags
_SILENT = {"head", "template", "svg", "nav", "button", "select", "datalist", "iframe", "object", "canvas", "video",
           "audio", "dialog", "map", "rt", "rp"}  # fmt: skip
_VOID = {"area", "base", "br", "col", "embed", "hr", "img", "input", "link", "meta", "source", "track", "wbr"}
_BLOCKS = {"address", "article", "aside", "blockquote", "body", "caption", "center", "dd", "details", "dialog", "div",
           "dl", "dt", "fieldset", "figcaption", "figure", "footer", "form", "header", "hgroup", "hr", "html", "legend",
           "li", "main", "menu", "ol", "p", "pre", "section", "summary", "table", "tbody", "td", "tfoot", "th", "thead",
           "title", "tr", "ul", "h1", "h2", "h3", "h4", "h5", "h6"}  # fmt: skip
_SAID = {"author": "author", "description": "description", "keywords": "keywords", "date": "created",
         "dcterms.date": "created", "article:published_time": "created", "og:title": "title"}  # fmt: skip


@dataclass(slots=True)
class HtmlBlock:
    """A part of a page: a heading, a paragraph, an item of a list, code or a table."""

    kind: str
    text: str = ""
    level: int = 0  # of a heading; how deep an item is
    mark: str = "-"
    rows: list[list[str]] = field(default_factory=list[list[str]])


@dataclass(slots=True)
class Table:
    """A table under way."""

    rows: list[list[str]] = field(default_factory=list[list[str]])
    cell: list[HtmlBlock] | None = None
    span: tuple[int, int] = (1, 1)  # columns and rows of the cell under way
    below: dict[int, tuple[int, str]] = field(default_factory=dict[int, tuple[int, str]])  # column → rows to come, text
    inside: list[HtmlBlock] = field(
        default_factory=list[HtmlBlock]
    )  # everything in it, in case it only arranges things
    around: list[HtmlBlock] = field(default_factory=list[HtmlBlock])  # what is in none of its cells, such as a caption
    is_layout: bool = False


@dataclass(slots=True)
class HtmlReader:
    """A page while it is being read."""

    pieces: list[HtmlBlock] = field(default_factory=list[HtmlBlock])
    words: list[str] = field(default_factory=list[str])
    tables: list[Table] = field(default_factory=list[Table])
    lists: list[int] = field(default_factory=list[int])  # the number of the last item, or -1 for bullets
    item: str = ""  # the mark of an item that has no text yet
    heading: int = 0
    preformatted: int = 0
    raised: int = -1  # where a superscript begins, counted in words
    reference: int = -1  # where a reference to a note begins
    title: str = ""
    has_head: bool = False
    said: dict[str, str] = field(default_factory=dict[str, str])

    def write(self, text: str) -> None:
        """Words as they come."""
        shown = unescape(text) if "&" in text else text
        self.words.append(shown if self.preformatted else _WHITE.sub(" ", shown))

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
            self._open_row()
        elif name == "table" and len(self.tables) < DEEPEST_TABLE:
            self.tables.append(Table())
        elif len(name) == 2 and name[0] == "h" and name[1] in "123456":
            self.heading = int(name[1])
        elif name == "pre":
            self.preformatted += 1
        elif name == "img" and squeeze(attributes.get("alt", "")):
            self.words.append(f"[{squeeze(unescape(attributes['alt']))}]")
        elif name == "sup":
            self.raised = len(self.words)
        elif name == "a" and "noteref" in (attributes.get("role", "") + attributes.get("epub:type", "")):
            self.reference = len(self.words)

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
        elif name == "sup" and self.raised >= 0:
            self._raise()
        elif name == "a" and self.reference >= 0:
            self._refer()

    def flush(self) -> None:
        """Finish the paragraph under way."""
        if not self.words:
            return
        text = "".join(self.words)
        self.words.clear()
        self.reference = -1
        shown = text if self.preformatted else tidy(text)
        if shown.strip():
            self._add(self._piece(shown))

    def _piece(self, text: str) -> HtmlBlock:
        if self.preformatted:
            return HtmlBlock("code", text)
        if self.heading:
            return HtmlBlock("heading", squeeze(text), self.heading)
        if self.lists:
            mark, self.item = self.item, ""
            return HtmlBlock("item", text, len(self.lists) - 1, mark)
        return HtmlBlock("text", text)

    def _add(self, piece: HtmlBlock) -> None:
        """A piece goes into the innermost cell."""
        if not self.tables:
            self.pieces.append(piece)
            return
        table = self.tables[-1]
        table.inside.append(piece)
        (table.around if table.cell is None else table.cell).append(piece)
        if table.cell is not None:
            table.is_layout |= piece.kind in ("heading", "table", "code") or len(piece.text) > LONGEST_CELL

    def _open_item(self) -> None:
        self.item = "-"
        if self.lists and self.lists[-1] >= 0:
            self.lists[-1] += 1
            self.item = f"{self.lists[-1]}."

    def _open_row(self) -> None:
        self._close_cell()
        self.tables[-1].rows.append([])

    def _open_cell(self, attributes: dict[str, str]) -> None:
        if not self.tables:
            return
        self._close_cell()
        table = self.tables[-1]
        if not table.rows:
            table.rows.append([])
        self._fill_from_above(table)
        table.cell = []
        table.span = (_span(attributes.get("colspan", "")), _span(attributes.get("rowspan", "")))

    def _fill_from_above(self, table: Table) -> None:
        """Cells of rows above that reach down to here; their words are repeated, so that each row says it all."""
        row = table.rows[-1]
        while len(row) in table.below and len(row) < WIDEST_SPAN:
            left, text = table.below.pop(len(row))
            if left > 1:
                table.below[len(row)] = (left - 1, text)
            row.append(text)

    def _close_cell(self) -> None:
        table = self.tables[-1]
        if table.cell is None:
            return
        text = " ".join(piece.text for piece in table.cell)
        table.cell = None
        columns, rows = table.span
        row = table.rows[-1]
        if rows > 1:
            table.below |= {len(row) + extra: (rows - 1, "" if extra else text) for extra in range(columns)}
        row += [text, *[""] * (columns - 1)]

    def _close_table(self) -> None:
        self._close_cell()
        table = self.tables.pop()
        for piece in table.inside if table.is_layout else [*table.around, HtmlBlock("table", rows=table.rows)]:
            self._add(piece)

    def _raise(self) -> None:
        if "".join(self.words[self.raised :]).strip().isdigit():
            self.words.insert(self.raised, "^")
        self.raised = -1

    def _refer(self) -> None:
        number = squeeze("".join(self.words[self.reference :])).strip("^[]")
        self.words[self.reference :] = [f"[^{number}]"]
        self.reference = -1


def _span(value: str) -> int:
    return min(_number(value), WIDEST_SPAN) or 1


def _number(value: str) -> int:
    """What an attribute counts; 1 where it counts nothing."""
    return int(value) if value.isascii() and value.isdigit() and len(value) < 10 else 1


def parse(path: Path, name: str) -> ParsedFile:
    page = read(decode(path.read_bytes()))
    draft = TextBuilder()
    write(page.pieces, draft)
    return draft.parsed(page.title or page.said.get("title", ""), {k: v for k, v in page.said.items() if k != "title"})


def decode(content: bytes) -> str:
    """The text of a page, in the encoding it names if it is in that."""
    named = _CHARSET.search(content[:4096])
    try:
        return content.decode(named[1].decode("ascii") if named else "utf-8").removeprefix("\ufeff")
    except (UnicodeDecodeError, LookupError):
        return encodings.decode(content)[0]


def read(text: str) -> HtmlReader:
    """A page in pieces. One whose menu is never closed would be nothing but menu: then nothing is left out."""
    page = _read(text, _SILENT | {"footer"})
    return page if page.pieces else _read(text, {"head", "template"})


def _read(text: str, silent: set[str]) -> HtmlReader:
    page = HtmlReader()
    place, last = 0, _last(text)
    while token := _TOKEN.search(text, place, last):
        if token["open"] is not None:
            break
        if token.start() > place:
            page.write(text[place : token.start()])
        place = token.end()
        name = (token["name"] or token["name2"] or "").lower()
        if not name:
            continue
        if token["close"] or token["close2"]:
            page.close(name)
            continue
        attributes = _attributes(token["rest"] or token["rest2"] or "")
        _note(page, name, attributes)
        if name in _RAW or _is_silent(name, attributes, silent):
            place = _after(text, place, last, name, page)
        else:
            page.open(name, attributes)
    page.write(text[place:].partition("<!--")[0])
    page.flush()
    while page.tables:
        page.close("table")
    return page


def _last(text: str) -> int:
    """Where the last tag ends. Looking no further, no search runs to the end of the text for nothing."""
    return text.rfind(">") + 1


def _attributes(text: str) -> dict[str, str]:
    if not text.strip(" /\n"):
        return {}
    return {found[1].lower(): found[2] or found[3] or found[4] or "" for found in _ATTRIBUTE.finditer(text)}


def _is_silent(name: str, attributes: dict[str, str], silent: set[str]) -> bool:
    if name in silent:
        return True
    return name not in _VOID and (
        "hidden" in attributes
        or attributes.get("aria-hidden") == "true"
        or attributes.get("role") in ("navigation", "doc-backlink", "doc-toc")
        or ("style" in attributes and _HIDDEN.search(attributes["style"]) is not None)
    )


def _note(page: HtmlReader, name: str, attributes: dict[str, str]) -> None:
    """What a page says of itself."""
    if name == "html" and attributes.get("lang"):
        page.said["language"] = attributes["lang"]
    elif name == "meta":
        key = _SAID.get((attributes.get("name") or attributes.get("property") or "").lower())
        if key and attributes.get("content"):
            page.said.setdefault(key, squeeze(unescape(attributes["content"])))


def _after(text: str, place: int, last: int, name: str, page: HtmlReader) -> int:
    """Where what is left out ends: at the tag that closes it, counting those of its kind inside it."""
    if name == "head" and page.has_head:
        return place
    page.has_head |= name == "head"
    depth = 1
    for found in _TAG.finditer(text, place, last):
        if found[2].lower() != name:
            continue
        end = text.index(">", found.end()) + 1
        depth += -1 if found[1] else 0 if name in _RAW or text[end - 2] == "/" else 1
        if depth == 0:
            if name == "head":
                _read_head(page, text[place : found.start()])
            return end
    return place if name == "head" else len(text)


def _read_head(page: HtmlReader, text: str) -> None:
    if title := _TITLE.search(text):
        shown, closed, _ = text[title.end() : title.end() + LONGEST_TITLE].partition("</")
        page.title = squeeze(unescape(shown)) if closed else ""
    for token in _TOKEN.finditer(text, 0, _last(text)):
        if (token["name"] or "").lower() == "meta":
            _note(page, "meta", _attributes(token["rest"]))


def write(pieces: Iterable[HtmlBlock], draft: TextBuilder) -> None:
    """Put the pieces of a page into a draft."""
    items: list[str] = []
    for piece in pieces:
        if piece.kind == "item":
            items.append(bullet(piece.text, piece.level, piece.mark) if piece.mark else f"  {piece.text}")
            continue
        draft.text("\n".join(items))
        items.clear()
        _write_one(piece, draft)
    draft.text("\n".join(items))


def _write_one(piece: HtmlBlock, draft: TextBuilder) -> None:
    if piece.kind == "heading":
        draft.heading(piece.text, piece.level)
    elif piece.kind == "table":
        draft.table(piece.rows)
    elif piece.kind == "code":
        draft.code(piece.text)
    else:
        draft.text(piece.text)
