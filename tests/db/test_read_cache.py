"""The read cache never returns a value from before a commit."""

from almanac.core.database import Database, Transaction
from almanac.db.read_cache import ReadCache
from almanac.identity import orgs


async def count(db: Database) -> int:
    row = await db.fetch_one("SELECT count(*) AS n FROM orgs")
    assert row is not None
    return row["n"]


async def test_an_answer_is_read_again_after_any_commit(database: Database):
    remembered = ReadCache(database)
    for number in range(5):
        assert await remembered.get("orgs", lambda: count(database)) == number
        assert await remembered.get("orgs", lambda: count(database)) == number
        await database.write(lambda tx, number=number: orgs.add(tx, f"org {number}"))


async def test_without_a_commit_the_database_is_asked_once_where_it_can_tell(database: Database):
    remembered, asked = ReadCache(database), 0

    async def read() -> int:
        nonlocal asked
        asked += 1
        return await count(database)

    for _ in range(3):
        await remembered.get("orgs", read)
    assert asked == (3 if database.commit_version() is None else 1)


async def test_a_commit_while_reading_makes_the_next_answer_a_new_one(database: Database):
    remembered = ReadCache(database)

    async def read_then_change() -> int:
        found = await count(database)
        await database.write(add)
        return found

    async def add(tx: Transaction) -> None:
        await orgs.add(tx, "late")

    assert await remembered.get("orgs", read_then_change) == 0
    assert await remembered.get("orgs", lambda: count(database)) == 1


async def test_questions_do_not_answer_for_each_other(database: Database):
    remembered = ReadCache(database)

    async def answer(value: str | None) -> str | None:
        return value

    assert await remembered.get(("a", 1), lambda: answer("one")) == "one"
    assert await remembered.get(("a", 2), lambda: answer(None)) is None
    assert await remembered.get(("a", 1), lambda: answer("other")) == ("one" if database.commit_version() else "other")
