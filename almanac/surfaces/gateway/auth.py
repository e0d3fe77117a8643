"""The gate of the gateway, which lets callers in.

In the older eras of the protocol a caller connects once: the key is verified, and a session's id stands for it from
then on. In the newest each request stands alone and carries its key.
"""

import hmac
from collections.abc import Mapping

from almanac.core.call import Actor
from almanac.core.errors import Unauthorized
from almanac.net.http_exchange import Headers, HttpExchange
from almanac.surfaces.gateway import key_verifier
from almanac.surfaces.gateway.sessions import LONGEST_ID
from almanac.surfaces.json_rpc import Message
from almanac.surfaces.surface import Authenticator, ToolDispatcher

STATELESS_PROTOCOL_VERSION = b"2026-07-28"
SESSION = b"mcp-session-id"


class MissingKey(Unauthorized):
    """Missing API key"""

    remedy = ""


class InvalidKey(Unauthorized):
    """Invalid API key"""

    remedy = ""


class NoSession(Unauthorized):
    """Invalid or missing sessionId"""

    remedy = ""


def credential(headers: Mapping[bytes, bytes]) -> str | None:
    """The key of a request: the first that is not empty of x-api-key, x-access-key and Authorization: Bearer."""
    scheme, _, token = headers.get(b"authorization", b"").partition(b" ")
    given = (headers.get(b"x-api-key"), headers.get(b"x-access-key"), token if scheme.lower() == b"bearer" else None)
    found = next((value.strip() for value in given if value and value.strip()), None)
    return None if found is None else found.decode("latin-1")


class GatewayAuthenticator(Authenticator):
    """Lets callers of the gateway in."""

    def __init__(self, desk: ToolDispatcher) -> None:
        super().__init__(desk)
        self._gateway = desk.house.gateway

    async def authenticate(self, exchange: HttpExchange) -> Actor:
        """Who is calling, before the body is read."""
        headers = exchange.headers
        if headers.get(b"mcp-protocol-version") == STATELESS_PROTOCOL_VERSION:
            return await self._verified(headers)
        if headers.get(SESSION):
            return await self._resumed(headers)
        if exchange.scope["method"] != "POST":
            raise NoSession()
        return await self._verified(headers)  # who wants to connect; `greet` sees whether they do

    async def on_message(self, exchange: HttpExchange, message: Message) -> tuple[tuple[bytes, bytes], ...]:
        """Open a session for whoever connects; without one, nothing else is served in the older eras."""
        headers = exchange.headers
        if headers.get(b"mcp-protocol-version") == STATELESS_PROTOCOL_VERSION or headers.get(SESSION):
            return ()
        if message.get("method") != "initialize" or "id" not in message:
            raise NoSession()
        session = await self._gateway.keys.begin(credential(headers) or "")
        if session is None:
            raise InvalidKey()
        return ((SESSION, (await self._gateway.sessions.open(session)).encode()),)

    async def end_session(self, exchange: HttpExchange) -> bool:
        """End the session of whoever leaves."""
        if not exchange.headers.get(SESSION):
            return False
        await self._gateway.sessions.end(exchange.headers[SESSION].decode("latin-1"))
        return True

    async def _verified(self, headers: Headers) -> Actor:
        key = credential(headers)
        if key is None:
            raise MissingKey()
        actor = await self._gateway.keys.verify(key)
        if actor is None:
            raise InvalidKey()
        return actor

    async def _resumed(self, headers: Headers) -> Actor:
        id, key = headers[SESSION].decode("latin-1"), credential(headers)
        session = await self._gateway.sessions.get(id) if len(id) <= LONGEST_ID else None
        # A key need not come along, but one that does must be the one that opened the session.
        if session is None or (
            key is not None and not hmac.compare_digest(key_verifier.digest(key), session.key_digest)
        ):
            raise NoSession()
        actor = await self._gateway.keys.renew(session)
        if actor is None:
            await self._gateway.sessions.end(id)
            raise NoSession()
        return actor
