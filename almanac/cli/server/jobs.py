"""`almanac jobs`: background jobs."""

from typing import Annotated

import typer

from almanac.cli.support.options import Json, command_group
from almanac.cli.support.output import print_rows
from almanac.cli.support.startup import database_command
from almanac.core.database import Database
from almanac.core.errors import BadRequest, NotFound
from almanac.jobs import queue

jobs_app = command_group("Background jobs.")

_STATES = ("queued", "running", "done", "dead")

JobId = Annotated[int, typer.Argument(metavar="JOB_ID", help="Its id, from 'almanac jobs list'.")]


@jobs_app.command("list")
@database_command
async def list_jobs(
    db: Database,
    state: Annotated[str, typer.Option("--state", help="queued, running, done or dead.")] = "dead",
    limit: Annotated[int, typer.Option("--limit", min=1, max=10_000)] = 100,
    as_json: Json = False,
) -> None:
    """List jobs in a state. The default is dead jobs, which wait for you.

    Example: [bold]almanac jobs list --state queued[/bold]
    """
    if state not in _STATES:
        raise BadRequest(f"There is no state {state!r}.", remedy=f"The states are: {', '.join(_STATES)}.")
    jobs = await queue.find(db, state, limit)
    rows = [{"id": job.id, "kind": job.kind, "attempts": job.attempts, "error": job.error} for job in jobs]
    print_rows(rows, as_json, empty=f"No {state} jobs.")


@jobs_app.command("retry")
@database_command
async def retry_job(db: Database, job_id: JobId) -> None:
    """Queue a dead job again, with all its attempts.

    Example: [bold]almanac jobs retry 12[/bold]
    """
    if not await queue.retry(db, job_id):
        raise NotFound(
            f"There is no dead job with id {job_id} that could run again.",
            remedy="See 'almanac jobs list'; another job with its key may be waiting.",
        )


@jobs_app.command("discard")
@database_command
async def discard_job(db: Database, job_id: JobId) -> None:
    """Remove a dead job for good.

    Example: [bold]almanac jobs discard 12[/bold]
    """
    if not await queue.discard(db, job_id):
        raise NotFound(f"There is no dead job with id {job_id}.", remedy="See 'almanac jobs list'.")
