"""Organisations. No data is shared between two of them."""

import re
import uuid
from dataclasses import dataclass

from almanac.core import clock
from almanac.core.database import Reader, Row, Transaction
from almanac.core.errors import BadRequest, Conflict, NotFound

# Names appear in URLs, file names and command lines, so they contain no character that needs quoting there.
_NAME = re.compile(r"^[^\W_][\w .@+-]{0,99}$")


@dataclass(frozen=True, slots=True)
class Org:
    """One organisation."""

    id: str
    name: str
    created_at: int


def check_name(subject: str, name: str) -> str:
    """The name without outer spaces, if it is allowed for an organisation, user, agent or group."""
    name = name.strip()
    if not _NAME.match(name):
        raise BadRequest(
            f"{name[:120]!r} cannot be the name of {subject}.",
            remedy="Use 1 to 100 letters, digits, spaces and . _ @ + -, beginning with a letter or digit.",
        )
    return name


async def add(tx: Transaction, name: str) -> Org:
    """Create an organisation."""
    org = Org(str(uuid.uuid4()), check_name("an organisation", name), clock.now())
    made = await tx.execute(
        "INSERT INTO orgs (id, name, created_at) VALUES ($1, $2, $3) ON CONFLICT (name) DO NOTHING",
        org.id,
        org.name,
        org.created_at,
    )
    if not made:
        raise Conflict(f"There is already an organisation named {org.name!r}.", remedy="Choose another name.")
    return org


async def find(db: Reader) -> list[Org]:
    """All organisations, oldest first."""
    return [_org(row) for row in await db.fetch("SELECT * FROM orgs ORDER BY created_at, id")]


async def get_or_none(db: Reader, id: str) -> Org | None:
    """The organisation with this id, or None."""
    row = await db.fetch_one("SELECT * FROM orgs WHERE id = $1", id)
    return None if row is None else _org(row)


async def get_by_name(db: Reader, name: str | None) -> Org:
    """The organisation with this name. Without a name, the only organisation."""
    if name is not None:
        row = await db.fetch_one("SELECT * FROM orgs WHERE name = $1", name)
        if row is None:
            raise NotFound(f"There is no organisation named {name!r}.", remedy="See 'almanac org list'.")
        return _org(row)
    rows = await db.fetch("SELECT * FROM orgs ORDER BY created_at LIMIT 2")
    if not rows:
        raise NotFound("There is no organisation yet.", remedy="Create one with 'almanac org add NAME'.")
    if len(rows) > 1:
        raise BadRequest("There is more than one organisation.", remedy="Say which one with --org NAME.")
    return _org(rows[0])


def _org(row: Row) -> Org:
    return Org(row["id"], row["name"], row["created_at"])
