"""`almanac audit`: the audit trail, and the agent executions."""

from dataclasses import asdict
from typing import Annotated, Any

import typer

from almanac.audit import agent_executions, trail
from almanac.audit.agent_executions import AgentExecution
from almanac.audit.trail import AuditRow
from almanac.cli.support.options import Home, Json, parse_duration
from almanac.cli.support.output import print_json, print_rows
from almanac.cli.support.startup import command_settings, database_command, with_database
from almanac.core import clock
from almanac.core.database import Database

UserOption = Annotated[str | None, typer.Option("--user", help="Only calls of this user or agent.")]
ToolOption = Annotated[str | None, typer.Option("--tool", help="Only calls of this tool.")]
SinceOption = Annotated[str | None, typer.Option("--since", help="Only calls this recent, such as 1h or 7d.")]
LimitOption = Annotated[int, typer.Option("--limit", min=1, max=100_000, help="How many, newest first.")]

SHOWN_CHARS = 60  # of a prompt or an answer in the table; --json has all of it

audit_app = typer.Typer(rich_markup_mode="rich")


@audit_app.callback(invoke_without_command=True)
def audit(
    ctx: typer.Context,
    user: UserOption = None,
    tool: ToolOption = None,
    since: SinceOption = None,
    limit: LimitOption = 100,
    home: Home = None,
    as_json: Json = False,
) -> None:
    """Read the audit trail, newest call first. 'almanac audit executions' also has prompts and answers.

    Example: [bold]almanac audit --user maria --since 1h[/bold]
    """
    if ctx.invoked_subcommand is not None:
        return
    max_age = None if since is None else parse_duration(since)
    lines = with_database(
        command_settings(home), lambda db: trail.find(db, user=user, tool=tool, since=max_age, limit=limit)
    )
    if as_json:
        print_json([_call_as_json(line) for line in lines])
    else:
        print_rows([_columns(line) for line in lines], False, empty="No calls found.")


@audit_app.command("executions")
@database_command
async def list_executions(
    db: Database,
    user: UserOption = None,
    tool: ToolOption = None,
    since: SinceOption = None,
    limit: LimitOption = 100,
    as_json: Json = False,
) -> None:
    """Read the executions of operations in plain language, newest first, with their prompts and answers.

    Example: [bold]almanac audit executions --tool knowi_do --since 7d[/bold]
    """
    max_age = None if since is None else parse_duration(since)
    lines = await agent_executions.find(db, user=user, tool=tool, since=max_age, limit=limit)
    if as_json:
        print_json([asdict(line) | {"at": clock.format_timestamp(line.at)} for line in lines])
        return
    texts = [{"prompt": _shortened(line.prompt), "answer": _shortened(line.answer)} for line in lines]
    rows = [_columns(line) | text for line, text in zip(lines, texts, strict=True)]
    print_rows(rows, False, empty="No executions found.")


def _call_as_json(line: AuditRow) -> dict[str, Any]:
    return asdict(line) | {"at": clock.format_timestamp(line.at)}


def _columns(line: AuditRow | AgentExecution) -> dict[str, object]:
    return {
        "at": clock.format_timestamp(line.at),
        "who": line.actor,
        "surface": line.surface,
        "tool": line.tool,
        "outcome": line.outcome,
        "ms": f"{line.duration_us / 1000:.1f}",
        "touched": " ".join(line.touched),
    }


def _shortened(text: str | None) -> str:
    line = " ".join((text or "").split())
    return line if len(line) <= SHOWN_CHARS else line[: SHOWN_CHARS - 1] + "…"
