"""Text in images, by text recognition. The package rapidocr contains the models: nothing is downloaded.

A tall image is processed in overlapping bands, because the memory for recognition grows with the number of pixels at
once. Recognition finds pieces of text anywhere on the image. Pieces in one row become a line, and columns of lines are
read one after the other.
"""

import importlib.util
import os
import struct
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from itertools import groupby
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

from almanac.core.text import one_line
from almanac.knowledge.parsers.parsed_file import ParsedFile, UnreadableFile
from almanac.knowledge.parsers.pdf import page_layout
from almanac.knowledge.parsers.pdf.page_layout import PrintedLine, PrintedPage

MAX_IMAGE_PIXELS = 100_000_000  # as stored in the file
MAX_FRAMES = 1_000  # pages of one TIFF
MAX_IMAGE_WIDTH_PIXELS = 2_400  # a wider image is first made smaller
MAX_BAND_PIXELS = 2_400  # of height
OVERLAP_PIXELS = 100  # with the neighbouring bands; more than the height of an ordinary line
MIN_CONFIDENCE = 0.6
MIN_COLUMN_LINES = 4
DETECTION_SIDE_PIXELS = 1_280  # the longer side of the image for text detection; recognition then uses all pixels
MAX_ENLARGEMENT = 3.0
THREADS = 1  # each document has a process of its own, and several are processed at once
ORIENTATION_TAG = 0x0112  # the orientation of the camera, in the EXIF data of an image
FORMATS = ("PNG", "JPEG", "WEBP", "TIFF", "BMP", "GIF")
MODELS = {"Det": "*_det_*.onnx", "Cls": "*_cls_*.onnx", "Rec": "*_rec_*.onnx"}

OPTIONS: dict[str, Any] = {
    "Global.log_level": "critical",
    "Global.text_score": MIN_CONFIDENCE,
    "Global.max_side_len": max(MAX_IMAGE_WIDTH_PIXELS, MAX_BAND_PIXELS + 2 * OVERLAP_PIXELS),
    "Det.limit_type": "max",
    "Det.limit_side_len": DETECTION_SIDE_PIXELS,
    "Rec.rec_batch_num": 1,  # lines at once; six take twice the memory and, padded to the longest, more time
    "EngineConfig.onnxruntime.intra_op_num_threads": THREADS,
    "EngineConfig.onnxruntime.inter_op_num_threads": THREADS,
}

REMEDY = "Text recognition is missing in this installation: install Almanac again with all its dependencies, and retry."
TOO_LARGE = f"The image has more than {MAX_IMAGE_PIXELS // 1_000_000} million pixels. Make it smaller and add it again."
TOO_MANY_FRAMES = f"The image has more than {MAX_FRAMES:,} pages. Split it and add the parts."
CORRUPT = "The image is damaged. Open it in an image program, save it again and add that copy."
EMPTY = "No text was recognised in the image."

# Errors that Pillow raises for damaged files.
DAMAGED_IMAGE_ERRORS = (OSError, SyntaxError, ValueError, TypeError, LookupError, EOFError, struct.error, zlib.error)


def is_installed() -> bool:
    """Whether text recognition is installed, as it is unless dependencies were left out."""
    return all(importlib.util.find_spec(name) is not None for name in ("rapidocr", "onnxruntime"))


def parse(path: Path, name: str) -> ParsedFile:
    """The text of an image line by line. Positions are in pixels."""
    if not is_installed():
        raise UnreadableFile("ocr_missing", f"The file is an image. {REMEDY}")
    pages = [image.recognise(number) for number, image in enumerate(_decode(path), 1)]
    if not any(page.lines for page in pages):
        raise UnreadableFile("corrupt", CORRUPT) if _is_truncated(path) else UnreadableFile("empty", EMPTY)
    text = page_layout.arrange(pages)
    return ParsedFile(text.text, text.blocks, text.pages, text.lines)


def recognise(pixels: bytes | bytearray, width: int, height: int) -> list[PrintedLine]:
    """The lines of an image in reading order. The pixels are given row by row, each as blue, green and red."""
    array = _load_extra().numpy.frombuffer(pixels, "uint8").reshape(height, width, 3)
    lines: list[PrintedLine] = []
    for start in range(0, height, MAX_BAND_PIXELS):
        end = start + MAX_BAND_PIXELS
        top, bottom = max(0, start - OVERLAP_PIXELS), min(height, end + OVERLAP_PIXELS)
        for line in _recognise_band(array[top:bottom], top):
            if start <= _middle(line) < end:  # otherwise it belongs to a neighbouring band
                lines.append(line)
    return [_join_row(row) for row in reading_order(lines)]


def _recognise_band(band: Any, top: int) -> Iterator[PrintedLine]:
    """The pieces of text in a band, with their boxes on the whole image."""
    engine, engine_error = load_engine()
    try:
        result = engine(band)
    except engine_error as error:  # with intact models, the only possible reason is a lack of memory
        raise MemoryError from error
    if result.boxes is None:
        return
    for corners, text in zip(result.boxes.tolist(), result.txts, strict=True):
        words = one_line(text)
        if words:
            xs, ys = [x for x, _ in corners], [y + top for _, y in corners]
            yield PrintedLine(words, min(xs), min(ys), max(xs), max(ys))


# Reading order


def reading_order(lines: Sequence[PrintedLine]) -> list[list[PrintedLine]]:
    """The rows from top to bottom; if there are columns, one column after the other."""
    gutter = _find_gutter(lines)
    if gutter is None:
        return _find_rows(lines)
    rows: list[list[PrintedLine]] = []
    for is_crossing, group in groupby(sorted(lines, key=_middle), lambda line: line.x0 < gutter < line.x1):
        section = list(group)
        if is_crossing:
            rows += _find_rows(section)
        else:
            rows += reading_order([line for line in section if line.x1 <= gutter])
            rows += reading_order([line for line in section if line.x0 >= gutter])
    return rows


def _find_gutter(lines: Sequence[PrintedLine]) -> float | None:
    """The gap between two columns: hardly any line crosses it, and the lines on both sides fill their columns."""
    if len(lines) < 2 * MIN_COLUMN_LINES:
        return None
    start, end = min(line.x0 for line in lines), max(line.x1 for line in lines)
    candidates = [start + (end - start) * step / 40 for step in range(8, 33)]
    gutter = min(candidates, key=lambda x: (sum(line.x0 < x < line.x1 for line in lines), abs(x - (start + end) / 2)))
    sides = [line for line in lines if line.x1 <= gutter], [line for line in lines if line.x0 >= gutter]
    crossing = len(lines) - len(sides[0]) - len(sides[1])
    return gutter if 5 * crossing <= len(lines) and all(map(_is_column, sides)) else None


def _is_column(lines: Sequence[PrintedLine]) -> bool:
    """Whether the lines are continuous text and not the cells of a table."""
    if len(lines) < MIN_COLUMN_LINES:
        return False
    width = max(line.x1 for line in lines) - min(line.x0 for line in lines)
    return median(line.x1 - line.x0 for line in lines) >= 0.7 * width


def _find_rows(lines: Sequence[PrintedLine]) -> list[list[PrintedLine]]:
    """The lines that are side by side, from left to right."""
    rows: list[list[PrintedLine]] = []
    for line in sorted(lines, key=_middle):
        last = rows[-1][-1] if rows else None
        if last and _middle(line) < last.y1 and line.y0 < _middle(last):
            rows[-1].append(line)
        else:
            rows.append([line])
    return [sorted(row, key=lambda line: line.x0) for row in rows]


def _middle(line: PrintedLine) -> float:
    return (line.y0 + line.y1) / 2


def _join_row(row: Sequence[PrintedLine]) -> PrintedLine:
    x0, y0 = min(line.x0 for line in row), min(line.y0 for line in row)
    x1, y1 = max(line.x1 for line in row), max(line.y1 for line in row)
    return PrintedLine(" ".join(line.text for line in row), x0, y0, x1, y1, baseline=(y0 + y1) / 2)


# Images


class _DecodedImage(NamedTuple):
    """The pixels of an image row by row, each as blue, green and red."""

    pixels: bytes
    width: int
    height: int
    scale: float  # relative to the size in the file

    def recognise(self, number: int) -> PrintedPage:
        lines = [line.scaled(1 / self.scale) for line in recognise(self.pixels, self.width, self.height)]
        return PrintedPage(number, round(self.width / self.scale), round(self.height / self.scale), lines)


def _is_truncated(path: Path) -> bool:
    """Whether a PNG has no end. Pillow does not notice if all pixels are there."""
    content = path.read_bytes()
    return content.startswith(b"\x89PNG") and b"IEND" not in content


def _decode(path: Path) -> Iterator[_DecodedImage]:
    """The pages of a TIFF, or the first frame of any other image."""
    extra = _load_extra()
    try:
        with extra.pillow.open(path, formats=FORMATS) as image:
            for index in range(MAX_FRAMES + 1 if image.format == "TIFF" else 1):
                try:
                    image.seek(index)
                except EOFError:
                    return
                if index == MAX_FRAMES:
                    raise UnreadableFile("too_large", TOO_MANY_FRAMES)
                yield _decode_frame(image, extra)
    except DAMAGED_IMAGE_ERRORS as error:
        raise UnreadableFile("corrupt", CORRUPT) from error


def _decode_frame(image: Any, extra: "_Extra") -> _DecodedImage:
    """A page as it is displayed, on white, scaled for recognition. The size is checked before decoding."""
    if image.width * image.height > MAX_IMAGE_PIXELS:
        raise UnreadableFile("too_large", TOO_LARGE)
    if image.getexif().get(ORIENTATION_TAG, 1) != 1:
        image = extra.pillow_ops.exif_transpose(image)
    if image.mode == "I;16":
        image = image.point(_drop_lower_byte, "L")
    mode = "RGBA" if image.has_transparency_data else "RGB"
    image = image if image.mode == mode else image.convert(mode)
    enlargement = max(1.0, min(MAX_ENLARGEMENT, DETECTION_SIDE_PIXELS / max(image.size)))
    scale = min(MAX_IMAGE_WIDTH_PIXELS / image.width, enlargement)
    if scale != 1:
        image = image.resize((max(1, round(image.width * scale)), max(1, round(image.height * scale))))
    if mode == "RGBA":
        image = extra.pillow.alpha_composite(extra.pillow.new(mode, image.size, "white"), image)
    red, green, blue = image.split()[:3]
    return _DecodedImage(extra.pillow.merge("RGB", (blue, green, red)).tobytes(), image.width, image.height, scale)


def _drop_lower_byte(value: Any) -> Any:
    return value / 256


# The extra


@dataclass(frozen=True, slots=True)
class _Extra:
    """The libraries of text recognition, none of which has types."""

    pillow: Any
    pillow_ops: Any
    numpy: Any
    recogniser: Any


@cache
def _load_extra() -> _Extra:
    os.environ["ORT_DISABLE_TELEMETRY"] = "1"  # ONNX Runtime would send usage data from its import on
    os.environ.setdefault("OPENBLAS_NUM_THREADS", str(THREADS))  # NumPy starts its threads when it is imported
    import cv2  # noqa: PLC0415 - loaded by the confined child that reads an image, and by no other process
    import numpy  # noqa: PLC0415
    from PIL import Image, ImageOps  # noqa: PLC0415
    from rapidocr import RapidOCR  # noqa: PLC0415

    Image.MAX_IMAGE_PIXELS = None  # our own limit is an error, and Pillow's only a warning
    cv2.setNumThreads(THREADS)
    return _Extra(Image, ImageOps, numpy, RapidOCR)


@cache
def load_engine() -> tuple[Any, type[Exception]]:
    """Recognition with the installed models, and its error class.

    By default it would download other models and write a log.
    """
    recogniser = _load_extra().recogniser  # first: it sets a variable that ONNX Runtime reads when imported
    from rapidocr.inference_engine.onnxruntime.main import ONNXRuntimeError  # noqa: PLC0415 - as above

    models = files("rapidocr") / "models"
    paths = {
        f"{part}.model_path": min(Path(str(models)).glob(pattern), default=None) for part, pattern in MODELS.items()
    }
    if None in paths.values():
        raise UnreadableFile("ocr_missing", f"The models for text recognition are missing. {REMEDY}")
    options = OPTIONS | {name: str(path) for name, path in paths.items()}
    return recogniser(params=options), ONNXRuntimeError
