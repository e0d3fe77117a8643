"""The Host and Origin headers that the server accepts: loopback and the names in the settings.

A web page can make a browser send requests to this server under another host name (DNS rebinding). They are refused
before any other check.
"""

from collections.abc import Mapping
from urllib.parse import urlsplit

from almanac.core.errors import AlmanacError
from almanac.core.settings import LOOPBACK, Settings

MAX_CACHED_HOSTS = 100


class InvalidHost(AlmanacError):
    """Invalid Host header."""

    code = "invalid_host"
    status = 421
    remedy = "An operator can accept it with ALMANAC_ALLOWED_HOSTS or ALMANAC_PUBLIC_URL."


class InvalidOrigin(AlmanacError):
    """Invalid Origin header."""

    code = "invalid_origin"
    status = 403
    remedy = "An operator can accept it with ALMANAC_ALLOWED_ORIGINS."


class AllowedHosts:
    """The accepted values of Host and Origin."""

    def __init__(self, settings: Settings) -> None:
        public = urlsplit(settings.public_url)
        named = [*settings.allowed_hosts, settings.host, *([public.netloc] if public.netloc else [])]
        hosts = [_bracketed(name) for name in [*LOOPBACK, *named]]
        # A name without a port allows any port, because the port does not identify the caller.
        self.hosts = [form for host in hosts for form in _with_ports(host)]
        schemes = [f"{scheme}://{host}" for host in hosts for scheme in ("http", "https")]
        self.origins = [form for origin in [*schemes, *settings.allowed_origins] for form in _with_ports(origin)]
        self.is_checked = settings.check_hosts
        self._hosts, self._origins = frozenset(self.hosts), frozenset(self.origins)
        self._known: set[bytes] = set()

    def check(self, headers: Mapping[bytes, bytes]) -> None:
        """Refuse a request for another host or from another origin."""
        if not self.is_checked:
            return
        host = headers.get(b"host", b"")
        if host not in self._known:
            if not _matches(host.decode("latin-1").lower(), self._hosts):
                raise InvalidHost()
            if len(self._known) < MAX_CACHED_HOSTS:
                self._known.add(host)
        origin = headers.get(b"origin")
        if origin is not None and not self.accepts_origin(origin):
            raise InvalidOrigin()

    def accepts_origin(self, origin: bytes) -> bool:
        """Whether pages of an origin may send requests, and read the answers."""
        return _matches(origin.decode("latin-1").lower(), self._origins)


def _bracketed(name: str) -> str:
    is_bare_ipv6 = name.count(":") > 1 and not name.startswith("[")
    return f"[{name}]" if is_bare_ipv6 else name.lower()


def _with_ports(name: str) -> tuple[str, ...]:
    last = name.rpartition(":")[2]
    has_port = last == "*" or _is_port(last)
    return (name,) if has_port else (name, f"{name}:*")


def _matches(value: str, allowed: frozenset[str]) -> bool:
    if value in allowed:
        return True
    name, _, port = value.rpartition(":")
    return _is_port(port) and f"{name}:*" in allowed


def _is_port(text: str) -> bool:
    return text.isascii() and text.isdigit()  # isdigit() alone accepts "²"
