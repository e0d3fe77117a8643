"""Real clients: the Python SDK's over HTTP and stdio, in both eras, and the Inspector's command line."""

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from mcp import Client, MCPError, StdioServerParameters
from mcp.client.streamable_http import streamable_http_client
from mcp.shared._httpx_utils import create_mcp_http_client
from mcp_types import CallToolResult, TextContent, TextResourceContents

from almanac.app import SURFACES
from almanac.core import scopes
from almanac.identity import tokens
from almanac.surfaces import dispatcher
from scripts import conformance
from tests.live_server import LEGACY, MODERN, Running, request, running, settings_for

MODES = {
    "legacy": LEGACY,
    "auto": MODERN,
    MODERN: MODERN,
}  # connection mode of a client: the resulting protocol version
TOOLS = [tool.name for tool in SURFACES[0].operations]
AGENTS_TOOLS = [tool.name for tool in SURFACES[0].operations if tool.scopes <= scopes.DEFAULT_AGENT_SCOPES]


@pytest.fixture(scope="module")
def live(new_sqlite: Callable[[], str], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    with running(settings_for(new_sqlite(), tmp_path_factory.mktemp("home"))) as server:
        yield server


def structured(result: Any) -> dict[str, Any]:
    assert isinstance(result, CallToolResult)
    [content] = result.content
    assert isinstance(content, TextContent)
    assert result.is_error is False
    assert json.loads(content.text) == result.structured_content
    assert result.structured_content is not None
    return result.structured_content


# --- over HTTP ---------------------------------------------------------------------------------------------


@asynccontextmanager
async def connected(live: Running, mode: str, token: str | None = None) -> AsyncGenerator[Client]:
    headers = {"Authorization": f"Bearer {token or live.token}"}
    async with create_mcp_http_client(headers=headers) as http:
        transport = streamable_http_client(f"{live.url}/mcp", http_client=http)
        async with Client(transport, mode=mode, read_timeout_seconds=10) as client:
            yield client


@pytest.mark.parametrize("mode", MODES)
async def test_the_sdks_client_lists_and_calls_our_tools(live: Running, mode: str):
    async with connected(live, mode) as client:
        assert client.protocol_version == MODES[mode]
        listed = await client.list_tools()
        assert [tool.name for tool in listed.tools] == TOOLS
        assert structured(await client.call_tool("whoami"))["name"] == "admin"
        assert structured(await client.call_tool("server_status", {}))["status"] == "ok"
        refused = await client.call_tool("whoami", {"surplus": 1})
        assert isinstance(refused, CallToolResult)
        assert refused.is_error is True
        with pytest.raises(MCPError, match="Unknown tool: never-was"):
            await client.call_tool("never-was", {})


@pytest.mark.parametrize("mode", MODES)
async def test_the_sdks_client_pages_through_the_resources_and_reads_them(
    live: Running, mode: str, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(dispatcher, "MAX_LISTED_RESOURCES", 1)
    async with connected(live, mode) as client:
        for title in ("First", "Second", "Third"):
            await client.call_tool("remember", {"title": title, "body": f"{title} of three."})
        names: list[str] = []
        cursor = None
        while cursor is not None or not names:
            page = await client.list_resources(cursor=cursor)
            names += [resource.name for resource in page.resources]
            [content] = (await client.read_resource(page.resources[0].uri)).contents
            assert isinstance(content, TextResourceContents)
            assert content.text == f"{names[-1]} of three."
            cursor = page.next_cursor
        assert names[:3] == ["Third", "Second", "First"]
        with pytest.raises(MCPError, match="Unknown cursor"):
            await client.list_resources(cursor="made-up")


@pytest.mark.parametrize("mode", MODES)
async def test_the_sdks_client_hears_of_a_revocation_at_its_next_call(live: Running, mode: str):
    token = await asyncio.to_thread(live.new_token, "client")
    async with connected(live, mode, token) as client:
        number = structured(await client.call_tool("whoami"))["token"]["id"]
        await asyncio.to_thread(live.run, lambda db: db.write(lambda tx: tokens.revoke(tx, number)))
        with pytest.raises(MCPError):
            await client.call_tool("whoami")


# --- over stdio --------------------------------------------------------------------------------------------


def environment(live: Running, **more: str) -> dict[str, str]:
    settings = live.settings
    return {
        "ALMANAC_HOME": str(settings.home),
        "ALMANAC_DATABASE_URL": settings.database_url,
        "PYTHONPATH": str(conformance.ROOT),
        **more,
    }


def launched(live: Running, token: str, **more: str) -> StdioServerParameters:
    command = ["-m", "almanac", "stdio", "--token", token]
    return StdioServerParameters(command=sys.executable, args=command, env=environment(live, **more))


@pytest.mark.parametrize("mode", MODES)
async def test_the_sdks_client_launches_us_and_calls_our_tools(live: Running, mode: str):
    token = await asyncio.to_thread(live.new_token, "launcher", kind="agent")
    async with Client(launched(live, token), mode=mode, read_timeout_seconds=20) as client:
        assert client.protocol_version == MODES[mode]
        assert [tool.name for tool in (await client.list_tools()).tools] == AGENTS_TOOLS
        me = structured(await client.call_tool("whoami"))
        assert (me["name"], me["kind"]) == ("launcher", "agent")
        await asyncio.to_thread(live.run, lambda db: db.write(lambda tx: tokens.revoke(tx, me["token"]["id"])))
        with pytest.raises(MCPError, match="No valid token came with this request"):
            await client.call_tool("whoami")
        with pytest.raises(MCPError, match="No valid token came with this request"):
            await client.list_tools(cache_mode="bypass")


@pytest.mark.parametrize("level", ["debug", "error"])
@pytest.mark.parametrize("era", [LEGACY, MODERN])
def test_nothing_but_protocol_reaches_standard_output(live: Running, level: str, era: str):
    hello = {"protocolVersion": LEGACY, "capabilities": {}, "clientInfo": {"name": "test", "version": "1"}}
    asked: list[tuple[str, dict[str, Any]]] = [
        *([("initialize", hello)] if era == LEGACY else []),
        ("tools/list", {}),
        ("tools/call", {"name": "whoami", "arguments": {}}),
        ("tools/call", {"name": "whoami", "arguments": {"surplus": "x"}}),
        ("tools/call", {"name": "never-was", "arguments": {}}),
        ("no/such", {}),
    ]
    lines = [json.dumps(request(method, params, era=era, id=n)[0]) for n, (method, params) in enumerate(asked)]
    if era == LEGACY:
        lines.insert(1, json.dumps({"jsonrpc": "2.0", "method": "notifications/initialized"}))
    run = _talk(live, [*lines, "this is not JSON", '{"jsonrpc":"2.0"}', ""], level)
    assert run.returncode == 0, run.stderr
    answers = [json.loads(line) for line in run.stdout.splitlines()]  # every line is a message, or this fails
    assert all(answer["jsonrpc"] == "2.0" for answer in answers)
    by_id = {answer["id"]: answer for answer in answers if answer.get("id") is not None}
    assert by_id.keys() == set(range(len(asked)))
    called = [by_id[n] for n, (method, _) in enumerate(asked) if method == "tools/call"]
    assert [called[0]["result"]["isError"], called[1]["result"]["isError"]] == [False, True]
    assert called[2]["error"]["message"] == "Unknown tool: never-was. The tools you can call are those of tools/list."
    assert live.token not in run.stdout
    assert live.token not in run.stderr
    assert "Traceback" not in run.stderr


LOGGING = """
import logging, structlog, warnings
from almanac.bootstrap import configure_logs, load_settings
configure_logs(load_settings().settings)
structlog.get_logger("ours").debug("of our own")
logging.getLogger("theirs").warning("of a library")
warnings.warn("of Python")
"""


@pytest.mark.parametrize("form", ["json", "text"])
def test_logs_of_every_kind_go_to_standard_error(live: Running, form: str):
    # As `stdio` sets them up. Without an error nothing is logged, so the test logs a line.
    env = os.environ | environment(live, ALMANAC_LOG_LEVEL="debug", ALMANAC_LOG_FORMAT=form)
    run = subprocess.run([sys.executable, "-c", LOGGING], capture_output=True, text=True, env=env, check=True)
    assert run.stdout == ""
    assert [words for words in ("of our own", "of a library", "of Python") if words not in run.stderr] == []


def _talk(live: Running, lines: list[str], level: str) -> subprocess.CompletedProcess[str]:
    """Send all messages, read all answers, then close: the server answers until its input ends."""
    command = [sys.executable, "-m", "almanac", "stdio", "--token", live.token]
    process = subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | environment(live, ALMANAC_LOG_LEVEL=level),
    )
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write("".join(line + "\n" for line in lines))
    process.stdin.flush()
    expected = {
        n for n in (json.loads(line).get("id") for line in lines if line.startswith('{"jsonrpc": ')) if n is not None
    }
    heard: list[str] = []
    while expected:
        line = process.stdout.readline()
        assert line, f"the output ended with {expected} unanswered: {process.communicate()[1]}"
        heard.append(line)
        expected.discard(json.loads(line).get("id") if line.startswith("{") else None)
    rest, errors = process.communicate(timeout=20)
    return subprocess.CompletedProcess(command, process.returncode, "".join(heard) + rest, errors)


def test_a_useless_token_is_refused_before_anything_is_said(live: Running):
    command = [sys.executable, "-m", "almanac", "stdio", "--token", "wg-" + "A" * 43]
    run = subprocess.run(
        command, input="", capture_output=True, text=True, timeout=30, env=os.environ | environment(live), check=False
    )
    assert (run.returncode, run.stdout) == (1, "")
    assert "No valid token came with this request." in run.stderr
    assert "almanac token add USER" in run.stderr
    assert "Traceback" not in run.stderr


def test_calls_over_stdio_are_audited(live: Running):
    before = live.run(lambda db: db.fetch("SELECT 1 FROM audit WHERE request_id LIKE 'stdio-%'"))
    hello = {"protocolVersion": LEGACY, "capabilities": {}, "clientInfo": {"name": "test", "version": "1"}}
    lines = [request("initialize", hello, id=0)[0], request("tools/call", {"name": "server_status"}, id=1)[0]]
    assert _talk(live, [json.dumps(line) for line in lines], "error").returncode == 0
    rows = live.run(
        lambda db: db.fetch("SELECT tool, outcome, surface FROM audit WHERE request_id LIKE 'stdio-%' ORDER BY id")
    )
    assert len(rows) == len(before) + 1
    assert (rows[-1]["tool"], rows[-1]["outcome"], rows[-1]["surface"]) == ("server_status", "ok", "almanac")


# --- the Inspector -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("era", ["legacy", "modern"])
def test_the_inspector_lists_and_calls_our_tools(live: Running, era: str):
    conformance.ensure_node()
    headers = {"Authorization": f"Bearer {live.token}"}
    listed = conformance.run_inspector(f"{live.url}/mcp", "tools/list", headers=headers, era=era)
    assert [tool["name"] for tool in listed["result"]["tools"]] == TOOLS
    options = ("--tool-name", "whoami", "--tool-args-json", "{}")
    called = conformance.run_inspector(f"{live.url}/mcp", "tools/call", *options, headers=headers, era=era)
    assert called["result"]["structuredContent"]["name"] == "admin"


def test_the_inspector_is_refused_without_a_token(live: Running):
    assert "result" not in conformance.run_inspector(f"{live.url}/mcp", "tools/list")
