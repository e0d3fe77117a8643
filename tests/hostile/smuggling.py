"""Forms of HTTP request smuggling.

Each form is the bytes of one request whose end is ambiguous, invalid or unusual. It contains a second, smuggled
request for `/smuggling`, which must never be answered. `POST /mcp` without a token is answered before its body is read.
"""

from dataclasses import dataclass
from enum import Enum

from tests.hostile.raw_http import request

SMUGGLED = request("GET", "/smuggling", f"X: {'a' * 63}")  # 112 bytes, 70 in hexadecimal
SMUGGLED_ANSWER = b"nothing at this path"
LENGTH = f"Content-Length: {len(SMUGGLED)}"
CHUNKED = "Transfer-Encoding: chunked"
UPGRADE = "Connection: Upgrade"
LAST_CHUNK = b"0\r\n\r\n"


class Outcome(Enum):
    """The correct reaction of the server."""

    REFUSED = "one answer, 4xx or 5xx, and then the end of the connection"
    ONE_REQUEST = "one answer, and the connection can be used for the next request"
    LAST_REQUEST = "one answer, and then the end of the connection"


@dataclass(frozen=True)
class Form:
    """One form of request smuggling."""

    name: str
    segments: tuple[bytes, ...]  # each is sent when the answer to the one before it has arrived
    outcome: Outcome

    def __str__(self) -> str:
        return self.name


def post(*headers: str, body: bytes = b"") -> bytes:
    return request("POST", "/mcp", *headers, body=body)


def refused(name: str, *segments: bytes) -> Form:
    return Form(name, segments, Outcome.REFUSED)


def one(name: str, *segments: bytes) -> Form:
    return Form(name, segments, Outcome.ONE_REQUEST)


def last(name: str, *segments: bytes) -> Form:
    return Form(name, segments, Outcome.LAST_REQUEST)


def chunk(data: bytes, size: bytes | None = None, end: bytes = b"\r\n") -> bytes:
    return (b"%x\r\n" % len(data) if size is None else size) + data + end


def body_of(*chunks: bytes) -> bytes:
    return b"".join(chunks) + LAST_CHUNK


def bare(head: bytes) -> bytes:
    """A request whose head is given in full, followed by the smuggled request."""
    return head + SMUGGLED


# The server frames the body by Content-Length, a proxy by chunks, or the other way round.
_LENGTH_AND_CHUNKS = [
    refused("CL.TE", post(LENGTH, CHUNKED, body=LAST_CHUNK + SMUGGLED)),
    refused("TE.CL", post(CHUNKED, "Content-Length: 4", body=body_of(chunk(SMUGGLED)))),
    refused("CL 0 and TE", post("Content-Length: 0", CHUNKED, body=body_of(chunk(SMUGGLED)))),
    *(
        refused(f"TE {value!r} and CL", post(f"Transfer-Encoding: {value}", LENGTH, body=SMUGGLED))
        for value in (
            "identity", "xchunked", "chunked, identity", "identity, chunked", "chunked, chunked", "chunked;a=b",
            '"chunked"', "chunked,", ",chunked", "", "chunked\x00", "ch\x00unked", "\x0bchunked", "chunked\x0b",
            "chunked gzip", "gzip",
        )
    ),
    *(
        refused(f"TE {value!r}", post(f"Transfer-Encoding: {value}", body=body_of(chunk(SMUGGLED))))
        for value in ("gzip, chunked", "identity, chunked", "chunked, chunked", "chunked, identity", "gzip", "chunke")
    ),
    refused("TE twice, chunked last", post("Transfer-Encoding: identity", CHUNKED, body=body_of(chunk(SMUGGLED)))),
    refused("TE twice, chunked first", post(CHUNKED, "Transfer-Encoding: identity", body=body_of(chunk(SMUGGLED)))),
    refused("TE twice, both chunked", post(CHUNKED, CHUNKED, body=body_of(chunk(SMUGGLED)))),
    refused("space before the colon of TE", post("Transfer-Encoding : chunked", LENGTH, body=SMUGGLED)),
    refused("tab before the colon of TE", post("Transfer-Encoding\t: chunked", LENGTH, body=SMUGGLED)),
    refused("TE in HTTP/1.0", bare(b"POST /mcp HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n" + LAST_CHUNK)),
    one("TE in mixed case", post("tRaNsFeR-eNcOdInG: ChUnKeD", body=body_of(chunk(SMUGGLED)))),
    one("TE after a tab", post("Transfer-Encoding:\tchunked", body=body_of(chunk(SMUGGLED)))),
    one("TE with an underscore is another header", post("Transfer_Encoding: chunked", LENGTH, body=SMUGGLED)),
]  # fmt: skip

_LENGTHS = [
    refused("two lengths", post("Content-Length: 0", LENGTH, body=SMUGGLED)),
    refused("two lengths, the long one first", post(LENGTH, "Content-Length: 0", body=SMUGGLED)),
    refused("the same length twice", post(LENGTH, LENGTH, body=SMUGGLED)),
    *(
        refused(f"CL {value!r}", post(f"Content-Length: {value}", body=SMUGGLED))
        for value in (
            "0, 112", "112, 112", "+0", "-1", "0x0", "0e1", "0 0", "", "\xb2", "18446744073709551616", "0\x0b", "0\x00",
            "99999999999999999999999999", "0;", "zero",
        )
    ),
    refused("space before the colon of CL", post("Content-Length : 0", body=SMUGGLED)),
    one("CL with zeros in front", post(f"Content-Length: 000{len(SMUGGLED)}", body=SMUGGLED)),
    one("CL after spaces", post(f"Content-Length:   {len(SMUGGLED)}  ", body=SMUGGLED)),
    one("a late body", post(LENGTH), SMUGGLED),
    one("GET with a body", request("GET", "/health", LENGTH, body=SMUGGLED)),
    one("GET with a chunked body", request("GET", "/health", CHUNKED, body=body_of(chunk(SMUGGLED)))),
    one("DELETE with a body", request("DELETE", "/health", LENGTH, body=SMUGGLED)),
    one("Expect: 100-continue", post("Expect: 100-continue", LENGTH), SMUGGLED),
    one("CL named by Connection", post(LENGTH, "Connection: content-length", body=SMUGGLED)),
]  # fmt: skip

# The parser of the server regards data after an upgrade as another protocol, and then as the next request.
_UPGRADES = [
    *(
        refused(f"Upgrade: {protocol}, late body", post(LENGTH, UPGRADE, f"Upgrade: {protocol}"), SMUGGLED)
        for protocol in ("foo", "websocket", "h2c", "TLS/1.0", "")
    ),
    refused("Upgrade, body", post(LENGTH, UPGRADE, "Upgrade: foo", body=SMUGGLED)),
    refused("Upgrade, chunked body", post(CHUNKED, UPGRADE, "Upgrade: foo", body=body_of(chunk(SMUGGLED)))),
    refused("Upgrade, late chunks", post(CHUNKED, UPGRADE, "Upgrade: foo"), body_of(chunk(SMUGGLED))),
    refused("Upgrade before Connection", post("Upgrade: foo", "Connection: keep-alive, Upgrade", LENGTH), SMUGGLED),
    refused("Upgrade without Connection", post("Upgrade: foo", LENGTH, body=SMUGGLED)),
    refused("Upgrade of a slow request", request("GET", "/metrics", LENGTH, UPGRADE, "Upgrade: foo"), SMUGGLED),
    refused("Upgrade, body in parts", post("Content-Length: 113", UPGRADE, "Upgrade: foo"), b"x", SMUGGLED),
    refused("Upgrade of GET", request("GET", "/health", UPGRADE, "Upgrade: foo"), SMUGGLED),
    refused(
        "WebSocket handshake",
        request("GET", "/mcp", UPGRADE, "Upgrade: websocket", "Sec-WebSocket-Version: 13",
                "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ=="),
        SMUGGLED,
    ),
    refused("CONNECT", request("CONNECT", "127.0.0.1:80"), SMUGGLED),
    refused("CONNECT with a body", request("CONNECT", "127.0.0.1:80", LENGTH), SMUGGLED),
    refused("HTTP/2 preface", bare(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n")),
    one("Connection: Upgrade without Upgrade", post(LENGTH, "Connection: Upgrade", body=SMUGGLED)),
]  # fmt: skip

# A line that begins with white space continued the one before it in HTTP/1.0.
_LINES = [
    refused("TE on a folded line", post("Transfer-Encoding:\r\n chunked", LENGTH, body=LAST_CHUNK + SMUGGLED)),
    refused("TE folded after a tab", post("Transfer-Encoding:\r\n\tchunked", body=body_of(chunk(SMUGGLED)))),
    refused("CL on a folded line", post("Content-Length:\r\n 0", body=SMUGGLED)),
    refused("CL continued on a folded line", post("Content-Length: 11\r\n 2", body=SMUGGLED)),
    refused("a folded header", post("X-Folded: a\r\n b", LENGTH, body=SMUGGLED)),
    refused("TE in a folded line", post("X-Folded: a\r\n Transfer-Encoding: chunked", LENGTH, body=SMUGGLED)),
    refused("the first header folded", bare(b"POST /mcp HTTP/1.1\r\n Host: 127.0.0.1\r\nContent-Length: 0\r\n\r\n")),
    refused("TE after a bare CR", post("X: a\rTransfer-Encoding: chunked", LENGTH, body=LAST_CHUNK + SMUGGLED)),
    refused("TE after a bare LF", post("X: a\nTransfer-Encoding: chunked", LENGTH, body=LAST_CHUNK + SMUGGLED)),
    refused("CL after a bare CR", post("X: a\rContent-Length: 0", LENGTH, body=SMUGGLED)),
    refused("lines that end with LF", bare(b"POST /mcp HTTP/1.1\nHost: 127.0.0.1\nContent-Length: 0\n\n")),
    refused("a head that ends with LF", bare(b"POST /mcp HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 0\r\n\n")),
    refused("a line that ends with CR CR LF", bare(b"GET /health HTTP/1.1\r\nHost: 127.0.0.1\r\r\n\r\n")),
    refused("NUL in a header", post("X: a\x00b", LENGTH, body=SMUGGLED)),
    refused("NUL in a header name", post("X\x00Y: a", LENGTH, body=SMUGGLED)),
    refused("a space in a header name", post("X Y: a", LENGTH, body=SMUGGLED)),
    refused("a header without a name", post(": a", LENGTH, body=SMUGGLED)),
    refused("a header without a colon", post("X", LENGTH, body=SMUGGLED)),
    refused("a header name that is not ASCII", post("X\xe9: a", LENGTH, body=SMUGGLED)),
    one("a value that is not ASCII", post("X: \xe9", LENGTH, body=SMUGGLED)),
]  # fmt: skip

_REQUEST_LINES = [
    refused("HTTP/0.9", bare(b"GET /health\r\n")),
    refused("HTTP/0.9 by number", bare(b"GET /health HTTP/0.9\r\nHost: 127.0.0.1\r\n\r\n")),
    refused("HTTP/1.2", bare(b"GET /health HTTP/1.2\r\nHost: 127.0.0.1\r\n\r\n")),
    refused("HTTP/2.0", bare(b"GET /health HTTP/2.0\r\nHost: 127.0.0.1\r\n\r\n")),
    refused("HTTP/1.10", bare(b"GET /health HTTP/1.10\r\nHost: 127.0.0.1\r\n\r\n")),
    refused("the version in lower case", bare(b"GET /health http/1.1\r\nHost: 127.0.0.1\r\n\r\n")),
    refused("a tab in the request line", bare(b"GET\t/health\tHTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")),
    refused("a space in the path", bare(b"GET /health /x HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")),
    refused("text before the method", bare(b"x GET /health HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")),
    refused("an unknown method", bare(b"GETGET /health HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")),
    refused("the method in lower case", bare(b"get /health HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")),
    refused("NUL in the path", bare(b"GET /hea\x00lth HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")),
    refused("a target that is no URL", bare(b"GET http://[::1 HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")),
    refused("a target that is not ASCII", bare(b"GET /\xff HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")),
    refused("a TLS handshake", b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + SMUGGLED),
    one("an empty line first", b"\r\n" + post(LENGTH, body=SMUGGLED)),
    last("data after Connection: close", request("GET", "/health", "Connection: close") + SMUGGLED),
    last("data after a last body", post("Connection: close", "Content-Length: 1", body=b"x" + SMUGGLED)),
    last("data after HTTP/1.0", bare(b"GET /health HTTP/1.0\r\nHost: 127.0.0.1\r\n\r\n")),
]  # fmt: skip

_CHUNKS = [
    *(
        refused(f"chunk size {size!r}", post(CHUNKED, body=body_of(chunk(SMUGGLED, size))))
        for size in (
            b" 70\r\n", b"70 \r\n", b"\t70\r\n", b"0x70\r\n", b"+70\r\n", b"-70\r\n", b"7_0\r\n", b"70\n", b"70\r\r\n",
            b"70\rX\n", b"\r\n", b"g\r\n", b"10000000000000070\r\n", b"ffffffffffffffffffff\r\n", b"70,0\r\n",
            b"70\x00\r\n", b"70\x0b\r\n",
        )
    ),
    refused("no CRLF after a chunk", post(CHUNKED, body=body_of(chunk(b"hello", end=b""), chunk(SMUGGLED)))),
    refused("LF after a chunk", post(CHUNKED, body=body_of(chunk(b"hello", end=b"\n"), chunk(SMUGGLED)))),
    refused("CR after a chunk", post(CHUNKED, body=body_of(chunk(b"hello", end=b"\r"), chunk(SMUGGLED)))),
    refused("text after a chunk", post(CHUNKED, body=body_of(chunk(b"hello", end=b"XX"), chunk(SMUGGLED)))),
    refused("a last chunk with LF", post(CHUNKED, body=b"0\n\n" + SMUGGLED)),
    refused("a last chunk with text", post(CHUNKED, body=b"0\r\nX" + SMUGGLED)),
    refused("LF in a chunk extension", post(CHUNKED, body=b"2;a\nxx\r\n70\r\n" + SMUGGLED + b"\r\n" + LAST_CHUNK)),
    refused("CR in a chunk extension", post(CHUNKED, body=b"2;a\rb\r\nxx\r\n" + LAST_CHUNK + SMUGGLED)),
    refused("NUL in a chunk extension", post(CHUNKED, body=b"2;a\x00\r\nxx\r\n" + LAST_CHUNK + SMUGGLED)),
    refused("a space before a chunk extension", post(CHUNKED, body=b"2 ;a\r\nxx\r\n" + LAST_CHUNK + SMUGGLED)),
    refused("a line break in a quoted chunk extension", post(CHUNKED, body=b'2;a="\r\nxx\r\n"\r\n' + LAST_CHUNK)),
    one("a chunk extension", post(CHUNKED, body=body_of(chunk(SMUGGLED, b"%x;a=b\r\n" % len(SMUGGLED))))),
    one("a quoted chunk extension", post(CHUNKED, body=body_of(chunk(SMUGGLED, b'%x;a="b;c"\r\n' % len(SMUGGLED))))),
    one("an extension of the last chunk", post(CHUNKED, body=chunk(SMUGGLED) + b"0;a=b\r\n\r\n")),
    one("a chunk size with zeros in front", post(CHUNKED, body=body_of(chunk(SMUGGLED, b"000%x\r\n" % len(SMUGGLED))))),
    one("a chunk size in capitals", post(CHUNKED, body=body_of(chunk(SMUGGLED, b"%X\r\n" % len(SMUGGLED))))),
    one("late chunks", post(CHUNKED), body_of(chunk(SMUGGLED))),
]  # fmt: skip

_TRAILERS = [
    *(
        one(f"trailer {name}", post(CHUNKED, body=chunk(SMUGGLED) + b"0\r\n" + trailer + b"\r\n\r\n"))
        for name, trailer in (
            ("X", b"X: a"),
            ("Host", b"Host: evil.example"),
            ("Authorization", b"Authorization: Bearer wg-x"),
            ("X-Forwarded-For", b"X-Forwarded-For: 10.0.0.1"),
        )
    ),
    *(
        refused(f"trailer {name}", post(CHUNKED, body=chunk(b"x") + b"0\r\n" + trailer + b"\r\n\r\n" + SMUGGLED))
        for name, trailer in (
            ("Content-Length", LENGTH.encode()),
            ("Transfer-Encoding", CHUNKED.encode()),
            ("Connection", b"Connection: close"),
            ("Upgrade", b"Upgrade: foo"),
            ("folded", b"X: a\r\n b"),
            ("without a colon", b"X"),
            ("with a bare LF", b"X: a\nY: b"),
        )
    ),
]  # fmt: skip

FORMS = [*_LENGTH_AND_CHUNKS, *_LENGTHS, *_UPGRADES, *_LINES, *_REQUEST_LINES, *_CHUNKS, *_TRAILERS]
