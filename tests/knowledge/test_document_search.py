"""Searching knowledge bases: who finds what, where it is looked for, and what is said when it cannot be."""

from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from almanac.core.call import Call
from almanac.core.errors import AlmanacError, BadRequest, Forbidden, NotFound
from almanac.identity.roles import Role
from almanac.knowledge import bases, document_search, documents, folders
from almanac.knowledge.bases import KnowledgeBase
from almanac.knowledge.document_search import CitationArguments, SearchArguments
from almanac.knowledge.documents import Document
from almanac.search.backends import open_search
from almanac.search.engine import SearchEngine
from almanac.search.query import SearchQuery, SearchResponse
from tests.house import settings_for
from tests.knowledge.library import Library
from tests.knowledge.test_access_matrix import CALLERS, City, expectations, generalised


@pytest.fixture
async def search(library: Library, database_url: str, tmp_path: Path) -> AsyncIterator[SearchEngine]:
    async with open_search(settings_for(database_url, tmp_path / "home"), library.db) as opened:
        yield opened


def about(query: str = "pump", **more: Any) -> SearchArguments:
    return SearchArguments(query=query, mode="keyword", **more)


async def ids(call: Call, search: SearchEngine, **more: Any) -> set[int]:
    """The documents that somebody finds."""
    found = await document_search.search_documents(call, search, about(limit=50, **more))
    return {hit.document_id for hit in found.hits}


async def caller(library: Library, name: str, **limits: Any) -> Call:
    return library.town.call(await library.town.actor(await library.town.add(name), **limits))


async def base_of(library: Library, name: str, **more: Any) -> KnowledgeBase:
    return await library.do(lambda tx: bases.add(library.call, tx, name, **more))


async def refusal(call: Call, search: SearchEngine, **more: Any) -> AlmanacError:
    with pytest.raises(AlmanacError) as caught:
        await document_search.search_documents(call, search, about(**more))
    return caught.value


# Who finds what


async def test_everyone_finds_exactly_what_the_table_lets_them_read(library: Library, search: SearchEngine):
    city = await City(library).build()
    wrong: list[str] = []
    for name, level, held in expectations():
        shelf, call = city.shelf(name, level), city.town.call(city.actors[name])
        may_read = held is not None and held >= Role.Reporter
        if (f"base:{shelf.base}" in (await document_search.resolve_scope(call)).collections) is not may_read:
            wrong.append(f"{name} searching everything: a {level} base")
        for what, named in {"bases": shelf.base, "folders": shelf.folder, "documents": shelf.document}.items():
            try:
                found = await ids(call, search, query="one two", **{what: [named]})
                outcome = "found" if found == {shelf.document} else f"found {found}"
            except AlmanacError as error:
                outcome = "NotFound" if isinstance(error, NotFound) else type(error).__name__
            if outcome != ("found" if may_read else "Forbidden" if held else "NotFound"):
                wrong.append(f"{name} searching {what} of a {level} base: {outcome}")
    assert wrong == []
    assert len(CALLERS.strip().splitlines()) == 26


async def test_what_may_not_be_searched_is_told_apart_in_nothing_from_what_never_was(
    library: Library, search: SearchEngine
):
    city = await City(library).build()
    call = city.town.call(city.actors["foreign-admin"])
    for shelf in city.shelves.values():
        for what, named in {"bases": shelf.base, "folders": shelf.folder, "documents": shelf.document}.items():
            hidden = await refusal(call, search, **{what: [named]})
            never = await refusal(call, search, **{what: [77_001]})
            assert generalised(hidden) == generalised(never)
            assert isinstance(hidden, NotFound)


async def test_the_answer_for_a_base_is_the_one_it_has_everywhere(library: Library, search: SearchEngine):
    stranger = await caller(library, "stranger")
    with pytest.raises(NotFound) as elsewhere:
        await bases.get(library.db, stranger, library.base.id)
    assert (await refusal(stranger, search, bases=[library.base.id])).text == elsewhere.value.text


async def test_one_base_that_may_not_be_read_refuses_the_whole_search(library: Library, search: SearchEngine):
    await library.shelve("a.txt", "A pump.")
    assert isinstance(await refusal(library.call, search, bases=[library.base.id, 77_001]), NotFound)


async def test_a_restricted_analyst_is_shown_no_text(library: Library, search: SearchEngine):
    await library.shelve("a.txt", "A pump.")
    analyst = await caller(library, "analyst")
    await library.do(lambda tx: bases.share(library.call, tx, library.base.id, Role.RestrictedAnalyst, user="analyst"))
    assert await ids(analyst, search) == set()
    assert isinstance(await refusal(analyst, search, bases=[library.base.id]), Forbidden)


async def test_a_token_for_some_bases_finds_nothing_in_others(library: Library, search: SearchEngine):
    other = await base_of(library, "Other")
    here = await library.shelve("a.txt", "A pump.")
    await library.shelve("b.txt", "Another pump.", base=other)
    limited = library.town.call(await library.town.actor(library.librarian, bases=[library.base.id]))
    assert await ids(limited, search) == {here.id}
    assert isinstance(await refusal(limited, search, bases=[other.id]), NotFound)


async def test_a_role_that_was_taken_back_finds_nothing_from_then_on(library: Library, search: SearchEngine):
    document = await library.shelve("a.txt", "A pump.")
    maria = await caller(library, "maria")
    assert await ids(maria, search) == set()
    await library.do(lambda tx: bases.share(library.call, tx, library.base.id, Role.Reporter, user="maria"))
    assert await ids(maria, search) == {document.id}
    await library.do(lambda tx: bases.share(library.call, tx, library.base.id, None, user="maria"))
    assert await ids(maria, search) == set()


async def test_whoever_may_read_nothing_is_told_so(library: Library, search: SearchEngine):
    found = await document_search.search_documents(await caller(library, "newcomer"), search, about())
    assert (found.hits, found.notes) == ((), ("There is no knowledge base that you may read.",))


# What is not there


async def test_a_base_in_the_trash_is_not_searched_until_it_is_restored(library: Library, search: SearchEngine):
    document = await library.shelve("a.txt", "A pump.")
    await library.do(lambda tx: bases.remove(library.call, tx, library.base.id))
    assert await ids(library.call, search) == set()
    for named in ({"bases": [library.base.id]}, {"documents": [document.id]}):
        assert isinstance(await refusal(library.call, search, **named), NotFound)
    await library.do(lambda tx: bases.restore(library.call, tx, library.base.id))
    assert await ids(library.call, search) == {document.id}


async def test_what_is_disabled_or_removed_is_not_found(library: Library, search: SearchEngine):
    first, second = await library.shelve("a.txt", "A pump."), await library.shelve("b.txt", "A pump too.")
    await library.do(lambda tx: documents.enable(library.call, tx, [first.id], False))
    assert await ids(library.call, search) == {second.id}
    await library.do(lambda tx: documents.remove(library.call, tx, [second.id]))
    assert await ids(library.call, search) == set()
    assert isinstance(await refusal(library.call, search, documents=[second.id]), NotFound)


@pytest.mark.parametrize("way", ["removed", "moved"])
async def test_what_goes_away_while_it_is_searched_is_not_shown(
    library: Library, search: SearchEngine, monkeypatch: pytest.MonkeyPatch, way: str
):
    document, other, look = await library.shelve("a.txt", "A pump."), await base_of(library, "Other"), search.search

    async def find(question: SearchQuery) -> SearchResponse:
        answer = await look(question)
        assert [each.owner_id for each in answer.found] == [str(document.id)]
        if way == "removed":
            await library.do(lambda tx: documents.remove(library.call, tx, [document.id]))
        else:
            await library.do(lambda tx: documents.move(library.call, tx, [document.id], 0, other.id))
        return answer

    monkeypatch.setattr(search, "search", find)
    assert await ids(library.call, search, bases=[library.base.id]) == set()


# Where


async def shelved(library: Library) -> tuple[dict[str, int], dict[str, Document]]:
    """Folders in folders, each with a document about a pump."""
    names = {"top": 0}
    for name, above in (("a", "top"), ("aa", "a"), ("aaa", "aa"), ("b", "top")):
        names[name] = (await library.folder(name, names[above])).id
    found = {name: await library.shelve(f"{name}.txt", f"The pump {name}.", folder_id=at) for name, at in names.items()}
    return names, found


async def test_a_folder_means_all_that_is_below_it(library: Library, search: SearchEngine):
    names, made = await shelved(library)
    for named, expected in ((["a"], "a aa aaa"), (["aa"], "aa aaa"), (["aa", "b"], "aa aaa b")):
        places = [names[name] for name in named]
        assert await ids(library.call, search, folders=places) == {made[name].id for name in expected.split()}


async def test_a_folder_that_was_moved_is_searched_where_it_is(library: Library, search: SearchEngine):
    names, made = await shelved(library)
    await library.do(lambda tx: folders.move(library.call, tx, names["aa"], names["b"]))
    assert await ids(library.call, search, folders=[names["b"]]) == {made[name].id for name in ("b", "aa", "aaa")}
    assert await ids(library.call, search, folders=[names["a"]]) == {made["a"].id}


async def test_all_that_is_named_has_to_hold(library: Library, search: SearchEngine):
    names, made = await shelved(library)
    other = await base_of(library, "Other")
    there = await library.shelve("x.txt", "A pump elsewhere.", base=other)
    assert await ids(library.call, search, documents=[made["a"].id, there.id]) == {made["a"].id, there.id}
    assert await ids(library.call, search, documents=[made["a"].id, there.id], bases=[other.id]) == {there.id}
    assert await ids(library.call, search, documents=[made["a"].id, made["b"].id], folders=[names["b"]]) == {
        made["b"].id
    }
    nothing = await document_search.search_documents(
        library.call, search, about(folders=[names["a"]], bases=[other.id])
    )
    assert nothing.hits == ()
    assert nothing.notes == ("The bases, folders and documents that were named have nothing in common.",)


async def test_where_too_many_bases_may_be_read_the_newest_are_searched(
    library: Library, search: SearchEngine, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(document_search, "MAX_SEARCHED_BASES", 2)
    old = await library.shelve("old.txt", "A pump.")
    newer = [
        await library.shelve("new.txt", "A pump.", base=await base_of(library, f"Newer {number}")) for number in "ab"
    ]
    found = await document_search.search_documents(library.call, search, about())
    assert {hit.document_id for hit in found.hits} == {each.id for each in newer}
    assert found.notes[0].startswith("You may read more than 2 knowledge bases; the newest were searched.")
    assert await ids(library.call, search, bases=[library.base.id]) == {old.id}


async def test_more_folders_than_can_be_searched_are_refused(
    library: Library, search: SearchEngine, monkeypatch: pytest.MonkeyPatch
):
    names, _ = await shelved(library)
    monkeypatch.setattr(document_search, "MAX_SEARCHED_FOLDERS", 2)
    error = await refusal(library.call, search, folders=[names["a"]])
    assert isinstance(error, BadRequest)
    assert "more than 2 folders" in error.message
    assert len(await ids(library.call, search, folders=[names["aa"]])) == 2


# What else narrows a search


async def test_tags_dates_and_metadata_narrow_a_search(library: Library, search: SearchEngine):
    first = await library.shelve("a.txt", "A pump.", tags=("wet", "old"), metadata={"year": 1990})
    second = await library.shelve("b.txt", "A pump.", tags=("wet",), metadata={"year": 2020})
    for number, (document, day) in enumerate(((first, "2024-03-31"), (second, "2024-04-01"))):
        at = (
            document_search.question(about(created_from=day), document_search.DocumentScope(())).filter.created_from
            or 0
        )
        await library.do(
            lambda tx, id=document.id, at=at, n=number: tx.execute(
                "UPDATE sources SET created_at = $2, updated_at = $2 WHERE owner_id = $1", str(id), at + 1 - n
            )
        )
    for given, expected in (
        ({"tags": ["wet"]}, {first.id, second.id}),
        ({"tags": ["wet", "old"]}, {first.id}),
        ({"condition": {"key": "year", "op": "eq", "value": 2020}}, {second.id}),
        ({"created_until": "2024-03-31"}, {first.id}),  # the whole day
        ({"created_until": "20240331"}, {first.id}),
        ({"created_until": "2024-W13-7"}, {first.id}),
        ({"created_until": "2024-03-31T00:00:00Z"}, set[int]()),
        ({"created_from": "2024-04-01"}, {second.id}),
        ({"created_from": "2024-04-01T02:00:00+02:00"}, {second.id}),
        ({"created_from": "2024-04-01T00:00:00.000001Z"}, set[int]()),
    ):
        assert await ids(library.call, search, **given) == expected, given


async def test_a_page_follows_the_one_before_it(library: Library, search: SearchEngine):
    made = {(await library.shelve(f"{number}.txt", f"The pump {number}.")).id for number in range(5)}
    seen: list[int] = []
    for offset in (0, 2, 4):
        found = await document_search.search_documents(library.call, search, about(limit=2, offset=offset))
        seen += [hit.document_id for hit in found.hits]
        assert found.has_more is (offset < 4)
    assert set(seen) == made
    assert len(seen) == 5


@pytest.mark.parametrize(
    "given",
    [
        {"query": ""},
        {"query": " \n"},
        {"query": "x" * 4001},
        {"limit": 0},
        {"limit": 51},
        {"offset": -1},
        {"min_score": 1.01},
        {"min_score": "0.5"},
        {"mode": "magic"},
        {"bases": ["1"]},
        {"bases": [-1]},
        {"folders": [2**63]},
        {"documents": list(range(501))},
        {"tags": [1]},
        {"created_from": "yesterday"},
        {"updated_until": "2024-13-01"},
        {"rerank": 1},
        {"colour": "red"},
    ],
    ids=str,
)
def test_what_makes_no_sense_is_refused(given: dict[str, Any]):
    with pytest.raises(ValidationError):
        SearchArguments.model_validate({"query": "pump", **given})


@pytest.mark.parametrize("far", ["0001-01-01", "9999-12-31", "0001-01-01T00:00:00+23:59", "9999-12-31T23:59:59-23:59"])
def test_the_farthest_dates_can_be_asked_for(far: str):
    asked = document_search.question(
        about(created_from=far, updated_until=far), document_search.DocumentScope(("base:1",))
    ).filter
    assert isinstance(asked.created_from, int)
    assert asked.created_from < 0 or asked.created_from > 2**57


async def test_a_time_that_ends_before_it_begins_is_refused(library: Library, search: SearchEngine):
    for what in ("created", "updated"):
        times = {f"{what}_from": "2026-11-16", f"{what}_until": "2026-11-01"}
        assert f"{what}_from is after {what}_until" in (await refusal(library.call, search, **times)).message
        await ids(library.call, search, **dict.fromkeys(times, "2026-11-16"))  # all of a day


# What is noted


async def test_what_was_named_and_what_was_found_is_in_the_audit_trail(library: Library, search: SearchEngine):
    found = await library.shelve("a.txt", "A pump.")
    await library.shelve("b.txt", "Nothing of the kind.")
    named = replace(library.call, accessed=[])
    await document_search.search_documents(named, search, about(bases=[library.base.id]))
    assert named.accessed == [f"base:{library.base.id}", f"document:{found.id}"]
    unnamed = replace(library.call, accessed=[])
    await document_search.search_documents(unnamed, search, about())
    assert unnamed.accessed == [f"document:{found.id}"]


# Citations


async def test_what_was_quoted_is_verified_and_a_change_is_noticed(library: Library, search: SearchEngine):
    document = await library.shelve("a.txt", "The pump runs at forty turns.")
    [hit] = (await document_search.search_documents(library.call, search, about())).hits
    cited = CitationArguments(id=hit.id, hash=hit.found.hash, start=hit.found.start, end=hit.found.end)
    assert (await document_search.verify(library.call, cited)).outcome == "unchanged"
    assert (
        await document_search.verify(library.call, CitationArguments(id=hit.id, text="forty turns"))
    ).outcome == "unchanged"
    await library.replace(document.id, "The pump runs at fifty turns.")
    await library.read_all()
    assert (await document_search.verify(library.call, cited)).outcome == "changed"
    await library.do(lambda tx: documents.remove(library.call, tx, [document.id]))
    assert (await document_search.verify(library.call, cited)).outcome == "gone"


async def test_a_quotation_is_on_the_page_where_it_stands_whichever_its_passage_begins_on(
    library: Library, search: SearchEngine
):
    await library.shelve("a.txt", "The pump runs.\fThe valve closes.\fThe lamp burns.")
    [hit] = (await document_search.search_documents(library.call, search, about())).hits
    assert hit.found.page == 1
    for text, page in {"pump": 1, "valve closes": 2, "lamp": 3}.items():
        verdict = await document_search.verify(library.call, CitationArguments(id=hit.id, text=text))
        assert (verdict.outcome, verdict.page) == ("unchanged", page)


async def test_what_a_caller_may_not_read_is_gone_for_them_as_if_it_had_never_been(
    library: Library, search: SearchEngine
):
    document = await library.shelve("a.txt", "A pump.")
    stranger = await caller(library, "stranger")
    foreign = document_search.document_ref(document.id)
    assert await document_search.verify(
        stranger, CitationArguments(id=foreign, text="A pump.")
    ) == await document_search.verify(stranger, CitationArguments(id="document:77001", text="A pump."))
    assert stranger.accessed == []


@pytest.mark.parametrize(
    "id", ["", "12", "document:", "document:0", "document:x", "note:1", f"document:{2**63}", "document:1 "]
)
async def test_an_id_that_search_does_not_give_is_refused(library: Library, id: str):
    with pytest.raises(BadRequest, match="is not one that search gives"):
        await document_search.verify(library.call, CitationArguments(id=id, text="x"))


async def test_a_citation_without_anything_cited_is_refused(library: Library):
    with pytest.raises(BadRequest, match="its hash"):
        await document_search.verify(library.call, CitationArguments(id="document:1"))
