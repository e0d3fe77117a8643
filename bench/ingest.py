"""The cost of turning files into documents, compared with other converters: `make bench-ingest`.

For Almanac, the measurement covers everything: `almanac ingest` into a running server, until every document is stored,
parsed in a sandbox, cut into passages and committed. The other converters only turn the same files into text, warm, in
as many processes as our worker has parsers. Rounds are interleaved, and all read the same new files in a round. Numbers
are medians over the rounds; ratios are computed within a round first. A page is a page of a PDF; any other file counts
as one.
"""

import argparse
import asyncio
import json
import os
import tempfile
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from importlib.metadata import version
from pathlib import Path
from statistics import median

import ingest_corpus
import ingest_stages
from command_line import add_json, console_of, exit_with_message, parser_of
from ingest_corpus import KINDS, File
from ingest_peers import NAMES, Lap, Peer, compare_pdf, install_markitdown, peers, run
from ingest_server import ROLES, AlmanacServer, IngestResult, Memory, almanac_server, postgres
from ingest_stages import Staged
from rich.console import Console
from rich.table import Table

SPEED_AIM = 5.0
PARSE_AIM = 1.5
GROWTH_AIM = (0.15, 30 * 1024 * 1024)  # a share, or bytes: growth below either counts as flat
GROWTH = 10  # times as many documents at the end as after the first round
DOCUMENTS = 150  # in a round
MB = 1_000_000
CORES = os.cpu_count() or 1


@dataclass(frozen=True, slots=True)
class Part:
    """The files of one round."""

    folder: Path
    files: list[File]

    @property
    def pages(self) -> int:
        return sum(file.pages for file in self.files)

    @property
    def size(self) -> int:
        return sum(file.size for file in self.files)


@dataclass(frozen=True, slots=True)
class Round:
    """The results of all converters for the files of one round."""

    part: Part
    results: dict[str, IngestResult]  # by database
    laps: dict[str, Lap]  # by peer
    parse_ratio: float  # CPU of our PDF parser to that of pypdfium2 alone


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the table: medians over the rounds."""

    name: str
    documents_per_s: float
    pages_per_s: float
    mb_per_s: float
    cpu_ms_per_page: float
    speed_to_markitdown: float | None
    cpu_to_markitdown: float | None
    failed: int = 0


@dataclass(frozen=True, slots=True)
class Measured:
    """All results."""

    rounds: list[Round]
    staged: Staged
    memory: dict[str, dict[str, list[Memory]]]  # by database and process: after each part


def measure(options: argparse.Namespace, scratch: Path, stack: ExitStack, console: Console) -> Measured:
    console.print("Making the files …")
    count = round(DOCUMENTS * options.scale)
    parts = [_make(scratch / f"part-{number}", count, number) for number in range(GROWTH)]
    servers = _start_servers(options, scratch, stack)
    chosen = peers(options.without)
    rounds: list[Round] = []
    memory = {name: {role: list[Memory]() for role in ROLES} for name in servers}
    for part in parts[: options.rounds]:
        console.print(f"Round {len(rounds) + 1}: {len(part.files)} documents, {part.pages} pages …")
        results = {name: _bring(server, part, memory[name]) for name, server in servers.items()}
        rounds.append(Round(part, results, _laps(chosen, part), compare_pdf(part.files)))
    staged = asyncio.run(ingest_stages.measure(scratch / "stages", parts[0].files))
    console.print(f"{GROWTH} times as many documents …")
    for part in parts[options.rounds :]:
        for name, server in servers.items():
            _bring(server, part, memory[name])
    return Measured(rounds, staged, memory)


def _bring(server: AlmanacServer, part: Part, memory: dict[str, list[Memory]]) -> IngestResult:
    result = server.bring(part.folder, part.files)
    for role, held in server.memory().items():
        memory[role].append(held)
    return result


def _make(folder: Path, count: int, seed: int) -> Part:
    return Part(folder, ingest_corpus.make(folder, count, seed))


def _start_servers(options: argparse.Namespace, scratch: Path, stack: ExitStack) -> dict[str, AlmanacServer]:
    urls = {"sqlite": ""}
    if options.postgres:
        urls["postgresql"] = stack.enter_context(postgres())
    found: dict[str, AlmanacServer] = {}
    for name, url in urls.items():
        (scratch / name).mkdir()
        found[name] = stack.enter_context(almanac_server(scratch / name, url))
    return found


def _laps(chosen: Sequence[Peer], part: Part) -> dict[str, Lap]:
    return {peer.name: run(peer, part.files, CORES) for peer in chosen}


# Results


def rows_of(rounds: Sequence[Round]) -> list[Row]:
    """The programs that read all kinds of files: Almanac on each database, then the others."""
    ours = [_row(f"almanac, whole way, {name}", rounds, _haul_of(name)) for name in rounds[0].results]
    whole = [name for name in rounds[0].laps if name != "pypdfium2"]
    names = {"parsers": "almanac, parsers alone"}
    theirs = [_row(names.get(name, f"{name}, alone"), rounds, _lap_of(name)) for name in whole]
    failed = {names.get(name, f"{name}, alone"): max(each.laps[name].failed for each in rounds) for name in whole}
    return [*ours, *(replace(row, failed=failed[row.name]) for row in theirs)]


Spent = Callable[[Round], tuple[float, float]]  # seconds and CPU seconds in a round


def _haul_of(name: str) -> Spent:
    return lambda round: (round.results[name].seconds, round.results[name].cpu_seconds)


def _lap_of(name: str) -> Spent:
    return lambda round: (round.laps[name].seconds, round.laps[name].cpu_seconds)


def _row(name: str, rounds: Sequence[Round], spent: Spent) -> Row:
    against = _lap_of("markitdown") if "markitdown" in rounds[0].laps else None
    return Row(
        name,
        median(len(each.part.files) / spent(each)[0] for each in rounds),
        median(each.part.pages / spent(each)[0] for each in rounds),
        median(each.part.size / MB / spent(each)[0] for each in rounds),
        median(1000 * spent(each)[1] / each.part.pages for each in rounds),
        median(against(each)[0] / spent(each)[0] for each in rounds) if against else None,
        median(against(each)[1] / spent(each)[1] for each in rounds) if against else None,
    )


@dataclass(frozen=True, slots=True)
class Aim:
    """A target, compared with the worst round."""

    text: str
    said: str  # empty where it was not measured
    met: bool

    def __str__(self) -> str:
        if not self.said:
            return f"{self.text}: not measured"
        return f"{self.text}: {'met' if self.met else 'not met'} ({self.said})"


def aims_of(measured: Measured) -> list[Aim]:
    speeds = _speeds(measured.rounds)
    parse = [each.parse_ratio for each in measured.rounds]
    share, growth = max(_growths(measured), key=lambda pair: pair[1])
    flat = all(share < GROWTH_AIM[0] or more < GROWTH_AIM[1] for share, more in _growths(measured))
    return [
        Aim(
            f"pages/s, whole way, ≥ {SPEED_AIM:g}× markitdown alone",
            _spread(speeds, min),
            min(speeds, default=0.0) >= SPEED_AIM,
        ),
        Aim(
            f"parsing a PDF ≤ {PARSE_AIM:g}× the CPU of pypdfium2 alone",
            _spread(parse, max),
            max(parse) <= PARSE_AIM,
        ),
        Aim(
            f"memory flat (< {GROWTH_AIM[0]:.0%} or < {GROWTH_AIM[1] >> 20} MiB) with {GROWTH}× the documents",
            f"{share:.0%}, {growth / MB:.0f} MB more in the process that grew most",
            flat,
        ),
    ]


def _speeds(rounds: Sequence[Round]) -> list[float]:
    """Our speed divided by that of markitdown, in every round and on every database."""
    if "markitdown" not in rounds[0].laps:
        return []
    return [each.laps["markitdown"].seconds / result.seconds for each in rounds for result in each.results.values()]


def _spread(ratios: Sequence[float], worst: Callable[[Sequence[float]], float]) -> str:
    return f"worst round {worst(ratios):.2f}×, median {median(ratios):.2f}×" if ratios else ""


def _growths(measured: Measured) -> list[tuple[float, int]]:
    """The memory growth of each process from the first part to the last: as a share, and in bytes."""
    held = [after for roles in measured.memory.values() for after in roles.values()]
    return [(after[-1].bytes / after[0].bytes - 1, after[-1].bytes - after[0].bytes) for after in held]


# Tables


def table_of(rows: Sequence[Row]) -> Table:
    table = _table("", "docs/s", "pages/s", "MB/s", "CPU ms/page", "×markitdown", "× by CPU", "failed")
    for row in rows:
        ratios = [f"{r:.2f}×" if r else "–" for r in (row.speed_to_markitdown, row.cpu_to_markitdown)]
        numbers = [f"{row.documents_per_s:.1f}", f"{row.pages_per_s:.0f}", f"{row.mb_per_s:.2f}"]
        table.add_row(row.name, *numbers, f"{row.cpu_ms_per_page:.2f}", *ratios, str(row.failed or "–"))
    return table


def formats_of(rounds: Sequence[Round]) -> Table:
    """The CPU time of a document of each kind, for each program that reads it."""
    names = [name for name in NAMES if name in rounds[0].laps]
    table = _table("CPU ms/document", "documents", *("almanac" if name == "parsers" else name for name in names))
    for kind in KINDS:
        cells = [_format_cell([each.laps[name] for each in rounds], kind.name) for name in names]
        table.add_row(kind.name, str(sum(file.kind == kind.name for file in rounds[0].part.files)), *cells)
    return table


def _format_cell(laps: Sequence[Lap], kind: str) -> str:
    if not all(lap.count(kind) for lap in laps):
        return "–"
    return f"{median(1000 * lap.cpu_of(kind) / lap.count(kind) for lap in laps):.1f}"


def stages_of(staged: Staged, part: Part) -> Table:
    table = _table("stage", "ms/document", "MB/s", "CPU ms/document")
    for stage in staged.stages:
        cpu = "–" if stage.cpu_seconds is None else f"{1000 * stage.cpu_seconds / len(part.files):.2f}"
        speed = f"{part.size / MB / stage.seconds:.1f}"
        table.add_row(stage.name, f"{1000 * stage.seconds / len(part.files):.2f}", speed, cpu)
    return table


def memory_of(measured: Measured) -> Table:
    count = len(measured.rounds[0].part.files)
    table = _table("memory, MB", f"after {count}", f"after {count * GROWTH}", "growth", "peak")
    for database, roles in measured.memory.items():
        for role, after_each in roles.items():
            early, late = after_each[0], after_each[-1]
            growth = f"{late.bytes / early.bytes - 1:+.0%}"
            cells = (early.bytes, late.bytes, late.peak_bytes)
            after, much_later, peak = (f"{number / MB:.0f}" for number in cells)
            table.add_row(f"{role}, {database}", after, much_later, growth, peak)
    table.add_row("largest parser child", "", "", "", f"{measured.staged.child_peak_bytes / MB:.0f}")
    for name, lap in measured.rounds[0].laps.items():
        table.add_row(
            f"{'almanac, parsers alone' if name == 'parsers' else name}", "", "", "", f"{lap.peak_bytes / MB:.0f}"
        )
    return table


def _table(first: str, *others: str) -> Table:
    table = Table()
    table.add_column(first)
    for column in others:
        table.add_column(column, justify="right")
    return table


def show(measured: Measured, versions: dict[str, str], console: Console) -> None:
    rows = rows_of(measured.rounds)
    first = measured.rounds[0].part
    console.print(", ".join(f"{name} {number}" for name, number in versions.items()) + f"; {CORES} processes each")
    console.print(table_of(rows))
    console.print(formats_of(measured.rounds))
    console.print(stages_of(measured.staged, first))
    console.print(memory_of(measured))
    for name in measured.rounds[0].results:
        waits = [each.results[name].first_seconds for each in measured.rounds]
        spread = f"{min(waits):.2f} to {max(waits):.2f} s"
        console.print(f"First document readable, {name}: {spread} after `almanac ingest` was started.")
    for aim in aims_of(measured):
        console.print(str(aim))


def write(path: Path, measured: Measured, versions: dict[str, str]) -> None:
    rows = rows_of(measured.rounds)
    numbers = {
        "versions": versions,
        "rows": [asdict(row) for row in rows],
        "results": [{name: asdict(result) for name, result in each.results.items()} for each in measured.rounds],
        "stages": asdict(measured.staged),
        "memory": {
            name: {role: [asdict(each) for each in after] for role, after in roles.items()}
            for name, roles in measured.memory.items()
        },
        "parse_to_pypdfium2": [each.parse_ratio for each in measured.rounds],
        "aims": [asdict(aim) for aim in aims_of(measured)],
    }
    path.write_text(json.dumps(numbers, indent=2, ensure_ascii=False) + "\n")


def arguments() -> argparse.Namespace:
    parser = parser_of(__doc__)
    parser.add_argument("--scale", type=float, default=1.0, help=f"times {DOCUMENTS} documents in a round (1)")
    parser.add_argument("--rounds", type=int, default=2, choices=range(1, GROWTH), help="rounds (2)")
    parser.add_argument("--postgres", action="store_true", help="also on a PostgreSQL of its own")
    parser.add_argument("--without", action="append", default=[], choices=NAMES, help="leave this peer out")
    add_json(parser)
    return parser.parse_args()


def bench(options: argparse.Namespace, console: Console) -> None:
    versions = {name: version(name) for name in ("almanac", "pypdfium2", "kreuzberg")}
    if "markitdown" not in options.without:
        versions["markitdown"] = install_markitdown()
    with ExitStack() as stack:
        scratch = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="almanac-bench-")))
        measured = measure(options, scratch, stack, console)
    show(measured, versions, console)
    if options.json:
        write(options.json, measured, versions)


def main() -> None:
    with exit_with_message():
        bench(arguments(), console_of(130))


if __name__ == "__main__":
    main()
