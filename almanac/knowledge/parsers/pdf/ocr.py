"""Text in pictures, by text recognition: the `[ocr]` extra, whose models come with it and are never downloaded.

A tall picture is read in bands that overlap: what recognition takes in memory goes with the pixels it sees at once.
It finds stretches of text anywhere on the picture; what stands in one row becomes a line, and columns of lines are
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

from almanac.knowledge.parsers.parsed_file import ParsedFile, UnreadableFile
from almanac.knowledge.parsers.pdf import page_layout
from almanac.knowledge.parsers.pdf.page_layout import PrintedLine, PrintedPage

MOST_PIXELS = 100_000_000  # of a picture as the file has it
MOST_FRAMES = 1_000  # pages of one TIFF
MAX_IMAGE_WIDTH_PIXELS = 2_400  # pixels; a wider picture is made smaller first
TALLEST = 2_400  # pixels that are read at once
OVERLAP = 100  # pixels that a band takes from its neighbours, more than the height of a line of usual print
LEAST_CONFIDENCE = 0.6
LEAST_COLUMN = 4  # lines
DETECTED_SIDE = 1_280  # pixels of the longer side in which text is looked for; it is then read from all pixels
MOST_ENLARGED = 3.0
THREADS = 1  # one document is one process, and several are read at once
ORIENTATION = 0x0112  # how a camera was held, in what it writes into its pictures
FORMATS = ("PNG", "JPEG", "WEBP", "TIFF", "BMP", "GIF")
MODELS = {"Det": "*_det_*.onnx", "Cls": "*_cls_*.onnx", "Rec": "*_rec_*.onnx"}

OPTIONS: dict[str, Any] = {
    "Global.log_level": "critical",
    "Global.text_score": LEAST_CONFIDENCE,
    "Global.max_side_len": max(MAX_IMAGE_WIDTH_PIXELS, TALLEST + 2 * OVERLAP),
    "Det.limit_type": "max",
    "Det.limit_side_len": DETECTED_SIDE,
    "Rec.rec_batch_num": 1,  # lines at once: six take twice the memory and, padded to the longest, more time
    "EngineConfig.onnxruntime.intra_op_num_threads": THREADS,
    "EngineConfig.onnxruntime.inter_op_num_threads": THREADS,
}

REMEDY = (
    "Install text recognition with the [ocr] extra (scripts/uv sync --locked --inexact --no-dev --extra ocr) and retry."
)
TOO_LARGE = f"The picture has more than {MOST_PIXELS // 1_000_000} million pixels. Make it smaller and add it again."
TOO_MANY_FRAMES = f"The picture has more than {MOST_FRAMES:,} pages. Split it and add the parts."
CORRUPT = "The picture is damaged and cannot be read. Open it in a picture program, save it anew and add that file."
EMPTY = "No text was found in the picture."

# What Pillow raises on files that are not as they should be.
BROKEN_PICTURE = (OSError, SyntaxError, ValueError, TypeError, LookupError, EOFError, struct.error, zlib.error)


def is_installed() -> bool:
    """Whether the extra is there."""
    return all(importlib.util.find_spec(name) is not None for name in ("rapidocr", "onnxruntime"))


def preload() -> None:
    """Import what recognition needs, for all processes forked afterwards. What starts threads is left to them."""
    if is_installed():
        _load_extra()


def parse(path: Path, name: str) -> ParsedFile:
    """A picture: its text line by line, a point for a pixel."""
    if not is_installed():
        raise UnreadableFile("ocr_missing", f"The file is a picture. {REMEDY}")
    pages = [picture.read(number) for number, picture in enumerate(_decode(path), 1)]
    if not any(page.lines for page in pages):
        raise UnreadableFile("corrupt", CORRUPT) if _is_cut(path) else UnreadableFile("empty", EMPTY)
    whole = page_layout.arrange(pages)
    return ParsedFile(whole.text, whole.blocks, whole.pages, whole.lines)


def recognise(pixels: bytes | bytearray, width: int, height: int) -> list[PrintedLine]:
    """The lines of a picture in reading order. Of each pixel blue, green and red are given, row by row."""
    array = _load_extra().numpy.frombuffer(pixels, "uint8").reshape(height, width, 3)
    found: list[PrintedLine] = []
    for start in range(0, height, TALLEST):
        top, bottom = max(0, start - OVERLAP), min(height, start + TALLEST + OVERLAP)
        for line in _read_band(array[top:bottom], top):
            if start <= (line.y0 + line.y1) / 2 < start + TALLEST:  # else it is of the next band, or was of the last
                found.append(line)
    return [_join_row(row) for row in _order(found)]


def _read_band(band: Any, top: int) -> Iterator[PrintedLine]:
    """Stretches of text with their boxes on the whole picture."""
    engine, starved = _load_engine()
    try:
        result = engine(band)
    except starved as error:  # whatever it says: with sound models, only memory can be short
        raise MemoryError from error
    if result.boxes is None:
        return
    for corners, text in zip(result.boxes.tolist(), result.txts, strict=True):
        words = " ".join(text.split())
        if words:
            xs, ys = [x for x, _ in corners], [y + top for _, y in corners]
            yield PrintedLine(words, min(xs), min(ys), max(xs), max(ys))


# Reading order


def _order(lines: Sequence[PrintedLine]) -> list[list[PrintedLine]]:
    """Rows from top to bottom, of one column after the other where the text is set in columns."""
    gutter = _find_gutter(lines)
    if gutter is None:
        return _find_rows(lines)
    rows: list[list[PrintedLine]] = []
    for crosses, group in groupby(sorted(lines, key=_find_middle), lambda line: line.x0 < gutter < line.x1):
        members = list(group)
        if crosses:
            rows += _find_rows(members)
        else:
            rows += _order([line for line in members if line.x1 <= gutter])
            rows += _order([line for line in members if line.x0 >= gutter])
    return rows


def _find_gutter(lines: Sequence[PrintedLine]) -> float | None:
    """Where two columns part: hardly a line crosses there, and those on both sides fill their columns."""
    if len(lines) < 2 * LEAST_COLUMN:
        return None
    start, end = min(line.x0 for line in lines), max(line.x1 for line in lines)
    places = [start + (end - start) * step / 40 for step in range(8, 33)]
    gutter = min(places, key=lambda x: (_count_crossing(lines, x), abs(x - (start + end) / 2)))
    sides = [line for line in lines if line.x1 <= gutter], [line for line in lines if line.x0 >= gutter]
    crossing = len(lines) - len(sides[0]) - len(sides[1])
    return gutter if 5 * crossing <= len(lines) and all(map(_is_column, sides)) else None


def _count_crossing(lines: Sequence[PrintedLine], x: float) -> int:
    return sum(line.x0 < x < line.x1 for line in lines)


def _is_column(lines: Sequence[PrintedLine]) -> bool:
    """Whether lines are those of running text, not the cells of a table."""
    if len(lines) < LEAST_COLUMN:
        return False
    width = max(line.x1 for line in lines) - min(line.x0 for line in lines)
    return median(line.x1 - line.x0 for line in lines) >= 0.7 * width


def _find_rows(lines: Sequence[PrintedLine]) -> list[list[PrintedLine]]:
    """What stands side by side, from left to right."""
    rows: list[list[PrintedLine]] = []
    for line in sorted(lines, key=_find_middle):
        last = rows[-1][-1] if rows else None
        if last and _find_middle(line) < last.y1 and line.y0 < _find_middle(last):
            rows[-1].append(line)
        else:
            rows.append([line])
    return [sorted(row, key=lambda line: line.x0) for row in rows]


def _find_middle(line: PrintedLine) -> float:
    return (line.y0 + line.y1) / 2


def _join_row(row: Sequence[PrintedLine]) -> PrintedLine:
    x0, y0 = min(line.x0 for line in row), min(line.y0 for line in row)
    x1, y1 = max(line.x1 for line in row), max(line.y1 for line in row)
    return PrintedLine(" ".join(line.text for line in row), x0, y0, x1, y1, baseline=(y0 + y1) / 2)


# Pictures


class _Picture(NamedTuple):
    """A decoded picture: of each pixel blue, green and red, row by row, at a scale of the file's own size."""

    pixels: bytes
    width: int
    height: int
    scale: float

    def read(self, number: int) -> PrintedPage:
        lines = [line.resize(1 / self.scale) for line in recognise(self.pixels, self.width, self.height)]
        return PrintedPage(number, round(self.width / self.scale), round(self.height / self.scale), lines)


def _is_cut(path: Path) -> bool:
    """Whether a PNG has no end: Pillow is content once it has pixels enough."""
    content = path.read_bytes()
    return content.startswith(b"\x89PNG") and b"IEND" not in content


def _decode(path: Path) -> Iterator[_Picture]:
    """The pages of a picture file, one by one; of an animation only the first is one."""
    extra = _load_extra()
    try:
        with extra.pillow.open(path, formats=FORMATS) as image:
            for index in range(MOST_FRAMES + 1 if image.format == "TIFF" else 1):
                try:
                    image.seek(index)
                except EOFError:
                    return
                if index == MOST_FRAMES:
                    raise UnreadableFile("too_large", TOO_MANY_FRAMES)
                yield _decode_frame(image, extra)
    except BROKEN_PICTURE as error:
        raise UnreadableFile("corrupt", CORRUPT) from error


def _decode_frame(image: Any, extra: "_Extra") -> _Picture:
    """A page as it is displayed, on white, in a size fit for recognition. Its size is looked at before its pixels."""
    if image.width * image.height > MOST_PIXELS:
        raise UnreadableFile("too_large", TOO_LARGE)
    if image.getexif().get(ORIENTATION, 1) != 1:
        image = extra.pillow_ops.exif_transpose(image)
    if image.mode == "I;16":
        image = image.point(_drop_lower_byte, "L")
    mode = "RGBA" if image.has_transparency_data else "RGB"
    image = image if image.mode == mode else image.convert(mode)
    scale = min(MAX_IMAGE_WIDTH_PIXELS / image.width, max(1.0, min(MOST_ENLARGED, DETECTED_SIDE / max(image.size))))
    if scale != 1:
        image = image.resize((max(1, round(image.width * scale)), max(1, round(image.height * scale))))
    if mode == "RGBA":
        image = extra.pillow.alpha_composite(extra.pillow.new(mode, image.size, "white"), image)
    red, green, blue = image.split()[:3]
    return _Picture(extra.pillow.merge("RGB", (blue, green, red)).tobytes(), image.width, image.height, scale)


def _drop_lower_byte(value: Any) -> Any:
    return value / 256


# The extra


@dataclass(frozen=True, slots=True)
class _Extra:
    """What the extra brings, none of it with types."""

    pillow: Any
    pillow_ops: Any
    numpy: Any
    recogniser: Any


@cache
def _load_extra() -> _Extra:
    os.environ["ORT_DISABLE_TELEMETRY"] = "1"  # else ONNX Runtime reports to its makers from when it is imported
    os.environ.setdefault("OPENBLAS_NUM_THREADS", str(THREADS))  # read by NumPy when it is imported, which starts them
    import cv2  # noqa: PLC0415 - an extra
    import numpy  # noqa: PLC0415
    from PIL import Image, ImageOps  # noqa: PLC0415
    from rapidocr import RapidOCR  # noqa: PLC0415

    Image.MAX_IMAGE_PIXELS = None  # the limit here is ours, and is no warning
    cv2.setNumThreads(THREADS)
    return _Extra(Image, ImageOps, numpy, RapidOCR)


@cache
def _load_engine() -> tuple[Any, type[Exception]]:
    """Recognition with the models that were installed, and what it raises where one cannot be run.

    Left to itself it would download other models, and write a log.
    """
    recogniser = _load_extra().recogniser  # first, for it sets what ONNX Runtime looks at when it is imported
    from rapidocr.inference_engine.onnxruntime.main import ONNXRuntimeError  # noqa: PLC0415 - an extra

    models = files("rapidocr") / "models"
    paths = {
        f"{part}.model_path": min(Path(str(models)).glob(pattern), default=None) for part, pattern in MODELS.items()
    }
    if None in paths.values():
        raise UnreadableFile("ocr_missing", f"The models of text recognition are missing. {REMEDY}")
    given = OPTIONS | {name: str(found) for name, found in paths.items()}
    return recogniser(params=given), ONNXRuntimeError
