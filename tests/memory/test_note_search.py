"""Search of notes: results, order, scores, and searches at a past time."""

import uuid
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from almanac.ai.bundled import BundledEmbedder
from almanac.core import clock
from almanac.core.database import Transaction
from almanac.core.errors import Unavailable
from almanac.jobs import queue
from almanac.memory import expiry, note_index, note_search, similar_notes
from almanac.memory.note import TaskLink
from almanac.memory.note_search import NoteQuery, find, snippet
from almanac.search.index import tables, title_index
from almanac.search.index.postgres import postgres_index
from almanac.search.index.postgres.postgres_index import PostgresIndex
from almanac.search.index.protocol import SearchScope
from almanac.search.jobs import embed_passages, embed_queue
from tests.live_server import settings_for, work_off
from tests.memory.agent_memory import AgentMemory
from tests.search.shelf import turn


class OtherModel(BundledEmbedder):
    """The bundled model by another name."""

    @property
    def name(self) -> str:
        return "m"


async def embed(memory: AgentMemory, database_url: str, tmp_path: Path) -> None:
    await work_off(memory.db, settings_for(database_url, tmp_path / "home"))


async def scores(memory: AgentMemory, query: str, **options: object) -> dict[str, float]:
    results = await find(memory.ada, memory.search, NoteQuery(query, **options))  # pyright: ignore[reportArgumentType]
    return {result.note.title: result.score for result in results.hits}


async def test_a_note_is_found_by_its_words_at_once_and_scores_half_with_one_retriever(memory: AgentMemory):
    await memory.store("The bearing is oiled in spring.", title="Pump")
    await memory.store("Whale oil burns slowly.", title="Lamp")
    assert (await scores(memory, "bearing")) == {"Pump": 0.5}


async def test_scores_combine_the_reciprocal_ranks_of_both_retrievers(
    memory: AgentMemory, database_url: str, tmp_path: Path
):
    await memory.store("The bearing of the pump is oiled in spring.", title="Pump")
    await memory.store("Whale oil burns slowly.", title="Lamp")
    await memory.store("Stairs are swept on Sundays.", title="Stairs")
    await embed(memory, database_url, tmp_path)
    found = await scores(memory, "When is the bearing of the pump oiled?")
    assert found["Pump"] == 1.0
    assert found["Lamp"] == pytest.approx(61 / 2 / 62 * 2, abs=1e-4)  # second by words and by vectors
    assert found["Stairs"] == pytest.approx(61 / 2 / 63, abs=1e-4)  # third by vectors, no match by words
    assert list(await scores(memory, "When is the bearing of the pump oiled?", min_score=0.5)) == ["Pump", "Lamp"]
    assert len(await scores(memory, "bearing", limit=1)) == 1


async def test_min_score_is_compared_with_the_rounded_score(memory: AgentMemory):
    for number in range(6):
        await memory.store("Oil. " + "And so on. " * number, title=f"Note {number}")
    shown = await scores(memory, "oil")
    assert shown["Note 3"] == 0.4766  # which is more than 61 / 128
    for title, score in shown.items():
        assert list(await scores(memory, "oil", min_score=score))[-1] == title
    assert list(await scores(memory, "oil", min_score=0.4767)) == ["Note 0", "Note 1", "Note 2"]


async def test_long_notes_do_not_displace_short_ones(
    memory: AgentMemory, database_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(note_index, "NOTE_PASSAGE_CHARS", 60)  # a few lines then have as many passages as a long note
    for number in range(8):
        await memory.store("Oil, and again oil, and once more nothing but oil. " * 15, title=f"Long {number}")
    for number in range(12):
        await memory.store("It mentions the oil once.", title=f"Short {number}")
    expected = {f"Long {n}" for n in range(8)} | {f"Short {n}" for n in range(12)}
    assert set(await scores(memory, "oil", limit=20)) == expected
    await embed(memory, database_url, tmp_path)
    for mode in ("hybrid", "vector"):
        assert set(await scores(memory, "oil", limit=20, mode=mode)) == expected


async def test_a_part_of_a_title_matches(memory: AgentMemory):
    await memory.store("Nothing to see.", title="Kubernetes upgrade")
    await memory.store("Kuber is a name.", title="Names")
    assert list(await scores(memory, "ubernetes upgr")) == ["Kubernetes upgrade"]
    assert list(await scores(memory, "KUBER")) == ["Kubernetes upgrade", "Names"]
    assert await scores(memory, "x" * 500) == {}


@pytest.mark.parametrize("part", ["ld pump in Osl", "n old pump", "p in Oslo, for the w", "for the w", "r the"])
async def test_a_part_of_a_title_of_any_number_of_words_matches(memory: AgentMemory, part: str):
    await memory.store("Nothing to see.", title="An old pump in Oslo, for the winter")
    for number in range(12):  # keyword search prefers these
        await memory.store("A pump is an old pump. " * 20, title=f"Pump {number} of Oslo")
    assert (await scores(memory, part, limit=1, mode="keyword")).keys() == {"An old pump in Oslo, for the winter"}


async def test_both_databases_match_titles_alike(memory: AgentMemory):
    for title in ("50% off", "under_score", "It's", 'quo"te', "back\\slash", "ÉCOLE", "plain"):
        await memory.store("Nothing.", title=title)
    scope = SearchScope((note_index.collection_of(memory.town.acme.id),))
    for text, number in (
        ("0%", 1),
        ("r_s", 1),
        ("t's", 1),
        ('o"t', 1),
        ("k\\s", 1),
        ("école", 0),
        ("ÉCOLE", 1),
        ("", 0),
    ):
        assert len(await title_index.find(memory.db, scope, text, 10)) == number, text


PARTS = st.text("aAbB é😀%_", max_size=5)


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    titles=st.lists(st.text("aAbB é😀%_", min_size=1, max_size=9).filter(str.strip), max_size=6), parts=st.lists(PARTS)
)
async def test_every_part_of_a_title_of_any_length_matches(memory: AgentMemory, titles: list[str], parts: list[str]):
    for title in titles:
        await memory.store("Nothing.", title=title)
    scope = SearchScope((note_index.collection_of(memory.town.acme.id),))
    rows = await memory.db.fetch("SELECT p.id, s.title FROM sources s JOIN passages p ON p.source_id = s.id")
    for part in {*parts, *(title[1:4] for title in titles)}:
        expected = [row["id"] for row in rows if part.strip() and lowered(part.strip()) in lowered(row["title"])]
        assert sorted(await title_index.find(memory.db, scope, part, 1_000)) == expected, part


def lowered(text: str) -> str:
    return "".join(letter.lower() if letter.isascii() else letter for letter in text)


@pytest.mark.parametrize("part", ["q", "zq", "zqu", "zquint", "the zquintel of"])
async def test_a_title_is_found_however_many_newer_ones_there_are(
    memory: AgentMemory, part: str, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(title_index, "MAX_SCANNED_TITLES", 3)
    monkeypatch.setattr(title_index, "MAX_COUNT", 3)
    await memory.store("Nothing.", title="See the zquintel of the north", tags=("a",))
    await memory.store("Nothing.", title="See the zquintel of the north", by=memory.eve)  # of another organisation
    for number in range(8):
        await memory.store("Nothing.", title=f"See the zebra of the north {number}")
    for options in ({}, {"tags": ("a",)}):
        assert list(await scores(memory, part, mode="keyword", **options)) == ["See the zquintel of the north"]
    assert await scores(memory, part, mode="keyword", tags=("b",)) == {}


async def test_the_newest_titles_come_first_and_leave_the_index_of_live_notes_when_superseded(memory: AgentMemory):
    stored = [await memory.store("Nothing.", title=f"Pump {number}") for number in range(4)]
    await memory.supersede(stored[3], stored[0])
    scope = SearchScope(note_index.collections_of(memory.town.acme.id, superseded=False, expired=False))
    past = SearchScope(note_index.collections_of(memory.town.acme.id, superseded=True, expired=False))
    for part in ("p", "mp", "ump", "pump"):
        live, all = [await title_index.find(memory.db, each, part, 2) for each in (scope, past)]
        assert await titles_of(memory, live) == ["Pump 2", "Pump 1"]
        assert await titles_of(memory, all) == ["Pump 3", "Pump 2"]
    rows = await memory.db.fetch("SELECT DISTINCT scope, source_id FROM title_grams")
    assert len(rows) == len(stored)


async def titles_of(memory: AgentMemory, passages: list[int]) -> list[str]:
    rows = [await memory.db.fetch_one("SELECT s.title FROM passages p JOIN sources s ON s.id = p.source_id"
                                      " WHERE p.id = $1", id) for id in passages]  # fmt: skip
    return [row["title"] for row in rows if row is not None]


async def test_all_tags_must_match(memory: AgentMemory):
    await memory.store("Oil one.", title="One", tags=("a", "b"))
    await memory.store("Oil two.", title="Two", tags=("a",))
    assert set(await scores(memory, "oil")) == {"One", "Two"}
    assert set(await scores(memory, "oil", tags=("a",))) == {"One", "Two"}
    assert set(await scores(memory, "oil", tags=("a", "b"))) == {"One"}
    assert await scores(memory, "oil", tags=("c",)) == {}


async def test_a_search_can_be_limited_to_a_task(memory: AgentMemory):
    await memory.store("Oil one.", title="One", task=TaskLink("T-1", "references"))
    await memory.store("Oil two.", title="Two")
    assert set(await scores(memory, "oil", task="T-1")) == {"One"}


async def test_superseded_notes_are_found_only_on_request(memory: AgentMemory, database_url: str, tmp_path: Path):
    old, new = (
        await memory.store("Deploys on Friday.", title="Old"),
        await memory.store("Deploys on Monday.", title="New"),
    )
    await embed(memory, database_url, tmp_path)
    await memory.supersede(old, new)
    assert set(await scores(memory, "deploys")) == {"New"}
    assert set(await scores(memory, "deploys", include_superseded=True)) == {"Old", "New"}
    assert (await memory.get(old)).embedding_status == "ready"  # its vectors are still in use
    both = await find(memory.ada, memory.search, NoteQuery("deploys", include_superseded=True))
    assert {hit.note.title: hit.note.head_id for hit in both.hits} == {"Old": new.id, "New": None}
    assert all(hit.legs == ("words", "vectors") for hit in both.hits)


async def test_a_superseded_note_keeps_its_vectors(memory: AgentMemory, database_url: str, tmp_path: Path):
    old, new = await memory.store("Deploys on Friday.", title="Old"), await memory.store("On Monday.", title="New")
    await embed(memory, database_url, tmp_path)
    live = note_index.collection_of(memory.town.acme.id)

    async def stored_models() -> dict[str, set[str]]:
        sql = "SELECT s.title, v.model, v.collection FROM vectors v JOIN sources s ON s.id = v.source_id"
        rows = await memory.db.fetch(sql)
        assert {row["collection"] for row in rows} == {live}
        return {title: {row["model"] for row in rows if row["title"] == title} for title in ("Old", "New")}

    before = await stored_models()
    await memory.supersede(old, new)
    assert await stored_models() == before
    if memory.db.dialect == "postgres":
        assert await postgres_index.compare(memory.db) == []

    await memory.db.write(lambda tx: embed_queue.enqueue(tx, live))
    (job,) = await queue.claim(memory.db, "w", ["embed_passages"], limit=1, lease=clock.MINUTE)
    change_model = await embed_passages.EmbedPassages(memory.db, OtherModel())(job)
    assert change_model is not None
    await memory.db.write(change_model)
    (job,) = await queue.claim(memory.db, "w", ["delete_old_vectors"], limit=1, lease=clock.MINUTE)
    await embed_passages.DeleteOldVectors(memory.db)(job)
    # The superseded note has no vector of the new model yet.
    assert await stored_models() == {"Old": before["Old"], "New": {"m"}}


async def test_a_note_expires_exactly_at_its_time(memory: AgentMemory, monkeypatch: pytest.MonkeyPatch):
    now = clock.now()
    await memory.store("Brief oil.", title="Brief", expires_at=now + clock.HOUR)
    await memory.store("Lasting oil.", title="Lasting")
    assert set(await scores(memory, "oil")) == {"Brief", "Lasting"}
    monkeypatch.setattr(clock, "now", lambda: now + clock.HOUR)
    assert set(await scores(memory, "oil")) == {"Lasting"}
    assert set(await scores(memory, "oil", include_expired=True)) == {"Brief", "Lasting"}
    assert await expiry.sweep(memory.db) == 1
    assert await expiry.sweep(memory.db) == 0
    assert set(await scores(memory, "oil")) == {"Lasting"}
    assert set(await scores(memory, "oil", include_expired=True)) == {"Brief", "Lasting"}


async def test_an_expired_superseded_note_is_found_only_if_both_are_requested(
    memory: AgentMemory, monkeypatch: pytest.MonkeyPatch
):
    now = clock.now()
    first = await memory.store("Oil, once.", title="First", expires_at=now + clock.HOUR)
    second = await memory.store("Oil, now.", title="Second")
    await memory.supersede(first, second)
    monkeypatch.setattr(clock, "now", lambda: now + clock.HOUR)
    for _ in range(2):  # before the expiry job has run, and after
        assert set(await scores(memory, "oil")) == {"Second"}
        assert set(await scores(memory, "oil", include_superseded=True)) == {"Second"}
        assert set(await scores(memory, "oil", include_expired=True)) == {"Second"}
        assert set(await scores(memory, "oil", include_superseded=True, include_expired=True)) == {"First", "Second"}
        await expiry.sweep(memory.db)


async def test_as_of_searches_the_notes_of_a_past_time(memory: AgentMemory, monkeypatch: pytest.MonkeyPatch):
    now = clock.now()

    def at(hours: int) -> int:
        monkeypatch.setattr(clock, "now", lambda: now + hours * clock.HOUR)
        return clock.now()

    at(0)
    old = await memory.store("Oil monthly.", title="Old")
    at(1)
    await memory.store("Oil for the fair.", title="Fair", expires_at=now + 3 * clock.HOUR)
    at(2)
    new = await memory.store("Oil weekly.", title="New")
    await memory.supersede(old, new)
    at(4)
    await expiry.sweep(memory.db)
    views = {hours: set(await scores(memory, "oil", as_of=now + hours * clock.HOUR)) for hours in range(-1, 4)}
    assert views == {-1: set(), 0: {"Old"}, 1: {"Old", "Fair"}, 2: {"New", "Fair"}, 3: {"New"}}
    [hit] = (await find(memory.ada, memory.search, NoteQuery("monthly", as_of=now + clock.HOUR, limit=1))).hits
    assert (hit.note.title, hit.note.head_id) == ("Old", None)
    with_past = NoteQuery("oil", as_of=now + 2 * clock.HOUR, include_superseded=True)
    shown = {hit.note.title: hit.note.head_id for hit in (await find(memory.ada, memory.search, with_past)).hits}
    assert shown == {"Old": new.id, "New": None, "Fair": None}


def test_a_snippet_is_240_characters_around_the_first_match():
    body = "a" * 50 + " " + "b " * 300 + "needle" + " c" * 300 + " needle"
    shown = snippet(body, "where is the needle?")
    assert len(shown) == 240
    position = shown.index("needle")
    assert abs(position + 3 - 120) <= 1
    assert shown in body
    assert snippet(body, "haystack") == body[:240]
    assert snippet("A short needle.", "needle") == "A short needle."
    tail = "x " * 400 + "needle"
    assert snippet(tail, "needle") == tail[-240:]
    head = "needle" + " x" * 400
    assert snippet(head, "needle") == head[:240]
    common = "x " * 400 + "Who is it? " + "y " * 400
    assert abs(snippet(common, "who was that").index("Who") + 1 - 120) <= 1


async def test_similar_notes_of_other_authors_are_found(memory: AgentMemory, database_url: str, tmp_path: Path):
    monday = await memory.store("Deploys of the billing service happen on Mondays.", title="Deploy day")
    await memory.store("The canteen closes at three.", title="Canteen")
    body = "Deploys of the billing service happen on Fridays."
    first = await memory.store(body, title="Deploy day", by=memory.bob)
    [hint] = await similar_notes.find(memory.bob, memory.search, first)  # by shared words only
    assert (hint.id, hint.author, hint.title) == (monday.id, "ada", "Deploy day")
    await embed(memory, database_url, tmp_path)
    [hint] = await similar_notes.find(memory.bob, memory.search, first)
    assert hint.score >= similar_notes.MIN_COSINE
    unrelated = await memory.store("Rooms are booked by post.", title="Rooms", by=memory.bob)
    assert await similar_notes.find(memory.bob, memory.search, unrelated) == []
    mine = await memory.store(body, title="Deploy day", by=memory.ada)
    assert [similar.author for similar in await similar_notes.find(memory.ada, memory.search, mine)] == ["bob"]
    assert (await memory.get(monday)).head_id is None


async def test_a_failed_search_for_similar_notes_gives_none(memory: AgentMemory, monkeypatch: pytest.MonkeyPatch):
    async def fail(_: object) -> None:
        raise Unavailable()

    note = await memory.store("Deploys of the billing service happen on Mondays.")
    monkeypatch.setattr(memory.search, "search", fail)
    assert await similar_notes.find(memory.ada, memory.search, note) == []


async def test_keyword_search_works_without_vectors(memory: AgentMemory):
    await memory.store("The bearing is oiled.", title="Pump")
    assert await scores(memory, "bearing", mode="vector") == {}
    assert await scores(memory, "bearing", mode="keyword") == {"Pump": 0.5}


async def test_a_query_of_common_words_is_matched_against_the_texts(
    memory: AgentMemory, database_url: str, tmp_path: Path
):
    await memory.store("Who is it? It is the postman.", title="Door")
    await memory.store("It rains.", title="Rain", tags=("wet",))
    await memory.store("Oil pumps monthly.", title="Pump")
    old = await memory.store("Who is it? Nobody.", title="Old")
    await memory.supersede(old, await memory.store("Nobody comes here.", title="New"))
    for query in ("who is it", "WHO is it?", "is it who?", "who, who, who is it then"):
        assert list((await scores(memory, query)).items())[:2] == [("Door", 0.5), ("Rain", 0.4919)], query
    assert set(await scores(memory, "it")) == {"Door", "Rain"}
    assert list(await scores(memory, "it", tags=("wet",))) == ["Rain"]
    assert set(await scores(memory, "who", include_superseded=True)) == {"Door", "Old"}
    assert await scores(memory, "himself") == await scores(memory, "?!") == {}
    assert await scores(memory, "who", mode="vector") == {}
    assert await scores(memory, "who", mode="keyword") == {"Door": 0.5}
    await embed(memory, database_url, tmp_path)
    assert (await scores(memory, "who is it"))["Door"] > 0.9
    [hit] = (await find(memory.ada, memory.search, NoteQuery("who", limit=1))).hits
    assert "words" in hit.legs


async def test_the_caller_sets_the_candidate_list_size_of_a_vector_graph(
    memory: AgentMemory, monkeypatch: pytest.MonkeyPatch
):
    if memory.db.dialect != "postgres":
        pytest.skip("the embedded index compares with every vector and has no candidate list")
    monkeypatch.setattr(postgres_index, "MAX_SCANNED_VECTORS", 5)
    await fill(memory, turn(np.random.default_rng(3), 20, 32))
    assert await postgres_index.maintain(memory.db)
    # This query returns the setting of the database as a distance, instead of passages.
    setting = "SELECT 1 AS passage_id, 1 AS source_id, 1 - CAST(current_setting('hnsw.ef_search') AS float) AS distance"
    parameters = "WHERE CAST($1 AS text[]) = CAST($3 AS text[]) AND CAST($2 AS text) IS NOT NULL"
    monkeypatch.setattr(postgres_index, "_NEAR", f"{setting} {parameters}")
    index, scope = PostgresIndex(memory.db), SearchScope((note_index.collection_of(memory.town.acme.id),))
    vector = turn(np.random.default_rng(4), 1, 32)[0]
    widths = [float((await index.vector_hits(scope, "m", vector, 10, reach)).scores[0]) for reach in (1, 64, 200, None)]
    assert widths == [1.0, 64.0, 200.0, float(postgres_index.MIN_EF_SEARCH)]
    query = await note_search.search_query(memory.ada, NoteQuery("anything"))
    assert query.ef_search == 64


async def fill(memory: AgentMemory, vectors: NDArray[np.float32]) -> None:
    """Index one note per vector, with these vectors."""
    note = await memory.store("The note.")
    prepared = note_index.prepare(note.title, note.body, (), "")

    async def body(tx: Transaction) -> None:
        await tx.execute("DELETE FROM sources")
        for n in range(len(vectors)):
            await note_index.add(tx, replace(note, id=str(uuid.UUID(int=n))), prepared)
        sql = (
            "SELECT p.id, p.source_id, s.collection FROM passages p JOIN sources s ON s.id = p.source_id ORDER BY p.id"
        )
        owners = [(row["id"], row["source_id"], row["collection"]) for row in await tx.fetch(sql)]
        await tables.write_vectors(tx, "m", owners, vectors)

    await memory.db.write(body)


def test_the_limits_are_those_of_the_contract():
    assert (
        note_search.MAX_NOTE_QUERY_CHARS,
        note_search.MAX_NOTE_RESULTS,
        note_search.DEFAULT_EF_SEARCH,
        note_search.SNIPPET_CHARS,
    ) == (
        2000,
        50,
        64,
        240,
    )
