"""Word documents.

The XML is read directly, because a document is more than its paragraphs: the numbers of headings and list items are
counted and not stored, deleted text is still there, and text boxes are stored twice.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from xml.etree.ElementTree import Element

from almanac.core.text import one_line
from almanac.knowledge.parsers import archives
from almanac.knowledge.parsers.office import ooxml
from almanac.knowledge.parsers.office.numbering import Numbering, read_numbering
from almanac.knowledge.parsers.parsed_file import ParsedFile
from almanac.knowledge.parsers.text_builder import TextBuilder, list_item, single_spaces
from almanac.knowledge.parsers.web import xml_file
from almanac.knowledge.parsers.web.xml_file import attribute, child, descendants, local_name, read_part

MAX_STYLE_ANCESTORS = 20
MAX_COLUMN_SPAN = 100

_CHARACTERS = {"tab": "\t", "br": "\n", "cr": "\n", "noBreakHyphen": "-", "ptab": "\t"}
_OMITTED = {"pPr", "rPr", "del", "moveFrom", "instrText", "delText", "rt", "txbxContent", "sectPr", "tblPr",
            "Fallback"}  # fmt: skip
_WRAPPERS = {"sdt", "sdtContent", "ins", "moveTo", "customXml", "smartTag"}
_HEADING = re.compile(r"heading (\d)")
_CONTENTS = re.compile(r"toc \d|toc heading|table of (figures|authorities)|index \d")
_CODE = re.compile(r"\bcode\b|preformatted|sourcecode|macro text")


@dataclass(frozen=True, slots=True)
class Style:
    """The properties of a paragraph style that affect the text."""

    name: str = ""
    parent: str = ""
    level: int = 0  # of a heading
    list_id: str = ""
    list_level: int = 0


@dataclass(slots=True)
class DocxWriter:
    """Writes the elements of a document."""

    styles: dict[str, Style]
    numbering: Numbering
    builder: TextBuilder = field(default_factory=TextBuilder)
    notes: list[tuple[str, str]] = field(default_factory=list[tuple[str, str]])  # type and id, in order of reference

    def write(self, element: Element) -> None:
        """Write a paragraph, a table, or a wrapper of these."""
        name = local_name(element)
        if name == "p":
            self._write_paragraph(element)
        elif name == "tbl":
            self.builder.flush()
            self.builder.add_table(self._rows(element))
        elif name in _WRAPPERS:
            for inner in element:
                self.write(inner)

    def _write_paragraph(self, element: Element) -> None:
        properties = child(element, "pPr")
        style = self._style(properties)
        text = single_spaces(self.text(element))
        boxes = list(descendants(element, "txbxContent"))
        if text and not _CONTENTS.match(style.name):
            self._write_text(element, text, style, properties)
        for box in _without_fallbacks(element, boxes):
            for inner in box:
                self.write(inner)

    def _write_text(self, element: Element, text: str, style: Style, properties: Element | None) -> None:
        label, depth = self._label(style, properties)
        if style.level:
            self.builder.add_heading(f"{label} {text}" if label not in ("", "-") else text, style.level)
        elif _CODE.search(style.name):
            self.builder.add_code_line(self.text(element).rstrip())
        elif label:
            self.builder.add_item(list_item(text, depth, label))
        else:
            self.builder.add_text(text)

    def _style(self, properties: Element | None) -> Style:
        """The style of a paragraph, with the heading level of the paragraph itself if it has one."""
        style = self.styles.get(ooxml.value(properties, "pStyle"), Style())
        level = _level(properties)
        return replace(style, level=level) if level else style

    def _label(self, style: Style, properties: Element | None) -> tuple[str, int]:
        """The number or bullet of a paragraph, and its depth in the list."""
        numbering = child(properties, "numPr")
        list_id = ooxml.value(numbering, "numId") or style.list_id
        depth = int(ooxml.value(numbering, "ilvl") or style.list_level)
        return (self.numbering.next_label(list_id, depth), depth) if list_id else ("", 0)

    def text(self, element: Element) -> str:
        """The text of a paragraph, without its text boxes."""
        return "".join(self._words(element))

    def _words(self, element: Element) -> Iterator[str]:
        for inner in element:
            name = local_name(inner)
            if name == "t":
                yield inner.text or ""
            elif name in _CHARACTERS:
                yield _CHARACTERS[name]
            elif name in ("footnoteReference", "endnoteReference"):
                self.notes.append((name.removesuffix("Reference"), attribute(inner, "id")))
                yield f"[^{len(self.notes)}]"
            elif name == "docPr" and attribute(inner, "descr"):
                yield f" [{one_line(attribute(inner, 'descr'))}] "
            elif name not in _OMITTED and len(inner):
                yield from self._words(inner)

    def _rows(self, table: Element) -> list[list[str]]:
        rows: list[list[str]] = []
        for row in xml_file.grouped_children(table, ("tr",), _WRAPPERS):
            cells: list[str] = []
            for cell in xml_file.grouped_children(row, ("tc",), _WRAPPERS):
                properties = child(cell, "tcPr")
                above = rows[-1][len(cells)] if rows and len(rows[-1]) > len(cells) else ""
                cells.append(above if _continues_cell_above(properties) else self.cell_text(cell))
                cells += [""] * (min(int(ooxml.value(properties, "gridSpan") or 1), MAX_COLUMN_SPAN) - 1)
            rows.append(cells)
        return rows

    def cell_text(self, cell: Element) -> str:
        """The text of a cell on one line, including tables within it."""
        parts: list[str] = []
        for inner in cell:
            name = local_name(inner)
            if name == "p":
                parts.append(one_line(self.text(inner)))
                boxes = _without_fallbacks(inner, list(descendants(inner, "txbxContent")))
                parts += [self.cell_text(box) for box in boxes]
            elif name == "tbl":
                parts += [", ".join(filter(None, row)) for row in self._rows(inner)]
            elif name in _WRAPPERS:
                parts.append(self.cell_text(inner))
        return "; ".join(filter(None, parts)) if child(cell, "tbl") is not None else " ".join(filter(None, parts))


def parse(path: Path, name: str) -> ParsedFile:
    with archives.open_archive(path) as archive:
        part = ooxml.main_part(archive, "word/document.xml")
        numbering = read_part(archive, ooxml.related_part(archive, part, "numbering"))
        styles = read_part(archive, ooxml.related_part(archive, part, "styles"))
        writer = DocxWriter(_read_styles(styles), read_numbering(numbering))
        for element in xml_file.iterate_children(archive.stream(part), ("body",)):
            writer.write(element)
        _write_notes(writer, archive, part)
        title, metadata = ooxml.properties(archive)
        return writer.builder.finish(title, metadata, ooxml.warnings(archive))


def _write_notes(writer: DocxWriter, archive: archives.Archive, part: str) -> None:
    """Write the footnotes and endnotes in the order of their references."""
    writer.builder.flush()
    notes: dict[tuple[str, str], Element] = {}
    for note_type in ("footnote", "endnote"):
        root = read_part(archive, ooxml.related_part(archive, part, f"{note_type}s"))
        notes |= {(note_type, attribute(note, "id")): note for note in (() if root is None else root)}
    for number, key in enumerate(list(writer.notes), 1):
        if key in notes:
            writer.builder.add_text(f"[^{number}]: {writer.cell_text(notes[key])}")


def _read_styles(root: Element | None) -> dict[str, Style]:
    styles = {
        attribute(element, "styleId"): _read_style(element)
        for element in (() if root is None else root)
        if local_name(element) == "style"
    }
    return {style_id: _with_inherited_level(style, styles) for style_id, style in styles.items()}


def _read_style(element: Element) -> Style:
    name = ooxml.value(element, "name").lower()
    properties = child(element, "pPr")
    numbering = child(properties, "numPr")
    heading = _HEADING.fullmatch(name)
    level = int(heading[1]) if heading else 1 if name == "title" else _level(properties)
    list_level = int(ooxml.value(numbering, "ilvl") or 0)
    return Style(name, ooxml.value(element, "basedOn"), level, ooxml.value(numbering, "numId"), list_level)


def _with_inherited_level(style: Style, styles: dict[str, Style]) -> Style:
    """The style with the heading level of its nearest ancestor that has one."""
    level, parent, ancestors = style.level, style.parent, 0
    while not level and parent in styles and ancestors < MAX_STYLE_ANCESTORS:
        level, parent, ancestors = styles[parent].level, styles[parent].parent, ancestors + 1
    return replace(style, level=level) if level != style.level else style


def _level(properties: Element | None) -> int:
    value = ooxml.value(properties, "outlineLvl")
    return int(value) + 1 if value.isdigit() and int(value) < 9 else 0


def _continues_cell_above(properties: Element | None) -> bool:
    """Whether a cell is the lower part of a cell that spans several rows."""
    return child(properties, "vMerge") is not None and ooxml.value(properties, "vMerge") != "restart"


def _without_fallbacks(element: Element, boxes: list[Element]) -> list[Element]:
    """The text boxes, which are stored twice, for new and for old readers: the new form, if there is one."""
    if not boxes:
        return []
    old = {id(box) for fallback in descendants(element, "Fallback") for box in descendants(fallback, "txbxContent")}
    nested = {id(inner) for box in boxes for inner in descendants(box, "txbxContent") if inner is not box}
    return [box for box in boxes if id(box) not in nested and (id(box) not in old or len(old) == len(boxes))]
