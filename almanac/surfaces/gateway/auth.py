"""Authentication at the gateway.

In older versions of the protocol a caller connects once: the key is verified, and later requests carry a session id. In
the newest version there are no sessions, and each request carries the key.
"""

import hmac
from functools import partial

from almanac.core.call import Actor
from almanac.core.errors import Unauthorized
from almanac.identity.credentials import InvalidKey, MissingKey, api_key
from almanac.net.http_exchange import HeaderList, Headers, HttpExchange
from almanac.net.json_rpc import Message
from almanac.operations.context import AppContext, RequestContext
from almanac.surfaces.gateway import key_verifier
from almanac.surfaces.gateway.sessions import MAX_SESSION_ID_CHARS, GatewaySession
from almanac.surfaces.gateway.state import GatewayServices
from almanac.surfaces.sessions import SESSION_HEADER
from almanac.surfaces.surface import Authenticator, OnAccepted

STATELESS_PROTOCOL_VERSION = b"2026-07-28"


class InvalidSession(Unauthorized):
    """Invalid or missing sessionId"""

    remedy = ""


class GatewayAuthenticator(Authenticator):
    """Authenticates callers of the gateway by key or session."""

    state: GatewayServices

    async def authenticate(self, app: AppContext, http: HttpExchange) -> Actor:
        """Return the caller before the body is read."""
        headers = http.headers
        if headers.get(b"mcp-protocol-version") == STATELESS_PROTOCOL_VERSION:
            return await self._verified(headers)
        if headers.get(SESSION_HEADER):
            return await self._resumed(headers)
        if http.scope["method"] != "POST":
            raise InvalidSession()
        return await self._verified(headers)  # `on_message` checks that this is a connect request

    async def on_message(self, ctx: RequestContext, message: Message) -> OnAccepted | None:
        """Verify the key of a caller that connects. In older versions, every other request needs a session."""
        headers = ctx.http.headers
        if headers.get(b"mcp-protocol-version") == STATELESS_PROTOCOL_VERSION or headers.get(SESSION_HEADER):
            return None
        if message.get("method") != "initialize" or "id" not in message:
            raise InvalidSession()
        session = await self.state.keys.start_session(api_key(headers) or "")
        if session is None:
            raise InvalidKey()
        return partial(self._open_session, session)

    async def end_session(self, http: HttpExchange) -> bool:
        """End the caller's session."""
        if not http.headers.get(SESSION_HEADER):
            return False
        await self.state.sessions.end(http.headers[SESSION_HEADER].decode("latin-1"))
        return True

    async def _open_session(self, session: GatewaySession) -> HeaderList:
        return ((SESSION_HEADER, (await self.state.sessions.open(session)).encode()),)

    async def _verified(self, headers: Headers) -> Actor:
        key = api_key(headers)
        if key is None:
            raise MissingKey()
        actor = await self.state.keys.verify(key)
        if actor is None:
            raise InvalidKey()
        return actor

    async def _resumed(self, headers: Headers) -> Actor:
        id, key = headers[SESSION_HEADER].decode("latin-1"), api_key(headers)
        session = await self.state.sessions.get(id) if len(id) <= MAX_SESSION_ID_CHARS else None
        # The key is optional here. If there is one, it must be the key that opened the session.
        if session is None or (
            key is not None and not hmac.compare_digest(key_verifier.digest(key), session.key_digest)
        ):
            raise InvalidSession()
        actor = await self.state.keys.actor_of_session(session)
        if actor is None:
            await self.state.sessions.end(id)
            raise InvalidSession()
        return actor
