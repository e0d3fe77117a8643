"""Highlights: where the words of a question stand in a text, and the part of a text to show for them."""

import re
import unicodedata
from collections import Counter
from collections.abc import Iterator, Sequence
from functools import lru_cache

from almanac.search import analysis

Span = tuple[int, int]

_WORD = re.compile(r"\w+")
_SPACE = re.compile(r"\s")
_LONGEST_WORD = 30  # characters; not every language has a space after so many
_HANGUL = re.compile("[\u1160-\u11ff\ud7b0-\ud7fb]")  # vowels and finals, which make one character with what is before


def find(text: str, terms: frozenset[str], most: int = 8) -> tuple[Span, ...]:
    """Where terms stand in a text, in its order and apart from each other.

    Where there are more than `most`, each term is shown once before any is shown again.
    """
    seen: Counter[str] = Counter()
    ranked: list[tuple[int, int, int]] = []
    for term, start, end in spans(text):
        if term not in terms:
            continue
        rank = seen[term]
        seen[term] += 1
        if ranked and start < ranked[-1][1]:  # terms may share characters
            held = ranked.pop()
            start, end, rank = held[0], max(end, held[1]), min(rank, held[2])
        ranked.append((start, end, rank))
    best = sorted(ranked, key=lambda each: (each[2], each[0]))[:most]
    return tuple(sorted((start, end) for start, end, _ in best))


def spans(text: str) -> Iterator[tuple[str, int, int]]:
    """The terms of a text, each with where it stands there, by their starts.

    A word that is analysed into several terms lends each of them its whole length.
    """
    for start, end in _words(text):
        for term in _terms(text[start:end]):
            yield term, start, end


def snippet(text: str, spans: Sequence[Span], length: int = 300) -> str:
    """The part of a text that shows most of the spans, on one line, cut between words where it can be."""
    if len(text) <= length:
        return " ".join(text.split())
    first, last = _window(spans, length)
    start = max(0, min(first - (length - (last - first)) // 2, len(text) - length))
    end = start + length
    if start and (space := _SPACE.search(text, start - 1, min(max(first, start), start + _LONGEST_WORD))):
        start = space.end()
    if end < len(text) and (spaces := list(_SPACE.finditer(text, max(last, end - _LONGEST_WORD), end + 1))):
        end = spaces[-1].start()
    shown = " ".join(text[start:end].split())
    return f"{'…' if start else ''}{shown}{'…' if end < len(text) else ''}"


def _window(spans: Sequence[Span], length: int) -> Span:
    """From the first to the last of the most spans that fit in a length; the earliest where there are several."""
    best, most = (0, 0), 0
    for index, (start, _) in enumerate(spans):
        fitting = [end for _, end in spans[index:] if end <= start + length]
        if len(fitting) > most:
            best, most = (start, fitting[-1]), len(fitting)
    return best


@lru_cache(50_000)
def _terms(word: str) -> tuple[str, ...]:
    return tuple(analysis.terms_of(word))


def _words(text: str) -> Iterator[Span]:
    """Where the words of a text are, as they are once it is normalised."""
    folded = text.casefold()
    if len(folded) == len(text) and unicodedata.is_normalized("NFKC", text):  # nothing moves
        yield from (match.span() for match in _WORD.finditer(folded))
        return
    places: list[Span] = []  # of each normalised character
    pieces: list[str] = []
    for start, end in _characters(text):
        pieces.append(unicodedata.normalize("NFKC", text[start:end]).casefold())
        places.extend([(start, end)] * len(pieces[-1]))
    held = (0, 0)
    for match in _WORD.finditer("".join(pieces)):
        start, end = places[match.start()][0], places[match.end() - 1][1]
        if start < held[1]:  # one character of the text, such as ½, has parts of both
            held = (held[0], end)
            continue
        if held[1]:
            yield held
        held = (start, end)
    if held[1]:
        yield held


def _characters(text: str) -> Iterator[Span]:
    """The stretches of a text that normalisation changes each by itself."""
    start = 0
    for index in range(1, len(text)):
        if not _joins(text[index]):
            yield start, index
            start = index
    if text:
        yield start, len(text)


@lru_cache(10_000)
def _joins(character: str) -> bool:
    """Whether a character may become one with that before it."""
    first = unicodedata.normalize("NFKD", character)[0]
    return unicodedata.category(first).startswith("M") or _HANGUL.match(first) is not None
