"""Tokens: their form, the stored hash, their scopes, and their end."""

import asyncio
import hashlib
import re
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from almanac.core import clock, scopes
from almanac.core.database import Database
from almanac.core.errors import BadRequest, NotFound
from almanac.db import read_cache
from almanac.db.read_cache import ReadCache
from almanac.identity import first_start, orgs, principals, tokens
from tests.identity.people import Town
from tests.live_server import Running, running, settings_for
from tests.waiting import until_stored

FORMS = {
    "user": r"wg-[A-Za-z0-9_-]{43}",
    "agent": r"ag-[A-Za-z0-9_-]{43}",
    "access": r"ak-[A-Za-z0-9_-]{43}",
}
FULL_RIGHTS = {False: scopes.UNPRIVILEGED_SCOPES, True: frozenset(scopes.SCOPES)}
TABLES = {
    "sqlite": "SELECT name FROM sqlite_master WHERE type = 'table'",
    "postgres": "SELECT table_name AS name FROM information_schema.tables WHERE table_schema = 'public'",
}


async def everything(db: Database) -> str:
    """Every value of every row of every table, as text."""
    parts: list[str] = []
    for table in await db.fetch(TABLES[db.dialect]):
        for row in await db.fetch(f'SELECT * FROM "{table["name"]}"'):
            parts += [repr(row[column]) for column in row.keys()]  # noqa: SIM118 - a row is not a dictionary
    return "\n".join(parts)


@pytest.mark.parametrize("kind", FORMS)
async def test_a_token_is_a_prefix_and_43_url_safe_characters(town: Town, kind: str):
    holder = await town.add("someone", kind="agent" if kind == "agent" else "user")
    made = [await town.token(holder, kind=kind) for _ in range(5)]
    assert all(re.fullmatch(FORMS[kind], token) for token in made)
    assert len(set(made)) == 5
    actor = await tokens.resolve(town.db, made[0])
    assert actor is not None
    assert (actor.name, actor.token_kind, actor.org_name) == ("someone", kind, "Acme")


async def test_by_default_the_kind_is_the_holder_s(town: Town):
    assert (await town.token(await town.add("maria"))).startswith("wg-")
    assert (await town.token(await town.add("bot", kind="agent"))).startswith("ag-")


async def test_a_kind_that_does_not_fit_the_holder_is_refused(town: Town):
    maria, bot = await town.add("maria"), await town.add("bot", kind="agent")
    for holder, kind in ((maria, "agent"), (bot, "user")):
        with pytest.raises(BadRequest, match=f"cannot hold a token of kind '{kind}'"):
            await town.token(holder, kind=kind)
    with pytest.raises(BadRequest, match="no token kind 'golden'") as caught:
        await town.token(maria, kind="golden")
    assert caught.value.remedy == "The kinds are: user, agent, access, mcp."


def test_only_the_sha_256_of_a_token_is_in_the_database(server: Running):
    secret = server.new_token("maria", expires_at=clock.now() + clock.DAY)
    server.call("whoami", token=secret)
    server.call("whoami", token=secret)
    assert server.rpc("tools/list", token=secret).status_code == 200

    async def read(db: Database) -> tuple[str, bytes]:
        await until_stored(lambda: db.fetch("SELECT 1 FROM audit"))
        row = await db.fetch_one("SELECT hash FROM tokens ORDER BY id DESC LIMIT 1")
        assert row is not None
        return await everything(db), bytes(row["hash"])

    text, stored = server.run(read)
    assert stored == hashlib.sha256(secret.encode()).digest()
    body = secret.removeprefix("wg-")
    for piece in (secret, body, body[4:], body[:5], secret.encode().hex()):  # the hint shows four characters
        assert piece not in text
    assert f"wg-{body[:4]}…" in text


def test_a_token_is_in_no_file_of_the_home_folder(tmp_path: Path, sqlite_template: Path):
    home = tmp_path / "home"
    home.mkdir()
    (home / "almanac.db").write_bytes(sqlite_template.read_bytes())
    with running(settings_for("", home)) as live:
        secret = live.new_token("maria")
        live.call("whoami", token=secret)
        files = [file for file in home.rglob("*") if file.is_file()]
        assert {"almanac.db", "almanac.db-wal", "secret"} <= {file.name for file in files}
        assert [file.name for file in files if secret[7:].encode() in file.read_bytes()] == []


@pytest.mark.parametrize(
    "stranger", ["", "x", "wg-", "wg-" + "A" * 43, "wg-" + "A" * 10_000, "\udcff", "wg-\x00", "Bearer wg-x"]
)
async def test_what_was_never_issued_is_nobody_s(town: Town, stranger: str):
    assert await tokens.resolve(town.db, stranger) is None


async def test_a_token_is_itself_and_nothing_near_it(town: Town):
    secret = await town.token(await town.add("maria"))
    for near in (secret.upper(), secret[:-1], secret + "A", f" {secret}", secret.removeprefix("wg-")):
        assert await tokens.resolve(town.db, near) is None


async def test_an_expired_token_is_nobody_s_from_that_very_moment(town: Town, monkeypatch: pytest.MonkeyPatch):
    maria = await town.add("maria")
    now = clock.now()
    secret = await town.token(maria, expires_at=now + clock.HOUR)
    for moment, works in ((now, True), (now + clock.HOUR - 1, True), (now + clock.HOUR, False)):
        monkeypatch.setattr(clock, "now", lambda moment=moment: moment)
        assert (await tokens.resolve(town.db, secret) is not None) is works
        assert (await tokens.find(town.db, maria))[0].state == ("active" if works else "expired")


async def test_a_token_cannot_be_born_expired(town: Town):
    maria = await town.add("maria")
    with pytest.raises(BadRequest, match="cannot expire in the past"):
        await town.token(maria, expires_at=clock.now() - 1)


async def test_a_revoked_token_is_nobody_s_and_cannot_be_revoked_again(town: Town):
    maria = await town.add("maria")
    secret = await town.token(maria)
    spare = await town.token(maria)
    (newest, oldest) = await tokens.find(town.db, maria)
    assert newest.id > oldest.id
    await town.do(lambda tx: tokens.revoke(tx, oldest.id))
    assert await tokens.resolve(town.db, secret) is None
    assert await tokens.resolve(town.db, spare) is not None
    assert [token.state for token in await tokens.find(town.db, maria)] == ["active", "revoked"]
    for gone in (oldest.id, 10_000):
        with pytest.raises(NotFound, match=f"no active token with id {gone}"):
            await town.do(lambda tx, id=gone: tokens.revoke(tx, id))


async def test_the_tokens_of_someone_removed_stop_and_a_namesake_does_not_inherit_them(town: Town):
    maria = await town.add("maria")
    secret = await town.token(maria)
    await town.do(lambda tx: principals.remove(tx, maria))
    await town.add("maria")
    assert await tokens.resolve(town.db, secret) is None


def test_revocation_and_removal_hold_from_the_very_next_call(server: Running):
    secret, other = server.new_token("maria"), server.new_token("adam")
    assert server.call("whoami", token=secret)["structuredContent"]["name"] == "maria"
    token_id = server.call("whoami", token=secret)["structuredContent"]["token"]["id"]
    server.run(lambda db: db.write(lambda tx: tokens.revoke(tx, token_id)))
    refused = server.rpc("tools/call", {"name": "whoami"}, token=secret)
    assert (refused.status_code, refused.json()["error"]["data"]["code"]) == (401, "unauthorized")
    unknown = server.rpc("tools/call", {"name": "whoami"}, token="wg-" + "A" * 43)
    assert (unknown.status_code, unknown.json()) == (refused.status_code, refused.json())

    async def remove(db: Database) -> None:
        row = await db.fetch_one("SELECT org_id FROM principals WHERE name = 'adam'")
        assert row is not None
        adam = await principals.get_by_name(db, row["org_id"], "adam")
        await db.write(lambda tx: principals.remove(tx, adam))

    assert server.call("whoami", token=other)["structuredContent"]["name"] == "adam"
    server.run(remove)
    assert server.rpc("tools/call", {"name": "whoami"}, token=other).status_code == 401


@pytest.mark.parametrize(
    ("who", "granted"),
    [
        ({"admin": True}, frozenset(scopes.SCOPES)),
        ({}, scopes.UNPRIVILEGED_SCOPES),
        ({"kind": "agent"}, scopes.DEFAULT_AGENT_SCOPES),
    ],
)
async def test_without_named_scopes_each_gets_what_is_usual_for_them(
    town: Town, who: dict[str, Any], granted: frozenset[str]
):
    assert (await town.actor(await town.add("someone", **who))).scopes == granted


async def test_named_scopes_are_the_ones_granted_and_no_others(town: Town):
    maria, boss = await town.add("maria"), await town.add("boss", admin=True)
    assert (await town.actor(maria, scope=["search:read"])).scopes == {"search:read"}
    assert (await town.actor(boss, scope=["audit:read", "admin"])).scopes == {"audit:read", "admin"}
    with pytest.raises(BadRequest, match="Unknown scope everything"):
        await town.token(maria, scope=["everything"])


@pytest.mark.parametrize("who", [{}, {"kind": "agent"}])
@pytest.mark.parametrize("scope", sorted(scopes.PRIVILEGED))
async def test_privileged_scopes_are_for_administrators_only(town: Town, who: dict[str, Any], scope: str):
    holder = await town.add("someone", **who)
    with pytest.raises(BadRequest, match=f"not an administrator, so their token cannot have the scope {scope}"):
        await town.token(holder, scope=["search:read", scope])
    assert await tokens.find(town.db, holder) == []


async def test_who_is_no_longer_an_administrator_loses_the_privileged_scopes_at_once(town: Town):
    boss = await town.add("boss", admin=True)
    secret = await town.token(boss)
    await town.do(lambda tx: tx.execute("UPDATE principals SET is_admin = 0 WHERE id = $1", boss.id))
    actor = await tokens.resolve(town.db, secret)
    assert actor is not None
    assert (actor.is_admin, actor.scopes) == (False, scopes.UNPRIVILEGED_SCOPES)


async def test_limits_to_bases_and_tools_are_kept_and_come_with_the_caller(town: Town):
    maria = await town.add("maria")
    actor = await town.actor(maria, bases=[3, 1], tools=["whoami"])
    assert (actor.bases, actor.tools) == ({1, 3}, {"whoami"})
    free = await town.actor(maria)
    assert (free.bases, free.tools) == (None, None)
    (second, first) = await tokens.find(town.db, maria)
    assert (first.bases, first.tools, second.bases, second.tools) == ((3, 1), ("whoami",), None, None)


async def test_a_token_limited_to_bases_has_no_scope_of_anything_outside_them(town: Town):
    boss = await town.add("boss", admin=True)
    assert (await town.actor(boss, bases=[3])).scopes == frozenset(scopes.SCOPES) - scopes.OUTSIDE_BASES
    for scope in sorted(scopes.OUTSIDE_BASES):
        with pytest.raises(BadRequest, match=f"limited to knowledge bases cannot have the scope {scope}: notes and"):
            await town.token(boss, bases=[3], scope=["search:read", scope])
    secret = await town.token(boss)  # such as one of an earlier version
    await town.do(lambda tx: tx.execute("UPDATE tokens SET bases = '3'"))
    actor = await tokens.resolve(town.db, secret)
    assert actor is not None
    assert not actor.scopes & scopes.OUTSIDE_BASES


def test_what_a_token_is_not_limited_to_is_neither_listed_nor_callable(server: Running):
    secret = server.new_token("maria", tools=["whoami"], bases=[4])
    listed = [tool["name"] for tool in server.rpc("tools/list", token=secret).json()["result"]["tools"]]
    assert listed == ["whoami"]
    facts = server.call("whoami", token=secret)["structuredContent"]["token"]
    assert (facts["tools"], facts["base_ids"]) == (["whoami"], [4])
    hidden = server.rpc("tools/call", {"name": "server_status", "arguments": {}}, token=secret).json()
    never = server.rpc("tools/call", {"name": "server_statux", "arguments": {}}, token=secret).json()
    assert hidden["error"]["code"] == never["error"]["code"] == -32602
    assert hidden["error"]["message"].replace("server_status", "…") == never["error"]["message"].replace(
        "server_statux", "…"
    )


async def test_last_use_is_kept_to_the_minute_and_never_goes_back(town: Town):
    maria = await town.add("maria")
    await town.token(maria)
    token_id = (await tokens.find(town.db, maria))[0].id
    begun = clock.now()
    seen: list[int | None] = []
    for moments in ([0], [10, 59], [30, 61, 45], [2], [121], [122]):
        used = [(token_id, begun + seconds * clock.SECOND) for seconds in moments]
        await town.do(lambda tx, used=used: tokens.record_last_use(tx, used))
        last = (await tokens.find(town.db, maria))[0].last_used_at
        seen.append(None if last is None else (last - begun) // clock.SECOND)
    assert seen == [0, 0, 61, 61, 61, 122]


def test_last_use_is_recorded_by_calls_within_a_second(server: Running):
    secret = server.new_token("maria")
    begun = clock.now()
    server.call("whoami", token=secret)

    async def used(db: Database) -> int:
        sql = "SELECT last_used_at FROM tokens WHERE last_used_at IS NOT NULL"
        return (await until_stored(lambda: db.fetch(sql), seconds=1))[0]["last_used_at"]

    assert begun <= server.run(used) <= clock.now()


async def test_a_keyring_forgets_whatever_anyone_has_changed(database: Database):
    secret = await first_start.create_first_admin(database)
    assert secret is not None
    keyring = tokens.TokenResolver(database, ReadCache(database))
    actor = await keyring.resolve(secret)
    assert actor is not None
    assert await keyring.resolve(secret) == actor
    assert await keyring.resolve(secret + "x") is None
    await database.write(lambda tx: tokens.revoke(tx, actor.token_id))
    assert await keyring.resolve(secret) is None


class Recorder(ReadCache):
    """A cache that records what it is asked for and what it reads."""

    def __init__(self, db: Database) -> None:
        super().__init__(db)
        self.asked: list[Any] = []
        self.read: list[Any] = []

    async def get(self, key: Any, read: Callable[[], Awaitable[Any]]) -> Any:
        async def recorded() -> Any:
            self.read.append(key)
            return await read()

        self.asked.append(key)
        return await super().get(key, recorded)


async def test_unknown_tokens_displace_no_valid_one_from_the_cache(database: Database, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(read_cache, "MAX_CACHED_VALUES", 5)
    secret = await first_start.create_first_admin(database)
    assert secret is not None
    cache = Recorder(database)
    keyring = tokens.TokenResolver(database, cache)
    assert await keyring.resolve(secret) is not None
    for number in range(20):
        assert await keyring.resolve(f"wg-{number}") is None
    assert await keyring.resolve(secret) is not None
    # PostgreSQL has no commit version, so nothing is cached there.
    assert cache.read.count(("token", secret)) == (2 if database.commit_version() is None else 1)


async def test_a_token_that_is_too_long_does_not_reach_the_cache(database: Database):
    cache = Recorder(database)
    keyring = tokens.TokenResolver(database, cache)
    assert await keyring.resolve("wg-" + "A" * tokens.MAX_TOKEN_CHARS) is None
    assert cache.asked == []
    assert await keyring.resolve("A" * tokens.MAX_TOKEN_CHARS) is None
    assert len(cache.asked) == 1


async def test_a_keyring_knows_when_a_token_ends(database: Database, monkeypatch: pytest.MonkeyPatch):
    assert await first_start.create_first_admin(database)
    admin = await principals.get_by_name(database, (await orgs.get_by_name(database, None)).id, first_start.ADMIN)
    ends = clock.now() + clock.HOUR
    secret, _ = await database.write(lambda tx: tokens.issue(tx, admin, expires_at=ends))
    keyring = tokens.TokenResolver(database, ReadCache(database))
    actor = await keyring.resolve(secret)
    assert actor is not None
    assert await keyring.actor_by_token_id(actor.id, actor.token_id) == actor
    monkeypatch.setattr(clock, "now", lambda: ends + 1)
    assert await keyring.resolve(secret) is None
    assert await keyring.actor_by_token_id(actor.id, actor.token_id) is None


async def test_a_user_has_one_mcp_token_with_all_their_rights(town: Town):
    for name, admin in (("maria", False), ("root", True)):
        user = await town.add(name, admin=admin)
        other = await town.token(user)
        first, _ = await town.do(lambda tx, user=user: tokens.issue_mcp_token(tx, user))
        second, _ = await town.do(lambda tx, user=user: tokens.issue_mcp_token(tx, user, tokens.MIN_MCP_TOKEN_LIFETIME))
        assert re.fullmatch(r"mcp-[A-Za-z0-9_-]{43}", first)
        assert await tokens.resolve(town.db, first) is None
        actor = await tokens.resolve(town.db, second)
        assert actor is not None
        assert (actor.token_kind, actor.scopes, actor.bases, actor.tools) == ("mcp", FULL_RIGHTS[admin], None, None)
        assert actor.expires_at is not None
        assert abs(actor.expires_at - clock.now() - 30 * clock.DAY) < clock.MINUTE
        assert await tokens.resolve(town.db, other) is not None
        listed = [(token.kind, token.state) for token in await tokens.find(town.db, user)]
        assert listed == [("mcp", "active"), ("mcp", "revoked"), ("user", "active")]


async def test_an_mcp_token_lasts_365_days_unless_said_and_never_longer(town: Town):
    maria = await town.add("maria")
    secret, _ = await town.do(lambda tx: tokens.issue_mcp_token(tx, maria))
    actor = await tokens.resolve(town.db, secret)
    assert actor is not None
    assert actor.expires_at is not None
    assert abs(actor.expires_at - clock.now() - 365 * clock.DAY) < clock.MINUTE
    for lifetime in (0, -1, 30 * clock.DAY - 1, 365 * clock.DAY + 1):
        with pytest.raises(BadRequest, match="works for 30 to 365 days"):
            await town.do(lambda tx, lifetime=lifetime: tokens.issue_mcp_token(tx, maria, lifetime))
    assert await tokens.resolve(town.db, secret) is not None


async def test_of_mcp_tokens_made_at_the_same_time_one_works(town: Town):
    maria = await town.add("maria")
    made = await asyncio.gather(*(town.do(lambda tx: tokens.issue_mcp_token(tx, maria)) for _ in range(8)))
    assert sum([await tokens.resolve(town.db, secret) is not None for secret, _ in made]) == 1


async def test_an_agent_has_no_mcp_token(town: Town):
    bot = await town.add("bot", kind="agent")
    with pytest.raises(BadRequest, match="an MCP token belongs to a user"):
        await town.do(lambda tx: tokens.issue_mcp_token(tx, bot))


@pytest.mark.parametrize("kind", ["mcp", "login"])
async def test_a_kind_with_rules_of_its_own_is_not_issued_as_another_token(town: Town, kind: str):
    with pytest.raises(BadRequest, match=f"no token kind '{kind}'"):
        await town.token(await town.add("maria"), kind=kind)
