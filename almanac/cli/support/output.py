"""The output of commands: lines, tables, JSON and errors."""

import json
import re
import sys
from collections.abc import Mapping, Sequence
from typing import Any, cast

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from almanac.core.errors import AlmanacError

PIPE_WIDTH = 10_000  # columns: a pipe has no width, so a row there is one line, however long

_CONTROLS = r"\x00-\x08\x0b-\x1f\x7f-\x9f"  # a terminal takes these for commands
_CONTROL = re.compile(f"[{_CONTROLS}]")
# Beside controls: characters that change the direction of a line, and halves of characters, which no encoding has.
_UNPRINTABLE = re.compile(rf"[{_CONTROLS}\u202a-\u202e\u2066-\u2069\ud800-\udfff]")
_LINE_BREAK = re.compile(r"[\t\n]")


def without_controls(text: str) -> str:
    """Replace characters that a terminal would obey."""
    return _CONTROL.sub("\ufffd", text)


def printable(text: str) -> str:
    """Replace characters that would change a terminal or the direction of a line."""
    return _UNPRINTABLE.sub("\ufffd", text)


def printable_line(text: str) -> str:
    """Do the same for a text that must stay on one line, such as a file name."""
    return _LINE_BREAK.sub("\ufffd", printable(text))


def print_line(text: str) -> None:
    """Print a line on standard output unchanged, so that it can be piped and pasted."""
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def print_json(value: Any) -> None:
    """Print a JSON value on one line."""
    print_line(json.dumps(value, ensure_ascii=False))


def print_rows(rows: Sequence[Mapping[str, Any]], as_json: bool, *, empty: str) -> None:
    """Print a table for people, or JSON for programs."""
    if as_json:
        print_json(list(rows))
    elif not rows:
        Console(stderr=True).print(empty)
    else:
        table = Table(*rows[0].keys(), box=None, pad_edge=False, header_style="bold")
        for row in rows:
            table.add_row(*(_cell(value) for value in row.values()))
        output_console().print(table)


def output_console() -> Console:
    """Return a console for standard output that does not wrap lines in a pipe."""
    console = Console(highlight=False)
    return console if console.is_terminal else Console(width=PIPE_WIDTH, highlight=False)


def print_note(text: str) -> None:
    """Print a remark on standard error, so that standard output has the result only."""
    Console(stderr=True).print(text, markup=False, highlight=False, soft_wrap=True)


def print_error(error: AlmanacError) -> None:
    """Print an error and its remedy on standard error."""
    cause = f" ({error})" if str(error) != error.message else ""
    Console(stderr=True).print(
        "[bold red]Error:[/bold red]", escape(error.text + cause), highlight=False, soft_wrap=True
    )


def _cell(value: Any) -> str:
    if isinstance(value, list | tuple):
        return escape(" ".join(str(item) for item in cast("Sequence[Any]", value)))
    return "" if value is None else escape(str(value))
