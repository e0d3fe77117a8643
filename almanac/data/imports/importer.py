"""Importing a file into a dataset: the file becomes a new version, or its rows are appended.

The file is received to disk, read in confined processes (import_work.py) and stored as Parquet. None of it is whole in
the memory of this process. A file that cannot be read changes nothing.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from almanac.core.call import Call
from almanac.core.errors import AlmanacError, BadRequest
from almanac.data import datasets, push, value_types, versions
from almanac.data.dataset import Dataset
from almanac.data.datasets import NameTaken
from almanac.data.engine import DataEngine
from almanac.data.fields import DataType, Field, Kind, field_from_value, field_to_value
from almanac.data.imports import file_formats
from almanac.data.imports.bad_rows import BadRows
from almanac.data.imports.import_pool import NotUtf8
from almanac.data.new_rows import NewRows
from almanac.data.versions import Commit, DatasetChanged, DatasetVersion, NewFile
from almanac.files.encoded import decode_base64
from almanac.files.file_store import IncomingFile
from almanac.net.fetcher import Fetcher

STRATEGIES = ("replace", "append")
ON_ERROR = ("refuse", "skip")
ENCODINGS = {
    "utf-8": "utf-8", "utf8": "utf-8", "utf-16": "utf-16", "utf-16-le": "utf-16-le", "utf-16-be": "utf-16-be",
    "windows-1252": "cp1252", "cp1252": "cp1252", "latin-1": "latin-1", "iso-8859-1": "latin-1",
    "windows-1250": "cp1250", "windows-1251": "cp1251", "iso-8859-15": "iso8859-15", "shift-jis": "shift_jis",
    "gb18030": "gb18030", "big5": "big5", "euc-kr": "euc_kr",
}  # fmt: skip
CHUNK_BYTES = 1024 * 1024


@dataclass(frozen=True, slots=True)
class ImportOptions:
    """How a file is read and stored. None: it is detected."""

    file_type: str | None = None
    delimiter: str | None = None
    encoding: str | None = None
    header: bool | None = None
    on_error: str = "refuse"
    strategy: str = "replace"
    dry_run: bool = False
    idempotency_key: str | None = None


@dataclass(frozen=True, slots=True)
class ImportRequest:
    """The dataset, the name of the file, and the options."""

    dataset: str
    file_name: str = ""
    options: ImportOptions = field(default_factory=ImportOptions)


@dataclass(frozen=True, slots=True)
class ImportResult:
    """The result of an import or, after a dry run, the result that it would have."""

    name: str
    dataset: Dataset | None  # None: a dry run of a new one
    version: DatasetVersion | None  # None: a dry run
    row_count: int  # of the file
    fields: tuple[Field, ...]
    format: str
    assumed: Mapping[str, Any]
    bad: BadRows
    preview: Sequence[Sequence[Any]] = ()
    widened: Sequence[tuple[str, str, str]] = ()
    is_new: bool = False
    is_repeated: bool = False


# Writes the content to a file and returns the request; an upload brings the request with the content.
Source = Callable[[IncomingFile], Awaitable[ImportRequest]]


def text_source(request: ImportRequest, content: str) -> Source:
    """Content that is text."""
    return _bytes_source(request, content.encode("utf-8", "replace"))


def base64_source(request: ImportRequest, encoded: str) -> Source:
    """A small file that is encoded as base64."""
    return _bytes_source(request, decode_base64(encoded))


def url_source(request: ImportRequest, fetcher: Fetcher, url: str) -> Source:
    """The file at a URL."""

    async def write(incoming: IncomingFile) -> ImportRequest:
        fetched = await fetcher.download(url, incoming.write)
        return ImportRequest(request.dataset, request.file_name or fetched.filename, request.options)

    return write


def path_source(request: ImportRequest, path: Path) -> Source:
    """A file of this machine. The caller has chosen it; never a path from the network."""

    async def write(incoming: IncomingFile) -> ImportRequest:
        with path.open("rb") as file:
            while chunk := await asyncio.to_thread(file.read, CHUNK_BYTES):
                await incoming.write(chunk)
        return ImportRequest(request.dataset, request.file_name or path.name, request.options)

    return write


async def import_file(call: Call, engine: DataEngine, source: Source) -> ImportResult:
    """Import a file. A dataset is created if there is none with the name."""
    async with engine.files.receive(call.db) as received:
        request = await source(received)
        if not received.size:
            raise BadRequest("The file is empty. Nothing was stored.", remedy="Send its content.")
        dataset = await _find_dataset(call, request)
        if done := await _repeated(call, dataset, request):
            return done
        with engine.files.open_scratch() as parquet:
            async with engine.imports.slots.hold():
                loaded = await _load(engine, received, parquet, request, dataset)
            return await _store(call, engine, loaded, parquet, request, dataset)


@dataclass(frozen=True, slots=True)
class _Loaded:
    """The report about a file, with its rows in Parquet."""

    fields: tuple[Field, ...]
    with_values: tuple[Field, ...]
    row_count: int
    format: str
    assumed: Mapping[str, Any]
    bad: BadRows
    preview: Sequence[Sequence[Any]]


async def _load(
    engine: DataEngine, received: IncomingFile, output: IO[bytes], request: ImportRequest, dataset: Dataset | None
) -> _Loaded:
    options = request.options
    file_format = options.file_type or file_formats.detect_format(received.head, request.file_name)
    arguments = {
        "source": file_format if file_format in ("csv", "parquet") else "lines",
        "format": file_format,
        "known": [field_to_value(each) for each in dataset.fields] if dataset else [],
        "csv": {"delimiter": options.delimiter, "header": options.header},
        "on_error": options.on_error,
    }
    encoding = _given_encoding(options) or file_formats.detect_utf_16(received.head)
    if file_format not in file_formats.FORMATS:
        raise BadRequest(
            f"Files of the format {file_format} cannot be imported yet. Nothing was stored.",
            remedy="Save the table as CSV, JSON or Parquet.",
        )
    if file_format == "parquet":
        encoding = None
    try:
        report = await _read(engine, received.path, output, arguments, encoding)
    except NotUtf8:
        encoding = "cp1252"
        report = await _read(engine, received.path, output, arguments, encoding)
    bad = _check_rows(report, arguments)
    fields = tuple(field_from_value(each) for each in report["fields"])
    with_values = tuple(each for each, has in zip(fields, report["with_values"], strict=True) if has)
    assumed: dict[str, Any] = dict(report["assumed"])
    if file_format in ("csv", "json"):
        assumed["encoding"] = "windows-1252" if encoding == "cp1252" else encoding or "utf-8"
    return _Loaded(fields, with_values, report["row_count"], file_format, assumed, bad, report["preview"])


def _check_rows(report: Mapping[str, Any], arguments: Mapping[str, Any]) -> BadRows:
    """The bad rows of a report, which are refused unless the caller wants them left out. One good row is necessary."""
    bad = BadRows.from_value(report.get("bad") or {"count": 0, "first": []})
    if bad.count and arguments["on_error"] == "refuse":
        raise _refusal(bad)
    if not report["row_count"]:
        raise BadRequest("The file has no rows. Nothing was stored.", remedy="Check its content and file_type.")
    return bad


async def _read(
    engine: DataEngine, path: Path, output: IO[bytes], arguments: dict[str, Any], encoding: str | None
) -> dict[str, Any]:
    """Read a file into Parquet, by way of UTF-8 and lines of JSON where the format needs it."""
    pool = engine.imports
    with ExitStack() as stack:
        if encoding not in (None, "utf-8"):
            transcoded = stack.enter_context(engine.files.open_scratch())
            await pool.run("transcode", path, transcoded, {**arguments, "encoding": encoding})
            path = Path(transcoded.name)
        found: dict[str, Any] = {}
        if arguments["source"] == "lines":
            lines = stack.enter_context(engine.files.open_scratch())
            found = await pool.run("rows", path, lines, arguments)
            _check_rows(found, arguments)
            path, arguments = Path(lines.name), {**arguments, "lines": found}
        output.truncate(0)
        return {"bad": found.get("bad"), **await pool.run("load", path, output, arguments)}


async def _store(
    call: Call,
    engine: DataEngine,
    loaded: _Loaded,
    parquet: IO[bytes],
    request: ImportRequest,
    dataset: Dataset | None,
) -> ImportResult:
    options = request.options
    fields, with_values = (_declared(dataset, each) for each in (loaded.fields, loaded.with_values))
    name = dataset.name if dataset else datasets.check_name(request.dataset)
    shown = ImportResult(
        name, dataset, None, loaded.row_count, fields, loaded.format, loaded.assumed, loaded.bad, loaded.preview
    )
    if options.dry_run:
        return shown
    async with engine.files.receive(call.db) as incoming:
        parquet.seek(0)
        while chunk := parquet.read(CHUNK_BYTES):
            await incoming.write(chunk)
        file = NewFile(await incoming.finish(), loaded.with_values, loaded.row_count)
        new = NewRows(with_values, fields, b"", loaded.row_count)
        commit = _commit_of(call, options, dataset, new, file)
        stored, version, is_new = await _commit(call, request, commit, new)
    return ImportResult(
        name=stored.name,
        dataset=stored,
        version=version,
        row_count=loaded.row_count,
        fields=version.fields,
        format=loaded.format,
        assumed=loaded.assumed,
        bad=loaded.bad,
        widened=push.widened_fields(dataset, version) if options.strategy == "append" else (),
        is_new=is_new,
    )


def _commit_of(call: Call, options: ImportOptions, dataset: Dataset | None, new: NewRows, file: NewFile) -> Commit:
    known = {each.name for each in dataset.fields} if dataset else set[str]()
    is_known = {each.name for each in new.all_fields} <= known
    is_append = options.strategy == "append"
    base = dataset.version if dataset else 0
    return Commit(
        "append" if is_append else "replace",
        new.all_fields,
        added=[file],
        ended=() if is_append else None,
        # A new name of a field may need another column than the one of a field that was added at the same time.
        base_version=base if is_append and not is_known else None,
        push_key=push.push_key(call, options.idempotency_key),
    )


async def _commit(
    call: Call, request: ImportRequest, commit: Commit, new: NewRows
) -> tuple[Dataset, DatasetVersion, bool]:
    try:
        return await call.db.write(lambda tx: push.commit_rows(tx, call, request.dataset, commit, new))
    except (DatasetChanged, NameTaken):
        raise DatasetChanged() from None


async def _find_dataset(call: Call, request: ImportRequest) -> Dataset | None:
    """The dataset with the name, which the caller may write; None if there is none."""
    _check_options(request.options)
    name = datasets.check_name(request.dataset)
    found = await datasets.find_by_name(call.db, call.actor.org_id, name)
    return None if found is None else await datasets.get(call.db, call, found.id, "write")


async def _repeated(call: Call, dataset: Dataset | None, request: ImportRequest) -> ImportResult | None:
    """The result of an earlier import with the same idempotency key."""
    key = push.push_key(call, request.options.idempotency_key)
    done = await versions.find_push(call.db, dataset.id, key) if dataset and key else None
    if dataset is None or done is None:
        return None
    return ImportResult(dataset.name, dataset, done, 0, done.fields, "", {}, BadRows(), is_repeated=True)


def _declared(dataset: Dataset | None, fields: Sequence[Field]) -> tuple[Field, ...]:
    """The fields with the types that somebody declared."""
    return tuple(_as_declared(each, dataset) for each in fields)


def _as_declared(each: Field, dataset: Dataset | None) -> Field:
    note = dataset.notes.get(each.name) if dataset else None
    if note is None or not note.declared_type or note.declared_type == each.type.kind:
        return each
    declared = DataType(Kind(note.declared_type))
    if not value_types.holds(declared, each.type):
        raise BadRequest(
            f"The values of {each.name!r} are {each.type.kind}, but its declared type is {note.declared_type}."
            " Nothing was stored.",
            remedy="Correct the file, or change the declared type of the field.",
        )
    return Field(each.name, declared, each.column)


def _check_options(options: ImportOptions) -> None:
    for name, value, allowed in (
        ("file_type", options.file_type or "csv", file_formats.FORMATS),
        ("on_error", options.on_error, ON_ERROR),
        ("strategy", options.strategy, STRATEGIES),
    ):
        if value not in allowed:
            raise BadRequest(f"{name}: {value[:40]!r} is not possible.", remedy=f"Give one of: {', '.join(allowed)}.")
    if options.delimiter is not None and (len(options.delimiter) != 1 or options.delimiter in '"\r\n\0'):
        raise BadRequest("delimiter: give one character, such as ; or a tab.")
    _given_encoding(options)


def _given_encoding(options: ImportOptions) -> str | None:
    if options.encoding is None:
        return None
    if (known := ENCODINGS.get(options.encoding.lower().replace("_", "-"))) is None:
        raise BadRequest(
            f"encoding: {options.encoding[:40]!r} is not known.", remedy=f"Give one of: {', '.join(ENCODINGS)}."
        )
    return known


def _refusal(bad: BadRows) -> AlmanacError:
    first = "; ".join(f"{each.line}: {each.reason}" for each in bad.first[:5])
    plural = "s" if bad.count > 1 else ""
    return BadRequest(
        f"The file has {bad.count:,} bad row{plural}. By line or number: {first}. Nothing was stored.",
        remedy="Correct the file, or leave bad rows out with on_error=skip; dry_run with skip shows the result.",
    )


def _bytes_source(request: ImportRequest, content: bytes) -> Source:
    async def write(incoming: IncomingFile) -> ImportRequest:
        for start in range(0, len(content), CHUNK_BYTES):
            await incoming.write(content[start : start + CHUNK_BYTES])
        return request

    return write
