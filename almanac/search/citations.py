"""Citations: checks whether a quotation is still in its source.

A search result has the span of its passage and the hash of the passage's text. A citation is checked by this hash, or
by text quoted from the source. The caller must be allowed to read the source.
"""

import asyncio
import hashlib
import math
import re
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, chain, islice
from typing import NamedTuple

import numpy as np

from almanac.core.database import Database, Row
from almanac.core.errors import BadRequest
from almanac.core.fair_slots import compute_slots
from almanac.search.analysis import analyser

MAX_QUOTE_CHARS = 20_000
WINDOW_CHARS = 200_000
MAX_OCCURRENCES = 100  # that are compared in one passage
MIN_SHARED_WORD_SHARE = 0.5  # of the quoted words, for a passage to be called similar

_BREAK = re.compile(r"\n\s*")
_NON_SPACE = re.compile(r"\S+")
_PASSAGES = """
SELECT p.text, p.span_start, p.span_end, p.page, p.words
FROM sources s LEFT JOIN passages p ON p.source_id = s.id
WHERE s.kind = $1 AND s.owner_id = $2 AND s.is_live = 1 ORDER BY p.ordinal
"""

_Occurrence = tuple[int, int, Row]  # start and end in the source's text, and the passage


class _Part(NamedTuple):
    """A part of the source's text: its text, start and end in the source, and its passage."""

    text: str
    start: int
    end: int
    row: Row


@dataclass(frozen=True, slots=True)
class CitationCheck:
    """The state of a quotation.

    `unchanged`: the quotation is at its place, or anywhere if no place was given. `moved`: it is at another place.
    `changed`: it is no longer in the source; the other fields then describe the most similar passage, if there is one.
    `gone`: the source does not exist or is disabled.
    """

    outcome: str
    start: int | None = None  # of the quotation in the source's text, or of the passage for a check by hash
    end: int | None = None
    page: int | None = None  # on which the passage begins
    hash: str | None = None  # of the passage's text


def passage_hash(text: str) -> str:
    """The hash of a passage's text in results and citations."""
    return hashlib.sha256(text.encode("utf-8", "replace")).hexdigest()[:32]


async def verify(
    db: Database,
    kind: str,
    object_id: str,
    *,
    hash: str | None = None,
    text: str | None = None,
    start: int | None = None,
    end: int | None = None,
) -> CitationCheck:
    """Look for a text, or for a passage with a hash, in a source. If both are given, only the text counts.

    The text may be a part of a passage or span several passages; its white space is ignored. A hash with its span is
    also found if the passage has become longer.
    """
    quoted = " ".join(text.split()) if text is not None else (hash or "").strip().lower()
    if not quoted or len(quoted) > MAX_QUOTE_CHARS:
        raise BadRequest(
            "There is nothing to verify.",
            remedy=f"Give the hash of a result, or 1 to {MAX_QUOTE_CHARS} characters of its text.",
        )
    place = None if start is None else range(start, max(start + 1, start if end is None else end))
    check = _check_hash if text is None else _check_text
    async with compute_slots.hold():  # from here, because the passages of a large document fill much memory
        rows = await db.scan(_PASSAGES, kind, object_id)
        if not rows:
            return CitationCheck("gone")
        rows = [row for row in rows if row["text"] is not None]
        return await asyncio.to_thread(check, rows, quoted, place)


def _check_hash(rows: Sequence[Row], quoted: str, place: range | None) -> CitationCheck:
    found = [(row["span_start"], row["span_end"], row) for row in rows if passage_hash(row["text"]) == quoted]
    if place and not found:
        found = list(_inside(rows, quoted, place))
    if not found:
        there = [row for row in rows if place and row["span_start"] <= place.start < row["span_end"]]
        return _result("changed", there[0]) if there else CitationCheck("changed")
    if place is None:
        return _result("unchanged", found[0][2])
    start, end, row = min(found, key=lambda occurrence: abs(occurrence[0] - place.start))
    return _result("unchanged" if start == place.start else "moved", row, (start, end))


def _inside(rows: Sequence[Row], hash: str, place: range) -> Iterator[_Occurrence]:
    """The occurrences of a former passage inside passages that have become longer. Only its length and hash are known,
    so the text at its old place and at the beginning of each line is hashed."""
    for row in rows:
        text = row["text"]
        offset = row["span_end"] - len(text)  # lower than the span's start if the text begins with a table header
        starts = {place.start - offset, 0, *(line.end() for line in islice(_BREAK.finditer(text), MAX_OCCURRENCES))}
        for start in starts:
            end = start + len(place)
            if start >= 0 and end <= len(text) and passage_hash(text[start:end]) == hash:
                yield offset + start, offset + end, row


def _check_text(rows: Sequence[Row], quoted: str, place: range | None) -> CitationCheck:
    nearest: _Occurrence | None = None
    for occurrence in chain(_within_passages(rows, quoted), islice(_across_passages(rows, quoted), MAX_OCCURRENCES)):
        start, end, row = occurrence
        if place is None or start in place:
            return _result("unchanged", row, (start, end))
        if nearest is None or abs(start - place.start) < abs(nearest[0] - place.start):
            nearest = occurrence
    if nearest is not None:
        return _result("moved", nearest[2], nearest[:2])
    similar = _most_similar(rows, quoted)
    return _result("changed", similar) if similar else CitationCheck("changed")


def _within_passages(rows: Sequence[Row], quoted: str) -> Iterator[_Occurrence]:
    for row in rows:
        header = len(row["text"]) - (row["span_end"] - row["span_start"])  # the length of a table header
        for start, end in islice(_occurrences(row["text"], quoted), MAX_OCCURRENCES):
            yield row["span_start"] + max(0, start - header), row["span_start"] + max(0, end - header), row


def _across_passages(rows: Sequence[Row], quoted: str) -> Iterator[_Occurrence]:
    """The occurrences in the joined text of the passages, each with the passage that contains its beginning.

    The text is searched in windows, because string functions hold the interpreter: the words of 5 MB take 0.1 s.
    """
    window: list[_Part] = []
    new_chars = 0
    for part in _parts(rows):
        window.append(part)
        new_chars += len(part.text)
        if new_chars >= WINDOW_CHARS:
            yield from _in_window(window, quoted)
            window, new_chars = _overlap(window, len(quoted)), 0
    yield from _in_window(window, quoted)


def _parts(rows: Sequence[Row]) -> Iterator[_Part]:
    """The text of the passages in the order of the source, without repetitions."""
    reached = 0
    for row in sorted(rows, key=lambda row: (row["span_start"], row["span_end"])):
        start, end = max(row["span_start"], reached), row["span_end"]
        if start < end:
            yield _Part((" " if start > reached else "") + row["text"][start - end :], start, end, row)
            reached = end


def _overlap(window: Sequence[_Part], quoted_chars: int) -> list[_Part]:
    """The last parts of a window in which an occurrence can begin that ends in the next window."""
    first, chars = len(window), 0
    while first and chars < quoted_chars:
        first -= 1
        chars += sum(map(len, window[first].text.split()))
    return list(window[first:])


def _in_window(window: Sequence[_Part], quoted: str) -> Iterator[_Occurrence]:
    ends = list(accumulate(len(part.text) for part in window))  # in the joined text
    for first, end in _occurrences("".join(part.text for part in window), quoted):
        begun, ended = bisect_right(ends, first), bisect_right(ends, end - 1)
        yield window[begun].end - (ends[begun] - first), window[ended].end - (ends[ended] - end), window[begun].row


def _occurrences(text: str, quoted: str) -> Iterator[tuple[int, int]]:
    """The spans of a quotation in a text, whatever the white space. `str.find` keeps the time linear; a regular
    expression would not."""
    words = text.split()
    joined = " ".join(words)
    at = joined.find(quoted)
    if at < 0:
        return
    places = [match.start() for match in _NON_SPACE.finditer(text)]
    starts = [0, *accumulate(len(word) + 1 for word in words)]
    while at >= 0:
        first, last = (bisect_right(starts, end) - 1 for end in (at, at + len(quoted) - 1))
        yield places[first] + at - starts[first], places[last] + at + len(quoted) - starts[last]
        at = joined.find(quoted, at + len(quoted))


def _most_similar(rows: Sequence[Row], quoted: str) -> Row | None:
    """The passage that contains most of the quoted words, if it contains enough of them."""
    wanted = np.array(sorted({analyser.term_hash(term) for term in analyser.terms_of(quoted)}), np.int64)
    shared = analyser.count_shared([bytes(row["words"] or b"") for row in rows], wanted)
    best = int(shared.argmax()) if len(shared) else 0
    is_similar = len(shared) and shared[best] >= max(1, math.ceil(MIN_SHARED_WORD_SHARE * len(wanted)))
    return rows[best] if is_similar else None


def _result(outcome: str, row: Row, span: tuple[int, int] | None = None) -> CitationCheck:
    start, end = span or (row["span_start"], row["span_end"])
    return CitationCheck(outcome, start, end, row["page"], passage_hash(row["text"]))
