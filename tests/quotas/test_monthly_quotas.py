"""Usage counters: never below zero, never over the quota, also with concurrent calls."""

import asyncio
import secrets
from datetime import UTC, datetime

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from almanac.core import clock
from almanac.core.database import Database
from almanac.core.errors import QuotaExceeded
from almanac.db.connect import connect
from almanac.quotas import monthly_quotas
from tests.live_server import Running
from tests.waiting import until_stored


async def test_a_counter_adds_up_and_each_metric_and_organisation_has_its_own(database: Database):
    for amount, stands_at in ((3, 3), (4, 7), (0, 7), (-2, 5)):
        assert await database.write(lambda tx, n=amount: monthly_quotas.add(tx, "a", "pages", n)) == stands_at
    await database.write(lambda tx: monthly_quotas.add(tx, "a", "calls", 1))
    await database.write(lambda tx: monthly_quotas.add(tx, "b", "pages", 9))
    assert await monthly_quotas.used(database, "a") == {"calls": 1, "pages": 5}
    assert await monthly_quotas.used(database, "b") == {"pages": 9}
    assert await monthly_quotas.used(database, "nobody") == {}


async def test_giving_back_more_than_was_used_leaves_zero(database: Database):
    assert await database.write(lambda tx: monthly_quotas.add(tx, "a", "pages", -5)) == 0
    await database.write(lambda tx: monthly_quotas.add(tx, "a", "pages", 3))
    assert await database.write(lambda tx: monthly_quotas.add(tx, "a", "pages", -5)) == 0


async def test_a_new_month_begins_at_zero(database: Database, monkeypatch: pytest.MonkeyPatch):
    def at(year: int, month: int) -> None:
        moment = int(datetime(year, month, 15, tzinfo=UTC).timestamp()) * clock.SECOND
        monkeypatch.setattr(clock, "now", lambda: moment)

    at(2026, 11)
    await database.write(lambda tx: monthly_quotas.consume(tx, "a", "pages", 5, 5))
    at(2026, 12)
    assert await monthly_quotas.used(database, "a") == {}
    assert await database.write(lambda tx: monthly_quotas.consume(tx, "a", "pages", 5, 5)) == 0
    at(2026, 11)
    assert await monthly_quotas.used(database, "a") == {"pages": 5}


async def test_spending_says_what_is_left_and_a_refusal_takes_nothing(database: Database):
    assert await database.write(lambda tx: monthly_quotas.consume(tx, "a", "pages", 4, 10)) == 6
    with pytest.raises(QuotaExceeded, match=r"^The quota of 10 pages a month is used up \(4 used\)\.$"):
        await database.write(lambda tx: monthly_quotas.consume(tx, "a", "pages", 7, 10))
    assert await monthly_quotas.used(database, "a") == {"pages": 4}
    assert await database.write(lambda tx: monthly_quotas.consume(tx, "a", "pages", 6, 10)) == 0
    with pytest.raises(QuotaExceeded):
        await database.write(lambda tx: monthly_quotas.consume(tx, "a", "pages", 1, 10))


async def test_of_64_who_spend_at_once_exactly_as_many_succeed_as_there_is_for(database: Database):
    async def spend() -> int | None:
        try:
            return await database.write(lambda tx: monthly_quotas.consume(tx, "a", "pages", 3, 60))
        except QuotaExceeded:
            return None

    left = await asyncio.gather(*(spend() for _ in range(64)))
    assert sorted(number for number in left if number is not None) == list(range(0, 60, 3))
    assert await monthly_quotas.used(database, "a") == {"pages": 60}


async def test_of_64_who_give_back_and_take_at_once_none_brings_it_below_zero(database: Database):
    async def move(number: int) -> int:
        return await database.write(lambda tx: monthly_quotas.add(tx, "a", "pages", 1 if number % 2 else -1))

    stood_at = await asyncio.gather(*(move(number) for number in range(64)))
    assert min(stood_at) >= 0
    assert (await monthly_quotas.used(database, "a"))["pages"] >= 0


@given(moves=st.lists(st.tuples(st.booleans(), st.integers(-8, 8)), max_size=12))
@settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_sequence_of_spending_and_counting_goes_as_a_single_number_would(
    database_url: str, moves: list[tuple[bool, int]]
):
    async def follow() -> None:
        db, org, stands_at = await connect(database_url, pool_size=1), secrets.token_hex(8), 0
        for spending, amount in moves:
            if not spending or amount < 0:
                stands_at = max(stands_at + amount, 0)
                assert await db.write(lambda tx, n=amount: monthly_quotas.add(tx, org, "m", n)) == stands_at
            elif stands_at + amount > 10:
                with pytest.raises(QuotaExceeded):
                    await db.write(lambda tx, n=amount: monthly_quotas.consume(tx, org, "m", n, 10))
            else:
                stands_at += amount
                left = await db.write(lambda tx, n=amount: monthly_quotas.consume(tx, org, "m", n, 10))
                assert left == 10 - stands_at
        await db.close()

    asyncio.run(follow())


def test_calls_are_counted_and_shown_to_the_caller(server: Running):
    async def counted(db: Database) -> None:
        row = await db.fetch_one("SELECT id FROM orgs")
        assert row is not None
        await until_stored(
            lambda: monthly_quotas.used(db, row["id"]), lambda used: used.get("tool_calls") == 3, seconds=2
        )

    for _ in range(3):
        server.call("whoami")
    server.run(counted)
    assert server.call("server_status")["structuredContent"]["usage_this_month"] == {"tool_calls": 3}
