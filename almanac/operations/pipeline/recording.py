"""The record of one call: in-flight count, trace span, metrics and audit entry."""

import asyncio
import time
from types import TracebackType

from opentelemetry.trace import Span, use_span

from almanac.core.call import REQUEST_ID
from almanac.core.errors import AlmanacError, Cancelled, Internal
from almanac.core.fair_slots import ORG_ID
from almanac.operations.context import RequestContext


class CallRecord:
    """Records the call inside the `with` block, successful or not, if its operation is known at the end."""

    __slots__ = ("_ctx", "_org", "_span", "_span_scope", "_started")

    def __init__(self, ctx: RequestContext) -> None:
        self._ctx = ctx

    def __enter__(self) -> None:
        ctx = self._ctx
        self._started = time.perf_counter_ns()
        REQUEST_ID.set(ctx.request_id)
        self._org = ORG_ID.set(ctx.actor.org_id)
        ctx.app.recorder.trail.calls_in_flight += 1
        self._span: Span | None = None
        if ctx.app.tracer is not None:
            self._span = ctx.app.tracer.start_span(ctx.surface)
            # The message of an exception may contain text of the caller, so it is not recorded.
            self._span_scope = use_span(self._span, record_exception=False, set_status_on_exception=False)
            self._span_scope.__enter__()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        ctx = self._ctx
        ORG_ID.reset(self._org)  # an agent works for the owner of a key within a request of another caller
        outcome = "ok" if error is None else _outcome(ctx, error)
        nanoseconds = time.perf_counter_ns() - self._started
        # The answer is sent in this same step of the event loop, so that no caller waits for the bookkeeping.
        asyncio.get_running_loop().call_soon(self._close, outcome, nanoseconds)
        if self._span is not None:
            self._span_scope.__exit__(kind, error, trace)
        if self._span is not None and ctx.operation:  # a span that is not ended is not exported
            self._span.update_name(f"{ctx.surface} {ctx.operation}")
            self._span.set_attribute("almanac.surface", ctx.surface)
            self._span.set_attribute("almanac.request_id", ctx.request_id)
            self._span.set_attribute("almanac.is_error", error is not None)
            self._span.end()

    def _close(self, outcome: str, nanoseconds: int) -> None:
        ctx = self._ctx
        if ctx.operation:
            ctx.app.recorder.record(ctx, ctx.surface, ctx.operation, outcome, nanoseconds, ctx.digest)
        if ctx.execution is not None:
            ctx.app.recorder.record_execution(ctx, ctx.execution, ctx.surface, ctx.operation, outcome, nanoseconds)
        ctx.app.recorder.trail.calls_in_flight -= 1  # a shutdown waits until nothing is in flight


def _outcome(ctx: RequestContext, error: BaseException) -> str:
    """The code of a failure, as the audit trail has it."""
    if isinstance(error, AlmanacError):
        return error.code
    if isinstance(error, asyncio.CancelledError):
        return ctx.guard.error.code if ctx.guard.error else Cancelled.code
    return Internal.code
