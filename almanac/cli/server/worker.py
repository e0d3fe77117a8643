"""`almanac worker`: a job worker."""

import asyncio
import os
import signal
import threading
from typing import Annotated

import typer
import uvloop

from almanac import reactions
from almanac.bootstrap import configure_logs, load_settings, open_database, warn_of_unknown_variables
from almanac.cli.support.options import Home
from almanac.core import clock
from almanac.core.settings import Settings
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
    settings = load_settings({"home": home}).settings
    configure_logs(settings)
    if not with_parent:  # the server has warned already
        warn_of_unknown_variables()
    process_memory.limit_malloc_arenas()
    if with_parent:
        os.nice(10)  # embedding uses every core, and the server beside this process must stay responsive
    uvloop.run(_run_worker(settings, with_parent))


async def _run_worker(settings: Settings, with_parent: bool) -> None:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    if with_parent:
        threading.Thread(target=_stop_with_parent, args=(loop, stop), daemon=True).start()
    async with open_database(settings) as db, reactions.open_job_handlers(db, settings) as handlers:
        await Worker(
            db,
            handlers,
            schedules=reactions.SCHEDULES,
            concurrency=settings.job_concurrency,
            lease=round(settings.job_lease_seconds * clock.SECOND),
            grace=round(settings.shutdown_grace_seconds * clock.SECOND),
        ).run(stop)


def _stop_with_parent(loop: asyncio.AbstractEventLoop, stop: asyncio.Event) -> None:
    # A thread that waits in sys.stdin would make the interpreter abort when the process ends.
    while os.read(0, 1024):
        pass
    loop.call_soon_threadsafe(stop.set)
