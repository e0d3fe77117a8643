"""The fetcher against real servers on loopback. A stub resolves names, and no other address is contacted."""

import asyncio
import gzip
import os
import ssl
import tracemalloc
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from ipaddress import IPv4Address, ip_address
from itertools import pairwise
from pathlib import Path
from socket import EAI_AGAIN, EAI_NONAME, gaierror
from typing import Any, cast

import anyio
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from almanac.core.errors import AlmanacError, BadRequest
from almanac.net.errors import BadUrl, Blocked, FetchError, FetchFailed, FetchTimeout, FetchTooLarge
from almanac.net.fetcher import FetchedFile, Fetcher, FetchRules, resolve_host
from almanac.net.gunzip import CHUNK_BYTES
from almanac.net.url import without_mapping

PUBLIC = "93.184.215.14"
LOOPBACK = "127.0.0.1"
HERE = FetchRules(allow=("127.0.0.1/32",), connect_seconds=5, total_seconds=20)
NO_TRUST = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)  # no connection at all

Handler = Callable[[asyncio.StreamWriter], Awaitable[None]]


@pytest.fixture(autouse=True)
def connected(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The contacted addresses. Addresses other than loopback are recorded and refused on this machine."""
    addresses: list[str] = []
    connect = cast(Callable[..., Awaitable[Any]], anyio.connect_tcp)

    async def refuse(remote_host: str, remote_port: int, **how: Any) -> Any:
        addresses.append(remote_host)
        if ip_address(remote_host) != IPv4Address(LOOPBACK):
            raise OSError("outside")
        return await connect(remote_host, remote_port, **how)

    monkeypatch.setattr(anyio, "connect_tcp", refuse)
    return addresses


@dataclass
class Names:
    """A resolver that answers from a table. Each name has a list of answers; the last one stays."""

    table: dict[str, list[Sequence[str]]] = field(default_factory=dict[str, list[Sequence[str]]])
    asked: list[str] = field(default_factory=list[str])

    async def __call__(self, name: str, port: int) -> Sequence[str]:
        self.asked.append(name)
        if name not in self.table:
            raise gaierror(EAI_NONAME, "no such name")
        answers = self.table[name]
        return answers.pop(0) if len(answers) > 1 else answers[0]


def names(**table: Sequence[str]) -> Names:
    """A resolver of the names given, with `_` for a dot."""
    return Names({name.replace("_", "."): [addresses] for name, addresses in table.items()})


@dataclass
class Site:
    """A server on loopback that answers by path and records the requests."""

    pages: dict[str, bytes | Handler] = field(default_factory=dict[str, bytes | Handler])
    requests: list[tuple[str, dict[str, str], bytes]] = field(default_factory=list[tuple[str, dict[str, str], bytes]])
    port: int = 0
    scheme: str = "http"

    def url(self, path: str = "/", host: str = "docs.example") -> str:
        return f"{self.scheme}://{host}:{self.port}{path}"

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
            headers = {name.lower(): text.strip() for name, _, text in (line.partition(":") for line in head[1:-2])}
            body = await reader.readexactly(int(headers.get("content-length", "0")))
            self.requests.append((head[0], headers, body))
            page = self.pages[head[0].split(" ")[1]]
            if isinstance(page, bytes):
                writer.write(page)
                await writer.drain()
            else:
                await page(writer)
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()


@asynccontextmanager
async def serving(site: Site, tls: ssl.SSLContext | None = None) -> AsyncGenerator[Site]:
    server = await asyncio.start_server(site.serve, LOOPBACK, 0, ssl=tls)
    site.port = server.sockets[0].getsockname()[1]
    site.scheme = "https" if tls else "http"
    try:
        yield site
    finally:
        server.close()


@pytest.fixture
async def site() -> AsyncIterator[Site]:
    async with serving(Site()) as running:
        yield running


def page(body: bytes = b"", *headers: str, status: str = "200 OK", length: int | None = None) -> bytes:
    lines = [f"HTTP/1.1 {status}", f"Content-Length: {len(body) if length is None else length}", *headers]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body


def redirect(to: str, status: int = 302) -> bytes:
    return page(b"moved", f"Location: {to}", status=f"{status} Found")


class Kept:
    """A sink that records its chunks."""

    def __init__(self) -> None:
        self.pieces: list[bytes] = []

    async def __call__(self, piece: bytes) -> None:
        self.pieces.append(piece)

    @property
    def all(self) -> bytes:
        return b"".join(self.pieces)


DOCS = {"docs_example": [LOOPBACK]}


async def download(
    url: str, rules: FetchRules = HERE, resolve: Names | None = None, **how: Any
) -> tuple[FetchedFile, bytes]:
    tls: ssl.SSLContext | None = how.pop("tls", NO_TRUST)
    kept = Kept()
    async with Fetcher(rules, resolve=resolve or names(**DOCS), tls=tls) as fetcher:
        fetched = await fetcher.download(url, kept, **how)
    return fetched, kept.all


async def failure(url: str, rules: FetchRules = HERE, resolve: Names | None = None, **how: Any) -> FetchError:
    with pytest.raises(FetchError) as caught:
        await download(url, rules, resolve, **how)
    assert caught.value.__cause__ is None  # a cause would be printed with the error, and it contains the address
    assert caught.value.__suppress_context__ or caught.value.__context__ is None
    return caught.value


# Content


async def test_a_download_is_streamed_and_described(site: Site):
    body = bytes(range(256)) * 1024
    site.pages["/files/Q%203.pdf?key=1"] = page(body, "Content-Type: Application/PDF; charset=UTF-8")
    fetched, got = await download(site.url("/files/Q 3.pdf?key=1#page=2"))
    assert got == body
    assert fetched == FetchedFile(
        status=200,
        media_type="application/pdf",
        filename="Q 3.pdf",
        size=len(body),
    )


async def test_the_server_sees_the_name_and_not_the_address(site: Site, connected: list[str]):
    site.pages["/"] = page(b"x")
    await download(site.url())
    line, headers, _ = site.requests[0]
    assert line == "GET / HTTP/1.1"
    assert headers == {
        "host": f"docs.example:{site.port}",
        "accept": "*/*",
        "user-agent": "Almanac",
        "accept-encoding": "gzip",
        "connection": "close",
    }
    assert connected == [LOOPBACK]


async def test_the_caller_s_headers_are_sent(site: Site):
    site.pages["/"] = page(b"x")
    await download(site.url(), headers={"Authorization": "Bearer abc", "User-Agent": "Other"})
    assert site.requests[0][1]["authorization"] == "Bearer abc"
    assert site.requests[0][1]["user-agent"] == "Other"


@pytest.mark.parametrize(
    "headers",
    [{"Host": "x"}, {"content-length": "3"}, {"Transfer-Encoding": "chunked"}, {"Accept-Encoding": "br"},
     {"Connection": "keep-alive"}, {"X": "a\r\nHost: b"}, {"X": "a\nb"}, {"X\r\n": "a"}, {"": "a"}, {"X Y": "a"},
     {"X": "ü"}, {"X": " a"}, {"X": "\0"}],
)  # fmt: skip
async def test_headers_that_would_change_the_request_itself_are_refused(site: Site, headers: dict[str, str]):
    async with Fetcher(HERE, resolve=names(**DOCS), tls=NO_TRUST) as fetcher:
        with pytest.raises(BadRequest):
            await fetcher.download(site.url(), Kept(), headers=headers)
    assert site.requests == []


@pytest.mark.parametrize(
    ("disposition", "expected"),
    [
        ("attachment; filename=a.pdf", "a.pdf"),
        ('attachment; filename="a b; c.pdf"', "a b; c.pdf"),
        (r'attachment; filename="a\"b.pdf"', 'a"b.pdf'),
        ("attachment; filename=a.pdf; filename*=UTF-8''%e2%82%ac.pdf", "€.pdf"),
        ("attachment; filename*=iso-8859-1'en'%A3.pdf", "£.pdf"),
        ("attachment; filename*=idna''x%ff.pdf; filename=b.pdf", "b.pdf"),
        ("attachment; filename*=utf-8''%ff%fe", "\ufffd\ufffd"),
        ('attachment; filename="../../etc/passwd"', "passwd"),
        (r'attachment; filename="C:\\windows\\x.exe"', "x.exe"),
        ("attachment; filename*=utf-8''..%2F..%2Fshadow", "shadow"),
        ("attachment; filename*=utf-8''a%00%0d%0a%e2%80%aeb.txt", "ab.txt"),
        ('attachment; filename="...hidden. "', "hidden"),
        ('attachment; filename=".."', "report.txt"),
        ('attachment; filename="unfinished', '"unfinished'),
        ("inline", "report.txt"),
        ("attachment; filename=" + "x" * 400 + ".pdf", "x" * 196 + ".pdf"),
    ],
)
async def test_a_file_name_is_the_one_given_and_harmless(site: Site, disposition: str, expected: str):
    site.pages["/report.txt"] = page(b"x", f"Content-Disposition: {disposition}")
    fetched, _ = await download(site.url("/report.txt"))
    assert fetched.filename == expected


@pytest.mark.parametrize(("path", "expected"), [("/", "download"), ("/a/", "download"), ("/a%2Fb?c/d", "b")])
async def test_without_a_given_name_the_path_tells(site: Site, path: str, expected: str):
    site.pages[path] = page(b"x")
    assert (await download(site.url(path)))[0].filename == expected


@pytest.mark.parametrize("kind", ["", "text", "text/", "/html", "a b/c", "<script>/x"])
async def test_a_media_type_that_is_none_counts_as_unknown(site: Site, kind: str):
    site.pages["/"] = page(b"x", f"Content-Type: {kind}; charset=<x>")
    fetched, _ = await download(site.url())
    assert fetched.media_type == "application/octet-stream"


async def test_a_gzipped_answer_is_unpacked_even_in_several_members(site: Site):
    body = b"Bericht " * 50_000
    packed = gzip.compress(body) + gzip.compress(b"end")
    site.pages["/"] = page(packed, "Content-Encoding: gzip")
    fetched, got = await download(site.url())
    assert got == body + b"end"
    assert fetched.size == len(got)


async def test_the_sink_gets_pieces_of_bounded_size_whatever_the_chunks(site: Site):
    chunked = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + b"1\r\nx\r\n" * 70_000 + b"0\r\n\r\n"
    site.pages["/"] = chunked
    kept = Kept()
    async with Fetcher(HERE, resolve=names(**DOCS), tls=NO_TRUST) as fetcher:
        await fetcher.download(site.url(), kept)
    assert [len(piece) for piece in kept.pieces] == [CHUNK_BYTES, 70_000 - CHUNK_BYTES]


async def test_what_the_sink_raises_is_raised_as_it_is(site: Site):
    site.pages["/"] = page(b"x")

    for error in (OSError("disk full"), TimeoutError("of the sink")):

        async def broken(_: bytes, error: Exception = error) -> None:
            raise error

        async with Fetcher(HERE, resolve=names(**DOCS), tls=NO_TRUST) as fetcher:
            with pytest.raises(type(error)) as caught:
                await fetcher.download(site.url(), broken)
        assert caught.value is error


async def test_a_fetcher_that_is_not_open_or_was_closed_fetches_nothing(site: Site):
    fetcher = Fetcher(HERE, resolve=names(**DOCS))
    for _ in range(2):
        with pytest.raises(RuntimeError):
            await fetcher.download(site.url(), Kept())
        async with fetcher:
            pass
    assert site.requests == []


async def test_the_system_s_resolver_is_asked_by_default():
    assert await resolve_host(LOOPBACK, 80) == [LOOPBACK]


async def test_proxies_of_the_environment_are_ignored(site: Site, monkeypatch: pytest.MonkeyPatch):
    for name in ("http_proxy", "https_proxy", "all_proxy", "HTTP_PROXY", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:1")
    site.pages["/"] = page(b"direct")
    assert (await download(site.url()))[1] == b"direct"


async def test_cookies_are_not_kept(site: Site):
    site.pages["/"] = page(b"x", "Set-Cookie: a=b; Path=/")
    async with Fetcher(HERE, resolve=names(**DOCS), tls=NO_TRUST) as fetcher:
        await fetcher.download(site.url(), Kept())
        await fetcher.download(site.url(), Kept())
    assert ["cookie" in headers for _, headers, _ in site.requests] == [False, False]


# Requests


async def test_a_request_is_sent_with_its_content_and_answered_whatever_the_status(site: Site):
    site.pages["/hook"] = page(b'{"no": 1}', "Content-Type: application/json", status="409 Conflict")
    async with Fetcher(HERE, resolve=names(**DOCS), tls=NO_TRUST) as fetcher:
        answer = await fetcher.send("POST", site.url("/hook"), content=b"{}", headers={"X-Signature": "abc"})
    assert (answer.status, answer.headers["content-type"], answer.body) == (409, "application/json", b'{"no": 1}')
    line, headers, body = site.requests[0]
    assert (line, headers["x-signature"], headers["content-length"], body) == ("POST /hook HTTP/1.1", "abc", "2", b"{}")


async def test_content_is_not_carried_along_a_redirect(site: Site):
    site.pages["/hook"] = redirect("/other", 307)
    async with Fetcher(HERE, resolve=names(**DOCS), tls=NO_TRUST) as fetcher:
        answer = await fetcher.send("POST", site.url("/hook"), content=b"{}")
    assert (answer.status, answer.headers["location"]) == (307, "/other")
    assert len(site.requests) == 1


async def test_a_get_follows_a_redirect_and_a_head_reads_no_body(site: Site):
    site.pages["/old"] = redirect("/new", 301)
    site.pages["/new"] = page(b"", length=10**12)
    async with Fetcher(HERE, resolve=names(**DOCS), tls=NO_TRUST) as fetcher:
        answer = await fetcher.send("HEAD", site.url("/old"))
        with pytest.raises(FetchTooLarge):
            await fetcher.send("GET", site.url("/old"))
    assert (answer.status, answer.body) == (200, b"")


async def test_an_answer_is_held_in_memory_only_up_to_its_limit(site: Site):
    site.pages["/"] = page(b"x" * 1001)
    async with Fetcher(HERE, resolve=names(**DOCS), tls=NO_TRUST) as fetcher:
        with pytest.raises(FetchTooLarge):
            await fetcher.send("GET", site.url(), max_bytes=1000)
        assert len((await fetcher.send("GET", site.url(), max_bytes=1001)).body) == 1001


@pytest.mark.parametrize("method", ["CONNECT", "TRACE", "get", "", "GET / HTTP/1.1\r\n"])
async def test_methods_that_are_not_for_this_are_refused(site: Site, method: str):
    async with Fetcher(HERE, resolve=names(**DOCS), tls=NO_TRUST) as fetcher:
        with pytest.raises(BadRequest):
            await fetcher.send(method, site.url())
    assert site.requests == []


# Refused addresses

BAD = [
    "", " ", "docs.example", "//docs.example/", "/etc/passwd", "file:///etc/passwd", "ftp://docs.example/", "gopher://x/",
    "javascript:alert(1)", "data:text/plain,x", "ws://docs.example/", "unix:///var/run/docker.sock", "http:", "http://",
    "http:///path", "http:docs.example", "http:/docs.example", "http:\\\\docs.example", "http://user@docs.example/",
    "http://user:secret@docs.example/", "http://docs.example@127.0.0.1/", "http://127.0.0.1:80@docs.example/",
    "http://docs.example\\@127.0.0.1/", "http://docs.example\\.evil.example/", "http://docs.example:0/",
    "http://docs.example:65536/", "http://docs.example:-1/", "http://docs.example:8_0/", "http://docs.example:８０/",
    "http://docs.example:80:80/", "http://docs.example: 80/", "http://docs.example:+80/", "http://[::1", "http://::1/",
    "http://[::1]x/", "http://[::1]@docs.example/", "http://[fe80::1%25eth0]/", "http://[fe80::1%eth0]/", "http://[v1.x]/",
    "http://[127.0.0.1]/", "http://[]/", "http://%31%32%37.0.0.1/", "http://docs%2eexample/", "http://127.0.0.256/",
    "http://1.2.3.4.5/", "http://127.0.0.1.1/", "http://08.0.0.1/", "http://0xg.1/", "http://4294967296/", "http://a.1/",
    "http://docs..example/", "http://.docs.example/", "http://docs.example../", "http://-docs.example/", "http://*/",
    "http://docs example/", "http://docs.example/\r\nHost: x", "http://docs.example/\t", "http://\0docs.example/",
    "http://" + "a" * 64 + ".example/", "http://" + "a." * 127 + "example/", "http://docs.example/" + "a" * 9000,
    "http://℀.example/", "http://\ud800.example/", "http://docs.example/\ud800", "http://docs.example\u202e/",
]  # fmt: skip

INSIDERS = [
    "http://127.0.0.1/", "http://127.1/", "http://127.0.1/", "http://2130706433/", "http://0x7f000001/", "http://0x7f.1/",
    "http://0177.0.0.1/", "http://017700000001/", "http://0x7f.0x0.0x0.0x1/", "http://127.0.0.1./", "http://0/", "http://0x/",
    "http://0.0.0.0/", "http://１２７.０.０.１/", "http://127。0。0。1/", "http://127｡0｡0｡1/", "http://①②⑦.0.0.1/",
    "http://127.127.127.127/", "http://10.0.0.1/", "http://012.0.0.1/", "http://172.16.0.1/", "http://172.31.255.255/",
    "http://192.168.1.1/", "http://3232235777/", "http://169.254.169.254/latest/meta-data/", "http://2852039166/",
    "http://0xa9fea9fe/", "http://169.254.43518/", "http://100.64.0.1/", "http://100.100.100.200/", "http://198.18.0.1/",
    "http://192.0.0.192/", "http://192.0.2.1/", "http://198.51.100.1/", "http://203.0.113.1/", "http://192.88.99.1/",
    "http://224.0.0.1/", "http://240.0.0.1/", "http://255.255.255.255/", "http://168.63.129.16/", "http://[::1]/",
    "http://[::]/", "http://[0:0:0:0:0:0:0:1]/", "http://[::ffff:127.0.0.1]/", "http://[::ffff:a9fe:a9fe]/",
    "http://[::127.0.0.1]/", "http://[::ffff:0:7f00:1]/", "http://[64:ff9b::7f00:1]/", "http://[64:ff9b::169.254.169.254]/",
    "http://[64:ff9b:1::1]/", "http://[2002:7f00:1::]/", "http://[2002:a9fe:a9fe::1]/", "http://[2001:0:1::1]/",
    "http://[fe80::1]/", "http://[fec0::1]/", "http://[fc00::1]/", "http://[fd00:ec2::254]/", "http://[ff02::1]/",
    "http://[2001:db8::1]/", "http://[100::1]/", "http://[3fff::1]/", "http://[2606:4700::5efe:7f00:1]/",
    "http://[2606:4700::200:5efe:10.0.0.1]/", "http://localhost/", "http://LOCALHOST./", "http://ｌｏｃａｌｈｏｓｔ/",
    "http://inside.example/", "http://mixed.example/", "http://mixed6.example/", "http://metadata.example/",
    "http://mapped.example/", "http://scoped.example/", "http://nat64.example/", "https://docs.example:22/",
    "http://docs.example:25/", "http://docs.example:6379/", "http://docs.example:5432/", "http://8.8.8.8:11211/",
]  # fmt: skip

HOSTILE_NAMES: dict[str, Sequence[str]] = {
    "docs_example": [PUBLIC],
    "localhost": ["127.0.0.1"],
    "inside_example": ["10.0.0.7"],
    "mixed_example": [PUBLIC, "127.0.0.1"],
    "mixed6_example": [PUBLIC, "fd00::1"],
    "metadata_example": ["169.254.169.254"],
    "mapped_example": ["::ffff:10.0.0.1"],
    "scoped_example": ["fe80::1%eth0"],
    "nat64_example": ["64:ff9b::a00:1"],
}


@pytest.mark.parametrize("url", BAD)
async def test_what_is_not_an_address_of_the_web_is_a_bad_url(url: str, connected: list[str]):
    error = await failure(url, FetchRules(), names(**HOSTILE_NAMES))
    assert (type(error), error.code, error.status, error.retryable) == (BadUrl, "invalid_url", 422, False)
    assert connected == []


@pytest.mark.parametrize("url", INSIDERS)
async def test_what_leads_inside_is_blocked_before_anything_is_connected(url: str, connected: list[str]):
    error = await failure(url, FetchRules(), names(**HOSTILE_NAMES))
    assert (type(error), error.code, error.status, error.retryable) == (Blocked, "ssrf_blocked", 422, False)
    assert connected == []


async def test_a_public_name_is_connected_to_at_its_address(connected: list[str]):
    error = await failure("http://docs.example/", FetchRules(), names(docs_example=[PUBLIC]))
    assert (type(error), error.code, error.status, error.retryable) == (FetchFailed, "fetch_failed", 502, True)
    assert connected == [PUBLIC]


async def test_an_ipv6_only_network_reaches_the_public_ipv4_internet(connected: list[str]):
    await failure("http://docs.example/", FetchRules(), names(docs_example=["64:ff9b::5db8:d70e"]))
    assert connected == ["64:ff9b::5db8:d70e"]


async def test_an_ipv4_address_in_ipv6_clothes_is_connected_to_without_them(connected: list[str]):
    await failure("http://docs.example/", FetchRules(), names(docs_example=[f"::ffff:{PUBLIC}"]))
    assert connected == [PUBLIC]


async def test_of_many_addresses_a_few_are_tried_and_both_families(connected: list[str]):
    many = [f"2606:4700::{n:x}" for n in range(1, 9)] + ["8.8.8.8", "8.8.4.4", "1.1.1.1"]
    await failure("http://docs.example/", FetchRules(), names(docs_example=many))
    assert connected == ["2606:4700::1", "8.8.8.8", "2606:4700::2", "8.8.4.4"]


async def test_the_next_address_is_tried_when_one_takes_no_connection(site: Site, connected: list[str]):
    site.pages["/"] = page(b"x")
    await download(site.url(), resolve=names(docs_example=[PUBLIC, LOOPBACK]))
    assert connected == [PUBLIC, LOOPBACK]
    assert len(site.requests) == 1


async def test_a_name_that_answers_differently_the_second_time_is_asked_once_only(connected: list[str]):
    rebinding = Names({"docs.example": [[PUBLIC], [LOOPBACK]]})
    await failure("http://docs.example/", FetchRules(), rebinding)
    assert rebinding.asked == ["docs.example"]
    assert connected == [PUBLIC]


async def test_a_redirect_to_the_same_name_is_checked_anew(site: Site, connected: list[str]):
    site.pages["/"] = redirect("/again")
    rebinding = Names({"docs.example": [[LOOPBACK], ["127.0.0.2"]]})
    assert isinstance(await failure(site.url(), resolve=rebinding), Blocked)
    assert rebinding.asked == ["docs.example", "docs.example"]
    assert connected == [LOOPBACK]


async def test_an_allowed_name_is_fetched_from_inside_and_another_is_not(site: Site):
    site.pages["/"] = page(b"inside")
    rules = FetchRules(allow=("wiki.internal",))
    inside = names(wiki_internal=[LOOPBACK], docs_example=[LOOPBACK])
    assert (await download(site.url(host="WIKI.internal"), rules, inside))[1] == b"inside"
    assert isinstance(await failure(site.url(), rules, inside), Blocked)
    assert isinstance(await failure(site.url(host=LOOPBACK), rules, inside), Blocked)


@pytest.mark.parametrize(
    ("error", "retryable"),
    [(gaierror(EAI_NONAME, "x"), False), (gaierror(EAI_AGAIN, "x"), True), (UnicodeError("x"), False)],
)
async def test_a_name_that_cannot_be_looked_up_is_a_failure(error: Exception, retryable: bool):
    async def broken(_name: str, _port: int) -> Sequence[str]:
        raise error

    async with Fetcher(FetchRules(), resolve=broken, tls=NO_TRUST) as fetcher:
        with pytest.raises(FetchFailed, match=r"docs\.example") as caught:
            await fetcher.download("http://docs.example/", Kept())
    assert caught.value.retryable is retryable


async def test_a_name_without_addresses_is_a_failure():
    assert isinstance(await failure("http://docs.example/", FetchRules(), names(docs_example=[])), FetchFailed)


# Redirects


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
async def test_redirects_are_followed_to_the_last_address(site: Site, status: int):
    site.pages["/a"] = redirect("b/c?d=1", status)
    site.pages["/b/c?d=1"] = redirect(site.url("/e", "other.example"), status)
    site.pages["/e"] = page(b"there")
    _, got = await download(site.url("/a"), resolve=names(**DOCS, other_example=[LOOPBACK]))
    assert got == b"there"
    assert site.requests[2][1]["host"] == f"other.example:{site.port}"


PRIVATE = ["http://127.0.0.2/", "http://2130706434/", "http://169.254.169.254/", "//[::1]/", "http://inside.example/"]
PORTS = ["http://docs.example:22/", "http://127.0.0.1:6379/"]


@pytest.mark.parametrize("to", PRIVATE + PORTS)
async def test_a_redirect_inside_is_blocked(site: Site, to: str, connected: list[str]):
    site.pages["/"] = redirect(to)
    error = await failure(site.url(), resolve=names(**DOCS, inside_example=["10.0.0.1"]))
    assert error.code == "ssrf_blocked"
    assert connected == [LOOPBACK]


NOWHERE = ["file:///etc/passwd", "gopher://docs.example/", "http://u:p@docs.example/", "http://[::1", "javascript:x"]
MALFORMED = ["http://a\\b/", "/" + "x" * 9000, "http://docs..example/", "https://"]


@pytest.mark.parametrize("to", NOWHERE + MALFORMED)
async def test_a_redirect_to_what_is_not_of_the_web_fails(site: Site, to: str):
    site.pages["/"] = redirect(to)
    error = await failure(site.url())
    assert error.code == "fetch_failed"
    assert error.message == "docs.example redirects to an invalid web address."


async def test_a_loop_of_redirects_ends(site: Site):
    site.pages["/a"] = redirect("/b")
    site.pages["/b"] = redirect("/a")
    error = await failure(site.url("/a"), FetchRules(allow=HERE.allow, max_redirects=3))
    assert (error.code, error.message) == ("fetch_failed", "docs.example redirects too often.")
    assert len(site.requests) == 4


async def test_no_redirect_is_followed_where_none_may_be(site: Site):
    site.pages["/a"] = redirect("/b")
    assert (await failure(site.url("/a"), FetchRules(allow=HERE.allow, max_redirects=0))).code == "fetch_failed"
    assert len(site.requests) == 1


async def test_credentials_stay_with_their_origin_and_do_not_come_back(site: Site):
    site.pages["/a"] = redirect("/b")
    site.pages["/b"] = redirect(site.url("/c", "other.example"))
    site.pages["/c"] = redirect(site.url("/d"))
    site.pages["/d"] = page(b"x")
    secrets = {"Authorization": "Bearer abc", "Cookie": "a=b", "X-Api-Key": "abc", "Accept": "text/html"}
    await download(site.url("/a"), resolve=names(**DOCS, other_example=[LOOPBACK]), headers=secrets)
    seen = [
        {name for name in headers if name in ("authorization", "cookie", "x-api-key")}
        for _, headers, _ in site.requests
    ]
    assert seen == [{"authorization", "cookie", "x-api-key"}] * 2 + [set[str]()] * 2
    assert [headers["accept"] for _, headers, _ in site.requests] == ["text/html"] * 4


async def test_another_port_is_another_origin(site: Site):
    async with serving(Site({"/": page(b"x")})) as other:
        site.pages["/"] = redirect(other.url())
        await download(site.url(), headers={"Authorization": "Bearer abc"})
        assert "authorization" not in other.requests[0][1]


# Limits of size and time


async def test_a_length_beyond_the_limit_is_refused_before_the_body(site: Site):
    site.pages["/"] = page(b"x", length=1001)
    kept = Kept()
    async with Fetcher(HERE, resolve=names(**DOCS), tls=NO_TRUST) as fetcher:
        with pytest.raises(FetchTooLarge) as caught:
            await fetcher.download(site.url(), kept, max_bytes=1000)
    assert (caught.value.code, caught.value.status, kept.pieces) == ("too_large", 413, [])


@pytest.mark.parametrize("head", [b"HTTP/1.0 200 OK\r\n\r\n", b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n"])
async def test_a_body_without_a_length_is_counted(site: Site, head: bytes):
    async def endless(writer: asyncio.StreamWriter) -> None:
        writer.write(head)
        while True:
            writer.write(b"x" * 10_000)
            await writer.drain()

    site.pages["/"] = endless
    assert isinstance(await failure(site.url(), max_bytes=300_000), FetchTooLarge)


async def test_the_limit_itself_is_within_it_and_no_caller_exceeds_the_rules(site: Site):
    site.pages["/"] = page(b"x" * 1000)
    assert len((await download(site.url(), max_bytes=1000))[1]) == 1000
    assert isinstance(await failure(site.url(), max_bytes=999), FetchTooLarge)
    small = FetchRules(allow=HERE.allow, max_bytes=999)
    assert isinstance(await failure(site.url(), small, max_bytes=10**9), FetchTooLarge)


async def test_a_gzip_bomb_is_stopped_at_the_limit_in_little_memory(site: Site):
    bomb = gzip.compress(b"\0" * 100_000_000)
    site.pages["/"] = page(bomb, "Content-Encoding: gzip")
    taken = 0

    async def count(piece: bytes) -> None:
        nonlocal taken
        taken += len(piece)

    async with Fetcher(HERE, resolve=names(**DOCS), tls=NO_TRUST) as fetcher:
        tracemalloc.start()
        try:
            with pytest.raises(FetchTooLarge):
                await fetcher.download(site.url(), count, max_bytes=20_000_000)
            _, peak = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
    assert len(bomb) < 1_000_000
    assert 19_000_000 < taken <= 20_000_000
    assert peak < 2_000_000


async def test_others_have_their_turn_while_an_answer_is_unpacked(site: Site):
    site.pages["/"] = page(gzip.compress(b"\0" * 5_000_000), "Content-Encoding: gzip")
    turns = 0
    seen: list[int] = []

    async def another() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    async def note(_: bytes) -> None:
        seen.append(turns)

    task = asyncio.create_task(another())
    async with Fetcher(HERE, resolve=names(**DOCS), tls=NO_TRUST) as fetcher:
        await fetcher.download(site.url(), note)
    task.cancel()
    assert len(seen) > 70
    assert all(later > earlier for earlier, later in pairwise(seen[:-1]))


async def test_packed_bytes_count_too(site: Site):
    empty = gzip.compress(b"")
    site.pages["/"] = b"HTTP/1.0 200 OK\r\nContent-Encoding: gzip\r\n\r\n" + empty * 100
    assert isinstance(await failure(site.url(), max_bytes=len(empty) * 99), FetchTooLarge)
    assert (await download(site.url(), max_bytes=len(empty) * 100))[1] == b""


@pytest.mark.parametrize(
    "answer",
    [
        page(gzip.compress(b"x" * 1000, mtime=0)[:-1], "Content-Encoding: gzip"),
        page(b"not packed", "Content-Encoding: gzip"),
        page(gzip.compress(b"x", mtime=0) + b"trailing", "Content-Encoding: gzip"),
        page(b"x", "Content-Encoding: br"),
        page(b"x", "Content-Encoding: gzip, gzip"),
        page(b"short", length=6),
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nab",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\nab",
        b"HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\nab",
        b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nab",
        b"HTTP/1.1 200 OK\r\nX: " + b"x" * 300_000 + b"\r\n\r\n",
        b"HTTP/1.1 200 OK\r\n" + b"X: y\r\n" * 100_000 + b"\r\n",
        b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\nConnection: upgrade\r\n\r\n",
        b"-ERR unknown command\r\n",
        b"SSH-2.0-OpenSSH\r\n",
        b"",
        page(b"x", status="206 Partial Content"),
        page(b"", "Location: /x", status="304 Not Modified"),
        page(b"x", status="302 Found"),
        page(b"secret page", status="404 Not Found"),
        page(b"x", status="999 Odd"),
    ],
)
async def test_an_answer_that_is_not_one_is_a_failure(site: Site, answer: bytes):
    site.pages["/"] = answer
    error = await failure(site.url())
    assert (type(error), error.code) == (FetchFailed, "fetch_failed")
    assert "secret" not in error.text


async def test_more_than_the_length_says_is_not_read(site: Site):
    site.pages["/"] = page(b"abcdef", length=3)
    assert (await download(site.url()))[1] == b"abc"


@pytest.mark.parametrize(("status", "retryable"), [(404, False), (403, False), (429, True), (500, True), (503, True)])
async def test_a_failure_says_whether_trying_again_may_help(site: Site, status: int, retryable: bool):
    site.pages["/"] = page(b"x", status=f"{status} X")
    error = await failure(site.url())
    assert error.message == f"docs.example answered with status {status}."
    assert error.retryable is retryable


async def test_nobody_listening_is_a_failure_worth_another_try(site: Site):
    async with serving(Site()) as gone:
        url = gone.url()
    error = await failure(url)
    assert (error.code, error.retryable) == ("fetch_failed", True)


async def stall(writer: asyncio.StreamWriter) -> None:
    await writer.drain()
    await asyncio.Event().wait()


async def stall_in_the_headers(writer: asyncio.StreamWriter) -> None:
    writer.write(b"HTTP/1.1 200 OK\r\nX: ")
    await stall(writer)


async def stall_in_the_body(writer: asyncio.StreamWriter) -> None:
    writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nabc")
    await stall(writer)


async def never_finish(writer: asyncio.StreamWriter) -> None:
    writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
    while True:
        writer.write(b"1\r\nx\r\n")
        await writer.drain()
        await asyncio.sleep(0)


async def continue_for_ever(writer: asyncio.StreamWriter) -> None:
    while True:
        writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        await writer.drain()
        await asyncio.sleep(0)


@pytest.mark.parametrize("handler", [stall, stall_in_the_headers, stall_in_the_body, never_finish, continue_for_ever])
async def test_a_server_that_does_not_finish_is_given_up(site: Site, handler: Handler):
    site.pages["/"] = handler
    error = await failure(site.url(), FetchRules(allow=HERE.allow, total_seconds=0.3))
    assert (type(error), error.code, error.status, error.retryable) == (FetchTimeout, "fetch_timeout", 504, True)


async def test_a_resolver_that_does_not_answer_is_given_up():
    async def silent(_name: str, _port: int) -> Sequence[str]:
        return await asyncio.Future[Sequence[str]]()

    async with Fetcher(FetchRules(total_seconds=0.1), resolve=silent, tls=NO_TRUST) as fetcher:
        with pytest.raises(FetchTimeout):
            await fetcher.download("http://docs.example/", Kept())


async def test_a_connection_that_is_not_made_in_time_is_given_up(monkeypatch: pytest.MonkeyPatch):
    async def silent(*_: Any, **__: Any) -> None:
        await asyncio.Event().wait()

    monkeypatch.setattr(anyio, "connect_tcp", silent)
    rules = FetchRules(connect_seconds=0.05, total_seconds=20)
    error = await failure("http://docs.example/", rules, names(docs_example=[PUBLIC]))
    assert (error.code, error.message) == ("fetch_timeout", "docs.example did not accept a connection in time.")


async def test_the_caller_may_give_up_itself(site: Site):
    started = asyncio.Event()

    async def hold(writer: asyncio.StreamWriter) -> None:
        started.set()
        await stall(writer)

    site.pages["/"] = hold
    task = asyncio.create_task(download(site.url()))
    await started.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


# Certificates


@dataclass(frozen=True)
class Authority:
    """A certificate authority, and a TLS context that trusts it."""

    folder: Path
    key: ec.EllipticCurvePrivateKey
    certificate: x509.Certificate

    def server(self, *hosts: str) -> ssl.SSLContext:
        """TLS for a server, with a certificate for these names or addresses."""
        key = ec.generate_private_key(ec.SECP256R1())
        leaf = signed(hosts[0], key, self.key, self.certificate.subject, hosts)
        path = self.folder / f"{hosts[0]}.pem"
        path.write_bytes(pem(leaf, key))
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(path)
        return context

    @property
    def trusted(self) -> ssl.SSLContext:
        text = self.certificate.public_bytes(serialization.Encoding.PEM).decode()
        return ssl.create_default_context(cadata=text)


def signed(
    name: str,
    key: ec.EllipticCurvePrivateKey,
    by: ec.EllipticCurvePrivateKey,
    issuer: x509.Name | None = None,
    hosts: Sequence[str] = (),
) -> x509.Certificate:
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    now = datetime.now(UTC)
    made = x509.CertificateBuilder().subject_name(subject).issuer_name(issuer or subject).public_key(key.public_key())
    made = made.serial_number(x509.random_serial_number()).not_valid_before(now - timedelta(days=1))
    made = made.not_valid_after(now + timedelta(days=1))
    made = made.add_extension(x509.BasicConstraints(ca=issuer is None, path_length=None), critical=True)
    made = made.add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(by.public_key()), critical=False)
    made = made.add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
    alternatives = [
        x509.IPAddress(ip_address(host)) if host[0].isdigit() else x509.DNSName(host) for host in hosts or [name]
    ]
    return made.add_extension(x509.SubjectAlternativeName(alternatives), critical=False).sign(by, hashes.SHA256())


def pem(certificate: x509.Certificate, key: ec.EllipticCurvePrivateKey) -> bytes:
    plain_key = serialization.NoEncryption()
    form = serialization.PrivateFormat.PKCS8
    private = key.private_bytes(serialization.Encoding.PEM, form, plain_key)
    return certificate.public_bytes(serialization.Encoding.PEM) + private


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    key = ec.generate_private_key(ec.SECP256R1())
    return Authority(tmp_path_factory.mktemp("certificates"), key, signed("authority", key, key))


async def test_a_trusted_certificate_is_asked_for_and_checked_by_name(authority: Authority):
    tls = authority.server("docs.example")
    asked: list[str | None] = []
    tls.sni_callback = lambda _socket, name, _context: asked.append(name)
    async with serving(Site({"/": page(b"safe")}), tls) as site:
        assert (await download(site.url(), tls=authority.trusted))[1] == b"safe"
    assert asked == ["docs.example"]
    assert site.requests[0][1]["host"] == f"docs.example:{site.port}"


async def test_an_address_may_have_a_certificate_of_its_own(authority: Authority):
    async with serving(Site({"/": page(b"safe")}), authority.server(LOOPBACK)) as site:
        assert (await download(site.url(host=LOOPBACK), tls=authority.trusted))[1] == b"safe"


@pytest.mark.parametrize("hosts", [["other.example"], [LOOPBACK]])
async def test_a_certificate_for_another_name_or_for_the_address_is_refused(authority: Authority, hosts: list[str]):
    async with serving(Site({"/": page(b"x")}), authority.server(*hosts)) as site:
        error = await failure(site.url(), tls=authority.trusted, headers={"Authorization": "Bearer abc"})
    assert (error.code, error.message) == ("fetch_failed", "docs.example has a certificate that is not trusted.")
    assert site.requests == []


async def test_a_certificate_that_nobody_trusts_is_refused(authority: Authority):
    async with serving(Site({"/": page(b"x")}), authority.server("docs.example")) as site:
        error = await failure(site.url(), tls=None)
    assert (error.code, error.retryable) == ("fetch_failed", False)
    assert error.message == "docs.example has a certificate that is not trusted."
    assert site.requests == []


async def test_an_authority_inside_is_trusted_where_the_environment_names_it(
    authority: Authority, monkeypatch: pytest.MonkeyPatch
):
    bundle = authority.folder / "bundle.pem"
    bundle.write_bytes(authority.certificate.public_bytes(serialization.Encoding.PEM))
    monkeypatch.setenv("SSL_CERT_FILE", str(bundle))
    async with serving(Site({"/": page(b"safe")}), authority.server("docs.example")) as site:
        assert (await download(site.url(), tls=None))[1] == b"safe"


async def test_https_to_a_server_without_tls_fails():
    async def plain_server(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(page(b"x", status="400 Bad Request"))
        writer.close()

    async with await asyncio.start_server(plain_server, LOOPBACK, 0) as server:
        error = await failure(f"https://docs.example:{server.sockets[0].getsockname()[1]}/")
    assert (error.code, error.message) == ("fetch_failed", "docs.example does not implement TLS correctly.")


async def test_a_redirect_from_https_to_http_is_blocked(site: Site, authority: Authority):
    site.pages["/"] = page(b"x")
    async with serving(Site({"/": redirect(site.url())}), authority.server("docs.example")) as safe:
        error = await failure(safe.url(), tls=authority.trusted)
    assert (error.code, error.message) == ("ssrf_blocked", "docs.example redirects from https to http.")
    assert site.requests == []


# Random input


async def test_no_message_tells_more_than_the_host(site: Site):
    site.pages["/path-secret?key=query-secret"] = redirect("http://127.0.0.2/next-secret?x=query-secret")
    for url in (
        site.url("/path-secret?key=query-secret"),
        "http://user:password-secret@docs.example/path-secret",
        "http://docs.example:22/path-secret?query-secret",
        "http://unknown.example/path-secret?query-secret",
        "http://docs.example:99999/path-secret",
    ):
        error = await failure(url)
        assert "secret" not in error.text
        assert "127.0.0.1" not in error.text


EXAMPLES = int(os.environ.get("ALMANAC_TEST_EXAMPLES", "300"))

fuzz = settings(
    max_examples=EXAMPLES,
    deadline=None,
    derandomize="ALMANAC_TEST_EXAMPLES"
    not in os.environ,  # the same examples in each run, unless a longer run is requested
    database=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)

hosts = st.sampled_from(
    ["docs.example", "127.0.0.1", "[::1]", "0x7f.1", "8.8.8.8", "[2606:4700::1]", "localhost", "ü.example", "１.1.1.1"]
)
urls = st.builds(
    "{}://{}{}{}".format,
    st.sampled_from(["http", "https", "HTTP", "ftp", "file", ""]),
    hosts | st.text(max_size=20) | st.ip_addresses().map(lambda a: f"[{a}]" if a.version == 6 else str(a)),
    st.just("") | st.integers(-1, 70000).map(":{}".format) | st.text(max_size=4).map(":{}".format),
    st.just("") | st.text(max_size=20).map("/{}".format),
)


@fuzz
@given(
    url=urls | st.text(max_size=40),
    found=st.lists(st.ip_addresses(), max_size=3) | st.sampled_from([[ip_address(PUBLIC)], [ip_address("10.0.0.1")]]),
)
def test_any_url_and_any_answer_of_a_resolver_ends_in_a_documented_error(
    url: str, found: list[Any], connected: list[str]
):
    async def resolve(_name: str, _port: int) -> Sequence[str]:
        return [str(each) for each in found]

    async def fetch() -> AlmanacError:
        async with Fetcher(FetchRules(), resolve=resolve, tls=NO_TRUST) as fetcher:
            with pytest.raises(FetchError) as caught:
                await fetcher.download(url, Kept())
        return caught.value

    connected.clear()
    error = asyncio.run(fetch())
    assert (type(error), error.code) in {
        (BadUrl, "invalid_url"),
        (Blocked, "ssrf_blocked"),
        (FetchFailed, "fetch_failed"),
    }
    for address in map(ip_address, connected):
        assert address.is_global, "connected to what is not public"
        assert not address.is_multicast
        assert without_mapping(address) == address


lines = st.sampled_from(
    [b"HTTP/1.1 200 OK", b"HTTP/1.0 200", b"HTTP/1.1 302 X", b"HTTP/1.1 100 Continue", b"HTTP/2 200", b"HTTP/1.1 204 X",
     b"Content-Length: 3", b"Content-Length: 99999999999999999999", b"Content-Length: 3, 3", b"Content-Length: x",
     b"Transfer-Encoding: chunked", b"Transfer-Encoding: gzip", b"Content-Encoding: gzip", b"Content-Encoding: \xff",
     b"Location: /", b"Location: http://[", b"Location: \xff\xfe", b"Location: //169.254.169.254",
     b"Content-Type: \xff;=", b"Content-Disposition: ;filename*=\xff''%", b'Content-Disposition: ;filename="', b"",
     b"3", b"abc", b"0", b"\x1f\x8b"]
)  # fmt: skip


@fuzz
@given(st.lists(lines | st.binary(max_size=12), max_size=8).map(lambda some: b"\r\n".join(some) + b"\r\n\r\n"))
def test_any_answer_of_a_server_is_a_download_or_a_documented_error(answer: bytes):
    async def fetch() -> None:
        async with serving(Site({"/": b"HTTP/1.1 200 OK\r\n" + answer})) as site:
            try:
                fetched, got = await download(site.url())
            except FetchError as error:
                assert error.code in {"fetch_failed", "too_large", "ssrf_blocked"}
            else:
                assert fetched.size == len(got)
                assert fetched.filename

    asyncio.run(fetch())
