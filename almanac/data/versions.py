"""Versions of a dataset. Each is a list of immutable files, and a row here decides which files belong to it.

A commit adds one version. Readers see all of it or nothing, because the dataset names its current version. Compaction
also adds a version, with the same rows in fewer files; lists of changes leave it out.
"""

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from almanac.core import clock
from almanac.core.call import Call
from almanac.core.database import Reader, Row, Transaction
from almanac.core.errors import Conflict, NotFound
from almanac.data import profiles
from almanac.data.dataset import Dataset
from almanac.data.fields import Field, fields_from_json, fields_to_json
from almanac.db.sql import from_row, placeholders
from almanac.files import blobs
from almanac.files.blobs import StoredFile
from almanac.jobs import queue

COMPACTION = "compact"
COMPACT_JOB = "compact_dataset"
FILES_PER_COMPACTION = 32  # a job merges small files whenever a dataset has so many more

_VERSION = """
SELECT v.dataset_id, v.number, v.change, v.fields, v.row_count, v.digest, v.created_at, p.name AS author_name
FROM dataset_versions v LEFT JOIN principals p ON p.id = v.author_id
"""
_FILES = """
SELECT f.id, f.blob_id, b.name, b.hash, b.size, f.fields, f.row_count, coalesce(f.position, f.id) AS position
FROM dataset_files f JOIN blobs b ON b.id = f.blob_id
WHERE f.dataset_id = $1 AND f.first_version <= $2 AND {until} ORDER BY position, f.id
"""
_CURRENT_FILES = _FILES.format(until="f.end_version IS NULL")
_PAST_FILES = _FILES.format(until="(f.end_version IS NULL OR f.end_version > $2)")
_ADD_VERSION = """
INSERT INTO dataset_versions (dataset_id, number, change, fields, row_count, digest, author_id, created_at, push_key)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9)
"""
_ADD_FILE = """
INSERT INTO dataset_files (dataset_id, blob_id, fields, row_count, first_version, position)
VALUES ($1, $2, $3, $4, $5, $6)
"""
_CURRENT_HASHES = """
SELECT b.hash, f.row_count FROM dataset_files f JOIN blobs b ON b.id = f.blob_id
WHERE f.dataset_id = $1 AND f.end_version IS NULL ORDER BY coalesce(f.position, f.id), f.id
"""


class DatasetChanged(Conflict):
    """The dataset was changed by somebody else at the same time."""

    remedy = "Call again: nothing was stored."


@dataclass(frozen=True, slots=True)
class DatasetVersion:
    """One version of a dataset."""

    dataset_id: int
    number: int
    change: str
    fields: tuple[Field, ...]
    row_count: int
    digest: str
    created_at: int
    author_name: str | None


@dataclass(frozen=True, slots=True)
class DataFile:
    """An immutable Parquet file of a dataset, under its name in the file store."""

    id: int
    blob_id: int
    name: str
    hash: str
    size: int
    fields: tuple[Field, ...]
    row_count: int
    position: int  # in the order of the rows


@dataclass(frozen=True, slots=True)
class NewFile:
    """A Parquet file that was written for a new version."""

    stored: StoredFile
    fields: tuple[Field, ...]
    row_count: int
    position: int | None = None  # None: behind all others


@dataclass(frozen=True, slots=True)
class Commit:
    """The change from one version to the next."""

    change: str
    fields: tuple[Field, ...]
    added: Sequence[NewFile] = ()
    kept: Sequence[DataFile] = ()  # files of an older version that the new one contains again
    ended: Sequence[int] | None = ()  # ids of files that the new version leaves out; None: all
    base_version: int | None = None  # the version that was read; the commit fails if another one is current
    push_key: str | None = None


async def get(db: Reader, dataset: Dataset, number: int | None = None) -> DatasetVersion:
    """A version of a dataset by its number; None: the current one."""
    number = dataset.version if number is None else number
    row = await db.fetch_one(f"{_VERSION} WHERE v.dataset_id = $1 AND v.number = $2", dataset.id, number)
    if row is None:
        raise NotFound(
            f"Dataset {dataset.id} has no version {number}.", remedy="List its versions; old ones are removed in time."
        )
    return _version(row)


async def as_of(db: Reader, dataset: Dataset, moment: int) -> DatasetVersion:
    """The version that was current at a time."""
    # Times are printed in milliseconds, so a version counts from its printed time on.
    end = moment - moment % 1000 + 1000
    row = await db.fetch_one(
        f"{_VERSION} WHERE v.dataset_id = $1 AND v.created_at < $2 ORDER BY v.number DESC LIMIT 1", dataset.id, end
    )
    if row is None:
        raise NotFound(
            f"Dataset {dataset.id} has no version from {clock.format_timestamp(moment)} or before.",
            remedy="List its versions; old ones are removed in time.",
        )
    return _version(row)


async def find(db: Reader, dataset: Dataset, *, limit: int = 50, offset: int = 0) -> list[DatasetVersion]:
    """The versions of a dataset that changed its rows, latest first."""
    rows = await db.fetch(
        f"{_VERSION} WHERE v.dataset_id = $1 AND v.change <> 'compact' ORDER BY v.number DESC LIMIT $2 OFFSET $3",
        dataset.id,
        limit,
        offset,
    )
    return [_version(row) for row in rows]


async def files_of(db: Reader, dataset: Dataset, number: int | None = None) -> list[DataFile]:
    """The files of a version, in the order of their rows. None: the current version."""
    is_current = number is None or number == dataset.version
    sql = _CURRENT_FILES if is_current else _PAST_FILES
    rows = await db.fetch(sql, dataset.id, dataset.version if number is None else number)
    return [from_row(DataFile, row, fields=fields_from_json(row["fields"])) for row in rows]


async def find_push(db: Reader, dataset_id: int, push_key: str) -> DatasetVersion | None:
    """The version that an earlier push with this idempotency key made."""
    row = await db.fetch_one(f"{_VERSION} WHERE v.dataset_id = $1 AND v.push_key = $2", dataset_id, push_key)
    return None if row is None else _version(row)


async def lock(tx: Transaction, dataset_id: int) -> int:
    """Lock a dataset until the transaction ends; return its current version."""
    row = await tx.fetch_one("UPDATE datasets SET version = version WHERE id = $1 RETURNING version", dataset_id)
    assert row is not None
    return row["version"]


async def commit(tx: Transaction, dataset: Dataset, commit: Commit, author_id: int | None) -> DatasetVersion:
    """Add a version to a dataset. The caller has checked the permission."""
    current = await lock(tx, dataset.id)
    if commit.base_version is not None and commit.base_version != current:
        raise DatasetChanged()
    number, now = current + 1, clock.now()
    await _end_files(tx, dataset.id, number, commit.ended)
    await _add_files(tx, dataset.id, number, commit)
    files = await tx.fetch(_CURRENT_HASHES, dataset.id)
    await tx.execute(
        _ADD_VERSION,
        dataset.id,
        number,
        commit.change,
        fields_to_json(commit.fields),
        sum(file["row_count"] for file in files),
        _digest(commit.fields, (file["hash"] for file in files)),
        author_id,
        now,
        commit.push_key,
    )
    if commit.change == COMPACTION:
        await tx.execute("UPDATE datasets SET version = $2 WHERE id = $1", dataset.id, number)
        await profiles.keep(tx, dataset.id, number)
    else:
        await tx.execute("UPDATE datasets SET version = $2, updated_at = $3 WHERE id = $1", dataset.id, number, now)
        await _enqueue_compaction(tx, dataset, len(files))
        await profiles.enqueue(tx, dataset.id, dataset.org_id)
    return await get(tx, dataset, number)


async def restore(call: Call, tx: Transaction, dataset: Dataset, number: int) -> DatasetVersion:
    """Make the rows and fields of an older version current again, as a new version."""
    current = await lock(tx, dataset.id)
    past = await get(tx, dataset, number)
    wanted = {file.id: file for file in await files_of(tx, dataset, number)}
    row = await tx.fetch("SELECT id FROM dataset_files WHERE dataset_id = $1 AND end_version IS NULL", dataset.id)
    present = {each["id"] for each in row}
    # Files that both versions have stay only if they come first: the order of files is the order of rows.
    is_prefix = list(wanted)[: len(present & wanted.keys())] == sorted(present & wanted.keys())
    shared = present & wanted.keys() if is_prefix else set[int]()
    change = Commit(
        "restore",
        past.fields,
        kept=[file for id, file in wanted.items() if id not in shared],
        ended=sorted(present - shared),
        base_version=current,
    )
    return await commit(tx, dataset, change, call.actor.id)


async def prune(tx: Transaction, before: int, limit: int = 200) -> int:
    """Delete versions that were replaced before a time, with their files; return their number.

    The current version stays, and so does each version that was still current at that time.
    """
    rows = await tx.fetch(
        "SELECT v.dataset_id, v.number FROM dataset_versions v JOIN dataset_versions next"
        " ON next.dataset_id = v.dataset_id AND next.number = v.number + 1"
        " WHERE next.created_at < $1 ORDER BY v.dataset_id, v.number LIMIT $2",
        before,
        limit,
    )
    keys = [(row["dataset_id"], row["number"]) for row in rows]
    await tx.execute_many("DELETE FROM dataset_versions WHERE dataset_id = $1 AND number = $2", keys)
    # A file is needed by no version any more if its last version was deleted.
    await tx.execute_many("DELETE FROM dataset_files WHERE dataset_id = $1 AND end_version <= $2 + 1", keys)
    return len(keys)


async def forget_push_keys(tx: Transaction, before: int) -> None:
    """Forget the idempotency keys of pushes before a time."""
    await tx.execute(
        "UPDATE dataset_versions SET push_key = NULL WHERE push_key IS NOT NULL AND created_at < $1", before
    )


async def _add_files(tx: Transaction, dataset_id: int, number: int, commit: Commit) -> None:
    for file in commit.added:
        blob_id = await blobs.ensure(tx, file.stored)
        values = (blob_id, fields_to_json(file.fields), file.row_count, number, file.position)
        await tx.execute(_ADD_FILE, dataset_id, *values)
    for file in commit.kept:
        values = (file.blob_id, fields_to_json(file.fields), file.row_count, number, None)
        await tx.execute(_ADD_FILE, dataset_id, *values)


async def _enqueue_compaction(tx: Transaction, dataset: Dataset, file_count: int) -> None:
    if file_count and file_count % FILES_PER_COMPACTION == 0:
        key = f"{COMPACT_JOB}:{dataset.id}"
        await queue.add(tx, COMPACT_JOB, {"dataset": dataset.id}, key=key, org_id=dataset.org_id)


async def _end_files(tx: Transaction, dataset_id: int, number: int, ended: Sequence[int] | None) -> None:
    where = "" if ended is None else f" AND id IN ({placeholders(len(ended), 3)})"
    if ended is None or ended:
        await tx.execute(
            f"UPDATE dataset_files SET end_version = $2 WHERE dataset_id = $1 AND end_version IS NULL{where}",  # noqa: S608
            dataset_id,
            number,
            *(ended or ()),
        )


def _digest(fields: Sequence[Field], hashes: Iterable[str]) -> str:
    return hashlib.sha256("\n".join([fields_to_json(fields), *hashes]).encode()).hexdigest()


def _version(row: Row) -> DatasetVersion:
    return from_row(DatasetVersion, row, fields=fields_from_json(row["fields"]))
