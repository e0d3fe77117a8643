"""Repeated attempts at a call that changes nothing, after temporary failures of a service."""

import asyncio
import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TypeVar

TEMPORARY_STATUSES = frozenset({408, 425, 429, 502, 503, 504})  # of an HTTP response

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """The number of attempts, and the pauses between them."""

    tries: int
    pause_seconds: float = 0.5  # before the second attempt; twice as long before each further one
    max_pause_seconds: float = 30.0


async def retry(
    attempt: Callable[[], Awaitable[T]], policy: RetryPolicy, requested_delay: Callable[[T], float | None]
) -> T:
    """The first outcome that is final, or the last one.

    `requested_delay` returns None for a final outcome. For a temporary failure it returns the seconds that the service
    asks to wait, or 0. If they exceed the longest pause, there is no further attempt.
    """
    pause = policy.pause_seconds
    for left in reversed(range(policy.tries)):
        outcome = await attempt()
        delay = requested_delay(outcome)
        if delay is None or not left or delay > policy.max_pause_seconds:
            return outcome
        # Callers that failed at the same time do not come back at the same time.
        spread = random.uniform(0.5, 1)  # noqa: S311 - no secret
        await asyncio.sleep(max(delay, min(pause, policy.max_pause_seconds) * spread))
        pause *= 2
    raise ValueError("a policy has at least one try")
