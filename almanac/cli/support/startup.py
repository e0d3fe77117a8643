"""The start of a command: its settings, and the open database."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TypeVar

from almanac.bootstrap import configure_logs, load_settings, open_database
from almanac.core.database import Database
from almanac.core.errors import NotFound
from almanac.core.settings import Settings

T = TypeVar("T")


def command_settings(home: Path | None) -> Settings:
    """Load the settings of a command and configure its logs."""
    settings = load_settings({"home": home}).settings
    configure_logs(settings)
    return settings


def with_database(home: Path | None, work: Callable[[Database], Awaitable[T]], *, create: bool = False) -> T:
    """Open the database, run `work` with it and close it. A missing SQLite database is an error unless `create`."""
    settings = command_settings(home)
    if not create and settings.on_sqlite and not Path(settings.store_url.removeprefix("sqlite:///")).exists():
        raise NotFound(
            f"There is no Almanac in {settings.home.absolute()}.",
            remedy="Name its folder with --home or ALMANAC_HOME, or start one there with 'almanac serve'.",
        )

    async def run() -> T:
        async with open_database(settings) as db:
            return await work(db)

    return asyncio.run(run())
