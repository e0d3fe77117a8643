"""Sharing: roles on one object that its managers grant to users, agents and groups."""

from dataclasses import dataclass

from almanac.core.database import Reader, Transaction
from almanac.core.errors import BadRequest, Forbidden, NotFound
from almanac.identity import access, groups, principals
from almanac.identity.access import ProtectedObject
from almanac.identity.roles import Role

NAMES = {"base": "knowledge base", "dataset": "dataset"}


@dataclass(frozen=True, slots=True)
class Grant:
    """A role on an object that was granted to a user, an agent or a group."""

    kind: str  # user, agent or group
    name: str
    role: Role


async def share(
    tx: Transaction,
    target: ProtectedObject,
    own_role: Role | None,
    role: Role | None,
    *,
    user: str | None = None,
    group: str | None = None,
) -> None:
    """Grant a role to a user, an agent or a group; None revokes it. The caller, who has `own_role`, may manage it."""
    if role is not None and own_role is not None and role > own_role:
        raise Forbidden(f"You are {own_role.name} and cannot grant the role {role.name}.", remedy="Grant a lower role.")
    if (user is None) == (group is None):
        raise BadRequest("A role is given to one user or one group.", remedy="Give either user or group, by name.")
    holder = (
        {"principal_id": (await principals.get_by_name(tx, target.org_id, user)).id}
        if user is not None
        else {"group_id": (await groups.get_by_name(tx, target.org_id, group or "")).id}
    )
    current = await access.granted(tx, target, **holder)
    if current is not None and own_role is not None and current > own_role:
        raise Forbidden(
            f"{user or group!r} is {current.name} here, and you are {own_role.name}.", remedy="Ask an owner."
        )
    if role is not None:
        await access.grant(tx, target, role, **holder)
    elif not await access.revoke_grant(tx, target, **holder):
        raise NotFound(
            f"{NAMES[target.kind].capitalize()} {target.id} is not shared with {user or group!r}.",
            remedy="There is nothing to revoke, unless you meant another name.",
        )


async def find(db: Reader, target: ProtectedObject) -> list[Grant]:
    """The roles that were granted on an object."""
    rows = await db.fetch(
        "SELECT coalesce(p.kind, 'group') AS kind, coalesce(p.name, g.name) AS name, r.role FROM grants r"
        " LEFT JOIN principals p ON p.id = r.principal_id LEFT JOIN groups g ON g.id = r.group_id"
        " WHERE r.thing_kind = $1 AND r.thing_id = $2 ORDER BY r.id",
        target.kind,
        str(target.id),
    )
    return [Grant(row["kind"], row["name"], Role[row["role"]]) for row in rows]
