"""Who may do what to which: the one place that answers it, for every slice.

Another organisation's thing does not exist: it gives the same answer, from the same query, as an id that was
never issued.
"""

from dataclasses import dataclass

from almanac.core import clock
from almanac.core.call import Actor, Call
from almanac.core.database import Reader, Transaction
from almanac.core.errors import Forbidden, NotFound
from almanac.identity.roles import Role

# The least role that each action needs.
ACTIONS: dict[str, Role] = {
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


@dataclass(frozen=True, slots=True)
class Thing:
    """Anything with an owner that can be shared."""

    kind: str
    id: int | str
    org_id: str
    level: str  # "personal", "group" or "organization"
    owner_id: int | None = None
    group_id: int | None = None


async def role(db: Reader, actor: Actor, thing: Thing) -> Role | None:
    """The highest role the actor has on the thing, or None if it does not exist for them."""
    if thing.org_id != actor.org_id:
        return None
    if thing.kind == "base" and actor.bases is not None and thing.id not in actor.bases:
        return None
    if thing.owner_id == actor.id or (actor.is_admin and thing.level != "personal"):
        return Role.Owner
    rows = await db.fetch(_ROLES, thing.kind, str(thing.id), actor.id, thing.group_id or 0)
    held = [Role[row["role"]] for row in rows]
    if thing.level == "organization":
        held.append(Role.Reporter)  # everyone in the organisation may read what belongs to it
    return max(held, default=None)


async def may(db: Reader, actor: Actor, action: str, thing: Thing) -> bool:
    """Whether the actor may do this to the thing."""
    held = await role(db, actor, thing)
    return held is not None and held >= ACTIONS[action]


async def require(call: Call, action: str, thing: Thing | None, *, name: str) -> Thing:
    """The thing, if the caller may do this to it; `name` is what an error calls it, such as 'knowledge base 7'."""
    held = None if thing is None else await role(call.db, call.actor, thing)
    if thing is None or held is None:
        raise NotFound(f"There is no {name}, or you may not see it.")
    if held < ACTIONS[action]:
        raise Forbidden(f"To {action} {name} needs the role {ACTIONS[action].name}; you have {held.name}.")
    call.touch(thing.kind, thing.id)
    return thing


async def grant(
    tx: Transaction, thing: Thing, role: Role, *, principal_id: int | None = None, group_id: int | None = None
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


async def withdraw(
    tx: Transaction, thing: Thing, *, principal_id: int | None = None, group_id: int | None = None
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
