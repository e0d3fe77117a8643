"""Commands that read what happened and what waits: the audit trail, background jobs."""

import json
from dataclasses import asdict
from typing import Annotated

import typer

from almanac.audit import trail
from almanac.cli.support.terminal import Home, Json, print_line, print_rows, with_database
from almanac.core import clock
from almanac.core.errors import BadRequest, NotFound
from almanac.jobs import queue

jobs_app = typer.Typer(help="Background jobs.", no_args_is_help=True, rich_markup_mode="rich")


def audit(
    user: Annotated[str | None, typer.Option("--user", help="Only calls of this user or agent.")] = None,
    tool: Annotated[str | None, typer.Option("--tool", help="Only calls of this tool.")] = None,
    since: Annotated[str | None, typer.Option("--since", help="Only calls this recent, such as 1h or 7d.")] = None,
    limit: Annotated[int, typer.Option("--limit", min=1, max=100_000, help="How many, newest first.")] = 100,
    home: Home = None,
    as_json: Json = False,
) -> None:
    """Read the audit trail, newest call first.

    Example: [bold]almanac audit --user maria --since 1h[/bold]
    """
    try:
        recent = None if since is None else clock.parse_duration(since)
    except ValueError as error:
        raise BadRequest(f"{error}.") from None
    lines = with_database(home, lambda db: trail.find(db, user=user, tool=tool, since=recent, limit=limit))
    if as_json:
        print_line(json.dumps([asdict(line) | {"at": clock.format_timestamp(line.at)} for line in lines]))
        return
    print_rows(
        [
            {"at": clock.format_timestamp(line.at), "who": line.actor, "surface": line.surface, "tool": line.tool}
            | {"outcome": line.outcome, "ms": f"{line.duration_us / 1000:.1f}", "touched": " ".join(line.touched)}
            for line in lines
        ],
        False,
        empty="No calls found.",
    )


@jobs_app.command("list")
def list_jobs(
    state: Annotated[str, typer.Option("--state", help="queued, running, done or dead.")] = "dead",
    limit: Annotated[int, typer.Option("--limit", min=1, max=10_000)] = 100,
    home: Home = None,
    as_json: Json = False,
) -> None:
    """List jobs in a state; by default the dead ones, which wait for you.

    Example: [bold]almanac jobs list --state queued[/bold]
    """
    if state not in ("queued", "running", "done", "dead"):
        raise BadRequest(f"There is no state {state!r}.", remedy="The states are: queued, running, done, dead.")
    jobs = with_database(home, lambda db: queue.find(db, state, limit))
    rows = [{"id": job.id, "kind": job.kind, "attempts": job.attempts, "error": job.error} for job in jobs]
    print_rows(rows, as_json, empty=f"No {state} jobs.")


@jobs_app.command("retry")
def retry_job(
    job_id: Annotated[int, typer.Argument(metavar="JOB_ID", help="Its id, from 'almanac jobs list'.")],
    home: Home = None,
) -> None:
    """Queue a dead job again, with all its attempts before it.

    Example: [bold]almanac jobs retry 12[/bold]
    """
    if not with_database(home, lambda db: queue.retry(db, job_id)):
        raise NotFound(
            f"There is no dead job with id {job_id} that could run again.",
            remedy="See 'almanac jobs list'; another job with its key may be waiting.",
        )


@jobs_app.command("discard")
def discard_job(
    job_id: Annotated[int, typer.Argument(metavar="JOB_ID", help="Its id, from 'almanac jobs list'.")],
    home: Home = None,
) -> None:
    """Remove a dead job for good.

    Example: [bold]almanac jobs discard 12[/bold]
    """
    if not with_database(home, lambda db: queue.discard(db, job_id)):
        raise NotFound(f"There is no dead job with id {job_id}.", remedy="See 'almanac jobs list'.")
