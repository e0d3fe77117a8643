"""Files of common formats, built byte by byte: valid files, and files with false sizes or other false claims."""

import struct
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache

GIGA = 1_000_000_000
WORDS = "The lantern was carried along the harbour wall until the boats came home."


@dataclass(frozen=True)
class Entry:
    """An entry of a ZIP archive. Its header may be false."""

    name: str
    content: bytes = b""
    packed: bytes | None = None  # replaces the compressed content
    claims: int | None = None  # replaces the size of the content
    flags: int = 0


# Archives


def deflate(content: bytes) -> bytes:
    packer = zlib.compressobj(9, zlib.DEFLATED, -15)
    return packer.compress(content) + packer.flush()


@cache
def deflated_bomb(size: int, filler: bytes = b" ", head: bytes = b"", tail: bytes = b"", wbits: int = -15) -> bytes:
    """A stream that unpacks to `size` bytes of filler between a head and a tail. Only one block of filler is packed."""
    block = filler * ((1 << 24) // len(filler))
    packer = zlib.compressobj(9, zlib.DEFLATED, wbits)
    start = packer.compress(head) + packer.flush(zlib.Z_FULL_FLUSH)
    chunk = packer.compress(block) + packer.flush(
        zlib.Z_FULL_FLUSH
    )  # independent of earlier data, so it can be repeated
    end = packer.compress(tail) + packer.flush()
    return start + chunk * (size // len(block)) + end


def archive(entries: Sequence[Entry]) -> bytes:
    body, directory = bytearray(), bytearray()
    for entry in entries:
        name = entry.name.encode()
        packed = deflate(entry.content) if entry.packed is None else entry.packed
        size = min(len(entry.content) if entry.claims is None else entry.claims, 0xFFFFFFFE)
        crc = zlib.crc32(entry.content)
        common = struct.pack("<HHHHHIIIHH", 20, entry.flags, 8, 0, 0x21, crc, len(packed), size, len(name), 0)
        directory += b"PK\x01\x02" + struct.pack("<H", 20) + common
        directory += struct.pack("<HHHII", 0, 0, 0, 0, len(body)) + name
        body += b"PK\x03\x04" + common + name + packed
    end = struct.pack("<HHHHIIH", 0, 0, len(entries), len(entries), len(directory), len(body), 0)
    return bytes(body + directory + b"PK\x05\x06" + end)


def bomb(name: str, head: str, tail: str, claims: int | None = None) -> Entry:
    """An entry of 10 GB between its head and its tail."""
    return Entry(
        name, packed=deflated_bomb(10 * GIGA, head=head.encode(), tail=tail.encode()), claims=claims or 1 << 32
    )


# Documents

XML = '<?xml version="1.0" encoding="UTF-8" standalone="yes"?>'
RELS = "http://schemas.openxmlformats.org/package/2006/relationships"
OFFICE = "http://schemas.openxmlformats.org/officeDocument/2006/relationships"
WORD = "http://schemas.openxmlformats.org/wordprocessingml/2006/main"
SHEET = "http://schemas.openxmlformats.org/spreadsheetml/2006/main"
SLIDE = "http://schemas.openxmlformats.org/presentationml/2006/main"
DRAWING = "http://schemas.openxmlformats.org/drawingml/2006/main"
TYPES = "http://schemas.openxmlformats.org/package/2006/content-types"
MS = "application/vnd.openxmlformats-officedocument."


def relations(*targets: tuple[str, str], mode: str = "") -> str:
    rows = "".join(
        f'<Relationship Id="rId{i}" Type="{OFFICE}/{kind}" Target="{target}"{mode}/>'
        for i, (kind, target) in enumerate(targets, 1)
    )
    return f'{XML}<Relationships xmlns="{RELS}">{rows}</Relationships>'


def office(main: str, kind: str, parts: Mapping[str, str | bytes], *more: Entry) -> bytes:
    """An Office document: its list of types, its main relation and its parts."""
    types = (
        f'{XML}<Types xmlns="{TYPES}"><Default Extension="rels" ContentType="application/vnd.openxmlformats-package.'
        'relationships+xml"/><Default Extension="xml" ContentType="application/xml"/>'
        f'<Override PartName="/{main}" ContentType="{MS}{kind}.main+xml"/></Types>'
    )
    all_parts = {"[Content_Types].xml": types, "_rels/.rels": relations(("officeDocument", main)), **parts}
    plain = [Entry(name, part.encode() if isinstance(part, str) else part) for name, part in all_parts.items()]
    return archive([*plain, *more])


def word_text(words: str, doctype: str = "") -> str:
    body = f"<w:body><w:p><w:r><w:t>{words}</w:t></w:r></w:p></w:body>"
    return f'{XML}{doctype}<w:document xmlns:w="{WORD}">{body}</w:document>'


def docx(words: str = WORDS, doctype: str = "", parts: Mapping[str, str | bytes] | None = None, *more: Entry) -> bytes:
    all_parts = {"word/document.xml": word_text(words, doctype), **(parts or {})}
    return office("word/document.xml", "wordprocessingml.document", all_parts, *more)


BOOK = (
    f'{XML}<workbook xmlns="{SHEET}" xmlns:r="{OFFICE}"><sheets><sheet name="One" sheetId="1" r:id="rId1"/></sheets>'
    "</workbook>"
)
CELL = '<c r="{at}" t="inlineStr"><is><t>{words}</t></is></c>'


def sheet(rows: str, before: str = "", after: str = "") -> str:
    return f'{XML}<worksheet xmlns="{SHEET}">{before}<sheetData>{rows}</sheetData>{after}</worksheet>'


def row(number: int, *cells: tuple[str, str]) -> str:
    inner = "".join(CELL.format(at=at, words=words) for at, words in cells)
    return f'<row r="{number}">{inner}</row>'


def xlsx(first: str | None = None, *more: Entry, parts: Mapping[str, str | bytes] | None = None) -> bytes:
    all_parts: dict[str, str | bytes] = {
        "xl/workbook.xml": BOOK,
        "xl/_rels/workbook.xml.rels": relations(("worksheet", "worksheets/sheet1.xml")),
        **(parts or {}),
    }
    if first is not None:
        all_parts["xl/worksheets/sheet1.xml"] = first
    return office("xl/workbook.xml", "spreadsheetml.sheet", all_parts, *more)


def pptx(words: str = WORDS) -> bytes:
    shape = f"<p:sp><p:txBody><a:p><a:r><a:t>{words}</a:t></a:r></a:p></p:txBody></p:sp>"
    names = f'xmlns:p="{SLIDE}" xmlns:a="{DRAWING}" xmlns:r="{OFFICE}"'
    parts = {
        "ppt/presentation.xml": f'{XML}<p:presentation {names}><p:sldIdLst><p:sldId id="256" r:id="rId1"/></p:sldIdLst>'
        "</p:presentation>",
        "ppt/_rels/presentation.xml.rels": relations(("slide", "slides/slide1.xml")),
        "ppt/slides/slide1.xml": f"{XML}<p:sld {names}><p:cSld><p:spTree>{shape}</p:spTree></p:cSld></p:sld>",
    }
    return office("ppt/presentation.xml", "presentationml.presentation", parts)


ODF = "urn:oasis:names:tc:opendocument:xmlns:"
ODF_NAMES = "".join(f' xmlns:{short}="{ODF}{short}:1.0"' for short in ("office", "text", "table"))
ODT_HEAD = f"<office:document-content{ODF_NAMES}><office:body><office:text><text:p>"
ODT_TAIL = "</text:p></office:text></office:body></office:document-content>"


def opendocument(kind: str, content: str | None, *more: Entry, manifest: str = "") -> bytes:
    mime = f"application/vnd.oasis.opendocument.{kind}"
    names = 'xmlns:manifest="urn:oasis:names:tc:opendocument:xmlns:manifest:1.0"'
    listed = f'<manifest:file-entry manifest:full-path="/" manifest:media-type="{mime}"/>{manifest}'
    entries = [
        Entry("mimetype", mime.encode()),
        Entry("META-INF/manifest.xml", f"{XML}<manifest:manifest {names}>{listed}</manifest:manifest>".encode()),
    ]
    if content is not None:
        entries.append(Entry("content.xml", content.encode()))
    return archive([*entries, *more])


def odt(words: str = WORDS, doctype: str = "") -> bytes:
    return opendocument("text", f"{XML}{doctype}{ODT_HEAD}{words}{ODT_TAIL}")


def ods(cells: str) -> bytes:
    body = f'<office:body><office:spreadsheet><table:table table:name="One">{cells}</table:table></office:spreadsheet>'
    return opendocument(
        "spreadsheet", f"{XML}<office:document-content{ODF_NAMES}>{body}</office:body></office:document-content>"
    )


def epub(chapter: Entry, href: str = "one.xhtml") -> bytes:
    container = (
        f'{XML}<container version="1.0" xmlns="urn:oasis:names:tc:opendocument:xmlns:container"><rootfiles>'
        '<rootfile full-path="OEBPS/content.opf" media-type="application/oebps-package+xml"/></rootfiles></container>'
    )
    package = (
        f'{XML}<package xmlns="http://www.idpf.org/2007/opf" version="3.0"><manifest>'
        f'<item id="one" href="{href}" media-type="application/xhtml+xml"/></manifest>'
        '<spine><itemref idref="one"/></spine></package>'
    )
    return archive(
        [
            Entry("mimetype", b"application/epub+zip"),
            Entry("META-INF/container.xml", container.encode()),
            Entry("OEBPS/content.opf", package.encode()),
            chapter,
        ]
    )


XHTML_HEAD = f'{XML}<html xmlns="http://www.w3.org/1999/xhtml"><body><p>'
XHTML_TAIL = "</p></body></html>"


def chapter(words: str = WORDS, doctype: str = "") -> Entry:
    return Entry("OEBPS/one.xhtml", (XHTML_HEAD.replace("?>", f"?>{doctype}", 1) + words + XHTML_TAIL).encode())


# PDF


def pdf(*objects: bytes, trailer: bytes = b"") -> bytes:
    """A PDF of these objects, which are numbered from 1. The first is the catalogue."""
    body, offsets = bytearray(b"%PDF-1.7\n"), list[int]()
    for number, content in enumerate(objects, 1):
        offsets.append(len(body))
        body += b"%d 0 obj\n%s\nendobj\n" % (number, content)
    table = b"".join(b"%010d 00000 n \n" % offset for offset in offsets)
    size = len(objects) + 1
    head = b"xref\n0 %d\n0000000000 65535 f \n%s" % (size, table)
    end = b"trailer\n<< /Size %d /Root 1 0 R %s >>\nstartxref\n%d\n%%%%EOF\n" % (size, trailer, len(body))
    return bytes(body + head + end)


def stream(content: bytes, entries: bytes = b"") -> bytes:
    return b"<< /Length %d %s >>\nstream\n%s\nendstream" % (len(content), entries, content)


CATALOGUE = b"<< /Type /Catalog /Pages 2 0 R >>"
PAGES = b"<< /Type /Pages /Kids [3 0 R] /Count 1 >>"
PAGE = (
    b"<< /Type /Page /Parent 2 0 R /MediaBox [0 0 612 792] /Contents 4 0 R "
    b"/Resources << /Font << /F 5 0 R >> /XObject << /X 6 0 R >> >> >>"
)
FONT = b"<< /Type /Font /Subtype /Type1 /BaseFont /Helvetica >>"
SHOW = b"BT /F 12 Tf 72 700 Td (%s) Tj ET" % WORDS.encode()


def page_of(contents: bytes, *more: bytes, pages: bytes = PAGES, page: bytes = PAGE, trailer: bytes = b"") -> bytes:
    return pdf(CATALOGUE, pages, page, contents, FONT, *more, trailer=trailer)


def pdf_bomb() -> bytes:
    """A page with 10 GB of drawing instructions, packed twice."""
    inner = deflated_bomb(10 * GIGA, head=SHOW, wbits=15)
    return page_of(stream(zlib.compress(inner, 9), b"/Filter [/FlateDecode /FlateDecode]"))


def pdf_page_tree() -> bytes:
    """Nine levels of nodes, each with the same child ten times: 10⁹ pages."""
    nodes = [
        b"<< /Type /Pages /Count %d /Kids [%s] >>" % (10 ** (9 - level), b" ".join([b"%d 0 R" % (level + 3)] * 10))
        for level in range(9)
    ]
    leaf = b"<< /Type /Page /MediaBox [0 0 612 792] /Contents 12 0 R /Resources << /Font << /F 13 0 R >> >> >>"
    return pdf(CATALOGUE, *nodes, leaf, stream(SHOW), FONT)


def pdf_object_stream() -> bytes:
    """A stream of objects that extends itself and contains its own length."""
    inner = b"6 0 7 3 8 6 99 << /Type /Page /Parent 2 0 R >>"
    entries = b"/Type /ObjStm /N 2 /First 12 /Extends 6 0 R"
    body, offsets = bytearray(b"%PDF-1.7\n"), list[int]()
    for number, content in enumerate(
        (CATALOGUE, PAGES, PAGE, stream(SHOW), FONT, stream(inner, entries).replace(b"/Length 46", b"/Length 8 0 R")), 1
    ):
        offsets.append(len(body))
        body += b"%d 0 obj\n%s\nendobj\n" % (number, content)
    rows = b"".join(struct.pack(">BIH", 1, offset, 0) for offset in offsets)
    rows = struct.pack(">BIH", 0, 0, 65535) + rows + struct.pack(">BIH", 2, 6, 0) * 2
    start = len(body)
    table = stream(rows, b"/Type /XRef /Size 9 /W [1 4 2] /Root 1 0 R /Prev %d" % start)
    return bytes(body + b"9 0 obj\n%s\nendobj\nstartxref\n%d\n%%%%EOF\n" % (table, start))


def pdf_nested(opening: bytes, closing: bytes, depth: int) -> bytes:
    return page_of(stream(SHOW), b"<< /Deep %s%s >>" % (opening * depth, closing * depth), trailer=b"/Info 6 0 R")


def pdf_image(width: int, height: int, box: bytes) -> bytes:
    """A page that contains only an image, packed twice."""
    pixels = zlib.compress(deflated_bomb(3 * GIGA, b"\xff", wbits=15), 9)
    entries = (
        b"/Type /XObject /Subtype /Image /Width %d /Height %d /ColorSpace /DeviceRGB /BitsPerComponent 8 "
        b"/Filter [/FlateDecode /FlateDecode]" % (width, height)
    )
    drawing = stream(b"q 612 0 0 792 0 0 cm /X Do Q")
    return page_of(drawing, stream(pixels, entries), page=PAGE.replace(b"0 0 612 792", box))


# Other formats


def png(width: int, height: int) -> bytes:
    """A header that claims this size, and pixels that unpack to gigabytes."""

    def chunk(kind: bytes, content: bytes) -> bytes:
        return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))

    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    pixels = deflated_bomb(3 * GIGA, b"\x00", wbits=15)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", pixels) + chunk(b"IEND", b"")


def jpeg(width: int, height: int) -> bytes:
    frame = struct.pack(">BHHB", 8, height, width, 1) + b"\x01\x11\x00"
    app = b"\xff\xe0\x00\x10JFIF\x00\x01\x01\x00\x00\x01\x00\x01\x00\x00"
    return b"\xff\xd8" + app + b"\xff\xc0" + struct.pack(">H", len(frame) + 2) + frame + b"\xff\xd9"


def gif(width: int, height: int) -> bytes:
    frame = b"," + struct.pack("<HHHHB", 0, 0, width, height, 0) + b"\x02\x02\x4c\x01\x00"
    return b"GIF89a" + struct.pack("<HHBBB", width, height, 0x80, 0, 0) + b"\x00\x00\x00\xff\xff\xff" + frame + b";"


def bmp(width: int, height: int) -> bytes:
    info = struct.pack("<IiiHHIIiiII", 40, width, height, 1, 24, 0, 0, 2835, 2835, 0, 0)
    return b"BM" + struct.pack("<IHHI", 54, 0, 0, 54) + info


def tiff(width: int, height: int) -> bytes:
    tags = ((256, 4, width), (257, 4, height), (258, 3, 8), (259, 3, 1), (262, 3, 1), (273, 4, 8), (278, 4, height),
            (279, 4, 1))  # fmt: skip
    rows = b"".join(struct.pack("<HHII", tag, kind, 1, value) for tag, kind, value in tags)
    return b"II*\x00" + struct.pack("<I", 8) + struct.pack("<H", len(tags)) + rows + struct.pack("<I", 0)


def compound(*names: str, chain: int = 0xFFFFFFFE) -> bytes:
    """An OLE2 compound file with these streams, all in sector 2. `chain` is the sector after it."""
    header = bytes.fromhex("d0cf11e0a1b11ae1") + bytes(16)
    header += struct.pack("<HHHHH", 0x3E, 3, 0xFFFE, 9, 6) + bytes(6)
    header += struct.pack("<IIIIIIIII", 0, 1, 1, 0, 0, 0xFFFFFFFE, 0, 0xFFFFFFFE, 0)
    header += struct.pack("<I", 0) + b"\xff" * (108 * 4)
    table = struct.pack("<III", 0xFFFFFFFD, 0xFFFFFFFE, chain).ljust(512, b"\xff")
    directory = b"".join(
        _compound_entry(name, kind, first, size)
        for name, kind, first, size in (("Root Entry", 5, 0xFFFFFFFE, 0), *((name, 2, 2, 1 << 20) for name in names))
    )
    return header[:512] + table + directory.ljust(512, b"\x00") + bytes(512)


def _compound_entry(name: str, kind: int, first: int, size: int) -> bytes:
    encoded = name.encode("utf-16-le")
    links = (0xFFFFFFFF, 0xFFFFFFFF, 1 if kind == 5 else 0xFFFFFFFF)
    head = encoded.ljust(64, b"\x00") + struct.pack("<HBB", len(encoded) + 2, kind, 1) + struct.pack("<III", *links)
    return head + bytes(36) + struct.pack("<IQ", first, size)


def nested_mail(depth: int) -> bytes:
    """A message with parts nested this deep."""
    head = b"From: a@example.org\r\nSubject: Boxes\r\nMIME-Version: 1.0\r\n"
    opening = b"".join(b'Content-Type: multipart/mixed; boundary="b%d"\r\n\r\n--b%d\r\n' % (i, i) for i in range(depth))
    return head + opening + b"Content-Type: text/plain\r\n\r\n" + WORDS.encode() + b"\r\n"


def forwarded_mail(depth: int) -> bytes:
    head = b"From: a@example.org\r\nSubject: Forwarded\r\nMIME-Version: 1.0\r\nContent-Type: message/rfc822\r\n\r\n"
    return head * depth + b"From: b@example.org\r\nSubject: Last\r\n\r\n" + WORDS.encode() + b"\r\n"


def wide_mail(parts: int) -> bytes:
    head = (
        b'From: a@example.org\r\nSubject: Parts\r\nMIME-Version: 1.0\r\nContent-Type: multipart/mixed; boundary="b"\r\n'
    )
    part = b"\r\n--b\r\nContent-Type: text/plain\r\n\r\n" + WORDS.encode()
    return head + part * parts + b"\r\n--b--\r\n"


def nested_zip(depth: int) -> bytes:
    """Nested archives, with ten entries in each."""
    content, name = deflated_bomb(GIGA), "zeros"
    inner = Entry(name, packed=content, claims=GIGA)
    for level in range(depth):
        packed = archive([inner] * 10) if level == 0 else archive([Entry(f"{i}.zip", inner.content) for i in range(10)])
        inner = Entry(f"level{level}.zip", packed)
    return inner.content


def lines(*repeated: tuple[str, int]) -> bytes:
    return "".join(text * count for text, count in repeated).encode()


VALID: Mapping[str, Callable[[], bytes]] = {
    "docx": docx,
    "xlsx": lambda: xlsx(sheet(row(1, ("A1", "Lamp"), ("B1", "Boat")) + row(2, ("A2", "1"), ("B2", "2")))),
    "pptx": pptx,
    "odt": odt,
    "ods": lambda: ods(
        f'<table:table-row><table:table-cell office:value-type="string"><text:p>{WORDS}</text:p></table:table-cell>'
        "</table:table-row>"
    ),
    "epub": lambda: epub(chapter()),
    "pdf": lambda: page_of(stream(SHOW)),
    "rtf": lambda: rb"{\rtf1\ansi\deff0 {\fonttbl{\f0 Arial;}}\f0 " + WORDS.encode() + rb"\par}",
    "html": lambda: f"<!DOCTYPE html><html><body><h1>Wall</h1><p>{WORDS}</p></body></html>".encode(),
    "eml": lambda: wide_mail(2),
    "json": lambda: b'{"wall": ["lantern", "boats", {"home": true}]}',
    "csv": lambda: b"name,count\nlantern,1\nboat,2\n",
    "md": lambda: f"# Wall\n\n{WORDS}\n\n```py\nprint(1)\n```\n".encode(),
    "ipynb": lambda: b'{"cells": [{"cell_type": "markdown", "source": ["# Wall"]}], "metadata": {}, "nbformat": 4}',
}
