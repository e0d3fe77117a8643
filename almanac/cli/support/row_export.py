"""Files of rows that a command writes: CSV, lines of JSON, or Parquet. A file appears under its name when complete."""

import csv
import tempfile
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO, Protocol

import arro3.io
import orjson
from arro3.core import RecordBatch, RecordBatchReader

from almanac.core.errors import BadRequest
from almanac.data import value_types
from almanac.data.engine import DataEngine
from almanac.data.fields import Field
from almanac.data.new_rows import NewRows

Rows = Sequence[Sequence[Any]]


class RowFile(Protocol):
    """Writes rows page by page."""

    async def write(self, fields: Sequence[Field], rows: Rows) -> None: ...

    def finish(self) -> None: ...


def cell(value: Any) -> str | None:
    """A value as people and CSV files have it: lists and records as JSON."""
    return value if value is None or isinstance(value, str) else orjson.dumps(value).decode()


@contextmanager
def open_row_file(path: Path, engine: DataEngine) -> Generator[RowFile]:
    """Yield the writer for the extension of a file. Only a complete file gets the name; a failure leaves none."""
    writer = _WRITERS.get(path.suffix.lower())
    if writer is None:
        raise BadRequest(
            f"There is no format for the extension {path.suffix!r}.",
            remedy=f"The extensions are: {', '.join(_WRITERS)}.",
        )
    partial_file = path.with_name(f".{path.name}.part")
    try:
        with partial_file.open("wb") as out:
            file = writer(out, engine)
            yield file
            file.finish()
        partial_file.replace(path)
    except OSError as error:
        raise BadRequest(f"The file {str(path)!r} cannot be written: {error.strerror}.") from None
    finally:
        partial_file.unlink(missing_ok=True)


class _Lines:
    """A text that `csv.writer` writes into, as UTF-8."""

    def __init__(self, out: BinaryIO) -> None:
        self._out = out

    def write(self, text: str) -> int:
        return self._out.write(text.encode("utf-8", "replace"))


class _CsvFile:
    def __init__(self, out: BinaryIO, engine: DataEngine) -> None:
        self._writer = csv.writer(_Lines(out), lineterminator="\n")
        self._has_header = False

    async def write(self, fields: Sequence[Field], rows: Rows) -> None:
        if not self._has_header:
            self._writer.writerow([field.name for field in fields])
            self._has_header = True
        self._writer.writerows([cell(value) for value in row] for row in rows)

    def finish(self) -> None:
        """Nothing is left to write."""


class _JsonLinesFile:
    def __init__(self, out: BinaryIO, engine: DataEngine) -> None:
        self._out = out

    async def write(self, fields: Sequence[Field], rows: Rows) -> None:
        names = [field.name for field in fields]
        for row in rows:
            self._out.write(orjson.dumps(dict(zip(names, row, strict=True))) + b"\n")

    def finish(self) -> None:
        """Nothing is left to write."""


class _ParquetFile:
    """Each page becomes a temporary file, written by the confined process that also writes pushed rows."""

    def __init__(self, out: BinaryIO, engine: DataEngine) -> None:
        self._out = out
        self._engine = engine
        self._folder = tempfile.TemporaryDirectory(prefix="almanac-export-")
        self._pages: list[Path] = []

    async def write(self, fields: Sequence[Field], rows: Rows) -> None:
        keyed = [(f"c{index}", index, field.type) for index, field in enumerate(fields)]
        lines = (
            orjson.dumps({key: value_types.to_stored(row[index], kind) for key, index, kind in keyed}) for row in rows
        )
        new = NewRows(tuple(fields), tuple(fields), b"\n".join(lines), len(rows))
        page = Path(self._folder.name) / f"{len(self._pages)}.parquet"
        page.write_bytes((await self._engine.writer.write(fields, new)).content)
        self._pages.append(page)

    def finish(self) -> None:
        schema = arro3.io.read_parquet(self._pages[0]).schema
        batches = RecordBatchReader.from_batches(schema, _batches(self._pages))
        arro3.io.write_parquet(batches, self._out, compression="zstd(3)")
        self._folder.cleanup()


def _batches(pages: Sequence[Path]) -> Iterator[RecordBatch]:
    for page in pages:
        yield from arro3.io.read_parquet(page)


_WRITERS: dict[str, Callable[[BinaryIO, DataEngine], RowFile]] = {
    ".csv": _CsvFile,
    ".ndjson": _JsonLinesFile,
    ".jsonl": _JsonLinesFile,
    ".parquet": _ParquetFile,
}
