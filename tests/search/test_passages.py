"""Passages as search keeps them: whose they are, in which collection, found or hidden."""

from dataclasses import replace

from almanac.core.database import Database
from almanac.search import passages
from almanac.search.passages import Owner, Passage

PUMP = Owner("an-org", "base:1", "document", "7")
VALVE = Owner("an-org", "base:1", "document", "8")
NOTE = Owner("an-org", "notes", "note", "7")  # another kind with the same id

FULL = Passage(3, 9, "the span", "table", ("Pumps", "Care"), 2, ((2, 1.5, 2.0, 3.25, 4.0), (3, 0.0, 0.0, 1.0, 1.0)), 0)
SOME = [Passage(0, 10, "around"), FULL, Passage(9, 10, "𝄞 and é")]


async def save(db: Database, owner: Owner, found: list[Passage], *, is_live: bool = True) -> None:
    await db.write(lambda tx: passages.replace(tx, owner, found, is_live=is_live))


async def live(db: Database) -> set[tuple[str, str, str]]:
    """The owners and collections of what search may find."""
    rows = await db.fetch("SELECT owner_kind, owner_id, collection FROM passages WHERE is_live = 1")
    return {(row["owner_kind"], row["owner_id"], row["collection"]) for row in rows}


async def test_passages_come_back_as_they_were_stored_and_in_their_order(database: Database):
    await save(database, PUMP, SOME)
    assert await passages.find(database, "document", "7") == SOME
    assert await passages.find(database, "document", "7", offset=1, limit=1) == [FULL]
    assert await passages.find(database, "document", "9") == []


async def test_new_passages_take_the_place_of_all_the_owner_had_and_of_nobody_else_s(database: Database):
    for owner in (PUMP, VALVE, NOTE):
        await save(database, owner, SOME)
    await save(database, PUMP, [FULL])
    assert await passages.find(database, "document", "7") == [FULL]
    assert await passages.find(database, "document", "8") == SOME
    assert await passages.find(database, "note", "7") == SOME
    await save(database, PUMP, [])
    assert await passages.find(database, "document", "7") == []


async def test_a_thousand_passages_of_one_owner_are_stored_at_once(database: Database):
    many = [replace(FULL, start=n, end=n + 1, parent=None) for n in range(1001)]
    await save(database, PUMP, many)
    assert await passages.find(database, "document", "7", limit=2000) == many


async def test_passages_can_be_hidden_and_shown_again(database: Database):
    for owner in (PUMP, VALVE, NOTE):
        await save(database, owner, SOME)
    await database.write(lambda tx: passages.show(tx, "document", ["7"], is_live=False))
    assert await live(database) == {("document", "8", "base:1"), ("note", "7", "notes")}
    await database.write(lambda tx: passages.show(tx, "document", ["7", "8"], is_live=True))
    assert len(await live(database)) == 3
    await save(database, PUMP, SOME, is_live=False)
    assert ("document", "7", "base:1") not in await live(database)


async def test_passages_go_with_their_owner_to_another_collection(database: Database):
    for owner in (PUMP, VALVE, NOTE):
        await save(database, owner, SOME)
    await database.write(lambda tx: passages.move(tx, "document", ["7"], "base:2"))
    assert await live(database) == {
        ("document", "7", "base:2"),
        ("document", "8", "base:1"),
        ("note", "7", "notes"),
    }
    assert await passages.find(database, "document", "7") == SOME


async def test_forgotten_passages_are_gone_and_those_of_others_are_not(database: Database):
    for owner in (PUMP, VALVE, NOTE):
        await save(database, owner, SOME)
    await database.write(lambda tx: passages.remove(tx, "document", ["7", "8", "9"]))
    assert await live(database) == {("note", "7", "notes")}
    await database.write(lambda tx: passages.remove(tx, "document", []))
