"""Process start-up: load the settings, configure logs, read or create the signing key, open the database."""

import contextlib
import fcntl
import hashlib
import logging
import os
import secrets
import sys
import tomllib
import traceback
from collections.abc import AsyncGenerator, Callable, Generator, Mapping, MutableMapping
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any, cast

import structlog

from almanac.core.call import REQUEST_ID
from almanac.core.database import Database
from almanac.core.settings import InvalidSetting, Settings
from almanac.core.settings_loader import LoadedSettings, load, unknown_variables
from almanac.db import migrate
from almanac.db.connect import connect

_log = structlog.get_logger("almanac.start")


def load_settings(options: Mapping[str, Any] | None = None) -> LoadedSettings:
    """Settings from options, the environment and the file: `ALMANAC_CONFIG`, or almanac.toml in the working folder."""
    named = os.environ.get("ALMANAC_CONFIG")
    file = Path(named or "almanac.toml")
    if named and not file.exists():
        raise InvalidSetting(f"The file {named} of ALMANAC_CONFIG does not exist.")
    try:
        content = tomllib.loads(file.read_text("utf-8")) if file.exists() else {}
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise InvalidSetting(f"{file} is not valid TOML: {error}.") from None
    except OSError as error:
        raise InvalidSetting(f"{file} cannot be read: {error.strerror}.") from None
    return load(os.environ, content, options)


def warn_of_unknown_variables() -> None:
    """Log each environment variable with our prefix that is not a setting."""
    for name, similar in unknown_variables(os.environ).items():
        hint = {"did_you_mean": similar} if similar else {}
        _log.warning("unknown environment variable; it has no effect", variable=name, **hint)


def signing_key(settings: Settings) -> bytes:
    """The key for signatures and digests: from the settings, or generated once and kept in the home folder."""
    if settings.secret:
        return hashlib.sha256(settings.secret.encode()).digest()
    file = settings.home / "secret"
    _make_home(settings)
    try:
        if not file.exists():
            _write_secret(file)
        return hashlib.sha256(file.read_bytes()).digest()
    except OSError as error:
        raise InvalidSetting(f"The secret in {settings.home} cannot be read or written: {error.strerror}.") from None


def _write_secret(file: Path) -> None:
    # Written under another name first, so that a process that starts at the same time never reads a partial secret.
    draft = file.with_name(f".secret-{secrets.token_hex(8)}")
    draft.touch(mode=0o600)
    try:
        draft.write_text(secrets.token_urlsafe(48))
        with contextlib.suppress(FileExistsError):
            os.link(draft, file)
    finally:
        draft.unlink()


def _make_home(settings: Settings) -> None:
    try:
        settings.home.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise InvalidSetting(f"The home folder {settings.home} cannot be created: {error.strerror}.") from None
    if not os.access(settings.home, os.W_OK | os.X_OK):
        raise InvalidSetting(
            f"The home folder {settings.home} cannot be written.",
            remedy="Give write permission to the user that runs Almanac, or choose another --home.",
        )


@contextmanager
def server_lock(settings: Settings) -> Generator[None]:
    """Lock the home folder on SQLite for one server, because a second one would count rate limits separately."""
    if not settings.on_sqlite:
        yield
        return
    _make_home(settings)
    file = settings.home / "server.lock"
    try:
        lock = os.open(file, os.O_CREAT | os.O_RDWR, 0o600)
    except OSError as error:
        raise InvalidSetting(f"{file} cannot be written: {error.strerror}.") from None
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(lock)
        raise InvalidSetting(
            f"Another server is running in {settings.home.absolute()}.",
            remedy="Stop it, choose another --home, or use PostgreSQL.",
        ) from None
    try:
        yield
    finally:
        os.close(lock)


@asynccontextmanager
async def open_database(settings: Settings) -> AsyncGenerator[Database]:
    """Open the database with all migrations applied."""
    if settings.on_sqlite:
        _make_home(settings)
    db = await connect(settings.store_url, pool_size=settings.database_pool_size)
    try:
        await migrate.apply(db)
        yield db
    finally:
        await db.close()


def configure_logs(settings: Settings) -> None:
    """Write our logs and those of libraries to standard error in one format. Standard output is only for answers."""
    shared: list[Callable[..., Any]] = [
        _with_request,
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
    ]
    as_text = settings.log_format == "text" or (settings.log_format == "auto" and sys.stderr.isatty())
    render = structlog.dev.ConsoleRenderer() if as_text else structlog.processors.JSONRenderer()
    level = logging.getLevelNamesMapping()[settings.log_level.upper()]
    structlog.configure(
        processors=[*shared, _drop_exception_message, render],
        wrapper_class=structlog.make_filtering_bound_logger(level),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
        cache_logger_on_first_use=True,
    )
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=[*shared, structlog.stdlib.add_logger_name],
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, _drop_exception_message, render],
        )
    )
    logging.basicConfig(handlers=[handler], level=max(level, logging.WARNING), force=True)


def _with_request(_: Any, __: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    if (request_id := REQUEST_ID.get(None)) is not None:
        event.setdefault("request_id", request_id)
    return event


def _drop_exception_message(_: Any, __: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    """Replace an exception by its type and traceback. Its message may contain data of a caller, so it is dropped."""
    given = event.pop("exc_info", None)
    # structlog passes True; the standard library's logging passes type, exception and traceback.
    error = cast("tuple[Any, ...]", given)[1] if isinstance(given, tuple) else sys.exc_info()[1] if given else None
    if error:
        where = "".join(traceback.format_tb(error.__traceback__))
        event["exception"] = f"{where}{type(error).__name__}"
    return event
