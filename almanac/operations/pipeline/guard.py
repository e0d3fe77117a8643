"""The one place that cancels a running request: its body is late, its time is over, or its client has gone."""

import asyncio
from types import TracebackType
from typing import Any

from starlette.types import Receive

from almanac.core.errors import AlmanacError, Cancelled, DeadlineExceeded
from almanac.core.timers import TimerQueue
from almanac.net.http_exchange import BodyTimeout, HttpExchange

# Most requests end before this, so they pay for neither a timer of their own nor a task that watches the connection.
WATCH_AFTER_SECONDS = 0.05


class ClientDisconnected(Cancelled):
    """The client closed the connection before the answer was ready."""


class RequestGuard:
    """Limits the time of the code inside the `with` block and cancels it when the client disconnects.

    While the body arrives, each chunk has `seconds` to arrive. From then on the code has `seconds` to finish, and a
    disconnect ends it. The block is left with `BodyTimeout`, `DeadlineExceeded` or `ClientDisconnected`. Without an
    exchange (stdio, jobs of an agent) only the deadline applies.
    """

    __slots__ = (
        "_cancellations", "_http", "_is_armed", "_queue", "_seconds", "_task", "_timer", "_watcher", "error",
    )  # fmt: skip

    def __init__(self, queue: TimerQueue, seconds: float, http: HttpExchange | None = None) -> None:
        self._queue = queue  # of WATCH_AFTER_SECONDS
        self._seconds = seconds
        self._http = http
        self._is_armed = False
        self._timer: asyncio.TimerHandle | None = None
        self._watcher: asyncio.Task[None] | None = None
        self.error: AlmanacError | None = None  # the reason of the cancellation

    def __enter__(self) -> "RequestGuard":
        task = asyncio.current_task()
        assert task is not None
        self._task: asyncio.Task[Any] = task
        self._cancellations = task.cancelling()
        self._queue.start(self, task.get_loop())
        if self._http is not None:
            self._http.on_progress = self._on_progress
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        self.stop()
        # Another party may have cancelled the task too; its cancellation goes on.
        if self.error and self._task.uncancel() <= self._cancellations and kind is asyncio.CancelledError:
            raise self.error from error

    def cancel(self, error: AlmanacError) -> None:
        """Cancel the code in the block; the block is left with this error."""
        if self.error is None:
            self.error = error
            self._task.cancel()

    def stop(self) -> None:
        """Let the rest of the block run without limits, because its answer has begun."""
        if self._http is not None:
            self._http.on_progress = None
        if not self._is_armed:
            self._queue.stop(self)
        else:
            self._disarm()

    def lift_deadline(self) -> None:
        """Remove the time limit, for work that has a limit of its own. A disconnect still ends it."""
        self._seconds = 0
        if self._timer is not None:
            self._timer.cancel()

    def expire(self) -> None:
        """Start the deadline and the watch over the connection. The timer queue calls this."""
        self._is_armed = True
        if self._seconds:
            self._timer = self._task.get_loop().call_later(self._seconds - WATCH_AFTER_SECONDS, self._time_over)
        if self._http is not None and self._http.is_read:
            self._watch(self._http.receive)

    def _on_progress(self) -> None:
        """A chunk of the body has arrived: the time begins anew."""
        if not self._is_armed:
            return
        if self._timer is not None:
            self._timer.cancel()
        if self._seconds:
            self._timer = self._task.get_loop().call_later(self._seconds, self._time_over)
        if self._http is not None and self._http.is_read:
            self._watch(self._http.receive)

    def _watch(self, receive: Receive) -> None:
        if self._watcher is None:
            self._watcher = self._task.get_loop().create_task(self._wait_for_disconnect(receive))

    async def _wait_for_disconnect(self, receive: Receive) -> None:
        while (await receive())["type"] != "http.disconnect":
            pass
        self.cancel(ClientDisconnected())

    def _time_over(self) -> None:
        is_reading = self._http is not None and not self._http.is_read
        self.cancel(BodyTimeout() if is_reading else DeadlineExceeded())

    def _disarm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        if self._watcher is not None:
            self._watcher.cancel()
