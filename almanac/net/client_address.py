"""The address of the client that sent a request.

It is the address of the connection. If the connection comes from a reverse proxy in a network that the operator has
named, it is the last address in `X-Forwarded-For` that is not a proxy. Earlier addresses come from the client itself
and are not trusted.
"""

from collections.abc import Sequence
from functools import lru_cache
from ipaddress import ip_network

from starlette.types import Scope

from almanac.core.settings import InvalidSetting
from almanac.net.url import Network, read_address, without_mapping

UNKNOWN = "unknown"  # for a connection without an address, such as a Unix socket


def client_address(scope: Scope, trusted: Sequence[str]) -> str:
    """The address of the client of a request."""
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
    """The networks of trusted proxies."""
    try:
        return tuple(ip_network(each) for each in trusted)
    except ValueError as error:
        raise InvalidSetting(f"trusted_proxies: {error}.") from None


def _hops(scope: Scope) -> list[str]:
    """The valid addresses at the end of `X-Forwarded-For`, in their order."""
    lines = [value.decode("latin-1") for name, value in scope["headers"] if name == b"x-forwarded-for"]
    found: list[str] = []
    for each in reversed(",".join(lines).split(",")):
        if read_address(each.strip()) is None:
            break
        found.insert(0, each.strip())
    return found


def _is_among(host: str, networks: Sequence[Network]) -> bool:
    read = read_address(host)
    return read is not None and any(without_mapping(read) in network for network in networks)
