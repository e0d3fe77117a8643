"""Rate limits: the same answers from memory and from Redis, and refusals without Redis."""

import asyncio
import secrets
import shutil
import socket
import subprocess
import time
import tracemalloc
from collections.abc import Awaitable, Callable, Generator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import pytest
import redis
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from almanac.core.errors import RateLimited, RateLimitUnavailable
from almanac.quotas import rate_limits, redis_rate_limits
from almanac.quotas.rate_limits import MemoryRateLimiter, RateLimit, RateLimiter
from almanac.quotas.redis_rate_limits import RedisRateLimiter
from tests.live_server import running, settings_for
from tests.waiting import wait_for_port

T = TypeVar("T")
STRATEGIES = ("fixed", "moving")
LONG = 60  # seconds: no window ends while a test runs
AGE = 10**9  # seconds: nor does an aligned window, which may have begun earlier


class Pair:
    """Both kinds of limits, on one event loop that outlives each example."""

    def __init__(self, url: str) -> None:
        self._runner = asyncio.Runner()
        self.both: tuple[RateLimiter, RateLimiter] = (MemoryRateLimiter(), self._runner.run(self._open(url)))

    async def _open(self, url: str) -> RedisRateLimiter:
        return RedisRateLimiter(url)

    def ask(self, question: Callable[[RateLimiter], Awaitable[T]]) -> list[T]:
        async def run() -> list[T]:
            return [await question(one) for one in self.both]

        return self._runner.run(run())

    def close(self) -> None:
        self.ask(lambda one: one.close())
        self._runner.close()


@pytest.fixture
def pair(redis_url: str) -> Iterator[Pair]:
    made = Pair(redis_url)
    yield made
    made.close()


async def outcome(limits: RateLimiter, rule: RateLimit, key: str) -> str:
    try:
        await limits.count(rule, key)
    except RateLimited:
        return "refused"
    return "allowed"


def redis_client(url: str) -> Any:
    return redis.Redis.from_url(url)  # pyright: ignore[reportUnknownMemberType]


def unique(name: str = "test") -> str:
    return f"{name}-{secrets.token_hex(8)}"


RULES = st.tuples(st.integers(1, 6), st.sampled_from([*STRATEGIES, "aligned"]))
HITS = st.lists(st.tuples(st.integers(0, 2), st.integers(0, 2)), max_size=30)  # rule, and key of the hit


@given(rules=st.lists(RULES, min_size=3, max_size=3), hits=HITS)
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_memory_and_redis_agree_about_any_sequence_of_hits(
    pair: Pair, rules: list[tuple[int, str]], hits: list[tuple[int, int]]
):
    names = [RateLimit(unique(), calls, AGE if strategy == "aligned" else LONG, strategy) for calls, strategy in rules]
    counted = {(rule.name, who): 0 for rule in names for who in range(3)}
    for which, who in hits:
        rule = names[which]
        counted[rule.name, who] += 1
        expected = "allowed" if counted[rule.name, who] <= rule.calls else "refused"
        assert pair.ask(lambda one, rule=rule, who=who: outcome(one, rule, str(who))) == [expected, expected]
    for rule in names:
        for who in range(3):
            memory, shared = pair.ask(lambda one, rule=rule, who=who: one.status(rule, str(who)))
            assert memory.remaining == shared.remaining == max(rule.calls - counted[rule.name, who], 0)
            if counted[rule.name, who]:
                assert abs(memory.resets_at - shared.resets_at) < 1.5  # Redis counts whole seconds only


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_memory_and_redis_agree_about_a_window_nobody_has_used(pair: Pair, strategy: str):
    memory, shared = pair.ask(lambda one: one.status(RateLimit(unique(), 5, LONG, strategy), "a"))
    assert memory.remaining == shared.remaining == 5
    assert abs(memory.resets_at - shared.resets_at) < 1.5


def test_memory_and_redis_agree_about_the_end_of_a_window(pair: Pair):
    """Hits in windows of a second: the fixed window is free again before the moving one."""
    seen: list[list[str]] = []
    for _ in range(5):
        begun = time.monotonic()
        seen = _hits_around_an_end(pair)
        if time.monotonic() - begun < 1.5:  # on a busy machine the second window may have ended as well
            break
    assert seen == [
        ["allowed allowed", "allowed allowed"],
        ["allowed allowed", "allowed allowed"],
        ["refused refused", "refused refused"],
        ["allowed allowed", "allowed allowed"],  # the fixed window begins anew; the moving one has lost its first hit
        ["allowed allowed", "refused refused"],
    ]


def _hits_around_an_end(pair: Pair) -> list[list[str]]:
    rules = [RateLimit(unique(), 2, 1, strategy) for strategy in STRATEGIES]
    seen: list[list[str]] = []
    for pause in (0.0, 0.6, 0.0, 0.6, 0.0):
        time.sleep(pause)
        seen.append([" ".join(pair.ask(lambda one, rule=rule: outcome(one, rule, "a"))) for rule in rules])
    return seen


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_a_refusal_says_how_long_to_wait(pair: Pair, strategy: str):
    rule = RateLimit(unique(), 1, LONG, strategy)

    async def waits(one: RateLimiter) -> int:
        await one.count(rule, "a")
        with pytest.raises(RateLimited) as caught:
            await one.count(rule, "a")
        return caught.value.retry_after

    assert all(LONG - 1 <= seconds <= LONG + 1 for seconds in pair.ask(waits))


def test_waiting_as_long_as_a_refusal_says_is_long_enough(pair: Pair, redis_url: str):
    """Redis rounds the rest of a window to whole seconds. After this time, the caller must be accepted."""
    rule = RateLimit(unique(), 1, LONG)
    with redis_client(redis_url) as client:

        async def wait(one: RateLimiter, milliseconds: int) -> int:
            await outcome(one, rule, "a")
            for key in client.keys(f"*{rule.name}*"):
                client.pexpire(key, milliseconds)
            with pytest.raises(RateLimited) as caught:
                await one.count(rule, "a")
            return caught.value.retry_after

        for milliseconds in (1400, 2300, 5450):
            waits = pair.ask(lambda one, milliseconds=milliseconds: wait(one, milliseconds))
            assert min(waits) * 1000 >= milliseconds


@pytest.mark.parametrize("rule", [RateLimit("off", 0, 60), RateLimit("off", 5, 0), RateLimit("off", -1, 60, "moving")])
def test_a_rule_with_a_zero_limits_nothing_and_is_not_counted(pair: Pair, rule: RateLimit):
    for _ in range(20):
        assert pair.ask(lambda one: outcome(one, rule, "a")) == ["allowed", "allowed"]


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_of_many_hits_at_once_as_many_are_allowed_as_the_rule_says(pair: Pair, strategy: str):
    rule = RateLimit(unique(), 20, LONG, strategy)

    async def race(one: RateLimiter) -> int:
        return (await asyncio.gather(*(outcome(one, rule, "a") for _ in range(64)))).count("allowed")

    assert pair.ask(race) == [20, 20]


async def test_memory_does_not_grow_with_keys_whose_window_is_over(monkeypatch: pytest.MonkeyPatch):
    now = time.time()
    monkeypatch.setattr(time, "time", lambda: now)
    monkeypatch.setattr(rate_limits, "CALLS_PER_SWEEP", 500)
    limits, kept_bytes = MemoryRateLimiter(), list[int]()
    rules = [RateLimit("f", 5, 1, "fixed"), RateLimit("m", 5, 1, "moving")]
    tracemalloc.start()
    try:
        for number in range(10_000):
            now += 0.01
            for rule in rules:
                await limits.count(rule, f"caller-{number}")
            if number % 5_000 == 4_999:
                kept_bytes.append(tracemalloc.get_traced_memory()[0])
    finally:
        tracemalloc.stop()
    # Five thousand callers more have hit, and a hundred of them in the last second. A key takes 200 bytes or more.
    assert kept_bytes[1] - kept_bytes[0] < 100_000


async def test_a_sweep_forgets_nobody_whose_window_is_still_open(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(rate_limits, "CALLS_PER_SWEEP", 2)
    limits = MemoryRateLimiter()
    for strategy in STRATEGIES:
        rule = RateLimit("r", 3, LONG, strategy)
        seen = [await outcome(limits, rule, "a") for _ in range(5)]
        assert seen == ["allowed"] * 3 + ["refused"] * 2


async def test_looking_at_limits_does_not_fill_the_memory():
    limits = MemoryRateLimiter()
    tracemalloc.start()
    try:
        for number in range(2_000):
            await limits.status(RateLimit("m", 5, 60, "moving"), f"caller-{number}")
        kept_bytes = tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
    assert kept_bytes < 50_000


# Aligned windows


def test_aligned_windows_begin_at_multiples_of_their_length_in_memory_and_in_redis(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
):
    rule = RateLimit(unique(), 2, 60, "aligned")
    seen: list[list[str]] = []
    for moment in (AGE + 0.5, AGE + 19.9, AGE + 19.99, AGE + 20.0, AGE + 79.9, AGE + 79.99, AGE + 80.0):
        monkeypatch.setattr(time, "time", lambda moment=moment: moment)  # AGE is 20 s before the end of a minute
        seen.append(pair.ask(lambda one: outcome(one, rule, "a")))
    assert [first for first, _ in seen] == [
        "allowed", "allowed", "refused", "allowed", "allowed", "refused", "allowed"
    ]  # fmt: skip
    assert all(first == second for first, second in seen)


def test_an_aligned_window_is_counted_under_the_key_that_was_asked_for_and_ends_by_itself(pair: Pair, redis_url: str):
    rule = RateLimit(unique("space"), 5, 3600, "aligned")
    before = int(time.time() // 3600)
    pair.ask(lambda one: outcome(one, rule, "ip:abc"))
    with redis_client(redis_url) as client:
        [key] = [key.decode() for key in client.keys(f"{rule.name}*")]
        assert key in {f"{rule.name}:ip:abc:{number}" for number in (before, before + 1)}
        assert 3600 <= client.ttl(key) <= 3601


def test_of_many_hits_at_once_an_aligned_window_takes_as_many_as_the_rule_says(pair: Pair):
    rule = RateLimit(unique(), 20, AGE, "aligned")

    async def race(one: RateLimiter) -> int:
        return (await asyncio.gather(*(outcome(one, rule, "a") for _ in range(64)))).count("allowed")

    assert pair.ask(race) == [20, 20]


# Redis is unavailable


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


@contextmanager
def private_redis(port: int, folder: Path) -> Generator[None]:
    program = shutil.which("redis-server")
    assert program is not None
    command = [program, "--port", str(port), "--bind", "127.0.0.1", "--save", "", "--dir", str(folder)]
    server = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    try:
        wait_for_port(port)
        yield
    finally:
        server.kill()
        server.wait()


@pytest.mark.parametrize("strategy", [*STRATEGIES, "aligned"])
async def test_limits_that_cannot_be_counted_refuse(strategy: str):
    limits = redis_rate_limits.open_rate_limiter(f"redis://127.0.0.1:{free_port()}/0")
    with pytest.raises(RateLimitUnavailable):
        await limits.count(RateLimit("r", 5, 60, strategy), "a")
    with pytest.raises(RateLimitUnavailable):
        await limits.status(RateLimit("r", 5, 60, strategy), "a")
    assert not await limits.is_available()
    await limits.close()


@pytest.mark.parametrize("strategy", ["fixed", "aligned"])
async def test_a_redis_that_hangs_is_given_a_second_and_then_refuses(strategy: str):
    quiet = asyncio.Event()

    async def hang(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await quiet.wait()
        writer.close()

    server = await asyncio.start_server(hang, "127.0.0.1", 0)
    limits = redis_rate_limits.open_rate_limiter(f"redis://127.0.0.1:{server.sockets[0].getsockname()[1]}/0")
    begun = time.monotonic()
    with pytest.raises(RateLimitUnavailable):
        await limits.count(RateLimit("r", 5, 60, strategy), "a")
    assert time.monotonic() - begun < 2.5
    await limits.close()
    quiet.set()
    server.close()
    await server.wait_closed()


def test_when_redis_goes_calls_are_refused_and_when_it_comes_back_they_are_taken(tmp_path: Path, sqlite_template: Path):
    port = free_port()
    shutil.copy(sqlite_template, tmp_path / "almanac.db")
    settings = settings_for(
        f"sqlite:///{tmp_path / 'almanac.db'}", tmp_path / "home", redis_url=f"redis://127.0.0.1:{port}"
    )
    with running(settings) as live:
        with private_redis(port, tmp_path):
            assert not live.call("whoami")["isError"]
        for _ in range(2):
            refused = live.call("whoami")
            assert refused["isError"]
            assert refused["content"][0]["text"].startswith("rate_limit_unavailable: ")
        listing = live.rpc("tools/list")
        assert (listing.status_code, listing.json()["error"]["data"]["code"]) == (503, "rate_limit_unavailable")
        with private_redis(port, tmp_path):
            assert not live.call("whoami")["isError"]
            assert live.rpc("tools/list").status_code == 200


def test_the_keys_in_redis_hold_an_organisation_s_id_and_a_token_s_number_and_nothing_secret(
    tmp_path: Path, sqlite_template: Path, redis_url: str
):
    shutil.copy(sqlite_template, tmp_path / "almanac.db")
    own = redis_url.rpartition("/")[0] + "/11"
    with redis_client(own) as client:
        client.flushdb()
        database = f"sqlite:///{tmp_path / 'almanac.db'}"
        with running(settings_for(database, tmp_path / "home", redis_url=own)) as live:
            live.call("whoami")
            live.rpc("tools/list")
        keys = [key.decode() for key in client.scan_iter()]
        client.flushdb()
    assert len(keys) == 1
    assert keys[0].startswith("almanac:")
    assert ":1/" in keys[0]
    assert live.token[3:10] not in keys[0]
    assert "admin" not in keys[0]


def test_a_caller_over_the_limit_is_told_when_to_come_back(tmp_path: Path, sqlite_template: Path):
    shutil.copy(sqlite_template, tmp_path / "almanac.db")
    settings = settings_for(f"sqlite:///{tmp_path / 'almanac.db'}", tmp_path / "home", rate_limit_calls=2)
    with running(settings) as live:
        assert live.call("whoami")["structuredContent"]["rate_limit"]["remaining"] == 1
        assert live.call("whoami")["structuredContent"]["rate_limit"]["remaining"] == 0
        refused = live.call("whoami")
        assert refused["content"][0]["text"].startswith("rate_limited: Rate limit exceeded. Wait ")
        listing = live.rpc("tools/list")
        assert (listing.status_code, listing.json()["error"]["data"]["code"]) == (429, "rate_limited")
        assert 1 <= int(listing.headers["retry-after"]) <= 61
        other = live.new_token("maria")
        assert not live.call("whoami", token=other)["isError"]
