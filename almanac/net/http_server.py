"""The HTTP server: uvicorn with httptools, and limits on every connection.

uvicorn parses requests strictly but trusts its peers: it limits neither the headers nor the time that a request takes
to arrive, it adds trailers to the headers, and it parses the body of a request with `Upgrade` as another request. A
`GuardedConnection` refuses such a request with one answer and closes the connection.
"""

import asyncio
import fcntl
import math
import socket
import struct
import termios
from collections.abc import Callable
from enum import Enum
from http import HTTPStatus
from typing import Any, cast

import httptools
import orjson
import structlog
import uvicorn
from starlette.applications import Starlette
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle
from uvicorn.server import ServerState

from almanac.core.errors import AlmanacError
from almanac.core.settings import Settings
from almanac.net.connection_errors import (
    HeadersTooLarge,
    InvalidHttp,
    RequestTimeout,
    TooManyConnections,
    UnsupportedVersion,
    UpgradeRefused,
)
from almanac.net.connection_table import ConnectionTable

_log = structlog.get_logger("almanac.connections")

MAX_HEADERS = 100
MAX_PIPELINED_REQUESTS = 16

# Of a request body that arrives and of an answer that the client reads, on average over the time limit.
MIN_BYTES_PER_SECOND = 1024

# A closed socket that still receives data resets the connection, and the client may lose the answer. So the server
# reads and ignores some data after a refusal.
LINGER_SECONDS = 2.0
MAX_LINGER_BYTES = 1024 * 1024

# A chunk with one byte of data is six bytes long. Chunks that are much longer than their data are padding.
_MAX_BYTES_PER_BODY_BYTE = 8

# SO_LINGER on, for no seconds: the connection is reset instead of closed.
_NO_LINGER = struct.pack("ii", 1, 0)

_HTTP_VERSIONS = ("1.0", "1.1")
_SPECIAL_HEADERS = frozenset({b"content-length", b"transfer-encoding", b"upgrade", b"expect"})
# RFC 9110, 6.5.1: a trailer cannot change the framing of its message or the connection.
_NOT_IN_TRAILERS = frozenset({b"content-length", b"transfer-encoding", b"upgrade", b"connection"})


class ServerConfig(uvicorn.Config):
    """The configuration of the server, which is the same in `almanac serve` and in tests."""

    def __init__(self, app: Starlette | Callable[..., Any] | str, settings: Settings, **options: Any) -> None:
        super().__init__(
            app, loop="uvloop", http=GuardedConnection, ws="none", lifespan="on", access_log=False, log_config=None,
            server_header=False, proxy_headers=False, **options,
        )  # fmt: skip
        self.settings = settings
        self.table = ConnectionTable(settings)


class _Reading(Enum):
    """The part of a request that is expected next."""

    START = 0
    HEAD = 1
    BODY = 2


class GuardedConnection(HttpToolsProtocol):
    """One connection, with limits on size and time."""

    def __init__(
        self,
        config: ServerConfig,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        super().__init__(config, server_state, app_state, _loop)
        # uvicorn lets data follow a request with `Connection: close`.
        assert self.parser is not None
        self.parser.set_dangerous_leniencies(lenient_data_after_close=False)
        self._settings = config.settings
        self._table = config.table
        self._peer: str | None = None
        self._running: RequestResponseCycle | None = None  # `cycle` is the last request, which may be queued
        self._is_refused = False
        self._ignored_bytes = 0

        # The start of the current time limit. It is set by the next check, so that a request that arrives at once does
        # not pay for a clock.
        self._since: float | None = None
        self._reading = _Reading.START
        self._is_chunked = False
        self._has_length = False
        self._head_bytes = 0  # of complete header lines and trailers
        self._raw_bytes = 0  # since the last read in which a request or its body began or ended
        self._body_bytes = 0
        self._body_bytes_before = 0  # at the start of the current time limit

        self._write_since: float | None = None
        self._unsent_bytes = 0

    # Callbacks of the event loop

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Admit the connection, or refuse it if there are too many."""
        super().connection_made(cast(asyncio.Transport, transport))
        self._peer = self._table.admit(self, self.client[0] if self.client else "")
        if self._peer is None:
            self._refuse(TooManyConnections())
            self.transport.close()

    def connection_lost(self, exc: Exception | None) -> None:
        """Tell the running request, which is not the last one if requests are queued."""
        if self._peer is not None:
            self._table.remove(self, self._peer)
        if self._running is not None:
            _disconnect(self._running)
        self.pipeline.clear()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Parse bytes; refuse what is invalid or too large."""
        if self._is_refused:
            self._ignored_bytes += len(data)
            if self._ignored_bytes > MAX_LINGER_BYTES:
                self.abort()
            return
        assert self.parser is not None
        self._raw_bytes += len(data)
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserError as failure:
            cause = failure.__context__
            self._refuse(cause if isinstance(cause, AlmanacError) else InvalidHttp())
            return
        if self._raw_bytes > self._settings.max_header_bytes and not self._is_body():
            self._refuse(self._headers_too_large())

    def _is_body(self) -> bool:
        """Whether the bytes of the last reads are a body, not an endless header line, chunk extension or empty line."""
        return self._reading is _Reading.BODY and (
            self._raw_bytes <= self._settings.max_header_bytes + _MAX_BYTES_PER_BODY_BYTE * self._body_bytes
        )

    # Callbacks of the parser. An exception leaves `feed_data` as the context of an `HttpParserError`.

    def on_message_begin(self) -> None:
        """Begin a request."""
        super().on_message_begin()
        self._reading = _Reading.HEAD
        self._since = None
        self._is_chunked = self._has_length = False
        self._head_bytes = self._raw_bytes = 0

    def on_url(self, url: bytes) -> None:
        """Take a part of the URL."""
        self._count_head(len(url))
        self.url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        """Take a header; ignore a trailer."""
        name = name.lower()
        self._count_head(len(name) + len(value) + len(b": \r\n"))
        if self._reading is _Reading.BODY:
            if name in _NOT_IN_TRAILERS:
                raise InvalidHttp()
            return
        if name in _SPECIAL_HEADERS:
            self._check_header(name, value.strip().lower())
        self.headers.append((name, value))
        if len(self.headers) > MAX_HEADERS:
            raise HeadersTooLarge(remedy=f"Send at most {MAX_HEADERS} headers.")

    def on_headers_complete(self) -> None:
        """Start the request, unless its framing is ambiguous."""
        assert self.parser is not None
        version = self.parser.get_http_version()
        if version not in _HTTP_VERSIONS:
            raise UnsupportedVersion()
        if self.parser.should_upgrade():  # CONNECT
            raise UpgradeRefused()
        if self._is_chunked and (self._has_length or version == "1.0"):
            raise InvalidHttp()
        if len(self.pipeline) >= MAX_PIPELINED_REQUESTS:
            raise InvalidHttp(remedy=f"Send at most {MAX_PIPELINED_REQUESTS} requests before you read an answer.")
        super().on_headers_complete()
        self._reading = _Reading.BODY
        self._since = None
        self._raw_bytes = self._body_bytes = self._body_bytes_before = 0

    def on_body(self, body: bytes) -> None:
        """Take a part of the body."""
        self._body_bytes += len(body)
        super().on_body(body)

    def on_message_complete(self) -> None:
        """End the request; its answer may still be in progress."""
        self._reading = _Reading.START
        self._since = None
        self._raw_bytes = 0
        super().on_message_complete()

    def _check_header(self, name: bytes, value: bytes) -> None:
        if name == b"content-length":
            if self._has_length:
                raise InvalidHttp()
            self._has_length = True
        elif name == b"transfer-encoding":
            if self._is_chunked or value != b"chunked":
                raise InvalidHttp()
            self._is_chunked = True
        elif name == b"upgrade":
            raise UpgradeRefused()
        elif value == b"100-continue":
            self.expect_100_continue = True

    def _count_head(self, size: int) -> None:
        self._head_bytes += size
        if self._head_bytes > self._settings.max_header_bytes:
            raise self._headers_too_large()

    def _headers_too_large(self) -> HeadersTooLarge:
        return HeadersTooLarge(remedy=f"Send at most {self._settings.max_header_bytes} bytes of headers.")

    # Requests

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: Any) -> None:
        self._running = cycle
        super()._start_asgi_task(cycle, app)

    def on_response_complete(self) -> None:
        """Start the next request of a pipeline. The table limits the idle time, so uvicorn's timer is not started."""
        self.server_state.total_requests += 1
        self._since = None
        if self.transport.is_closing():
            return
        self.flow.resume_reading()
        if self.pipeline:
            self._start_asgi_task(*self.pipeline.pop())

    # Limits

    @property
    def waiting_since(self) -> float | None:
        """The time since when the connection waits for a request; None while it has one in progress."""
        if self._running is not None and not self._running.response_complete:
            return None
        return math.inf if self._since is None else self._since

    def end_waiting(self) -> None:
        """Close the connection. If the client has not read the last answer, nobody checks any more whether it does."""
        if self.transport.get_write_buffer_size():
            self.abort()
        else:
            self.transport.close()

    def abort(self) -> None:
        """Close the connection at once, and let the system drop the bytes that it could not deliver."""
        # uvloop closes the socket after `connection_lost`, so it is still that of this connection.
        self.transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _NO_LINGER)
        self.transport.abort()

    def check_time(self, now: float) -> None:
        """Close the connection if the client sends or reads too slowly."""
        if self.flow.write_paused or self.transport.is_closing():
            self._check_writing(now)
            return
        self._write_since = None
        if self._since is None:
            self._since = now
            self._body_bytes_before = self._body_bytes
            return
        seconds = now - self._since
        if self._is_refused:
            if seconds > LINGER_SECONDS and self.waiting_since is not None:
                self.abort()
        elif self._reading is not _Reading.START:
            self._check_reading(seconds)
        elif seconds > self._settings.idle_timeout_seconds and self.waiting_since is not None:
            self.transport.close()

    def _check_reading(self, seconds: float) -> None:
        is_body = self._reading is _Reading.BODY
        limit = self._settings.body_timeout_seconds if is_body else self._settings.header_timeout_seconds
        if self.flow.read_paused or (is_body and self.cycle.waiting_for_100_continue):
            self._since = None  # the client waits for the server
        elif seconds > limit:
            if not is_body or self._body_bytes - self._body_bytes_before < limit * MIN_BYTES_PER_SECOND:
                self._refuse(RequestTimeout())
            self._since = None

    def _check_writing(self, now: float) -> None:
        unsent = self.transport.get_write_buffer_size() + _unacknowledged_bytes(self.transport)
        limit = self._settings.write_timeout_seconds
        if self._write_since is None:
            self._write_since, self._unsent_bytes = now, unsent
        elif now - self._write_since > limit:
            if self._unsent_bytes - unsent < limit * MIN_BYTES_PER_SECOND:
                _log.info("connection_aborted", client=self.client and self.client[0], reason="slow reader")
                self.abort()
            self._write_since, self._unsent_bytes = now, unsent

    def resume_writing(self) -> None:
        """The client has read a part of the answer."""
        self._write_since = None
        super().resume_writing()

    def _refuse(self, error: AlmanacError) -> None:
        """Answer with an error after the answers to earlier requests, and close the connection."""
        _log.info("connection_refused", client=self.client and self.client[0], code=error.code)
        self._is_refused = True
        self._since = None
        is_started = self._reading is _Reading.BODY
        if is_started and self.pipeline:
            self.pipeline.popleft()  # the refused request is the last in the queue
        elif is_started:
            self._running = None
            _disconnect(self.cycle)
        earlier = self.pipeline[0][0] if self.pipeline else self._running
        if earlier is not None and not earlier.response_complete:
            earlier.keep_alive = False  # the connection is closed after its answer, without another one
        elif is_started and self.cycle.response_started:
            self.transport.close()
        else:
            self.transport.write(self._error_answer(error))
            self.transport.write_eof()

    def _error_answer(self, error: AlmanacError) -> bytes:
        body = orjson.dumps({"error": error.text, "code": error.code})
        headers = [
            *self.server_state.default_headers,
            (b"content-type", b"application/json"),
            (b"content-length", b"%d" % len(body)),
            (b"connection", b"close"),
        ]
        lines = [b"HTTP/1.1 %d %s" % (error.status, HTTPStatus(error.status).phrase.encode())]
        lines += [name + b": " + value for name, value in headers]
        return b"\r\n".join([*lines, b"", body])


def _disconnect(cycle: RequestResponseCycle) -> None:
    if not cycle.response_complete:
        cycle.disconnected = True
        cycle.message_event.set()


def _unacknowledged_bytes(transport: asyncio.Transport) -> int:
    """Return the number of bytes that the system still has to deliver."""
    try:
        packed = fcntl.ioctl(transport.get_extra_info("socket").fileno(), termios.TIOCOUTQ, b"\0\0\0\0")
    except OSError:  # closed, or no TCP connection
        return 0
    return struct.unpack("i", packed)[0]
