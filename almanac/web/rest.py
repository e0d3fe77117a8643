"""The REST endpoint of one path: it turns a request into an operation with arguments, and an answer into a response."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, cast

import orjson
from pydantic import BaseModel, ConfigDict
from starlette.routing import Route

from almanac.core.arguments import describe_arguments
from almanac.core.errors import AlmanacError, BadRequest, InvalidToken, Unauthorized
from almanac.core.fair_slots import compute
from almanac.identity.credentials import token_or_key
from almanac.net.http_exchange import HeaderList, HttpExchange
from almanac.net.query_string import read_query_string
from almanac.operations.context import AppContext, Authentication, RequestContext
from almanac.operations.models import UntrustedAnswer
from almanac.operations.operation import UNKNOWN_ARGUMENT, Operation, Rest, parse_arguments
from almanac.operations.pipeline.endpoint import Endpoint, Invocation
from almanac.operations.pipeline.errors import (
    InvalidJson,
    MethodNotAllowed,
    UnsupportedMediaType,
    error_body,
    error_headers,
)
from almanac.operations.pipeline.file_answer import FileAnswer, send_file
from almanac.operations.pipeline.pipeline import EndpointApp, admit
from almanac.operations.schemas import value_from_text
from almanac.web.multipart import FORM_TYPE, MultipartForm, RawUpload

API_PREFIX = "/api/v1"
JSON = b"application/json"
_UNTRUSTED = (b"x-almanac-trust", b"untrusted")


class UrlParameters(BaseModel):
    """The base of models for path and query, if a contract separates them from the body. Converts text to the types."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class RestAnswer(NamedTuple):
    """An answer with a status or headers of its own."""

    value: Any
    status: int
    headers: HeaderList = ()


def notes_header(notes: Sequence[str]) -> HeaderList:
    """A header with the notes of a search, for answers whose form has no place for them."""
    return ((b"x-search-notes", " ".join(notes).encode("ascii", "replace")),) if notes else ()


class AlreadySent:
    """The answer of a handler that has sent its response itself."""


async def by_token(app: AppContext, http: HttpExchange) -> Authentication:
    """Authenticate by the token in `Authorization: Bearer` or `X-API-Key`."""
    secret = token_or_key(http.headers)
    actor = await app.token_resolver.resolve(secret) if secret else None
    if actor is None:
        raise InvalidToken() if secret else Unauthorized()
    return Authentication(actor)


class RestEndpoint(Endpoint):
    """Serves the operations of one path, by their HTTP methods."""

    surface = "rest"
    state = None

    def __init__(self, operations: Mapping[str, Operation], prefix: str, *, is_mcp: bool = False) -> None:
        self.is_mcp = is_mcp
        self._operations = {**({"HEAD": operations["GET"]} if "GET" in operations else {}), **operations}
        self._prefix = prefix

    async def authenticate(self, app: AppContext, http: HttpExchange) -> Authentication:
        """Return the caller."""
        _, rest = self._find(http)
        return await (rest.authenticate or by_token)(app, http)

    async def read(self, ctx: RequestContext) -> Invocation:
        """Return the operation of the request with its arguments from path, query string and body.

        The call is counted before its body is read.
        """
        operation, rest = self._find(ctx.http)
        await admit(ctx, operation, self.call_limit(ctx))
        arguments = self._read_url(ctx, operation, rest)
        if rest.takes_body:
            arguments = await self._read_body(ctx, operation, rest, arguments)
        else:
            ctx.http.ignore_body()
        return Invocation(operation.name, operation, arguments, is_admitted=True)

    async def send(self, ctx: RequestContext, answer: Any) -> None:
        """Send the answer of an operation."""
        if isinstance(answer, AlreadySent):
            return
        if isinstance(answer, FileAnswer):
            await send_file(ctx.http, answer)
            return
        _, rest = self._find(ctx.http)
        if not isinstance(answer, RestAnswer):
            answer = RestAnswer(answer, rest.status_of(answer) if rest.status_of else rest.status)
        if answer.value is None:
            await ctx.http.reply_empty(answer.status)
            return
        value, headers = answer.value, answer.headers
        if rest.location and answer.status == 201:
            fields = {name: getattr(value, name) for name in value.__dataclass_fields__}
            headers = (*headers, (b"location", (self._prefix + rest.location.format(**fields)).encode()))
        if isinstance(value, UntrustedAnswer):
            headers = (*headers, _UNTRUSTED)
        await ctx.http.reply(answer.status, orjson.dumps(value), headers)

    async def send_error(self, http: HttpExchange, ctx: RequestContext | None, error: AlmanacError) -> None:
        """Send an error in the operation's form, or in the usual one."""
        status, body = error.status, error_body(error)
        if ctx is not None:
            _, rest = self._find(http)
            own_body = rest.render_error(ctx, error) if rest.render_error else None
            if own_body is not None:
                status, body = rest.error_status or status, own_body
        await http.reply(status, orjson.dumps(body), error_headers(error))

    def _find(self, http: HttpExchange) -> tuple[Operation, Rest]:
        operation = self._operations.get(http.scope["method"])
        if operation is None or operation.rest is None:
            raise MethodNotAllowed(list(self._operations))
        return operation, operation.rest

    def _read_url(self, ctx: RequestContext, operation: Operation, rest: Rest) -> dict[str, Any]:
        path, query = ctx.http.scope["path_params"], read_query_string(ctx.http)
        if repeated := query.keys() & path.keys():
            raise BadRequest(f"{min(repeated)}: {UNKNOWN_ARGUMENT}.", remedy="The path names it already.")
        model = rest.parameters or operation.arguments
        if rest.takes_body and query and rest.parameters is None:
            raise BadRequest(f"{min(query)[:60]}: {UNKNOWN_ARGUMENT}.", remedy="Send arguments in the body.")
        texts = {**path, **query}
        if model is None:
            return texts
        arguments = {name: value_from_text(model, name, text) for name, text in texts.items()}
        if rest.parameters is None:
            return arguments
        ctx.note_arguments(arguments)
        ctx.parameters = parse_arguments(rest.parameters, arguments)
        return {}

    async def _read_body(
        self, ctx: RequestContext, operation: Operation, rest: Rest, arguments: dict[str, Any]
    ) -> dict[str, Any]:
        content_type = ctx.http.content_type
        if rest.form is not None and content_type == FORM_TYPE:
            ctx.upload = MultipartForm.of(ctx, rest.form.fields)
            return arguments
        if rest.form is not None and rest.form.takes_raw_bytes and content_type != JSON:
            ctx.upload = RawUpload(ctx)
            return arguments
        body = await self._read_json(ctx, operation, rest)
        if unknown := body.keys() & (rest.omit | arguments.keys()):
            raise BadRequest(f"{min(unknown)}: {UNKNOWN_ARGUMENT}.", remedy=_describe(operation, rest))
        return {**body, **arguments}

    async def _read_json(self, ctx: RequestContext, operation: Operation, rest: Rest) -> dict[str, Any]:
        raw = await ctx.http.read_json_body(operation.max_json_bytes(ctx.app.settings.max_body_bytes))
        if (raw or rest.form is not None) and ctx.http.content_type != JSON:
            raise UnsupportedMediaType(
                remedy="Send a file as multipart/form-data, or JSON as application/json." if rest.form else None
            )
        try:
            body = await compute(orjson.loads, raw) if ctx.http.has_large_body else orjson.loads(raw or b"{}")
        except orjson.JSONDecodeError:
            raise InvalidJson() from None
        if not isinstance(body, dict):
            raise BadRequest("The body is not a JSON object.", remedy=_describe(operation, rest))
        return cast("dict[str, Any]", body)


def _describe(operation: Operation, rest: Rest) -> str:
    return describe_arguments(operation.arguments, rest.omit) if operation.arguments else ""


def routes(
    app: AppContext, operations: Sequence[Operation], prefix: str = API_PREFIX, *, is_mcp: bool = False
) -> list[Route]:
    """Return a route for each path of some operations. `is_mcp`: MCP tokens work there."""
    paths: dict[str, dict[str, Operation]] = {}
    for operation in operations:
        assert operation.rest is not None
        paths.setdefault(operation.rest.path, {})[operation.rest.method] = operation
    # A literal path comes before a path with a parameter in the same place.
    ordered = sorted(paths.items(), key=lambda item: item[0].count("{"))
    return [
        # A key of the catalogue may contain slashes.
        Route(
            prefix + path.replace("{key}", "{key:path}"), EndpointApp(app, RestEndpoint(methods, prefix, is_mcp=is_mcp))
        )
        for path, methods in ordered
    ]
