"""The peers of connections. `tests/hostile/test_connections.py` tests their limits over real connections."""

import pytest

from almanac.core.settings_loader import load
from almanac.net.connection_table import ConnectionTable


class WaitingConnection:
    """A connection that waits for a request."""

    waiting_since = 0.0

    def check_time(self, now: float) -> None:
        """There is no time limit."""

    def end_waiting(self) -> None:
        """Nothing is open."""


@pytest.mark.parametrize(
    ("host", "peer"),
    [
        ("192.0.2.1", "192.0.2.1"),
        ("::ffff:192.0.2.1", "192.0.2.1"),
        ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::/64"),
        ("2001:db8:1:2::1", "2001:db8:1:2::/64"),
        ("", ""),
    ],
)
async def test_a_peer_is_an_address_or_a_network_of_ipv6(host: str, peer: str):
    table = ConnectionTable(load({}).settings)
    assert table.admit(WaitingConnection(), host) == peer
