"""Connections to SQLite: their settings, the form of parameters, and the translation of errors."""

import re
import sqlite3
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path

from almanac.db.errors import ConstraintConflict, DatabaseError, DatabaseFull, DatabaseUnavailable, StatementRejected

BUSY_SECONDS = 10.0
# The errors that a statement can raise; the last two come from values that SQLite cannot store.
STATEMENT_ERRORS = (sqlite3.Error, OverflowError, UnicodeEncodeError)

_PRAGMAS = (
    f"PRAGMA busy_timeout = {int(BUSY_SECONDS * 1000)}",
    "PRAGMA synchronous = FULL",  # in WAL mode, NORMAL may lose acknowledged commits after a power failure
    "PRAGMA foreign_keys = ON",
    "PRAGMA journal_size_limit = 67108864",  # otherwise the WAL keeps its largest size for ever
)
LARGE_CACHE = ("PRAGMA cache_size = -16384", "PRAGMA mmap_size = 67108864")  # both count as memory of this process
SMALL_CACHE = ("PRAGMA cache_size = -2048",)  # for scans, which read most pages once

_KEY_COLUMNS = re.compile(r"^UNIQUE constraint failed: (?!index )(.+)$")
_FULL_CODES = {sqlite3.SQLITE_FULL, sqlite3.SQLITE_READONLY}
_UNAVAILABLE_CODES = {
    sqlite3.SQLITE_BUSY,
    sqlite3.SQLITE_LOCKED,
    sqlite3.SQLITE_CANTOPEN,
    sqlite3.SQLITE_IOERR,
    sqlite3.SQLITE_INTERRUPT,
    sqlite3.SQLITE_PROTOCOL,
}
_UNIQUE_CODES = {
    sqlite3.SQLITE_CONSTRAINT_UNIQUE,
    sqlite3.SQLITE_CONSTRAINT_PRIMARYKEY,
    sqlite3.SQLITE_CONSTRAINT_ROWID,
}


def connect(path: Path, *, read_only: bool, cache: Sequence[str] = LARGE_CACHE) -> sqlite3.Connection:
    """Open a connection. A read-only one may be used from any thread."""
    connection = sqlite3.connect(
        path,
        timeout=BUSY_SECONDS,
        isolation_level=None,  # BEGIN and COMMIT are explicit
        check_same_thread=not read_only,
        cached_statements=512,
    )
    connection.row_factory = sqlite3.Row
    for pragma in (*_PRAGMAS, *cache):
        connection.execute(pragma).fetchall()
    if read_only:
        connection.execute("PRAGMA query_only = ON")
    return connection


@lru_cache(maxsize=4096)
def numbered(sql: str) -> str:
    """The statement with `?1` instead of `$1`, which SQLite would treat as a name and look up for each value."""
    return re.sub(r"\$(\d+)", r"?\1", sql)


def translate(error: BaseException, where: str = "") -> DatabaseError:
    """The error of `db/errors.py` for one of SQLite or the file system."""
    if isinstance(error, sqlite3.IntegrityError):
        return _translate_integrity(error)
    code = getattr(error, "sqlite_errorcode", None)
    text = f"{where}: {error}" if where else str(error)
    if code is not None and code & 0xFF in _FULL_CODES:
        return DatabaseFull(text)
    if (
        isinstance(error, OSError)
        or "closed database" in text
        or (code is not None and code & 0xFF in _UNAVAILABLE_CODES)
    ):
        return DatabaseUnavailable(text)
    if isinstance(error, OverflowError | UnicodeEncodeError | sqlite3.InterfaceError):
        return StatementRejected("a value cannot be stored: a number is too large, or a text is not valid Unicode")
    return StatementRejected(text)


def _translate_integrity(error: sqlite3.IntegrityError) -> DatabaseError:
    if error.sqlite_errorcode == sqlite3.SQLITE_CONSTRAINT_FOREIGNKEY:
        return ConstraintConflict("foreign")
    if error.sqlite_errorcode not in _UNIQUE_CODES:
        return StatementRejected(str(error))
    match = _KEY_COLUMNS.match(str(error))
    if match is None:
        return ConstraintConflict("unique")
    names = [name.strip().rpartition(".") for name in match[1].split(",")]
    return ConstraintConflict("unique", table=names[0][0], columns=tuple(name for _, _, name in names))
