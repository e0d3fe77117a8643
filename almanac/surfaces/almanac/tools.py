"""Our own surface: small, and every answer structured."""

from dataclasses import dataclass
from functools import lru_cache
from typing import Annotated

from pydantic import Field

from almanac import __version__
from almanac.core import clock
from almanac.identity import groups
from almanac.jobs import queue
from almanac.quotas import usage
from almanac.surfaces.almanac import catalogue, knowledge, memory, search, upkeep
from almanac.surfaces.surface import Surface
from almanac.surfaces.tool import READS, NoArguments, Tool, ToolCall

INSTRUCTIONS = (
    "Almanac holds what this organisation knows, in knowledge bases of documents and a catalogue of things "
    "(find_entities, browse_categories). Begin with search, then fetch or "
    "read_document; list_bases and browse show what there is. Cite by id and hash. Call whoami to see who "
    "you act for and what your token allows; tools that your token may not use are not listed."
)


@dataclass(slots=True)
class Organisation:
    """An organisation, as a caller sees its own."""

    id: str
    name: str


@dataclass(slots=True)
class Allowance:
    """What remains of a rate limit."""

    limit: Annotated[int, Field(description="0: no limit.")]
    window_seconds: int
    remaining: int | None
    resets_at: Annotated[str | None, Field(description="ISO-8601 in UTC.")]


@dataclass(slots=True)
class TokenFacts:
    """What the presented token is limited to."""

    id: int
    kind: str
    expires_at: str | None
    bases: Annotated[list[int] | None, Field(description="null: all you may see.")]
    tools: Annotated[list[str] | None, Field(description="null: all its scopes allow.")]


@dataclass(slots=True)
class Whoami:
    """The answer of `whoami`."""

    id: int
    name: str
    kind: Annotated[str, Field(description="user or agent")]
    organisation: Organisation
    is_admin: bool
    groups: Annotated[dict[str, str], Field(description="Your role in each.")]
    scopes: list[str]
    token: TokenFacts
    rate_limit: Allowance


@dataclass(slots=True)
class Details:
    """What only an administrator is told of the server."""

    database: str
    shared_limits: Annotated[bool, Field(description="Whether rate limits are counted in Redis.")]
    limits_work: bool
    audit_works: bool
    jobs: Annotated[dict[str, int], Field(description="Background jobs queued, running and dead.")]


@dataclass(slots=True)
class Status:
    """The answer of `server_status`."""

    status: Annotated[str, Field(description="ok or degraded")]
    version: str
    started_at: str
    surfaces: dict[str, str]
    usage_this_month: dict[str, int]
    details: Annotated[Details | None, Field(description="Its database and jobs, with the admin scope.")]


@lru_cache(maxsize=256)
def _in_order(scopes: frozenset[str]) -> list[str]:
    return sorted(scopes)


async def whoami(call: ToolCall, _: NoArguments) -> Whoami:
    """Who is calling, what they may do, and what remains of their limits."""
    actor, rule = call.actor, call.house.call_rule
    left = await call.house.rates.status(rule, actor.limit_key) if rule.is_on else None
    return Whoami(
        id=actor.id,
        name=actor.name,
        kind=actor.kind,
        organisation=Organisation(id=actor.org_id, name=actor.org_name),
        is_admin=actor.is_admin,
        groups=await call.house.remembered.get(("groups", actor.id), lambda: groups.roles_of(call.db, actor.id)),
        scopes=_in_order(actor.scopes),
        token=TokenFacts(
            id=actor.token_id,
            kind=actor.token_kind,
            expires_at=clock.format_timestamp(actor.expires_at),
            bases=None if actor.bases is None else sorted(actor.bases),
            tools=None if actor.tools is None else sorted(actor.tools),
        ),
        rate_limit=Allowance(
            limit=rule.calls if rule.is_on else 0,
            window_seconds=rule.seconds,
            remaining=left.remaining if left else None,
            resets_at=clock.format_timestamp(int(left.resets_at * clock.SECOND)) if left else None,
        ),
    )


async def server_status(call: ToolCall, _: NoArguments) -> Status:
    """Whether the server works, and where its endpoints are."""
    house = call.house
    limits_work = await house.rates.is_available()
    details = None
    if "admin" in call.actor.scopes:
        details = Details(
            database=call.db.dialect,
            shared_limits=bool(house.settings.redis_url),
            limits_work=limits_work,
            audit_works=house.trail.is_available,
            jobs=await queue.counts(call.db),
        )
    return Status(
        status="ok" if limits_work and house.trail.is_available else "degraded",
        version=__version__,
        started_at=clock.format_timestamp(house.started_at) or "",
        surfaces=dict(house.surfaces),
        usage_this_month=await usage.used(call.db, call.actor.org_id),
        details=details,
    )


SURFACE = Surface(
    name="almanac",
    path="/mcp",
    title="Almanac",
    instructions=INSTRUCTIONS,
    tools=(
        Tool(
            name="whoami",
            title="Who am I",
            description=("Who you act as, your groups, scopes and remaining rate limit; for when a call fails."),
            run=whoami,
            output=Whoami,
            annotations=READS,
        ),
        Tool(
            name="server_status",
            title="Server status",
            description="Whether this server works, its version, endpoints and your organisation's usage this month.",
            run=server_status,
            output=Status,
            annotations=READS,
        ),
        *search.TOOLS,
        *knowledge.TOOLS,
        *upkeep.TOOLS,
        *catalogue.TOOLS,
        *memory.TOOLS,
    ),
)
