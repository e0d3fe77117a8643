"""The SQL condition that decides which knowledge bases an actor may see, for lists and for search.

`identity/access.py` decides the same for a single base. The tests compare the two for every role and level.
"""

from almanac.core.call import Actor
from almanac.core.database import Value
from almanac.db.sql import id_list
from almanac.identity.roles import Role

LEVELS = ("personal", "group", "organization")
SCOPES = ("all", *LEVELS)

# $1 is the organisation, $2 the actor, $3 the actor's rank: 2 for an operator, 1 for an administrator, 0 otherwise.
_SHARED = """b.id IN (SELECT CAST(r.thing_id AS BIGINT) FROM grants r
    WHERE r.thing_kind = 'base' AND r.principal_id = $2 AND r.role IN ({roles})
    UNION ALL SELECT CAST(r.thing_id AS BIGINT) FROM grants r JOIN members m ON m.group_id = r.group_id
    WHERE r.thing_kind = 'base' AND m.principal_id = $2 AND r.role IN ({roles}))"""
_CONDITIONS = {
    "personal": f"(b.level = 'personal' AND ($3 = 2 OR b.owner_id = $2) OR $3 < 2 AND {_SHARED})",
    "group": """(b.level = 'group' AND ($3 > 0 OR b.group_id IN (
        SELECT m.group_id FROM members m WHERE m.principal_id = $2 AND m.role IN ({roles}))))""",
    "organization": "b.level = 'organization'",
}
_CONDITIONS["all"] = f"({' OR '.join(_CONDITIONS.values())})"


def condition(
    actor: Actor, scope: str = "all", min_role: Role = Role.RestrictedAnalyst
) -> tuple[str, tuple[Value, ...]]:
    """A condition on a row `b` of `bases`, and its parameters from $1 on.

    It holds for bases on which the actor has `min_role` or a higher role. The scope `personal` also contains every
    base that was shared with the actor.
    """
    roles = ", ".join(f"'{role.name}'" for role in Role if role >= min_role)
    # PostgreSQL refuses a parameter that the statement does not use.
    parts = ["b.org_id = $1 AND $2 >= 0 AND $3 >= 0", _CONDITIONS[scope].format(roles=roles)]
    if actor.bases is not None:
        parts.append(f"b.id IN ({id_list(sorted(actor.bases))})")
    rank = 2 if actor.is_operator else int(actor.is_admin)
    return " AND ".join(parts), (actor.org_id, actor.id, rank)
