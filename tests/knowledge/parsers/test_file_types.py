"""File types: detected from the content, and from the name if the content is not enough."""

import io
import struct
import zipfile
from pathlib import Path
from time import process_time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from almanac.knowledge.parsers import file_signatures, file_types
from almanac.knowledge.parsers.parsed_file import UnreadableFile
from tests.knowledge.corpus.expected import EXPECTED, FILES


def compound_file(name: str) -> bytes:
    """The parts of a compound file with one stream that detection reads."""
    encoded = name.encode("utf-16-le")
    entry = encoded.ljust(64, b"\x00") + struct.pack("<HB", len(encoded) + 2, 2)
    return b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1" + bytes(1016) + entry + bytes(61)


def archive(*names: str) -> bytes:
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w") as file:
        for name in names:
            file.writestr(name, b"x")
    return content.getvalue()


@pytest.mark.parametrize("name", EXPECTED)
def test_the_first_bytes_of_a_file_show_its_type(name: str):
    with (FILES / name).open("rb") as file:
        file_type = file_types.detect_file_type(file.read(file_types.SNIFF_BYTES), name)
    assert file_type.mime_type == EXPECTED[name].mime_type
    assert file_type.source_type == EXPECTED[name].source_type


@pytest.mark.parametrize(
    ("content", "extension", "code"),
    [
        (b"MZ\x90\x00" + bytes(60), "exe", "unsupported_format"),
        (b"\x7fELF\x02\x01\x01" + bytes(60), "elf", "unsupported_format"),
        (b"\x1f\x8b\x08\x00" + bytes(10), "gz", "unsupported_format"),
        (b"7z\xbc\xaf\x27\x1c\x00\x04", "7z", "unsupported_format"),
        (b"Rar!\x1a\x07\x01\x00", "rar", "unsupported_format"),
        (b"x" * 257 + b"ustar\x0000" + bytes(300), "tar", "unsupported_format"),
        (b"ID3\x04\x00\x00\x00", "mp3", "unsupported_format"),
        (b"\x00\x00\x00\x18ftypmp42" + bytes(20), "mp4", "unsupported_format"),
        (b"\x00\x00\x00\x18ftypheic" + bytes(20), "heic", "unsupported_format"),
        (b"RIFF\x24\x00\x00\x00WAVEfmt ", "wav", "unsupported_format"),
        (b"SQLite format 3\x00" + bytes(80), "sqlite", "unsupported_format"),
        (b"%!PS-Adobe-3.0\n/Helvetica findfont", "ps", "unsupported_format"),
        (bytes(range(256)) * 10, "bin", "unsupported_format"),
        (archive("a.txt", "b/c.txt"), "zip", "unsupported_format"),
        (archive("META-INF/MANIFEST.MF", "a.class"), "jar", "unsupported_format"),
        (archive("Index/Document.iwa"), "iwork", "unsupported_format"),
        (compound_file("WordDocument"), "doc", "unsupported_format"),
        (compound_file("PowerPoint Document"), "ppt", "unsupported_format"),
        (compound_file("__properties_version1.0"), "msg", "unsupported_format"),
        (compound_file("EncryptedPackage"), "ole", "encrypted"),
        (compound_file("Anything else"), "ole", "unsupported_format"),
    ],
)
def test_unsupported_types_are_recognised_and_have_advice(content: bytes, extension: str, code: str, tmp_path: Path):
    file = tmp_path / "report.txt"
    file.write_bytes(content)
    for source in (content, file):
        file_type = file_types.detect_file_type(source, "report.txt")
        assert (file_type.extension, file_type.code, file_type.parser) == (extension, code, "")
        assert file_type.advice.endswith(".")


@pytest.mark.parametrize(
    ("content", "extension"),
    [
        (b"\x89PNG\r\n\x1a\n" + bytes(20), "png"),
        (b"\xff\xd8\xff\xe0\x00\x10JFIF", "jpg"),
        (b"GIF89a" + bytes(20), "gif"),
        (b"RIFF\x24\x00\x00\x00WEBPVP8 ", "webp"),
        (b"II*\x00" + bytes(20), "tiff"),
        (b"II*\x00" + b"a\x00" * 200, "tiff"),
        (b"BM\x36\x00\x0c\x00\x00\x00\x00\x00\x36\x00", "bmp"),
    ],
)
def test_images_have_the_parser_for_images(content: bytes, extension: str):
    file_type = file_types.detect_file_type(content, "x.docx")
    assert (file_type.extension, file_type.parser) == (extension, "pdf.ocr")


@pytest.mark.parametrize(
    ("content", "name", "extension"),
    [
        ("MZ is how this note begins", "note.txt", "txt"),
        ("ID3 tags are explained here", "", "txt"),
        ("How to begin a PDF: write %PDF-1.7 first", "howto.md", "md"),
        ("<!DOCTYPE html><title>x</title>", "page.txt", "html"),
        ("  <!-- hello -->\n<html lang=en>", "", "html"),
        ("<?xml version='1.0'?><!DOCTYPE html PUBLIC 'a' 'b'><html>", "", "html"),
        ("<?xml version='1.0'?><rss><channel/></rss>", "feed", "xml"),
        ('<svg xmlns="http://www.w3.org/2000/svg"><text>x</text></svg>', "", "svg"),
        ("{\\rtf1\\ansi hello}", "letter.doc", "rtf"),
        ('{"a": 1}', "", "json"),
        ('{"a": 1}\n{"a": 2}\n', "rows.json", "jsonl"),
        ('{"a": 1}\n{"a": 2}\n', "", "jsonl"),
        ('{"cells": [], "nbformat": 4}', "x.json", "ipynb"),
        ("{not json at all}", "", "txt"),
        ("a;b;c\n1;2;3\n4;5;6\n7;8;9\n", "", "csv"),
        ("a\tb\tc\n1\t2\t3\n4\t5\t6\n7\t8\t9\n", "export", "tsv"),
        ("One, two, and three.\nFour, five, and six.\nSeven, eight.\nNine.\n", "", "txt"),
        ("From: a@b.c\nTo: d@e.f\nSubject: hi\n\nbody", "", "eml"),
        ("Note: this is no mail.\nTo: nobody\n\nbody", "", "txt"),
        ("# Title\n\n- item\n", "", "md"),
        ("#!/usr/bin/env python3\nprint()\n", "run", "py"),
        ("#!/bin/bash\nls\n", "", "sh"),
        ("print()\n", "folder.d\\script.PY", "py"),
        ("all:\n\techo\n", "Makefile", "makefile"),
        ("no tags here", "fake.html", "txt"),
    ],
)
def test_types_of_text_are_distinguished(content: str, name: str, extension: str):
    assert file_types.detect_file_type(content.encode(), name).extension == extension


def test_markup_is_recognised_in_all_unicode_encodings():
    for encoding in ("utf-8-sig", "utf-16", "utf-32", "utf-16-le", "utf-16-be", "utf-32-le"):
        content = "<!DOCTYPE html><title>a page</title>".encode(encoding)
        assert file_types.detect_file_type(content, "x").extension == "html"


def test_the_mimetype_entry_of_an_archive_decides_before_the_other_entries(tmp_path: Path):
    file = tmp_path / "x"
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("mimetype", "application/epub+zip")
        archive.writestr("word/document.xml", "x")
    assert file_types.detect_file_type(file, "x.docx").extension == "epub"
    assert file_types.detect_file_type(file.read_bytes(), "x.docx").extension == "epub"


def test_an_archive_that_cannot_be_opened_is_corrupt(tmp_path: Path):
    file = tmp_path / "x.docx"
    file.write_bytes(b"PK\x03\x04" + bytes(100))
    with pytest.raises(UnreadableFile) as refused:
        file_types.detect_file_type(file, "x.docx")
    assert refused.value.code == "corrupt"


@pytest.mark.parametrize(
    "part",
    ["<!-- -->", "<?x ?>", "<!DOCTYPE x>", "<!--", "<", " ", "\n", "a:b\n", "a: b\n c\n", "{", '{"', "[", "# a\n",
     "a,b,c\n", "a|", "%PDF-", "PK\x03\x04", '"', "\x00a", "\x1b$B"],
)  # fmt: skip
def test_detection_is_fast_for_any_repeated_text(part: str):
    content = (part * (file_types.SNIFF_BYTES // len(part) + 1)).encode()[: file_types.SNIFF_BYTES]
    before = process_time()
    file_types.detect_file_type(content, "")
    assert process_time() - before < 0.5


@given(st.binary(max_size=300), st.text(max_size=12))
def test_any_content_has_a_type(content: bytes, name: str):
    file_type = file_types.detect_file_type(content, name)
    assert bool(file_type.parser) != bool(file_type.code)


@given(
    st.sampled_from([b"PK\x03\x04", b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1", b"%PDF-1", b"{\\rtf"]), st.binary(max_size=300)
)
def test_any_content_after_a_signature_has_a_type(start: bytes, rest: bytes):
    file_type = file_types.detect_file_type(start + rest, "")
    assert bool(file_type.parser) != bool(file_type.code)


@pytest.mark.parametrize("file_type", [file_signatures.UNKNOWN, file_signatures.OLE])
def test_an_unsupported_format_has_advice(file_type: file_signatures.FileType):
    assert file_type.advice.endswith("Save it as PDF, DOCX or text and add that.")
