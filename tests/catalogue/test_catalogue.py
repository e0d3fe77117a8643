"""A catalogue that is searched: found at once, gone at once, moved with its categories, and nobody else's."""

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
from almanac.search.query import SourceFilter
from almanac.search.sources import Source
from tests.catalogue.shop import POWERJET, call_of, fill
from tests.house import settings_for, work_off

Attempt = Callable[[Transaction], Awaitable[Any]]


@pytest.fixture
async def call(database: Database) -> Call:
    call = await call_of(database)
    await fill(call)
    return call


@pytest.fixture
async def search(database: Database, database_url: str, tmp_path: Path) -> AsyncIterator[SearchEngine]:
    async with open_search(settings_for(database_url, tmp_path / "home"), database) as opened:
        yield opened


async def found(call: Call, search: SearchEngine, query: str, namespace: str = "everything", **more: Any) -> list[str]:
    asked = NamespaceQuery.model_validate({"namespace": namespace, "query": query, **more})
    return [each.metadata.get("name", each.id) for each in await namespace_search.retrieve(call, search, asked)]


async def add(call: Call, **fields: Any) -> Entity:
    draft = EntityDraft.model_validate({"category": "washers", **fields})
    return await call.db.write(lambda tx: entities.add(tx, call, draft))


async def change(call: Call, id: str, **fields: Any) -> Entity:
    return await call.db.write(lambda tx: entities.update(tx, call, id, EntityChanges.model_validate(fields)))


async def test_an_entity_is_found_by_its_words_as_soon_as_it_is_written(call: Call, search: SearchEngine):
    made = await add(call, name="Geyser", description="Throws zwolfberg water.")
    assert await found(call, search, "zwolfberg") == ["Geyser"]
    await change(call, made.id, description="Throws quintel water.")
    assert await found(call, search, "zwolfberg") == []
    assert await found(call, search, "quintel") == ["Geyser"]


async def test_what_is_archived_or_removed_is_found_no_more(call: Call, search: SearchEngine):
    made = await add(call, name="Geyser", description="zwolfberg", status="draft")
    assert await found(call, search, "zwolfberg") == ["Geyser"]
    await change(call, made.id, status="archived")
    assert await found(call, search, "zwolfberg") == []
    assert (await entities.get(call.db, call, made.id)).status == "archived"
    await change(call, made.id, status="active")
    assert await found(call, search, "zwolfberg") == ["Geyser"]
    await call.db.write(lambda tx: entities.remove(tx, call, made.id))
    assert await found(call, search, "zwolfberg") == []
    with pytest.raises(NotFound):
        await entities.get(call.db, call, made.id)


async def test_an_entity_that_moves_is_found_where_it_is(call: Call, search: SearchEngine):
    assert await found(call, search, "Brook balconies", "washers only", topK=1) == ["Brook 1400"]
    [brook] = await entities.find_by(call.db, call.actor.org_id, "name", ["Brook 1400"])
    await change(call, brook.id, category="Products/Mowers")
    assert "Brook 1400" not in await found(call, search, "Brook balconies", "washers only")
    assert "Brook 1400" in await found(call, search, "Brook balconies", "products", metadata={"category": "Mowers"})


async def test_a_category_that_is_renamed_is_found_by_its_new_name(
    call: Call, search: SearchEngine, database_url: str, tmp_path: Path
):
    assert await found(call, search, "zwolfberg") == []
    await call.db.write(lambda tx: categories.update(tx, call, "Products/Mowers", name="Zwolfbergs"))
    await work_off(call.db, settings_for(database_url, tmp_path / "home", embedding=False))
    assert await found(call, search, "zwolfbergs") == ["Meadow 40"]
    assert await found(call, search, "lawns", metadata={"category": "Zwolfbergs"}) == ["Meadow 40"]


async def test_as_many_are_found_as_match_however_long_one_of_them_is(call: Call, search: SearchEngine):
    long = "\n\n".join(f"The zwolfberg number {n} is a zwolfberg of the zwolfberg kind. " * 30 for n in range(200))
    await add(call, name="Encyclopedia", details=long)
    for number in range(12):
        await add(
            call, name=f"Leaflet {number}", description="Mentions a zwolfberg once, among a great many other things."
        )
    names = await found(call, search, "zwolfberg", topK=13)
    assert len(names) == len(set(names)) == 13
    assert "Encyclopedia" in names


async def test_a_namespace_whose_categories_are_gone_holds_nothing(call: Call, search: SearchEngine):
    empty = await call.db.write(lambda tx: categories.add(tx, call, "Passing"))
    await call.db.write(lambda tx: namespaces.add(tx, call, "passing", "", [empty.id]))
    await call.db.write(lambda tx: categories.remove(tx, call, empty.id))
    assert await found(call, search, "washer", "passing") == []


async def test_names_that_are_always_there_cannot_be_taken(call: Call):
    for name in ("images", "general_helper_documents", " ", "products"):
        with pytest.raises((BadRequest, Conflict)):
            await call.db.write(lambda tx, name=name: namespaces.add(tx, call, name, "", []))


async def test_a_category_is_not_moved_below_itself_nor_removed_while_something_is_in_it(call: Call):
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


async def test_only_who_was_given_the_role_writes(call: Call):
    reader = await call_of(call.db, name="reader", admin=False)
    draft = EntityDraft.model_validate({"name": "x", "category": "washers"})
    attempts: tuple[Attempt, ...] = (
        lambda tx: entities.add(tx, reader, draft),
        lambda tx: entities.update(tx, reader, POWERJET, EntityChanges(name="y")),
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
    assert (await entities.get(call.db, reader, POWERJET)).name == "PowerJet 1800"
    thing = access.protected_object(call.actor.org_id)
    await call.db.write(lambda tx: identity_access.grant(tx, thing, Role.Developer, principal_id=reader.actor.id))
    assert (await call.db.write(lambda tx: entities.add(tx, reader, draft))).name == "x"


async def test_another_organisations_things_are_not_there(call: Call):
    stranger = await call_of(call.db, "elsewhere", "boss")
    other = await call.db.write(lambda tx: categories.add(tx, stranger, "Theirs"))
    theirs = await call.db.write(
        lambda tx: entities.add(
            tx, stranger, EntityDraft.model_validate({"name": "PowerJet 1800", "category": other.id})
        )
    )
    assert (await entities.get(call.db, call, "PowerJet 1800")).id == POWERJET
    washers = (await categories.tree(call.db, call.actor.org_id)).pick("washers")
    attempts: tuple[Attempt, ...] = (
        lambda tx: entities.update(tx, stranger, POWERJET, EntityChanges(name="y")),
        lambda tx: entities.remove(tx, stranger, POWERJET),
        lambda tx: entities.update(tx, stranger, theirs.id, EntityChanges(category=washers.id)),
        lambda tx: categories.update(tx, stranger, washers.id, name="x"),
        lambda tx: categories.add(tx, stranger, "x", parent=washers.id),
        lambda tx: categories.add(tx, stranger, "x", alias="washers"),
        lambda tx: namespaces.add(tx, stranger, "x", "", [washers.id]),
        lambda tx: relations.link(tx, stranger, theirs.id, POWERJET, "accessory"),
        lambda tx: attachments.link(tx, stranger, POWERJET, url="https://example.org/x.png"),
    )  # fmt: skip
    for attempt in attempts:
        with pytest.raises(NotFound):
            await call.db.write(attempt)


async def test_two_entities_of_one_name_are_told_apart_by_their_ids(call: Call):
    twins = [await add(call, name="Twin"), await add(call, name="Twin")]
    with pytest.raises(Conflict) as caught:
        await entities.get(call.db, call, "Twin")
    assert all(each.id in caught.value.text for each in twins)


# Filters


MEANINGLESS: list[dict[str, Any]] = [
        {"a": {"$near": 1}}, {"$not": []}, {"a": {}}, {"a": []}, {"$and": 5}, {"$or": [{}]}, {"a": {"$gt": True}},
        {"a": {"$in": "x"}}, {"a": {"$in": []}}, {"a": {"$eq": {"b": 1}}}, {"a": {"b": 1}},
        {"$and": [{"$and": [{"$and": [{"$and": [{"a": 1}]}]}]}]},
]  # fmt: skip


@pytest.mark.parametrize("metadata", MEANINGLESS)
def test_a_filter_that_means_nothing_is_refused(metadata: Any):
    with pytest.raises(BadRequest):
        metadata_filters.to_condition(metadata)


Wish = dict[str, Any]
scalars: st.SearchStrategy[Any] = st.one_of(
    st.integers(-3, 3), st.sampled_from([0.5, "a", "b", "x" * 60, "x" * 60 + "y", True, False])
)
keys = st.sampled_from("pqr")
records = st.dictionaries(keys, st.one_of(scalars, st.lists(scalars, max_size=3), st.none()), max_size=3)


def _equal(key: str, value: Any) -> Wish:
    return {key: value}


def _contained(key: str, value: Any) -> Wish:
    return {key: [value]}


def _compared(key: str, op: str, value: Any) -> Wish:
    return {key: {op: value}}


def _joined(joint: str, parts: list[Wish]) -> Wish:
    return {joint: parts}


def _groups(inner: st.SearchStrategy[Wish]) -> st.SearchStrategy[Wish]:
    return st.builds(_joined, st.sampled_from(["$and", "$or"]), st.lists(inner, min_size=1, max_size=3))


ordered = scalars.filter(lambda value: not isinstance(value, bool))
tests: st.SearchStrategy[Wish] = st.one_of(
    st.builds(_equal, keys, scalars),
    st.builds(_contained, keys, scalars),
    st.builds(_compared, keys, st.sampled_from(["$eq", "$ne", "$gt", "$gte", "$lt", "$lte"]), ordered),
    st.builds(_compared, keys, st.sampled_from(["$in", "$nin"]), st.lists(scalars, min_size=1, max_size=3)),
)
wishes = st.recursive(tests, _groups, max_leaves=4)


@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(st.lists(records, min_size=1, max_size=6), st.lists(wishes, min_size=1, max_size=8))
def test_a_filter_leaves_the_same_by_facts_as_by_looking_at_everything(
    database_url: str, rows: list[dict[str, Any]], wanted: list[dict[str, Any]]
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
            for wish in wanted:
                try:
                    condition = metadata_filters.to_condition(wish)
                except AlmanacError:
                    continue
                where, args = source_filter.resolve(SourceFilter(condition=condition), collections=["c"])
                got = await db.fetch(f"SELECT s.owner_id FROM sources s WHERE s.collection = 'c' AND {where}", *args)
                meant = conditions.parse(condition)
                expected = {str(n) for n, row in enumerate(rows) if conditions.holds(meant, row)}
                assert {row["owner_id"] for row in got} == expected, wish
        finally:
            await db.close()

    asyncio.run(run())


# Texts and ids


def test_ids_come_in_the_order_in_which_they_were_made_and_are_all_different():
    made = [ids.new() for _ in range(5_000)]
    assert made == sorted(set(made))
    assert all(ids.is_id(each) for each in made)
    assert not any(ids.is_id(each) for each in ("", made[0][1:], made[0].upper() + "G", "g" * 24, made[0] + "0"))


def test_markup_is_read_as_a_reader_would():
    text = entity_text.strip_markup(
        "<h1>Care</h1><p>Rinse &amp; dry<br>it.</p><script>alert(1)</script><style>x</style>"
    )
    assert text.split() == ["Care", "Rinse", "&", "dry", "it."]
    assert entity_text.strip_markup("1 < 2 and **bold**") == "1 < 2 and **bold**"


@given(st.text(alphabet="ab \n", max_size=6000), st.integers(0, 3))
def test_a_text_is_cut_into_pieces_that_hold_all_of_it(text: str, times: int):
    whole = text * (times + 1)
    pieces = entity_text.entity_passages((whole,), {}, "c")
    assert all(len(piece.text) <= entity_text.PASSAGE_CHARS for piece in pieces)
    joined = "".join(piece.text for piece in pieces)
    assert joined.split() == whole.strip()[: entity_text.MAX_ENTITY_CHARS].split() or "".join(
        joined.split()
    ) == "".join(whole.split())
