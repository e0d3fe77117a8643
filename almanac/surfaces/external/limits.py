"""How often external callers may do what, as the document of this surface says it.

Each limit has a namespace and counts by a dimension; in Redis the key is
`external_kb_mcp:rate:{namespace}:{dimension}:{window}`. Addresses and tokens stand in it as hashes.
"""

import hashlib

from almanac.core.call import Actor
from almanac.core.settings import Settings
from almanac.net import peer
from almanac.net.exchange import Exchange
from almanac.quotas.rates import Rates, Rule
from almanac.surfaces.surface import Desk, bearer

PREFIX = "external_kb_mcp:rate"


async def count_request(desk: Desk, exchange: Exchange, _: Actor) -> None:
    """Count a request at the transport, by client address and by token."""
    settings, rates = desk.house.settings, desk.house.rates
    rule = _rule(
        "transport",
        settings.external_rate_limit_enabled,
        settings.external_rate_limit_requests,
        settings.external_rate_limit_window_seconds,
    )
    await rates.hit(rule, _address(settings, exchange))
    if token := bearer(exchange.headers):
        await rates.hit(rule, f"token:{_hashed(token)}")


async def count_search(rates: Rates, settings: Settings, user_id: int) -> None:
    """Count a search, by user."""
    rule = _rule(
        "search",
        settings.external_search_rate_limit_enabled,
        settings.external_search_rate_limit_requests,
        settings.external_search_rate_limit_window_seconds,
    )
    await rates.hit(rule, f"user:{user_id}")


async def count_stranger(rates: Rates, settings: Settings, exchange: Exchange, document_id: int) -> None:
    """Count a download before its credential is looked at, by client address, then by that and document."""
    address = _address(settings, exchange)
    rule = _rule(
        "download_preauth_ip",
        settings.external_download_rate_limit_enabled,
        settings.external_download_preauth_ip_rate_limit_requests,
        settings.external_download_preauth_ip_rate_limit_window_seconds,
    )
    await rates.hit(rule, address)
    rule = _rule(
        "download_preauth_document",
        settings.external_download_rate_limit_enabled,
        settings.external_download_preauth_document_rate_limit_requests,
        settings.external_download_preauth_document_rate_limit_window_seconds,
    )
    await rates.hit(rule, f"{address}:document:{document_id}")


async def count_download(rates: Rates, settings: Settings, user_id: int, document_id: int) -> None:
    """Count a download whose credential is good, by user and document."""
    rule = _rule(
        "download",
        settings.external_download_rate_limit_enabled,
        settings.external_download_rate_limit_requests,
        settings.external_download_rate_limit_window_seconds,
    )
    await rates.hit(rule, f"user:{user_id}:document:{document_id}")


def _rule(namespace: str, enabled: bool, requests: int, seconds: int) -> Rule:
    return Rule(f"{PREFIX}:{namespace}", requests if enabled else 0, seconds, "aligned")


def _address(settings: Settings, exchange: Exchange) -> str:
    return f"ip:{_hashed(peer.address(exchange.scope, settings.trusted_proxies))}"


def _hashed(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:32]
