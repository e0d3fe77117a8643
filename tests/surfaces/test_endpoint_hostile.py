"""Hostile requests, each with its exact answer.

One row is one request: its name, its bytes, and the expected status and body. Afterwards the server still serves,
nothing was written, and no internal error was logged.
"""

import gzip
import json
import re
import socket
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import pytest

from almanac.core import clock
from almanac.core.database import Database, Row, Transaction
from almanac.core.errors import Unauthorized
from almanac.identity import orgs, principals, tokens
from tests.live_server import LEGACY, MODERN, Running, running, settings_for
from tests.surfaces.wire import SERVER_INFO, Answer, audit_of, exchange, failed, http, modern, refused, rpc, settled

MAX_BODY_BYTES = 16 * 1024 * 1024
DEADLINE = 0.5  # seconds for the arrival of a body


@dataclass(frozen=True)
class Case:
    name: str
    raw: bytes
    status: int
    body: Any  # bytes as they are, or the JSON they hold


Rows = list[Case]


# --- answers -----------------------------------------------------------------------------------------------

NOT_HTTP = {
    "error": "The request is not valid HTTP. "
    "Send HTTP/1.1, with one Content-Length or with 'Transfer-Encoding: chunked'.",
    "code": "bad_request",
}
LONG_HEADERS = {
    "error": "The headers of the request are too large. Send at most 32768 bytes of headers.",
    "code": "headers_too_large",
}
MANY_HEADERS = {**LONG_HEADERS, "error": "The headers of the request are too large. Send at most 100 headers."}
UNSUPPORTED_VERSION = {
    "error": "The request has a version of HTTP that this server does not speak. Use HTTP/1.1.",
    "code": "unsupported_version",
}
UNAUTHORISED = refused("unauthorized", Unauthorized().text)
WRONG_HOST = refused(
    "invalid_host", "Invalid Host header. An operator can accept it with ALMANAC_ALLOWED_HOSTS or ALMANAC_PUBLIC_URL."
)
WRONG_ORIGIN = refused(
    "invalid_origin", "Invalid Origin header. An operator can accept it with ALMANAC_ALLOWED_ORIGINS."
)
WRONG_TYPE = refused(
    "unsupported_media_type",
    "The request body must be application/json. Send the header 'Content-Type: application/json'.",
)
TOO_LARGE = refused(
    "too_large", f"The request is larger than this server accepts. Send at most {MAX_BODY_BYTES} bytes."
)
TOO_SLOW = refused("request_timeout", "The request body did not arrive in time. Send it again.")
NO_PATH = {"error": "There is nothing at this path. GET / lists what is served.", "code": "not_found"}
NO_METHOD = {"error": "This path does not take that method.", "code": "method_not_allowed"}


def unparsed(message: str) -> dict[str, Any]:
    return failed(-32700, f"Parse error: {message}")


def twice(header: str) -> dict[str, Any]:
    return refused("bad_request", f"The header {header} appears more than once. Send it once.")


def told(text: str, *, era: str = LEGACY) -> dict[str, Any]:
    """A tool's own error."""
    result: dict[str, Any] = {"content": [{"type": "text", "text": text}], "isError": True}
    if era == MODERN:
        result |= {"resultType": "complete", "_meta": SERVER_INFO}
    return {"jsonrpc": "2.0", "id": 1, "result": result}


EMPTY = unparsed("Input is a zero-length, empty document at character 0")
NOT_JSON = unparsed("unexpected character, expected a JSON value at character 0")
NOT_UTF8 = unparsed("str is not valid UTF-8: surrogates not allowed at character 0")
NOT_ONE_OBJECT = failed(-32600, 'Invalid Request: the body must be an object with "jsonrpc": "2.0"')
NO_BATCHES = failed(-32600, "Invalid Request: send one message at a time; batches are not supported")
NO_ENVELOPE = failed(
    -32600, "Invalid Request: 'method' must be a string, 'id' a string or whole number, 'params' an object"
)
BAD_PARAMS = failed(-32602, "Invalid request parameters", id=1, data="")
NO_META = failed(
    -32602,
    "params._meta must be an object carrying the required 'io.modelcontextprotocol/protocolVersion' and "
    "'io.modelcontextprotocol/clientCapabilities' envelope keys",
    id=1,
)
NO_JSON_WANTED = failed(-32600, "Not Acceptable: Client must accept application/json")
ONLY_POST = refused(
    "method_not_allowed",
    "This endpoint takes POST requests only. It keeps no sessions and opens no streams: send each message as a POST.",
)
NO_CURSOR = failed(-32602, "Unknown cursor: this list has one page", id=1)
NAME_DIFFERS = failed(-32020, "mcp-name header does not match the request body's 'name' parameter", id=1)
METHOD_DIFFERS = failed(-32020, "mcp-method header does not match the request body's method", id=1)
VERSION_DIFFERS = failed(
    -32020, "mcp-protocol-version header does not match the request envelope's protocol version", id=1
)
TOO_DEEP = (
    "bad_request: The arguments are nested too deeply, or hold text that is not valid Unicode. "
    "Send a flatter object, in UTF-8."
)
HAS_NUL = "bad_request: The arguments contain the NUL character. Leave it out."
TOO_MANY_VALUES = refused("bad_request", "The body has more than 100,000 JSON values. Send them in several requests.")
TOO_MANY_ARGUMENTS = "bad_request: There are more than 1,000 arguments. It takes no arguments."


def unknown_arguments(count: int) -> str:
    return "{" + ",".join(f'"k{number}":1' for number in range(count)) + "}"


def unknown_tool(name: str, *, id: Any = 1) -> dict[str, Any]:
    return failed(-32602, f"Unknown tool: {name}. The tools you can call are those of tools/list.", id=id)


def unknown_method(name: str) -> dict[str, Any]:
    return failed(-32601, "Method not found", id=1, data=name)


def keys_missing(*keys: str) -> dict[str, Any]:
    names = ", ".join(f"io.modelcontextprotocol/{key}" for key in keys)
    return failed(-32602, f"params._meta is missing the required envelope key(s): {names}", id=1)


def surplus(*names: str) -> str:
    problems = "; ".join(f"{name}: is not an argument of this operation" for name in names)
    return f"bad_request: {problems}. It takes no arguments."


# --- requests ----------------------------------------------------------------------------------------------


def whole(text: str) -> bytes:
    return http(text.encode())


def message(fields: str) -> bytes:
    return http(b'{"jsonrpc":"2.0",' + fields.encode() + b"}")


def call(params: str) -> bytes:
    return message(f'"id":1,"method":"tools/call","params":{params}')


def arguments(value: str) -> bytes:
    return call(f'{{"name":"whoami","arguments":{value}}}')


def with_id(value: str) -> bytes:
    return message(f'"id":{value},"method":"tools/call","params":{{"name":"nope"}}')


def meta(**changes: Any) -> dict[str, Any]:
    whole: dict[str, Any] = {"protocolVersion": MODERN, "clientCapabilities": {}, **changes}
    return {f"io.modelcontextprotocol/{name}": value for name, value in whole.items() if value is not ...}


def chunked(*parts: bytes) -> bytes:
    return http(transfer_encoding=b"chunked") + b"".join(parts)


def chunk(body: bytes) -> bytes:
    return b"%x\r\n%s\r\n" % (len(body), body)


NESTED_500 = "[" * 500 + "]" * 500
NESTED_10000 = '{"a":' * 10_000 + "1" + "}" * 10_000
CALL = rpc()
NAMELESS = ("authorization",)  # the missing headers of a request without a credential

JSON: Rows = [
    Case("no body", http(), 400, EMPTY),
    Case("a body of no bytes", http(content_length=b"0"), 400, EMPTY),
    Case("plain text", whole("hello"), 400, NOT_JSON),
    Case(
        "an object cut short",
        whole('{"jsonrpc": "2.0", "id": 1'),
        400,
        unparsed("unexpected end of data at character 26"),
    ),
    Case(
        "single quotes",
        whole("{'jsonrpc': '2.0'}"),
        400,
        unparsed("unexpected character, expected a string key at character 1"),
    ),
    Case(
        "a trailing comma", whole('{"jsonrpc": "2.0",}'), 400, unparsed("trailing comma is not allowed at character 17")
    ),
    Case("a comment", http(b"/**/" + CALL), 400, NOT_JSON),
    Case(
        "two objects", http(CALL + CALL), 400, unparsed(f"unexpected content after document at character {len(CALL)}")
    ),
    Case(
        "a byte order mark",
        http(b"\xef\xbb\xbf" + CALL),
        400,
        unparsed("UTF-8 byte order mark (BOM) is not supported at character 0"),
    ),
    Case("UTF-16", http(CALL.decode().encode("utf-16")), 400, NOT_UTF8),
    Case("gzip", http(gzip.compress(CALL, mtime=0), content_encoding=b"gzip"), 400, NOT_UTF8),
    Case("NaN", arguments('{"a":NaN}'), 400, unparsed("unexpected character, expected a JSON value at character 89")),
    Case("Infinity", arguments('{"a":-Infinity}'), 400, unparsed("no digit after sign at character 90")),
    Case(
        "a number beyond all bounds",
        arguments('{"a":1e999}'),
        400,
        unparsed("number is infinity when parsed as double at character 89"),
    ),
    Case("a byte that is not UTF-8", http(b'{"jsonrpc":"2.0","id":"\xff","method":"ping"}'), 400, NOT_UTF8),
    Case("an overlong slash", http(b'{"jsonrpc":"2.0","id":"\xc0\xaf","method":"ping"}'), 400, NOT_UTF8),
    Case("a surrogate in bytes", http(b'{"jsonrpc":"2.0","id":"\xed\xa0\x80","method":"ping"}'), 400, NOT_UTF8),
    Case(
        "a lone surrogate",
        message('"id":"\\ud800","method":"ping"'),
        400,
        unparsed("no low surrogate in string at character 23"),
    ),
    Case(
        "a lone surrogate in the arguments",
        arguments('{"a":"\\ud800"}'),
        400,
        unparsed("no low surrogate in string at character 90"),
    ),
    Case(
        "a raw NUL",
        http(b'{"jsonrpc":"2.0","id":"a\x00b","method":"ping"}'),
        400,
        unparsed("unexpected control character in string at character 24"),
    ),
    Case(
        "10,000 objects in each other",
        message(f'"id":1,"method":"ping","params":{NESTED_10000}'),
        400,
        unparsed("depth limit exceeded at character 5165"),
    ),
    Case(
        "10,000 arrays in each other",
        whole("[" * 10_000 + "]" * 10_000),
        400,
        unparsed("depth limit exceeded at character 1025"),
    ),
    Case(
        "500 arrays in a method of the SDK",
        message(f'"id":1,"method":"ping","params":{{"a":{NESTED_500}}}'),
        400,
        unparsed("recursion limit exceeded at line 1 column 254"),
    ),
]

ENVELOPE: Rows = [
    *(Case(f"{text} for a body", whole(text), 400, NOT_ONE_OBJECT) for text in ("null", "42", '"x"', "true", "{}")),
    Case("an empty batch", whole("[]"), 400, NO_BATCHES),
    Case("a batch", http(b"[" + CALL + b"," + CALL + b"]"), 400, NO_BATCHES),
    Case("no version of JSON-RPC", whole('{"id":1,"method":"ping"}'), 400, NOT_ONE_OBJECT),
    Case("an old version of JSON-RPC", whole('{"jsonrpc":"1.0","id":1,"method":"ping"}'), 400, NOT_ONE_OBJECT),
    Case("a version that is a number", whole('{"jsonrpc":2.0,"id":1,"method":"ping"}'), 400, NOT_ONE_OBJECT),
    Case("no method", message('"id":1'), 400, NO_ENVELOPE),
    *(
        Case(f"{text} for a method", message(f'"id":1,"method":{text}'), 400, NO_ENVELOPE)
        for text in ("7", "null", "[]")
    ),
    Case("an answer that nobody asked for", message('"id":1,"result":{}'), 400, NO_ENVELOPE),
    Case("an error that nobody asked for", message('"id":1,"error":{"code":1,"message":"x"}'), 400, NO_ENVELOPE),
    *(
        Case(f"{text} for an id", with_id(text), 400, NO_ENVELOPE)
        for text in ("null", "true", "1.5", "1.0", "{}", "[]", "123456789012345678901234567890")
    ),
    Case("the largest id that is one", with_id("18446744073709551615"), 200, unknown_tool("nope", id=2**64 - 1)),
    Case("an id below every other", with_id("-9223372036854775809"), 400, NO_ENVELOPE),
    Case("an empty id", with_id('""'), 200, unknown_tool("nope", id="")),
    Case("an id of 10,000 characters", with_id(f'"{"x" * 10_000}"'), 200, unknown_tool("nope", id="x" * 10_000)),
    Case("an id with a NUL", with_id('"a\\u0000b"'), 200, unknown_tool("nope", id="a\0b")),
    Case(
        "two ids, of which the last counts",
        message('"id":1,"id":2,"method":"tools/call","params":{"name":"nope"}'),
        200,
        unknown_tool("nope", id=2),
    ),
    Case(
        "two methods, of which the last counts",
        message('"id":1,"method":"tools/call","method":"nope"'),
        200,
        unknown_method("nope"),
    ),
    *(Case(f"{text} for params", call(text), 400, NO_ENVELOPE) for text in ("[]", '"x"', "null", "3")),
]

METHODS: Rows = [
    Case("a method there is not", http(rpc("no/such")), 200, unknown_method("no/such")),
    Case("an empty method", http(rpc("")), 200, unknown_method("")),
    Case("a method that Python has", http(rpc("__init__")), 200, unknown_method("__init__")),
    Case("a method reserved by JSON-RPC", http(rpc("rpc.discover")), 200, unknown_method("rpc.discover")),
    Case("a method of servers with tasks", http(rpc("tasks/list")), 200, unknown_method("tasks/list")),
    Case("an initialize without a word", http(rpc("initialize")), 200, BAD_PARAMS),
    Case("a call without params", message('"id":1,"method":"tools/call"'), 200, BAD_PARAMS),
    Case("a call without a name", call("{}"), 200, BAD_PARAMS),
    *(
        Case(f"{text} for a name", call(f'{{"name":{text}}}'), 200, BAD_PARAMS)
        for text in ("[]", "null", "3", "true", "{}")
    ),
    *(Case(f"{text} for arguments", arguments(text), 200, BAD_PARAMS) for text in ("[]", '"{}"', "3", "false")),
    *(
        Case(f"{text} for _meta", call(f'{{"name":"whoami","_meta":{text}}}'), 200, BAD_PARAMS)
        for text in ("[]", '"x"', "3")
    ),
    Case(
        "a progress token that is a fraction", call('{"name":"whoami","_meta":{"progressToken":1.5}}'), 200, BAD_PARAMS
    ),
    Case("a tool there is not", call('{"name":"nope"}'), 200, unknown_tool("nope")),
    Case("a tool without a name", call('{"name":""}'), 200, unknown_tool("")),
    Case("a tool in other letters", call('{"name":"WhoAmI"}'), 200, unknown_tool("WhoAmI")),
    Case("a tool with a space", call('{"name":"whoami "}'), 200, unknown_tool("whoami ")),
    Case("a tool with a NUL", call('{"name":"who\\u0000ami"}'), 200, unknown_tool("who\0ami")),
    Case("a tool whose name goes on and on", call(f'{{"name":"{"n" * 5000}"}}'), 200, unknown_tool("n" * 100)),
    Case("a tool by its path", call('{"name":"../server_status"}'), 200, unknown_tool("../server_status")),
    Case("an argument too many", arguments('{"x":1}'), 200, told(surplus("x"))),
    Case(
        "seven arguments too many",
        arguments('{"a":1,"b":1,"c":1,"d":1,"e":1,"f":1,"g":1}'),
        200,
        told(surplus(*"abcde")),
    ),
    Case("the argument __proto__", arguments('{"__proto__":{"is_admin":true}}'), 200, told(surplus("__proto__"))),
    Case("the argument constructor", arguments('{"constructor":{"prototype":{}}}'), 200, told(surplus("constructor"))),
    Case("the argument __class__", arguments('{"__class__":"x"}'), 200, told(surplus("__class__"))),
    Case("an argument of 500 characters", arguments(f'{{"{"y" * 500}":1}}'), 200, told(surplus("y" * 60))),
    Case("an argument with a NUL", arguments('{"a":"b\\u0000c"}'), 200, told(HAS_NUL)),
    Case("an argument called NUL", arguments('{"a\\u0000":1}'), 200, told(HAS_NUL)),
    Case("500 arrays in the arguments", arguments(f'{{"a":{NESTED_500}}}'), 200, told(TOO_DEEP)),
    Case("a million unknown arguments", arguments(unknown_arguments(1_000_000)), 400, TOO_MANY_VALUES),
    Case("50,000 unknown arguments", arguments(unknown_arguments(50_000)), 200, told(TOO_MANY_ARGUMENTS)),
    Case("8 million numbers", arguments('{"a":["\\u0001"' + ",1" * 8_000_000 + "]}"), 400, TOO_MANY_VALUES),
    Case(
        "500 arrays for a tool there is not",
        call(f'{{"name":"nope","arguments":{{"a":{NESTED_500}}}}}'),
        200,
        unknown_tool("nope"),
    ),
    Case("a cursor", http(rpc("tools/list", {"cursor": "abc"})), 200, NO_CURSOR),
    Case("an empty cursor", http(rpc("tools/list", {"cursor": ""})), 200, NO_CURSOR),
    Case("a cursor that is a number", http(rpc("tools/list", {"cursor": 3})), 200, BAD_PARAMS),
    Case("a notification", message('"method":"notifications/initialized"'), 202, b""),
    Case("a notification there is not", message('"method":"notifications/nonsense","params":{}'), 202, b""),
    Case("a call that wants no answer", message('"method":"tools/call","params":{"name":"whoami"}'), 202, b""),
    Case(
        "a cancellation of someone's request",
        message('"method":"notifications/cancelled","params":{"requestId":1}'),
        202,
        b"",
    ),
]

MODERN_ERA: Rows = [
    Case("modern: a method there is not", modern("no/such"), 404, unknown_method("no/such")),
    Case("modern: initialize, which is gone", modern("initialize"), 404, unknown_method("initialize")),
    Case("modern: ping, which is gone", modern("ping"), 404, unknown_method("ping")),
    Case("modern: a tool there is not", modern(params={"name": "nope"}), 400, unknown_tool("nope")),
    Case("modern: another method in the header", modern(mcp_method=b"tools/list"), 400, METHOD_DIFFERS),
    Case("modern: no method in the header", modern(without=("mcp_method",)), 400, METHOD_DIFFERS),
    Case("modern: the method in capitals", modern(mcp_method=b"TOOLS/CALL"), 400, METHOD_DIFFERS),
    Case("modern: another name in the header", modern(mcp_name=b"server_status"), 400, NAME_DIFFERS),
    Case("modern: no name in the header", modern(without=("mcp_name",)), 400, NAME_DIFFERS),
    Case("modern: a name in broken base64", modern(mcp_name=b"=?base64?!!?="), 400, NAME_DIFFERS),
    Case("modern: another version in the envelope", modern(meta=meta(protocolVersion=LEGACY)), 400, VERSION_DIFFERS),
    Case("modern: a version that is a number", modern(meta=meta(protocolVersion=5)), 400, VERSION_DIFFERS),
    Case(
        "modern: a version there is not",
        modern(meta=meta(protocolVersion="2099"), mcp_protocol_version=b"2099"),
        400,
        failed(-32022, "Unsupported protocol version", id=1, data={"supported": [MODERN], "requested": "2099"}),
    ),
    Case("modern: an empty _meta", modern(meta={}), 400, keys_missing("protocolVersion", "clientCapabilities")),
    Case("modern: no version in _meta", modern(meta=meta(protocolVersion=...)), 400, keys_missing("protocolVersion")),
    Case("modern: no capabilities", modern(meta=meta(clientCapabilities=...)), 400, keys_missing("clientCapabilities")),
    Case("modern: null for capabilities", modern(meta=meta(clientCapabilities=None)), 400, BAD_PARAMS),
    Case("modern: a list for capabilities", modern(meta=meta(clientCapabilities=[])), 400, BAD_PARAMS),
    Case("modern: a list for _meta", modern(meta=[]), 400, NO_META),
    Case(
        "modern: no _meta",
        http(CALL, mcp_protocol_version=MODERN.encode(), mcp_method=b"tools/call", mcp_name=b"whoami"),
        400,
        NO_META,
    ),
    Case("modern: a list for arguments", modern(params={"name": "whoami", "arguments": []}), 400, BAD_PARAMS),
    Case("modern: text for arguments", modern(params={"name": "whoami", "arguments": "{}"}), 400, BAD_PARAMS),
    Case(
        "modern: an argument too many",
        modern(params={"name": "whoami", "arguments": {"x": 1}}),
        200,
        told(surplus("x"), era=MODERN),
    ),
    Case(
        "modern: the argument __proto__",
        modern(params={"name": "whoami", "arguments": {"__proto__": {}}}),
        200,
        told(surplus("__proto__"), era=MODERN),
    ),
    Case("modern: a cursor", modern("tools/list", {"cursor": "x"}), 400, NO_CURSOR),
    Case("modern: a stream of changes, as JSON", modern("subscriptions/listen", {"notifications": {}}), 406, b""),
    Case(
        "modern: a stream of changes",
        modern("subscriptions/listen", {"notifications": {}}, accept=b"application/json, text/event-stream"),
        404,
        unknown_method("subscriptions/listen"),
    ),
    Case("modern: nothing the client can read", modern(accept=b"text/html"), 406, b""),
    Case(
        "modern: a notification",
        message('"method":"notifications/x"').replace(b"accept:", b"mcp-protocol-version: 2026-07-28\r\naccept:"),
        202,
        b"",
    ),
    *(
        Case(f"the version {version!r}", http(CALL, mcp_protocol_version=version.encode("latin-1")), 400, NO_META)
        for version in ("", "1", "latest", "2099-01-01", "2024-10-07", "2025-11-26", "\xff\xfe")
    ),
]

TOKENS: Rows = [
    Case("no token", http(CALL, without=NAMELESS), 401, UNAUTHORISED),
    *(
        Case(f"{name} for a token", http(CALL, authorization=value), 401, UNAUTHORISED)
        for name, value in {
            "nothing": b"",
            "a scheme alone": b"Bearer",
            "a scheme and a space": b"Bearer ",
            "a token alone": b"@TOKEN@",
            "the scheme Basic": b"Basic @TOKEN@",
            "the scheme Token": b"Token @TOKEN@",
            "a tab before it": b"Bearer\t@TOKEN@",
            "two tokens": b"Bearer @TOKEN@ @TOKEN@",
            "a token and a comma": b"Bearer @TOKEN@,",
            "a token in quotes": b'Bearer "@TOKEN@"',
            "a token in capitals": b"Bearer @CAPITALS@",
            "a token cut short": b"Bearer @SHORT@",
            "a prefix alone": b"Bearer wg-",
            "a token never issued": b"Bearer wg-" + b"A" * 43,
            "10,000 characters": b"Bearer " + b"a" * 10_000,
            "letters beyond ASCII": b"Bearer w\xc3\xa9\xff",
            "SQL": b"Bearer ' OR 1=1 --",
            "a revoked one": b"Bearer @REVOKED@",
            "an expired one": b"Bearer @EXPIRED@",
            "a removed user's": b"Bearer @REMOVED@",
            "what the database keeps": b"Bearer @HASH@",
        }.items()
    ),
    Case("a token with a control character", http(CALL, authorization=b"Bearer a\x01b"), 400, NOT_HTTP),
    Case("a token with a NUL", http(CALL, authorization=b"Bearer a\x00b"), 400, NOT_HTTP),
    Case("a token in X-API-Key", http(CALL, without=NAMELESS, x_api_key=b"@TOKEN@"), 401, UNAUTHORISED),
    Case("a token in a cookie", http(CALL, without=NAMELESS, cookie=b"token=@TOKEN@"), 401, UNAUTHORISED),
    Case(
        "a token in the address",
        http(CALL, first=b"POST /mcp?token=@TOKEN@ HTTP/1.1", without=NAMELESS),
        401,
        UNAUTHORISED,
    ),
    Case("a token in the body", http(b'{"token":"@TOKEN@"}', without=NAMELESS), 401, UNAUTHORISED),
]

NEIGHBOURS: Rows = [
    Case("no host", http(CALL, without=("host",)), 421, WRONG_HOST),
    *(
        Case(f"the host {host!r}", http(CALL, host=host.encode("latin-1")), 421, WRONG_HOST)
        for host in (
            "",
            "evil.example",
            "127.0.0.1.evil.example",
            "127.0.0.1@evil.example",
            "evil.example:127.0.0.1",
            "127.0.0.1:",
            "127.0.0.1:abc",
            "127.0.0.1:80:80",
            "127.0.0.1:-1",
            "127.0.0.1:\xb2",
            "::1",
            "0.0.0.0",
            "127.0.0.2",
            "null",
        )
    ),
    *(
        Case(f"the origin {origin!r}", http(CALL, origin=origin.encode()), 403, WRONG_ORIGIN)
        for origin in (
            "",
            "null",
            "https://evil.example",
            "http://localhost.evil.example",
            "http://evil.example:localhost",
            "ftp://localhost",
            "localhost",
            "file://",
            "http://localhost:abc",
            "http://127.0.0.1@evil.example",
        )
    ),
    Case(
        "a strange origin before a missing token",
        http(CALL, origin=b"https://evil.example", without=NAMELESS),
        403,
        WRONG_ORIGIN,
    ),
]

HEADERS: Rows = [
    *(
        Case(
            f"two headers {name}",
            http(
                CALL,
                more=(f"{name}: {first}".encode(), f"{name.title()}: {second}".encode()),
                without=(name.replace("-", "_"),),
            ),
            400,
            twice(name),
        )
        for name, first, second in (
            ("authorization", "Bearer @TOKEN@", "Bearer wrong"),
            ("host", "127.0.0.1", "evil.example"),
            ("origin", "http://localhost", "https://evil.example"),
            ("content-type", "application/json", "text/plain"),
            ("mcp-method", "tools/call", "tools/list"),
            ("mcp-name", "whoami", "server_status"),
            ("mcp-protocol-version", LEGACY, MODERN),
            ("mcp-session-id", "a", "b"),
        )
    ),
    Case("two lengths alike", http(CALL, more=(b"content-length: %d" % len(CALL),)), 400, NOT_HTTP),
    Case("two lengths that differ", http(CALL, more=(b"content-length: 3",)), 400, NOT_HTTP),
    Case("two lengths in one", http(CALL, content_length=b"%d, %d" % (len(CALL), len(CALL))), 400, NOT_HTTP),
    *(
        Case(f"the length {length!r}", http(content_length=length.encode()), 400, NOT_HTTP)
        for length in ("-1", "+5", "0x10", "", "5.0", "1" * 30)
    ),
    Case("a length and chunks", http(CALL, transfer_encoding=b"chunked"), 400, NOT_HTTP),
    Case("chunks and a length", http(transfer_encoding=b"chunked", content_length=b"5") + b"0\r\n\r\n", 400, NOT_HTTP),
    Case("chunks twice", http(transfer_encoding=b"chunked, chunked") + chunk(CALL) + b"0\r\n\r\n", 400, NOT_HTTP),
    Case("chunks spelt otherwise", http(transfer_encoding=b"xchunked") + chunk(CALL) + b"0\r\n\r\n", 400, NOT_HTTP),
    Case("the encoding identity", http(transfer_encoding=b"identity") + CALL, 400, NOT_HTTP),
    Case("a chunk whose size is no number", chunked(b"zz\r\nhello\r\n0\r\n\r\n"), 400, NOT_HTTP),
    Case("a chunk beyond all sizes", chunked(b"fffffffffffffffff\r\n", CALL, b"\r\n0\r\n\r\n"), 400, NOT_HTTP),
    Case("a chunk longer than its size", chunked(b"5\r\n", CALL, b"\r\n0\r\n\r\n"), 400, NOT_HTTP),
    Case("a folded header", http(CALL, x_fold=b"a\r\n b"), 400, NOT_HTTP),
    Case("a folded token", http(CALL, authorization=b"Bearer\r\n @TOKEN@"), 400, NOT_HTTP),
    Case("lines that end in a line feed alone", http(CALL).replace(b"\r\n", b"\n"), 400, NOT_HTTP),
    Case("a line feed within a header", http(CALL, x_split=b"a\ny: b"), 400, NOT_HTTP),
    Case("a carriage return within a header", http(CALL, x_split=b"a\ry: b"), 400, NOT_HTTP),
    Case("a space before the colon", http(CALL).replace(b"accept:", b"accept :"), 400, NOT_HTTP),
    Case(
        "a space before the length's colon", http(CALL).replace(b"content-length:", b"content-length :"), 400, NOT_HTTP
    ),
    Case("a header without a name", http(CALL).replace(b"accept:", b":"), 400, NOT_HTTP),
    Case("a header without a colon", http(CALL).replace(b"accept:", b"accept"), 400, NOT_HTTP),
    Case("a header with a NUL", http(CALL, x_thing=b"a\x00b"), 400, NOT_HTTP),
    Case("a header name beyond ASCII", http(CALL).replace(b"accept:", b"acc\xc3\xa9pt:"), 400, NOT_HTTP),
    *(
        Case(f"the content type {kind!r}", http(CALL, content_type=kind.encode()), 415, WRONG_TYPE)
        for kind in (
            "",
            "text/plain",
            "application/x-www-form-urlencoded",
            "multipart/form-data",
            "text/json",
            "json",
            "application/jsonx",
            "application/json-seq",
            "application/problem+json",
        )
    ),
    Case("no content type", http(CALL, without=("content_type",)), 415, WRONG_TYPE),
    *(
        Case(f"a client that accepts {kind!r}", http(CALL, accept=kind.encode()), 406, NO_JSON_WANTED)
        for kind in ("", "text/html", "text/event-stream", "image/*")
    ),
    Case("a client that accepts nothing", http(CALL, without=("accept",)), 406, NO_JSON_WANTED),
]

SIZES: Rows = [
    Case("a body declared one byte too long", http(content_length=b"%d" % (MAX_BODY_BYTES + 1)), 413, TOO_LARGE),
    Case("a body declared beyond all bounds", http(content_length=b"18446744073709551615"), 413, TOO_LARGE),
    Case("a body sent one byte too long", chunked(chunk(b" " * (MAX_BODY_BYTES + 1))[:-2]), 413, TOO_LARGE),
    Case("a body without end", chunked(chunk(b" " * 65536) * 257), 413, TOO_LARGE),
    Case("a body that stops early", http(b'{"jsonrpc"', content_length=b"500"), 408, TOO_SLOW),
    Case("a chunk that stops early", chunked(b"500\r\n", b'{"jsonrpc"'), 408, TOO_SLOW),
    Case("a body that never begins", http(content_length=b"500"), 408, TOO_SLOW),
    Case(
        "a body longer than declared",
        http(CALL, content_length=b"10"),
        400,
        unparsed("unexpected end of data at character 10"),
    ),
]

PLACES: Rows = [
    *(
        Case(verb, http(first=f"{verb} /mcp HTTP/1.1".encode()), 405, ONLY_POST)
        for verb in ("GET", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE")
    ),
    Case("HEAD", http(first=b"HEAD /mcp HTTP/1.1"), 405, b""),
    # A stream would stay open without events, without a rate limit, and beyond the end of its token.
    Case("GET for events", http(first=b"GET /mcp HTTP/1.1", accept=b"text/event-stream"), 405, ONLY_POST),
    Case(
        "GET in the modern era",
        http(first=b"GET /mcp HTTP/1.1", mcp_protocol_version=MODERN.encode()),
        405,
        ONLY_POST,
    ),
    *(
        Case(
            f"{verb} without a token",
            http(first=f"{verb} /mcp HTTP/1.1".encode(), without=NAMELESS),
            401,
            b"" if verb == "HEAD" else UNAUTHORISED,
        )
        for verb in ("GET", "PUT", "DELETE", "OPTIONS", "HEAD")
    ),
    Case("a verb there is not", http(first=b"FOO /mcp HTTP/1.1"), 400, NOT_HTTP),
    Case("a verb in small letters", http(CALL, first=b"post /mcp HTTP/1.1"), 400, NOT_HTTP),
    *(
        Case(f"the path {path}", http(CALL, first=f"POST {path} HTTP/1.1".encode()), 404, NO_PATH)
        for path in (
            "/nope",
            "/MCP",
            "/mcp/",
            "/mcp/x",
            "//mcp",
            "/mcp/../mcp",
            "/../../etc/passwd",
            "/%2e%2e/%2e%2e/etc/passwd",
            "/mcp%00",
            "/mcp%2f",
            "/mcp%ff",
            "/mcp\\",
            "*",
        )
    ),
    Case("a path that takes no POST", http(CALL, first=b"POST /health HTTP/1.1"), 405, NO_METHOD),
    Case("a path with a space", http(CALL, first=b"POST /m cp HTTP/1.1"), 400, NOT_HTTP),
    Case("a path beyond ASCII", http(CALL, first=b"POST /\xe9 HTTP/1.1"), 400, NOT_HTTP),
    Case("a path without a slash", http(CALL, first=b"POST mcp HTTP/1.1"), 400, NOT_HTTP),
    Case(
        "a path of 100,000 characters", http(CALL, first=b"POST /" + b"a" * 100_000 + b" HTTP/1.1"), 431, LONG_HEADERS
    ),
    Case("2,000 headers", http(CALL, more=tuple(b"x-%d: y" % i for i in range(2000))), 431, MANY_HEADERS),
    Case("HTTP/1.0 without a host", http(CALL, first=b"POST /mcp HTTP/1.0", without=("host",)), 421, WRONG_HOST),
    Case("HTTP/0.9", b"GET /mcp\r\n\r\n", 505, UNSUPPORTED_VERSION),
    Case("HTTP/3", http(CALL, first=b"POST /mcp HTTP/3"), 400, NOT_HTTP),
    Case("the preface of HTTP/2", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 400, NOT_HTTP),
    Case("TLS", bytes.fromhex("160301005a010000560303") + b"\x11" * 80, 400, NOT_HTTP),
    Case("SSH", b"SSH-2.0-OpenSSH_9.6\r\n", 400, NOT_HTTP),
    Case("Redis", b"*1\r\n$4\r\nPING\r\n", 400, NOT_HTTP),
    Case("noise", b"\x00\x01\x02\xff\r\n\r\n", 400, NOT_HTTP),
]

TABLE: Rows = [*JSON, *ENVELOPE, *METHODS, *MODERN_ERA, *TOKENS, *NEIGHBOURS, *HEADERS, *SIZES, *PLACES]

# Unusual but valid: each gets the answer of `whoami`, with this id.
ALLOWED: list[tuple[str, bytes, Any]] = [
    ("arguments left out", call('{"name":"whoami"}'), 1),
    ("null for arguments", arguments("null"), 1),
    ("null for _meta", call('{"name":"whoami","_meta":null}'), 1),
    (
        "two methods, of which the last is good",
        message('"id":7,"method":"no","method":"tools/call","params":{"name":"whoami"}'),
        7,
    ),
    ("an id with quotes", http(rpc(id='"')), '"'),
    ("a call that asks for a task", call('{"name":"whoami","task":{"ttl":60000}}'), 1),
    ("params nobody knows", call('{"name":"whoami","extra":[1]}'), 1),
    ("white space up to the limit", http(b" " * (MAX_BODY_BYTES - len(CALL)) + CALL), 1),
    ("chunks", chunked(chunk(CALL[:10]), chunk(CALL[10:]), b"0\r\n\r\n"), 1),
    ("chunks with an extension", chunked(b"%x;a=b\r\n%s\r\n" % (len(CALL), CALL), b"0\r\n\r\n"), 1),
    ("HTTP/1.0", http(CALL, first=b"POST /mcp HTTP/1.0"), 1),
    ("empty lines before the request", b"\r\n\r\n" + http(CALL), 1),
    ("a whole address", http(CALL, first=b"POST http://127.0.0.1/mcp HTTP/1.1"), 1),
    ("a query", http(CALL, first=b"POST /mcp?x=../../etc HTTP/1.1"), 1),
    ("a charset", http(CALL, content_type=b"application/json; charset=utf-8"), 1),
    ("a content type in capitals", http(CALL, content_type=b"Application/JSON"), 1),
    ("a scheme in small letters", http(CALL, authorization=b"bearer   @TOKEN@  "), 1),
    ("anything accepted", http(CALL, accept=b"*/*"), 1),
    ("a neighbour's port", http(CALL, host=b"localhost:1"), 1),
    ("IPv6", http(CALL, host=b"[::1]:8000"), 1),
    ("a neighbour's origin", http(CALL, origin=b"http://localhost:3000"), 1),
    ("a header that is not UTF-8", http(CALL, x_thing=b"\xff\xfe"), 1),
    ("a session nobody opened", http(CALL, mcp_session_id=b"no such"), 1),
    ("a forwarded host", http(CALL, x_forwarded_host=b"evil.example", forwarded=b"host=evil.example"), 1),
    ("90 headers", http(CALL, more=tuple(b"x-%d: y" % i for i in range(90))), 1),
    ("modern: null for arguments", modern(params={"name": "whoami", "arguments": None}), 1),
    ("modern: a name in base64", modern(mcp_name=b"=?base64?d2hvYW1p?="), 1),
    ("modern: white space around headers", modern(mcp_name=b"  whoami  ", mcp_method=b" tools/call\t"), 1),
    ("modern: a call that asks for a task", modern(params={"name": "whoami", "task": {}}), 1),
    ("modern, but without the header", modern(without=("mcp_protocol_version",)), 1),
]


# --- the server --------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def live(shared_url: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    home = tmp_path_factory.mktemp("home")
    with running(settings_for(shared_url, home, request_deadline_seconds=DEADLINE)) as server:
        yield server


@pytest.fixture(scope="module")
def words(live: Running) -> Mapping[bytes, bytes]:
    """The values of the words between @ in the table."""
    made = live.run(lambda db: db.write(_make_useless_tokens))
    words = {"TOKEN": live.token, "CAPITALS": live.token.upper(), "SHORT": live.token[:-1], **made}
    return {f"@{name}@".encode(): value.encode() for name, value in words.items()}


async def _make_useless_tokens(tx: Transaction) -> dict[str, str]:
    org = await orgs.get_by_name(tx, None)
    holder = await principals.add(tx, org.id, "user", "maria")
    revoked, number = await tokens.issue(tx, holder)
    await tokens.revoke(tx, number)
    expired, number = await tokens.issue(tx, holder)
    await tx.execute("UPDATE tokens SET expires_at = $1 WHERE id = $2", clock.now(), number)
    gone = await principals.add(tx, org.id, "user", "gone")
    removed, _ = await tokens.issue(tx, gone)
    await principals.remove(tx, gone)
    row = await tx.fetch_one("SELECT hash FROM tokens WHERE id = 1")
    assert row is not None
    return {"REVOKED": revoked, "EXPIRED": expired, "REMOVED": removed, "HASH": bytes(row["hash"]).hex()}


def send(live: Running, words: Mapping[bytes, bytes], raw: bytes) -> Answer:
    for word, value in words.items():
        raw = raw.replace(word, value)
    return exchange(live.port, raw)


def assert_says_nothing_of_us(answer: Answer, words: Mapping[bytes, bytes]) -> None:
    assert not re.search(rb"Traceback|site-packages|\.py\b|File \"", answer.body)
    assert not [word for word, value in words.items() if value in answer.body]


# --- the tests ---------------------------------------------------------------------------------------------


def test_the_table_is_long_enough_and_names_each_row_once():
    assert len(TABLE) >= 60
    assert len({case.name for case in TABLE}) == len(TABLE)


@pytest.mark.parametrize("case", TABLE, ids=lambda case: case.name)
def test_a_hostile_request_is_answered_exactly(live: Running, words: Mapping[bytes, bytes], case: Case):
    answer = send(live, words, case.raw)
    assert answer.status == case.status, answer.body
    assert (answer.body if isinstance(case.body, bytes) else answer.json) == case.body
    assert_says_nothing_of_us(answer, words)
    if case.status == 401:
        assert answer.headers["www-authenticate"].startswith('Bearer realm="almanac"')
    if case.body == ONLY_POST:
        assert answer.headers["allow"] == "POST"


@pytest.mark.parametrize(("raw", "id"), [row[1:] for row in ALLOWED], ids=[row[0] for row in ALLOWED])
def test_a_strange_request_within_the_rules_is_served(live: Running, words: Mapping[bytes, bytes], raw: bytes, id: Any):
    answer = send(live, words, raw)
    assert answer.status == 200, answer.body
    assert (answer.json["id"], answer.json["result"]["isError"]) == (id, False)
    assert json.loads(answer.json["result"]["content"][0]["text"])["name"] == "admin"
    assert_says_nothing_of_us(answer, words)


def test_after_all_of_it_the_server_serves_and_nothing_was_written(live: Running, words: Mapping[bytes, bytes]):
    before = live.run(_counts)
    for case in TABLE:
        send(live, words, case.raw)
    assert live.call("whoami")["structuredContent"]["name"] == "admin"
    rows = settled(live)
    assert live.run(_counts) == before
    assert {row["outcome"] for row in rows} == {"ok", "bad_request", "unknown_tool"}
    assert {row["tool"] for row in rows} == {"whoami", "(unknown)"}


async def _counts(db: Database) -> dict[str, Any]:
    names = ("orgs", "principals", "groups", "members", "grants", "tokens", "jobs", "schedules")
    rows: list[Row | None] = [await db.fetch_one(f"SELECT count(*) FROM {name}") for name in names]
    return {name: row[0] for name, row in zip(names, rows, strict=True) if row is not None}


def test_two_requests_with_one_id_are_both_answered(live: Running, words: Mapping[bytes, bytes]):
    one = http(CALL).replace(b"connection: close\r\n", b"")
    answers = send(live, words, one + http(rpc("ping")))  # sent together, on one connection
    first, second = re.findall(rb'\{"jsonrpc":"2.0","id":1,.*?(?=HTTP/1.1|$)', answers.body, re.DOTALL)
    assert json.loads(first)["result"]["isError"] is False
    assert json.loads(second) == {"jsonrpc": "2.0", "id": 1, "result": {}}


def test_a_request_hidden_in_another_ones_body_is_not_served(live: Running, words: Mapping[bytes, bytes]):
    hidden = http(CALL, x_request_id=b"hidden")
    send(live, words, http(hidden, without=NAMELESS))
    send(live, words, http(hidden, transfer_encoding=b"chunked"))
    send(live, words, http(CALL) + hidden)  # after a request that is the connection's last
    assert [row for row in settled(live) if row["request_id"] == "hidden"] == []


def test_a_call_that_is_not_sent_to_its_end_is_not_made(live: Running, words: Mapping[bytes, bytes]):
    unfinished = chunked(chunk(CALL)).replace(b"accept:", b"x-request-id: unfinished\r\naccept:")
    send(live, words, unfinished + b"zz\r\n")  # the next chunk is broken
    with socket.create_connection(("127.0.0.1", live.port)) as connection:  # the client goes away
        connection.sendall(unfinished.replace(b"@TOKEN@", live.token.encode()))
    assert [row for row in settled(live) if row["request_id"] == "unfinished"] == []


def test_a_call_that_wants_no_answer_is_not_made(live: Running, words: Mapping[bytes, bytes]):
    raw = message('"method":"tools/call","params":{"name":"whoami"}')
    assert send(live, words, raw.replace(b"accept:", b"x-request-id: unanswered\r\naccept:")).status == 202
    assert [row for row in settled(live) if row["request_id"] == "unanswered"] == []


@pytest.mark.parametrize("kind", ["Application/JSON", "application/json;charset=UTF-8"])
def test_the_sdk_takes_the_same_content_types_as_the_fast_path(live: Running, words: Mapping[bytes, bytes], kind: str):
    answer = send(live, words, http(rpc("ping"), content_type=kind.encode()))
    assert (answer.status, answer.json) == (200, {"jsonrpc": "2.0", "id": 1, "result": {}})


def test_a_stranger_cannot_make_us_point_elsewhere(live: Running, words: Mapping[bytes, bytes]):
    answer = send(live, words, http(CALL, first=b"POST /mcp/ HTTP/1.1", host=b"evil.example"))
    assert "location" not in answer.headers
    assert b"evil.example" not in answer.body


def test_a_connection_serves_on_after_a_refusal(live: Running):
    for content, headers in ((b"{", {}), (b"x" * 100_000, {"content-type": "text/plain"}), (b"{}", {"origin": "null"})):
        assert live.post(content, headers).status_code in (400, 403, 415)
        assert live.call("whoami")["isError"] is False


def test_a_refused_call_leaves_one_audit_row_without_its_contents(live: Running, words: Mapping[bytes, bytes]):
    raw = arguments('{"confidential":"the plan"}')
    send(live, words, raw.replace(b"accept:", b"x-request-id: refused\r\naccept:"))
    [row] = audit_of(live, "refused")
    assert (row["tool"], row["outcome"]) == ("whoami", "bad_request")
    assert not [column for column in row.keys() if "confidential" in str(row[column])]  # noqa: SIM118 - a row, not a dict
