"""Search over REST, on both databases."""

from typing import Any

import pytest

from tests.surfaces.wire import audit_of
from tests.web.api import Api, ingest

PUMPS = "# Pumps\n\nThe pump runs at forty turns a minute.\n\n## Care\n\nOil the bearing every spring.\n"


@pytest.fixture
def base(api: Api) -> int:
    made = api.base("For searching")
    api.text(made, "pumps.md", PUMPS, tags=["pump"], metadata={"year": 2024})
    api.text(made, "lamps.md", "# Lamps\n\nThe lamp burns whale oil.\n", metadata={"year": 1850})
    ingest(api.live)
    return made


def found(api: Api, base: int, query: str = "oil", **more: Any) -> list[dict[str, Any]]:
    return api.ask("POST", "/search", json={"query": query, "base_ids": [base], "highlight": True, **more})["results"]


def test_a_result_carries_all_that_is_needed_to_show_and_to_cite_it(api: Api, base: int):
    best = found(api, base, "When is the bearing oiled?")[0]
    document = api.ask("GET", f"/documents/{best['document_id']}")
    assert (best["id"], best["title"], best["base_id"]) == (f"document:{document['id']}", "Pumps", base)
    assert best["url"].endswith(f"/api/v1/documents/{document['id']}")
    content = api.ask("GET", f"/documents/{document['id']}/content")["text"]
    assert content[best["span"][0] : best["span"][1]] == best["text"]
    assert 0 < best["score"] <= 1
    assert "words" in best["legs"]
    marked = {best["text"][start:end].lower() for start, end in best["highlights"]}
    assert "bearing" in marked


def test_a_search_is_narrowed_and_paged(api: Api, base: int):
    def titles(**more: Any) -> set[str]:
        return {each["title"] for each in found(api, base, mode="keyword", **more)}

    assert titles() == {"Pumps", "Lamps"}
    assert titles(tags=["pump"]) == {"Pumps"}
    assert titles(condition={"key": "year", "op": "lt", "value": 1900}) == {"Lamps"}
    worst = found(api, base, "lamp oil", mode="keyword")[-1]
    assert worst["title"] == "Pumps"
    assert titles(query="lamp oil", min_score=worst["score"] + 0.001) == {"Lamps"}
    pages = [
        api.ask(
            "POST", "/search", json={"query": "oil", "base_ids": [base], "mode": "keyword", "limit": 1, "offset": at}
        )
        for at in (0, 1, 2)
    ]
    assert [(page["offset"], len(page["results"]), page["has_more"]) for page in pages] == [
        (0, 1, True),
        (1, 1, False),
        (2, 0, False),
    ]


def test_a_search_is_narrowed_to_kinds_of_documents(api: Api, base: int):
    def titles(*kinds: str) -> set[str]:
        return {each["title"] for each in found(api, base, mode="keyword", kinds=kinds)}

    api.text(base, "oils.txt", "Which oil is for which machine.")
    ingest(api.live)
    assert titles("text/plain") == {"oils.txt"}
    assert titles("Text/Markdown") == {"Pumps", "Lamps"}
    assert titles("text/") == titles("text/markdown", "text/plain") == titles() == {"Pumps", "Lamps", "oils.txt"}
    assert titles("text/plai", "application/pdf") == set()
    assert api.refused("POST", "/search", json={"query": "oil", "kinds": ["pdf"]}) == (400, "bad_request")


def test_a_search_explains_itself_when_asked(api: Api, base: int):
    plain = api.ask("POST", "/search", json={"query": "oil", "base_ids": [base]})
    assert plain["explanation"] is None
    explained = api.ask("POST", "/search", json={"query": "oil", "base_ids": [base], "explain": True})
    told = explained["explanation"]
    assert told["passages"]["returned"] == len(explained["results"]) > 0
    assert told["milliseconds"]
    assert all(taken >= 0 for taken in told["milliseconds"].values())


def test_what_makes_no_sense_is_refused(api: Api, base: int):
    for given in (
        {},
        {"query": " "},
        {"query": "x", "limit": 0},
        {"query": "x", "base_ids": ["1"]},
        {"query": "x", "q": 1},
    ):
        assert api.refused("POST", "/search", json=given) == (400, "bad_request")
    wrong = {"query": "x", "condition": {"key": "year", "op": "near", "value": 1}}
    assert api.refused("POST", "/search", json=wrong) == (400, "bad_request")
    assert api.refused("POST", "/search", json={"query": "x", "base_ids": [77_001]}) == (404, "not_found")


def test_a_stranger_finds_nothing_and_a_narrow_token_may_not_ask(api: Api, base: int):
    stranger = api.by(api.live.new_token("searching stranger"))
    assert stranger.ask("POST", "/search", json={"query": "oil"})["results"] == []
    assert stranger.refused("POST", "/search", json={"query": "oil", "base_ids": [base]}) == (404, "not_found")
    narrow = api.by(api.live.new_token("narrow", scope=["memory:read"]))
    assert narrow.refused("POST", "/search", json={"query": "oil"}) == (403, "insufficient_scope")


def test_a_citation_is_verified(api: Api, base: int):
    best = found(api, base, "bearing")[0]
    cited = {name: best[name] for name in ("id", "hash", "span")}
    verdict = api.ask("POST", "/citations/verify", json=cited)
    assert (verdict["outcome"], verdict["span"]) == ("unchanged", best["span"])
    api.ask("DELETE", f"/documents/{best['document_id']}", 204)
    assert api.ask("POST", "/citations/verify", json=cited)["outcome"] == "gone"
    assert api.refused("POST", "/citations/verify", json={"id": best["id"]}) == (400, "bad_request")
    assert api.refused("POST", "/citations/verify", json={"id": "lamps", "text": "x"}) == (400, "bad_request")


def test_a_search_is_in_the_audit_trail(api: Api, base: int):
    api.ask("POST", "/search", json={"query": "oil", "base_ids": [base]}, headers={"x-request-id": "rest-search"})
    [row] = audit_of(api.live, "rest-search")
    assert (row["surface"], row["tool"], row["outcome"]) == ("rest", "search", "ok")
    assert f"base:{base}" in row["touched"]
