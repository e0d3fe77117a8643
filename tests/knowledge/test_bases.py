"""Knowledge bases are added, found, updated, shared, removed and restored."""

from dataclasses import replace
from typing import Any

import pytest

from almanac.core import clock
from almanac.core.call import Call
from almanac.core.errors import BadRequest, Forbidden, NotFound
from almanac.identity import principals
from almanac.identity.grants import Grant
from almanac.identity.roles import Role
from almanac.knowledge import bases, document_tree, documents
from almanac.knowledge.bases import KnowledgeBase
from almanac.knowledge.ingest.splitter import PassageSplitter
from tests.knowledge.workspace import Workspace, operator_of


async def make(workspace: Workspace, name: str, call: Call | None = None, **how: Any) -> KnowledgeBase:
    return await workspace.do(lambda tx: bases.add(call or workspace.call, tx, name, **how))


async def names(call: Call, **how: Any) -> list[str]:
    return [base.name for base in (await bases.find(call, **how)).items]


async def test_a_new_base_belongs_to_its_creator_and_has_the_given_properties(workspace: Workspace):
    splitter = PassageSplitter(size=900)
    made = await workspace.do(
        lambda tx: bases.add(workspace.call, tx, "  Pumps \n and  valves ", description=" All. ", splitter=splitter)
    )
    assert (made.name, made.description, made.level, made.role) == ("Pumps and valves", "All.", "personal", Role.Owner)
    assert (made.owner_id, made.owner_name) == (workspace.owner.id, "owner")
    assert made.splitter == splitter
    assert made.collection == f"base:{made.id}"
    assert await bases.get(workspace.db, workspace.call, made.id) == made


@pytest.mark.parametrize("name", ["", "  ", "x" * 101, "a\x00b", "half \ud800", "bell\x07"])
async def test_an_invalid_name_is_refused_and_no_base_is_added(workspace: Workspace, name: str):
    with pytest.raises(BadRequest):
        await make(workspace, name)
    with pytest.raises(BadRequest):
        await workspace.do(lambda tx: bases.update(workspace.call, tx, workspace.base.id, name=name))
    assert await workspace.count("bases") == 1


@pytest.mark.parametrize("text", ["x" * 501, "a\x00b", "half \udfff"])
async def test_an_invalid_description_is_refused(workspace: Workspace, text: str):
    with pytest.raises(BadRequest):
        await make(workspace, "Pumps", description=text)
    with pytest.raises(BadRequest):
        await workspace.do(lambda tx: bases.update(workspace.call, tx, workspace.base.id, description=text))


async def test_the_longest_name_and_description_fit_in_any_script(workspace: Workspace):
    made = await make(workspace, "水" * 100, description="𝄞" * 500)
    assert (len(made.name), len(made.description)) == (100, 500)


@pytest.mark.parametrize(
    "how", [{"level": "galactic"}, {"level": "group"}, {"group": "team"}, {"level": "organization", "group": "team"}]
)
async def test_a_level_and_a_group_that_do_not_fit_are_refused(workspace: Workspace, how: dict[str, Any]):
    await workspace.town.group("team", owner=Role.Owner)
    with pytest.raises(BadRequest):
        await make(workspace, "Pumps", **how)


async def test_bases_are_listed_newest_first_a_page_at_a_time(workspace: Workspace):
    for number in range(5):
        await make(workspace, f"Base {number}")
    first = await bases.find(workspace.call, limit=4)
    rest = await bases.find(workspace.call, limit=4, offset=4)
    assert [base.name for base in (*first.items, *rest.items)] == [
        "Base 4", "Base 3", "Base 2", "Base 1", "Base 0", "Manuals",
    ]  # fmt: skip
    assert (first.total, first.has_more, rest.total, rest.has_more) == (6, True, 6, False)
    beyond = await bases.find(workspace.call, limit=4, offset=100)
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
async def test_a_query_finds_names_and_descriptions_in_any_case_and_has_no_wildcards(
    workspace: Workspace, query: str, found: list[str]
):
    await make(workspace, "Pumps", description="for OIL and water")
    for name in ("Ölpumpe 100%", "snake_case", "back\\slash", "Straße"):
        await make(workspace, name)
    assert sorted(await names(workspace.call, query=query)) == sorted(found)


@pytest.mark.parametrize("how", [{"query": "a\x00"}, {"query": "\ud800"}, {"group": "a\x00"}, {"scope": "none"}])
async def test_an_invalid_filter_of_bases_is_refused(workspace: Workspace, how: dict[str, Any]):
    with pytest.raises(BadRequest):
        await bases.find(workspace.call, **how)


async def test_a_scope_selects_the_bases_of_one_level(workspace: Workspace):
    town, mine = workspace.town, workspace.call
    admin = town.call(await town.actor(await town.add("boss", admin=True)))
    other = town.call(await town.actor(await town.add("adam")))
    await town.group("team", owner=Role.Developer)
    await town.group("crew", adam=Role.Owner)
    await make(workspace, "Team's", mine, level="group", group="team")
    await make(workspace, "Everyone's", admin, level="organization")
    await make(workspace, "Crew's", other, level="group", group="crew")
    lent = await make(workspace, "Adam's", other)
    await workspace.do(lambda tx: bases.share(other, tx, lent.id, Role.Reporter, user="owner"))
    await make(workspace, "Adam's secret", other)
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


async def test_a_list_of_bases_counts_documents_without_those_in_the_trash(workspace: Workspace):
    empty = await make(workspace, "Empty")
    kept = await workspace.add("a.txt", "A")
    gone = await workspace.add("b.txt", "B")
    await workspace.do(lambda tx: documents.remove(workspace.call, tx, [gone.document.id]))
    found = {base.id: base.documents for base in (await bases.find(workspace.call)).items}
    assert found == {empty.id: 0, workspace.base.id: 1}
    assert kept.document.base_id == workspace.base.id


async def test_a_token_limited_to_bases_lists_no_others(workspace: Workspace):
    other = await make(workspace, "Other")
    limited = Call(replace(workspace.call.actor, bases=frozenset({other.id})), workspace.db, "r")
    assert await names(limited) == ["Other"]
    nowhere = Call(replace(workspace.call.actor, bases=frozenset({999_999})), workspace.db, "r")
    assert await names(nowhere) == []


async def test_an_update_keeps_the_properties_that_it_does_not_name(workspace: Workspace):
    made = await make(workspace, "Pumps", description="Oil")
    renamed = await workspace.do(lambda tx: bases.update(workspace.call, tx, made.id, name="Valves"))
    assert (renamed.name, renamed.description) == ("Valves", "Oil")
    described = await workspace.do(lambda tx: bases.update(workspace.call, tx, made.id, description=""))
    assert (described.name, described.description) == ("Valves", "")
    cut = await workspace.do(lambda tx: bases.update(workspace.call, tx, made.id, splitter=PassageSplitter(size=999)))
    assert (cut.name, cut.splitter.size, cut.created_at) == ("Valves", 999, made.created_at)
    assert await names(workspace.call, query="pumps") == []
    assert await names(workspace.call, query="valves") == ["Valves"]


async def test_sharing_grants_changes_and_revokes_a_role(workspace: Workspace):
    town, base = workspace.town, workspace.base
    maria = town.call(await town.actor(await town.add("maria")))
    await town.group("crew", maria=Role.RestrictedAnalyst)

    async def share(role: Role | None, **whom: str) -> None:
        await workspace.do(lambda tx: bases.share(workspace.call, tx, base.id, role, **whom))

    await share(Role.Reporter, user="maria")
    await share(Role.Developer, group="crew")
    assert (await bases.get(workspace.db, maria, base.id)).role is Role.Developer
    assert await bases.shares(workspace.db, workspace.call, base.id) == [
        Grant("user", "maria", Role.Reporter),
        Grant("group", "crew", Role.Developer),
    ]
    await share(Role.Maintainer, user="maria")
    assert (await bases.get(workspace.db, maria, base.id)).role is Role.Maintainer
    await share(None, user="maria")
    assert (await bases.get(workspace.db, maria, base.id)).role is Role.Developer
    await share(None, group="crew")
    with pytest.raises(NotFound):
        await bases.get(workspace.db, maria, base.id)
    with pytest.raises(NotFound):
        await share(None, group="crew")


async def test_a_role_above_ones_own_cannot_be_granted_and_other_organisations_cannot_be_named(workspace: Workspace):
    town, base = workspace.town, workspace.base
    deputy = town.call(await town.actor(await town.add("deputy")))
    await town.add("outsider", org=town.other)
    await town.group("circle", town.other)
    await workspace.do(lambda tx: bases.share(workspace.call, tx, base.id, Role.Maintainer, user="deputy"))
    await workspace.do(lambda tx: bases.share(deputy, tx, base.id, Role.Maintainer, user="deputy"))
    with pytest.raises(Forbidden, match="cannot grant the role Owner"):
        await workspace.do(lambda tx: bases.share(deputy, tx, base.id, Role.Owner, user="deputy"))
    for whom in ({"user": "outsider"}, {"group": "circle"}):
        with pytest.raises(NotFound):
            await workspace.do(lambda tx, w=whom: bases.share(workspace.call, tx, base.id, Role.Reporter, **w))
    for whom in (dict[str, str](), {"user": "deputy", "group": "circle"}):
        with pytest.raises(BadRequest):
            await workspace.do(lambda tx, w=whom: bases.share(workspace.call, tx, base.id, Role.Reporter, **w))
    assert len(await bases.shares(workspace.db, workspace.call, base.id)) == 1


async def test_a_role_above_ones_own_cannot_be_revoked_or_changed(workspace: Workspace):
    town, base_id = workspace.town, workspace.base.id
    for name, role in (("boss", Role.Owner), ("keeper", Role.Maintainer)):
        await town.add(name)
        await workspace.do(lambda tx, name=name, role=role: bases.share(workspace.call, tx, base_id, role, user=name))
    keeper = town.call(await town.actor(await principals.get_by_name(workspace.db, town.acme.id, "keeper")))
    for role in (None, Role.Reporter):
        with pytest.raises(Forbidden, match="'boss' is Owner here, and you are Maintainer"):
            await workspace.do(lambda tx, role=role: bases.share(keeper, tx, base_id, role, user="boss"))
    assert {(s.name, s.role) for s in await bases.shares(workspace.db, workspace.call, base_id)} == {
        ("boss", Role.Owner),
        ("keeper", Role.Maintainer),
    }


async def test_a_removed_base_and_its_contents_cannot_be_found_until_it_is_restored(workspace: Workspace):
    folder = await workspace.add_folder("Pumps")
    document = await workspace.add_parsed("a.txt", "A text.", folder_id=folder.id)
    await workspace.do(lambda tx: bases.remove(workspace.call, tx, workspace.base.id))
    for look in (
        lambda: bases.get(workspace.db, workspace.call, workspace.base.id),
        lambda: workspace.get(document.id),
        lambda: document_tree.browse(workspace.call, workspace.base.id),
        lambda: document_tree.browse(workspace.call, workspace.base.id, folder.id),
        lambda: workspace.do(lambda tx: bases.remove(workspace.call, tx, workspace.base.id)),
    ):
        with pytest.raises(NotFound):
            await look()
    assert await names(workspace.call) == []
    assert await names(workspace.call, removed=True) == ["Manuals"]
    back = await workspace.do(lambda tx: bases.restore(workspace.call, tx, workspace.base.id))
    assert back.removed_at is None
    assert (await workspace.get(document.id)).index_status == "success"
    assert await names(workspace.call, removed=True) == []
    with pytest.raises(NotFound):
        await workspace.do(lambda tx: bases.restore(workspace.call, tx, workspace.base.id))


async def test_accessed_bases_are_recorded_for_the_audit_trail(workspace: Workspace):
    call = workspace.town.call(workspace.call.actor)
    await bases.get(workspace.db, call, workspace.base.id)
    assert call.accessed == [f"base:{workspace.base.id}"]
    with pytest.raises(NotFound):
        await bases.get(workspace.db, call, 4_000)
    assert call.accessed == [f"base:{workspace.base.id}"]


async def test_two_bases_may_have_the_same_name(workspace: Workspace):
    before = clock.now()
    twin = await make(workspace, "Manuals")
    assert twin.id != workspace.base.id
    assert before <= twin.created_at <= clock.now()
    assert await names(workspace.call) == ["Manuals", "Manuals"]
