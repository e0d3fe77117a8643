"""The memory that buffered request bodies take in a server process, bounded in all and for each organisation.

Without it, the bound would be the largest body times the number of connections.
"""

from collections import Counter

from almanac.core.errors import Limited, Unavailable


class OrgBodiesFull(Limited):
    """The requests of your organisation that are being served have too large bodies together."""

    code = "too_many_bodies"
    remedy = "Wait for answers before sending more, or send smaller requests. A file can be uploaded as a form."


class BodiesFull(Unavailable):
    """The requests that this server is serving have too large bodies together."""

    code = "bodies_full"
    remedy = "Try again in a few seconds."


class BodyMemory:
    """Counts the bytes of the bodies that are held, by organisation; "" is the one of callers without a credential."""

    def __init__(self, max_bytes: int, max_body_bytes: int) -> None:
        self._max_bytes = max(max_bytes, 2 * max_body_bytes)
        self._max_org_bytes = max(self._max_bytes // 2, max_body_bytes)  # one organisation never takes all
        self._held: Counter[str] = Counter()
        self._total = 0

    @property
    def held(self) -> int:
        """The bytes of all bodies that are held."""
        return self._total

    def take(self, org_id: str, size: int) -> None:
        """Count further bytes of a body, or refuse them."""
        if self._held[org_id] + size > self._max_org_bytes:
            raise OrgBodiesFull()
        if self._total + size > self._max_bytes:
            raise BodiesFull()
        self._held[org_id] += size
        self._total += size

    def give_back(self, org_id: str, size: int) -> None:
        """Stop counting these bytes, at the end of the request."""
        self._held[org_id] -= size
        self._total -= size
        if self._held[org_id] <= 0:
            del self._held[org_id]
