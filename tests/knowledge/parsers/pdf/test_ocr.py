"""Images: recognised text, its positions, and the errors of damaged images."""

import importlib
import os
import struct
import subprocess
import sys
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from almanac.knowledge.parsers.parsed_file import ParsedFile, UnreadableFile
from almanac.knowledge.parsers.pdf import ocr
from almanac.knowledge.parsers.pdf.page_layout import PrintedLine

Image: Any = importlib.import_module("PIL.Image")
ImageDraw: Any = importlib.import_module("PIL.ImageDraw")
ImageFont: Any = importlib.import_module("PIL.ImageFont")


def draw(*texts: tuple[str, int, int], size: tuple[int, int] = (640, 240), mode: str = "RGB") -> Any:
    """An image with texts at these positions, in letters of 32 pixels."""
    image = Image.new(mode, size, (255, 255, 255, 0)[: len(mode)])
    for text, x, y in texts:
        ImageDraw.Draw(image).text((x, y), text, font=ImageFont.load_default(32), fill="black")
    return image


def png(width: int, height: int, data: bytes = b"") -> bytes:
    """A PNG whose header claims this size."""
    chunks = [(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)), (b"IDAT", zlib.compress(data))]
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(body)) + name + body + struct.pack(">I", zlib.crc32(name + body))
        for name, body in [*chunks, (b"IEND", b"")]
    )


def words(parsed: ParsedFile) -> list[str]:
    return [parsed.text[line.start : line.end] for line in parsed.lines]


def refusal(path: Path) -> UnreadableFile:
    with pytest.raises(UnreadableFile) as refused:
        ocr.parse(path, path.name)
    assert str(path) not in refused.value.message
    return refused.value


@pytest.fixture
def engine() -> Iterator[None]:
    """Load recognition for this test alone."""
    load: Any = ocr.load_engine
    load.cache_clear()
    yield
    load.cache_clear()


# Recognition


@pytest.mark.parametrize("name", ["p.png", "p.jpg", "p.webp", "p.bmp", "p.gif"])
def test_an_image_has_lines_with_boxes(tmp_path: Path, name: str):
    draw(("Hello pictures", 40, 40), ("second line", 40, 140)).save(tmp_path / name)
    parsed = ocr.parse(tmp_path / name, name)
    assert words(parsed) == ["Hello pictures", "second line"]
    (page,) = parsed.pages
    assert (page.number, page.start, page.end, page.width, page.height) == (1, 0, len(parsed.text), 640, 240)
    first = parsed.lines[0]
    assert (first.x0, first.y0) == pytest.approx((40, 48), abs=12)
    assert (first.x1, first.y1) == pytest.approx((252, 76), abs=14)


def test_a_tiff_has_a_page_for_each_of_its_images(tmp_path: Path):
    pages = [draw((text, 40, 40), size=(400, 120)) for text in ("The first page", "The second")]
    pages[0].save(tmp_path / "p.tiff", save_all=True, append_images=pages[1:])
    parsed = ocr.parse(tmp_path / "p.tiff", "p.tiff")
    assert parsed.text == "The first page\n\nThe second"
    assert [(page.number, page.start, page.end) for page in parsed.pages] == [(1, 0, 16), (2, 16, 26)]


def test_an_image_is_rotated_and_put_on_white_before_recognition(tmp_path: Path):
    exif = Image.Exif()
    exif[0x0112] = 6  # rotated to the right
    image = draw(("Turned about", 40, 40), size=(400, 120), mode="RGBA").rotate(90, expand=True)
    image.save(tmp_path / "p.png", exif=exif)
    parsed = ocr.parse(tmp_path / "p.png", "p.png")
    assert words(parsed) == ["Turned about"]
    assert (parsed.pages[0].width, parsed.pages[0].height) == (400, 120)


def test_each_line_of_a_tall_image_is_recognised_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(ocr, "MAX_BAND_PIXELS", 150)
    monkeypatch.setattr(ocr, "OVERLAP_PIXELS", 60)
    monkeypatch.setattr(ocr, "DETECTION_SIDE_PIXELS", 1)  # no enlargement
    texts = ["above the cut", "right on the cut", "below the cut", "at the end"]
    draw(*((text, 30, 30 + 95 * index) for index, text in enumerate(texts)), size=(360, 420)).save(tmp_path / "p.png")
    parsed = ocr.parse(tmp_path / "p.png", "p.png")
    assert words(parsed) == texts
    assert [round(line.y0, -1) for line in parsed.lines] == pytest.approx([40, 130, 230, 320], abs=10)


def test_nothing_is_downloaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, engine: None):
    def refuse(*_: object) -> None:
        raise AssertionError("a download")

    monkeypatch.setattr("rapidocr.utils.download_file.DownloadFile.run", refuse)
    monkeypatch.setattr("socket.socket.connect", refuse)
    draw(("Without a network", 40, 40), size=(400, 120)).save(tmp_path / "p.png")
    assert ocr.parse(tmp_path / "p.png", "p.png").text == "Without a network"


PROGRAM = """
import os, sys
from pathlib import Path
from almanac.knowledge.parsers.pdf import ocr
print(len(os.listdir("/proc/self/task")), "onnxruntime" in sys.modules)
print(ocr.parse(Path(sys.argv[1]), "p.png").text)
print(os.environ["ORT_DISABLE_TELEMETRY"], len(os.listdir("/proc/self/task")))
"""


def test_recognition_sends_and_writes_nothing_and_starts_no_thread(tmp_path: Path):
    """By default, ONNX Runtime stores an id of this machine in the home folder and starts a thread to send reports."""
    home = tmp_path / "home"
    home.mkdir()
    draw(("In private", 40, 40), size=(400, 120)).save(tmp_path / "p.png")
    process = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(tmp_path / "p.png")],
        env={"HOME": str(home), "PATH": os.environ["PATH"]},
        capture_output=True,
        text=True,
        check=True,
    )
    assert process.stdout.splitlines() == ["1 False", "In private", "1 1"]
    assert list(home.iterdir()) == []


# Reading order


def column(*texts: str, x: float, y: float = 0) -> list[PrintedLine]:
    return [PrintedLine(text, x, y + 20 * row, x + 100, y + 20 * row + 15) for row, text in enumerate(texts)]


def order(lines: list[PrintedLine]) -> list[str]:
    rows = ocr.reading_order(lines)
    return [" ".join(line.text for line in row) for row in rows]


def test_columns_are_read_one_after_the_other_between_a_title_and_a_footer():
    left, right = column(*"abcd", x=0, y=30), column(*"efgh", x=130, y=33)
    title, foot = PrintedLine("title", 20, 0, 200, 15), PrintedLine("foot", 20, 200, 200, 215)
    assert order([*right, foot, *left, title]) == ["title", *"abcdefgh", "foot"]


def test_the_cells_of_a_table_are_read_row_by_row():
    names = [PrintedLine(str(n), 0, 20 * n, 20 + 25 * (n % 4), 20 * n + 15) for n in range(6)]
    values = [PrintedLine(f"v{n}", 150, 20 * n + 2, 165 + 30 * (n % 3), 20 * n + 16) for n in range(6)]
    assert order([*names, *values]) == [f"{n} v{n}" for n in range(6)]


# Errors


def test_an_installation_without_text_recognition_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(ocr, "is_installed", lambda: False)
    refused = refusal(tmp_path / "p.png")
    assert refused.code == "ocr_missing"
    assert "install Almanac again with all its dependencies" in refused.message


def test_missing_models_are_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, engine: None):
    monkeypatch.setitem(ocr.MODELS, "Det", "*.missing")
    draw(("words", 40, 40)).save(tmp_path / "p.png")
    refused = refusal(tmp_path / "p.png")
    assert refused.code == "ocr_missing"
    assert "models" in refused.message


def test_a_truncated_image_is_corrupt_even_if_all_pixels_are_there(tmp_path: Path):
    blank = png(100, 100, bytes(100 * 301))
    (tmp_path / "whole.png").write_bytes(blank)
    (tmp_path / "cut.png").write_bytes(blank[:-12])
    assert [refusal(tmp_path / name).code for name in ("whole.png", "cut.png")] == ["empty", "corrupt"]


def test_an_image_with_a_billion_pixels_is_refused_by_its_header(tmp_path: Path):
    (tmp_path / "p.png").write_bytes(png(40_000, 25_000))
    assert refusal(tmp_path / "p.png").code == "too_large"


@pytest.mark.parametrize(
    "data",
    [b"", b"no image", png(100, 100, b"\0" * 50), png(100, 100)[:40], b"GIF89a\x10\0\x10\0\xf0\0\0"],
)
def test_a_damaged_image_is_refused(tmp_path: Path, data: bytes):
    (tmp_path / "p.png").write_bytes(data)
    assert refusal(tmp_path / "p.png").code == "corrupt"


def test_an_image_without_text_is_refused(tmp_path: Path):
    draw(size=(200, 100)).save(tmp_path / "p.png")
    assert refusal(tmp_path / "p.png").code == "empty"


def test_a_tiff_with_too_many_images_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(ocr, "MAX_FRAMES", 1)
    pages = [draw(size=(60, 40)) for _ in range(2)]
    pages[0].save(tmp_path / "p.tiff", save_all=True, append_images=pages[1:])
    assert refusal(tmp_path / "p.tiff").code == "too_large"
