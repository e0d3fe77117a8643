"""Writes Parquet files of datasets in confined child processes, in fair shares between organisations.

A caller's rows are untrusted, and so is the engine that reads them: it runs where it can do no harm (write_work.py).
"""

import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from almanac.core.errors import AlmanacError, BadRequest, DeadlineExceeded, Internal, Unavailable
from almanac.core.fair_slots import FairSlots
from almanac.data.fields import Field, field_to_value
from almanac.data.new_rows import NewRows
from almanac.data.parquet_source import ParquetFile
from almanac.data.queries.query_plan import MAX_FILES
from almanac.sandbox.confinement import MIB, SandboxLimits
from almanac.sandbox.errors import SandboxUnavailable, WorkRejected
from almanac.sandbox.pool import SandboxPool

WRITE_WORK = "almanac.data.write_work:write_file"
BASE_MEMORY_BYTES = 640 * MIB  # of address space, without any data: the interpreter and the engine


@dataclass(frozen=True, slots=True)
class Kept:
    """The rows of a dataset that a new file takes over."""

    files: Sequence[ParquetFile]
    row_count: int
    without_keys: tuple[str, ...] = ()  # columns: rows whose values a new row has are left out
    date_column: str = ""
    since: str = ""  # rows with an earlier date are left out, new rows too


@dataclass(frozen=True, slots=True)
class WrittenFile:
    """A Parquet file that is not stored yet."""

    content: bytes
    row_count: int


@dataclass(frozen=True, slots=True)
class WriteLimits:
    """The resources of writes."""

    processes: int = 2  # at a time; as many again for organisations without one
    memory_mib: int = 1024
    seconds: float = 120.0


class RowWriter:
    """Writes Parquet files."""

    def __init__(self, limits: WriteLimits) -> None:
        self._limits = limits
        self._slots = FairSlots(limits.processes)
        sandbox = SandboxLimits(
            memory_bytes=limits.memory_mib * MIB + BASE_MEMORY_BYTES,
            cpu_seconds=int(limits.seconds),
            wall_seconds=limits.seconds,
            open_files=2 * MAX_FILES + 64,
            profile="queries",
        )
        self._sandbox = SandboxPool(WRITE_WORK, sandbox, prepared=limits.processes)

    async def close(self) -> None:
        """End the processes."""
        await self._sandbox.close()

    async def write(self, fields: Sequence[Field], new: NewRows | None, kept: Kept | None = None) -> WrittenFile:
        """Return a file with the kept rows, followed by the new ones. Cancellation kills the process."""
        with tempfile.NamedTemporaryFile(prefix="almanac-rows-") as lines:
            paths = [file.path for file in kept.files] if kept else []
            options: dict[str, Any] = {
                "fields": [field_to_value(each) for each in fields],
                "existing": None if kept is None else _numbered(kept.files),
                "keys": list(kept.without_keys) if kept else [],
                "date_field": kept.date_column if kept else "",
                "since": kept.since if kept else "",
                "memory_mib": self._limits.memory_mib,
                "new_rows": None,
                "row_count": _known_count(new, kept),
            }
            if new is not None:
                lines.write(new.lines)
                lines.flush()
                options["new_rows"] = {"file": len(paths), "fields": [field_to_value(each) for each in new.fields]}
                paths.append(Path(lines.name))
            async with self._slots.hold():
                return _unpack(await self._run(paths, options))

    async def _run(self, paths: Sequence[Path], options: dict[str, Any]) -> bytes:
        try:
            return await self._sandbox.run(paths, "rows", options)
        except WorkRejected as error:
            raise _failure(error) from None
        except FileNotFoundError:
            raise Unavailable("A file of the dataset is missing.") from None
        except SandboxUnavailable:
            raise Unavailable("Rows cannot be written at the moment.") from None


def _numbered(files: Sequence[ParquetFile]) -> list[dict[str, Any]]:
    """The files of a request. The child knows a file by its number."""
    return [
        {"file": number, "fields": [field_to_value(each) for each in file.fields]} for number, file in enumerate(files)
    ]


def _known_count(new: NewRows | None, kept: Kept | None) -> int | None:
    """The number of rows of the file, if no row is left out; otherwise the child counts them."""
    if kept is not None and (kept.without_keys or kept.date_column):
        return None
    return (new.row_count if new else 0) + (kept.row_count if kept else 0)


def _unpack(packed: bytes) -> WrittenFile:
    head, separator, content = packed.partition(b"\n")
    if not separator or not head.isdigit() or len(head) > 18 or content[:4] != b"PAR1":
        raise Internal("The process that writes rows gave no valid file.")
    return WrittenFile(content, int(head))


def _failure(error: WorkRejected) -> AlmanacError:
    remedy = "Push fewer rows at a time."
    match error.code:
        case "timeout":
            return DeadlineExceeded("Writing the rows took too long. Nothing was stored.", remedy=remedy)
        case "memory_limit" | "output_limit":
            return BadRequest("The rows need more memory than one write may use. Nothing was stored.", remedy=remedy)
        case "interrupted":
            return Unavailable("Writing the rows was interrupted. Nothing was stored.")
        case _:
            return BadRequest(f"The rows cannot be written ({error.message[:100]}). Nothing was stored.", remedy=remedy)
