"""The operations that tell callers about themselves and about the server."""

from dataclasses import dataclass
from functools import lru_cache
from typing import Annotated, Any

from pydantic import Field

from almanac import __version__
from almanac.core import clock
from almanac.identity import groups
from almanac.jobs import queue
from almanac.memory import limits
from almanac.operations.context import RequestContext
from almanac.operations.models import EXAMPLE_TIMESTAMP
from almanac.operations.operation import Example, Mcp, NoArguments, Rest, operation
from almanac.quotas import monthly_quotas


@dataclass(slots=True)
class OrganisationInfo:
    """The caller's organisation."""

    id: str
    name: str


@dataclass(slots=True)
class RateLimitInfo:
    """A rate limit and its remaining calls."""

    limit: Annotated[int, Field(description="0: no limit.")]
    window_seconds: int
    remaining: int | None
    resets_at: Annotated[str | None, Field(description="ISO-8601 in UTC.")]


@dataclass(slots=True)
class AgentCallsInfo:
    """The organisation's calls of metered operations in plain language, this month."""

    limit: Annotated[int | None, Field(description="null: no limit.")]
    used: int
    left: int | None
    resets_at: str


@dataclass(slots=True)
class TokenInfo:
    """The limits of the token of this request."""

    id: int
    kind: str
    expires_at: str | None
    base_ids: Annotated[list[int] | None, Field(description="null: all you may see.")]
    tools: Annotated[list[str] | None, Field(description="null: all its scopes allow.")]


@dataclass(slots=True)
class CallerInfo:
    """The caller, the rights of the token and the remaining rate limit."""

    id: int
    name: str
    kind: Annotated[str, Field(description="user or agent")]
    organisation: OrganisationInfo
    is_admin: bool
    groups: Annotated[dict[str, str], Field(description="Your role in each.")]
    scopes: list[str]
    token: TokenInfo
    rate_limit: RateLimitInfo
    agent_calls: AgentCallsInfo


@dataclass(slots=True)
class ServerDetails:
    """The state of the server that only administrators may see."""

    database: str
    shared_limits: Annotated[bool, Field(description="Whether rate limits are counted in Redis.")]
    limits_work: bool
    audit_works: bool
    jobs: Annotated[dict[str, int], Field(description="Background jobs queued, running and dead.")]


@dataclass(slots=True)
class ServerStatus:
    """The state of the server and of its endpoints."""

    status: Annotated[str, Field(description="ok or degraded")]
    version: str
    started_at: str
    surfaces: dict[str, str]
    usage_this_month: dict[str, int]
    details: Annotated[ServerDetails | None, Field(description="Its database and jobs, with the admin scope.")]


@lru_cache(maxsize=256)
def _sorted(scopes: frozenset[str]) -> list[str]:
    return sorted(scopes)


async def whoami(ctx: RequestContext, _: NoArguments) -> CallerInfo:
    """Who you act as, your groups, scopes, remaining rate limit and agent calls; for when a call fails."""
    actor, rule = ctx.actor, ctx.app.call_limit
    left = await ctx.app.rate_limiter.status(rule, actor.limit_key) if rule.is_on else None
    return CallerInfo(
        id=actor.id,
        name=actor.name,
        kind=actor.kind,
        organisation=OrganisationInfo(id=actor.org_id, name=actor.org_name),
        is_admin=actor.is_admin,
        groups=await ctx.app.read_cache.get(("groups", actor.id), lambda: groups.roles_of(ctx.db, actor.id)),
        scopes=_sorted(actor.scopes),
        token=TokenInfo(
            id=actor.token_id,
            kind=actor.token_kind,
            expires_at=clock.format_timestamp(actor.expires_at),
            base_ids=None if actor.bases is None else sorted(actor.bases),
            tools=None if actor.tools is None else sorted(actor.tools),
        ),
        rate_limit=RateLimitInfo(
            limit=rule.calls if rule.is_on else 0,
            window_seconds=rule.seconds,
            remaining=left.remaining if left else None,
            resets_at=clock.format_timestamp(int(left.resets_at * clock.SECOND)) if left else None,
        ),
        agent_calls=await _agent_calls(ctx),
    )


async def _agent_calls(ctx: RequestContext) -> AgentCallsInfo:
    now, org_id, default = clock.now(), ctx.actor.org_id, ctx.app.settings.agent_calls_a_month
    quota = await ctx.app.read_cache.get(
        ("agent_calls", org_id, clock.month(now)),
        lambda: monthly_quotas.get(ctx.db, org_id, monthly_quotas.AGENT_CALLS, default),
    )
    resets_at = clock.format_timestamp(monthly_quotas.next_month(now)) or ""
    return AgentCallsInfo(quota.limit, quota.used, quota.left, resets_at)


async def server_status(ctx: RequestContext, _: NoArguments) -> ServerStatus:
    """Whether this server works, its version, endpoints and your organisation's usage this month."""
    app = ctx.app
    limits_work = await app.rate_limiter.is_available()
    details = None
    if "admin" in ctx.actor.scopes:
        details = ServerDetails(
            database=ctx.db.dialect,
            shared_limits=bool(app.settings.redis_url),
            limits_work=limits_work,
            audit_works=app.recorder.trail.is_available,
            jobs=await queue.counts(ctx.db),
        )
    return ServerStatus(
        status="ok" if limits_work and app.recorder.trail.is_available else "degraded",
        version=__version__,
        started_at=clock.format_timestamp(app.started_at) or "",
        surfaces=dict(app.surfaces),
        usage_this_month=await monthly_quotas.used(ctx.db, ctx.actor.org_id),
        details=details,
    )


async def usage(ctx: RequestContext, _: NoArguments) -> dict[str, Any]:
    """What remains of your limits."""
    return await limits.report(ctx, ctx.app.settings, ctx.app.rate_limiter)


OPERATIONS = (
    operation(
        whoami,
        title="Who am I",
        rest=Rest("GET", "/whoami"),
        mcp=Mcp(outlines_answer=False),
        example=Example(
            answer=CallerInfo(
                id=1,
                name="ada",
                kind="user",
                organisation=OrganisationInfo("4f0c…", "Acme"),
                is_admin=True,
                groups={"workshop": "Owner"},
                scopes=["knowledge:read", "search:read"],
                token=TokenInfo(3, "user", None, None, None),
                rate_limit=RateLimitInfo(120, 60, 119, EXAMPLE_TIMESTAMP),
                agent_calls=AgentCallsInfo(500, 12, 488, "2026-12-01T00:00:00.000Z"),
            )
        ),
    ),
    operation(
        server_status,
        title="Server status",
        rest=Rest("GET", "/status"),
        mcp=Mcp(outlines_answer=False),
        example=Example(
            answer=ServerStatus("ok", "0.1.0", EXAMPLE_TIMESTAMP, {"almanac": "/mcp"}, {"tool_calls": 42}, None)
        ),
    ),
)

# It stands beside the MCP endpoints, where their clients look for it, and not below the REST prefix.
USAGE_REPORT = operation(usage, rest=Rest("GET", "/mcp/usage"))
