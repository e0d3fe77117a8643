"""Progress: how a haul goes on, as a bar on a terminal, in plain lines elsewhere, or not at all."""

import time
from collections.abc import Generator
from contextlib import contextmanager
from typing import Protocol

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from almanac.cli.haul import Haul, Piece

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
        self._told = 0
        self._next = time.monotonic() + _LINE_EVERY

    def show(self, haul: Haul) -> None:
        for piece in haul.failures[self._told :]:
            self._say(f"failed {_failure(piece)}")
        self._told = len(haul.failures)
        if time.monotonic() >= self._next:
            self._next = time.monotonic() + _LINE_EVERY
            self._say(f"{haul.done} of {len(haul.pieces)} files, {rate(haul)}, {self._told} failed")

    def _say(self, text: str) -> None:
        self._console.print(text, markup=False, highlight=False)


class _Nothing:
    def show(self, haul: Haul) -> None:
        """Nobody is looking."""


def rate(haul: Haul) -> str:
    """How fast documents are read."""
    return f"{haul.pages / haul.seconds:.1f} pages/s"


def _failure(piece: Piece) -> str:
    return f"{piece.label}: {piece.code}: {piece.message}"


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
