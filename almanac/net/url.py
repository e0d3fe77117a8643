"""A place on the network: where a URL points, and whether we may go there.

A URL is read more strictly than browsers do: what two readers could read differently is refused, and whatever is read
is written anew from its parts. Whether we may go there is decided by its addresses, never by its name alone.
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

# What is not the public internet, after IANA's registries of special-purpose addresses. `ipaddress.is_global` is not
# asked, for its answers differ between the Pythons we run on.
NOT_PUBLIC = tuple(
    ip_network(each)
    for each in (
        "0.0.0.0/8",  # this network; Linux takes 0.0.0.0 for loopback
        "10.0.0.0/8",
        "100.64.0.0/10",  # carrier-grade NAT
        "127.0.0.0/8",
        "168.63.129.16/32",  # public by its number, but inside Azure the host's own services
        "169.254.0.0/16",  # link-local, and with it the metadata of most clouds
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
        "2002::/16",  # 6to4: an IPv4 address inside, reached by whoever relays
        "3ffe::/16",  # the 6bone, given back
        "3fff::/20",  # documentation
    )
)
PUBLIC_IPV6 = IPv6Network("2000::/3")  # the only part of IPv6 ever given out: all else is special
NAT64 = IPv6Network("64:ff9b::/96")  # how an IPv6-only network writes the IPv4 internet
ISATAP = (0x00005EFE, 0x02005EFE)  # third quarter of an address that tunnels to the IPv4 address in the fourth

# What an allowed name may stand for. Anything else that is not public takes a network in the rules.
INSIDE = tuple(
    ip_network(each)
    for each in ("10.0.0.0/8", "100.64.0.0/10", "127.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "::1/128", "fc00::/7")
)
METADATA = {ip_address("100.100.100.200"), ip_address("fd00:ec2::254")}  # of clouds, among the above: credentials

# Below 1024 only the two ports of the web. Above, services that do not speak HTTP, where a request would be read as
# commands. What does speak HTTP is left to the check of addresses.
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

LONGEST_URL = 8192
LONGEST_HOST = 253

_SHAPE = re.compile(
    r"(?P<scheme>https?)://(?P<host>\[[0-9a-f:.]+\]|[^\x00-\x20\x7f\\/?#@:\[\]%]+)(?::(?P<port>[0-9]{1,5}))?"
    r"(?P<target>[/?][^\x00-\x1f\x7f#]*)?(?:#[^\x00-\x1f\x7f]*)?",
    re.IGNORECASE | re.ASCII,
)
_NAME = re.compile(r"(?!-)[a-z0-9_-]{1,63}(?<!-)(?:\.(?!-)[a-z0-9_-]{1,63}(?<!-))*")
_NUMBER = re.compile(r"0x[0-9a-f]*|[0-9]+")


@dataclass(frozen=True)
class ParsedUrl:
    """Where a URL points: its host is an ASCII name, or an address in its usual form."""

    scheme: str
    host: str
    port: int
    target: str

    @property
    def origin(self) -> tuple[str, str, int]:
        """What credentials belong to."""
        return self.scheme, self.host, self.port

    @property
    def authority(self) -> str:
        """Host and port as the other side expects to see them."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == WEB_PORTS[self.scheme] else f"{host}:{self.port}"

    @property
    def url(self) -> str:
        """The whole of it, without a fragment."""
        return f"{self.scheme}://{self.authority}{self.target}"


@dataclass(frozen=True)
class AllowList:
    """What an operator allows beyond the public internet."""

    networks: tuple[Network, ...] = ()
    names: frozenset[str] = frozenset()

    def admits(self, host: str, address: Address) -> bool:
        """Whether a host may be reached at one of its addresses."""
        meant = _carried(address)
        if is_public(meant) or any(meant in network for network in self.networks):
            return True
        return host in self.names and meant not in METADATA and any(meant in network for network in INSIDE)


def is_public(address: Address) -> bool:
    """Whether an address is one of the public internet."""
    if isinstance(address, IPv6Address) and (address not in PUBLIC_IPV6 or int(address) >> 32 & 0xFFFFFFFF in ISATAP):
        return False
    return not any(address in network for network in NOT_PUBLIC)


def read_url(url: str) -> ParsedUrl:
    """Where a URL points, or BadUrl."""
    shape = _SHAPE.fullmatch(url) if len(url) <= LONGEST_URL else None
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
    """A host in the form it is resolved, compared and shown in. ValueError if it cannot be one."""
    if written.startswith("["):
        return str(plain(IPv6Address(written[1:-1])))
    name = unicodedata.normalize("NFKC", written).lower()
    if not name.isascii() and len(name) <= LONGEST_HOST:  # longer ones take long to encode
        name = httpx2.URL(scheme="http", host=name).raw_host.decode("ascii")
    name = name.removesuffix(".")
    if len(name) > LONGEST_HOST or not _NAME.fullmatch(name):
        raise ValueError
    return str(_read_ipv4(name)) if _NUMBER.fullmatch(name.rpartition(".")[2]) else name


def _read_ipv4(name: str) -> IPv4Address:
    """An address as browsers and C libraries read it: `2130706433`, `0x7f.1` and `0177.0.0.1` are all 127.0.0.1."""
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
    """Networks ("10.1.0.0/16"), addresses and host names, as an operator writes them. ValueError names a bad one."""
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
    """The address that a host is; None if it is a name."""
    try:
        return ip_address(host)
    except ValueError:
        return None


def plain(address: Address) -> Address:
    """An IPv4 address in IPv6 clothes without them."""
    return (address.ipv4_mapped if isinstance(address, IPv6Address) else None) or address


def _carried(address: Address) -> Address:
    """The address that is meant: behind NAT64, the IPv4 one."""
    return IPv4Address(int(address) & 0xFFFFFFFF) if address in NAT64 else address


def check_port(place: ParsedUrl) -> None:
    """Refuse ports where something else than the web is spoken."""
    other = any(place.port in ports for ports in OTHER_PORTS.values())
    if other or (place.port < 1024 and place.port not in WEB_PORTS.values()):
        raise Blocked("This port is not one of the web.", remedy="Use 80, 443, or a port from 1024 that serves HTTP.")
