"""The index in PostgreSQL against the naive reference: results, scores, and maintained tables."""

from collections.abc import AsyncIterator, Callable
from typing import Any

import numpy as np
import pytest

from almanac.core import clock
from almanac.core.database import Database
from almanac.db.connect import connect
from almanac.search.index import tables
from almanac.search.index.postgres import postgres_index, term_counts
from almanac.search.index.postgres.postgres_index import PostgresIndex
from almanac.search.index.postgres.term_counts import PostingChoice, choose_postings
from almanac.search.index.protocol import SearchScope
from tests.conftest import Cluster
from tests.search.reference import Reference, assert_agrees, assert_weighs
from tests.search.shelf import MODEL, Shelf, open_shelf, terms, turn, write

ONE = SearchScope(("base:1",))
SOME = ("base:1", "base:2", "base:3")


@pytest.fixture
async def db(postgres_cluster: Cluster) -> AsyncIterator[Database]:
    url = postgres_cluster.take()
    db = await connect(url)
    yield db
    await db.close()
    postgres_cluster.drop(url)


@pytest.fixture
async def shelf(db: Database) -> Shelf:
    return await open_shelf(db)


@pytest.fixture
def narrow(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lower the limits, so that a few thousand passages are a large scope."""
    monkeypatch.setattr(postgres_index, "MAX_CANDIDATES", 300)
    monkeypatch.setattr(postgres_index, "MIN_CANDIDATES", 75)
    monkeypatch.setattr(postgres_index, "MAX_FILTERED_PASSAGES", 300)
    monkeypatch.setattr(postgres_index, "MAX_SCANNED_VECTORS", 500)
    monkeypatch.setattr(term_counts, "MIN_COUNTED_PASSAGES", 20)


async def assert_right(db: Database, scope: SearchScope, asked: list[int], vector: np.ndarray | None = None) -> None:
    index, reference = PostgresIndex(db), Reference(db)
    everything = await reference.words(scope, asked)
    found = await index.keyword_hits(scope, asked, 10)
    assert_agrees(found, everything, 10, 1e-5)
    assert (found.passages, found.frequencies) == (everything.passages, everything.frequencies)
    assert found.average == pytest.approx(everything.average)
    if vector is not None:
        near = await index.vector_hits(scope, MODEL, vector, 10)
        assert_agrees(near, await reference.vectors(scope, MODEL, vector), 10, 1e-3)
        assert_weighs(await index.keyword_scores(near, asked, found), near, everything)
    assert await index.coverage(scope.collections, MODEL) == await reference.coverage(scope.collections, MODEL)


async def test_an_empty_database_has_nothing(db: Database):
    index = PostgresIndex(db)
    found = await index.keyword_hits(ONE, terms("pump valve"), 10)
    assert (found.ids.tolist(), found.passages, found.average, found.frequencies) == ([], 0, 0.0, (0, 0))
    assert (await index.vector_hits(ONE, MODEL, turn(np.random.default_rng(), 1, 8)[0], 10)).ids.tolist() == []
    coverage = await index.coverage(("base:1",), MODEL)
    assert (coverage.passages, coverage.embedded) == (0, 0)
    await index.close()


async def test_nothing_is_asked_for_and_nothing_is_found(shelf: Shelf):
    await shelf.put("a", ["pump valve"])
    assert (await PostgresIndex(shelf.db).keyword_hits(ONE, [], 10)).ids.tolist() == []
    assert (await PostgresIndex(shelf.db).keyword_hits(SearchScope(()), terms("pump"), 10)).ids.tolist() == []


async def test_a_term_that_is_asked_for_twice_counts_twice(shelf: Shelf):
    await shelf.put("a", ["pump valve", "valve pump pump", "pump", "something else"])
    await assert_right(shelf.db, ONE, terms("pump valve pump"))
    once, twice = [
        await PostgresIndex(shelf.db).keyword_hits(ONE, terms(text), 10) for text in ("valve", "valve valve")
    ]
    assert twice.scores == pytest.approx(2 * once.scores)
    assert twice.frequencies == 2 * once.frequencies


async def test_equals_come_in_the_order_of_their_ids(shelf: Shelf):
    vector = turn(shelf.rng, 1, 8)
    for n in range(20):
        await shelf.put(f"{n}", ["pump valve"])
        await shelf.embed(f"{n}", vector)
    index = PostgresIndex(shelf.db)
    ids = [row["id"] for row in await shelf.db.fetch("SELECT id FROM passages ORDER BY id")]
    assert (await index.keyword_hits(ONE, terms("pump"), 7)).ids.tolist() == ids[:7]
    assert (await index.vector_hits(ONE, MODEL, turn(shelf.rng, 1, 8)[0], 7)).ids.tolist() == ids[:7]


async def test_vectors_of_another_model_or_length_and_those_of_nothing_do_no_harm(shelf: Shelf):
    await shelf.put("a", ["one", "two", "three"])
    made = turn(shelf.rng, 3, 8)
    made[2] = 0
    await shelf.embed("a", made)
    await shelf.embed("a", turn(shelf.rng, 3, 8), model="another")
    await shelf.put("b", ["four"])
    await shelf.embed("b", turn(shelf.rng, 1, 12))
    found = await PostgresIndex(shelf.db).vector_hits(ONE, MODEL, made[0], 10)
    assert_agrees(found, await Reference(shelf.db).vectors(ONE, MODEL, made[0]), 10, 1e-3)
    assert len(found.ids) == 3


async def test_a_model_s_name_is_only_ever_a_name(shelf: Shelf):
    await shelf.put("a", ["one"])
    strange = "o'; DROP TABLE vectors; -- {where} $1 \\"
    await shelf.embed("a", turn(shelf.rng, 1, 8), model=strange)
    assert len((await PostgresIndex(shelf.db).vector_hits(ONE, strange, turn(shelf.rng, 1, 8)[0], 10)).ids) == 1


@pytest.mark.parametrize("seed", range(4))
async def test_whatever_happens_answers_are_those_of_the_reference(db: Database, seed: int):
    shelf = await open_shelf(db, seed)
    shelf.words = shelf.words[:60]
    rng = shelf.rng

    async def put() -> None:
        texts = [write(rng, shelf.words, int(rng.integers(0, 30))) for _ in range(rng.integers(0, 6))]
        title = write(rng, shelf.words, 2)
        await shelf.put(
            str(rng.integers(12)), texts, str(rng.choice(SOME)), title=title, folder_id=int(rng.integers(3))
        )

    def changed(**about: Callable[[], object]) -> Callable[[str], object]:
        return lambda name: shelf.change(name, **{key: value() for key, value in about.items()})

    doings: list[Callable[[str], object]] = [
        changed(collection=lambda: str(rng.choice(SOME))),
        changed(is_live=lambda: bool(rng.integers(2))),
        changed(title=lambda: write(rng, shelf.words, 3)),
        changed(title=lambda: write(rng, shelf.words, 3), collection=lambda: str(rng.choice(SOME))),
        shelf.embed,
        shelf.embed,
        shelf.remove,
    ]
    for _ in range(30):
        await put()
        name = str(rng.choice(list(shelf.things)))
        await doings[int(rng.integers(len(doings)))](name)  # pyright: ignore
        names = tuple(sorted({str(name) for name in rng.choice(SOME, 2)}))
        scope = (
            SearchScope(names, "s.folder_id < $1 AND s.is_live = $2", (2, 1))
            if rng.random() < 0.5
            else SearchScope(names)
        )
        await assert_right(db, scope, shelf.question(4), turn(rng, 1, 32)[0])
    assert await postgres_index.compare(db) == []


async def test_a_condition_changes_what_is_found_and_not_how_it_is_judged(shelf: Shelf):
    await shelf.fill(40, SOME)
    index, asked = PostgresIndex(shelf.db), shelf.question(5)
    scope = SearchScope(SOME, "s.folder_id = $2 OR s.folder_id = $1", (3, 5))
    everything, some = (
        await index.keyword_hits(SearchScope(SOME), asked, 1000),
        await index.keyword_hits(scope, asked, 1000),
    )
    assert 0 < len(some.ids) < len(everything.ids)
    scores = dict(zip(everything.ids.tolist(), everything.scores.tolist(), strict=True))
    assert [scores[id] for id in some.ids.tolist()] == some.scores.tolist()
    assert (some.passages, some.average, some.frequencies) == (
        everything.passages,
        everything.average,
        everything.frequencies,
    )
    await assert_right(shelf.db, scope, asked, turn(shelf.rng, 1, 32)[0])


async def test_other_collections_make_no_difference(shelf: Shelf):
    await shelf.fill(20, ["base:1"])
    asked, index = shelf.question(6), PostgresIndex(shelf.db)
    before = await index.keyword_hits(ONE, asked, 50)
    for n in range(20):
        await shelf.put(f"other {n}", [write(shelf.rng, shelf.words, 60) for _ in range(10)], f"other:{n}")
    after = await index.keyword_hits(ONE, asked, 50)
    assert after.ids.tolist() == before.ids.tolist()
    assert after.scores.tolist() == before.scores.tolist()
    keys = tables.short_hashes(np.array(asked)) ^ tables.collection_salt("base:1")
    sql = "SELECT DISTINCT s.collection FROM matching($1, 9) m JOIN sources s ON s.id = m.source_id"
    rows = await shelf.db.fetch(sql, keys.tolist())  # pyright: ignore
    assert [row["collection"] for row in rows] == ["base:1"]  # lists have no other readers, so none grows longer


async def test_what_cannot_be_among_the_best_is_not_read(shelf: Shelf, monkeypatch: pytest.MonkeyPatch):
    texts = ["common word"] * 900 + ["common rare"] * 8 + ["common odd"] * 4 + ["rare odd common"]
    await shelf.put("a", texts)
    index, read = PostgresIndex(shelf.db), list[int]()
    scan = shelf.db.scan

    async def scanned(sql: str, *args: Any) -> Any:
        rows = await scan(sql, *args)
        read.append(len(rows) if "words" in sql else 0)
        return rows

    monkeypatch.setattr(shelf.db, "scan", scanned)
    asked = terms("a rare and odd and common thing")
    found = await index.keyword_hits(ONE, asked, 5)
    everything = await Reference(shelf.db).words(ONE, asked)
    assert_agrees(found, everything, 5, 1e-5)
    assert found.frequencies == everything.frequencies and max(found.frequencies) == 913
    assert sum(read) == postgres_index.FIRST_READ_FACTOR * 5


async def test_the_best_are_the_same_however_few_are_read_at_first(shelf: Shelf, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(postgres_index, "FIRST_READ_FACTOR", 1)
    await shelf.fill(40, SOME)
    index, reference, scope = PostgresIndex(shelf.db), Reference(shelf.db), SearchScope(SOME)
    for length in (1, 2, 3, 4, 6, 8, 12):
        asked = shelf.question(length)
        everything = await reference.words(scope, asked)
        for limit in (1, 3, 20):
            assert_agrees(await index.keyword_hits(scope, asked, limit), everything, limit, 1e-5)
    assert not len((await index.keyword_hits(scope, shelf.question(4), 0)).ids)


async def overlap(shelf: Shelf, scope: SearchScope) -> float:
    """The mean share of the ten best that are found, over some questions. Found passages have exact scores."""
    index, reference, found_of = PostgresIndex(shelf.db), Reference(shelf.db), list[float]()
    for length in (1, 2, 3, 4, 6, 8, 10, 12):
        asked = shelf.question(length, skipped=20)
        everything, found = await reference.words(scope, asked), await index.keyword_hits(scope, asked, 10)
        scores = dict(zip(everything.ids.tolist(), everything.scores.tolist(), strict=True))
        assert found.scores.tolist() == pytest.approx([scores[id] for id in found.ids.tolist()], rel=1e-5)
        assert found.frequencies == everything.frequencies
        best = set(everything.ids[:10].tolist())
        found_of.append(len(best & set(found.ids.tolist())) / len(best) if best else 1.0)
    return float(np.mean(found_of))


@pytest.mark.usefixtures("narrow")
@pytest.mark.parametrize("is_counted", [True, False])
async def test_in_a_large_scope_hardly_any_of_the_best_are_missed(shelf: Shelf, is_counted: bool):
    await shelf.fill(150, SOME)
    if is_counted:
        await postgres_index.maintain(shelf.db)
    assert await overlap(shelf, SearchScope(SOME)) >= 0.95


@pytest.mark.usefixtures("narrow")
@pytest.mark.parametrize("folders", [1, 5])
async def test_a_condition_in_a_large_scope_does_not_hide_what_it_leaves(shelf: Shelf, folders: int):
    await shelf.fill(150, SOME)
    await postgres_index.maintain(shelf.db)
    assert await overlap(shelf, SearchScope(SOME, "s.folder_id < $1", (folders,))) >= 0.95


async def test_a_great_many_collections_are_searched_as_one(shelf: Shelf, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(postgres_index, "COLLECTIONS_AT_ONCE", 8)
    names = [f"base:{n}" for n in range(40)]
    await shelf.fill(40, names, per=3)
    await assert_right(shelf.db, SearchScope(tuple(names)), shelf.question(5))
    await assert_right(shelf.db, SearchScope(tuple(names), "s.folder_id < $1", (3,)), shelf.question(12))


@pytest.mark.usefixtures("narrow")
async def test_what_was_counted_is_taken_to_grow_with_the_collection(shelf: Shelf):
    fill = " filling" * 80  # a passage of this length stands for itself
    await shelf.put("a", ["common rare" + fill] * 2 + ["common word" + fill] * 598)
    assert await term_counts.count(shelf.db) == ["base:1"]
    await shelf.put("b", ["common other" + fill] * 55)
    assert await term_counts.count(shelf.db) == []  # not by a tenth
    found = await PostgresIndex(shelf.db).keyword_hits(ONE, terms("common rare word"), 5)
    assert (found.passages, found.frequencies) == (655, (655, 2, 653))  # "word" was in 598 of 600
    await shelf.put("c", ["common other" + fill] * 10)
    assert await term_counts.count(shelf.db) == ["base:1"]
    found = await PostgresIndex(shelf.db).keyword_hits(ONE, terms("common rare word"), 5)
    assert (found.passages, found.frequencies) == (665, (665, 2, 598))


@pytest.mark.usefixtures("narrow")
async def test_a_collection_is_counted_anew_after_a_day(shelf: Shelf, monkeypatch: pytest.MonkeyPatch):
    await shelf.put("a", ["common"] * 200)
    assert await term_counts.count(shelf.db) == ["base:1"]
    later = clock.now() + clock.DAY + clock.SECOND
    monkeypatch.setattr(clock, "now", lambda: later)
    assert await term_counts.count(shelf.db) == ["base:1"]


async def test_small_collections_are_not_counted(shelf: Shelf):
    await shelf.put("a", ["common"] * (term_counts.MIN_COUNTED_PASSAGES - 1))
    assert await postgres_index.maintain(shelf.db) == []


def test_the_rarest_terms_lead_and_common_ones_only_to_where_they_stand_often():
    lengths = [np.array([900, 40, 5000, 100]), np.array([80, 4, 700, 20]), np.array([5, 0, 60, 2])]
    assert choose_postings(lengths, 1000, 0) == PostingChoice([(0, 1), (0, 3), (1, 0), (1, 2)])
    assert choose_postings(lengths, 200, 0) == PostingChoice([(0, 1), (0, 3), (2, 0)])
    assert choose_postings(lengths, 200, 210) == PostingChoice([(0, 1), (0, 3), (1, 0)])


def test_where_too_little_is_found_longer_lists_are_followed_and_of_the_longest_some():
    assert choose_postings([np.array([19]), np.array([3])], 10, 15) == PostingChoice([(0, 0)])
    assert choose_postings([np.array([500]), np.array([3])], 10, 20) == PostingChoice([(1, 0)], ((0, 0),))
    assert choose_postings([np.array([500]), np.array([30])], 10, 20) == PostingChoice([], ((1, 0),))
    assert choose_postings([np.array([900, 500, 5])], 10, 20) == PostingChoice(
        [(0, 2)], ((0, 1),)
    )  # the rarest that is too long


@pytest.mark.usefixtures("narrow")
@pytest.mark.parametrize("is_counted", [True, False])
@pytest.mark.parametrize("number", [500, 900])  # of which some have to do
async def test_a_common_term_that_never_stands_often_leads_to_enough_all_the_same(
    shelf: Shelf, is_counted: bool, number: int
):
    long = " ".join(f"y{n}" for n in range(200))
    await shelf.put("a", [f"pump x{n} {long}" for n in range(number)] + ["pump pump"] * 3)
    if is_counted:
        await postgres_index.maintain(shelf.db)
    found = await PostgresIndex(shelf.db).keyword_hits(ONE, terms("pump"), 100)
    assert_agrees(found, await Reference(shelf.db).words(ONE, terms("pump")), 100, 1e-5)


@pytest.mark.parametrize("is_large", [True, False])
async def test_what_a_condition_leaves_is_looked_up(shelf: Shelf, monkeypatch: pytest.MonkeyPatch, is_large: bool):
    await shelf.fill(60, SOME)
    if is_large:
        monkeypatch.setattr(postgres_index, "MAX_CANDIDATES", 10)
        monkeypatch.setattr(postgres_index, "MAX_FILTERED_PASSAGES", 20)
    index = PostgresIndex(shelf.db)
    # A condition that is true only if lookups are cheap.
    looked_up = SearchScope(SOME, "current_setting('random_page_cost') = $1", ("1.1",))
    vector = turn(shelf.rng, 1, 32)[0]
    assert len((await index.vector_hits(looked_up, MODEL, vector, 10)).ids) == 10
    asked = shelf.question(3)
    found = (await index.keyword_hits(looked_up, asked, 10)).ids.tolist()
    assert found == (await index.keyword_hits(SearchScope(SOME), asked, 10)).ids.tolist() != []


@pytest.mark.usefixtures("narrow")
async def test_a_large_scope_is_searched_through_a_graph_once_there_is_one(shelf: Shelf):
    await shelf.fill(120, SOME, dimension=48)
    index, reference = PostgresIndex(shelf.db), Reference(shelf.db)
    [name] = [each for each in await postgres_index.maintain(shelf.db) if each.startswith("vectors_near_")]
    assert await postgres_index.maintain(shelf.db) == []
    recalls: list[float] = []
    for scope in (SearchScope(SOME), SearchScope(SOME, "s.folder_id <> $1", (2,))):
        for vector in turn(shelf.rng, 15, 48):
            expected, found = (
                await reference.vectors(scope, MODEL, vector, 10),
                await index.vector_hits(scope, MODEL, vector, 10),
            )
            recalls.append(len({*found.ids.tolist()} & {*expected.ids.tolist()}) / 10)
            assert found.scores[0] == pytest.approx(expected.scores[0], abs=1e-3)
    assert np.mean(recalls) >= 0.98
    await shelf.db.fetch("SELECT pg_stat_force_next_flush()")
    used = await shelf.db.fetch("SELECT idx_scan FROM pg_stat_user_indexes WHERE indexrelname = $1", name)
    assert used[0]["idx_scan"] > 0


@pytest.mark.usefixtures("narrow")
async def test_a_graph_that_broke_is_built_anew_and_one_of_no_use_is_dropped(shelf: Shelf):
    await shelf.fill(60, ["base:1"], dimension=8)
    [name] = [each for each in await postgres_index.maintain(shelf.db) if each.startswith("vectors_near_")]
    await shelf.db.fetch("UPDATE pg_index SET indisvalid = false WHERE indexrelid = CAST($1 AS regclass)", name)
    assert await postgres_index.maintain(shelf.db) == [name]
    for n in range(40):
        await shelf.remove(str(n))
    await postgres_index.maintain(shelf.db)
    assert await shelf.db.fetch("SELECT 1 FROM pg_class WHERE relname = $1", name) == []


@pytest.mark.parametrize(
    ("harm", "said"),
    [
        ("DELETE FROM terms WHERE passage_id = 1", "1 passages are missing from the term table"),
        ("UPDATE passages SET words = NULL WHERE id = 1", "have not been analysed"),
        (
            "UPDATE terms SET collection = 'base:9' WHERE passage_id = 1",
            "1 passages in the term table have a wrong collection",
        ),
        ("UPDATE vectors SET collection = 'base:9'", "2 vectors have a wrong collection"),
        ("UPDATE sources SET passages = 5", "1 sources have a wrong number of passages"),
    ],
)
async def test_differences_between_the_index_and_the_passages_are_told(shelf: Shelf, harm: str, said: str):
    await shelf.put("a", ["one", "two"])
    await shelf.embed("a")
    assert await postgres_index.compare(shelf.db) == []
    await shelf.db.write(lambda tx: tx.execute(harm))
    assert said in " ".join(await postgres_index.compare(shelf.db))
