"""The cost of one tool call over HTTP, compared with other servers: `make bench-transport`.

Every server is one uvicorn process with the same settings. One light client loads them in turn, in
several short rounds (A B C D, B C D A, …), so that other load affects all equally. Numbers are
medians over the rounds; ratios are computed within a round first.
"""

import argparse
import asyncio
import json
import tempfile
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from importlib.metadata import version
from itertools import product
from pathlib import Path
from statistics import median

import uvloop
from client import CONNECTIONS, ERAS, Sample, load, prepare
from command_line import add_json, console_of, exit_with_message, parser_of
from contestants import NAMES, Running, contestants, install_fastmcp, started
from rich.console import Console
from rich.table import Table

CPU_AIM = 2.0
SPEED_AIM = 6.0

Key = tuple[str, str, int]  # server, era, connections
Samples = dict[Key, list[Sample]]


async def measure(servers: list[Running], rounds: int, seconds: float) -> Samples:
    samples: Samples = {}
    for running in servers:
        for era in running.requests:
            await load(running, era, max(CONNECTIONS), 0.5)  # warm up, not counted
    for number in range(rounds):
        # Each round begins with another server, so that none always follows the heaviest.
        first = number % len(servers)
        order = servers[first:] + servers[:first]
        for era, connections, running in product(ERAS, CONNECTIONS, order):
            if era in running.requests:
                key = (running.contestant.name, era, connections)
                samples.setdefault(key, []).append(await load(running, era, connections, seconds))
    return samples


@dataclass(frozen=True)
class Row:
    """The results of one server in one era with a number of connections: medians over the rounds."""

    server: str
    era: str
    connections: int
    numbers: Sample
    cpu_to_starlette: float | None
    speed_to_fastmcp: float | None


def rows_of(samples: Samples) -> list[Row]:
    return [row_of(samples, key) for key in sorted(samples, key=lambda key: (key[1], key[2]))]


def row_of(samples: Samples, key: Key) -> Row:
    server, era, connections = key
    names = Sample.__dataclass_fields__
    numbers = Sample(**{name: median(getattr(s, name) for s in samples[key]) for name in names})
    # The stricter definition for us: the CPU time of our child processes counts.
    cpu = ratio(samples, key, "starlette", lambda sample: sample.cpu_with_children_ms)
    speed = ratio(samples, key, "fastmcp", lambda sample: sample.requests_per_s)
    return Row(server, era, connections, numbers, cpu, speed)


def ratio(samples: Samples, key: Key, other: str, number: Callable[[Sample], float]) -> float | None:
    yardstick = samples.get((other, *key[1:]))
    if yardstick is None:
        return None
    return median(number(ours) / number(theirs) for ours, theirs in zip(samples[key], yardstick, strict=True))


def table_of(rows: list[Row], servers: list[Running]) -> Table:
    table = Table()
    for column in ("era", "conns", "server"):
        table.add_column(column)
    for column in ("req/s", "p50 ms", "p99 ms", "CPU ms/call", "×Starlette (CPU)", "×FastMCP (req/s)"):
        table.add_column(column, justify="right")
    found = {(row.server, row.era, row.connections): row for row in rows}
    for era, connections in product(ERAS, CONNECTIONS):
        for running in servers:
            name = running.contestant.name
            table.add_row(era, str(connections), name, *cells_of(found.get((name, era, connections))))
        table.add_section()
    return table


def cells_of(row: Row | None) -> list[str]:
    if row is None:
        return ["–"] * 6
    n = row.numbers
    cpu = f"{n.cpu_ms:.3f}"
    if n.cpu_with_children_ms > n.cpu_ms * 1.05:
        cpu += f" ({n.cpu_with_children_ms:.3f} with children)"
    measured = [f"{n.requests_per_s:,.0f}", f"{n.p50_ms:.2f}", f"{n.p99_ms:.2f}", cpu]
    return measured + [f"{r:.2f}×" if r else "–" for r in (row.cpu_to_starlette, row.speed_to_fastmcp)]


@dataclass(frozen=True)
class Aim:
    """A target, compared with the worst of the eras and numbers of connections."""

    text: str
    worst: float | None
    met: bool

    def __str__(self) -> str:
        if self.worst is None:
            return f"{self.text}: not measured"
        return f"{self.text}: {'met' if self.met else 'not met'} (worst {self.worst:.2f}×)"


def aims_of(rows: list[Row]) -> list[Aim]:
    return [*aims_of_server(rows, "almanac"), aims_of_server(rows, "knowi")[0]]


def aims_of_server(rows: list[Row], server: str) -> list[Aim]:
    ours = [row for row in rows if row.server == server]
    cpu = max((row.cpu_to_starlette for row in ours if row.cpu_to_starlette), default=None)
    speed = min((row.speed_to_fastmcp for row in ours if row.speed_to_fastmcp), default=None)
    # A missing era does not count as a met target.
    complete = len(ours) == len(ERAS) * len(CONNECTIONS)
    cpu_met = complete and cpu is not None and cpu <= CPU_AIM
    speed_met = complete and speed is not None and speed >= SPEED_AIM
    return [
        Aim(f"{server}: CPU per call ≤ {CPU_AIM:g}× the bare Starlette handler", cpu, cpu_met),
        Aim(f"{server}: requests/s ≥ {SPEED_AIM:g}× FastMCP's echo", speed, speed_met),
    ]


def arguments() -> argparse.Namespace:
    parser = parser_of(__doc__, seconds=1.5, rounds=5)
    parser.add_argument("--without", action="append", default=[], choices=NAMES, help="leave this server out")
    add_json(parser)
    return parser.parse_args()


def bench(options: argparse.Namespace, console: Console) -> None:
    versions = {name: version(name) for name in ("mcp", "starlette", "uvicorn")}
    with ExitStack() as stack:
        scratch = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="almanac-bench-")))
        chosen = [c for c in contestants(str(scratch / "home")) if c.name not in options.without]
        if any(contestant.name == "fastmcp" for contestant in chosen):
            versions["fastmcp"] = install_fastmcp()
        servers = [stack.enter_context(started(c, scratch / f"{c.name}.log")) for c in chosen]
        for running in servers:
            prepare(running, console)
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            samples = runner.run(measure(servers, options.rounds, options.seconds))
    rows = rows_of(samples)
    aims = aims_of(rows)
    console.print(", ".join(f"{name} {number}" for name, number in versions.items()))
    console.print(table_of(rows, servers))
    busy = max(row.numbers.client_cpu_ms * row.numbers.requests_per_s / 1000 for row in rows)
    console.print(f"The client itself was busy at most {busy:.0%} of one core.")
    for aim in aims:
        console.print(str(aim))
    if options.json:
        numbers = {"versions": versions, "rows": list(map(asdict, rows)), "aims": list(map(asdict, aims))}
        options.json.write_text(json.dumps(numbers, indent=2, ensure_ascii=False) + "\n")


def main() -> None:
    with exit_with_message():
        bench(arguments(), console_of(130))


if __name__ == "__main__":
    main()
