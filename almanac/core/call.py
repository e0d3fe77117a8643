"""The actor of a request, and the request's state."""

from contextvars import ContextVar
from dataclasses import dataclass, field

from almanac.core.database import Database

# The id of the current request. Each log line contains it.
REQUEST_ID: ContextVar[str] = ContextVar("request_id")


@dataclass(frozen=True, slots=True)
class Actor:
    """A user or agent, limited by the token of the request."""

    id: int
    name: str
    kind: str  # "user" or "agent"
    org_id: str
    org_name: str
    is_admin: bool
    token_id: int
    token_kind: str
    scopes: frozenset[str]
    bases: frozenset[int] | None = None  # None: all
    tools: frozenset[str] | None = None
    expires_at: int | None = None
    is_operator: bool = False  # at the command line, with access to the data: owns everything of the organisation

    @property
    def limit_key(self) -> str:
        """The key of this token's rate limits, unique across the processes that share limits."""
        return f"{self.org_id}:{self.token_id}"


@dataclass(slots=True)
class Call:
    """One request: its actor, its database and its id. It is the first argument of functions that act for a caller."""

    actor: Actor
    db: Database
    request_id: str
    accessed: list[str] = field(default_factory=list[str])

    def record_access(self, kind: str, identifier: int | str) -> None:
        """Note for the audit trail that this call read or changed an object."""
        name = f"{kind}:{identifier}"
        # Neither a long listing nor a repeated transaction may make the audit row grow.
        if len(self.accessed) < 100 and name not in self.accessed:
            self.accessed.append(name)
