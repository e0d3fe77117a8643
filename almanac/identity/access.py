"""Who may do what to which: the one place that answers it, for every slice.

Another organisation's thing does not exist: it gives the same answer, from the same query, as an id that was
never issued.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from almanac.core import clock
from almanac.core.call import Actor, Call
from almanac.core.database import Reader, Transaction
from almanac.core.errors import Forbidden, NotFound
from almanac.identity.roles import Role

# The least role that each action needs.
MIN_ROLE_BY_ACTION: dict[str, Role] = {
    "search": Role.RestrictedAnalyst,
    "read": Role.Reporter,
    "write": Role.Developer,
    "manage": Role.Maintainer,
    "own": Role.Owner,
}

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
    """Anything with an owner that can be shared."""

    kind: str
    id: int | str
    org_id: str
    level: str  # "personal", "group" or "organization"
    owner_id: int | None = None
    group_id: int | None = None


async def role_on(db: Reader, actor: Actor, thing: ProtectedObject) -> Role | None:
    """The highest role the actor has on the thing, or None if it does not exist for them."""
    if not _is_within_reach(actor, thing):
        await _run_same_query(db, actor, thing.kind)
        return None
    if _has_full_access(actor, thing):
        return Role.Owner
    rows = await db.fetch(_ROLES, thing.kind, str(thing.id), actor.id, thing.group_id or 0)
    return _highest(actor, thing, [Role[row["role"]] for row in rows])


async def roles_on(
    db: Reader, actor: Actor, things: Sequence[ProtectedObject], kind: str = "base"
) -> list[Role | None]:
    """As `role`, for many things of one kind, in one query however many they are, none included."""
    given: dict[str | None, list[Role]] = {}
    member: dict[str | None, list[Role]] = {}
    for row in await db.fetch(_ALL_ROLES, things[0].kind if things else kind, actor.id):
        held = given if row["group_id"] is None else member
        held.setdefault(row["thing_id"] or row["group_id"], []).append(Role[row["role"]])

    def judge(thing: ProtectedObject) -> Role | None:
        if not _is_within_reach(actor, thing):
            return None
        if _has_full_access(actor, thing):
            return Role.Owner
        return _highest(actor, thing, given.get(str(thing.id), []) + member.get(str(thing.group_id), []))

    return [judge(thing) for thing in things]


async def _run_same_query(db: Reader, actor: Actor, kind: str) -> None:
    """Ask what is asked of a thing that is there, so that nobody can tell by the time it takes that one is not."""
    await db.fetch(_ROLES, kind, "0", actor.id, 0)


def _is_within_reach(actor: Actor, thing: ProtectedObject) -> bool:
    is_named = thing.kind != "base" or actor.bases is None or thing.id in actor.bases
    return thing.org_id == actor.org_id and is_named


def _has_full_access(actor: Actor, thing: ProtectedObject) -> bool:
    if thing.level == "personal":
        return actor.is_operator or thing.owner_id == actor.id
    return actor.is_operator or actor.is_admin


def _highest(actor: Actor, thing: ProtectedObject, held: list[Role]) -> Role | None:
    if thing.level == "organization":
        held = [*held, Role.Reporter]  # everyone in the organisation may read what belongs to it
    best = max(held, default=None)
    # What someone made for a group stays theirs while they may write there, and not when they have left.
    owns = thing.owner_id == actor.id and best is not None and best >= Role.Developer
    return Role.Owner if owns else best


async def may(db: Reader, actor: Actor, action: str, thing: ProtectedObject) -> bool:
    """Whether the actor may do this to the thing."""
    held = await role_on(db, actor, thing)
    return held is not None and held >= MIN_ROLE_BY_ACTION[action]


async def require(db: Reader, call: Call, action: str, thing: ProtectedObject | None, *, name: str) -> Role:
    """The caller's role on the thing, if it lets them do this; `name` is what an error calls it: 'document 7'."""
    if thing is None:
        await _run_same_query(db, call.actor, "base")
    held = None if thing is None else await role_on(db, call.actor, thing)
    if thing is None or held is None:
        raise NotFound(f"There is no {name}, or you may not see it.")
    if held < MIN_ROLE_BY_ACTION[action]:
        raise Forbidden(f"To {action} {name} needs the role {MIN_ROLE_BY_ACTION[action].name}; you have {held.name}.")
    call.record_access(thing.kind, thing.id)
    return held


async def grant(
    tx: Transaction, thing: ProtectedObject, role: Role, *, principal_id: int | None = None, group_id: int | None = None
) -> None:
    """Give a role on a thing to one principal or to every member of one group, or change the one they have."""
    column, holder = ("principal_id", principal_id) if group_id is None else ("group_id", group_id)
    await tx.execute(
        f"INSERT INTO grants (org_id, thing_kind, thing_id, {column}, role, created_at)"  # noqa: S608 - a literal
        f" VALUES ($1, $2, $3, $4, $5, $6) ON CONFLICT (thing_kind, thing_id, {column}) WHERE {column} IS NOT NULL"
        " DO UPDATE SET role = excluded.role",
        thing.org_id,
        thing.kind,
        str(thing.id),
        holder,
        role.name,
        clock.now(),
    )


async def granted(
    db: Reader, thing: ProtectedObject, *, principal_id: int | None = None, group_id: int | None = None
) -> Role | None:
    """The role that was given on a thing to one principal or one group, if any was."""
    column, holder = ("principal_id", principal_id) if group_id is None else ("group_id", group_id)
    row = await db.fetch_one(
        f"SELECT role FROM grants WHERE thing_kind = $1 AND thing_id = $2 AND {column} = $3",  # noqa: S608 - a literal
        thing.kind,
        str(thing.id),
        holder,
    )
    return None if row is None else Role[row["role"]]


async def revoke_grant(
    tx: Transaction, thing: ProtectedObject, *, principal_id: int | None = None, group_id: int | None = None
) -> bool:
    """Take a given role back; whether there was one."""
    column, holder = ("principal_id", principal_id) if group_id is None else ("group_id", group_id)
    done = await tx.execute(
        f"DELETE FROM grants WHERE thing_kind = $1 AND thing_id = $2 AND {column} = $3",  # noqa: S608 - a literal
        thing.kind,
        str(thing.id),
        holder,
    )
    return done > 0
