"""The server and the worker as the kill tests run them: the real application, with a tool that makes promises.

python -m tests.kill.program serve|worker PORT

`promise` writes a row and enqueues a job in one transaction; the job's effect adds a row to `kept`, which nothing but
the queue's fence keeps from holding a job twice.
"""

import asyncio
import os
import signal
import sys
from dataclasses import dataclass

import uvicorn
from pydantic import Field

from almanac.app import SURFACES, create_app
from almanac.bootstrap import configure_logs, load_settings, open_database
from almanac.core import clock
from almanac.core.arguments import Arguments
from almanac.core.database import Database, Transaction
from almanac.jobs import queue
from almanac.jobs.queue import Job
from almanac.jobs.worker import Effect, Worker
from almanac.operations.context import RequestContext
from almanac.operations.operation import Operation
from almanac.surfaces.surface import Surface

WORK_SECONDS = float(os.environ.get("KILL_WORK_SECONDS", "0.02"))

TABLES = (
    "CREATE TABLE IF NOT EXISTS promises (name TEXT PRIMARY KEY)",
    "CREATE TABLE IF NOT EXISTS kept (job_id BIGINT NOT NULL, name TEXT NOT NULL, at BIGINT NOT NULL)",
    "CREATE TABLE IF NOT EXISTS begun (job_id BIGINT NOT NULL, fence BIGINT NOT NULL, at BIGINT NOT NULL)",
)


class Promise(Arguments):
    name: str = Field(max_length=100)


@dataclass
class Promised:
    job_id: int
    server: int  # the process that answered


async def promise(call: RequestContext, given: Promise) -> Promised:
    async def body(tx: Transaction) -> int:
        await tx.execute("INSERT INTO promises (name) VALUES ($1)", given.name)
        return await queue.add(tx, "keep", {"name": given.name}, max_attempts=50)

    return Promised(job_id=await call.db.write(body), server=os.getpid())


SURFACE = Surface(
    name="kill",
    path="/kill",
    operations=(Operation("promise", "Make a promise.", promise, arguments=Promise, answer=Promised),),
)


async def create_tables(db: Database) -> None:
    async def body(tx: Transaction) -> None:
        for table in TABLES:
            await tx.execute(table)

    await db.write(body)


async def work() -> None:
    settings = load_settings().settings
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    async with open_database(settings) as db:

        async def keep(job: Job) -> Effect:
            begun = (job.id, job.fence, clock.now())
            await db.write(lambda tx: tx.execute("INSERT INTO begun (job_id, fence, at) VALUES ($1, $2, $3)", *begun))
            await asyncio.sleep(WORK_SECONDS)

            async def effect(tx: Transaction) -> None:
                row = (job.id, job.payload["name"], clock.now())
                await tx.execute("INSERT INTO kept (job_id, name, at) VALUES ($1, $2, $3)", *row)

            return effect

        lease = round(settings.job_lease_seconds * clock.SECOND)
        await Worker(db, {"keep": keep}, concurrency=4, lease=lease, poll=clock.SECOND // 10).run(stop)


def serve(port: int) -> None:
    settings = load_settings().settings
    configure_logs(settings)
    app = create_app(settings, (*SURFACES, SURFACE))
    uvicorn.run(app, port=port, loop="uvloop", http="httptools", log_config=None, access_log=False)


if __name__ == "__main__":
    os.environ.setdefault("ALMANAC_LOG_LEVEL", "error")
    if sys.argv[1] == "serve":
        serve(int(sys.argv[2]))
    else:
        asyncio.run(work())
