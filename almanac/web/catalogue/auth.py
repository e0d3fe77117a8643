"""Authentication of the catalogue's REST operations, by keys in the form of the gateway's contract."""

import hmac
from typing import Any

import orjson

from almanac.core import clock
from almanac.core.call import Actor
from almanac.core.errors import BadRequest, NotFound
from almanac.identity import orgs
from almanac.identity.credentials import InvalidKey, MissingKey, api_key
from almanac.net.http_exchange import HttpExchange
from almanac.operations.catalogue import GATEWAY_SCOPES, REQUIRED_SCOPE
from almanac.operations.context import AppContext, Authentication, RequestContext
from almanac.web.catalogue import models

MAX_VERIFY_BODY_BYTES = 10_000


async def by_key(app: AppContext, http: HttpExchange) -> Authentication:
    """Authenticate by the key in X-API-Key, X-Access-Key or Bearer.

    A gateway in front of this server sends the service key instead, with the id of the organisation.
    """
    key = api_key(http.headers)
    if not key:
        raise MissingKey()
    service_key = app.settings.gateway_service_key.encode()
    if service_key and hmac.compare_digest(key.encode("latin-1"), service_key):
        return Authentication(await _tenant(app, http.headers.get(b"x-tenant-id", b"").decode("latin-1")))
    actor = await app.token_resolver.resolve(key)
    if actor is None:
        raise InvalidKey()
    return Authentication(actor)


async def by_key_in_body(app: AppContext, http: HttpExchange) -> Authentication:
    """Authenticate by the key to verify, which is in the body."""
    try:
        body: Any = orjson.loads(await http.read_json_body(MAX_VERIFY_BODY_BYTES) or b"{}")
        args = models.VerifyKey.model_validate(body)
    except ValueError:
        raise BadRequest('Send {"key": "…", "scope": "knowledge-base"}.') from None
    if not args.key.strip():
        raise MissingKey()
    actor = await app.token_resolver.resolve(args.key.strip())
    if actor is None or REQUIRED_SCOPE not in actor.scopes:
        raise InvalidKey()
    return Authentication(actor)


async def _tenant(app: AppContext, org_id: str) -> Actor:
    org = await orgs.get_or_none(app.db, org_id) if org_id else None
    if org is None:
        raise NotFound("There is no such tenant.", remedy="Name one in X-Tenant-Id.")
    return Actor(
        id=0,
        name="gateway",
        kind="agent",
        org_id=org.id,
        org_name=org.name,
        is_admin=False,
        token_id=0,
        token_kind="service",  # noqa: S106 - a kind
        scopes=GATEWAY_SCOPES,
    )


async def verify_key(ctx: RequestContext, _: Any, __: models.VerifyKey) -> dict[str, Any]:
    """The owner of a key, if the key is valid for the knowledge base."""
    actor = ctx.actor
    return {
        "valid": True,
        "tenantId": actor.org_id,
        "name": actor.name,
        "scopes": sorted(actor.scopes),
        "expiresAt": clock.format_timestamp(actor.expires_at),
    }
