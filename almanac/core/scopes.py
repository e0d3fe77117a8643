"""The scopes: the permissions that a token can have."""

from collections.abc import Iterable

from almanac.core.errors import BadRequest

SCOPES: dict[str, str] = {
    "knowledge:read": "list knowledge bases; browse, read and search documents; at /mcp/memory, search and read notes",
    "knowledge:write": (
        "add, change, move and delete documents and folders; at /mcp/memory, store and supersede notes"
    ),
    "search:read": "search everything the caller may read",
    "catalogue:read": "read categories, entities and relations",
    "catalogue:write": "change categories, entities and relations",
    "memory:read": "search and read notes, except at /mcp/memory",
    "memory:write": "store and supersede notes, except at /mcp/memory",
    "data:read": "list datasources, run queries, read datasets",
    "data:write": "create and change datasources, queries and datasets",
    "boards:read": "see dashboards and widgets",
    "boards:write": "create and change dashboards and widgets",
    "delivery:read": "see reports and alerts",
    "delivery:write": "create and change reports and alerts",
    "assist:use": "ask questions in plain language",
    "audit:read": "read the audit trail and metrics",
    "admin": "administer the organisation",
}

# The scopes that a scope includes: a caller who may read documents may search them.
INCLUDED_SCOPES = {"knowledge:read": frozenset({"search:read"})}

# Only an administrator's tokens may carry these.
PRIVILEGED = frozenset({"admin", "audit:read"})

UNPRIVILEGED_SCOPES = frozenset(SCOPES) - PRIVILEGED

# Notes, the catalogue and datasets belong to no knowledge base, so a token that is limited to some cannot have these.
OUTSIDE_BASES = frozenset(
    {"catalogue:read", "catalogue:write", "memory:read", "memory:write", "data:read", "data:write"}
)

# The scopes of an agent's token that is made without scopes: it reads everything and stores notes.
DEFAULT_AGENT_SCOPES = frozenset(s for s in UNPRIVILEGED_SCOPES if s.endswith(":read")) | {"memory:write", "assist:use"}


def with_included(granted: frozenset[str]) -> frozenset[str]:
    """The scopes of a token: those that it was granted and those that they include."""
    return granted.union(*(INCLUDED_SCOPES.get(scope, frozenset()) for scope in granted))


def parse_scopes(names: Iterable[str]) -> frozenset[str]:
    """The given scopes as a set. BadRequest, with the list of all scopes, for an unknown one."""
    asked = frozenset(names)
    if unknown := sorted(asked - SCOPES.keys()):
        raise BadRequest(f"Unknown scope {', '.join(unknown)}.", remedy=f"The scopes are: {', '.join(SCOPES)}.")
    return asked
