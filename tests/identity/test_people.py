"""Organisations, users, agents and groups."""

import uuid

import pytest

from almanac.core.database import Database
from almanac.core.errors import BadRequest, Conflict, NotFound
from almanac.identity import groups, orgs, principals, roles
from almanac.identity.roles import Role
from tests.identity.people import Town

GOOD_NAMES = ["a", "Acme Ltd", "maria", "maria@example.com", "release-bot", "Zoë", "組織", "x" * 100, "v1.2+3", "7"]
BAD_NAMES = [
    "",
    "   ",
    "x" * 101,
    "a/b",
    "a\nb",
    "a\x00b",
    "../etc",
    "-rf",
    ".hidden",
    "@home",
    "_x",
    "a;b",
    "a'b",
    "<b>",
]


@pytest.mark.parametrize("name", GOOD_NAMES)
def test_a_good_name_is_taken_without_the_space_around_it(name: str):
    assert orgs.check_name("a user", f"  {name} ") == name


@pytest.mark.parametrize("name", BAD_NAMES)
def test_a_bad_name_is_refused_with_what_a_name_may_be(name: str):
    with pytest.raises(BadRequest) as caught:
        orgs.check_name("a user", name)
    assert "cannot be the name of a user" in caught.value.message
    assert "beginning with a letter or digit" in caught.value.remedy
    assert len(caught.value.text) < 300


async def test_organisations_have_unguessable_ids_and_are_listed_oldest_first(town: Town):
    assert uuid.UUID(town.acme.id).version == 4
    assert await orgs.find(town.db) == [town.acme, town.other]
    assert await orgs.get_by_name(town.db, "Other") == town.other


async def test_an_organisation_s_name_is_its_own(town: Town):
    with pytest.raises(Conflict, match="already an organisation named 'Acme'"):
        await town.do(lambda tx: orgs.add(tx, "Acme"))


async def test_an_unknown_organisation_is_not_found_and_two_must_be_told_apart(town: Town):
    with pytest.raises(NotFound, match="no organisation named 'Nobody'"):
        await orgs.get_by_name(town.db, "Nobody")
    with pytest.raises(BadRequest, match="more than one organisation") as caught:
        await orgs.get_by_name(town.db, None)
    assert "--org" in caught.value.remedy


async def test_the_only_organisation_need_not_be_named(database: Database):
    with pytest.raises(NotFound, match="no organisation yet"):
        await orgs.get_by_name(database, None)
    only = await database.write(lambda tx: orgs.add(tx, "Only"))
    assert await orgs.get_by_name(database, None) == only


async def test_users_and_agents_share_one_space_of_names_in_each_organisation(town: Town):
    maria = await town.add("maria", admin=True)
    assert (maria.kind, maria.is_admin) == ("user", True)
    with pytest.raises(Conflict, match="already a user or agent named 'maria' in this organisation"):
        await town.add("maria", kind="agent")
    double = await town.add("maria", kind="agent", org=town.other)
    assert double.id != maria.id
    assert await principals.get_by_name(town.db, town.acme.id, "maria") == maria
    assert await principals.get_by_name(town.db, town.other.id, "maria") == double


async def test_principals_are_listed_by_kind_and_name(town: Town):
    for name in ("zoe", "adam"):
        await town.add(name)
    await town.add("bot", kind="agent")
    await town.add("stranger", org=town.other)
    assert [one.name for one in await principals.find(town.db, town.acme.id, "user")] == ["adam", "zoe"]
    assert [one.name for one in await principals.find(town.db, town.acme.id, "agent")] == ["bot"]


async def test_nobody_is_neither_user_nor_agent(town: Town):
    with pytest.raises(BadRequest, match="neither 'user' nor 'agent'"):
        await town.add("ghost", kind="ghost")


async def test_a_removed_user_is_gone_with_their_memberships_and_their_name_is_free_again(town: Town):
    maria = await town.add("maria")
    await town.group("research", maria=Role.Owner)
    await town.do(lambda tx: principals.remove(tx, maria))
    with pytest.raises(NotFound):
        await principals.get_by_name(town.db, town.acme.id, "maria")
    assert (await groups.find(town.db, town.acme.id))[0].members == 0
    again = await town.add("maria")
    assert again.id != maria.id
    assert await groups.roles_of(town.db, again.id) == {}


async def test_someone_of_another_organisation_answers_exactly_like_nobody(town: Town):
    await town.add("spy", org=town.other)
    await town.group("theirs", town.other)
    answers: list[tuple[str, str]] = []
    for name in ("spy", "nobody"):
        with pytest.raises(NotFound) as caught:
            await principals.get_by_name(town.db, town.acme.id, name)
        answers.append((caught.value.code, caught.value.text.replace(name, "…")))
    for name in ("theirs", "nothing"):
        with pytest.raises(NotFound) as caught:
            await groups.get_by_name(town.db, town.acme.id, name)
        answers.append((caught.value.code, caught.value.text.replace(name, "…")))
    assert answers[0] == answers[1]
    assert answers[2] == answers[3]


async def test_nobody_joins_a_group_of_another_organisation(town: Town):
    spy = await town.add("spy", org=town.other)
    ours = await town.group("ours")
    with pytest.raises(NotFound, match="no user or agent named 'spy' in this organisation"):
        await town.do(lambda tx: groups.set_member(tx, ours, spy, Role.Owner))
    assert await groups.roles_of(town.db, spy.id) == {}


async def test_groups_are_listed_with_their_members_and_keep_a_name_for_people(town: Town):
    await town.add("maria")
    await town.add("adam")
    await town.group("research", maria=Role.Developer, adam=Role.Reporter)
    await town.do(lambda tx: groups.add(tx, town.acme.id, "press", "Press office"))
    await town.group("research", town.other)
    found = await groups.find(town.db, town.acme.id)
    assert [(one.name, one.display_name, one.members) for one in found] == [
        ("press", "Press office", 0),
        ("research", "research", 2),
    ]
    with pytest.raises(Conflict, match="already a group named 'press'"):
        await town.group("press")


async def test_a_member_has_one_role_in_a_group_the_last_one_given(town: Town):
    maria = await town.add("maria")
    research = await town.group("research", maria=Role.Reporter)
    await town.do(lambda tx: groups.set_member(tx, research, maria, Role.Maintainer))
    assert await groups.roles_of(town.db, maria.id) == {"research": "Maintainer"}
    assert (await groups.find(town.db, town.acme.id))[0].members == 1


def test_roles_are_ordered_and_read_in_any_case():
    order = ["RestrictedAnalyst", "Reporter", "Developer", "Maintainer", "Owner"]
    assert [role.name for role in sorted(Role)] == order
    assert [roles.parse(f" {name.upper()} ") for name in order] == sorted(Role)
    with pytest.raises(BadRequest) as caught:
        roles.parse("Boss")
    assert caught.value.remedy == "The roles are: Owner, Maintainer, Developer, Reporter, RestrictedAnalyst."
