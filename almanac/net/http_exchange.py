"""An HTTP request that came in, and the way to answer it: what every door of ours reads of it in the same way."""

import itertools
import re
import secrets

from starlette.types import Message, Receive, Scope, Send

from almanac.core.errors import AlmanacError, BadRequest, Cancelled, TooLarge, Unavailable

Headers = dict[bytes, bytes]

# Two copies of one of these could be read differently by two readers, so a request with two is refused.
SINGLE_VALUE_HEADERS = frozenset(
    {b"authorization", b"x-api-key", b"x-access-key", b"x-tenant-id", b"host", b"content-length", b"content-type",
     b"origin", b"mcp-session-id", b"mcp-protocol-version", b"mcp-method", b"mcp-name", b"x-almanac-download-token",
     b"x-wegent-download-token"}
)  # fmt: skip

_REQUEST_ID = re.compile(rb"[A-Za-z0-9._-]{1,64}")
_boot = secrets.token_hex(4)
_count = itertools.count(1)


class ServerStopping(Unavailable):
    """The server is stopping and could not finish this."""

    remedy = "Try again in a few seconds."


class BodyTimeout(AlmanacError):
    """The request body did not arrive in time."""

    code = "request_timeout"
    status = 408
    remedy = "Send it again."


class HttpExchange:
    """One HTTP request and the way to answer it."""

    __slots__ = ("headers", "is_answered", "is_read", "receive", "request_id", "scope", "send")

    def __init__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.scope = scope
        self.receive = receive
        self.send = send
        self.headers: Headers = {}
        self.is_answered = False
        self.is_read = False  # the body, to its end
        self.request_id = f"{_boot}-{next(_count):x}"

    def read_headers(self) -> Headers:
        """The headers, by name; refused if one of those that matter comes twice."""
        found = self.headers
        for name, value in self.scope["headers"]:
            if name in found and name in SINGLE_VALUE_HEADERS:
                raise BadRequest(f"The header {name.decode('latin-1')} appears more than once.", remedy="Send it once.")
            found[name] = value.strip()  # httptools leaves white space around values
        given = found.get(b"x-request-id")
        if given is not None and _REQUEST_ID.fullmatch(given):
            self.request_id = given.decode()
        return found

    def check_length(self, most: int) -> None:
        """Refuse a body that is said to be larger than `most` bytes."""
        declared = self.headers.get(b"content-length", b"0")
        if not declared.isdigit() or int(declared) > most:
            raise _too_large(most)

    async def read_piece(self) -> bytes:
        """The next piece of the body; `is_read` tells whether it was the last."""
        event = await self.receive()
        if event["type"] == "http.disconnect":
            raise Cancelled()  # what was not sent to its end is not acted upon, even if it could be read
        self.is_read = not event.get("more_body", False)
        return event.get("body", b"")

    async def read_body(self, most: int) -> bytes:
        """The whole body, if it is not larger than `most` bytes."""
        self.check_length(most)
        parts: list[bytes] = []
        size = 0
        while not self.is_read:
            parts.append(await self.read_piece())
            size += len(parts[-1])
            if size > most:
                raise _too_large(most)
        return b"".join(parts)

    async def send_with_request_id(self, message: Message) -> None:
        """Send a message of an answer that something else makes, with the id of the request."""
        if message["type"] == "http.response.start":
            self.is_answered = True
            message["headers"] = [*message.get("headers", []), (b"x-request-id", self.request_id.encode())]
        await self.send(message)

    async def reply(self, status: int, body: bytes, extra: tuple[tuple[bytes, bytes], ...] = ()) -> None:
        """Answer with JSON."""
        self.is_answered = True
        headers = [
            (b"content-type", b"application/json"),
            (b"content-length", b"%d" % len(body)),
            (b"x-request-id", self.request_id.encode()),
            *extra,
        ]
        await self.send({"type": "http.response.start", "status": status, "headers": headers})
        await self.send({"type": "http.response.body", "body": body})


def replay(raw: bytes, receive: Receive) -> Receive:
    """Receives a body that was read already once more, then what comes."""
    given = False

    async def again() -> Message:
        nonlocal given
        if given:
            return await receive()
        given = True
        return {"type": "http.request", "body": raw, "more_body": False}

    return again


def _too_large(most: int) -> TooLarge:
    return TooLarge(remedy=f"Send at most {most} bytes.")
