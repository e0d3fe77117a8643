"""Answers to web pages of other origins (CORS), for MCP clients that run in a browser.

Only pages of an accepted origin may read answers. There are no cookies: a page needs a token as other clients do, so
no answer allows credentials.
"""

from starlette.types import Message, Scope, Send

from almanac.net.allowed_hosts import AllowedHosts

ALLOWED_METHODS = ("GET", "POST", "PUT", "PATCH", "DELETE")
ALLOWED_HEADERS = (
    *("accept", "authorization", "content-type", "idempotency-key", "last-event-id", "mcp-method", "mcp-name"),
    *("mcp-protocol-version", "mcp-session-id", "traceparent", "tracestate", "x-access-key", "x-api-key"),
    *("x-almanac-download-token", "x-request-id", "x-tenant-id", "x-wegent-download-token"),
)
EXPOSED_HEADERS = ("mcp-session-id", "x-request-id")
PREFLIGHT_SECONDS = 600  # Chrome caps it at two hours

_PREFLIGHT_HEADERS = (
    (b"access-control-allow-methods", ", ".join(ALLOWED_METHODS).encode()),
    (b"access-control-allow-headers", ", ".join(ALLOWED_HEADERS).encode()),
    (b"access-control-max-age", b"%d" % PREFLIGHT_SECONDS),
)
_EXPOSED = (b"access-control-expose-headers", ", ".join(EXPOSED_HEADERS).encode())


def accepted_origin(scope: Scope, allowed: AllowedHosts) -> bytes | None:
    """Return the Origin header of a request if pages of this origin may read the answer."""
    origin = next((value for name, value in scope["headers"] if name == b"origin"), None)
    return origin if origin is not None and allowed.accepts_origin(origin) else None


def is_preflight(scope: Scope) -> bool:
    """Whether a browser sends this request to learn which requests a page may send."""
    return scope["method"] == "OPTIONS" and any(
        name == b"access-control-request-method" for name, _ in scope["headers"]
    )


async def answer_preflight(origin: bytes, send: Send) -> None:
    """Tell the browser the methods and headers that a page may use."""
    headers = [*_origin_headers(origin), *_PREFLIGHT_HEADERS]
    await send({"type": "http.response.start", "status": 204, "headers": headers})
    await send({"type": "http.response.body", "body": b""})


def readable_from(origin: bytes, send: Send) -> Send:
    """Return a `send` whose answer a page of this origin may read."""

    async def send_with_headers(message: Message) -> None:
        if message["type"] == "http.response.start":
            message["headers"] = [*message.get("headers", ()), *_origin_headers(origin), _EXPOSED]
        await send(message)

    return send_with_headers


def _origin_headers(origin: bytes) -> tuple[tuple[bytes, bytes], ...]:
    return (b"access-control-allow-origin", origin), (b"vary", b"Origin")
