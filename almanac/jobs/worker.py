"""The worker: claims jobs, runs their handlers, and stores each effect exactly once.

A handler does the slow work and returns its effect, a function of a transaction. The worker runs the effect in the
transaction that marks the job done, and only if it still holds the job. The effect therefore happens once, even if
several workers ran the handler.
"""

import asyncio
import os
import socket
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from typing import TypeVar

import structlog

from almanac.core import clock
from almanac.core.database import Database, Transaction
from almanac.core.errors import AlmanacError
from almanac.core.fair_slots import ORG_ID
from almanac.db.errors import DatabaseError, DatabaseFull, DatabaseUnavailable
from almanac.jobs import queue, schedule
from almanac.jobs.queue import Job
from almanac.jobs.schedule import Schedule

Effect = Callable[[Transaction], Awaitable[None]]
Handler = Callable[[Job], Awaitable[Effect | None]]
T = TypeVar("T")

MAX_PAUSE = 30 * clock.SECOND  # between attempts to reach an unavailable database

_log = structlog.stdlib.get_logger("almanac.jobs")


class PermanentFailure(Exception):
    """Raised by a handler if another attempt cannot help. The job is marked dead at once."""


class Worker:
    """Runs up to `concurrency` jobs at a time, and as many more of organisations that have no running job. So one
    organisation with many slow jobs does not make another wait. Durations are in microseconds.

    Handlers share the event loop with the task that extends their leases. A handler that computes for longer than a
    third of a lease must do so in another thread or process.
    """

    def __init__(
        self,
        db: Database,
        handlers: Mapping[str, Handler],
        *,
        schedules: Sequence[Schedule] = (),
        concurrency: int = 4,
        lease: int = clock.MINUTE,
        poll: int = clock.SECOND // 2,
        grace: int = 20 * clock.SECOND,
        name: str | None = None,
    ) -> None:
        self.name = name or f"{socket.gethostname()}:{os.getpid()}"
        self._db = db
        self._handlers = handlers
        self._kinds = sorted(handlers)
        self._schedules = schedules
        self._concurrency = concurrency
        self._lease = lease
        self._poll = poll
        self._grace = grace
        self._running: dict[asyncio.Task[None], Job] = {}
        self._wake = asyncio.Event()

    async def run(self, stop: asyncio.Event) -> None:
        """Work until `stop` is set. Then wait for running jobs, and release those that exceed the grace period."""
        async with asyncio.TaskGroup() as group:
            chores = [
                group.create_task(self._repeat(self._extend, self._lease // 3)),
                group.create_task(self._repeat(self._tick, clock.SECOND)),
                group.create_task(self._repeat(self._correct_times, clock.MINUTE)),
                group.create_task(self._wake_on(stop)),
            ]
            try:
                await self._claim_until(stop)
                if self._running:
                    await asyncio.wait(self._running, timeout=self._grace / clock.SECOND)
            finally:
                await self._release_leases()
                for chore in chores:
                    chore.cancel()

    async def _claim_until(self, stop: asyncio.Event) -> None:
        pause = self._poll
        while not stop.is_set():
            self._wake.clear()
            try:
                await self._fill()
                pause = self._poll
            except DatabaseError as error:
                _log.warning("cannot claim jobs", error=str(error), retry_in_s=pause / clock.SECOND)
                pause = min(pause * 2, MAX_PAUSE)
            await self._wait(pause)

    async def _fill(self) -> None:
        free = max(self._concurrency - len(self._running), 0)
        additional = 2 * self._concurrency - len(self._running) - free
        for job in await queue.claim(
            self._db, self.name, self._kinds, limit=free, additional=additional, lease=self._lease
        ):
            task = asyncio.create_task(self._work(job), name=f"job {job.id}")
            self._running[task] = job
            task.add_done_callback(self._forget)

    def _forget(self, task: asyncio.Task[None]) -> None:
        job = self._running.pop(task)
        self._wake.set()
        if not task.cancelled() and (error := task.exception()):
            _log.error("job was not finished; its lease will expire", job=job.id, kind=job.kind, error=_describe(error))

    async def _wait(self, length: int) -> None:
        """Wait until a job ends or is added here, or until the time is over."""
        with suppress(TimeoutError):
            async with asyncio.timeout(length / clock.SECOND):
                await self._wake.wait()

    async def _wake_on(self, stop: asyncio.Event) -> None:
        await stop.wait()
        self._wake.set()

    async def _work(self, job: Job) -> None:
        log = _log.bind(job=job.id, kind=job.kind, attempt=job.attempts)
        ORG_ID.set(job.org_id)
        try:
            effect = await self._handlers[job.kind](job)
            if not await self._retry(lambda: self._settle(job, effect), DatabaseUnavailable):
                log.warning("another worker has claimed the job; its result is dropped")
            return
        except PermanentFailure as error:
            log.error("job failed for good", error=_describe(error))
            give_up, reason = queue.mark_dead, _describe(error)
        except Exception as error:
            log.warning("job failed", error=_describe(error), exc_info=True)
            give_up, reason = queue.fail, _describe(error)
        await self._retry(lambda: give_up(self._db, job, reason), DatabaseUnavailable, DatabaseFull)

    async def _settle(self, job: Job, effect: Effect | None) -> bool:
        async def settle(tx: Transaction) -> bool:
            if not await queue.finish(tx, job):
                return False
            if effect is not None:
                await effect(tx)
            return True

        return await self._db.write(settle)

    async def _retry(self, action: Callable[[], Awaitable[T]], *absences: type[DatabaseError]) -> T:
        """Repeat an action until the database is available again. The fence makes the repetition safe."""
        pause = self._poll
        while True:
            try:
                return await action()
            except absences as error:
                _log.warning("cannot store a job's outcome", error=str(error), retry_in_s=pause / clock.SECOND)
            await asyncio.sleep(pause / clock.SECOND)
            pause = min(pause * 2, MAX_PAUSE)

    async def _repeat(self, chore: Callable[[], Awaitable[None]], every: int) -> None:
        while True:
            try:
                await chore()
            except DatabaseError as error:
                _log.warning("worker chore failed", chore=chore.__name__.strip("_"), error=str(error))
            await asyncio.sleep(every / clock.SECOND)

    async def _tick(self) -> None:
        if await schedule.tick(self._db, self._schedules):
            self._wake.set()

    async def _correct_times(self) -> None:
        if number := await queue.correct_future_times(self._db):
            _log.warning("the clock was set back; jobs with later times are due now", jobs=number)
            self._wake.set()

    async def _extend(self) -> None:
        before = dict(self._running)
        kept = await queue.extend(self._db, list(before.values()), self._lease)
        held = {(job.id, job.fence) for job in kept}  # this worker may have claimed its own expired job again
        for task, job in before.items():
            if (job.id, job.fence) not in held and not task.done():
                _log.warning("lease lost; the job is cancelled here", job=job.id, kind=job.kind)
                task.cancel()

    async def _release_leases(self) -> None:
        """Cancel the running jobs and release their leases, so that another worker can claim them at once."""
        left = dict(self._running)
        for task in left:
            task.cancel()
        if left:
            await asyncio.wait(left)
        try:
            await queue.release(self._db, list(left.values()))
        except DatabaseError as error:
            _log.warning("cannot release leases; they will expire", error=str(error))


def _describe(error: BaseException) -> str:
    # Only the messages of our own errors never contain sent or stored data.
    message = f": {error}" if isinstance(error, AlmanacError | PermanentFailure) else ""
    return f"{type(error).__name__}{message}"[: queue.MAX_ERROR_CHARS]
