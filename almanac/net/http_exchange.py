"""One HTTP request and the means to answer it."""

import itertools
import re
import secrets
from collections.abc import Callable

from starlette.types import Message, Receive, Scope, Send

from almanac.core.errors import AlmanacError, BadRequest, Cancelled, TooLarge, Unavailable
from almanac.core.fair_slots import ORG_ID, compute
from almanac.core.json_size import MAX_JSON_VALUES, has_too_many_values
from almanac.net.body_memory import BodyMemory

Headers = dict[bytes, bytes]
HeaderList = tuple[tuple[bytes, bytes], ...]

# Two readers could pick different copies of these headers, so a request with two copies is refused.
SINGLE_VALUE_HEADERS = frozenset(
    {b"authorization", b"x-api-key", b"x-access-key", b"x-tenant-id", b"host", b"content-length", b"content-type",
     b"origin", b"mcp-session-id", b"mcp-protocol-version", b"mcp-method", b"mcp-name", b"x-almanac-download-token",
     b"x-wegent-download-token", b"idempotency-key"}
)  # fmt: skip

LARGE_BODY_BYTES = 64 * 1024  # larger bodies are counted, parsed and validated in a thread

_REQUEST_ID = re.compile(rb"[A-Za-z0-9._-]{1,64}")
_process_prefix = secrets.token_hex(4)
_request_count = itertools.count(1)


class ServerStopping(Unavailable):
    """The server is stopping and could not finish this request."""

    remedy = "Try again in a few seconds."


class BodyTimeout(AlmanacError):
    """The request body did not arrive in time."""

    code = "request_timeout"
    status = 408
    remedy = "Send it again."


class HttpExchange:
    """One HTTP request and the means to answer it."""

    __slots__ = (
        "_body", "_body_memory", "_held", "answer_headers", "headers", "is_answered", "is_read", "on_progress",
        "receive", "request_id", "scope", "send",
    )  # fmt: skip

    def __init__(self, scope: Scope, receive: Receive, send: Send, body_memory: BodyMemory | None = None) -> None:
        self.scope = scope
        self.receive = receive
        self.send = send
        self.headers: Headers = {}
        self.answer_headers: HeaderList = ()  # sent with the answer, whatever it is
        self.is_answered = False
        self.is_read = False  # the body has arrived completely
        self.on_progress: Callable[[], None] | None = None  # called after each chunk of the body
        self.request_id = f"{_process_prefix}-{next(_request_count):x}"
        self._body: bytes | None = None
        self._body_memory = body_memory
        self._held = ("", 0)  # the organisation and the counted bytes of the body

    @property
    def content_type(self) -> bytes:
        """The media type of the body in lower case, without parameters."""
        return self.headers.get(b"content-type", b"").partition(b";")[0].strip().lower()

    def read_headers(self) -> Headers:
        """Return the headers by name. A request that repeats a header of SINGLE_VALUE_HEADERS is refused."""
        headers = self.headers
        for name, value in self.scope["headers"]:
            if name in headers and name in SINGLE_VALUE_HEADERS:
                raise BadRequest(f"The header {name.decode('latin-1')} appears more than once.", remedy="Send it once.")
            headers[name] = value.strip()  # httptools leaves white space around values
        request_id = headers.get(b"x-request-id")
        if request_id is not None and _REQUEST_ID.fullmatch(request_id):
            self.request_id = request_id.decode()
        return headers

    def check_length(self, max_bytes: int) -> None:
        """Refuse a body whose declared length exceeds `max_bytes`."""
        declared = self.headers.get(b"content-length", b"0")
        if not declared.isdigit() or int(declared) > max_bytes:
            raise _too_large(max_bytes)

    async def read_chunk(self) -> bytes:
        """Return the next chunk of the body; `is_read` tells whether it was the last."""
        event = await self.receive()
        if event["type"] == "http.disconnect":
            raise Cancelled()  # an incomplete body is not acted upon, even if it could be parsed
        self.is_read = not event.get("more_body", False)
        if self.on_progress is not None:
            self.on_progress()
        return event.get("body", b"")

    async def read_json_body(self, max_bytes: int) -> bytes:
        """Return the whole body, JSON of at most `max_bytes` and MAX_JSON_VALUES. It can be read again."""
        self.check_length(max_bytes)
        if self._body is None:
            chunks: list[bytes] = []
            size = 0
            while not self.is_read:
                chunks.append(await self.read_chunk())
                size += len(chunks[-1])
                if size > max_bytes:
                    raise _too_large(max_bytes)
                self._hold(len(chunks[-1]))
            body = b"".join(chunks)
            if len(body) > LARGE_BODY_BYTES and await compute(has_too_many_values, body):
                raise BadRequest(
                    f"The body has more than {MAX_JSON_VALUES:,} JSON values.", remedy="Send them in several requests."
                )
            self._body = body
        return self._body

    @property
    def has_large_body(self) -> bool:
        """Whether the body takes so long to parse and validate that a thread must do it."""
        return self._body is not None and len(self._body) > LARGE_BODY_BYTES

    def release_body(self) -> None:
        """Stop counting the memory of the body. Call it when the request ends."""
        if self._body_memory is not None and self._held[1]:
            self._body_memory.give_back(*self._held)
            self._held = ("", 0)

    def _hold(self, size: int) -> None:
        if self._body_memory is not None and size:
            org_id = self._held[0] if self._held[1] else ORG_ID.get()
            self._body_memory.take(org_id, size)
            self._held = (org_id, self._held[1] + size)

    def ignore_body(self) -> None:
        """Treat the body as read, for operations that take none."""
        self.is_read = True
        if self.on_progress is not None:
            self.on_progress()

    async def send_with_request_id(self, message: Message) -> None:
        """Send an ASGI message of another application's answer, with the request id."""
        if message["type"] == "http.response.start":
            self.is_answered = True
            message["headers"] = [*message.get("headers", []), *self._own_headers()]
        await self.send(message)

    async def reply(self, status: int, body: bytes, extra_headers: HeaderList = ()) -> None:
        """Answer with JSON."""
        self.is_answered = True
        headers = [
            (b"content-type", b"application/json"),
            (b"content-length", b"%d" % len(body)),
            *self._own_headers(),
            *extra_headers,
        ]
        await self.send({"type": "http.response.start", "status": status, "headers": headers})
        await self.send({"type": "http.response.body", "body": body})

    async def reply_empty(self, status: int) -> None:
        """Answer without a body."""
        self.is_answered = True
        await self.send({"type": "http.response.start", "status": status, "headers": [*self._own_headers()]})
        await self.send({"type": "http.response.body", "body": b""})

    def _own_headers(self) -> HeaderList:
        return ((b"x-request-id", self.request_id.encode()), *self.answer_headers)


def replay(body: bytes, receive: Receive) -> Receive:
    """Return a `receive` that delivers a body once more, and then the events of the original one."""
    is_delivered = False

    async def receive_again() -> Message:
        nonlocal is_delivered
        if is_delivered:
            return await receive()
        is_delivered = True
        return {"type": "http.request", "body": body, "more_body": False}

    return receive_again


def _too_large(max_bytes: int) -> TooLarge:
    return TooLarge(remedy=f"Send at most {max_bytes} bytes.")
