"""How often external callers may do what, as the document of this surface says it.

Each limit has a namespace and counts by a dimension; in Redis the key is
`external_kb_mcp:rate:{namespace}:{dimension}:{window}`. Addresses and tokens stand in it as hashes.
"""

import hashlib

from almanac.core.call import Actor
from almanac.core.settings import Settings
from almanac.net import client_address
from almanac.net.http_exchange import HttpExchange
from almanac.quotas.rate_limits import RateLimit, RateLimiter
from almanac.surfaces.surface import ToolDispatcher, bearer

PREFIX = "external_kb_mcp:rate"


async def count_request(desk: ToolDispatcher, exchange: HttpExchange, _: Actor) -> None:
    """Count a request at the transport, by client address and by token."""
    settings, rates = desk.house.settings, desk.house.rates
    rule = _rule(settings, "transport", "rate_limit")
    await rates.count(rule, _address(settings, exchange))
    if token := bearer(exchange.headers):
        await rates.count(rule, f"token:{_hashed(token)}")


async def count_search(rates: RateLimiter, settings: Settings, user_id: int) -> None:
    """Count a search, by user."""
    await rates.count(_rule(settings, "search", "search_rate_limit"), f"user:{user_id}")


async def count_unauthenticated_download(
    rates: RateLimiter, settings: Settings, exchange: HttpExchange, document_id: int
) -> None:
    """Count a download before its credential is looked at, by client address, then by that and document."""
    address, switch = _address(settings, exchange), "download_rate_limit"
    by_address = _rule(settings, "download_preauth_ip", "download_preauth_ip_rate_limit", switch)
    by_document = _rule(settings, "download_preauth_document", "download_preauth_document_rate_limit", switch)
    await rates.count(by_address, address)
    await rates.count(by_document, f"{address}:document:{document_id}")


async def count_download(rates: RateLimiter, settings: Settings, user_id: int, document_id: int) -> None:
    """Count a download whose credential is good, by user and document."""
    await rates.count(_rule(settings, "download", "download_rate_limit"), f"user:{user_id}:document:{document_id}")


def _rule(settings: Settings, namespace: str, name: str, switch: str = "") -> RateLimit:
    """The limit whose settings have this name; what turns it on may have another."""
    enabled = getattr(settings, f"external_{switch or name}_enabled")
    requests = getattr(settings, f"external_{name}_requests") if enabled else 0
    return RateLimit(f"{PREFIX}:{namespace}", requests, getattr(settings, f"external_{name}_window_seconds"), "aligned")


def _address(settings: Settings, exchange: HttpExchange) -> str:
    return f"ip:{_hashed(client_address.client_address(exchange.scope, settings.trusted_proxies))}"


def _hashed(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:32]
