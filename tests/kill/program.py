"""The server and the worker of the kill tests: the real application with one more tool.

python -m tests.kill.program serve|worker PORT

The tool `add_item` writes a row and queues a job in one transaction. The effect of the job adds a row to `processed`.
Only the fence of the queue keeps it from adding two rows for one job.
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

JOB_SECONDS = float(os.environ.get("KILL_JOB_SECONDS", "0.02"))

TABLES = (
    "CREATE TABLE IF NOT EXISTS items (name TEXT PRIMARY KEY)",
    "CREATE TABLE IF NOT EXISTS processed (job_id BIGINT NOT NULL, name TEXT NOT NULL, at BIGINT NOT NULL)",
    "CREATE TABLE IF NOT EXISTS attempts (job_id BIGINT NOT NULL, fence BIGINT NOT NULL, at BIGINT NOT NULL)",
)


class AddItem(Arguments):
    name: str = Field(max_length=100)


@dataclass
class AddedItem:
    job_id: int
    server_pid: int  # of the process that answered


async def add_item(call: RequestContext, arguments: AddItem) -> AddedItem:
    async def body(tx: Transaction) -> int:
        await tx.execute("INSERT INTO items (name) VALUES ($1)", arguments.name)
        return await queue.add(tx, "process", {"name": arguments.name}, max_attempts=50)

    return AddedItem(job_id=await call.db.write(body), server_pid=os.getpid())


SURFACE = Surface(
    name="kill",
    path="/kill",
    operations=(Operation("add_item", "Add an item.", add_item, arguments=AddItem, answer=AddedItem),),
)


async def create_tables(db: Database) -> None:
    async def body(tx: Transaction) -> None:
        for table in TABLES:
            await tx.execute(table)

    await db.write(body)


async def run_worker() -> None:
    settings = load_settings().settings
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    async with open_database(settings) as db:

        async def process(job: Job) -> Effect:
            attempt = (job.id, job.fence, clock.now())
            await db.write(
                lambda tx: tx.execute("INSERT INTO attempts (job_id, fence, at) VALUES ($1, $2, $3)", *attempt)
            )
            await asyncio.sleep(JOB_SECONDS)  # the duration of the job

            async def effect(tx: Transaction) -> None:
                row = (job.id, job.payload["name"], clock.now())
                await tx.execute("INSERT INTO processed (job_id, name, at) VALUES ($1, $2, $3)", *row)

            return effect

        lease = round(settings.job_lease_seconds * clock.SECOND)
        await Worker(db, {"process": process}, concurrency=4, lease=lease, poll=clock.SECOND // 10).run(stop)


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
        asyncio.run(run_worker())
