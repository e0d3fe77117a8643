"""What the commands share: their options, how they open the database, how they print."""

import asyncio
import json
import sys
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, TypeVar, cast

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from almanac.bootstrap import configure_logs, load_settings, open_database
from almanac.core.database import Database
from almanac.core.errors import AlmanacError, NotFound
from almanac.core.settings import Settings

T = TypeVar("T")

Home = Annotated[Path | None, typer.Option("--home", help="Folder with the data (ALMANAC_HOME).", show_default=False)]
Json = Annotated[bool, typer.Option("--json", help="Print JSON, for programs.")]
OrgName = Annotated[
    str | None, typer.Option("--org", help="Organisation; may be left out while there is only one.", show_default=False)
]


def settings_at(home: Path | None) -> Settings:
    """The settings for a command."""
    settings = load_settings({"home": home}).settings
    configure_logs(settings)
    return settings


def with_database(home: Path | None, work: Callable[[Database], Awaitable[T]], *, create: bool = False) -> T:
    """Open the database, do something with it, close it. Only with `create` may there be none yet."""
    settings = settings_at(home)
    if not create and settings.on_sqlite and not Path(settings.store_url.removeprefix("sqlite:///")).exists():
        raise NotFound(
            f"There is no Almanac in {settings.home.absolute()}.",
            remedy="Name its folder with --home or ALMANAC_HOME, or start one there with 'almanac serve'.",
        )

    async def run() -> T:
        async with open_database(settings) as db:
            return await work(db)

    return asyncio.run(run())


def print_line(text: str) -> None:
    """One line on standard output, exactly as it is, so that it can be piped and pasted."""
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def print_rows(rows: Sequence[Mapping[str, Any]], as_json: bool, *, empty: str) -> None:
    """A table for people, or JSON for programs."""
    if as_json:
        print_line(json.dumps(list(rows), ensure_ascii=False))
    elif not rows:
        Console(stderr=True).print(empty)
    else:
        table = Table(*rows[0].keys(), box=None, pad_edge=False, header_style="bold")
        for row in rows:
            table.add_row(*(_cell(value) for value in row.values()))
        # A pipe has no width: a row there is one line, whatever its length.
        console = Console()
        console = console if console.is_terminal else Console(width=10_000)
        console.print(table)


def _cell(value: Any) -> str:
    if isinstance(value, list | tuple):
        return escape(" ".join(str(item) for item in cast("Sequence[Any]", value)))
    return "" if value is None else escape(str(value))


def print_error(error: AlmanacError) -> None:
    """Say what went wrong and what to do about it."""
    cause = f" ({error})" if str(error) != error.message else ""
    Console(stderr=True).print(
        "[bold red]Error:[/bold red]", escape(error.text + cause), highlight=False, soft_wrap=True
    )
