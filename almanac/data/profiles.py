"""Profiles of the fields of a dataset version: missing values, range, frequent values and a histogram.

A profile covers all rows, so it is shown only to callers to whom no row rule applies.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import orjson

from almanac.core import clock
from almanac.core.database import Database, Reader, Row, Transaction
from almanac.jobs import queue

PROFILE_JOB = "profile_dataset"
PROFILE_DELAY = 5 * clock.SECOND  # pushes within it share a profile
DEAD_JOB_RETRY_DELAY = clock.HOUR

_ADD = """
INSERT INTO field_profiles (dataset_id, version, fields, created_at)
SELECT v.dataset_id, v.number, $3, $4 FROM dataset_versions v WHERE v.dataset_id = $1 AND v.number = $2
ON CONFLICT (dataset_id, version) DO UPDATE SET fields = excluded.fields, created_at = excluded.created_at
"""
_COPY = """
INSERT INTO field_profiles (dataset_id, version, fields, created_at)
SELECT dataset_id, version + 1, fields, created_at FROM field_profiles WHERE dataset_id = $1 AND version = $2 - 1
ON CONFLICT (dataset_id, version) DO NOTHING
"""
_LACKING = """
SELECT d.id, d.org_id FROM datasets d WHERE d.removed_at IS NULL AND d.version > 0
    AND NOT EXISTS (SELECT 1 FROM field_profiles f WHERE f.dataset_id = d.id AND f.version = d.version)
"""
_ABANDONED = f"""
{_LACKING} AND NOT EXISTS (SELECT 1 FROM jobs j WHERE j.key = '{PROFILE_JOB}:' || CAST(d.id AS TEXT)
    AND (j.state IN ('queued', 'running') OR (j.state = 'dead' AND j.finished_at > $1)))
ORDER BY d.id LIMIT 100
"""  # noqa: S608 - constants


@dataclass(frozen=True, slots=True)
class FieldProfile:
    """The values of a field. Counts are None if they could not be computed."""

    name: str
    nulls: int | None = None
    distinct: int | None = None  # approximate
    lowest: Any = None
    highest: Any = None
    frequent: tuple[tuple[str, int], ...] = ()  # short texts with their numbers of rows, the most frequent first
    histogram: tuple[int, ...] = ()  # the numbers of rows in equal parts of the range, for numbers and dates


@dataclass(frozen=True, slots=True)
class DatasetProfile:
    """The profiles of the fields of one version."""

    version: int
    created_at: int
    fields: tuple[FieldProfile, ...]


async def get(db: Reader, dataset_id: int) -> DatasetProfile | None:
    """The latest profile of a dataset, without a permission check."""
    row = await db.fetch_one(
        "SELECT version, created_at, fields FROM field_profiles WHERE dataset_id = $1 ORDER BY version DESC LIMIT 1",
        dataset_id,
    )
    return None if row is None else _profile(row)


async def put(tx: Transaction, dataset_id: int, version: int, fields: Sequence[FieldProfile]) -> None:
    """Store the profile of a version, unless the version has been deleted."""
    text = orjson.dumps([asdict(each) for each in fields]).decode()
    await tx.execute(_ADD, dataset_id, version, text, clock.now())


async def keep(tx: Transaction, dataset_id: int, version: int) -> None:
    """Give a version that has the rows of the previous one its profile."""
    await tx.execute(_COPY, dataset_id, version)


async def enqueue(tx: Transaction, dataset_id: int, org_id: str) -> None:
    """Add a job that profiles the current version in a few seconds, unless one is waiting or running."""
    await queue.add(
        tx,
        PROFILE_JOB,
        {"dataset_id": dataset_id},
        key=f"{PROFILE_JOB}:{dataset_id}",
        run_at=clock.now() + PROFILE_DELAY,
        org_id=org_id,
    )


async def enqueue_if_lacking(tx: Transaction, dataset_id: int) -> None:
    """Add a job if the current version of a dataset has no profile."""
    if row := await tx.fetch_one(f"{_LACKING} AND d.id = $1", dataset_id):
        await enqueue(tx, row["id"], row["org_id"])


async def enqueue_missing(db: Database) -> None:
    """Add jobs for datasets without a profile of the current version whose job was lost, or died some time ago."""
    for row in await db.scan(_ABANDONED, clock.now() - DEAD_JOB_RETRY_DELAY):
        await db.write(lambda tx, row=row: enqueue(tx, row["id"], row["org_id"]))


def _profile(row: Row) -> DatasetProfile:
    stored: list[dict[str, Any]] = orjson.loads(row["fields"])
    return DatasetProfile(row["version"], row["created_at"], tuple(_field(values) for values in stored))


def _field(values: dict[str, Any]) -> FieldProfile:
    frequent = tuple((value, count) for value, count in values["frequent"])
    profile = FieldProfile(**values)
    return replace(profile, frequent=frequent, histogram=tuple(profile.histogram))  # JSON has lists only
