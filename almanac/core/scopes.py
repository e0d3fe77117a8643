"""What a token may be allowed to do: one table, read by tokens, tools and documents alike."""

from collections.abc import Iterable

from almanac.core.errors import BadRequest

SCOPES: dict[str, str] = {
    "knowledge:read": "list knowledge bases, browse and read documents",
    "knowledge:write": "add, change, move and delete documents and folders",
    "search:read": "search everything the caller may read",
    "catalogue:read": "read categories, entities and relations",
    "catalogue:write": "change categories, entities and relations",
    "memory:read": "search and read what agents have learnt",
    "memory:write": "store and supersede notes",
    "data:read": "list datasources, run queries, read datasets",
    "data:write": "create and change datasources, queries and datasets",
    "boards:read": "see dashboards and widgets",
    "boards:write": "create and change dashboards and widgets",
    "delivery:read": "see reports and alerts",
    "delivery:write": "create and change reports and alerts",
    "assist:use": "ask plain questions over all of it",
    "audit:read": "read the audit trail and metrics",
    "admin": "administer the organisation",
}

# Only an administrator's tokens may carry these.
PRIVILEGED = frozenset({"admin", "audit:read"})

UNPRIVILEGED_SCOPES = frozenset(SCOPES) - PRIVILEGED

# What an agent's token gets when none are named: to read everything and to remember, but to change nothing else.
DEFAULT_AGENT_SCOPES = frozenset(s for s in UNPRIVILEGED_SCOPES if s.endswith(":read")) | {"memory:write", "assist:use"}


def parse_scopes(names: Iterable[str]) -> frozenset[str]:
    """The given scopes as a set, or an error that lists the ones there are."""
    asked = frozenset(names)
    if unknown := sorted(asked - SCOPES.keys()):
        raise BadRequest(f"Unknown scope {', '.join(unknown)}.", remedy=f"The scopes are: {', '.join(SCOPES)}.")
    return asked
