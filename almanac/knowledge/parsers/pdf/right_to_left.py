"""Lines in scripts that run from right to left, restored to reading order.

A page contains only the position of each character. A line that mostly runs from right to left is reversed, and its
parts that run the other way are reversed back: the opposite of the program that laid out the line.
"""

import re
import unicodedata
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

from almanac.knowledge.parsers.text_builder import join_text

RIGHT_TO_LEFT = re.compile(r"[\u0590-\u08ff\ufb1d-\ufdff\ufe70-\ufefc]")
MIN_WORD_GAP = 0.28  # of the font size: a wider gap is a space, with or without a space character
MIN_SHARE = 0.5  # of letters from right to left in a line that runs from right to left

# One letter for each class of characters. The expressions below match words of these letters.
_LEFT, _RIGHT, _NUMBER, _SEPARATOR, _UNIT, _OTHER = "LRNPUO"
_CLASSES = {"L": _LEFT, "R": _RIGHT, "AL": _RIGHT, "EN": _NUMBER, "AN": _NUMBER, "CS": _SEPARATOR, "ES": _SEPARATOR,
            "ET": _UNIT}  # fmt: skip
_LEFT_RUN = re.compile(r"L(?:[LNPUO]*[LN])?|U?N(?:P?N)*U?")
_RIGHT_RUN = re.compile(r"R(?:[RNPUO]*R)?")
_NUMBER_RUN = re.compile(r"N(?:P?N)*")

_MIRRORED = str.maketrans("()[]{}<>«»", ")(][}{><»«")
_SWAPPED_SURROGATES = re.compile("([\udc00-\udfff])([\ud800-\udbff])")


class Glyph(NamedTuple):
    """A character and its horizontal position."""

    code: int  # the code point, or one surrogate of a pair
    x0: float
    x1: float


@dataclass(slots=True)
class _Cluster:
    """Characters at one position: a letter with its marks, or the parts of a ligature."""

    text: str
    x0: float
    x1: float

    @property
    def middle(self) -> float:
        return (self.x0 + self.x1) / 2


def reading_order(glyphs: Sequence[Glyph], size: float) -> str:
    """The text of a line in reading order, from its glyphs in any order and its font size."""
    line = _add_spaces(_cluster(glyphs), [glyph for glyph in glyphs if glyph.code == 0x20], size)
    classes = "".join(_CLASSES.get(unicodedata.bidirectional(text[0]), _OTHER) for text in line)
    right, left = classes.count(_RIGHT), classes.count(_LEFT)
    if right >= MIN_SHARE * (right + left):
        return "".join(_reverse(line, classes, _LEFT_RUN))
    parts: list[str] = []
    end = 0
    for run in _RIGHT_RUN.finditer(classes):
        parts += line[end : run.start()]
        parts += _reverse(line[run.start() : run.end()], run.group(), _NUMBER_RUN)
        end = run.end()
    return "".join(parts + line[end:])


def _reverse(line: Sequence[str], classes: str, unchanged: re.Pattern[str]) -> list[str]:
    """The parts of a line in reverse order, with the runs that match `unchanged` as they are."""
    parts: list[str] = []
    end = 0
    for run in unchanged.finditer(classes):
        parts += [text.translate(_MIRRORED) for text in line[end : run.start()]]
        parts.append("".join(line[run.start() : run.end()]))
        end = run.end()
    parts += [text.translate(_MIRRORED) for text in line[end:]]
    return parts[::-1]


def _add_spaces(clusters: Sequence[_Cluster], spaces: Sequence[Glyph], size: float) -> list[str]:
    """The texts from left to right, with a space at each space character and at each wide gap."""
    middles = sorted((space.x0 + space.x1) / 2 for space in spaces)
    line = [cluster.text for cluster in clusters[:1]]
    for before, after in pairwise(clusters):
        index = bisect_left(middles, before.x1)
        has_space = index < len(middles) and middles[index] < after.x0
        if has_space or after.x0 - before.x1 > MIN_WORD_GAP * size:
            line.append(" ")
        line.append(after.text)
    return line


def _cluster(glyphs: Sequence[Glyph]) -> list[_Cluster]:
    """The glyphs from left to right, combined if they have the same position."""
    clusters: list[_Cluster] = []
    marks: list[Glyph] = []
    for glyph in glyphs:
        char = chr(glyph.code) if glyph.code <= 0x10FFFF else ""
        if not char.strip() or unicodedata.category(char) in ("Cc", "Cf", "Cn"):
            continue
        last = clusters[-1] if clusters else None
        if unicodedata.combining(char):
            marks.append(glyph)
        elif last and (last.x0, last.x1) == (glyph.x0, glyph.x1):
            # If the glyphs already come from right to left, the parts of a ligature are in the wrong order.
            is_swapped = len(clusters) > 1 and clusters[-2].x0 > last.x0 and RIGHT_TO_LEFT.match(char)
            last.text = char + last.text if is_swapped else last.text + char
        else:
            clusters.append(_Cluster(char, glyph.x0, glyph.x1))
    clusters.sort(key=lambda cluster: cluster.middle)
    _attach_marks(clusters, marks)
    for cluster in clusters:
        cluster.text = join_text(_SWAPPED_SURROGATES.sub(r"\2\1", cluster.text))
    return clusters


def _attach_marks(clusters: Sequence[_Cluster], marks: Sequence[Glyph]) -> None:
    """Append each mark to the nearest letter."""
    middles = [cluster.middle for cluster in clusters]
    for mark in marks:
        middle = (mark.x0 + mark.x1) / 2
        index = bisect_left(middles, middle)
        near = clusters[max(index - 1, 0) : index + 1]
        if near:
            min(near, key=lambda cluster: abs(cluster.middle - middle)).text += chr(mark.code)
