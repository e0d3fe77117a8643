"""Word documents.

Read from the XML directly, because a document is more than its paragraphs: numbers of headings and list items are
counted rather than written, deleted text is still there, and text boxes come twice.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from xml.etree.ElementTree import Element

from almanac.knowledge.parsers import archives
from almanac.knowledge.parsers.office import ooxml
from almanac.knowledge.parsers.office.numbering import Numbering, read_numbering
from almanac.knowledge.parsers.parsed_file import ParsedFile
from almanac.knowledge.parsers.text_builder import TextBuilder, bullet, squeeze, tidy
from almanac.knowledge.parsers.web import xml_file
from almanac.knowledge.parsers.web.xml_file import attribute, child, descendants, local

_WRITTEN = {"tab": "\t", "br": "\n", "cr": "\n", "noBreakHyphen": "-", "ptab": "\t"}
_LEFT_OUT = {
    "pPr",
    "rPr",
    "del",
    "moveFrom",
    "instrText",
    "delText",
    "rt",
    "txbxContent",
    "sectPr",
    "tblPr",
    "Fallback",
}
_AROUND = {"sdt", "sdtContent", "ins", "moveTo", "customXml", "smartTag"}
_HEADING = re.compile(r"heading (\d)")
_CONTENTS = re.compile(r"toc \d|toc heading|table of (figures|authorities)|index \d")
_CODE = re.compile(r"\bcode\b|preformatted|sourcecode|macro text")


@dataclass(frozen=True, slots=True)
class Style:
    """What a paragraph style means to us."""

    name: str = ""
    parent: str = ""
    level: int = 0  # of a heading
    list_id: str = ""
    list_level: int = 0


@dataclass(slots=True)
class DocxWriter:
    """Goes through a document and writes it down."""

    styles: dict[str, Style]
    numbering: Numbering
    draft: TextBuilder = field(default_factory=TextBuilder)
    notes: list[tuple[str, str]] = field(default_factory=list[tuple[str, str]])  # kind and id, as referred to
    items: list[str] = field(default_factory=list[str])  # of the list under way
    listing: list[str] = field(default_factory=list[str])  # lines of the code under way

    def write(self, element: Element) -> None:
        """A paragraph, a table, or what wraps them."""
        name = local(element)
        if name == "p":
            self._paragraph(element)
        elif name == "tbl":
            self.flush()
            self.draft.table(self._rows(element))
        elif name in _AROUND:
            for each in element:
                self.write(each)

    def _paragraph(self, element: Element) -> None:
        properties = child(element, "pPr")
        style = self._style(properties)
        text = tidy(self.text(element))
        boxes = list(descendants(element, "txbxContent"))
        if text and not _CONTENTS.match(style.name):
            self._place(element, text, style, properties)
        for box in _without_fallbacks(element, boxes):
            for each in box:
                self.write(each)

    def _place(self, element: Element, text: str, style: Style, properties: Element | None) -> None:
        label, depth = self._label(style, properties)
        if style.level:
            self.flush()
            self.draft.heading(f"{label} {text}" if label not in ("", "-") else text, style.level)
        elif _CODE.search(style.name):
            self.flush(keep=self.listing)
            self.listing.append(self.text(element).rstrip())
        elif label:
            self.flush(keep=self.items)
            self.items.append(bullet(text, depth, label))
        else:
            self.flush()
            self.draft.text(text)

    def flush(self, keep: list[str] | None = None) -> None:
        """Finish the list or the code that the next paragraph does not continue."""
        if self.items and keep is not self.items:
            self.draft.text("\n".join(self.items))
            self.items.clear()
        if self.listing and keep is not self.listing:
            self.draft.code("\n".join(self.listing))
            self.listing.clear()

    def _style(self, properties: Element | None) -> Style:
        named = child(properties, "pStyle")
        style = self.styles.get(attribute(named, "val") if named is not None else "", Style())
        outline = child(properties, "outlineLvl")
        level = _level(outline)
        return Style(style.name, style.parent, level or style.level, style.list_id, style.list_level)

    def _label(self, style: Style, properties: Element | None) -> tuple[str, int]:
        numbered = child(properties, "numPr")
        list_id = _value(child(numbered, "numId")) or style.list_id
        depth = int(_value(child(numbered, "ilvl")) or style.list_level)
        return (self.numbering.label(list_id, depth), depth) if list_id else ("", 0)

    def text(self, element: Element) -> str:
        """The words of a paragraph, without those in its text boxes."""
        return "".join(self._words(element))

    def _words(self, element: Element) -> Iterator[str]:
        for each in element:
            name = local(each)
            if name == "t":
                yield each.text or ""
            elif name in _WRITTEN:
                yield _WRITTEN[name]
            elif name in ("footnoteReference", "endnoteReference"):
                yield self._refer(name.removesuffix("Reference"), attribute(each, "id"))
            elif name == "docPr" and attribute(each, "descr"):
                yield f" [{squeeze(attribute(each, 'descr'))}] "
            elif name not in _LEFT_OUT and len(each):
                yield from self._words(each)

    def _refer(self, kind: str, number: str) -> str:
        self.notes.append((kind, number))
        return f"[^{len(self.notes)}]"

    def _rows(self, table: Element) -> list[list[str]]:
        rows: list[list[str]] = []
        for row in _inside(table, "tr"):
            cells: list[str] = []
            for cell in _inside(row, "tc"):
                properties = child(cell, "tcPr")
                above = rows[-1][len(cells)] if rows and len(rows[-1]) > len(cells) else ""
                cells.append(above if _continues(properties) else self.cell(cell))
                cells += [""] * (min(int(_value(child(properties, "gridSpan")) or 1), 100) - 1)
            rows.append(cells)
        return rows

    def cell(self, cell: Element) -> str:
        """The words of a cell on one line, those of tables inside it too."""
        parts: list[str] = []
        for each in cell:
            if local(each) == "p":
                parts.append(squeeze(self.text(each)))
                parts += [self.cell(box) for box in _without_fallbacks(each, list(descendants(each, "txbxContent")))]
            elif local(each) == "tbl":
                parts += [", ".join(filter(None, row)) for row in self._rows(each)]
            elif local(each) in _AROUND:
                parts.append(self.cell(each))
        return "; ".join(filter(None, parts)) if child(cell, "tbl") is not None else " ".join(filter(None, parts))


def parse(path: Path, name: str) -> ParsedFile:
    with archives.open_archive(path) as archive:
        part = ooxml.main_part(archive, "word/document.xml")
        numbering = xml_file.tree(archive.read(ooxml.related(archive, part, "numbering"), ooxml.MOST_OF_A_PART))
        styles = xml_file.tree(archive.read(ooxml.related(archive, part, "styles"), ooxml.MOST_OF_A_PART))
        writer = DocxWriter(_read_styles(styles), read_numbering(numbering))
        for element in xml_file.elements(archive.stream(part), ("body",)):
            writer.write(element)
        _write_notes(writer, archive, part)
        title, metadata = ooxml.properties(archive)
        return writer.draft.parsed(title, metadata, ooxml.warnings(archive))


def _write_notes(writer: DocxWriter, archive: archives.Archive, part: str) -> None:
    """Footnotes and endnotes, in the order they were referred to."""
    writer.flush()
    found: dict[tuple[str, str], Element] = {}
    for kind in ("footnote", "endnote"):
        root = xml_file.tree(archive.read(ooxml.related(archive, part, f"{kind}s"), ooxml.MOST_OF_A_PART))
        found |= {(kind, attribute(each, "id")): each for each in (() if root is None else root)}
    for number, key in enumerate(list(writer.notes), 1):
        if key in found:
            writer.draft.text(f"[^{number}]: {writer.cell(found[key])}")


def _read_styles(root: Element | None) -> dict[str, Style]:
    styles = {
        attribute(each, "styleId"): _read_style(each)
        for each in (() if root is None else root)
        if local(each) == "style"
    }
    return {key: _inherit(style, styles) for key, style in styles.items()}


def _read_style(element: Element) -> Style:
    name = _value(child(element, "name")).lower()
    properties = child(element, "pPr")
    numbered = child(properties, "numPr")
    heading = _HEADING.fullmatch(name)
    level = int(heading[1]) if heading else 1 if name == "title" else _level(child(properties, "outlineLvl"))
    depth = int(_value(child(numbered, "ilvl")) or 0)
    return Style(name, _value(child(element, "basedOn")), level, _value(child(numbered, "numId")), depth)


def _inherit(style: Style, styles: dict[str, Style]) -> Style:
    """A style with the level of the nearest style it is based on that has one."""
    level, parent, seen = style.level, style.parent, 0
    while not level and parent in styles and seen < 20:
        level, parent, seen = styles[parent].level, styles[parent].parent, seen + 1
    return Style(style.name, style.parent, level, style.list_id, style.list_level)


def _level(outline: Element | None) -> int:
    value = _value(outline)
    return int(value) + 1 if value.isdigit() and int(value) < 9 else 0


def _value(element: Element | None) -> str:
    return "" if element is None else attribute(element, "val")


def _continues(properties: Element | None) -> bool:
    """Whether a cell is the lower part of one that spans several rows."""
    merged = child(properties, "vMerge")
    return merged is not None and _value(merged) != "restart"


def _inside(element: Element, name: str) -> Iterator[Element]:
    """The rows of a table or the cells of a row, those in wrappers too."""
    for each in element:
        if local(each) == name:
            yield each
        elif local(each) in _AROUND:
            yield from _inside(each, name)


def _without_fallbacks(element: Element, boxes: list[Element]) -> list[Element]:
    """Text boxes are written twice, for new readers and for old ones: the new form, where there is one."""
    if not boxes:
        return []
    old = {id(box) for fallback in descendants(element, "Fallback") for box in descendants(fallback, "txbxContent")}
    nested = {id(inner) for box in boxes for inner in descendants(box, "txbxContent") if inner is not box}
    return [box for box in boxes if id(box) not in nested and (id(box) not in old or len(old) == len(boxes))]
