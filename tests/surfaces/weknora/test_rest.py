"""Search over REST for WeKnora's clients: in the form of its document, and in that of its server."""

from typing import Any

import pytest

from almanac.assist.weknora.knowledge_search import NO_SEARCH_SCOPE_MESSAGE
from tests.surfaces.weknora.conftest import Library
from tests.surfaces.weknora.stand_ins import EXAMPLE_REQUEST, EXAMPLE_RESPONSE
from tests.surfaces.wire import audit_of
from tests.web.api import Api

PATH = "/api/v1/knowledge-search"


def ask(library: Library, body: dict[str, Any], query: str = "", **headers: str) -> Any:
    sent = headers or {"authorization": f"Bearer {library.live.token}"}
    return library.live.http.post(PATH + query, json=body, headers=sent)


def test_the_request_of_the_document_is_answered_in_its_form(library: Library):
    body = {**EXAMPLE_REQUEST, "question": "What does the lamp burn?", "knowledge_base_ids": [str(library.base)]}
    answer = ask(library, body).json()
    assert answer.keys() == EXAMPLE_RESPONSE.keys()
    [best] = answer["results"]
    [example] = EXAMPLE_RESPONSE["results"]
    assert {name: type(value) for name, value in best.items()} == {name: type(value) for name, value in example.items()}
    assert (best["knowledge_title"], best["knowledge_filename"], best["match_type"]) == ("Lamps", "lamps.md", "hybrid")
    assert "whale oil" in best["content"]
    assert 0.5 <= best["score"] <= 1
    assert answer["total_count"] == 1


def test_every_default_is_that_of_the_document(library: Library):
    question = {"question": "What does the lamp burn?", "knowledge_base_ids": [library.base]}
    said = {name: value for name, value in EXAMPLE_REQUEST.items() if name not in question}
    assert ask(library, question).json() == ask(library, {**question, **said}).json()


def test_either_header_and_either_name_of_the_question_will_do(library: Library):
    asked = {"question": "lamp oil", "knowledge_base_ids": [library.base]}
    by_query = {"query": "lamp oil", "knowledge_base_id": str(library.base)}
    first = ask(library, asked, **{"x-api-key": library.live.token}).json()
    second = ask(library, by_query).json()
    assert second["results"] == first["results"] != []
    assert ask(library, {**asked, "query": "lamp oil"}).json() == first
    assert ask(library, {**asked, "query": "other"}).status_code == 400
    assert ask(library, asked, **{"x-api-key": "wg-nobody"}).status_code == 401


def test_ids_are_strings_or_numbers_and_one_that_is_neither_s_names_nothing(library: Library):
    def status(*ids: Any) -> int:
        return ask(library, {"question": "oil", "knowledge_base_ids": list(ids)}).status_code

    assert [status(library.base), status(str(library.base)), status(library.base, str(library.base))] == [200] * 3
    for unknown in ("kb1", "0", 0, -1, "999999", 2**63, "9" * 30, "１"):
        assert status(library.base, unknown) == 404, unknown
    assert status(True) == 400
    assert status(1.0) == 400


def test_what_a_real_weknora_s_clients_send_for_nothing_is_nothing(library: Library):
    asked = {"query": "lamp oil", "knowledge_base_ids": [str(library.base)]}
    nulls = dict.fromkeys(("knowledge_ids", "tag_ids", "mentioned_items", "knowledge_base_id"))
    blanks = {
        "knowledge_base_id": "",
        "knowledge_ids": [""],
        "tag_ids": [""],
        "mentioned_items": [{"id": "", "type": "kb"}],
    }
    usual = ask(library, asked).json()
    assert usual["data"]
    assert ask(library, {**asked, **nulls}, "?resource_urls=true").json() == usual
    assert ask(library, {**asked, **blanks}, "?resource_urls=").json() == usual
    for nowhere in (None, [], [""]):
        answer = ask(library, {"question": "oil", "knowledge_base_ids": nowhere, "knowledge_base_id": ""})
        assert (answer.status_code, answer.json()["error"]) == (400, NO_SEARCH_SCOPE_MESSAGE)


def test_another_organisation_s_base_is_unknown(library: Library):
    stranger = library.live.new_token("stranger", org="elsewhere", admin=True)
    body = {"question": "oil", "knowledge_base_ids": [library.base]}
    foreign = ask(library, body, **{"x-api-key": stranger})
    never = ask(library, {**body, "knowledge_base_ids": [library.base + 10_000]}, **{"x-api-key": stranger})
    assert (foreign.status_code, never.status_code) == (404, 404)
    assert foreign.json()["code"] == never.json()["code"] == "not_found"


def test_whoever_names_nothing_is_told_so_in_the_server_s_words(library: Library):
    answer = ask(library, {"question": "oil"})
    assert (answer.status_code, answer.json()["error"]) == (400, NO_SEARCH_SCOPE_MESSAGE)


@pytest.mark.parametrize(
    "wrong",
    [
        {"question": ""},
        {"question": "  "},
        {"question": None},
        {"question": "x" * 4001},
        {"top_k": 0},
        {"top_k": 51},
        {"top_k": "10"},
        {"top_k": 1.5},
        {"min_score": -0.1},
        {"min_score": 1.1},
        {"min_score": "0.5"},
        {"search_mode": "semantic"},
        {"rerank": "true"},
        {"nonsense": 1},
    ],
)
def test_what_is_out_of_bounds_is_refused(library: Library, wrong: dict[str, Any]):
    answer = ask(library, {"question": "oil", "knowledge_base_ids": [library.base], **wrong})
    assert (answer.status_code, answer.json()["code"]) == (400, "bad_request")


def test_the_envelope_of_the_real_server_comes_to_those_who_ask_as_its_clients_do(library: Library):
    body = {"query": "What does the lamp burn?", "knowledge_base_ids": [str(library.base)]}
    answer = ask(library, body).json()
    assert answer["success"] is True
    [best] = answer["data"]
    assert best["match_type"] == 0  # by vectors, at least
    assert best["knowledge_base_id"] == str(library.base)
    assert best["matched_content"] == best["content"] == answer["results"][0]["content"]
    assert (best["start_at"], best["end_at"] - best["start_at"]) == (best["start_at"], len(best["content"]))
    assert ask(library, body, "?envelope=false").json().keys() == {"results", "total_count"}
    words = {"question": "whale", "search_mode": "keyword", "min_score": 0, "knowledge_base_ids": [library.base]}
    assert ask(library, words, "?envelope=true").json()["data"][0]["match_type"] == 1


def test_a_failure_comes_in_the_envelope_too(library: Library):
    wrong = {"query": "oil", "knowledge_base_ids": ["nothing"]}
    answer = ask(library, wrong)
    assert answer.status_code == 404
    assert answer.json() == {
        "success": False,
        "error": {"code": "not_found", "message": "The object does not exist, or you may not see it.", "details": None},
    }
    assert ask(library, {**wrong, "top_k": 99}).json()["error"]["code"] == "bad_request"
    assert ask(library, {"question": "", "knowledge_base_ids": []}, "?envelope=true").json()["success"] is False
    assert ask(library, wrong, "?envelope=false").json().keys() == {"error", "code"}


def test_a_threshold_drops_what_scores_below_it_and_says_how_many(library: Library):
    everything = library.search("What does the lamp burn?", min_score=0.0)
    scores = [each["score"] for each in everything.json()["results"]]
    assert scores == sorted(scores, reverse=True)
    assert everything.headers["x-dropped-by-min-score"] == "0"
    some = library.search("What does the lamp burn?", min_score=scores[1] + 0.001)
    assert [each["score"] for each in some.json()["results"]] == scores[:1]
    assert some.json()["total_count"] == 1
    assert some.headers["x-dropped-by-min-score"] == str(len(scores) - 1)
    nothing = library.search("Who rules France?")
    assert nothing.json() == {"results": [], "total_count": 0}
    assert int(nothing.headers["x-dropped-by-min-score"]) > 0


def test_top_k_cuts_and_the_total_does_not(library: Library):
    answer = library.search("oil", top_k=1, min_score=0.0).json()
    assert len(answer["results"]) == 1
    assert answer["total_count"] > 1


@pytest.mark.parametrize(("mode", "match"), [("keyword", {"keyword"}), ("vector", {"vector"})])
def test_a_mode_is_one_leg_and_the_match_says_which(library: Library, mode: str, match: set[str]):
    found = library.search("whale oil", search_mode=mode, min_score=0.0).json()["results"]
    assert {each["match_type"] for each in found} == match
    hybrid = library.search("whale oil", min_score=0.0).json()["results"]
    assert hybrid[0]["match_type"] == "hybrid"
    assert "vector" in {each["match_type"] for each in hybrid}  # a text without its words


@pytest.mark.parametrize(("mode", "rerank"), [("hybrid", True), ("hybrid", False), ("keyword", True), ("vector", True)])
def test_grades_mean_what_the_tool_says_they_do_in_every_mode(library: Library, mode: str, rerank: bool):
    """Only passages that answer pass the usual threshold."""
    asked = {
        "What does the lamp in the hall burn?": "Lamps",
        "How many turns a minute does the pump P-40 run at?": "Pumps",
        "When is the bearing of the pump P-40 oiled?": "Pumps",
    }
    for question, title in asked.items():
        found = library.search(question, search_mode=mode, rerank=rerank, min_score=0.0).json()["results"]
        assert found[0]["knowledge_title"] == title
        assert found[0]["score"] >= 0.5, (question, mode)
        assert all(each["score"] < 0.5 for each in found if each["knowledge_title"] != title)
    for question in ("Who rules France?", "How do I reset my password?"):
        assert library.search(question, search_mode=mode, rerank=rerank).json()["results"] == []
    best = library.search("What does the lamp in the hall burn?").json()["results"][0]
    assert best["score"] > 0.8


def test_highlights_are_where_the_words_stand(library: Library):
    [best] = library.search("What does the lamp burn?", highlight=True).json()["results"]
    marked = {best["content"][start:end].lower() for start, end in best["highlights"]}
    assert {"lamp", "burns"} <= marked
    assert "highlights" not in library.search("What does the lamp burn?").json()["results"][0]


def test_documents_and_what_was_mentioned_narrow_a_search(library: Library):
    lamps = library.search("lamp", min_score=0.0).json()["results"][0]["knowledge_id"]
    narrowed: list[dict[str, Any]] = [
        {"knowledge_ids": [lamps]},
        {"mentioned_items": [{"id": lamps, "type": "file", "name": "lamps.md"}]},
        {"knowledge_base_ids": [], "mentioned_items": [{"id": library.base, "type": "kb"}], "knowledge_ids": [lamps]},
    ]
    for more in narrowed:
        found = library.search("oil", min_score=0.0, **more).json()["results"]
        assert {each["knowledge_id"] for each in found} == {lamps}
    assert library.search("oil", min_score=0.0, tag_ids=["none has this"]).json()["results"] == []


def test_chinese_is_asked_and_answered(library: Library):
    best = library.search("龙井茶产于哪里？", min_score=0.0).json()["results"][0]
    assert best["knowledge_title"] == "茶叶"


def test_a_token_needs_the_scope_and_a_search_is_in_the_audit_trail(library: Library):
    narrow = library.live.new_token("clerk", scope=["memory:read"])
    body = {"question": "oil", "knowledge_base_ids": [library.base]}
    assert ask(library, body, **{"x-api-key": narrow}).status_code == 403
    answer = ask(library, body)
    [row] = audit_of(library.live, answer.headers["x-request-id"])
    assert (row["surface"], row["tool"], row["outcome"]) == ("rest", "knowledge_search", "ok")


def test_an_answer_says_which_passages_lack_vectors(library: Library):
    api = Api(library.live, library.live.token)
    base = api.base("Fresh")
    api.text(base, "fresh.md", "# Gears\n\nThe gear is greased in May.")
    library.live.work(embed=False)
    note = "Some passages have no vectors yet: only keyword search finds them."
    assert api.ask("POST", "/search", json={"query": "gear", "base_ids": [base]})["notes"] == [note]
    answer = ask(library, {"question": "gear", "knowledge_base_ids": [base]})
    assert answer.headers["x-search-notes"] == note
    library.live.work()
    assert api.ask("POST", "/search", json={"query": "gear", "base_ids": [base]})["notes"] == []
    answer = ask(library, {"question": "gear", "knowledge_base_ids": [base]})
    assert "x-search-notes" not in answer.headers


def test_the_endpoint_is_described(library: Library):
    api = Api(library.live, library.live.token)  # it checks every answer against the description
    api.ask("POST", "/knowledge-search", json={"question": "oil", "knowledge_base_ids": [library.base]})
    described = library.live.http.get("/api/v1/openapi.json").json()["paths"]["/knowledge-search"]["post"]
    assert described["operationId"] == "knowledge_search"
