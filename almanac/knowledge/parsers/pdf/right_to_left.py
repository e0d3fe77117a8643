"""Lines in scripts that run from right to left, put back into the order in which they are read.

A page knows only where each sign stands. Taken from left to right, a line is turned about where it mostly runs from
right to left, and what runs the other way in it is turned back: the reverse of what was done to set it.
"""

import re
import unicodedata
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

RIGHT_TO_LEFT = re.compile(r"[\u0590-\u08ff\ufb1d-\ufdff\ufe70-\ufefc]")
WORD_GAP = 0.28  # of the size of print: a wider gap is a space, whether there is a sign for it or not
OWN_SHARE = 0.5  # of a line's letters from right to left make it a line that runs so

# The kinds of sign, as letters of a word on which the expressions below work.
_LEFT, _RIGHT, _NUMBER, _POINT, _UNIT, _OTHER = "LRNPUO"
_KINDS = {"L": _LEFT, "R": _RIGHT, "AL": _RIGHT, "EN": _NUMBER, "AN": _NUMBER, "CS": _POINT, "ES": _POINT, "ET": _UNIT}
_LEFT_RUN = re.compile(r"L(?:[LNPUO]*[LN])?|U?N(?:P?N)*U?")
_RIGHT_RUN = re.compile(r"R(?:[RNPUO]*R)?")
_NUMBER_RUN = re.compile(r"N(?:P?N)*")

_MIRRORED = str.maketrans("()[]{}<>«»", ")(][}{><»«")
_TURNED_PAIR = re.compile("([\udc00-\udfff])([\ud800-\udbff])")


class Glyph(NamedTuple):
    """A sign and where it stands, from left to right."""

    sign: int  # its number in Unicode, or one half of a pair of UTF-16
    x0: float
    x1: float


@dataclass(slots=True)
class _Cluster:
    """Signs that share one place: a letter with its marks, or the parts of a ligature."""

    text: str
    x0: float
    x1: float

    @property
    def middle(self) -> float:
        return (self.x0 + self.x1) / 2


def reading_order(glyphs: Sequence[Glyph], size: float) -> str:
    """The text of a line as it is read, from its signs in any order and the size of its print."""
    line = _space(_cluster(glyphs), [glyph for glyph in glyphs if glyph.sign == 0x20], size)
    kinds = "".join(_find_kind(text) for text in line)
    right, left = kinds.count(_RIGHT), kinds.count(_LEFT)
    if right >= OWN_SHARE * (right + left):
        return "".join(_turn(line, kinds, _LEFT_RUN))
    parts: list[str] = []
    end = 0
    for run in _RIGHT_RUN.finditer(kinds):
        parts += line[end : run.start()]
        parts += _turn(line[run.start() : run.end()], run.group(), _NUMBER_RUN)
        end = run.end()
    return "".join(parts + line[end:])


def _turn(line: Sequence[str], kinds: str, kept: re.Pattern[str]) -> list[str]:
    """The parts of a line from right to left, but for runs that are kept as they are."""
    parts: list[str] = []
    end = 0
    for run in kept.finditer(kinds):
        parts += [text.translate(_MIRRORED) for text in line[end : run.start()]]
        parts.append("".join(line[run.start() : run.end()]))
        end = run.end()
    parts += [text.translate(_MIRRORED) for text in line[end:]]
    return parts[::-1]


def _find_kind(text: str) -> str:
    return _KINDS.get(unicodedata.bidirectional(text[0]), _OTHER)


def _space(clusters: Sequence[_Cluster], spaces: Sequence[Glyph], size: float) -> list[str]:
    """The texts from left to right with spaces between words: where a sign of its own stands, or a wide gap."""
    middles = sorted((space.x0 + space.x1) / 2 for space in spaces)
    line = [cluster.text for cluster in clusters[:1]]
    for before, after in pairwise(clusters):
        at = bisect_left(middles, before.x1)
        signed = at < len(middles) and middles[at] < after.x0
        if signed or after.x0 - before.x1 > WORD_GAP * size:
            line.append(" ")
        line.append(after.text)
    return line


def _cluster(glyphs: Sequence[Glyph]) -> list[_Cluster]:
    """What shares a place, together, from left to right."""
    clusters: list[_Cluster] = []
    marks: list[Glyph] = []
    for glyph in glyphs:
        sign = chr(glyph.sign) if glyph.sign <= 0x10FFFF else ""
        if not sign.strip() or unicodedata.category(sign) in ("Cc", "Cf", "Cn"):
            continue
        last = clusters[-1] if clusters else None
        if unicodedata.combining(sign):
            marks.append(glyph)
        elif last and (last.x0, last.x1) == (glyph.x0, glyph.x1):
            # Where the line comes from right to left already, the parts of a ligature come the wrong way round.
            turned = len(clusters) > 1 and clusters[-2].x0 > last.x0 and RIGHT_TO_LEFT.match(sign)
            last.text = sign + last.text if turned else last.text + sign
        else:
            clusters.append(_Cluster(sign, glyph.x0, glyph.x1))
    clusters.sort(key=lambda cluster: cluster.middle)
    _attach(clusters, marks)
    for cluster in clusters:
        cluster.text = _pair(cluster.text)
    return clusters


def _attach(clusters: Sequence[_Cluster], marks: Sequence[Glyph]) -> None:
    """Marks to the letters above or below which they stand."""
    middles = [cluster.middle for cluster in clusters]
    for mark in marks:
        middle = (mark.x0 + mark.x1) / 2
        at = bisect_left(middles, middle)
        near = clusters[max(at - 1, 0) : at + 1]
        if near:
            min(near, key=lambda cluster: abs(cluster.middle - middle)).text += chr(mark.sign)


def _pair(text: str) -> str:
    """Halves of signs made whole, also where they came the wrong way round."""
    text = _TURNED_PAIR.sub(r"\2\1", text)
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
