"""What a file is: from its content first, from its name where texts look alike."""

import io
import struct
import zipfile
from pathlib import Path
from time import process_time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from almanac.knowledge.parsers import file_types
from almanac.knowledge.parsers.parsed_file import UnreadableFile
from tests.knowledge.corpus.expected import EXPECTED, FILES


def stream(name: str) -> bytes:
    """A compound file with one stream, as far as looking goes."""
    encoded = name.encode("utf-16-le")
    entry = encoded.ljust(64, b"\x00") + struct.pack("<HB", len(encoded) + 2, 2)
    return b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1" + bytes(1016) + entry + bytes(61)


def archive(*names: str) -> bytes:
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w") as file:
        for name in names:
            file.writestr(name, b"x")
    return made.getvalue()


@pytest.mark.parametrize("name", EXPECTED)
def test_the_first_bytes_of_a_file_are_enough_to_tell_what_it_is(name: str):
    with (FILES / name).open("rb") as file:
        kind = file_types.detect_file_type(file.read(file_types.SNIFF_BYTES), name)
    assert kind.mime_type == EXPECTED[name].mime_type
    assert kind.source_type == EXPECTED[name].source_type


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
        (stream("WordDocument"), "doc", "unsupported_format"),
        (stream("PowerPoint Document"), "ppt", "unsupported_format"),
        (stream("__properties_version1.0"), "msg", "unsupported_format"),
        (stream("EncryptedPackage"), "ole", "encrypted"),
        (stream("Anything else"), "ole", "unsupported_format"),
    ],
)
def test_what_is_not_read_is_told_from_what_is_and_says_what_to_do(
    content: bytes, extension: str, code: str, tmp_path: Path
):
    file = tmp_path / "report.txt"
    file.write_bytes(content)
    for kind in (file_types.detect_file_type(content, "report.txt"), file_types.detect_file_type(file, "report.txt")):
        assert (kind.extension, kind.code, kind.parser) == (extension, code, "")
        assert kind.advice.endswith(".")


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
def test_pictures_go_to_the_reader_of_pictures(content: bytes, extension: str):
    kind = file_types.detect_file_type(content, "x.docx")
    assert (kind.extension, kind.parser) == (extension, "pdf.ocr")


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
def test_texts_are_told_apart(content: str, name: str, extension: str):
    assert file_types.detect_file_type(content.encode(), name).extension == extension


def test_marked_and_wide_texts_are_looked_into(tmp_path: Path):
    for encoding in ("utf-8-sig", "utf-16", "utf-32", "utf-16-le", "utf-16-be", "utf-32-le"):
        assert (
            file_types.detect_file_type("<!DOCTYPE html><title>a page</title>".encode(encoding), "x").extension
            == "html"
        )


def test_an_archive_that_names_its_type_is_believed_before_its_entries(tmp_path: Path):
    file = tmp_path / "x"
    with zipfile.ZipFile(file, "w") as made:
        made.writestr("mimetype", "application/epub+zip")
        made.writestr("word/document.xml", "x")
    assert file_types.detect_file_type(file, "x.docx").extension == "epub"
    assert file_types.detect_file_type(file.read_bytes(), "x.docx").extension == "epub"


def test_an_archive_that_cannot_be_opened_is_corrupt(tmp_path: Path):
    file = tmp_path / "x.docx"
    file.write_bytes(b"PK\x03\x04" + bytes(100))
    with pytest.raises(UnreadableFile) as refused:
        file_types.detect_file_type(file, "x.docx")
    assert refused.value.code == "corrupt"


@pytest.mark.parametrize(
    "piece",
    ["<!-- -->", "<?x ?>", "<!DOCTYPE x>", "<!--", "<", " ", "\n", "a:b\n", "a: b\n c\n", "{", '{"', "[", "# a\n",
     "a,b,c\n", "a|", "%PDF-", "PK\x03\x04", '"', "\x00a", "\x1b$B"],
)  # fmt: skip
def test_looking_is_quick_whatever_there_is_to_see(piece: str):
    content = (piece * (file_types.SNIFF_BYTES // len(piece) + 1)).encode()[: file_types.SNIFF_BYTES]
    before = process_time()
    file_types.detect_file_type(content, "")
    assert process_time() - before < 0.5


@given(st.binary(max_size=300), st.text(max_size=12))
def test_looking_at_anything_names_a_kind(content: bytes, name: str):
    kind = file_types.detect_file_type(content, name)
    assert bool(kind.parser) != bool(kind.code)


@given(
    st.sampled_from([b"PK\x03\x04", b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1", b"%PDF-1", b"{\\rtf"]), st.binary(max_size=300)
)
def test_looking_at_what_begins_like_something_names_a_kind(start: bytes, rest: bytes):
    kind = file_types.detect_file_type(start + rest, "")
    assert bool(kind.parser) != bool(kind.code)


@pytest.mark.parametrize("kind", [file_types.UNKNOWN, file_types.OLE])
def test_a_format_that_nobody_reads_says_what_to_do_next(kind: file_types.FileType):
    assert kind.advice.endswith("Save it as PDF, DOCX or text and add that.")
