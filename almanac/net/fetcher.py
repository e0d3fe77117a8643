"""The one way out: whatever is fetched from an address that somebody gave us is fetched here.

A URL is read strictly, its name resolved once, every address it stands for checked, and the connection made to exactly
the address that was checked: a name that answers differently the next time changes nothing. Redirects are followed
here, each as if it were a new URL. Each hop has a connection of its own; no cookies, no proxies, no stored
credentials. What comes back is counted, before unpacking and after, and the whole has a deadline.
"""

import asyncio
import re
import socket
import ssl
import unicodedata
import zlib
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass, replace
from ipaddress import ip_address
from itertools import chain, zip_longest
from typing import Self
from urllib.parse import unquote, urljoin

import httpx2

from almanac.core.errors import BadRequest
from almanac.net.errors import BadUrl, Blocked, FetchError, FetchFailed, FetchTimeout, FetchTooLarge
from almanac.net.url import Address, ParsedUrl, check_port, plain, read_address, read_allowed, read_url

Resolve = Callable[[str, int], Awaitable[Sequence[str]]]  # a name and a port to the addresses, as text
Sink = Callable[[bytes], Awaitable[None]]

LONGEST_NAME = 200  # bytes of a file name, well below what any file system takes
LONGEST_PARAMETERS = 2000  # characters of a header that are read for a file name or a charset
MOST_ADDRESSES = 4  # tried of one name
PIECE = 65536  # bytes handed on at a time
NOBODY = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)  # trusted over plain http, so that no certificates are read for it
ANSWER_BYTES = 1_000_000  # held in memory by `send`, unless its caller says otherwise

_HEADER = re.compile(r"[\w!#$%&'*+.^`|~-]+", re.ASCII)
_VALUE = re.compile(r"(?:[\x21-\x7e](?:[\x20-\x7e\t]*[\x21-\x7e])?)?")
_PARAMETER = re.compile(r';\s*([\w!#$&+^`|~*.-]+)\s*=\s*(?:"((?:[^"\\]|\\.)*)"|([^;\s]*))', re.ASCII)
_TOKEN = re.compile(r"[\w!#$&^.+:-]{1,100}", re.ASCII)

_METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})
_REDIRECTS = frozenset({301, 302, 303, 307, 308})
RETRYABLE_STATUSES = frozenset({408, 425, 429, 500, 502, 503, 504})
_OURS = frozenset({"host", "connection", "content-length", "transfer-encoding", "accept-encoding", "expect", "te",
                   "trailer", "upgrade", "keep-alive", "proxy-authorization", "proxy-connection"})  # fmt: skip
_HARMLESS = frozenset({"accept", "accept-language", "user-agent"})  # the caller's headers that another origin may see


@dataclass(frozen=True)
class FetchRules:
    """What may be fetched, and how much of it."""

    allow: tuple[str, ...] = ()  # networks ("10.1.0.0/16"), addresses and names ("wiki.internal") that may be inside
    max_bytes: int = 100_000_000
    connect_seconds: float = 5
    total_seconds: float = 60
    max_redirects: int = 5


@dataclass(frozen=True)
class FetchedFile:
    """What a download came from and what it was said to be. The bytes went to the sink."""

    final_url: str  # as asked for after redirects; may hold secrets in its query
    status: int
    media_type: str  # as the other side says: not to be trusted
    charset: str | None
    filename: str  # without folders, control characters or leading dots; never empty
    size: int


@dataclass(frozen=True)
class FetchResponse:
    """The answer to a request, whatever its status."""

    status: int
    headers: Mapping[str, str]  # by names in lower case
    body: bytes


@dataclass(frozen=True)
class FetchRequest:
    """What is asked of a place."""

    method: str
    headers: Mapping[str, str]
    content: bytes = b""

    @property
    def follows(self) -> bool:
        """Whether redirects may be followed: content is for the place it was meant for."""
        return self.method in ("GET", "HEAD") and not self.content

    def for_strangers(self) -> "FetchRequest":
        """The same without what only the first origin may see."""
        return replace(self, headers={name: text for name, text in self.headers.items() if name in _HARMLESS})


class Fetcher:
    """Fetches from the web, and from inside only where the rules say so. Closed, it fetches no more."""

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
        """Stream what is at a URL into the sink. When this raises, what the sink has had is to be thrown away."""
        ask = FetchRequest("GET", _checked(headers or {}))
        async with self._deadline(), self._follow(ask, url) as (place, response):
            if not response.is_success or response.status_code == 206:  # nobody asked for a part
                status = response.status_code
                raise FetchFailed(
                    f"{place.host} answered with status {status}.", retryable=status in RETRYABLE_STATUSES
                )
            size = await _pour(place, response, sink, self._most(max_bytes))
        kind = response.headers.get("content-type", "")
        return FetchedFile(
            final_url=place.url,
            status=response.status_code,
            media_type=_media_type(kind),
            charset=_charset(kind),
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
        max_bytes: int = ANSWER_BYTES,
    ) -> FetchResponse:
        """Send a request and return the answer. Only a GET or HEAD without content follows redirects."""
        if method not in _METHODS:
            raise BadRequest("This method cannot be sent.")
        body = bytearray()

        async def keep(piece: bytes) -> None:
            body.extend(piece)

        ask = FetchRequest(method, _checked(headers or {}), content)
        async with self._deadline(), self._follow(ask, url) as (place, response):
            if method != "HEAD":
                await _pour(place, response, keep, self._most(max_bytes))
        return FetchResponse(response.status_code, dict(response.headers), bytes(body))

    def _most(self, max_bytes: int | None) -> int:
        return self._rules.max_bytes if max_bytes is None else min(max_bytes, self._rules.max_bytes)

    @asynccontextmanager
    async def _deadline(self) -> AsyncGenerator[None]:
        timer = asyncio.timeout(self._rules.total_seconds)
        try:
            async with timer:
                yield
        except TimeoutError:
            if not timer.expired():  # then it is the sink's own
                raise
            raise FetchTimeout from None

    @asynccontextmanager
    async def _follow(self, ask: FetchRequest, url: str) -> AsyncGenerator[tuple[ParsedUrl, httpx2.Response]]:
        """The answer at the end of the redirects, and where it came from."""
        place = read_url(url)
        for _ in range(self._rules.max_redirects + 1):
            async with self._answer(ask, place) as response:
                onward = _onward(place, response) if ask.follows else None
                if onward is None:
                    yield place, response
                    return
            if onward.origin != place.origin:
                ask = ask.for_strangers()
            place = onward
        raise FetchFailed(f"{place.host} redirects too often.")

    @asynccontextmanager
    async def _answer(self, ask: FetchRequest, place: ParsedUrl) -> AsyncGenerator[httpx2.Response]:
        """The answer of one place, on a connection of its own, to an address that was checked."""
        if not self._is_open:
            raise RuntimeError("the fetcher is not open")
        addresses = await self._checked_addresses(place)
        tls = await self._trusted() if place.scheme == "https" else NOBODY
        # The bare transport: a client would add cookies, proxies of the environment, and the URL to the log.
        async with httpx2.AsyncHTTPTransport(verify=tls, trust_env=False) as transport:
            response = await self._first(transport, ask, place, addresses)
            try:
                yield response
            finally:
                await response.aclose()

    async def _trusted(self) -> ssl.SSLContext:
        """Whose certificates count. Reading them takes some 40 ms, so it waits for the first https, in a thread."""
        if self._tls is None:
            self._tls = await asyncio.to_thread(httpx2.create_ssl_context)  # or those of SSL_CERT_FILE
        return self._tls

    async def _first(
        self, transport: httpx2.AsyncHTTPTransport, ask: FetchRequest, place: ParsedUrl, addresses: Sequence[Address]
    ) -> httpx2.Response:
        """The answer of the first address that takes a connection."""
        failure: httpx2.TransportError | None = None
        for address in _alternating(addresses)[:MOST_ADDRESSES]:
            try:
                return await transport.handle_async_request(self._request(ask, place, address))
            except (httpx2.ConnectError, httpx2.ConnectTimeout) as error:
                failure = error
            except (httpx2.TransportError, ssl.SSLError, OSError):
                raise FetchFailed(f"{place.host} did not answer as a web server does.", retryable=True) from None
        raise _unreachable(place, failure) from None

    def _request(self, ask: FetchRequest, place: ParsedUrl, address: Address) -> httpx2.Request:
        """A request to an address, in the name of the host: so it is shown, and so its certificate must read."""
        host = f"[{address}]" if address.version == 6 else str(address)
        headers = {"host": place.authority, "accept": "*/*", "user-agent": "Almanac", **ask.headers}
        headers |= {"accept-encoding": "gzip", "connection": "close"}
        if ask.content or ask.method in ("POST", "PUT", "PATCH"):
            headers["content-length"] = str(len(ask.content))
        return httpx2.Request(
            ask.method,
            httpx2.URL(f"{place.scheme}://{host}:{place.port}{place.target}"),
            headers=headers,
            stream=httpx2.ByteStream(ask.content),
            extensions={"sni_hostname": place.host, "timeout": {"connect": self._rules.connect_seconds}},
        )

    async def _checked_addresses(self, place: ParsedUrl) -> Sequence[Address]:
        """The addresses of a host, once it is known that all of them may be fetched from."""
        check_port(place)
        literal = read_address(place.host)
        try:
            found = [str(literal)] if literal else await self._resolve(place.host, place.port)
        except (OSError, UnicodeError) as error:
            passing = isinstance(error, socket.gaierror) and error.errno == socket.EAI_AGAIN
            raise FetchFailed(f"The name {place.host} cannot be looked up.", retryable=passing) from None
        addresses = [plain(ip_address(each)) for each in found]
        if not addresses:
            raise FetchFailed(f"There is no host {place.host}.")
        if not all(self._allowed.admits(place.host, address) for address in addresses):
            raise Blocked(f"{place.host} is not a public host.")
        return addresses


async def resolve_host(name: str, port: int) -> Sequence[str]:
    """The addresses of a name, by the system's resolver."""
    found = await asyncio.get_running_loop().getaddrinfo(name, port, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(str(each[4][0]) for each in found))


def _alternating(addresses: Sequence[Address]) -> list[Address]:
    """The resolver's order, but with the families in turn: one of them may lead nowhere."""
    first = [each for each in addresses if each.version == addresses[0].version]
    other = [each for each in addresses if each.version != addresses[0].version]
    return [each for each in chain.from_iterable(zip_longest(first, other)) if each is not None]


def _checked(headers: Mapping[str, str]) -> dict[str, str]:
    """The caller's headers by names in lower case, if they are well-formed and the caller's to set."""
    for name, value in headers.items():
        if not _HEADER.fullmatch(name) or not _VALUE.fullmatch(value):
            raise BadRequest("A header to send is not well-formed.")
        if name.lower() in _OURS:
            raise BadRequest(f"The header {name.lower()} is not for the caller to set.")
    return {name.lower(): value for name, value in headers.items()}


def _onward(place: ParsedUrl, response: httpx2.Response) -> ParsedUrl | None:
    """Where a redirect leads; None if the answer is none."""
    location = response.headers.get("location")
    if response.status_code not in _REDIRECTS or location is None:
        return None
    try:
        onward = read_url(urljoin(place.url, location))
    except (BadUrl, ValueError):
        raise FetchFailed(f"{place.host} redirects to what is not an address of the web.") from None
    if (place.scheme, onward.scheme) == ("https", "http"):
        raise Blocked(f"{place.host} redirects from https to http.", remedy="Give the address it leads to yourself.")
    return onward


def _unreachable(place: ParsedUrl, failure: httpx2.TransportError | None) -> FetchError:
    if isinstance(failure, httpx2.ConnectTimeout):
        return FetchTimeout(f"{place.host} did not take a connection in time.")
    cause: BaseException | None = failure
    while cause is not None and not isinstance(cause, ssl.SSLError):
        cause = cause.__cause__ or cause.__context__
    if isinstance(cause, ssl.SSLCertVerificationError):
        return FetchFailed(f"{place.host} has a certificate that is not trusted.")
    if cause is not None:
        return FetchFailed(f"{place.host} does not speak TLS as it should.")
    return FetchFailed(f"{place.host} cannot be reached.", retryable=True)


async def _pour(place: ParsedUrl, response: httpx2.Response, sink: Sink, most: int) -> int:
    """The body, unpacked, into the sink in pieces of about the same size. Returns how many bytes."""
    if int(response.headers.get("content-length", "0")) > most:
        raise FetchTooLarge(f"{place.host} sends more than {most} bytes.")
    waiting, size = bytearray(), 0
    async with aclosing(_unpacked(place, response, most)) as pieces:
        async for piece in pieces:
            size += len(piece)
            if size > most:
                raise FetchTooLarge(f"{place.host} sends more than {most} bytes.")
            waiting += piece
            if len(waiting) >= PIECE:
                await sink(bytes(waiting))
                waiting.clear()
            await asyncio.sleep(0)  # what is already here comes without a pause, and others and the deadline wait
    if waiting:
        await sink(bytes(waiting))
    return size


async def _unpacked(place: ParsedUrl, response: httpx2.Response, most: int) -> AsyncGenerator[bytes]:
    coding = response.headers.get("content-encoding", "identity").strip().lower()
    if coding not in ("identity", "", "gzip", "x-gzip"):
        raise FetchFailed(f"{place.host} packs its answer in a way that was not asked for.")
    gunzip = Gunzip() if coding.endswith("gzip") else None
    async with aclosing(_received(place, response, most)) as chunks:
        async for chunk in chunks:
            for piece in gunzip.feed(chunk) if gunzip else (chunk,):
                yield piece
    if gunzip and gunzip.cut_short:
        raise FetchFailed(f"{place.host} broke off its answer.", retryable=True)


async def _received(place: ParsedUrl, response: httpx2.Response, most: int) -> AsyncGenerator[bytes]:
    received = 0
    try:
        async with aclosing(response.aiter_raw()) as chunks:
            async for chunk in chunks:
                received += len(chunk)
                if received > most:
                    raise FetchTooLarge(f"{place.host} sends more than {most} bytes.")
                yield chunk
    except (httpx2.TransportError, ssl.SSLError, OSError):
        raise FetchFailed(f"{place.host} broke off its answer.", retryable=True) from None


class Gunzip:
    """Unpacks gzip a bounded piece at a time: a thousand bytes can hold a million."""

    def __init__(self) -> None:
        self._member = zlib.decompressobj(wbits=31)
        self.cut_short = False

    def feed(self, chunk: bytes) -> Iterator[bytes]:
        """What comes out of the next bytes."""
        while chunk:
            if self._member.eof:
                self._member = zlib.decompressobj(wbits=31)
            try:
                piece = self._member.decompress(chunk, PIECE)
            except zlib.error:
                raise FetchFailed("What came back is not packed as it says.") from None
            yield piece
            chunk = self._member.unused_data if self._member.eof else self._member.unconsumed_tail
        self.cut_short = not self._member.eof


def _parameters(header: str) -> dict[str, str]:
    found = _PARAMETER.findall(header[:LONGEST_PARAMETERS])
    return {name.lower(): re.sub(r"\\(.)", r"\1", quoted) or token for name, quoted, token in found}


def _media_type(header: str) -> str:
    kind, _, subtype = header.partition(";")[0].strip().lower().partition("/")
    well_formed = _TOKEN.fullmatch(kind) and _TOKEN.fullmatch(subtype)
    return f"{kind}/{subtype}" if well_formed else "application/octet-stream"


def _charset(header: str) -> str | None:
    charset = _parameters(header).get("charset", "").lower()
    return charset if _TOKEN.fullmatch(charset) else None


def _file_name(disposition: str, target: str) -> str:
    """The name the other side gives (RFC 6266), or the last part of the path."""
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
    return seen.encode()[-LONGEST_NAME:].decode(errors="ignore").lstrip(" .")  # from the right: the ending tells
