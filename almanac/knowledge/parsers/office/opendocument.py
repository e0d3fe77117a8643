"""OpenDocument texts, presentations and drawings."""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from xml.etree.ElementTree import Element

from almanac.knowledge.parsers import archives
from almanac.knowledge.parsers.archives import Archive
from almanac.knowledge.parsers.office.numbering import Level, Numbering, written
from almanac.knowledge.parsers.parsed_file import ParsedFile, UnreadableFile
from almanac.knowledge.parsers.text_builder import TextBuilder, bullet, squeeze, tidy
from almanac.knowledge.parsers.web import xml_file
from almanac.knowledge.parsers.web.xml_file import attribute, child, descendants, local

MOST_OF_A_PART = 50_000_000
MOST_REPEATS = 100  # of a cell or a row that says it stands for many

_SAID = {"initial-creator": "author", "creator": "author", "creation-date": "created", "date": "modified",
         "subject": "subject", "description": "description", "language": "language"}  # fmt: skip
_LEFT_OUT = {"annotation", "annotation-end", "tracked-changes", "ruby-text", "table-of-content", "notes", "forms",
             "sequence-decls", "note", "text-box", "alphabetical-index", "table-index"}  # fmt: skip
_AROUND = {"section", "index-body", "text-box", "frame", "g", "a", "custom-shape", "rect", "list-header"}
_SHAPES = {"custom-shape", "rect", "ellipse", "line", "connector", "polygon", "path", "caption"}
_CODE = re.compile(r"preformatted|source.?code|\bcode\b", re.IGNORECASE)
_OUTLINE = "outline"
_FORMS = {"1": "decimal", "a": "lowerLetter", "A": "upperLetter", "i": "lowerRoman", "I": "upperRoman"}


@dataclass(slots=True)
class OdfWriter:
    """Goes through a document and writes it down."""

    draft: TextBuilder = field(default_factory=TextBuilder)
    parents: dict[str, str] = field(default_factory=dict[str, str])  # styles made for one paragraph → what they adapt
    lists: dict[str, list[Level]] = field(default_factory=dict[str, list[Level]])  # list styles, level by level
    outline: Numbering = field(default_factory=Numbering)
    notes: list[Element] = field(default_factory=list[Element])
    items: list[str] = field(default_factory=list[str])  # of the list under way
    listing: list[str] = field(default_factory=list[str])  # lines of the code under way

    def write(self, element: Element) -> None:
        """A part of a text or of a page."""
        name = local(element)
        if name == "style":
            self.parents[attribute(element, "name")] = attribute(element, "parent-style-name")
        elif name == "list-style":
            self.lists[attribute(element, "name")] = [read_level(each, 0) for each in element]
        elif name == "p" and self._is_code(element):
            self.flush_list()
            self.listing.append(self.text(element).rstrip())
            return
        elif name == "list":
            self.flush_code()
            self.items += self._items(element, 0, "")
            return
        self.flush()
        if name == "p":
            self._paragraph(element)
        elif name == "h":
            self._heading(element)
        elif name == "table":
            self.draft.table(self._rows(element))
        elif name == "page":
            self._page(element)
        elif name in _AROUND:
            for each in element:
                self.write(each)

    def flush(self) -> None:
        """Finish the list or the code under way."""
        self.flush_list()
        self.flush_code()

    def flush_list(self) -> None:
        self.draft.text("\n".join(self.items))
        self.items.clear()

    def flush_code(self) -> None:
        if self.listing:
            self.draft.code("\n".join(self.listing))
            self.listing.clear()

    def _is_code(self, element: Element) -> bool:
        style = attribute(element, "style-name")
        return bool(_CODE.search(f"{style} {self.parents.get(style, '')}".replace("_20_", " ")))

    def _paragraph(self, element: Element) -> None:
        style = attribute(element, "style-name")
        if "Title" in (style, self.parents.get(style)):
            self.draft.heading(self.text(element), 1)
        else:
            self.draft.text(tidy(self.text(element)))
        self._boxes(element)

    def _heading(self, element: Element) -> None:
        level = int(attribute(element, "outline-level") or 1)
        is_numbered = attribute(element, "is-list-header") != "true"
        label = self.outline.label(_OUTLINE, level - 1) if is_numbered else ""
        self.draft.heading(f"{label} {self.text(element)}", level)

    def _boxes(self, element: Element) -> None:
        """Text boxes anchored in a paragraph follow it."""
        for each in element:
            if local(each) == "text-box":
                for part in each:
                    self.write(part)
            elif local(each) not in _LEFT_OUT:
                self._boxes(each)

    def text(self, element: Element) -> str:
        """The words of a paragraph."""
        return "".join(self._words(element))

    def _words(self, element: Element) -> Iterator[str]:
        yield element.text or ""
        for each in element:
            name = local(each)
            if name == "s":
                yield " " * min(int(attribute(each, "c") or 1), 1000)
            elif name in ("tab", "line-break"):
                yield "\t" if name == "tab" else "\n"
            elif name == "note":
                self.notes.append(each)
                yield f"[^{len(self.notes)}]"
            elif name in ("desc", "title"):
                yield f" [{squeeze(each.text or '')}] " if squeeze(each.text or "") else ""
            elif name not in _LEFT_OUT:
                yield from self._words(each)
            yield each.tail or ""

    def _items(self, element: Element, depth: int, outer: str) -> Iterator[str]:
        """The items of a list, one to a line, with those of the lists inside it."""
        style = attribute(element, "style-name") or outer
        levels = self.lists.get(style, [])
        level = levels[depth] if depth < len(levels) else Level()
        for number, item in enumerate(element, level.first):
            mark = level.pattern.replace("%1", written(number, level.form)) if level.form != "bullet" else "-"
            texts = [tidy(self.text(each)) for each in item if local(each) in ("p", "h")]
            if any(texts):
                yield bullet("\n".join(filter(None, texts)), depth, mark)
            for inner in (each for each in item if local(each) == "list"):
                yield from self._items(inner, depth + 1, style)

    def _rows(self, table: Element) -> list[list[str]]:
        rows: list[list[str]] = []
        covered: set[tuple[int, int]] = set()  # places below a cell that spans several rows; its words are repeated
        for row in _inside(table, ("table-row",)):
            cells: list[str] = []
            for cell in _inside(row, ("table-cell", "covered-table-cell")):
                repeats = min(int(attribute(cell, "number-columns-repeated") or 1), MOST_REPEATS)
                column = len(cells)
                if (column, len(rows)) in covered:
                    cells += [rows[-1][column], *[""] * (repeats - 1)]
                    continue
                cells += [self.cell(cell)] * repeats
                below = min(int(attribute(cell, "number-rows-spanned") or 1), MOST_REPEATS)
                covered |= {(column, len(rows) + extra) for extra in range(1, below)}
            rows += [cells] * min(int(attribute(row, "number-rows-repeated") or 1), MOST_REPEATS)
        return rows

    def cell(self, cell: Element) -> str:
        """The words of a cell on one line, those of tables and lists inside it too."""
        parts: list[str] = []
        for each in cell:
            if local(each) in ("p", "h"):
                parts.append(squeeze(self.text(each)))
            elif local(each) == "table":
                parts.append("; ".join(", ".join(filter(None, row)) for row in self._rows(each)))
            elif local(each) in _AROUND or local(each) in ("list", "list-item"):
                parts.append(self.cell(each))
        return " ".join(filter(None, parts))

    def _page(self, page: Element) -> None:
        """A slide: its title first, then all else in order, then the speaker's notes."""
        self.flush()
        self.draft.page(attribute(page, "name"))
        titles = [each for each in page if attribute(each, "class") == "title"]
        for title in titles:
            level = 2 if self.draft.blocks else 1  # the first is the title of it all
            self.draft.heading(squeeze(" ".join(self.cell(box) for box in title)), level)
        for each in page:
            if each not in titles and local(each) != "notes":
                self._frame(each)
        self.flush()
        notes = child(page, "notes")
        frames = [] if notes is None else [each for each in notes if attribute(each, "class") == "notes"]
        text = " ".join(squeeze(self.cell(box)) for frame in frames for box in frame)
        self.draft.text(f"Notes: {text}" if text.strip() else "")

    def _frame(self, frame: Element) -> None:
        """A shape: its own words, then what it holds."""
        if local(frame) in _SHAPES:
            for each in frame:
                self.write(each)
        else:
            self.write(frame)


def parse(path: Path, name: str) -> ParsedFile:
    writer = OdfWriter()
    with archives.open_archive(path) as archive:
        refuse_protected(archive)
        if not archive.has("content.xml"):
            raise UnreadableFile("corrupt", archives.BROKEN)
        writer.outline = _read_outline(archive)
        places = ("automatic-styles", "text", "presentation", "drawing")
        for element in xml_file.elements(archive.stream("content.xml"), places):
            writer.write(element)
        writer.flush()
        for number, note in enumerate(writer.notes, 1):
            body = child(note, "note-body")
            writer.draft.text(f"[^{number}]: {'' if body is None else writer.cell(body)}")
        title, metadata = properties(archive)
        return writer.draft.parsed(title, metadata)


def refuse_protected(archive: Archive) -> None:
    """Of a document with a password, only the list of its parts can be read."""
    manifest = xml_file.tree(archive.read("META-INF/manifest.xml", MOST_OF_A_PART))
    if manifest is not None and next(descendants(manifest, "encryption-data"), None) is not None:
        raise UnreadableFile("encrypted", archives.ENCRYPTED)


def properties(archive: Archive) -> tuple[str, dict[str, str]]:
    """The title of the document, and its metadata."""
    root = xml_file.tree(archive.read("meta.xml", MOST_OF_A_PART))
    found = [] if root is None else [(local(each), squeeze(each.text or "")) for each in root.iter()]
    said = {_SAID[name]: value for name, value in found if name in _SAID and value}
    if keywords := ", ".join(value for name, value in found if name == "keyword" and value):
        said["keywords"] = keywords
    return next((value for name, value in found if name == "title"), ""), said


def read_level(level: Element, depth: int) -> Level:
    """How the items of a level, or headings, are numbered."""
    form = _FORMS.get(attribute(level, "num-format"), "")
    if not form:
        return Level("none" if local(level) == "outline-level-style" else "bullet")
    shown = min(int(attribute(level, "display-levels") or 1), depth + 1)
    places = ".".join(f"%{place}" for place in range(depth + 2 - shown, depth + 2))
    pattern = f"{attribute(level, 'num-prefix')}{places}{attribute(level, 'num-suffix')}"
    return Level(form, pattern, int(attribute(level, "start-value") or 1))


def _read_outline(archive: Archive) -> Numbering:
    """How headings are numbered."""
    root = xml_file.tree(archive.read("styles.xml", MOST_OF_A_PART))
    found = None if root is None else next(descendants(root, "outline-style"), None)
    levels = [read_level(each, depth) for depth, each in enumerate([] if found is None else found)]
    return Numbering({_OUTLINE: _OUTLINE}, {(_OUTLINE, depth): level for depth, level in enumerate(levels)})


def _inside(element: Element, names: tuple[str, ...]) -> Iterator[Element]:
    """The rows of a table or the cells of a row, those in groups too."""
    for each in element:
        if local(each) in names:
            yield each
        elif local(each) in ("table-header-rows", "table-rows", "table-row-group"):
            yield from _inside(each, names)
