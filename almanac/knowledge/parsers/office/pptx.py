"""Presentations: each slide is a page, with its title as a heading and the speaker's notes at its end."""

from collections.abc import Iterator
from pathlib import Path
from xml.etree.ElementTree import Element

from almanac.knowledge.parsers import archives
from almanac.knowledge.parsers.archives import Archive
from almanac.knowledge.parsers.office import ooxml
from almanac.knowledge.parsers.parsed_file import ParsedFile
from almanac.knowledge.parsers.text_builder import TextBuilder, bullet, squeeze, tidy
from almanac.knowledge.parsers.web import xml_file
from almanac.knowledge.parsers.web.xml_file import attribute, child, descendants, local

MOST_SLIDES = 5_000

_FURNITURE = {"sldNum", "dt", "ftr", "hdr", "sldImg"}
_TITLES = {"title", "ctrTitle"}
_LISTS = {"body", "obj", ""}


def parse(path: Path, name: str) -> ParsedFile:
    draft = TextBuilder()
    with archives.open_archive(path) as archive:
        for slide in _slides(archive)[:MOST_SLIDES]:
            draft.page()
            _write_slide(archive, slide, draft)
        title, metadata = ooxml.properties(archive)
        return draft.parsed(title, metadata, ooxml.warnings(archive))


def _slides(archive: Archive) -> list[str]:
    """The slides in the order they are shown, which is not the order of their names."""
    part = ooxml.main_part(archive, "ppt/presentation.xml")
    root = xml_file.tree(archive.read(part, ooxml.MOST_OF_A_PART))
    targets = ooxml.relations(archive, part)
    order = [] if root is None else [_relation(each) for each in descendants(root, "sldId")]
    return [targets[key][1] for key in order if key in targets]


def _relation(element: Element) -> str:
    """The id of a relation, which has a namespace, where the element has an id of its own, which has none."""
    return next((value for key, value in element.attrib.items() if key.endswith("}id")), "")


def _write_slide(archive: Archive, slide: str, draft: TextBuilder) -> None:
    root = xml_file.tree(archive.read(slide, ooxml.MOST_OF_A_PART))
    if root is None:
        return
    targets = ooxml.relations(archive, slide)
    shapes = list(_shapes(root))
    titles = [shape for shape in shapes if _placeholder(shape) in _TITLES]
    for shape in titles:
        draft.heading(_text(shape), 2 if draft.blocks else 1)  # the first is the title of it all
    for shape in shapes:
        if shape not in titles:
            _write_shape(archive, shape, targets, draft)
    notes = next((target for kind, target in targets.values() if kind == "notesSlide"), "")
    _write_notes(xml_file.tree(archive.read(notes, ooxml.MOST_OF_A_PART)), draft)


def _shapes(root: Element) -> Iterator[Element]:
    """Shapes and frames, those in groups too. What is drawn twice for old readers is taken once."""
    for each in root:
        name = local(each)
        if name in ("sp", "graphicFrame", "cxnSp", "pic"):
            yield each
        elif name != "Fallback":
            yield from _shapes(each)


def _placeholder(shape: Element) -> str | None:
    """What a shape stands for; empty for a place of no special kind, None for a shape of its own."""
    found = next(descendants(shape, "ph"), None)
    return None if found is None else attribute(found, "type")


def _write_shape(archive: Archive, shape: Element, targets: dict[str, tuple[str, str]], draft: TextBuilder) -> None:
    kind = _placeholder(shape)
    if kind in _FURNITURE:
        return
    if (table := next(descendants(shape, "tbl"), None)) is not None:
        draft.table(_rows(table))
        return
    if (diagram := next(descendants(shape, "relIds"), None)) is not None:
        part = targets.get(attribute(diagram, "dm"), ("", ""))[1]
        _write_diagram(xml_file.tree(archive.read(part, ooxml.MOST_OF_A_PART)), draft)
    elif (chart := next(descendants(shape, "chart"), None)) is not None:
        part = targets.get(_relation(chart), ("", ""))[1]
        _write_chart(xml_file.tree(archive.read(part, ooxml.MOST_OF_A_PART)), draft)
    elif local(shape) == "pic":
        shown = next((attribute(each, "descr") for each in descendants(shape, "cNvPr")), "")
        draft.text(f"[{squeeze(shown)}]" if squeeze(shown) else "")
    else:
        draft.text("\n".join(_lines(shape, is_list=kind in _LISTS)))


def _lines(shape: Element, *, is_list: bool) -> Iterator[str]:
    for paragraph in descendants(shape, "p"):
        text = tidy("".join(_words(paragraph)))
        if text:
            properties = child(paragraph, "pPr")
            depth = int((properties.get("lvl") if properties is not None else None) or 0)
            yield bullet(text, depth) if is_list else text


def _words(paragraph: Element) -> Iterator[str]:
    for each in paragraph.iter():
        name = local(each)
        if name == "t":
            yield each.text or ""
        elif name in ("br", "tab"):
            yield "\n" if name == "br" else "\t"


def _text(shape: Element) -> str:
    return " ".join(_lines(shape, is_list=False))


def _rows(table: Element) -> list[list[str]]:
    rows: list[list[str]] = []
    for row in (each for each in table if local(each) == "tr"):
        cells: list[str] = []
        for cell in (each for each in row if local(each) == "tc"):
            above = rows[-1][len(cells)] if rows and len(rows[-1]) > len(cells) else ""
            cells.append(above if cell.get("vMerge") in ("1", "true") else _text(cell))
        rows.append(cells)
    return rows


def _write_diagram(root: Element | None, draft: TextBuilder) -> None:
    """The words of a SmartArt diagram: its points in order."""
    points = [] if root is None else [_text(each) for each in descendants(root, "pt")]
    draft.text("\n".join(bullet(text, 0) for text in points if text))


def _write_chart(root: Element | None, draft: TextBuilder) -> None:
    """The numbers of a chart as a table: categories down, series across."""
    if root is None:
        return
    title = next(descendants(root, "title"), None)
    draft.text(_text(title) if title is not None else "")
    series = [(_points(each, "tx"), _points(each, "cat"), _points(each, "val")) for each in descendants(root, "ser")]
    categories = next((names for _, names, _ in series if names), dict[int, str]())
    header = ["", *(name.get(0, "") for name, _, _ in series)]
    rows = [[categories[at], *(values.get(at, "") for _, _, values in series)] for at in sorted(categories)]
    draft.table([header, *rows])


def _points(series: Element, name: str) -> dict[int, str]:
    holder = child(series, name)
    found = [] if holder is None else list(descendants(holder, "pt"))
    return {int(each.get("idx", "0")): squeeze("".join(each.itertext())) for each in found}


def _write_notes(root: Element | None, draft: TextBuilder) -> None:
    shapes = [] if root is None else [each for each in _shapes(root) if _placeholder(each) == "body"]
    text = "\n".join(line for shape in shapes for line in _lines(shape, is_list=False))
    draft.text(f"Notes: {text}" if text else "")
