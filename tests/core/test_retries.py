"""Repeated attempts, without the pauses."""

import asyncio
from collections.abc import Sequence

import pytest

from almanac.core import retries
from almanac.core.retries import RetryPolicy, retry


async def outcome(
    monkeypatch: pytest.MonkeyPatch, policy: RetryPolicy, delays: Sequence[float | None]
) -> tuple[int, list[float]]:
    """The number of the attempt whose outcome is returned, and the pauses. Each attempt asks for the next delay."""
    attempts: list[int] = []
    paused: list[float] = []

    async def attempt() -> int:
        attempts.append(len(attempts) + 1)
        return attempts[-1]

    async def pause(seconds: float) -> None:
        paused.append(seconds)

    with monkeypatch.context() as patch:
        patch.setattr(asyncio, "sleep", pause)
        patch.setattr(retries.random, "uniform", longest)
        return await retry(attempt, policy, lambda number: delays[number - 1]), paused


def longest(_: float, highest: float) -> float:
    return highest


POLICY = RetryPolicy(tries=4, pause_seconds=1, max_pause_seconds=3)


async def test_a_final_outcome_is_returned_at_once(monkeypatch: pytest.MonkeyPatch):
    assert await outcome(monkeypatch, POLICY, [None]) == (1, [])


async def test_pauses_double_up_to_the_longest(monkeypatch: pytest.MonkeyPatch):
    assert await outcome(monkeypatch, POLICY, [0, 0, 0, None]) == (4, [1, 2, 3])


async def test_the_last_outcome_is_returned_if_all_fail(monkeypatch: pytest.MonkeyPatch):
    assert await outcome(monkeypatch, POLICY, [0, 0, 0, 0]) == (4, [1, 2, 3])
    assert await outcome(monkeypatch, RetryPolicy(tries=1), [0]) == (1, [])


async def test_a_requested_delay_counts_if_it_is_longer_than_the_pause(monkeypatch: pytest.MonkeyPatch):
    assert await outcome(monkeypatch, POLICY, [2.5, 0.1, None]) == (3, [2.5, 2])


async def test_a_requested_delay_beyond_the_longest_pause_ends_the_attempts(monkeypatch: pytest.MonkeyPatch):
    assert await outcome(monkeypatch, POLICY, [0, 3.1, None]) == (2, [1])
