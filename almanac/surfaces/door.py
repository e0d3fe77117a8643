"""The HTTP door of a surface: from bytes to a known caller and a well-formed request, and back.

It refuses what no tool should see (a strange Host, no token, a body too large, no JSON), answers the two hot methods,
`tools/call` and `tools/list`, itself, and hands everything else, and every request with any flaw in it, to the SDK,
which knows how to say what is wrong in each era of the protocol.
"""

import asyncio
import itertools
import re
import secrets
from typing import Any, cast
from urllib.parse import urlsplit

import orjson
import structlog
from starlette.types import Message, Receive, Scope, Send

from almanac.core.call import Actor
from almanac.core.deadline import Deadline
from almanac.core.errors import AlmanacError, BadRequest, Internal, RateLimited, TooLarge, Unauthorized
from almanac.core.settings import LOOPBACK, Settings
from almanac.identity import tokens
from almanac.surfaces.server import (
    DEFAULT_LEGACY,
    LEGACY,
    SdkServer,
    modern_version,
    security,
    status_of,
)
from almanac.surfaces.surface import Desk, ProtocolError

Headers = dict[bytes, bytes]

_log = structlog.get_logger("almanac.door")

_PARSE_ERROR = -32700
_INVALID_REQUEST = -32600

# Two copies of one of these could be read differently by two readers, so a request with two is refused.
_ONCE = frozenset(
    {b"authorization", b"host", b"content-length", b"content-type", b"origin", b"mcp-session-id",
     b"mcp-protocol-version", b"mcp-method", b"mcp-name"}
)  # fmt: skip

# A call that takes longer than this is watched for its caller going away.
_WATCH_AFTER = 0.05

_REQUEST_ID = re.compile(rb"^[A-Za-z0-9._-]{1,64}$")
_count = itertools.count(1)
_boot = secrets.token_hex(4)


class Misdirected(AlmanacError):
    """Invalid Host header."""

    code = "invalid_host"
    status = 421
    remedy = "An operator can accept it with ALMANAC_ALLOWED_HOSTS or ALMANAC_PUBLIC_URL."


class ForeignOrigin(AlmanacError):
    """Invalid Origin header."""

    code = "invalid_origin"
    status = 403
    remedy = "An operator can accept it with ALMANAC_ALLOWED_ORIGINS."


class WrongMediaType(AlmanacError):
    """The request body must be application/json."""

    code = "unsupported_media_type"
    status = 415


class TooSlow(AlmanacError):
    """The request body did not arrive in time."""

    code = "request_timeout"
    status = 408
    remedy = "Send it again."


class NotJsonRpc(Exception):
    """The body is not one JSON-RPC message."""

    def __init__(self, code: int, message: str) -> None:
        self.code = code
        super().__init__(message)


class Neighbourhood:
    """Which Host and Origin headers are ours: loopback, what the settings name, nothing else."""

    def __init__(self, settings: Settings) -> None:
        public = urlsplit(settings.public_url)
        named = [*settings.allowed_hosts, settings.host, *([public.netloc] if public.netloc else [])]
        hosts = [*(f"[{name}]" if ":" in name else name for name in LOOPBACK), *named]
        # A name alone means any port: which port a caller used says nothing about who it is.
        self.hosts = [form for host in hosts for form in _with_ports(host)]
        schemes = [f"{scheme}://{host}" for host in hosts for scheme in ("http", "https")]
        self.origins = [form for origin in [*schemes, *settings.allowed_origins] for form in _with_ports(origin)]
        self._is_on = settings.check_hosts
        self._good: set[bytes | None] = {None}
        self._host_names, self._origin_names = frozenset(self.hosts), frozenset(self.origins)

    def check(self, headers: Headers) -> None:
        """Refuse a request that was not meant for this server."""
        if not self._is_on:
            return
        host, origin = headers.get(b"host", b""), headers.get(b"origin")
        if host not in self._good:
            if not _matches(host.decode("latin-1"), self._host_names):
                raise Misdirected()
            self._remember(host)
        if origin is not None and not _matches(origin.decode("latin-1"), self._origin_names):
            raise ForeignOrigin()

    def _remember(self, host: bytes) -> None:
        if len(self._good) < 100:
            self._good.add(host)


class Door:
    """The ASGI application at a surface's path."""

    def __init__(self, desk: Desk, neighbourhood: Neighbourhood) -> None:
        self.desk = desk
        self.sdk = SdkServer(desk, security(neighbourhood.hosts, neighbourhood.origins))
        self._neighbourhood = neighbourhood
        self._most = desk.house.settings.max_body_bytes
        self._deadline = desk.house.settings.request_deadline_seconds
        self._lists: dict[tuple[str, tuple[str, ...]], bytes] = {}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one HTTP request."""
        request_id = _request_id(scope)
        try:
            await self._serve(scope, receive, send, request_id)
        except NotJsonRpc as error:
            await _reply(send, 400, orjson.dumps(_rpc_error(None, error.code, str(error))), request_id)
        except AlmanacError as error:
            await self._refuse(send, error, request_id)
        except Exception:  # noqa: BLE001 - the ASGI edge
            _log.exception("request_failed", request_id=request_id)
            await self._refuse(send, Internal(), request_id)

    async def _serve(self, scope: Scope, receive: Receive, send: Send, request_id: str) -> None:
        headers = _headers(scope)
        self._neighbourhood.check(headers)
        secret = self.desk.surface.credential(headers)
        actor = await tokens.resolve(self.desk.db, secret) if secret else None
        if actor is None:
            raise Unauthorized()
        if scope["method"] != "POST":
            await self._hand_over(scope, receive, send, actor, request_id, headers, None)
            return
        if not headers.get(b"content-type", b"").lower().startswith(b"application/json"):
            raise WrongMediaType(remedy="Send the header 'Content-Type: application/json'.")
        raw = await self._body(headers, receive)
        message = self._message(raw)
        method = message.get("method")
        version = self._version(message, method, headers)
        if version is not None and method == "tools/call":
            await self._call(send, receive, actor, message, version, request_id)
        elif version is not None and method == "tools/list":
            await self._meter(actor)
            await self._list(send, actor, message, version, request_id)
        else:
            if method != "tools/call":
                await self._meter(actor)
            await self._hand_over(scope, receive, send, actor, request_id, headers, raw)

    async def _body(self, headers: Headers, receive: Receive) -> bytes:
        declared = headers.get(b"content-length", b"0")
        if not declared.isdigit() or int(declared) > self._most:
            raise self._too_large()
        parts: list[bytes] = []
        size, more = 0, True
        try:
            with Deadline(self._deadline):
                while more:
                    event = await receive()
                    more = event.get("more_body", False)
                    parts.append(event.get("body", b""))
                    size += len(parts[-1])
                    if size > self._most:
                        raise self._too_large()
        except TimeoutError:
            raise TooSlow() from None
        return b"".join(parts)

    def _too_large(self) -> TooLarge:
        return TooLarge(remedy=f"Send at most {self._most} bytes.")

    def _message(self, raw: bytes) -> dict[str, Any]:
        try:
            message = orjson.loads(raw)
        except orjson.JSONDecodeError as error:
            raise NotJsonRpc(_PARSE_ERROR, f"Parse error: {error.msg} at character {error.pos}") from None
        if isinstance(message, list):
            raise NotJsonRpc(_INVALID_REQUEST, "Invalid Request: send one message at a time; batches are not supported")
        if not isinstance(message, dict) or cast("dict[str, Any]", message).get("jsonrpc") != "2.0":
            raise NotJsonRpc(_INVALID_REQUEST, 'Invalid Request: the body must be an object with "jsonrpc": "2.0"')
        message = cast("dict[str, Any]", message)
        if not self._is_envelope(message):
            raise NotJsonRpc(
                _INVALID_REQUEST,
                "Invalid Request: 'method' must be a string, 'id' a string or whole number, 'params' an object",
            )
        return message

    def _is_envelope(self, message: dict[str, Any]) -> bool:
        if "method" not in message:
            # An answer to the server's own question; only a surface that keeps sessions asks any.
            return self.desk.surface.sessions and ("result" in message or "error" in message)
        return (
            isinstance(message["method"], str)
            and ("id" not in message or _is_id(message["id"]))
            and isinstance(message.get("params", {}), dict)
        )

    def _version(self, message: dict[str, Any], method: Any, headers: Headers) -> str | None:
        """The protocol version of a request that can be answered here; None hands it to the SDK."""
        if method not in ("tools/call", "tools/list") or "id" not in message or not _accepts_json(headers):
            return None
        params: dict[str, Any] = message.get("params", {})
        if method == "tools/call" and not self._is_plain_call(params):
            return None
        if params.get("cursor") is not None:
            return None
        header = headers.get(b"mcp-protocol-version")
        version = DEFAULT_LEGACY if header is None else header.decode("latin-1")
        if version in LEGACY:
            return version if not self.desk.surface.sessions and _is_plain_meta(params.get("_meta")) else None
        return modern_version(message, {k.decode("latin-1"): v.decode("latin-1") for k, v in headers.items()})

    def _is_plain_call(self, params: dict[str, Any]) -> bool:
        name = params.get("name")
        if not isinstance(name, str) or not isinstance(params.get("arguments", {}), dict):
            return False
        return params.keys() <= {"name", "arguments", "_meta"} and name not in self.desk.surface.slow_tools

    async def _call(
        self, send: Send, receive: Receive, actor: Actor, message: dict[str, Any], version: str, request_id: str
    ) -> None:
        params = message["params"]
        name: str = params["name"]
        status = 200
        body: dict[str, Any] | None = None  # stays None if the caller goes away
        try:
            async with _Watch(receive):
                result = await self.desk.call(actor, name, params.get("arguments", {}), request_id)
                body = {"jsonrpc": "2.0", "id": message["id"], "result": self.sdk.shape(version, result)}
        except ProtocolError as error:
            status = status_of(version, error.code)
            body = _rpc_error(message["id"], error.code, str(error), error.data)
        if body is not None:
            await _reply(send, status, orjson.dumps(body), request_id)

    async def _list(self, send: Send, actor: Actor, message: dict[str, Any], version: str, request_id: str) -> None:
        tools = self.desk.visible(actor)
        key = (version, tuple(tools))
        result = self._lists.get(key)
        if result is None:
            if len(self._lists) > 1000:
                self._lists.clear()
            result = self._lists[key] = self.sdk.listing(version, tools.values())
        head = b'{"jsonrpc":"2.0","id":' + orjson.dumps(message["id"])
        await _reply(send, 200, b"".join((head, b',"result":', result, b"}")), request_id)

    async def _meter(self, actor: Actor) -> None:
        await self.desk.house.rates.hit(self.desk.house.call_rule, str(actor.token_id))

    async def _hand_over(
        self,
        scope: Scope,
        receive: Receive,
        send: Send,
        actor: Actor,
        request_id: str,
        headers: Headers,
        raw: bytes | None,
    ) -> None:
        # httptools leaves white space around header values, which the SDK compares as they are.
        seen = {**scope, "headers": [(name, value.strip()) for name, value in scope["headers"]]}

        async def named(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message.get("headers", []), (b"x-request-id", request_id.encode())]
            await send(message)

        await self.sdk.handle(seen, receive if raw is None else _replay(raw, receive), named, actor, request_id)

    async def _refuse(self, send: Send, error: AlmanacError, request_id: str) -> None:
        status, body = self.desk.surface.http_error(error)
        if status >= 500:
            _log.warning("request_refused", request_id=request_id, error=str(error))
        extra: list[tuple[bytes, bytes]] = []
        if status == 401:
            extra.append((b"www-authenticate", b'Bearer realm="almanac"'))
        if isinstance(error, RateLimited):
            extra.append((b"retry-after", str(error.retry_after).encode()))
        if isinstance(error, TooLarge):
            extra.append((b"connection", b"close"))  # the rest of the body is not read
        await _reply(send, status, orjson.dumps(body), request_id, extra)


class _Watch:
    """Cancels what runs inside when the caller hangs up.

    Most calls are over before it begins to look, so that they pay for one timer and no task.
    """

    def __init__(self, receive: Receive) -> None:
        self._receive = receive
        self._task = cast("asyncio.Task[Any]", asyncio.current_task())
        self._looking: asyncio.Task[None] | None = None
        self.is_gone = False

    async def __aenter__(self) -> "_Watch":
        self._timer = asyncio.get_running_loop().call_later(_WATCH_AFTER, self._begin)
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, _: Any) -> bool:
        self._timer.cancel()
        if self._looking is not None:
            self._looking.cancel()
        if self.is_gone and kind is asyncio.CancelledError:
            self._task.uncancel()
            return True
        return False

    def _begin(self) -> None:
        self._looking = asyncio.ensure_future(self._look())

    async def _look(self) -> None:
        while (await self._receive())["type"] != "http.disconnect":
            pass
        self.is_gone = True
        self._task.cancel()


def _headers(scope: Scope) -> Headers:
    found: Headers = {}
    for name, value in scope["headers"]:
        if name in found and name in _ONCE:
            raise BadRequest(f"The header {name.decode('latin-1')} appears more than once.", remedy="Send it once.")
        found[name] = value.strip()
    return found


def _request_id(scope: Scope) -> str:
    for name, value in scope["headers"]:
        if name == b"x-request-id" and _REQUEST_ID.match(value):
            return value.decode()
    return f"{_boot}-{next(_count):x}"


def _accepts_json(headers: Headers) -> bool:
    accept = headers.get(b"accept", b"")
    return b"application/json" in accept or b"*/*" in accept


def _is_id(value: Any) -> bool:
    return isinstance(value, str | int) and not isinstance(value, bool)


def _is_plain_meta(meta: Any) -> bool:
    if meta is None:
        return True
    return isinstance(meta, dict) and _is_id(cast("dict[str, Any]", meta).get("progressToken", 0))


def _matches(value: str, allowed: frozenset[str]) -> bool:
    if value in allowed:
        return True
    name, _, port = value.rpartition(":")
    return port.isdigit() and f"{name}:*" in allowed


def _with_ports(name: str) -> tuple[str, ...]:
    _, _, last = name.rpartition(":")
    has_port = last == "*" or (last.isdigit() and not name.endswith("]"))
    return (name,) if has_port else (name, f"{name}:*")


def _rpc_error(request_id: Any, code: int, message: str, data: Any = None) -> dict[str, Any]:
    error: dict[str, Any] = {"code": code, "message": message}
    if data is not None:
        error["data"] = data
    return {"jsonrpc": "2.0", "id": request_id, "error": error}


def _replay(raw: bytes, receive: Receive) -> Receive:
    given = False

    async def again() -> Message:
        nonlocal given
        if given:
            return await receive()
        given = True
        return {"type": "http.request", "body": raw, "more_body": False}

    return again


async def _reply(
    send: Send, status: int, body: bytes, request_id: str, extra: list[tuple[bytes, bytes]] | None = None
) -> None:
    headers = [
        (b"content-type", b"application/json"),
        (b"content-length", str(len(body)).encode()),
        (b"x-request-id", request_id.encode()),
        *(extra or []),
    ]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
