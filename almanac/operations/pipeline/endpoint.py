"""The adapter between the pipeline and one protocol at one path."""

from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any, Protocol

from almanac.core.errors import AlmanacError
from almanac.net.http_exchange import HttpExchange
from almanac.operations.context import AppContext, Authentication, RequestContext
from almanac.operations.operation import Operation
from almanac.quotas.rate_limits import RateLimit


@dataclass(frozen=True, slots=True)
class Invocation:
    """One operation to run. `operation` is None if the caller named one that does not exist for them."""

    name: str
    operation: Operation | None
    arguments: dict[str, Any]
    is_admitted: bool = False  # limits and rights have been checked


@dataclass(frozen=True, slots=True)
class HandOver:
    """A request that another application answers, such as the MCP SDK.

    `serve` sends the answer, and calls `RequestGuard.stop` when the answer begins. Each operation that it runs has a
    deadline and a record of its own (`run_recorded`).
    """

    serve: Callable[[], Coroutine[Any, Any, None]]


class Endpoint(Protocol):
    """The adapter between the pipeline and one protocol at one path."""

    surface: str  # in the audit trail and the metrics
    is_mcp: bool = False  # whether MCP tokens work here
    state: Any  # handlers find it as `ctx.surface_state`

    async def limit_before_credential(self, app: AppContext, http: HttpExchange) -> None:
        """Count the request before its credential is read, where a seed documents such a limit."""

    async def authenticate(self, app: AppContext, http: HttpExchange) -> Authentication:
        """Return the caller, or raise `Unauthorized`."""
        ...

    async def limit_before_body(self, ctx: RequestContext) -> None:
        """Count the request before its body is read, where a seed documents such a limit."""

    def call_limit(self, ctx: RequestContext) -> RateLimit | None:
        """Return the limit that each call counts against; None if the request has been counted already."""
        return ctx.app.call_limit

    async def read(self, ctx: RequestContext) -> Any:
        """Read the body. Return the `Invocation` to run, a `HandOver`, or any other value, which `send` then sends."""
        ...

    async def send(self, ctx: RequestContext, answer: Any) -> None:
        """Send the answer of the operation, or the value that `read` returned."""
        ...

    async def send_error(self, http: HttpExchange, ctx: RequestContext | None, error: AlmanacError) -> None:
        """Send an error. `ctx` is None if the caller is not known yet."""
        ...
