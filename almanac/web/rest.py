"""REST, under /api/v1 and at the catalogue's paths: an endpoint is an entry of a table; every request goes one way.

Host and Origin, credential, limit, scope, strict parsing, a deadline, the verb; then the answer, an entry in the audit
trail and the metrics, whatever happened. A failure is `{"error": …, "code": …}` with the status of its code.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple, TypeVar, cast
from urllib.parse import parse_qsl

import orjson
import structlog
from pydantic import BaseModel, ConfigDict, ValidationError
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from almanac.assist.agent import Agent
from almanac.audit.recorder import Ledger
from almanac.core.arguments import Arguments, describe_arguments, describe_problems
from almanac.core.call import REQUEST_ID, Actor, Call
from almanac.core.database import Database
from almanac.core.errors import (
    AlmanacError,
    BadRequest,
    Cancelled,
    DeadlineExceeded,
    Forbidden,
    InsufficientScope,
    Internal,
    RateLimited,
    TooLarge,
    Unauthorized,
)
from almanac.core.settings import Settings
from almanac.core.timers import Deadline, TimerQueue
from almanac.identity.tokens import TokenResolver
from almanac.knowledge.files import FileStore
from almanac.net.allowed_hosts import AllowedHosts
from almanac.net.fetcher import Fetcher
from almanac.net.http_exchange import BodyTimeout, HttpExchange, ServerStopping
from almanac.quotas.rate_limits import RateLimit, RateLimiter
from almanac.search.engine import SearchEngine

PREFIX = "/api/v1"
SURFACE = "rest"
JSON = b"application/json"

_MOST_PARAMETERS = 50
_NO_MORE = "is not taken here"

_log = structlog.get_logger("almanac.rest")

T = TypeVar("T", bound=BaseModel)
Answered = TypeVar("Answered")


class NotAllowed(AlmanacError):
    """This path does not take that method."""

    code = "method_not_allowed"
    status = 405

    def __init__(self, allowed: Sequence[str]) -> None:
        self.allowed = ", ".join(allowed)
        super().__init__(remedy=f"It takes: {self.allowed}.")


class NotJson(BadRequest):
    """The body is not valid JSON."""

    remedy = "Send a JSON object, in UTF-8."


class WrongContentType(AlmanacError):
    """The request body has a content type that is not taken here."""

    code = "unsupported_media_type"
    status = 415
    remedy = "Send the header 'Content-Type: application/json' and a JSON object."


class Parameters(BaseModel):
    """The base of what a path and a query string hold: text, made into values, and nothing unknown."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class RestAnswer(NamedTuple):
    """An answer that has more to say than its endpoint's usual status."""

    value: Any
    status: int
    headers: tuple[tuple[bytes, bytes], ...] = ()


class Admission(NamedTuple):
    """Who is let in and, where the credential says more than that, what it says."""

    actor: Actor
    claims: str = ""


@dataclass(frozen=True)
class Rest:
    """The endpoints, and all that serving them takes."""

    endpoints: tuple["Endpoint", ...]
    settings: Settings
    db: Database
    keyring: TokenResolver
    rates: RateLimiter
    call_rule: RateLimit
    ledger: Ledger
    neighbourhood: AllowedHosts
    files: FileStore
    fetcher: Fetcher
    search: SearchEngine
    key: bytes = field(repr=False)
    agent: Agent
    prefix: str = PREFIX

    def routes(self) -> list[Route]:
        """A route for each path."""
        paths: dict[str, dict[str, Endpoint]] = {}
        for endpoint in self.endpoints:
            paths.setdefault(endpoint.path, {})[endpoint.method] = endpoint
        # What is spelt out comes before what has a parameter in its place.
        ordered = sorted(paths.items(), key=lambda item: item[0].count("{"))
        # A key is whatever somebody called a thing, and may have slashes in it.
        spelt = [(path.replace("{key}", "{key:path}"), methods) for path, methods in ordered]
        return [Route(self.prefix + path, RestEndpoint(self, methods)) for path, methods in spelt]

    @cached_property
    def alarm(self) -> TimerQueue:
        """Rings for the requests that take too long."""
        return TimerQueue(self.settings.request_deadline_seconds)


@dataclass(slots=True)
class Ask(Call):
    """One request being served: a call, what came with it, and the house it is made in."""

    rest: Rest = cast("Rest", None)
    exchange: HttpExchange = cast("HttpExchange", None)
    deadline: Deadline = cast("Deadline", None)
    says: str = ""  # by the credential
    arguments: dict[str, Any] = field(default_factory=dict[str, Any])
    digest: str = ""

    def note(self, arguments: Mapping[str, Any]) -> None:
        """Take arguments into the audit trail's digest; refused if they could not be stored."""
        self.arguments |= arguments
        self.digest = self.rest.ledger.digest(self.arguments)

    async def read_json(self, model: type[T]) -> T:
        """The body as JSON of this form. Where nothing in it is required, it may be left out."""
        exchange = self.exchange
        raw = await exchange.read_body(self.rest.settings.max_body_bytes)
        if raw and content_type(exchange) != JSON:
            raise WrongContentType()
        try:
            given = orjson.loads(raw or b"{}")
        except orjson.JSONDecodeError:
            raise NotJson() from None
        if not isinstance(given, dict):
            raise BadRequest("The body is not a JSON object.", remedy=describe_arguments(model))
        self.note(cast("dict[str, Any]", given))
        return parse(model, cast("dict[str, Any]", given))

    async def read_piece(self) -> bytes:
        """The next piece of a long body. However long the whole takes: only a pause counts as too slow."""
        piece = await self.exchange.read_piece()
        self.rest.alarm.drop(self.deadline)
        self.rest.alarm.set(self.deadline, asyncio.get_running_loop())
        return piece


Run = Callable[[Ask, Any, Any], Awaitable[Any]]
Tell = Callable[[Ask, AlmanacError], dict[str, Any] | None]
Admit = Callable[[Rest, HttpExchange], Awaitable[Admission]]


async def by_token(rest: Rest, exchange: HttpExchange) -> Admission:
    """Whoever's token came with the request, as `Authorization: Bearer` or `X-API-Key`."""
    scheme, _, given = exchange.headers.get(b"authorization", b"").partition(b" ")
    bearer = given.strip() if scheme.lower() == b"bearer" else b""
    key = exchange.headers.get(b"x-api-key", b"")
    if bearer and key and bearer != key:
        raise BadRequest("Two different tokens came with this request.", remedy="Send one of them.")
    secret = (bearer or key).decode("latin-1")
    actor = await rest.keyring.resolve(secret) if secret else None
    if actor is None:
        raise Unauthorized()
    return Admission(actor)


@dataclass(frozen=True, slots=True)
class Endpoint:
    """One entry of the table."""

    method: str
    path: str  # below the prefix
    name: str  # in the audit trail, in the limits of tokens, and of the operation in OpenAPI
    summary: str
    run: Run
    scope: str  # empty: any token will do
    parameters: type[Parameters] = Parameters  # what is in the path and the query
    body: type[Arguments] | None = None
    answer: Any = None  # the type of what is answered as JSON; bytes for a file, None for nothing
    status: int = 200
    statuses: Mapping[int, str] = field(default_factory=dict[int, str])  # further good ones, and what they mean
    forms: Mapping[str, Any] = field(default_factory=dict[str, Any])  # bodies of other types, read by the endpoint
    example: Mapping[str, Any] | None = None  # of the body
    shows: Any = None  # an example of the answer
    admit: Admit = by_token
    credentials: tuple[str, ...] = ()  # what is taken by OpenAPI's names, where it is not a token as usual
    tell: Tell | None = None  # how a failure is put, for callers that know another form; None of it for the usual one
    error_status: int | None = None  # the status of a failure so put, where it is not its own


class RestEndpoint:
    """The ASGI application at one path."""

    def __init__(self, rest: Rest, methods: Mapping[str, Endpoint]) -> None:
        self._rest = rest
        self._methods = {**({"HEAD": methods["GET"]} if "GET" in methods else {}), **methods}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one HTTP request."""
        exchange = HttpExchange(scope, receive, send)
        try:
            await self._serve(exchange)
        except AlmanacError as error:
            await _refuse(exchange, error)
        except asyncio.CancelledError:
            await _refuse(exchange, ServerStopping())
            raise
        except Exception:  # noqa: BLE001 - the ASGI edge
            _log.exception("request_failed", request_id=exchange.request_id)
            await _refuse(exchange, Internal.for_request(exchange.request_id))

    async def _serve(self, exchange: HttpExchange) -> None:
        rest = self._rest
        rest.neighbourhood.check(exchange.read_headers())
        endpoint = self._methods.get(exchange.scope["method"])
        if endpoint is None:
            raise NotAllowed(list(self._methods))
        actor, says = await endpoint.admit(rest, exchange)
        deadline = Deadline(rest.alarm)
        ask = Ask(actor, rest.db, exchange.request_id, rest=rest, exchange=exchange, deadline=deadline, says=says)
        try:
            answered = await account(ask, endpoint.name, endpoint.scope, lambda: _run(endpoint, ask))
        except AlmanacError as error:
            if endpoint.tell is None:
                raise
            await _refuse(exchange, error, endpoint.tell(ask, error), endpoint.error_status)
        else:
            await _send(exchange, endpoint, answered)


async def account(ask: Ask, name: str, scope: str, work: Callable[[], Awaitable[Answered]]) -> Answered:
    """What comes of work that a caller asked for, if they may; it is accounted for, whatever happens."""
    begun = time.perf_counter_ns()
    REQUEST_ID.set(ask.request_id)
    ledger = ask.rest.ledger
    ledger.trail.calls_in_flight += 1
    outcome = Internal.code
    try:
        ledger.trail.require_capacity()
        await ask.rest.rates.count(ask.rest.call_rule, ask.actor.limit_key)
        _check_rights(name, scope, ask.actor)
        answered = await work()
        outcome = "ok"
        return answered
    except AlmanacError as error:
        outcome = error.code
        raise
    except asyncio.CancelledError:
        outcome = Cancelled.code
        raise
    finally:
        ledger.trail.calls_in_flight -= 1
        ledger.record(ask, SURFACE, name, outcome, time.perf_counter_ns() - begun, ask.digest)


def _check_rights(name: str, scope: str, actor: Actor) -> None:
    if scope and scope not in actor.scopes:
        raise InsufficientScope(f"Your token lacks the scope {scope}.")
    if actor.tools is not None and name not in actor.tools:
        raise Forbidden(f"Your token is limited to some tools; {name} is not one of them.")


async def _run(endpoint: Endpoint, ask: Ask) -> Any:
    try:
        with ask.deadline:
            given = {**ask.exchange.scope["path_params"], **read_query(ask.exchange)}
            ask.note(given)
            place = parse(endpoint.parameters, given)
            reads = endpoint.body is not None and not endpoint.forms and not ask.exchange.is_read
            body = await ask.read_json(endpoint.body) if endpoint.body and reads else None
            return await endpoint.run(ask, place, body)
    except TimeoutError:
        if not ask.deadline.is_over:
            raise
        is_waiting = endpoint.body is not None and not ask.exchange.is_read
        raise (BodyTimeout() if is_waiting else DeadlineExceeded()) from None


def parse(model: type[T], given: Mapping[str, Any]) -> T:
    """What was given, checked, or an error that says what is wrong with it."""
    try:
        return model.model_validate(given)
    except ValidationError as error:
        raise BadRequest(describe_problems(error, _NO_MORE), remedy=describe_arguments(model)) from None


def content_type(exchange: HttpExchange) -> bytes:
    """What the body is said to be, without parameters."""
    return exchange.headers.get(b"content-type", b"").partition(b";")[0].strip().lower()


def read_query(exchange: HttpExchange) -> dict[str, str]:
    """The parameters of the query string, each of them once."""
    try:
        pairs = parse_qsl(
            exchange.scope["query_string"].decode("ascii"),
            keep_blank_values=True,
            errors="strict",
            max_num_fields=_MOST_PARAMETERS,
        )
    except ValueError:
        raise BadRequest("The query string cannot be read.", remedy="Send fewer parameters, in UTF-8.") from None
    found = dict(pairs)
    if len(found) < len(pairs):
        raise BadRequest("A parameter of the query string appears more than once.", remedy="Send it once.")
    if twice := found.keys() & exchange.scope["path_params"]:
        raise BadRequest(f"{min(twice)}: {_NO_MORE}.", remedy="The path says it already.")
    return found


async def _send(exchange: HttpExchange, endpoint: Endpoint, answered: Any) -> None:
    if answered is None:
        answered = Response(status_code=204)
    if isinstance(answered, Response):
        await answered(exchange.scope, exchange.receive, exchange.send_with_request_id)
        return
    value, status, headers = answered if isinstance(answered, RestAnswer) else RestAnswer(answered, endpoint.status)
    await exchange.reply(status, orjson.dumps(value), headers)


async def _refuse(
    exchange: HttpExchange, error: AlmanacError, told: dict[str, Any] | None = None, status: int | None = None
) -> None:
    if exchange.is_answered:
        return  # too late to say anything else
    if error.status >= 500:
        _log.warning("request_refused", request_id=exchange.request_id, error=str(error))
    extra: list[tuple[bytes, bytes]] = []
    if isinstance(error, Unauthorized):
        extra.append((b"www-authenticate", b'Bearer realm="almanac"'))
    elif isinstance(error, NotAllowed):
        extra.append((b"allow", error.allowed.encode()))
    elif isinstance(error, RateLimited):
        extra.append((b"retry-after", b"%d" % error.retry_after))
    elif isinstance(error, TooLarge | BodyTimeout):
        extra.append((b"connection", b"close"))  # the rest of the body is not read
    status = status if told and status else error.status
    told = told or {"error": error.text, "code": error.code}
    await exchange.reply(status, orjson.dumps(told), tuple(extra))
