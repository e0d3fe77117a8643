"""Searches of knowledge bases: permissions, scopes, filters, errors and citations."""

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
from tests.knowledge.test_access_matrix import CALLERS, BaseIds, Scenario, expectations, generalised
from tests.knowledge.workspace import Workspace
from tests.live_server import settings_for


@pytest.fixture
async def search(workspace: Workspace, database_url: str, tmp_path: Path) -> AsyncIterator[SearchEngine]:
    async with open_search(settings_for(database_url, tmp_path / "home"), workspace.db) as opened:
        yield opened


def about(query: str = "pump", **more: Any) -> SearchArguments:
    return SearchArguments(query=query, mode="keyword", **more)


async def ids(call: Call, search: SearchEngine, **more: Any) -> set[int]:
    """The ids of the documents that a search finds."""
    results = await document_search.search_documents(call, search, about(limit=50, **more))
    return {hit.document_id for hit in results.hits}


async def caller(workspace: Workspace, name: str, **limits: Any) -> Call:
    return workspace.town.call(await workspace.town.actor(await workspace.town.add(name), **limits))


async def add_base(workspace: Workspace, name: str, **more: Any) -> KnowledgeBase:
    return await workspace.do(lambda tx: bases.add(workspace.call, tx, name, **more))


async def refusal(call: Call, search: SearchEngine, **more: Any) -> AlmanacError:
    with pytest.raises(AlmanacError) as caught:
        await document_search.search_documents(call, search, about(**more))
    return caught.value


# Permissions


def ids_by_kind(ids: BaseIds) -> dict[str, int]:
    return {"base_ids": ids.base, "folder_ids": ids.folder, "document_ids": ids.document}


async def test_search_finds_exactly_the_documents_that_the_table_permits(workspace: Workspace, search: SearchEngine):
    scenario = await Scenario(workspace).build()
    wrong: list[str] = []
    for name, level, role in expectations():
        ids_of_base, call = scenario.ids(name, level), scenario.town.call(scenario.actors[name])
        may_read = role is not None and role >= Role.Reporter
        if (f"base:{ids_of_base.base}" in (await document_search.resolve_scope(call)).collections) is not may_read:
            wrong.append(f"{name} searching everything: a {level} base")
        for what, named in {
            "base_ids": ids_of_base.base,
            "folder_ids": ids_of_base.folder,
            "document_ids": ids_of_base.document,
        }.items():
            try:
                found = await ids(call, search, query="one two", **{what: [named]})
                outcome = "found" if found == {ids_of_base.document} else f"found {found}"
            except AlmanacError as error:
                outcome = "NotFound" if isinstance(error, NotFound) else type(error).__name__
            if outcome != ("found" if may_read else "Forbidden" if role else "NotFound"):
                wrong.append(f"{name} searching {what} of a {level} base: {outcome}")
    assert wrong == []
    assert len(CALLERS.strip().splitlines()) == 26


async def test_search_errors_for_a_hidden_and_for_a_missing_object_are_the_same(
    workspace: Workspace, search: SearchEngine
):
    scenario = await Scenario(workspace).build()
    call = scenario.town.call(scenario.actors["foreign-admin"])
    for ids_of_base in scenario.base_ids.values():
        for what, named in {
            "base_ids": ids_of_base.base,
            "folder_ids": ids_of_base.folder,
            "document_ids": ids_of_base.document,
        }.items():
            hidden = await refusal(call, search, **{what: [named]})
            missing = await refusal(call, search, **{what: [77_001]})
            assert generalised(hidden) == generalised(missing)
            assert isinstance(hidden, NotFound)


async def test_search_gives_the_usual_error_for_a_base_that_cannot_be_read(workspace: Workspace, search: SearchEngine):
    stranger = await caller(workspace, "stranger")
    with pytest.raises(NotFound) as elsewhere:
        await bases.get(workspace.db, stranger, workspace.base.id)
    assert (await refusal(stranger, search, base_ids=[workspace.base.id])).text == elsewhere.value.text


async def test_a_search_of_several_bases_is_refused_if_one_of_them_cannot_be_read(
    workspace: Workspace, search: SearchEngine
):
    await workspace.add_parsed("a.txt", "A pump.")
    assert isinstance(await refusal(workspace.call, search, base_ids=[workspace.base.id, 77_001]), NotFound)


async def test_a_restricted_analyst_finds_no_text(workspace: Workspace, search: SearchEngine):
    await workspace.add_parsed("a.txt", "A pump.")
    analyst = await caller(workspace, "analyst")
    await workspace.do(
        lambda tx: bases.share(workspace.call, tx, workspace.base.id, Role.RestrictedAnalyst, user="analyst")
    )
    assert await ids(analyst, search) == set()
    assert isinstance(await refusal(analyst, search, base_ids=[workspace.base.id]), Forbidden)


async def test_a_token_limited_to_bases_finds_nothing_in_others(workspace: Workspace, search: SearchEngine):
    other = await add_base(workspace, "Other")
    here = await workspace.add_parsed("a.txt", "A pump.")
    await workspace.add_parsed("b.txt", "Another pump.", base=other)
    limited = workspace.town.call(await workspace.town.actor(workspace.owner, bases=[workspace.base.id]))
    assert await ids(limited, search) == {here.id}
    assert isinstance(await refusal(limited, search, base_ids=[other.id]), NotFound)


async def test_a_revoked_role_finds_nothing(workspace: Workspace, search: SearchEngine):
    document = await workspace.add_parsed("a.txt", "A pump.")
    maria = await caller(workspace, "maria")
    assert await ids(maria, search) == set()
    await workspace.do(lambda tx: bases.share(workspace.call, tx, workspace.base.id, Role.Reporter, user="maria"))
    assert await ids(maria, search) == {document.id}
    await workspace.do(lambda tx: bases.share(workspace.call, tx, workspace.base.id, None, user="maria"))
    assert await ids(maria, search) == set()


async def test_a_note_says_that_the_caller_may_read_no_base(workspace: Workspace, search: SearchEngine):
    results = await document_search.search_documents(await caller(workspace, "newcomer"), search, about())
    assert (results.hits, results.notes) == ((), ("There is no knowledge base that you may read.",))


# Removed and disabled documents


async def test_a_base_in_the_trash_is_not_searched_until_it_is_restored(workspace: Workspace, search: SearchEngine):
    document = await workspace.add_parsed("a.txt", "A pump.")
    await workspace.do(lambda tx: bases.remove(workspace.call, tx, workspace.base.id))
    assert await ids(workspace.call, search) == set()
    for named in ({"base_ids": [workspace.base.id]}, {"document_ids": [document.id]}):
        assert isinstance(await refusal(workspace.call, search, **named), NotFound)
    await workspace.do(lambda tx: bases.restore(workspace.call, tx, workspace.base.id))
    assert await ids(workspace.call, search) == {document.id}


async def test_disabled_and_removed_documents_are_not_found(workspace: Workspace, search: SearchEngine):
    first, second = await workspace.add_parsed("a.txt", "A pump."), await workspace.add_parsed("b.txt", "A pump too.")
    await workspace.do(lambda tx: documents.enable(workspace.call, tx, [first.id], False))
    assert await ids(workspace.call, search) == {second.id}
    await workspace.do(lambda tx: documents.remove(workspace.call, tx, [second.id]))
    assert await ids(workspace.call, search) == set()
    assert isinstance(await refusal(workspace.call, search, document_ids=[second.id]), NotFound)


@pytest.mark.parametrize("way", ["removed", "moved"])
async def test_a_document_that_is_removed_or_moved_during_a_search_is_not_shown(
    workspace: Workspace, search: SearchEngine, monkeypatch: pytest.MonkeyPatch, way: str
):
    document, other = await workspace.add_parsed("a.txt", "A pump."), await add_base(workspace, "Other")
    real_search = search.search

    async def find(query: SearchQuery) -> SearchResponse:
        response = await real_search(query)
        assert [each.object_id for each in response.results] == [str(document.id)]
        if way == "removed":
            await workspace.do(lambda tx: documents.remove(workspace.call, tx, [document.id]))
        else:
            await workspace.do(lambda tx: documents.move(workspace.call, tx, [document.id], 0, other.id))
        return response

    monkeypatch.setattr(search, "search", find)
    assert await ids(workspace.call, search, base_ids=[workspace.base.id]) == set()


# Scopes


async def nested_folders(workspace: Workspace) -> tuple[dict[str, int], dict[str, Document]]:
    """Nested folders, each with a document about a pump."""
    names = {"top": 0}
    for name, above in (("a", "top"), ("aa", "a"), ("aaa", "aa"), ("b", "top")):
        names[name] = (await workspace.add_folder(name, names[above])).id
    found = {
        name: await workspace.add_parsed(f"{name}.txt", f"The pump {name}.", folder_id=at) for name, at in names.items()
    }
    return names, found


async def test_a_search_of_a_folder_includes_all_folders_below_it(workspace: Workspace, search: SearchEngine):
    names, made = await nested_folders(workspace)
    for named, expected in ((["a"], "a aa aaa"), (["aa"], "aa aaa"), (["aa", "b"], "aa aaa b")):
        places = [names[name] for name in named]
        assert await ids(workspace.call, search, folder_ids=places) == {made[name].id for name in expected.split()}


async def test_a_moved_folder_is_searched_in_its_new_place(workspace: Workspace, search: SearchEngine):
    names, made = await nested_folders(workspace)
    await workspace.do(lambda tx: folders.move(workspace.call, tx, names["aa"], names["b"]))
    assert await ids(workspace.call, search, folder_ids=[names["b"]]) == {made[name].id for name in ("b", "aa", "aaa")}
    assert await ids(workspace.call, search, folder_ids=[names["a"]]) == {made["a"].id}


async def test_a_search_finds_the_intersection_of_bases_folders_and_documents(
    workspace: Workspace, search: SearchEngine
):
    names, made = await nested_folders(workspace)
    other = await add_base(workspace, "Other")
    there = await workspace.add_parsed("x.txt", "A pump elsewhere.", base=other)
    assert await ids(workspace.call, search, document_ids=[made["a"].id, there.id]) == {made["a"].id, there.id}
    assert await ids(workspace.call, search, document_ids=[made["a"].id, there.id], base_ids=[other.id]) == {there.id}
    assert await ids(workspace.call, search, document_ids=[made["a"].id, made["b"].id], folder_ids=[names["b"]]) == {
        made["b"].id
    }
    nothing = await document_search.search_documents(
        workspace.call, search, about(folder_ids=[names["a"]], base_ids=[other.id])
    )
    assert nothing.hits == ()
    assert nothing.notes == ("The requested bases, folders and documents have no document in common.",)


async def test_only_the_newest_bases_are_searched_if_there_are_too_many(
    workspace: Workspace, search: SearchEngine, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(document_search, "MAX_SEARCHED_BASES", 2)
    old = await workspace.add_parsed("old.txt", "A pump.")
    newer = [
        await workspace.add_parsed("new.txt", "A pump.", base=await add_base(workspace, f"Newer {number}"))
        for number in "ab"
    ]
    results = await document_search.search_documents(workspace.call, search, about())
    assert {hit.document_id for hit in results.hits} == {each.id for each in newer}
    assert results.notes[0].startswith("You may read more than 2 knowledge bases; the newest were searched.")
    assert await ids(workspace.call, search, base_ids=[workspace.base.id]) == {old.id}


async def test_too_many_folders_are_refused(
    workspace: Workspace, search: SearchEngine, monkeypatch: pytest.MonkeyPatch
):
    names, _ = await nested_folders(workspace)
    monkeypatch.setattr(document_search, "MAX_SEARCHED_FOLDERS", 2)
    error = await refusal(workspace.call, search, folder_ids=[names["a"]])
    assert isinstance(error, BadRequest)
    assert "more than 2 folders" in error.message
    assert len(await ids(workspace.call, search, folder_ids=[names["aa"]])) == 2


# Filters and pages


async def test_tags_dates_and_metadata_restrict_a_search(workspace: Workspace, search: SearchEngine):
    first = await workspace.add_parsed("a.txt", "A pump.", tags=("wet", "old"), metadata={"year": 1990})
    second = await workspace.add_parsed("b.txt", "A pump.", tags=("wet",), metadata={"year": 2020})
    for number, (document, day) in enumerate(((first, "2024-03-31"), (second, "2024-04-01"))):
        at = (
            document_search.build_query(about(created_from=day), document_search.DocumentScope(())).filter.created_from
            or 0
        )
        await workspace.do(
            lambda tx, id=document.id, at=at, n=number: tx.execute(
                "UPDATE sources SET created_at = $2, updated_at = $2 WHERE owner_id = $1", str(id), at + 1 - n
            )
        )
    for arguments, expected in (
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
        assert await ids(workspace.call, search, **arguments) == expected, arguments


async def test_a_page_follows_the_one_before_it(workspace: Workspace, search: SearchEngine):
    made = {(await workspace.add_parsed(f"{number}.txt", f"The pump {number}.")).id for number in range(5)}
    seen: list[int] = []
    for offset in (0, 2, 4):
        results = await document_search.search_documents(workspace.call, search, about(limit=2, offset=offset))
        seen += [hit.document_id for hit in results.hits]
        assert results.has_more is (offset < 4)
    assert set(seen) == made
    assert len(seen) == 5


@pytest.mark.parametrize(
    "arguments",
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
        {"base_ids": ["1"]},
        {"base_ids": [-1]},
        {"folder_ids": [2**63]},
        {"document_ids": list(range(501))},
        {"tags": [1]},
        {"created_from": "yesterday"},
        {"updated_until": "2024-13-01"},
        {"rerank": 1},
        {"colour": "red"},
    ],
    ids=str,
)
def test_invalid_arguments_are_refused(arguments: dict[str, Any]):
    with pytest.raises(ValidationError):
        SearchArguments.model_validate({"query": "pump", **arguments})


@pytest.mark.parametrize("far", ["0001-01-01", "9999-12-31", "0001-01-01T00:00:00+23:59", "9999-12-31T23:59:59-23:59"])
def test_the_earliest_and_latest_dates_can_be_used(far: str):
    filter = document_search.build_query(
        about(created_from=far, updated_until=far), document_search.DocumentScope(("base:1",))
    ).filter
    assert isinstance(filter.created_from, int)
    assert filter.created_from < 0 or filter.created_from > 2**57


async def test_a_period_that_ends_before_it_begins_is_refused(workspace: Workspace, search: SearchEngine):
    for what in ("created", "updated"):
        times = {f"{what}_from": "2026-11-16", f"{what}_until": "2026-11-01"}
        assert f"{what}_from is after {what}_until" in (await refusal(workspace.call, search, **times)).message
        await ids(workspace.call, search, **dict.fromkeys(times, "2026-11-16"))  # all of a day


# The audit trail


async def test_requested_and_found_objects_are_in_the_audit_trail(workspace: Workspace, search: SearchEngine):
    found = await workspace.add_parsed("a.txt", "A pump.")
    await workspace.add_parsed("b.txt", "Nothing of the kind.")
    named = replace(workspace.call, accessed=[])
    await document_search.search_documents(named, search, about(base_ids=[workspace.base.id]))
    assert named.accessed == [f"base:{workspace.base.id}", f"document:{found.id}"]
    unnamed = replace(workspace.call, accessed=[])
    await document_search.search_documents(unnamed, search, about())
    assert unnamed.accessed == [f"document:{found.id}"]


# Citations


async def test_a_quotation_is_verified_and_a_change_is_detected(workspace: Workspace, search: SearchEngine):
    document = await workspace.add_parsed("a.txt", "The pump runs at forty turns.")
    [hit] = (await document_search.search_documents(workspace.call, search, about())).hits
    citation, span = CitationArguments(id=hit.id, hash=hit.found.hash), (hit.found.start, hit.found.end)
    assert (await document_search.verify(workspace.call, citation, span)).outcome == "unchanged"
    assert (
        await document_search.verify(workspace.call, CitationArguments(id=hit.id, text="forty turns"))
    ).outcome == "unchanged"
    await workspace.replace(document.id, "The pump runs at fifty turns.")
    await workspace.run_jobs()
    assert (await document_search.verify(workspace.call, citation, span)).outcome == "changed"
    await workspace.do(lambda tx: documents.remove(workspace.call, tx, [document.id]))
    assert (await document_search.verify(workspace.call, citation, span)).outcome == "gone"


async def test_a_quotation_has_its_own_page_and_not_that_of_the_start_of_its_passage(
    workspace: Workspace, search: SearchEngine
):
    await workspace.add_parsed("a.txt", "The pump runs.\fThe valve closes.\fThe lamp burns.")
    [hit] = (await document_search.search_documents(workspace.call, search, about())).hits
    assert hit.found.page == 1
    for text, page in {"pump": 1, "valve closes": 2, "lamp": 3}.items():
        check = await document_search.verify(workspace.call, CitationArguments(id=hit.id, text=text))
        assert (check.outcome, check.page) == ("unchanged", page)


async def test_a_document_that_the_caller_may_not_read_is_reported_as_gone(workspace: Workspace, search: SearchEngine):
    document = await workspace.add_parsed("a.txt", "A pump.")
    stranger = await caller(workspace, "stranger")
    foreign = document_search.document_ref(document.id)
    assert await document_search.verify(
        stranger, CitationArguments(id=foreign, text="A pump.")
    ) == await document_search.verify(stranger, CitationArguments(id="document:77001", text="A pump."))
    assert stranger.accessed == []


@pytest.mark.parametrize(
    "id", ["", "12", "document:", "document:0", "document:x", "note:1", f"document:{2**63}", "document:1 "]
)
async def test_an_id_in_another_format_is_refused(workspace: Workspace, id: str):
    with pytest.raises(BadRequest, match=r"is not the id of a search result|is that of a note"):
        await document_search.verify(workspace.call, CitationArguments(id=id, text="x"))


async def test_a_citation_without_hash_or_text_is_refused(workspace: Workspace):
    with pytest.raises(BadRequest, match="the hash of the quotation"):
        await document_search.verify(workspace.call, CitationArguments(id="document:1"))
