"""For any input, the endpoint answers in time, without a 5xx and without a stack trace."""

import json
import os
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, example, given, settings
from hypothesis import strategies as st

from tests.live_server import ERAS, LEGACY, MODERN, SURFACES, Running, request, running, settings_for
from tests.surfaces import trial
from tests.surfaces.trial import PATH
from tests.surfaces.wire import Answer, exchange, settled

EXAMPLES = int(os.environ.get("ALMANAC_TEST_EXAMPLES", "300"))
SECONDS = 5.0  # the limit for an answer: far above the usual time, far below a hang

TOOLS = ["whoami", "server_status", "echo", "fail", "count", "touch", "recall", "govern", "never-was", ""]
METHODS = [
    "tools/call",
    "tools/list",
    "ping",
    "initialize",
    "server/discover",
    "notifications/initialized",
    "notifications/cancelled",
    "resources/list",
    "prompts/get",
    "completion/complete",
    "logging/setLevel",
    "subscriptions/listen",
    "tasks/get",
]
HEADERS = [
    "accept",
    "content-type",
    "mcp-protocol-version",
    "mcp-method",
    "mcp-name",
    "mcp-session-id",
    "mcp-param-number",
    "last-event-id",
    "origin",
    "x-request-id",
    "x-api-key",
    "traceparent",
    "content-encoding",
    "expect",
    "cookie",
]

fuzz = settings(
    max_examples=EXAMPLES,
    deadline=None,
    derandomize="ALMANAC_TEST_EXAMPLES"
    not in os.environ,  # the same examples in each run, unless a longer run is requested
    database=None,
    phases=(Phase.explicit, Phase.generate, Phase.shrink),
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture, HealthCheck.data_too_large],
)

text = st.text(st.characters(), max_size=30) | st.sampled_from(["", "\0", "\ud800", "__proto__", "a" * 300, "\u202e"])
numbers = st.integers() | st.integers(-(2**70), 2**70) | st.floats() | st.sampled_from([1e308, -0.0, 2**63, 2**64])
scalars = st.none() | st.booleans() | numbers | text
anything = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(text, inner, max_size=4),
    max_leaves=12,
)
versions = st.sampled_from(["2024-11-05", "2025-03-26", "2025-06-18", LEGACY, MODERN, "2099-01-01", "", "x"])
metas = anything | st.fixed_dictionaries(
    {},
    optional={
        "io.modelcontextprotocol/protocolVersion": versions | anything,
        "io.modelcontextprotocol/clientCapabilities": anything,
        "io.modelcontextprotocol/clientInfo": anything,
        "io.modelcontextprotocol/logLevel": anything,
        "progressToken": anything,
    },
)
arguments = anything | st.fixed_dictionaries({}, optional=dict.fromkeys(["number", "flag", "text", "items"], anything))
params = anything | st.fixed_dictionaries(
    {},
    optional={
        "name": st.sampled_from(TOOLS) | anything,
        "arguments": arguments,
        "_meta": metas,
        "cursor": anything,
        "task": anything,
        "protocolVersion": versions | anything,
        "capabilities": anything,
        "clientInfo": anything,
        "uri": anything,
    },
)
messages = st.fixed_dictionaries(
    {},
    optional={
        "jsonrpc": st.sampled_from(["2.0", "2.0", "2.0", "1.0"]) | anything,
        "id": st.integers(0, 9) | anything,
        "method": st.sampled_from(METHODS) | anything,
        "params": params,
        "result": anything,
        "error": anything,
    },
)
# All bytes that are valid in a header, and some that are not.
header_values = st.binary(max_size=40).map(lambda raw: raw.replace(b"\r", b"").replace(b"\n", b"")) | st.sampled_from(
    [b"application/json", b"*/*", b"text/event-stream", b"tools/call", b"whoami", *(era.encode() for era in ERAS)]
)
headers = st.dictionaries(st.sampled_from(HEADERS), header_values, max_size=5)


@pytest.fixture(scope="module")
def live(new_sqlite: Callable[[], str], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    home = tmp_path_factory.mktemp("home")
    options = {"rate_limit_calls": 0, "request_deadline_seconds": 2.0}
    with running(settings_for(new_sqlite(), home, **options), (*SURFACES, trial.SURFACE)) as server:
        yield server
        # After all inputs: it serves, and no tool failed internally.
        assert {row["outcome"] for row in settled(server)} <= {"ok", "bad_request", "not_found", "unknown_tool"}


def send(live: Running, body: bytes, given: Mapping[str, bytes], path: str) -> Answer:
    sent = {
        "host": b"127.0.0.1",
        "authorization": f"Bearer {live.token}".encode(),
        "content-type": b"application/json",
        "accept": b"application/json",
        "content-length": b"%d" % len(body),
        **given,
        "connection": b"close",
    }
    lines = b"".join(name.encode() + b": " + value + b"\r\n" for name, value in sent.items())
    begun = time.monotonic()
    answer = exchange(live.port, b"POST " + path.encode() + b" HTTP/1.1\r\n" + lines + b"\r\n" + body)
    assert time.monotonic() - begun < SECONDS
    return answer


def assert_sane(live: Running, answer: Answer) -> None:
    assert 200 <= answer.status < 500, answer
    assert b"Traceback" not in answer.body
    assert b"site-packages" not in answer.body
    assert live.token.encode() not in answer.body
    if answer.headers.get("content-type", "").startswith("text/plain"):
        assert (answer.status, answer.body) == (400, b"Invalid HTTP request received.")  # it was not HTTP
    elif answer.headers.get("content-type", "").startswith("text/event-stream"):
        assert answer.body.startswith((b"event: ", b": "))
    elif answer.body:
        told = json.loads(answer.body)
        assert isinstance(told, dict)
        # A JSON-RPC answer has a result or an error; a refusal before that has a code.
        assert {"result", "error"} & told.keys(), told
        assert b"-32603" not in answer.body  # JSON-RPC's internal error, which may come with a 200
        assert b"internal_error" not in answer.body


def as_json(value: Any) -> bytes:
    # With NaN, Infinity and lone surrogates, because the test sends values that the standard forbids.
    return json.dumps(value).encode("utf-8", "surrogatepass")


@fuzz
@given(body=st.binary(max_size=300) | text.map(lambda value: value.encode("utf-8", "surrogatepass")))
@example(body=b"[" * 100_000)
@example(body=b'{"a":' * 5_000)
@example(body=b'"' + b"\\u0000" * 1000 + b'"')
def test_no_body_upsets_the_endpoint(live: Running, body: bytes):
    assert_sane(live, send(live, body, {}, "/mcp"))


@fuzz
@given(message=messages | anything, sent=headers, path=st.sampled_from(["/mcp", PATH]))
def test_no_json_upsets_the_endpoint(live: Running, message: Any, sent: dict[str, bytes], path: str):
    assert_sane(live, send(live, as_json(message), sent, path))


@st.composite
def mutated(draw: st.DrawFn) -> tuple[bytes, dict[str, bytes]]:
    """A valid request of either era with one or a few changes."""
    tool = draw(st.sampled_from(TOOLS))
    method = draw(st.sampled_from(METHODS))
    era = draw(st.sampled_from(ERAS))
    good = {"name": tool, "arguments": {"number": 1}} if method == "tools/call" else {}
    message, sent = request(method, good, era=era)
    for _ in range(draw(st.integers(1, 3))):
        where: dict[str, Any] = message
        while where:
            key = draw(st.sampled_from(sorted(where)))
            if not isinstance(where[key], dict) or not where[key] or draw(st.booleans()):
                if draw(st.booleans()):
                    where[key] = draw(anything)
                else:
                    del where[key]
                break
            where = where[key]
    if draw(st.booleans()) and sent:
        sent[draw(st.sampled_from(sorted(sent)))] = "changed"
    return as_json(message), {name: value.encode() for name, value in sent.items()}


@fuzz
@given(asked=mutated(), path=st.sampled_from(["/mcp", PATH]))
def test_no_change_to_a_request_upsets_the_endpoint(live: Running, asked: tuple[bytes, dict[str, bytes]], path: str):
    body, sent = asked
    assert_sane(live, send(live, body, sent, path))


@fuzz
@given(arguments=arguments, tool=st.sampled_from(TOOLS), era=st.sampled_from(ERAS))
def test_no_arguments_upset_a_tool(live: Running, arguments: Any, tool: str, era: str):
    message, sent = request("tools/call", {"name": tool, "arguments": arguments}, era=era)
    answer = send(live, as_json(message), {name: value.encode() for name, value in sent.items()}, PATH)
    assert_sane(live, answer)
    if answer.status == 200 and "result" in answer.json:
        result = answer.json["result"]
        assert result["isError"] or tool in ("echo", "count", "touch", "recall", "govern")
        if not result["isError"] and tool == "echo":
            # The answer contains exactly the sent values: nothing was converted.
            assert arguments.items() <= result["structuredContent"].items()


@fuzz
@given(
    raw=st.binary(max_size=200),
    begin=st.sampled_from([b"", b"POST /mcp HTTP/1.1\r\n", b"POST /mcp HTTP/1.1\r\nhost: x\r\n"]),
)
def test_no_bytes_upset_the_server(live: Running, raw: bytes, begin: bytes):
    # Two empty lines and a line of no protocol end any earlier input, so that the server can answer.
    answer = exchange(live.port, begin + raw + b"\r\n\r\n\r\n\x00\r\n\r\n")
    assert_sane(live, answer)


def test_the_endpoint_still_serves(live: Running):
    for era in ERAS:
        assert live.call("whoami", era=era)["structuredContent"]["name"] == "admin"
