"""The rate limit of the memory surface, and the usage report of `/mcp/usage`."""

from typing import Any

from almanac.core import clock
from almanac.core.call import Call
from almanac.core.settings import Settings
from almanac.quotas import monthly_quotas
from almanac.quotas.rate_limits import RateLimit, RateLimiter

WINDOW_SECONDS = 60
UNLIMITED = "unlimited"


def rate_limit_of(settings: Settings, scopes: frozenset[str]) -> RateLimit:
    """The rate limit of a token with these scopes. Tokens that can only read have a limit of their own."""
    is_read_only = bool(scopes) and all(scope.endswith(":read") for scope in scopes)
    # The specification of the surface names the Redis key: rl:{tokenId}:{minute}.
    return RateLimit(
        "rl", settings.memory_read_calls if is_read_only else settings.memory_calls, WINDOW_SECONDS, "aligned"
    )


async def report(call: Call, settings: Settings, rates: RateLimiter) -> dict[str, Any]:
    """The token's remaining rate limit, and the organisation's monthly quotas and usage."""
    limit = rate_limit_of(settings, call.actor.scopes)
    status = await rates.status(limit, call.actor.limit_key) if limit.is_on else None
    now, org_id = clock.now(), call.actor.org_id
    defaults = {"knowledge_stored": settings.memory_notes_a_month}
    quotas = {
        name: await monthly_quotas.monthly_limit(call.db, org_id, name, default) for name, default in defaults.items()
    }
    used = await monthly_quotas.used(call.db, org_id)
    return {
        "rateLimit": {
            "limit": limit.calls if limit.is_on else UNLIMITED,
            "windowSeconds": limit.seconds,
            "remaining": status.remaining if status else UNLIMITED,
            "resetsAt": clock.format_timestamp(int(status.resets_at * clock.SECOND)) if status else None,
        },
        "entitlements": {name: UNLIMITED if quota is None else quota for name, quota in quotas.items()},
        "usage": {
            "period": clock.month(now),
            "nextResetAt": clock.format_timestamp(monthly_quotas.next_month(now)),
            "counts": {**dict.fromkeys(quotas, 0), **used},
        },
    }
