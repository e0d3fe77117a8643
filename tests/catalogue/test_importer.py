"""Import of catalogues from JSON, JSONL and CSV, repeated imports, dry runs, and the export."""

import dataclasses
import json
from typing import Any, cast

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from almanac.catalogue import catalogue_file, categories, entities, exporter, importer, vocabulary
from almanac.catalogue.importer import CatalogueImport, ImportReport
from almanac.core.call import Call
from almanac.core.database import Database
from almanac.core.errors import AlmanacError, BadRequest, Conflict, Forbidden
from tests.catalogue.sample_catalogue import FILE, POWERJET, call_of, import_sample

SAMPLE: dict[str, Any] = json.loads(FILE.read_text("utf-8"))


async def exported(call: Call) -> dict[str, Any]:
    return {**await exporter.frame(call), "entities": [item async for item in exporter.items(call)]}


def without_ids(value: Any) -> Any:
    """The value without the fields that differ between organisations."""
    if isinstance(value, dict):
        pairs = cast("dict[str, Any]", value).items()
        return {key: without_ids(member) for key, member in pairs if key not in ("_id", "tenantId", "target")}
    if isinstance(value, list):
        return sorted((without_ids(member) for member in cast("list[Any]", value)), key=json.dumps)
    return value


def counted(report: ImportReport) -> dict[tuple[str, str], int]:
    return dict(report.counts)


async def tables(db: Database) -> dict[str, Any]:
    names = ("vocabulary", "categories", "entities", "relations", "attachments", "attached", "namespaces", "sources")
    return {name: (await db.fetch(f"SELECT count(*) FROM {name}"))[0][0] for name in names}


async def test_a_repeated_import_changes_nothing(database: Database):
    call = await call_of(database)
    first = counted(await import_sample(call))
    assert first["entity", "add"] == 7
    assert first["category", "add"] == 6
    assert first["namespace", "add"] == 3
    before = await tables(database)
    again = counted(await import_sample(call))
    assert {action for _, action in again} == {"same"}
    assert again["entity", "same"] == 7
    assert await tables(database) == before
    entity = await entities.get(database, call, POWERJET)
    assert entity.category_name == "Electric"


async def test_progress_is_reported_after_each_batch(database: Database, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(importer, "BATCH_ENTITIES", 3)
    reported: list[tuple[int, int]] = []
    file = catalogue_file.parse(FILE.read_bytes(), "json")
    await CatalogueImport(await call_of(database), file).run(lambda done, total: reported.append((done, total)))
    assert reported == [(3, 7), (6, 7), (7, 7)]


async def test_a_dry_run_reports_the_changes_and_writes_nothing(database: Database):
    call = await call_of(database)
    empty = await tables(database)
    report = await import_sample(call, dry=True)
    assert await tables(database) == empty
    assert counted(report) == counted(await import_sample(call))
    changed = json.loads(json.dumps(SAMPLE))
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
    report = await import_sample(call, json.dumps(changed).encode(), dry=True)
    expected = {(change.action, change.what, change.name, change.fields) for change in report.changes}
    assert expected == {
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
    done = await import_sample(call, json.dumps(changed).encode())
    assert {(change.action, change.what, change.name, change.fields) for change in done.changes} == expected
    assert counted(done) == counted(report)
    assert {action for _, action in counted(await import_sample(call, json.dumps(changed).encode()))} == {"same"}


async def test_an_export_imported_into_another_organisation_gives_an_equal_catalogue(database: Database):
    here, there = await call_of(database), await call_of(database, "elsewhere", "boss")
    await import_sample(here)
    written = await exported(here)
    await import_sample(there, json.dumps(written).encode())
    copy = await exported(there)
    assert without_ids(copy) == without_ids(written)
    assert not {entity["_id"] for entity in copy["entities"]} & {entity["_id"] for entity in written["entities"]}
    await import_sample(here, json.dumps(written).encode())
    assert await exported(here) == written


async def test_categories_as_deep_as_allowed_are_exported_and_imported_and_deeper_ones_are_not(database: Database):
    call = await call_of(database)
    tree: list[Any] = []
    for level in reversed(range(categories.MAX_CATEGORY_DEPTH)):
        tree = [{"name": f"Level {level}", "children": tree}]
    await import_sample(call, json.dumps({"categories": tree}).encode())
    written = await exporter.frame(call)
    with pytest.raises(BadRequest, match="nested deeper than 50"):
        catalogue_file.parse(json.dumps({"categories": [{"name": "Top", "children": tree}]}).encode(), "json")
    await import_sample(await call_of(database, "elsewhere", "boss"), json.dumps(written).encode())
    await database.write(
        lambda tx: tx.execute(
            "INSERT INTO categories (id, org_id, parent, name, description, created_at, updated_at)"
            " SELECT 'f' || substr(id, 2), org_id, number, 'Too deep', '', 1, 1 FROM categories"
            " WHERE name = 'Level 49' AND org_id = $1",
            call.actor.org_id,
        )
    )
    with pytest.raises(Conflict, match="nested deeper than 50, which no import accepts"):
        await exporter.frame(call)


async def test_unknown_csv_columns_become_metadata(database: Database):
    call = await call_of(database)
    await import_sample(call)
    rows = 'name,category,tags,psi,price,code,is_new\nRiver 900,washers,"a, b",900,49.5,007,true\n\nPond,washers,,,,,\n'
    report = await import_sample(call, rows.encode("utf-8-sig"), "csv")
    assert report.counts["entity", "add"] == 2
    river = await entities.get(database, call, "River 900")
    assert river.tags == ("a", "b")
    assert river.metadata == {"psi": 900, "price": 49.5, "code": "007", "is_new": True}
    assert (await entities.get(database, call, "Pond")).metadata == {}


async def test_each_jsonl_line_is_an_entity(database: Database):
    call = await call_of(database)
    await import_sample(call)
    lines = b'{"name": "A", "category": "washers", "sku": "x"}\n\n{"name": "B", "category": "washers", "sku": "x"}\n'
    report = await import_sample(call, lines, "jsonl")
    assert counted(report) == {("entity", "add"): 1, ("entity", "change"): 1}  # the SKU identifies the entity
    assert (await entities.get(database, call, "B")).sku == "x"


@pytest.mark.parametrize(
    ("raw", "format", "problem"),
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
def test_an_invalid_file_is_refused_with_the_problem(raw: bytes, format: str, problem: str):
    with pytest.raises(BadRequest) as caught:
        catalogue_file.parse(raw, format)
    assert problem in caught.value.message


async def test_an_unknown_category_target_or_type_is_named(database: Database):
    call = await call_of(database)
    await import_sample(call)
    for entity in (
        {"name": "x", "category": "nowhere"},
        {"name": "x", "category": "washers", "relations": [{"target": "none", "type": "accessory"}]},
        {"name": "x", "category": "washers", "relations": [{"target": POWERJET, "type": "no-such"}]},
    ):
        with pytest.raises(AlmanacError) as caught:
            await import_sample(call, json.dumps([entity]).encode())
        assert any(word in caught.value.message for word in ("nowhere", "none", "no-such"))


@pytest.mark.parametrize("is_dry", [True, False])
async def test_all_undeclared_terms_are_named_before_anything_is_written(database: Database, is_dry: bool):
    call = await call_of(database)
    attachment = {"name": "p", "url": "https://example.org/p.png", "type": "sketch"}
    file = {
        "categories": [{"name": "A", "children": [{"name": "B", "aliasKey": "bees", "policyKey": "strict"}]}],
        "entities": [
            {
                "name": "x",
                "category": "A/B",
                "relations": [{"target": "x", "type": "twin"}],
                "attachments": [attachment],
            }
        ],
    }
    empty = await tables(database)
    with pytest.raises(BadRequest) as caught:
        await import_sample(call, json.dumps(file).encode(), dry=is_dry)
    assert caught.value.message == (
        "The file uses undeclared terms: attachment type 'sketch', category alias 'bees', policy 'strict',"
        " relationship type 'twin'."
    )
    assert await tables(database) == empty
    declared = {
        **file,
        "categoryAliases": [{"name": "Bees", "aliasKey": "bees"}],
        "policies": [{"name": "Strict", "policyKey": "strict"}],
        "relationshipTypes": [{"name": "Twin", "typeKey": "twin"}],
        "attachmentTypes": [{"name": "Sketch", "typeKey": "sketch"}],
    }
    report = await import_sample(call, json.dumps(declared).encode(), dry=is_dry)
    assert (report.counts["relation", "add"], report.counts["attachment", "add"]) == (1, 1)


async def test_a_repeated_relation_is_recognised_by_the_id_of_its_type(database: Database):
    call = await call_of(database)
    await import_sample(call)
    (kind,) = await vocabulary.find(database, call.actor.org_id, "relation")
    file = [{"name": "x", "category": "washers", "relations": [{"target": POWERJET, "type": kind.id}]}]
    counts = [(await import_sample(call, json.dumps(file).encode())).counts for _ in range(2)]
    assert [(count["relation", "add"], count["relation", "same"]) for count in counts] == [(1, 0), (0, 1)]


async def test_a_dry_run_names_the_unknown_target_of_a_relation(database: Database):
    call = await call_of(database)
    await import_sample(call)
    file = [{"name": "x", "category": "washers", "relations": [{"target": "nobody", "type": "accessory"}]}]
    with pytest.raises(BadRequest, match="names 'nobody', but there is no such entity"):
        await import_sample(call, json.dumps(file).encode(), dry=True)


async def test_a_user_without_write_permission_cannot_import(database: Database):
    await import_sample(await call_of(database))
    reader = await call_of(database, name="reader", admin=False)
    with pytest.raises(Forbidden):
        await import_sample(reader)


async def test_a_category_with_an_id_can_be_renamed(database: Database):
    call = await call_of(database)
    await import_sample(call)
    written = await exported(call)
    written["categories"][0]["name"] = "Wares"
    report = await import_sample(call, json.dumps({"categories": written["categories"]}).encode())
    assert report.counts["category", "change"] == 1
    tree = await categories.tree(database, call.actor.org_id)
    assert {category.name for category in tree.children(categories.TOP)} == {"Wares", "Support Policies"}


@pytest.mark.parametrize("is_dry", [True, False])
async def test_a_new_alias_of_a_category_can_be_used_in_the_same_file(database: Database, is_dry: bool):
    call = await call_of(database)
    await import_sample(call)
    mowers = {"name": "Products", "children": [{"name": "Mowers", "aliasKey": "mowers"}]}
    file = {
        "categoryAliases": [{"name": "Mowers", "aliasKey": "mowers"}],
        "categories": [mowers],
        "indexes": [{"name": "mowers only", "categories": ["mowers"]}],
        "entities": [{"name": "Prairie 60", "category": "mowers"}],
    }
    report = await import_sample(call, json.dumps(file).encode(), dry=is_dry)
    assert ("change", "category", "Products/Mowers") in {
        (change.action, change.what, change.name) for change in report.changes
    }
    assert report.counts["entity", "add"] == report.counts["namespace", "add"] == 1
    if not is_dry:
        prairie = await entities.get(database, call, "Prairie 60")
        assert (prairie.category_name, prairie.alias_key) == ("Mowers", "mowers")


_FULL: dict[str, Any] = {
    "name": "Prairie 60",
    "category": "Products",
    "sku": "PR-60",
    "description": "A mower.",
    "details": "Sixty centimetres.",
    "source": "https://example.org/prairie",
    "status": "draft",
    "tags": ["garden"],
    "metadata": {"price": 190, "width": 60},
}
_CHANGES: dict[str, Any] = {
    "description": "A wide mower.",
    "details": "",
    "source": "",
    "status": "active",
    "tags": [],
    "metadata": {"price": 210},
}


@given(names=st.sets(st.sampled_from(sorted(_CHANGES))), format=st.sampled_from(["json", "jsonl"]))
@settings(deadline=None, max_examples=12, suppress_health_check=[HealthCheck.function_scoped_fixture])
async def test_an_import_changes_only_the_fields_that_the_file_names(database: Database, names: set[str], format: str):
    call = await call_of(database)
    await import_sample(call)
    await import_sample(call, json.dumps({"entities": [_FULL]}).encode())
    before = await entities.get(database, call, "Prairie 60")
    update = {name: _FULL[name] for name in ("name", "category", "sku")} | {name: _CHANGES[name] for name in names}
    raw = json.dumps(update if format == "jsonl" else {"entities": [update]}).encode()
    report = await CatalogueImport(call, catalogue_file.parse(raw, format)).run()
    after = await entities.get(database, call, "Prairie 60")
    for name in _CHANGES:
        expected = _CHANGES[name] if name in names else _FULL[name]
        if name == "metadata":
            expected = dict[str, Any](_FULL["metadata"] | (_CHANGES["metadata"] if name in names else {}))
        stored = getattr(after, name)
        assert (list(stored) if name == "tags" else stored) == expected
    assert after.created_at == before.created_at
    assert report.counts["entity", "change" if names else "same"] == 1


async def test_csv_columns_that_are_absent_or_empty_change_nothing(database: Database):
    call = await call_of(database)
    await import_sample(call)
    await import_sample(call, json.dumps({"entities": [_FULL]}).encode())
    before = await entities.get(database, call, "Prairie 60")
    raw = b"name,category,sku,details,price\nPrairie 60,Products,PR-60,,205\n"
    report = await CatalogueImport(call, catalogue_file.parse(raw, "csv")).run()
    assert [change.fields for change in report.changes] == [("metadata",)]
    after = await entities.get(database, call, "Prairie 60")
    assert after == dataclasses.replace(before, metadata={"price": 205, "width": 60}, updated_at=after.updated_at)


async def test_terms_categories_and_namespaces_keep_the_fields_that_a_file_leaves_out(database: Database):
    call = await call_of(database)
    full = {
        "categoryAliases": [{"name": "Mowers", "aliasKey": "mowers", "description": "All mowers"}],
        "policies": [{"name": "Default", "policyKey": "default", "description": "For all", "inputType": "TXT"}],
        "categories": [{"name": "Mowers", "aliasKey": "mowers", "policyKey": "default", "description": "For lawns"}],
        "indexes": [{"name": "garden", "notes": "Everything green", "categories": ["Mowers"]}],
    }
    await import_sample(call, json.dumps(full).encode())
    before = await exported(call)
    bare = {
        "categoryAliases": [{"name": "Mowers", "aliasKey": "mowers"}],
        "policies": [{"name": "Default", "policyKey": "default"}],
        "categories": [{"name": "Mowers"}],
        "indexes": [{"name": "garden"}],
    }
    report = await import_sample(call, json.dumps(bare).encode())
    assert report.changes == []
    assert await exported(call) == before


async def test_stored_and_imported_metadata_together_keep_the_size_limit(database: Database):
    call = await call_of(database)
    await import_sample(call)
    await import_sample(call, json.dumps({"entities": [_FULL | {"metadata": {"a": "x" * 60_000}}]}).encode())
    before = await entities.get(database, call, "Prairie 60")
    with pytest.raises(BadRequest, match="'Prairie 60', with the stored keys, is larger than 100000 bytes"):
        await import_sample(call, json.dumps({"entities": [_FULL | {"metadata": {"b": "x" * 60_000}}]}).encode())
    assert await entities.get(database, call, "Prairie 60") == before
