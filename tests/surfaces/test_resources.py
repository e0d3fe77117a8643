"""The resources and prompts of /mcp, over HTTP."""

import base64
import json
import uuid
from datetime import datetime
from typing import Any

import pytest

from almanac.knowledge import document_text
from almanac.surfaces import dispatcher
from almanac.surfaces.almanac.tools import SURFACE
from tests.live_server import ERAS, MODERN, Running
from tests.surfaces.test_knowledge_tools import TEXT, ask, base
from tests.surfaces.wire import audit_of

__all__ = ["base"]  # a fixture


def read(server: Running, uri: str, **how: Any) -> Any:
    """The content of a resource."""
    answer = named(server, "resources/read", uri, {"uri": uri}, **how)
    assert "result" in answer, answer
    [content] = answer["result"]["contents"]
    assert content["uri"] == uri
    return content


def named(
    server: Running, method: str, name: str, params: dict[str, Any], era: str = ERAS[0], id: str = "", **how: Any
) -> Any:
    """The answer to a method whose newest form also has the name in a header; `id` becomes the request's id."""
    headers = ({"mcp-name": name} if era == MODERN else {}) | ({"x-request-id": id} if id else {})
    return server.rpc(method, params, era=era, headers=headers, **how).json()


def refusal(server: Running, uri: str, **how: Any) -> Any:
    return server.rpc("resources/read", {"uri": uri}, **how).json()["error"]


def templates(server: Running, token: str | None = None) -> list[str]:
    listed = server.rpc("resources/templates/list", token=token).json()["result"]["resourceTemplates"]
    return [each["uriTemplate"] for each in listed]


@pytest.fixture
def document(server: Running, base: int) -> int:
    id = ask(server, "add_document", base_id=base, name="pumps.md", content=TEXT)["document"]["id"]
    server.work(embed=False)
    return id


@pytest.fixture
def note(server: Running) -> str:
    return ask(server, "remember", title="Pump", body="Oil it monthly.")["id"]


@pytest.mark.parametrize("era", ERAS)
def test_documents_and_notes_are_resources(server: Running, document: int, note: str, era: str):
    content = read(server, f"almanac://documents/{document}", era=era, id=f"reads-{era}")
    assert (content["text"], content["mimeType"]) == (TEXT, "text/plain")
    shown = ask(server, "read_document", document_id=document)["document"]
    assert content["_meta"] == {"almanac/document": shown, "almanac/trust": "untrusted"}
    [row] = audit_of(server, f"reads-{era}")
    assert (row["surface"], row["tool"], row["outcome"]) == ("almanac", "resources/read", "ok")
    assert f"document:{document}" in row["touched"]
    content = read(server, f"almanac://notes/{note}", era=era)
    assert content["text"] == "Oil it monthly."
    facts = content["_meta"]["almanac/note"]
    assert (facts["id"], facts["title"], content["_meta"]["almanac/trust"]) == (note, "Pump", "untrusted")


def test_a_long_document_names_the_uri_of_its_rest(server: Running, base: int):
    text = "\n\n".join(f"Paragraph {number} of many." for number in range(6000)) + "\n"
    id = ask(server, "add_document", base_id=base, name="long.txt", content=text)["document"]["id"]
    server.work(embed=False)
    first = read(server, f"almanac://documents/{id}")
    assert first["text"] == text[: document_text.MAX_READ_CHARS]
    rest = read(server, first["_meta"]["almanac/next"])
    assert first["text"] + rest["text"] == text
    assert "almanac/next" not in rest["_meta"]


def test_a_resource_needs_the_scopes_and_the_tool_that_read_the_same(server: Running, document: int, note: str):
    uris = {"read_document": f"almanac://documents/{document}", "recall": f"almanac://notes/{note}"}
    assert templates(server) == ["almanac://bases/{id}", "almanac://documents/{id}", "almanac://notes/{id}"]
    for tool, scope in (("read_document", "knowledge:read"), ("recall", "memory:read")):
        may = server.new_token("admin", scope=[scope], tools=[tool])
        other = server.new_token("other", scope=[scope], tools=["whoami"])
        lacks = server.new_token("lacks", scope=["search:read"])
        assert read(server, uris[tool], token=may)["text"]
        assert [uris[tool].rpartition("/")[0]] == [uri.rpartition("/")[0] for uri in templates(server, may)]
        assert templates(server, other) == templates(server, lacks) == []
        assert refusal(server, uris[tool], token=other)["data"]["code"] == "forbidden"
        assert refusal(server, uris[tool], token=lacks)["data"]["code"] == "insufficient_scope"


def test_a_document_of_another_base_is_as_unknown_as_one_that_never_was(server: Running, document: int, base: int):
    stranger = server.new_token("stranger", kind="user")
    hidden = refusal(server, f"almanac://documents/{document}", token=stranger)
    never = refusal(server, "almanac://documents/999999", token=stranger)
    assert hidden["data"]["code"] == never["data"]["code"] == "not_found"
    assert hidden["message"].replace(str(document), "N") == never["message"].replace("999999", "N")


@pytest.mark.parametrize(
    "uri",
    [
        "almanac://documents/", "almanac://documents/x", "almanac://documents/-1", "almanac://documents/0",
        "almanac://documents/1?page=2", "almanac://documents/1?offset=-1", "almanac://documents/99999999999999999999",
        "almanac://documents/9999999999999999999", "almanac://notes/7", f"almanac://notes/{uuid.UUID(int=1)}",
        "almanac://knowledge/1", "file:///etc/passwd", "almanac://bases/x", "almanac://bases/0", "almanac://bases/999",
    ],
)  # fmt: skip
def test_a_uri_that_names_nothing_is_refused(server: Running, uri: str):
    assert refusal(server, uri)["code"] == -32602


@pytest.mark.parametrize("era", ERAS)
def test_a_search_with_notes_and_the_list_lead_to_the_same_resources(server: Running, document: int, era: str):
    found = server.call("search", {"query": "pump"}, era=era)["structuredContent"]
    assert any("no vectors yet" in note for note in found["notes"])
    uris = {f"almanac://documents/{each['id'].removeprefix('document:')}" for each in found["results"]}
    assert uris == {f"almanac://documents/{document}"}
    [page] = pages(server, era=era)
    assert uris <= {each["uri"] for each in page}
    for result in found["results"]:
        start, end = result["span"]
        assert read(server, *uris, era=era)["text"][start:end] == result["text"]


def listed(server: Running, cursor: str | None = None, **how: Any) -> Any:
    return server.rpc("resources/list", {} if cursor is None else {"cursor": cursor}, **how).json()


def pages(server: Running, **how: Any) -> list[list[Any]]:
    """All pages of the list of resources."""
    found: list[list[Any]] = []
    cursor = None
    while not found or cursor is not None:
        result = listed(server, cursor, **how)["result"]
        found.append(result["resources"])
        cursor = result.get("nextCursor")
    return found


@pytest.mark.parametrize("era", ERAS)
def test_bases_documents_and_notes_are_listed_and_each_can_be_read(
    server: Running, base: int, document: int, note: str, era: str
):
    [page] = pages(server, era=era)
    assert [each["uri"] for each in page] == [
        f"almanac://bases/{base}", f"almanac://documents/{document}", f"almanac://notes/{note}",
    ]  # fmt: skip
    assert [each["name"] for each in page] == ["Manuals", "pumps.md", "Pump"]
    assert [each["description"] for each in page] == [
        "How things work", "A document of Manuals.", "A note of admin.",
    ]  # fmt: skip
    for each in page:
        content = read(server, each["uri"], era=era)
        assert content["mimeType"] == each["mimeType"]
        assert content["_meta"]["almanac/trust"] == "untrusted"
        datetime.fromisoformat(each["annotations"]["lastModified"])
    assert json.loads(read(server, f"almanac://bases/{base}", era=era)["text"]) == ask(server, "browse", base_id=base)


@pytest.mark.parametrize("era", ERAS)
def test_the_list_of_resources_has_pages_and_an_end(
    server: Running, base: int, era: str, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(dispatcher, "MAX_LISTED_RESOURCES", 2)
    ids = [
        ask(server, "add_document", base_id=base, name=f"{n}.md", content=f"# {n}")["document"]["id"] for n in range(5)
    ]
    other = ask(server, "manage_base", action="create", name="Other")["ids"][0]
    elsewhere = ask(server, "add_document", base_id=other, name="x.md", content="# X")["document"]["id"]
    server.work(embed=False)
    found = pages(server, era=era)
    assert [[each["uri"] for each in page] for page in found] == [
        [f"almanac://bases/{other}", f"almanac://bases/{base}",
         f"almanac://documents/{elsewhere}", f"almanac://documents/{ids[4]}"],
        [f"almanac://documents/{ids[3]}", f"almanac://documents/{ids[2]}"],
        [f"almanac://documents/{ids[1]}", f"almanac://documents/{ids[0]}"],
    ]  # fmt: skip
    monkeypatch.setattr(dispatcher, "MAX_PAGES", 2)
    assert len(pages(server, era=era)) == 2


def test_only_resources_that_a_caller_may_read_are_listed(server: Running, base: int, document: int, note: str):
    def uris(**limits: Any) -> list[str]:
        [page] = pages(server, token=server.new_token("reader", **limits))
        return [each["uri"].removeprefix("almanac://") for each in page]

    assert uris() == [f"notes/{note}"]  # notes are the organisation's; the base is the administrator's
    assert uris(scope=["knowledge:read"]) == []
    ask(server, "manage_base", action="share", base_id=base, user="reader", role="Reporter")
    assert uris() == [f"bases/{base}", f"documents/{document}", f"notes/{note}"]
    assert uris(tools=["read_document"]) == [f"documents/{document}"]
    assert uris(tools=["browse", "search"]) == [f"bases/{base}"]
    assert uris(scope=["memory:read"]) == [f"notes/{note}"]
    assert uris(bases=[base]) == [f"bases/{base}", f"documents/{document}"]
    assert uris(bases=[base + 1]) == []
    [page] = pages(server, token=server.new_token("stranger", org="elsewhere"))
    assert page == []


@pytest.mark.parametrize(
    "value",
    [
        "text", [1, {"base": 5}], [2], [2, {}], [2, {"base": 0}], [2, {"base": 2**63}], [2, {"base": "1"}],
        [2, {"base": True}], [11, {"base": 5}], {"base": 5}, [2, {"base": 5}, 1],
    ],
)  # fmt: skip
@pytest.mark.parametrize("era", ERAS)
def test_a_cursor_that_was_not_issued_is_refused(server: Running, value: Any, era: str):
    cursor = base64.urlsafe_b64encode(json.dumps(value).encode()).decode()
    for text in (cursor, f"{cursor}!", "x" * 10_000, "é"):
        error = listed(server, text, era=era)["error"]
        assert error["code"] == -32602
        assert error["message"] == "Unknown cursor. Call resources/list without a cursor to begin again."
    answer = listed(server, base64.urlsafe_b64encode(b'[2,{"never":5}]').decode(), era=era)
    assert answer["result"]["resources"] == []


@pytest.mark.parametrize("era", ERAS)
def test_the_prompts_name_only_tools_that_exist(server: Running, era: str):
    listed = server.rpc("prompts/list", era=era).json()["result"]["prompts"]
    assert [each["name"] for each in listed] == ["answer-with-sources", "compare-entities", "hand-over"]
    tools = {operation.name for operation in SURFACE.operations}
    for prompt in listed:
        [argument] = prompt["arguments"]
        for given, shown in (({}, "."), ({argument["name"]: "pumps {x}\nunder 5 bar"}, ": pumps {x} under 5 bar.")):
            params = {"name": prompt["name"], "arguments": given}
            [message] = named(server, "prompts/get", prompt["name"], params, era)["result"]["messages"]
            text = message["content"]["text"]
            assert shown in text.partition("\n\n1. ")[0]
            words = {word.strip(".,;") for word in text.split()}
            assert {word for word in words if "_" in word} <= tools
            assert len(words & tools) >= 3
        params = {"name": prompt["name"], "arguments": {argument["name"]: "x" * 1001}}
        assert named(server, "prompts/get", prompt["name"], params, era)["error"]["code"] == -32602
