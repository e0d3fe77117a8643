"""What benches have in common at the command line: options of the same name, a console for tables, how they fail."""

import argparse
import os
import sys
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

from contestants import ROOT, BenchFailed
from rich.console import Console

from almanac.core.errors import AlmanacError

DATA = Path(os.environ.get("ALMANAC_DATA") or ROOT.parent / "shared" / "data")


def parser_of(
    description: str | None, *, seconds: float | None = None, rounds: int | None = None, data: bool = False
) -> argparse.ArgumentParser:
    """A parser with those of the usual options that a bench has: with the values given, where it is not told others."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawTextHelpFormatter)
    if seconds is not None:
        parser.add_argument("--seconds", type=float, default=seconds, help=f"length of one measurement ({seconds:g})")
    if rounds is not None:
        parser.add_argument("--rounds", type=int, default=rounds, help=f"measurements of each kind ({rounds})")
    if data:
        parser.add_argument("--data", type=Path, default=DATA, help="the folder with the judged sets (ALMANAC_DATA)")
    return parser


def add_json(parser: argparse.ArgumentParser) -> None:
    """The option of a bench that can write its numbers to a file."""
    parser.add_argument("--json", type=Path, metavar="PATH", help="also write the numbers here")


def console_of(width: int) -> Console:
    """Where a bench prints: wide enough that its tables keep their shape when the output goes to a file."""
    return Console(width=None if sys.stdout.isatty() else width, highlight=False)


@contextmanager
def told() -> Generator[None]:
    """End with a sentence where a bench fails, and not with a traceback."""
    try:
        yield
    except (BenchFailed, AlmanacError) as failure:
        sys.exit(f"bench failed: {failure}")
