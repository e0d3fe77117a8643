"""PDF files: their text, its positions on the page, and the errors of damaged files."""

import hashlib
import importlib
import subprocess
import sys
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pypdfium2  # pyright: ignore[reportMissingTypeStubs]
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from almanac.knowledge.parsers.parsed_file import ParsedFile, TextLine, UnreadableFile
from almanac.knowledge.parsers.pdf import ocr, pdf, printed_lines

PASSWORD_PADDING = bytes.fromhex("28BF4E5E4E758A4164004E56FFFA01082E2E00B6D0683E802F0CA9FE6453697A")
GRINNING = b"""/CIDInit /ProcSet findresource begin 12 dict begin begincmap /CMapName /X def /CMapType 2 def
1 begincodespacerange <00> <FF> endcodespacerange
2 beginbfchar <23> <D83DDE00> <7E> <0628> endbfchar endcmap end end"""


# Files, as small as possible


@dataclass(frozen=True)
class PdfPage:
    """A page of a PDF to write."""

    content: bytes
    media: str = "0 0 300 200"
    crop: str = ""
    rotate: int = 0
    picture: tuple[int, int, bytes] | None = None  # width, height, and red, green and blue of each pixel


def show(text: str, x: float, y: float, size: float = 12, font: str = "F", colour: str = "0 0 0") -> bytes:
    escaped = text.replace("\\", r"\\").replace("(", r"\(").replace(")", r"\)")
    return f"BT {colour} rg /{font} {size} Tf {x} {y} Td ({escaped}) Tj ET\n".encode("latin-1")


def lines(*texts: str, x: float = 20, y: float = 170, leading: float = 14, size: float = 12) -> bytes:
    return b"".join(show(text, x, y - leading * index, size) for index, text in enumerate(texts))


def write(*pages: PdfPage, information: str = "", password: str | None = None) -> bytes:
    """A PDF with these pages. Fonts: F Helvetica, B bold, M Helvetica with special characters."""
    bodies: list[tuple[str, bytes | None]] = [
        ("/Type/Catalog/Pages 2 0 R/Lang(en-GB)", None),
        ("", None),  # the pages, filled in below
        ("/Type/Font/Subtype/Type1/BaseFont/Helvetica/Encoding/WinAnsiEncoding", None),
        ("/Type/Font/Subtype/Type1/BaseFont/Helvetica-Bold", None),
        ("/Type/Font/Subtype/Type1/BaseFont/Helvetica/ToUnicode 6 0 R", None),
        ("", GRINNING),
        (information, None),
    ]
    kids: list[int] = []
    for page in pages:
        number = len(bodies) + 1
        kids.append(number)
        crop = f"/CropBox[{page.crop}]" if page.crop else ""
        image = f"/XObject<</P {number + 2} 0 R>>" if page.picture else ""
        resources = f"/Resources<</Font<</F 3 0 R/B 4 0 R/M 5 0 R>>{image}>>"
        geometry = f"/MediaBox[{page.media}]{crop}/Rotate {page.rotate}"
        bodies.append((f"/Type/Page/Parent 2 0 R{geometry}{resources}/Contents {number + 1} 0 R", None))
        bodies.append(("", page.content))
        if page.picture:
            width, height, pixels = page.picture
            size = f"/Width {width}/Height {height}/BitsPerComponent 8/ColorSpace/DeviceRGB"
            bodies.append((f"/Type/XObject/Subtype/Image{size}/Filter/FlateDecode", zlib.compress(pixels)))
    bodies[1] = (f"/Type/Pages/Count {len(kids)}/Kids[{' '.join(f'{kid} 0 R' for kid in kids)}]", None)
    return _assemble(bodies, password)


def _assemble(bodies: Sequence[tuple[str, bytes | None]], password: str | None) -> bytes:
    owner, user, key = _encryption_keys(password) if password is not None else (b"", b"", b"")
    file = bytearray(b"%PDF-1.7\n")
    offsets: list[int] = []
    for number, (dictionary, stream) in enumerate(bodies, 1):
        offsets.append(len(file))
        file += f"{number} 0 obj\n<<{dictionary}".encode("latin-1")
        if stream is not None:
            object_key = hashlib.md5(key + number.to_bytes(3, "little") + b"\0\0").digest()[:10]
            data = _encrypt(object_key, stream) if key else stream
            file += f"/Length {len(data)}>>stream\n".encode() + data + b"\nendstream endobj\n"
        else:
            file += b">>endobj\n"
    table = len(file)
    file += f"xref\n0 {len(bodies) + 1}\n0000000000 65535 f \n".encode()
    file += b"".join(f"{offset:010} 00000 n \n".encode() for offset in offsets)
    encryption = (
        f"/Encrypt<</Filter/Standard/V 1/R 2/P -4/O<{owner.hex()}>/U<{user.hex()}>>>/ID[<00><00>]" if key else ""
    )
    file += f"trailer<</Size {len(bodies) + 1}/Root 1 0 R/Info 7 0 R{encryption}>>\nstartxref\n{table}\n%%EOF".encode()
    return bytes(file)


def _encryption_keys(password: str) -> tuple[bytes, bytes, bytes]:
    """The two entries and the key of the oldest encryption of PDF."""
    padded = (password.encode() + PASSWORD_PADDING)[:32]
    owner = _encrypt(hashlib.md5(PASSWORD_PADDING).digest()[:5], padded)
    key = hashlib.md5(padded + owner + (-4).to_bytes(4, "little", signed=True) + b"\0").digest()[:5]
    return owner, _encrypt(key, PASSWORD_PADDING), key


def _encrypt(key: bytes, data: bytes) -> bytes:
    """Encrypt with RC4."""
    state = list(range(256))
    j = 0
    for i in range(256):
        j = (j + state[i] + key[i % len(key)]) % 256
        state[i], state[j] = state[j], state[i]
    out = bytearray()
    i = j = 0
    for byte in data:
        i = (i + 1) % 256
        j = (j + state[i]) % 256
        state[i], state[j] = state[j], state[i]
        out.append(byte ^ state[(state[i] + state[j]) % 256])
    return bytes(out)


def parse(folder: Path, data: bytes) -> ParsedFile:
    path = folder / "file.pdf"
    path.write_bytes(data)
    parsed = pdf.parse(path, "file.pdf")
    assert_valid(parsed)
    return parsed


def assert_valid(parsed: ParsedFile) -> None:
    """The rules for every parsed PDF."""
    text = parsed.text
    assert not set(text) & set("\r\0\ufffe")
    assert [page.start for page in parsed.pages] == [0, *(page.end for page in parsed.pages[:-1])]
    assert parsed.pages[-1].end == len(text)
    for parts in (parsed.blocks, parsed.lines):
        end = 0
        for part in parts:
            assert end <= part.start < part.end
            assert not text[end : part.start].strip()
            end = part.end
        assert not text[end:].strip()
    for line in parsed.lines:
        page = parsed.pages[line.page - 1]
        assert page.start <= line.start < line.end <= page.end
        assert 0 <= line.x0 <= line.x1 <= (page.width or 0)
        assert 0 <= line.y0 <= line.y1 <= (page.height or 0)


def words(parsed: ParsedFile) -> list[str]:
    return [parsed.text[line.start : line.end] for line in parsed.lines]


def headings(parsed: ParsedFile) -> list[tuple[int, str]]:
    return [(block.level, block.name) for block in parsed.blocks if block.kind == "heading"]


def paragraphs(parsed: ParsedFile) -> list[str]:
    return [parsed.text[block.start : block.end] for block in parsed.blocks if block.kind == "text"]


@pytest.fixture
def without_ocr(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ocr, "is_installed", lambda: False)


# Text


def test_every_line_has_its_exact_span_and_pages_contain_the_whole_text(tmp_path: Path):
    parsed = parse(tmp_path, write(PdfPage(lines("One line", "another line")), PdfPage(lines("The second page"))))
    assert parsed.text == "One line\nanother line\n\nThe second page"
    assert words(parsed) == ["One line", "another line", "The second page"]
    assert [(page.number, page.start, page.end) for page in parsed.pages] == [(1, 0, 23), (2, 23, 38)]
    assert [(page.width, page.height) for page in parsed.pages] == [(300, 200), (300, 200)]


def test_a_blank_page_is_counted(tmp_path: Path):
    parsed = parse(tmp_path, write(PdfPage(lines("first")), PdfPage(b""), PdfPage(lines("third")), PdfPage(b"")))
    assert parsed.text == "first\n\nthird"
    assert [(page.start, page.end) for page in parsed.pages] == [(0, 7), (7, 7), (7, 12), (12, 12)]


def test_columns_are_read_one_after_the_other(tmp_path: Path):
    left, right = lines("left one", "left two", "left three", x=20), lines("right one", "right two", x=160)
    assert words(parse(tmp_path, write(PdfPage(left + right)))) == [
        *("left one", "left two", "left three"),
        *("right one", "right two"),
    ]


def test_a_word_broken_at_the_end_of_a_line_is_joined(tmp_path: Path):
    parsed = parse(tmp_path, write(PdfPage(lines("all of the know-", "ledge of a house", "and more"))))
    assert parsed.text == "all of the knowledge of a house\nand more"
    assert words(parsed) == ["all of the know", "ledge of a house", "and more"]


@pytest.mark.parametrize(
    ("first", "second", "whole"),
    [
        ("as state-of-the-", "art things go", "as state-of-the-art things go"),
        ("we met Anne-", "Marie there", "we met Anne-Marie there"),
        ("our self-service, this self-", "service again", "our self-service, this self-service again"),
    ],
)
def test_a_hyphen_that_belongs_to_the_word_stays(tmp_path: Path, first: str, second: str, whole: str):
    assert parse(tmp_path, write(PdfPage(lines(first, second)))).text == whole


def test_surrogate_pairs_do_not_shift_the_boxes_after_them(tmp_path: Path):
    content = show("### hello", 20, 150, font="M") + show("below", 20, 100)
    parsed = parse(tmp_path, write(PdfPage(content)))
    assert words(parsed) == ["😀😀😀 hello", "below"]
    assert parsed.lines[1].y0 == pytest.approx(100 - 9, abs=1)
    assert parsed.lines[1].y1 == pytest.approx(100, abs=1)


def test_text_off_the_page_is_omitted(tmp_path: Path):
    content = lines("shown") + show("beside", 400, 100) + show("above", 20, 500)
    assert parse(tmp_path, write(PdfPage(content))).text == "shown"


def test_text_from_right_to_left_is_in_reading_order(tmp_path: Path):
    """The letters BEH are left of the Latin ones, so they come last when read from the right."""
    parsed = parse(tmp_path, write(PdfPage(show("~~~~~ ab", 20, 100, font="M"))))
    assert parsed.text == "ab ببببب"


# Paragraphs and headings


def test_a_wider_gap_or_an_indent_after_a_full_stop_begins_a_paragraph(tmp_path: Path):
    content = lines("The first paragraph", "has two lines.", "And one sentence more.") + lines("The second", y=115)
    content += show("An indented one", 40, 101) + show("goes on here.", 20, 87) + show("A third", 40, 73)
    assert paragraphs(parse(tmp_path, write(PdfPage(content)))) == [
        "The first paragraph\nhas two lines.\nAnd one sentence more.",
        "The second\nAn indented one\ngoes on here.",
        "A third",
    ]


def test_larger_print_is_a_heading_whose_level_depends_on_its_size(tmp_path: Path):
    body = lines("Plain text of the usual size", "goes on for some lines", "and then some more", y=110)
    first = show("A title of the", 20, 180, 24) + show("whole document", 20, 156, 24) + show("A chapter", 20, 130, 16)
    second = show("Another chapter", 20, 150, 16)
    assert headings(parse(tmp_path, write(PdfPage(first + body), PdfPage(second + body)))) == [
        (1, "A title of the whole document"),
        (2, "A chapter"),
        (2, "Another chapter"),
    ]


def test_a_scaled_font_counts_with_its_displayed_size(tmp_path: Path):
    scaled = b"BT /F 1 Tf 20 0 0 20 20 150 Tm (Scaled up) Tj ET\n"
    assert headings(parse(tmp_path, write(PdfPage(scaled + lines("plain text", "in usual size", y=100))))) == [
        (1, "Scaled up")
    ]


def test_a_bold_paragraph_is_a_heading_but_bold_words_are_not(tmp_path: Path):
    content = show("Safety first", 20, 170, font="B") + lines("Wear a helmet at all times", "and good shoes.", y=150)
    content += show("A bold paragraph that goes on", 20, 100, font="B") + show(
        "and ends with a stop.", 20, 86, font="B"
    )
    content += b"BT /B 12 Tf 20 60 Td (Note) Tj /F 12 Tf ( that this is no heading) Tj ET\n"
    assert headings(parse(tmp_path, write(PdfPage(content)))) == [(1, "Safety first")]


def test_running_titles_and_page_numbers_are_not_headings(tmp_path: Path):
    body = lines("Plain text of the usual size", "goes on for some lines", y=110)
    pages = [
        PdfPage(
            show(f"Handbook {number}", 20, 180, 16) + show(f"Part {name}", 20, 140, 16) + body + show("7", 150, 10, 18)
        )
        for number, name in enumerate(("one", "two", "three"), 1)
    ]
    parsed = parse(tmp_path, write(*pages))
    assert headings(parsed) == [(1, "Part one"), (1, "Part two"), (1, "Part three")]
    assert "Handbook 2" in parsed.text


def test_the_lines_of_a_table_of_contents_are_not_headings(tmp_path: Path):
    content = show("Contents", 20, 180, 20) + show("Beginning . . . . . . . 12", 20, 150, 16)
    content += lines("plain text in the usual size", "and more of it than of the rest", y=100)
    assert headings(parse(tmp_path, write(PdfPage(content)))) == [(1, "Contents")]


# Boxes

COLOURS = ("1 0 0", "0 0.6 0", "0 0 1")


def render(data: bytes, scale: int) -> tuple[int, int, bytes]:
    """The width and height of the first page, and its pixels as red, green and blue."""
    document: Any = pypdfium2.PdfDocument(data)
    bitmap = document[0].render(scale=scale, rev_byteorder=True)
    assert bitmap.stride == bitmap.width * 3
    pixels = bitmap.width, bitmap.height, bytes(bitmap.buffer)
    document.close()
    return pixels


def find_ink(picture: tuple[int, int, bytes], channel: int) -> tuple[int, int, int, int]:
    """The box around all pixels of one colour."""
    width, _, pixels = picture
    others = [other for other in range(3) if other != channel]
    ink = [
        index
        for index in range(len(pixels) // 3)
        if all(pixels[3 * index + channel] > pixels[3 * index + other] + 60 for other in others)
    ]
    xs, ys = [index % width for index in ink], [index // width for index in ink]
    return min(xs), min(ys), max(xs) + 1, max(ys) + 1


ROTATIONS = {0: "1 0 0 1 0 0", 90: "0 1 -1 0 310 10", 180: "-1 0 0 -1 320 220", 270: "0 -1 1 0 10 220"}


@pytest.mark.parametrize("rotate", [0, 90, 180, 270])
@pytest.mark.parametrize("crop", ["", "30 20 280 190"])
@pytest.mark.parametrize("upright", [True, False])
def test_a_box_is_exactly_around_the_ink_of_its_line(tmp_path: Path, rotate: int, crop: str, upright: bool):
    texts = ("Ägypten jag", "over", "quickly (so)")
    content = b"".join(
        show(text, 60, 140 - 40 * index, 14, colour=colour)
        for index, (text, colour) in enumerate(zip(texts, COLOURS, strict=True))
    )
    rotation = f"{ROTATIONS[rotate]} cm\n".encode() if upright else b""
    data = write(PdfPage(rotation + content, media="10 10 310 210", crop=crop, rotate=rotate))
    parsed = parse(tmp_path, data)
    assert words(parsed) == [*texts] or (not upright and sorted(words(parsed)) == sorted(texts))
    picture = render(data, scale=2)
    assert (parsed.pages[0].width, parsed.pages[0].height) == (picture[0] / 2, picture[1] / 2)
    for line in parsed.lines:
        ink = find_ink(picture, texts.index(parsed.text[line.start : line.end]))
        assert [side / 2 for side in ink] == pytest.approx([line.x0, line.y0, line.x1, line.y1], abs=0.75)


def test_a_line_placed_letter_by_letter_has_the_box_of_all_letters(tmp_path: Path):
    content = b"".join(show(letter, 20 + 9 * at, 100, 12) for at, letter in enumerate("abcdefghijklmnopqrstuvwxyz"))
    parsed = parse(tmp_path, write(PdfPage(content)))
    (line,) = parsed.lines
    assert parsed.text.replace(" ", "") == "abcdefghijklmnopqrstuvwxyz"
    assert (line.x0, line.x1) == pytest.approx((20.5, 20 + 9 * 25 + 5.5), abs=1)
    assert line.y0 < 100 - 8
    assert line.y1 > 100 + 2


# Encrypted, empty, damaged and large files


def test_a_pdf_with_a_password_is_encrypted(tmp_path: Path):
    with pytest.raises(UnreadableFile, match="password") as refused:
        parse(tmp_path, write(PdfPage(lines("secret")), password="open sesame"))
    assert refused.value.code == "encrypted"


def test_a_pdf_encrypted_without_a_password_is_parsed(tmp_path: Path):
    assert parse(tmp_path, write(PdfPage(lines("locked, yet open")), password="")).text == "locked, yet open"


@pytest.mark.parametrize(
    ("data", "code"),
    [
        (b"", "empty"),
        (b"%PDF-1.7\n" + b"\0" * 500, "corrupt"),
        (write(PdfPage(b"")), "empty"),
        (write(), "corrupt"),
    ],
)
def test_a_file_without_text_is_refused_with_the_reason(tmp_path: Path, data: bytes, code: str):
    with pytest.raises(UnreadableFile) as refused:
        parse(tmp_path, data)
    assert refused.value.code == code
    assert str(tmp_path) not in refused.value.message


def test_pages_and_text_are_limited(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    data = write(*[PdfPage(lines("a page of text"))] * 3)
    monkeypatch.setattr(pdf, "MAX_TEXT_CHARS", 40)
    with pytest.raises(UnreadableFile, match="characters") as refused:
        parse(tmp_path, data)
    assert refused.value.code == "too_large"
    monkeypatch.setattr(pdf, "MAX_PAGES", 2)
    with pytest.raises(UnreadableFile, match="pages") as refused:
        parse(tmp_path, data)
    assert refused.value.code == "too_large"


def test_a_damaged_page_is_listed_and_the_others_are_parsed(tmp_path: Path):
    data = write(PdfPage(lines("good")), PdfPage(lines("bad")), PdfPage(lines("good again")))
    parsed = parse(tmp_path, data.replace(b"/Kids[8 0 R 10 0 R", b"/Kids[8 0 R 99 0 R"))
    assert parsed.text == "good\n\ngood again"
    assert parsed.warnings == ("Damaged pages were left out: page 2.",)


def test_a_file_too_large_to_be_mapped_is_parsed_the_same_even_by_its_descriptor(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    mapped = parse(tmp_path, write(PdfPage(lines("the same text"))))
    monkeypatch.setattr(pdf, "MAX_MAPPED_BYTES", 10)
    with (tmp_path / "file.pdf").open("rb") as file:
        assert pdf.parse(Path(f"/proc/self/fd/{file.fileno()}"), "file.pdf") == mapped


def test_the_document_information_is_cleaned(tmp_path: Path):
    information = (
        "/Title(Microsoft Word -  The\\nplan )/Author(Ada)/CreationDate(D:20240131120000+01'00')/ModDate(D:2025)"
    )
    parsed = parse(tmp_path, write(PdfPage(lines("text")), information=information))
    assert parsed.title == "The plan"
    assert parsed.metadata == {
        "author": "Ada",
        "created": "2024-01-31T12:00:00+01:00",
        "modified": "2025-01-01",
        "language": "en-GB",
    }


# Pages that are images

GREY = (2, 2, b"\x80" * 12)
IMAGE_PAGE = PdfPage(b"q 300 0 0 200 0 0 cm /P Do Q\n" + show("3", 150, 10), picture=GREY)


@pytest.mark.usefixtures("without_ocr")
def test_a_scanned_pdf_without_text_recognition_names_the_remedy(tmp_path: Path):
    with pytest.raises(UnreadableFile, match="install Almanac again") as refused:
        parse(tmp_path, write(IMAGE_PAGE, IMAGE_PAGE))
    assert refused.value.code == "ocr_missing"


@pytest.mark.usefixtures("without_ocr")
def test_an_image_among_pages_of_text_is_listed(tmp_path: Path):
    text = PdfPage(lines("A page with enough text to be one", "that is surely read"))
    parsed = parse(tmp_path, write(text, IMAGE_PAGE, text))
    assert parsed.warnings[0].startswith("The text of images was left out: page 2. Text recognition is missing")
    assert len(words(parsed)) == 5


def test_a_scanned_page_has_recognised_text_with_boxes(tmp_path: Path):
    image, draw, font = (importlib.import_module(f"PIL.{name}") for name in ("Image", "ImageDraw", "ImageFont"))
    picture = image.new("RGB", (600, 400), "white")
    draw.Draw(picture).text((100, 200), "Recognised words", font=font.load_default(40), fill="black")
    page = PdfPage(b"q 300 0 0 200 0 0 cm /P Do Q\n", picture=(600, 400, picture.tobytes()), rotate=180)
    upright = PdfPage(b"q -300 0 0 -200 300 200 cm /P Do Q\n", picture=page.picture, rotate=180)
    parsed = parse(tmp_path, write(PdfPage(lines("A first page with enough of text on it")), upright))
    assert words(parsed)[1] == "Recognised words"
    assert parsed.warnings == ()
    line = parsed.lines[1]
    assert (line.x0, line.y0) == pytest.approx((50, 104), abs=8)
    assert (line.x1, line.y1) == pytest.approx((218, 120), abs=12)


# Hostile files

CHILD = """
import sys
from pathlib import Path
from almanac.knowledge.parsers.pdf import ocr, pdf
from almanac.knowledge.parsers.parsed_file import UnreadableFile
ocr.is_installed = lambda: False
for line in sys.stdin:
    try:
        pdf.parse(Path(line.strip()), "file.pdf")
        print("parsed", flush=True)
    except UnreadableFile as error:
        print(error.code, flush=True)
    except BaseException as error:
        print("raised", repr(error), flush=True)
"""
VALID = write(
    PdfPage(show("Title", 20, 180, 20) + lines("some know-", "ledge here", y=150)),
    PdfPage(show("### ~~", 20, 100, font="M") + IMAGE_PAGE.content, picture=GREY, rotate=90, crop="5 5 290 190"),
    information="/Title(x)/CreationDate(D:2024)",
)


class Child:
    """Parses in another process, because PDFium can crash."""

    def __init__(self) -> None:
        self.process = self._start()

    def _start(self) -> subprocess.Popen[str]:
        return subprocess.Popen([sys.executable, "-c", CHILD], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def parse(self, path: Path) -> str:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(f"{path}\n")
        self.process.stdin.flush()
        result = self.process.stdout.readline().strip()
        if not result:
            self.stop()
            self.process = self._start()
        return result or "died"

    def stop(self) -> None:
        self.process.communicate()


@pytest.fixture(scope="module")
def child() -> Iterator[Child]:
    child = Child()
    yield child
    child.stop()


mutations = st.lists(st.tuples(st.integers(0, len(VALID) - 1), st.integers(0, 8), st.binary(max_size=8)), min_size=1)


@settings(max_examples=150, deadline=None)
@given(mutations)
def test_mutated_files_raise_only_unreadable_file(
    tmp_path_factory: pytest.TempPathFactory, child: Child, changes: list[tuple[int, int, bytes]]
):
    data = bytearray(VALID)
    for at, removed, added in changes:
        data[at : at + removed] = added
    path = tmp_path_factory.getbasetemp() / "mutated.pdf"
    path.write_bytes(data)
    result = child.parse(path)
    assert result in {"parsed", "corrupt", "empty", "encrypted", "too_large", "ocr_missing", "died"}


def test_the_file_without_mutations_is_parsed(tmp_path: Path, child: Child):
    path = tmp_path / "valid.pdf"
    path.write_bytes(VALID)
    assert child.parse(path) == "parsed"


def test_boxes_are_within_the_page_even_if_numbers_are_huge(tmp_path: Path):
    content = b"BT /F 12 Tf 1e38 0 0 1e38 20 100 Tm (huge) Tj ET\n" + lines("usual")
    parsed = parse(tmp_path, write(PdfPage(content)))
    assert "usual" in words(parsed)


def test_displayed_boxes_are_within_the_page():
    geometry = printed_lines.PageGeometry(100, 50, 1, 0, 0, -1, 0, 50)
    assert geometry.to_page((-10, 10, 200, 1e30)) == (0, 0, 100, 40)
    assert all(0 <= side <= 100 for side in geometry.to_page((float("-inf"), 10, float("nan"), float("inf"))))
    assert TextLine(0, 1, 1, *geometry.to_page((1, 2, 3, 4))) == TextLine(0, 1, 1, 1, 46, 3, 48)
