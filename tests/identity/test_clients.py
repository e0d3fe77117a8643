"""Clients: their form, their logins, and their end."""

import hashlib
import re

import pytest

from almanac.core import clock, scopes
from almanac.core.errors import BadRequest, NotFound
from almanac.identity import clients, principals, tokens
from almanac.identity.clients import InvalidClient
from tests.identity.people import Town


async def test_a_client_is_shown_once_and_stored_as_a_hash(town: Town):
    maria = await town.add("maria")
    id, secret = await town.do(lambda tx: clients.add(tx, maria))
    assert re.fullmatch(r"cl-[0-9a-f]{24}", id)
    assert re.fullmatch(r"cs-[A-Za-z0-9_-]{43}", secret)
    row = await town.db.fetch_one("SELECT * FROM clients")
    assert row is not None
    assert bytes(row["hash"]) == hashlib.sha256(secret.encode()).digest()
    assert secret not in repr([row[name] for name in row.keys()])  # noqa: SIM118 - a row is not a dictionary
    assert [(client.client_id, client.state) for client in await clients.find(town.db, maria)] == [(id, "active")]


@pytest.mark.parametrize("admin", [False, True])
async def test_a_login_has_all_rights_of_its_user_for_an_hour(town: Town, admin: bool):
    maria = await town.add("maria", admin=admin)
    id, secret = await town.do(lambda tx: clients.add(tx, maria))
    actor, number = await clients.authenticate(town.db, id, secret)
    token = await town.do(lambda tx: clients.log_in(tx, actor, number))
    found = await tokens.resolve(town.db, token)
    assert found is not None
    assert (found.id, found.name, found.token_kind, found.is_admin) == (maria.id, "maria", "login", admin)
    assert found.scopes == (frozenset(scopes.SCOPES) if admin else scopes.UNPRIVILEGED_SCOPES)
    assert found.expires_at is not None
    assert abs(found.expires_at - clock.now() - clock.HOUR) < clock.MINUTE
    (client,) = await clients.find(town.db, maria)
    assert client.last_used_at is not None


async def test_every_refused_login_has_the_same_answer(town: Town):
    maria, gone = await town.add("maria"), await town.add("gone")
    id, secret = await town.do(lambda tx: clients.add(tx, maria))
    revoked = await town.do(lambda tx: clients.add(tx, maria))
    removed = await town.do(lambda tx: clients.add(tx, gone))
    await town.do(lambda tx: clients.revoke(tx, revoked[0]))
    await town.do(lambda tx: principals.remove(tx, gone))
    attempts = [("cl-unknown", secret), (id, "cs-wrong"), (id, ""), (id, revoked[1]), revoked, removed, ("", "")]
    for attempt in attempts:
        with pytest.raises(InvalidClient) as caught:
            await clients.authenticate(town.db, *attempt)
        assert caught.value.text == InvalidClient().text
    assert (await clients.authenticate(town.db, id, secret))[0].id == maria.id


async def test_revoking_a_client_ends_its_logins_and_no_other(town: Town):
    maria = await town.add("maria")
    made = [await town.do(lambda tx: clients.add(tx, maria)) for _ in range(2)]
    entered = [await clients.authenticate(town.db, *each) for each in made]
    logins = [await town.do(lambda tx, each=each: clients.log_in(tx, *each)) for each in entered]
    await town.do(lambda tx: clients.revoke(tx, made[0][0]))
    assert [await tokens.resolve(town.db, each) is not None for each in logins] == [False, True]
    with pytest.raises(InvalidClient):  # it was authenticated before the revocation
        await town.do(lambda tx: clients.log_in(tx, *entered[0]))
    for missing in (made[0][0], "cl-unknown"):
        with pytest.raises(NotFound, match="no active client"):
            await town.do(lambda tx, missing=missing: clients.revoke(tx, missing))


async def test_expired_login_tokens_are_removed_and_no_others(town: Town, monkeypatch: pytest.MonkeyPatch):
    maria = await town.add("maria")
    id, secret = await town.do(lambda tx: clients.add(tx, maria))
    entered = await clients.authenticate(town.db, id, secret)
    await town.do(lambda tx: clients.log_in(tx, *entered))
    await town.token(maria, expires_at=clock.now() + clock.MINUTE)
    later = clock.now() + 2 * clock.HOUR
    monkeypatch.setattr(clock, "now", lambda: later)
    await town.do(lambda tx: clients.log_in(tx, *entered))
    assert await town.do(lambda tx: tokens.prune_login_tokens(tx, later)) == 1
    kinds = [(token.kind, token.state) for token in await tokens.find(town.db, maria)]
    assert kinds == [("login", "active"), ("user", "expired")]


async def test_an_agent_has_no_client(town: Town):
    bot = await town.add("bot", kind="agent")
    with pytest.raises(BadRequest, match="a client logs in as a user"):
        await town.do(lambda tx: clients.add(tx, bot))
