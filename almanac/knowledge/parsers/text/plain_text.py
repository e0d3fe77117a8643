"""Plain text, in whatever encoding it comes."""

import re
from collections.abc import Iterator
from pathlib import Path

from almanac.knowledge.parsers.parsed_file import Block, ParsedFile
from almanac.knowledge.parsers.text import alphabets, encodings

SAMPLE = 16 * 1024  # bytes an encoding is guessed from
DAMAGED = 0.001  # the share of broken bytes up to which a text is still taken for UTF-8

_SEVEN_BITS = re.compile(rb"\x1b\$[@B]|\x1b\([IJ]")
_GAP = re.compile(r"\n[^\S\n]*(?:\n[^\S\n]*)+")
_UNDERLINE = re.compile(r"([^\n]{1,200})\n((?P<sign>[=~^#*+\"-])(?P=sign){2,})[ \t]*(?:\n|$)")
_WHITE = re.compile(r"\s*")


def parse(path: Path, name: str) -> ParsedFile:
    text, encoding = decode(path.read_bytes())
    blocks = tuple(sections(text))
    title = next((block.name for block in blocks if block.kind == "heading"), "")
    return ParsedFile(text, blocks, title=title, metadata={} if encoding == "utf-8" else {"encoding": encoding})


def decode(content: bytes) -> tuple[str, str]:
    """The text of some bytes, its lines ending in `\\n`, and the encoding it was in."""
    encoding = encodings.marked(content) or _guess(content)
    text = content.decode(encoding, "replace").replace("\r\n", "\n").replace("\r", "\n")
    return text.removeprefix("\ufeff").replace("\x00", " "), encoding.removesuffix("-sig")


def _guess(content: bytes) -> str:
    if _SEVEN_BITS.search(content[:SAMPLE]):
        return "iso2022_jp"
    try:
        content.decode()
    except UnicodeDecodeError:
        return "utf-8" if _is_damaged(content[:SAMPLE]) else alphabets.guess(_sample(content))
    return "utf-8"


def _is_damaged(sample: bytes) -> bool:
    """Whether bytes are UTF-8 but for a few: no other encoding looks like it by chance."""
    text = sample.decode("utf-8", "replace")
    whole = sum(map(len, re.findall("[^\x00-\x7f\ufffd]+", text)))
    return text.count("\ufffd") <= max(1, len(text) * DAMAGED) and whole > 4 * text.count("\ufffd")


def _sample(content: bytes) -> bytes:
    """Lines that have letters beyond ASCII: a guess from others is none, and one from all of them is slow."""
    lines: list[bytes] = []
    size = 0
    for line in content[: SAMPLE * 1000].split(b"\n"):
        if not line.isascii():
            lines.append(line[:SAMPLE])
            size += len(line)
        if size > SAMPLE:
            break
    return b"\n".join(lines) or content[:SAMPLE]


def sections(text: str) -> Iterator[Block]:
    """The paragraphs of a text, and the headings that are underlined with a row of signs."""
    for block in paragraphs(text, 0, len(text)):
        found = _UNDERLINE.match(text, block.start, block.end)
        if not found or not found[1][0].isalnum() or len(found[2]) + 2 < len(found[1].strip()):
            yield block
            continue
        end = found.end(2)
        yield Block("heading", block.start, end, 1 if found[2][0] in "=#*" else 2, found[1].strip())
        rest = _skip(text, end, block.end)
        if rest < block.end:
            yield Block("text", rest, block.end)


def paragraphs(text: str, start: int, end: int) -> Iterator[Block]:
    """The paragraphs of a part of a text: what stands between blank lines."""
    start = _skip(text, start, end)
    while start < end:
        gap = _GAP.search(text, start, end)
        stop = gap.start() if gap else end
        yield Block("text", start, start + len(text[start:stop].rstrip()))
        start = _skip(text, gap.end(), end) if gap else end


def _skip(text: str, start: int, end: int) -> int:
    found = _WHITE.match(text, start, end)
    return found.end() if found else start
