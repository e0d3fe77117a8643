"""EPUB: reading order, protection, and books without a list of chapters."""

import zipfile
from pathlib import Path

import pytest

from almanac.knowledge.parsers.parsed_file import UnreadableFile
from almanac.knowledge.parsers.web import epub

CONTAINER = '<container><rootfiles><rootfile full-path="o/c.opf"/></rootfiles></container>'
PACKAGE = (
    '<package><metadata/><manifest><item id="a" href="a%20b.xhtml"/><item id="n" href="n.xhtml" properties="nav"/>'
    '<item id="e" href="../../../etc/passwd"/></manifest><spine><itemref idref="n"/><itemref idref="a"/>'
    '<itemref idref="e"/><itemref idref="missing"/></spine></package>'
)


def write_archive(file: Path, parts: dict[str, str]) -> Path:
    with zipfile.ZipFile(file, "w") as archive:
        for name, content in parts.items():
            archive.writestr(name, content)
    return file


def test_chapters_are_in_order_and_paths_out_of_the_book_are_ignored(tmp_path: Path):
    parts = {
        "META-INF/container.xml": CONTAINER,
        "o/c.opf": PACKAGE,
        "o/a b.xhtml": "<h1>A</h1><p>x</p>",
        "o/n.xhtml": "nav",
    }
    parsed = epub.parse(write_archive(tmp_path / "x.epub", parts), "x.epub")
    assert parsed.text == "# A\n\nx"
    assert [page.name for page in parsed.pages] == ["A"]


def test_a_book_with_encrypted_chapters_is_refused_but_encrypted_fonts_are_allowed(tmp_path: Path):
    parts = {"META-INF/container.xml": CONTAINER, "o/c.opf": PACKAGE, "o/a b.xhtml": "<p>x</p>"}
    encryption = (
        '<encryption><EncryptedData><CipherData><CipherReference URI="{}"/></CipherData></EncryptedData></encryption>'
    )
    with_font = parts | {"META-INF/encryption.xml": encryption.format("o/font.otf")}
    assert epub.parse(write_archive(tmp_path / "font.epub", with_font), "x").text == "x"
    with_chapter = parts | {"META-INF/encryption.xml": encryption.format("o/a b.xhtml")}
    with pytest.raises(UnreadableFile) as refused:
        epub.parse(write_archive(tmp_path / "chapter.epub", with_chapter), "x")
    assert refused.value.code == "encrypted"


def test_a_book_without_a_list_of_chapters_is_corrupt(tmp_path: Path):
    with pytest.raises(UnreadableFile) as refused:
        epub.parse(write_archive(tmp_path / "x.epub", {"a": "b"}), "x")
    assert refused.value.code == "corrupt"
