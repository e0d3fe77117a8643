"""Opens the database of a URL."""

from almanac.core.database import Database
from almanac.core.errors import BadRequest
from almanac.db.postgres import PostgresDatabase
from almanac.db.sqlite import SqliteDatabase

_SQLITE = "sqlite:///"
_POSTGRES = ("postgresql://", "postgres://")


class InvalidDatabaseUrl(BadRequest):
    """The URL of the database is not valid."""

    code = "bad_database_url"
    remedy = (
        "Write sqlite:///path/to/file.db or postgresql://user:password@host/name, with %2F for / and %40 for @ in a"
        " password."
    )


async def connect(url: str, *, pool_size: int = 10) -> Database:
    """Open `sqlite:///relative/path`, `sqlite:////absolute/path` or `postgresql://user@host/name`."""
    if url.startswith(_SQLITE) and len(url) > len(_SQLITE):
        return await SqliteDatabase.open(url.removeprefix(_SQLITE))
    if url.startswith(_POSTGRES):
        try:
            return await PostgresDatabase.open(url, pool_size)
        except ValueError:  # its message repeats parts of the URL, which may contain the password
            raise InvalidDatabaseUrl() from None
    raise InvalidDatabaseUrl()
