"""Verification of access keys, by this server or by a remote access-keys manager.

A revoked key stops working within a second in every process: local keys are looked up for each call, and an answer of a
remote manager is cached for a second. While the manager does not answer, a session keeps its last answer; new sessions
are refused.
"""

import asyncio
import hashlib
import re
import time
from typing import Any, Protocol, cast

import orjson
from cryptography.fernet import Fernet, InvalidToken

from almanac.core import clock
from almanac.core.call import Actor
from almanac.identity.tokens import TokenResolver
from almanac.net.service_client import ServiceClient, ServiceUnavailable
from almanac.operations.catalogue import GATEWAY_SCOPES, REQUIRED_SCOPE
from almanac.surfaces.gateway.sessions import GatewaySession

REMOTE_SCOPE = "knowledge-base"  # the remote manager's name of REQUIRED_SCOPE
MAX_KEY_CHARS = 1000  # longer keys are refused without a request to the manager
KEY_CACHE_SECONDS = 1.0
MAX_CACHED_KEYS = 10_000
MAX_SESSION_VERIFY_SECONDS = 2.0
MANAGER_RETRY_SECONDS = 5.0  # sessions are not verified for this long after a failure: each would wait for the manager

_TENANT = re.compile(r"[A-Za-z0-9._:-]{1,200}")
_REFUSALS = frozenset({400, 401, 403, 404})


class KeyVerifier(Protocol):
    """Verifies keys."""

    async def verify(self, key: str) -> Actor | None:
        """Return the actor of a key; None if the key is invalid or lacks the scope."""
        ...

    async def start_session(self, key: str) -> GatewaySession | None:
        """Return a new session for a key; None if the key is refused."""
        ...

    async def actor_of_session(self, session: GatewaySession) -> Actor | None:
        """Return the actor of a session; None if its key is no longer valid."""
        ...

    async def is_available(self) -> bool: ...


def digest(key: str) -> str:
    """Return the hash that identifies a key, so that the key itself is not stored."""
    return hashlib.sha256(key.encode("utf-8", "surrogatepass")).hexdigest()


class LocalKeyVerifier:
    """Verifies tokens of this server that may read the catalogue."""

    def __init__(self, token_resolver: TokenResolver) -> None:
        self._token_resolver = token_resolver

    async def verify(self, key: str) -> Actor | None:
        actor = await self._token_resolver.resolve(key)
        return actor if actor is not None and REQUIRED_SCOPE in actor.scopes else None

    async def start_session(self, key: str) -> GatewaySession | None:
        actor = await self.verify(key)
        return None if actor is None else GatewaySession(digest(key), principal_id=actor.id, token_id=actor.token_id)

    async def actor_of_session(self, session: GatewaySession) -> Actor | None:
        return await self._token_resolver.actor_by_token_id(session.principal_id, session.token_id)

    async def is_available(self) -> bool:
        return True


class RemoteKeyVerifier:
    """Verifies keys at a remote manager. A session contains its key encrypted, so that it can be verified again."""

    def __init__(self, client: ServiceClient, cipher: Fernet) -> None:
        self._client = client
        self._cipher = cipher
        self._cache: dict[str, tuple[float, Actor | None]] = {}
        self._sessions_verified_from = 0.0

    async def verify(self, key: str) -> Actor | None:
        if len(key) > MAX_KEY_CHARS:
            return None
        key_digest = digest(key)
        expires_at, actor = self._cache.get(key_digest, (0.0, None))
        if expires_at > time.monotonic():
            return actor
        actor = await self._request(key)
        if len(self._cache) >= MAX_CACHED_KEYS:
            self._cache.clear()
        self._cache[key_digest] = (time.monotonic() + KEY_CACHE_SECONDS, actor)
        return actor

    async def start_session(self, key: str) -> GatewaySession | None:
        actor = await self.verify(key)
        if actor is None:
            return None
        sealed = self._cipher.encrypt(key.encode("utf-8", "surrogatepass")).decode()
        return GatewaySession(
            digest(key),
            sealed=sealed,
            tenant=actor.org_id,
            name=actor.name,
            scopes=tuple(sorted(actor.scopes)),
            expires_at=actor.expires_at,
        )

    async def actor_of_session(self, session: GatewaySession) -> Actor | None:
        try:
            key = self._cipher.decrypt(session.sealed.encode()).decode("utf-8", "surrogatepass")
        except InvalidToken:  # the secret of this server has changed
            return None
        if time.monotonic() >= self._sessions_verified_from:
            try:
                async with asyncio.timeout(MAX_SESSION_VERIFY_SECONDS):
                    return await self.verify(key)
            except (ServiceUnavailable, TimeoutError):
                self._sessions_verified_from = time.monotonic() + MANAGER_RETRY_SECONDS
        return self._last_answer(session)

    def _last_answer(self, session: GatewaySession) -> Actor | None:
        """Return the actor of a session while the manager does not answer: as last verified, until the key expires."""
        _, actor = self._cache.get(session.key_digest, (0.0, _actor_of_session(session)))
        has_expired = actor is not None and actor.expires_at is not None and actor.expires_at <= clock.now()
        return None if has_expired else actor

    async def is_available(self) -> bool:
        try:
            return (await self._client.request("GET", "/health")).status == 200
        except ServiceUnavailable:
            return False

    async def _request(self, key: str) -> Actor | None:
        content = orjson.dumps({"key": key.encode("utf-8", "replace").decode(), "scope": REMOTE_SCOPE})
        answer = await self._client.request("POST", "/keys/verify", content=content)
        if answer.status in _REFUSALS:
            return None
        try:
            body = cast("dict[str, Any]", orjson.loads(answer.body))
            is_valid, tenant, scopes = body.get("valid") is True, body.get("tenantId"), body.get("scopes")
        except (orjson.JSONDecodeError, AttributeError):
            raise ServiceUnavailable("The access-keys manager does not answer as it should.") from None
        if answer.status != 200 or (is_valid and not (isinstance(tenant, str) and _TENANT.fullmatch(tenant))):
            raise ServiceUnavailable("The access-keys manager does not answer as it should.")
        if not is_valid:
            return None
        name = body.get("name")
        known = frozenset(scope for scope in GATEWAY_SCOPES if isinstance(scopes, list) and scope in scopes)
        return _remote_actor(
            digest(key),
            cast("str", tenant),
            name[:100] if isinstance(name, str) else "key",
            # A manager without scopes like ours gives a valid key all scopes of the gateway.
            known if REQUIRED_SCOPE in known else GATEWAY_SCOPES,
            _parse_expiry(body.get("expiresAt")),
        )


def _parse_expiry(value: Any) -> int | None:
    try:
        return clock.parse_timestamp(value) if isinstance(value, str) else None
    except ValueError:
        return None


def _actor_of_session(session: GatewaySession) -> Actor:
    return _remote_actor(
        session.key_digest, session.tenant, session.name, frozenset(session.scopes), session.expires_at
    )


def _remote_actor(key_digest: str, tenant: str, name: str, scopes: frozenset[str], expires_at: int | None) -> Actor:
    """Return an actor that only the remote manager knows. Its negative token id is the key of its rate limits."""
    return Actor(
        id=0,
        name=name,
        kind="agent",
        org_id=tenant,
        org_name="",
        is_admin=False,
        token_id=-int(key_digest[:12], 16) - 1,
        token_kind="access",  # noqa: S106 - a kind
        scopes=scopes,
        expires_at=expires_at,
    )
