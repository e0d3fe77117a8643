"""The role of every kind of actor on every kind of object, against a table written by hand."""

from collections.abc import Iterator
from dataclasses import replace

import pytest

from almanac.core.call import Actor
from almanac.core.database import Transaction
from almanac.core.errors import Forbidden, NotFound
from almanac.identity import access, groups, principals
from almanac.identity.access import ProtectedObject
from almanac.identity.roles import Role
from tests.identity.people import Town

LEVELS = ("personal", "group", "organization")

# Relation and role; then the role on a personal object, on one of a group and on one of the organisation.
EXPECTED = """
owner               -                   Owner               -                   Reporter
operator            -                   Owner               Owner               Owner
admin               -                   -                   Owner               Owner
stranger            -                   -                   -                   Reporter
member              RestrictedAnalyst   -                   RestrictedAnalyst   Reporter
member              Reporter            -                   Reporter            Reporter
member              Developer           -                   Developer           Reporter
member              Maintainer          -                   Maintainer          Reporter
member              Owner               -                   Owner               Reporter
granted             RestrictedAnalyst   RestrictedAnalyst   RestrictedAnalyst   Reporter
granted             Reporter            Reporter            Reporter            Reporter
granted             Developer           Developer           Developer           Developer
granted             Maintainer          Maintainer          Maintainer          Maintainer
granted             Owner               Owner               Owner               Owner
through-a-group     RestrictedAnalyst   RestrictedAnalyst   RestrictedAnalyst   Reporter
through-a-group     Reporter            Reporter            Reporter            Reporter
through-a-group     Developer           Developer           Developer           Developer
through-a-group     Maintainer          Maintainer          Maintainer          Maintainer
through-a-group     Owner               Owner               Owner               Owner
foreign-stranger    -                   -                   -                   -
foreign-admin       -                   -                   -                   -
foreign-member      Owner               -                   -                   -
foreign-granted     Owner               -                   -                   -
foreign-owner       -                   -                   -                   -
foreign-operator    -                   -                   -                   -
"""


def expectations() -> Iterator[tuple[str, str, dict[str, Role | None]]]:
    for line in EXPECTED.strip().splitlines():
        relation, role, *held = line.split()
        yield relation, role, {
            level: None if name == "-" else Role[name] for level, name in zip(LEVELS, held, strict=True)
        }  # fmt: skip


class Village:
    """Three resources of Acme, one of each level, and one user for each line of the table."""

    def __init__(self, town: Town) -> None:
        self.town = town
        self.things: dict[str, ProtectedObject] = {}
        self.actors: dict[tuple[str, str], Actor] = {}

    async def build(self) -> "Village":
        owner = await self.town.add("owner")
        team = await self.town.group("team")
        circle = await self.town.group("circle", self.town.other)
        for number, level in enumerate(LEVELS, 1):
            group_id = team.id if level == "group" else None
            self.things[level] = ProtectedObject("base", number, self.town.acme.id, level, owner.id, group_id)
        for relation, role, _ in expectations():
            foreign = relation.startswith("foreign")
            org = self.town.other if foreign else self.town.acme
            name = f"{relation}-{role}".rstrip("-")
            admin = relation.endswith("admin")
            holder = owner if relation == "owner" else await self.town.add(name, admin=admin, org=org)
            if role != "-":
                home = circle if foreign else team
                await self.town.do(lambda tx, a=relation, b=holder, c=home, d=Role[role]: self._relate(tx, a, b, c, d))
            actor = await self.town.actor(holder)
            self.actors[relation, role] = replace(actor, is_operator=relation.endswith("operator"))
        return self

    async def _relate(
        self, tx: Transaction, relation: str, holder: principals.Principal, home: groups.Group, role: Role
    ) -> None:
        if relation.endswith("member"):
            await groups.set_member(tx, home, holder, role)
        elif relation.endswith("granted"):  # for a foreigner: a wrong row must not grant anything
            for thing in self.things.values():
                await access.grant(tx, thing, role, principal_id=holder.id)
        else:
            # The role given to the group counts, not the one held in it.
            friends = await groups.add(tx, self.town.acme.id, f"friends-{role.name}")
            await groups.set_member(tx, friends, holder, Role.RestrictedAnalyst if role == Role.Owner else Role.Owner)
            for thing in self.things.values():
                await access.grant(tx, thing, role, group_id=friends.id)


async def test_the_role_of_every_relation_and_level_is_as_the_table_says(town: Town):
    village = await Village(town).build()
    wrong: list[str] = []
    for relation, role, expected in expectations():
        for level in LEVELS:
            held = await access.role_on(town.db, village.actors[relation, role], village.things[level])
            if held is not expected[level]:
                wrong.append(f"{relation} {role}: {held} on a {level} thing, not {expected[level]}")
    assert wrong == []
    assert len(list(expectations())) == 25


async def test_require_allows_the_actions_of_the_role_and_says_what_is_missing(town: Town):
    village = await Village(town).build()
    for relation, role, expected in expectations():
        for level, held in expected.items():
            call, thing = town.call(village.actors[relation, role]), village.things[level]
            for action, needed in access.MIN_ROLE_BY_ACTION.items():
                if held is None:
                    with pytest.raises(NotFound):
                        await access.require(town.db, call, action, thing, name="knowledge base 1")
                elif held < needed:
                    with pytest.raises(
                        Forbidden, match=f"^To {action} knowledge base 1 needs the role {needed.name}; "
                    ):
                        await access.require(town.db, call, action, thing, name="knowledge base 1")
                else:
                    assert held is await access.require(town.db, call, action, thing, name="knowledge base 1")
            may_read = held is not None and held >= Role.Reporter
            assert call.accessed == ([f"base:{thing.id}"] if may_read else [])


async def test_asking_for_many_things_at_once_answers_as_asking_for_each(town: Town):
    village = await Village(town).build()
    strange = [ProtectedObject("base", n, town.other.id, level) for n, level in enumerate(LEVELS, 1)]
    unrelated = [ProtectedObject("base", 90 + n, town.acme.id, level, 1, None) for n, level in enumerate(LEVELS)]
    things = [*village.things.values(), *strange, *unrelated]
    for actor in village.actors.values():
        for limit in (None, frozenset({1, 3})):
            asking = replace(actor, bases=limit)
            each = [await access.role_on(town.db, asking, thing) for thing in things]
            assert await access.roles_on(town.db, asking, things) == each
            assert await access.roles_on(town.db, asking, things[::-1]) == each[::-1]
    assert await access.roles_on(town.db, next(iter(village.actors.values())), []) == []


@pytest.mark.parametrize("role", Role)
async def test_who_made_a_thing_for_others_owns_it_while_they_may_write_there(town: Town, role: Role):
    maria = await town.add("maria")
    actor = await town.actor(maria)
    team = await town.group("team", maria=role)
    expected = Role.Owner if role >= Role.Developer else role
    ours = ProtectedObject("base", 1, town.acme.id, "group", maria.id, team.id)
    everyones = ProtectedObject("base", 2, town.acme.id, "organization", maria.id)
    mine = ProtectedObject("base", 3, town.acme.id, "personal", maria.id)
    assert await access.role_on(town.db, actor, ours) is expected
    await town.do(lambda tx: access.grant(tx, everyones, role, principal_id=maria.id))
    assert await access.role_on(town.db, actor, everyones) is max(expected, Role.Reporter)
    await town.do(lambda tx: access.grant(tx, mine, role, principal_id=maria.id))
    assert await access.role_on(town.db, actor, mine) is Role.Owner
    for thing in (ours, everyones, mine):
        assert await access.roles_on(town.db, actor, [thing]) == [await access.role_on(town.db, actor, thing)]


async def test_who_has_left_the_group_keeps_nothing_but_what_they_are_given(town: Town):
    maria = await town.add("maria")
    actor = await town.actor(maria)
    team = await town.group("team", maria=Role.Maintainer)
    thing = ProtectedObject("base", 1, town.acme.id, "group", maria.id, team.id)
    assert await access.role_on(town.db, actor, thing) is Role.Owner
    await town.do(lambda tx: tx.execute("DELETE FROM members WHERE principal_id = $1", maria.id))
    assert await access.role_on(town.db, actor, thing) is None
    await town.do(lambda tx: access.grant(tx, thing, Role.Reporter, principal_id=maria.id))
    assert await access.role_on(town.db, actor, thing) is Role.Reporter
    await town.do(lambda tx: access.grant(tx, thing, Role.Developer, principal_id=maria.id))
    assert await access.role_on(town.db, actor, thing) is Role.Owner


async def test_a_foreign_or_hidden_thing_answers_exactly_like_one_that_never_was(town: Town):
    actor = await town.actor(await town.add("maria"))
    theirs = await town.add("boss", org=town.other)
    hidden = ProtectedObject("base", 8, town.acme.id, "personal", (await town.add("adam")).id)
    foreign = [ProtectedObject("base", 7, town.other.id, level, theirs.id) for level in LEVELS]
    answers: set[tuple[str, int, str]] = set()
    for thing in (None, hidden, *foreign):
        for action in access.MIN_ROLE_BY_ACTION:
            call = town.call(actor)
            with pytest.raises(NotFound) as caught:
                await access.require(town.db, call, action, thing, name="knowledge base 7")
            answers.add((caught.value.code, caught.value.status, caught.value.text))
            assert call.accessed == []
    assert answers == {
        ("not_found", 404, "There is no knowledge base 7, or you may not see it. Use an id from a list or a search.")
    }


async def test_the_highest_of_several_roles_wins(town: Town):
    maria = await town.add("maria")
    actor = await town.actor(maria)
    team = await town.group("team", maria=Role.Reporter)
    friends = await town.group("friends", maria=Role.RestrictedAnalyst)
    thing = ProtectedObject("base", 1, town.acme.id, "group", None, team.id)
    assert await access.role_on(town.db, actor, thing) is Role.Reporter
    await town.do(lambda tx: access.grant(tx, thing, Role.RestrictedAnalyst, principal_id=maria.id))
    assert await access.role_on(town.db, actor, thing) is Role.Reporter
    await town.do(lambda tx: access.grant(tx, thing, Role.Developer, group_id=friends.id))
    assert await access.role_on(town.db, actor, thing) is Role.Developer
    await town.do(lambda tx: access.grant(tx, thing, Role.Maintainer, principal_id=maria.id))
    assert await access.role_on(town.db, actor, thing) is Role.Maintainer


async def test_a_grant_can_be_changed_and_withdrawn_and_holds_from_the_next_question(town: Town):
    maria = await town.add("maria")
    actor = await town.actor(maria)
    friends = await town.group("friends", maria=Role.Owner)
    thing = ProtectedObject("entity", "65f0c0ffee", town.acme.id, "personal")
    await town.do(lambda tx: access.grant(tx, thing, Role.Owner, principal_id=maria.id))
    await town.do(lambda tx: access.grant(tx, thing, Role.Reporter, principal_id=maria.id))
    assert await access.role_on(town.db, actor, thing) is Role.Reporter
    assert await town.do(lambda tx: access.revoke_grant(tx, thing, principal_id=maria.id))
    assert await access.role_on(town.db, actor, thing) is None
    await town.do(lambda tx: access.grant(tx, thing, Role.Developer, group_id=friends.id))
    assert await access.role_on(town.db, actor, thing) is Role.Developer
    assert await town.do(lambda tx: access.revoke_grant(tx, thing, group_id=friends.id))
    assert not await town.do(lambda tx: access.revoke_grant(tx, thing, group_id=friends.id))
    assert await access.role_on(town.db, actor, thing) is None


async def test_a_grant_is_for_one_thing_of_one_kind(town: Town):
    maria = await town.add("maria")
    actor = await town.actor(maria)
    thing = ProtectedObject("base", 1, town.acme.id, "personal")
    await town.do(lambda tx: access.grant(tx, thing, Role.Owner, principal_id=maria.id))
    assert await access.role_on(town.db, actor, ProtectedObject("base", 2, town.acme.id, "personal")) is None
    assert await access.role_on(town.db, actor, ProtectedObject("folder", 1, town.acme.id, "personal")) is None


async def test_removing_someone_takes_their_grants_with_them(town: Town):
    maria = await town.add("maria")
    actor = await town.actor(maria)
    thing = ProtectedObject("base", 1, town.acme.id, "personal")
    await town.do(lambda tx: access.grant(tx, thing, Role.Owner, principal_id=maria.id))
    await town.do(lambda tx: principals.remove(tx, maria))
    assert await access.role_on(town.db, actor, thing) is None


async def test_a_token_limited_to_bases_sees_no_other_whoever_holds_it(town: Town):
    boss = await town.add("boss", admin=True)
    actor = await town.actor(boss, bases=[1, 3])
    mine = {n: ProtectedObject("base", n, town.acme.id, "personal", boss.id) for n in (1, 2, 3)}
    ours = {n: ProtectedObject("base", n, town.acme.id, "organization") for n in (1, 2)}
    assert [await access.role_on(town.db, actor, mine[n]) for n in (1, 2, 3)] == [Role.Owner, None, Role.Owner]
    assert [await access.role_on(town.db, actor, ours[n]) for n in (1, 2)] == [Role.Owner, None]
    with pytest.raises(NotFound):
        await access.require(town.db, town.call(actor), "read", mine[2], name="knowledge base 2")
    folder = ProtectedObject("folder", 2, town.acme.id, "personal", boss.id)
    assert await access.role_on(town.db, actor, folder) is Role.Owner


async def test_an_action_nobody_knows_is_a_mistake_in_our_code_not_a_permission(town: Town):
    actor = await town.actor(await town.add("maria", admin=True))
    with pytest.raises(KeyError):
        thing = ProtectedObject("base", 1, town.acme.id, "organization")
        await access.require(town.db, town.call(actor), "fly", thing, name="knowledge base 1")
