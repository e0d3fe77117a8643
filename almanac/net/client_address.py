"""The peer: whose request it is, by the address it comes from.

That is whoever holds the other end of the connection. Where an operator names the networks of reverse proxies, and the
connection comes from one, it is the last address in `X-Forwarded-For` that is no proxy's: what stands before it was
written by a stranger.
"""

from collections.abc import Sequence
from functools import lru_cache
from ipaddress import ip_network

from starlette.types import Scope

from almanac.core.settings import InvalidSetting
from almanac.net.url import Network, plain, read_address

UNKNOWN = "unknown"  # of a connection that has no address, such as a Unix socket


def client_address(scope: Scope, trusted: Sequence[str]) -> str:
    """The address of whoever sent a request."""
    client = scope.get("client")
    nearest = client[0] if client else UNKNOWN
    if not trusted:
        return nearest
    networks = read_networks(tuple(trusted))
    for hop in [nearest, *reversed(_hops(scope))]:
        nearest = hop
        if not _is_among(hop, networks):
            break
    return nearest


@lru_cache(maxsize=16)
def read_networks(trusted: tuple[str, ...]) -> tuple[Network, ...]:
    """The networks of the proxies that are believed."""
    try:
        return tuple(ip_network(each) for each in trusted)
    except ValueError as error:
        raise InvalidSetting(f"trusted_proxies: {error}.") from None


def _hops(scope: Scope) -> list[str]:
    """The addresses in `X-Forwarded-For`, the caller's own first, up to one that is none."""
    lines = [value.decode("latin-1") for name, value in scope["headers"] if name == b"x-forwarded-for"]
    found: list[str] = []
    for each in reversed(",".join(lines).split(",")):
        if read_address(each.strip()) is None:
            break
        found.insert(0, each.strip())
    return found


def _is_among(host: str, networks: Sequence[Network]) -> bool:
    read = read_address(host)
    return read is not None and any(plain(read) in network for network in networks)
