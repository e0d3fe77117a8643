"""The gateway as it runs: who verifies keys, where sessions are, what is asked."""

import base64
import hashlib
import hmac
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass

from cryptography.fernet import Fernet

from almanac.core.database import Database
from almanac.core.remembered import Remembered
from almanac.core.settings import Settings
from almanac.net.upstream import Peer
from almanac.surfaces.gateway.keys import Keys, KeysHere, KeysThere
from almanac.surfaces.gateway.sessions import Sessions, open_sessions
from almanac.surfaces.gateway.upstream import Upstream, UpstreamHere, UpstreamThere


@dataclass(frozen=True, slots=True)
class Gateway:
    """What the gateway is made of."""

    keys: Keys
    sessions: Sessions
    upstream: Upstream


@asynccontextmanager
async def open_gateway(settings: Settings, db: Database, remembered: Remembered, key: bytes) -> AsyncGenerator[Gateway]:
    """The gateway that the settings describe."""
    shown = {"authorization": f"Bearer {settings.gateway_service_key}"} if settings.gateway_service_key else {}

    def peer(url: str) -> Peer:
        return Peer(url, settings.gateway_timeout_seconds, shown)

    # A key of its own, derived from the server's, so that what one of them signs or seals is nothing to the other.
    sealing = base64.urlsafe_b64encode(hmac.digest(key, b"gateway sessions", hashlib.sha256))
    keys_url, upstream_url = settings.gateway_keys_url, settings.gateway_upstream_url
    gateway = Gateway(
        KeysThere(peer(keys_url), Fernet(sealing)) if keys_url else KeysHere(db, remembered),
        open_sessions(db, settings.redis_url, settings.gateway_session_minutes),
        UpstreamThere(peer(upstream_url)) if upstream_url else UpstreamHere(),
    )
    try:
        yield gateway
    finally:
        await gateway.keys.close()
        await gateway.sessions.close()
        await gateway.upstream.close()
