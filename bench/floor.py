"""The cost of the parts of one tool call on this machine, in one process: `python bench/floor.py`.

Wall is the time until the caller continues; CPU counts every thread of the process, so a part that
uses threads shows more CPU than wall. Both are medians of several short runs, in µs.
"""

import asyncio
import contextvars
import hashlib
import itertools
import secrets
import sqlite3
import tempfile
import time
import uuid
from collections.abc import Awaitable, Callable
from pathlib import Path
from statistics import median
from typing import Any

import orjson
import structlog
import uvloop
from limits import RateLimitItemPerMinute, strategies
from limits import aio as limits_aio
from limits.storage import MemoryStorage
from mcp_types import CLIENT_CAPABILITIES_META_KEY, PROTOCOL_VERSION_META_KEY
from prometheus_client import CollectorRegistry, Counter, Histogram
from pydantic import BaseModel, ConfigDict
from rich.console import Console
from rich.table import Table

RUNS = 5
RUN_S = 0.1
# The table's rows: a name, with wall and CPU µs.
Result = tuple[str, float, float]


def timed(name: str, operation: Callable[[], object]) -> Result:
    count = 1
    while (wall := one_run(operation, count)[0]) < RUN_S / 10:
        count *= 4
    count = max(1, int(count * RUN_S / wall))
    return summary(name, [one_run(operation, count) for _ in range(RUNS)], count)


def one_run(operation: Callable[[], object], count: int) -> tuple[float, float]:
    repeat = itertools.repeat(None, count)
    cpu, wall = time.process_time(), time.perf_counter()
    for _ in repeat:
        operation()
    return time.perf_counter() - wall, time.process_time() - cpu


async def timed_async(name: str, operation: Callable[[], Awaitable[object]], count: int = 2000) -> Result:
    await one_async_run(operation, count // 4)
    return summary(name, [await one_async_run(operation, count) for _ in range(RUNS)], count)


async def one_async_run(operation: Callable[[], Awaitable[object]], count: int) -> tuple[float, float]:
    cpu, wall = time.process_time(), time.perf_counter()
    for _ in range(count):
        await operation()
        await asyncio.sleep(0)  # as between requests: tasks that the operation started run now
    return time.perf_counter() - wall, time.process_time() - cpu


def summary(name: str, runs: list[tuple[float, float]], count: int) -> Result:
    return name, median(wall for wall, _ in runs) / count * 1e6, median(cpu for _, cpu in runs) / count * 1e6


# --- values --------------------------------------------------------------------------------------


class Arguments(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid")

    query: str
    limit: int = 10
    base: str | None = None
    exact: bool = False
    tags: list[str] = []


ARGUMENTS: dict[str, Any] = {"query": "leave", "limit": 5, "base": "hr", "exact": True, "tags": ["a"]}
META: dict[str, Any] = {PROTOCOL_VERSION_META_KEY: "2026-07-28", CLIENT_CAPABILITIES_META_KEY: {}}
PARAMS: dict[str, Any] = {"name": "search", "arguments": ARGUMENTS, "_meta": META}
MESSAGE: dict[str, Any] = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": PARAMS}


def values() -> list[Result]:
    body = orjson.dumps(MESSAGE)
    token = f"wg-{secrets.token_urlsafe(32)}".encode()
    counter, prefix = itertools.count(), secrets.token_hex(4)
    variable: contextvars.ContextVar[int] = contextvars.ContextVar("variable")
    return [
        timed(f"orjson.loads, tools/call of {len(body)} bytes", lambda: orjson.loads(body)),
        timed("orjson.dumps, the same", lambda: orjson.dumps(MESSAGE)),
        timed("pydantic model_validate, 5 strict fields", lambda: Arguments.model_validate(ARGUMENTS)),
        timed("sha256 of a token, digest", lambda: hashlib.sha256(token).digest()),
        timed("request id: uuid4().hex", lambda: uuid.uuid4().hex),
        timed("request id: prefix and counter", lambda: f"{prefix}-{next(counter):x}"),
        timed("contextvars set and reset", lambda: variable.reset(variable.set(1))),
    ]


# --- storage, logs and metrics -------------------------------------------------------------------


def sqlite_read(folder: Path) -> Result:
    database = sqlite3.connect(folder / "floor.db", isolation_level=None)
    database.execute("PRAGMA journal_mode=WAL")
    database.execute("CREATE TABLE tokens (digest BLOB PRIMARY KEY, user INTEGER, scopes TEXT) WITHOUT ROWID")
    digests = [hashlib.sha256(str(number).encode()).digest() for number in range(10_000)]
    database.executemany("INSERT INTO tokens VALUES (?, 1, 'search:read')", [(digest,) for digest in digests])
    read = "SELECT user, scopes FROM tokens WHERE digest = ?"
    turn = itertools.cycle(digests)
    result = timed("sqlite3 read by primary key, WAL", lambda: database.execute(read, (next(turn),)).fetchone())
    database.close()
    return result


def logs() -> Result:
    with open("/dev/null", "wb") as nowhere:
        processors = [
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso"),
            structlog.processors.JSONRenderer(serializer=orjson.dumps),
        ]
        log = structlog.wrap_logger(structlog.BytesLogger(nowhere), processors).bind()
        return timed("structlog line, JSON", lambda: log.info("call", tool="whoami", outcome="ok", ms=0.4))


def metrics() -> list[Result]:
    registry = CollectorRegistry()
    labels = ("surface", "tool", "outcome")
    counter = Counter("calls", "Calls", labels, registry=registry)
    child = counter.labels("almanac", "whoami", "ok")
    histogram = Histogram("seconds", "Latency", labels, registry=registry).labels("almanac", "whoami", "ok")
    return [
        timed("prometheus labels(3).inc()", lambda: counter.labels("almanac", "whoami", "ok").inc()),
        timed("prometheus inc(), child kept", child.inc),
        timed("prometheus Histogram.observe, child kept", lambda: histogram.observe(0.0004)),
    ]


# --- deadlines -----------------------------------------------------------------------------------


async def with_timeout() -> None:
    async with asyncio.timeout(30):
        pass


async def with_call_later() -> None:
    asyncio.get_running_loop().call_later(30, print).cancel()


async def nothing() -> None:
    pass


# --- rate limits ---------------------------------------------------------------------------------

HIGH = RateLimitItemPerMinute(1_000_000_000)


def sync_limits() -> list[Result]:
    fixed, moving, full = (MemoryStorage() for _ in range(3))
    strategies.MovingWindowRateLimiter(full).hit(HIGH, "key", cost=100_000)
    return [
        timed("limits fixed window", hit(strategies.FixedWindowRateLimiter(fixed))),
        timed("limits moving window (its list grows)", hit(strategies.MovingWindowRateLimiter(moving))),
        timed("limits moving window, 100,000 hits inside", hit(strategies.MovingWindowRateLimiter(full))),
    ]


def hit(limiter: strategies.RateLimiter) -> Callable[[], bool]:
    return lambda: limiter.hit(HIGH, "key")


async def async_limits() -> list[Result]:
    fixed, moving, many = (limits_aio.storage.MemoryStorage() for _ in range(3))
    crowd = limits_aio.strategies.MovingWindowRateLimiter(many)
    for number in range(1000):
        await crowd.hit(HIGH, f"key {number}")
    fixed_limiter = limits_aio.strategies.FixedWindowRateLimiter(fixed)
    moving_limiter = limits_aio.strategies.MovingWindowRateLimiter(moving)
    return [
        await timed_async("limits.aio fixed window", lambda: fixed_limiter.hit(HIGH, "key")),
        await timed_async("limits.aio moving window, 1 key", lambda: moving_limiter.hit(HIGH, "key")),
        await timed_async("limits.aio moving window, 1,000 keys", lambda: crowd.hit(HIGH, "key 1")),
    ]


async def on_the_loop() -> list[Result]:
    return [
        await timed_async("(empty coroutine and one turn of the loop)", nothing),
        await timed_async("asyncio.timeout", with_timeout),
        await timed_async("loop.call_later and cancel", with_call_later),
        *await async_limits(),
    ]


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        results = [*values(), sqlite_read(Path(folder)), logs(), *metrics(), *sync_limits()]
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        results += runner.run(on_the_loop())
    table = Table("block")
    table.add_column("wall µs", justify="right")
    table.add_column("CPU µs", justify="right")
    for name, wall, cpu in results:
        table.add_row(name, f"{wall:.2f}", f"{cpu:.2f}")
    Console(highlight=False).print(table)
    Console().print("Rows from the empty coroutine on include that turn of the loop.")


if __name__ == "__main__":
    main()
