"""Knowledge bases: made, found, changed, shared, removed and restored."""

from dataclasses import replace
from typing import Any

import pytest

from almanac.core import clock
from almanac.core.call import Call
from almanac.core.errors import BadRequest, Forbidden, NotFound
from almanac.identity import principals
from almanac.identity.roles import Role
from almanac.knowledge import bases, document_tree, documents
from almanac.knowledge.bases import KnowledgeBase, Share
from almanac.knowledge.ingest.splitter import PassageSplitter
from tests.knowledge.library import Library, operator_of


async def make(library: Library, name: str, call: Call | None = None, **how: Any) -> KnowledgeBase:
    return await library.do(lambda tx: bases.add(call or library.call, tx, name, **how))


async def names(call: Call, **how: Any) -> list[str]:
    return [base.name for base in (await bases.find(call, **how)).items]


async def test_a_new_base_is_its_maker_s_and_has_what_was_said_of_it(library: Library):
    splitter = PassageSplitter(size=900)
    made = await library.do(
        lambda tx: bases.add(library.call, tx, "  Pumps \n and  valves ", description=" All. ", splitter=splitter)
    )
    assert (made.name, made.description, made.level, made.role) == ("Pumps and valves", "All.", "personal", Role.Owner)
    assert (made.owner_id, made.owner_name) == (library.librarian.id, "librarian")
    assert made.splitter == splitter
    assert made.collection == f"base:{made.id}"
    assert await bases.get(library.db, library.call, made.id) == made


@pytest.mark.parametrize("name", ["", "  ", "x" * 101, "a\x00b", "half \ud800", "bell\x07"])
async def test_a_name_that_cannot_be_used_is_refused_and_makes_nothing(library: Library, name: str):
    with pytest.raises(BadRequest):
        await make(library, name)
    with pytest.raises(BadRequest):
        await library.do(lambda tx: bases.update(library.call, tx, library.base.id, name=name))
    assert await library.count("bases") == 1


@pytest.mark.parametrize("text", ["x" * 501, "a\x00b", "half \udfff"])
async def test_a_description_that_cannot_be_used_is_refused(library: Library, text: str):
    with pytest.raises(BadRequest):
        await make(library, "Pumps", description=text)
    with pytest.raises(BadRequest):
        await library.do(lambda tx: bases.update(library.call, tx, library.base.id, description=text))


async def test_the_longest_name_and_description_fit_in_any_script(library: Library):
    made = await make(library, "水" * 100, description="𝄞" * 500)
    assert (len(made.name), len(made.description)) == (100, 500)


@pytest.mark.parametrize(
    "how", [{"level": "galactic"}, {"level": "group"}, {"group": "team"}, {"level": "organization", "group": "team"}]
)
async def test_a_level_and_a_group_that_do_not_go_together_are_refused(library: Library, how: dict[str, Any]):
    await library.town.group("team", librarian=Role.Owner)
    with pytest.raises(BadRequest):
        await make(library, "Pumps", **how)


async def test_bases_are_listed_newest_first_a_page_at_a_time(library: Library):
    for number in range(5):
        await make(library, f"Base {number}")
    first = await bases.find(library.call, limit=4)
    rest = await bases.find(library.call, limit=4, offset=4)
    assert [base.name for base in (*first.items, *rest.items)] == [
        "Base 4", "Base 3", "Base 2", "Base 1", "Base 0", "Manuals",
    ]  # fmt: skip
    assert (first.total, first.has_more, rest.total, rest.has_more) == (6, True, 6, False)
    beyond = await bases.find(library.call, limit=4, offset=100)
    assert (list(beyond.items), beyond.total, beyond.has_more) == ([], 6, False)


@pytest.mark.parametrize(
    ("query", "found"),
    [
        ("pump", ["Ölpumpe 100%", "Pumps"]),
        ("PUMP", ["Ölpumpe 100%", "Pumps"]),
        ("öLpUMPE", ["Ölpumpe 100%"]),
        ("%", ["Ölpumpe 100%"]),
        ("_", ["snake_case"]),
        ("\\", ["back\\slash"]),
        ("STRASSE", ["Straße"]),
        ("oil", ["Pumps"]),
        ("nothing", []),
    ],
)
async def test_a_query_finds_names_and_descriptions_in_any_case_and_takes_every_character_for_itself(
    library: Library, query: str, found: list[str]
):
    await make(library, "Pumps", description="for OIL and water")
    for name in ("Ölpumpe 100%", "snake_case", "back\\slash", "Straße"):
        await make(library, name)
    assert sorted(await names(library.call, query=query)) == sorted(found)


@pytest.mark.parametrize("how", [{"query": "a\x00"}, {"query": "\ud800"}, {"group": "a\x00"}, {"scope": "none"}])
async def test_what_cannot_be_looked_for_is_refused(library: Library, how: dict[str, Any]):
    with pytest.raises(BadRequest):
        await bases.find(library.call, **how)


async def test_scopes_divide_what_one_sees(library: Library):
    town, mine = library.town, library.call
    admin = town.call(await town.actor(await town.add("boss", admin=True)))
    other = town.call(await town.actor(await town.add("adam")))
    await town.group("team", librarian=Role.Developer)
    await town.group("crew", adam=Role.Owner)
    await make(library, "Team's", mine, level="group", group="team")
    await make(library, "Everyone's", admin, level="organization")
    await make(library, "Crew's", other, level="group", group="crew")
    lent = await make(library, "Adam's", other)
    await library.do(lambda tx: bases.share(other, tx, lent.id, Role.Reporter, user="librarian"))
    await make(library, "Adam's secret", other)
    assert sorted(await names(mine)) == ["Adam's", "Everyone's", "Manuals", "Team's"]
    assert sorted(await names(mine, scope="personal")) == ["Adam's", "Manuals"]
    assert await names(mine, scope="group") == ["Team's"]
    assert await names(mine, scope="group", group="team") == ["Team's"]
    assert await names(mine, scope="group", group="crew") == []
    assert await names(mine, scope="organization") == ["Everyone's"]
    assert sorted(await names(admin)) == ["Crew's", "Everyone's", "Team's"]
    assert await names(admin, scope="personal") == []
    assert sorted(await names(admin, scope="group")) == ["Crew's", "Team's"]
    assert await names(mine, owners=[other.actor.id]) == ["Adam's"]
    operator = town.call(operator_of(mine.actor))
    assert len(await names(operator)) == 6
    assert sorted(await names(operator, scope="personal")) == ["Adam's", "Adam's secret", "Manuals"]
    assert sorted(await names(operator, scope="group")) == ["Crew's", "Team's"]
    assert await names(operator, scope="organization") == ["Everyone's"]


async def test_a_listing_counts_the_documents_of_its_page_without_those_in_the_trash(library: Library):
    empty = await make(library, "Empty")
    kept = await library.add("a.txt", "A")
    gone = await library.add("b.txt", "B")
    await library.do(lambda tx: documents.remove(library.call, tx, [gone.document.id]))
    found = {base.id: base.documents for base in (await bases.find(library.call)).items}
    assert found == {empty.id: 0, library.base.id: 1}
    assert kept.document.base_id == library.base.id


async def test_a_token_limited_to_bases_lists_no_others(library: Library):
    other = await make(library, "Other")
    limited = Call(replace(library.call.actor, bases=frozenset({other.id})), library.db, "r")
    assert await names(limited) == ["Other"]
    nowhere = Call(replace(library.call.actor, bases=frozenset({999_999})), library.db, "r")
    assert await names(nowhere) == []


async def test_a_change_keeps_what_it_does_not_name(library: Library):
    made = await make(library, "Pumps", description="Oil")
    renamed = await library.do(lambda tx: bases.update(library.call, tx, made.id, name="Valves"))
    assert (renamed.name, renamed.description) == ("Valves", "Oil")
    described = await library.do(lambda tx: bases.update(library.call, tx, made.id, description=""))
    assert (described.name, described.description) == ("Valves", "")
    cut = await library.do(lambda tx: bases.update(library.call, tx, made.id, splitter=PassageSplitter(size=999)))
    assert (cut.name, cut.splitter.size, cut.created_at) == ("Valves", 999, made.created_at)
    assert await names(library.call, query="pumps") == []
    assert await names(library.call, query="valves") == ["Valves"]


async def test_sharing_gives_changes_and_takes_back_a_role(library: Library):
    town, base = library.town, library.base
    maria = town.call(await town.actor(await town.add("maria")))
    await town.group("crew", maria=Role.RestrictedAnalyst)

    async def share(role: Role | None, **whom: str) -> None:
        await library.do(lambda tx: bases.share(library.call, tx, base.id, role, **whom))

    await share(Role.Reporter, user="maria")
    await share(Role.Developer, group="crew")
    assert (await bases.get(library.db, maria, base.id)).role is Role.Developer
    assert await bases.shares(library.db, library.call, base.id) == [
        Share("user", "maria", Role.Reporter),
        Share("group", "crew", Role.Developer),
    ]
    await share(Role.Maintainer, user="maria")
    assert (await bases.get(library.db, maria, base.id)).role is Role.Maintainer
    await share(None, user="maria")
    assert (await bases.get(library.db, maria, base.id)).role is Role.Developer
    await share(None, group="crew")
    with pytest.raises(NotFound):
        await bases.get(library.db, maria, base.id)
    with pytest.raises(NotFound):
        await share(None, group="crew")


async def test_nobody_gives_a_role_above_their_own_nor_shares_with_strangers(library: Library):
    town, base = library.town, library.base
    deputy = town.call(await town.actor(await town.add("deputy")))
    await town.add("outsider", org=town.other)
    await town.group("circle", town.other)
    await library.do(lambda tx: bases.share(library.call, tx, base.id, Role.Maintainer, user="deputy"))
    await library.do(lambda tx: bases.share(deputy, tx, base.id, Role.Maintainer, user="deputy"))
    with pytest.raises(Forbidden, match="cannot make anybody Owner"):
        await library.do(lambda tx: bases.share(deputy, tx, base.id, Role.Owner, user="deputy"))
    for whom in ({"user": "outsider"}, {"group": "circle"}):
        with pytest.raises(NotFound):
            await library.do(lambda tx, w=whom: bases.share(library.call, tx, base.id, Role.Reporter, **w))
    for whom in (dict[str, str](), {"user": "deputy", "group": "circle"}):
        with pytest.raises(BadRequest):
            await library.do(lambda tx, w=whom: bases.share(library.call, tx, base.id, Role.Reporter, **w))
    assert len(await bases.shares(library.db, library.call, base.id)) == 1


async def test_nobody_takes_from_another_a_role_above_their_own(library: Library):
    town, base_id = library.town, library.base.id
    for name, role in (("boss", Role.Owner), ("keeper", Role.Maintainer)):
        await town.add(name)
        await library.do(lambda tx, name=name, role=role: bases.share(library.call, tx, base_id, role, user=name))
    keeper = town.call(await town.actor(await principals.get_by_name(library.db, town.acme.id, "keeper")))
    for role in (None, Role.Reporter):
        with pytest.raises(Forbidden, match="'boss' is Owner here, and you are Maintainer"):
            await library.do(lambda tx, role=role: bases.share(keeper, tx, base_id, role, user="boss"))
    assert {(s.name, s.role) for s in await bases.shares(library.db, library.call, base_id)} == {
        ("boss", Role.Owner),
        ("keeper", Role.Maintainer),
    }


async def test_a_removed_base_and_all_in_it_are_gone_until_it_is_restored(library: Library):
    folder = await library.folder("Pumps")
    document = await library.shelve("a.txt", "A text.", folder_id=folder.id)
    await library.do(lambda tx: bases.remove(library.call, tx, library.base.id))
    for look in (
        lambda: bases.get(library.db, library.call, library.base.id),
        lambda: library.get(document.id),
        lambda: document_tree.browse(library.call, library.base.id),
        lambda: document_tree.browse(library.call, library.base.id, folder.id),
        lambda: library.do(lambda tx: bases.remove(library.call, tx, library.base.id)),
    ):
        with pytest.raises(NotFound):
            await look()
    assert await names(library.call) == []
    assert await names(library.call, removed=True) == ["Manuals"]
    back = await library.do(lambda tx: bases.restore(library.call, tx, library.base.id))
    assert back.removed_at is None
    assert (await library.get(document.id)).index_status == "success"
    assert await names(library.call, removed=True) == []
    with pytest.raises(NotFound):
        await library.do(lambda tx: bases.restore(library.call, tx, library.base.id))


async def test_what_a_call_touched_is_noted_for_the_trail(library: Library):
    call = library.town.call(library.call.actor)
    await bases.get(library.db, call, library.base.id)
    assert call.accessed == [f"base:{library.base.id}"]
    with pytest.raises(NotFound):
        await bases.get(library.db, call, 4_000)
    assert call.accessed == [f"base:{library.base.id}"]


async def test_two_bases_may_have_one_name_and_are_told_apart_by_when_they_were_made(library: Library):
    before = clock.now()
    twin = await make(library, "Manuals")
    assert twin.id != library.base.id
    assert before <= twin.created_at <= clock.now()
    assert await names(library.call) == ["Manuals", "Manuals"]
