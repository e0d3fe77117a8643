"""Runs the steps of imports in confined child processes, in fair shares between organisations."""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, cast

import orjson

from almanac.core.errors import AlmanacError, BadRequest, DeadlineExceeded, Internal, Unavailable
from almanac.core.fair_slots import FairSlots
from almanac.sandbox.confinement import MIB, SandboxLimits
from almanac.sandbox.errors import SandboxUnavailable, WorkRejected
from almanac.sandbox.pool import SandboxPool

IMPORT_WORK = "almanac.data.imports.import_work:run"
BASE_MEMORY_BYTES = 640 * MIB  # of address space, without any data: the interpreter and the engine
MAX_OUTPUT_BYTES = 2048 * MIB
MAX_REPORT_BYTES = 16 * MIB
REPORT_LENGTH_BYTES = 8


class NotUtf8(Exception):
    """The text is in another encoding than UTF-8."""


@dataclass(frozen=True, slots=True)
class ImportLimits:
    """The resources of imports."""

    processes: int = 1  # at a time; as many again for organisations without one
    memory_mib: int = 1024
    seconds: float = 300.0
    rows: int = 50_000_000


class ImportPool:
    """Runs the steps of imports (import_work.py)."""

    def __init__(self, limits: ImportLimits) -> None:
        self.limits = limits
        self.slots = FairSlots(limits.processes)
        sandbox = SandboxLimits(
            memory_bytes=limits.memory_mib * MIB + BASE_MEMORY_BYTES,
            cpu_seconds=int(limits.seconds),
            wall_seconds=limits.seconds,
            output_bytes=MAX_OUTPUT_BYTES,
            profile="queries",
        )
        self._sandbox = SandboxPool(IMPORT_WORK, sandbox)

    async def close(self) -> None:
        """End the processes."""
        await self._sandbox.close()

    async def run(self, step: str, path: Path, output: IO[bytes], options: dict[str, Any]) -> dict[str, Any]:
        """Run one step on a file. The content is left in `output`, the report is returned."""
        options = {**options, "step": step, "memory_mib": self.limits.memory_mib, "max_rows": self.limits.rows}
        try:
            await self._sandbox.run_to(output, [path], step, options)
        except WorkRejected as error:
            if error.code == "encoding":
                raise NotUtf8 from None
            raise self._failure(error) from None
        except SandboxUnavailable:
            raise Unavailable("Files cannot be imported at the moment.") from None
        return _take_report(output)

    def _failure(self, error: WorkRejected) -> AlmanacError:
        stored = "Nothing was stored."
        match error.code:
            case "timeout":
                remedy = "Split the file and append its parts."
                return DeadlineExceeded(
                    f"Reading the file took over {self.limits.seconds:g} s. {stored}", remedy=remedy
                )
            case "memory_limit" | "output_limit":
                message = f"The file needs more memory than one import may use. {stored}"
                return BadRequest(message, remedy="Split it, or send it as CSV, Parquet or lines of JSON.")
            case "interrupted":
                return Unavailable(f"The import was interrupted. {stored}")
            case "recursion_limit":
                return BadRequest(f"The file is nested too deeply. {stored}", remedy="Make its structure flatter.")
            case "rows":
                message = f"The file has more than {self.limits.rows:,} rows. {stored}"
                return BadRequest(message, remedy="Split it and append its parts.")
            case "columns":
                message = f"The file has {error.message[:12]} columns; at most 1,000 are possible. {stored}"
                return BadRequest(message, remedy="Check the delimiter, or write the columns as rows.")
            case "row_size":
                message = f"Row {error.message[:12]} is larger than 16 MiB. {stored}"
                return BadRequest(message, remedy="Make the row smaller.")
            case "names":
                return BadRequest(f"{error.message} {stored}", remedy="Change the header of the file.")
            case "malformed" | "no_table" | "refused":
                return BadRequest(f"The file cannot be read: {error.message}. {stored}", remedy="Correct the file.")
            case _:
                remedy = "Check that it opens in the program that made it, and that file_type is right."
                return BadRequest(f"The file cannot be read ({error.message[:60]}). {stored}", remedy=remedy)


def _take_report(output: IO[bytes]) -> dict[str, Any]:
    """Cut the report off the end of the output. The child may be in the hands of its file, so all is checked."""
    descriptor = output.fileno()
    size = os.fstat(descriptor).st_size
    length = int.from_bytes(os.pread(descriptor, REPORT_LENGTH_BYTES, max(0, size - REPORT_LENGTH_BYTES)), "big")
    start = size - REPORT_LENGTH_BYTES - length
    if start < 0 or length > MAX_REPORT_BYTES:
        raise Internal("The process that reads files gave no valid report.")
    try:
        report = orjson.loads(os.pread(descriptor, length, start))
    except orjson.JSONDecodeError:
        raise Internal("The process that reads files gave no valid report.") from None
    os.ftruncate(descriptor, start)
    return cast("dict[str, Any]", report)
