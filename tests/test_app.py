"""The application as a whole: start, stop, and no secrets in logs, metrics and spans."""

import asyncio
import gzip
import json
import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from pydantic import BaseModel
from starlette.applications import Starlette

from almanac.app import SURFACES, check_public_bind, create_app, is_weak_secret, open_app
from almanac.bootstrap import signing_key
from almanac.core.arguments import Arguments
from almanac.core.database import Database
from almanac.core.errors import NotFound
from almanac.core.settings import InvalidSetting, Settings
from almanac.db.errors import DatabaseError
from almanac.operations.context import RequestContext
from almanac.operations.operation import Operation
from almanac.surfaces.surface import Surface
from tests.live_server import running, settings_for

MARKER = "marker-7f3a"  # a marker in arguments and stored texts


class Note(Arguments):
    """The arguments of the test's tools."""

    text: str


class Done(BaseModel):
    """The answer of the test's tools."""

    text: str


async def repeat(_: RequestContext, note: Note) -> Done:
    return Done(text=note.text)


async def fail(_: RequestContext, note: Note) -> Done:
    known: dict[str, str] = {}
    return Done(text=known[note.text])  # a KeyError quotes its key


async def miss(_: RequestContext, note: Note) -> Done:
    raise NotFound(f"There is no document with these {len(note.text)} characters.")


TESTING = Surface(
    name="testing",
    path="/testing",
    operations=tuple(
        Operation(run.__name__, "For tests.", run, arguments=Note, answer=Done) for run in (repeat, fail, miss)
    ),
)


@pytest.fixture
def embedded(tmp_path: Path, sqlite_template: Path) -> str:
    shutil.copy(sqlite_template, tmp_path / "almanac.db")
    return f"sqlite:///{tmp_path / 'almanac.db'}"


# Opening and closing


async def start(app: Starlette) -> list[str]:
    """Run the lifespan protocol as a server does; return the application's messages."""
    said: list[str] = []
    asked = iter(["lifespan.startup", "lifespan.shutdown"])

    async def receive() -> dict[str, Any]:
        return {"type": next(asked)}

    async def send(message: Any) -> None:
        said.append(message["type"])

    await app({"type": "lifespan", "asgi": {"version": "3.0"}, "state": {}}, receive, send)
    return said


async def test_the_application_opens_and_closes_and_leaves_nothing_running(database_url: str, tmp_path: Path):
    before, threads = asyncio.all_tasks(), threading.active_count()
    for _ in range(2):  # a second application in the same process is independent of the first
        said = await start(create_app(settings_for(database_url, tmp_path / "home")))
        assert said == ["lifespan.startup.complete", "lifespan.shutdown.complete"]
    assert asyncio.all_tasks() == before
    assert threading.active_count() <= threads + 1  # at most the event loop's own thread for files


async def test_a_database_that_cannot_be_opened_is_a_failed_start(tmp_path: Path):
    (tmp_path / "folder").mkdir()
    with pytest.raises(Exception, match="database"):
        await start(create_app(settings_for(f"sqlite:///{tmp_path / 'folder'}", tmp_path / "home")))


async def test_everything_is_closed_in_order_even_where_the_work_inside_fails(database_url: str, tmp_path: Path):
    databases: list[Database] = []
    with pytest.raises(ZeroDivisionError):
        async with open_app(settings_for(database_url, tmp_path / "home")) as running_app:
            assert [dispatcher.surface.name for dispatcher in running_app.dispatchers] == [
                surface.name for surface in SURFACES if surface.name != "external"
            ]
            databases.append(running_app.context.db)
            _ = 1 / 0
    with pytest.raises(DatabaseError):
        await databases[0].write(lambda tx: tx.execute("SELECT 1"))


def test_before_it_has_started_there_are_no_routes_and_afterwards_all(embedded: str, tmp_path: Path):
    app = create_app(settings_for(embedded, tmp_path / "home"))
    assert app.routes == []
    with running(settings_for(embedded, tmp_path / "home")) as live:
        paths = set(live.http.get("/").json()["endpoints"].values()) | {"/", "/health", "/ready", "/metrics"}
        assert all(live.http.get(path).status_code != 404 for path in paths)


# Secrets


@pytest.mark.parametrize(
    ("secret", "weak"),
    [
        ("", True),
        ("changeme", True),
        ("change-me-change-me-change-me-change-me", True),
        ("a" * 100, True),
        ("abcabcabcabcabcabcabcabcabcabcabcabc", True),
        ("this-is-the-password-for-our-knowledge", True),
        ("q8Zt1Lw0Rk7Vx2Nd5Yb4Hc9Ja3Gf6Mp-Ue", False),
        ("uX3v9mK2pQ7wL5nB8cR1tZ4yH6jD0fGsAeWq+/==", False),
    ],
)
def test_a_secret_is_weak_if_it_can_be_guessed(secret: str, weak: bool):
    assert is_weak_secret(secret) is weak


def test_only_a_public_bind_with_a_weak_secret_is_refused():
    strong = "q8Zt1Lw0Rk7Vx2Nd5Yb4Hc9Ja3Gf6Mp-Ue"
    for host, secret in (("127.0.0.1", "weak"), ("0.0.0.0", ""), ("0.0.0.0", strong), ("::1", "weak")):
        check_public_bind(Settings(host=host, secret=secret))
    for host in ("0.0.0.0", "::", "192.168.1.5", "kb.example.com"):
        with pytest.raises(InvalidSetting, match=f"Refusing to listen on {host}"):
            check_public_bind(Settings(host=host, secret="weak"))


def test_the_generated_key_is_made_once_and_is_for_the_owner_only(tmp_path: Path):
    settings = Settings(home=tmp_path / "home")
    key = signing_key(settings)
    assert signing_key(settings) == key
    assert len(key) == 32
    assert [file.name for file in (tmp_path / "home").iterdir()] == ["secret"]
    assert (tmp_path / "home" / "secret").stat().st_mode & 0o077 == 0
    assert not is_weak_secret((tmp_path / "home" / "secret").read_text())
    assert signing_key(Settings(home=tmp_path / "other")) != key
    assert signing_key(Settings(home=tmp_path / "home", secret="given")) != key


# OpenTelemetry


@contextmanager
def collector() -> Generator[tuple[str, list[ExportTraceServiceRequest]]]:
    """A collector of spans on a free port."""
    received: list[ExportTraceServiceRequest] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            if self.headers.get("content-encoding") == "gzip":
                body = gzip.decompress(body)
            assert self.path == "/v1/traces"
            received.append(ExportTraceServiceRequest.FromString(body))
            self.send_response(200)
            self.send_header("content-length", "0")
            self.end_headers()

        def log_message(self, format: str, *args: Any) -> None:
            """Suppress the output to the terminal."""

    server = HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", received
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def test_spans_arrive_by_the_time_the_server_has_stopped_and_hold_no_contents(embedded: str, tmp_path: Path):
    with collector() as (endpoint, received):
        settings = settings_for(embedded, tmp_path / "home", otlp_endpoint=endpoint)
        with running(settings, (*SURFACES, TESTING)) as live:
            live.call("whoami", headers={"x-request-id": "r-1"})
            for tool in ("repeat", "fail", "miss"):
                live.call(tool, {"text": MARKER}, path="/testing", headers={"x-request-id": f"r-{tool}"})
            live.call("repeat", {"text": MARKER, f"extra-{MARKER}": 1}, path="/testing")
            live.rpc("tools/call", {"name": f"tool-{MARKER}", "arguments": {}})
            secret = live.token
        assert received, "no spans came before the end of the stop"
    raw = b"".join(batch.SerializeToString() for batch in received)
    resources = [span for batch in received for span in batch.resource_spans]
    service = {item.key: item.value.string_value for item in resources[0].resource.attributes}
    assert service["service.name"] == "almanac"
    spans = [span for resource in resources for scope in resource.scope_spans for span in scope.spans]
    seen = [
        (span.name, facts["almanac.surface"].string_value, facts["almanac.request_id"].string_value)
        for span in spans
        for facts in [{item.key: item.value for item in span.attributes}]
    ]
    assert [(name, surface) for name, surface, _ in seen] == [
        ("almanac whoami", "almanac"),
        ("testing repeat", "testing"),
        ("testing fail", "testing"),
        ("testing miss", "testing"),
        ("testing repeat", "testing"),
        ("almanac (unknown)", "almanac"),
    ]
    assert [request for *_, request in seen][:4] == ["r-1", "r-repeat", "r-fail", "r-miss"]
    failed = [next(a.value.bool_value for a in span.attributes if a.key == "almanac.is_error") for span in spans[:5]]
    assert failed == [False, False, True, True, True]
    assert all(span.end_time_unix_nano > span.start_time_unix_nano for span in spans)
    assert MARKER.encode() not in raw
    assert secret.encode() not in raw


def test_a_collector_that_is_away_harms_no_call(embedded: str, tmp_path: Path):
    settings = settings_for(embedded, tmp_path / "home", otlp_endpoint="http://127.0.0.1:9")
    with running(settings) as live:
        assert not live.call("whoami")["isError"]


# Logs


SERVE = """
import sys
from almanac.bootstrap import configure_logs
from almanac.core.settings_loader import load
from tests.live_server import request, running
from tests.test_app import MARKER, SURFACES, TESTING

settings = load({}, None, {
    "home": sys.argv[1], "database_url": sys.argv[2], "log_level": "debug", "log_format": sys.argv[3],
}).settings
configure_logs(settings)
with running(settings, (*SURFACES, TESTING)) as live:
    for era in ("2025-11-25", "2026-07-28"):
        for tool in ("repeat", "fail", "miss"):
            live.call(tool, {"text": MARKER}, path="/testing", era=era, headers={"x-request-id": f"r-{tool}"})
        live.call("repeat", {"text": MARKER, "extra": MARKER}, path="/testing", era=era)
        live.rpc("tools/call", {"name": MARKER, "arguments": {"text": MARKER}}, era=era)
        live.rpc("tools/call", {"name": "whoami", "arguments": {}}, era=era, token=MARKER)
        live.rpc("tools/list", {"cursor": MARKER}, era=era)
        live.rpc("resources/read", {"uri": f"file:///{MARKER}"}, era=era)
        live.rpc(MARKER, {"text": MARKER}, era=era)
    live.post("{" + MARKER)
    live.post("{}", {"content-type": MARKER})
    live.http.get(f"/{MARKER}?token={MARKER}")
    print(live.token)
"""


@pytest.fixture(scope="module", params=["json", "text"])
def logged(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, sqlite_template: Path
) -> Iterator[tuple[str, str, str]]:
    """The log format, the logs after calls of every kind, and the token of the calls."""
    folder = tmp_path_factory.mktemp("logs")
    shutil.copy(sqlite_template, folder / "almanac.db")
    arguments = [str(folder / "home"), f"sqlite:///{folder / 'almanac.db'}", request.param]
    done = subprocess.run(
        [sys.executable, "-c", SERVE, *arguments],
        capture_output=True,
        text=True,
        timeout=120,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parent.parent)},
    )
    assert done.returncode == 0, done.stderr
    yield request.param, done.stderr, done.stdout.strip().splitlines()[-1]


def test_no_token_no_argument_and_no_document_text_is_in_the_logs(logged: tuple[str, str, str]):
    _, text, token = logged
    assert token.startswith("wg-")
    assert token[3:] not in text
    leaks = [line for line in text.splitlines() if MARKER in line]
    assert leaks == []


def test_nothing_but_logs_is_on_standard_error(logged: tuple[str, str, str]):
    form, text, _ = logged
    if form == "json":
        assert all(isinstance(json.loads(line), dict) for line in text.splitlines())
    assert "Warning" not in text


def test_a_failing_tool_is_logged_with_its_request_its_tool_and_where_it_failed(logged: tuple[str, str, str]):
    form, text, _ = logged
    if form == "text":
        assert "request_failed" in text
        assert "r-fail" in text
        return
    lines = [json.loads(line) for line in text.splitlines()]
    failures = [line for line in lines if line["event"] == "request_failed"]
    assert len(failures) == 2
    for line in failures:
        assert (line["surface"], line["operation"], line["request_id"], line["level"]) == (
            "testing",
            "fail",
            "r-fail",
            "error",
        )
        assert line["timestamp"].endswith("Z")
        assert "KeyError" in line["exception"]
        assert "test_app.py" in line["exception"]
    assert not any(line["event"] == "request_failed" and line["operation"] != "fail" for line in lines)


def test_a_refused_call_is_not_logged_as_a_failure_of_the_server(logged: tuple[str, str, str]):
    form, text, _ = logged
    if form == "json":
        worse = [json.loads(line) for line in text.splitlines()]
        assert {line["event"] for line in worse if line["level"] == "error"} == {"request_failed"}


def test_the_caller_of_a_failing_tool_is_told_the_code_and_nothing_of_the_inside(embedded: str, tmp_path: Path):
    with running(settings_for(embedded, tmp_path / "home"), (TESTING,)) as live:
        answer = live.call("fail", {"text": MARKER}, path="/testing", headers={"x-request-id": "the-failing-one"})
        assert answer["isError"]
        assert answer["content"][0]["text"] == (
            "internal_error: Internal error. Your arguments are not the cause; try once more, then give an operator the"
            " request id the-failing-one."
        )
