"""Books in EPUB: the chapters in reading order, each as a page."""

import posixpath
from pathlib import Path
from urllib.parse import unquote
from xml.etree.ElementTree import Element

from almanac.core.text import one_line
from almanac.knowledge.parsers import archives
from almanac.knowledge.parsers.archives import Archive
from almanac.knowledge.parsers.parsed_file import ParsedFile, UnreadableFile
from almanac.knowledge.parsers.text_builder import TextBuilder
from almanac.knowledge.parsers.web import html_page
from almanac.knowledge.parsers.web.xml_file import attribute, descendants, local_name, read_part

MAX_CHAPTERS = 10_000
NO_PACKAGE = "The book is damaged: its list of chapters is missing. Save it again and add that copy."

_METADATA = {"creator": "author", "language": "language", "date": "created", "publisher": "publisher",
             "subject": "subject", "description": "description", "identifier": "identifier"}  # fmt: skip


def parse(path: Path, name: str) -> ParsedFile:
    builder = TextBuilder()
    with archives.open_archive(path) as archive:
        package_path = _package_path(archive)
        package = read_part(archive, package_path)
        if package is None:
            raise UnreadableFile("corrupt", NO_PACKAGE)
        chapters = _chapters(package, posixpath.dirname(package_path))
        _refuse_protected(archive, chapters)
        for chapter in chapters[:MAX_CHAPTERS]:
            _write_chapter(archive.read(chapter), builder)
    metadata = _read_metadata(package)
    known = {ours: metadata[theirs] for theirs, ours in _METADATA.items() if theirs in metadata}
    return builder.finish(metadata.get("title", ""), known)


def _package_path(archive: Archive) -> str:
    root = read_part(archive, "META-INF/container.xml")
    paths = [] if root is None else [attribute(rootfile, "full-path") for rootfile in descendants(root, "rootfile")]
    return paths[0] if paths else ""


def _chapters(package: Element, folder: str) -> list[str]:
    """The paths of the chapters in reading order, without the table of contents."""
    items = {attribute(item, "id"): item for item in descendants(package, "item")}
    order = [items.get(attribute(reference, "idref")) for reference in descendants(package, "itemref")]
    chapters = [item for item in order if item is not None and "nav" not in attribute(item, "properties").split()]
    return [posixpath.normpath(posixpath.join(folder, unquote(attribute(item, "href")))) for item in chapters]


def _refuse_protected(archive: Archive, chapters: list[str]) -> None:
    """Unprotected books may contain encrypted fonts, but no encrypted chapters."""
    root = read_part(archive, "META-INF/encryption.xml")
    encrypted = (
        [] if root is None else [attribute(reference, "URI") for reference in descendants(root, "CipherReference")]
    )
    if not set(chapters).isdisjoint(encrypted):
        raise UnreadableFile("encrypted", "The book is protected against copying. Add a copy without protection.")


def _write_chapter(content: bytes, builder: TextBuilder) -> None:
    if not content:
        return
    page = html_page.read(html_page.decode(content))
    heading = next((block.text for block in page.blocks if block.kind == "heading"), page.title)
    if page.blocks:
        builder.start_page(heading)
        html_page.write(page.blocks, builder)


def _read_metadata(package: Element) -> dict[str, str]:
    """The metadata elements by name; of several with the same name, the first."""
    parent = next(descendants(package, "metadata"), None)
    metadata: dict[str, str] = {}
    for element in () if parent is None else parent:
        if value := one_line("".join(element.itertext())):
            metadata.setdefault(local_name(element), value)
    return metadata
