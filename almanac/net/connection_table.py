"""The open connections of a server process, by peer: their number is limited, and their time limits are checked."""

import asyncio
import resource
import time
from collections.abc import Collection
from ipaddress import IPv6Address, ip_network
from typing import Protocol

import structlog

from almanac.core.settings import Settings
from almanac.net.client_address import read_networks
from almanac.net.url import read_address, without_mapping

_log = structlog.get_logger("almanac.connections")

# Files that a process needs besides its connections: databases, index segments, uploads, pipes.
RESERVED_FILES = 256

# One caller has at least this many IPv6 addresses.
_IPV6_PEER_PREFIX_BITS = 64

# Time limits are checked this often, or four times within the shortest of them.
_LONGEST_CHECK_SECONDS = 1.0


class Connection(Protocol):
    """A connection that the table limits."""

    @property
    def waiting_since(self) -> float | None:
        """The time since when the connection waits for a request; None while it has one in progress."""
        ...

    def check_time(self, now: float) -> None:
        """Close the connection if one of its time limits is over."""
        ...

    def end_waiting(self) -> None:
        """Close the connection, which has no request in progress."""
        ...


class ConnectionTable:
    """The open connections of a server process.

    A connection beyond a limit replaces the one that has waited longest for a request, of the same peer if the peer is
    at its limit, otherwise of the peer with most connections. It is refused if all of them have requests in progress.
    """

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._trusted = read_networks(settings.trusted_proxies)
        self._peers: dict[str, dict[Connection, None]] = {}  # in the order of their arrival
        self._count = 0
        self._most = 0
        self._check_seconds = min(
            _LONGEST_CHECK_SECONDS,
            min(
                settings.header_timeout_seconds,
                settings.body_timeout_seconds,
                settings.write_timeout_seconds,
                settings.idle_timeout_seconds,
            ) / 4,
        )  # fmt: skip
        self._is_checking = False

    def admit(self, connection: Connection, host: str) -> str | None:
        """Add a connection from this address. Return its peer, or None if there is no room for it."""
        peer, is_limited = self._peer_of(host)
        members = self._peers.get(peer, {})
        self._most = self._most or self._find_most()
        if is_limited and len(members) >= self._settings.max_connections_per_peer and not self._evict(peer, members):
            return None
        if self._count >= self._most and not self._evict(*max(self._peers.items(), key=lambda item: len(item[1]))):
            return None
        self._peers.setdefault(peer, {})[connection] = None
        self._count += 1
        if not self._is_checking:
            self._is_checking = True
            self._schedule()
        return peer

    def remove(self, connection: Connection, peer: str) -> None:
        """Remove a connection that is closed."""
        members = self._peers.get(peer, {})
        if connection in members:
            del members[connection]
            self._count -= 1
            if not members:
                del self._peers[peer]

    def _evict(self, peer: str, members: Collection[Connection]) -> bool:
        waiting = [(since, each) for each in members if (since := each.waiting_since) is not None]
        if not waiting:
            return False
        _, oldest = min(waiting, key=lambda pair: pair[0])
        self.remove(oldest, peer)
        oldest.end_waiting()
        return True

    def _peer_of(self, host: str) -> tuple[str, bool]:
        address = read_address(host)
        if address is None:  # a Unix socket
            return host, False
        address = without_mapping(address)
        is_limited = not any(address in network for network in self._trusted)
        if isinstance(address, IPv6Address):
            return str(ip_network((address, _IPV6_PEER_PREFIX_BITS), strict=False)), is_limited
        return str(address), is_limited

    def _find_most(self) -> int:
        files = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        if files == resource.RLIM_INFINITY or files - RESERVED_FILES >= self._settings.max_connections:
            return self._settings.max_connections
        most = max(1, files - RESERVED_FILES)
        _log.warning("fewer_connections", most=most, wanted=self._settings.max_connections, open_files=files)
        return most

    def _schedule(self) -> None:
        asyncio.get_running_loop().call_later(self._check_seconds, self._check_all)

    def _check_all(self) -> None:
        now = time.monotonic()
        for members in list(self._peers.values()):
            for connection in list(members):
                connection.check_time(now)
        if self._peers:
            self._schedule()
        else:
            self._is_checking = False


def raise_open_files_limit(connections: int) -> None:
    """Let this process and its children open enough files for so many connections, if the system permits it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = connections + RESERVED_FILES
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return
    resource.setrlimit(resource.RLIMIT_NOFILE, (wanted if hard == resource.RLIM_INFINITY else min(wanted, hard), hard))
