"""The checks of `almanac doctor`."""

import asyncio
import shutil
import tempfile
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from almanac.ai.embedder_choice import open_embedder
from almanac.app import check_settings
from almanac.cli.support.progress import counted
from almanac.core.database import Database
from almanac.core.errors import AlmanacError, BadRequest
from almanac.core.settings import Settings
from almanac.data import dataset_index
from almanac.db import migrate
from almanac.db.connect import connect
from almanac.files.file_store import FileStore
from almanac.jobs import queue
from almanac.knowledge import document_index
from almanac.knowledge.parsers.pdf import ocr
from almanac.quotas import redis_rate_limits
from almanac.sandbox import confinement
from almanac.search.jobs import collection_status

_MIN_FREE_BYTES = 1 << 30
_MAX_CHECKED_FILES = 100_000  # takes a second or two
_MAX_NAMED_ITEMS = 3
_MAX_CLOCK_SKEW_SECONDS = 5.0  # with more, tokens and leases expire at the wrong time
_WORKER_REMEDY = "A worker does this: 'almanac serve' runs one, and so does 'almanac worker'."


@dataclass(frozen=True, slots=True)
class CheckWarning:
    """A finding that needs attention although the server works."""

    detail: str


async def run_checks(settings: Settings) -> list[dict[str, Any]]:
    """Run all checks; those of the database's content only where there is a database of this version."""
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
    outcomes = [await _outcome(name, check(settings)) for name, check in checks.items()]
    if _lacks_database(settings):
        return outcomes
    if all(outcome["ok"] for outcome in outcomes if outcome["check"] == "database"):
        outcomes += await _run_content_checks(settings)
    return outcomes


async def _run_content_checks(settings: Settings) -> list[dict[str, Any]]:
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
        result = await check
    except (AlmanacError, OSError) as error:
        message = error.message if isinstance(error, AlmanacError) else ""
        cause = f"({error})" if str(error) != message else ""
        # A remedy that says to run this command is left out.
        remedy = error.remedy if isinstance(error, AlmanacError) and "doctor" not in error.remedy else ""
        detail = " ".join(filter(None, (message, cause, remedy)))
        return {"check": name, "ok": False, "state": "problem", "detail": detail}
    if isinstance(result, CheckWarning):
        return {"check": name, "ok": True, "state": "warning", "detail": result.detail}
    return {"check": name, "ok": True, "state": "ok", "detail": result}


async def _plan(settings: Settings) -> str:
    check_settings(settings)
    return f"{settings.workers} server process(es) on {settings.host} port {settings.port}"


async def _database(settings: Settings) -> str:
    if _lacks_database(settings):
        return "SQLite, not there yet: the first start creates it"
    db = await connect(settings.store_url, pool_size=1)
    try:
        pending = await migrate.pending(db)
        version = await migrate.version(db)
    finally:
        await db.close()
    if pending:
        raise BadRequest(f"{len(pending)} migration(s) to apply.", remedy="Run 'almanac migrate'.")
    return f"{'SQLite' if settings.on_sqlite else 'PostgreSQL'}, schema version {version}"


async def _redis(settings: Settings) -> str:
    if not settings.redis_url:
        return "not configured: limits are counted in this process's memory"
    limiter = redis_rate_limits.open_rate_limiter(settings.redis_url)
    try:
        if not await limiter.is_available():
            raise BadRequest("Redis cannot be reached.", remedy="Check REDIS_URL and that the server is running.")
    finally:
        await limiter.close()
    return "answers"


async def _models(settings: Settings) -> str:
    # A model file with a wrong hash is refused when it is loaded, so loading the model checks its files too.
    embedder = open_embedder(settings)
    try:
        await embedder.passages(["A sentence to embed."])
        return f"{embedder.name} embeds, with {embedder.dimension} dimensions"
    finally:
        await embedder.close()


async def _parsers(_: Settings) -> str:
    kernel = confinement.detect_kernel_features()
    features = {"seccomp": kernel.seccomp, "Landlock": kernel.landlock}
    present = [name for name, is_present in features.items() if is_present]
    missing = [name for name, is_present in features.items() if not is_present]
    warning = f"; this machine has no {' or '.join(missing)}, see docs/explanation/knowledge.md" if missing else ""
    recognition = "text recognition is installed" if ocr.is_installed() else "text recognition is missing"
    return f"confined by limits{''.join(f', {name}' for name in present)}; {recognition}{warning}"


async def _home(settings: Settings) -> str:
    if not settings.home.exists():
        return "not there yet: the first start creates it"
    try:
        with tempfile.TemporaryFile(dir=settings.home):
            return "can be written to"
    except OSError as error:
        raise BadRequest(
            f"The home folder is not writable: {error.strerror}.",
            remedy="Give write permission to the user that runs the server.",
        ) from None


async def _disk(settings: Settings) -> str:
    folder = _nearest_existing(settings.home.absolute())
    free = shutil.disk_usage(folder).free
    if free < _MIN_FREE_BYTES:
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
    if abs(skew) > _MAX_CLOCK_SKEW_SECONDS:
        raise BadRequest(f"The database's clock is {skew:+.1f} s from this one.", remedy="Synchronise both with NTP.")
    return f"{skew:+.3f} s from the database's"


async def _words(_: Settings, db: Database) -> str | CheckWarning:
    number = await collection_status.count_not_analysed(db)
    if not number:
        return "every passage has been analysed"
    return CheckWarning(f"{counted(number, 'passage')} cannot be found by words yet. {_WORKER_REMEDY}")


async def _vectors(_: Settings, db: Database) -> str | CheckWarning:
    statuses = await collection_status.collection_statuses(db)
    behind = [status for status in statuses if not status.is_embedded]
    if not behind:
        return f"{counted(sum(status.passages for status in statuses), 'passage')}, all embedded"
    done, total = sum(status.finally_embedded for status in behind), sum(status.passages for status in behind)
    where = ", ".join(status.collection for status in behind[:_MAX_NAMED_ITEMS]) + (
        ", …" if len(behind) > _MAX_NAMED_ITEMS else ""
    )
    return CheckWarning(f"{done:,} of {counted(total, 'passage')} embedded in {where}. {_WORKER_REMEDY}")


async def _index(settings: Settings, db: Database) -> str | CheckWarning:
    differences = await collection_status.compare(settings, db)
    documents = await document_index.compare(db)
    differences += [
        f"{text} ({', '.join(map(str, ids[:_MAX_NAMED_ITEMS]))}{', …' if len(ids) > _MAX_NAMED_ITEMS else ''})"
        for text, ids in (
            ("documents that it lacks", documents.unknown),
            ("documents whose visibility or folder differs", documents.wrong),
            ("documents that no longer exist", documents.surplus),
            ("datasets that it lacks, or that differ", await dataset_index.compare(db)),
        )
        if ids
    ]
    if not differences:
        return "agrees with the database"
    more = f" (and {len(differences) - _MAX_NAMED_ITEMS} more)" if len(differences) > _MAX_NAMED_ITEMS else ""
    raise BadRequest(
        f"The index does not agree with the database: {'; '.join(differences[:_MAX_NAMED_ITEMS])}{more}.",
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
    # Surplus files are not checked: a job removes them.
    rows = await db.scan("SELECT name FROM blobs ORDER BY id DESC LIMIT $1", _MAX_CHECKED_FILES)
    files = FileStore(settings.home, settings.max_file_bytes)
    missing = await asyncio.to_thread(lambda: sum(not files.path(row["name"]).is_file() for row in rows))
    if missing:
        raise BadRequest(
            f"The home folder lacks {counted(missing, 'file')} that documents need.",
            remedy="Restore it from a backup, or upload those documents again.",
        )
    limit_note = "; older files were not checked" if len(rows) == _MAX_CHECKED_FILES else ""
    return f"{counted(len(rows), 'file')}, none missing{limit_note}"


async def _skew(db: Database) -> float:
    row = await db.fetch_one("SELECT CURRENT_TIMESTAMP AS at")
    assert row is not None
    database_time: datetime = row["at"]
    return (database_time - datetime.now(UTC)).total_seconds()


def _lacks_database(settings: Settings) -> bool:
    return settings.on_sqlite and not Path(settings.store_url.removeprefix("sqlite:///")).exists()


def _nearest_existing(folder: Path) -> Path:
    return folder if folder.exists() else _nearest_existing(folder.parent)
