"""Authentication of external callers, and two handlers that a deployment may replace: authentication and creators.

The handlers are set once for the process, before the server starts; `almanac/external.py` is their public import. An
exception in a handler fails only the current request.
"""

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, cast

import structlog
from starlette.requests import Request

from almanac.core.call import Actor
from almanac.core.database import Database
from almanac.core.errors import NotFound, Unauthorized
from almanac.identity import orgs, principals, tokens
from almanac.identity.credentials import bearer_token
from almanac.net.http_exchange import HttpExchange
from almanac.operations.context import AppContext
from almanac.surfaces.surface import Authenticator

_log = structlog.get_logger("almanac.external")


@dataclass(frozen=True, slots=True)
class ExternalKnowledgeUser:
    """The user of this server that a handler has authenticated."""

    id: int
    user_name: str


@dataclass(frozen=True, slots=True)
class ExternalKnowledgeCreatorInfo:
    """The creator of a knowledge base or a document, as answers show it."""

    user_id: int
    user_name: str
    attributes: dict[str, Any] = field(default_factory=dict[str, Any])


CreatorObjects = dict[int, dict[str, Any] | None]
AuthResult = ExternalKnowledgeUser | None
AuthHandler = Callable[[str | None, Request], AuthResult | Awaitable[AuthResult]]
Creators = Mapping[int, ExternalKnowledgeCreatorInfo]
CreatorResolver = Callable[[Database, list[int]], Creators | Awaitable[Creators]]


@dataclass(slots=True)
class _Handlers:
    auth: AuthHandler | None = None
    creators: CreatorResolver | None = None


_handlers = _Handlers()


def set_external_knowledge_auth_handler(handler: AuthHandler | None) -> None:
    """Set the handler that authenticates external callers; None restores our own.

    It receives the bearer token, or None, and the request. It returns an ExternalKnowledgeUser, or None to refuse. A
    handler that is not a coroutine function runs in a thread.
    """
    _handlers.auth = handler


def set_external_knowledge_creator_resolver(resolver: CreatorResolver | None) -> None:
    """Set the handler that describes creators by their user ids; None restores our own, which returns their names."""
    _handlers.creators = resolver


async def find_user(request: Request, user_name: str, org: str | None = None) -> ExternalKnowledgeUser | None:
    """Return a user by name, for handlers that know no ids. Name the organisation if the server has several."""
    db: Database = request.state.almanac_database
    try:
        user = await principals.get_by_name(db, (await orgs.get_by_name(db, org)).id, user_name)
    except NotFound:
        return None
    return ExternalKnowledgeUser(user.id, user.name) if user.kind == "user" else None


class ExternalAuthenticator(Authenticator):
    """Authenticates users by the handler of the deployment or, without one, by their API tokens."""

    async def authenticate(self, app: AppContext, http: HttpExchange) -> Actor:
        """Return the calling user."""
        token = bearer_token(http.headers)
        actor = await (_by_token(app, token) if _handlers.auth is None else _by_handler(app, http, token))
        if actor is None:
            raise Unauthorized("Authentication required")
        return actor


async def _by_token(app: AppContext, token: str | None) -> Actor | None:
    """Accept only tokens of users: not those of agents or of other surfaces."""
    if token is None or not token.startswith(tokens.PREFIXES["user"]):
        return None
    actor = await app.token_resolver.resolve(token)
    return actor if actor is not None and actor.token_kind == "user" else None  # noqa: S105 - a kind


async def _by_handler(app: AppContext, http: HttpExchange, token: str | None) -> Actor | None:
    assert _handlers.auth is not None
    scope = {**http.scope, "state": {"almanac_database": app.db}}
    try:
        user = cast("AuthResult", await _call(_handlers.auth, token, Request(scope)))
        user_id = None if user is None else int(user.id)
    except Exception:  # noqa: BLE001 - a deployment's own code
        _log.exception("auth_handler_failed", request_id=http.request_id)
        raise Unauthorized("Authentication failed") from None
    return None if user_id is None else await tokens.actor_for_trusted_user(app.db, user_id)


async def find_creators(db: Database, users: Iterable[tuple[int, str]]) -> CreatorObjects:
    """Return the creator objects of users, by their ids; a user that the resolver does not know has None."""
    default: CreatorObjects = {id: {"user_id": id, "user_name": name, "attributes": {}} for id, name in users}
    if _handlers.creators is None or not default:
        return default
    try:
        creators = cast("Creators", await _call(_handlers.creators, db, list(default)))
        return {id: _creator_object(creators[id]) if id in creators else None for id in default}
    except Exception:  # noqa: BLE001 - a deployment's own code
        _log.exception("creator_resolver_failed")
        return default


def _creator_object(info: ExternalKnowledgeCreatorInfo) -> dict[str, Any]:
    return {"user_id": info.user_id, "user_name": info.user_name, "attributes": dict(info.attributes)}


async def _call(handler: Callable[..., Any], *args: Any) -> Any:
    if inspect.iscoroutinefunction(handler):
        return await handler(*args)
    answer = await asyncio.to_thread(handler, *args)
    return await answer if inspect.isawaitable(answer) else answer
