"""Citations: whether what was quoted from a thing is still there.

A search result carries the hash of its passage's text and the passage's span. Later, one of them or words quoted from
it tell whether the text still stands. Whoever asks has made sure that the caller may see the thing.
"""

import asyncio
import hashlib
import math
import re
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, chain, islice

import numpy as np

from almanac.core.database import Database, Row
from almanac.core.errors import BadRequest
from almanac.search.analysis import analyser

MAX_QUOTE_CHARS = 20_000  # characters of a quotation
MOST_IN_ONE = 100  # places in one passage that are looked at
MIN_SHARED_WORD_SHARE = 0.5  # the part of the quoted words that a passage needs to be called the nearest

_BREAK = re.compile(r"\n\s*")
_NON_SPACE = re.compile(r"\S+")
_PASSAGES = """
SELECT p.text, p.span_start, p.span_end, p.page, p.words
FROM sources s LEFT JOIN passages p ON p.source_id = s.id
WHERE s.kind = $1 AND s.owner_id = $2 AND s.is_live = 1 ORDER BY p.ordinal
"""


@dataclass(frozen=True, slots=True)
class CitationCheck:
    """What has become of a quotation.

    `unchanged`: it stands where it stood, or no place was given and it stands somewhere. `moved`: it stands somewhere
    else. `changed`: it does not stand in the thing any more; what is given then is the passage nearest to it, if one
    is like it. `gone`: the thing is not there, or is disabled.
    """

    outcome: str
    start: int | None = None  # in the thing's own text, of the quotation; of the passage where it is told by its hash
    end: int | None = None
    page: int | None = None  # where the passage begins that it is in
    hash: str | None = None  # of that passage's text


def passage_hash(text: str) -> str:
    """What a passage's text is known by."""
    return hashlib.sha256(text.encode("utf-8", "replace")).hexdigest()[:32]


async def verify(
    db: Database,
    kind: str,
    owner_id: str,
    *,
    hash: str | None = None,
    text: str | None = None,
    start: int | None = None,
    end: int | None = None,
) -> CitationCheck:
    """Whether a passage with this hash, or a text, stands in a thing. Where both are given the text decides.

    A text may be a part of a passage, or of several in a row, and white space in it is not compared. The place is the
    span of the passage it was found in. A hash given with its place is also found where that passage has grown.
    """
    quoted = " ".join(text.split()) if text is not None else (hash or "").strip().lower()
    if not quoted or len(quoted) > MAX_QUOTE_CHARS:
        raise BadRequest(
            "There is nothing to verify.",
            remedy=f"Give the hash of a result, or 1 to {MAX_QUOTE_CHARS} characters of its text.",
        )
    rows = await db.scan(_PASSAGES, kind, owner_id)
    if not rows:
        return CitationCheck("gone")
    rows = [row for row in rows if row["text"] is not None]
    place = None if start is None else range(start, max(start + 1, start if end is None else end))
    judge = _judge_hash if text is None else _judge_text
    return await asyncio.to_thread(judge, rows, quoted, place)


def _judge_hash(rows: Sequence[Row], quoted: str, place: range | None) -> CitationCheck:
    same = [(row["span_start"], row["span_end"], row) for row in rows if passage_hash(row["text"]) == quoted]
    if place and not same:
        same = list(_inside(rows, quoted, place))
    if not same:
        there = [row for row in rows if place and row["span_start"] <= place.start < row["span_end"]]
        return _verdict("changed", there[0]) if there else CitationCheck("changed")
    if place is None:
        return _verdict("unchanged", same[0][2])
    start, end, row = min(same, key=lambda each: abs(each[0] - place.start))
    return _verdict("unchanged" if start == place.start else "moved", row, (start, end))


def _inside(rows: Sequence[Row], quoted: str, place: range) -> Iterator[tuple[int, int, Row]]:
    """Where a passage stands that is a part of another now, as when something was written next to it: the span, and in
    which. Not its text is known but its length: it is looked for where it stood and where lines begin."""
    for row in rows:
        text, first = row["text"], row["span_end"] - len(row["text"])  # below its span, if it begins with a header
        starts = {place.start - first, 0, *(line.end() for line in islice(_BREAK.finditer(text), MOST_IN_ONE))}
        for start in starts:
            end = start + len(place)
            if start >= 0 and end <= len(text) and passage_hash(text[start:end]) == quoted:
                yield first + start, first + end, row


def _judge_text(rows: Sequence[Row], quoted: str, place: range | None) -> CitationCheck:
    found: tuple[int, int, Row] | None = None
    for each in chain(_within(rows, quoted), _across(rows, quoted)):
        if place is None or each[0] in place:
            return _verdict("unchanged", each[2], each[:2])
        if found is None or abs(each[0] - place.start) < abs(found[0] - place.start):
            found = each
    if found is not None:
        return _verdict("moved", found[2], found[:2])
    nearest = _nearest(rows, quoted)
    return _verdict("changed", nearest) if nearest else CitationCheck("changed")


def _within(rows: Sequence[Row], quoted: str) -> Iterator[tuple[int, int, Row]]:
    """Where a text stands in the passages: the span, and in which."""
    for row in rows:
        before = len(row["text"]) - (row["span_end"] - row["span_start"])  # the header of the table it was cut from
        for start, end in islice(_occurrences(row["text"], quoted), MOST_IN_ONE):
            yield row["span_start"] + max(0, start - before), row["span_start"] + max(0, end - before), row


def _across(rows: Sequence[Row], quoted: str) -> Iterator[tuple[int, int, Row]]:
    """The same in all of the passages put together, for what begins in one and ends in another."""
    pieces: list[str] = []
    places: list[tuple[int, int, Row]] = []  # where each piece is in what they make, and in the thing; whose it is
    length = reached = 0
    for row in sorted(rows, key=lambda row: (row["span_start"], row["span_end"])):
        start, end = max(row["span_start"], reached), row["span_end"]
        if start < end:
            pieces.append((" " if start > reached else "") + row["text"][start - end :])
            length, reached = length + len(pieces[-1]), end
            places.append((length - (end - start), start, row))
    starts = [place[0] for place in places]
    for first, end in islice(_occurrences("".join(pieces), quoted), MOST_IN_ONE):
        joined, start, row = places[bisect_right(starts, first) - 1]
        joined_last, start_last, _ = places[bisect_right(starts, end - 1) - 1]
        yield start + first - joined, start_last + end - joined_last, row


def _occurrences(text: str, quoted: str) -> Iterator[tuple[int, int]]:
    """Where a text stands in another, whatever the white space. By `find` alone, for its time is linear."""
    words = text.split()
    joined = " ".join(words)
    at = joined.find(quoted)
    if at < 0:
        return
    places = [match.start() for match in _NON_SPACE.finditer(text)]
    starts = [0, *accumulate(len(word) + 1 for word in words)]
    while at >= 0:
        first, last = (bisect_right(starts, each) - 1 for each in (at, at + len(quoted) - 1))
        yield places[first] + at - starts[first], places[last] + at + len(quoted) - starts[last]
        at = joined.find(quoted, at + len(quoted))


def _nearest(rows: Sequence[Row], quoted: str) -> Row | None:
    """The passage with the most of the words, if it has enough of them."""
    asked = np.array(sorted({analyser.term_hash(term) for term in analyser.terms_of(quoted)}), np.int64)
    best, most = None, max(1, math.ceil(MIN_SHARED_WORD_SHARE * len(asked))) - 1
    for row in rows:
        shared = int(np.isin(asked, analyser.own(bytes(row["words"] or b""))).sum())
        if shared > most:
            best, most = row, shared
    return best


def _verdict(outcome: str, row: Row, span: tuple[int, int] | None = None) -> CitationCheck:
    return CitationCheck(
        outcome, *(span or (row["span_start"], row["span_end"])), row["page"], passage_hash(row["text"])
    )
