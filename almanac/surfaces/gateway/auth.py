"""Authentication at the gateway.

In the older eras of the protocol a caller connects once: the key is verified, and a session's id stands for it from
then on. In the newest each request stands alone and carries its key.
"""

import hmac

from almanac.core.call import Actor
from almanac.core.errors import Unauthorized
from almanac.identity.credentials import InvalidKey, MissingKey, api_key
from almanac.net.http_exchange import HeaderList, Headers, HttpExchange
from almanac.operations.context import AppContext, RequestContext
from almanac.surfaces.gateway import key_verifier
from almanac.surfaces.gateway.sessions import LONGEST_ID
from almanac.surfaces.gateway.state import Gateway
from almanac.surfaces.json_rpc import Message
from almanac.surfaces.surface import Authenticator

STATELESS_PROTOCOL_VERSION = b"2026-07-28"
SESSION = b"mcp-session-id"


class NoSession(Unauthorized):
    """Invalid or missing sessionId"""

    remedy = ""


class GatewayAuthenticator(Authenticator):
    """Identifies callers of the gateway by key or session."""

    state: Gateway

    async def authenticate(self, app: AppContext, http: HttpExchange) -> Actor:
        """Return the caller before the body is read."""
        headers = http.headers
        if headers.get(b"mcp-protocol-version") == STATELESS_PROTOCOL_VERSION:
            return await self._verified(headers)
        if headers.get(SESSION):
            return await self._resumed(headers)
        if http.scope["method"] != "POST":
            raise NoSession()
        return await self._verified(headers)  # `on_message` checks that this is a connect request

    async def on_message(self, ctx: RequestContext, message: Message) -> HeaderList:
        """Open a session for a caller who connects. Without a session, the older eras serve nothing else."""
        headers = ctx.http.headers
        if headers.get(b"mcp-protocol-version") == STATELESS_PROTOCOL_VERSION or headers.get(SESSION):
            return ()
        if message.get("method") != "initialize" or "id" not in message:
            raise NoSession()
        session = await self.state.keys.begin(api_key(headers) or "")
        if session is None:
            raise InvalidKey()
        return ((SESSION, (await self.state.sessions.open(session)).encode()),)

    async def end_session(self, http: HttpExchange) -> bool:
        """End the caller's session."""
        if not http.headers.get(SESSION):
            return False
        await self.state.sessions.end(http.headers[SESSION].decode("latin-1"))
        return True

    async def _verified(self, headers: Headers) -> Actor:
        key = api_key(headers)
        if key is None:
            raise MissingKey()
        actor = await self.state.keys.verify(key)
        if actor is None:
            raise InvalidKey()
        return actor

    async def _resumed(self, headers: Headers) -> Actor:
        id, key = headers[SESSION].decode("latin-1"), api_key(headers)
        session = await self.state.sessions.get(id) if len(id) <= LONGEST_ID else None
        # A key need not come along, but one that does must be the one that opened the session.
        if session is None or (
            key is not None and not hmac.compare_digest(key_verifier.digest(key), session.key_digest)
        ):
            raise NoSession()
        actor = await self.state.keys.renew(session)
        if actor is None:
            await self.state.sessions.end(id)
            raise NoSession()
        return actor
