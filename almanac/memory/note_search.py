"""Finding: a search of the notes of the caller's organisation.

Ranked as the memory surface's contract says: both legs, words (with titles) and vectors, fused by reciprocal rank.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from almanac.core import clock
from almanac.core.call import Call
from almanac.memory import expiry, note_index, notes, supersession
from almanac.memory.note import Note
from almanac.search.analysis import common_words, highlights
from almanac.search.engine import SearchEngine
from almanac.search.query import SearchQuery, SearchResult, SourceFilter
from almanac.search.ranking import features

SNIPPET = 240  # characters
REACH = 64  # neighbours that a graph of vectors keeps in sight, unless told otherwise
MAX_NOTE_QUERY_CHARS = 2_000  # characters of a question
MAX_NOTE_RESULTS = 50


@dataclass(frozen=True, slots=True)
class NoteQuery:
    """What to look for among the notes."""

    query: str
    limit: int = 10
    tags: tuple[str, ...] = ()  # all of them
    task: str | None = None
    include_superseded: bool = False
    include_expired: bool = False
    min_score: float = 0.0
    ef_search: int = REACH
    as_of: int | None = None  # what was known at that moment
    mode: str = "hybrid"
    rerank: bool = True


@dataclass(frozen=True, slots=True)
class NoteResult:
    """A note that was found."""

    note: Note
    score: float
    snippet: str
    legs: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class NoteResults:
    """Notes, the best first, and what to know of this answer."""

    hits: tuple[NoteResult, ...]
    remarks: tuple[str, ...] = ()


async def find(call: Call, search: SearchEngine, inquiry: NoteQuery) -> NoteResults:
    """The notes that answer best, of those that hold: or held, at the moment that was asked for."""
    answer = await search.search(await question(call, inquiry))
    known = await _standing(call, inquiry, answer.found)
    hits = [
        NoteResult(known[each.owner_id], each.score, snippet(known[each.owner_id].body, inquiry.query), each.legs)
        for each in answer.found
        if each.owner_id in known
    ]
    for hit in hits:
        call.record_access("note", hit.note.id)
    return NoteResults(tuple(hits), answer.notes)


async def question(call: Call, inquiry: NoteQuery) -> SearchQuery:
    """An inquiry as search is asked it."""
    org_id, at = call.actor.org_id, inquiry.as_of
    was = at is not None
    return SearchQuery(
        text=inquiry.query,
        collections=note_index.collections_of(
            org_id, superseded=was or inquiry.include_superseded, expired=was or inquiry.include_expired
        ),
        mode=inquiry.mode,
        filter=SourceFilter(
            tags=inquiry.tags, created_until=None if at is None else at + 1, condition=await _condition(call, inquiry)
        ),
        limit=inquiry.limit,
        min_score=inquiry.min_score,
        rerank=inquiry.rerank,
        max_per_source=1,
        by_ranks=True,
        ef_search=inquiry.ef_search,
    )


def snippet(body: str, query: str) -> str:
    """The part of a note around the first word that was looked for; its beginning where there is none."""
    terms = features.parse_text(query).terms
    first = (
        next(highlights.occurrences(body, terms), None)
        if terms
        else common_words.first(body, common_words.words_of(query))
    )
    middle = (first[0] + first[1]) // 2 if first else 0
    start = max(0, min(middle - SNIPPET // 2, len(body) - SNIPPET))
    return body[start : start + SNIPPET]


async def _condition(call: Call, inquiry: NoteQuery) -> dict[str, Any] | None:
    """What must hold of the metadata. Nothing, as a rule: whatever does not hold any more is elsewhere."""
    at = inquiry.as_of
    tests: list[dict[str, Any]] = []
    if inquiry.task is not None:
        tests.append({"key": "tasks", "op": "eq", "value": inquiry.task})
    if at is not None and not inquiry.include_superseded:
        tests.append(_not_before("superseded_at", at))
    now = clock.now() if at is None else at
    if not inquiry.include_expired and (
        at is not None or await expiry.has_unindexed_expiry(call.db, call.actor.org_id, now)
    ):
        tests.append(_not_before("expires_at", now))
    return {"and": tests} if tests else None


def _not_before(key: str, moment: int) -> dict[str, Any]:
    missing, later = {"key": key, "op": "eq", "value": None}, {"key": key, "op": "gt", "value": moment}
    return {"or": [missing, later]}


async def _standing(call: Call, inquiry: NoteQuery, found: Sequence[SearchResult]) -> dict[str, Note]:
    """The notes that were found as they are now, or were at the moment that was asked for."""
    rows = await notes.find(call.db, call.actor.org_id, [each.owner_id for each in found])
    if inquiry.as_of is None:
        return {note.id: note for note in rows if inquiry.include_superseded or note.head_id is None}
    views = [await supersession.note_at(call.db, note, inquiry.as_of) for note in rows]
    return {note.id: note for note in views if note is not None}
