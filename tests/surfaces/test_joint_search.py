"""Searching documents, notes, entities and datasets together, over MCP and REST, with a real worker."""

from typing import Any

import pytest

from tests.live_server import ERAS, Running
from tests.surfaces.gateway.conftest import stock
from tests.surfaces.test_knowledge_tools import ask, base, refused
from tests.surfaces.test_search_tools import held

__all__ = ["base"]  # a fixture

ALL = ["notes", "entities", "datasets"]
READINGS: list[dict[str, Any]] = [
    {"pump": "Zephyrine", "pressure": 12.5, "cost": 100},
    {"pump": "Zephyrine", "pressure": 13.5, "cost": 200},
    {"pump": "Boreal", "pressure": 9.5, "cost": 300},
]


@pytest.fixture
def dataset_id(server: Running) -> int:
    return ask(server, "push_data", dataset="Pump readings", rows=READINGS)["dataset_id"]


def found(server: Running, query: str, include: list[str] = ALL, token: str | None = None, **more: Any) -> list[str]:
    """The kinds and ids of the results."""
    result = server.call("search", {"query": query, "include": include, "mode": "keyword", **more}, token=token)
    assert not result["isError"], result
    return [each["id"] for each in result["structuredContent"]["results"]]


@pytest.mark.parametrize("era", ERAS)
def test_documents_notes_entities_and_datasets_are_ranked_together(
    server: Running, base: int, dataset_id: int, era: str
):
    ask(server, "add_document", base_id=base, name="pumps.md", content="# Pumps\n\nThe pump is oiled in spring.\n")
    note_id = ask(server, "remember", title="Pump", body="The pump of hall two runs hot.")["id"]
    stock(server)
    ask(server, "save_entity", name="Pump P-40", category="washers", description="A pump for wells, with readings.")
    server.work()
    arguments = {"query": "readings of a pump", "include": ALL, "base_ids": [base]}
    answer = server.call("search", arguments, era=era)["structuredContent"]
    held(server, "search", answer)
    results = {each["id"].split(":")[0]: each for each in answer["results"]}
    assert results.keys() == {"document", "note", "entity", "dataset"}
    assert answer["notes"] == []
    scores = [each["score"] for each in answer["results"]]
    assert scores == sorted(scores, reverse=True)
    best = answer["results"][0]
    assert (best["id"], best["title"], best["base_id"]) == (f"dataset:{dataset_id}", "Pump readings", None)
    assert best["url"] == f"{server.settings.url}/api/v1/datasets/{dataset_id}"
    assert results["note"]["id"] == f"note:{note_id}"
    assert results["note"]["url"] == f"almanac://notes/{note_id}"
    only = server.call("search", {"query": "readings of a pump"}, era=era)["structuredContent"]["results"]
    assert {each["id"].split(":")[0] for each in only} == {"document"}
    rest = server.http.post(
        "/api/v1/search", json=arguments, headers={"authorization": f"Bearer {server.token}"}
    ).json()
    assert [each["id"] for each in rest["results"]] == [each["id"] for each in answer["results"]]
    assert rest["results"][0]["document_id"] is None
    assert rest["results"][0]["legs"] == ["words", "vectors"]


def test_a_dataset_is_found_by_fields_notes_and_frequent_values(server: Running, dataset_id: int):
    ref = f"dataset:{dataset_id}"
    server.work()
    for query in ("readings", "pressure", "Zephyrine", "boreal"):
        assert found(server, query) == [ref], query
    assert found(server, "turnover") == []
    ask(
        server, "manage_dataset", action="change", dataset_id=dataset_id, description="From the waterworks",
        fields={"cost": {"label": "Turnover", "unit": "florin", "synonyms": ["revenue"]}},
    )  # fmt: skip
    for query in ("waterworks", "turnover", "florin", "revenue", "Zephyrine"):
        assert found(server, query) == [ref], query
    server.work()
    [result] = server.call("search", {"query": "money earned", "include": ["datasets"], "mode": "vector"})[
        "structuredContent"
    ]["results"]
    assert result["id"] == ref


def test_a_renamed_or_removed_dataset_is_not_found_as_before(server: Running, dataset_id: int):
    server.work()
    ask(server, "manage_dataset", action="change", dataset_id=dataset_id, name="Gauges")
    assert (found(server, "readings"), found(server, "gauges")) == ([], [f"dataset:{dataset_id}"])
    ask(server, "manage_dataset", action="delete", dataset_id=dataset_id)
    assert (found(server, "gauges"), found(server, "Zephyrine")) == ([], [])
    ask(server, "manage_dataset", action="restore", dataset_id=dataset_id)
    assert found(server, "Zephyrine") == [f"dataset:{dataset_id}"]


def test_what_a_rule_hides_from_anybody_finds_a_dataset_for_nobody(server: Running, dataset_id: int):
    ref, bob = f"dataset:{dataset_id}", server.new_token("bob")
    server.work()
    assert found(server, "Zephyrine", token=bob) == [ref]
    rule = {"user": "bob", "condition": "pump = 'Boreal'", "hidden": ["cost"]}
    ask(server, "manage_dataset", action="set_rule", dataset_id=dataset_id, **rule)
    for token in (bob, server.token):
        for query in ("Zephyrine", "boreal", "cost"):
            assert found(server, query, token=token) == [], query
        [result] = server.call("search", {"query": "pressure", "include": ALL}, token=token)["structuredContent"][
            "results"
        ]
        assert result["text"] == "pump\npressure"
    server.work()
    assert found(server, "Zephyrine", token=bob) == []
    ask(server, "manage_dataset", action="lift_rule", dataset_id=dataset_id, user="bob")
    assert found(server, "Zephyrine", token=bob) == [ref]


def test_another_organisation_and_a_token_without_the_scope_find_no_datasets(server: Running, dataset_id: int):
    server.work()
    eve = server.new_token("eve", org="Elsewhere")
    limited = server.new_token("limited", scope=["search:read", "memory:read", "catalogue:read"])
    assert found(server, "pump readings", token=eve) == []
    answer = server.call("search", {"query": "pump readings", "include": ALL}, token=limited)["structuredContent"]
    assert answer["results"] == []
    assert answer["notes"][-1] == "Your token finds no datasets: it lacks the scope data:read."


def test_including_other_kinds_in_a_search_of_folders_is_refused(server: Running):
    filters: list[dict[str, Any]] = [{"folder_ids": [1]}, {"document_ids": [1]}]
    for more in filters:
        error = refused(server, "search", query="pump", include=["datasets"], **more)
        assert "include: cannot be combined" in error
    assert "include" in refused(server, "search", query="pump", include=["people"])
    assert "find_datasets" in refused(server, "fetch", id="dataset:12")


def test_the_profile_is_shown_by_the_tool_and_over_rest(server: Running, dataset_id: int):
    bob, path = server.new_token("bob"), f"/api/v1/datasets/{dataset_id}/profile"
    server.work()
    profile = ask(server, "find_datasets", dataset="Pump readings")["profile"]
    assert profile["version"] == 1
    assert profile["fields"][0]["frequent"] == [["Zephyrine", 2], ["Boreal", 1]]
    assert (profile["fields"][1]["min"], profile["fields"][1]["max"]) == (9.5, 13.5)
    assert server.http.get(path, headers={"authorization": f"Bearer {bob}"}).json()["fields"] == profile["fields"]
    ask(server, "manage_dataset", action="set_rule", dataset_id=dataset_id, user="bob", hidden=["cost"])
    hidden = server.http.get(path, headers={"authorization": f"Bearer {bob}"}).json()
    assert (hidden["fields"], hidden["version"]) == ([], None)
    assert "rule" in hidden["note"]
    eve = server.new_token("eve", org="Elsewhere")
    assert server.http.get(path, headers={"authorization": f"Bearer {eve}"}).status_code == 404
