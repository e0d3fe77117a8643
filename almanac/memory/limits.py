"""Limits: how often a token may ask the memory surface, and what its organisation may store and has stored."""

from typing import Any

from almanac.core import clock
from almanac.core.call import Call
from almanac.core.settings import Settings
from almanac.quotas import allowances, usage
from almanac.quotas.rate_limits import RateLimit, RateLimiter

WINDOW = 60  # seconds
UNLIMITED = "unlimited"


def rule_of(settings: Settings, scopes: frozenset[str]) -> RateLimit:
    """The limit of a token: one that can only read may do so ten times as often."""
    only_reads = bool(scopes) and all(scope.endswith(":read") for scope in scopes)
    # In Redis: rl:{tokenId}:{minute}, as the surface's document has it.
    return RateLimit("rl", settings.memory_read_calls if only_reads else settings.memory_calls, WINDOW, "aligned")


async def report(call: Call, settings: Settings, rates: RateLimiter) -> dict[str, Any]:
    """What remains of the caller's limit, what its organisation may use, and has used this month."""
    rule = rule_of(settings, call.actor.scopes)
    left = await rates.status(rule, call.actor.limit_key) if rule.is_on else None
    now, org_id = clock.now(), call.actor.org_id
    usual = {"knowledge_stored": settings.memory_notes_a_month}
    entitled = {name: await allowances.monthly_limit(call.db, org_id, name, usual[name]) for name in allowances.METRICS}
    counted = await usage.used(call.db, org_id)
    return {
        "rateLimit": {
            "limit": rule.calls if rule.is_on else UNLIMITED,
            "windowSeconds": rule.seconds,
            "remaining": left.remaining if left else UNLIMITED,
            "resetsAt": clock.format_timestamp(int(left.resets_at * clock.SECOND)) if left else None,
        },
        "entitlements": {name: UNLIMITED if most is None else most for name, most in entitled.items()},
        "usage": {
            "period": clock.month(now),
            "nextResetAt": clock.format_timestamp(allowances.next_month(now)),
            "counts": {**dict.fromkeys(allowances.METRICS, 0), **counted},
        },
    }
