"""The endpoints for operators: liveness, readiness, metrics and version."""

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

import almanac.bootstrap
from almanac import __version__
from almanac.core.database import Database, Row, Value
from almanac.db import migrate
from almanac.db.connect import connect
from almanac.db.errors import DatabaseUnavailable
from almanac.jobs import queue
from tests.live_server import Running, running, settings_for
from tests.quotas.test_rate_limits import free_port, private_redis

ENDPOINTS = {
    "almanac": "/mcp",
    "gateway": "/gateway/mcp",
    "memory": "/mcp/memory",
    "knowi": "/api/2.0/mcp",
    "rest": "/api/v1/openapi.json",
    "catalogue": "/knowledge-base/openapi.json",
    "agents": "/a2a/openapi.json",
    "management": "/api/2.0/openapi.json",
}


class Breakable:
    """A real database that fails while it is unavailable."""

    def __init__(self, db: Database) -> None:
        self._db = db
        self.is_away = False

    def __getattr__(self, name: str) -> Any:
        if name in ("fetch", "fetch_one", "scan", "write", "exclusive") and self.is_away:
            return self._refuse
        return getattr(self._db, name)

    async def _refuse(self, sql: str, *_: Value) -> list[Row]:
        raise DatabaseUnavailable("no route to db.internal:5432 for user almanac")


@pytest.fixture
def breakable(
    database_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[tuple[Running, Breakable]]:
    opened: list[Breakable] = []

    async def open_breakable(url: str, *, pool_size: int = 10) -> Any:
        opened.append(Breakable(await connect(url, pool_size=pool_size)))
        return opened[-1]

    monkeypatch.setattr(almanac.bootstrap, "connect", open_breakable)
    with running(settings_for(database_url, tmp_path / "home")) as live:
        yield live, opened[-1]
        opened[-1].is_away = False  # so that the stop can write the audit trail


@pytest.fixture
def embedded(tmp_path: Path, sqlite_template: Path) -> str:
    """The URL of a database, for tests that do not depend on its kind."""
    shutil.copy(sqlite_template, tmp_path / "almanac.db")
    return f"sqlite:///{tmp_path / 'almanac.db'}"


def samples(text: str) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    """The samples of a scrape, by name and labels, parsed by Prometheus' own parser."""
    families = list(text_string_to_metric_families(text))
    names = [family.name for family in families]
    assert len(names) == len(set(names)), "a metric appears twice"
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in families
        for sample in family.samples
    }


def scrape(live: Running) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    answer = live.http.get("/metrics")
    assert answer.status_code == 200
    assert answer.headers["content-type"].startswith("text/plain; version=")
    return samples(answer.text)


def key(name: str, **labels: str) -> tuple[str, tuple[tuple[str, str], ...]]:
    return name, tuple(sorted(labels.items()))


def test_health_says_that_the_process_answers(server: Running):
    answer = server.http.get("/health")
    assert (answer.status_code, answer.json()) == (200, {"status": "healthy", "service": "almanac"})


def test_ready_says_what_was_checked(server: Running):
    answer = server.http.get("/ready")
    assert answer.status_code == 200
    assert answer.json() == {"status": "ready", "checks": {"database": "ok", "migrations": "ok"}}


def test_the_front_page_says_what_this_is_and_where_the_endpoints_are(server: Running):
    answer = server.http.get("/")
    assert answer.status_code == 200
    assert answer.json() == {"service": "almanac", "version": __version__, "endpoints": ENDPOINTS}


def test_without_its_database_the_server_is_alive_but_not_ready(breakable: tuple[Running, Breakable]):
    live, db = breakable
    db.is_away = True
    answer = live.http.get("/ready")
    assert answer.status_code == 503
    body = answer.json()
    assert body["status"] == "not ready"
    assert body["checks"]["database"] == "The database cannot be reached or is busy."
    assert "db.internal" not in answer.text  # the endpoint is public, so it does not reveal the address of the database
    assert live.http.get("/health").status_code == 200
    db.is_away = False
    assert live.http.get("/ready").status_code == 200


def test_without_its_database_the_counters_of_calls_are_still_there(breakable: tuple[Running, Breakable]):
    live, db = breakable
    live.call("whoami")
    db.is_away = True
    found = scrape(live)
    assert found[key("almanac_calls_total", surface="almanac", tool="whoami", outcome="ok")] >= 1
    assert not any(name == "almanac_jobs" for name, _ in found)


def test_with_a_migration_to_apply_the_server_is_not_ready(server: Running):
    newest = migrate.bundled_migrations()[-1].version
    server.run(lambda db: db.write(lambda tx: tx.execute("DELETE FROM migrations WHERE version = $1", newest)))
    answer = server.http.get("/ready")
    assert answer.status_code == 503
    assert answer.json()["checks"] == {"database": "ok", "migrations": "1 to apply: run 'almanac migrate'"}


def test_with_a_database_of_a_newer_version_the_server_is_not_ready(server: Running):
    insert = "INSERT INTO migrations (version, name, checksum, applied_at) VALUES (9999, 'future', 'x', 0)"
    server.run(lambda db: db.write(lambda tx: tx.execute(insert)))
    answer = server.http.get("/ready")
    assert answer.status_code == 503
    assert "9999_future.sql" in answer.json()["checks"]["migrations"]


def test_without_a_configured_redis_the_server_is_not_ready_and_with_it_is(embedded: str, tmp_path: Path):
    port = free_port()
    with running(settings_for(embedded, tmp_path / "home", redis_url=f"redis://127.0.0.1:{port}/0")) as live:
        answer = live.http.get("/ready")
        assert answer.status_code == 503
        assert answer.json()["checks"] == {"database": "ok", "migrations": "ok", "redis": "cannot be reached"}
        with private_redis(port, tmp_path):
            assert live.http.get("/ready").json()["checks"]["redis"] == "ok"


def test_calls_are_counted_by_surface_tool_and_outcome(server: Running):
    before = scrape(server)
    server.call("whoami")
    server.call("whoami")
    server.call("whoami", {"no": "such"})
    server.call("server_status")
    server.rpc("tools/call", {"name": "invented-name", "arguments": {}})
    after = scrape(server)
    expected = {("whoami", "ok"): 2, ("whoami", "bad_request"): 1, ("server_status", "ok"): 1,
                ("(unknown)", "unknown_tool"): 1}  # fmt: skip
    for (tool, outcome), number in expected.items():
        sample = key("almanac_calls_total", surface="almanac", tool=tool, outcome=outcome)
        assert after[sample] - before.get(sample, 0) == number
    assert "invented-name" not in server.http.get("/metrics").text


def test_latencies_are_a_histogram_by_surface_and_tool(server: Running):
    before = scrape(server)
    for _ in range(3):
        server.call("whoami")
    after = scrape(server)

    def grown(sample: tuple[str, tuple[tuple[str, str], ...]]) -> float:
        return after[sample] - before.get(sample, 0)

    labels = {"surface": "almanac", "tool": "whoami"}
    assert grown(key("almanac_call_seconds_count", **labels)) == 3
    assert 0 < grown(key("almanac_call_seconds_sum", **labels)) < 30
    assert grown(key("almanac_call_seconds_bucket", le="+Inf", **labels)) == 3
    buckets = [dict(labels)["le"] for name, labels in after if name == "almanac_call_seconds_bucket"]
    assert {"0.001", "0.1", "1.0", "30.0"} <= set(buckets)


def test_jobs_and_connections_are_gauges(server: Running):
    server.run(lambda db: db.write(lambda tx: queue.add(tx, "nothing", {})))
    found = scrape(server)
    assert [found[key("almanac_jobs", state=state)] for state in ("queued", "running", "dead")] == [1, 0, 0]
    pool = {what: found[key("almanac_database", what=what)] for what in ("open", "idle", "waiting")}
    assert pool["open"] >= 1
    assert 0 <= pool["idle"] <= pool["open"]
    assert pool["waiting"] == 0


def test_no_label_says_who_called(server: Running):
    secret = server.new_token("very-private-name")
    server.call("whoami", token=secret)
    text = server.http.get("/metrics").text
    assert "very-private-name" not in text
    assert secret[3:12] not in text


def test_metrics_can_be_kept_for_tokens_that_may_read_the_audit_trail(embedded: str, tmp_path: Path):
    with running(settings_for(embedded, tmp_path / "home", metrics_access="token")) as live:
        everyday, spent = live.new_token("maria"), live.new_token("boss", admin=True, scope=["search:read"])
        enough = live.new_token("boss", scope=["audit:read"])

        def ask(authorization: str | None) -> int:
            headers = {} if authorization is None else {"authorization": authorization}
            return live.http.get("/metrics", headers=headers).status_code

        refused = [None, "", "Bearer", "Bearer nonsense", f"Basic {enough}", enough,
                   f"Bearer {everyday}", f"Bearer {spent}"]  # fmt: skip
        assert [ask(authorization) for authorization in refused] == [401] * len(refused)
        assert [ask(f"Bearer {enough}"), ask(f"bearer  {live.token}")] == [200, 200]
        answer = live.http.get("/metrics")
        assert answer.json() == {"error": "A token with the scope audit:read is needed.", "code": "unauthorized"}
        assert answer.headers["www-authenticate"] == 'Bearer realm="almanac"'
        assert live.http.get("/health").status_code == 200


def test_an_unknown_path_is_told_in_json_where_to_look(server: Running):
    for path in ("/nothing", "/mcp/nothing", "/..%2fetc/passwd", "/mcp2"):
        answer = server.http.get(path)
        assert answer.status_code == 404
        assert answer.json() == {
            "error": "There is nothing at this path. GET / lists what is served.",
            "code": "not_found",
        }


@pytest.mark.parametrize("path", ["/mcp/", "/health/"])
def test_no_answer_sends_a_caller_to_a_host_that_is_not_ours(server: Running, path: str):
    answer = server.http.get(path, headers={"host": "evil.example"})
    assert "evil.example" not in answer.headers.get("location", "")


@pytest.mark.parametrize("path", ["/", "/health", "/ready", "/metrics"])
def test_a_method_that_a_path_does_not_take_is_refused_with_those_it_does(server: Running, path: str):
    for method in ("POST", "PUT", "DELETE"):
        answer = server.http.request(method, path)
        assert answer.status_code == 405
        assert answer.json() == {"error": "This path does not take that method.", "code": "method_not_allowed"}
        assert "GET" in answer.headers["allow"]


def test_with_a_prefix_every_surface_is_served_in_both_places(embedded: str, tmp_path: Path):
    with running(settings_for(embedded, tmp_path / "home", api_prefix="/api/v1")) as live:
        for path in ("/mcp", "/api/v1/mcp"):
            assert live.call("whoami", path=path)["structuredContent"]["name"] == "admin"
        assert live.http.get("/api/v1/nothing").status_code == 404
