"""Fetches from URLs that callers give, without access to internal hosts (SSRF).

A URL is parsed strictly and its host name resolved once. All addresses of the name are checked, and the connection is
made to a checked address, so a later change of the name has no effect. Each redirect is treated as a new URL. Each hop
has a connection of its own, without cookies, proxies and stored credentials. The size of a response is limited before
and after decompression, and the whole fetch has a deadline.
"""

import asyncio
import re
import socket
import ssl
import unicodedata
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass, replace
from ipaddress import ip_address
from itertools import chain, zip_longest
from typing import Self
from urllib.parse import unquote, urljoin

import httpx2

from almanac.core.errors import BadRequest
from almanac.net.errors import BadUrl, Blocked, FetchError, FetchFailed, FetchTimeout, FetchTooLarge
from almanac.net.gunzip import CHUNK_BYTES, Gunzip
from almanac.net.url import Address, ParsedUrl, check_port, read_address, read_allowed, read_url, without_mapping

Resolve = Callable[[str, int], Awaitable[Sequence[str]]]  # from a name and a port to addresses
Sink = Callable[[bytes], Awaitable[None]]

MAX_FILE_NAME_BYTES = 200  # well below the limit of any file system
MAX_HEADER_CHARS = 2000  # of a header with the file name
MAX_ADDRESSES = 4  # tried for one name
WITHOUT_CERTIFICATES = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)  # for plain http: loads none
DEFAULT_RESPONSE_BYTES = 1_000_000  # held in memory by `send`

_HEADER = re.compile(r"[\w!#$%&'*+.^`|~-]+", re.ASCII)
_VALUE = re.compile(r"(?:[\x21-\x7e](?:[\x20-\x7e\t]*[\x21-\x7e])?)?")
_PARAMETER = re.compile(r';\s*([\w!#$&+^`|~*.-]+)\s*=\s*(?:"((?:[^"\\]|\\.)*)"|([^;\s]*))', re.ASCII)
_TOKEN = re.compile(r"[\w!#$&^.+:-]{1,100}", re.ASCII)

_METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})
_REDIRECTS = frozenset({301, 302, 303, 307, 308})
RETRYABLE_STATUSES = frozenset({408, 425, 429, 500, 502, 503, 504})
_RESERVED_HEADERS = frozenset(
    {"host", "connection", "content-length", "transfer-encoding", "accept-encoding", "expect", "te", "trailer",
     "upgrade", "keep-alive", "proxy-authorization", "proxy-connection"}
)  # fmt: skip
_PUBLIC_HEADERS = frozenset({"accept", "accept-language", "user-agent"})  # also sent to another origin


@dataclass(frozen=True)
class FetchRules:
    """The allowed internal hosts, and the limits of size, time and redirects."""

    allow: tuple[str, ...] = ()  # internal networks ("10.1.0.0/16"), addresses and names ("wiki.internal")
    max_bytes: int = 100_000_000
    connect_seconds: float = 5
    total_seconds: float = 60
    max_redirects: int = 5


@dataclass(frozen=True)
class FetchedFile:
    """The description of a download. The bytes went to the sink."""

    status: int
    media_type: str  # as the server states it: not to be trusted
    filename: str  # without folders, control characters or leading dots; never empty
    size: int


@dataclass(frozen=True)
class FetchResponse:
    """The response to a request, with any status."""

    status: int
    headers: Mapping[str, str]  # by lower-case name
    body: bytes


@dataclass(frozen=True)
class FetchRequest:
    """The request that is sent to each hop."""

    method: str
    headers: Mapping[str, str]
    content: bytes = b""

    @property
    def follows(self) -> bool:
        """Whether redirects may be followed. Content is sent only to the address that the caller gave."""
        return self.method in ("GET", "HEAD") and not self.content

    def for_other_origin(self) -> "FetchRequest":
        """The request without the headers that only the first origin may receive."""
        return replace(self, headers={name: text for name, text in self.headers.items() if name in _PUBLIC_HEADERS})


class Fetcher:
    """Fetches from the public internet, and from the internal hosts that the rules allow."""

    def __init__(self, rules: FetchRules, *, resolve: Resolve | None = None, tls: ssl.SSLContext | None = None) -> None:
        self._rules = rules
        self._allowed = read_allowed(rules.allow)
        self._resolve = resolve or resolve_host
        self._tls = tls
        self._is_open = False

    async def __aenter__(self) -> Self:
        self._is_open = True
        return self

    async def __aexit__(self, *_: object) -> None:
        self._is_open = False

    async def download(
        self, url: str, sink: Sink, *, headers: Mapping[str, str] | None = None, max_bytes: int | None = None
    ) -> FetchedFile:
        """Stream the content of a URL into the sink. If this raises, discard the bytes that the sink has received."""
        request = FetchRequest("GET", _checked(headers or {}))
        async with self._deadline(), self._follow(request, url) as (place, response):
            if not response.is_success or response.status_code == 206:  # a part was not requested
                status = response.status_code
                raise FetchFailed(
                    f"{place.host} answered with status {status}.", retryable=status in RETRYABLE_STATUSES
                )
            size = await _copy_body(place, response, sink, self._limit(max_bytes))
        return FetchedFile(
            status=response.status_code,
            media_type=_media_type(response.headers.get("content-type", "")),
            filename=_file_name(response.headers.get("content-disposition", ""), place.target),
            size=size,
        )

    async def send(
        self,
        method: str,
        url: str,
        *,
        content: bytes = b"",
        headers: Mapping[str, str] | None = None,
        max_bytes: int = DEFAULT_RESPONSE_BYTES,
    ) -> FetchResponse:
        """Send a request and return the response. Only a GET or HEAD without content follows redirects."""
        if method not in _METHODS:
            raise BadRequest("This method cannot be sent.")
        body = bytearray()

        async def keep(chunk: bytes) -> None:
            body.extend(chunk)

        request = FetchRequest(method, _checked(headers or {}), content)
        async with self._deadline(), self._follow(request, url) as (place, response):
            if method != "HEAD":
                await _copy_body(place, response, keep, self._limit(max_bytes))
        return FetchResponse(response.status_code, dict(response.headers), bytes(body))

    def _limit(self, max_bytes: int | None) -> int:
        return self._rules.max_bytes if max_bytes is None else min(max_bytes, self._rules.max_bytes)

    @asynccontextmanager
    async def _deadline(self) -> AsyncGenerator[None]:
        timer = asyncio.timeout(self._rules.total_seconds)
        try:
            async with timer:
                yield
        except TimeoutError:
            if not timer.expired():  # the sink raised it
                raise
            raise FetchTimeout from None

    @asynccontextmanager
    async def _follow(self, request: FetchRequest, url: str) -> AsyncGenerator[tuple[ParsedUrl, httpx2.Response]]:
        """The response after the redirects, and its URL."""
        place = read_url(url)
        for _ in range(self._rules.max_redirects + 1):
            async with self._send(request, place) as response:
                next_place = _redirect_target(place, response) if request.follows else None
                if next_place is None:
                    yield place, response
                    return
            if next_place.origin != place.origin:
                request = request.for_other_origin()
            place = next_place
        raise FetchFailed(f"{place.host} redirects too often.")

    @asynccontextmanager
    async def _send(self, request: FetchRequest, place: ParsedUrl) -> AsyncGenerator[httpx2.Response]:
        """The response of one URL, on a connection of its own to a checked address."""
        if not self._is_open:
            raise RuntimeError("the fetcher is not open")
        addresses = await self._checked_addresses(place)
        tls = await self._certificates() if place.scheme == "https" else WITHOUT_CERTIFICATES
        # The bare transport: a client would add cookies and the proxies of the environment, and log the URL.
        async with httpx2.AsyncHTTPTransport(verify=tls, trust_env=False) as transport:
            response = await self._connect(transport, request, place, addresses)
            try:
                yield response
            finally:
                await response.aclose()

    async def _certificates(self) -> ssl.SSLContext:
        """The trusted certificates. Loading takes some 40 ms, so it happens at the first https fetch, in a thread."""
        if self._tls is None:
            self._tls = await asyncio.to_thread(httpx2.create_ssl_context)  # also reads SSL_CERT_FILE
        return self._tls

    async def _connect(
        self,
        transport: httpx2.AsyncHTTPTransport,
        request: FetchRequest,
        place: ParsedUrl,
        addresses: Sequence[Address],
    ) -> httpx2.Response:
        """The response of the first address that accepts a connection."""
        failure: httpx2.TransportError | None = None
        for address in _alternating(addresses)[:MAX_ADDRESSES]:
            try:
                return await transport.handle_async_request(self._to_address(request, place, address))
            except (httpx2.ConnectError, httpx2.ConnectTimeout) as error:
                failure = error
            except (httpx2.TransportError, ssl.SSLError, OSError):
                raise FetchFailed(f"{place.host} did not answer as a web server does.", retryable=True) from None
        raise _unreachable(place, failure) from None

    def _to_address(self, request: FetchRequest, place: ParsedUrl, address: Address) -> httpx2.Request:
        """A request to an address. The Host header and the expected certificate are those of the host name."""
        host = f"[{address}]" if address.version == 6 else str(address)
        headers = {"host": place.authority, "accept": "*/*", "user-agent": "Almanac", **request.headers}
        headers |= {"accept-encoding": "gzip", "connection": "close"}
        if request.content or request.method in ("POST", "PUT", "PATCH"):
            headers["content-length"] = str(len(request.content))
        return httpx2.Request(
            request.method,
            httpx2.URL(f"{place.scheme}://{host}:{place.port}{place.target}"),
            headers=headers,
            stream=httpx2.ByteStream(request.content),
            extensions={"sni_hostname": place.host, "timeout": {"connect": self._rules.connect_seconds}},
        )

    async def _checked_addresses(self, place: ParsedUrl) -> Sequence[Address]:
        """The addresses of a host, all of which are allowed."""
        check_port(place)
        literal = read_address(place.host)
        try:
            found = [str(literal)] if literal else await self._resolve(place.host, place.port)
        except (OSError, UnicodeError) as error:
            is_temporary = isinstance(error, socket.gaierror) and error.errno == socket.EAI_AGAIN
            raise FetchFailed(f"The name {place.host} cannot be looked up.", retryable=is_temporary) from None
        addresses = [without_mapping(ip_address(each)) for each in found]
        if not addresses:
            raise FetchFailed(f"There is no host {place.host}.")
        if not all(self._allowed.admits(place.host, address) for address in addresses):
            raise Blocked(f"{place.host} is not a public host.")
        return addresses


async def resolve_host(name: str, port: int) -> Sequence[str]:
    """The addresses of a name, from the resolver of the system."""
    found = await asyncio.get_running_loop().getaddrinfo(name, port, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(str(each[4][0]) for each in found))


def _alternating(addresses: Sequence[Address]) -> list[Address]:
    """The addresses in the resolver's order, IPv4 and IPv6 alternating, because one family may be unreachable."""
    first = [each for each in addresses if each.version == addresses[0].version]
    other = [each for each in addresses if each.version != addresses[0].version]
    return [each for each in chain.from_iterable(zip_longest(first, other)) if each is not None]


def _checked(headers: Mapping[str, str]) -> dict[str, str]:
    """The caller's headers by lower-case name. Malformed and reserved headers are refused."""
    for name, value in headers.items():
        if not _HEADER.fullmatch(name) or not _VALUE.fullmatch(value):
            raise BadRequest("A header to send is not well-formed.")
        if name.lower() in _RESERVED_HEADERS:
            raise BadRequest(f"The header {name.lower()} cannot be set by the caller.")
    return {name.lower(): value for name, value in headers.items()}


def _redirect_target(place: ParsedUrl, response: httpx2.Response) -> ParsedUrl | None:
    """The target of a redirect; None for other responses."""
    location = response.headers.get("location")
    if response.status_code not in _REDIRECTS or location is None:
        return None
    try:
        target = read_url(urljoin(place.url, location))
    except (BadUrl, ValueError):
        raise FetchFailed(f"{place.host} redirects to an invalid web address.") from None
    if (place.scheme, target.scheme) == ("https", "http"):
        raise Blocked(f"{place.host} redirects from https to http.", remedy="Give the target address yourself.")
    return target


def _unreachable(place: ParsedUrl, failure: httpx2.TransportError | None) -> FetchError:
    if isinstance(failure, httpx2.ConnectTimeout):
        return FetchTimeout(f"{place.host} did not accept a connection in time.")
    cause: BaseException | None = failure
    while cause is not None and not isinstance(cause, ssl.SSLError):
        cause = cause.__cause__ or cause.__context__
    if isinstance(cause, ssl.SSLCertVerificationError):
        return FetchFailed(f"{place.host} has a certificate that is not trusted.")
    if cause is not None:
        return FetchFailed(f"{place.host} does not implement TLS correctly.")
    return FetchFailed(f"{place.host} cannot be reached.", retryable=True)


async def _copy_body(place: ParsedUrl, response: httpx2.Response, sink: Sink, limit: int) -> int:
    """Copy the decompressed body into the sink, in chunks of about equal size. Returns the number of bytes."""
    too_large = FetchTooLarge(f"{place.host} sends more than {limit} bytes.")
    if int(response.headers.get("content-length", "0")) > limit:
        raise too_large
    buffer, size = bytearray(), 0
    async with aclosing(_decompressed(place, response, limit)) as chunks:
        async for chunk in chunks:
            size += len(chunk)
            if size > limit:
                raise too_large
            buffer += chunk
            if len(buffer) >= CHUNK_BYTES:
                await sink(bytes(buffer))
                buffer.clear()
            await asyncio.sleep(0)  # buffered data arrives without a pause; other tasks and the deadline need one
    if buffer:
        await sink(bytes(buffer))
    return size


async def _decompressed(place: ParsedUrl, response: httpx2.Response, limit: int) -> AsyncGenerator[bytes]:
    coding = response.headers.get("content-encoding", "identity").strip().lower()
    if coding not in ("identity", "", "gzip", "x-gzip"):
        raise FetchFailed(f"{place.host} compresses its response in a way that was not requested.")
    gunzip = Gunzip() if coding.endswith("gzip") else None
    async with aclosing(_received(place, response, limit)) as received:
        async for data in received:
            for chunk in gunzip.feed(data) if gunzip else (data,):
                yield chunk
    if gunzip and gunzip.is_incomplete:
        raise FetchFailed(f"{place.host} ended its response early.", retryable=True)


async def _received(place: ParsedUrl, response: httpx2.Response, limit: int) -> AsyncGenerator[bytes]:
    size = 0
    try:
        async with aclosing(response.aiter_raw()) as chunks:
            async for chunk in chunks:
                size += len(chunk)
                if size > limit:
                    raise FetchTooLarge(f"{place.host} sends more than {limit} bytes.")
                yield chunk
    except (httpx2.TransportError, ssl.SSLError, OSError):
        raise FetchFailed(f"{place.host} ended its response early.", retryable=True) from None


def _parameters(header: str) -> dict[str, str]:
    found = _PARAMETER.findall(header[:MAX_HEADER_CHARS])
    return {name.lower(): re.sub(r"\\(.)", r"\1", quoted) or token for name, quoted, token in found}


def _media_type(header: str) -> str:
    kind, _, subtype = header.partition(";")[0].strip().lower().partition("/")
    well_formed = _TOKEN.fullmatch(kind) and _TOKEN.fullmatch(subtype)
    return f"{kind}/{subtype}" if well_formed else "application/octet-stream"


def _file_name(disposition: str, target: str) -> str:
    """The file name that the server states (RFC 6266), or the last part of the path."""
    given = _parameters(disposition)
    charset, _, extended = given.get("filename*", "").partition("'")
    known = charset.lower() in ("utf-8", "iso-8859-1")
    names = [
        unquote(extended.partition("'")[2], charset, "replace") if known else "",
        given.get("filename", ""),
        unquote(target.partition("?")[0].rpartition("/")[2]),
    ]
    return next((clean for name in names if (clean := _clean(name))), "download")


def _clean(name: str) -> str:
    last = unicodedata.normalize("NFC", name).replace("\\", "/").rpartition("/")[2]
    seen = "".join(letter for letter in last if letter.isprintable()).strip(" .")
    return seen.encode()[-MAX_FILE_NAME_BYTES:].decode(errors="ignore").lstrip(" .")  # keeps the file name extension
