"""Query processes are shared fairly between organisations, and their cost is known."""

import asyncio
import os
from collections.abc import AsyncIterator

import pytest

from almanac.core.errors import DeadlineExceeded
from almanac.core.fair_slots import ORG_ID
from almanac.data.queries.query_plan import QueryPlan
from almanac.data.queries.query_pool import QueryLimits, QueryPool
from almanac.sandbox.child import ExitReport
from tests.data.queries.conftest import LIMITS
from tests.sandbox.processes import children_of, cpu_ticks, fork_server_of
from tests.waiting import until

ENDLESS = "SELECT count(*) FROM range(1000000) a, range(1000000) b WHERE a.range + b.range = 7"


@pytest.fixture
async def small_pool() -> AsyncIterator[QueryPool]:
    async with QueryPool(QueryLimits(processes=1, threads=1, memory_mib=256, seconds=10)) as opened:
        yield opened


async def test_slow_queries_of_one_organisation_do_not_stop_another(small_pool: QueryPool):
    async def slow() -> None:
        ORG_ID.set("slow")
        with pytest.raises(DeadlineExceeded):
            await small_pool.run(QueryPlan(ENDLESS, {}), seconds=4)

    async def quick() -> list[list[object]]:
        ORG_ID.set("quick")
        return (await small_pool.run(QueryPlan("SELECT 1 AS x", {}))).rows

    tasks = [asyncio.create_task(slow()) for _ in range(5)]
    server = fork_server_of(os.getpid())
    await until(lambda: any(cpu_ticks(pid) > 20 for pid in children_of(server)))
    assert await asyncio.create_task(quick()) == [[1]]
    assert not any(task.done() for task in tasks)
    await asyncio.gather(*tasks)


async def test_the_cost_of_each_query_is_reported():
    reports: list[ExitReport] = []
    async with QueryPool(LIMITS, on_exit=reports.append) as opened:
        await opened.run(QueryPlan("SELECT 1 AS x", {}))
    [report] = reports
    assert 0 < report.cpu_seconds < 5
    assert report.peak_bytes > 10_000_000
