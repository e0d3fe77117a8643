"""From a URL to an open database."""

from almanac.core.database import Database
from almanac.db.postgres import PostgresDatabase
from almanac.db.sqlite import SqliteDatabase

_SQLITE = "sqlite:///"
_POSTGRES = ("postgresql://", "postgres://")


async def connect(url: str, *, pool_size: int = 10) -> Database:
    """Open `sqlite:///relative/path`, `sqlite:////absolute/path` or `postgresql://user@host/name`."""
    if url.startswith(_SQLITE) and len(url) > len(_SQLITE):
        return await SqliteDatabase.open(url.removeprefix(_SQLITE))
    if url.startswith(_POSTGRES):
        return await PostgresDatabase.open(url, pool_size)
    scheme = url.partition("://")[0]  # the rest may hold a password
    raise ValueError(
        f"cannot open a database with {scheme!r}; write sqlite:///path/to/file.db or postgresql://user@host/name"
    )
