"""The endpoint: its paths, its metadata, its transport in both eras, and many concurrent callers."""

import asyncio
import json
from typing import Any

import httpx2
import pytest

from almanac.surfaces import contracts
from almanac.surfaces.external.tools import CONTRACT, SURFACE
from tests.live_server import ERAS, MODERN, Running, request, running, settings_for
from tests.surfaces.external.caller import Caller, Town, failed

pytestmark = pytest.mark.xdist_group("external")

TOOLS = [
    "wegent_kb_list_knowledge_bases",
    "wegent_kb_list_nodes",
    "wegent_kb_get_document_content",
    "wegent_kb_get_document_download",
    "wegent_kb_search_content",
]
MOUNTS = ["/mcp/knowledge-external", "/api/mcp/knowledge-external"]


def test_it_is_not_exposed_unless_it_is_enabled(sqlite_home: str, tmp_path: Any):
    with running(settings_for(sqlite_home, tmp_path / "home", api_prefix="/api")) as server:
        for mount in MOUNTS:
            for path in ("", "/", "/health", "/sse", "/documents/1/file"):
                for method in ("GET", "POST"):
                    assert server.http.request(method, mount + path).status_code == 404
        assert "external" not in server.http.get("/").json()["endpoints"]


def test_without_a_prefix_there_is_one_mount(sqlite_home: str, tmp_path: Any):
    with running(settings_for(sqlite_home, tmp_path / "home", external_enabled=True)) as server:
        assert server.http.get(MOUNTS[0]).status_code == 200
        assert server.http.get(MOUNTS[1]).status_code == 404
        assert server.http.get("/").json()["endpoints"]["external"] == SURFACE.path


@pytest.mark.parametrize("mount", MOUNTS)
@pytest.mark.parametrize("slash", ["", "/"])
def test_the_root_says_what_it_is_to_anybody(live: Running, mount: str, slash: str):
    response = live.http.get(mount + slash)
    assert response.status_code == 200
    assert response.json() == {
        "service": "wegent-knowledge-external-mcp",
        "transport": "streamable-http",
        "endpoints": {
            "mcp": f"{mount}/sse",
            "health": f"{mount}/health",
            "document_file": f"{mount}/documents/{{document_id}}/file",
        },
        "tools": TOOLS,
    }


@pytest.mark.parametrize("mount", MOUNTS)
def test_the_health_check_is_open_to_anybody(live: Running, mount: str):
    response = live.http.get(f"{mount}/health")
    assert response.json() == {"status": "healthy", "service": "wegent-knowledge-external-mcp"}
    assert live.http.post(f"{mount}/health").status_code == 405


@pytest.mark.parametrize("path", ["/documents/abc/file", "/documents/1", "/tools", "/sse/more"])
def test_any_other_path_asks_who_is_calling_before_it_says_that_nothing_is_there(town: Town, ada: Caller, path: str):
    anonymous = ada.live.http.get(MOUNTS[0] + path)
    assert (anonymous.status_code, anonymous.json()) == (401, failed("unauthorized", "Authentication required"))
    known = ada.live.http.get(MOUNTS[0] + path, headers={"authorization": f"Bearer {ada.token}"})
    assert known.status_code == 404


@pytest.mark.parametrize("method", ["GET", "DELETE", "OPTIONS", "PUT"])
def test_the_transport_keeps_no_sessions_and_opens_no_streams(town: Town, ada: Caller, method: str):
    path = f"{MOUNTS[0]}/sse"
    assert ada.live.http.request(method, path).status_code == 401
    response = ada.live.http.request(method, path, headers={"authorization": f"Bearer {ada.token}"})
    assert (response.status_code, response.headers["allow"]) == (405, "POST")
    assert response.json()["code"] == "method_not_allowed"


@pytest.mark.parametrize("era", ERAS)
@pytest.mark.parametrize("mount", MOUNTS)
def test_the_tools_are_listed_character_for_character_as_the_contract_has_them(
    town: Town, ada: Caller, mount: str, era: str
):
    response = Caller(ada.live, ada.token, mount).post("tools/list", {}, era=era)
    listed = response.text[response.text.index('"tools":[') + len('"tools":') :]
    written = json.dumps(json.loads(contracts.path(SURFACE).read_text("utf-8")), separators=(",", ":"))
    assert listed.startswith(written)
    assert list(CONTRACT) == TOOLS


def test_it_introduces_itself_by_its_own_name(town: Town, ada: Caller):
    hello = {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "t", "version": "1"}}
    response = ada.post("initialize", hello)
    assert response.headers["content-type"].startswith("application/json")
    assert response.json()["result"]["serverInfo"]["name"] == "wegent-knowledge-external-mcp"
    assert ada.post("server/discover", {}, era=MODERN).status_code == 200


def test_a_strange_host_is_refused(ada: Caller):
    response = ada.post("tools/list", {}, headers={"host": "evil.example"})
    assert (response.status_code, response.json()["code"]) == (421, "invalid_host")


@pytest.mark.parametrize("era", ERAS)
def test_two_hundred_requests_at_once_are_all_answered(town: Town, ada: Caller, era: str):
    """Both ways through the transport: the fast path, and the SDK with its running tasks."""
    asked: list[tuple[str, dict[str, Any]]] = [
        ("tools/call", {"name": "wegent_kb_list_knowledge_bases", "arguments": {}}),
        ("tools/list", {}),
        ("ping", {}) if era != MODERN else ("server/discover", {}),
        ("tools/call", {"name": "wegent_kb_list_nodes", "arguments": {"knowledge_base_id": town["own"]}}),
    ]

    async def one(http: httpx2.AsyncClient, number: int) -> httpx2.Response:
        message, headers = request(*asked[number % len(asked)], era=era, id=number)
        headers |= {"authorization": f"Bearer {ada.token}", "accept": "application/json, text/event-stream"}
        return await http.post(f"{MOUNTS[number % 2]}/sse", json=message, headers=headers)

    async def all_at_once() -> list[httpx2.Response]:
        limits = httpx2.Limits(max_connections=200)
        async with httpx2.AsyncClient(base_url=ada.live.url, timeout=60, limits=limits, verify=False) as http:
            return await asyncio.gather(*(one(http, number) for number in range(200)))

    answers = asyncio.run(all_at_once())
    assert [answer.status_code for answer in answers] == [200] * 200
    assert all("result" in answer.json() for answer in answers)
    assert [answer.json()["id"] for answer in answers] == list(range(200))
