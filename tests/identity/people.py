"""Two organisations, and functions that add users."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from almanac.core.call import Actor, Call
from almanac.core.database import Database, Transaction
from almanac.identity import groups, orgs, principals, tokens
from almanac.identity.groups import Group
from almanac.identity.orgs import Org
from almanac.identity.principals import Principal
from almanac.identity.roles import Role

T = TypeVar("T")


@dataclass
class Town:
    """A database with two separate organisations."""

    db: Database
    acme: Org
    other: Org

    async def do(self, body: Callable[[Transaction], Awaitable[T]]) -> T:
        return await self.db.write(body)

    async def add(self, name: str, *, kind: str = "user", admin: bool = False, org: Org | None = None) -> Principal:
        owner = org or self.acme
        return await self.do(lambda tx: principals.add(tx, owner.id, kind, name, is_admin=admin))

    async def group(self, name: str, org: Org | None = None, **members: Role) -> Group:
        owner = org or self.acme

        async def body(tx: Transaction) -> Group:
            made = await groups.add(tx, owner.id, name)
            for member, role in members.items():
                await groups.set_member(tx, made, await principals.get_by_name(tx, owner.id, member), role)
            return made

        return await self.do(body)

    async def token(self, holder: Principal, **limits: Any) -> str:
        return (await self.do(lambda tx: tokens.issue(tx, holder, **limits)))[0]

    async def actor(self, holder: Principal, **limits: Any) -> Actor:
        """The caller of a new token, resolved as the endpoints do it."""
        found = await tokens.resolve(self.db, await self.token(holder, **limits))
        assert found is not None
        return found

    def call(self, actor: Actor) -> Call:
        return Call(actor, self.db, "a-request")


async def settle(db: Database) -> Town:
    async def body(tx: Transaction) -> tuple[Org, Org]:
        return await orgs.add(tx, "Acme"), await orgs.add(tx, "Other")

    return Town(db, *await db.write(body))
