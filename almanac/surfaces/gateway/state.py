"""The services of the gateway: key verification, session store and knowledge-base service."""

import base64
import hashlib
import hmac
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass

from cryptography.fernet import Fernet

from almanac.net.service_client import ServiceClient
from almanac.operations.context import AppContext
from almanac.surfaces.gateway.key_verifier import KeyVerifier, LocalKeyVerifier, RemoteKeyVerifier
from almanac.surfaces.gateway.sessions import SessionStore, open_sessions
from almanac.surfaces.gateway.upstream import LocalUpstream, RemoteUpstream, Upstream


@dataclass(frozen=True, slots=True)
class GatewayServices:
    """The services of an open gateway."""

    keys: KeyVerifier
    sessions: SessionStore
    upstream: Upstream


@asynccontextmanager
async def open_gateway(app: AppContext) -> AsyncGenerator[GatewayServices]:
    """Open the services that the settings describe."""
    settings, db = app.settings, app.db
    headers = {"authorization": f"Bearer {settings.gateway_service_key}"} if settings.gateway_service_key else {}

    async with AsyncExitStack() as stack:

        def client(url: str) -> ServiceClient:
            service = ServiceClient(url, settings.gateway_timeout_seconds, headers)
            stack.push_async_callback(service.close)
            return service

        # A separate key, derived from that of the server: a text encrypted or signed with one is useless with the
        # other.
        session_key = base64.urlsafe_b64encode(hmac.digest(app.key, b"gateway sessions", hashlib.sha256))
        keys_url, upstream_url = settings.gateway_keys_url, settings.gateway_upstream_url
        local_keys = LocalKeyVerifier(app.token_resolver)
        yield GatewayServices(
            RemoteKeyVerifier(client(keys_url), Fernet(session_key)) if keys_url else local_keys,
            await stack.enter_async_context(open_sessions(db, settings.redis_url, settings.gateway_session_minutes)),
            RemoteUpstream(client(upstream_url)) if upstream_url else LocalUpstream(),
        )
