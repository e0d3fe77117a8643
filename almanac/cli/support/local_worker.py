"""Job workers that run inside a command, and the event that stops it."""

import asyncio
import signal
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager

from almanac.core import clock
from almanac.core.database import Database
from almanac.core.settings import Settings
from almanac.jobs.worker import Handler, Worker

EXIT_INTERRUPTED = 130  # the exit status after Ctrl-C
_POLL = clock.SECOND // 10


@asynccontextmanager
async def stop_on_signal() -> AsyncGenerator[asyncio.Event]:
    """Return an event that Ctrl-C sets; a second Ctrl-C ends the program at once."""
    stop, loop = asyncio.Event(), asyncio.get_running_loop()

    def remove_handlers() -> None:
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.remove_signal_handler(number)

    def handle_signal() -> None:
        stop.set()
        remove_handlers()

    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, handle_signal)
    try:
        yield stop
    finally:
        remove_handlers()


@asynccontextmanager
async def local_worker(
    db: Database, settings: Settings, handlers: Mapping[str, Handler], stop: asyncio.Event, concurrency: int, grace: int
) -> AsyncGenerator[None]:
    """Run a worker while the block lasts. If it fails, `stop` is set, so that the block does not wait for it."""
    over = asyncio.Event()
    lease = round(settings.job_lease_seconds * clock.SECOND)
    worker = Worker(db, handlers, concurrency=concurrency, lease=lease, poll=_POLL, grace=grace)
    running = asyncio.create_task(worker.run(over))
    running.add_done_callback(lambda _: None if over.is_set() else stop.set())
    try:
        yield
    finally:
        over.set()
        await running
