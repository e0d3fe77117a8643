"""The rate limits of the external surface, as its seed describes them.

Each limit has a namespace and counts by a dimension. The key in Redis is
`external_kb_mcp:rate:{namespace}:{dimension}:{window}`; it contains hashes of addresses and tokens.
"""

import hashlib

from almanac.core.settings import Settings
from almanac.identity.credentials import bearer_token
from almanac.net import client_address
from almanac.net.http_exchange import HttpExchange
from almanac.operations.context import AppContext, RequestContext
from almanac.quotas.rate_limits import RateLimit

PREFIX = "external_kb_mcp:rate"


async def count_request(ctx: RequestContext) -> None:
    """Count a request by client address and by token."""
    limiter, settings = ctx.app.rate_limiter, ctx.app.settings
    limit = _limit(
        "transport",
        settings.external_rate_limit_enabled,
        settings.external_rate_limit_requests,
        settings.external_rate_limit_window_seconds,
    )
    await limiter.count(limit, _address(settings, ctx.http))
    if token := bearer_token(ctx.http.headers):
        await limiter.count(limit, f"token:{_hash(token)}")


async def count_search(ctx: RequestContext) -> None:
    """Count a search by user."""
    settings = ctx.app.settings
    limit = _limit(
        "search",
        settings.external_search_rate_limit_enabled,
        settings.external_search_rate_limit_requests,
        settings.external_search_rate_limit_window_seconds,
    )
    await ctx.app.rate_limiter.count(limit, f"user:{ctx.actor.id}")


async def count_unauthenticated_download(app: AppContext, http: HttpExchange, document_id: int) -> None:
    """Count a download before its credential is read: by client address, then by address and document."""
    settings, address = app.settings, _address(app.settings, http)
    by_address = _limit(
        "download_preauth_ip",
        settings.external_download_rate_limit_enabled,
        settings.external_download_preauth_ip_rate_limit_requests,
        settings.external_download_preauth_ip_rate_limit_window_seconds,
    )
    by_document = _limit(
        "download_preauth_document",
        settings.external_download_rate_limit_enabled,
        settings.external_download_preauth_document_rate_limit_requests,
        settings.external_download_preauth_document_rate_limit_window_seconds,
    )
    await app.rate_limiter.count(by_address, address)
    await app.rate_limiter.count(by_document, f"{address}:document:{document_id}")


async def count_download(ctx: RequestContext, document_id: int) -> None:
    """Count a download with a valid credential by user and document."""
    settings = ctx.app.settings
    limit = _limit(
        "download",
        settings.external_download_rate_limit_enabled,
        settings.external_download_rate_limit_requests,
        settings.external_download_rate_limit_window_seconds,
    )
    await ctx.app.rate_limiter.count(limit, f"user:{ctx.actor.id}:document:{document_id}")


def _limit(namespace: str, is_on: bool, requests: int, seconds: int) -> RateLimit:
    return RateLimit(f"{PREFIX}:{namespace}", requests if is_on else 0, seconds, "aligned")


def _address(settings: Settings, http: HttpExchange) -> str:
    return f"ip:{_hash(client_address.client_address(http.scope, settings.trusted_proxies))}"


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:32]
