"""The HTTP door of a surface: from bytes to a known caller and a well-formed request, and back.

It refuses what no tool should see (a strange Host, no token, a body too large, no JSON), answers the two hot methods,
`tools/call` and `tools/list`, itself, and hands everything else, and every request with any flaw in it, to the SDK,
which knows how to say what is wrong in each era of the protocol.
"""

import asyncio
from types import TracebackType
from typing import Any, cast

import orjson
import structlog
from starlette.types import Message, Receive, Scope, Send

from almanac.core.call import Actor
from almanac.core.errors import AlmanacError, Internal, RateLimited, TooLarge
from almanac.core.timers import TimerQueue
from almanac.net.allowed_hosts import AllowedHosts
from almanac.net.http_exchange import BodyTimeout, Headers, HttpExchange, ServerStopping, replay
from almanac.surfaces import json_rpc as messages
from almanac.surfaces.sdk_server import DEFAULT_LEGACY, LEGACY, MODERN, SdkServer, status_of
from almanac.surfaces.surface import ProtocolError, ToolDispatcher

_log = structlog.get_logger("almanac.door")

# A request that takes longer than this is watched for its caller going away.
_WATCH_AFTER = 0.05

_JSON = b"application/json"
_HOT = frozenset({"tools/call", "tools/list"})
_CALL_KEYS = frozenset({"name", "arguments", "_meta"})
_NONE: dict[str, Any] = {}


class WrongMediaType(AlmanacError):
    """The request body must be application/json."""

    code = "unsupported_media_type"
    status = 415
    remedy = "Send the header 'Content-Type: application/json'."


class OnlyPost(AlmanacError):
    """This endpoint takes POST requests only."""

    code = "method_not_allowed"
    status = 405
    remedy = "It keeps no sessions and opens no streams: send each message as a POST."


class McpEndpoint:
    """The ASGI application at a surface's path."""

    def __init__(self, desk: ToolDispatcher, neighbourhood: AllowedHosts) -> None:
        self.desk = desk
        self.sdk = SdkServer(desk, neighbourhood)
        self._neighbourhood = neighbourhood
        self._gate = desk.surface.gate(desk)
        self._most = desk.house.settings.max_body_bytes
        self._alarm = TimerQueue(_WATCH_AFTER)
        self._deadline = desk.house.settings.request_deadline_seconds
        self._lists: dict[tuple[str, tuple[str, ...]], bytes] = {}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one HTTP request."""
        exchange = HttpExchange(scope, receive, send)
        try:
            await self._serve(exchange)
        except messages.InvalidJsonRpc as error:
            await exchange.reply(400, orjson.dumps(messages.error(None, error.code, str(error))))
        except AlmanacError as error:
            await self._refuse(exchange, error)
        except asyncio.CancelledError:
            await self._refuse(exchange, ServerStopping())
            raise
        except Exception:  # noqa: BLE001 - the ASGI edge
            _log.exception("request_failed", request_id=exchange.request_id)
            await self._refuse(exchange, Internal.for_request(exchange.request_id))

    async def _serve(self, exchange: HttpExchange) -> None:
        headers = exchange.read_headers()
        self._neighbourhood.check(headers)
        surface = self.desk.surface
        actor = await self._gate.authenticate(exchange)
        if surface.limits_before_body is not None:
            await surface.limits_before_body(self.desk, exchange, actor)
        if exchange.scope["method"] != "POST":
            await self._serve_other(exchange, actor)
            return
        if headers.get(b"content-type", b"").partition(b";")[0].strip().lower() != _JSON:
            raise WrongMediaType()
        raw, extra = b"", ()
        with _Watch(exchange.receive, self._alarm, self._deadline) as watch:
            raw = await exchange.read_body(self._most)
            watch.body_is_read()
            message = messages.read(raw, answers=surface.sessions)
            extra = await self._gate.on_message(exchange, message)
            if await self._answer(exchange, actor, message):
                return
        if not watch.is_gone:
            await self._hand_over(exchange, actor, raw, extra)

    async def _serve_other(self, exchange: HttpExchange, actor: Actor) -> None:
        """Serve what is no POST: the end of a session or, where the SDK keeps them, whatever it makes of it."""
        if exchange.scope["method"] == "DELETE" and await self._gate.end_session(exchange):
            await exchange.reply(200, b"{}")
        elif self.desk.surface.sessions:
            await self._hand_over(exchange, actor, None)
        else:
            raise OnlyPost()  # there is nothing a stream could carry, nor a session to end

    async def _answer(self, exchange: HttpExchange, actor: Actor, message: messages.Message) -> bool:
        """Answer a hot method; False leaves the request to the SDK."""
        method = message.get("method")
        version = self._version(message, method, exchange.headers)
        if version is not None and method == "tools/call":
            await self._call(exchange, actor, message, version)
            return True
        await self.desk.meter(actor)  # a call is metered where it is served, to be refused in a form a model reads
        if version is not None:
            await self._list(exchange, actor, message, version)
        return version is not None

    def _version(self, message: messages.Message, method: Any, headers: Headers) -> str | None:
        """The protocol version of a request that can be answered here; None hands it to the SDK."""
        if method not in _HOT or "id" not in message or not _accepts_json(headers):
            return None
        params: dict[str, Any] = message.get("params", _NONE)
        if not self._is_plain_call(params) if method == "tools/call" else params.get("cursor") is not None:
            return None
        version = headers.get(b"mcp-protocol-version", DEFAULT_LEGACY)
        if version == MODERN:
            return self.sdk.modern_version(message, params, headers)
        if version not in LEGACY or self.desk.surface.sessions or not _is_plain_meta(params.get("_meta", _NONE)):
            return None
        return version.decode()

    def _is_plain_call(self, params: dict[str, Any]) -> bool:
        name = params.get("name")
        return (
            isinstance(name, str)
            and isinstance(params.get("arguments", _NONE), dict)
            and params.keys() <= _CALL_KEYS
            and name not in self.desk.surface.sdk_only_tools
        )

    async def _call(self, exchange: HttpExchange, actor: Actor, message: messages.Message, version: str) -> None:
        params = message["params"]
        try:
            result = await self.desk.call(
                actor, params["name"], params.get("arguments", {}), exchange.request_id, path=exchange.scope["path"]
            )
        except ProtocolError as error:
            body = messages.error(message["id"], error.code, str(error), error.data)
            await exchange.reply(status_of(version, error.code), orjson.dumps(body))
        else:
            body = {"jsonrpc": "2.0", "id": message["id"], "result": self.sdk.format_result(version, result)}
            await exchange.reply(200, orjson.dumps(body))

    async def _list(self, exchange: HttpExchange, actor: Actor, message: messages.Message, version: str) -> None:
        tools = self.desk.tools_for(actor)
        key = (version, tuple(tools))
        result = self._lists.get(key)
        if result is None:
            if len(self._lists) > 1000:
                self._lists.clear()
            result = self._lists[key] = self.sdk.format_tool_list(version, tools.values())
        head = b'{"jsonrpc":"2.0","id":' + orjson.dumps(message["id"])
        await exchange.reply(200, b"".join((head, b',"result":', result, b"}")))

    async def _hand_over(
        self, exchange: HttpExchange, actor: Actor, raw: bytes | None, extra: tuple[tuple[bytes, bytes], ...] = ()
    ) -> None:
        # The SDK compares header values as they are.
        plain = {b"content-type": _JSON, b"host": exchange.headers.get(b"host", b"").lower()}
        headers = [(name, plain.get(name, value.strip())) for name, value in exchange.scope["headers"]]
        scope = {**exchange.scope, "headers": headers}
        stamp = (b"x-request-id", exchange.request_id.encode())

        async def named(message: Message) -> None:
            if message["type"] == "http.response.start":
                exchange.is_answered = True
                message["headers"] = [*message.get("headers", []), stamp, *extra]
            await exchange.send(message)

        receive = exchange.receive if raw is None else replay(raw, exchange.receive)
        await self.sdk.handle(scope, receive, named, actor, exchange.request_id)

    async def _refuse(self, exchange: HttpExchange, error: AlmanacError) -> None:
        if exchange.is_answered:
            return  # too late to say anything else
        status, body = self.desk.surface.http_error(error)
        if status >= 500:
            _log.warning("request_refused", request_id=exchange.request_id, error=str(error))
        extra: tuple[tuple[bytes, bytes], ...] = ()
        if status == 401:
            extra = ((b"www-authenticate", b'Bearer realm="almanac"'),)
        elif status == 405:
            extra = ((b"allow", b"POST"),)
        elif isinstance(error, RateLimited) and self.desk.surface.sends_retry_after:
            extra = ((b"retry-after", b"%d" % error.retry_after),)
        elif isinstance(error, TooLarge | BodyTimeout):
            extra = ((b"connection", b"close"),)  # the rest of the body is not read
        await exchange.reply(status, orjson.dumps(body), extra)


class _Watch:
    """Over one request: its body must arrive in time, and what it started is cancelled when its caller hangs up.

    Most requests are over before it begins to look, so that they pay for neither a timer nor a task.
    """

    __slots__ = (
        "_alarm", "_before", "_deadline", "_has_begun", "_is_read", "_looking", "_receive", "_task", "_timer",
        "is_gone", "is_late",
    )  # fmt: skip

    def __init__(self, receive: Receive, alarm: TimerQueue, deadline: float) -> None:
        self._receive = receive
        self._alarm = alarm
        self._deadline = deadline
        self._is_read = False
        self._has_begun = False
        self._timer: asyncio.TimerHandle | None = None
        self._looking: asyncio.Task[None] | None = None
        self.is_gone = False
        self.is_late = False

    def __enter__(self) -> "_Watch":
        task = asyncio.current_task()
        assert task is not None
        self._task: asyncio.Task[Any] = task
        self._before = task.cancelling()
        self._alarm.set(self, task.get_loop())
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> bool:
        if not self._has_begun:
            self._alarm.drop(self)
            return False
        if self._timer is not None:
            self._timer.cancel()
        if self._looking is not None:
            self._looking.cancel()
        ended = self.is_gone or self.is_late
        ours = ended and self._task.uncancel() <= self._before and kind is asyncio.CancelledError
        if ours and self.is_late:
            raise BodyTimeout() from error
        return ours

    def body_is_read(self) -> None:
        """From here on, the caller hanging up ends the request."""
        self._is_read = True
        if self._has_begun:  # while the body was being read
            if self._timer is not None:
                self._timer.cancel()
            self.expire()

    def expire(self) -> None:
        """Begin to look: at the body's arrival or, once that is there, at the caller."""
        self._has_begun = True
        loop = self._task.get_loop()
        if self._is_read:
            self._looking = loop.create_task(self._look())
        else:
            self._timer = loop.call_later(self._deadline, self._end)

    def _end(self) -> None:
        self.is_late = True
        self._task.cancel()

    async def _look(self) -> None:
        while (await self._receive())["type"] != "http.disconnect":
            pass
        self.is_gone = True
        self._task.cancel()


def _accepts_json(headers: Headers) -> bool:
    accept = headers.get(b"accept", b"")
    return b"application/json" in accept or b"*/*" in accept


def _is_plain_meta(meta: Any) -> bool:
    return isinstance(meta, dict) and messages.is_id(cast("dict[str, Any]", meta).get("progressToken", 0))
