"""The contract: all tools of the seed's document, and those that are served."""

import json
import subprocess
from pathlib import Path

import pytest

from almanac.surfaces import contracts
from almanac.surfaces.knowi.tools import MISSING_TOOLS, SURFACE
from tests.live_server import Running
from tests.surfaces.knowi import seed
from tests.surfaces.knowi.caller import caller

ROOT = Path(__file__).parents[3]
CONTRACT = json.loads(contracts.path(SURFACE).read_text("utf-8"))
MISSING_FILE = "almanac/surfaces/knowi/missing_tools.json"
READING = {
    "ask", "search", "list_dashboards", "get_data", "get_details", "find_widget", "export_pdf", "export_csv",
    "list_alerts", "ask_document", "list_documents", "get_insights",
}  # fmt: skip


def test_the_contract_has_all_tools_in_the_words_of_the_seed():
    assert len(CONTRACT) == 31
    assert [{name: tool[name] for name in ("name", "description", "inputSchema")} for tool in CONTRACT] == seed.tools()


def test_every_tool_has_annotations():
    for tool in CONTRACT:
        hints = tool["annotations"]
        assert hints.keys() == {"readOnlyHint", "destructiveHint", "idempotentHint"}
        is_reading = tool["name"].removeprefix("knowi_") in READING
        assert hints["readOnlyHint"] is is_reading
        assert not (hints["readOnlyHint"] and hints["destructiveHint"])
    by_name = {tool["name"]: tool["annotations"] for tool in CONTRACT}
    assert by_name["knowi_delete"]["destructiveHint"] is by_name["knowi_delete_document"]["destructiveHint"] is True


def test_a_tool_is_either_served_or_listed_as_missing():
    served = [tool.name for tool in SURFACE.operations]
    assert sorted([*served, *MISSING_TOOLS]) == sorted(tool["name"] for tool in CONTRACT)
    assert json.loads((ROOT / MISSING_FILE).read_text()) == [
        tool["name"] for tool in CONTRACT if tool["name"] in MISSING_TOOLS
    ]


def test_the_list_of_missing_tools_only_shrinks():
    log = _git("log", "--format=%H", "--", MISSING_FILE)
    if not log:
        pytest.skip("this folder has no history")
    missing = set(MISSING_TOOLS)
    for commit in log.split():
        earlier = set(json.loads(_git("show", f"{commit}:{MISSING_FILE}")))
        assert missing <= earlier, f"{sorted(missing - earlier)} became missing after {commit[:10]}"
        missing = earlier


def _git(*arguments: str) -> str:
    return subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=False).stdout


def test_the_served_tools_are_those_of_the_contract(live: Running):
    served = [tool for tool in CONTRACT if tool["name"] not in MISSING_TOOLS]
    someone = caller(live, "ada")
    assert someone.send("tools/list").json()["result"]["tools"] == served
    assert someone.rest("GET", "/tools").json() == served
    for tool in served:
        assert someone.rest("GET", f"/tools/{tool['name']}").json() == tool
    health = someone.http.get("/api/2.0/mcp/health").json()
    assert health["toolCount"] == len(served)
    assert health["tools"] == [tool["name"] for tool in served]
