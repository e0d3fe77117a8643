"""`almanac audit`: the audit trail."""

from dataclasses import asdict
from typing import Annotated

import typer

from almanac.audit import trail
from almanac.cli.support.options import Json, parse_duration
from almanac.cli.support.output import print_json, print_rows
from almanac.cli.support.startup import database_command
from almanac.core import clock
from almanac.core.database import Database


@database_command
async def audit(
    db: Database,
    user: Annotated[str | None, typer.Option("--user", help="Only calls of this user or agent.")] = None,
    tool: Annotated[str | None, typer.Option("--tool", help="Only calls of this tool.")] = None,
    since: Annotated[str | None, typer.Option("--since", help="Only calls this recent, such as 1h or 7d.")] = None,
    limit: Annotated[int, typer.Option("--limit", min=1, max=100_000, help="How many, newest first.")] = 100,
    as_json: Json = False,
) -> None:
    """Read the audit trail, newest call first.

    Example: [bold]almanac audit --user maria --since 1h[/bold]
    """
    max_age = None if since is None else parse_duration(since)
    lines = await trail.find(db, user=user, tool=tool, since=max_age, limit=limit)
    if as_json:
        print_json([asdict(line) | {"at": clock.format_timestamp(line.at)} for line in lines])
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
