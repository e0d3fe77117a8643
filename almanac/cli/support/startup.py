"""The start of a command: its settings, and the open database."""

import asyncio
import functools
import inspect
from collections.abc import Awaitable, Callable
from inspect import Parameter
from pathlib import Path
from typing import Any, TypeVar

from almanac.bootstrap import configure_logs, load_settings, open_database, warn_of_unknown_variables
from almanac.cli.support.options import Home
from almanac.core.database import Database
from almanac.core.errors import NotFound
from almanac.core.settings import Settings

T = TypeVar("T")


def command_settings(home: Path | None) -> Settings:
    """Load the settings of a command and configure its logs."""
    settings = load_settings({"home": home}).settings
    configure_logs(settings)
    warn_of_unknown_variables()
    return settings


def database_command(run: Callable[..., Awaitable[None]]) -> Callable[..., None]:
    """Return the command that opens the database and runs a coroutine function with it.

    The function has the parameters of the command, without `--home`. Its parameter `db` receives the open database,
    and its parameter `settings`, if it has one, the settings.
    """
    signature = inspect.signature(run, eval_str=True).parameters
    parameters = [each for name, each in signature.items() if name not in ("db", "settings")]
    # Every help lists --home before --json.
    place = next((place for place, each in enumerate(parameters) if each.name == "as_json"), len(parameters))
    parameters.insert(place, Parameter("home", Parameter.POSITIONAL_OR_KEYWORD, default=None, annotation=Home))

    @functools.wraps(run)
    def command(home: Path | None = None, **options: Any) -> None:
        settings = command_settings(home)
        if "settings" in signature:
            options["settings"] = settings
        with_database(settings, lambda db: run(db=db, **options))

    command.__signature__ = inspect.Signature(parameters)  # pyright: ignore[reportAttributeAccessIssue] - typer reads it
    command.__annotations__ = {each.name: each.annotation for each in parameters}
    return command


def with_database(settings: Settings, work: Callable[[Database], Awaitable[T]], *, create: bool = False) -> T:
    """Open the database, run `work` with it and close it. A missing SQLite database is an error unless `create`."""
    if not create and settings.on_sqlite and not Path(settings.store_url.removeprefix("sqlite:///")).exists():
        raise NotFound(
            f"There is no Almanac in {settings.home.absolute()}.",
            remedy="Name its folder with --home or ALMANAC_HOME, or start one there with 'almanac serve'.",
        )

    async def run() -> T:
        async with open_database(settings) as db:
            return await work(db)

    return asyncio.run(run())
