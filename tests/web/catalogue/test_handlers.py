"""The catalogue over REST, at the paths of the gateway's contract, on both databases."""

import json
import re
from typing import Any

import httpx2
import pytest

from almanac.catalogue import access
from almanac.core.database import Database
from almanac.web import openapi
from almanac.web.catalogue.routes import CATALOGUE_OPERATIONS
from tests.catalogue.sample_catalogue import FILE, POWERJET
from tests.live_server import Running
from tests.waiting import wait_until
from tests.web.api import jsonschema

DESCRIBED = openapi.describe(CATALOGUE_OPERATIONS, "")
KB = "/knowledge-base"


def send(live: Running, method: str, path: str, token: str | None = None, **how: Any) -> httpx2.Response:
    """Send a request; check the answer against the description."""
    response = live.http.request(method, path, headers={"x-api-key": token or live.token}, **how)
    plain = path.partition("?")[0]
    found = [
        item
        for spelt, item in DESCRIBED["paths"].items()
        if re.fullmatch(re.sub(r"\{key\}", ".+", re.sub(r"\{id\}", "[^/]+", spelt)), plain) and method.lower() in item
    ]
    responses = found[0][method.lower()]["responses"]
    assert str(response.status_code) in responses, (method, path, response.status_code, response.text)
    content = responses[str(response.status_code)].get("content", {}).get("application/json")
    if content:
        schema = {**content["schema"], "components": DESCRIBED["components"]}
        jsonschema.Draft202012Validator(schema).validate(response.json())
    return response


def ask(live: Running, method: str, path: str, status: int = 200, **how: Any) -> Any:
    response = send(live, method, path, **how)
    assert response.status_code == status, (method, path, response.status_code, response.text)
    return response.json() if response.content else None


@pytest.fixture(scope="module")
def shop(shared: Running) -> Running:
    report = ask(shared, "POST", "/tenants/seed?dryRun=true", json=json.loads(FILE.read_text("utf-8")))
    assert (report["dryRun"], report["counts"]["entity"]) == (True, {"add": 7})
    assert ask(shared, "GET", f"{KB}/entities") == []
    report = ask(shared, "POST", "/tenants/seed", json=json.loads(FILE.read_text("utf-8")))
    assert (report["dryRun"], report["counts"]["entity"]) == (False, {"add": 7})
    return shared


def names(found: list[dict[str, Any]]) -> list[str]:
    return [each["name"] for each in found]


def test_categories_are_listed_searched_and_shown(shop: Running):
    tree = ask(shop, "GET", f"{KB}/categories")
    assert names(tree) == ["Products", "Support Policies"]
    assert names(ask(shop, "GET", f"{KB}/categories?parent=null")) == names(tree)
    assert names(ask(shop, "GET", f"{KB}/categories?parent={tree[0]['_id']}")) == ["Mowers", "Washers"]
    assert names(ask(shop, "GET", f"{KB}/categories?search=ENGINE")) == ["Petrol"]
    assert names(ask(shop, "GET", f"{KB}/categories?categoryAlias=washers")) == ["Washers"]
    assert set(names(ask(shop, "GET", f"{KB}/categories?policy=default"))) == {
        "Products", "Washers", "Mowers", "Support Policies",
    }  # fmt: skip
    [extended] = ask(shop, "GET", f"{KB}/categories?categoryAlias=washers&extended=true")
    assert extended["categoryAlias"]["aliasKey"] == "washers"
    assert extended["policy"]["policyKey"] == "default"
    assert names(extended["entities"]) == ["Brook 1400", "Foam lance"]
    assert set(ask(shop, "GET", f"{KB}/categories?fields=name")[0]) == {"_id", "name"}
    one = ask(shop, "GET", f"{KB}/categories/{extended['_id']}")
    assert (one["name"], names(one["children"]), one["entityCount"]) == ("Washers", ["Electric", "Petrol"], 2)
    assert one["permissions"] == {"canDelete": False, "canChangeHierarchy": True}
    deep = ask(shop, "GET", f"{KB}/categories/{extended['_id']}?recursive=true")
    assert names(deep["children"][0]["entities"]) == ["PowerJet 1800", "PowerJet 2400"]
    assert [each["_id"] for each in ask(shop, "GET", f"{KB}/categories/washers")] == [extended["_id"]]
    assert ask(shop, "GET", f"{KB}/categories/Products/Washers")["_id"] == extended["_id"]


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ("search=PATIOS", ["PowerJet 1800"]),
        ("search=nozzle", ["PowerJet 1800"]),
        ("sku=FL-9", ["Foam lance"]),
        ("source=catalogue 2026", ["PowerJet 1800"]),
        ("tags=quiet,petrol", ["Brook 1400", "Torrent G3100"]),
        ("tags=elec", []),
        ("categoryId=washers", ["Brook 1400", "Foam lance"]),
        ("categoryId=washers&recursive=true&tags=electric", ["Brook 1400", "PowerJet 1800", "PowerJet 2400"]),
        ("categoryId=Mowers, policies", ["Meadow 40", "Returns within 30 days"]),
        ("status=draft", []),
    ],
)
def test_entities_are_filtered(shop: Running, query: str, expected: list[str]):
    assert sorted(names(ask(shop, "GET", f"{KB}/entities?{query}"))) == expected


def test_entities_are_paged_and_counted(shop: Running):
    pages = [send(shop, "GET", f"{KB}/entities?limit=3&offset={offset}") for offset in (0, 3, 6)]
    assert [len(page.json()) for page in pages] == [3, 3, 1]
    assert {page.headers["x-total-count"] for page in pages} == {"7"}
    assert set(ask(shop, "GET", f"{KB}/entities?fields=name,sku&limit=1")[0]) == {"_id", "name", "sku"}


def test_an_entity_is_had_by_id_by_name_and_its_siblings_by_alias(shop: Running):
    entity = ask(shop, "GET", f"{KB}/entities/{POWERJET}")
    assert ask(shop, "GET", f"{KB}/entities/PowerJet%201800") == entity
    assert names(ask(shop, "GET", f"{KB}/entities/washers")) == ["Brook 1400", "Foam lance"]
    assert send(shop, "GET", f"{KB}/entities/nothing").status_code == 404


def test_an_entity_lives_and_dies(shop: Running):
    made = ask(
        shop, "POST", f"{KB}/entities", 201, json={"name": "A/B: 50%?", "category": "washers", "metadata": {"psi": 5}}
    )
    assert re.fullmatch("[0-9a-f]{24}", made["_id"])
    assert ask(shop, "GET", f"{KB}/entities/A%2FB%3A%2050%25%3F") == made
    changed = ask(shop, "PATCH", f"{KB}/entities/{made['_id']}", json={"sku": "S", "tags": ["t"]})
    assert (changed["sku"], changed["tags"], changed["metadata"]) == ("S", ["t"], {"psi": 5})
    assert send(shop, "PATCH", f"{KB}/entities/{made['_id']}", json={}).status_code == 400
    relation = {"targetEntity": POWERJET, "type": "accessory", "relationDescription": "d"}
    [one] = ask(shop, "POST", f"{KB}/entities/{made['_id']}/relationships", 201, json=relation)
    assert (one["targetEntity"]["_id"], one["relationDescription"]) == (POWERJET, "d")
    assert len(ask(shop, "GET", f"{KB}/entities/{POWERJET}/relationships?type=accessory")) == 2
    assert ask(shop, "GET", f"{KB}/entities/{POWERJET}/relationships?type=none") == []
    ask(shop, "DELETE", f"{KB}/entities/{made['_id']}/relationships?target={POWERJET}&type=accessory", 204)
    ask(shop, "DELETE", f"{KB}/entities/{made['_id']}", 204)
    assert send(shop, "GET", f"{KB}/entities/{made['_id']}").status_code == 404
    assert send(shop, "DELETE", f"{KB}/entities/{made['_id']}").status_code == 404


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/entities", {"name": "x"}),
        ("/entities", {"category": "washers"}),
        ("/entities", {"name": "", "category": "washers"}),
        ("/entities", {"name": "x", "category": "washers", "status": "lost"}),
        ("/entities", {"name": "x", "category": "washers", "tags": [""]}),
        ("/entities", {"name": "x", "category": "washers", "surplus": 1}),
        ("/entities", {"name": "x\u0007", "category": "washers"}),
        ("/categories", {"name": "x", "description": "", "categoryAlias": "washers"}),
        ("/categories", {"name": "x", "description": "", "policy": "default"}),
        ("/indexes", {"name": "images"}),
        ("/attachments", {"name": "x", "url": "file:///etc/passwd"}),
        ("/attachments", {"name": "x", "url": "javascript:alert(1)"}),
        ("/policies", {"name": "x", "policyKey": "x", "inputType": "EXE"}),
        ("/category-aliases", {"name": "x", "aliasKey": "a b"}),
        ("/retrieve", {"namespace": "products", "query": "x", "topK": 51}),
        ("/retrieve", {"namespace": "products", "query": "x", "topK": "5"}),
    ],
)
def test_what_is_not_right_is_refused(shop: Running, path: str, body: dict[str, Any]):
    assert send(shop, "POST", KB + path, json=body).status_code == 400


@pytest.mark.parametrize(
    "category",
    [
        [["washers"]],
        [{"name": "washers"}],
        {"$in": [["washers"]]},
        {"$in": [{"name": "washers"}]},
        {"$in": {"name": "washers"}},
        {"$nin": "washers"},
        {"$eq": ["washers"]},
        {"$ne": {"name": "washers"}},
        {"$gt": ["washers"]},
        {"$in": []},
    ],
)
def test_a_strange_category_to_filter_by_is_refused_like_any_other_strange_value(shop: Running, category: Any):
    for metadata in ({"category": category}, {"$or": [{"psi": 1400}, {"category": category}]}):
        asked = {"namespace": "products", "query": "x", "metadata": metadata}
        assert ask(shop, "POST", f"{KB}/retrieve", 400, json=asked)["code"] == "bad_request"


def test_a_namespace_of_any_length_that_is_not_there_is_not_found(shop: Running):
    asked = {"namespace": "n" * 5_000, "query": "x"}
    assert ask(shop, "POST", f"{KB}/retrieve", 404, json=asked)["error"].startswith("There is no namespace 'nnn")


def test_an_entity_is_not_renamed_to_blanks(shop: Running):
    made = ask(shop, "POST", f"{KB}/entities", 201, json={"name": " Spaced ", "category": "washers"})
    assert made["name"] == "Spaced"
    for name in ("", " ", "\t\n", "\u3000"):
        ask(shop, "PATCH", f"{KB}/entities/{made['_id']}", 400, json={"name": name})
    assert ask(shop, "PATCH", f"{KB}/entities/{made['_id']}", json={"name": " Other "})["name"] == "Other"
    ask(shop, "DELETE", f"{KB}/entities/{made['_id']}", 204)


def test_what_an_entity_says_of_itself_is_shown_as_it_was_filtered_by(shop: Running):
    own = {"status": "sold", "category": "vintage", "tags": ["brass"], "name": "Zwolfberg the Elder"}
    new = {"name": "Zwolfberg", "category": "washers", "tags": ["old"], "metadata": own}
    made = ask(shop, "POST", f"{KB}/entities", 201, json=new)
    for metadata in ({"status": "sold"}, {"category": "vintage"}, {"tags": "brass"}, {"name": own["name"]}):
        asked = {"namespace": "products", "query": "zwolfberg", "metadata": metadata}
        [found] = ask(shop, "POST", f"{KB}/retrieve", json=asked)
        assert found["id"] == made["_id"]
        assert {name: found["metadata"][name] for name in own} == own
    ask(shop, "DELETE", f"{KB}/entities/{made['_id']}", 204)


def test_the_rest_of_the_contract(shop: Running):
    for path, key, body in (
        ("category-aliases", "aliasKey", {"name": "N", "aliasKey": "n"}),
        ("relationship-types", "typeKey", {"name": "N", "typeKey": "n"}),
        ("attachment-types", "typeKey", {"name": "N", "typeKey": "n"}),
        ("policies", "policyKey", {"name": "N", "policyKey": "n", "inputType": "PDF", "outputFormat": "JSON"}),
    ):
        made = ask(shop, "POST", f"{KB}/{path}", 201, json=body)
        assert made[key] == "n"
        assert made in ask(shop, "GET", f"{KB}/{path}")
        assert send(shop, "POST", f"{KB}/{path}", json=body).status_code == 409
    new = {"name": "Parts", "description": "", "categoryAlias": "n", "policy": "n", "parent": "Products"}
    parts = ask(shop, "POST", f"{KB}/categories", 201, json=new)
    assert ask(shop, "PATCH", f"{KB}/categories/{parts['_id']}", json={"name": "Spares"})["name"] == "Spares"
    index = ask(shop, "POST", f"{KB}/indexes", 201, json={"name": "spares", "categories": [parts["_id"]]})
    assert (index["categories"], index["status"]) == ([parts["_id"]], "vectorised")
    assert names(ask(shop, "GET", f"{KB}/indexes?categoryId={parts['_id']}")) == ["spares"]
    assert names(ask(shop, "GET", f"{KB}/indexes?name=products&notes=sell")) == ["products"]
    ask(shop, "DELETE", f"{KB}/indexes/{index['_id']}", 204)
    ask(shop, "DELETE", f"{KB}/categories/{parts['_id']}", 204)
    url = "https://example.org/manual.pdf"
    paper = ask(shop, "POST", f"{KB}/attachments/link", json={"entityId": POWERJET, "attachmentUrl": url})
    assert (paper["name"], paper["entities"]) == ("manual.pdf", [POWERJET])
    assert paper in ask(shop, "GET", f"{KB}/entities/{POWERJET}/attachments")
    assert ask(shop, "GET", f"{KB}/attachments/{paper['_id']}") == paper
    off = {"entityId": POWERJET, "attachmentId": paper["_id"], "action": "unlink"}
    assert ask(shop, "POST", f"{KB}/attachments/link", json=off)["entities"] == []
    ask(shop, "DELETE", f"{KB}/attachments/{paper['_id']}", 204)
    assert paper["_id"] not in [each["_id"] for each in ask(shop, "GET", f"{KB}/attachments")]


def test_retrieval_answers_with_values_too(shop: Running):
    found = ask(shop, "POST", f"{KB}/retrieve", json={"namespace": "products", "query": "quietest washer", "topK": 1})
    assert [(each["metadata"]["name"], each["values"]) for each in found] == [("Brook 1400", [])]


def test_a_key_is_verified(shop: Running):
    agent = shop.new_token("a bot", kind="agent")
    body = {"key": agent, "scope": "knowledge-base"}
    facts = shop.http.post("/keys/verify", json=body).json()
    org = shop.run(lambda db: db.fetch("SELECT id FROM orgs"))[0]["id"]
    assert (facts["valid"], facts["tenantId"], facts["name"]) == (True, org, "a bot")
    narrow = shop.new_token("narrower", scope=["knowledge:read"])
    for key, status, message in (
        ("wg-no", 401, "Invalid API key"),
        (narrow, 401, "Invalid API key"),
        ("", 401, "Missing API key"),
    ):
        response = shop.http.post("/keys/verify", json={"key": key, "scope": "knowledge-base"})
        assert (response.status_code, response.json()["error"]) == (status, message)
    assert shop.http.post("/keys/verify", json={"key": agent, "scope": "everything"}).status_code == 400


def test_the_keys_of_a_request_are_taken_in_their_order(shop: Running):
    path = f"{KB}/entities/{POWERJET}"
    for headers, status in (
        ({"x-api-key": shop.token, "x-access-key": "no"}, 200),
        ({"x-access-key": shop.token, "authorization": "Bearer no"}, 200),
        ({"authorization": f"Bearer {shop.token}"}, 200),
        ({"x-api-key": "no", "authorization": f"Bearer {shop.token}"}, 401),
        ({}, 401),
    ):
        assert shop.http.get(path, headers=headers).status_code == status
    assert shop.http.get(path).json() == {"error": "Missing API key", "code": "unauthorized"}


def test_another_tenant_sees_and_changes_nothing(shop: Running):
    stranger = shop.new_token("boss", org="elsewhere", admin=True)
    assert ask(shop, "GET", f"{KB}/entities", token=stranger) == []
    assert ask(shop, "GET", f"{KB}/categories", token=stranger) == []
    for method, path, body in (
        ("GET", f"/entities/{POWERJET}", None),
        ("PATCH", f"/entities/{POWERJET}", {"name": "x"}),
        ("DELETE", f"/entities/{POWERJET}", None),
        ("POST", "/retrieve", {"namespace": "products", "query": "x"}),
        ("POST", "/attachments/link", {"entityId": POWERJET, "attachmentUrl": "https://example.org/a.png"}),
    ):
        assert send(shop, method, KB + path, token=stranger, **({"json": body} if body else {})).status_code == 404
    org = shop.run(lambda db: db.fetch("SELECT id FROM orgs WHERE name <> 'elsewhere'"))[0]["id"]
    assert send(shop, "POST", "/tenants/seed", token=stranger, json={"tenantId": org}).status_code == 403
    assert send(shop, "DELETE", f"/tenants/{org}", token=stranger).status_code == 403
    assert len(ask(shop, "GET", f"{KB}/entities")) == 7


def test_all_of_a_tenant_s_catalogue_is_removed_and_nothing_of_another_s(
    shop: Running, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(access, "BATCH_ROWS", 3)
    boss = shop.new_token("boss", org="closing", admin=True)
    reader = shop.new_token("reader", org="closing")
    ask(
        shop,
        "POST",
        "/tenants/seed",
        token=boss,
        json=json.loads(FILE.read_text("utf-8").replace("68dfc8fd", "78dfc8fd")),
    )
    org = shop.run(lambda db: db.fetch("SELECT id FROM orgs WHERE name = 'closing'"))[0]["id"]
    assert send(shop, "DELETE", f"/tenants/{org}", token=reader).status_code == 403
    assert send(shop, "DELETE", "/tenants/nobody", token=boss).status_code == 403
    assert len(ask(shop, "GET", f"{KB}/entities", token=boss)) == 7
    for _ in range(2):  # a missing entity can be removed
        ask(shop, "DELETE", f"/tenants/{org}", 204, token=boss)
        for kind in ("entities", "categories", "indexes", "attachments"):
            assert ask(shop, "GET", f"{KB}/{kind}", token=boss) == []
    found = {"namespace": "products", "query": "pressure washer"}
    assert send(shop, "POST", f"{KB}/retrieve", token=boss, json=found).status_code == 404
    left = "SELECT count(*) AS number FROM sources WHERE org_id = $1"
    assert shop.run(lambda db: db.fetch(left, org))[0]["number"] == 0
    assert len(ask(shop, "GET", f"{KB}/entities")) == 7
    assert ask(shop, "POST", f"{KB}/retrieve", json=found)


def test_a_url_with_a_long_end_is_linked_under_a_part_of_it(shop: Running):
    url = "https://example.org/" + "a" * 400
    ask(shop, "POST", f"{KB}/attachments/link", json={"entityId": POWERJET, "attachmentUrl": url})
    (linked,) = [each for each in ask(shop, "GET", f"{KB}/entities/{POWERJET}/attachments") if each["url"] == url]
    assert linked["name"] == "a" * 300
    ask(shop, "DELETE", f"{KB}/attachments/{linked['_id']}", 204)


def test_the_description_is_served_without_a_key(shop: Running):
    served = shop.http.get(f"{KB}/openapi.json").json()
    assert served == json.loads(json.dumps(DESCRIBED | {"servers": [{"url": "/"}]}))
    assert not any("company" in path or "employees" in path for path in served["paths"])


def test_requests_are_in_the_audit_trail(shop: Running):
    shop.http.get(f"{KB}/entities/{POWERJET}", headers={"x-api-key": shop.token, "x-request-id": "kb-1"})

    async def rows(db: Database) -> Any:
        return await db.fetch("SELECT surface, tool, outcome, touched FROM audit WHERE request_id = 'kb-1'")

    [row] = wait_until(lambda: shop.run(rows), lambda found: len(found) == 1)
    assert (row["tool"], row["outcome"], row["touched"]) == ("get_entity", "ok", f"entity:{POWERJET}")


def test_categories_are_not_nested_deeper_than_they_can_be_read(shop: Running):
    terms = {"description": "", "categoryAlias": "deep", "policy": "deep"}
    ask(shop, "POST", f"{KB}/category-aliases", 201, json={"name": "D", "aliasKey": "deep"})
    policy = {"name": "D", "policyKey": "deep", "inputType": "PDF", "outputFormat": "JSON"}
    ask(shop, "POST", f"{KB}/policies", 201, json=policy)

    def add_chain(name: str, number: int) -> list[str]:
        ids: list[str] = []
        for level in range(number):
            body = {"name": f"{name} {level}", **terms, **({"parent": ids[-1]} if ids else {})}
            ids.append(ask(shop, "POST", f"{KB}/categories", 201, json=body)["_id"])
        return ids

    deep, moved = add_chain("Deep", 50), add_chain("Moved", 3)
    below = send(shop, "POST", f"{KB}/categories", json={"name": "Deeper", **terms, "parent": deep[-1]})
    assert (below.status_code, below.json()["error"][:7]) == (400, "parent:")
    for parent, status in ((deep[47], 400), (deep[46], 200)):
        answer = send(shop, "PATCH", f"{KB}/categories/{moved[0]}", json={"parent": parent})
        assert answer.status_code == status, answer.text
    assert "Deep 0" in names(ask(shop, "GET", f"{KB}/categories"))
    for id in (*reversed(moved), *reversed(deep)):
        ask(shop, "DELETE", f"{KB}/categories/{id}", 204)


@pytest.mark.parametrize("name", ["Pump\x9b31m", "Pump \u202egpj.exe", "Pump\x1b[2J", "Two\nlines"])
def test_a_name_that_would_change_a_terminal_is_refused(shop: Running, name: str):
    bodies: dict[str, dict[str, Any]] = {
        "entities": {"name": name, "category": "washers"},
        "category-aliases": {"name": name, "aliasKey": "evil"},
        "indexes": {"name": name, "categories": []},
    }
    for path, body in bodies.items():
        answer = send(shop, "POST", f"{KB}/{path}", json=body)
        assert (answer.status_code, answer.json()["error"][:5]) == (400, "name:"), (path, answer.text)


@pytest.mark.parametrize("url", ["manual.pdf", "http://[", "javascript:alert(1)", "http://", ""])
def test_only_an_address_can_be_linked(shop: Running, url: str):
    body = {"entityId": POWERJET, "attachmentUrl": url}
    for action in ("link", "unlink"):
        answer = send(shop, "POST", f"{KB}/attachments/link", json={**body, "action": action})
        assert (answer.status_code, answer.json()["error"].split(":")[0]) == (400, "attachmentUrl"), answer.text
