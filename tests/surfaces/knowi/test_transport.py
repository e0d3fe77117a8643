"""The transport: sessions, the handshake, errors and the REST paths."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from almanac.core import clock
from almanac.core.database import Database
from almanac.db.read_cache import ReadCache
from almanac.net.redis_client import open_redis
from almanac.surfaces.knowi import sessions
from almanac.surfaces.knowi.sessions import DatabaseSessions, RedisSessions, SessionStore
from tests.live_server import LEGACY, MODERN, Running, running, settings_for
from tests.surfaces.knowi.caller import PATH, Caller, caller
from tests.surfaces.wire import audit_of, beside

HANDSHAKE: dict[str, Any] = {
    "protocolVersion": "2024-11-05",
    "capabilities": {"tools": {}},
    "serverInfo": {"name": "knowi-mcp-server", "version": "1.0.0"},
}
LIST: dict[str, Any] = {"name": "knowi_list_documents", "arguments": {}}


def test_initialize_needs_no_parameters(live: Running):
    response = caller(live).send("initialize", {})
    assert response.json() == {"jsonrpc": "2.0", "id": 1, "result": HANDSHAKE}
    assert re.fullmatch(r"sh-[1-9]\d*", response.headers["mcp-session-id"])
    assert caller(live).send("initialize").json()["result"] == HANDSHAKE


@pytest.mark.parametrize(
    ("asked", "given"),
    [
        ("2024-11-05", "2024-11-05"),
        ("2025-03-26", "2025-03-26"),
        ("2025-06-18", "2025-06-18"),
        ("2025-11-25", "2025-11-25"),
        ("2031-01-01", "2025-11-25"),
    ],
)
def test_a_newer_version_is_given_as_asked_for(live: Running, asked: str, given: str):
    result = caller(live).send("initialize", {"protocolVersion": asked, "capabilities": {}, "clientInfo": {}}).json()
    assert result["result"] == {**HANDSHAKE, "protocolVersion": given}


def test_a_version_that_is_no_text_is_refused(live: Running):
    response = caller(live).send("initialize", {"protocolVersion": 1})
    assert response.status_code == 400
    assert "protocolVersion" in response.json()["error"]["message"]


def test_the_initialized_notification_has_no_answer(live: Running):
    someone = caller(live)
    someone.send("initialize", {})
    session = someone.session
    response = someone.send("notifications/initialized", id=None)
    assert (response.status_code, response.content, someone.session) == (204, b"", session)


def test_ping_answers_in_both_eras(live: Running):
    assert caller(live).send("ping").json() == {"jsonrpc": "2.0", "id": 1, "result": {}}
    assert live.rpc("ping", path=PATH, era=LEGACY).json()["result"] == {}


def test_the_newest_version_needs_no_handshake(live: Running):
    found = live.rpc("server/discover", path=PATH, era=MODERN).json()["result"]
    assert found["supportedVersions"] == [MODERN]
    assert found["_meta"]["io.modelcontextprotocol/serverInfo"]["name"] == "knowi-mcp-server"
    assert found["_meta"]["io.modelcontextprotocol/serverInfo"]["version"] == "1.0.0"
    result = live.rpc("tools/call", LIST, path=PATH, era=MODERN).json()["result"]
    assert (result["resultType"], result["isError"]) == ("complete", False)


def test_an_unknown_method_is_a_protocol_error(live: Running):
    assert caller(live).send("tools/unknown").json()["error"]["code"] == -32601


def test_a_request_without_an_accept_header_is_answered(live: Running):
    for method in ("tools/list", "ping"):
        sent = {"jsonrpc": "2.0", "id": 1, "method": method}
        headers = {**caller(live).headers, "accept": ""}
        request = live.http.build_request("POST", PATH, content=json.dumps(sent), headers=headers)
        del request.headers["accept"]
        assert live.http.send(request).status_code == 200


# Sessions


def test_every_answer_of_the_transport_names_a_session(live: Running):
    someone = caller(live, "ada")
    for send in (
        lambda: someone.send("initialize", {}),
        lambda: someone.send("notifications/initialized", id=None),
        lambda: someone.send("ping"),
        lambda: someone.send("tools/list"),
        lambda: someone.send("tools/call", LIST),
        lambda: someone.send("tools/call", {"name": "unknown"}),
        lambda: someone.send("unknown"),
        lambda: live.http.post(PATH, content=b"[]", headers=someone.headers),
        lambda: live.http.post(PATH, content=b"{", headers=someone.headers),
        lambda: live.http.post(PATH, content=b"x", headers={**someone.headers, "content-type": "text/plain"}),
        lambda: live.http.get(PATH, headers=someone.headers),
        lambda: live.rpc("tools/call", LIST, path=PATH, era=MODERN, token=someone.token),
        lambda: live.rpc("server/discover", path=PATH, era=MODERN, token=someone.token),
        lambda: live.http.delete(PATH, headers=someone.headers),
    ):
        response = send()
        assert re.fullmatch(r"sh-[1-9]\d*", response.headers["mcp-session-id"]), response.text


def test_a_session_goes_on_as_long_as_its_client_names_it(live: Running):
    someone = caller(live, "ada")
    someone.connect()
    session = someone.session
    for method, params in (("tools/list", None), ("tools/call", LIST), ("ping", None)):
        assert someone.send(method, params).headers["mcp-session-id"] == session
    assert someone.send("initialize", {}).headers["mcp-session-id"] == session


def test_each_handshake_opens_a_session(live: Running):
    one, other = caller(live), caller(live)
    one.connect()
    other.connect()
    assert one.session != other.session


def test_a_client_that_names_no_session_opens_only_one(live: Running):
    token = live.new_token("stateless")
    found = {Caller(live, token).send("tools/list").headers["mcp-session-id"] for _ in range(3)}
    assert len(found) == 1


@pytest.mark.parametrize("unknown", ["sh-999999", "sh-0", "sh-01", "sh-", "x", "sh-" + "9" * 40])
def test_an_unknown_session_is_replaced_silently(live: Running, unknown: str):
    someone = caller(live)
    someone.session = unknown
    response = someone.send("tools/call", LIST)
    assert (response.status_code, response.json()["result"]["isError"]) == (200, False)
    assert response.headers["mcp-session-id"] != unknown


def test_a_session_belongs_to_its_user(live: Running):
    ada, ben = caller(live, "ada"), caller(live, "ben")
    ada.connect()
    ben.session = session = ada.session
    assert ben.send("tools/call", LIST).json()["result"]["isError"] is False  # as Ben
    assert ben.session != session
    live.http.delete(PATH, headers={**ben.headers, "mcp-session-id": session})
    assert ada.send("tools/list").headers["mcp-session-id"] == session


def test_a_second_token_of_the_user_goes_on_with_the_session(live: Running):
    ada = caller(live, "ada")
    ada.connect()
    again = Caller(live, live.new_token("ada"), ada.session)
    assert again.send("tools/list").headers["mcp-session-id"] == ada.session


def test_a_session_alone_grants_nothing(live: Running):
    someone = caller(live)
    someone.connect()
    headers = {"Mcp-Session-Id": someone.session, "Content-Type": "application/json"}
    message = json.dumps({"jsonrpc": "2.0", "id": 1, "method": "tools/list"})
    for authorization in ({}, {"Authorization": "Bearer wrong"}, {"Authorization": f"Bearer {someone.session}"}):
        for method in ("POST", "DELETE"):
            answer = live.http.request(method, PATH, content=message, headers={**headers, **authorization})
            assert answer.status_code == 401
            assert answer.headers["www-authenticate"].startswith("Bearer")
            assert "mcp-session-id" not in answer.headers
    assert someone.send("tools/list").headers["mcp-session-id"] == someone.session


def test_a_session_can_be_ended(live: Running):
    someone = caller(live, "ender")
    someone.connect()
    session, active = someone.session, _active(live)
    assert live.http.delete(PATH, headers=someone.headers).status_code == 200
    assert _active(live) == active - 1
    assert someone.send("tools/list").headers["mcp-session-id"] != session
    assert live.http.delete(PATH, headers={**someone.headers, "mcp-session-id": session}).status_code == 200
    assert live.http.delete(PATH, headers={"Authorization": f"Bearer {someone.token}"}).status_code == 200


def test_an_idle_session_ends(live: Running):
    someone = caller(live, "idler")
    someone.connect()
    session, active = someone.session, _active(live)
    at = clock.now() - sessions.IDLE_TIME
    live.run(lambda db: db.write(lambda tx: tx.execute(
        "UPDATE knowi_sessions SET used_at = $1 WHERE id = $2", at, int(session[3:]))))  # fmt: skip
    assert _active(live) == active - 1
    response = someone.send("tools/list")
    assert (response.status_code, response.headers["mcp-session-id"] == session) == (200, False)


def _active(live: Running) -> int:
    return live.http.get(f"{PATH}/health").json()["activeSessions"]


@pytest.fixture(params=["database", "redis"])
async def store(request: pytest.FixtureRequest, database: Database) -> Any:
    if request.param == "database":
        yield DatabaseSessions(database, ReadCache(database))
        return
    async with open_redis(request.getfixturevalue("redis_url")) as redis:
        await redis.flushdb()  # pyright: ignore[reportUnknownMemberType]
        yield RedisSessions(redis)


async def test_the_stores_keep_the_rules(store: SessionStore, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(sessions, "MAX_SESSIONS", 4)
    mine = [await store.open(1) for _ in range(3)]
    other = await store.open(12)
    assert len({*mine, other}) == await store.count() == 4
    assert await store.resume(1, mine[0])
    assert not await store.resume(12, mine[0])
    assert not await store.resume(1, other)
    mine.append(await store.open(1))  # the caller's own oldest ends first
    assert [await store.resume(1, number) for number in mine] == [False, True, True, True]
    assert await store.resume(12, other)
    third = await store.open(2)  # without one of its own, the oldest of all
    assert [await store.resume(1, number) for number in mine] == [False, False, True, True]
    await store.end(1, third)
    assert await store.resume(2, third)
    await store.end(2, third)
    assert not await store.resume(2, third)
    assert await store.count() == 3
    start = clock.now()
    monkeypatch.setattr(clock, "now", lambda: start + sessions.IDLE_TIME - clock.SECOND)
    assert await store.resume(12, other)  # which begins the time anew
    monkeypatch.setattr(clock, "now", lambda: start + sessions.IDLE_TIME + clock.MINUTE)
    assert await store.count() == 1
    assert await store.resume(12, other)
    assert not await store.resume(1, mine[-1])


def test_two_processes_share_sessions(live: Running):
    someone = caller(live, "traveller")
    someone.connect()
    with beside(live) as other:
        there = Caller(other, someone.token, someone.session)
        assert there.send("tools/list").headers["mcp-session-id"] == someone.session
        assert _active(other) == _active(live)
        other.http.delete(PATH, headers=there.headers)
    assert someone.send("tools/list").headers["mcp-session-id"] != there.session


def test_sessions_in_redis_need_no_table(new_sqlite: Callable[[], str], redis_url: str, tmp_path: Path):
    with running(settings_for(new_sqlite(), tmp_path / "home", redis_url=redis_url)) as live:
        someone = caller(live)
        someone.connect()
        assert someone.send("tools/list").headers["mcp-session-id"] == someone.session
        assert not live.run(lambda db: db.fetch("SELECT 1 FROM knowi_sessions"))


# Credentials and errors


def test_a_caller_without_a_valid_token_is_told_how_to_authenticate(live: Running):
    for path, method in (("", "POST"), ("", "DELETE"), ("/tools", "GET"), ("/tools/x", "GET"), ("/tools/call", "POST")):
        for headers in ({}, {"Authorization": "Bearer expired"}):
            answer = live.http.request(method, PATH + path, headers=headers)
            assert answer.status_code == 401
            assert answer.headers["www-authenticate"].startswith("Bearer")


def test_health_needs_no_token(live: Running):
    health = live.http.get(f"{PATH}/health")
    assert health.status_code == 200
    assert health.json().keys() == {"status", "toolCount", "tools", "activeSessions"}
    assert health.json()["status"] == "healthy"


def test_an_unknown_tool_is_not_found(live: Running):
    text = "Tool not found: knowi_fly. Use /api/2.0/mcp/tools to list valid tool names."
    someone = caller(live)
    assert someone.send("tools/call", {"name": "knowi_fly"}).json()["error"] == {"code": -32602, "message": text}
    told = {"content": [{"type": "text", "text": text}], "isError": True}
    for answer in (someone.rest("POST", "/tools/call", {"name": "knowi_fly"}), someone.rest("GET", "/tools/knowi_fly")):
        assert answer.status_code == 404
        assert {name: answer.json()[name] for name in told} == told


def test_a_wrong_argument_is_a_validation_error(live: Running):
    someone = caller(live)
    text = someone.refused("knowi_delete_document", {"documentId": 7})
    assert text.startswith("Validation error: documentId: ")
    assert "confirm" in text
    assert someone.refused("knowi_list_documents", {"page": 2}).startswith("Validation error: page: ")
    answer = someone.rest("POST", "/tools/call", {"name": "knowi_delete_document", "arguments": {}})
    assert (answer.status_code, answer.json()["isError"]) == (200, True)
    assert answer.json()["content"][0]["text"].startswith("Validation error: ")


def test_control_characters_are_stripped_from_all_arguments(live: Running):
    ada = caller(live, "ada")
    ada.ingest("sp\x00ring\x07.md", "One\x1b line.\n\tAnother.")
    [document] = ada.data("knowi_list_documents", {"que\x08ry": "spr\x7fing.md"})["documents"]
    assert document["documentName"] == "spring.md"
    assert document["size"] == len("One line.\n\tAnother.")
    body = {"name": "knowi_list_documents", "arguments": {"query": "spr\x0bing.md"}}
    assert ada.rest("POST", "/tools/call", body).json()["structuredContent"]["returnedRows"] == 1
    ada.data("knowi_delete_document", {"documentId": document["documentId"], "confirm": True})


# REST


def test_a_call_over_rest_reports_its_time(live: Running):
    answer = caller(live).rest("POST", "/tools/call", {**LIST, "_meta": {}}).json()
    assert answer["isError"] is False
    assert answer["content"][0] == {"type": "text", "text": "Found 0 documents"}
    assert isinstance(answer["_meta"]["executionTimeMs"], int)
    assert json.loads(answer["content"][1]["text"]) == answer["structuredContent"]


@pytest.mark.parametrize(
    "body", [[], "x", None, {}, {"name": 1}, {"name": "knowi_list_documents", "arguments": []},
             {"name": "knowi_list_documents", "_meta": 1}]
)  # fmt: skip
def test_a_body_that_is_no_call_is_refused(live: Running, body: Any):
    answer = live.http.post(f"{PATH}/tools/call", json=body, headers=caller(live).headers)
    assert (answer.status_code, answer.json()["isError"]) == (400, True)


def test_a_body_that_is_no_json_is_refused(live: Running):
    someone = caller(live)
    assert live.http.post(f"{PATH}/tools/call", content=b"{", headers=someone.headers).status_code == 400
    headers = {**someone.headers, "content-type": "text/plain"}
    assert live.http.post(f"{PATH}/tools/call", content=b"{}", headers=headers).status_code == 415


def test_each_path_takes_its_own_method(live: Running):
    someone = caller(live)
    for method, path, allowed in (
        ("POST", "/tools", "GET"),
        ("DELETE", "/tools/knowi_list_documents", "GET"),
        ("GET", "/tools/call", "POST"),
        ("GET", "", "POST, DELETE"),
    ):
        answer = someone.rest(method, path)
        assert (answer.status_code, answer.headers["allow"]) == (405, allowed)


def test_calls_of_both_kinds_are_in_the_audit_trail(live: Running):
    someone = caller(live, "ada")
    someone.send("tools/call", LIST, **{"x-request-id": "knowi-rpc"})
    live.http.post(f"{PATH}/tools/call", json=LIST, headers={**someone.headers, "x-request-id": "knowi-rest"})
    for request_id in ("knowi-rpc", "knowi-rest"):
        [row] = audit_of(live, request_id)
        assert (row["actor"], row["surface"], row["tool"], row["outcome"]) == (
            "ada", "knowi", "knowi_list_documents", "ok",
        )  # fmt: skip
        assert row["duration_us"] >= 0


def test_the_prefix_of_the_settings_serves_the_surface_too(live: Running):
    with beside(live, api_prefix="/api") as prefixed:
        assert prefixed.http.get(f"/api{PATH}/health").status_code == 200
        assert prefixed.rpc("tools/list", path=f"/api{PATH}").status_code == 200
        assert prefixed.http.get(f"/api{PATH}/tools", headers=caller(live).headers).status_code == 200
