"""Access control: the role of an actor on an object, and the actions that each role allows.

An object of another organisation is treated as missing. The answer, and the query behind it, are the same as for an id
that was never issued.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from almanac.core import clock
from almanac.core.call import Actor, Call
from almanac.core.database import Reader, Transaction
from almanac.core.errors import Forbidden, NotFound
from almanac.identity.roles import Role

UNKNOWN_ID_REMEDY = "Use an id from a list or a search."

# The lowest role that may perform each action. A search shows text, so it needs "read".
MIN_ROLE_BY_ACTION: dict[str, Role] = {"read": Role.Reporter, "write": Role.Developer, "manage": Role.Maintainer}

_ROLES = """
SELECT role FROM grants WHERE thing_kind = $1 AND thing_id = $2 AND principal_id = $3
UNION ALL
SELECT g.role FROM grants g JOIN members m ON m.group_id = g.group_id
WHERE g.thing_kind = $1 AND g.thing_id = $2 AND m.principal_id = $3
UNION ALL
SELECT role FROM members WHERE group_id = $4 AND principal_id = $3
"""
_ALL_ROLES = """
SELECT thing_id, NULL AS group_id, role FROM grants WHERE thing_kind = $1 AND principal_id = $2
UNION ALL
SELECT g.thing_id, NULL, g.role FROM grants g JOIN members m ON m.group_id = g.group_id
WHERE g.thing_kind = $1 AND m.principal_id = $2
UNION ALL
SELECT NULL, CAST(group_id AS TEXT), role FROM members WHERE principal_id = $2
"""


@dataclass(frozen=True, slots=True)
class ProtectedObject:
    """Anything that roles apply to."""

    kind: str
    id: int | str
    org_id: str
    level: str  # "personal", "group" or "organization"
    owner_id: int | None = None
    group_id: int | None = None
    member_role: Role = Role.Reporter  # of everyone in the organisation, on an object of the organisation


async def role_on(db: Reader, actor: Actor, target: ProtectedObject) -> Role | None:
    """The actor's highest role on an object, or None if the object does not exist for them."""
    if not _is_visible(actor, target):
        await _run_same_query(db, actor, target.kind)
        return None
    if _has_full_access(actor, target):
        return Role.Owner
    rows = await db.fetch(_ROLES, target.kind, str(target.id), actor.id, target.group_id or 0)
    return _highest(actor, target, [Role[row["role"]] for row in rows])


async def roles_on(
    db: Reader, actor: Actor, targets: Sequence[ProtectedObject], kind: str = "base"
) -> list[Role | None]:
    """As `role_on`, for many objects of one kind, always with one query, even without objects."""
    granted: dict[str | None, list[Role]] = {}
    by_group: dict[str | None, list[Role]] = {}
    for row in await db.fetch(_ALL_ROLES, targets[0].kind if targets else kind, actor.id):
        held = granted if row["group_id"] is None else by_group
        held.setdefault(row["thing_id"] or row["group_id"], []).append(Role[row["role"]])

    def role_of(target: ProtectedObject) -> Role | None:
        if not _is_visible(actor, target):
            return None
        if _has_full_access(actor, target):
            return Role.Owner
        return _highest(actor, target, granted.get(str(target.id), []) + by_group.get(str(target.group_id), []))

    return [role_of(target) for target in targets]


async def _run_same_query(db: Reader, actor: Actor, kind: str) -> None:
    """Run the role query for an id that does not exist. Response times then do not reveal whether an object exists."""
    await db.fetch(_ROLES, kind, "0", actor.id, 0)


def _is_visible(actor: Actor, target: ProtectedObject) -> bool:
    is_named = target.kind != "base" or actor.bases is None or target.id in actor.bases
    return target.org_id == actor.org_id and is_named


def _has_full_access(actor: Actor, target: ProtectedObject) -> bool:
    if target.level == "personal":
        return actor.is_operator or target.owner_id == actor.id
    return actor.is_operator or actor.is_admin


def _highest(actor: Actor, target: ProtectedObject, held: list[Role]) -> Role | None:
    if target.level == "organization":
        held = [*held, target.member_role]
    best = max(held, default=None)
    # The creator of a group's object owns it only as long as they may write in the group.
    owns = target.owner_id == actor.id and best is not None and best >= Role.Developer
    return Role.Owner if owns else best


def unknown(name: str) -> NotFound:
    """The error for an object that does not exist or that the caller may not see, such as 'document 7'."""
    return NotFound(f"There is no {name}, or you may not see it.", remedy=UNKNOWN_ID_REMEDY)


async def require(db: Reader, call: Call, action: str, target: ProtectedObject | None, *, name: str) -> Role:
    """The caller's role on the object, if it allows the action. `name` is for error messages, such as 'document 7'."""
    if target is None:
        await _run_same_query(db, call.actor, "base")
    held = None if target is None else await role_on(db, call.actor, target)
    if target is None or held is None:
        raise unknown(name)
    if held < MIN_ROLE_BY_ACTION[action]:
        raise Forbidden(f"To {action} {name} needs the role {MIN_ROLE_BY_ACTION[action].name}; you have {held.name}.")
    call.record_access(target.kind, target.id)
    return held


async def grant(
    tx: Transaction,
    target: ProtectedObject,
    role: Role,
    *,
    principal_id: int | None = None,
    group_id: int | None = None,
) -> None:
    """Set the role of one principal, or of every member of one group, on an object."""
    column, holder = ("principal_id", principal_id) if group_id is None else ("group_id", group_id)
    await tx.execute(
        f"INSERT INTO grants (org_id, thing_kind, thing_id, {column}, role, created_at)"  # noqa: S608 - a literal
        f" VALUES ($1, $2, $3, $4, $5, $6) ON CONFLICT (thing_kind, thing_id, {column}) WHERE {column} IS NOT NULL"
        " DO UPDATE SET role = excluded.role",
        target.org_id,
        target.kind,
        str(target.id),
        holder,
        role.name,
        clock.now(),
    )


async def granted(
    db: Reader, target: ProtectedObject, *, principal_id: int | None = None, group_id: int | None = None
) -> Role | None:
    """The role of one principal or one group that was granted on an object, or None."""
    column, holder = ("principal_id", principal_id) if group_id is None else ("group_id", group_id)
    row = await db.fetch_one(
        f"SELECT role FROM grants WHERE thing_kind = $1 AND thing_id = $2 AND {column} = $3",  # noqa: S608 - a literal
        target.kind,
        str(target.id),
        holder,
    )
    return None if row is None else Role[row["role"]]


async def revoke_grant(
    tx: Transaction, target: ProtectedObject, *, principal_id: int | None = None, group_id: int | None = None
) -> bool:
    """Revoke a granted role. Returns whether there was one."""
    column, holder = ("principal_id", principal_id) if group_id is None else ("group_id", group_id)
    done = await tx.execute(
        f"DELETE FROM grants WHERE thing_kind = $1 AND thing_id = $2 AND {column} = $3",  # noqa: S608 - a literal
        target.kind,
        str(target.id),
        holder,
    )
    return done > 0
