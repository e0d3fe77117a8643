"""The MCP endpoint: its fast path gives the SDK's answers; other methods, request ids, limits and cancellation."""

import json
import re
import socket
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import httpx2
import pytest

from almanac import app
from almanac.surfaces.almanac.tools import SURFACE
from almanac.surfaces.mcp_endpoint import McpEndpoint
from almanac.surfaces.sdk_server import SdkServer
from tests.live_server import ERAS, LEGACY, MODERN, SURFACES, Running, request, running, settings_for
from tests.surfaces import trial
from tests.surfaces.trial import PATH, WATCHED
from tests.surfaces.wire import audit_of, beside, exchange, http, rpc
from tests.waiting import wait_until

BOTH = (*SURFACES, trial.SURFACE)
GUIDED = {
    *("search", "fetch", "read_document", "list_bases", "browse", "find_entities", "browse_categories", "recall"),
    *("remember", "whoami", "find_datasets", "query_data"),
}
VERSIONS = ("2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25", "2026-07-28", None)
CAPABILITIES = {
    "prompts": {"listChanged": False},
    "resources": {"listChanged": False, "subscribe": False},
    "tools": {"listChanged": False},
}


class SdkOnlyEndpoint(McpEndpoint):
    """An endpoint without the fast path.

    `_version` chooses the fast path: with None, the SDK answers. A change to the request with the same effect would
    compare the answers to two different requests.
    """

    def _version(self, message: dict[str, Any], method: Any, headers: dict[bytes, bytes]) -> str | None:
        return None


@pytest.fixture(scope="module")
def live(new_sqlite: Callable[[], str], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    settings = settings_for(
        new_sqlite(), tmp_path_factory.mktemp("home"), api_prefix="/api", request_deadline_seconds=2
    )
    with running(settings, BOTH) as server:
        yield server


@pytest.fixture(scope="module")
def sdk(live: Running) -> Iterator[Running]:
    """A second server with all answers from the SDK."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(app, "McpEndpoint", SdkOnlyEndpoint)
        with beside(live, BOTH) as server:
            yield server


def ask(server: Running, version: str | None, method: str, params: Mapping[str, Any], **how: Any) -> httpx2.Response:
    message, headers = request(method, params, era=version or LEGACY)
    if version is None:
        del headers["mcp-protocol-version"]
    sent = {**headers, "x-request-id": "same", "authorization": f"Bearer {server.token}", **how.pop("headers", {})}
    return server.post(json.dumps(message), sent, how.pop("path", PATH))


def call(name: str, **arguments: Any) -> tuple[str, dict[str, Any]]:
    return "tools/call", {"name": name, "arguments": arguments}


# --- the fast path and the SDK -----------------------------------------------------------------------------


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize(
    ("method", "params"),
    [
        ("tools/list", {}),
        ("tools/list", {"_meta": {"progressToken": 7}}),
        call("echo", number=1, flag=True, text='{"a":1}', items=[1, 2]),
        call("echo", number=2**53, text="ünïcode \u2028 \U0001f600"),
        ("tools/call", {"name": "count"}),
        ("tools/call", {"name": "count", "arguments": {}, "_meta": {"progressToken": "p", "x/y": [1]}}),
        call("fail"),
        call("echo", number="1"),
        call("echo"),
        call("count", surplus=1),
        call("nope"),
        call(""),
    ],
    ids=lambda value: str(value)[:40],
)
def test_the_fast_path_answers_as_the_sdk_does(
    live: Running, sdk: Running, version: str | None, method: str, params: dict[str, Any]
):
    fast, slow = ask(live, version, method, params), ask(sdk, version, method, params)
    assert (fast.status_code, fast.json()) == (slow.status_code, slow.json())
    kept = ("content-type", "x-request-id")
    assert [fast.headers[name] for name in kept] == [slow.headers[name] for name in kept]


@pytest.mark.parametrize("version", VERSIONS)
def test_whoami_is_the_same_on_both_paths(live: Running, sdk: Running, version: str | None):
    fast, slow = (ask(server, version, *call("whoami"), path="/mcp").json()["result"] for server in (live, sdk))
    for result in (fast, slow):
        me = json.loads(result["content"][0].pop("text"))
        assert me.pop("rate_limit")["limit"] == 100_000
        result["content"][0]["text"] = me
        assert result.pop("structuredContent").items() >= me.items()
    assert fast == slow
    assert fast["content"][0]["text"]["name"] == "admin"


def test_the_comparison_has_two_sides(live: Running, sdk: Running, monkeypatch: pytest.MonkeyPatch):
    # Without the fast path, a call would reach the SDK, and the comparison above would compare the SDK with itself.
    handed_over: list[int] = []
    handle = SdkServer.handle

    async def counted(server: SdkServer, *args: Any) -> None:
        handed_over.append(1)
        await handle(server, *args)

    monkeypatch.setattr(SdkServer, "handle", counted)
    for version in VERSIONS:
        for method, params in (("tools/list", {}), call("count"), call("fail"), call("nope")):
            ask(live, version, method, params)
    assert handed_over == []
    ask(sdk, LEGACY, "tools/list", {})
    assert handed_over == [1]


# --- the other methods -------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", ["2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25"])
def test_initialize_agrees_on_the_version_asked_for(live: Running, version: str):
    hello = {"protocolVersion": version, "capabilities": {}, "clientInfo": {"name": "test", "version": "1"}}
    answer = ask(live, None, "initialize", hello, path="/mcp").json()["result"]
    assert answer["protocolVersion"] == version
    assert answer["serverInfo"]["name"] == "almanac"
    assert answer["capabilities"] == CAPABILITIES
    assert answer["instructions"].startswith("Almanac contains the knowledge of this organisation. ")


@pytest.mark.parametrize("scope", [["knowledge:read"], ["catalogue:read"], ["memory:read", "memory:write"], []])
@pytest.mark.parametrize("tools", [[], ["fetch", "recall"], ["whoami"]])
def test_instructions_name_only_tools_that_the_caller_has(live: Running, scope: list[str], tools: list[str]):
    everything = {tool.name for tool in SURFACE.operations}
    token = live.new_token("instructed", scope=scope, tools=tools)
    listed = {each["name"] for each in live.rpc("tools/list", token=token).json()["result"]["tools"]}
    hello = {"protocolVersion": LEGACY, "capabilities": {}, "clientInfo": {"name": "test", "version": "1"}}
    for method, params, era in (("initialize", hello, LEGACY), ("server/discover", {}, MODERN)):
        instructions = live.rpc(method, params, era=era, token=token).json()["result"]["instructions"]
        assert everything & set(re.findall(r"[a-z_]+", instructions)) == listed & GUIDED, instructions


def test_initialize_offers_the_newest_version_to_a_client_from_the_future(live: Running):
    hello = {"protocolVersion": "2099-01-01", "capabilities": {}, "clientInfo": {"name": "test", "version": "1"}}
    assert ask(live, None, "initialize", hello).json()["result"]["protocolVersion"] == LEGACY


def test_ping_is_answered(live: Running):
    assert ask(live, LEGACY, "ping", {}).json() == {"jsonrpc": "2.0", "id": 1, "result": {}}


def test_server_discover_says_what_is_here(live: Running):
    answer = ask(live, MODERN, "server/discover", {}, path="/mcp")
    result = answer.json()["result"]
    assert answer.status_code == 200
    assert result["supportedVersions"] == [MODERN]
    assert result["capabilities"] == CAPABILITIES
    assert (result["ttlMs"], result["cacheScope"], result["resultType"]) == (60_000, "private", "complete")
    assert result["instructions"].startswith("Almanac contains the knowledge of this organisation. ")


@pytest.mark.parametrize("era", ERAS)
def test_every_surface_is_also_served_below_the_prefix(live: Running, era: str):
    for path in ("/mcp", PATH):
        here, there = (ask(live, era, "tools/list", {}, path=prefix + path) for prefix in ("", "/api"))
        assert (here.status_code, here.json()) == (there.status_code, there.json())
        assert len(here.json()["result"]["tools"]) > 1
    assert live.rpc("tools/list", path="/api/nope").status_code == 404


# --- request ids -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", ["tools/call", "tools/list", "ping", "no/such"])
def test_a_sane_request_id_is_given_back(live: Running, method: str):
    params = {"name": "count"} if method == "tools/call" else {}
    for sane in ("a", "4bf92f3577b34da6a3ce929d0e0e4736", "A.b_c-9", "x" * 64):
        assert live.rpc(method, params, path=PATH, headers={"x-request-id": sane}).headers["x-request-id"] == sane


@pytest.mark.parametrize("strange", ["", "x" * 65, "a b", "a/b", "\xe9", "<script>", "a;b", 'a"b'])
def test_a_strange_request_id_is_replaced(live: Running, strange: str):
    raw = http(rpc("ping"), x_request_id=strange.encode("latin-1")).replace(b"@TOKEN@", live.token.encode())
    given = [exchange(live.port, raw).headers["x-request-id"] for _ in range(2)]
    assert all(len(one) < 30 and one != strange for one in given)
    assert given[0] != given[1]


def test_refusals_have_a_request_id_too(live: Running):
    sent = {"x-request-id": "mine"}
    refused = [
        live.post("{", sent),
        live.post("{}", {**sent, "authorization": "Bearer no"}),
        live.post("{}", {**sent, "origin": "https://evil.example"}),
        live.post("{}", {**sent, "content-type": "text/plain"}),
        live.http.put("/mcp", headers={**sent, "authorization": f"Bearer {live.token}"}),
        live.rpc("no/such", era=MODERN, headers=sent),
    ]
    assert [answer.status_code for answer in refused] == [400, 401, 403, 415, 405, 404]
    assert [answer.headers.get_list("x-request-id") for answer in refused] == [["mine"]] * 6


def test_the_request_id_is_the_one_in_the_audit_trail(live: Running):
    given = live.rpc("tools/call", {"name": "count"}, path=PATH).headers["x-request-id"]
    [row] = audit_of(live, given)
    assert (row["surface"], row["tool"], row["outcome"]) == ("trial", "count", "ok")


# --- size and time -----------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def small(live: Running) -> Iterator[Running]:
    """A second server with a small body limit and a short deadline."""
    with beside(live, BOTH, max_body_bytes=1024, request_deadline_seconds=0.2) as server:
        yield server


@pytest.mark.parametrize("method", ["tools/call", "tools/list", "ping"])
def test_the_body_cap_is_the_setting_and_exact(small: Running, method: str):
    body = rpc(method)
    assert small.post(body + b" " * (1024 - len(body))).status_code == 200
    refused = small.post(body + b" " * (1025 - len(body)))
    assert (refused.status_code, refused.json()["error"]["data"]["code"]) == (413, "too_large")
    assert refused.json()["error"]["message"].endswith("Send at most 1024 bytes.")


@pytest.mark.parametrize("era", ERAS)
def test_a_tool_that_takes_too_long_is_stopped_and_says_so(small: Running, era: str):
    WATCHED.cancelled_at = None
    begun = time.monotonic()
    result = small.call("slow", {"seconds": 30.0}, era=era, path=PATH, headers={"x-request-id": f"late-{era}"})
    assert 0.2 <= time.monotonic() - begun < 2
    assert result["isError"] is True
    assert result["content"][0]["text"] == (
        "deadline_exceeded: The call took longer than this server allows and was stopped. "
        "Ask for less at once (a smaller page, a narrower query) and call again."
    )
    assert WATCHED.cancelled_at is not None
    [row] = audit_of(small, f"late-{era}")
    assert (row["outcome"], row["tool"]) == ("deadline_exceeded", "slow")
    # The deadline of 0.2 s begins before the credential is checked, and the record opens after it.
    assert 190_000 <= row["duration_us"] < 2_000_000


def test_a_tool_that_stays_within_its_time_is_left_alone(small: Running):
    assert small.call("slow", {"seconds": 0.12}, path=PATH)["structuredContent"] == {"done": True}


@pytest.mark.parametrize("pause", [0.0, 0.15], ids=["at once", "slowly"])
@pytest.mark.parametrize("era", ERAS)
def test_a_tool_is_cancelled_when_its_caller_hangs_up(live: Running, era: str, pause: float):
    WATCHED.begun.clear()
    WATCHED.cancelled_at = None
    message, headers = request("tools/call", {"name": "slow", "arguments": {"seconds": 1.9}}, era=era)
    sent: dict[str, Any] = {name.replace("-", "_"): value.encode() for name, value in headers.items()}
    name = f"{era}-{pause}"
    raw = http(json.dumps(message).encode(), first=f"POST {PATH} HTTP/1.1".encode(), x_request_id=name.encode(), **sent)
    raw = raw.replace(b"@TOKEN@", live.token.encode())
    with socket.create_connection(("127.0.0.1", live.port)) as connection:
        connection.sendall(raw[:-20])
        time.sleep(pause)  # a slow body must not stop the server from noticing a disconnect
        connection.sendall(raw[-20:])
        assert WATCHED.begun.wait(5)
    hung_up = time.monotonic()
    stopped = wait_until(lambda: WATCHED.cancelled_at, lambda at: at is not None, seconds=1.5)
    assert stopped is not None
    assert stopped - hung_up < 0.5
    [row] = audit_of(live, name)
    assert (row["tool"], row["outcome"]) == ("slow", "cancelled")


def test_a_caller_who_sends_the_next_request_early_is_not_taken_for_gone(live: Running):
    message, _ = request("tools/call", {"name": "slow", "arguments": {"seconds": 0.2}})
    first = http(json.dumps(message).encode(), first=f"POST {PATH} HTTP/1.1".encode(), connection=b"keep-alive")
    answers = exchange(live.port, (first + http(rpc("ping"))).replace(b"@TOKEN@", live.token.encode()))
    assert answers.body.count(b'"jsonrpc":"2.0"') == 2
    assert b'"structuredContent":{"done":true}' in answers.body


def test_a_crash_inside_a_tool_says_nothing_of_the_cause(live: Running):
    result = live.call("crash", path=PATH, headers={"x-request-id": "crashed"})
    assert result == {
        "content": [
            {
                "type": "text",
                "text": "internal_error: Internal error. Your arguments are not the cause; "
                "try once more, then give an operator the request id crashed.",
            }
        ],
        "isError": True,
    }
    assert audit_of(live, "crashed")[0]["outcome"] == "internal_error"


# --- strict arguments --------------------------------------------------------------------------------------

TAKES = "It takes: number, flag (optional), text (optional), items (optional)."


@pytest.mark.parametrize("era", ERAS)
@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        ({"number": "10"}, "number: Input should be a valid integer."),
        ({"number": True}, "number: Input should be a valid integer."),
        ({"number": 1.0}, "number: Input should be a valid integer."),
        ({"number": 1.5}, "number: Input should be a valid integer."),
        ({"number": None}, "number: Input should be a valid integer."),
        ({"number": [1]}, "number: Input should be a valid integer."),
        ({}, "number: Field required."),
        ({"number": 1, "flag": "false"}, "flag: Input should be a valid boolean."),
        ({"number": 1, "flag": 0}, "flag: Input should be a valid boolean."),
        ({"number": 1, "flag": None}, "flag: Input should be a valid boolean."),
        ({"number": 1, "text": 5}, "text: Input should be a valid string."),
        ({"number": 1, "text": {"a": 1}}, "text: Input should be a valid string."),
        ({"number": 1, "items": "[1]"}, "items: Input should be a valid list."),
        ({"number": 1, "items": {"0": 1}}, "items: Input should be a valid list."),
        ({"number": 1, "items": [1, "2"]}, "items.1: Input should be a valid integer."),
        ({"number": 1, "items": [True]}, "items.0: Input should be a valid integer."),
        ({"number": 1, "Number": 2}, "Number: is not an argument of this operation."),
        (
            {"number": "1", "flag": 1},
            "number: Input should be a valid integer; flag: Input should be a valid boolean.",
        ),
    ],
    ids=lambda value: str(value)[:40],
)
def test_arguments_are_never_converted_and_the_error_names_the_one(
    live: Running, era: str, arguments: dict[str, Any], problem: str
):
    result = live.call("echo", arguments, era=era, path=PATH)
    assert result["isError"] is True
    assert result["content"] == [{"type": "text", "text": f"bad_request: {problem} {TAKES}"}]


@pytest.mark.parametrize("era", ERAS)
@pytest.mark.parametrize("text", ['{"a":1}', "[1,2]", "10", "true", "null", "", None, "NaN"], ids=repr)
def test_text_that_looks_like_json_stays_text(live: Running, era: str, text: str | None):
    result = live.call("echo", {"number": 1, "text": text}, era=era, path=PATH)
    assert result["structuredContent"] == {"number": 1, "flag": False, "text": text, "items": []}
    assert json.loads(result["content"][0]["text"]) == result["structuredContent"]


@pytest.mark.parametrize("where", ["io.modelcontextprotocol/clientCapabilities", "x"])
def test_an_envelope_nested_deeper_than_we_write_is_still_read(live: Running, where: str):
    deep: dict[str, Any] = {}
    for _ in range(400):
        deep = {"a": deep}
    response = live.rpc("tools/call", {"name": "whoami", "arguments": {}, "_meta": {where: deep}}, era="2026-07-28")
    assert response.status_code in (200, 400)
    assert "Internal" not in response.text
