"""Keys and sessions: the three headers and their order, and the content and end of a session."""

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import httpx2
import pytest
from redis.asyncio import Redis

from almanac.core import clock
from almanac.core.database import Database
from almanac.identity import tokens
from almanac.surfaces.gateway import sessions
from almanac.surfaces.gateway.sessions import DatabaseSessions, GatewaySession, RedisSessions
from tests.live_server import LEGACY, MODERN, Running, request, running, settings_for
from tests.surfaces.gateway.caller import HELLO, PATH, Caller, initialize, post
from tests.surfaces.gateway.conftest import stock
from tests.surfaces.wire import beside, exchange, http
from tests.waiting import until_stored

WRONG = "ak-" + "A" * 43


def said(response: httpx2.Response) -> tuple[int, str]:
    body = response.json()
    assert body.keys() == {"jsonrpc", "id", "error"}
    return response.status_code, body["error"]["message"]


def stateless(live: Running, headers: dict[str, str]) -> httpx2.Response:
    message, sent = request("tools/call", {"name": "health-check", "arguments": {}}, era=MODERN)
    return post(live, message, {**sent, **headers})


@pytest.fixture(params=["initialize", "stateless"])
def knock(request: pytest.FixtureRequest) -> Any:
    return initialize if request.param == "initialize" else stateless


@pytest.mark.parametrize("header", ["x-api-key", "x-access-key", "authorization"])
def test_each_of_the_three_headers_lets_a_caller_in(shop: Running, knock: Any, header: str):
    value = f"Bearer {shop.token}" if header == "authorization" else shop.token
    assert knock(shop, {header: value}).status_code == 200
    assert knock(shop, {header.title(): value}).status_code == 200


@pytest.mark.parametrize(
    ("headers", "is_let_in"),
    [
        ({"x-api-key": "@", "x-access-key": WRONG, "authorization": f"Bearer {WRONG}"}, True),
        ({"x-access-key": "@", "authorization": f"Bearer {WRONG}"}, True),
        ({"x-api-key": WRONG, "x-access-key": "@", "authorization": "Bearer @"}, False),
        ({"x-access-key": WRONG, "authorization": "Bearer @"}, False),
        ({"x-api-key": "", "x-access-key": "@"}, True),
        ({"x-api-key": "", "x-access-key": "", "authorization": "bearer @"}, True),
        ({"x-api-key": "", "x-access-key": "", "authorization": f"Bearer {WRONG}"}, False),
        ({"x-api-key": "@", "authorization": "Basic dTpw"}, True),
    ],
)
def test_the_first_header_that_is_not_empty_decides(
    shop: Running, knock: Any, headers: dict[str, str], is_let_in: bool
):
    sent = {name: value.replace("@", shop.token) for name, value in headers.items()}
    response = knock(shop, sent)
    if is_let_in:
        assert response.status_code == 200
    else:
        assert said(response) == (401, "Invalid API key")


@pytest.mark.parametrize(
    "headers",
    [{}, {"x-api-key": ""}, {"x-access-key": ""}, {"authorization": "Bearer"}, {"authorization": "Basic x"}],
)
def test_without_a_key_one_is_missing(shop: Running, knock: Any, headers: dict[str, str]):
    assert said(knock(shop, headers)) == (401, "Missing API key")


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        ({"x_api_key": b"  @TOKEN@\t"}, 200),
        ({"x_api_key": b" \t ", "x_access_key": b"\t@TOKEN@ "}, 200),
        ({"x_api_key": b" ", "x_access_key": b"  ", "authorization": b"Bearer   @TOKEN@  "}, 200),
        ({"x_api_key": b" ", "x_access_key": b"\t", "authorization": b"Bearer \t "}, "Missing API key"),
        ({"x_api_key": b" no ", "authorization": b"Bearer @TOKEN@"}, "Invalid API key"),
    ],
)
def test_white_space_around_a_key_is_nothing_and_a_header_of_white_space_is_empty(
    shop: Running, lines: dict[str, bytes], expected: int | str
):
    hello = json.dumps({"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": HELLO}).encode()
    without = () if "authorization" in lines else ("authorization",)
    accept = b"application/json, text/event-stream"
    raw = http(hello, first=f"POST {PATH} HTTP/1.1".encode(), without=without, accept=accept, **lines)  # pyright: ignore[reportArgumentType]
    answer = exchange(shop.port, raw.replace(b"@TOKEN@", shop.token.encode()))
    if expected == 200:
        assert answer.status == 200
    else:
        assert (answer.status, answer.json["error"]["message"]) == (401, expected)


@pytest.mark.parametrize("key", [WRONG, "x", "é", "k" * 5000])
def test_a_key_that_nobody_has_is_invalid(shop: Running, knock: Any, key: str):
    raw = {b"x-api-key": key.encode("latin-1")}
    assert said(knock(shop, raw)) == (401, "Invalid API key")  # type: ignore[arg-type]


def test_a_token_that_may_not_read_the_catalogue_is_no_key(shop: Running, knock: Any):
    token = shop.new_token("narrow", scope=["knowledge:read"])
    assert said(knock(shop, {"x-api-key": token})) == (401, "Invalid API key")


def test_an_access_token_of_an_agent_is_one(shop: Running, knock: Any):
    token = shop.new_token("shelf-bot", kind="agent")
    assert knock(shop, {"x-api-key": token}).status_code == 200


def test_a_session_stands_for_the_key_it_was_opened_with(shop: Running):
    caller = Caller.connect(shop)
    assert caller.headers.keys() == {"mcp-session-id"}
    assert caller.ask("health-check")["status"] == "ok"
    caller.headers["x-api-key"] = shop.token
    assert caller.ask("health-check")["status"] == "ok"


@pytest.mark.parametrize("session", [None, "", "never-was", "x" * 500, "é"])
@pytest.mark.parametrize("method", ["tools/list", "tools/call", "ping"])
def test_without_a_good_session_nothing_is_served_in_the_older_eras(shop: Running, session: str | None, method: str):
    message, sent = request(method, {"name": "health-check", "arguments": {}} if method == "tools/call" else {})
    sent["x-api-key"] = shop.token
    raw: Any = {name.encode(): value.encode("latin-1") for name, value in sent.items()}
    if session is not None:
        raw[b"mcp-session-id"] = session.encode("latin-1")
    assert said(post(shop, message, raw)) == (401, "Invalid or missing sessionId")


def test_another_key_than_the_sessions_own_does_not_open_it(shop: Running):
    caller = Caller.connect(shop)
    caller.headers["x-api-key"] = shop.new_token("somebody else", admin=True)
    assert said(caller.rpc("tools/list")) == (401, "Invalid or missing sessionId")


def test_a_session_is_left_and_then_gone(shop: Running):
    caller = Caller.connect(shop)
    assert shop.http.get(PATH, headers=caller.headers).status_code == 405
    assert shop.http.delete(PATH, headers=caller.headers).status_code == 200
    assert said(caller.rpc("tools/list")) == (401, "Invalid or missing sessionId")
    for method in ("GET", "DELETE"):
        response = shop.http.request(method, PATH, headers={"x-api-key": shop.token})
        assert said(response) == (401, "Invalid or missing sessionId")


def test_a_handshake_that_is_none_opens_no_session(shop: Running):
    hello = {"jsonrpc": "2.0", "method": "initialize", "params": HELLO}
    assert said(post(shop, hello, {"x-api-key": shop.token})) == (401, "Invalid or missing sessionId")


def revoke(live: Running, token: str) -> None:
    async def work(db: Database) -> None:
        actor = await tokens.resolve(db, token)
        assert actor is not None
        await db.write(lambda tx: tokens.revoke(tx, actor.token_id))

    live.run(work)


@pytest.fixture(params=["database", "redis"])
def pair(request: pytest.FixtureRequest, database_url: str, tmp_path: Path) -> Iterator[tuple[Running, Running]]:
    """Two servers over one database, with and without Redis."""
    more = {"redis_url": request.getfixturevalue("redis_url")} if request.param == "redis" else {}
    with running(settings_for(database_url, tmp_path / "home", **more)) as one, beside(one) as two:
        yield one, two


def test_a_session_is_served_by_any_process_and_ends_everywhere_when_its_key_is_revoked(pair: tuple[Running, Running]):
    one, two = pair
    token = one.new_token("traveller", kind="agent")
    here = Caller.connect(one, token)
    there = Caller(two, here.headers)
    assert here.ask("health-check")["status"] == there.ask("health-check")["status"] == "ok"
    newest = Caller.newest(two, token)
    assert newest.ask("health-check")["status"] == "ok"
    revoke(one, token)
    begun = time.monotonic()
    assert said(there.rpc("tools/list")) == (401, "Invalid or missing sessionId")
    assert said(here.rpc("tools/list")) == (401, "Invalid or missing sessionId")
    assert said(newest.rpc("tools/list")) == (401, "Invalid API key")
    assert time.monotonic() - begun < 1


def test_a_session_ends_with_its_key_at_the_latest(pair: tuple[Running, Running], monkeypatch: pytest.MonkeyPatch):
    one, two = pair
    now = clock.now()
    caller = Caller.connect(one, one.new_token("brief", kind="agent", expires_at=now + clock.MINUTE))
    assert caller.ask("health-check")["status"] == Caller(two, caller.headers).ask("health-check")["status"] == "ok"
    monkeypatch.setattr(clock, "now", lambda: now + clock.MINUTE)
    for live in pair:
        assert said(Caller(live, caller.headers).rpc("tools/list")) == (401, "Invalid or missing sessionId")


def test_a_handshake_over_the_rate_limit_opens_no_session(database_url: str, tmp_path: Path):
    with running(settings_for(database_url, tmp_path / "home", rate_limit_calls=1)) as live:
        assert "mcp-session-id" in initialize(live, {"x-api-key": live.token}).headers
        for _ in range(3):
            refused = initialize(live, {"x-api-key": live.token})
            assert refused.status_code == 429
            assert "mcp-session-id" not in refused.headers
        assert len(live.run(lambda db: db.fetch("SELECT 1 FROM gateway_sessions"))) == 1


@pytest.mark.parametrize(
    ("params", "headers", "status"),
    [
        ({}, {}, 200),
        ({"protocolVersion": LEGACY}, {}, 200),
        ({**HELLO, "protocolVersion": 7}, {}, 200),
        ({**HELLO, "capabilities": "none"}, {}, 200),
        (HELLO, {"accept": "text/html"}, 406),
        (HELLO, {"accept": "text/event-stream"}, 406),
        (HELLO, {"mcp-protocol-version": "1999-01-01"}, 400),
    ],
)
def test_a_handshake_that_the_protocol_refuses_opens_no_session(
    shop: Running, params: dict[str, Any], headers: dict[str, str], status: int
):
    def count(db: Database) -> Any:
        return db.fetch("SELECT 1 FROM gateway_sessions")

    before = len(shop.run(count))
    message = {"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": params}
    refused = post(shop, message, {"x-api-key": shop.token, **headers})
    assert (refused.status_code, "error" in refused.json()) == (status, True)
    assert "mcp-session-id" not in refused.headers
    assert len(shop.run(count)) == before
    assert "mcp-session-id" in initialize(shop, {"x-api-key": shop.token}).headers
    assert len(shop.run(count)) == before + 1


async def test_a_session_that_is_not_used_ends(database: Database, monkeypatch: pytest.MonkeyPatch):
    kept = DatabaseSessions(database, 30 * clock.MINUTE)
    now = clock.now()
    moment = [now]
    monkeypatch.setattr(sessions.clock, "now", lambda: moment[0])
    id = await kept.open(GatewaySession("d", 1, 2))
    for _ in range(3):  # each use extends it
        moment[0] += 20 * clock.MINUTE
        assert await kept.get(id) == GatewaySession("d", 1, 2)
    moment[0] += 30 * clock.MINUTE
    assert await kept.get(id) is None
    await kept.open(GatewaySession("other"))
    assert len(await database.fetch("SELECT 1 FROM gateway_sessions")) == 1


async def test_a_session_in_redis_ends_by_itself_and_leaves_no_secret_in_a_name(redis_url: str):
    async with cast("Any", Redis).from_url(redis_url) as redis:
        kept = RedisSessions(redis, clock.SECOND)
        id = await kept.open(GatewaySession("d", 1, 2))
        assert await kept.get(id) == GatewaySession("d", 1, 2)
        names = [name.decode() async for name in redis.scan_iter(f"{sessions.REDIS_PREFIX}*")]
        assert names
        assert not any(id in name for name in names)
        await until_stored(lambda: redis.exists(*names), lambda number: number == 0, seconds=5)
        assert await kept.get(id) is None


def test_without_redis_nobody_is_taken_for_somebody(database_url: str, tmp_path: Path):
    settings = settings_for(database_url, tmp_path / "home", redis_url="redis://127.0.0.1:1/0", rate_limit_calls=0)
    with running(settings) as live:
        response = initialize(live, {"x-api-key": live.token})
        assert response.status_code == 503
        assert "mcp-session-id" not in response.headers


def test_the_same_names_in_two_tenants_never_meet(shop: Running):
    stock(shop, "rival")
    theirs = shop.new_token("rival-admin", org="rival", admin=True)

    def rename(db: Database) -> Any:
        sql = (
            "UPDATE entities SET description = 'of the rival' WHERE org_id = (SELECT id FROM orgs WHERE name = 'rival')"
        )
        return db.write(lambda tx: tx.execute(sql))

    assert shop.run(rename) == 7
    for make in (Caller.connect, Caller.newest):
        us, them = make(shop), make(shop, theirs)
        ours: dict[str, Any] = {}
        for _ in range(2):  # the second time from the cache
            ours, rivals = us.ask("get-entity", name="PowerJet 1800"), them.ask("get-entity", name="PowerJet 1800")
            assert ours["_id"] != rivals["_id"]
            assert (ours["description"] == "of the rival", rivals["description"]) == (False, "of the rival")
            found = [
                who.ask("search-knowledge-base", namespace="products", query="washer", topK=50) for who in (us, them)
            ]
            assert [len(each) for each in found] == [6, 6]
            assert not {each["id"] for each in found[0]} & {each["id"] for each in found[1]}
            trees = [json.dumps(who.ask("get-knowledge-base-structure")) for who in (us, them)]
            assert trees[0] != trees[1]
        foreign = them.refused("get-entity", id=ours["_id"])
        assert foreign == them.refused("get-entity", id="f" * 24).replace("f" * 24, ours["_id"])
