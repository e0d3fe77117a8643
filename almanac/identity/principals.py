"""Principals: the users and agents that can hold tokens."""

from dataclasses import dataclass

from almanac.core import clock
from almanac.core.database import Reader, Row, Transaction
from almanac.core.errors import BadRequest, Conflict, NotFound
from almanac.identity.orgs import check_name

KINDS = {"user": "a user", "agent": "an agent"}


@dataclass(frozen=True, slots=True)
class Principal:
    """One user or agent."""

    id: int
    org_id: str
    kind: str
    name: str
    is_admin: bool
    created_at: int


async def add(tx: Transaction, org_id: str, kind: str, name: str, *, is_admin: bool = False) -> Principal:
    """Create a user or an agent. Names are unique across both kinds, because a token is issued to a name."""
    if kind not in KINDS:
        raise BadRequest(f"{kind!r} is neither 'user' nor 'agent'.")
    name = check_name(KINDS[kind], name)
    row = await tx.fetch_one(
        "INSERT INTO principals (org_id, kind, name, is_admin, created_at) VALUES ($1, $2, $3, $4, $5)"
        " ON CONFLICT (org_id, name) WHERE removed_at IS NULL DO NOTHING RETURNING *",
        org_id,
        kind,
        name,
        int(is_admin),
        clock.now(),
    )
    if row is None:
        raise Conflict(
            f"There is already a user or agent named {name!r} in this organisation.", remedy="Choose another name."
        )
    return _principal(row)


async def get_by_name(db: Reader, org_id: str, name: str) -> Principal:
    """The user or agent with this name."""
    row = await db.fetch_one(
        "SELECT * FROM principals WHERE org_id = $1 AND name = $2 AND removed_at IS NULL", org_id, name
    )
    if row is None:
        raise NotFound(
            f"There is no user or agent named {name!r} in this organisation.",
            remedy="Use the exact name; 'almanac user list' and 'almanac agent list' show all.",
        )
    return _principal(row)


async def find(db: Reader, org_id: str, kind: str) -> list[Principal]:
    """The users or the agents of an organisation, ordered by name."""
    rows = await db.fetch(
        "SELECT * FROM principals WHERE org_id = $1 AND kind = $2 AND removed_at IS NULL ORDER BY name", org_id, kind
    )
    return [_principal(row) for row in rows]


async def remove(tx: Transaction, principal: Principal) -> None:
    """Remove a user or agent. Its tokens stop working with the next call; its audit rows stay."""
    now = clock.now()
    await tx.execute("UPDATE principals SET removed_at = $1 WHERE id = $2", now, principal.id)
    await tx.execute(
        "UPDATE tokens SET revoked_at = $1 WHERE principal_id = $2 AND revoked_at IS NULL", now, principal.id
    )
    await tx.execute(
        "UPDATE clients SET revoked_at = $1 WHERE principal_id = $2 AND revoked_at IS NULL", now, principal.id
    )
    await tx.execute("DELETE FROM members WHERE principal_id = $1", principal.id)
    await tx.execute("DELETE FROM grants WHERE principal_id = $1", principal.id)


def _principal(row: Row) -> Principal:
    return Principal(row["id"], row["org_id"], row["kind"], row["name"], bool(row["is_admin"]), row["created_at"])
