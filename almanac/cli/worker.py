"""Commands that need no server: a job worker, migrations."""

import asyncio
import os
import signal
import threading
from typing import Annotated

import typer
import uvloop

from almanac import reactions
from almanac.bootstrap import open_database
from almanac.cli.support.terminal import Home, Json, print_line, settings_at, with_database
from almanac.core import clock
from almanac.core.settings import Settings
from almanac.db import migrate as migrations
from almanac.jobs import process_memory
from almanac.jobs.worker import Worker


def worker(
    home: Home = None,
    with_parent: Annotated[
        bool, typer.Option("--with-parent", help="Stop when standard input closes.", hidden=True)
    ] = False,
) -> None:
    """Run background jobs until stopped. On SQLite, `serve` already runs one beside itself.

    Example: [bold]ALMANAC_DATABASE_URL=postgresql://… almanac worker[/bold]
    """
    settings = settings_at(home)
    process_memory.limit_malloc_arenas()
    if with_parent:
        os.nice(10)  # embedding keeps every core busy, and the server beside us answers people
    uvloop.run(_work(settings, with_parent))


def migrate(home: Home = None, as_json: Json = False) -> None:
    """Bring the database to this version's schema. `serve` does so too; run it alone to do it beforehand.

    Example: [bold]almanac migrate[/bold]
    """
    version = with_database(home, migrations.version, create=True)
    print_line(f'{{"version": {version}}}' if as_json else f"schema version {version}")


async def _work(settings: Settings, with_parent: bool) -> None:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    if with_parent:
        threading.Thread(target=_follow_parent, args=(loop, stop), daemon=True).start()
    async with open_database(settings) as db, reactions.open_job_handlers(db, settings) as handlers:
        await Worker(
            db,
            handlers,
            schedules=reactions.SCHEDULES,
            concurrency=settings.job_concurrency,
            lease=round(settings.job_lease_seconds * clock.SECOND),
            grace=round(settings.shutdown_grace_seconds * clock.SECOND),
        ).run(stop)


def _follow_parent(loop: asyncio.AbstractEventLoop, stop: asyncio.Event) -> None:
    # Not sys.stdin: a thread that waits inside it makes the interpreter abort when the process ends.
    while os.read(0, 1024):
        pass
    loop.call_soon_threadsafe(stop.set)
