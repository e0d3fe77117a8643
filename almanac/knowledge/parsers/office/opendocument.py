"""OpenDocument texts, presentations and drawings."""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from xml.etree.ElementTree import Element

from almanac.core.text import one_line
from almanac.knowledge.parsers import archives
from almanac.knowledge.parsers.archives import Archive
from almanac.knowledge.parsers.office.numbering import Level, Numbering, format_number
from almanac.knowledge.parsers.parsed_file import ParsedFile, UnreadableFile
from almanac.knowledge.parsers.text_builder import TextBuilder, list_item, single_spaces
from almanac.knowledge.parsers.web import xml_file
from almanac.knowledge.parsers.web.xml_file import attribute, child, children, descendants, local_name, read_part

MAX_REPEATS = 100  # of a cell or a row that stands for several
MAX_SPACES = 1_000  # in a row

_METADATA = {"initial-creator": "author", "creator": "author", "creation-date": "created", "date": "modified",
             "subject": "subject", "description": "description", "language": "language"}  # fmt: skip
_OMITTED = {"annotation", "annotation-end", "tracked-changes", "ruby-text", "table-of-content", "notes", "forms",
            "sequence-decls", "note", "text-box", "alphabetical-index", "table-index"}  # fmt: skip
_WRAPPERS = {"section", "index-body", "text-box", "frame", "g", "a", "custom-shape", "rect", "list-header"}
_ROW_GROUPS = ("table-header-rows", "table-rows", "table-row-group")
_SHAPES = {"custom-shape", "rect", "ellipse", "line", "connector", "polygon", "path", "caption"}
_CODE = re.compile(r"preformatted|source.?code|\bcode\b", re.IGNORECASE)
_OUTLINE = "outline"
_NUMBER_FORMS = {"1": "decimal", "a": "lowerLetter", "A": "upperLetter", "i": "lowerRoman", "I": "upperRoman"}


@dataclass(slots=True)
class OdfWriter:
    """Writes the elements of a document."""

    builder: TextBuilder = field(default_factory=TextBuilder)
    parents: dict[str, str] = field(default_factory=dict[str, str])  # automatic style → the style that it modifies
    lists: dict[str, list[Level]] = field(default_factory=dict[str, list[Level]])  # list styles, level by level
    outline: Numbering = field(default_factory=Numbering)
    notes: list[Element] = field(default_factory=list[Element])

    def write(self, element: Element) -> None:
        """Write a part of a text or of a page."""
        name = local_name(element)
        if name == "style":
            self.parents[attribute(element, "name")] = attribute(element, "parent-style-name")
        elif name == "list-style":
            self.lists[attribute(element, "name")] = [read_level(level, 0) for level in element]
        elif name == "p" and self._is_code(element):
            self.builder.add_code_line(self.text(element).rstrip())
            return
        elif name == "list":
            self._write_items(element, 0, "")
            return
        self.builder.flush()
        if name == "p":
            self._write_paragraph(element)
        elif name == "h":
            self._write_heading(element)
        elif name == "table":
            self.builder.add_table(self._rows(element))
        elif name == "page":
            self._write_page(element)
        elif name in _WRAPPERS:
            for inner in element:
                self.write(inner)

    def _is_code(self, element: Element) -> bool:
        style = attribute(element, "style-name")
        return bool(_CODE.search(f"{style} {self.parents.get(style, '')}".replace("_20_", " ")))

    def _write_paragraph(self, element: Element) -> None:
        style = attribute(element, "style-name")
        if "Title" in (style, self.parents.get(style)):
            self.builder.add_heading(self.text(element), 1)
        else:
            self.builder.add_text(single_spaces(self.text(element)))
        self._write_text_boxes(element)

    def _write_heading(self, element: Element) -> None:
        level = int(attribute(element, "outline-level") or 1)
        is_numbered = attribute(element, "is-list-header") != "true"
        label = self.outline.next_label(_OUTLINE, level - 1) if is_numbered else ""
        self.builder.add_heading(f"{label} {self.text(element)}", level)

    def _write_text_boxes(self, element: Element) -> None:
        """Write the text boxes that are anchored in a paragraph, after it."""
        for inner in element:
            if local_name(inner) == "text-box":
                for part in inner:
                    self.write(part)
            elif local_name(inner) not in _OMITTED:
                self._write_text_boxes(inner)

    def text(self, element: Element) -> str:
        """The text of a paragraph."""
        return "".join(self._words(element))

    def _words(self, element: Element) -> Iterator[str]:
        yield element.text or ""
        for inner in element:
            name = local_name(inner)
            if name == "s":
                yield " " * min(int(attribute(inner, "c") or 1), MAX_SPACES)
            elif name in ("tab", "line-break"):
                yield "\t" if name == "tab" else "\n"
            elif name == "note":
                self.notes.append(inner)
                yield f"[^{len(self.notes)}]"
            elif name in ("desc", "title"):
                yield f" [{one_line(inner.text or '')}] " if one_line(inner.text or "") else ""
            elif name not in _OMITTED:
                yield from self._words(inner)
            yield inner.tail or ""

    def _write_items(self, element: Element, depth: int, outer_style: str) -> None:
        """Write the items of a list and of the lists within it."""
        style = attribute(element, "style-name") or outer_style
        levels = self.lists.get(style, [])
        level = levels[depth] if depth < len(levels) else Level()
        for number, item in enumerate(element, level.first):
            is_bullet = level.form == "bullet"
            mark = "-" if is_bullet else level.pattern.replace("%1", format_number(number, level.form))
            texts = [single_spaces(self.text(text)) for text in item if local_name(text) in ("p", "h")]
            if any(texts):
                self.builder.add_item(list_item("\n".join(filter(None, texts)), depth, mark))
            for inner in children(item, "list"):
                self._write_items(inner, depth + 1, style)

    def _rows(self, table: Element) -> list[list[str]]:
        rows: list[list[str]] = []
        covered: set[tuple[int, int]] = set()  # columns and rows below a cell that spans rows; its text is repeated
        for row in xml_file.grouped_children(table, ("table-row",), _ROW_GROUPS):
            cells: list[str] = []
            for cell in xml_file.grouped_children(row, ("table-cell", "covered-table-cell"), _ROW_GROUPS):
                repeats = min(int(attribute(cell, "number-columns-repeated") or 1), MAX_REPEATS)
                column = len(cells)
                if (column, len(rows)) in covered:
                    cells += [rows[-1][column], *[""] * (repeats - 1)]
                    continue
                cells += [self.cell_text(cell)] * repeats
                spanned_rows = min(int(attribute(cell, "number-rows-spanned") or 1), MAX_REPEATS)
                covered |= {(column, len(rows) + extra) for extra in range(1, spanned_rows)}
            rows += [cells] * min(int(attribute(row, "number-rows-repeated") or 1), MAX_REPEATS)
        return rows

    def cell_text(self, cell: Element) -> str:
        """The text of a cell on one line, including tables and lists within it."""
        parts: list[str] = []
        for inner in cell:
            name = local_name(inner)
            if name in ("p", "h"):
                parts.append(one_line(self.text(inner)))
            elif name == "table":
                parts.append("; ".join(", ".join(filter(None, row)) for row in self._rows(inner)))
            elif name in _WRAPPERS or name in ("list", "list-item"):
                parts.append(self.cell_text(inner))
        return " ".join(filter(None, parts))

    def _write_page(self, page: Element) -> None:
        """Write a slide: its title, then its shapes in order, then the speaker's notes."""
        self.builder.start_page(attribute(page, "name"))
        titles = [shape for shape in page if attribute(shape, "class") == "title"]
        for title in titles:
            level = 2 if self.builder.blocks else 1  # the first is the title of the presentation
            self.builder.add_heading(one_line(" ".join(self.cell_text(box) for box in title)), level)
        for shape in page:
            if shape not in titles and local_name(shape) != "notes":
                self._write_shape(shape)
        self.builder.flush()
        notes = child(page, "notes")
        frames = [] if notes is None else [frame for frame in notes if attribute(frame, "class") == "notes"]
        text = " ".join(one_line(self.cell_text(box)) for frame in frames for box in frame)
        self.builder.add_text(f"Notes: {text}" if text.strip() else "")

    def _write_shape(self, shape: Element) -> None:
        """Write the text of a shape, or the content of a frame."""
        if local_name(shape) in _SHAPES:
            for inner in shape:
                self.write(inner)
        else:
            self.write(shape)


def parse(path: Path, name: str) -> ParsedFile:
    writer = OdfWriter()
    with archives.open_archive(path) as archive:
        refuse_protected(archive)
        if not archive.has("content.xml"):
            raise UnreadableFile("corrupt", archives.BROKEN)
        writer.outline = _read_outline(archive)
        containers = ("automatic-styles", "text", "presentation", "drawing")
        for element in xml_file.iterate_children(archive.stream("content.xml"), containers):
            writer.write(element)
        writer.builder.flush()
        for number, note in enumerate(writer.notes, 1):
            body = child(note, "note-body")
            writer.builder.add_text(f"[^{number}]: {'' if body is None else writer.cell_text(body)}")
        title, metadata = properties(archive)
        return writer.builder.finish(title, metadata)


def refuse_protected(archive: Archive) -> None:
    """Raise `UnreadableFile` for a document with a password; its list of parts is not encrypted."""
    manifest = read_part(archive, "META-INF/manifest.xml")
    if manifest is not None and next(descendants(manifest, "encryption-data"), None) is not None:
        raise UnreadableFile("encrypted", archives.ENCRYPTED)


def properties(archive: Archive) -> tuple[str, dict[str, str]]:
    """The title of the document and its metadata."""
    root = read_part(archive, "meta.xml")
    values = [] if root is None else [(local_name(value), one_line(value.text or "")) for value in root.iter()]
    metadata = {_METADATA[name]: value for name, value in values if name in _METADATA and value}
    if keywords := ", ".join(value for name, value in values if name == "keyword" and value):
        metadata["keywords"] = keywords
    return next((value for name, value in values if name == "title"), ""), metadata


def read_level(level: Element, depth: int) -> Level:
    """The numbering of a level of list items or headings."""
    form = _NUMBER_FORMS.get(attribute(level, "num-format"), "")
    if not form:
        return Level("none" if local_name(level) == "outline-level-style" else "bullet")
    displayed_levels = min(int(attribute(level, "display-levels") or 1), depth + 1)
    numbers = ".".join(f"%{number}" for number in range(depth + 2 - displayed_levels, depth + 2))
    pattern = f"{attribute(level, 'num-prefix')}{numbers}{attribute(level, 'num-suffix')}"
    return Level(form, pattern, int(attribute(level, "start-value") or 1))


def _read_outline(archive: Archive) -> Numbering:
    """The numbering of headings."""
    root = read_part(archive, "styles.xml")
    outline = None if root is None else next(descendants(root, "outline-style"), None)
    levels = [read_level(level, depth) for depth, level in enumerate([] if outline is None else outline)]
    return Numbering({_OUTLINE: _OUTLINE}, {(_OUTLINE, depth): level for depth, level in enumerate(levels)})
