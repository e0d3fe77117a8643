"""The login of clients: a client id and its secret against a token for an hour."""

import hashlib
from dataclasses import dataclass
from typing import Annotated, Any, cast

import orjson
from pydantic import Field

from almanac.core.arguments import Arguments
from almanac.core.errors import BadRequest
from almanac.identity import clients
from almanac.identity.clients import MAX_CREDENTIAL_CHARS
from almanac.identity.tokens import LOGIN_SECONDS
from almanac.net.client_address import client_address
from almanac.net.http_exchange import HttpExchange
from almanac.operations.context import AppContext, Authentication, RequestContext
from almanac.operations.operation import Example, Operation, Rest, operation, parse_arguments
from almanac.operations.pipeline.errors import InvalidJson
from almanac.quotas.rate_limits import RateLimit
from almanac.web.rest import RestAnswer

MANAGEMENT_PREFIX = "/api/2.0"
MAX_LOGIN_BODY_BYTES = 10_000

_NO_STORE = ((b"cache-control", b"no-store"),)
_FORM = 'Send {"clientId": "…", "clientSecret": "…"}.'

Credential = Annotated[str, Field(min_length=1, max_length=MAX_CREDENTIAL_CHARS, pattern=r"^[!-~]+$")]


class LoginArguments(Arguments):
    """The credentials of a client."""

    clientId: Credential
    clientSecret: Annotated[Credential, Field(repr=False)]


@dataclass(slots=True)
class LoginAnswer:
    """The token, to be sent as `Authorization: Bearer`."""

    access_token: str
    token_type: str
    expires_in: Annotated[int, Field(description="Seconds.")]


async def login(ctx: RequestContext, _: LoginArguments) -> RestAnswer:
    """A token for an hour, with all rights of the client's user."""
    secret = await ctx.db.write(lambda tx: clients.log_in(tx, ctx.actor, int(ctx.claims)))
    return RestAnswer(LoginAnswer(secret, "Bearer", LOGIN_SECONDS), 200, _NO_STORE)


async def by_client(app: AppContext, http: HttpExchange) -> Authentication:
    """Authenticate by the client in the body.

    Attempts are counted by address, and by client and address together: nobody can use up the attempts of a client from
    another address.
    """
    address = client_address(http.scope, app.settings.trusted_proxies)
    await app.rate_limiter.count(RateLimit("login_address", app.settings.login_calls_per_address, 60), address)
    try:
        body: Any = orjson.loads(await http.read_json_body(MAX_LOGIN_BODY_BYTES) or b"{}")
    except orjson.JSONDecodeError:
        raise InvalidJson(remedy=_FORM) from None
    if not isinstance(body, dict):
        raise BadRequest("The body is not a JSON object.", remedy=_FORM)
    asked = parse_arguments(LoginArguments, cast("dict[str, Any]", body))
    digest = hashlib.sha256(f"{address} {asked.clientId}".encode()).hexdigest()[:32]
    await app.rate_limiter.count(RateLimit("login_client", app.settings.login_calls_per_client, 60), digest)
    actor, client = await clients.authenticate(app.db, asked.clientId, asked.clientSecret)
    return Authentication(actor, str(client))


LOGIN = operation(
    login,
    answer=LoginAnswer,
    rest=Rest("POST", "/login", authenticate=by_client, credentials=None),
    people_only="It makes a credential.",
    example=Example(
        {"clientId": "cl-6f0e1c9a52b7d3480e11aa20", "clientSecret": "cs-…"},
        LoginAnswer("lg-…", "Bearer", LOGIN_SECONDS),
    ),
)

MANAGEMENT_OPERATIONS: tuple[Operation, ...] = (LOGIN,)
