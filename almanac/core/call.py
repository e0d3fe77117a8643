"""Who is calling, and one call of theirs."""

from contextvars import ContextVar
from dataclasses import dataclass, field

from almanac.core.database import Database

# The request being served, for whatever is logged along the way.
REQUEST_ID: ContextVar[str] = ContextVar("request_id")


@dataclass(frozen=True, slots=True)
class Actor:
    """A user or agent, as one of their tokens lets them act."""

    id: int
    name: str
    kind: str  # "user" or "agent"
    org_id: str
    org_name: str
    is_admin: bool
    token_id: int
    token_kind: str
    scopes: frozenset[str]
    bases: frozenset[int] | None = None  # None: not limited to some
    tools: frozenset[str] | None = None
    expires_at: int | None = None
    is_operator: bool = False  # at the command line, beside the data itself: owns everything of the organisation

    @property
    def limit_key(self) -> str:
        """What this token's rate limits are counted under; unique wherever limits are shared."""
        return f"{self.org_id}:{self.token_id}"


@dataclass(slots=True)
class Call:
    """One request being served. Verbs take it first and find in it whom they serve and where the data is."""

    actor: Actor
    db: Database
    request_id: str
    accessed: list[str] = field(default_factory=list[str])

    def record_access(self, kind: str, identifier: int | str) -> None:
        """Note for the audit trail that this call read or changed a thing."""
        name = f"{kind}:{identifier}"
        # A listing must not make its audit row grow with its answer, nor a transaction that is run again.
        if len(self.accessed) < 100 and name not in self.accessed:
            self.accessed.append(name)
