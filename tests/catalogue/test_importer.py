"""Filling a catalogue: from JSON, JSONL and CSV, again and again, with a look beforehand, and back to a file."""

import json
from typing import Any, cast

import pytest

from almanac.catalogue import catalogue_file, categories, entities, exporter, importer, vocabulary
from almanac.catalogue.importer import CatalogueImport, ImportReport
from almanac.core.call import Call
from almanac.core.database import Database
from almanac.core.errors import AlmanacError, BadRequest, Forbidden
from tests.catalogue.shop import FILE, POWERJET, call_of, fill

SEED: dict[str, Any] = json.loads(FILE.read_text("utf-8"))


async def exported(call: Call) -> dict[str, Any]:
    return {**await exporter.frame(call), "entities": [item async for item in exporter.items(call)]}


def without_ids(value: Any) -> Any:
    """What does not depend on which organisation it is in."""
    if isinstance(value, dict):
        pairs = cast("dict[str, Any]", value).items()
        return {key: without_ids(each) for key, each in pairs if key not in ("_id", "tenantId", "target")}
    if isinstance(value, list):
        return sorted((without_ids(each) for each in cast("list[Any]", value)), key=json.dumps)
    return value


def counted(report: ImportReport) -> dict[tuple[str, str], int]:
    return dict(report.counts)


async def tables(db: Database) -> dict[str, Any]:
    names = ("vocabulary", "categories", "entities", "relations", "attachments", "attached", "namespaces", "sources")
    return {name: (await db.fetch(f"SELECT count(*) FROM {name}"))[0][0] for name in names}


async def test_a_seed_becomes_a_catalogue_and_again_changes_nothing(database: Database):
    call = await call_of(database)
    first = counted(await fill(call))
    assert first["entity", "add"] == 7
    assert first["category", "add"] == 6
    assert first["namespace", "add"] == 3
    before = await tables(database)
    again = counted(await fill(call))
    assert {action for _, action in again} == {"same"}
    assert again["entity", "same"] == 7
    assert await tables(database) == before
    entity = await entities.get(database, call, POWERJET)
    assert entity.category_name == "Electric"


async def test_progress_is_told_as_it_goes(database: Database, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(importer, "BATCH_ENTITIES", 3)
    told: list[tuple[int, int]] = []
    read = catalogue_file.parse(FILE.read_bytes(), "json")
    await CatalogueImport(await call_of(database), read).run(lambda done, total: told.append((done, total)))
    assert told == [(3, 7), (6, 7), (7, 7)]


async def test_a_dry_run_says_what_would_change_and_changes_nothing(database: Database):
    call = await call_of(database)
    empty = await tables(database)
    report = await fill(call, dry=True)
    assert await tables(database) == empty
    assert counted(report) == counted(await fill(call))
    changed = json.loads(json.dumps(SEED))
    changed["entities"][0]["description"] = "Another"
    changed["entities"][0]["metadata"]["psi"] = 1850
    changed["entities"].append({"name": "Hose", "category": "Products/Hoses"})
    changed["categories"][0]["children"].append({"name": "Hoses"})
    changed["indexes"][0]["notes"] = "other notes"
    changed["entities"][0]["relations"][0]["description"] = "With an adapter"
    changed["entities"][1]["relations"] = [
        {"target": name, "type": "accessory"} for name in ("FL-9", "Hose", POWERJET, "Hose")
    ]
    changed["entities"][1]["attachments"] = [
        {"name": "At work", "url": "https://example.org/powerjet.png", "type": "image"},
        {"name": "Alone", "url": "https://example.org/alone.png"},
    ]
    before = await exported(call)
    report = await fill(call, json.dumps(changed).encode(), dry=True)
    said = {(each.action, each.what, each.name, each.fields) for each in report.changes}
    assert said == {
        ("change", "entity", "PowerJet 1800", ("description", "metadata")),
        ("add", "entity", "Hose", ()),
        ("add", "category", "Products/Hoses", ()),
        ("change", "namespace", "products", ()),
        ("change", "relation", "accessory: FL-9", ()),
        ("add", "relation", "accessory: FL-9", ()),
        ("add", "relation", "accessory: Hose", ()),
        ("add", "relation", f"accessory: {POWERJET}", ()),
        ("add", "attachment", "At work", ()),
        ("add", "attachment", "Alone", ()),
    }
    assert (report.counts["relation", "add"], report.counts["relation", "same"]) == (3, 1)
    assert await exported(call) == before
    done = await fill(call, json.dumps(changed).encode())
    assert {(each.action, each.what, each.name, each.fields) for each in done.changes} == said
    assert counted(done) == counted(report)
    assert {action for _, action in counted(await fill(call, json.dumps(changed).encode()))} == {"same"}


async def test_what_is_exported_can_be_imported_elsewhere_and_is_the_same(database: Database):
    here, there = await call_of(database), await call_of(database, "elsewhere", "boss")
    await fill(here)
    written = await exported(here)
    await fill(there, json.dumps(written).encode())
    copy = await exported(there)
    assert without_ids(copy) == without_ids(written)
    assert not {each["_id"] for each in copy["entities"]} & {each["_id"] for each in written["entities"]}
    await fill(here, json.dumps(written).encode())
    assert await exported(here) == written


async def test_csv_has_metadata_in_the_columns_it_does_not_know(database: Database):
    call = await call_of(database)
    await fill(call)
    rows = 'name,category,tags,psi,price,code,is_new\nRiver 900,washers,"a, b",900,49.5,007,true\n\nPond,washers,,,,,\n'
    report = await fill(call, rows.encode("utf-8-sig"), "csv")
    assert report.counts["entity", "add"] == 2
    river = await entities.get(database, call, "River 900")
    assert river.tags == ("a", "b")
    assert river.metadata == {"psi": 900, "price": 49.5, "code": "007", "is_new": True}
    assert (await entities.get(database, call, "Pond")).metadata == {}


async def test_jsonl_has_an_entity_in_each_line(database: Database):
    call = await call_of(database)
    await fill(call)
    lines = b'{"name": "A", "category": "washers", "sku": "x"}\n\n{"name": "B", "category": "washers", "sku": "x"}\n'
    report = await fill(call, lines, "jsonl")
    assert counted(report) == {("entity", "add"): 1, ("entity", "change"): 1}  # one SKU is one thing
    assert (await entities.get(database, call, "B")).sku == "x"


@pytest.mark.parametrize(
    ("raw", "form", "problem"),
    [
        (b"{", "json", "not valid JSON"),
        (b"5", "json", "neither a JSON object nor a list"),
        (b'{"entities": 5}', "json", "entities: is not a list"),
        (b'{"surplus": []}', "json", "surplus: is not a known field"),
        (b'{"entities": [{"name": "x"}]}', "json", "entity 1: category: Field required"),
        (b'[{"name": "x", "category": "washers", "status": "lost"}]', "json", "entity 1: status"),
        (b'{"name": "x"}\n', "jsonl", "line 1: category"),
        (b"\n{", "jsonl", "Line 2 is not valid JSON"),
        (b"name\nx\n", "csv", "no columns 'name' and 'category'"),
        (b"\xff\xfe", "csv", "not UTF-8"),
        (b'{"categoryAliases": [{"name": "x"}]}', "json", "has no aliasKey"),
    ],
)
def test_a_file_that_is_wrong_is_refused_before_anything_is_written(raw: bytes, form: str, problem: str):
    with pytest.raises(BadRequest) as caught:
        catalogue_file.parse(raw, form)
    assert problem in caught.value.message


async def test_a_category_or_target_that_is_not_there_is_named(database: Database):
    call = await call_of(database)
    await fill(call)
    for entity in (
        {"name": "x", "category": "nowhere"},
        {"name": "x", "category": "washers", "relations": [{"target": "none", "type": "accessory"}]},
        {"name": "x", "category": "washers", "relations": [{"target": POWERJET, "type": "no-such"}]},
    ):
        with pytest.raises(AlmanacError) as caught:
            await fill(call, json.dumps([entity]).encode())
        assert any(word in caught.value.message for word in ("nowhere", "none", "no-such"))


@pytest.mark.parametrize("is_dry", [True, False])
async def test_all_that_is_named_and_not_declared_is_said_before_anything_is_written(database: Database, is_dry: bool):
    call = await call_of(database)
    paper = {"name": "p", "url": "https://example.org/p.png", "type": "sketch"}
    given = {
        "categories": [{"name": "A", "children": [{"name": "B", "aliasKey": "bees", "policyKey": "strict"}]}],
        "entities": [
            {"name": "x", "category": "A/B", "relations": [{"target": "x", "type": "twin"}], "attachments": [paper]}
        ],
    }
    empty = await tables(database)
    with pytest.raises(BadRequest) as caught:
        await fill(call, json.dumps(given).encode(), dry=is_dry)
    assert caught.value.message == (
        "The file uses undeclared terms: attachment type 'sketch', category alias 'bees', policy 'strict',"
        " relationship type 'twin'."
    )
    assert await tables(database) == empty
    declared = {
        **given,
        "categoryAliases": [{"name": "Bees", "aliasKey": "bees"}],
        "policies": [{"name": "Strict", "policyKey": "strict"}],
        "relationshipTypes": [{"name": "Twin", "typeKey": "twin"}],
        "attachmentTypes": [{"name": "Sketch", "typeKey": "sketch"}],
    }
    report = await fill(call, json.dumps(declared).encode(), dry=is_dry)
    assert (report.counts["relation", "add"], report.counts["attachment", "add"]) == (1, 1)


async def test_a_relation_is_known_again_also_by_the_id_of_its_type(database: Database):
    call = await call_of(database)
    await fill(call)
    (kind,) = await vocabulary.find(database, call.actor.org_id, "relation")
    given = [{"name": "x", "category": "washers", "relations": [{"target": POWERJET, "type": kind.id}]}]
    counts = [(await fill(call, json.dumps(given).encode())).counts for _ in range(2)]
    assert [(each["relation", "add"], each["relation", "same"]) for each in counts] == [(1, 0), (0, 1)]


async def test_a_dry_run_names_a_relation_that_leads_nowhere(database: Database):
    call = await call_of(database)
    await fill(call)
    given = [{"name": "x", "category": "washers", "relations": [{"target": "nobody", "type": "accessory"}]}]
    with pytest.raises(BadRequest, match="names 'nobody', but there is no such entity"):
        await fill(call, json.dumps(given).encode(), dry=True)


async def test_whoever_may_not_write_imports_nothing(database: Database):
    await fill(await call_of(database))
    reader = await call_of(database, name="reader", admin=False)
    with pytest.raises(Forbidden):
        await fill(reader)


async def test_a_category_with_its_id_is_known_by_it_when_it_is_renamed(database: Database):
    call = await call_of(database)
    await fill(call)
    written = await exported(call)
    written["categories"][0]["name"] = "Wares"
    report = await fill(call, json.dumps({"categories": written["categories"]}).encode())
    assert report.counts["category", "change"] == 1
    tree = await categories.tree(database, call.actor.org_id)
    assert {each.name for each in tree.children(categories.TOP)} == {"Wares", "Support Policies"}


@pytest.mark.parametrize("is_dry", [True, False])
async def test_an_alias_that_a_category_is_given_anew_can_be_used_in_the_same_file(database: Database, is_dry: bool):
    call = await call_of(database)
    await fill(call)
    mowers = {"name": "Products", "children": [{"name": "Mowers", "aliasKey": "mowers"}]}
    again = {
        "categoryAliases": [{"name": "Mowers", "aliasKey": "mowers"}],
        "categories": [mowers],
        "indexes": [{"name": "mowers only", "categories": ["mowers"]}],
        "entities": [{"name": "Prairie 60", "category": "mowers"}],
    }
    report = await fill(call, json.dumps(again).encode(), dry=is_dry)
    assert ("change", "category", "Products/Mowers") in {(each.action, each.what, each.name) for each in report.changes}
    assert report.counts["entity", "add"] == report.counts["namespace", "add"] == 1
    if not is_dry:
        prairie = await entities.get(database, call, "Prairie 60")
        assert (prairie.category_name, prairie.alias_key) == ("Mowers", "mowers")
