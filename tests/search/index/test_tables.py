"""The derived tables of each database always follow from the passages."""

import numpy as np
import pytest

from almanac.core.database import Database
from almanac.search import sources
from almanac.search.analysis import analyser
from almanac.search.index import tables
from almanac.search.index.postgres import postgres_index
from tests.search.shelf import MODEL, Shelf, open_shelf, turn


@pytest.fixture
async def shelf(database: Database) -> Shelf:
    return await open_shelf(database)


async def listed(db: Database) -> list[tuple[int, str, list[int]]]:
    rows = await db.fetch("SELECT source_id, collection, terms FROM terms ORDER BY passage_id")
    return [(row["source_id"], row["collection"], sorted(row["terms"])) for row in rows]


async def expected(db: Database) -> list[tuple[int, str, list[int]]]:
    rows = await db.fetch(
        "SELECT s.id, s.collection, p.words FROM passages p JOIN sources s ON s.id = p.source_id"
        " WHERE p.words IS NOT NULL ORDER BY p.id"
    )
    return [
        (row["id"], row["collection"], sorted(tables.posting_keys(row["collection"], row["words"]).tolist()))
        for row in rows
    ]


async def sizes(db: Database) -> list[tuple[int, int]]:
    rows = await db.fetch("SELECT passages, length FROM sources ORDER BY id")
    return [(row["passages"], row["length"]) for row in rows]


async def expected_sizes(db: Database) -> list[tuple[int, int]]:
    found: dict[int, list[int]] = {row["id"]: [] for row in await db.fetch("SELECT id FROM sources ORDER BY id")}
    for row in await db.fetch("SELECT source_id, words FROM passages WHERE words IS NOT NULL"):
        found[row["source_id"]].append(int(analyser.decode_terms(row["words"])[1].sum()))
    return [(len(lengths), sum(lengths)) for lengths in found.values()]


async def vectors(db: Database) -> list[tuple[str, str, list[float]]]:
    column = "vector" if db.dialect == "sqlite" else "CAST(vector AS text) AS vector"
    rows = await db.fetch(f"SELECT model, collection, {column} FROM vectors ORDER BY passage_id, model")
    return [(row["model"], row["collection"], _numbers(row["vector"])) for row in rows]


def _numbers(stored: bytes | str) -> list[float]:
    if isinstance(stored, bytes):
        return np.frombuffer(stored, np.float16).astype(np.float64).tolist()
    return [float(np.float16(float(number))) for number in stored.strip("[]").split(",")]


async def test_vectors_are_stored_in_half_precision_and_replaced_by_newer_ones(shelf: Shelf):
    await shelf.put("a", ["one two", "three"])
    made = turn(shelf.rng, 2, 8)
    await shelf.embed("a", made)
    await shelf.embed("a", made[:1], model="another")
    halves = made.astype(np.float16).astype(np.float64).tolist()
    assert await vectors(shelf.db) == sorted(
        [(MODEL, "base:1", halves[0]), ("another", "base:1", halves[0]), (MODEL, "base:1", halves[1])],
        key=lambda row: (halves.index(row[2]), row[0]),
    )
    newer = turn(shelf.rng, 2, 8)
    await shelf.embed("a", newer)
    found = await vectors(shelf.db)
    assert [row[2] for row in found if row[0] == MODEL] == newer.astype(np.float16).astype(np.float64).tolist()


async def test_halves_are_rounded_as_numpy_rounds_them(shelf: Shelf):
    await shelf.put("a", ["one"])
    awkward = np.array([[1 / 3, 2049 / 4096, 2051 / 4096, 6e-8, 3e-8, -1e-5, 0.0, 0.1]], np.float32)
    await shelf.embed("a", awkward)
    assert (await vectors(shelf.db))[0][2] == awkward[0].astype(np.float16).astype(np.float64).tolist()


async def test_a_source_that_moves_takes_everything_along(shelf: Shelf):
    await shelf.put("a", ["one two", "three three three"], "base:1")
    await shelf.put("b", ["one"], "base:1")
    await shelf.embed("a")
    await shelf.change("a", collection="base:2")
    assert [row[1] for row in await vectors(shelf.db)] == ["base:2", "base:2"]
    if shelf.db.dialect == "postgres":
        assert await listed(shelf.db) == await expected(shelf.db)
        assert {row[1] for row in await listed(shelf.db)} == {"base:1", "base:2"}


def test_a_passage_is_listed_under_each_term_and_again_where_it_stands_often():
    hashes = np.sort(np.array([analyser.term_hash(f"x{n}") for n in range(150)], np.int64))
    words = hashes.tobytes() + np.array([255, 1, *[10] * 148], np.uint8).tobytes()
    one, two = (tables.posting_keys(name, words).tolist() for name in ("base:1", "base:2"))
    often, seldom = (
        [
            tables.short_hashes(hashes)[n] ^ tables.collection_salt("base:1") ^ tables.level_salt(level)
            for level in range(4)
        ]
        for n in (0, 1)
    )
    assert set(often) <= set(one)
    assert set(seldom) & set(one) == {seldom[0]}
    assert len(set(one)) == len(one)
    assert not set(one) & set(two)  # other lists do not grow


@pytest.mark.parametrize("database_url", ["postgres"], indirect=True)
async def test_terms_and_sizes_follow_from_the_words_whatever_happens(shelf: Shelf):
    async def check() -> None:
        assert await listed(shelf.db) == await expected(shelf.db)
        assert await sizes(shelf.db) == await expected_sizes(shelf.db)
        assert await postgres_index.compare(shelf.db) == []

    await shelf.put("a", ["one two two", "three three three"], title="Pumps")
    await shelf.put("b", ["four " * 300, ""])
    await check()
    await shelf.put("a", ["five"], title="Pumps")
    await check()
    await shelf.change("a", title="Valves, pumps, motors")
    await check()
    await shelf.change("a", collection="base:9", title="Valves")
    await check()
    await shelf.change("b", is_live=False)
    await shelf.put("b", [])
    await check()
    await shelf.remove("a")
    await check()
    assert await listed(shelf.db) == []


@pytest.mark.parametrize("database_url", ["postgres"], indirect=True)
async def test_passages_that_are_analysed_later_are_listed_then(shelf: Shelf):
    await shelf.put("a", ["one two", "three"])
    await shelf.db.write(lambda tx: tx.execute("UPDATE passages SET words = NULL"))
    await shelf.db.write(lambda tx: tx.execute("DELETE FROM terms"))
    rows = await shelf.db.fetch("SELECT id, source_id, text FROM passages ORDER BY id")
    first = [(rows[0]["id"], analyser.encode_terms("", (), rows[0]["text"]))]

    async def analyse(tx: sources.Transaction) -> None:
        await tables.write_words(tx, rows[0]["source_id"], "base:1", first)

    await shelf.db.write(analyse)
    assert len(await listed(shelf.db)) == 1
    assert await listed(shelf.db) == await expected(shelf.db)
    assert await sizes(shelf.db) == await expected_sizes(shelf.db)
    assert await postgres_index.compare(shelf.db) == []
