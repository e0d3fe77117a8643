"""The embedded index gives the results of the naive reference, after any sequence of changes."""

import asyncio
import shutil
import subprocess
import sys
import tempfile
import threading
import weakref
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from structlog.testing import capture_logs

from almanac.core.database import Database, Transaction
from almanac.db.connect import connect
from almanac.db.errors import StatementRejected
from almanac.search import sources
from almanac.search.analysis import analyser
from almanac.search.index.embedded import (
    change_log,
    compaction,
    embedded_index,
    keyword_scan,
    quantisation,
    segment_view,
    segments,
    vector_scan,
)
from almanac.search.index.embedded.embedded_index import EmbeddedIndex
from almanac.search.index.protocol import SearchScope
from almanac.search.ranking import bm25
from tests.search.reference import Reference, assert_agrees, assert_weighs
from tests.search.shelf import MODEL, Shelf, open_shelf, terms, turn

WORDS = [f"zk{letter}" for letter in "bdfghjklmnpq"]  # analysis does not change them
COLLECTIONS = ("base:1", "base:2", "base:3", "base:4")
EXACT = 1e-5  # relative: sums of float32
QUANTISED = 4e-3  # of a cosine, by 8 bits a number at few dimensions; the first are as exact as the stored values


@asynccontextmanager
async def shelf_of(template: Path, folder: Path) -> AsyncGenerator[Shelf]:
    shutil.copy(template, folder / "almanac.db")
    db = await connect(f"sqlite:///{folder / 'almanac.db'}")
    try:
        yield await open_shelf(db)
    finally:
        await db.close()


@pytest.fixture
async def shelf(sqlite_template: Path, tmp_path: Path) -> AsyncIterator[Shelf]:
    async with shelf_of(sqlite_template, tmp_path) as shelf:
        yield shelf


@pytest.fixture
def files(tmp_path: Path) -> Path:
    return tmp_path / "index"


async def agree(
    db: Database,
    index: EmbeddedIndex,
    scope: SearchScope,
    asked: list[int],
    vector: NDArray[np.float32],
    limit: int = 5,
) -> None:
    """Check both legs and the statistics against the reference."""
    reference = Reference(db)
    found, expected = await index.keyword_hits(scope, asked, limit), await reference.words(scope, asked)
    assert (found.passages, found.frequencies) == (expected.passages, expected.frequencies)
    assert found.average == pytest.approx(expected.average)
    assert_agrees(found, expected, limit, EXACT)
    near = await index.vector_hits(scope, MODEL, vector, limit)
    assert_agrees(near, await reference.vectors(scope, MODEL, vector), limit, QUANTISED)
    every = await index.vector_hits(scope, MODEL, vector, 100)
    assert_weighs(await index.keyword_scores(every, asked, found), every, expected)
    assert await index.coverage(scope.collections, MODEL) == await reference.coverage(scope.collections, MODEL)


# Random changes


names = st.sampled_from([f"thing {n}" for n in range(6)])
texts = st.lists(st.lists(st.sampled_from(WORDS), max_size=8).map(" ".join), max_size=4)
steps = st.one_of(
    st.tuples(st.just("put"), names, texts, st.sampled_from(COLLECTIONS)),
    st.tuples(st.just("move"), names, st.sampled_from(COLLECTIONS)),
    st.tuples(st.just("show"), names, st.booleans()),
    st.tuples(st.just("rename"), names, st.sampled_from(WORDS)),
    st.tuples(st.just("remove"), names),
    st.tuples(st.just("embed"), names, st.integers(0, 4)),
    st.tuples(st.just("unread"), names),
    st.tuples(st.just("file"), names, st.integers(0, 3)),
    st.tuples(st.just("compact"), st.sampled_from([0.0, 0.2, 1.0])),
    st.tuples(st.just("rebuild")),
    st.tuples(st.just("reopen")),
    st.tuples(st.just("lose")),
)
asking = st.tuples(
    st.lists(st.sampled_from(COLLECTIONS), min_size=1, max_size=4, unique=True),
    st.lists(st.sampled_from([*WORDS, "unheard"]), min_size=1, max_size=5),
    st.sampled_from(["", "s.folder_id = $1", "s.folder_id <> $1 AND s.title <> 'zkd'"]),
    st.integers(1, 6),
)


async def do(shelf: Shelf, index: EmbeddedIndex, files: Path, step: tuple[Any, ...]) -> EmbeddedIndex:
    """Take one step; return the index for the next."""
    match step:
        case ("put", name, passages, collection):
            await shelf.put(name, passages, collection)
        case ("compact", masked):
            await compaction.compact(shelf.db, files, least=0, masked=masked)
        case ("rebuild",):
            await compaction.rebuild(shelf.db, files)
        case ("reopen",):
            await index.close()
            return EmbeddedIndex(shelf.db, files)
        case ("lose",):
            for file in list(files.glob("*.segment"))[:1]:
                file.unlink()
        case (what, name, *more) if name in shelf.things:
            await change(shelf, what, name, *more)
        case _:
            pass
    return index


async def change(shelf: Shelf, what: str, name: str, to: Any = None) -> None:
    match what:
        case "move":
            await shelf.change(name, collection=to)
        case "show":
            await shelf.change(name, is_live=to)
        case "rename":
            await shelf.change(name, title=to)
        case "file":
            await shelf.change(name, folder_id=to)
        case "remove":
            await shelf.remove(name)
        case "embed":
            sql = "SELECT p.id FROM passages p JOIN sources s ON s.id = p.source_id WHERE s.owner_id = $1"
            number = len(await shelf.db.fetch(sql, name))
            await shelf.embed(name, turn(shelf.rng, min(to, number), 16))
        case _:
            await unread(shelf, name)


async def unread(shelf: Shelf, name: str) -> None:
    """Mark the first passage of a source as not analysed."""

    async def body(tx: Transaction) -> None:
        sql = (
            "SELECT p.id, s.id AS source_id FROM passages p JOIN sources s ON s.id = p.source_id WHERE s.owner_id = $1"
        )
        for row in await tx.fetch(f"{sql} ORDER BY p.ordinal LIMIT 1", name):
            await tx.execute("UPDATE passages SET words = NULL WHERE id = $1", row["id"])
            await sources.mark_changed(tx, [row["source_id"]])

    await shelf.db.write(body)


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(script=st.lists(st.tuples(steps, asking), min_size=4, max_size=30), seed=st.integers(0, 2**16))
def test_after_every_step_it_answers_as_the_reference_does(
    sqlite_template: Path, script: list[tuple[tuple[Any, ...], Any]], seed: int
):
    async def run(folder: Path) -> None:
        async with shelf_of(sqlite_template, folder) as shelf:
            index = EmbeddedIndex(shelf.db, folder / "index")
            rng = np.random.default_rng(seed)
            for step, (collections, words, where, limit) in script:
                index = await do(shelf, index, folder / "index", step)
                scope = SearchScope(tuple(collections), where, (1,) if where else ())
                asked = [analyser.term_hash(word) for word in words]
                await agree(shelf.db, index, scope, asked, turn(rng, 1, 16)[0], limit)
            assert await compaction.compare(shelf.db, folder / "index") == []

    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(run(Path(folder)))


async def test_many_passages_in_files_and_in_memory_are_found_as_the_reference_finds_them(shelf: Shelf, files: Path):
    index = EmbeddedIndex(shelf.db, files)
    await shelf.fill(60, COLLECTIONS)
    await compaction.compact(shelf.db, files, least=1)
    for name in list(shelf.things)[::5]:
        await shelf.remove(name)
    await shelf.fill(20, COLLECTIONS)
    for n in range(40):
        scope = SearchScope(
            COLLECTIONS[: 1 + n % 4], "s.folder_id < $1" if n % 3 == 0 else "", (4,) if n % 3 == 0 else ()
        )
        await agree(shelf.db, index, scope, shelf.question(2 + n % 7), turn(shelf.rng, 1, 32)[0], 10)


@pytest.mark.parametrize("limit", [1, 3, 10, 200])
async def test_skipping_common_words_leaves_no_trace(shelf: Shelf, files: Path, limit: int):
    # A few rare words and many that nearly every passage has: those are never gone through, and yet counted.
    await shelf.put("common", [f"the of and to {' in' * (n % 9)} x{n}" for n in range(300)])
    await shelf.put("rare", [f"pump the {'of ' * (n % 4)} y{n % 7}" for n in range(30)])
    index = EmbeddedIndex(shelf.db, files)
    for question in (
        "the pump of y3 in",
        "x3 the of and to",
        "the the pump",
        "y1 y2 the of and",
        "in of",
        "x7 the of and to in",
    ):
        found = await index.keyword_hits(SearchScope(("base:1",)), terms(question), limit)
        assert_agrees(found, await Reference(shelf.db).words(SearchScope(("base:1",)), terms(question)), limit, EXACT)


async def test_passages_that_lack_the_rarest_word_are_found_where_they_beat_those_that_have_it(
    shelf: Shelf, files: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(bm25, "K1", 0.9)
    monkeypatch.setattr(bm25, "B", 0.4)
    await write_words(shelf, [{"rare": 1}] * 6 + [{"other": 30}] * 9 + [{"filler": 3}] * 23)
    asked = [analyser.term_hash(word) for word in ("other", "rare")]
    found = await EmbeddedIndex(shelf.db, files).keyword_hits(SearchScope(("base:1",)), asked, 5)
    assert_agrees(found, await Reference(shelf.db).words(SearchScope(("base:1",)), asked), 5, EXACT)
    assert found.ids.tolist() == [7, 8, 9, 10, 11]


async def write_words(shelf: Shelf, counted: list[dict[str, int]]) -> None:
    """Add a source with these words in its passages, each with its frequency."""
    await shelf.put("words", [""] * len(counted))

    async def body(tx: Transaction) -> None:
        for row, words in zip(await tx.fetch("SELECT id FROM passages ORDER BY id"), counted, strict=True):
            hashed = sorted((analyser.term_hash(word), number) for word, number in words.items())
            hashes, numbers = zip(*hashed, strict=True)
            packed = np.array(hashes, np.int64).tobytes() + bytes(numbers)
            await tx.execute("UPDATE passages SET words = $2 WHERE id = $1", row["id"], packed)
        await tx.execute("UPDATE sources SET version = version + 1")

    await shelf.db.write(body)


async def test_common_words_are_looked_up_and_not_gone_through(
    shelf: Shelf, files: Path, monkeypatch: pytest.MonkeyPatch
):
    await shelf.put("common", ["the of"] * 500)
    await shelf.put("rare", ["the pump valve of"] * 20)
    gone_through: list[int] = []
    gather: Callable[..., Any] = getattr(keyword_scan, "_ScanRows").gather  # noqa: B009 - private

    def count(*args: Any) -> Any:
        found = gather(*args)
        gone_through.append(len(found[0]))
        return found

    monkeypatch.setattr("almanac.search.index.embedded.keyword_scan._ScanRows.gather", count)
    found = await EmbeddedIndex(shelf.db, files).keyword_hits(SearchScope(("base:1",)), terms("the pump of valve"), 5)
    assert gone_through == [20, 20]  # not the two that all 520 have
    assert len(found.ids) == 5


async def test_equal_passages_come_by_id_however_they_are_spread(shelf: Shelf, files: Path):
    index = EmbeddedIndex(shelf.db, files)
    vector = turn(shelf.rng, 1, 32)
    for n in range(30):
        await shelf.put(f"{n}", ["a pump"], COLLECTIONS[n % 3])
        await shelf.embed(f"{n}", vector)
        if n % 8 == 0:
            await compaction.compact(shelf.db, files, least=1)
    ids = [row["id"] for row in await shelf.db.fetch("SELECT id FROM passages ORDER BY id")]
    scope = SearchScope(COLLECTIONS)
    assert (await index.keyword_hits(scope, terms("pump"), 12)).ids.tolist() == ids[:12]
    assert (await index.vector_hits(scope, MODEL, vector[0], 12)).ids.tolist() == ids[:12]


# Scopes


async def test_what_is_in_other_collections_does_not_change_a_score(shelf: Shelf, files: Path):
    await shelf.put("mine", ["a pump", "a valve and a pump", "nothing"], "base:1")
    index = EmbeddedIndex(shelf.db, files)
    before = await index.keyword_hits(SearchScope(("base:1",)), terms("pump valve"), 10)
    for n in range(20):
        await shelf.put(f"other {n}", ["pump"] * 5, f"base:{2 + n}")
    await compaction.compact(shelf.db, files, least=1)
    after = await index.keyword_hits(SearchScope(("base:1",)), terms("pump valve"), 10)
    assert (after.ids.tolist(), after.scores.tolist()) == (before.ids.tolist(), before.scores.tolist())


async def test_a_filter_changes_what_is_found_and_not_how_it_is_judged(shelf: Shelf, files: Path):
    for name, text, folder in (
        ("one", "pump", 1),
        ("two", "valve", 1),
        ("three", "pump", 2),
        ("four", "a pump's pump", 2),
    ):
        await shelf.put(name, [text], folder_id=folder)
    index = EmbeddedIndex(shelf.db, files)
    everything = await index.keyword_hits(SearchScope(("base:1",)), terms("pump"), 10)
    found = await index.keyword_hits(SearchScope(("base:1",), "s.folder_id = $1", (1,)), terms("pump"), 10)
    assert len(found.ids) == 1
    assert dict(zip(everything.ids, everything.scores, strict=True))[found.ids[0]] == found.scores[0]
    assert (found.passages, found.average, found.frequencies) == (4, everything.average, (3,))


@pytest.fixture
def touched(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """The number of rows that each search read: postings and vectors."""
    counted: list[int] = []
    searches = {module: module.search for module in (keyword_scan, vector_scan)}

    def watch(module: Any) -> None:
        def search(parts: list[segment_view.SegmentSlice], *args: Any) -> Any:
            counted.append(sum(part.size for part in parts))
            return searches[module](parts, *args)

        monkeypatch.setattr(module, "search", search)

    for module in searches:
        watch(module)
    yield counted


async def test_a_scoped_search_looks_at_no_row_of_another_collection(shelf: Shelf, files: Path, touched: list[int]):
    index = EmbeddedIndex(shelf.db, files)
    await shelf.put("mine", ["a pump"] * 7, "base:5")
    for n in range(30):
        await shelf.put(f"{n}", ["a pump"] * 10, f"base:{n % 10}" if n % 10 != 5 else "base:x")
        if n == 20:
            await compaction.compact(shelf.db, files, least=1)
    await index.keyword_hits(SearchScope(("base:5",)), terms("pump"), 5)
    await index.vector_hits(SearchScope(("base:5",)), MODEL, turn(shelf.rng, 1, 32)[0], 5)
    assert touched == [7, 7]


async def test_of_what_stands_between_two_collections_no_row_is_looked_at(
    shelf: Shelf, files: Path, touched: list[int], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(segment_view, "MIN_GAP_ROWS", 100)
    for n in range(6):
        await shelf.put(f"{n}", ["a pump"] * 40, f"base:{n}")
    await compaction.compact(shelf.db, files, least=1)
    index = EmbeddedIndex(shelf.db, files)
    for scope, number in ((("base:0", "base:5"), 80), (("base:0", "base:2"), 120), (("base:1", "base:2"), 80)):
        assert len((await index.keyword_hits(SearchScope(scope), terms("pump"), 200)).ids) == 80
        assert touched.pop() == number  # reading a narrow gap is cheaper than skipping it


async def test_a_filter_that_leaves_one_source_looks_at_its_rows_only(shelf: Shelf, files: Path, touched: list[int]):
    for n in range(30):
        await shelf.put(f"{n}", ["a pump"] * 4, folder_id=n)
    index = EmbeddedIndex(shelf.db, files)
    found = await index.keyword_hits(SearchScope(("base:1",), "s.folder_id = $1", (7,)), terms("pump"), 50)
    assert len(found.ids) == 4
    assert touched == [4]


async def test_scattered_collections_and_sources_are_looked_at_in_a_few_ranges(shelf: Shelf, files: Path):
    collections = [f"base:{n:03}" for n in range(200)]
    for n in range(400):
        await shelf.put(f"{n}", [f"pump x{n % 3}"], collections[n % 200], folder_id=n % 2)
    await compaction.compact(shelf.db, files, least=1)
    index = EmbeddedIndex(shelf.db, files)
    for scope in (
        SearchScope(tuple(collections[::2])),
        SearchScope(tuple(collections), "s.folder_id = 1 AND s.id % 3 = 0"),
        SearchScope((*collections[:50], *collections[70:150:3]), "s.id % $1 = 1", (5,)),
    ):
        await agree(shelf.db, index, scope, terms("pump x1"), turn(shelf.rng, 1, 32)[0], 400)
        parts = [view.slice(frozenset(scope.collections), None) for view in await index.views()]
        assert all(len(part.spans) <= 2 * segment_view.MAX_SPANS for part in parts if part)


async def test_a_condition_that_cannot_be_read_is_an_error_and_the_next_search_works(shelf: Shelf, files: Path):
    await shelf.put("one", ["a pump"])
    index = EmbeddedIndex(shelf.db, files)
    with pytest.raises(StatementRejected):
        await index.keyword_hits(SearchScope(("base:1",), "s.nothing = 1"), terms("pump"), 5)
    assert len((await index.keyword_hits(SearchScope(("base:1",), "s.folder_id = 0"), terms("pump"), 5)).ids) == 1


async def test_conditions_that_nobody_waits_for_any_more_keep_no_search_waiting(shelf: Shelf, files: Path):
    await shelf.put("one", ["a pump"])
    index = EmbeddedIndex(shelf.db, files)
    counting = "WITH RECURSIVE c (n) AS (SELECT {} UNION ALL SELECT n + 1 FROM c WHERE n < 60000000)"
    lasting = f"({counting} SELECT max(n) FROM c) > 0"
    for number in range(6):  # more than there are threads to read
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.2):
                await index.keyword_hits(SearchScope(("base:1",), lasting.format(number)), terms("pump"), 5)
    await shelf.put("two", ["another pump"])
    async with asyncio.timeout(4):
        assert len((await index.keyword_hits(SearchScope(("base:1",), "s.folder_id = 0"), terms("pump"), 5)).ids) == 2


async def test_nothing_is_found_where_there_is_nothing(shelf: Shelf, files: Path):
    index = EmbeddedIndex(shelf.db, files)
    found = await index.keyword_hits(SearchScope(("base:1",)), terms("pump"), 5)
    assert (len(found.ids), found.passages, found.average, found.frequencies) == (0, 0, 0.0, (0,))
    assert len((await index.vector_hits(SearchScope(()), MODEL, turn(shelf.rng, 1, 32)[0], 5)).ids) == 0


# Vectors


async def test_vectors_of_another_model_or_size_are_not_compared(shelf: Shelf, files: Path):
    await shelf.put("one", ["a pump", "a valve"])
    await shelf.embed("one", turn(shelf.rng, 2, 32))
    await shelf.embed("one", turn(shelf.rng, 1, 24), "another model")
    index = EmbeddedIndex(shelf.db, files)
    for _ in range(2):
        for model, size, number in ((MODEL, 32, 2), ("another model", 24, 1), (MODEL, 24, 0), ("none", 32, 0)):
            assert (
                len((await index.vector_hits(SearchScope(("base:1",)), model, turn(shelf.rng, 1, size)[0], 5)).ids)
                == number
            )
        assert (await index.coverage(("base:1",), "another model")).embedded == 1
        await compaction.compact(shelf.db, files, least=1)


async def test_a_vector_that_is_no_direction_is_found_last_and_harms_no_search(shelf: Shelf, files: Path):
    await shelf.put("one", ["a", "b", "c"])
    vectors = turn(shelf.rng, 3, 32)
    await shelf.embed("one", vectors)
    bad = np.full(32, np.nan, np.float16).tobytes()
    ids = [row["id"] for row in await shelf.db.fetch("SELECT id FROM passages ORDER BY id")]

    async def body(tx: Transaction) -> None:
        await tx.execute("UPDATE vectors SET vector = $1 WHERE passage_id = $2", bad, ids[0])
        await tx.execute("UPDATE vectors SET vector = $1 WHERE passage_id = $2", bytes(64), ids[1])
        await tx.execute("UPDATE sources SET version = version + 1")

    await shelf.db.write(body)
    found = await EmbeddedIndex(shelf.db, files).vector_hits(SearchScope(("base:1",)), MODEL, vectors[2], 5)
    assert found.ids.tolist() == [ids[2], ids[0], ids[1]]
    assert found.scores[1:].tolist() == [0.0, 0.0]


@pytest.mark.parametrize("is_random", [False, True])
async def test_with_sketches_nearly_all_of_the_nearest_are_found(
    shelf: Shelf, files: Path, monkeypatch: pytest.MonkeyPatch, is_random: bool
):
    # Of vectors without any order, sketches tell next to nothing: that is noticed, and all are compared.
    monkeypatch.setattr(vector_scan, "MAX_EXACT_VECTORS", 100)
    monkeypatch.setattr(vector_scan, "MIN_EXACT_VECTORS", 60)
    for name, few in (
        ("SAMPLE_DISTANCES", 200),
        ("VECTORS_PER_BLOCK", 70),
        ("MAX_THREADS", 3),
        ("VECTORS_PER_COPY", 7),
    ):
        monkeypatch.setattr(vector_scan, name, few)
    monkeypatch.setattr(quantisation, "MIN_SKETCHED_VECTORS", 50)
    compared: list[int] = []
    rescore: Callable[..., Any] = getattr(vector_scan, "_rescore")  # noqa: B009 - private, to count the steps before it

    def watch(blocks: Any, chosen: Any, reached: Any, *args: Any) -> Any:
        compared.append(sum(map(len, reached)))
        return rescore(blocks, chosen, reached, *args)

    monkeypatch.setattr(vector_scan, "_rescore", watch)
    for n in range(12):
        await shelf.put(f"{n}", ["a pump"] * 100, f"base:{n % 3}", folder_id=n)
        vectors = shelf.rng.standard_normal((100, 96)).astype(np.float32) if is_random else turn(shelf.rng, 100, 96)
        await shelf.embed(f"{n}", vectors / np.linalg.norm(vectors, axis=1, keepdims=True))
        if n == 8:
            await compaction.compact(shelf.db, files, least=1)
    index, kept = EmbeddedIndex(shelf.db, files), 0
    scope = SearchScope(("base:0", "base:1", "base:2"), "s.folder_id <> 3")
    for vector in turn(shelf.rng, 30, 96):
        found = await index.vector_hits(scope, MODEL, vector, 10)
        expected = await Reference(shelf.db).vectors(scope, MODEL, vector, 10)
        kept += len(set(found.ids.tolist()) & set(expected.ids.tolist()))
    assert kept >= 0.98 * 300
    assert bool(np.median(compared) > 1000) == is_random


async def test_however_many_threads_compare_the_same_is_found(
    shelf: Shelf, files: Path, monkeypatch: pytest.MonkeyPatch
):
    for n in range(3):
        await shelf.put(f"{n}", ["a pump"] * 100, "base:1")
        await shelf.embed(f"{n}", turn(shelf.rng, 100, 96))
        if n == 1:
            await compaction.compact(shelf.db, files, least=1)
    index, vector, threads = EmbeddedIndex(shelf.db, files), turn(shelf.rng, 1, 96)[0], set[int]()
    products: Callable[..., Any] = getattr(vector_scan, "_scores")  # noqa: B009 - private, to record the thread
    meeting = threading.Barrier(1)

    def watch(*args: Any, **more: Any) -> Any:
        if threading.get_ident() not in threads:
            threads.add(threading.get_ident())
            meeting.wait(10)
        return products(*args, **more)

    monkeypatch.setattr(vector_scan, "_scores", watch)
    monkeypatch.setattr(vector_scan, "MAX_THREADS", 3)
    alone = await index.vector_hits(SearchScope(("base:1",)), MODEL, vector, 50)
    assert len(threads) == 1  # there are two segments, which are small
    monkeypatch.setattr(vector_scan, "VECTORS_PER_BLOCK", 20)
    threads.clear()
    meeting = threading.Barrier(3)
    together = await index.vector_hits(SearchScope(("base:1",)), MODEL, vector, 50)
    assert len(threads) == 3
    assert (together.ids.tolist(), together.scores.tolist()) == (alone.ids.tolist(), alone.scores.tolist())


@pytest.mark.parametrize("is_here", [False, True])
async def test_a_search_fails_in_whichever_thread_comparing_does(
    shelf: Shelf, files: Path, monkeypatch: pytest.MonkeyPatch, is_here: bool
):
    await shelf.put("one", ["a pump"] * 100, "base:1")
    await shelf.embed("one", turn(shelf.rng, 100, 96))
    here, met, meeting = threading.get_ident(), set[int](), threading.Barrier(2)

    def fail(*args: Any, **more: Any) -> Any:
        if threading.get_ident() not in met:
            met.add(threading.get_ident())
            meeting.wait(10)
        if (threading.get_ident() == here) == is_here:
            raise MemoryError
        return np.zeros(20, np.float32)

    for name, value in (("_scores", fail), ("MAX_THREADS", 2), ("VECTORS_PER_BLOCK", 20)):
        monkeypatch.setattr(vector_scan, name, value)
    with pytest.raises(MemoryError):
        await EmbeddedIndex(shelf.db, files).vector_hits(SearchScope(("base:1",)), MODEL, turn(shelf.rng, 1, 96)[0], 5)


async def test_of_the_nearest_as_many_are_found_as_are_asked_for_whichever_a_filter_leaves(
    shelf: Shelf, files: Path, monkeypatch: pytest.MonkeyPatch
):
    # A filter that matches the sampling step: it keeps nearly all sampled vectors and none of the others.
    monkeypatch.setattr(vector_scan, "MAX_EXACT_VECTORS", 20)
    monkeypatch.setattr(vector_scan, "MIN_EXACT_VECTORS", 60)
    monkeypatch.setattr(vector_scan, "MAX_EXACT_SHARE", 1.0)
    monkeypatch.setattr(vector_scan, "SAMPLE_DISTANCES", 45)
    monkeypatch.setattr(quantisation, "MIN_SKETCHED_VECTORS", 50)
    for n in range(300):
        await shelf.put(f"{n}", ["a pump"], "base:1", folder_id=n % 7)
        await shelf.embed(f"{n}", turn(shelf.rng, 1, 96))
    await compaction.compact(shelf.db, files, least=1)
    scope = SearchScope(("base:1",), "s.folder_id = 0")
    found = await EmbeddedIndex(shelf.db, files).vector_hits(scope, MODEL, turn(shelf.rng, 1, 96)[0], 43)
    assert len(found.ids) == 43


async def test_a_passage_is_looked_up_in_lists_as_they_are(shelf: Shelf, files: Path):
    # Rows of another type would have numpy convert every list it looks in, however long.
    await shelf.put("one", ["a pump", "a valve"], "base:1")
    (view,) = await EmbeddedIndex(shelf.db, files).views()
    segment = view.segment
    which, rows = view.locate(segment.passages[::-1], np.repeat(segment.sources, 2))
    assert (which.tolist(), rows.tolist(), rows.dtype) == ([0, 1], [1, 0], segment.rows.dtype)
    assert not len(view.locate(segment.passages, segment.sources[[0, 0]] + 1)[0])


async def test_a_passage_that_a_file_does_not_have_yet_is_not_looked_for_beyond_its_end(shelf: Shelf, files: Path):
    # The last source of the file was replaced: its passage has a higher id than any, and is found missing at once;
    # those of the other source are still being looked for then.
    await shelf.put("one", ["a pump", "a valve", "a lamp"], "base:1")
    await shelf.put("two", ["a bearing"], "base:1")
    await compaction.compact(shelf.db, files, least=1)
    await shelf.put("two", ["a pump"], "base:1")
    vectors = turn(shelf.rng, 4, 32)
    await shelf.embed("one", vectors[:3])
    await shelf.embed("two", vectors[3:])
    await agree(shelf.db, EmbeddedIndex(shelf.db, files), SearchScope(("base:1",)), terms("pump"), vectors[0])


# Freshness


async def test_what_was_written_is_found_by_the_very_next_search(shelf: Shelf, files: Path):
    index = EmbeddedIndex(shelf.db, files)
    for n in range(20):
        await shelf.put("one", [WORDS[n % 12]])
        assert len((await index.keyword_hits(SearchScope(("base:1",)), terms(WORDS[n % 12]), 5)).ids) == 1
        assert len((await index.keyword_hits(SearchScope(("base:1",)), terms(WORDS[n % 12 - 1]), 5)).ids) == 0


async def test_a_search_reads_nothing_where_nothing_was_committed(
    shelf: Shelf, files: Path, monkeypatch: pytest.MonkeyPatch
):
    await shelf.put("one", ["a pump"])
    index = EmbeddedIndex(shelf.db, files)
    await index.keyword_hits(SearchScope(("base:1",)), terms("pump"), 5)

    async def refuse(*_: Any) -> Any:
        raise AssertionError("nothing was written")

    monkeypatch.setattr(change_log, "read_state", refuse)
    assert len((await index.keyword_hits(SearchScope(("base:1",)), terms("pump"), 5)).ids) == 1


async def test_a_commit_of_something_else_costs_a_look_and_no_more(
    shelf: Shelf, files: Path, monkeypatch: pytest.MonkeyPatch
):
    await shelf.put("one", ["a pump"])
    index = EmbeddedIndex(shelf.db, files)
    await index.keyword_hits(SearchScope(("base:1",)), terms("pump"), 5)
    await shelf.db.write(lambda tx: tx.execute("UPDATE orgs SET name = 'another'"))

    async def refuse(*_: Any) -> Any:
        raise AssertionError("no source was changed")

    monkeypatch.setattr(change_log, "read_changes", refuse)
    assert len((await index.keyword_hits(SearchScope(("base:1",)), terms("pump"), 5)).ids) == 1


async def test_a_long_absence_is_made_up_for_in_portions(shelf: Shelf, files: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(embedded_index, "CHANGES_AT_ONCE", 7)
    await shelf.fill(40, COLLECTIONS, per=2)
    index = EmbeddedIndex(shelf.db, files)
    await agree(shelf.db, index, SearchScope(COLLECTIONS), shelf.question(4), turn(shelf.rng, 1, 32)[0])
    assert len(await index.views()) < 10


async def test_many_small_changes_leave_few_segments(shelf: Shelf, files: Path):
    index = EmbeddedIndex(shelf.db, files)
    for n in range(120):
        await shelf.put(f"{n}", ["a pump"])
        found = await index.keyword_hits(SearchScope(("base:1",)), terms("pump"), 200)
        assert len(found.ids) == n + 1
    assert len(await index.views()) <= 6


async def test_callers_at_once_all_see_what_was_written_before_they_asked(shelf: Shelf, files: Path):
    index = EmbeddedIndex(shelf.db, files)

    async def write_and_find(n: int) -> None:
        for round in range(5):
            word = WORDS[n] + WORDS[round]
            await shelf.put(f"{n}", [word] * 3, COLLECTIONS[n % 4])
            scope = SearchScope(COLLECTIONS, "s.folder_id = 0")
            found, near = await asyncio.gather(
                index.keyword_hits(scope, terms(word), 5), index.vector_hits(scope, MODEL, turn(shelf.rng, 1, 32)[0], 5)
            )
            assert len(found.ids) == 3
            assert len(near.ids) == 0

    await asyncio.gather(*(write_and_find(n) for n in range(8)))


async def test_files_that_are_replaced_under_a_reader_are_followed_and_the_old_ones_let_go(shelf: Shelf, files: Path):
    index = EmbeddedIndex(shelf.db, files)
    for n in range(12):
        await shelf.put(f"{n}", [f"a pump x{n}"], COLLECTIONS[n % 4])
        old = [weakref.ref(view.segment) for view in await index.views()]
        await (
            compaction.rebuild(shelf.db, files)
            if n % 3 == 0
            else compaction.compact(shelf.db, files, masked=0, least=1)
        )
        found = await index.keyword_hits(SearchScope(COLLECTIONS), terms("pump"), 50)
        assert len(found.ids) == n + 1
        async with asyncio.timeout(30):
            while n % 3 == 0 and any(each() for each in old):
                await asyncio.sleep(0)
                await index.views()


async def test_a_reader_that_slept_through_pruning_misses_no_removal(shelf: Shelf, files: Path):
    await shelf.put("one", ["a pump"])
    await shelf.put("two", ["a pump"])
    awake, asleep = EmbeddedIndex(shelf.db, files), EmbeddedIndex(shelf.db, files)
    assert len((await asleep.keyword_hits(SearchScope(COLLECTIONS), terms("pump"), 5)).ids) == 2
    await shelf.remove("one")
    await shelf.remove("two")
    await compaction.compact(shelf.db, files, least=1)
    assert await shelf.db.fetch("SELECT * FROM changes") == []
    for index in (awake, asleep):
        assert len((await index.keyword_hits(SearchScope(COLLECTIONS), terms("pump"), 5)).ids) == 0


async def test_a_file_that_goes_while_it_is_being_opened_is_looked_up_again(
    shelf: Shelf, files: Path, monkeypatch: pytest.MonkeyPatch
):
    await shelf.put("one", ["a pump"])
    await compaction.compact(shelf.db, files, least=1)
    read, listed = segments.read, change_log.files
    replaced = False

    async def replace_after(db: Database) -> list[change_log.IndexFile]:
        nonlocal replaced
        found = await listed(db)
        if not replaced:
            replaced = True
            await compaction.rebuild(db, files)
        return found

    monkeypatch.setattr(embedded_index.change_log, "files", replace_after)
    with capture_logs() as logs:
        index = EmbeddedIndex(shelf.db, files)
        assert len((await index.keyword_hits(SearchScope(COLLECTIONS), terms("pump"), 5)).ids) == 1
    assert logs == []
    assert segments.read is read


# Lost files


def cut(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:-100])


def empty(file: Path) -> None:
    file.write_bytes(b"")


def flip(file: Path) -> None:
    stored = bytearray(file.read_bytes())
    stored[len(stored) // 2] ^= 1
    file.write_bytes(stored)


@pytest.mark.parametrize("harm", [Path.unlink, cut, empty, flip])
async def test_a_lost_file_costs_no_answer_and_is_told_of_and_made_anew(
    shelf: Shelf, files: Path, harm: Callable[[Path], None]
):
    await shelf.fill(20, COLLECTIONS)
    await compaction.compact(shelf.db, files, least=1)
    await shelf.put("0", ["a pump"])
    (file,) = files.iterdir()
    harm(file)
    with capture_logs() as logs:
        index = EmbeddedIndex(shelf.db, files)
        await agree(shelf.db, index, SearchScope(COLLECTIONS), shelf.question(5), turn(shelf.rng, 1, 32)[0])
    assert [(each["log_level"], each["file"]) for each in logs] == [("warning", file.name)]
    assert await compaction.compact(shelf.db, files)
    with capture_logs() as logs:
        await agree(shelf.db, index, SearchScope(COLLECTIONS), shelf.question(5), turn(shelf.rng, 1, 32)[0])
        assert await compaction.compare(shelf.db, files) == []
    assert logs == []
    assert len(list(files.iterdir())) == 1


# Two processes


WRITER = """
import asyncio, sys
from pathlib import Path
from almanac.db.connect import connect
from almanac.search.index.embedded import compaction
from tests.search.shelf import Shelf

async def main(url, org, files):
    db = await connect(url)
    shelf = Shelf(db, org)
    for n in range(40):
        await shelf.put(f"{n % 10}", [f"pump {'bcdfghjklm'[n % 10]}{'zkbd'[n // 10]}qx"] * 3)
        print(n, flush=True)
        sys.stdin.readline()
        if n % 5 == 4:
            await compaction.compact(db, Path(files), least=1)
    await db.close()

asyncio.run(main(*sys.argv[1:]))
"""


async def test_what_another_process_writes_and_compacts_is_found_at_once(shelf: Shelf, files: Path, tmp_path: Path):
    arguments = [sys.executable, "-c", WRITER, f"sqlite:///{tmp_path / 'almanac.db'}", shelf.org_id, str(files)]
    index = EmbeddedIndex(shelf.db, files)
    root = Path(__file__).parents[4]
    with subprocess.Popen(arguments, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=root) as writer:
        assert writer.stdout is not None
        assert writer.stdin is not None
        for n, line in zip(range(40), writer.stdout, strict=False):
            assert int(line) == n
            found = await index.keyword_hits(
                SearchScope(("base:1",)), terms(f"{'bcdfghjklm'[n % 10]}{'zkbd'[n // 10]}qx"), 5
            )
            everything = await index.keyword_hits(SearchScope(("base:1",)), terms("pump"), 50)
            assert (len(found.ids), len(everything.ids)) == (3, 3 * min(n + 1, 10))
            writer.stdin.write("\n")
            writer.stdin.flush()
        assert writer.stdout.read() == ""
    assert writer.returncode == 0
