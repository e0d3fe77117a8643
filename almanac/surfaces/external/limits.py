"""The rate limits of the external surface, as its seed describes them.

Each limit has a namespace and counts by a dimension. The key in Redis is
`external_kb_mcp:rate:{namespace}:{dimension}:{window}`; it contains hashes of addresses and tokens.
"""

import hashlib
from typing import NamedTuple

from almanac.core.settings import Settings
from almanac.identity.credentials import bearer_token
from almanac.net import client_address
from almanac.net.http_exchange import HttpExchange
from almanac.operations.context import AppContext, RequestContext
from almanac.quotas.rate_limits import RateLimit

PREFIX = "external_kb_mcp:rate"


class LimitRow(NamedTuple):
    """One limit: its namespace and the names of its settings."""

    namespace: str
    enabled: str
    requests: str
    seconds: str


TRANSPORT = LimitRow(
    "transport",
    "external_rate_limit_enabled",
    "external_rate_limit_requests",
    "external_rate_limit_window_seconds",
)
SEARCH = LimitRow(
    "search",
    "external_search_rate_limit_enabled",
    "external_search_rate_limit_requests",
    "external_search_rate_limit_window_seconds",
)
DOWNLOAD = LimitRow(
    "download",
    "external_download_rate_limit_enabled",
    "external_download_rate_limit_requests",
    "external_download_rate_limit_window_seconds",
)
DOWNLOAD_BY_ADDRESS = LimitRow(
    "download_preauth_ip",
    "external_download_rate_limit_enabled",
    "external_download_preauth_ip_rate_limit_requests",
    "external_download_preauth_ip_rate_limit_window_seconds",
)
DOWNLOAD_BY_ADDRESS_AND_DOCUMENT = LimitRow(
    "download_preauth_document",
    "external_download_rate_limit_enabled",
    "external_download_preauth_document_rate_limit_requests",
    "external_download_preauth_document_rate_limit_window_seconds",
)


async def count_request(ctx: RequestContext) -> None:
    """Count a request by client address and by token."""
    limiter, settings = ctx.app.rate_limiter, ctx.app.settings
    limit = _limit(TRANSPORT, settings)
    await limiter.count(limit, _address(settings, ctx.http))
    if token := bearer_token(ctx.http.headers):
        await limiter.count(limit, f"token:{_hash(token)}")


async def count_search(ctx: RequestContext) -> None:
    """Count a search by user."""
    await ctx.app.rate_limiter.count(_limit(SEARCH, ctx.app.settings), f"user:{ctx.actor.id}")


async def count_unauthenticated_download(app: AppContext, http: HttpExchange, document_id: int) -> None:
    """Count a download before its credential is read: by client address, then by address and document."""
    address = _address(app.settings, http)
    await app.rate_limiter.count(_limit(DOWNLOAD_BY_ADDRESS, app.settings), address)
    by_document = _limit(DOWNLOAD_BY_ADDRESS_AND_DOCUMENT, app.settings)
    await app.rate_limiter.count(by_document, f"{address}:document:{document_id}")


async def count_download(ctx: RequestContext, document_id: int) -> None:
    """Count a download with a valid credential by user and document."""
    limit = _limit(DOWNLOAD, ctx.app.settings)
    await ctx.app.rate_limiter.count(limit, f"user:{ctx.actor.id}:document:{document_id}")


def _limit(row: LimitRow, settings: Settings) -> RateLimit:
    requests = getattr(settings, row.requests) if getattr(settings, row.enabled) else 0
    return RateLimit(f"{PREFIX}:{row.namespace}", requests, getattr(settings, row.seconds), "aligned")


def _address(settings: Settings, http: HttpExchange) -> str:
    return f"ip:{_hash(client_address.client_address(http.scope, settings.trusted_proxies))}"


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:32]
