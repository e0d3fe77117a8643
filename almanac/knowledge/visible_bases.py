"""The SQL condition that decides which knowledge bases an actor may see, for lists and for search.

`identity/access.py` decides the same for a single base. The tests compare the two for every role and level.
"""

from almanac.core.call import Actor
from almanac.db.sql import Parameters, id_list
from almanac.identity.roles import Role

LEVELS = ("personal", "group", "organization")
SCOPES = ("all", *LEVELS)

_OWN = "b.level = 'personal' AND b.owner_id = {actor}"
_SHARED = """b.id IN (SELECT CAST(r.thing_id AS BIGINT) FROM grants r
    WHERE r.thing_kind = 'base' AND r.principal_id = {actor} AND r.role IN ({roles})
    UNION ALL SELECT CAST(r.thing_id AS BIGINT) FROM grants r JOIN members m ON m.group_id = r.group_id
    WHERE r.thing_kind = 'base' AND m.principal_id = {actor} AND r.role IN ({roles}))"""
_OF_OWN_GROUPS = """b.level = 'group' AND b.group_id IN (
    SELECT m.group_id FROM members m WHERE m.principal_id = {actor} AND m.role IN ({roles}))"""


def condition(actor: Actor, parameters: Parameters, scope: str = "all", min_role: Role = Role.RestrictedAnalyst) -> str:
    """A condition on a row `b` of `bases`: the actor has `min_role` or a higher role on the base.

    The scope is a level, or `all`. The scope `personal` also contains the bases that were shared with the actor.
    """
    all_of_level = {level: f"b.level = '{level}'" for level in LEVELS}
    conditions = all_of_level
    if not actor.is_operator:
        groups = all_of_level["group"] if actor.is_admin else _OF_OWN_GROUPS
        conditions = {**all_of_level, "personal": f"{_OWN} OR {_SHARED}", "group": groups}
    template = " OR ".join(conditions[level] for level in (LEVELS if scope == "all" else (scope,)))
    visible = template.format(
        actor=parameters.add(actor.id) if "{actor}" in template else "",
        roles=", ".join(f"'{role.name}'" for role in Role if role >= min_role),
    )
    limited = "" if actor.bases is None else f" AND b.id IN ({id_list(sorted(actor.bases))})"
    return f"b.org_id = {parameters.add(actor.org_id)} AND ({visible}){limited}"
