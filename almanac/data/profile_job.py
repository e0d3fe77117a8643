"""The job that profiles the current version of a dataset and updates its entry in the search index.

The queries run in the confined processes like those of callers. A field whose values cannot be computed within the
limits of a query has no values in the profile.
"""

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from almanac.core.database import Database, Transaction
from almanac.core.errors import DeadlineExceeded
from almanac.data import dataset_index, profiles, versions
from almanac.data.dataset import SELECT, Dataset, dataset_from_row
from almanac.data.fields import Field, Kind
from almanac.data.parquet_source import quoted
from almanac.data.profiles import FieldProfile
from almanac.data.queries.query_plan import DatasetFiles, QueryPlan
from almanac.data.queries.query_pool import QueryPool, QueryRefused
from almanac.files.file_store import FileStore
from almanac.jobs.queue import Job
from almanac.jobs.worker import Effect

MAX_PROFILED_FIELDS = 200
MAX_FREQUENT_VALUES = 20
MAX_VALUE_CHARS = 100  # of a frequent value; of a longer lowest or highest value, the beginning
HISTOGRAM_PARTS = 10

_TABLE = "data"


class ProfileDataset:
    """The handler of profile jobs."""

    def __init__(self, db: Database, files: FileStore, pool: QueryPool) -> None:
        self._db = db
        self._files = files
        self._pool = pool

    async def __call__(self, job: Job) -> Effect | None:
        dataset_id: int = job.payload["dataset_id"]
        row = await self._db.fetch_one(f"{SELECT} WHERE d.id = $1", dataset_id)
        if row is None or row["removed_at"] is not None or not row["version"]:
            return None
        dataset = dataset_from_row(row)
        computed = await self._profile(dataset)

        async def store(tx: Transaction) -> None:
            await profiles.put(tx, dataset_id, dataset.version, computed)
            await dataset_index.update(tx, dataset_id)

        async def effect(tx: Transaction) -> None:
            # A version that was committed meanwhile found this job unfinished, so it added none.
            await profiles.enqueue_if_lacking(tx, dataset_id)

        await self._db.write(store)
        return effect

    async def _profile(self, dataset: Dataset) -> list[FieldProfile]:
        stored = await versions.files_of(self._db, dataset, dataset.version)
        files = DatasetFiles(
            [self._files.path(file.name) for file in stored], dataset.fields, stored=[file.fields for file in stored]
        )
        return [await self._field(files, field) for field in dataset.fields[:MAX_PROFILED_FIELDS]]

    async def _field(self, files: DatasetFiles, field: Field) -> FieldProfile:
        profile = FieldProfile(field.name)
        try:
            [[nulls, distinct, lowest, highest, low, high]] = await self._rows(files, _summary(field))
            profile = replace(profile, nulls=nulls, distinct=distinct, lowest=lowest, highest=highest)
            if field.type.kind is Kind.TEXT:
                frequent = await self._rows(files, _frequent(field))
                return replace(profile, frequent=tuple((value, count) for value, count in frequent))
            if _has_range(low, high):
                return replace(profile, histogram=_parts(await self._rows(files, _histogram(field, low, high))))
        except (QueryRefused, DeadlineExceeded):
            pass
        return profile

    async def _rows(self, files: DatasetFiles, sql: str) -> list[list[Any]]:
        return (await self._pool.run(QueryPlan(sql, {_TABLE: files}, MAX_FREQUENT_VALUES))).rows


def _summary(field: Field) -> str:
    """Nulls, distinct values, the lowest and highest value, and both as numbers for a histogram."""
    name, number = quoted(field.name), _number(field)
    nulls = f"count(*) - count({name})"
    if field.type.kind in (Kind.LIST, Kind.RECORD):
        return f"SELECT {nulls} AS a, NULL AS b, NULL AS c, NULL AS d, NULL AS e, NULL AS f FROM {_TABLE}"  # noqa: S608
    shown = f"left({name}, {MAX_VALUE_CHARS})" if field.type.kind is Kind.TEXT else name
    return (
        f"SELECT {nulls} AS a, approx_count_distinct({name}) AS b, min({shown}) AS c, max({shown}) AS d,"  # noqa: S608
        f" min({number}) AS e, max({number}) AS f FROM {_TABLE}"
    )


def _frequent(field: Field) -> str:
    name = quoted(field.name)
    return (
        f"SELECT {name} AS v, count(*) AS n FROM {_TABLE} WHERE length({name}) BETWEEN 1 AND {MAX_VALUE_CHARS}"  # noqa: S608
        f" GROUP BY {name} ORDER BY count(*) DESC, {name} LIMIT {MAX_FREQUENT_VALUES}"
    )


def _histogram(field: Field, low: float, high: float) -> str:
    number = _number(field)
    part = f"CAST(floor(({number} - ({low!r})) / {(high - low) / HISTOGRAM_PARTS!r}) AS BIGINT)"
    return (
        f"SELECT least({part}, {HISTOGRAM_PARTS - 1}) AS part, count(*) AS n FROM {_TABLE}"  # noqa: S608
        f" WHERE {number} IS NOT NULL GROUP BY 1"
    )


def _number(field: Field) -> str:
    """SQL for the value of a field as a finite number; NULL for values of other types."""
    name = quoted(field.name)
    match field.type.kind:
        case Kind.INTEGER:
            return f"CAST({name} AS DOUBLE)"
        case Kind.DECIMAL:
            return f"CASE WHEN isfinite({name}) THEN {name} END"
        case Kind.DATE | Kind.TIMESTAMP:
            return f"epoch({name})"
        case _:
            return "NULL"


def _has_range(low: Any, high: Any) -> bool:
    is_range = all(isinstance(each, int | float) and math.isfinite(each) for each in (low, high))
    return is_range and low < high and math.isfinite(high - low) and (high - low) / HISTOGRAM_PARTS > 0


def _parts(rows: Sequence[Sequence[Any]]) -> tuple[int, ...]:
    counts = {int(part): int(count) for part, count in rows}
    return tuple(counts.get(part, 0) for part in range(HISTOGRAM_PARTS))
