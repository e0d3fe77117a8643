"""Search from end to end, over a few passages, with the bundled model, on both databases."""

import asyncio
import re
from collections import Counter
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from almanac.core.database import Database
from almanac.core.errors import BadRequest
from almanac.core.settings import Settings
from almanac.identity import orgs
from almanac.search import citations, passage_store
from almanac.search.backends import open_search
from almanac.search.engine import SearchEngine
from almanac.search.passage import Passage
from almanac.search.query import SearchQuery, SearchResponse, SourceFilter
from almanac.search.ranking import features
from almanac.search.sources import Source
from tests.live_server import settings_for, work_off

TEXTS = {
    "1": "The bearing of the pump is oiled every spring.",
    "2": "Cats sleep for most of the day.",
    "3": "Die Krankenversicherung zahlt für den Zahnersatz.",
    "4": "市立图书馆每周一休息，周末开放到晚上八点。",
    "5": "المكتبة مغلقة يوم الاثنين",
    "6": "市立図書館は月曜日に休みます。",
}
HERE = ("base:1",)


@pytest.fixture
def settings(database_url: str, tmp_path: Path) -> Settings:
    return settings_for(database_url, tmp_path)


@pytest.fixture
async def search(database: Database, settings: Settings) -> AsyncIterator[SearchEngine]:
    org = await database.write(lambda tx: orgs.add(tx, "acme"))
    for owner, text in TEXTS.items():
        source = Source(org.id, "base:1", "document", owner, f"Note {owner}", 1, int(owner), tags=(f"t{owner}",))
        await save(database, source, [Passage(0, len(text), text)])
    long = Source(org.id, "base:2", "document", "9", "Ropes", 1, 1)
    many = [Passage(n, n + 1, f"rope number {'x' * n} " + "of hemp " * 80) for n in range(8)]
    await save(database, long, many)
    async with open_search(settings, database) as opened:
        yield opened


async def save(db: Database, source: Source, found: list[Passage]) -> None:
    prepared = passage_store.analyse(source.title, found)
    await db.write(lambda tx: passage_store.replace(tx, source, prepared))


def owners(answer: SearchResponse) -> list[str]:
    return [result.object_id for result in answer.results]


async def test_keyword_search_works_at_once_and_vector_search_after_embedding(
    search: SearchEngine, database: Database, settings: Settings
):
    assert owners(await search.search(SearchQuery("oiled bearings", HERE))) == ["1"]
    early = await search.search(SearchQuery("feline rest", HERE))
    assert (early.results, len(early.notes)) == ((), 1)
    assert "no vectors yet" in early.notes[0]
    await work_off(database, settings)
    answer = await search.search(SearchQuery("feline rest", HERE))
    assert answer.notes == ()
    assert owners(answer)[0] == "2"
    assert answer.results[0].legs == ("vectors",)
    assert owners(await search.search(SearchQuery("oiled bearings", HERE)))[0] == "1"


async def test_a_passage_without_a_vector_gets_the_probability_of_its_words(
    search: SearchEngine, database: Database, settings: Settings
):
    await work_off(database, settings)
    text = "Every autumn the gearbox of the winch is drained."
    org_id = (await orgs.get_by_name(database, None)).id
    late = Source(org_id, "base:1", "document", "7", "Winch", 1, 7)
    await save(database, late, [Passage(0, len(text), text)])
    query = SearchQuery("drain the winch gearbox", HERE)
    by_words = (await search.search(replace(query, mode="keyword"))).results[0]
    for rerank in (True, False):
        answer = await search.search(replace(query, rerank=rerank))
        assert owners(answer)[0] == by_words.object_id == "7"
        assert answer.results[0].score == pytest.approx(by_words.score, abs=0.05)
        assert answer.results[0].legs == ("words",)
        assert "no vectors yet" in answer.notes[0]


async def test_a_vector_hit_that_is_no_keyword_hit_gets_its_keyword_score(
    search: SearchEngine, database: Database, settings: Settings, monkeypatch: pytest.MonkeyPatch
):
    org_id = (await orgs.get_by_name(database, None)).id
    told = "To keep a dog from yapping and howling after dark, take it for a long walk in the evening."
    for text in (told, "Dog.", "Barks.", "Nights.", "Stop."):
        await save(database, Source(org_id, "base:3", "document", text, "", 1, 1), [Passage(0, len(text), text)])
        if text == told:
            await work_off(database, settings)  # the others have no vectors
    query = SearchQuery("how to stop a dog that barks at night", ("base:3",), rerank=False, limit=1)
    (whole,) = (await search.search(query)).results
    monkeypatch.setattr("almanac.search.engine.MIN_HITS_PER_RETRIEVER", 1)
    (found,) = (await search.search(query)).results
    assert (whole.object_id, whole.legs, found.legs) == (told, ("words", "vectors"), ("vectors",))
    assert found.score == whole.score


async def test_embedding_starts_before_keyword_search_and_runs_beside_it(
    search: SearchEngine, database: Database, settings: Settings, monkeypatch: pytest.MonkeyPatch
):
    await work_off(database, settings)
    (model,) = await search.models(HERE)
    embedder, words = search.embedders.get(model), search.index.keyword_hits
    assert embedder is not None
    embed, happened, is_looked_for = embedder.query, list[str](), asyncio.Event()

    async def embed_slowly(text: str) -> Any:
        for _ in range(5):  # like the hand-over to the embedding thread
            await asyncio.sleep(0)
        happened.append("embedded")
        await asyncio.wait_for(is_looked_for.wait(), 5)
        return await embed(text)

    async def look_for(*args: Any) -> Any:
        happened.append("looked for")
        is_looked_for.set()
        return await words(*args)

    monkeypatch.setattr(embedder, "query", embed_slowly)
    monkeypatch.setattr(search.index, "keyword_hits", look_for)
    monkeypatch.setattr("almanac.search.stages.retrieve.EMBEDDING_HEAD_START_SECONDS", 0.2)
    assert owners(await search.search(SearchQuery("oiled bearings", HERE)))[0] == "1"
    assert happened == ["embedded", "looked for"] or not search.index.holds_interpreter_lock


@pytest.mark.parametrize("mode", ["hybrid", "keyword"])
async def test_a_passage_removed_during_a_search_leaves_no_gap(
    search: SearchEngine, database: Database, monkeypatch: pytest.MonkeyPatch, mode: str
):
    query = SearchQuery("cats or bearings", HERE, mode=mode, limit=1)
    first, second = owners(await search.search(replace(query, limit=10)))
    words = search.index.keyword_hits

    async def words_then_gone(*args: Any) -> Any:
        found = await words(*args)
        await database.write(lambda tx: tx.execute("DELETE FROM sources WHERE owner_id = $1", first))
        return found

    monkeypatch.setattr(search.index, "keyword_hits", words_then_gone)
    answer = await search.search(query)
    assert (owners(answer), answer.has_more) == ([second], False)


@pytest.mark.parametrize(
    ("asked", "owner"),
    [
        ("图书馆什么时候休息", "4"),
        ("図書館はいつ休みですか", "6"),
        ("متى تغلق المكتبات", "5"),
        ("Krankenversicherungen", "3"),
        ("Versicherung für Zähne", "3"),
        ("library 图书馆 opening hours", "4"),
    ],
)
async def test_queries_in_other_languages_find_the_expected_document(search: SearchEngine, asked: str, owner: str):
    assert owners(await search.search(SearchQuery(asked, HERE)))[0] == owner


async def test_words_that_no_passage_contains_lower_all_scores(search: SearchEngine):
    async def score(text: str) -> float:
        return (await search.search(SearchQuery(text, HERE, mode="keyword"))).results[0].score

    whole, half, third = [await score(text) for text in ("bearing", "zebra bearing", "zebra quagga bearing")]
    assert whole > 0.6 > 0.3 > half > third
    assert await score("bearings") == whole  # one form of a word is enough


async def test_a_result_has_its_span_and_can_be_verified(search: SearchEngine, database: Database):
    (found,) = (await search.search(SearchQuery("bearing", HERE, mode="keyword"))).results
    assert (found.title, found.start, found.end, found.text) == ("Note 1", 0, len(TEXTS["1"]), TEXTS["1"])
    assert [found.text[start:end] for start, end in found.highlights] == ["bearing"]
    assert 0 < found.score < 1
    verdict = await citations.verify(database, found.kind, found.object_id, hash=found.hash)
    assert verdict.outcome == "unchanged"


async def test_results_per_source_are_limited_unless_the_query_lifts_the_limit(search: SearchEngine):
    query = SearchQuery("rope", ("base:2",), mode="keyword")
    assert len((await search.search(query)).results) == 3
    assert len((await search.search(replace(query, max_per_source=0))).results) == 8
    first = await search.search(replace(query, max_per_source=0, limit=5))
    rest = await search.search(replace(query, max_per_source=0, limit=5, offset=5))
    assert (first.has_more, rest.has_more) == (True, False)
    assert len({found.passage_id for found in (*first.results, *rest.results)}) == 8


async def test_filters_and_min_score_restrict_the_results(search: SearchEngine):
    query = SearchQuery("cats pump", HERE, mode="keyword")
    assert sorted(owners(await search.search(query))) == ["1", "2"]
    assert owners(await search.search(replace(query, filter=SourceFilter(tags=("t2",))))) == ["2"]
    assert owners(await search.search(replace(query, min_score=0.999))) == []


async def test_timings_and_counts_are_returned_on_request(search: SearchEngine):
    answer = await search.search(SearchQuery("pump", HERE, explain=True))
    assert {"words", "legs", "read", "rank"} <= answer.timings.keys()
    assert (answer.counts["words"], answer.counts["returned"]) == (1, 1)
    assert (await search.search(SearchQuery("pump", HERE))).timings == {}


async def test_a_failed_reranking_returns_the_fused_order_and_a_note(
    search: SearchEngine, database: Database, settings: Settings, monkeypatch: pytest.MonkeyPatch
):
    def fail(*_: object) -> None:
        raise ValueError

    await work_off(database, settings)
    monkeypatch.setattr(features, "similarity", fail)
    answer = await search.search(SearchQuery("oiled bearings", HERE))
    assert owners(answer)[0] == "1"
    assert answer.notes == ("Reranking failed. The results are in the order before it.",)


async def test_a_search_without_results_is_no_error(search: SearchEngine):
    for mode in ("hybrid", "keyword", "vector"):
        assert (await search.search(SearchQuery("zeppelin", HERE, mode=mode))).results == ()
    assert (await search.search(SearchQuery("pump", ()))).results == ()
    assert (await search.search(SearchQuery("the of and", HERE))).results == ()


@pytest.mark.parametrize(
    "wrong",
    [
        {"text": "  "}, {"text": "x" * 4001}, {"mode": "psychic"}, {"limit": 0}, {"offset": -1}, {"offset": 495},
        {"min_score": 1.5},
    ],
)  # fmt: skip
async def test_an_invalid_query_is_refused(search: SearchEngine, wrong: dict[str, object]):
    with pytest.raises(BadRequest):
        await search.search(replace(SearchQuery("pump", HERE), **wrong))  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize("mode", ["hybrid", "keyword", "vector"])
async def test_a_document_with_many_hits_leaves_room_for_others(
    search: SearchEngine, database: Database, settings: Settings, mode: str
):
    org = await orgs.get_by_name(database, "acme")
    crowd = [Passage(n, n + 1, f"turbine pump bearing, turbine pump bearing, section {n}") for n in range(104)]
    await save(database, Source(org.id, "base:3", "document", "100", "Turbines", 1, 1), crowd)
    for number in range(101, 111):
        text = f"Store {number} also keeps a bearing of brass, among much else that nobody asks for."
        await save(database, Source(org.id, "base:3", "document", str(number), "Store", 1, 1), [Passage(0, 9, text)])
    await work_off(database, replace(settings, embedding=mode != "keyword"))
    answer = await search.search(SearchQuery("turbine pump bearing", ("base:3",), mode=mode, limit=10))
    assert owners(answer)[:3] == ["100"] * 3
    assert len(answer.results) == 10 and len(set(owners(answer))) == 8
    assert answer.has_more


@pytest.mark.parametrize(("mode", "rerank"), [("hybrid", True), ("hybrid", False), ("keyword", True), ("vector", True)])
async def test_pages_are_cut_from_one_ranking(
    search: SearchEngine,
    database: Database,
    settings: Settings,
    monkeypatch: pytest.MonkeyPatch,
    mode: str,
    rerank: bool,
):
    monkeypatch.setattr("almanac.search.engine.MIN_HITS_PER_RETRIEVER", 20)
    org = await orgs.get_by_name(database, "acme")
    things = ("pump", "lamp", "boiler", "winch", "anchor", "rudder", "sail")
    for number in range(16):
        texts = [
            f"The {things[(number + part) % 7]} {'and its bearing ' * (1 + number * part % 4)}of {things[number % 7]}s"
            f" is kept in store {number % 3}."
            for part in range(5)
        ]
        found = [Passage(n, n + 1, text) for n, text in enumerate(texts)]
        await save(database, Source(org.id, "base:4", "document", str(200 + number), "Stores", 1, 1), found)
    await work_off(database, replace(settings, embedding=mode != "keyword"))
    query = SearchQuery("pump bearing in store", ("base:4",), mode=mode, rerank=rerank, limit=4)
    answers = [await search.search(query)]
    while answers[-1].has_more:
        answers.append(await search.search(replace(query, offset=4 * len(answers))))
    found = [each for answer in answers for each in answer.results]
    assert len(answers) == 12 and [len(answer.results) for answer in answers] == [4] * 12  # three of each document
    assert len({each.passage_id for each in found}) == len(found)
    assert max(Counter(each.object_id for each in found).values()) == 3
    assert [each.score for each in found] == sorted((each.score for each in found), reverse=True)


@pytest.mark.parametrize("mode", ["hybrid", "keyword", "vector"])
async def test_long_documents_leave_room_for_others_however_many_they_are(
    search: SearchEngine, database: Database, settings: Settings, monkeypatch: pytest.MonkeyPatch, mode: str
):
    monkeypatch.setattr("almanac.search.engine.MIN_HITS_PER_RETRIEVER", 20)
    monkeypatch.setattr("almanac.search.engine.MAX_RESULT_DEPTH", 25)
    org = await orgs.get_by_name(database, "acme")
    for owner in "ABC":
        crowd = [Passage(n, n + 1, f"turbine pump bearing, turbine pump bearing, {owner} {n}") for n in range(60)]
        await save(database, Source(org.id, "base:3", "document", owner, "Turbines", 1, 1), crowd)
    for number in range(101, 111):
        text = f"Store {number} also keeps a bearing of brass, among much else that nobody asks for."
        await save(database, Source(org.id, "base:3", "document", str(number), "Store", 1, 1), [Passage(0, 9, text)])
    await work_off(database, replace(settings, embedding=mode != "keyword"))
    query = SearchQuery("turbine pump bearing", ("base:3",), mode=mode, limit=10)
    first, second = await search.search(query), await search.search(replace(query, offset=10))
    assert (len(first.results), len(second.results), second.has_more) == (10, 9, False)
    assert len({found.object_id for found in (*first.results, *second.results)}) == 13


@pytest.mark.parametrize("mode", ["hybrid", "vector"])
async def test_a_query_without_letters_or_digits_is_not_embedded(
    search: SearchEngine, database: Database, settings: Settings, mode: str
):
    await work_off(database, settings)
    answer = await search.search(SearchQuery("😀 !", HERE, mode=mode))
    assert (answer.results, answer.notes[-1]) == (
        (),
        "The query contains no letters or digits. Use words.",
    )


async def test_keyword_search_without_usable_words_returns_a_note(search: SearchEngine):
    answer = await search.search(SearchQuery("🚀", HERE, mode="keyword"))
    assert answer.results == ()
    (note,) = answer.notes
    assert note == "The query has only common words or symbols, which keyword search ignores. Use mode 'hybrid'."


async def test_a_sentence_without_spaces_is_found_by_its_end(search: SearchEngine, database: Database):
    org = await orgs.get_by_name(database, "acme")
    text = "工程师们在检查水泵的时候发现轴承已经严重磨损并且伴随着异常的噪音和振动"
    text += "所以他们决定在下一次停机维护期间由供应商派来的技术人员负责更换轴承"
    assert len(text) > 64
    source = Source(org.id, "base:4", "document", "200", "泵", 1, 1)
    await save(database, source, [Passage(0, len(text), text)])
    assert owners(await search.search(SearchQuery("更换轴承", ("base:4",), mode="keyword"))) == ["200"]


async def test_a_query_as_long_as_a_page_is_fast(search: SearchEngine):
    page = "".join(chr(0x4E00 + number % 3_000) for number in range(4_000))
    async with asyncio.timeout(10):
        await search.search(SearchQuery(page, HERE))
        await search.search(SearchQuery(page, HERE, filter=SourceFilter(tags=("t4",))))


async def test_missing_vectors_are_detected_without_reading_other_collections(
    search: SearchEngine, database: Database, monkeypatch: pytest.MonkeyPatch
):
    org, asked, here = await orgs.get_by_name(database, "acme"), list[str](), (*HERE, "base:8")
    await database.write(lambda tx: tx.execute("UPDATE sources SET is_embedded = 1"))
    if database.dialect == "postgres":
        await database.write(lambda tx: tx.execute("ANALYZE"))  # for a while, its cache says that nothing is pending
    for number in range(300, 400):
        await save(database, Source(org.id, "base:9", "document", str(number), "", 1, 1), [Passage(0, 6, "a pump")])

    async def note(sql: str, *args: Any) -> list[Any]:
        asked.append(sql)
        return []

    with monkeypatch.context() as patch:
        patch.setattr(search.db, "fetch", note)
        await search.models(here)
    if database.dialect == "sqlite":
        plan = await database.fetch("EXPLAIN QUERY PLAN " + asked[0], *here)
        assert "(collection=? AND is_embedded=?)" in plan[-1]["detail"]
    else:
        lines = [row[0] for row in await database.fetch("EXPLAIN (ANALYZE, TIMING OFF) " + asked[0], *here)]
        assert not [line for line in lines if "hashed" in line or re.search(r" on sources .*actual rows=[1-9]", line)]
