"""Progress: how a haul goes on, as a bar on a terminal, in plain lines elsewhere, or not at all."""

import time
from collections.abc import Generator
from contextlib import contextmanager
from typing import Protocol

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from almanac.cli.haul import Haul

_LINE_EVERY = 2.0  # seconds


class Display(Protocol):
    """Something that shows how far a haul is."""

    def show(self, haul: Haul) -> None: ...


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
    def __init__(self, bar: Progress) -> None:
        self._bar = bar
        self._task = bar.add_task("Reading", total=None, rate="", failed="")

    def show(self, haul: Haul) -> None:
        failed = f"[red]{len(haul.failures)} failed[/red]" if haul.failures else ""
        self._bar.update(self._task, total=len(haul.pieces), completed=haul.done, rate=rate(haul), failed=failed)


class _Lines:
    def __init__(self, console: Console) -> None:
        self._console = console
        self._next = time.monotonic() + _LINE_EVERY

    def show(self, haul: Haul) -> None:
        if time.monotonic() >= self._next:
            self._next = time.monotonic() + _LINE_EVERY
            self._console.print(line(haul), markup=False, highlight=False)


class _Nothing:
    def show(self, haul: Haul) -> None:
        """Nobody is looking."""


def line(haul: Haul) -> str:
    """As in: 9 of 40 files, 34.4 pages/s, 2 failed. Which ones is said once, at the end."""
    done = f"{haul.done} of {counted(len(haul.pieces), 'file')}"
    failed = f"{len(haul.failures)} failed" if haul.failures else ""
    return ", ".join(filter(None, (done, rate(haul), failed)))


def rate(haul: Haul) -> str:
    """How fast documents are read; nothing while that cannot be told."""
    number, what = (haul.pages, "pages") if haul.pages else (haul.unpaged, "files")
    speed = f"{number / haul.seconds:.1f}"
    return "" if speed == "0.0" else f"{speed} {what}/s"


def counted(number: int, thing: str) -> str:
    """As in: 1 file, 2 files."""
    return f"{number} {thing}{'' if number == 1 else 's'}"


def _bar(console: Console) -> Progress:
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("files"),
        TextColumn("{task.fields[rate]}"),
        TextColumn("{task.fields[failed]}"),
        TimeElapsedColumn(),
        console=console,
    )
