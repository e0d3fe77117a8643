"""Searching, fetching and citing on /mcp, over HTTP, with a real worker."""

import json
from collections.abc import Sequence
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from almanac.ai.encoder import Encoder
from almanac.knowledge import document_text
from tests.live_server import ERAS, Running
from tests.surfaces.test_knowledge_tools import ask, base, refused
from tests.surfaces.wire import audit_of

__all__ = ["base"]  # a fixture

PUMPS = "# Pumps\n\nThe pump runs at forty turns a minute.\n\n## Care\n\nOil the bearing every spring.\n"
LAMPS = "# Lamps\n\nThe lamp is lit with whale oil.\n"


@pytest.fixture
def shelf(server: Running, base: int) -> dict[str, int]:
    """Two ingested documents, by name."""
    for name, text in {"pumps.md": PUMPS, "lamps.md": LAMPS}.items():
        ask(server, "add_document", base_id=base, name=name, content=text, tags=[name[:4]], folder=name[:4])
    server.work()
    return {item["name"]: item["id"] for item in ask(server, "browse", base_id=base, recursive=True)["items"]}


def held(server: Running, tool: str, result: Any) -> None:
    """Check an answer against the schema of its tool."""
    tools = {each["name"]: each for each in server.rpc("tools/list").json()["result"]["tools"]}
    assert list(Draft202012Validator(tools[tool]["outputSchema"]).iter_errors(result)) == []  # pyright: ignore[reportUnknownMemberType]


@pytest.mark.parametrize("era", ERAS)
def test_a_connector_that_sends_nothing_but_a_query_and_an_id_gets_what_it_expects(
    server: Running, shelf: dict[str, int], era: str
):
    found = server.call("search", {"query": "How often is the bearing of a pump oiled?"}, era=era)
    assert found["isError"] is False
    assert [part["type"] for part in found["content"]] == ["text"]
    assert json.loads(found["content"][0]["text"]) == found["structuredContent"]
    best = found["structuredContent"]["results"][0]
    assert (best["id"], best["title"]) == (f"document:{shelf['pumps.md']}", "Pumps")
    assert best["url"] == f"{server.settings.url}/api/v1/documents/{shelf['pumps.md']}"
    fetched = server.call("fetch", {"id": best["id"]}, era=era)
    assert [part["type"] for part in fetched["content"]] == ["text"]
    document = fetched["structuredContent"]
    assert json.loads(fetched["content"][0]["text"]) == document
    assert document.keys() == {"id", "title", "text", "url", "metadata"}
    assert (document["id"], document["title"], document["text"], document["url"]) == (
        best["id"], "Pumps", PUMPS, best["url"],
    )  # fmt: skip
    assert document["metadata"]["name"] == "pumps.md"


@pytest.mark.parametrize("era", ERAS)
def test_text_of_documents_is_labelled_as_untrusted_outside_of_the_text(
    server: Running, base: int, shelf: dict[str, int], era: str
):
    id = shelf["pumps.md"]
    for tool, arguments, route in (
        ("search", {"query": "oil"}, ("POST", "/search")),
        ("fetch", {"id": f"document:{id}"}, None),
        ("read_document", {"document_id": id}, ("GET", f"/documents/{id}/content")),
    ):
        result = server.call(tool, arguments, era=era)
        assert result["_meta"]["almanac/trust"] == "untrusted", tool
        assert "almanac/trust" not in result["content"][0]["text"]
        if route is not None:
            body: dict[str, Any] = {"json": arguments} if route[0] == "POST" else {}
            headers = {"x-api-key": server.token}
            answer = server.http.request(route[0], f"/api/v1{route[1]}", headers=headers, **body)
            assert (answer.status_code, answer.headers["x-almanac-trust"]) == (200, "untrusted"), route
    assert "almanac/trust" not in server.call("browse", {"base_id": base}, era=era).get("_meta", {})


def test_the_schemas_are_those_a_connector_looks_for(server: Running):
    tools = {each["name"]: each["inputSchema"] for each in server.rpc("tools/list").json()["result"]["tools"]}
    for name, argument in (("search", "query"), ("fetch", "id")):
        assert tools[name]["required"] == [argument]
        assert tools[name]["properties"][argument]["type"] == "string"


def test_a_result_says_where_it_stands_and_how_sure_it_is(server: Running, base: int, shelf: dict[str, int]):
    answer = ask(server, "search", query="bearing spring", base_ids=[base], explain=True)
    held(server, "search", answer)
    best = answer["results"][0]
    assert "Oil the bearing every spring." in best["text"]
    assert best["base_id"] == base
    assert 0 < best["score"] <= 1
    assert best["page"] is None
    start, end = best["span"]
    text = ask(server, "read_document", document_id=shelf["pumps.md"], offset=start, limit=end - start)["text"]
    assert text == best["text"]
    assert answer["has_more"] is False
    assert answer["explanation"]["milliseconds"]
    assert answer["explanation"]["passages"]["returned"] == len(answer["results"])
    assert ask(server, "search", query="bearing")["explanation"] is None


def test_a_query_of_one_organisation_is_computed_again_for_another(
    server: Running, shelf: dict[str, int], monkeypatch: pytest.MonkeyPatch
):
    eve = server.new_token("eve", org="Elsewhere")
    made = server.call("manage_base", {"action": "create", "name": "Own"}, token=eve)["structuredContent"]
    text = {"base_id": made["ids"][0], "name": "own.md", "content": "# Own\n\nEve has a pump of her own."}
    server.call("add_document", text, token=eve)
    server.work()
    computed: list[str] = []
    embed = Encoder.embed

    def record(encoder: Encoder, texts: Sequence[str], prefix: str) -> Any:
        computed.extend(texts)
        return embed(encoder, texts, prefix)

    monkeypatch.setattr(Encoder, "embed", record)
    query = {"query": "a question that both organisations have", "explain": True}
    for token in (server.token, eve, server.token, eve):
        answer = server.call("search", query, token=token)
        assert "embed" in answer["structuredContent"]["explanation"]["milliseconds"]
    assert computed == [query["query"]] * 2


def test_on_request_a_result_says_where_the_words_of_the_question_stand(server: Running, shelf: dict[str, int]):
    answer = ask(server, "search", query="oil bearings", mode="keyword", highlight=True)
    held(server, "search", answer)
    words = [[each["text"][start:end] for start, end in each["highlights"]] for each in answer["results"]]
    assert words == [["Oil", "bearing"], ["oil"]]
    assert [each["highlights"] for each in ask(server, "search", query="oil bearings", mode="keyword")["results"]] == [
        [],
        [],
    ]


def test_a_search_is_narrowed_by_what_it_names(server: Running, base: int, shelf: dict[str, int]):
    def found(**more: Any) -> set[str]:
        answer = ask(server, "search", query="the oil", mode="keyword", **more)
        return {each["title"] for each in answer["results"]}

    assert found() == {"Pumps", "Lamps"}
    assert found(document_ids=[shelf["lamps.md"]]) == {"Lamps"}
    assert found(folder_ids=[shelf["pump"]]) == {"Pumps"}
    assert found(tags=["lamp"]) == {"Lamps"}
    assert found(created_until="2020-01-01") == set()
    assert len(found(limit=1)) == 1
    ask(server, "manage_document", action="describe", document_ids=[shelf["lamps.md"]], metadata={"year": 1850})
    assert found(condition={"key": "year", "op": "lt", "value": 1900}) == {"Lamps"}
    ask(server, "manage_document", action="delete", document_ids=[shelf["lamps.md"]])
    assert found() == {"Pumps"}


def test_a_search_that_finds_nothing_is_an_empty_answer(server: Running, shelf: dict[str, int]):
    answer = ask(server, "search", query="xylophone", mode="keyword")
    held(server, "search", answer)
    assert (answer["results"], answer["has_more"], answer["notes"]) == ([], False, [])


def test_a_search_that_is_too_narrow_names_what_narrowed_it(server: Running, shelf: dict[str, int]):
    answer = ask(server, "search", query="oil", tags=["lamp"], created_until="2020-01-01")
    held(server, "search", answer)
    assert answer["results"] == []
    assert answer["notes"] == ["No passage matches tags, created_until: leave them out to search more documents."]
    assert ask(server, "search", query="oil", tags=["lamp"])["notes"] == []
    assert ask(server, "search", query="oil", min_score=1.0)["notes"][-1].startswith("No passage matches min_score")


def test_a_bad_condition_says_what_is_wrong_with_it(server: Running, shelf: dict[str, int]):
    said = refused(server, "search", query="oil", condition={"key": "year", "op": "near", "value": 1})
    assert said.startswith("bad_request: condition.op: ")
    said = refused(server, "search", query="oil", created_from="soon")
    assert said.startswith("bad_request: created_from: ")
    assert "such as 2026-11-02" in said


def test_what_belongs_to_others_is_not_found(server: Running, base: int, shelf: dict[str, int]):
    sam = server.new_token("sam")
    answer = server.call("search", {"query": "oil"}, token=sam)["structuredContent"]
    assert (answer["results"], answer["notes"]) == ([], ["There is no knowledge base that you may read."])
    name = f"document:{shelf['pumps.md']}"
    assert refused(server, "search", token=sam, query="oil", base_ids=[base]).startswith("not_found: ")
    assert refused(server, "fetch", token=sam, id=name).startswith("not_found: ")
    verdict = server.call("verify_citation", {"id": name, "text": "whale oil"}, token=sam)["structuredContent"]
    assert verdict["outcome"] == "gone"


def test_a_token_is_shown_search_only_with_its_scope(server: Running):
    def names(token: str) -> set[str]:
        return {each["name"] for each in server.rpc("tools/list", token=token).json()["result"]["tools"]}

    reader = server.new_token("reader", scope=["knowledge:read"])
    assert names(reader) & {"search", "fetch", "verify_citation"} == {"search", "fetch", "verify_citation"}
    other = server.new_token("other", scope=["memory:read"])
    assert not names(other) & {"search", "fetch", "verify_citation"}
    searcher = server.new_token("searcher", scope=["search:read"])
    assert names(searcher) & {"search", "fetch", "verify_citation"} == {"search", "verify_citation"}


def test_a_long_document_is_fetched_in_part_and_says_how_to_read_on(server: Running, base: int):
    text = "\n\n".join(f"Paragraph {number} of many." for number in range(4000)) + "\n"
    id = ask(server, "add_document", base_id=base, name="long.txt", content=text)["document"]["id"]
    server.work(embed=False)
    fetched = ask(server, "fetch", id=f"document:{id}")
    held(server, "fetch", fetched)
    at = fetched["metadata"]["next_offset"]
    assert fetched["text"] == text[: document_text.DEFAULT_READ_CHARS]
    assert f"Call fetch again with offset {at}." in fetched["metadata"]["note"]
    second = ask(server, "fetch", id=f"document:{id}", offset=at, limit=1000)
    assert second["metadata"]["next_offset"] == at + 1000
    last = ask(server, "fetch", id=f"document:{id}", offset=at + 1000, limit=document_text.MAX_READ_CHARS)
    assert fetched["text"] + second["text"] + last["text"] == text
    assert "next_offset" not in last["metadata"]


def test_a_passage_has_the_same_score_on_every_interface(server: Running, base: int, shelf: dict[str, int]):
    question = "How often is the bearing oiled?"
    scores = {(each["id"], each["text"]): each["score"] for each in ask(server, "search", query=question)["results"]}
    assert {id for id, _ in scores} == {f"document:{id}" for id in (shelf["pumps.md"], shelf["lamps.md"])}
    headers = {"authorization": f"Bearer {server.token}"}
    found = server.http.post("/api/v1/search", json={"query": question}, headers=headers).json()["results"]
    assert {(each["id"], each["text"]): each["score"] for each in found} == scores
    body = {"namespace": "general_helper_documents", "query": question}  # the best passage of each document
    found = server.http.post("/knowledge-base/retrieve", json=body, headers={"x-api-key": server.token}).json()
    assert len(found) == 2
    assert all(each["score"] == scores[each["id"], each["metadata"]["text"]] for each in found)


def test_every_tool_takes_the_id_of_a_search_result(server: Running, base: int, shelf: dict[str, int]):
    ref = ask(server, "search", query="bearing spring", base_ids=[base])["results"][0]["id"]
    assert ref == f"document:{shelf['pumps.md']}"
    assert ask(server, "read_document", document_id=ref)["text"] == PUMPS
    assert ask(server, "download_document", document_id=ref)["file_name"] == "pumps.md"
    assert ask(server, "manage_document", action="tag", document_ids=[ref], tags=["x"])["ids"] == [shelf["pumps.md"]]
    assert ask(server, "search", query="bearing spring", document_ids=[ref])["results"]
    text = f"{PUMPS}More.\n"
    assert ask(server, "add_document", document_id=ref, content=text)["document"]["id"] == shelf["pumps.md"]
    for wrong in ("52", "note:52", "document:0", "document:99999999999999999999", "document:5.2"):
        assert refused(server, "read_document", document_id=wrong).startswith("bad_request: document_id")


def test_a_document_that_could_not_be_read_says_so_when_it_is_fetched(server: Running, base: int):
    id = ask(server, "add_document", base_id=base, name="empty.pdf", content="%PDF-1.7 no such thing")["document"]["id"]
    server.work()
    fetched = ask(server, "fetch", id=f"document:{id}")
    assert fetched["text"] == ""
    assert fetched["metadata"]["index_status"] == "failed"
    assert fetched["metadata"]["failure"]


def test_an_id_that_search_never_gave_is_refused_with_the_fix(server: Running):
    assert refused(server, "fetch", id="pumps.md") == (
        "bad_request: id: is not the id of a search result. Use an id from search, such as document:12."
    )
    assert refused(server, "fetch", id="document:999").startswith("not_found: There is no document 999")


def test_a_citation_is_verified(server: Running, shelf: dict[str, int]):
    best = ask(server, "search", query="bearing")["results"][0]
    verdict = ask(server, "verify_citation", id=best["id"], hash=best["hash"], span=best["span"])
    held(server, "verify_citation", verdict)
    assert (verdict["outcome"], verdict["span"]) == ("unchanged", best["span"])
    ask(server, "add_document", document_id=shelf["pumps.md"], content=PUMPS.replace("spring", "autumn"))
    server.work()
    verdict = ask(server, "verify_citation", id=best["id"], hash=best["hash"])
    held(server, "verify_citation", verdict)
    assert verdict["outcome"] == "changed"
    assert refused(server, "verify_citation", id=best["id"]).startswith("bad_request: Give the hash of the quotation")
    assert "span: should be two numbers, start and end" in refused(server, "verify_citation", id=best["id"], span=[4])


def test_a_search_is_in_the_audit_trail_with_what_it_showed_and_not_with_its_words(
    server: Running, base: int, shelf: dict[str, int]
):
    server.call("search", {"query": "bearing", "base_ids": [base]}, headers={"x-request-id": "a-search"})
    [row] = audit_of(server, "a-search")
    assert (row["tool"], row["outcome"]) == ("search", "ok")
    assert row["touched"].split()[:2] == [f"base:{base}", f"document:{shelf['pumps.md']}"]
    assert "bearing" not in str([row[name] for name in row.keys()])  # noqa: SIM118
