"""The gateway as it runs: who verifies keys, where sessions are, what is asked."""

import base64
import hashlib
import hmac
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass

from cryptography.fernet import Fernet

from almanac.net.service_client import ServiceClient
from almanac.operations.context import AppContext
from almanac.surfaces.gateway.key_verifier import KeyVerifier, LocalKeyVerifier, RemoteKeyVerifier
from almanac.surfaces.gateway.sessions import Sessions, open_sessions
from almanac.surfaces.gateway.upstream import LocalUpstream, RemoteUpstream, Upstream


@dataclass(frozen=True, slots=True)
class Gateway:
    """What the gateway is made of."""

    keys: KeyVerifier
    sessions: Sessions
    upstream: Upstream


@asynccontextmanager
async def open_gateway(app: AppContext) -> AsyncGenerator[Gateway]:
    """Open the gateway that the settings describe."""
    settings, db = app.settings, app.db
    shown = {"authorization": f"Bearer {settings.gateway_service_key}"} if settings.gateway_service_key else {}

    def peer(url: str) -> ServiceClient:
        return ServiceClient(url, settings.gateway_timeout_seconds, shown)

    # A key of its own, derived from the server's, so that what one of them signs or seals is nothing to the other.
    sealing = base64.urlsafe_b64encode(hmac.digest(app.key, b"gateway sessions", hashlib.sha256))
    keys_url, upstream_url = settings.gateway_keys_url, settings.gateway_upstream_url
    gateway = Gateway(
        RemoteKeyVerifier(peer(keys_url), Fernet(sealing)) if keys_url else LocalKeyVerifier(db, app.read_cache),
        open_sessions(db, settings.redis_url, settings.gateway_session_minutes),
        RemoteUpstream(peer(upstream_url)) if upstream_url else LocalUpstream(),
    )
    try:
        yield gateway
    finally:
        await gateway.keys.close()
        await gateway.sessions.close()
        await gateway.upstream.close()
