"""Pushing rows to a dataset. One push is one version: readers see all of it or nothing."""

import hashlib
import re
from calendar import monthrange
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any

from almanac.core.call import Call
from almanac.core.database import Transaction
from almanac.core.errors import BadRequest
from almanac.core.fair_slots import compute
from almanac.data import datasets, new_rows, versions
from almanac.data.dataset import Dataset
from almanac.data.datasets import NameTaken
from almanac.data.engine import DataEngine
from almanac.data.fields import Field, Kind, find_field
from almanac.data.new_rows import NewRows
from almanac.data.parquet_source import ParquetFile, column_of
from almanac.data.row_writer import Kept, WrittenFile
from almanac.data.versions import Commit, DataFile, DatasetChanged, DatasetVersion, NewFile

MAX_ROWS_PER_PUSH = 100_000
MAX_ATTEMPTS = 5  # of a push, while others change the dataset

STRATEGIES = ("append", "replace", "replace_even_if_empty", "upsert", "expire")

_PERIOD = re.compile(r"(\d{1,5})([hdwmqy])")
_HOURS = {"h": 1, "d": 24, "w": 24 * 7}
_MONTHS = {"m": 1, "q": 3, "y": 12}


@dataclass(frozen=True, slots=True)
class PushOptions:
    """How rows are added."""

    strategy: str = "append"
    keys: tuple[str, ...] = ()  # upsert: a row replaces the one with the same values of these fields
    date_field: str = ""  # expire: rows whose date is older than `keep_for` are left out
    keep_for: str = ""  # such as 90d or 3m
    idempotency_key: str | None = None
    description: str = ""  # of a dataset that is created


@dataclass(frozen=True, slots=True)
class PushResult:
    """The result of a push."""

    dataset: Dataset
    version: DatasetVersion | None  # None: there was nothing to do
    pushed_rows: int
    is_new: bool = False  # the dataset was created
    widened: tuple[tuple[str, str, str], ...] = ()  # field, type before, type now
    is_repeated: bool = False  # the idempotency key was used before, so nothing was stored


async def push(
    call: Call, engine: DataEngine, name: str, rows: Sequence[Mapping[str, Any]], options: PushOptions | None = None
) -> PushResult:
    """Add rows to the dataset with this name, which is created if there is none."""
    options = options or PushOptions()
    _check(rows, options)
    for attempt in range(1, MAX_ATTEMPTS + 1):
        try:
            return await _attempt(call, engine, datasets.check_name(name), rows, options)
        except (DatasetChanged, NameTaken):
            if attempt == MAX_ATTEMPTS:
                raise
    raise AssertionError("unreachable")


async def _attempt(
    call: Call, engine: DataEngine, name: str, rows: Sequence[Mapping[str, Any]], options: PushOptions
) -> PushResult:
    dataset = await datasets.find_by_name(call.db, call.actor.org_id, name)
    if dataset is not None:
        dataset = await datasets.get(call.db, call, dataset.id, "write")
        if repeated := await _repeated(call, dataset, options):
            return repeated
    elif not rows and options.strategy != "replace_even_if_empty":
        raise BadRequest("There are no rows.", remedy="Send at least one row. Nothing was stored.")
    if not rows and options.strategy not in ("replace_even_if_empty", "expire"):
        assert dataset is not None
        return PushResult(dataset, None, 0)
    new = await compute(_prepare, rows, dataset, options) if rows else None
    written, change = await _write(call, engine, dataset, new, options)
    async with engine.files.receive(call.db) as incoming:
        added: list[NewFile] = []
        if written is not None and written.row_count:
            await incoming.write(written.content)
            fields = change.fields if _rewrites(options) else (new.fields if new else ())
            added = [NewFile(await incoming.finish(), fields, written.row_count)]
        commit = replace(change, added=added)
        stored, version, is_new = await call.db.write(
            lambda tx: commit_rows(tx, call, name, commit, new, options.description)
        )
    widened = widened_fields(dataset, version)
    return PushResult(stored, version, len(rows), is_new, widened)


async def _write(
    call: Call, engine: DataEngine, dataset: Dataset | None, new: NewRows | None, options: PushOptions
) -> tuple[WrittenFile | None, Commit]:
    """Write the file of a push, and describe its version."""
    known = dataset.fields if dataset is not None else ()
    commit = Commit(
        options.strategy,
        new.all_fields if new else known,
        ended=None,
        base_version=dataset.version if dataset is not None else 0,
        push_key=push_key(call, options.idempotency_key),
    )
    if not _rewrites(options):
        written = await engine.writer.write(new.fields, new) if new else None
        # A new name of a field may need another column than the one of a field that was added at the same time.
        is_known = new is not None and {each.name for each in new.all_fields} <= {each.name for each in known}
        appended = replace(commit, ended=(), base_version=commit.base_version if not is_known else None)
        return written, appended if options.strategy == "append" else replace(
            commit, change="replace", base_version=None
        )
    files = await versions.files_of(call.db, dataset) if dataset is not None else []
    fields = _merged(known, files, new)
    written = await engine.writer.write(fields, new, _kept(engine, fields, files, options))
    return written, replace(commit, fields=fields)


async def commit_rows(
    tx: Transaction, call: Call, name: str, commit: Commit, new: NewRows | None, description: str = ""
) -> tuple[Dataset, DatasetVersion, bool]:
    """Add a version to the dataset with this name, which is created if there is none.

    Return also whether it was created. A repeated idempotency key gives the version that it made before.
    """
    dataset, is_new = await datasets.ensure(call, tx, name, description)
    current = await versions.lock(tx, dataset.id)
    if commit.push_key and (done := await versions.find_push(tx, dataset.id, commit.push_key)):
        return dataset, done, False
    if commit.base_version not in (None, current):
        raise DatasetChanged()
    if commit.change == "append":
        # Another push may have widened the fields since they were read.
        dataset = await datasets.get(tx, call, dataset.id, "write")
        commit = replace(commit, fields=_merged(dataset.fields, await versions.files_of(tx, dataset), new))
    version = await versions.commit(tx, dataset, commit, call.actor.id)
    return await datasets.get(tx, call, dataset.id), version, is_new


async def _repeated(call: Call, dataset: Dataset, options: PushOptions) -> PushResult | None:
    key = push_key(call, options.idempotency_key)
    done = await versions.find_push(call.db, dataset.id, key) if key else None
    return PushResult(dataset, done, 0, is_repeated=True) if done else None


def _prepare(rows: Sequence[Mapping[str, Any]], dataset: Dataset | None, options: PushOptions) -> NewRows:
    if options.strategy == "upsert":
        rows = new_rows.last_by_keys(rows, options.keys)
    return new_rows.prepare(rows, dataset.fields, dataset.notes) if dataset else new_rows.prepare(rows)


def _merged(known: Sequence[Field], files: Sequence[DataFile], new: NewRows | None) -> tuple[Field, ...]:
    """The fields of a version that also has the rows of these files."""
    with_values = {field.name for file in files for field in file.fields}
    return tuple(known) if new is None else new_rows.merge_fields(known, with_values, new)


def _kept(engine: DataEngine, fields: Sequence[Field], current: Sequence[DataFile], options: PushOptions) -> Kept:
    files = [ParquetFile(engine.files.path(file.name), file.fields) for file in current]
    row_count = sum(file.row_count for file in current)
    if options.strategy == "upsert":
        keys = tuple(column_of(_required_field(fields, key)) for key in options.keys)
        return Kept(files, row_count, without_keys=keys)
    field = _required_field(fields, options.date_field)
    if field.type.kind not in (Kind.DATE, Kind.TIMESTAMP):
        raise BadRequest(
            f"The field {field.name!r} holds {field.type.kind}, not dates.", remedy="Name a field of dates."
        )
    since = _cut_off(datetime.now(UTC).replace(tzinfo=None), options.keep_for)
    return Kept(files, row_count, date_column=column_of(field), since=since.isoformat(sep=" "))


def _required_field(fields: Sequence[Field], name: str) -> Field:
    field = find_field(fields, name)
    if field is None:
        known = ", ".join(each.name for each in fields)
        raise BadRequest(f"There is no field {name!r}.", remedy=f"The fields are: {known}. Nothing was stored.")
    return field


def _rewrites(options: PushOptions) -> bool:
    return options.strategy in ("upsert", "expire")


def widened_fields(dataset: Dataset | None, version: DatasetVersion) -> tuple[tuple[str, str, str], ...]:
    """Return the name, the type before and the type now of each field whose type became wider."""
    before = {field.name: field.type.kind for field in dataset.fields} if dataset else {}
    return tuple(
        (field.name, before[field.name], field.type.kind)
        for field in version.fields
        if field.name in before and before[field.name] != field.type.kind
    )


def push_key(call: Call, idempotency_key: str | None) -> str | None:
    """Return the stored form of an idempotency key, which is the caller's own."""
    if idempotency_key is None:
        return None
    return hashlib.sha256(f"{call.actor.id}:{idempotency_key}".encode("utf-8", "surrogatepass")).hexdigest()


def _cut_off(now: datetime, keep_for: str) -> datetime:
    """The earliest date that is kept."""
    match = _PERIOD.fullmatch(keep_for.strip().lower())
    if match is None:
        raise BadRequest(
            f"keep_for: {keep_for[:20]!r} is no period.",
            remedy="Write a number and h, d, w, m (months), q or y, such as 90d or 3m.",
        )
    number, unit = int(match[1]), match[2]
    if unit in _HOURS:
        return now - timedelta(hours=number * _HOURS[unit])
    year, month = divmod(now.year * 12 + now.month - 1 - number * _MONTHS[unit], 12)
    day = min(now.day, monthrange(max(year, 1), month + 1)[1])
    return now.replace(year=max(year, 1), month=month + 1, day=day)


def _check(rows: Sequence[Mapping[str, Any]], options: PushOptions) -> None:
    if options.strategy not in STRATEGIES:
        raise BadRequest(
            f"There is no strategy {options.strategy!r}.", remedy=f"The strategies are: {', '.join(STRATEGIES)}."
        )
    if len(rows) > MAX_ROWS_PER_PUSH:
        raise BadRequest(
            f"There are {len(rows):,} rows; one push takes at most {MAX_ROWS_PER_PUSH:,}.",
            remedy="Push them in parts, or import a file. Nothing was stored.",
        )
    if (options.strategy == "upsert") != bool(options.keys):
        raise BadRequest("The strategy upsert needs keys, and the other strategies take none.")
    if (options.strategy == "expire") != bool(options.date_field and options.keep_for):
        raise BadRequest("The strategy expire needs date_field and keep_for, and the other strategies take neither.")
