"""Hostile files, as an attacker or a broken program might send them.

The files are built by code, so that the repository contains no dangerous file. `files` lists them all.
"""

import struct
from collections.abc import Callable
from dataclasses import dataclass

from tests.knowledge.parsers.handmade_files import (
    ODT_HEAD,
    ODT_TAIL,
    OFFICE,
    SHOW,
    VALID,
    WORDS,
    XHTML_HEAD,
    XHTML_TAIL,
    XML,
    Entry,
    archive,
    bmp,
    bomb,
    chapter,
    compound,
    deflated_bomb,
    docx,
    epub,
    forwarded_mail,
    gif,
    jpeg,
    lines,
    nested_mail,
    nested_zip,
    ods,
    odt,
    office,
    opendocument,
    page_of,
    pdf_bomb,
    pdf_image,
    pdf_nested,
    pdf_object_stream,
    pdf_page_tree,
    png,
    relations,
    row,
    sheet,
    stream,
    tiff,
    wide_mail,
    word_text,
    xlsx,
)


@dataclass(frozen=True)
class File:
    name: str
    content: bytes


@dataclass(frozen=True)
class Outside:
    """A file and an address that no hostile file may reach."""

    secret: str  # the path of a file
    web: str  # an address

    @property
    def doctype(self) -> str:
        return (
            f'<!DOCTYPE x [<!ENTITY file SYSTEM "file://{self.secret}"><!ENTITY users SYSTEM "file:///etc/passwd">'
            f'<!ENTITY web SYSTEM "{self.web}/entity"><!ENTITY % remote SYSTEM "{self.web}/remote.dtd"> %remote;]>'
        )


Build = Callable[[], File]

LAUGHS = (
    '<!DOCTYPE x [<!ENTITY l0 "laugh">' + "".join(f'<!ENTITY l{i} "{f"&l{i - 1};" * 10}">' for i in range(1, 10)) + "]>"
)
QUADRATIC = f'<!DOCTYPE x [<!ENTITY big "{"ha" * 50_000}">]>'
SVG = '<svg xmlns="http://www.w3.org/2000/svg"><text>{words}</text></svg>'
OUTSIDE_WORDS = f"{WORDS} &file; &users; &web;"

TRAVERSALS = (
    "../../../../../../tmp/almanac-attack",
    "/tmp/almanac-attack",
    "..\\..\\almanac-attack",
    "word/../../almanac-attack",
)


def files(outside: Outside) -> dict[str, Build]:
    """Every hostile file, by a description of its attack."""
    groups = (_bombs(), _entities(), _outside_references(outside), _pdfs(), _encrypted(), _images(), _disguised(),
              _sheets(), _deep(), _long(), _truncated())  # fmt: skip
    return {name: build for group in groups for name, build in group.items()}


def _file(name: str, build: Callable[[], bytes]) -> Build:
    return lambda: File(name, build())


def _bombs() -> dict[str, Build]:
    word_head, word_tail = word_text("\0").split("\0")
    sheet_head, sheet_tail = sheet(row(1, ("A1", "\0"))).split("\0")

    def word(claims: int | None = None) -> bytes:
        entry = bomb("word/document.xml", word_head, word_tail, claims)
        return office("word/document.xml", "wordprocessingml.document", {}, entry)

    def table(claims: int | None = None) -> bytes:
        return xlsx(None, bomb("xl/worksheets/sheet1.xml", sheet_head, sheet_tail, claims))

    return {
        "zip bomb: docx": _file("bomb.docx", word),
        "zip bomb: docx that claims little": _file("bomb.docx", lambda: word(10_000)),
        "zip bomb: docx that claims less than is too much": _file("bomb.docx", lambda: word(49_000_000)),
        "zip bomb: xlsx": _file("bomb.xlsx", table),
        "zip bomb: xlsx that claims little": _file("bomb.xlsx", lambda: table(10_000)),
        "zip bomb: epub": _file("bomb.epub", lambda: epub(bomb("OEBPS/one.xhtml", XHTML_HEAD, XHTML_TAIL))),
        "zip bomb: odt": _file(
            "bomb.odt", lambda: opendocument("text", None, bomb("content.xml", XML + ODT_HEAD, ODT_TAIL))
        ),
        "zip bomb: nested": _file("bomb.zip", lambda: nested_zip(3)),
        "zip bomb: nested in docx": _file("bomb.docx", lambda: docx(parts={"word/embeddings/a.zip": nested_zip(2)})),
        "zip of fifty thousand entries": _file(
            "many.docx", lambda: docx(parts={f"word/media/{i}.png": b"" for i in range(50_001)})
        ),
        "zip of overlapping entries": _file("overlap.docx", overlapping),
    }


def overlapping() -> bytes:
    """An archive whose directory has a thousand names for one entry of 64 MiB."""
    content = docx(WORDS, "", {}, Entry("word/a.xml", packed=deflated_bomb(1 << 26), claims=1 << 26))
    end = content.rindex(b"PK\x05\x06")
    size, start = struct.unpack_from("<II", content, end + 12)
    directory = content[start : start + size]
    last = directory[directory.rindex(b"PK\x01\x02") :]
    many = b"".join(last.replace(b"word/a.xml", b"word/%04d." % i) for i in range(1000))
    count = 4 + 1000
    tail = struct.pack("<HHHHIIH", 0, 0, count, count, len(directory) + len(many), start, 0)
    return content[:start] + directory + many + b"PK\x05\x06" + tail


def _entities() -> dict[str, Build]:
    return {
        "XML bomb: docx": _file("laughs.docx", lambda: docx("&l9;", LAUGHS)),
        "XML bomb: odt": _file("laughs.odt", lambda: odt("&l9;", LAUGHS)),
        "XML bomb: epub": _file("laughs.epub", lambda: epub(chapter("&l9;", LAUGHS))),
        "XML bomb: xlsx": _file(
            "laughs.xlsx", lambda: xlsx(sheet(row(1, ("A1", "&l9;"))).replace("?>", f"?>{LAUGHS}", 1))
        ),
        "XML bomb: svg": _file("laughs.svg", lambda: (XML + LAUGHS + SVG.format(words="&l9;")).encode()),
        "XML bomb: html": _file("laughs.html", lambda: f"{LAUGHS}<html><body>{WORDS} &l9;</body></html>".encode()),
        "XML bomb: xml": _file("laughs.xml", lambda: f"{XML}{LAUGHS}<x>&l9;</x>".encode()),
        "XML bomb: quadratic docx": _file("ha.docx", lambda: docx("&big;" * 50_000, QUADRATIC)),
    }


def _outside_references(outside: Outside) -> dict[str, Build]:
    doctype = outside.doctype
    return {
        "XXE: docx": _file("outside.docx", lambda: docx(OUTSIDE_WORDS, doctype)),
        "XXE: odt": _file("outside.odt", lambda: odt(OUTSIDE_WORDS, doctype)),
        "XXE: epub": _file("outside.epub", lambda: epub(chapter(OUTSIDE_WORDS, doctype))),
        "XXE: xml": _file("outside.xml", lambda: f"{XML}{doctype}<x>{OUTSIDE_WORDS}</x>".encode()),
        "XXE: svg": _file("outside.svg", lambda: (XML + doctype + SVG.format(words=OUTSIDE_WORDS)).encode()),
        "XXE: docx with external parts": _file("parts.docx", lambda: docx_with_external_parts(outside)),
        "XXE: html with external parts": _file(
            "parts.html",
            lambda: (
                f"<html><body><p>{WORDS}</p><iframe src='file://{outside.secret}'></iframe>"
                f"<img src='{outside.web}/i.png'><object data='file:///etc/passwd'></object>"
                f"<link rel=stylesheet href='{outside.web}/s.css'></body></html>"
            ).encode(),
        ),
    }


def docx_with_external_parts(outside: Outside) -> bytes:
    """A document with a template, an image and included text from other files and web pages."""
    targets = (
        ("attachedTemplate", f"{outside.web}/t.dotm"),
        ("image", f"file://{outside.secret}"),
        ("aFChunk", "file:///etc/passwd"),
        ("hyperlink", f"{outside.web}/link"),
        ("footnotes", f"file://{outside.secret}"),
        ("header", "../../../../../etc/passwd"),
    )
    text = word_text(WORDS).replace(
        "</w:body>", f'<w:altChunk r:id="rId3" xmlns:r="{OFFICE}"/><w:footnoteReference w:id="1"/></w:body>'
    )
    rels = relations(*targets, mode=' TargetMode="External"')
    return docx(parts={"word/document.xml": text, "word/_rels/document.xml.rels": rels})


def _pdfs() -> dict[str, Build]:
    cycle = b"<< /Type /Pages /Kids [2 0 R 3 0 R] /Count 2 /Parent 2 0 R >>"
    claims = b"<< /Type /Pages /Kids [3 0 R] /Count 1000000000 >>"
    again = stream(b"/X Do", b"/Type /XObject /Subtype /Form /BBox [0 0 9 9] /Resources << /XObject << /X 6 0 R >> >>")
    locked = b"/Encrypt << /Filter /Standard /V 1 /R 2 /P -4 /O <%s> /U <%s> >> /ID [<00> <00>]" % (
        b"1a" * 32,
        b"2b" * 32,
    )
    return {
        "PDF bomb": _file("bomb.pdf", pdf_bomb),
        "PDF of a billion pages": _file("pages.pdf", pdf_page_tree),
        "PDF that claims a billion pages": _file("claims.pdf", lambda: page_of(stream(SHOW), pages=claims)),
        "PDF of pages that contain themselves": _file("cycle.pdf", lambda: page_of(stream(SHOW), pages=cycle)),
        "PDF of objects that contain themselves": _file("objects.pdf", pdf_object_stream),
        "PDF of a drawing that draws itself": _file("form.pdf", lambda: page_of(stream(SHOW + b" /X Do"), again)),
        "PDF of nested arrays": _file("arrays.pdf", lambda: pdf_nested(b"[", b"]", 1_000_000)),
        "PDF of nested dictionaries": _file("dictionaries.pdf", lambda: pdf_nested(b"<</A ", b">>", 1_000_000)),
        "PDF with an image of a billion pixels": _file("image.pdf", lambda: pdf_image(31_623, 31_623, b"0 0 612 792")),
        "PDF with a page as wide as a country": _file(
            "wide.pdf", lambda: pdf_image(100, 100, b"0 0 999999999 999999999")
        ),
        "encrypted: pdf": _file("locked.pdf", lambda: page_of(stream(SHOW), trailer=locked)),
    }


def _encrypted() -> dict[str, Build]:
    locked = Entry("word/document.xml", word_text(WORDS).encode(), flags=1)
    data = '<manifest:encryption-data manifest:checksum="x"/>'
    manifest = f'<manifest:file-entry manifest:full-path="content.xml">{data}</manifest:file-entry>'
    return {
        "encrypted: docx": _file("locked.docx", lambda: compound("EncryptionInfo", "EncryptedPackage")),
        "encrypted: xlsx": _file("locked.xlsx", lambda: compound("EncryptionInfo", "EncryptedPackage")),
        "encrypted: docx by zip": _file(
            "locked.docx", lambda: office("word/document.xml", "wordprocessingml.document", {}, locked)
        ),
        "encrypted: odt": _file(
            "locked.odt",
            lambda: opendocument("text", None, Entry("content.xml", b"\x8f" * 2000), manifest=manifest),
        ),
        "encrypted: zip": _file("locked.zip", lambda: archive([Entry("a.txt", WORDS.encode(), flags=1)])),
        "compound file that never ends": _file("cycle.xls", lambda: compound("Workbook", chain=2)),
    }


def _images() -> dict[str, Build]:
    return {
        "a billion pixels: png": _file("huge.png", lambda: png(31_623, 31_623)),
        "more pixels than claimed: png": _file("small.png", lambda: png(100, 100)),
        "a billion pixels: jpeg": _file("huge.jpg", lambda: jpeg(65_535, 65_535)),
        "a billion pixels: gif": _file("huge.gif", lambda: gif(65_535, 65_535)),
        "a billion pixels: bmp": _file("huge.bmp", lambda: bmp(31_623, 31_623)),
        "a billion pixels: tiff": _file("huge.tif", lambda: tiff(31_623, 31_623)),
    }


def _disguised() -> dict[str, Build]:
    paths = tuple(Entry(name, WORDS.encode()) for name in TRAVERSALS)
    macro = {"word/vbaProject.bin": compound("VBA", "PROJECT")}
    return {
        "pdf named txt": _file("notes.txt", lambda: page_of(stream(SHOW))),
        "exe named docx": _file("letter.docx", lambda: b"MZ\x90\x00" + bytes(60) + b"PE\x00\x00" + bytes(4000)),
        "elf named pdf": _file("report.pdf", lambda: b"\x7fELF\x02\x01\x01" + bytes(4000)),
        "zip named pdf": _file("report.pdf", lambda: archive([Entry("a.txt", WORDS.encode())])),
        "noise named xlsx": _file("sheet.xlsx", lambda: bytes((i * 7919 >> 3) & 0xFF for i in range(4000))),
        "paths that lead out: docx": _file("paths.docx", lambda: docx(WORDS, "", {}, *paths)),
        "paths that lead out: epub": _file("paths.epub", lambda: epub(chapter(), href="../../../../../etc/passwd")),
        "a name that leads out": _file("../../../../tmp/almanac-attack.md", VALID["md"]),
        "macros: docm": _file("macros.docm", lambda: docx(WORDS, "", macro)),
        "macros: xlsm": _file(
            "macros.xlsm",
            lambda: xlsx(sheet(row(1, ("A1", "Lamp"), ("B1", "Boat"))), parts={"xl/vbaProject.bin": compound("VBA")}),
        ),
    }


def _sheets() -> dict[str, Build]:
    far = row(1, ("A1", "near")) + row(1_048_576, ("XFD1048576", "far"))
    merged = '<mergeCells count="1"><mergeCell ref="A1:XFD1048576"/></mergeCells>'
    repeated = (
        '<table:table-row table:number-rows-repeated="1048576"><table:table-cell '
        'table:number-columns-repeated="16384" office:value-type="string"><text:p>again</text:p></table:table-cell>'
        "</table:table-row>"
    )
    return {
        "sparse xlsx": _file("sparse.xlsx", lambda: xlsx(sheet(far, '<dimension ref="A1:XFD1048576"/>'))),
        "xlsx that claims every cell": _file(
            "claims.xlsx", lambda: xlsx(sheet(row(1, ("A1", "near")), '<dimension ref="A1:XFD1048576"/>'))
        ),
        "xlsx of one merged cell": _file("merged.xlsx", lambda: xlsx(sheet(row(1, ("A1", "all")), after=merged))),
        "xlsx beyond the last cell": _file(
            "beyond.xlsx", lambda: xlsx(sheet(row(4_294_967_295, ("ZZZZZZZ4294967295", "beyond"))))
        ),
        "ods of one repeated cell": _file("repeated.ods", lambda: ods(repeated)),
        "csv of a million columns": _file(
            "wide.csv", lambda: b"\n".join(b",".join(b"%d" % i for i in range(1_000_000)) for _ in range(2))
        ),
        "csv of one endless quote": _file("quote.csv", lambda: b'a,b\n1,"' + b"x,y\n" * 5_000_000),
    }


def _deep() -> dict[str, Build]:
    return {
        "deep json": _file("deep.json", lambda: lines(("[", 1_000_000), ("]", 1_000_000))),
        "deep json objects": _file("deep.json", lambda: lines(('{"a":', 100_000), ("1", 1), ("}", 100_000))),
        "deep html": _file("deep.html", lambda: lines(("<html>", 1), ("<div>", 1_000_000), (WORDS, 1))),
        "deep html tables": _file("deep.html", lambda: lines(("<html>", 1), ("<table><tr><td>", 100_000), (WORDS, 1))),
        "deep html lists": _file("deep.html", lambda: lines(("<html>", 1), ("<ul><li>a", 100_000))),
        "deep xml": _file("deep.xml", lambda: lines((XML, 1), ("<a>", 1_000_000), ("</a>", 1_000_000))),
        "deep docx": _file(
            "deep.docx",
            lambda: docx(
                parts={
                    "word/document.xml": word_text(WORDS)
                    .replace("<w:body>", "<w:body>" + "<w:tbl><w:tr><w:tc>" * 50_000)
                    .replace("</w:body>", "</w:tc></w:tr></w:tbl>" * 50_000 + "</w:body>")
                }
            ),
        ),
        "deep odt": _file("deep.odt", lambda: odt("<text:span>" * 200_000 + WORDS + "</text:span>" * 200_000)),
        "deep quotes in markdown": _file("deep.md", lambda: lines((">", 200_000), (WORDS, 1))),
        "deep lists in markdown": _file("deep.md", lambda: "".join(f"{'  ' * i}- a\n" for i in range(3_000)).encode()),
        "deep brackets in markdown": _file("deep.md", lambda: lines(("[", 500_000), ("a", 1), ("](b)", 500_000))),
        "deep rtf": _file("deep.rtf", lambda: lines((r"{\rtf1 ", 1), ("{", 1_000_000), (WORDS, 1), ("}", 1_000_001))),
        "deep eml": _file("deep.eml", lambda: nested_mail(10_000)),
        "forwarded eml": _file("forwarded.eml", lambda: forwarded_mail(10_000)),
        "wide eml": _file("wide.eml", lambda: wide_mail(10_000)),
        "deep code": _file("deep.py", lambda: b"".join(b"%sclass A%d:\n" % (b" " * i, i) for i in range(3_000))),
        "deep notebook": _file("deep.ipynb", lambda: b'{"nbformat": 4, "cells": ' + lines(("[", 100_000))),
    }


def _long() -> dict[str, Build]:
    return {
        "one line of 200 MB": _file("line.txt", lambda: b"a" * 200_000_000),
        "a space and then no end": _file("spaces.txt", lambda: lines((" ", 5_000_000), ("x", 1))),
        "nothing but new lines": _file("blank.txt", lambda: lines(("\n", 5_000_000), ("x", 1))),
        "a cascade of letters": _file("letters.md", lambda: lines(("a", 2_000_000), ("!", 1))),
        "emphasis without end": _file("stars.md", lambda: lines(("*a_", 700_000), ("\n", 1))),
        "backticks without end": _file("ticks.md", lambda: lines(*((("`" * i + " "), 1) for i in range(2_000)))),
        "tables without end": _file("pipes.md", lambda: lines(("|", 1_000_000), ("\n|-|-|\n", 1), ("|", 1_000_000))),
        "references without end": _file("links.md", lambda: lines(("[a](", 500_000), ("<", 500_000))),
        "headings without end": _file("hashes.md", lambda: lines(("#", 1_000_000), ("\n# a", 200_000))),
        "front matter without end": _file("front.md", lambda: lines(("---\n", 1), ("a: &a [*a, *a]\n", 200_000))),
        "comments without end": _file(
            "comments.html", lambda: lines(("<html>", 1), ("<!--", 500_000), ("<a ", 500_000))
        ),
        "attributes without end": _file(
            "attributes.html", lambda: lines(("<html><p ", 1), ("a='", 500_000), (">b", 1))
        ),
        "references of characters without end": _file("amps.html", lambda: lines(("<html>", 1), ("&a", 1_000_000))),
        "cdata without end": _file("cdata.html", lambda: lines(("<html>", 1), ("<![CDATA[", 500_000))),
        "code that looks like functions": _file("calls.js", lambda: lines(("function ", 300_000), ("(" * 99, 5_000))),
        "code of one line": _file("line.js", lambda: lines(("a=function(){return(b)};", 500_000))),
        "headers without end": _file("headers.eml", lambda: lines(("From: a@b.c\n", 1), ("X-A: b\n c\n", 500_000))),
        "one header without end": _file(
            "header.eml", lambda: lines(("From: a@b.c\nSubject: ", 1), ("=?utf-8?q?=", 300_000), ("\n\nx\n", 1))
        ),
        "addresses without end": _file(
            "addresses.eml", lambda: lines(("To: ", 1), ('"a" <(', 300_000), ("\n\nx\n", 1))
        ),
        "jsonl of many records": _file("many.jsonl", lambda: lines(('{"a": 1}\n', 300_000))),
        "numbers without end": _file("number.json", lambda: lines(("[", 1), ("9", 5_000_000), ("]", 1))),
        "control words without end": _file("words.rtf", lambda: lines((r"{\rtf1 ", 1), (r"\b0\u9999999?", 500_000))),
        "a binary part of rtf without end": _file(
            "bin.rtf", lambda: lines((r"{\rtf1 \bin2147483647 ", 1), ("a", 9_000))
        ),
    }


def _truncated() -> dict[str, Build]:
    def half(name: str, build: Callable[[], bytes]) -> Build:
        return lambda: File(f"half.{name}", build()[: len(build()) // 2])

    return {f"truncated: {name}": half(name, build) for name, build in VALID.items()} | {
        "truncated: png": _file("half.png", lambda: png(100, 100)[:200]),
        "empty": _file("empty.docx", bytes),
    }
