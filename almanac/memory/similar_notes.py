"""Finds notes of other authors that are similar to a new note, because they may contradict it.

The agents decide whether two notes contradict each other. This module only reads, and the new note is stored in any
case. Two notes are similar if the cosine of their vectors is high or most words of the shorter one occur in the other.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import structlog
from numpy.typing import NDArray

from almanac.ai.errors import EmbeddingRefused, EmbeddingUnavailable
from almanac.core.call import Call
from almanac.core.errors import AlmanacError
from almanac.memory import note_index, notes
from almanac.memory.note import Note
from almanac.memory.note_search import SNIPPET_CHARS
from almanac.search.analysis import analyser
from almanac.search.engine import SearchEngine
from almanac.search.query import NOTES, SearchQuery

# Measured on twelve pairs of contradicting notes: all pairs, and no other two notes, reach MIN_COSINE. Ten of the pairs
# reach MIN_SHARED_WORD_SHARE.
MIN_COSINE = 0.75
MIN_SHARED_WORD_SHARE = 0.6
MIN_SHARED_WORDS = 3  # fewer shared words are not significant
MAX_SIMILAR_NOTES = 3
_CANDIDATES = 8
_MAX_QUERY_BODY_CHARS = 600

_log = structlog.get_logger("almanac.memory")


@dataclass(frozen=True, slots=True)
class SimilarNote:
    """A live note that may contradict a new one."""

    id: str
    title: str
    author: str
    snippet: str
    score: float  # the cosine, or the share of shared words


async def find(call: Call, search: SearchEngine, note: Note) -> list[SimilarNote]:
    """The most similar live notes of other authors. Empty if the search fails, because the note is stored anyway."""
    try:
        return await _find(call, search, note)
    except AlmanacError as error:
        _log.warning("similar_notes_not_searched", error=type(error).__name__)
        return []


async def _find(call: Call, search: SearchEngine, note: Note) -> list[SimilarNote]:
    query = SearchQuery(
        text=f"{note.title}\n{note.body[:_MAX_QUERY_BODY_CHARS]}",
        collections=(note_index.collection_of(note.org_id),),
        limit=_CANDIDATES,
        rerank=False,
        max_per_source=1,
        profile=NOTES,
    )
    response = await search.search(query)
    note_ids = {hit.passage_id: hit.object_id for hit in response.results if hit.object_id != note.id}
    scores = {note_ids[id]: score for id, score in (await _similar_passages(search, query, list(note_ids))).items()}
    similar = [
        SimilarNote(other.id, other.title, other.author, other.body[:SNIPPET_CHARS], round(scores[other.id], 4))
        for other in await notes.find(call.db, note.org_id, list(scores))
        if other.author_id != note.author_id and other.head_id is None
    ]
    return sorted(similar, key=lambda hint: -hint.score)[:MAX_SIMILAR_NOTES]


async def _similar_passages(search: SearchEngine, query: SearchQuery, ids: Sequence[int]) -> dict[int, float]:
    """The passages that are similar to the query, with their scores."""
    words = analyser.own(analyser.encode_terms("", (), query.text))
    rows = await search.rows(ids)
    shares = {id: _shared_word_share(words, analyser.own(row["words"] or b"")) for id, row in rows.items()}
    by_words = {id: share for id, share in shares.items() if share >= MIN_SHARED_WORD_SHARE}
    cosines = await _cosines(search, query, ids)
    return by_words | {id: cosine for id, cosine in cosines.items() if cosine >= MIN_COSINE}


async def _cosines(search: SearchEngine, query: SearchQuery, ids: Sequence[int]) -> dict[int, float]:
    for model in await search.models(query.collections):
        embedder = search.embedders.get(model)
        if embedder is None or not ids:
            continue
        try:
            vector = await embedder.query(query.text)
        except (EmbeddingUnavailable, EmbeddingRefused):
            continue  # shared words are enough
        stored = await search.index.passage_vectors(model, len(vector), ids)
        return dict(zip(stored.ids.tolist(), (stored.rows @ vector).tolist(), strict=True))
    return {}


def _shared_word_share(words: NDArray[np.int64], others: NDArray[np.int64]) -> float:
    shared = len(np.intersect1d(words, others))
    return shared / min(len(words), len(others)) if shared >= MIN_SHARED_WORDS else 0.0
