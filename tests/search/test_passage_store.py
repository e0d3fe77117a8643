"""Stored sources and passages: owner, collection, and visibility."""

from dataclasses import replace

import orjson
import pytest

from almanac.core.database import Database
from almanac.identity import orgs
from almanac.jobs import queue
from almanac.search import passage_store, sources
from almanac.search.analysis import analyser
from almanac.search.passage import Passage
from almanac.search.sources import Source

FULL = Passage(3, 9, "the span", "table", ("Pumps", "Care"), 2, ((2, 1.5, 2.0, 3.25, 4.0), (3, 0.0, 0.0, 1.0, 1.0)), 0)
SOME = [Passage(0, 10, "around"), FULL, Passage(9, 10, "𝄞 and é")]


@pytest.fixture
async def pump(database: Database) -> Source:
    org = await database.write(lambda tx: orgs.add(tx, "an-org"))
    return Source(org.id, "base:1", "document", "7", "Pumps", 1, 2, 5, ("a",), {"year": 2020})


async def save(db: Database, source: Source, found: list[Passage]) -> int:
    prepared = passage_store.analyse(source.title, found)
    return await db.write(lambda tx: passage_store.replace(tx, source, prepared))


async def put(db: Database, source: Source) -> int:
    return await db.write(lambda tx: sources.put(tx, source))


async def live(db: Database) -> set[tuple[str, str, str]]:
    """The sources and collections that search may return."""
    rows = await db.fetch("SELECT kind, owner_id, collection FROM sources WHERE is_live = 1")
    return {(row["kind"], row["owner_id"], row["collection"]) for row in rows}


def three(pump: Source) -> tuple[Source, Source, Source]:
    note = replace(pump, collection="notes", kind="note")  # another kind with the same id
    return pump, replace(pump, object_id="8"), note


async def test_passages_are_read_as_they_were_stored_and_in_order(database: Database, pump: Source):
    await save(database, pump, SOME)
    assert await passage_store.find(database, "document", "7") == SOME
    assert await passage_store.find(database, "document", "7", offset=1, limit=1) == [FULL]
    assert await passage_store.find(database, "document", "9") == []


async def test_new_passages_replace_all_passages_of_their_source_only(database: Database, pump: Source):
    for source in three(pump):
        await save(database, source, SOME)
    await save(database, pump, [FULL])
    assert await passage_store.find(database, "document", "7") == [FULL]
    assert await passage_store.find(database, "document", "8") == SOME
    assert await passage_store.find(database, "note", "7") == SOME
    await save(database, pump, [])
    assert await passage_store.find(database, "document", "7") == []


async def test_a_thousand_passages_of_one_source_are_stored_at_once(database: Database, pump: Source):
    many = [replace(FULL, start=n, end=n + 1, parent=None) for n in range(1001)]
    await save(database, pump, many)
    assert await passage_store.find(database, "document", "7", limit=2000) == many


async def test_sources_can_be_hidden_and_shown_again(database: Database, pump: Source):
    for source in three(pump):
        await save(database, source, SOME)
    await database.write(lambda tx: sources.show(tx, "document", ["7"], is_live=False))
    assert await live(database) == {("document", "8", "base:1"), ("note", "7", "notes")}
    await database.write(lambda tx: sources.show(tx, "document", ["7", "8"], is_live=True))
    assert len(await live(database)) == 3
    await put(database, replace(pump, is_live=False))
    assert ("document", "7", "base:1") not in await live(database)


async def test_passages_move_with_their_source_to_another_collection(database: Database, pump: Source):
    for source in three(pump):
        await save(database, source, SOME)
    await put(database, replace(pump, collection="base:2"))
    assert await live(database) == {("document", "7", "base:2"), ("document", "8", "base:1"), ("note", "7", "notes")}
    assert await passage_store.find(database, "document", "7") == SOME


async def test_removed_sources_lose_their_passages_and_others_keep_them(database: Database, pump: Source):
    for source in three(pump):
        await save(database, source, SOME)
    await database.write(lambda tx: sources.remove(tx, "document", ["7", "8", "9"]))
    assert await live(database) == {("note", "7", "notes")}
    assert await passage_store.find(database, "document", "7") == []
    assert await passage_store.find(database, "note", "7") == SOME
    await database.write(lambda tx: sources.remove(tx, "document", []))


async def test_an_updated_source_keeps_its_id(database: Database, pump: Source):
    first = await put(database, pump)
    assert await put(database, replace(pump, folder_id=9, tags=("b", "c"), metadata={"x": None}, updated_at=3)) == first
    row = await database.fetch_one("SELECT * FROM sources WHERE id = $1", first)
    assert row is not None
    assert (row["folder_id"], row["updated_at"], orjson.loads(row["tags"])) == (9, 3, ["b", "c"])
    assert orjson.loads(row["metadata"]) == {"x": None}


async def test_a_moved_folder_affects_its_own_collection_only(database: Database, pump: Source):
    other = replace(pump, object_id="8", collection="base:2")
    for source in (pump, other):
        await put(database, source)
    await database.write(lambda tx: sources.move_folder(tx, "base:1", 5, 6))
    rows = await database.fetch("SELECT owner_id, folder_id FROM sources ORDER BY owner_id")
    assert [(row["owner_id"], row["folder_id"]) for row in rows] == [("7", 6), ("8", 5)]


@pytest.mark.parametrize("when", ["before", "between"])
async def test_passages_are_found_by_the_current_title_of_their_source(database: Database, pump: Source, when: str):
    renamed = replace(pump, title="Compressors")
    if when == "before":
        await save(database, pump, [FULL])
        await put(database, renamed)
    else:
        prepared = passage_store.analyse(pump.title, [FULL])
        await database.write(lambda tx: passage_store.replace(tx, renamed, prepared))
    row = await database.fetch_one("SELECT words FROM passages")
    assert row is not None
    assert row["words"] == analyser.encode_terms("Compressors", FULL.headings, FULL.text)


async def test_embedding_is_queued_once_for_many_passages(database: Database, pump: Source):
    await save(database, pump, SOME)
    await save(database, replace(pump, object_id="8"), SOME)
    jobs = await queue.find(database, "queued")
    assert [(job.kind, job.payload) for job in jobs] == [("embed_passages", {"collection": "base:1"})]
