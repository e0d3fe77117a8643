"""The access-keys manager: says whose a key is. It is this server itself, or a remote one.

A revoked key is of no use in any process a second later at the latest: here it is looked up at every call, and what a
remote manager said is believed for that long.
"""

import hashlib
import re
import time
from typing import Any, Protocol, cast

import orjson
from cryptography.fernet import Fernet, InvalidToken

from almanac.core.call import Actor
from almanac.core.database import Database
from almanac.db.read_cache import ReadCache
from almanac.identity import tokens
from almanac.net.service_client import ServiceClient, ServiceUnavailable
from almanac.surfaces.gateway.sessions import Session

SCOPE = "knowledge-base"  # what the manager calls it
REQUIRED_SCOPES = "catalogue:read"  # what it means here
KEY_CACHE_SECONDS = 1.0  # seconds
MOST_BELIEVED = 10_000
GRANTED_SCOPES = frozenset({"catalogue:read", "search:read"})

_TENANT = re.compile(r"[A-Za-z0-9._:-]{1,200}")
_REFUSALS = frozenset({400, 401, 403, 404})


class KeyVerifier(Protocol):
    """Who verifies keys."""

    async def verify(self, key: str) -> Actor | None:
        """Whose key it is; None if it is not good for the knowledge base."""
        ...

    async def begin(self, key: str) -> Session | None:
        """A session for whose key it is."""
        ...

    async def renew(self, session: Session) -> Actor | None:
        """Whoever opened a session, while their key is still good."""
        ...

    async def is_available(self) -> bool: ...
    async def close(self) -> None: ...


def digest(key: str) -> str:
    """What a key is recognised by without being kept."""
    return hashlib.sha256(key.encode("utf-8", "surrogatepass")).hexdigest()


class LocalKeyVerifier:
    """Keys are tokens of this server that may read the catalogue."""

    def __init__(self, db: Database, remembered: ReadCache) -> None:
        self._db = db
        self._remembered = remembered
        self._keyring = tokens.TokenResolver(db, remembered)

    async def verify(self, key: str) -> Actor | None:
        actor = await self._keyring.resolve(key)
        return actor if actor is not None and REQUIRED_SCOPES in actor.scopes else None

    async def begin(self, key: str) -> Session | None:
        actor = await self.verify(key)
        return None if actor is None else Session(digest(key), principal_id=actor.id, token_id=actor.token_id)

    async def renew(self, session: Session) -> Actor | None:
        who = (session.principal_id, session.token_id)
        return await self._remembered.get(("holder", *who), lambda: tokens.actor_by_token_id(self._db, *who))

    async def is_available(self) -> bool:
        return True

    async def close(self) -> None:
        """Nothing is held."""


class RemoteKeyVerifier:
    """Keys are verified by a remote manager. A session keeps its key sealed, to be able to ask again."""

    def __init__(self, peer: ServiceClient, secret: Fernet) -> None:
        self._peer = peer
        self._secret = secret
        self._believed: dict[str, tuple[float, Actor | None]] = {}

    async def verify(self, key: str) -> Actor | None:
        name = digest(key)
        until, actor = self._believed.get(name, (0.0, None))
        if until > time.monotonic():
            return actor
        actor = await self._ask(key)
        if len(self._believed) >= MOST_BELIEVED:
            self._believed.clear()
        self._believed[name] = (time.monotonic() + KEY_CACHE_SECONDS, actor)
        return actor

    async def begin(self, key: str) -> Session | None:
        if await self.verify(key) is None:
            return None
        return Session(digest(key), sealed=self._secret.encrypt(key.encode("utf-8", "surrogatepass")).decode())

    async def renew(self, session: Session) -> Actor | None:
        try:
            key = self._secret.decrypt(session.sealed.encode()).decode("utf-8", "surrogatepass")
        except InvalidToken:  # the server's secret has changed since
            return None
        return await self.verify(key)

    async def is_available(self) -> bool:
        try:
            return (await self._peer.request("GET", "/health")).status == 200
        except ServiceUnavailable:
            return False

    async def close(self) -> None:
        await self._peer.close()

    async def _ask(self, key: str) -> Actor | None:
        asked = orjson.dumps({"key": key.encode("utf-8", "replace").decode(), "scope": SCOPE})
        answer = await self._peer.request("POST", "/keys/verify", content=asked)
        if answer.status in _REFUSALS:
            return None
        try:
            said = cast("dict[str, Any]", orjson.loads(answer.body))
            is_valid, tenant = said.get("valid") is True, said.get("tenantId")
        except (orjson.JSONDecodeError, AttributeError):
            raise ServiceUnavailable("The access-keys manager does not answer as it should.") from None
        if answer.status != 200 or (is_valid and not (isinstance(tenant, str) and _TENANT.fullmatch(tenant))):
            raise ServiceUnavailable("The access-keys manager does not answer as it should.")
        return _stranger(key, cast("str", tenant), said.get("name"), said.get("scopes")) if is_valid else None


def _stranger(key: str, tenant: str, name: Any, scopes: Any) -> Actor:
    """Someone whom only the manager knows. The number tells their key from others in limits, and is no token's here."""
    known = frozenset(each for each in GRANTED_SCOPES if isinstance(scopes, list) and each in scopes)
    return Actor(
        id=0,
        name=name[:100] if isinstance(name, str) else "key",
        kind="agent",
        org_id=tenant,
        org_name="",
        is_admin=False,
        token_id=-int(digest(key)[:12], 16) - 1,
        token_kind="access",  # noqa: S106 - a kind
        # Another manager may have no scopes like ours: then a key that is valid is good for all there is here.
        scopes=known if REQUIRED_SCOPES in known else GRANTED_SCOPES,
    )
