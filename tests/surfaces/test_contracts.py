"""The contracts: the served tools equal the committed files, and the tool list is small enough for an agent."""

import json
import re
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from almanac.app import SURFACES
from almanac.surfaces import contracts
from almanac.surfaces.almanac import tools as almanac_surface
from almanac.surfaces.surface import Surface
from tests.live_server import ERAS, LEGACY, Running, running, settings_for
from tests.surfaces.gateway.caller import Caller

# A call of each tool, to check its answer against its schema. A tool that is missing here fails a test below.
EXAMPLES: dict[str, dict[str, dict[str, Any]]] = {
    "almanac": {"whoami": {}, "server_status": {}, "list_bases": {}, "browse_categories": {}},
    "external": {},  # its answers are texts; tests/surfaces/external checks them against their document
    "gateway": {},
    "knowi": {},  # the seed has no schemas of answers
    "memory": {"search_knowledge": {"query": "anything"}},
}
# Tools that need stored data, and the test that checks their answers against their schemas.
ELSEWHERE: dict[str, set[str]] = {
    "almanac": {tool.name for tool in almanac_surface.SURFACE.operations}
    - {"whoami", "server_status", "list_bases", "browse_categories"},
    "external": set(),
    "gateway": set(),
    "knowi": set(),
    "memory": {"store_knowledge", "supersede_knowledge"},
}  # test_search_tools, test_knowledge_tools, test_catalogue_tools, test_memory_tools, test_memory

each_surface = pytest.mark.parametrize("surface", SURFACES, ids=lambda surface: surface.name)


@pytest.fixture(scope="module")
def live(new_sqlite: Callable[[], str], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    options = {"external_enabled": True, "external_rate_limit_requests": 100_000}
    with running(settings_for(new_sqlite(), tmp_path_factory.mktemp("home"), **options)) as server:
        yield server


def listed(live: Running, surface: Surface, era: str = LEGACY) -> list[dict[str, Any]]:
    headers = Caller.connect(live).headers if surface.name == "gateway" and era == LEGACY else {}
    return live.rpc("tools/list", era=era, path=surface.path, headers=headers).json()["result"]["tools"]


def almanacs_tools(live: Running) -> list[dict[str, Any]]:
    [surface] = [surface for surface in SURFACES if surface.name == "almanac"]
    return listed(live, surface)


@each_surface
@pytest.mark.parametrize("era", ERAS)
def test_the_wire_is_the_contract(live: Running, surface: Surface, era: str):
    assert listed(live, surface, era) == contracts.committed_tools(surface)


def test_every_surface_has_a_contract_and_no_contract_lacks_its_surface():
    folder = contracts.path(SURFACES[0]).parent.parent
    assert {file.parent.name for file in folder.glob("*/contract.json")} == {surface.name for surface in SURFACES}


def test_differences_are_found(tmp_path: Any, monkeypatch: pytest.MonkeyPatch):
    assert contracts.differences(SURFACES) == {}
    file = tmp_path / "contract.json"
    monkeypatch.setattr(contracts, "path", lambda _: file)  # pyright: ignore[reportUnknownLambdaType,reportUnknownArgumentType]
    contracts.write(SURFACES[0])
    assert contracts.differences(SURFACES[:1]) == {}
    tools = json.loads(file.read_text("utf-8"))
    tools[0]["description"] += " "
    file.write_text(json.dumps(tools), "utf-8")
    assert contracts.differences(SURFACES[:1]) == {SURFACES[0].name: [tools[0]["name"]]}
    file.write_text(json.dumps(contracts.served_tools(SURFACES[0])[::-1]), "utf-8")
    assert contracts.differences(SURFACES[:1]) == {SURFACES[0].name: ["(order)"]}
    file.unlink()
    assert contracts.differences(SURFACES[:1]) == {SURFACES[0].name: [tool.name for tool in SURFACES[0].operations]}


@pytest.mark.parametrize(("toolsets", "tokens"), [("knowledge,catalogue,memory", 6000), ("data", 3000)])
def test_the_list_of_a_toolset_costs_an_agent_a_bounded_number_of_tokens(live: Running, toolsets: str, tokens: int):
    [surface] = [surface for surface in SURFACES if surface.name == "almanac"]
    answer = live.rpc("tools/list", path=surface.path, headers={"x-mcp-toolsets": toolsets}).json()
    # About four characters to a token, in the compact form that a client sends to its model.
    assert len(json.dumps(answer["result"]["tools"], separators=(",", ":"))) / 4 <= tokens


def test_a_tool_of_another_toolset_is_neither_listed_nor_called(live: Running):
    headers = {"x-mcp-toolsets": "memory"}
    names = [tool["name"] for tool in live.rpc("tools/list", headers=headers).json()["result"]["tools"]]
    assert "recall" in names and "whoami" in names and "search" not in names
    call = {"name": "search", "arguments": {"query": "pump"}}
    assert "result" not in live.rpc("tools/call", call, headers=headers).json()
    refused = live.rpc("tools/list", headers={"x-mcp-toolsets": "memory,boards"})
    assert refused.status_code == 400
    assert "The toolsets are: knowledge, catalogue, memory, data." in refused.text


def test_every_argument_of_our_own_tools_is_described_and_in_snake_case(live: Running):
    for tool in almanacs_tools(live):
        for name, schema in tool["inputSchema"]["properties"].items():
            assert re.fullmatch(r"[a-z][a-z0-9]*(_[a-z0-9]+)*", name), (tool["name"], name)
            assert _is_a_description(schema), (tool["name"], name, schema.get("description"))


def _is_a_description(schema: dict[str, Any]) -> bool:
    """Whether a schema has a description that is more than a word."""
    return len(schema.get("description", "").split()) >= 2


@each_surface
def test_every_tool_says_what_an_agent_needs_to_choose_it(live: Running, surface: Surface):
    tools = listed(live, surface)
    assert tools
    assert len({tool["name"] for tool in tools}) == len(tools)
    for tool in tools:
        assert re.fullmatch(r"[a-z][a-z0-9]*([_-][a-z0-9]+)*", tool["name"])
        assert len(tool["description"]) >= 40
        assert tool["inputSchema"]["type"] == "object"
        Draft202012Validator.check_schema(tool["inputSchema"])


def test_our_own_tools_declare_their_effects_and_their_answers(live: Running):
    hints = {"readOnlyHint", "destructiveHint", "openWorldHint"}
    for tool in almanacs_tools(live):
        assert tool["title"]
        changes = not tool["annotations"]["readOnlyHint"]
        assert tool["annotations"].keys() == (hints | {"idempotentHint"} if changes else hints)
        assert all(isinstance(value, bool) for value in tool["annotations"].values())
        assert tool["inputSchema"]["additionalProperties"] is False
        assert tool["outputSchema"]["type"] == "object"
        Draft202012Validator.check_schema(tool["outputSchema"])


@each_surface
def test_every_tool_with_an_answers_schema_has_an_example(live: Running, surface: Surface):
    promised = {tool["name"] for tool in listed(live, surface) if "outputSchema" in tool}
    assert EXAMPLES[surface.name].keys() | ELSEWHERE[surface.name] == promised


@each_surface
@pytest.mark.parametrize("era", ERAS)
@pytest.mark.parametrize("holder", ["admin", "user", "agent"])
def test_answers_keep_to_their_schemas(live: Running, surface: Surface, era: str, holder: str):
    token = live.token if holder == "admin" else live.new_token(f"some {holder}", kind=holder, tools=_names(surface))
    schemas = {tool["name"]: tool.get("outputSchema") for tool in listed(live, surface, era)}
    for name, arguments in EXAMPLES[surface.name].items():
        result = live.call(name, arguments, era=era, token=token, path=surface.path)
        assert _problems(schemas[name], result["structuredContent"]) == []
        assert json.loads(result["content"][0]["text"]) == result["structuredContent"]
        assert _problems(schemas[name], {}) != []  # otherwise the schema would accept anything


def _problems(schema: Any, value: Any) -> list[str]:
    found: list[Any] = list(Draft202012Validator(schema).iter_errors(value))  # pyright: ignore[reportUnknownMemberType]
    return [problem.message for problem in found]


def _names(surface: Surface) -> list[str]:
    return [tool.name for tool in surface.operations]
