"""The catalogue's tools on /mcp, over HTTP."""

from typing import Any

import pytest
from jsonschema import Draft202012Validator

from almanac.catalogue.categories import MAX_CATEGORY_DEPTH
from almanac.core.database import Database
from almanac.identity import orgs
from tests.catalogue.sample_catalogue import POWERJET
from tests.live_server import ERAS, LEGACY, Running, running, settings_for
from tests.surfaces.gateway.caller import Caller
from tests.surfaces.gateway.conftest import stock
from tests.surfaces.wire import audit_of


@pytest.fixture(scope="module")
def live(shared_url: str, tmp_path_factory: pytest.TempPathFactory) -> Any:
    with running(settings_for(shared_url, tmp_path_factory.mktemp("home"))) as server:
        stock(server)
        yield server


def ask(live: Running, tool: str, token: str | None = None, era: str = ERAS[0], **arguments: Any) -> dict[str, Any]:
    """Call a tool; return its answer, checked against its schema."""
    result = live.call(tool, arguments, token=token, era=era)
    assert result["isError"] is False, result
    [schema] = [
        each["outputSchema"] for each in live.rpc("tools/list").json()["result"]["tools"] if each["name"] == tool
    ]
    problems = list(Draft202012Validator(schema).iter_errors(result["structuredContent"]))  # pyright: ignore[reportUnknownMemberType]
    assert problems == []
    return result["structuredContent"]


@pytest.mark.parametrize("era", ERAS)
def test_entities_are_found_and_had(live: Running, era: str):
    found = ask(
        live, "find_entities", query="pressure washer", category="washers", metadata={"psi": {"$lt": 1500}}, era=era
    )
    [brook] = found["entities"]
    assert (brook["name"], brook["category"], brook["sku"]) == ("Brook 1400", "Washers", "BR-1400")
    whole = ask(live, "get_entity", key=brook["id"], era=era)["entity"]
    assert whole["description"] == "The quietest pressure washer we have, for balconies."
    assert ask(live, "get_entity", key="Brook 1400", era=era)["entity"] == whole
    assert ask(live, "get_entity", key=brook["sku"], era=era)["entity"] == whole
    lawn = ask(live, "find_entities", query="washer", category="Mowers", namespace="washers only", era=era)
    assert lawn["entities"] == []


def test_a_search_names_the_entities_without_vectors(live: Running):
    live.work()
    assert ask(live, "find_entities", query="zwergbrunnen")["notes"] == []
    ask(live, "save_entity", name="Fountain", category="washers", description="zwergbrunnen")
    [note] = ask(live, "find_entities", query="zwergbrunnen")["notes"]
    assert "no vectors yet" in note
    headers = {"x-api-key": live.token}
    body = {"namespace": "products", "query": "zwergbrunnen"}
    assert live.http.post("/knowledge-base/retrieve", json=body, headers=headers).headers["x-search-notes"] == note
    live.work()
    assert ask(live, "find_entities", query="zwergbrunnen")["notes"] == []
    assert "x-search-notes" not in live.http.post("/knowledge-base/retrieve", json=body, headers=headers).headers


def test_a_sku_of_several_entities_is_refused_with_their_ids(live: Running):
    made = [ask(live, "save_entity", name=name, category="policies", sku="TWICE") for name in ("One", "Two")]
    result = live.call("get_entity", {"key": "TWICE"})
    assert result["content"][0]["text"].startswith("conflict: More than one entity has this sku.")
    assert all(each["entity"]["id"] in result["content"][0]["text"] for each in made)


def test_the_tree_is_browsed(live: Running):
    tree = ask(live, "browse_categories")["categories"]
    assert [each["name"] for each in tree] == ["Products", "Support Policies"]
    [mowers] = ask(live, "browse_categories", category="Products/Mowers")["categories"]
    assert [each["name"] for each in mowers["entities"]] == ["Meadow 40"]


def test_an_entity_is_saved_and_at_once_found(live: Running):
    made = ask(live, "save_entity", name="Geyser", category="washers", description="zwolfberg", metadata={"psi": 9})[
        "entity"
    ]
    assert made["id"] in [each["id"] for each in ask(live, "find_entities", query="zwolfberg")["entities"]]
    changed = ask(live, "save_entity", id=made["id"], status="archived")["entity"]
    assert (changed["status"], changed["metadata"]) == ("archived", {"psi": 9})
    assert made["id"] not in [each["id"] for each in ask(live, "find_entities", query="zwolfberg")["entities"]]


@pytest.mark.parametrize(
    ("tool", "arguments", "expected"),
    [
        ("save_entity", {"name": "x"}, "bad_request: A new entity needs a name and a category."),
        ("save_entity", {"id": POWERJET}, "bad_request: There is nothing to change."),
        ("save_entity", {"id": "0" * 24, "name": "x"}, "not_found: There is no entity"),
        ("save_entity", {"name": "x", "category": "nowhere"}, "not_found: There is no category 'nowhere'."),
        ("get_entity", {"key": "nothing"}, "not_found: There is no entity 'nothing'."),
        ("find_entities", {"query": "x", "namespace": "never"}, "not_found: There is no namespace 'never'."),
        ("browse_categories", {"category": "never"}, "not_found: There is no category 'never'."),
    ],
)
def test_what_is_wrong_is_said(live: Running, tool: str, arguments: dict[str, Any], expected: str):
    result = live.call(tool, arguments)
    assert result["isError"] is True
    assert result["content"][0]["text"].startswith(expected)


def test_the_scopes_and_the_role_decide_who_writes(live: Running):
    reader = live.new_token("reads only", kind="agent")
    assert ask(live, "get_entity", key=POWERJET, token=reader)["entity"]["id"] == POWERJET
    refused = live.rpc("tools/call", {"name": "save_entity", "arguments": {"id": POWERJET, "name": "x"}}, token=reader)
    assert "Unknown tool" in refused.json()["error"]["message"]
    everyday = live.new_token("everyday")
    text = live.call("save_entity", {"id": POWERJET, "name": "x"}, token=everyday)["content"][0]["text"]
    assert text.startswith("forbidden: To write the catalogue needs the role Developer")


def test_what_was_looked_at_is_in_the_audit_trail(live: Running):
    live.call("get_entity", {"key": "Meadow 40"}, headers={"x-request-id": "looked"})
    [row] = audit_of(live, "looked")
    assert row["tool"] == "get_entity"
    assert row["touched"].startswith("entity:")


STORED_LEVELS = 300  # by an earlier version; JSON of that depth cannot be written


@pytest.fixture(scope="module")
def deep(live: Running) -> str:
    """A token of an organisation whose categories are nested deeper than any version now allows."""
    token = live.new_token("deep", org="deep", admin=True)

    async def nest(db: Database) -> None:
        org = await orgs.get_by_name(db, "deep")
        parent = 0
        sql = (
            "INSERT INTO categories (id, org_id, parent, name, description, created_at, updated_at)"
            " VALUES ($1, $2, $3, $4, '', 1, 1) RETURNING number"
        )
        for level in range(STORED_LEVELS):
            values = (f"{level:024x}", org.id, parent, f"Level {level}")
            row = await db.write(lambda tx, values=values: tx.fetch_one(sql, *values))
            assert row is not None
            parent = row["number"]

    live.run(nest)
    return token


def chain(node: Any) -> list[Any]:
    """A category and the first category at each level below it."""
    found = [node]
    while children := found[-1].get("children"):
        found.append(children[0])
    return found


@pytest.mark.parametrize("era", ERAS)
def test_a_tree_that_is_stored_deeper_than_allowed_is_read_in_parts(live: Running, deep: str, era: str):
    [top] = ask(live, "browse_categories", token=deep, era=era)["categories"]
    levels = chain(top)
    assert [each["name"] for each in levels] == [f"Level {level}" for level in range(MAX_CATEGORY_DEPTH + 1)]
    [rest] = ask(live, "browse_categories", token=deep, era=era, category=levels[-1]["id"])["categories"]
    assert [each["name"] for each in chain(rest)] == [f"Level {MAX_CATEGORY_DEPTH + step}" for step in (0, 1)]


@pytest.mark.parametrize("query", ["", "?extended=true", f"/{0:024x}", f"/{0:024x}?recursive=true"])
def test_rest_reads_a_tree_that_is_stored_deeper_than_allowed(live: Running, deep: str, query: str):
    answer = live.http.get(f"/knowledge-base/categories{query}", headers={"x-api-key": deep})
    assert answer.status_code == 200, answer.text
    top = answer.json() if query.startswith("/") else answer.json()[0]
    is_one_level = query.startswith("/") and "recursive" not in query
    assert len(chain(top)) == (2 if is_one_level else MAX_CATEGORY_DEPTH + 1)


@pytest.mark.parametrize("era", ERAS)
def test_the_gateway_reads_a_tree_that_is_stored_deeper_than_allowed(live: Running, deep: str, era: str):
    caller = Caller.connect(live, deep) if era == LEGACY else Caller.newest(live, deep)
    [top] = caller.ask("get-knowledge-base-structure")
    assert len(chain(top)) == MAX_CATEGORY_DEPTH + 1
