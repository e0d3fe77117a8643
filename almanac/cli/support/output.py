"""The output of commands: lines, tables, JSON and errors."""

import json
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, cast

from rich.console import Console, ConsoleOptions, RenderableType
from rich.markup import escape
from rich.segment import Segment
from rich.table import Table

from almanac.core.errors import AlmanacError
from almanac.core.text import UNPRINTABLE

PIPE_WIDTH = 10_000  # columns: a pipe has no width, so a row there is one line, however long

_UNPRINTABLE = re.compile(rf"(?![\t\n]){UNPRINTABLE.pattern}")
_LINE_BREAK = re.compile(r"[\t\n]")


def printable(text: str) -> str:
    """Replace characters that would change a terminal or the direction of a line."""
    return _UNPRINTABLE.sub("\ufffd", text)


def printable_line(text: str) -> str:
    """Do the same for a text that must stay on one line, such as a file name."""
    return _LINE_BREAK.sub("\ufffd", printable(text))


def print_line(text: str) -> None:
    """Print a line on standard output without styles and line breaks, so that it can be piped and pasted."""
    sys.stdout.write(printable(text) + "\n")
    sys.stdout.flush()


def print_json(value: Any) -> None:
    """Print a JSON value on one line."""
    print_json_text(json.dumps(value, ensure_ascii=False))


def print_json_text(text: str) -> None:
    """Print JSON on one line, with escapes for unprintable characters, so that a program reads the exact value."""
    print_line(_UNPRINTABLE.sub(lambda found: f"\\u{ord(found[0]):04x}", text))


def print_rows(rows: Sequence[Mapping[str, Any]], as_json: bool, *, empty: str) -> None:
    """Print a table for people, or JSON for programs."""
    if as_json:
        print_json(list(rows))
    elif not rows:
        error_console().print(empty)
    else:
        table = Table(*rows[0].keys(), box=None, pad_edge=False, header_style="bold")
        for row in rows:
            table.add_row(*(_cell(value) for value in row.values()))
        output_console().print(table)


class _PrintableConsole(Console):
    """A console that replaces the characters with which stored text could change the terminal."""

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        for segment in super().render(renderable, options):
            yield segment if segment.control else segment._replace(text=printable(segment.text))


def output_console() -> Console:
    """Return a console for standard output that does not wrap lines in a pipe."""
    console = _PrintableConsole(highlight=False)
    return console if console.is_terminal else _PrintableConsole(width=PIPE_WIDTH, highlight=False)


def error_console(*, width: int | None = None) -> Console:
    """Return a console for standard error."""
    return _PrintableConsole(stderr=True, highlight=False, width=width)


def print_note(text: str) -> None:
    """Print a remark on standard error, so that standard output has the result only."""
    error_console().print(text, markup=False, soft_wrap=True)


def print_error(error: AlmanacError) -> None:
    """Print an error and its remedy on standard error."""
    cause = f" ({error})" if str(error) != error.message else ""
    error_console().print("[bold red]Error:[/bold red]", escape(error.text + cause), soft_wrap=True)


def _cell(value: Any) -> str:
    if isinstance(value, list | tuple):
        return _cell(" ".join(str(item) for item in cast("Sequence[Any]", value)))
    # A table crops a cell to its width, in which unprintable characters do not count.
    return "" if value is None else escape(printable(str(value)))
