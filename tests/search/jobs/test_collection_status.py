"""The maintenance of an index: status, pending analysis, and rebuilds."""

from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from almanac.ai.embedder import Vectors
from almanac.core import clock
from almanac.core.database import Database, Row
from almanac.core.settings import Settings
from almanac.jobs import queue
from almanac.search import backends
from almanac.search.analysis import analyser
from almanac.search.backends import open_search
from almanac.search.engine import SearchEngine
from almanac.search.index import tables
from almanac.search.index.embedded import compaction
from almanac.search.index.protocol import Coverage, SearchScope
from almanac.search.jobs import analyse_passages, collection_status, embed_passages, embed_queue, passage_batches
from almanac.search.jobs.analyse_passages import AnalysePassages
from almanac.search.jobs.collection_status import CollectionStatus
from almanac.search.query import SearchQuery
from tests.live_server import settings_for
from tests.search.shelf import MODEL, Shelf, open_shelf, terms

JOB = queue.Job(1, "analyse_passages", {}, "analyse_passages", "running", 0, 1, 5, 1, None)


class Flat:
    """An embedder with equal vectors for all texts."""

    name = MODEL
    dimension = 32
    languages = frozenset[str]()

    def __init__(self, direction: int) -> None:
        self._direction = direction

    async def passages(self, texts: Sequence[str]) -> Vectors:
        rows = np.zeros((len(texts), 32), np.float32)
        rows[:, self._direction] = 1
        return rows

    async def query(self, text: str) -> Vectors:
        return (await self.passages([text]))[0]

    async def close(self) -> None:
        """Nothing is open."""


@pytest.fixture
async def shelf(database: Database) -> Shelf:
    return await open_shelf(database)


@pytest.fixture
def settings(database_url: str, tmp_path: Path) -> Settings:
    return settings_for(database_url, tmp_path / "home")


@pytest.fixture
async def search(settings: Settings, database: Database) -> AsyncIterator[SearchEngine]:
    async with open_search(settings, database) as opened:
        yield opened


async def execute(db: Database, *statements: str) -> None:
    for sql in statements:
        await db.write(lambda tx, sql=sql: tx.execute(sql))


async def forget_words(db: Database) -> None:
    """Remove the words of passages, as a migration does."""
    if db.dialect == "postgres":
        await execute(db, "DELETE FROM terms", "UPDATE sources SET passages = 0, length = 0")
    await execute(db, "UPDATE passages SET words = NULL", "UPDATE sources SET version = version + 1")


async def words_of(db: Database) -> dict[str, bytes | None]:
    return {row["text"]: row["words"] for row in await db.fetch("SELECT text, words FROM passages")}


async def rows_of(db: Database, collection: str = "base:1") -> list[Row]:
    return [row async for rows in passage_batches.walk(db, collection, 3) for row in rows]


async def found(search: SearchEngine, text: str, collection: str = "base:1") -> list[int]:
    return (await search.index.keyword_hits(SearchScope((collection,)), terms(text), 10)).ids.tolist()


# Words


async def test_passages_that_a_migration_left_unread_are_analysed_and_found(
    shelf: Shelf, search: SearchEngine, settings: Settings
):
    await shelf.put("pump", ["Forty turns a minute.", "Oil the bearing."], title="Pump")
    await shelf.put("cat", ["A cat sleeps."], "base:2")
    before = await words_of(shelf.db)
    await forget_words(shelf.db)
    assert await found(search, "bearing") == []
    assert await collection_status.count_not_analysed(shelf.db) == 3
    assert await AnalysePassages(shelf.db)(JOB) is None
    assert await words_of(shelf.db) == before
    assert len(await found(search, "bearing")) == 2, "a short passage is also found by what stands beside it"
    assert len(await found(search, "sleeps", "base:2")) == 1
    assert await collection_status.count_not_analysed(shelf.db) == 0
    assert await collection_status.compare(settings, shelf.db) == []


async def test_a_long_analysis_lets_other_jobs_have_their_turn_and_goes_on_after(
    shelf: Shelf, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(analyse_passages, "BATCH_SIZE", 2)
    monkeypatch.setattr(analyse_passages, "JOB_TIME_SLICE", -1)
    await shelf.put("pump", ["One.", "Two.", "Three."])
    await forget_words(shelf.db)
    left = [await collection_status.count_not_analysed(shelf.db)]
    while effect := await AnalysePassages(shelf.db)(JOB):
        await shelf.db.write(effect)
        left.append(await collection_status.count_not_analysed(shelf.db))
    assert left == [3, 1, 0]
    assert [job.kind for job in await queue.find(shelf.db, "queued") if job.kind == "analyse_passages"] == [
        "analyse_passages"
    ]


async def test_a_worker_is_asked_to_analyse_only_if_something_is_left_to_be(shelf: Shelf):
    async def asked() -> int:
        return sum(job.kind == "analyse_passages" for job in await queue.find(shelf.db, "queued"))

    await shelf.put("pump", ["Oil the bearing."])
    await analyse_passages.enqueue_missing(shelf.db)
    assert await asked() == 0
    await forget_words(shelf.db)
    await analyse_passages.enqueue_missing(shelf.db)
    await analyse_passages.enqueue_missing(shelf.db)
    assert await asked() == 1


async def test_vectors_that_were_given_up_on_are_asked_for_again_after_a_while(shelf: Shelf):
    async def waiting() -> list[str | None]:
        return [job.key for job in await queue.find(shelf.db, "queued")]

    await shelf.put("pump", ["Oil the bearing."])
    (job,) = await queue.claim(shelf.db, "w", ["embed_passages"], limit=1, lease=clock.MINUTE)
    await queue.mark_dead(shelf.db, job, "its workers were killed")
    await embed_queue.retry_dead(shelf.db)
    assert await waiting() == []
    await execute(shelf.db, f"UPDATE jobs SET finished_at = finished_at - {embed_queue.DEAD_JOB_RETRY_DELAY}")
    await embed_queue.retry_dead(shelf.db)
    assert await waiting() == ["embed_passages:base:1"]


async def test_words_of_a_title_that_has_changed_meanwhile_are_not_stored(shelf: Shelf):
    await shelf.put("pump", ["Oil the bearing."], title="Pump")
    await forget_words(shelf.db)
    rows = await rows_of(shelf.db)
    await shelf.change("pump", title="Turbine")
    await analyse_passages.analyse(shelf.db, rows)
    assert await words_of(shelf.db) == {"Oil the bearing.": analyser.encode_terms("Turbine", [], "Oil the bearing.")}


async def test_words_of_what_was_removed_meanwhile_are_dropped(shelf: Shelf):
    await shelf.put("pump", ["Oil the bearing."])
    await shelf.put("cat", ["A cat sleeps."])
    await forget_words(shelf.db)
    rows = await rows_of(shelf.db)
    await shelf.remove("pump")
    await analyse_passages.analyse(shelf.db, rows)
    assert await words_of(shelf.db) == {"A cat sleeps.": analyser.encode_terms("", [], "A cat sleeps.")}


async def test_an_analysis_that_finds_nothing_new_writes_nothing(shelf: Shelf):
    await shelf.put("pump", ["Oil the bearing.", "Forty turns."])
    before = await shelf.db.fetch("SELECT version FROM sources")
    assert await analyse_passages.analyse(shelf.db, await rows_of(shelf.db)) == 0
    assert [row["version"] for row in await shelf.db.fetch("SELECT version FROM sources")] == [before[0]["version"]]
    await execute(shelf.db, "UPDATE passages SET words = NULL WHERE ordinal = 1")
    assert await analyse_passages.analyse(shelf.db, await rows_of(shelf.db)) == 1


async def test_a_walk_comes_by_every_passage_of_a_collection_once_and_by_no_other(shelf: Shelf):
    for number in range(7):
        await shelf.put(f"{number}", [f"Text {number}.{part}" for part in range(number)], f"base:{1 + number % 2}")
    walked = [row["text"] for row in await rows_of(shelf.db, "base:2")]
    assert walked == [f"Text {number}.{part}" for number in (1, 3, 5) for part in range(number)]


# Vectors


async def test_vectors_are_replaced_without_ever_being_gone(shelf: Shelf, search: SearchEngine, settings: Settings):
    await shelf.put("pump", ["Oil the bearing.", "Forty turns."])
    await shelf.embed("pump")
    rows = await rows_of(shelf.db)
    await embed_passages.replace_vectors(shelf.db, Flat(3), rows[:1])
    ahead = await Flat(3).query("")
    hits = await search.index.vector_hits(SearchScope(("base:1",)), MODEL, ahead, 10)
    assert hits.ids.tolist()[0] == rows[0]["id"]
    assert hits.scores[0] == pytest.approx(1, abs=1e-3)
    assert len(hits.ids) == 2, "the other one still has the vector it had"
    assert await collection_status.compare(settings, shelf.db) == []


async def test_a_vector_of_a_title_that_has_changed_meanwhile_is_not_stored(shelf: Shelf):
    await shelf.put("pump", ["Oil the bearing."], title="Pump")
    rows = await rows_of(shelf.db)
    await shelf.change("pump", title="Turbine")
    await embed_passages.replace_vectors(shelf.db, Flat(3), rows)
    assert await shelf.db.fetch("SELECT 1 FROM vectors") == []


# Status


async def test_only_collections_that_lack_vectors_are_counted(shelf: Shelf, search: SearchEngine):
    await shelf.put("pump", ["Oil the bearing.", "Forty turns."])
    await shelf.embed("pump")
    await shelf.put("cat", ["A cat sleeps.", "A dog barks."], "base:2")
    await shelf.embed("cat", np.ones((1, 32), np.float32))
    await shelf.put("none", [], "base:3")
    await execute(shelf.db, f"UPDATE collections SET model = '{MODEL.replace(chr(39), chr(39) * 2)}'",
                  "UPDATE sources SET is_embedded = 1 WHERE collection = 'base:1'")  # fmt: skip
    names = ["base:1", "base:2", "base:3", "base:4"]
    assert await collection_status.coverages(shelf.db, search.index, names) == {"base:2": Coverage(2, 1)}
    assert await collection_status.coverages(shelf.db, search.index, []) == {}
    assert await collection_status.coverage(shelf.db, search.index, "base:1") == Coverage(2, 2)
    assert await collection_status.coverage(shelf.db, search.index, "base:2") == Coverage(2, 1)
    assert await collection_status.coverage(shelf.db, search.index, "base:4") == Coverage(0, 0)


async def test_a_change_of_models_is_followed_by_the_vectors_of_the_next(shelf: Shelf, search: SearchEngine):
    await shelf.put("pump", ["Oil the bearing.", "Forty turns."])
    await shelf.embed("pump", model="old")
    await shelf.embed("pump", np.ones((1, 32), np.float32), model="new")
    await execute(shelf.db, "UPDATE collections SET model = 'old', next_model = 'new'")
    assert await collection_status.coverages(shelf.db, search.index, ["base:1"]) == {"base:1": Coverage(2, 1)}
    await forget_words(shelf.db)
    (standing,) = await collection_status.collection_statuses(shelf.db)
    assert standing == CollectionStatus("base:1", 2, 2, "old", 2, "new", 1)
    assert (standing.finally_embedded, standing.is_embedded) == (1, False)


async def test_vectors_are_under_way_until_the_job_is_done_or_has_to_wait(shelf: Shelf):
    async def under_way() -> bool:
        return await embed_queue.is_under_way(shelf.db, "base:1")

    assert not await under_way()
    await shelf.put("pump", ["Oil the bearing."])
    assert await under_way()
    (job,) = await queue.claim(shelf.db, "w", ["embed_passages"], limit=1, lease=clock.MINUTE)
    assert await under_way()
    await queue.fail(shelf.db, job, "the model cannot be reached")
    assert not await under_way()


async def test_what_an_index_is_made_of_has_a_size(shelf: Shelf, settings: Settings):
    await shelf.fill(3, ["base:1"])
    assert (await collection_status.count_pending_changes(settings, shelf.db) > 0) == settings.on_sqlite
    await collection_status.rebuild_index(settings, shelf.db, None, lambda _: None)
    made = {part.name: part.bytes for part in await collection_status.index_parts(settings, shelf.db)}
    assert made
    assert settings.on_sqlite or {"terms", "terms_terms", "vectors"} <= set(made)
    assert all(size > 0 for size in made.values())
    assert await collection_status.count_pending_changes(settings, shelf.db) == 0


# Rebuild


@pytest.mark.parametrize("collection", [None, "base:2"])
async def test_an_index_that_differs_from_the_store_is_made_anew_while_it_is_searched(
    shelf: Shelf, settings: Settings, search: SearchEngine, collection: str | None
):
    await shelf.fill(6, ["base:1", "base:2"])
    await shelf.put("pump", ["Oil the bearing."], "base:2")
    await collection_status.rebuild_index(settings, shelf.db, None, lambda _: None)
    assert await collection_status.compare(settings, shelf.db) == []
    await shelf.put("valve", ["Close the valve."], "base:2")
    if settings.on_sqlite:
        await execute(shelf.db, "DELETE FROM changes")  # so that no file will have it
    else:
        await execute(shelf.db, "DELETE FROM terms WHERE passage_id = (SELECT max(id) FROM passages)",
                      "UPDATE vectors SET collection = 'base:9' WHERE collection = 'base:2'")  # fmt: skip
    assert await collection_status.compare(settings, shelf.db) != []
    told: list[int] = []
    await collection_status.rebuild_index(settings, shelf.db, collection, told.append)
    assert await collection_status.compare(settings, shelf.db) == []
    assert len(await found(search, "valve", "base:2")) == 1
    assert len(await found(search, "bearing", "base:2")) == 1
    if collection is not None or not settings.on_sqlite:
        number = sum(collection in (None, each.collection) for each in shelf.things.values())
        assert sum(told) == number


async def test_embedding_goes_on_after_a_renewal(shelf: Shelf, settings: Settings):
    await shelf.put("pump", ["Oil the bearing."])
    await collection_status.rebuild_index(settings, shelf.db, None, lambda _: None)
    (job,) = await queue.claim(shelf.db, "w", ["embed_passages"], limit=1, lease=clock.MINUTE)
    effect = await embed_passages.EmbedPassages(shelf.db, Flat(1))(job)
    assert effect is not None
    await shelf.db.write(effect)
    (standing,) = await collection_status.collection_statuses(shelf.db)
    assert (standing.model, standing.embedded, standing.is_embedded) == (MODEL, 1, True)
    assert await collection_status.compare(settings, shelf.db) == []


class Other(Flat):
    """Another model."""

    name = "other"


async def test_after_a_change_of_model_nothing_is_left_of_the_one_before(
    shelf: Shelf, settings: Settings, search: SearchEngine
):
    async def compact() -> None:
        if settings.on_sqlite:
            await compaction.compact(shelf.db, backends.folder_of(settings), least=1)

    job = replace(JOB, kind="embed_passages", payload={"collection": "base:1"})
    for number in range(20):
        await shelf.put(str(number), [f"pump {number}", "valve"])
    for embedder in (Flat(1), Other(2)):
        effect = await embed_passages.EmbedPassages(shelf.db, embedder)(job)
        await compact()  # between the last vector and the change
        assert effect is not None
        await shelf.db.write(effect)
    assert (await collection_status.collection_statuses(shelf.db))[0].model == "other"
    assert len(await shelf.db.fetch("SELECT 1 FROM vectors WHERE model = $1", MODEL)) == 40
    (forgetting,) = await queue.claim(shelf.db, "w", ["delete_old_vectors"], limit=1, lease=clock.MINUTE)
    assert await embed_passages.DeleteOldVectors(shelf.db)(forgetting) is None
    for _ in range(2):
        assert await shelf.db.fetch("SELECT 1 FROM vectors WHERE model = $1", MODEL) == []
        assert await collection_status.compare(settings, shelf.db) == []
        assert (await search.index.coverage(("base:1",), MODEL)).embedded == 0
        assert (await search.index.coverage(("base:1",), "other")).embedded == 40
        await compact()


class Wide(Flat):
    """Another model with the same name."""

    dimension = 16

    async def passages(self, texts: Sequence[str]) -> Vectors:
        return np.full((len(texts), 16), 0.25, np.float32)


async def test_vectors_of_another_size_are_neither_mixed_in_nor_passed_over_in_silence(
    shelf: Shelf, search: SearchEngine
):
    job = replace(JOB, kind="embed_passages", payload={"collection": "base:1"})
    await shelf.put("pump", ["Oil the bearing."])
    await shelf.db.write(lambda tx: tx.execute("DELETE FROM vectors"))
    await shelf.db.write(lambda tx: tx.execute("UPDATE sources SET is_embedded = 0"))
    effect = await embed_passages.EmbedPassages(shelf.db, Flat(1))(job)
    assert effect is not None
    await shelf.db.write(effect)
    await shelf.put("cat", ["A cat sleeps."])
    await shelf.db.write(lambda tx: tx.execute("UPDATE sources SET is_embedded = 0"))
    await embed_passages.EmbedPassages(shelf.db, Wide(1))(job)
    assert await tables.dimension(shelf.db, "base:1", MODEL) == 32
    assert len(await shelf.db.fetch("SELECT 1 FROM vectors WHERE source_id = 1")) == 1
    answer = await SearchEngine(shelf.db, search.index, {MODEL: Wide(1)}).search(SearchQuery("oil", ("base:1",)))
    assert [each.text for each in answer.results] == ["Oil the bearing."]
    note = "The model returns vectors of another size than the stored ones, so only keyword search was used."
    assert note in answer.notes
