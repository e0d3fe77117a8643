"""Clients that were written for the document: the Python SDK's in both eras, TypeScript's, and bare HTTP."""

import asyncio
import json
import subprocess
from pathlib import Path
from typing import Any

import httpx2
import pytest
from mcp import Client
from mcp.client.streamable_http import streamable_http_client
from mcp.shared._httpx_utils import create_mcp_http_client
from mcp_types import CallToolResult, TextContent

from scripts import conformance
from tests.live_server import LEGACY, MODERN, Running, running, settings_for
from tests.surfaces.external.caller import NO_LIMITS, PATH, TEXTS, Town, failed, found
from tests.surfaces.external.test_endpoint import TOOLS

pytestmark = pytest.mark.xdist_group("external")

REFUSED = failed("bad_request", "max_results must be between 1 and 50")


def node_named(items: list[dict[str, Any]], name: str) -> dict[str, Any]:
    """The node with a name in a tree."""
    waiting = list(items)
    while waiting:
        node = waiting.pop()
        if node["name"] == name:
            return node
        waiting += node["children"]
    raise AssertionError(f"no node {name}")


async def workflow(http: httpx2.AsyncClient, call: Any) -> dict[str, Any]:
    """The workflow of the document: list bases, browse, read by pages, download with the credential, search."""
    bases = await call("list_knowledge_bases", {"query": "manuals"})
    base = bases["items"][0]["knowledge_base_id"]
    tree = await call("list_nodes", {"knowledge_base_id": base, "recursive": True})
    document = node_named(tree["items"], "guide.md")["raw_id"]
    text, more = "", True
    while more:
        page = await call("get_document_content", {"document_id": document, "offset": len(text), "limit": 30})
        text, more = text + page["content"], page["has_more"]
    credential = await call("get_document_download", {"document_id": document})
    file = await http.get(credential["resource_url"], headers=credential["headers"])
    hits = await call("search_content", {"query": "when to oil the pump", "knowledge_base_ids": [base]})
    refused = await call("search_content", {"query": "x", "knowledge_base_ids": [base], "max_results": 51})
    return {
        "document": document,
        "text": text,
        "status": file.status_code,
        "file": file.text,
        "found": hits["records"][0]["document_id"],
        "refused": refused,
    }


def expected(town: Town) -> dict[str, Any]:
    text = TEXTS["guide"]
    return {
        "document": town["guide"], "text": text, "status": 200, "file": text, "found": town["guide"],
        "refused": REFUSED,
    }  # fmt: skip


@pytest.mark.parametrize("mode", ["legacy", MODERN])
def test_the_python_sdk_s_client_runs_the_documented_workflow(town: Town, live: Running, mode: str):
    async def go() -> tuple[str, list[str], dict[str, Any]]:
        headers = {"Authorization": f"Bearer {town.caller('ada').token}"}
        async with create_mcp_http_client(headers=headers) as inner, httpx2.AsyncClient(base_url=live.url) as http:
            transport = streamable_http_client(live.url + PATH, http_client=inner)
            async with Client(transport, mode=mode, read_timeout_seconds=20) as client:

                async def call(tool: str, arguments: dict[str, Any]) -> Any:
                    result = await client.call_tool(f"wegent_kb_{tool}", arguments)
                    assert isinstance(result, CallToolResult)
                    [content] = result.content
                    assert isinstance(content, TextContent)
                    return json.loads(content.text)

                names = [tool.name for tool in (await client.list_tools()).tools]
                return client.protocol_version, names, await workflow(http, call)

    version, names, done = asyncio.run(go())
    assert version == (LEGACY if mode == "legacy" else MODERN)
    assert names == TOOLS
    assert done == expected(town)


@pytest.mark.parametrize(("package", "mode"), [("sdk", "legacy"), ("client", "legacy"), ("client", MODERN)])
def test_the_typescript_client_runs_the_documented_workflow(town: Town, live: Running, package: str, mode: str):
    node = conformance.ensure_node()
    script = Path(__file__).with_name("workflow.mjs")
    token = town.caller("ada").token
    run = subprocess.run(
        [str(node), str(script), str(conformance.MODULES), live.url + PATH, token, package, mode],
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert run.returncode == 0, run.stderr
    done = json.loads(run.stdout)
    assert done.pop("tools") == TOOLS
    assert done == expected(town)


@pytest.mark.parametrize("mount", ["/mcp/knowledge-external", "/api/mcp/knowledge-external"])
def test_bare_http_runs_the_documented_workflow(town: Town, live: Running, mount: str):
    async def go() -> dict[str, Any]:
        async with httpx2.AsyncClient(base_url=live.url, timeout=30) as http:

            async def call(tool: str, arguments: dict[str, Any]) -> Any:
                body = {
                    "jsonrpc": "2.0", "id": 1, "method": "tools/call",
                    "params": {"name": f"wegent_kb_{tool}", "arguments": arguments},
                }  # fmt: skip
                token = town.caller("ada").token
                response = await http.post(f"{mount}/sse", json=body, headers={"Authorization": f"Bearer {token}"})
                return json.loads(response.json()["result"]["content"][0]["text"])

            return await workflow(http, call)

    assert asyncio.run(go()) == expected(town)


def test_the_default_limits_leave_room_for_the_workflow(sqlite_home: str, tmp_path: Path):
    on = dict.fromkeys(NO_LIMITS, True)
    with running(settings_for(sqlite_home, tmp_path / "home", embedding=False, **on)) as server:
        town = server.run(lambda db: found(server, db))
        server.work()
        ada = town.caller("ada")
        assert ada.redeem(ada.download(document_id=town["guide"])).status_code == 200
