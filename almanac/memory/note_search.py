"""Search of the notes of the actor's organisation.

The contract of the memory surface prescribes the ranking: keyword hits (with title matches) and vector hits, combined
by reciprocal rank fusion.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from almanac.core import clock
from almanac.core.call import Call
from almanac.memory import expiry, note_index, notes, supersession
from almanac.memory.note import Note, require_access
from almanac.search.analysis import analyser, common_words, highlights
from almanac.search.engine import SearchEngine
from almanac.search.query import NOTES, SearchQuery, SearchResult, SourceFilter

SNIPPET_CHARS = 240
DEFAULT_EF_SEARCH = 64  # default of `ef_search`, the candidate list size of a vector graph
MAX_NOTE_QUERY_CHARS = 2_000
MAX_NOTE_RESULTS = 50


@dataclass(frozen=True, slots=True)
class NoteQuery:
    """A query for notes."""

    query: str
    limit: int = 10
    tags: tuple[str, ...] = ()  # a note must have all of them
    task: str | None = None
    include_superseded: bool = False
    include_expired: bool = False
    min_score: float = 0.0
    ef_search: int = DEFAULT_EF_SEARCH
    as_of: int | None = None  # search the notes as they were at this time
    mode: str = "hybrid"
    rerank: bool = True


@dataclass(frozen=True, slots=True)
class NoteResult:
    """A note that matches a query."""

    note: Note
    score: float
    snippet: str
    legs: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class NoteResults:
    """The matching notes, best first, with remarks of the search engine."""

    hits: tuple[NoteResult, ...]
    remarks: tuple[str, ...] = ()


async def find(call: Call, search: SearchEngine, query: NoteQuery) -> NoteResults:
    """The best matching notes."""
    require_access(call)
    response = await search.search(await search_query(call, query))
    notes_by_id = await _visible_notes(call, query, response.results)
    results: list[NoteResult] = []
    for hit in response.results:
        if (note := notes_by_id.get(hit.object_id)) is not None:
            call.record_access("note", note.id)
            results.append(NoteResult(note, hit.score, snippet(note.body, query.query), hit.legs))
    return NoteResults(tuple(results), response.notes)


async def search_query(call: Call, query: NoteQuery) -> SearchQuery:
    """The query for the search engine."""
    as_of = query.as_of
    is_past = as_of is not None  # notes that are superseded or expired now may have been live then
    return SearchQuery(
        text=query.query,
        collections=note_index.collections_of(
            call.actor.org_id,
            superseded=is_past or query.include_superseded,
            expired=is_past or query.include_expired,
        ),
        mode=query.mode,
        filter=SourceFilter(
            tags=query.tags,
            created_until=None if as_of is None else as_of + 1,
            condition=await _condition(call, query),
        ),
        limit=query.limit,
        min_score=query.min_score,
        rerank=query.rerank,
        max_per_source=1,
        profile=NOTES,
        ef_search=query.ef_search,
    )


def snippet(body: str, query: str) -> str:
    """The part of a note around the first word of the query, or its beginning if no word of the query occurs."""
    terms = frozenset(analyser.terms_of(query))
    first = (
        next(highlights.occurrences(body, terms), None)
        if terms
        else common_words.first(body, common_words.words_of(query))
    )
    middle = (first[0] + first[1]) // 2 if first else 0
    start = max(0, min(middle - SNIPPET_CHARS // 2, len(body) - SNIPPET_CHARS))
    return body[start : start + SNIPPET_CHARS]


async def _condition(call: Call, query: NoteQuery) -> dict[str, Any] | None:
    """The condition on the metadata. Most searches need none, because each collection holds notes of one state."""
    as_of = query.as_of
    tests: list[dict[str, Any]] = []
    if query.task is not None:
        tests.append({"key": "tasks", "op": "eq", "value": query.task})
    if as_of is not None and not query.include_superseded:
        tests.append(_missing_or_after("superseded_at", as_of))
    now = clock.now() if as_of is None else as_of
    if not query.include_expired and (
        as_of is not None or await expiry.has_unindexed_expiry(call.db, call.actor.org_id, now)
    ):
        tests.append(_missing_or_after("expires_at", now))
    return {"and": tests} if tests else None


def _missing_or_after(key: str, time: int) -> dict[str, Any]:
    missing, later = {"key": key, "op": "eq", "value": None}, {"key": key, "op": "gt", "value": time}
    return {"or": [missing, later]}


async def _visible_notes(call: Call, query: NoteQuery, hits: Sequence[SearchResult]) -> dict[str, Note]:
    """The notes of the hits by id, as they are now or were at `as_of`. Notes that the query excludes are left out."""
    current = await notes.find(call.db, call.actor.org_id, [hit.object_id for hit in hits])
    if query.as_of is None:
        return {note.id: note for note in current if query.include_superseded or note.head_id is None}
    past = [await supersession.note_at(call.db, note, query.as_of) for note in current]
    return {note.id: note for note in past if note is not None}
