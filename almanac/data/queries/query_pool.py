"""Runs queries over Parquet files in confined child processes, in fair shares between organisations.

    async with QueryPool(QueryLimits()) as pool:
        result = await pool.run(QueryPlan("SELECT count(*) FROM sales", {"sales": DatasetFiles(files, fields)}))

The server never loads DuckDB or sqlglot: the child reads the caller's text, too (query_work.py). Prepared children keep
a query fast. Each serves one query, so nothing of a query is left for the next one.
"""

import asyncio
import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Self

import orjson

from almanac.core.errors import AlmanacError, BadRequest, DeadlineExceeded, Internal, Unavailable
from almanac.core.fair_slots import FairSlots
from almanac.data.fields import field_to_value
from almanac.data.queries.query_plan import MAX_FILES, MAX_ROWS, DatasetFiles, QueryPlan, QueryResult, result_from_value
from almanac.sandbox.child import ExitReport
from almanac.sandbox.confinement import MIB, SandboxLimits
from almanac.sandbox.errors import SandboxUnavailable, WorkRejected
from almanac.sandbox.pool import SandboxPool

QUERY_WORK = "almanac.data.queries.query_work:run_query"

# The address space of a child without the data of its query: the interpreter, DuckDB, stacks of threads.
BASE_MEMORY_BYTES = 640 * MIB

# A larger result is unpacked in a thread, so that the event loop continues.
MAX_BYTES_WITHOUT_THREAD = 100_000


class QueryRefused(BadRequest):
    """The query cannot be run."""

    def __init__(self, message: str, line: int | None = None, column: int | None = None) -> None:
        self.line, self.column = line, column
        super().__init__(message)


@dataclass(frozen=True, slots=True)
class QueryLimits:
    """The resources of queries."""

    processes: int = max(2, os.cpu_count() or 1)  # queries at a time; as many again for organisations without one
    threads: int = min(4, os.cpu_count() or 1)  # of one query
    memory_mib: int = 1024  # of one query
    seconds: float = 30.0  # of one query, the wait for a process included

    @property
    def sandbox(self) -> SandboxLimits:
        """The limits that the kernel and the fork server enforce."""
        return SandboxLimits(
            memory_bytes=self.memory_mib * MIB + BASE_MEMORY_BYTES,
            cpu_seconds=int(self.seconds * self.threads) + 1,
            wall_seconds=self.seconds,
            open_files=2 * MAX_FILES + 64,
            profile="queries",
        )


class QueryPool:
    """Runs queries. `on_exit` receives the cost of each child."""

    def __init__(self, limits: QueryLimits, *, on_exit: Callable[[ExitReport], None] | None = None) -> None:
        self._limits = limits
        self._slots = FairSlots(limits.processes)
        self._sandbox = SandboxPool(QUERY_WORK, limits.sandbox, prepared=limits.processes, on_exit=on_exit)

    async def __aenter__(self) -> Self:
        await self._sandbox.start()
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.close()

    async def close(self) -> None:
        """End the processes."""
        await self._sandbox.close()

    async def run(self, plan: QueryPlan, *, seconds: float | None = None) -> QueryResult:
        """Run a query for the organisation of this task; raises AlmanacError. Cancellation kills the child."""
        _check(plan)
        seconds = min(seconds or self._limits.seconds, self._limits.seconds)
        try:
            async with asyncio.timeout(seconds):
                async with self._slots.hold():
                    packed = await self._run_child(plan, seconds)
        except TimeoutError:
            raise _failure_from_code("timeout", f"{seconds:g} s") from None
        if len(packed) > MAX_BYTES_WITHOUT_THREAD:
            return await asyncio.to_thread(_unpack, packed, plan)
        return _unpack(packed, plan)

    async def _run_child(self, plan: QueryPlan, seconds: float) -> bytes:
        files = [path for each in plan.datasets.values() for path in each.files]
        options = {
            "text": plan.text,
            "language": plan.language,
            "tables": _tables(plan),
            "limit": plan.limit,
            "max_bytes": plan.max_bytes,
            "now": plan.now.isoformat(),
            "threads": self._limits.threads,
            "memory_mib": self._limits.memory_mib,
            "milliseconds": int(seconds * 1000),
        }
        for attempts_left in (1, 0):
            try:
                return await self._sandbox.run(files, "query", options)
            except WorkRejected as error:
                if not (error.retryable and attempts_left):  # a prepared child was killed while it waited
                    raise _failure_from_code(error.code, error.message) from None
            except FileNotFoundError:
                raise Unavailable("A file of the dataset is missing.", remedy="Try again.") from None
            except SandboxUnavailable:
                if not attempts_left:
                    raise Unavailable("Queries are not available at the moment.", remedy="Try again.") from None
        raise AssertionError("unreachable")


def _check(plan: QueryPlan) -> None:
    if not 1 <= plan.limit <= MAX_ROWS:
        raise QueryRefused(f"The limit must be between 1 and {MAX_ROWS:,}.")
    if plan.language == "c9ql" and len(plan.datasets) != 1:
        raise QueryRefused("C9QL queries one dataset.")
    count = sum(len(each.files) for each in plan.datasets.values())
    if count > MAX_FILES:
        raise QueryRefused(f"The datasets of the query have {count:,} files; at most {MAX_FILES:,} are possible.")


def _tables(plan: QueryPlan) -> dict[str, Any]:
    """The datasets of a request. The child knows a file by its number."""
    tables: dict[str, Any] = {}
    first = 0
    for name, dataset in plan.datasets.items():
        tables[name] = _table(dataset, first)
        first += len(dataset.files)
    return tables


def _table(dataset: DatasetFiles, first: int) -> dict[str, Any]:
    return {
        "files": [first, first + len(dataset.files)],
        "fields": [field_to_value(each) for each in dataset.fields],
        "condition": dataset.condition,
        "explains_condition": dataset.explains_condition,
        "hidden": list(dataset.hidden),
        "stored": [[field_to_value(field) for field in fields] for fields in dataset.stored],
    }


def _unpack(packed: bytes, plan: QueryPlan) -> QueryResult:
    """Read the result of a child. The child is not trusted: its query may have taken control of it."""
    try:
        value = orjson.loads(packed)
        if (error := value.get("error")) is not None:
            raise QueryRefused(str(error["message"]), error["line"], error["column"])
        return result_from_value(value, plan)
    except (KeyError, TypeError, ValueError, AttributeError):
        raise Internal("The query process gave no valid result.") from None


_REMEDY = "Aggregate or filter earlier, or query fewer fields."


def _failure_from_code(code: str, detail: str) -> AlmanacError:
    match code:
        case "timeout":
            return DeadlineExceeded(f"The query took longer than {detail}.", remedy=_REMEDY)
        case "memory_limit":
            return QueryRefused(f"The query needs more memory than a query may use. {_REMEDY}")
        case "output_limit":
            return QueryRefused(f"The result is too large. {_REMEDY}")
        case "recursion_limit":
            return QueryRefused("The query is nested too deeply. Use WITH to name its parts.")
        case "interrupted":
            return Unavailable("The query was interrupted.", remedy="Try again.")
        case _:
            return QueryRefused(f"The query made the engine stop ({detail}). Simplify it.")
