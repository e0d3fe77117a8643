"""Presentations: each slide is a page with its title as a heading and the speaker's notes at the end."""

from collections.abc import Iterator
from pathlib import Path
from xml.etree.ElementTree import Element

from almanac.core.text import one_line
from almanac.knowledge.parsers import archives
from almanac.knowledge.parsers.archives import Archive
from almanac.knowledge.parsers.office import ooxml
from almanac.knowledge.parsers.parsed_file import ParsedFile
from almanac.knowledge.parsers.text_builder import TextBuilder, list_item, single_spaces
from almanac.knowledge.parsers.web.xml_file import attribute, child, children, descendants, local_name, read_part

MAX_SLIDES = 5_000

_OMITTED = {"sldNum", "dt", "ftr", "hdr", "sldImg"}  # placeholders with no content of the slide
_TITLES = {"title", "ctrTitle"}
_LISTS = {"body", "obj", ""}


def parse(path: Path, name: str) -> ParsedFile:
    builder = TextBuilder()
    with archives.open_archive(path) as archive:
        for slide in _slides(archive)[:MAX_SLIDES]:
            builder.start_page()
            _write_slide(archive, slide, builder)
        title, metadata = ooxml.properties(archive)
        return builder.finish(title, metadata, ooxml.warnings(archive))


def _slides(archive: Archive) -> list[str]:
    """The parts of the slides in their order, which is not the order of their names."""
    part = ooxml.main_part(archive, "ppt/presentation.xml")
    root = read_part(archive, part)
    targets = ooxml.relations(archive, part)
    order = [] if root is None else [_relation_id(slide_id) for slide_id in descendants(root, "sldId")]
    return [targets[relation][1] for relation in order if relation in targets]


def _relation_id(element: Element) -> str:
    """The attribute `id` with a namespace; the one without is the element's own id."""
    return next((value for key, value in element.attrib.items() if key.endswith("}id")), "")


def _write_slide(archive: Archive, slide: str, builder: TextBuilder) -> None:
    root = read_part(archive, slide)
    if root is None:
        return
    targets = ooxml.relations(archive, slide)
    shapes = list(_shapes(root))
    titles = [shape for shape in shapes if _placeholder_type(shape) in _TITLES]
    for shape in titles:
        builder.add_heading(_text(shape), 2 if builder.blocks else 1)  # the first is the title of the presentation
    for shape in shapes:
        if shape not in titles:
            _write_shape(archive, shape, targets, builder)
    notes = next((target for type_, target in targets.values() if type_ == "notesSlide"), "")
    _write_notes(read_part(archive, notes), builder)


def _shapes(root: Element) -> Iterator[Element]:
    """The shapes and frames, including those in groups, without the copies for old readers."""
    for inner in root:
        name = local_name(inner)
        if name in ("sp", "graphicFrame", "cxnSp", "pic"):
            yield inner
        elif name != "Fallback":
            yield from _shapes(inner)


def _placeholder_type(shape: Element) -> str | None:
    """The type of placeholder that a shape fills: empty for a general one, None for a shape that fills none."""
    placeholder = next(descendants(shape, "ph"), None)
    return None if placeholder is None else attribute(placeholder, "type")


def _write_shape(archive: Archive, shape: Element, targets: dict[str, tuple[str, str]], builder: TextBuilder) -> None:
    placeholder = _placeholder_type(shape)
    if placeholder in _OMITTED:
        return
    if (table := next(descendants(shape, "tbl"), None)) is not None:
        builder.add_table(_rows(table))
    elif (diagram := next(descendants(shape, "relIds"), None)) is not None:
        part = targets.get(attribute(diagram, "dm"), ("", ""))[1]
        _write_diagram(read_part(archive, part), builder)
    elif (chart := next(descendants(shape, "chart"), None)) is not None:
        part = targets.get(_relation_id(chart), ("", ""))[1]
        _write_chart(read_part(archive, part), builder)
    elif local_name(shape) == "pic":
        description = one_line(next((attribute(properties, "descr") for properties in descendants(shape, "cNvPr")), ""))
        builder.add_text(f"[{description}]" if description else "")
    else:
        builder.add_text("\n".join(_lines(shape, is_list=placeholder in _LISTS)))


def _lines(shape: Element, *, is_list: bool) -> Iterator[str]:
    for paragraph in descendants(shape, "p"):
        text = single_spaces("".join(_words(paragraph)))
        if text:
            properties = child(paragraph, "pPr")
            depth = int((properties.get("lvl") if properties is not None else None) or 0)
            yield list_item(text, depth) if is_list else text


def _words(paragraph: Element) -> Iterator[str]:
    for inner in paragraph.iter():
        name = local_name(inner)
        if name == "t":
            yield inner.text or ""
        elif name in ("br", "tab"):
            yield "\n" if name == "br" else "\t"


def _text(shape: Element) -> str:
    return " ".join(_lines(shape, is_list=False))


def _rows(table: Element) -> list[list[str]]:
    rows: list[list[str]] = []
    for row in children(table, "tr"):
        cells: list[str] = []
        for cell in children(row, "tc"):
            above = rows[-1][len(cells)] if rows and len(rows[-1]) > len(cells) else ""
            cells.append(above if cell.get("vMerge") in ("1", "true") else _text(cell))
        rows.append(cells)
    return rows


def _write_diagram(root: Element | None, builder: TextBuilder) -> None:
    """Write the points of a SmartArt diagram in order."""
    points = [] if root is None else [_text(point) for point in descendants(root, "pt")]
    builder.add_text("\n".join(list_item(text, 0) for text in points if text))


def _write_chart(root: Element | None, builder: TextBuilder) -> None:
    """Write the numbers of a chart as a table: a row for each category, a column for each series."""
    if root is None:
        return
    title = next(descendants(root, "title"), None)
    builder.add_text(_text(title) if title is not None else "")
    series = [(_points(one, "tx"), _points(one, "cat"), _points(one, "val")) for one in descendants(root, "ser")]
    categories = next((names for _, names, _ in series if names), dict[int, str]())
    header = ["", *(name.get(0, "") for name, _, _ in series)]
    rows = [[categories[index], *(values.get(index, "") for _, _, values in series)] for index in sorted(categories)]
    builder.add_table([header, *rows])


def _points(series: Element, name: str) -> dict[int, str]:
    parent = child(series, name)
    points = [] if parent is None else list(descendants(parent, "pt"))
    return {int(point.get("idx", "0")): one_line("".join(point.itertext())) for point in points}


def _write_notes(root: Element | None, builder: TextBuilder) -> None:
    shapes = [] if root is None else [shape for shape in _shapes(root) if _placeholder_type(shape) == "body"]
    text = "\n".join(line for shape in shapes for line in _lines(shape, is_list=False))
    builder.add_text(f"Notes: {text}" if text else "")
