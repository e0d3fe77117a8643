"""Books beyond what the corpus shows."""

import zipfile
from pathlib import Path

import pytest

from almanac.knowledge.parsers.parsed_file import UnreadableFile
from almanac.knowledge.parsers.web import epub

CONTAINER = '<container><rootfiles><rootfile full-path="o/c.opf"/></rootfiles></container>'
CONTENTS = (
    '<package><metadata/><manifest><item id="a" href="a%20b.xhtml"/><item id="n" href="n.xhtml" properties="nav"/>'
    '<item id="e" href="../../../etc/passwd"/></manifest><spine><itemref idref="n"/><itemref idref="a"/>'
    '<itemref idref="e"/><itemref idref="missing"/></spine></package>'
)


def archive(file: Path, parts: dict[str, str]) -> Path:
    with zipfile.ZipFile(file, "w") as made:
        for name, content in parts.items():
            made.writestr(name, content)
    return file


def test_chapters_are_read_in_order_and_paths_lead_nowhere(tmp_path: Path):
    parts = {
        "META-INF/container.xml": CONTAINER,
        "o/c.opf": CONTENTS,
        "o/a b.xhtml": "<h1>A</h1><p>x</p>",
        "o/n.xhtml": "nav",
    }
    found = epub.parse(archive(tmp_path / "x.epub", parts), "x.epub")
    assert found.text == "# A\n\nx"
    assert [page.name for page in found.pages] == ["A"]


def test_a_protected_book_says_so_but_scrambled_fonts_do_no_harm(tmp_path: Path):
    parts = {"META-INF/container.xml": CONTAINER, "o/c.opf": CONTENTS, "o/a b.xhtml": "<p>x</p>"}
    seal = (
        '<encryption><EncryptedData><CipherData><CipherReference URI="{}"/></CipherData></EncryptedData></encryption>'
    )
    free = parts | {"META-INF/encryption.xml": seal.format("o/font.otf")}
    assert epub.parse(archive(tmp_path / "free.epub", free), "x").text == "x"
    sealed = parts | {"META-INF/encryption.xml": seal.format("o/a b.xhtml")}
    with pytest.raises(UnreadableFile) as refused:
        epub.parse(archive(tmp_path / "sealed.epub", sealed), "x")
    assert refused.value.code == "encrypted"


def test_a_book_without_contents_is_corrupt(tmp_path: Path):
    with pytest.raises(UnreadableFile) as refused:
        epub.parse(archive(tmp_path / "x.epub", {"a": "b"}), "x")
    assert refused.value.code == "corrupt"
