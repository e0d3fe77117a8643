"""Progress: how something long goes on, as a bar on a terminal, in plain lines elsewhere, or not at all."""

import time
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Protocol

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

from almanac.cli.support.ingest_run import IngestRun
from almanac.search.index.protocol import Coverage

_LINE_EVERY = 2.0  # seconds


@dataclass(frozen=True, slots=True)
class Stage:
    """How far one stage of it is."""

    doing: str  # as in: Reading
    done: int
    total: int | None  # none where nobody can tell
    thing: str  # of which there are so many, as in: file
    become: str = ""  # what those that are done have become, as in: embedded
    rate: str = ""
    failed: int = 0


class Display(Protocol):
    """Something that shows how far a stage is."""

    def show(self, stage: Stage) -> None: ...


@contextmanager
def display(quiet: bool) -> Generator[Display]:
    """What fits where standard error goes; `quiet` where a program reads and nobody looks on."""
    console = Console(stderr=True)
    if console.is_terminal:
        with _bar(console) as bar:
            yield _Bar(bar)
    elif quiet:
        yield _Nothing()
    else:
        yield _Lines(Console(stderr=True, width=10_000))


class _Bar:
    """A bar for each stage, one below the other."""

    def __init__(self, bar: Progress) -> None:
        self._bar = bar
        self._tasks: dict[str, TaskID] = {}

    def show(self, stage: Stage) -> None:
        if stage.doing not in self._tasks:
            self._tasks[stage.doing] = self._bar.add_task(stage.doing, total=None, things="", rate="", failed="")
        failed = f"[red]{stage.failed} failed[/red]" if stage.failed else ""
        task, things = self._tasks[stage.doing], f"{stage.thing}s"
        self._bar.update(task, total=stage.total, completed=stage.done, things=things, rate=stage.rate, failed=failed)


class _Lines:
    def __init__(self, console: Console) -> None:
        self._console = console
        self._next = time.monotonic() + _LINE_EVERY
        self._last = ""

    def show(self, stage: Stage) -> None:
        if time.monotonic() >= self._next and (now := line(stage)) != self._last:
            self._next, self._last = time.monotonic() + _LINE_EVERY, now
            self._console.print(now, markup=False, highlight=False)


class _Nothing:
    def show(self, stage: Stage) -> None:
        """Nobody is looking."""


def reading(haul: IngestRun) -> Stage:
    """How far the files of a haul are."""
    return Stage("Reading", haul.done, len(haul.pieces), "file", rate=rate(haul), failed=len(haul.failures))


def embedding(covered: Coverage) -> Stage:
    """How far the passages of a base are."""
    return Stage("Embedding", covered.embedded, covered.passages, "passage", "embedded")


def line(stage: Stage) -> str:
    """As in: 9 of 40 files, 34.4 pages/s, 2 failed. Which ones is said once, at the end."""
    if stage.total is None:
        return f"{stage.doing} …"
    done = f"{stage.done:,} of {counted(stage.total, stage.thing)} {stage.become}".strip()
    failed = f"{stage.failed} failed" if stage.failed else ""
    return ", ".join(filter(None, (done, stage.rate, failed)))


def rate(haul: IngestRun) -> str:
    """How fast documents are read; nothing while that cannot be told."""
    number, what = (haul.pages, "pages") if haul.pages else (haul.unpaged, "files")
    speed = f"{number / haul.seconds:.1f}"
    return "" if speed == "0.0" else f"{speed} {what}/s"


def counted(number: int, thing: str) -> str:
    """As in: 1 file, 2,000 files."""
    return f"{number:,} {thing}{'' if number == 1 else 's'}"


def _bar(console: Console) -> Progress:
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[things]}"),
        TextColumn("{task.fields[rate]}"),
        TextColumn("{task.fields[failed]}"),
        TimeElapsedColumn(),
        console=console,
    )
