"""The gateway in front of another server, or of a service with every kind of failure."""

import json
import socket
import threading
import time
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from almanac.surfaces.gateway import key_verifier
from tests.catalogue.sample_catalogue import POWERJET
from tests.live_server import Running, running, settings_for
from tests.surfaces.gateway.caller import Caller, initialize
from tests.surfaces.gateway.conftest import stock
from tests.surfaces.gateway.test_credentials import revoke, said
from tests.surfaces.wire import beside
from tests.waiting import wait_until

NO_NAMESPACE = "Knowledge Base service error (404): There is no namespace 'n'."
SERVICE = "a-service-key-that-nobody-guesses-0123456789"


@pytest.fixture(scope="module")
def chain(
    shared_url: str, new_sqlite: Callable[[], str], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[Running, Running]]:
    """A server with a catalogue, and another one that is only its gateway."""
    there = settings_for(shared_url, tmp_path_factory.mktemp("there"), gateway_service_key=SERVICE)
    with running(there) as upstream:
        stock(upstream)
        urls = {"gateway_upstream_url": f"{upstream.url}/", "gateway_keys_url": upstream.url}
        here = settings_for(new_sqlite(), tmp_path_factory.mktemp("here"), gateway_service_key=SERVICE, **urls)
        with running(here) as gateway:
            yield gateway, upstream


@pytest.mark.parametrize("connect", [Caller.connect, Caller.newest])
def test_two_servers_answer_as_one_does(chain: tuple[Running, Running], connect: Any):
    gateway, upstream = chain
    far, near = connect(gateway, upstream.token), connect(upstream)
    search = {"namespace": "products", "query": "pressure washer", "metadata": {"psi": {"$lt": 2000}}}
    matches = near.ask("search-knowledge-base", **search)
    # The service's REST API has one more field, which the gateway passes through.
    assert far.ask("search-knowledge-base", **search) == [{**each, "values": []} for each in matches]
    asked: list[tuple[str, dict[str, Any]]] = [
        ("get-entity", {"id": POWERJET}),
        ("get-entity", {"name": "Returns within 30 days"}),
        ("get-knowledge-base-structure", {}),
        ("get-knowledge-base-structure", {"categoryId": "Products/Washers"}),
    ]
    for tool, arguments in asked:
        assert far.ask(tool, **arguments) == near.ask(tool, **arguments)
    for tool, arguments in (
        ("get-entity", {"name": "no / such? thing#%2f"}),
        ("search-knowledge-base", {"namespace": "never", "query": "x"}),
        ("get-entity", {}),
    ):
        assert far.refused(tool, **arguments) == near.refused(tool, **arguments)
    assert far.ask("health-check")["status"] == "ok"


def test_a_key_is_verified_by_the_manager_and_its_revocation_ends_the_session_within_a_second(
    chain: tuple[Running, Running],
):
    gateway, upstream = chain
    assert said(initialize(gateway, {"x-api-key": gateway.token})) == (401, "Invalid API key")
    assert said(initialize(gateway, {})) == (401, "Missing API key")
    key = upstream.new_token("far away", kind="agent")
    session, newest = Caller.connect(gateway, key), Caller.newest(gateway, key)
    assert session.ask("get-entity", id=POWERJET)["_id"] == POWERJET
    assert newest.ask("get-entity", id=POWERJET)["_id"] == POWERJET
    revoke(upstream, key)
    wait_until(lambda: session.rpc("tools/list").status_code, lambda status: status == 401, seconds=1.5)
    assert said(session.rpc("tools/list")) == (401, "Invalid or missing sessionId")
    wait_until(lambda: newest.rpc("tools/list").status_code, lambda status: status == 401, seconds=1.5)


@pytest.mark.parametrize("connect", [Caller.connect, Caller.newest])
def test_a_key_may_do_here_what_the_manager_says_it_may(chain: tuple[Running, Running], connect: Any):
    gateway, upstream = chain
    reader = connect(gateway, upstream.new_token("reads only", kind="agent", scope=["catalogue:read"]))
    assert len(reader.rpc("tools/list").json()["result"]["tools"]) == 4
    assert reader.ask("get-entity", id=POWERJET)["_id"] == POWERJET
    told = reader.refused("search-knowledge-base", namespace="products", query="x")
    assert "Your token lacks the scope search:read." in told


def test_only_the_service_key_speaks_for_a_tenant(chain: tuple[Running, Running]):
    _, upstream = chain
    path = f"/knowledge-base/entities/{POWERJET}"
    org = upstream.run(lambda db: db.fetch("SELECT id FROM orgs"))[0]["id"]
    good = upstream.http.get(path, headers={"authorization": f"Bearer {SERVICE}", "x-tenant-id": org})
    assert good.json()["_id"] == POWERJET
    for headers, status in (
        ({"authorization": f"Bearer {SERVICE}"}, 404),
        ({"authorization": f"Bearer {SERVICE}", "x-tenant-id": "nobody"}, 404),
        ({"authorization": f"Bearer {SERVICE}x", "x-tenant-id": org}, 401),
        ({"x-tenant-id": org}, 401),
    ):
        assert upstream.http.get(path, headers=headers).status_code == status
    stranger = upstream.new_token("stranger", org="elsewhere", admin=True)
    assert upstream.http.get(path, headers={"x-api-key": stranger, "x-tenant-id": org}).status_code == 404
    write = upstream.http.delete(path, headers={"authorization": f"Bearer {SERVICE}", "x-tenant-id": org})
    assert write.status_code == 403


# A service with prepared answers


@dataclass
class Double:
    """A stand-in for a remote service, which sends prepared answers in turn and records its requests."""

    url: str
    answers: list[tuple[int, bytes]] = field(default_factory=list[tuple[int, bytes]])
    asked: list[tuple[str, str, dict[str, str], bytes]] = field(
        default_factory=list[tuple[str, str, dict[str, str], bytes]]
    )
    connections: set[Any] = field(default_factory=set[Any])
    pause_seconds: float = 0.0
    is_over: threading.Event = field(default_factory=threading.Event)


@contextmanager
def double() -> Generator[Double]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def _serve(self) -> None:
            body = self.rfile.read(int(self.headers.get("content-length", 0)))
            it.asked.append((self.command, self.path, {k.lower(): v for k, v in self.headers.items()}, body))
            it.connections.add(self.client_address)
            it.is_over.wait(it.pause_seconds)
            status, said = it.answers.pop(0) if len(it.answers) > 1 else it.answers[0]
            if not status:  # hang up
                self.connection.shutdown(socket.SHUT_RDWR)
                self.close_connection = True
                return
            self.send_response(status)
            self.send_header("content-length", str(len(said)))
            self.end_headers()
            self.wfile.write(said)

        do_GET = do_POST = _serve

        def log_message(self, format: str, *args: Any) -> None: ...

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    it = Double(f"http://127.0.0.1:{server.server_port}")
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield it
    finally:
        it.is_over.set()
        server.shutdown()
        server.server_close()
        thread.join()


@pytest.fixture(scope="module")
def fronted(
    new_sqlite: Callable[[], str], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[Running, Double]]:
    home: Path = tmp_path_factory.mktemp("home")
    with double() as it:
        options = {"gateway_upstream_url": f"{it.url}/base", "gateway_timeout_seconds": 2.0}
        with running(settings_for(new_sqlite(), home, **options, gateway_service_key=SERVICE)) as live:
            yield live, it


def test_the_validated_request_goes_upstream_with_the_tenant_and_without_the_key(fronted: tuple[Running, Double]):
    live, it = fronted
    caller = Caller.newest(live)
    it.asked.clear()
    found: list[dict[str, Any]] = [{"id": "a", "score": 0.91, "values": [0.1], "metadata": {}, "new": {"field": 1}}]
    it.answers = [(200, json.dumps(found).encode())]
    asked = {"namespace": "products", "query": "q", "topK": 5.0, "metadata": {"category": "washers"}, "surplus": 1}
    assert caller.ask("search-knowledge-base", **asked) == found  # every field of the service
    caller.ask("search-knowledge-base", namespace="n", query="q")
    it.answers = [(200, b'{"_id": "x"}')]
    caller.ask("get-entity", name="a/b c?d#é%")
    caller.ask("get-entity", id="i", name="n")
    caller.ask("get-knowledge-base-structure")
    caller.ask("get-knowledge-base-structure", categoryId="a/b")
    assert [(method, path) for method, path, _, _ in it.asked] == [
        ("POST", "/base/knowledge-base/retrieve"),
        ("POST", "/base/knowledge-base/retrieve"),
        ("GET", "/base/knowledge-base/entities/a%2Fb%20c%3Fd%23%C3%A9%25"),
        ("GET", "/base/knowledge-base/entities/i"),
        ("GET", "/base/knowledge-base/categories"),
        ("GET", "/base/knowledge-base/categories/a%2Fb"),
    ]
    bodies = [json.loads(body) for _, _, _, body in it.asked[:2]]
    assert bodies[0] == {"namespace": "products", "query": "q", "topK": 5, "metadata": {"category": "washers"}}
    assert bodies[1] == {"namespace": "n", "query": "q", "topK": 10}
    org = live.run(lambda db: db.fetch("SELECT id FROM orgs"))[0]["id"]
    for _, path, headers, body in it.asked:
        assert headers["x-tenant-id"] == org
        assert headers["authorization"] == f"Bearer {SERVICE}"
        assert live.token not in path + json.dumps(headers) + body.decode()
    assert len(it.connections) == 1  # kept and used again


@pytest.mark.parametrize(
    ("answers", "expected"),
    [
        ([(404, b'{"message": "Entity not found"}')], "Knowledge Base service error (404): Entity not found"),
        ([(400, b'{"error": "bad namespace"}')], "Knowledge Base service error (400): bad namespace"),
        ([(500, b"<html>oops</html>")], "Knowledge Base service error (500): It gave no reason."),
        ([(401, b'{"error": 5}')], "Knowledge Base service error (401): It gave no reason."),
        ([(302, b"")], "Knowledge Base service error (302): It gave no reason."),
        ([(200, b"not json")], "Knowledge Base service error (502): It does not answer as it should."),
        ([(503, b'{"detail": "busy"}')], "Knowledge Base service error (503): busy"),
        (
            [(0, b"")],
            "Knowledge Base service error (502): A service that this server depends on cannot be reached or does not "
            "answer in time. Try again in a few seconds.",
        ),
    ],
)
def test_what_goes_wrong_upstream_is_told_as_an_error(
    fronted: tuple[Running, Double], answers: list[tuple[int, bytes]], expected: str
):
    live, it = fronted
    it.answers = answers
    for tool, arguments in (
        ("get-entity", {"id": "x"}),
        ("search-knowledge-base", {"namespace": "n", "query": "q"}),
        ("get-knowledge-base-structure", {}),
    ):
        assert Caller.newest(live).refused(tool, **arguments) == expected


def test_a_list_that_is_none_is_no_empty_result(fronted: tuple[Running, Double]):
    live, it = fronted
    it.answers = [(200, b'{"results": []}')]
    text = Caller.newest(live).refused("search-knowledge-base", namespace="n", query="q")
    assert text == "Knowledge Base service error (502): It does not answer as it should."


@pytest.mark.parametrize("failure", [(503, b""), (0, b""), (429, b"")])
def test_what_fails_for_the_moment_is_asked_again(fronted: tuple[Running, Double], failure: tuple[int, bytes]):
    live, it = fronted
    it.asked.clear()
    it.answers = [failure, failure, (200, b'{"_id": "x"}')]
    assert Caller.newest(live).ask("get-entity", id="x") == {"_id": "x"}
    assert len(it.asked) == 3


def test_a_service_that_is_not_there_is_seen_by_the_health_check(fronted: tuple[Running, Double]):
    live, it = fronted
    it.answers = [(200, b"{}")]
    assert Caller.newest(live).ask("health-check")["knowledgeBase"] == "ok"
    it.answers = [(500, b"")]
    health = Caller.newest(live).ask("health-check")
    assert (health["status"], health["knowledgeBase"]) == ("degraded", "unreachable")


def test_the_scopes_of_a_manager_that_has_others_leave_a_good_key_good(new_sqlite: Callable[[], str], tmp_path: Path):
    with double() as it, running(settings_for(new_sqlite(), tmp_path, gateway_keys_url=it.url)) as live:
        odd: tuple[Any, ...] = (None, "all", [], ["kb"], [["kb"], 5], ["catalogue:read", "search:read", ["x"]])
        for number, scopes in enumerate(odd):
            it.answers = [(200, json.dumps({"valid": True, "tenantId": "t", "scopes": scopes}).encode())]
            caller = Caller.newest(live, f"key {number}")
            told = caller.refused("search-knowledge-base", namespace="n", query="q")
            assert told.startswith(NO_NAMESPACE), scopes
        it.answers = [(200, json.dumps({"valid": True, "tenantId": "t", "scopes": ["catalogue:read", 5]}).encode())]
        told = Caller.newest(live, "narrow").refused("search-knowledge-base", namespace="n", query="q")
        assert "Your token lacks the scope search:read." in told


def test_a_manager_that_fails_lets_nobody_in(new_sqlite: Callable[[], str], tmp_path: Path):
    with double() as it, running(settings_for(new_sqlite(), tmp_path, gateway_keys_url=it.url)) as live:
        for answer in (
            (500, b""),
            (200, b"[]"),
            (200, b'{"valid": true}'),
            (200, b'{"valid": true, "tenantId": "a\\nb"}'),
        ):
            it.answers = [answer]
            response = initialize(live, {"x-api-key": f"key of {answer}"})
            assert response.status_code == 502, answer
            assert "mcp-session-id" not in response.headers
        for answer in ((200, b'{"valid": false}'), (401, b""), (403, b"")):
            it.answers = [answer]
            assert said(initialize(live, {"x-api-key": f"key of {answer}"})) == (401, "Invalid API key")
        method, path, _, body = it.asked[-1]
        assert (method, path) == ("POST", "/keys/verify")
        assert json.loads(body) == {"key": "key of (403, b'')", "scope": "knowledge-base"}


VALID: dict[str, Any] = {"valid": True, "tenantId": "t", "name": "reader", "scopes": ["catalogue:read", "search:read"]}


def valid(**more: Any) -> tuple[int, bytes]:
    return 200, json.dumps({**VALID, **more}).encode()


@pytest.mark.parametrize("outage", [(0, b""), (500, b""), (200, b"<html>")])
def test_a_live_session_goes_on_while_the_manager_is_away(
    database_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, outage: tuple[int, bytes]
):
    monkeypatch.setattr(key_verifier, "KEY_CACHE_SECONDS", 0.0)
    monkeypatch.setattr(key_verifier, "MANAGER_RETRY_SECONDS", 0.3)
    with double() as it, running(settings_for(database_url, tmp_path, gateway_keys_url=it.url)) as live:
        it.answers = [valid()]
        session = Caller.connect(live, "the key")
        it.answers = [outage]
        with beside(live) as other:  # a process that has never verified the key
            for caller in (session, Caller(other, session.headers)):
                assert caller.refused("search-knowledge-base", namespace="n", query="q").startswith(NO_NAMESPACE)
        assert initialize(live, {"x-api-key": "the key"}).status_code == 502
        assert Caller.newest(live, "the key").rpc("tools/list").status_code == 502
        it.answers = [(401, b"")]
        wait_until(lambda: session.rpc("tools/list").status_code, lambda status: status == 401, seconds=5)
        it.answers = [outage]
        assert said(session.rpc("tools/list")) == (401, "Invalid or missing sessionId")


def test_a_session_does_not_wait_for_a_manager_that_does_not_answer(
    database_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(key_verifier, "KEY_CACHE_SECONDS", 0.0)
    monkeypatch.setattr(key_verifier, "MAX_SESSION_VERIFY_SECONDS", 0.5)
    with double() as it, running(settings_for(database_url, tmp_path, gateway_keys_url=it.url)) as live:
        it.answers = [valid()]
        session = Caller.connect(live, "the key")
        it.pause_seconds = 4.0
        begun = time.monotonic()
        for _ in range(10):
            assert session.rpc("tools/list").status_code == 200
        assert time.monotonic() - begun < 3


def test_a_session_does_not_outlive_its_key_while_the_manager_is_away(
    database_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(key_verifier, "KEY_CACHE_SECONDS", 0.0)
    with double() as it, running(settings_for(database_url, tmp_path, gateway_keys_url=it.url)) as live:
        callers: list[Caller] = []
        for key, expiry in (("a", "2020-01-01T00:00:00Z"), ("b", "2999-01-01T00:00:00Z"), ("c", None), ("d", "soon")):
            it.answers = [valid(expiresAt=expiry)]
            callers.append(Caller.connect(live, key))
        it.answers = [(0, b"")]
        assert [caller.rpc("tools/list").status_code for caller in callers] == [401, 200, 200, 200]
