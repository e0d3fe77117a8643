"""kill −9 of the worker while passages are analysed and embedded and their index is compacted.

Every kill happens at another point of the work. A concurrent search always sees the stored passages. At the end, every
passage has its words and its own vector, the index agrees with the database, and no unused file is left.
"""

import asyncio
import os
import random
import time
from pathlib import Path

import numpy as np

from almanac.core.database import Database
from almanac.core.settings import Settings
from almanac.search import backends
from almanac.search.backends import open_search
from almanac.search.index.embedded import compaction
from almanac.search.index.protocol import SearchScope
from almanac.search.jobs import analyse_passages, collection_status, embed_passages, passage_batches
from tests.kill.indexer import Slow, vector_of
from tests.kill.programs import Program, with_database
from tests.live_server import settings_for
from tests.search.shelf import Shelf, open_shelf, terms
from tests.waiting import wait_until

KILLS = 5
THINGS = 40
COLLECTIONS = ("base:1", "base:2", "base:3")
UNFINISHED = "SELECT count(*) AS n FROM jobs WHERE state IN ('queued', 'running')"


def test_whenever_the_worker_dies_the_index_comes_to_agree_with_the_store(database_url: str, tmp_path: Path):
    settings = settings_for(database_url, tmp_path)
    with_database(database_url, fill)
    environment = {
        **os.environ,
        "ALMANAC_HOME": str(tmp_path),
        "ALMANAC_DATABASE_URL": database_url,
        "ALMANAC_JOB_LEASE_SECONDS": "5",
        "ALMANAC_LOG_LEVEL": "error",
    }
    worker = Program(environment, "tests.kill.indexer")
    try:
        for turn in range(KILLS):
            has = with_database(database_url, progress)
            wait_until(lambda has=has: with_database(database_url, progress) > has, seconds=30)  # it works
            time.sleep(random.Random(turn).uniform(0, 0.1))
            worker.kill()
            with_database(database_url, lambda db, turn=turn: disturb(db, settings, turn))
            worker.start()
        wait_until(lambda: with_database(database_url, unfinished) == 0, seconds=60)
    finally:
        worker.stop()
    with_database(database_url, lambda db: check(db, settings))


async def fill(db: Database) -> None:
    """Add sources that are not embedded yet; some are not analysed either."""
    shelf = await open_shelf(db)
    for number in range(THINGS):
        await put(shelf, number)
    if db.dialect == "postgres":
        await db.write(lambda tx: tx.execute("DELETE FROM terms"))
        await db.write(lambda tx: tx.execute("UPDATE sources SET passages = 0, length = 0"))
    await db.write(lambda tx: tx.execute("UPDATE passages SET words = NULL"))
    await analyse_passages.enqueue_missing(db)


def word(kind: str, number: int) -> str:
    """A word of letters only, unique for the number."""
    return kind + "".join("bcdfghjkmn"[int(digit)] for digit in f"{number:02}")


async def put(shelf: Shelf, number: int, version: int = 0) -> None:
    texts = [f"{word('thing', number)} {word('version', version)} part{part}" for part in range(1 + number % 9)]
    await shelf.put(str(number), texts, COLLECTIONS[(number + version) % len(COLLECTIONS)], title=f"Thing {number}")


async def disturb(db: Database, settings: Settings, turn: int) -> None:
    """Change sources while no worker runs, and check that a search sees it at once."""
    rows = await db.fetch("SELECT id FROM orgs")
    shelf = Shelf(db, rows[0]["id"])
    moved, gone = turn, THINGS - 1 - turn
    await put(shelf, moved, version=turn + 1)
    shelf.things[str(gone)] = shelf.things[str(moved)]
    await shelf.remove(str(gone))
    async with open_search(settings, db) as search:
        scope = SearchScope(COLLECTIONS)
        found = await search.index.keyword_hits(scope, terms(word("version", turn + 1)), 50)
        assert len(found.ids) == 1 + moved % 9
        assert len((await search.index.keyword_hits(scope, terms(word("thing", gone)), 50)).ids) == 0
    assert await collection_status.compare(settings, db) == []
    # Delays and retries are covered by the tests of the queue.
    await db.write(lambda tx: tx.execute("UPDATE jobs SET attempts = 0, run_at = 0 WHERE state = 'queued'"))
    await db.write(lambda tx: tx.execute("UPDATE jobs SET attempts = 0, lease_until = 0 WHERE state = 'running'"))


async def progress(db: Database) -> int:
    """The amount of written words, vectors, and index files."""
    rows = await db.fetch("SELECT sum(version) AS n FROM sources")
    return rows[0]["n"]


async def unfinished(db: Database) -> int:
    return (await db.fetch(UNFINISHED))[0]["n"]


async def check(db: Database, settings: Settings) -> None:
    standings = await collection_status.collection_statuses(db)
    assert [each.collection for each in standings] == list(COLLECTIONS)
    assert {each.model for each in standings} == {Slow.name}
    assert all(each.is_embedded and not each.unread for each in standings)
    assert await collection_status.compare(settings, db) == []
    await check_vectors(db, settings)
    if settings.on_sqlite:
        folder = backends.folder_of(settings)
        await compaction.compact(db, folder)  # this also removes incomplete files
        there = await asyncio.to_thread(lambda: {file.name for file in folder.iterdir()})
        assert there == {row["file"] for row in await db.fetch("SELECT file FROM segments")}
        assert await collection_status.compare(settings, db) == []


async def check_vectors(db: Database, settings: Settings) -> None:
    """Check that each passage has the vector of its own text and is found by it."""
    rows = [row for name in COLLECTIONS async for batch in passage_batches.walk(db, name, 50) for row in batch]
    assert len(rows) > THINGS
    async with open_search(settings, db) as search:
        for row in rows[:: len(rows) // 20]:
            asked = vector_of(embed_passages.text_of(row))
            hits = await search.index.vector_hits(SearchScope(COLLECTIONS), Slow.name, asked, 1)
            assert hits.ids.tolist() == [row["id"]]
            assert np.isclose(hits.scores[0], 1, atol=1e-2)
