"""Commands that look: settings and health, the audit trail, contracts, jobs."""

import asyncio
import json
import shutil
from collections.abc import Awaitable, Callable
from dataclasses import asdict, fields
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from almanac.app import SURFACES, check_plan, load_settings
from almanac.audit import trail
from almanac.cli.terminal import Home, Json, say, show, with_database
from almanac.core import clock
from almanac.core.database import Database
from almanac.core.errors import AlmanacError, BadRequest, NotFound
from almanac.core.settings import Loaded, Settings, shown
from almanac.db import migrate
from almanac.db.connect import connect
from almanac.jobs import queue
from almanac.quotas import rates
from almanac.surfaces import contracts as contract_files

jobs_app = typer.Typer(help="Background jobs.", no_args_is_help=True, rich_markup_mode="rich")

_LEAST_DISK = 1 << 30
_MOST_SKEW = 5.0  # seconds: more than that, and expiry of tokens and leases goes wrong


def doctor(home: Home = None, as_json: Json = False) -> None:
    """Print every setting with where it came from, and check plan, database, Redis, models, disk and clock.

    Example: [bold]almanac doctor --json[/bold]. Exits with 1 if something does not work.
    """
    loaded = load_settings({"home": home})
    settings = [
        {"setting": item.name, "value": shown(item, loaded.settings), "from": loaded.sources[item.name]}
        for item in fields(Settings)
    ]
    checks = asyncio.run(_checks(loaded))
    if as_json:
        say(json.dumps({"settings": settings, "checks": checks}))
    else:
        show(settings, False, empty="")
        Console().print()
        show([{"check": c["check"], "state": "ok" if c["ok"] else "FAILS", "detail": c["detail"]} for c in checks],
             False, empty="")  # fmt: skip
    if not all(check["ok"] for check in checks):
        raise typer.Exit(1)


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
        recent = None if since is None else clock.span(since)
    except ValueError as error:
        raise BadRequest(f"{error}.") from None
    lines = with_database(home, lambda db: trail.find(db, user=user, tool=tool, since=recent, limit=limit))
    if as_json:
        say(json.dumps([asdict(line) | {"at": clock.iso(line.at)} for line in lines]))
        return
    show(
        [
            {"at": clock.iso(line.at), "who": line.actor, "surface": line.surface, "tool": line.tool}
            | {"outcome": line.outcome, "ms": f"{line.duration_us / 1000:.1f}", "touched": " ".join(line.touched)}
            for line in lines
        ],
        False,
        empty="No calls found.",
    )


def contracts(
    check: Annotated[bool, typer.Option("--check", help="Compare only; exit with 1 where they differ.")] = False,
) -> None:
    """Write each generated surface's contract.json from what is served, or check that they agree.

    Example: [bold]almanac contracts --check[/bold]
    """
    if not check:
        for surface in SURFACES:
            say(str(contract_files.write(surface)))
        return
    differing = contract_files.differences(SURFACES)
    for name, tools in differing.items():
        say(f"{name}: {', '.join(tools)}")
    if differing:
        raise typer.Exit(1)
    say(f"{len(SURFACES)} contract(s) equal what is served")


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
    show(rows, as_json, empty=f"No {state} jobs.")


@jobs_app.command("retry")
def retry_job(
    job_id: Annotated[int, typer.Argument(metavar="ID", help="Its id, from 'almanac jobs list'.")], home: Home = None
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
    job_id: Annotated[int, typer.Argument(metavar="ID", help="Its id, from 'almanac jobs list'.")], home: Home = None
) -> None:
    """Remove a dead job for good.

    Example: [bold]almanac jobs discard 12[/bold]
    """
    if not with_database(home, lambda db: queue.discard(db, job_id)):
        raise NotFound(f"There is no dead job with id {job_id}.", remedy="See 'almanac jobs list'.")


async def _checks(loaded: Loaded) -> list[dict[str, Any]]:
    settings = loaded.settings
    checks: dict[str, Callable[[Settings], Awaitable[str]]] = {
        "plan": _plan,
        "database": _database,
        "redis": _redis,
        "models": _models,
        "disk": _disk,
        "clock": _clock,
    }
    return [await _outcome(name, check(settings)) for name, check in checks.items()]


async def _outcome(name: str, check: Awaitable[str]) -> dict[str, Any]:
    try:
        return {"check": name, "ok": True, "detail": await check}
    except (AlmanacError, OSError) as error:
        said = error.message if isinstance(error, AlmanacError) else ""
        cause = f"({error})" if str(error) != said else ""
        # Not the usual remedy where that is to run this command.
        remedy = error.next_step if isinstance(error, AlmanacError) and "doctor" not in error.next_step else ""
        return {"check": name, "ok": False, "detail": " ".join(filter(None, (said, cause, remedy)))}


async def _plan(settings: Settings) -> str:
    check_plan(settings)
    return f"{settings.workers} server process(es) on {settings.host} port {settings.port}"


async def _database(settings: Settings) -> str:
    if settings.on_sqlite and not _is_there(settings.store_url):
        return "SQLite, not there yet: the first start creates it"
    db = await connect(settings.store_url, pool_size=1)
    try:
        waiting = await migrate.pending(db)
        version = await migrate.version(db)
    finally:
        await db.close()
    if waiting:
        raise BadRequest(f"{len(waiting)} migration(s) to apply.", remedy="Run 'almanac migrate'.")
    return f"{'SQLite' if settings.on_sqlite else 'PostgreSQL'}, schema version {version}"


async def _redis(settings: Settings) -> str:
    if not settings.redis_url:
        return "not configured: limits are counted in this process's memory"
    limiter = rates.open_rates(settings.redis_url)
    try:
        if not await limiter.works():
            raise BadRequest("Redis cannot be reached.", remedy="Check REDIS_URL and that the server is running.")
    finally:
        await limiter.close()
    return "answers"


async def _models(_: Settings) -> str:
    return "none needed by the tools of this version"


async def _disk(settings: Settings) -> str:
    folder = _nearest(settings.home.absolute())
    free = shutil.disk_usage(folder).free
    if free < _LEAST_DISK:
        raise BadRequest(f"Only {free >> 20} MiB are free in {folder}.", remedy="Free some space.")
    return f"{free / (1 << 30):.1f} GiB free"


async def _clock(settings: Settings) -> str:
    if settings.on_sqlite:
        return "the database runs on this machine's clock"
    db = await connect(settings.store_url, pool_size=1)
    try:
        skew = await _skew(db)
    finally:
        await db.close()
    if abs(skew) > _MOST_SKEW:
        raise BadRequest(f"The database's clock is {skew:+.1f} s from this one.", remedy="Synchronise both with NTP.")
    return f"{skew:+.3f} s from the database's"


async def _skew(db: Database) -> float:
    row = await db.fetch_one("SELECT CURRENT_TIMESTAMP AS at")
    assert row is not None
    there: datetime = row["at"]
    return (there - datetime.now(UTC)).total_seconds()


def _is_there(store_url: str) -> bool:
    return Path(store_url.removeprefix("sqlite:///")).exists()


def _nearest(folder: Path) -> Path:
    return folder if folder.exists() else _nearest(folder.parent)
