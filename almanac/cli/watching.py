"""Commands that look at the server itself: its settings and health, its contracts."""

import asyncio
import json
import shutil
from collections.abc import Awaitable, Callable
from dataclasses import fields
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from almanac.app import SURFACES, check_plan
from almanac.cli.terminal import Home, Json, say, show
from almanac.core.database import Database
from almanac.core.errors import AlmanacError, BadRequest
from almanac.core.settings import Loaded, Settings, shown
from almanac.db import migrate
from almanac.db.connect import connect
from almanac.knowledge.parsers import confinement, ocr
from almanac.premises import load_settings
from almanac.quotas import rates
from almanac.surfaces import contracts as contract_files

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


def contracts(
    check: Annotated[bool, typer.Option("--check", help="Compare only; exit with 1 where they differ.")] = False,
    as_json: Json = False,
) -> None:
    """Write each generated surface's contract.json from what is served, or check that they agree.

    Example: [bold]almanac contracts --check[/bold]
    """
    if not check:
        written = [str(contract_files.write(surface)) for surface in SURFACES]
        say(json.dumps({"written": written}) if as_json else "\n".join(written))
        return
    differing = contract_files.differences(SURFACES)
    if as_json:
        say(json.dumps({"differing": differing}))
    for name, tools in () if as_json else differing.items():
        say(f"{name}: {', '.join(tools)}")
    if differing:
        raise typer.Exit(1)
    if not as_json:
        say(f"{len(SURFACES)} contract(s) equal what is served")


async def _checks(loaded: Loaded) -> list[dict[str, Any]]:
    settings = loaded.settings
    checks: dict[str, Callable[[Settings], Awaitable[str]]] = {
        "plan": _plan,
        "database": _database,
        "redis": _redis,
        "models": _models,
        "parsers": _parsers,
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


async def _parsers(_: Settings) -> str:
    means = confinement.survey()
    shut = [name for name, there in (("seccomp", means.seccomp), ("Landlock", means.landlock)) if there]
    missing = [name for name in ("seccomp", "Landlock") if name not in shut]
    warning = f"; this machine has no {' or '.join(missing)}, see docs/explanation/knowledge.md" if missing else ""
    recognition = "text recognition is installed" if ocr.is_installed() else "no text recognition (the ocr extra)"
    return f"confined by limits{''.join(f', {name}' for name in shut)}; {recognition}{warning}"


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
