"""The progress of a long command: a bar on a terminal, lines elsewhere, or nothing."""

import time
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Protocol

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

from almanac.cli.support.ingest.ingest_run import IngestRun
from almanac.cli.support.output import PIPE_WIDTH, error_console
from almanac.search.index.protocol import Coverage

_LINE_INTERVAL_SECONDS = 2.0


@dataclass(frozen=True, slots=True)
class Stage:
    """The progress of one stage."""

    title: str  # such as: Reading
    done: int
    total: int | None  # None if it is unknown
    unit: str  # such as: file
    participle: str = ""  # of finished units, such as: embedded
    rate: str = ""
    failed: int = 0


class Display(Protocol):
    """Shows the progress of stages."""

    def show(self, stage: Stage) -> None: ...


@contextmanager
def open_display(quiet: bool) -> Generator[Display]:
    """Return the display that suits standard error; none if `quiet` and standard error is no terminal."""
    console = error_console()
    if console.is_terminal:
        with _progress_bar(console) as bar:
            yield _BarDisplay(bar)
    elif quiet:
        yield _NoDisplay()
    else:
        yield _LineDisplay(error_console(width=PIPE_WIDTH))


class _BarDisplay:
    """One bar for each stage."""

    def __init__(self, bar: Progress) -> None:
        self._bar = bar
        self._tasks: dict[str, TaskID] = {}

    def show(self, stage: Stage) -> None:
        if stage.title not in self._tasks:
            self._tasks[stage.title] = self._bar.add_task(stage.title, total=None, units="", rate="", failed="")
        failed = f"[red]{stage.failed} failed[/red]" if stage.failed else ""
        task, units = self._tasks[stage.title], f"{stage.unit}s"
        self._bar.update(task, total=stage.total, completed=stage.done, units=units, rate=stage.rate, failed=failed)


class _LineDisplay:
    def __init__(self, console: Console) -> None:
        self._console = console
        self._next = time.monotonic() + _LINE_INTERVAL_SECONDS
        self._last = ""

    def show(self, stage: Stage) -> None:
        if time.monotonic() >= self._next and (now := stage_line(stage)) != self._last:
            self._next, self._last = time.monotonic() + _LINE_INTERVAL_SECONDS, now
            self._console.print(now, markup=False)


class _NoDisplay:
    def show(self, stage: Stage) -> None:
        """Show nothing."""


def parsing_stage(run: IngestRun) -> Stage:
    """Return the progress of the files of a run."""
    return Stage("Reading", run.done, len(run.files), "file", rate=rate(run), failed=len(run.failures))


def embedding_stage(coverage: Coverage) -> Stage:
    """Return the progress of the passages of a base."""
    return Stage("Embedding", coverage.embedded, coverage.passages, "passage", "embedded")


def stage_line(stage: Stage) -> str:
    """Return a line such as: 9 of 40 files, 34.4 pages/s, 2 failed. The report at the end names the failed files."""
    if stage.total is None:
        return f"{stage.title} …"
    done = f"{stage.done:,} of {counted(stage.total, stage.unit)} {stage.participle}".strip()
    failed = f"{stage.failed} failed" if stage.failed else ""
    return ", ".join(filter(None, (done, stage.rate, failed)))


def rate(run: IngestRun) -> str:
    """Return the rate of parsing; empty while it rounds to zero."""
    number, unit = (run.pages, "pages") if run.pages else (run.unpaged, "files")
    speed = f"{number / run.seconds:.1f}"
    return "" if speed == "0.0" else f"{speed} {unit}/s"


def counted(number: int, unit: str) -> str:
    """Return a count such as: 1 file, 2,000 files."""
    return f"{number:,} {unit}{'' if number == 1 else 's'}"


def _progress_bar(console: Console) -> Progress:
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[units]}"),
        TextColumn("{task.fields[rate]}"),
        TextColumn("{task.fields[failed]}"),
        TimeElapsedColumn(),
        console=console,
    )
