"""The command line of the benches: shared options, a console for tables, and error messages."""

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
    """A parser with the shared options of a bench, with the given values as defaults."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawTextHelpFormatter)
    if seconds is not None:
        parser.add_argument("--seconds", type=float, default=seconds, help=f"length of one measurement ({seconds:g})")
    if rounds is not None:
        parser.add_argument("--rounds", type=int, default=rounds, help=f"measurements of each kind ({rounds})")
    if data:
        parser.add_argument("--data", type=Path, default=DATA, help="the folder with the judged sets (ALMANAC_DATA)")
    return parser


def add_json(parser: argparse.ArgumentParser) -> None:
    """Add the option that writes the numbers to a file."""
    parser.add_argument("--json", type=Path, metavar="PATH", help="also write the numbers here")


def console_of(width: int) -> Console:
    """The console of a bench, wide enough for its tables when the output goes to a file."""
    return Console(width=None if sys.stdout.isatty() else width, highlight=False)


@contextmanager
def exit_with_message() -> Generator[None]:
    """Exit with a message instead of a traceback when a bench fails."""
    try:
        yield
    except (BenchFailed, AlmanacError) as failure:
        sys.exit(f"bench failed: {failure}")
