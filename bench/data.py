"""Queries over Parquet beside bare DuckDB on the same file, in turns in the same run: `make bench-data`.

Bare DuckDB is a warm connection in one process, with as many threads. Ours is the query pool: an aggregate over many
rows, a small query, and 16 callers at once. The figures of a round are compared with those of the same round, and the
result is the median of the rounds, because the machine may have other work. Processor time is that of all threads; ours
contains the child from its fork to its end.
"""

import asyncio
import os
import tempfile
import time
from collections.abc import Awaitable, Callable
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import duckdb
import orjson
from command_line import add_json, console_of, exit_with_message, parser_of
from rich.table import Table

from almanac.data.fields import DATE, DECIMAL, INTEGER, TEXT, Field
from almanac.data.queries.query_plan import DatasetFiles, QueryPlan
from almanac.data.queries.query_pool import QueryLimits, QueryPool
from almanac.sandbox.child import ExitReport

FIELDS = (Field("id", INTEGER), Field("day", DATE), Field("region", TEXT), Field("amount", DECIMAL))
ROWS = """
SELECT range AS id, DATE '2020-01-01' + (range % 1500)::INT AS day, 'region ' || (hash(range) % 50) AS region,
    (hash(range + 1) % 100000) / 100.0 AS amount FROM range({rows})
"""
AGGREGATE = (
    "SELECT region, count(*) AS n, sum(amount) AS total, avg(amount) AS mean FROM sales"
    " WHERE day >= DATE '2021-01-01' GROUP BY region ORDER BY total DESC"
)
SMALL = "SELECT count(*) AS n FROM sales"
CALLERS = 16
QUERIES_PER_CALLER = 4
AGGREGATE_AIM = 1.3  # times bare DuckDB
SMALL_AIM_MS = 10.0  # more than bare DuckDB


@dataclass(frozen=True, slots=True)
class Comparison:
    """One query, in milliseconds."""

    name: str
    bare_ms: float
    ours_ms: float
    ratio: float  # median of the ratios of the rounds
    over_ms: float  # median of the differences of the rounds
    bare_cpu_ms: float
    ours_cpu_ms: float


@dataclass(frozen=True, slots=True)
class Timing:
    """One run of a query, in milliseconds."""

    wall_ms: float
    cpu_ms: float


@dataclass
class ChildCosts:
    """The processor time of the children that have ended."""

    cpu_seconds: float = 0.0

    def add(self, report: ExitReport) -> None:
        """Count a child."""
        self.cpu_seconds += report.cpu_seconds


def bare(connection: duckdb.DuckDBPyConnection, sql: str) -> Timing:
    """A query in this process, its rows as Python values."""
    started, cpu = time.perf_counter(), time.process_time()
    connection.execute(sql).fetchall()
    return Timing((time.perf_counter() - started) * 1000, (time.process_time() - cpu) * 1000)


async def ours(pool: QueryPool, costs: ChildCosts, sql: str, sales: DatasetFiles) -> Timing:
    """A query in the pool; its rows are Python values, too."""
    started, cpu, of_children = time.perf_counter(), time.process_time(), costs.cpu_seconds
    await pool.run(QueryPlan(sql, {"sales": sales}))
    cpu_seconds = time.process_time() - cpu + costs.cpu_seconds - of_children
    return Timing((time.perf_counter() - started) * 1000, cpu_seconds * 1000)


async def compare(
    name: str, run_bare: Callable[[], Timing], run_ours: Callable[[], Awaitable[Timing]], rounds: int
) -> Comparison:
    """Run both in turns, once more than they are counted."""
    pairs = [(run_bare(), await run_ours()) for _ in range(rounds + 1)][1:]
    return Comparison(
        name,
        median(one.wall_ms for one, _ in pairs),
        median(other.wall_ms for _, other in pairs),
        median(other.wall_ms / one.wall_ms for one, other in pairs),
        median(other.wall_ms - one.wall_ms for one, other in pairs),
        median(one.cpu_ms for one, _ in pairs),
        median(other.cpu_ms for _, other in pairs),
    )


async def callers(pool: QueryPool, costs: ChildCosts, sales: DatasetFiles) -> tuple[float, float, float]:
    """Small queries of 16 callers at once: queries per second, median and highest time in ms."""

    async def caller() -> list[float]:
        return [(await ours(pool, costs, SMALL, sales)).wall_ms for _ in range(QUERIES_PER_CALLER)]

    started = time.perf_counter()
    times = [each for some in await asyncio.gather(*(caller() for _ in range(CALLERS))) for each in some]
    return len(times) / (time.perf_counter() - started), median(times), max(times)


def memory_mib() -> dict[str, float]:
    """The proportional memory of this process, of the fork server and of its waiting children."""
    server = [pid for pid in _children(os.getpid()) if b"fork_server" in Path(f"/proc/{pid}/cmdline").read_bytes()]
    waiting = [pid for each in server for pid in _children(each)]
    return {
        "this process, with bare DuckDB": _memory([os.getpid()]),
        "fork server": _memory(server),
        f"{len(waiting)} prepared children together": _memory(waiting),
    }


def _children(pid: int) -> list[int]:
    return [int(each) for each in Path(f"/proc/{pid}/task/{pid}/children").read_text("ascii").split()]


def _memory(pids: list[int]) -> float:
    """Each shared page counts for its share."""
    lines = [line for pid in pids for line in Path(f"/proc/{pid}/smaps_rollup").read_text("ascii").splitlines()]
    return sum(int(line.split()[1]) for line in lines if line.startswith("Pss:")) / 1024


async def measure(file: Path, rounds: int) -> dict[str, Any]:
    """All figures."""
    limits, costs = QueryLimits(), ChildCosts()
    sales = DatasetFiles([file], FIELDS)
    comparisons: list[Comparison] = []
    with duckdb.connect(config={"threads": limits.threads}) as connection:
        connection.execute(f"CREATE VIEW sales AS SELECT * FROM '{file}'")
        async with QueryPool(limits, on_exit=costs.add) as pool:
            for name, sql, count in (("aggregate", AGGREGATE, rounds), ("small query", SMALL, 4 * rounds)):
                run_bare, run_ours = partial(bare, connection, sql), partial(ours, pool, costs, sql, sales)
                comparisons.append(await compare(name, run_bare, run_ours, count))
            rate, middle, highest = await callers(pool, costs, sales)
            return {
                "comparisons": [asdict(each) for each in comparisons],
                "callers": {"per_second": rate, "median_ms": middle, "max_ms": highest},
                "memory_mib": memory_mib(),
            }


def show(figures: dict[str, Any], rows: int) -> None:
    """Print the figures and the aims."""
    console = console_of(100)
    names = ("query", "bare DuckDB ms", "ours ms", "ratio", "more ms", "aim", "bare CPU ms", "our CPU ms")
    table = Table(*names, title=f"{rows:,} rows, medians")
    for each, aim in zip(figures["comparisons"], (f"ratio {AGGREGATE_AIM}", f"{SMALL_AIM_MS:g} ms more"), strict=True):
        numbers = (f"{each['bare_ms']:.1f}", f"{each['ours_ms']:.1f}", f"{each['ratio']:.2f}", f"{each['over_ms']:.1f}")
        table.add_row(each["name"], *numbers, aim, f"{each['bare_cpu_ms']:.1f}", f"{each['ours_cpu_ms']:.1f}")
    console.print(table)
    at_once = figures["callers"]
    console.print(
        f"{CALLERS} callers, small query: {at_once['per_second']:.0f} queries/s, median {at_once['median_ms']:.0f} ms, "
        f"highest {at_once['max_ms']:.0f} ms"
    )
    console.print("MiB: " + ", ".join(f"{name} {value:.0f}" for name, value in figures["memory_mib"].items()))


def main() -> None:
    parser = parser_of(__doc__, rounds=7)
    parser.add_argument("--rows", type=int, default=10_000_000, help="rows of the dataset (10,000,000)")
    add_json(parser)
    options = parser.parse_args()
    with exit_with_message(), tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "sales.parquet"
        with duckdb.connect() as connection:
            connection.execute(f"COPY ({ROWS.format(rows=options.rows)}) TO '{file}' (COMPRESSION zstd)")
        figures = asyncio.run(measure(file, options.rounds))
        show(figures, options.rows)
        if options.json:
            options.json.write_bytes(orjson.dumps(figures, option=orjson.OPT_INDENT_2))


if __name__ == "__main__":
    main()
