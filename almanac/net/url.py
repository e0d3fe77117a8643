"""Strict parsing of URLs, and the check whether an address may be fetched from.

Parsing is stricter than in browsers: a URL that two parsers could read differently is refused, and a parsed URL is
written again from its parts. Access depends on the addresses of a host, never on its name alone.
"""

import re
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network

import httpx2

from almanac.net.errors import BadUrl, Blocked

Address = IPv4Address | IPv6Address
Network = IPv4Network | IPv6Network

# Networks outside the public internet, from IANA's registries of special-purpose addresses. `ipaddress.is_global` is
# not used, because its results differ between Python versions.
NOT_PUBLIC = tuple(
    ip_network(each)
    for each in (
        "0.0.0.0/8",  # this network; Linux treats 0.0.0.0 as loopback
        "10.0.0.0/8",
        "100.64.0.0/10",  # carrier-grade NAT
        "127.0.0.0/8",
        "168.63.129.16/32",  # in the public range, but in Azure it is a service of the host
        "169.254.0.0/16",  # link-local, including the metadata services of most clouds
        "172.16.0.0/12",
        "192.0.0.0/24",  # IETF protocols; Oracle's metadata
        "192.0.2.0/24",  # documentation, as the other two below
        "192.88.99.0/24",  # relays to 6to4
        "192.168.0.0/16",
        "198.18.0.0/15",  # benchmarks
        "198.51.100.0/24",
        "203.0.113.0/24",
        "224.0.0.0/4",  # multicast
        "240.0.0.0/4",  # reserved, and broadcast
        "2001::/23",  # IETF protocols: Teredo, benchmarks, ORCHID
        "2001:db8::/32",  # documentation
        "2002::/16",  # 6to4: contains an IPv4 address, which relays forward to
        "3ffe::/16",  # the 6bone, returned
        "3fff::/20",  # documentation
    )
)
PUBLIC_IPV6 = IPv6Network("2000::/3")  # the only part of IPv6 that is assigned to the public internet
NAT64 = IPv6Network("64:ff9b::/96")  # the form of IPv4 addresses in a network with IPv6 only
ISATAP = (0x00005EFE, 0x02005EFE)  # third quarter of an address that tunnels to the IPv4 address in the fourth

# The networks that an allowed name may resolve to. Other internal addresses need a network in the rules.
INSIDE = tuple(
    ip_network(each)
    for each in ("10.0.0.0/8", "100.64.0.0/10", "127.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "::1/128", "fc00::/7")
)
# Metadata services of clouds within these networks; they return credentials.
METADATA = {ip_address("100.100.100.200"), ip_address("fd00:ec2::254")}

# Below 1024 only the two ports of the web are allowed. The ports below belong to services with other protocols, which
# could read a request as commands. Services with HTTP are covered by the check of addresses.
WEB_PORTS = {"http": 80, "https": 443}
OTHER_PORTS = {
    "databases": (1433, 1434, 1521, 3306, 5432, 6432, 9042, 27017, 27018, 27019, 33060),
    "caches": (6379, 6380, 11211, 26379),
    "queues": (1883, 5671, 5672, 8883, 9092, 61613, 61616),
    "clusters": (2181, 4369, 9300),
    "files, printers, backup": (2049, 4045, 6566, 9100, 10080),
    "screens": (3389, *range(5900, 5904), *range(6000, 6064)),
    "calls and chat": (1719, 1720, 5060, 5061, 5222, 5269, *range(6665, 6670), 6679, 6697),
    "tunnels, mail": (1080, 1723, 3659, 4190),
}

MAX_URL_CHARS = 8192
MAX_HOST_CHARS = 253

_SHAPE = re.compile(
    r"(?P<scheme>https?)://(?P<host>\[[0-9a-f:.]+\]|[^\x00-\x20\x7f\\/?#@:\[\]%]+)(?::(?P<port>[0-9]{1,5}))?"
    r"(?P<target>[/?][^\x00-\x1f\x7f#]*)?(?:#[^\x00-\x1f\x7f]*)?",
    re.IGNORECASE | re.ASCII,
)
_NAME = re.compile(r"(?!-)[a-z0-9_-]{1,63}(?<!-)(?:\.(?!-)[a-z0-9_-]{1,63}(?<!-))*")
_NUMBER = re.compile(r"0x[0-9a-f]*|[0-9]+")


@dataclass(frozen=True)
class ParsedUrl:
    """The parts of a URL. The host is an ASCII name or an address in canonical form."""

    scheme: str
    host: str
    port: int
    target: str

    @property
    def origin(self) -> tuple[str, str, int]:
        """Scheme, host and port: credentials are valid for one origin."""
        return self.scheme, self.host, self.port

    @property
    def authority(self) -> str:
        """Host and port, as in the Host header."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == WEB_PORTS[self.scheme] else f"{host}:{self.port}"

    @property
    def url(self) -> str:
        """The whole URL without a fragment."""
        return f"{self.scheme}://{self.authority}{self.target}"


@dataclass(frozen=True)
class AllowList:
    """The internal networks and names that an operator allows."""

    networks: tuple[Network, ...] = ()
    names: frozenset[str] = frozenset()

    def admits(self, host: str, address: Address) -> bool:
        """Whether a host may be reached at one of its addresses."""
        target = _without_nat64(address)
        if is_public(target) or any(target in network for network in self.networks):
            return True
        return host in self.names and target not in METADATA and any(target in network for network in INSIDE)


def is_public(address: Address) -> bool:
    """Whether an address belongs to the public internet."""
    if isinstance(address, IPv6Address) and (address not in PUBLIC_IPV6 or int(address) >> 32 & 0xFFFFFFFF in ISATAP):
        return False
    return not any(address in network for network in NOT_PUBLIC)


def read_url(url: str) -> ParsedUrl:
    """The parts of a URL. BadUrl if it is not valid."""
    shape = _SHAPE.fullmatch(url) if len(url) <= MAX_URL_CHARS else None
    if shape is None:
        raise BadUrl
    scheme = shape["scheme"].lower()
    port = int(shape["port"] or WEB_PORTS[scheme])
    if not 0 < port < 65536:
        raise BadUrl("The port of this address is out of range.")
    target = shape["target"] or "/"
    try:
        quoted = httpx2.URL(f"http://host{target}").raw_path.decode("ascii")
        return ParsedUrl(scheme, _read_host(shape["host"]), port, quoted)
    except (ValueError, httpx2.InvalidURL):
        raise BadUrl from None


def _read_host(written: str) -> str:
    """The canonical form of a host name or address. ValueError if it is not valid."""
    if written.startswith("["):
        return str(without_mapping(IPv6Address(written[1:-1])))
    name = unicodedata.normalize("NFKC", written).lower()
    if not name.isascii() and len(name) <= MAX_HOST_CHARS:  # longer ones take long to encode
        name = httpx2.URL(scheme="http", host=name).raw_host.decode("ascii")
    name = name.removesuffix(".")
    if len(name) > MAX_HOST_CHARS or not _NAME.fullmatch(name):
        raise ValueError
    return str(_read_ipv4(name)) if _NUMBER.fullmatch(name.rpartition(".")[2]) else name


def _read_ipv4(name: str) -> IPv4Address:
    """The address as browsers and C libraries parse it: `2130706433`, `0x7f.1` and `0177.0.0.1` are all 127.0.0.1."""
    parts = name.split(".")
    if len(parts) > 4 or not all(_NUMBER.fullmatch(part) for part in parts):
        raise ValueError
    *leading, last = (_read_number(part) for part in parts)
    if any(number > 255 for number in leading) or last >= 256 ** (4 - len(leading)):
        raise ValueError
    return IPv4Address(last + sum(number << 24 - 8 * place for place, number in enumerate(leading)))


def _read_number(part: str) -> int:
    if part.startswith("0x"):
        return int(part[2:] or "0", 16)
    return int(part, 8 if part.startswith("0") else 10)


def read_allowed(entries: Sequence[str]) -> AllowList:
    """The allow list from networks ("10.1.0.0/16"), addresses and host names. ValueError contains an invalid entry."""
    networks: list[Network] = []
    names: list[str] = []
    for entry in entries:
        try:
            if "/" in entry or read_address(entry):
                networks.append(ip_network(entry))
            else:
                names.append(_read_host(entry))
        except (ValueError, httpx2.InvalidURL):
            raise ValueError(f"not a network, an address or a host name: {entry!r}") from None
    return AllowList(tuple(networks), frozenset(names))


def read_address(host: str) -> Address | None:
    """The address in a host; None for a name."""
    try:
        return ip_address(host)
    except ValueError:
        return None


def without_mapping(address: Address) -> Address:
    """The IPv4 address of an IPv4-mapped IPv6 address; other addresses unchanged."""
    return (address.ipv4_mapped if isinstance(address, IPv6Address) else None) or address


def _without_nat64(address: Address) -> Address:
    """The IPv4 address of a NAT64 address; other addresses unchanged."""
    return IPv4Address(int(address) & 0xFFFFFFFF) if address in NAT64 else address


def check_port(place: ParsedUrl) -> None:
    """Refuse ports of services other than web servers."""
    other = any(place.port in ports for ports in OTHER_PORTS.values())
    if other or (place.port < 1024 and place.port not in WEB_PORTS.values()):
        raise Blocked("This port is not one of the web.", remedy="Use 80, 443, or a port from 1024 that serves HTTP.")
