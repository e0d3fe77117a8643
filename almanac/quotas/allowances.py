"""Allowances: how much of something an organisation may use in a UTC month."""

from almanac.core import clock
from almanac.core.database import Reader, Transaction
from almanac.core.errors import BadRequest, QuotaExceeded
from almanac.quotas import usage

METRICS: dict[str, str] = {"knowledge_stored": "notes stored by agents"}


async def monthly_limit(db: Reader, org_id: str, metric: str, usual: int) -> int | None:
    """How much an organisation may use in a month; `usual` (0 for no limit) where nothing else was settled for it."""
    row = await db.fetch_one("SELECT most FROM allowances WHERE org_id = $1 AND metric = $2", org_id, metric)
    return (usual or None) if row is None else row["most"]


async def set_monthly_limit(tx: Transaction, org_id: str, metric: str, number: int | None) -> None:
    """Settle what an organisation may use; None for no limit."""
    if metric not in METRICS:
        raise BadRequest(f"There is no quota {metric!r}.", remedy=f"The quotas are: {', '.join(METRICS)}.")
    if number is not None and number < 0:
        raise BadRequest("A quota is not below zero.", remedy="Use 'unlimited' for no limit.")
    await tx.execute(
        "INSERT INTO allowances (org_id, metric, most) VALUES ($1, $2, $3)"
        " ON CONFLICT (org_id, metric) DO UPDATE SET most = excluded.most",
        org_id,
        metric,
        number,
    )


async def check(db: Reader, org_id: str, metric: str, limit: int | None) -> None:
    """Refuse what would go beyond a limit; cheap, and before any work is done. `spend` has the last word."""
    if limit is not None and (used := (await usage.used(db, org_id)).get(metric, 0)) >= limit:
        raise QuotaExceeded(f"The quota of {limit} {metric} a month is used up ({used} used).")


async def consume(tx: Transaction, org_id: str, metric: str, limit: int | None) -> None:
    """Count one, in the transaction that uses it, or refuse: both happen or neither does."""
    if limit is None:
        await usage.count(tx, org_id, metric, 1)
    else:
        await usage.consume(tx, org_id, metric, 1, limit)


def next_month(moment: int) -> int:
    """When the month of a moment is over and counting begins anew."""
    year, month = map(int, clock.month(moment).split("-"))
    return clock.parse_timestamp(f"{year + month // 12:04}-{month % 12 + 1:02}-01")
