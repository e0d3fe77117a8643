"""The pipeline that serves every request: each stage once, for all protocols.

1. headers, request id, host and origin
2. limits before the credential           `Endpoint.limit_before_credential`
3. authenticate                           `Endpoint.authenticate`
4. limits before the body                 `Endpoint.limit_before_body`
5. open the record                        `recording.CallRecord`: in-flight count, trace span
6. read the body, find the operation      `Endpoint.read`
7. audit capacity, limit per call, scopes `invoke`
8. parse the arguments strictly           `Operation.parse`
9. run the operation                      `Operation.handler`; in plain language: `agent_use.run`
10. send the answer or the error          `Endpoint.send`, `Endpoint.send_error`
11. close the record                      audit entry, metrics, span, in-flight count

Stages 6 to 10 run by turns (`core/loop_turns.py`), so that many requests of one organisation do not delay another's.

The guard (`RequestGuard`) covers stages 1 to 9. It ends them if the body is late, the deadline is over or the client
has disconnected. Stage 10 is outside: a file may take longer than the deadline.

`Endpoint.read` may hand a request over to another application (`HandOver`), which takes the place of stages 7 to 10.
The guard ends it if the client disconnects before the answer begins. It has no deadline, because a session of the SDK
may keep a stream open; each operation that it runs enters at `run_recorded`, with its own record and deadline.
"""

import asyncio
from typing import Any

import structlog
from starlette.types import Receive, Scope, Send

from almanac.core.call import Actor
from almanac.core.errors import AlmanacError, Forbidden, InsufficientScope, Internal, McpTokenRefused, Unauthorized
from almanac.core.fair_slots import compute
from almanac.identity.tokens import MCP_ONLY_KINDS
from almanac.net.client_address import client_address
from almanac.net.http_exchange import HttpExchange, ServerStopping
from almanac.operations.context import AppContext, RequestContext
from almanac.operations.operation import Operation
from almanac.operations.pipeline import agent_use
from almanac.operations.pipeline.endpoint import Endpoint, HandOver, Invocation
from almanac.operations.pipeline.errors import UNKNOWN, UnknownOperation
from almanac.operations.pipeline.guard import ClientDisconnected, RequestGuard
from almanac.operations.pipeline.recording import CallRecord
from almanac.quotas.rate_limits import RateLimit

_log = structlog.get_logger("almanac.requests")


class EndpointApp:
    """The ASGI application of one endpoint."""

    def __init__(self, app: AppContext, endpoint: Endpoint) -> None:
        self.app = app
        self.endpoint = endpoint

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one HTTP request."""
        await handle(self.endpoint, self.app, HttpExchange(scope, receive, send, self.app.body_memory))


async def handle(endpoint: Endpoint, app: AppContext, http: HttpExchange) -> None:
    """Serve one HTTP request."""
    trail = app.recorder.trail
    trail.calls_in_flight += 1  # until the last byte is sent, so that a shutdown waits for it
    ctx: RequestContext | None = None
    try:
        with RequestGuard(app.timers, app.settings.request_deadline_seconds, http) as guard:
            app.allowed_hosts.check(http.read_headers())
            await endpoint.limit_before_credential(app, http)
            actor, claims = await endpoint.authenticate(app, http)
            ctx = RequestContext(
                actor, app.db, http.request_id, app=app, guard=guard, http=http, surface=endpoint.surface,
                is_mcp=endpoint.is_mcp, surface_state=endpoint.state, claims=claims, path=http.scope["path"],
            )  # fmt: skip
            await endpoint.limit_before_body(ctx)
            with CallRecord(ctx):
                answer = await app.turns.run(actor.org_id, _answer(endpoint, ctx))
            if isinstance(answer, HandOver):
                guard.lift_deadline()
                await app.turns.run(actor.org_id, answer.serve())
                return
        await app.turns.run(actor.org_id, endpoint.send(ctx, answer))
    except ClientDisconnected:
        pass  # there is nobody to answer
    except asyncio.CancelledError:
        await _send_error(endpoint, http, ctx, ServerStopping())
        raise
    except Exception as failure:  # noqa: BLE001 - one failing request must not take others with it
        if isinstance(failure, Unauthorized):
            address = client_address(http.scope, app.settings.trusted_proxies)
            app.refusal_log.record(address, endpoint.surface, http.request_id)
        await _send_error(endpoint, http, ctx, log_failure(ctx or http, failure))
    finally:
        http.release_body()
        trail.calls_in_flight -= 1


async def run_recorded(ctx: RequestContext, invocation: Invocation, limit: RateLimit | None) -> Any:
    """Run an operation for a call that does not come through `handle`: from the SDK, stdio or an agent."""
    with (
        CallRecord(ctx),
        RequestGuard(ctx.app.timers, ctx.app.settings.request_deadline_seconds) as ctx.guard,
    ):
        return await ctx.app.turns.run(ctx.actor.org_id, invoke(ctx, invocation, limit))


async def _answer(endpoint: Endpoint, ctx: RequestContext) -> Any:
    """Read the request, and run the operation that it names."""
    answer = await endpoint.read(ctx)
    return await invoke(ctx, answer, endpoint.call_limit(ctx)) if isinstance(answer, Invocation) else answer


async def invoke(ctx: RequestContext, invocation: Invocation, limit: RateLimit | None) -> Any:
    """Check the caller's rights, parse the arguments and run the operation."""
    operation = invocation.operation
    if not invocation.is_admitted:
        await admit(ctx, operation, limit)
    if operation is None:
        raise UnknownOperation(invocation.name)
    operation.check_count(invocation.arguments)
    if bool(ctx.http) and ctx.http.has_large_body:
        parsed = await compute(_parse, ctx, operation, invocation.arguments)
    else:
        parsed = _parse(ctx, operation, invocation.arguments)
    if operation.agent is not None:
        return await agent_use.run(ctx, operation, operation.agent, invocation.arguments, parsed)
    return await operation.handler(ctx, parsed)


def _parse(ctx: RequestContext, operation: Operation, arguments: dict[str, Any]) -> Any:
    ctx.note_arguments(arguments)
    return operation.parse(arguments)


async def admit(ctx: RequestContext, operation: Operation | None, limit: RateLimit | None) -> None:
    """Check the capacity of the audit trail, the limit per call and the caller's rights."""
    ctx.operation = operation.name if operation else UNKNOWN
    ctx.app.recorder.trail.require_capacity()
    if limit is not None:
        await ctx.app.rate_limiter.count(limit, ctx.actor.limit_key)
    if operation is not None:
        check_rights(ctx.actor, operation, is_mcp=ctx.is_mcp)


def check_rights(actor: Actor, operation: Operation, *, is_mcp: bool) -> None:
    """Refuse an operation that the token's kind, its scopes or its list of tools exclude."""
    if actor.token_kind in MCP_ONLY_KINDS and not is_mcp:
        raise McpTokenRefused()
    if missing := operation.scopes - actor.scopes:
        raise InsufficientScope(f"Your token lacks the scope {', '.join(sorted(missing))}.")
    if actor.tools is not None and (operation.tool or operation.name) not in actor.tools:
        raise Forbidden(f"Your token is limited to some tools; {operation.name} is not one of them.")


def log_failure(request: RequestContext | HttpExchange, failure: Exception) -> AlmanacError:
    """Log a failure of the server. Return the error that the caller sees."""
    where = {
        "request_id": request.request_id,
        "surface": getattr(request, "surface", ""),
        "operation": getattr(request, "operation", ""),
    }
    if not isinstance(failure, AlmanacError):
        _log.exception("request_failed", **where)
        return Internal.for_request(request.request_id)
    if failure.status >= 500:
        _log.warning("request_refused", **where, error=str(failure))
    return failure


async def _send_error(endpoint: Endpoint, http: HttpExchange, ctx: RequestContext | None, error: AlmanacError) -> None:
    if not http.is_answered:  # otherwise it is too late to say anything else
        await endpoint.send_error(http, ctx, error)
