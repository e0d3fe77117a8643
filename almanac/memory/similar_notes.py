"""Hints: notes of other authors that say nearly the same as a new one, or the opposite of it.

Whether two notes contradict each other is for their readers to judge. Here they are only brought together: nothing is
changed, and a note is stored whatever is found. Two notes are close if their vectors are or, where one has none yet, if
most of the shorter one's words stand in the other.
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
from almanac.memory.note_search import SNIPPET
from almanac.search.analysis import analyser
from almanac.search.engine import SearchEngine
from almanac.search.query import SearchQuery

# Of twelve pairs of made-up notes that contradict each other, all were at least this near, and no two others were.
MIN_COSINE = 0.75  # cosine
MIN_SHARED_WORD_SHARE = 0.6  # share of words; of the twelve pairs, ten
MIN_SHARED_WORDS = 3  # words in common: fewer say nothing
MAX_SIMILAR_NOTES = 3
_LOOKED_AT = 8
_READ = 600  # characters of a new note that are looked for

_log = structlog.get_logger("almanac.memory")


@dataclass(frozen=True, slots=True)
class SimilarNote:
    """A live note that may contradict a new one."""

    id: str
    title: str
    author: str
    snippet: str
    score: float  # how close it is


async def find(call: Call, search: SearchEngine, note: Note) -> list[SimilarNote]:
    """The live notes of others that are closest to a note, if any is close; none where search cannot be asked, for the
    note is stored all the same."""
    try:
        return await _find(call, search, note)
    except AlmanacError as error:
        _log.warning("no_hints", error=type(error).__name__)
        return []


async def _find(call: Call, search: SearchEngine, note: Note) -> list[SimilarNote]:
    text = f"{note.title}\n{note.body[:_READ]}"
    asked = SearchQuery(
        text, (note_index.collection_of(note.org_id),), limit=_LOOKED_AT, rerank=False, max_per_source=1, by_ranks=True
    )
    found = {each.passage_id: each.owner_id for each in (await search.search(asked)).found if each.owner_id != note.id}
    closeness = await _measure(search, asked, list(found))
    close = {found[id]: score for id, score in closeness.items()}
    others = [each for each in await notes.find(call.db, note.org_id, list(close)) if _is_others(each, note)]
    hints = [
        SimilarNote(each.id, each.title, each.author, each.body[:SNIPPET], round(close[each.id], 4)) for each in others
    ]
    return sorted(hints, key=lambda hint: -hint.score)[:MAX_SIMILAR_NOTES]


def _is_others(note: Note, new: Note) -> bool:
    return note.author_id != new.author_id and note.head_id is None


async def _measure(search: SearchEngine, asked: SearchQuery, ids: Sequence[int]) -> dict[int, float]:
    """How close passages are to a text, those that are close at all."""
    own = analyser.own(analyser.encode_terms("", (), asked.text))
    rows = await search.rows(ids)
    shares = {id: _share(own, analyser.own(row["words"] or b"")) for id, row in rows.items()}
    close = {id: share for id, share in shares.items() if share >= MIN_SHARED_WORD_SHARE}
    return close | {id: cosine for id, cosine in (await _cosines(search, asked, ids)).items() if cosine >= MIN_COSINE}


async def _cosines(search: SearchEngine, asked: SearchQuery, ids: Sequence[int]) -> dict[int, float]:
    for model in await search.models(asked.collections):
        embedder = search.embedder(model)
        if embedder is None or not ids:
            continue
        try:
            vector = await embedder.query(asked.text)
        except (EmbeddingUnavailable, EmbeddingRefused):
            continue  # words will do
        stored = await search.index.passage_vectors(model, len(vector), ids)
        return dict(zip(stored.ids.tolist(), (stored.rows @ vector).tolist(), strict=True))
    return {}


def _share(own: NDArray[np.int64], other: NDArray[np.int64]) -> float:
    common = len(np.intersect1d(own, other))
    return common / min(len(own), len(other)) if common >= MIN_SHARED_WORDS else 0.0
