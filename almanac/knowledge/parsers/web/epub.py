"""Books in EPUB: their chapters in reading order, each a page."""

import posixpath
from pathlib import Path
from urllib.parse import unquote
from xml.etree.ElementTree import Element

from almanac.knowledge.parsers import archives
from almanac.knowledge.parsers.archives import Archive
from almanac.knowledge.parsers.parsed_file import ParsedFile, UnreadableFile
from almanac.knowledge.parsers.text_builder import TextBuilder, squeeze
from almanac.knowledge.parsers.web import html_page, xml_file
from almanac.knowledge.parsers.web.xml_file import attribute, descendants, local

MOST_OF_A_PART = 50_000_000
MOST_CHAPTERS = 10_000
NO_CONTENTS = "The book is damaged: it does not say which chapters it has. Save it again and add that."

_SAID = {"creator": "author", "language": "language", "date": "created", "publisher": "publisher",
         "subject": "subject", "description": "description", "identifier": "identifier"}  # fmt: skip


def parse(path: Path, name: str) -> ParsedFile:
    draft = TextBuilder()
    with archives.open_archive(path) as archive:
        part = _contents_part(archive)
        contents = xml_file.tree(archive.read(part, MOST_OF_A_PART))
        if contents is None:
            raise UnreadableFile("corrupt", NO_CONTENTS)
        chapters = _chapters(contents, posixpath.dirname(part))
        _refuse_protected(archive, chapters)
        for chapter in chapters[:MOST_CHAPTERS]:
            _write(archive.read(chapter, MOST_OF_A_PART), draft)
    said = _said(contents)
    return draft.parsed(said.get("title", ""), {ours: said[theirs] for theirs, ours in _SAID.items() if theirs in said})


def _contents_part(archive: Archive) -> str:
    root = xml_file.tree(archive.read("META-INF/container.xml", MOST_OF_A_PART))
    found = [] if root is None else [attribute(each, "full-path") for each in descendants(root, "rootfile")]
    return found[0] if found else ""


def _chapters(contents: Element, folder: str) -> list[str]:
    """The parts of the book that are read, in order; its own table of contents is not."""
    items = {attribute(each, "id"): each for each in descendants(contents, "item")}
    order = [items.get(attribute(each, "idref")) for each in descendants(contents, "itemref")]
    read = [each for each in order if each is not None and "nav" not in attribute(each, "properties").split()]
    return [posixpath.normpath(posixpath.join(folder, unquote(attribute(each, "href")))) for each in read]


def _refuse_protected(archive: Archive, chapters: list[str]) -> None:
    """Fonts may be scrambled in a book that is free to read; chapters may not."""
    root = xml_file.tree(archive.read("META-INF/encryption.xml", MOST_OF_A_PART))
    scrambled = [] if root is None else [attribute(each, "URI") for each in descendants(root, "CipherReference")]
    if not set(chapters).isdisjoint(scrambled):
        raise UnreadableFile("encrypted", "The book is protected against copying; add a copy without protection.")


def _write(content: bytes, draft: TextBuilder) -> None:
    if not content:
        return
    page = html_page.read(html_page.decode(content))
    heading = next((piece.text for piece in page.pieces if piece.kind == "heading"), page.title)
    if page.pieces:
        draft.page(heading)
        html_page.write(page.pieces, draft)


def _said(contents: Element) -> dict[str, str]:
    metadata = next(descendants(contents, "metadata"), None)
    said: dict[str, str] = {}
    for each in () if metadata is None else metadata:
        if value := squeeze("".join(each.itertext())):
            said.setdefault(local(each), value)
    return said
