"""The login of clients at POST /api/2.0/login, on both databases."""

from typing import Any

import httpx2
import jsonschema
import orjson
import pytest

from almanac.core import clock
from almanac.jobs import queue
from almanac.web import openapi
from almanac.web.login import MANAGEMENT_OPERATIONS, MANAGEMENT_PREFIX
from tests.live_server import Running
from tests.surfaces.wire import audit_of, beside

LOGIN = "/api/2.0/login"
REFUSED = {
    "error": "The clientId or the clientSecret is not valid. Check both; an operator can make new ones with"
    " 'almanac client add USER'.",
    "code": "unauthorized",
}


@pytest.fixture(scope="module", autouse=True)
def _maria(shared: Running) -> None:
    shared.new_token("maria")


def log_in(live: Running, body: Any, **headers: str) -> httpx2.Response:
    return live.http.post(LOGIN, content=orjson.dumps(body), headers={"content-type": "application/json", **headers})


def test_the_request_of_the_seed_returns_a_bearer_token_for_an_hour(shared: Running):
    response = log_in(shared, shared.new_client("maria"))
    assert response.status_code == 200
    assert response.headers["cache-control"] == "no-store"
    answer = response.json()
    assert answer == {"access_token": answer["access_token"], "token_type": "Bearer", "expires_in": 3600}
    described = openapi.describe(MANAGEMENT_OPERATIONS, MANAGEMENT_PREFIX)
    operation = described["paths"]["/login"]["post"]
    assert operation["security"] == []
    schema = operation["responses"]["200"]["content"]["application/json"]["schema"]
    jsonschema.validate(answer, {**schema, "components": described["components"]})  # pyright: ignore[reportUnknownMemberType]
    assert shared.http.get("/api/2.0/openapi.json").json() == described


def test_the_token_of_a_login_does_at_rest_and_mcp_what_its_user_may(shared: Running):
    token = log_in(shared, shared.new_client("maria")).json()["access_token"]
    headers = {"authorization": f"Bearer {token}"}
    caller = shared.http.get("/api/v1/whoami", headers=headers).json()
    assert (caller["name"], caller["token"]["kind"], caller["token"]["base_ids"]) == ("maria", "login", None)
    assert "admin" not in caller["scopes"]
    assert shared.http.post("/api/v1/bases", json={"name": "Hers"}, headers=headers).status_code == 201
    assert shared.call("whoami", token=token)["isError"] is False
    administrator = log_in(shared, shared.new_client("admin")).json()["access_token"]
    caller = shared.http.get("/api/v1/whoami", headers={"authorization": f"Bearer {administrator}"}).json()
    assert "admin" in caller["scopes"]


def test_wrong_credentials_have_one_answer(shared: Running):
    client = shared.new_client("maria")
    for body in (
        {**client, "clientId": "cl-0123456789abcdef01234567"},
        {**client, "clientSecret": "cs-wrong"},
        {**client, "clientSecret": shared.token},
        {"clientId": "x", "clientSecret": shared.new_mcp_token("maria")},
    ):
        response = log_in(shared, body)
        assert (response.status_code, response.json()) == (401, REFUSED)
        assert response.headers["www-authenticate"] == 'Bearer realm="almanac"'


def test_a_bearer_token_does_not_log_in(shared: Running):
    for token in (shared.token, shared.new_mcp_token("maria")):
        response = log_in(shared, {}, authorization=f"Bearer {token}")
        assert response.status_code == 400
        assert "clientId" in response.json()["error"]


@pytest.mark.parametrize(
    "content",
    [
        b"", b"{", b"[]", b"null", b'"x"', b"1", b"\xff", b"{}", b'{"clientId":"a"}',
        b'{"clientId":1,"clientSecret":2}',
        b'{"clientId":null,"clientSecret":null}', b'{"clientId":"a","clientSecret":""}',
        b'{"clientId":"a\\u0000","clientSecret":"b"}', b'{"clientId":"a\\ud800","clientSecret":"b"}',
        b'{"clientId":"a b","clientSecret":"b"}', b'{"clientId":["a"],"clientSecret":{"b":1}}',
        b'{"clientId":"a\\n","clientSecret":"b"}', b'{"clientId":"a","clientSecret":"b","grant_type":"x"}',
        b'{"clientId":"' + b"a" * 201 + b'","clientSecret":"b"}', b"[" * 5_000, b'{"a":' * 1_500,
    ],
)  # fmt: skip
def test_a_hostile_body_is_refused_with_the_remedy(shared: Running, content: bytes):
    response = shared.http.post(LOGIN, content=content, headers={"content-type": "application/json"})
    assert response.status_code == 400
    assert "clientId" in response.json()["error"]


def test_a_body_that_is_no_login_is_not_read(shared: Running):
    assert log_in(shared, {"clientId": "a" * 10_000, "clientSecret": "b"}).status_code == 413
    client = shared.new_client("maria")
    assert shared.http.post(LOGIN, content=orjson.dumps(client)).status_code == 415
    assert shared.http.get(LOGIN).status_code == 405


def test_logins_are_limited_by_client_and_address(shared: Running):
    client, other = shared.new_client("maria"), shared.new_client("maria")
    with beside(shared, login_calls_per_client=2, login_calls_per_address=5) as live:
        wrong = {**client, "clientSecret": "cs-wrong"}
        assert [log_in(live, wrong).status_code for _ in range(3)] == [401, 401, 429]
        limited = log_in(live, client)
        assert limited.status_code == 429
        assert 1 <= int(limited.headers["retry-after"]) <= 60
        assert log_in(live, other).status_code == 200
        assert log_in(live, other).status_code == 429  # of the address


def test_the_attempts_of_a_client_cannot_be_used_up_from_another_address(shared: Running):
    client = shared.new_client("maria")
    with beside(shared, login_calls_per_client=2, trusted_proxies=("127.0.0.1",)) as live:
        wrong = {**client, "clientSecret": "cs-wrong"}
        statuses = [log_in(live, wrong, **{"x-forwarded-for": "192.0.2.1"}).status_code for _ in range(3)]
        assert statuses == [401, 401, 429]
        assert log_in(live, client, **{"x-forwarded-for": "192.0.2.2"}).status_code == 200


def test_a_login_is_in_the_audit_trail_without_its_secret(shared: Running):
    client = shared.new_client("maria")
    log_in(shared, client, **{"x-request-id": "the-login"})
    (row,) = audit_of(shared, "the-login")
    assert (row["tool"], row["outcome"], row["actor"]) == ("login", "ok", "maria")
    assert client["clientSecret"] not in repr([row[name] for name in row.keys()])  # noqa: SIM118 - not a dictionary


def test_the_worker_removes_expired_login_tokens(shared: Running):
    token = log_in(shared, shared.new_client("maria")).json()["access_token"]
    expire = "UPDATE tokens SET expires_at = $1 WHERE kind = 'login'"
    shared.run(lambda db: db.write(lambda tx: tx.execute(expire, clock.now() - 1)))
    assert shared.http.get("/api/v1/whoami", headers={"authorization": f"Bearer {token}"}).status_code == 401
    shared.run(lambda db: db.write(lambda tx: queue.add(tx, "purge_expired", {})))
    shared.work()
    rows = shared.run(lambda db: db.fetch("SELECT 1 FROM tokens WHERE kind = 'login' AND expires_at < $1", clock.now()))
    assert rows == []
