"""The properties that every endpoint has, because all of them run through one pipeline.

SAMPLES has a valid request for each operation that is served: generated from the tables for REST, one tool call for
each MCP surface, and a request for each way in which the SDK runs an operation. A route that no sample reaches fails a
test, so a new endpoint cannot miss a property.
"""

import asyncio
import json
import re
import socket
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from structlog.testing import capture_logs

from almanac import app
from almanac.operations.context import RequestContext
from almanac.operations.operation import Operation
from almanac.operations.pipeline import pipeline
from almanac.operations.pipeline.endpoint import Invocation
from almanac.operations.pipeline.pipeline import EndpointApp
from almanac.operations.server import USAGE_REPORT
from almanac.quotas.rate_limits import RateLimit
from almanac.web import openapi
from almanac.web.agents.a2a import AGENT_RPC
from almanac.web.agents.messages import AGENT_OPERATIONS
from almanac.web.api_v1 import API_OPERATIONS
from almanac.web.catalogue.routes import CATALOGUE_OPERATIONS
from almanac.web.login import MANAGEMENT_OPERATIONS, MANAGEMENT_PREFIX
from tests.live_server import LEGACY, MODERN, Running, request, running, settings_for
from tests.surfaces.wire import beside, exchange, http
from tests.waiting import never, wait_until

SECRET = "the secret plan"
PATH_VALUES = {"agent": "weknora", "key": "x", "id": "68dfc8fd5e40fe1ae99c6b5b", "task_id": "x"}
# Describe tools and run no operation; the first does so for everybody.
PATHS_WITHOUT_OPERATION = ["/mcp/knowledge-external", "/api/2.0/mcp/tools"]
# Their body is read before the caller is known, because it has the credential. So its limit is a constant.
CREDENTIAL_IN_BODY = ("verify_key", "login")


@dataclass(frozen=True)
class Sample:
    """A valid request of one operation. `@TOKEN@`, `@DOCUMENT@` and `@DOWNLOAD@` stand for values of the server."""

    operation: str
    method: str
    path: str
    body: Any = None
    headers: dict[str, str] = field(default_factory=dict[str, str])

    def raw(self, served: "Served", *, without: tuple[str, ...] = (), **more: bytes) -> bytes:
        """The request as bytes."""
        headers = {name.lower().replace("-", "_"): value.encode() for name, value in self.headers.items()}
        body = b"" if self.body is None else json.dumps(self.body).encode()
        for name, value in served.values.items():
            body = body.replace(name, value)
        if "@DOWNLOAD@" in self.headers.values():
            without = (*without, "authorization")
        sent: dict[str, Any] = {**headers, **more}
        raw = http(body, first=f"{self.method} {self.path} HTTP/1.1".encode(), without=without, **sent)
        for name, value in served.values.items():
            raw = raw.replace(name, value)
        return raw


def rest_sample(operation: Operation, prefix: str) -> Sample:
    """A request of an operation, with the example of its declaration as the body."""
    rest = operation.rest
    assert rest is not None
    path = re.sub(r"{(\w+)}", lambda match: PATH_VALUES.get(match[1], "1"), rest.path)
    query = [f"{it['name']}=x" for it in openapi.parameters(operation) if it["in"] == "query" and it["required"]]
    body = None
    if openapi.body_model(operation) is not None:
        body = dict(operation.example.arguments or {})
    headers: dict[str, str] = {}
    if operation.name == "download_file":
        path, headers = path.replace("/1/", "/@DOCUMENT@/"), {"x-almanac-download-token": "@DOWNLOAD@"}
    if operation.name == "login":
        body = {"clientId": "@CLIENT@", "clientSecret": "@SECRET@"}
    if operation.name == "verify_key":
        body = {"key": "@TOKEN@", "scope": "knowledge-base"}
    return Sample(operation.name, rest.method, prefix + path + ("?" + "&".join(query) if query else ""), body, headers)


def tool_sample(path: str, name: str, arguments: dict[str, Any], **headers: str) -> Sample:
    message, sent = request("tools/call", {"name": name, "arguments": arguments}, era=MODERN)
    return Sample(name, "POST", path, message, {**sent, **headers})


def sdk_sample(path: str, method: str, params: dict[str, Any], era: str, operation: str = "", **headers: str) -> Sample:
    """A request that the SDK answers."""
    message, sent = request(method, params, era=era)
    return Sample(operation or method, "POST", path, message, {**sent, **headers})


NOTE_URI = "almanac://knowledge/68dfc8fd5e40fe1ae99c6b5b"
PROMPT = "start-work-session"
SDK_SAMPLES = [
    # The endpoint does not know the key, so the SDK reads the call.
    sdk_sample("/mcp", "tools/call", {"name": "whoami", "arguments": {}, "unknown": 1}, LEGACY, "whoami"),
    sdk_sample("/mcp/memory", "resources/read", {"uri": NOTE_URI}, LEGACY),
    sdk_sample("/mcp/memory", "resources/read", {"uri": NOTE_URI}, MODERN, **{"mcp-name": NOTE_URI}),
    sdk_sample("/mcp/memory", "prompts/get", {"name": PROMPT}, LEGACY),
    sdk_sample("/mcp/memory", "prompts/get", {"name": PROMPT}, MODERN, **{"mcp-name": PROMPT}),
]

SAMPLES = [
    tool_sample("/mcp", "whoami", {}),
    tool_sample("/mcp/memory", "search_knowledge", {"query": "oil"}),
    tool_sample("/gateway/mcp", "health-check", {}, **{"x-api-key": "@TOKEN@"}),
    tool_sample("/mcp/knowledge-external/sse", "wegent_kb_list_knowledge_bases", {}),
    tool_sample("/api/2.0/mcp", "knowi_list_documents", {}),
    Sample("knowi_list_documents", "POST", "/api/2.0/mcp/tools/call", {"name": "knowi_list_documents"}),
    *SDK_SAMPLES,
    Sample(
        "document_file", "GET", "/mcp/knowledge-external/documents/@DOCUMENT@/file",
        headers={"x-wegent-download-token": "@DOWNLOAD@"},
    ),
    *(rest_sample(operation, "/api/v1") for operation in API_OPERATIONS),
    *(rest_sample(operation, MANAGEMENT_PREFIX) for operation in MANAGEMENT_OPERATIONS),
    *(rest_sample(operation, "") for operation in (*CATALOGUE_OPERATIONS, *AGENT_OPERATIONS, AGENT_RPC, USAGE_REPORT)),
]  # fmt: skip


class Blocker:
    """Takes the place of all operations: fails, or waits until it is cancelled."""

    def __init__(self) -> None:
        self.failure: Exception | None = None
        self.started = threading.Event()
        self.cancelled = threading.Event()
        self.cancellations = 0
        self.calls_in_flight: list[int] = []

    async def __call__(self, ctx: RequestContext, invocation: Invocation, limit: RateLimit | None) -> Any:
        if not invocation.is_admitted:
            await pipeline.admit(ctx, invocation.operation, limit)
        self.calls_in_flight.append(ctx.app.recorder.trail.calls_in_flight)
        if self.failure is not None:
            raise self.failure
        self.started.set()
        try:
            await never()
        except asyncio.CancelledError:
            self.cancellations += 1
            self.cancelled.set()
            raise


@dataclass
class Served:
    """A server with replaced operations."""

    live: Running
    blocker: Blocker
    spans: InMemorySpanExporter
    values: dict[bytes, bytes]

    def send(self, sample: Sample, request_id: str, **more: Any) -> Any:
        return exchange(self.live.port, sample.raw(self, x_request_id=request_id.encode(), **more))


@pytest.fixture(scope="module")
def served(new_sqlite: Callable[[], str], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    blocker, spans = Blocker(), InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(spans))
    options = {
        "external_enabled": True,
        "external_rate_limit_requests": 100_000,
        "login_calls_per_client": 0,
        "login_calls_per_address": 0,
    }
    settings = settings_for(new_sqlite(), tmp_path_factory.mktemp("home"), **options)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(app, "open_tracer_provider", lambda _: provider)  # pyright: ignore[reportUnknownLambdaType,reportUnknownArgumentType]
        with capture_logs(), running(settings) as live:
            client = live.new_client("admin")
            values = {
                **_document(live),
                b"@CLIENT@": client["clientId"].encode(),
                b"@SECRET@": client["clientSecret"].encode(),
            }
            patch.setattr(pipeline, "invoke", blocker)
            yield Served(live, blocker, spans, {b"@TOKEN@": live.token.encode(), **values})


def _document(live: Running) -> dict[bytes, bytes]:
    """A document, and a download token for it."""
    headers = {"authorization": f"Bearer {live.token}"}
    base = live.http.post("/api/v1/bases", json={"name": "Manuals"}, headers=headers).json()["id"]
    sent = {"name": "a.txt", "content": "x"}
    answer = live.http.post(f"/api/v1/bases/{base}/documents", json=sent, headers=headers).json()
    number = answer["document"]["id"]
    download = live.http.post(f"/api/v1/documents/{number}/download", headers=headers).json()
    [token] = download["headers"].values()
    return {b"@DOCUMENT@": str(number).encode(), b"@DOWNLOAD@": token.encode()}


@pytest.fixture(autouse=True)
def _fresh(request: pytest.FixtureRequest) -> None:
    if "served" in request.fixturenames:
        served: Served = request.getfixturevalue("served")
        served.blocker.__init__()
        served.spans.clear()


async def test_every_route_of_the_application_has_a_sample(new_sqlite: Callable[[], str], tmp_path: Path):
    settings = settings_for(new_sqlite(), tmp_path, external_enabled=True)
    async with app.open_app(settings) as opened:
        paths = {dispatcher.surface.path for dispatcher in opened.dispatchers}
        routes = [route for route in app.routes(opened) if isinstance(route.app, EndpointApp)]
    asked = {sample.path.partition("?")[0] for sample in SAMPLES}
    assert paths <= asked
    assert len(routes) > 50
    unreached = [route.path for route in routes if not any(route.path_regex.match(path) for path in asked)]
    assert unreached == PATHS_WITHOUT_OPERATION


def test_a_foreign_host_or_origin_is_refused(served: Served):
    for sample in SAMPLES:
        assert served.send(sample, "host", host=b"evil.example").status == 421, sample
        assert served.send(sample, "origin", origin=b"https://evil.example").status == 403, sample
    assert not served.blocker.calls_in_flight


def test_pages_of_accepted_origins_alone_may_read_answers_and_learn_what_they_may_send(served: Served):
    page, served.blocker.failure = b"http://localhost:3000", RuntimeError(SECRET)
    for sample in SAMPLES:
        answer = served.send(sample, "page", origin=page)
        assert answer.headers["access-control-allow-origin"] == page.decode(), sample
        assert answer.headers["access-control-expose-headers"] == "mcp-session-id, x-request-id", sample
        assert answer.headers["x-request-id"] == "page", sample
        assert "access-control-allow-credentials" not in answer.headers
        preflight = replace(sample, method="OPTIONS", body=None, headers={})
        asked = {"access_control_request_method": sample.method.encode(), "origin": page}
        told = served.send(preflight, "preflight", **asked)
        assert (told.status, told.headers["access-control-allow-origin"]) == (204, page.decode()), sample
        assert sample.method in told.headers["access-control-allow-methods"].split(", "), sample
        allowed = told.headers["access-control-allow-headers"].split(", ")
        assert {name.lower() for name in sample.headers} <= set(allowed), sample
        for foreign in (served.send(preflight, "foreign", **{**asked, "origin": b"https://evil.example"}),
                        served.send(sample, "foreign", origin=b"https://evil.example")):  # fmt: skip
            assert foreign.status in (403, 405), sample
            assert not [name for name in foreign.headers if name.startswith("access-control")], sample
    assert len(served.blocker.calls_in_flight) == len(SAMPLES)


def test_a_repeated_header_is_refused(served: Served):
    for sample in SAMPLES:
        raw = sample.raw(served).replace(b"\r\n", b"\r\nhost: 127.0.0.1\r\n", 1)
        assert exchange(served.live.port, raw).status == 400, sample


def test_without_a_credential_nothing_runs(served: Served):
    for sample in SAMPLES:
        if sample.operation in CREDENTIAL_IN_BODY:
            continue
        secrets = (name.replace("-", "_") for name, value in sample.headers.items() if "@" in value)
        answer = served.send(sample, "nobody", without=("authorization", *secrets))
        assert (answer.status, answer.headers["x-request-id"]) == (401, "nobody"), sample
    assert not served.blocker.calls_in_flight


def test_a_401_tells_a_token_that_is_not_valid_from_none_in_the_form_of_rfc_6750(served: Served):
    error = 'error="invalid_token", error_description="The token is unknown, expired or revoked"'
    for path in ("/mcp", "/mcp/memory", "/gateway/mcp", "/api/v1/whoami", "/mcp/usage"):
        sample = next(each for each in SAMPLES if each.path == path)
        none = served.send(sample, "none", without=("authorization", "x_api_key"))
        assert (none.status, none.headers["www-authenticate"]) == (401, 'Bearer realm="almanac"'), path
        wrong = served.send(sample, "wrong", without=("x_api_key",), authorization=b"Bearer mcp-unknown")
        assert (wrong.status, wrong.headers["www-authenticate"]) == (401, f'Bearer realm="almanac", {error}'), path


def test_an_mcp_token_runs_operations_of_mcp_endpoints_alone(served: Served):
    served.blocker.failure = RuntimeError(SECRET)
    mine = replace(served, values={**served.values, b"@TOKEN@": served.live.new_mcp_token("admin").encode()})
    for sample in SAMPLES:
        if "@DOWNLOAD@" in sample.headers.values() or sample.operation == "login":
            continue  # these have credentials of their own
        served.blocker.calls_in_flight.clear()
        token = mine.values[b"@TOKEN@"]
        answer = mine.send(sample, "mcp", authorization=b"Bearer " + token)
        path = sample.path.partition("?")[0]
        if path.startswith("/mcp/knowledge-external"):
            assert answer.status == 401, sample  # its seed admits API tokens of users only
        elif path.startswith(("/mcp", "/gateway/mcp", "/api/2.0/mcp")):
            assert served.blocker.calls_in_flight, sample
            continue
        else:
            assert (answer.status, b"MCP endpoints only" in answer.body) == (403, True), (sample, answer)
        assert not served.blocker.calls_in_flight, sample


def test_a_crash_has_a_request_id_and_an_audit_row_and_tells_no_details(served: Served):
    served.blocker.failure = RuntimeError(SECRET)
    for number, sample in enumerate(SAMPLES):
        answer = served.send(sample, f"crash-{number}")
        assert answer.headers["x-request-id"] == f"crash-{number}", sample
        assert SECRET.encode() not in answer.body, sample
        assert answer.status == 500 or (answer.status == 200 and b"rror" in answer.body), (sample, answer)
    assert _audited(served, "crash") == [(sample.operation, "internal_error", "admin") for sample in SAMPLES]


def test_a_call_is_counted_traced_and_in_flight(served: Served):
    served.blocker.failure = RuntimeError(SECRET)
    for sample in SAMPLES:
        served.send(sample, "traced")
        [span] = served.spans.get_finished_spans()
        served.spans.clear()
        assert span.attributes is not None
        assert span.attributes["almanac.request_id"] == "traced", sample
        assert span.attributes["almanac.is_error"] is True, sample
        assert sample.operation in span.name
        assert SECRET not in span.to_json()
    assert len(served.blocker.calls_in_flight) == len(SAMPLES)
    assert min(served.blocker.calls_in_flight) >= 1
    metrics = served.live.http.get("/metrics").text
    for sample in SAMPLES:
        labels = rf'outcome="internal_error",surface="\w+",tool="{sample.operation}"'
        assert re.search(f"almanac_calls_total{{{labels}}}", metrics), sample


def test_a_request_that_runs_no_operation_has_no_span(served: Served):
    messages = [request("tools/list"), request("tools/list", {"cursor": "2"}), request("ping"), request("unknown")]
    for message, headers in messages:
        served.send(Sample("", "POST", "/mcp", message, headers), "untraced")
    served.send(replace(SAMPLES[0], body=[]), "invalid")
    assert not served.spans.get_finished_spans()


def test_a_call_ends_when_its_client_disconnects(served: Served):
    for number, sample in enumerate(SAMPLES):
        served.blocker.__init__()
        with socket.create_connection(("127.0.0.1", served.live.port), timeout=10) as connection:
            raw = sample.raw(served, x_request_id=b"gone-%d" % number, connection=b"keep-alive")
            connection.sendall(raw)
            assert served.blocker.started.wait(5), sample
        assert served.blocker.cancelled.wait(5), sample
    assert _audited(served, "gone") == [(sample.operation, "cancelled", "admin") for sample in SAMPLES]


def test_a_call_ends_at_its_deadline(served: Served):
    with beside(served.live, request_deadline_seconds=0.2) as live, ThreadPoolExecutor(8) as pool:
        hasty = replace(served, live=live)
        answers = list(pool.map(hasty.send, SAMPLES, [f"late-{number}" for number in range(len(SAMPLES))]))
    assert served.blocker.cancellations == len(SAMPLES)
    for sample, answer in zip(SAMPLES, answers, strict=True):
        assert answer.status == 504 or (answer.status == 200 and b"rror" in answer.body), (sample, answer)
    assert _audited(served, "late") == [(sample.operation, "deadline_exceeded", "admin") for sample in SAMPLES]


def test_a_call_beyond_the_rate_limit_is_refused(served: Served):
    served.blocker.failure = RuntimeError(SECRET)
    limits: dict[str, Any] = {
        "rate_limit_calls": 1,
        "memory_calls": 1,
        "external_rate_limit_requests": 1,
        "external_download_preauth_ip_rate_limit_requests": 1,
    }
    with beside(served.live, **limits) as live:
        limited = replace(served, live=live)
        for sample in SAMPLES:
            # A window may end between two calls, but not twice in a row.
            answers = [limited.send(sample, "often") for _ in range(3)]
            refused = [each for each in answers if each.status == 429 or b"Rate limit exceeded" in each.body]
            assert refused, (sample, answers)


def test_a_body_that_is_too_large_is_refused(served: Served):
    with beside(served.live, max_body_bytes=1) as live:
        for sample in (each for each in SAMPLES if each.body and each.operation not in CREDENTIAL_IN_BODY):
            assert replace(served, live=live).send(sample, "large").status == 413, sample
    assert not served.blocker.calls_in_flight


def test_a_body_that_does_not_arrive_is_not_waited_for(served: Served):
    with beside(served.live, request_deadline_seconds=0.1) as live:
        for sample in (each for each in SAMPLES if each.body is not None):
            answer = exchange(live.port, sample.raw(served)[:-1])
            assert answer.status == 408 or (answer.status == 200 and b"did not arrive" in answer.body), (sample, answer)
    assert not served.blocker.calls_in_flight


def test_nothing_is_in_flight_when_all_calls_are_over(served: Served):
    served.blocker.failure = RuntimeError(SECRET)
    served.send(SAMPLES[0], "last")
    wait_until(lambda: _in_flight_beside_this_call(served), lambda number: number == 0)


def _in_flight_beside_this_call(served: Served) -> int:
    served.blocker.calls_in_flight.clear()
    served.send(SAMPLES[0], "counting")
    return served.blocker.calls_in_flight[0] - 2  # the request and its call


def _audited(served: Served, name: str) -> list[tuple[str, str, str]]:
    """The tool, outcome and actor of the calls with a prefix of the request id."""
    sql = "SELECT a.*, p.name AS actor FROM audit a JOIN principals p ON p.id = a.principal_id"
    sql = f"{sql} WHERE a.request_id LIKE $1"
    rows = wait_until(
        lambda: served.live.run(lambda db: db.fetch(sql, f"{name}-%")), lambda rows: len(rows) >= len(SAMPLES)
    )
    ordered = sorted(rows, key=lambda row: int(row["request_id"].rpartition("-")[2]))
    return [(row["tool"], row["outcome"], row["actor"]) for row in ordered]
