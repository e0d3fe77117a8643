"""Commands that look at the server itself: its settings and health, its contracts."""

import asyncio
import json
import shutil
import tempfile
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, fields
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from almanac.ai.embedder_choice import open_embedder
from almanac.app import SURFACES, check_settings
from almanac.bootstrap import load_settings
from almanac.cli.support.progress import counted
from almanac.cli.support.terminal import Home, Json, print_line, print_rows
from almanac.core.database import Database
from almanac.core.errors import AlmanacError, BadRequest
from almanac.core.settings import LoadedSettings, Settings, shown
from almanac.db import migrate
from almanac.db.connect import connect
from almanac.jobs import queue
from almanac.knowledge import document_index
from almanac.knowledge.files import FileStore
from almanac.knowledge.parsers.pdf import ocr
from almanac.quotas import rate_limits
from almanac.sandbox import confinement
from almanac.search.jobs import collection_status
from almanac.surfaces import contracts as contract_files

_LEAST_DISK = 1 << 30
_MOST_FILES = 100_000  # looked for: a second or two
_NAMED = 3  # of many, those that are named
_WORKER = "A worker sees to it: 'almanac serve' runs one, and so does 'almanac worker'."
_MOST_SKEW = 5.0  # seconds: more than that, and expiry of tokens and leases goes wrong


@dataclass(frozen=True, slots=True)
class CheckWarning:
    """What a check has found that works, and should be seen to all the same."""

    detail: str


def doctor(home: Home = None, as_json: Json = False) -> None:
    """Print every setting with where it came from, and check all that the server needs; also index against store.
    Each check is ok, a warning (it works, or will soon) or a problem, and says what to do about it.

    Example: [bold]almanac doctor --json[/bold]. Exits with 1 if there is a problem.
    """
    loaded = load_settings({"home": home})
    settings = [
        {"setting": item.name, "value": shown(item, loaded.settings), "from": loaded.sources[item.name]}
        for item in fields(Settings)
    ]
    checks = asyncio.run(_checks(loaded))
    if as_json:
        print_line(json.dumps({"settings": settings, "checks": checks}))
    else:
        print_rows(settings, False, empty="")
        Console().print()
        print_rows([{name: check[name] for name in ("check", "state", "detail")} for check in checks], False, empty="")
    if not all(check["ok"] for check in checks):
        raise typer.Exit(1)


def contracts(
    check: Annotated[bool, typer.Option("--check", help="Compare only; exit with 1 where they differ.")] = False,
    as_json: Json = False,
) -> None:
    """Write each surface's contract.json from what is served, or check that they agree.

    Example: [bold]almanac contracts --check[/bold]
    """
    if not check:
        written = [str(contract_files.write(surface)) for surface in SURFACES]
        print_line(json.dumps({"written": written}) if as_json else "\n".join(written))
        return
    differing = contract_files.differences(SURFACES)
    if as_json:
        print_line(json.dumps({"differing": differing}))
    for name, tools in () if as_json else differing.items():
        print_line(f"{name}: {', '.join(tools)}")
    if differing:
        raise typer.Exit(1)
    if not as_json:
        print_line(f"{len(SURFACES)} contract(s) equal what is served")


async def _checks(loaded: LoadedSettings) -> list[dict[str, Any]]:
    settings = loaded.settings
    checks: dict[str, Callable[[Settings], Awaitable[str | CheckWarning]]] = {
        "plan": _plan,
        "database": _database,
        "redis": _redis,
        "models": _models,
        "parsers": _parsers,
        "home": _home,
        "disk": _disk,
        "clock": _clock,
    }
    done = [await _outcome(name, check(settings)) for name, check in checks.items()]
    if settings.on_sqlite and not _is_there(settings.store_url):
        return done
    if all(check["ok"] for check in done if check["check"] == "database"):
        done += await _store_checks(settings)
    return done


async def _store_checks(settings: Settings) -> list[dict[str, Any]]:
    """What can be checked where there is a database of this version."""
    checks: dict[str, Callable[[Settings, Database], Awaitable[str | CheckWarning]]] = {
        "words": _words,
        "vectors": _vectors,
        "index": _index,
        "jobs": _jobs,
        "files": _files,
    }
    db = await connect(settings.store_url, pool_size=1)
    try:
        return [await _outcome(name, check(settings, db)) for name, check in checks.items()]
    finally:
        await db.close()


async def _outcome(name: str, check: Awaitable[str | CheckWarning]) -> dict[str, Any]:
    try:
        found = await check
    except (AlmanacError, OSError) as error:
        said = error.message if isinstance(error, AlmanacError) else ""
        cause = f"({error})" if str(error) != said else ""
        # Not the usual remedy where that is to run this command.
        remedy = error.next_step if isinstance(error, AlmanacError) and "doctor" not in error.next_step else ""
        detail = " ".join(filter(None, (said, cause, remedy)))
        return {"check": name, "ok": False, "state": "problem", "detail": detail}
    if isinstance(found, CheckWarning):
        return {"check": name, "ok": True, "state": "warning", "detail": found.detail}
    return {"check": name, "ok": True, "state": "ok", "detail": found}


async def _plan(settings: Settings) -> str:
    check_settings(settings)
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
    limiter = rate_limits.open_rates(settings.redis_url)
    try:
        if not await limiter.is_available():
            raise BadRequest("Redis cannot be reached.", remedy="Check REDIS_URL and that the server is running.")
    finally:
        await limiter.close()
    return "answers"


async def _models(settings: Settings) -> str:
    """Loads it and has it embed something: a file that is not the one it should be is never loaded."""
    embedder = open_embedder(settings)
    try:
        await embedder.passages(["Is anybody there?"])
        return f"{embedder.name} embeds, with {embedder.dimension} dimensions"
    finally:
        await embedder.close()


async def _parsers(_: Settings) -> str:
    means = confinement.detect_kernel_features()
    shut = [name for name, there in (("seccomp", means.seccomp), ("Landlock", means.landlock)) if there]
    missing = [name for name in ("seccomp", "Landlock") if name not in shut]
    warning = f"; this machine has no {' or '.join(missing)}, see docs/explanation/knowledge.md" if missing else ""
    recognition = "text recognition is installed" if ocr.is_installed() else "no text recognition (the ocr extra)"
    return f"confined by limits{''.join(f', {name}' for name in shut)}; {recognition}{warning}"


async def _home(settings: Settings) -> str:
    if not settings.home.exists():
        return "not there yet: the first start creates it"
    try:
        with tempfile.TemporaryFile(dir=settings.home):
            return "can be written to"
    except OSError as error:
        raise BadRequest(
            f"Nothing can be written into the home folder: {error.strerror}.",
            remedy="Give the user that runs the server the right to.",
        ) from None


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


async def _words(_: Settings, db: Database) -> str | CheckWarning:
    number = await collection_status.unread(db)
    if not number:
        return "every passage has been analysed"
    return CheckWarning(f"{counted(number, 'passage')} cannot be found by words yet. {_WORKER}")


async def _vectors(_: Settings, db: Database) -> str | CheckWarning:
    standings = await collection_status.collection_statuses(db)
    behind = [each for each in standings if not each.is_embedded]
    if not behind:
        return f"{counted(sum(each.passages for each in standings), 'passage')}, all embedded"
    done, total = sum(each.reached for each in behind), sum(each.passages for each in behind)
    where = ", ".join(each.collection for each in behind[:_NAMED]) + (", …" if len(behind) > _NAMED else "")
    return CheckWarning(f"{done:,} of {counted(total, 'passage')} embedded in {where}. {_WORKER}")


async def _index(settings: Settings, db: Database) -> str | CheckWarning:
    found = await collection_status.compare(settings, db)
    documents = await document_index.compare(db)
    found += [
        f"{text} ({', '.join(map(str, ids[:_NAMED]))}{', …' if len(ids) > _NAMED else ''})"
        for text, ids in (
            ("documents that it does not have", documents.unknown),
            ("documents that it shows, hides or places otherwise", documents.wrong),
            ("documents that it has and that are not there", documents.surplus),
        )
        if ids
    ]
    if not found:
        return "agrees with what is stored"
    more = f" (and {len(found) - _NAMED} more)" if len(found) > _NAMED else ""
    raise BadRequest(
        f"The index does not agree with what is stored: {'; '.join(found[:_NAMED])}{more}.",
        remedy="Run 'almanac index rebuild'; searches go on meanwhile.",
    )


async def _jobs(_: Settings, db: Database) -> str | CheckWarning:
    counts = await queue.counts(db)
    if counts["dead"]:
        return CheckWarning(
            f"{counted(counts['dead'], 'job')} given up. See 'almanac jobs list'; retry or discard them."
        )
    return f"{counts['queued']} queued, {counts['running']} running, none given up"


async def _files(settings: Settings, db: Database) -> str | CheckWarning:
    """Whether each row's file is there; a surplus one is removed in the course of things."""
    rows = await db.scan("SELECT name FROM blobs ORDER BY id DESC LIMIT $1", _MOST_FILES)
    files = FileStore(settings.home, settings.max_file_bytes)
    missing = await asyncio.to_thread(lambda: sum(not files.path(row["name"]).is_file() for row in rows))
    if missing:
        raise BadRequest(
            f"The home folder lacks {counted(missing, 'file')} that documents need.",
            remedy="Restore it from a backup, or upload those documents again.",
        )
    rest = "; there may be older ones, which were not looked for" if len(rows) == _MOST_FILES else ""
    return f"{counted(len(rows), 'file')}, none missing{rest}"


async def _skew(db: Database) -> float:
    row = await db.fetch_one("SELECT CURRENT_TIMESTAMP AS at")
    assert row is not None
    there: datetime = row["at"]
    return (there - datetime.now(UTC)).total_seconds()


def _is_there(store_url: str) -> bool:
    return Path(store_url.removeprefix("sqlite:///")).exists()


def _nearest(folder: Path) -> Path:
    return folder if folder.exists() else _nearest(folder.parent)
