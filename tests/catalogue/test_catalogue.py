"""Changes of the catalogue are searchable at once, and organisations do not see each other's catalogues."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from almanac.catalogue import (
    access,
    attachments,
    categories,
    entities,
    entity_index,
    entity_text,
    ids,
    metadata_filters,
    namespaces,
    relations,
    vocabulary,
)
from almanac.catalogue.attachments import AttachmentDraft
from almanac.catalogue.entities import EntityChanges, EntityDraft
from almanac.catalogue.entity import Entity
from almanac.core.call import Call
from almanac.core.database import Database, Transaction
from almanac.core.errors import AlmanacError, BadRequest, Conflict, Forbidden, NotFound
from almanac.db.connect import connect
from almanac.identity import access as identity_access
from almanac.identity.roles import Role
from almanac.operations import namespace_search
from almanac.operations.namespace_search import NamespaceQuery
from almanac.search import sources
from almanac.search.backends import open_search
from almanac.search.engine import SearchEngine
from almanac.search.filters import conditions, source_filter
from almanac.search.passage_store import AnalysedPassages
from almanac.search.query import SourceFilter
from almanac.search.sources import Source
from tests.catalogue.sample_catalogue import POWERJET, call_of, import_sample
from tests.live_server import settings_for, work_off
from tests.search.condition_reference import holds

Attempt = Callable[[Transaction], Awaitable[Any]]


@pytest.fixture
async def call(database: Database) -> Call:
    call = await call_of(database)
    await import_sample(call)
    return call


@pytest.fixture
async def search(database: Database, database_url: str, tmp_path: Path) -> AsyncIterator[SearchEngine]:
    async with open_search(settings_for(database_url, tmp_path / "home"), database) as engine:
        yield engine


async def found_names(
    call: Call, search: SearchEngine, query: str, namespace: str = "everything", **more: Any
) -> list[str]:
    namespace_query = NamespaceQuery.model_validate({"namespace": namespace, "query": query, **more})
    matches, _ = await namespace_search.retrieve(call, search, namespace_query)
    return [match.metadata.get("name", match.id) for match in matches]


async def add(call: Call, **fields: Any) -> Entity:
    draft = EntityDraft.model_validate({"category": "washers", **fields})
    return await entities.store(call, draft)


async def change(call: Call, id: str, **fields: Any) -> Entity:
    return await entities.change(call, id, EntityChanges.model_validate(fields))


async def test_an_entity_is_found_by_its_words_as_soon_as_it_is_stored(call: Call, search: SearchEngine):
    entity = await add(call, name="Geyser", description="Throws zwolfberg water.")
    assert await found_names(call, search, "zwolfberg") == ["Geyser"]
    await change(call, entity.id, description="Throws quintel water.")
    assert await found_names(call, search, "zwolfberg") == []
    assert await found_names(call, search, "quintel") == ["Geyser"]


async def test_archived_and_removed_entities_are_not_found(call: Call, search: SearchEngine):
    entity = await add(call, name="Geyser", description="zwolfberg", status="draft")
    assert await found_names(call, search, "zwolfberg") == ["Geyser"]
    await change(call, entity.id, status="archived")
    assert await found_names(call, search, "zwolfberg") == []
    assert (await entities.get(call.db, call, entity.id)).status == "archived"
    await change(call, entity.id, status="active")
    assert await found_names(call, search, "zwolfberg") == ["Geyser"]
    await call.db.write(lambda tx: entities.remove(tx, call, entity.id))
    assert await found_names(call, search, "zwolfberg") == []
    with pytest.raises(NotFound):
        await entities.get(call.db, call, entity.id)


async def test_a_moved_entity_is_found_in_its_new_category(call: Call, search: SearchEngine):
    assert await found_names(call, search, "Brook balconies", "washers only", topK=1) == ["Brook 1400"]
    [brook] = await entities.find_by(call.db, call.actor.org_id, "name", ["Brook 1400"])
    await change(call, brook.id, category="Products/Mowers")
    assert "Brook 1400" not in await found_names(call, search, "Brook balconies", "washers only")
    assert "Brook 1400" in await found_names(
        call, search, "Brook balconies", "products", metadata={"category": "Mowers"}
    )


async def test_entities_are_found_by_the_new_name_of_their_category(
    call: Call, search: SearchEngine, database_url: str, tmp_path: Path
):
    assert await found_names(call, search, "zwolfberg") == []
    await call.db.write(lambda tx: categories.update(tx, call, "Products/Mowers", name="Zwolfbergs"))
    await work_off(call.db, settings_for(database_url, tmp_path / "home", embedding=False))
    assert await found_names(call, search, "zwolfbergs") == ["Meadow 40"]
    assert await found_names(call, search, "lawns", metadata={"category": "Zwolfbergs"}) == ["Meadow 40"]


async def test_a_long_entity_does_not_displace_other_matches(call: Call, search: SearchEngine):
    long = "\n\n".join(f"The zwolfberg number {n} is a zwolfberg of the zwolfberg kind. " * 30 for n in range(200))
    await add(call, name="Encyclopedia", details=long)
    for number in range(12):
        await add(
            call, name=f"Leaflet {number}", description="Mentions a zwolfberg once, among a great many other things."
        )
    names = await found_names(call, search, "zwolfberg", topK=13)
    assert len(names) == len(set(names)) == 13
    assert "Encyclopedia" in names


async def test_a_namespace_without_existing_categories_is_empty(call: Call, search: SearchEngine):
    empty = await call.db.write(lambda tx: categories.add(tx, call, "Passing"))
    await call.db.write(lambda tx: namespaces.add(tx, call, "passing", "", [empty.id]))
    await call.db.write(lambda tx: categories.remove(tx, call, empty.id))
    assert await found_names(call, search, "washer", "passing") == []


async def test_a_namespace_cannot_have_a_reserved_empty_or_used_name(call: Call):
    for name in ("images", "general_helper_documents", " ", "products"):
        with pytest.raises((BadRequest, Conflict)):
            await call.db.write(lambda tx, name=name: namespaces.add(tx, call, name, "", []))


async def test_a_category_cannot_move_below_itself_or_be_removed_while_it_has_contents(call: Call):
    for key, parent in (("Products", "Products/Washers/Electric"), ("Products", "Products")):
        with pytest.raises(BadRequest):
            await call.db.write(lambda tx, key=key, parent=parent: categories.update(tx, call, key, parent=parent))
    for key in ("Products", "Products/Mowers"):
        with pytest.raises(Conflict):
            await call.db.write(lambda tx, key=key: categories.remove(tx, call, key))
    moved = await call.db.write(lambda tx: categories.update(tx, call, "Products/Mowers", parent="null"))
    assert moved.parent == categories.TOP
    with pytest.raises(Conflict):
        await call.db.write(lambda tx: categories.update(tx, call, "Mowers", name="Products"))


async def test_only_administrators_and_developers_may_write(call: Call):
    reader = await call_of(call.db, name="reader", admin=False)
    draft = EntityDraft.model_validate({"name": "x", "category": "washers"})
    attempts: tuple[Attempt, ...] = (
        lambda tx: entities.remove(tx, reader, POWERJET),
        lambda tx: categories.add(tx, reader, "x"),
        lambda tx: categories.update(tx, reader, "washers", name="x"),
        lambda tx: categories.remove(tx, reader, "washers"),
        lambda tx: namespaces.add(tx, reader, "x", "", []),
        lambda tx: vocabulary.add(tx, reader, "alias", "x", "x", ""),
        lambda tx: relations.link(tx, reader, POWERJET, POWERJET, "accessory"),
        lambda tx: attachments.add(
            tx, reader, AttachmentDraft(name="x", url="https://example.org/x.png", annotations={})
        ),
        lambda tx: attachments.link(tx, reader, POWERJET, url="https://example.org/powerjet.png"),
    )  # fmt: skip
    for attempt in attempts:
        with pytest.raises(Forbidden):
            await call.db.write(attempt)
    with pytest.raises(Forbidden):
        await entities.store(reader, draft)
    with pytest.raises(Forbidden):
        await entities.change(reader, POWERJET, EntityChanges(name="y"))
    assert (await entities.get(call.db, reader, POWERJET)).name == "PowerJet 1800"
    catalogue = access.protected_object(call.actor.org_id)
    await call.db.write(lambda tx: identity_access.grant(tx, catalogue, Role.Developer, principal_id=reader.actor.id))
    assert (await entities.store(reader, draft)).name == "x"


async def test_objects_of_another_organisation_do_not_exist(call: Call):
    foreign_call = await call_of(call.db, "elsewhere", "boss")
    other = await call.db.write(lambda tx: categories.add(tx, foreign_call, "Theirs"))
    theirs = await entities.store(
        foreign_call, EntityDraft.model_validate({"name": "PowerJet 1800", "category": other.id})
    )
    assert (await entities.get(call.db, call, "PowerJet 1800")).id == POWERJET
    washers = (await categories.tree(call.db, call.actor.org_id)).pick("washers")
    attempts: tuple[Attempt, ...] = (
        lambda tx: entities.remove(tx, foreign_call, POWERJET),
        lambda tx: categories.update(tx, foreign_call, washers.id, name="x"),
        lambda tx: categories.add(tx, foreign_call, "x", parent=washers.id),
        lambda tx: categories.add(tx, foreign_call, "x", alias="washers"),
        lambda tx: namespaces.add(tx, foreign_call, "x", "", [washers.id]),
        lambda tx: relations.link(tx, foreign_call, theirs.id, POWERJET, "accessory"),
        lambda tx: attachments.link(tx, foreign_call, POWERJET, url="https://example.org/x.png"),
    )  # fmt: skip
    for attempt in attempts:
        with pytest.raises(NotFound):
            await call.db.write(attempt)


async def test_a_name_that_two_entities_have_is_refused_with_both_ids(call: Call):
    twins = [await add(call, name="Twin"), await add(call, name="Twin")]
    with pytest.raises(Conflict) as caught:
        await entities.get(call.db, call, "Twin")
    assert all(twin.id in caught.value.text for twin in twins)


# Filters


INVALID_FILTERS: list[dict[str, Any]] = [
        {"a": {"$near": 1}}, {"$not": []}, {"a": {}}, {"a": []}, {"$and": 5}, {"$or": [{}]}, {"a": {"$gt": True}},
        {"a": {"$in": "x"}}, {"a": {"$in": []}}, {"a": {"$eq": {"b": 1}}}, {"a": {"b": 1}},
        {"$and": [{"$and": [{"$and": [{"$and": [{"a": 1}]}]}]}]},
]  # fmt: skip


@pytest.mark.parametrize("metadata", INVALID_FILTERS)
def test_an_invalid_filter_is_refused(metadata: Any):
    with pytest.raises(BadRequest):
        metadata_filters.to_condition(metadata)


Filter = dict[str, Any]
scalars: st.SearchStrategy[Any] = st.one_of(
    st.integers(-3, 3), st.sampled_from([0.5, "a", "b", "x" * 60, "x" * 60 + "y", True, False])
)
keys = st.sampled_from("pqr")
records = st.dictionaries(keys, st.one_of(scalars, st.lists(scalars, max_size=3), st.none()), max_size=3)


def _equal(key: str, value: Any) -> Filter:
    return {key: value}


def _contained(key: str, value: Any) -> Filter:
    return {key: [value]}


def _compared(key: str, op: str, value: Any) -> Filter:
    return {key: {op: value}}


def _combined(combinator: str, parts: list[Filter]) -> Filter:
    return {combinator: parts}


def _groups(inner: st.SearchStrategy[Filter]) -> st.SearchStrategy[Filter]:
    return st.builds(_combined, st.sampled_from(["$and", "$or"]), st.lists(inner, min_size=1, max_size=3))


ordered = scalars.filter(lambda value: not isinstance(value, bool))
tests: st.SearchStrategy[Filter] = st.one_of(
    st.builds(_equal, keys, scalars),
    st.builds(_contained, keys, scalars),
    st.builds(_compared, keys, st.sampled_from(["$eq", "$ne", "$gt", "$gte", "$lt", "$lte"]), ordered),
    st.builds(_compared, keys, st.sampled_from(["$in", "$nin"]), st.lists(scalars, min_size=1, max_size=3)),
)
filters = st.recursive(tests, _groups, max_leaves=4)


@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(st.lists(records, min_size=1, max_size=6), st.lists(filters, min_size=1, max_size=8))
def test_a_filter_in_sql_selects_the_same_as_the_filter_in_python(
    database_url: str, rows: list[dict[str, Any]], tried: list[dict[str, Any]]
):
    async def run() -> None:
        db = await connect(database_url, pool_size=1)
        try:
            call = await call_of(db)
            org_id = call.actor.org_id
            await db.write(lambda tx: tx.execute("DELETE FROM sources"))
            for number, row in enumerate(rows):
                source = Source(org_id, "c", "entity", str(number), "t", 1, 1, metadata=row)
                await db.write(lambda tx, source=source: sources.put(tx, source))
            for filter in tried:
                try:
                    condition = metadata_filters.to_condition(filter)
                except AlmanacError:
                    continue
                where, args = source_filter.resolve(SourceFilter(condition=condition), collections=["c"])
                selected = await db.fetch(
                    f"SELECT s.owner_id FROM sources s WHERE s.collection = 'c' AND {where}", *args
                )
                parsed = conditions.parse(condition)
                expected = {str(n) for n, row in enumerate(rows) if holds(parsed, row)}
                assert {row["owner_id"] for row in selected} == expected, filter
        finally:
            await db.close()

    asyncio.run(run())


# Texts and ids


def test_ids_are_unique_and_sort_by_age():
    new_ids = [ids.new() for _ in range(5_000)]
    assert new_ids == sorted(set(new_ids))
    first = new_ids[0]
    assert all(ids.is_id(id) for id in new_ids)
    assert not any(ids.is_id(text) for text in ("", first[1:], first.upper() + "G", "g" * 24, first + "0"))


def test_html_is_reduced_to_its_visible_text():
    text = entity_text.strip_markup(
        "<h1>Care</h1><p>Rinse &amp; dry<br>it.</p><script>alert(1)</script><style>x</style>"
    )
    assert text.split() == ["Care", "Rinse", "&", "dry", "it."]
    assert entity_text.strip_markup("1 < 2 and **bold**") == "1 < 2 and **bold**"


@given(st.text(alphabet="ab \n", max_size=6000), st.integers(0, 3))
def test_passages_contain_the_whole_text(text: str, times: int):
    whole = text * (times + 1)
    passages = entity_text.entity_passages((whole,), {}, "c")
    assert all(len(passage.text) <= entity_text.PASSAGE_CHARS for passage in passages)
    joined = "".join(passage.text for passage in passages)
    assert joined.split() == whole.strip()[: entity_text.MAX_ENTITY_CHARS].split() or "".join(
        joined.split()
    ) == "".join(whole.split())


async def test_concurrent_changes_of_different_fields_are_all_kept(call: Call):
    await asyncio.gather(
        change(call, POWERJET, details="Cold water."),
        change(call, POWERJET, source="list 7"),
        change(call, POWERJET, sku="PJ-7"),
    )
    entity = await entities.get(call.db, call, POWERJET)
    assert (entity.details, entity.source, entity.sku) == ("Cold water.", "list 7", "PJ-7")


async def test_an_entity_is_indexed_with_the_name_that_its_category_has_at_last(
    call: Call, search: SearchEngine, monkeypatch: pytest.MonkeyPatch
):
    loop, prepared = asyncio.get_running_loop(), list[str]()
    prepare = entity_index.prepare

    async def rename() -> None:
        await call.db.write(lambda tx: categories.update(tx, call, "washers", name="Sprayers"))

    def prepare_and_rename(entity: Entity) -> AnalysedPassages:
        passages = prepare(entity)
        prepared.append(entity.category_name)
        if len(prepared) == 1:
            asyncio.run_coroutine_threadsafe(rename(), loop).result(30)
        return passages

    monkeypatch.setattr(entity_index, "prepare", prepare_and_rename)
    await entities.store(call, EntityDraft.model_validate({"name": "Jet", "category": "washers"}))
    assert prepared[-1] == "Sprayers"
    assert len(prepared) == 2
    # The job that indexes the older entities again has not run: only the new one has the new name.
    assert await found_names(call, search, "sprayers") == ["Jet"]
