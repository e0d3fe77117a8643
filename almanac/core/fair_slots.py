"""Slots for work that only a few may do at a time, shared fairly between organisations."""

import asyncio
from collections import Counter, deque
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from contextvars import ContextVar
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")

# The organisation for which this task works: that of the request's actor, or of the job. Empty for the server itself.
ORG_ID: ContextVar[str] = ContextVar("org_id", default="")

# Threads that compute in Python hold the interpreter: a second one computes no more, and delays the event loop.
COMPUTE_SLOTS = 1
ADDITIONAL_COMPUTE_SLOTS = 3


MAX_INLINE_ROWS = 50  # processed in less time than a thread takes to start


class FairSlots:
    """At most `count` tasks at a time, and up to `additional` more (default: `count`) of organisations that have none
    running.

    The additional slots keep one organisation with much work from making another wait until it is done. Waiting
    organisations take turns: the next slot goes to the one with the fewest running tasks.
    """

    def __init__(self, count: int, additional: int | None = None) -> None:
        self._count = count
        self._max_total = count + (count if additional is None else additional)
        self._running: Counter[str] = Counter()
        self._waiting: dict[str, deque[asyncio.Future[None]]] = {}  # in the order of their turns

    @asynccontextmanager
    async def hold(self) -> AsyncGenerator[None]:
        """Hold a slot for the organisation of this task."""
        org_id = ORG_ID.get()
        if org_id in self._waiting or not self._may_start(org_id):
            await self._wait(org_id)
        else:
            self._running[org_id] += 1
        try:
            yield
        finally:
            self._release(org_id)

    def waiting(self) -> int:
        """Return the number of waiting tasks."""
        return sum(map(len, self._waiting.values()))

    def _may_start(self, org_id: str) -> bool:
        total = self._running.total()
        return total < self._count or (not self._running[org_id] and total < self._max_total)

    async def _wait(self, org_id: str) -> None:
        turn = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(org_id, deque()).append(turn)
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                self._release(org_id)  # the slot was given in the same step of the event loop
            else:
                self._forget(org_id, turn)
            raise

    def _forget(self, org_id: str, turn: asyncio.Future[None]) -> None:
        turns = self._waiting.get(org_id, deque())
        if turn in turns:
            turns.remove(turn)
            if not turns:
                del self._waiting[org_id]

    def _release(self, org_id: str) -> None:
        self._running[org_id] -= 1
        if not self._running[org_id]:
            del self._running[org_id]
        while self._waiting:
            next_org = min(self._waiting, key=lambda org: self._running[org])
            if not self._may_start(next_org):
                return
            turns = self._waiting.pop(next_org)
            turn = turns.popleft()
            if turns:
                self._waiting[next_org] = turns  # behind the others
            if not turn.cancelled():
                self._running[next_org] += 1
                turn.set_result(None)


compute_slots = FairSlots(COMPUTE_SLOTS, ADDITIONAL_COMPUTE_SLOTS)


async def compute(work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Run a function that computes for long in a thread. Organisations share the threads fairly."""
    async with compute_slots.hold():
        return await asyncio.to_thread(work, *args, **kwargs)


async def compute_for(count: int, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Run a function whose time grows with a number of rows: for a few at once, otherwise like `compute`."""
    return work(*args, **kwargs) if count <= MAX_INLINE_ROWS else await compute(work, *args, **kwargs)
