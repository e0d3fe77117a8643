"""The files of the ingest bench: made from the real files of the tests, all with different content.

A file is made from a number alone, so that every run reads the same bytes. PDFs are pages that Chromium and LibreOffice
printed, put together anew, or pages full of text by a small writer of our own; the others are a real file with as much
text added as makes it as long as its number says.
"""

import email
import email.policy
import io
import re
import zipfile
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from email.message import EmailMessage
from functools import cache
from pathlib import Path
from random import Random
from typing import Any, cast

import pypdfium2  # pyright: ignore[reportMissingTypeStubs]

REAL = Path(__file__).resolve().parent.parent / "tests" / "knowledge" / "corpus" / "files"

PARAGRAPHS_ON_PAGE = 6
LINES = 7  # of a paragraph
WORDS_IN_LINE = 13
_SYLLABLES = ("ba", "ce", "di", "fo", "gu", "har", "jen", "kil", "lom", "mur", "nas", "pel", "qui", "ros", "sta",
              "tem", "ul", "ven", "wex", "yor", "zan", "bri", "cla", "dro", "fle", "gri", "plo", "tre")  # fmt: skip
_ID = re.compile(rb"/ID\[<\w+><\w+>\]")
_CREATED = re.compile(rb"\(D:\d{14}")

Maker = Callable[[Random], bytes]


@dataclass(frozen=True, slots=True)
class Kind:
    """Files of one format: how many there are in a hundred parts of the corpus, and how one is made."""

    name: str
    share: int
    makers: tuple[tuple[str, Maker], ...]  # pairs of a name's ending and the function that makes the file, used in turn


@dataclass(frozen=True, slots=True)
class File:
    """A file of the corpus."""

    path: Path
    kind: str
    size: int
    pages: int  # of a PDF; 1 for everything else


def make(folder: Path, count: int, seed: int) -> list[File]:
    """Write a number of files into a folder. The seed makes them different from those of other seeds."""
    files: list[File] = []
    for kind in KINDS:
        (folder / kind.name).mkdir(parents=True)
        for number in range(max(1, count * kind.share // 100)):
            ending, maker = kind.makers[number % len(kind.makers)]
            path = folder / kind.name / f"{kind.name}-{number:04}{ending}"
            content = maker(Random(f"{seed}/{kind.name}/{number}"))
            path.write_bytes(content)
            files.append(File(path, kind.name, len(content), _count_pages(content) if ending == ".pdf" else 1))
    return files


def _count_pages(content: bytes) -> int:
    with pypdfium2.PdfDocument(content) as document:
        return len(document)


# Prose


@cache
def _vocabulary() -> list[str]:
    random = Random(7)
    return ["".join(random.choices(_SYLLABLES, k=random.choice((1, 2, 2, 3)))) for _ in range(5000)]


def _write_words(random: Random, count: int) -> str:
    """Words with a frequency distribution like that of a language."""
    known = _vocabulary()
    return " ".join(known[int(len(known) * random.random() ** 3)] for _ in range(count))


def _write_sentence(random: Random) -> str:
    return _write_words(random, random.randint(6, 22)).capitalize() + "."


def _write_paragraph(random: Random) -> str:
    return " ".join(_write_sentence(random) for _ in range(random.randint(3, 7)))


def _write_heading(random: Random) -> str:
    return _write_words(random, random.randint(2, 5)).title()


def _length(random: Random, most: int) -> int:
    """A length: short files are many and long ones few, as in real collections."""
    return 1 + int(most * random.random() ** 3)


# PDF


def _printed_pdf(random: Random) -> bytes:
    """Pages of real PDFs in an order of their own."""
    made: Any = pypdfium2.PdfDocument.new()
    with made:
        for _ in range(_length(random, 12)):
            source = _open_real(random.choice(("report.pdf", "note.pdf", "stations.pdf")))
            last = len(source)
            first = random.randrange(last)
            made.import_pages(source, list(range(first, min(last, first + _length(random, 12)))))
        saved = io.BytesIO()
        made.save(saved)
    # These would differ from run to run.
    same = _CREATED.sub(b"(D:20260101000000", saved.getvalue())
    return _ID.sub(b"/ID[<%032X><%032X>]" % ((random.getrandbits(128),) * 2), same)


@cache
def _open_real(name: str) -> pypdfium2.PdfDocument:
    return pypdfium2.PdfDocument(REAL / name)


def _written_pdf(random: Random) -> bytes:
    """Pages full of text under headings."""
    count = _length(random, 50)
    objects = [
        b"<</Type/Catalog/Pages 2 0 R>>",
        b"<</Type/Pages/Count %d/Kids[%s]>>" % (count, b" ".join(b"%d 0 R" % (5 + 2 * n) for n in range(count))),
        b"<</Type/Font/Subtype/Type1/BaseFont/Times-Roman>>",
        b"<</Type/Font/Subtype/Type1/BaseFont/Times-Bold>>",
    ]
    resources = b"/Resources<</Font<</F1 3 0 R/F2 4 0 R>>>>"
    for number in range(count):
        stream = zlib.compress(_draw_page(random, number + 1))
        contents = 6 + 2 * number
        objects += [
            b"<</Type/Page/Parent 2 0 R/MediaBox[0 0 595 842]%s/Contents %d 0 R>>" % (resources, contents),
            b"<</Length %d/Filter/FlateDecode>>stream\n%s\nendstream" % (len(stream), stream),
        ]
    return _bind(objects)


def _draw_page(random: Random, number: int) -> bytes:
    drawn = [b"BT /F2 15 Tf 60 780 Td (%s) Tj 0 -8 Td" % _write_heading(random).encode()]
    for _ in range(PARAGRAPHS_ON_PAGE):
        drawn.append(b"/F1 10.5 Tf 0 -18 Td")
        drawn += [b"(%s) Tj 0 -14 Td" % _write_words(random, WORDS_IN_LINE).encode() for _ in range(LINES)]
    drawn.append(b"/F1 9 Tf 230 -10 Td (%d) Tj ET" % number)
    return b"\n".join(drawn)


def _bind(objects: Sequence[bytes]) -> bytes:
    """The objects as one file, with the cross-reference table."""
    body = b"%PDF-1.7\n"
    offsets: list[int] = []
    for number, content in enumerate(objects, 1):
        offsets.append(len(body))
        body += b"%d 0 obj\n%s\nendobj\n" % (number, content)
    entries = b"".join(b"%010d 00000 n \n" % offset for offset in offsets)
    size = len(objects) + 1
    table = b"xref\n0 %d\n0000000000 65535 f \n%s" % (size, entries)
    return body + table + b"trailer<</Size %d/Root 1 0 R>>\nstartxref\n%d\n%%%%EOF\n" % (size, len(body))


# Office


def _docx(real: str) -> Maker:
    def make(random: Random) -> bytes:
        parts = _unzip(real)
        document = parts["word/document.xml"].decode()
        start = document.rindex("<w:sectPr")
        body = document[document.index("<w:body>") + len("<w:body>") : start]
        more = "".join(body + _docx_section(random) for _ in range(_length(random, 15)))
        parts["word/document.xml"] = (document[:start] + more + document[start:]).encode()
        return _zip(parts)

    return make


def _docx_section(random: Random) -> str:
    heading = f'<w:p><w:pPr><w:pStyle w:val="Heading2"/></w:pPr><w:r><w:t>{_write_heading(random)}</w:t></w:r></w:p>'
    return heading + "".join(f"<w:p><w:r><w:t>{_write_paragraph(random)}</w:t></w:r></w:p>" for _ in range(4))


def _pptx(real: str) -> Maker:
    def make(random: Random) -> bytes:
        parts = _unzip(real)
        for name in sorted(parts):
            if name.startswith("ppt/slides/slide"):
                slide = parts[name].decode()
                parts[name] = slide.replace("</a:t>", f" {_write_sentence(random)}</a:t>").encode()
        return _zip(parts)

    return make


def _xlsx(random: Random) -> bytes:
    parts = _unzip("budget.xlsx")
    sheet = parts["xl/worksheets/sheet1.xml"].decode()
    first = sheet.count("<row ") + 1
    rows = "".join(_xlsx_row(random, first + n) for n in range(20 + _length(random, 600)))
    parts["xl/worksheets/sheet1.xml"] = sheet.replace("</sheetData>", f"{rows}</sheetData>").encode()
    return _zip(parts)


def _xlsx_row(random: Random, number: int) -> str:
    text = f'<c r="A{number}" t="inlineStr"><is><t>{_write_words(random, 3)}</t></is></c>'
    numbers = [f'<c r="{column}{number}"><v>{random.randint(1, 99_999) / 100}</v></c>' for column in "BCDE"]
    return f'<row r="{number}">{text}{"".join(numbers)}</row>'


def _unzip(real: str) -> dict[str, bytes]:
    with zipfile.ZipFile(REAL / real) as source:
        return {entry.filename: source.read(entry) for entry in source.infolist()}


def _zip(parts: dict[str, bytes]) -> bytes:
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in parts.items():
            archive.writestr(zipfile.ZipInfo(name, (2026, 1, 1, 0, 0, 0)), content, zipfile.ZIP_DEFLATED)
    return made.getvalue()


# Text


def _html(real: str) -> Maker:
    def make(random: Random) -> bytes:
        sections = "".join(_html_section(random) for _ in range(_length(random, 30)))
        return (REAL / real).read_text("utf-8").replace("</body>", f"<main>{sections}</main></body>").encode()

    return make


def _html_section(random: Random) -> str:
    paragraphs = "".join(f"<p>{_write_paragraph(random)}</p>" for _ in range(3))
    return f"<section><h2>{_write_heading(random)}</h2>{paragraphs}</section>\n"


def _markdown(random: Random) -> bytes:
    sections = [
        f"\n## {_write_heading(random)}\n\n{_write_paragraph(random)}\n\n- {_write_sentence(random)}\n"
        for _ in range(_length(random, 60))
    ]
    return ((REAL / "handbook.md").read_text("utf-8") + "".join(sections)).encode()


def _csv(random: Random) -> bytes:
    rows = [
        f"{_write_words(random, 2)};{_write_words(random, 1)};;K-{random.randint(1, 999)};{_write_words(random, 2)}\n"
        for _ in range(20 + _length(random, 2000))
    ]
    return ((REAL / "budget.csv").read_text("utf-8") + "".join(rows)).encode()


def _eml(random: Random) -> bytes:
    message = email.message_from_bytes((REAL / "lamp.eml").read_bytes(), policy=email.policy.default)
    message.replace_header("Subject", _write_heading(random))
    body = cast(EmailMessage, message.get_body(("html",)))
    text = str(body.get_content())
    more = "".join(_html_section(random) for _ in range(_length(random, 10)))
    body.set_content(text.replace("</body>", f"{more}</body>"), subtype="html")
    return message.as_bytes()


def _code(real: str, comment: str) -> Maker:
    def make(random: Random) -> bytes:
        text = (REAL / real).read_text("utf-8")
        pieces = [f"{comment} {_write_sentence(random)}\n{text}\n" for _ in range(_length(random, 20))]
        return "\n".join(pieces).encode()

    return make


KINDS = (
    Kind("pdf", 40, ((".pdf", _printed_pdf), (".pdf", _written_pdf))),
    Kind("docx", 16, ((".docx", _docx("report.docx")), (".docx", _docx("handbook.docx")))),
    Kind("pptx", 6, ((".pptx", _pptx("talk.pptx")), (".pptx", _pptx("talk-resaved.pptx")))),
    Kind("xlsx", 8, ((".xlsx", _xlsx),)),
    Kind("html", 8, ((".html", _html("note.html")), (".html", _html("handbook.html")))),
    Kind("markdown", 8, ((".md", _markdown),)),
    Kind("csv", 4, ((".csv", _csv),)),
    Kind("mail", 4, ((".eml", _eml),)),
    Kind(
        "code",
        6,
        (
            (".py", _code("ledger.py", "#")),
            (".java", _code("Kiln.java", "//")),
            (".ts", _code("tides.ts", "//")),
            (".go", _code("queue.go", "//")),
        ),
    ),
)
