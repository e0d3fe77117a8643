"""The four tools over a full catalogue, in both eras."""

import json
from typing import Any

import pytest

from tests.catalogue.sample_catalogue import POWERJET
from tests.live_server import Running
from tests.surfaces.gateway.caller import Caller


@pytest.fixture(params=["older", "newest"])
def someone(request: pytest.FixtureRequest, shop: Running) -> Caller:
    return Caller.connect(shop) if request.param == "older" else Caller.newest(shop)


def names(found: list[dict[str, Any]]) -> set[str]:
    return {each["metadata"]["name"] for each in found}


def test_there_are_exactly_four_tools(someone: Caller):
    listed = someone.rpc("tools/list").json()["result"]["tools"]
    expected = {"search-knowledge-base", "get-entity", "get-knowledge-base-structure", "health-check"}
    assert {tool["name"] for tool in listed} == expected
    assert not {"auth-whoami", "auth-verify-key"} & {tool["name"] for tool in listed}


@pytest.mark.parametrize("connect", [Caller.connect, Caller.newest])
def test_a_key_that_may_not_search_is_shown_all_four_tools_and_told_what_it_lacks(shop: Running, connect: Any):
    reader = connect(shop, shop.new_token("reader", kind="agent", scope=["catalogue:read"]))
    assert len(reader.rpc("tools/list").json()["result"]["tools"]) == 4
    assert reader.ask("get-entity", id=POWERJET)["_id"] == POWERJET
    assert reader.ask("health-check")["status"] == "ok"
    told = reader.refused("search-knowledge-base", namespace="products", query="x")
    assert "Your token lacks the scope search:read." in told


def test_the_example_of_the_document_finds_pressure_washers(someone: Caller):
    found = someone.ask(
        "search-knowledge-base",
        namespace="products",
        query="Find pressure washer models under 2000 PSI",
        topK=5,
        metadata={"category": "washers"},
    )
    assert [set(each) for each in found] == [{"id", "score", "metadata"}] * 5
    assert names(found) == {"PowerJet 1800", "PowerJet 2400", "Torrent G3100", "Brook 1400", "Foam lance"}
    assert [each["score"] for each in found] == sorted((each["score"] for each in found), reverse=True)
    assert found[0]["metadata"]["name"] != "Foam lance"


@pytest.mark.parametrize(
    ("metadata", "expected"),
    [
        ({"category": "washers", "psi": {"$lt": 2000}}, {"PowerJet 1800", "Brook 1400"}),
        ({"psi": {"$gte": 1800, "$lte": 2400}}, {"PowerJet 1800", "PowerJet 2400"}),
        ({"psi": 1400}, {"Brook 1400"}),
        ({"psi": {"$eq": 1400}}, {"Brook 1400"}),
        ({"psi": {"$gt": 2400}}, {"Torrent G3100"}),
        ({"psi": {"$in": [1400, 3100]}}, {"Brook 1400", "Torrent G3100"}),
        ({"category": "washers", "psi": {"$nin": [1400, 3100]}}, {"PowerJet 1800", "PowerJet 2400", "Foam lance"}),
        ({"category": "Electric", "sku": {"$ne": "PJ-1800"}}, {"PowerJet 2400"}),
        ({"colours": "red"}, {"PowerJet 1800", "PowerJet 2400"}),
        ({"colours": ["red", "black"]}, {"PowerJet 1800"}),
        ({"tags": ["electric", "quiet"]}, {"Brook 1400"}),
        ({"cordless": False}, {"PowerJet 1800"}),
        ({"$or": [{"psi": {"$lt": 1500}}, {"width": 40}]}, {"Brook 1400", "Meadow 40"}),
        ({"psi": "1400"}, set[str]()),
    ],
)
def test_metadata_filters_as_users_of_vector_stores_expect(caller: Caller, metadata: Any, expected: set[str]):
    assert (
        names(caller.ask("search-knowledge-base", namespace="products", query="machine", metadata=metadata)) == expected
    )


def test_meaning_finds_what_shares_no_word_with_the_question(caller: Caller):
    found = caller.ask("search-knowledge-base", namespace="everything", query="refund for goods sent back", topK=1)
    assert names(found) == {"Returns within 30 days"}
    grass = caller.ask("search-knowledge-base", namespace="products", query="something to cut the grass", topK=1)
    assert names(grass) == {"Meadow 40"}


def test_a_namespace_is_named_by_its_name_or_its_id_and_holds_no_more_than_its_categories(
    shop: Running, caller: Caller
):
    listed = shop.http.get("/knowledge-base/indexes", headers={"x-api-key": shop.token}).json()
    [washers] = [each for each in listed if each["name"] == "washers only"]
    for name in ("washers only", washers["_id"]):
        found = caller.ask("search-knowledge-base", namespace=name, query="machine for lawns", topK=50)
        assert "Meadow 40" not in names(found)
        assert len(found) == 5
    assert washers["status"] == "vectorised"


def test_as_many_as_were_asked_for_are_found_if_there_are_as_many(caller: Caller):
    for count in (1, 3, 6):
        assert len(caller.ask("search-knowledge-base", namespace="products", query="washer", topK=count)) == count
    assert len(caller.ask("search-knowledge-base", namespace="products", query="washer")) == 6


def test_an_entity_is_had_by_its_id_or_its_exact_name(someone: Caller):
    entity = someone.ask("get-entity", id=POWERJET)
    assert (entity["_id"], entity["name"], entity["sku"]) == (POWERJET, "PowerJet 1800", "PJ-1800")
    assert entity["metadata"] == {"psi": 1800, "price": 149.5, "colours": ["red", "black"], "cordless": False}
    assert entity["isVectorized"] is True
    [relation] = entity["relations"]
    assert (relation["type"], relation["targetEntity"]["name"]) == ("accessory", "Foam lance")
    assert relation["categoryPath"] == ["Products", "Washers"]
    assert [each["name"] for each in entity["attachments"]] == ["PowerJet at work"]
    assert someone.ask("get-entity", name="PowerJet 1800") == entity
    assert someone.ask("get-entity", id=POWERJET, name="Foam lance") == entity


def test_the_alias_key_of_a_category_gives_what_is_in_it(caller: Caller):
    assert {each["name"] for each in caller.ask("get-entity", name="washers")} == {"Brook 1400", "Foam lance"}


def test_the_structure_is_shown_whole_or_from_a_category(someone: Caller):
    tree = someone.ask("get-knowledge-base-structure")
    assert [each["name"] for each in tree] == ["Products", "Support Policies"]
    washers = next(each for each in tree[0]["children"] if each["name"] == "Washers")
    assert [each["name"] for each in washers["children"]] == ["Electric", "Petrol"]
    one = someone.ask("get-knowledge-base-structure", categoryId=washers["_id"])
    assert (one["_id"], one["name"]) == (washers["_id"], "Washers")
    assert {each["name"] for each in one["children"]} == {"Electric", "Petrol"}
    assert {each["name"] for each in one["entities"]} == {"Brook 1400", "Foam lance"}
    empty = someone.ask("get-knowledge-base-structure", categoryId=one["children"][1]["_id"])
    assert empty["children"] == []


def test_health_is_checked(someone: Caller):
    health = someone.ask("health-check")
    assert (health["status"], health["message"]) == ("ok", "Service is operational")
    assert (health["knowledgeBase"], health["accessKeys"]) == ("ok", "ok")


@pytest.mark.parametrize(
    ("tool", "arguments", "expected"),
    [
        ("get-entity", {"id": "0" * 24}, "(404): There is no entity '000000000000000000000000'."),
        ("get-entity", {"name": "powerjet 1800"}, "(404): There is no entity 'powerjet 1800'."),
        ("get-knowledge-base-structure", {"categoryId": "nothing"}, "(404): There is no category 'nothing'."),
        ("search-knowledge-base", {"namespace": "never", "query": "x"}, "(404): There is no namespace 'never'."),
        ("search-knowledge-base", {"namespace": "products", "query": " "}, "(400): The question is empty."),
        (
            "search-knowledge-base",
            {"namespace": "products", "query": "x", "metadata": {"psi": {"$near": 3}}},
            "(400): metadata.psi.$near: there is no such operator.",
        ),
    ],
)
def test_what_the_service_refuses_is_an_error_and_never_an_empty_result(
    someone: Caller, tool: str, arguments: dict[str, Any], expected: str
):
    assert someone.refused(tool, **arguments).startswith(f"Knowledge Base service error {expected}")


def test_documents_and_pictures_have_namespaces_of_their_own(shop: Running, caller: Caller):
    found = caller.ask("search-knowledge-base", namespace="images", query="dirty bike")
    assert [each["metadata"]["url"] for each in found] == ["https://example.org/powerjet.png"]
    assert caller.ask("search-knowledge-base", namespace="general_helper_documents", query="pump") == []
    base = shop.call("manage_base", {"action": "create", "name": "Manuals"})["structuredContent"]
    added = {"base_id": base["ids"][0], "name": "pump.md", "content": "Oil the pump."}
    shop.call("add_document", {**added, "metadata": {"year": 2026}})
    shop.work()
    [pump] = caller.ask("search-knowledge-base", namespace="general_helper_documents", query="pump oil")
    assert pump["id"].startswith("document:")
    assert pump["metadata"]["text"] == "Oil the pump."
    asked = {"namespace": "general_helper_documents", "query": "pump oil"}
    assert caller.ask("search-knowledge-base", **asked, metadata={"year": 1999}) == []
    assert len(caller.ask("search-knowledge-base", **asked, metadata={"year": {"$gt": 1999}})) == 1


def test_an_argument_that_the_schema_does_not_name_is_ignored(caller: Caller):
    assert caller.ask("get-entity", id=POWERJET, surplus=1)["_id"] == POWERJET
    assert json.loads(caller.call("health-check", {"surplus": 1})["content"][0]["text"])["status"] == "ok"
