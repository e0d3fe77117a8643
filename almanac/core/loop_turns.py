"""Turns on the event loop: many requests of one organisation do not delay another's.

The event loop runs whatever is ready in the order of its arrival, so a request of one organisation would wait at each
of its steps for a step of every request of another. Therefore, while several organisations have requests, each may use
at most half of the loop's time. A request beyond it waits, and the others continue without it.
"""

import asyncio
import math
import time
import types
from collections import deque
from collections.abc import Coroutine, Generator
from typing import Any, TypeVar

T = TypeVar("T")

MAX_SHARE = 0.5  # of the loop's time for one organisation, while others have requests
BUDGET_SECONDS = 0.002  # used at once before an organisation waits
RESUMED_AT_ONCE = 8  # waiting requests of one organisation that continue in a pass of the loop
MAX_STEP_SECONDS = 0.003  # then a read of SQLite, which needs no waiting, lets other requests go first
RIVAL_SECONDS = 0.1  # an organisation whose last step was earlier has no request that the others could delay


class _Step:
    """The step of a request that runs now."""

    began = math.inf


_step = _Step()


async def pause() -> None:
    """End the step of a request if it has become long. Steps end where they wait, and short reads wait for nothing."""
    if time.perf_counter() - _step.began > MAX_STEP_SECONDS:
        await asyncio.sleep(0)


class LoopTurns:
    """Runs coroutines step by step, and lets organisations take turns while several have requests."""

    def __init__(self) -> None:
        self._only_org: str | None = None  # the organisation of all recent steps, if they are of one
        self._debts: dict[str, float] = {}  # seconds that an organisation has used beyond its share
        self._last_steps: dict[str, float] = {}  # the time of each organisation's last step
        self._waiting: dict[str, deque[asyncio.Future[None]]] = {}
        self._repaid_at = 0.0
        self._is_scheduled = False

    @types.coroutine
    def run(self, org_id: str, coroutine: Coroutine[Any, Any, T]) -> Generator[Any, Any, T]:
        """Run a coroutine for an organisation, in the task of the caller."""
        if _step.began < math.inf:  # the caller runs by turns itself, so its steps are measured
            return (yield from coroutine.__await__())
        error: BaseException | None = None
        sent: Any = None
        while True:
            is_alone = self._only_org == org_id  # it owes nothing, so its steps need not be measured
            if not is_alone and error is None and self._must_wait(org_id):
                try:
                    yield from self._wait(org_id)
                except BaseException as raised:  # noqa: BLE001 - the coroutine decides; usually it was cancelled
                    error = raised
            _step.began = began = time.perf_counter()
            try:
                awaited = coroutine.send(sent) if error is None else coroutine.throw(error)
            except StopIteration as finished:
                return finished.value
            finally:
                _step.began = math.inf
                if not is_alone:
                    self._note(org_id, began)
            error = sent = None
            try:
                sent = yield awaited
            except BaseException as raised:  # noqa: BLE001 - the coroutine decides
                error = raised

    def _must_wait(self, org_id: str) -> bool:
        if self._debts.get(org_id, 0.0) <= BUDGET_SECONDS:
            return False
        self._repay(time.perf_counter())
        return self._debts.get(org_id, 0.0) > BUDGET_SECONDS

    def _repay(self, now: float) -> None:
        """Reduce the debts by the time that has passed. Nobody owes anything while there is only one organisation."""
        recent = now - RIVAL_SECONDS
        self._last_steps = {org_id: at for org_id, at in self._last_steps.items() if at > recent}
        if len(self._last_steps) < 2 and not (self._waiting.keys() - self._last_steps.keys()):
            self._debts.clear()
            self._only_org = next(iter(self._last_steps), None)
        repaid = MAX_SHARE * (now - self._repaid_at)
        self._debts = {org_id: debt - repaid for org_id, debt in self._debts.items() if debt > repaid}
        self._repaid_at = now

    def _wait(self, org_id: str) -> Generator[Any, Any, None]:
        loop, is_first = asyncio.get_running_loop(), True
        while is_first or self._must_wait(org_id):
            turn = loop.create_future()
            turns = self._waiting.setdefault(org_id, deque())
            turns.append(turn) if is_first else turns.appendleft(turn)  # others used up the time of this turn
            is_first = False
            if not self._is_scheduled:
                self._schedule()
            yield from turn

    def _note(self, org_id: str, began: float) -> None:
        now = time.perf_counter()
        self._last_steps[org_id] = now
        if len(self._last_steps) == 1:
            self._only_org = org_id
            return
        if self._only_org is not None:
            self._last_steps[self._only_org] = now
            self._only_org = None
        if not self._debts:
            self._repaid_at = now
        self._debts[org_id] = self._debts.get(org_id, 0.0) + now - began

    def _schedule(self) -> None:
        """Look again when the first waiting organisation has repaid its debt."""
        self._is_scheduled = True
        debt = min(self._debts.get(org_id, 0.0) for org_id in self._waiting)
        seconds = max(0.0, debt - BUDGET_SECONDS) / MAX_SHARE
        asyncio.get_running_loop().call_later(min(seconds, RIVAL_SECONDS), self._resume)

    def _resume(self) -> None:
        self._is_scheduled = False
        self._repay(time.perf_counter())
        for org_id, turns in list(self._waiting.items()):
            if self._debts.get(org_id, 0.0) <= BUDGET_SECONDS:
                for _ in range(min(RESUMED_AT_ONCE, len(turns))):
                    turn = turns.popleft()
                    if not turn.done():
                        turn.set_result(None)
                if not turns:
                    del self._waiting[org_id]
        if self._waiting:
            self._schedule()
