"""What a deployment may replace: who an external caller is, and what is told of whoever made something.

Both are set once, for the whole process, before the server starts (`almanac/external.py` is their public name). What
they raise stays with the one request that they were asked for.
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
    """Whom a handler has authenticated: a user of this server, by id."""

    id: int
    user_name: str


@dataclass(frozen=True, slots=True)
class ExternalKnowledgeCreatorInfo:
    """What is told of whoever made a knowledge base or a document."""

    user_id: int
    user_name: str
    attributes: dict[str, Any] = field(default_factory=dict[str, Any])


Told = dict[int, dict[str, Any] | None]
Found = ExternalKnowledgeUser | None
AuthHandler = Callable[[str | None, Request], Found | Awaitable[Found]]
Creators = Mapping[int, ExternalKnowledgeCreatorInfo]
CreatorResolver = Callable[[Database, list[int]], Creators | Awaitable[Creators]]


@dataclass(slots=True)
class _Replaced:
    auth: AuthHandler | None = None
    creators: CreatorResolver | None = None


_replaced = _Replaced()


def set_external_knowledge_auth_handler(handler: AuthHandler | None) -> None:
    """Let this authenticate external callers, from the Bearer token, if there is one, and the request; None: our own.

    It returns an ExternalKnowledgeUser, or None to refuse. It may be a coroutine; any other runs in a thread.
    """
    _replaced.auth = handler


def set_external_knowledge_creator_resolver(resolver: CreatorResolver | None) -> None:
    """Let this say who made things, from the database and the ids of users; None: their names, as we know them."""
    _replaced.creators = resolver


async def find_user(request: Request, user_name: str, org: str | None = None) -> ExternalKnowledgeUser | None:
    """A user of this server by name, for handlers that know no ids; with more than one organisation, say which."""
    db: Database = request.state.almanac_database
    try:
        found = await principals.get_by_name(db, (await orgs.get_by_name(db, org)).id, user_name)
    except NotFound:
        return None
    return ExternalKnowledgeUser(found.id, found.name) if found.kind == "user" else None


class ExternalAuthenticator(Authenticator):
    """Lets users in, by the handler that is set or by their own API token."""

    async def authenticate(self, app: AppContext, http: HttpExchange) -> Actor:
        """Return the user who calls."""
        token = bearer_token(http.headers)
        actor = await (_by_token(app, token) if _replaced.auth is None else _by_handler(app, http, token))
        if actor is None:
            raise Unauthorized("Authentication required")
        return actor


async def _by_token(app: AppContext, token: str | None) -> Actor | None:
    """Only tokens that users hold themselves: not agents', nor those made for other doors."""
    if token is None or not token.startswith(tokens.PREFIXES["user"]):
        return None
    actor = await app.token_resolver.resolve(token)
    return actor if actor is not None and actor.token_kind == "user" else None  # noqa: S105 - a kind


async def _by_handler(app: AppContext, http: HttpExchange, token: str | None) -> Actor | None:
    assert _replaced.auth is not None
    scope = {**http.scope, "state": {"almanac_database": app.db}}
    try:
        user = cast("Found", await _asked(_replaced.auth, token, Request(scope)))
        user_id = None if user is None else int(user.id)
    except Exception:  # noqa: BLE001 - a deployment's own code
        _log.exception("auth_handler_failed", request_id=http.request_id)
        raise Unauthorized("Authentication failed") from None
    return None if user_id is None else await tokens.actor_for_trusted_user(app.db, user_id)


async def creators(db: Database, known: Iterable[tuple[int, str]]) -> Told:
    """What is told of users, given their ids and names."""
    ours: Told = {id: {"user_id": id, "user_name": name, "attributes": {}} for id, name in known}
    if _replaced.creators is None or not ours:
        return ours
    try:
        found = cast("Creators", await _asked(_replaced.creators, db, list(ours)))
        return {id: _told(found[id]) if id in found else None for id in ours}
    except Exception:  # noqa: BLE001 - a deployment's own code
        _log.exception("creator_resolver_failed")
        return ours


def _told(info: ExternalKnowledgeCreatorInfo) -> dict[str, Any]:
    return {"user_id": info.user_id, "user_name": info.user_name, "attributes": dict(info.attributes)}


async def _asked(handler: Callable[..., Any], *args: Any) -> Any:
    if inspect.iscoroutinefunction(handler):
        return await handler(*args)
    answer = await asyncio.to_thread(handler, *args)
    return await answer if inspect.isawaitable(answer) else answer
