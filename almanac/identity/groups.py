"""Groups of users and agents. Each member has a role."""

from dataclasses import dataclass

from almanac.core import clock
from almanac.core.database import Reader, Row, Transaction
from almanac.core.errors import Conflict, NotFound
from almanac.identity.orgs import check_name
from almanac.identity.principals import Principal
from almanac.identity.roles import Role


@dataclass(frozen=True, slots=True)
class Group:
    """One group."""

    id: int
    org_id: str
    name: str
    display_name: str
    members: int = 0


async def add(tx: Transaction, org_id: str, name: str, display_name: str | None = None) -> Group:
    """Create a group."""
    name = check_name("a group", name)
    row = await tx.fetch_one(
        "INSERT INTO groups (org_id, name, display_name, created_at) VALUES ($1, $2, $3, $4)"
        " ON CONFLICT (org_id, name) DO NOTHING RETURNING id, org_id, name, display_name, 0 AS members",
        org_id,
        name,
        display_name or name,
        clock.now(),
    )
    if row is None:
        raise Conflict(f"There is already a group named {name!r}.", remedy="Choose another name.")
    return _group(row)


async def get_by_name(db: Reader, org_id: str, name: str) -> Group:
    """The group of that name."""
    row = await db.fetch_one(
        "SELECT id, org_id, name, display_name, 0 AS members FROM groups WHERE org_id = $1 AND name = $2", org_id, name
    )
    if row is None:
        raise NotFound(
            f"There is no group named {name!r}.", remedy="Use its exact name; 'almanac group list' shows all."
        )
    return _group(row)


async def find(db: Reader, org_id: str) -> list[Group]:
    """The groups of an organisation by name, with the number of members."""
    rows = await db.fetch(
        "SELECT g.id, g.org_id, g.name, g.display_name, count(m.principal_id) AS members"
        " FROM groups g LEFT JOIN members m ON m.group_id = g.id WHERE g.org_id = $1"
        " GROUP BY g.id, g.org_id, g.name, g.display_name ORDER BY g.name",
        org_id,
    )
    return [_group(row) for row in rows]


async def set_member(tx: Transaction, group: Group, principal: Principal, role: Role) -> None:
    """Add a member with a role, or change the role of a member."""
    if group.org_id != principal.org_id:
        raise NotFound(f"There is no user or agent named {principal.name!r} in this organisation.")
    await tx.execute(
        "INSERT INTO members (group_id, principal_id, role, since) VALUES ($1, $2, $3, $4)"
        " ON CONFLICT (group_id, principal_id) DO UPDATE SET role = excluded.role",
        group.id,
        principal.id,
        role.name,
        clock.now(),
    )


async def remove_member(tx: Transaction, group: Group, principal: Principal) -> None:
    """Remove a member from a group."""
    done = await tx.execute("DELETE FROM members WHERE group_id = $1 AND principal_id = $2", group.id, principal.id)
    if not done:
        raise NotFound(f"{principal.name!r} is not in the group {group.name!r}.")


async def roles_of(db: Reader, principal_id: int) -> dict[str, str]:
    """The groups of a principal, with its role in each."""
    rows = await db.fetch(
        "SELECT g.name, m.role FROM members m JOIN groups g ON g.id = m.group_id"
        " WHERE m.principal_id = $1 ORDER BY g.name",
        principal_id,
    )
    return {row["name"]: row["role"] for row in rows}


def _group(row: Row) -> Group:
    return Group(row["id"], row["org_id"], row["name"], row["display_name"], row["members"])
