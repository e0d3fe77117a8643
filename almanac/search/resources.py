"""The arguments that all stages of a search share: the open resources of the process and the record of the run."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from almanac.ai.embedder import Embedder
from almanac.core.database import Database, Row
from almanac.db.sql import placeholders
from almanac.search.index.protocol import SearchIndex

_ROWS = """
SELECT p.*, s.kind AS source_kind, s.owner_id, s.collection, s.title
FROM passages p JOIN sources s ON s.id = p.source_id WHERE p.id IN ({ids})
"""

# LIMIT 1 in place of EXISTS: for EXISTS, PostgreSQL may read the waiting sources of all other collections.
_MODELS = """
SELECT c.name, c.model,
    (SELECT 1 FROM sources s WHERE s.collection = c.name AND s.is_embedded = 0 LIMIT 1) IS NOT NULL AS is_waiting
FROM collections c WHERE c.name IN ({names}) ORDER BY c.name
"""


class ModelCollections(NamedTuple):
    """The collections whose vectors come from one model."""

    collections: tuple[str, ...]
    is_waiting: bool  # some of their passages have no vector yet


@dataclass(eq=False)
class SearchResources:
    """The database, the index and the embedding models of a process."""

    db: Database
    index: SearchIndex
    embedders: Mapping[str, Embedder]  # by the model names that collections record

    async def models(self, collections: Sequence[str]) -> dict[str, ModelCollections]:
        """The models of collections. Collections without vectors have the empty name as their model."""
        rows_by_model: dict[str, list[Row]] = {}
        for row in await self.db.fetch(_MODELS.format(names=placeholders(len(collections))), *collections):
            rows_by_model.setdefault(row["model"], []).append(row)
        return {
            model: ModelCollections(tuple(row["name"] for row in rows), any(row["is_waiting"] for row in rows))
            for model, rows in rows_by_model.items()
        }

    async def rows(self, ids: Sequence[int]) -> dict[int, Row]:
        """The passages with their sources, by id. Removed passages are left out."""
        if not ids:
            return {}
        # The last id is repeated up to a power of two, so that few different statements have to be prepared.
        padded = [*ids, *[ids[-1]] * ((1 << (len(ids) - 1).bit_length()) - len(ids))]
        rows = await self.db.fetch(_ROWS.format(ids=placeholders(len(padded))), *padded)
        return {row["id"]: row for row in rows}


@dataclass(slots=True)
class SearchRun:
    """The notes, timings and counts that the stages of one search add to the response."""

    notes: list[str] = field(default_factory=list[str])
    timings: dict[str, float] = field(default_factory=dict[str, float])  # milliseconds
    counts: dict[str, int] = field(default_factory=dict[str, int])  # passages

    def record(self, stage: str, begun: float, **counts: int) -> None:
        """Record a stage that began at a time of `time.perf_counter`, and the number of passages after it."""
        self.timings[stage] = round(1000 * (time.perf_counter() - begun), 3)
        self.counts.update(counts)
