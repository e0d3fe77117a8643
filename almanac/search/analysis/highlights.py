"""Highlights: the spans of a query's terms in a text, and the snippet of the text that shows most of them."""

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from functools import lru_cache
from string import ascii_letters, digits

from almanac.core.fair_slots import ORG_ID
from almanac.search.analysis import analyser

Span = tuple[int, int]

_SPACE = re.compile(r"\s")
_MAX_CUT_CHARS = 30  # a cut is moved at most this far to a space; some languages have no spaces
_ACCENTED = re.compile(  # Latin letters that folding changes, and separate accents
    "[\u00ad\u0300-\u036f\u00c0-\u00d6\u00d8-\u00f6\u00f8-\u024f\u1e00-\u1eff\ufb00-\uffdc]"
)
_BEGINNING = 4  # letters that a word and its stem share; fewer if the stem is shorter
_WORD_CHARS = frozenset(ascii_letters + digits)
_REST = re.compile("[A-Za-z0-9]+")
_HUMP = re.compile("(?<=[a-z0-9])[A-Z][a-z0-9]*")


def find(text: str, terms: frozenset[str], most: int = 8) -> tuple[Span, ...]:
    """At most `most` spans of terms in a text, in order and without overlap. Each term gets a span before any term
    gets a second one."""
    seen: Counter[str] = Counter()
    ranked: list[tuple[int, int, int]] = []
    paired = _paired(terms)
    for start, end, term in everywhere(text, terms):
        if end - start == 1 and term in paired:
            continue
        rank = seen[term]
        seen[term] += 1
        if ranked and start < ranked[-1][1]:  # the terms overlap
            held = ranked.pop()
            start, end, rank = held[0], max(end, held[1]), min(rank, held[2])
        ranked.append((start, end, rank))
    best = sorted(ranked, key=lambda each: (each[2], each[0]))[:most]
    return tuple(sorted((start, end) for start, end, _ in best))


@lru_cache(1_000)
def _paired(terms: frozenset[str]) -> frozenset[str]:
    """The characters of pairs in scripts without spaces. They are highlighted only as a part of their pair."""
    return frozenset(each for term in terms if len(term) == 2 and analyser.is_unspaced(term[0]) for each in term)


def everywhere(text: str, terms: frozenset[str]) -> tuple[tuple[int, int, str], ...]:
    """Like `occurrences`, cached for each organisation by itself, so that times reveal nothing to another one."""
    return _everywhere(ORG_ID.get(), text, terms)


@lru_cache(100)  # reranking and `find` need the same texts
def _everywhere(_: str, text: str, terms: frozenset[str]) -> tuple[tuple[int, int, str], ...]:
    return tuple(occurrences(text, terms))


def occurrences(text: str, terms: frozenset[str]) -> Iterator[tuple[int, int, str]]:
    """The occurrences of terms in a text: start, end and term of each, by their starts."""
    if _ACCENTED.search(text) or not all(map(str.isascii, terms)):
        yield from _analysed(text, terms)
        return
    # Few words of a text begin like a term. Only these are analysed.
    done = 0
    for start in sorted(_places(text.lower(), _beginnings(terms))):
        word = None
        if start >= done:
            is_inside = start > 0 and text[start - 1] in _WORD_CHARS
            word = (_HUMP if is_inside else _REST).match(text, start)
        if word and (term := _first(analyser.terms_of_word(word[0]), terms)):
            done = word.end()
            yield start, done, term


def _places(text: str, beginnings: Sequence[str]) -> set[int]:
    found: set[int] = set()
    for each in beginnings:
        at = text.find(each)
        while at >= 0:
            found.add(at)
            at = text.find(each, at + 1)
    return found


def snippet(text: str, spans: Sequence[Span], length: int = 300) -> str:
    """The part of a text that contains most of the spans, on one line, cut between words if possible."""
    if len(text) <= length:
        return " ".join(text.split())
    first, last = _window(spans, length)
    start = max(0, min(first - (length - (last - first)) // 2, len(text) - length))
    end = start + length
    if start and (space := _SPACE.search(text, start - 1, min(max(first, start), start + _MAX_CUT_CHARS))):
        start = space.end()
    if end < len(text) and (spaces := list(_SPACE.finditer(text, max(last, end - _MAX_CUT_CHARS), end + 1))):
        end = spaces[-1].start()
    shown = " ".join(text[start:end].split())
    return f"{'…' if start else ''}{shown}{'…' if end < len(text) else ''}"


def _window(spans: Sequence[Span], length: int) -> Span:
    """The first window of a length that contains the most spans, from the first to the last of them."""
    best, most = (0, 0), 0
    for index, (start, _) in enumerate(spans):
        fitting = [end for _, end in spans[index:] if end <= start + length]
        if len(fitting) > most:
            best, most = (start, fitting[-1]), len(fitting)
    return best


def _analysed(text: str, terms: frozenset[str]) -> Iterator[tuple[int, int, str]]:
    for start, end, found in analyser.words_of(text):
        if analyser.is_unspaced(text[start]):
            for at in range(start, end):
                if term := _first((text[at : min(at + 2, end)], text[at]), terms):
                    yield at, at + len(term), term
        elif term := _first(found, terms):
            yield start, end, term


def _first(found: Sequence[str], terms: frozenset[str]) -> str | None:
    return next((term for term in found if term in terms), None)


@lru_cache(1_000)
def _beginnings(terms: frozenset[str]) -> tuple[str, ...]:
    """The beginnings of words that may have these terms. No beginning starts with another."""
    starts = sorted({term[: max(2, min(len(term) - 1, _BEGINNING))] for term in terms})
    return tuple(each for place, each in enumerate(starts) if not place or not each.startswith(starts[place - 1]))
