"""Usage counters: how much of something an organisation has used in a UTC month."""

from almanac.core import clock
from almanac.core.database import Reader, Transaction
from almanac.core.errors import QuotaExceeded


async def count(tx: Transaction, org_id: str, metric: str, amount: int) -> int:
    """Add to a counter; what it stands at now. A negative amount gives back, never below zero."""
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


async def consume(tx: Transaction, org_id: str, metric: str, amount: int, limit: int) -> int:
    """Take an amount out of the month's quota, or refuse and take nothing; what is left.

    Checked and counted in one statement, so two callers cannot both have the last of it.
    """
    used = await count(tx, org_id, metric, 0)  # makes the row, and on PostgreSQL holds it until the commit
    if used + amount > limit:
        raise QuotaExceeded(f"The quota of {limit} {metric} a month is used up ({used} used).")
    return limit - await count(tx, org_id, metric, amount)


async def used(db: Reader, org_id: str) -> dict[str, int]:
    """This month's counters."""
    rows = await db.fetch(
        "SELECT metric, count FROM usage WHERE org_id = $1 AND period = $2 ORDER BY metric",
        org_id,
        clock.month(clock.now()),
    )
    return {row["metric"]: row["count"] for row in rows}
