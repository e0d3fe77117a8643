"""Monthly quotas: usage counters of an organisation, and the limits for them, by UTC month."""

from dataclasses import dataclass

from almanac.core import clock
from almanac.core.database import Reader, Transaction
from almanac.core.errors import BadRequest, QuotaExceeded
from almanac.core.settings import Settings

AGENT_CALLS = "agent_calls"
METRICS: dict[str, str] = {
    "knowledge_stored": "notes stored by agents",
    AGENT_CALLS: "calls of metered operations in plain language",
}


class AgentCallsUsedUp(QuotaExceeded):
    """Agent call limit reached."""

    def __init__(self, limit: int, used: int) -> None:
        resets_on = (clock.format_timestamp(next_month(clock.now())) or "")[:10]
        super().__init__(
            f"Agent call limit reached: {used} of {limit} this month.",
            remedy=f"It resets on {resets_on}. Tools that do not use AI still work.",
        )


@dataclass(frozen=True, slots=True)
class Quota:
    """A monthly quota of an organisation: the limit, the amount used and the rest. None: no limit."""

    limit: int | None
    used: int

    @property
    def left(self) -> int | None:
        """The rest, which is not below zero if the limit was lowered."""
        return None if self.limit is None else max(self.limit - self.used, 0)


def default_limits(settings: Settings) -> dict[str, int]:
    """The limit of each metric for organisations without a limit of their own; 0 for no limit."""
    return {"knowledge_stored": settings.memory_notes_a_month, AGENT_CALLS: settings.agent_calls_a_month}


async def get(db: Reader, org_id: str, metric: str, default: int) -> Quota:
    """The quota of an organisation in this month."""
    limit = await monthly_limit(db, org_id, metric, default)
    return Quota(limit, (await used(db, org_id)).get(metric, 0))


async def monthly_limit(db: Reader, org_id: str, metric: str, default: int) -> int | None:
    """The limit of an organisation, or `default` (0 for no limit) if it has no limit of its own."""
    row = await db.fetch_one("SELECT most FROM allowances WHERE org_id = $1 AND metric = $2", org_id, metric)
    return (default or None) if row is None else row["most"]


async def set_monthly_limit(tx: Transaction, org_id: str, metric: str, limit: int | None) -> None:
    """Set the limit of an organisation; None for no limit."""
    if metric not in METRICS:
        raise BadRequest(f"There is no quota {metric!r}.", remedy=f"The quotas are: {', '.join(METRICS)}.")
    if limit is not None and limit < 0:
        raise BadRequest("A quota is not below zero.", remedy="Use 'unlimited' for no limit.")
    await tx.execute(
        "INSERT INTO allowances (org_id, metric, most) VALUES ($1, $2, $3)"
        " ON CONFLICT (org_id, metric) DO UPDATE SET most = excluded.most",
        org_id,
        metric,
        limit,
    )


async def check(db: Reader, org_id: str, metric: str, limit: int | None) -> None:
    """Refuse a request whose quota is used up, before any work is done. `consume` makes the binding check."""
    if limit is not None and (count := (await used(db, org_id)).get(metric, 0)) >= limit:
        raise _exceeded(metric, limit, count)


async def consume(tx: Transaction, org_id: str, metric: str, amount: int, limit: int | None) -> int | None:
    """Count an amount, or refuse and count nothing. Returns the rest of the quota, or None without a limit.

    Run it in the transaction that uses the amount, so that both happen or neither. The first statement locks the row
    until the commit, so two callers cannot both use the last of the quota.
    """
    if limit is None:
        await add(tx, org_id, metric, amount)
        return None
    if (count := await add(tx, org_id, metric, 0)) + amount > limit:
        raise _exceeded(metric, limit, count)
    return limit - await add(tx, org_id, metric, amount)


async def add(tx: Transaction, org_id: str, metric: str, amount: int) -> int:
    """Add to a counter and return its value. A negative amount is subtracted, down to zero."""
    row = await tx.fetch_one(
        "INSERT INTO usage (org_id, period, metric, count) VALUES ($1, $2, $3, $4) ON CONFLICT (org_id, period, metric)"
        " DO UPDATE SET count = CASE WHEN usage.count + $5 < 0 THEN 0 ELSE usage.count + $5 END RETURNING count",
        org_id,
        clock.month(clock.now()),
        metric,
        max(amount, 0),
        amount,
    )
    assert row is not None
    return row["count"]


async def used(db: Reader, org_id: str) -> dict[str, int]:
    """The counters of the current month."""
    rows = await db.fetch(
        "SELECT metric, count FROM usage WHERE org_id = $1 AND period = $2 ORDER BY metric",
        org_id,
        clock.month(clock.now()),
    )
    return {row["metric"]: row["count"] for row in rows}


def next_month(moment: int) -> int:
    """The first moment of the next month, when the counters start again from zero."""
    year, month = map(int, clock.month(moment).split("-"))
    return clock.parse_timestamp(f"{year + month // 12:04}-{month % 12 + 1:02}-01")


def _exceeded(metric: str, limit: int, count: int) -> QuotaExceeded:
    if metric == AGENT_CALLS:
        return AgentCallsUsedUp(limit, count)
    return QuotaExceeded(f"The quota of {limit} {metric} a month is used up ({count} used).")
