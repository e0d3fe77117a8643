"""The pipeline of REST requests: authentication, errors, metrics, audit, and the description."""

import asyncio
import json
import os
import re
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

import almanac.app
from almanac.core.arguments import Arguments
from almanac.operations.context import RequestContext
from almanac.operations.operation import NoArguments, Operation, Rest
from almanac.operations.pipeline.file_answer import FileAnswer
from almanac.web import openapi
from almanac.web.api_v1 import API_OPERATIONS
from tests.live_server import Running, running, settings_for
from tests.surfaces.wire import audit_of, beside, exchange, http
from tests.web.api import DESCRIBED, Api, check, validate

# Invalid requests


class Wrong:
    """An invalid request, and its answer."""

    def __init__(self, why: str, status: int, code: str, raw: bytes) -> None:
        self.why, self.status, self.code, self.raw = why, status, code, raw


def get(path: str, **how: Any) -> bytes:
    return http(first=f"GET /api/v1{path} HTTP/1.1".encode(), **how)


def post(path: str, body: Any, **how: Any) -> bytes:
    raw = body if isinstance(body, bytes) else json.dumps(body).encode()
    return http(raw, first=f"{how.pop('method', 'POST')} /api/v1{path} HTTP/1.1".encode(), **how)


def bad(why: str, raw: bytes) -> Wrong:
    return Wrong(why, 400, "bad_request", raw)


WRONG = [
    Wrong("no token", 401, "unauthorized", get("/bases", without=("authorization",))),
    Wrong("an unknown token", 401, "unauthorized", get("/bases", authorization=b"Bearer wg-nobody")),
    Wrong("an unknown key", 401, "unauthorized", get("/bases", without=("authorization",), x_api_key=b"wg-nobody")),
    Wrong("another scheme", 401, "unauthorized", get("/bases", authorization=b"Basic @TOKEN@")),
    Wrong("a token of nothing", 401, "unauthorized", get("/bases", authorization=b"Bearer ")),
    Wrong("no token for what is not there", 401, "unauthorized", get("/bases/1", without=("authorization",))),
    Wrong("no credential for a file", 401, "unauthorized", get("/documents/1/file")),
    Wrong("no credential for a file of no number", 401, "unauthorized", get("/documents/x/file?token=y")),
    Wrong("a file without end of digits", 401, "unauthorized", get(f"/documents/{'9' * 5000}/file?token=x")),
    Wrong("a strange Host", 421, "invalid_host", get("/bases", host=b"evil.example")),
    Wrong("a strange Host at a file", 421, "invalid_host", get("/documents/1/file?token=x", host=b"evil.example")),
    Wrong("a strange Origin", 403, "invalid_origin", get("/bases", origin=b"https://evil.example")),
    Wrong("a method that is not taken", 405, "method_not_allowed", post("/bases", {}, method="PUT")),
    Wrong("a method nobody knows", 405, "method_not_allowed", post("/bases/1", {}, method="LOCK")),
    Wrong("a path that is not there", 404, "not_found", get("/kingdoms")),
    Wrong("a slash too many", 404, "not_found", get("/bases/")),
    Wrong("form fields for JSON", 415, "unsupported_media_type",
          post("/bases", b"name=x", content_type=b"application/x-www-form-urlencoded")),
    Wrong("no content type", 415, "unsupported_media_type", post("/bases", {"name": "x"}, without=("content_type",))),
    Wrong("text as a new document", 415, "unsupported_media_type",
          post("/bases/1/documents", b"hello", content_type=b"text/plain")),
    Wrong("a body too large", 413, "too_large", post("/bases", b'{"name": "' + b"x" * 17_000_000 + b'"}')),
    Wrong("a question too large", 413, "too_large", post("/search", b'{"query": "' + b"x" * 1_100_000 + b'"}')),
    Wrong("a body said to be too large", 413, "too_large",
          http(first=b"POST /api/v1/bases HTTP/1.1", content_length=b"99999999999")),
    Wrong("a file said to be too large", 413, "too_large",
          http(first=b"PUT /api/v1/documents/1/content HTTP/1.1", content_length=b"99999999999",
               content_type=b"text/plain")),
    bad("two tokens", get("/bases", more=(b"authorization: Bearer x",))),
    bad("a token and another key", get("/bases", x_api_key=b"wg-nobody")),
    bad("not JSON", post("/bases", b"{'name': 1}")),
    bad("not UTF-8", post("/bases", b'{"name": "\xff"}')),
    bad("no object", post("/bases", ["x"])),
    bad("a null", post("/bases", None)),
    bad("a number that is none", post("/bases", b'{"name": NaN}')),
    bad("a lone surrogate", post("/bases", b'{"name": "\\ud800"}')),
    bad("NUL", post("/bases", {"name": "a\0b"})),
    bad("NUL in a key", post("/bases/1/documents", {"name": "a", "content": "b", "metadata": {"a\0": 1}})),
    bad("nesting without end", post("/bases", b'{"name": ' + b"[" * 100_000 + b"]" * 100_000 + b"}")),
    bad("deep metadata", post("/documents/1", b'{"metadata": ' + b'{"a":' * 300 + b"1" + b"}" * 301, method="PATCH")),
    bad("a huge number", post("/documents/1", b'{"metadata": {"a": 1' + b"0" * 400 + b"}}", method="PATCH")),
    bad("nothing that is needed", post("/bases", {})),
    bad("an empty body", post("/bases", b"")),
    bad("an empty name", post("/bases", {"name": "  "})),
    bad("a long name", post("/bases", {"name": "x" * 101})),
    bad("a field nobody takes", post("/bases", {"name": "x", "colour": "red"})),
    bad("a number as a name", post("/bases", {"name": 7})),
    bad("a level there is not", post("/bases", {"name": "x", "level": "galaxy"})),
    bad("a group without its level", post("/bases", {"name": "x", "group": "y"})),
    bad("a bad splitter", post("/bases", {"name": "x", "splitter": {"size": 5}})),
    bad("a splitter with more", post("/bases", {"name": "x", "splitter": {"colour": 5}})),
    bad("a number as text", post("/bases/1/folders", {"name": "x", "parent_id": "0"})),
    bad("a number with a point", post("/bases/1/folders", {"name": "x", "parent_id": 0.0})),
    bad("a truth as a number", post("/bases/1/folders", {"name": "x", "parent_id": True})),
    bad("a number below none", post("/bases/1/folders", {"name": "x", "parent_id": -1})),
    bad("a number no database holds", post("/bases/1/folders", {"name": "x", "parent_id": 2**63})),
    bad("a role there is not", post("/bases/1/shares", {"role": "King", "user": "x"}, method="PUT")),
    bad("text as truth", post("/documents/1", {"is_enabled": "yes"}, method="PATCH")),
    bad("tags that are none", post("/documents/1", {"tags": [1]}, method="PATCH")),
    bad("metadata that is none", post("/documents/1", {"metadata": []}, method="PATCH")),
    bad("nothing to change", post("/documents/1", {}, method="PATCH")),
    bad("an id that is no number", get("/bases/abc")),
    bad("an id with a point", get("/bases/1.0")),
    bad("an id with an underscore", get("/bases/1_0")),
    bad("an id with a space", get("/bases/%201")),
    bad("an id in other digits", get("/bases/%D9%A1")),
    bad("an id of nothing", get("/bases/0")),
    bad("an id below nothing", get("/bases/-1")),
    bad("an id no database holds", get(f"/bases/{2**63}")),
    bad("NUL in an id", get("/bases/1%00")),
    bad("a parameter nobody takes", get("/bases?colour=red")),
    bad("a parameter twice", get("/bases?limit=1&limit=2")),
    bad("a parameter that is in the path", get("/bases/1?base_id=2")),
    bad("a limit of none", get("/bases?limit=0")),
    bad("a limit of too many", get("/bases?limit=501")),
    bad("a limit in words", get("/bases?limit=ten")),
    bad("a limit with an underscore", get("/bases?limit=1_0")),
    bad("an empty limit", get("/bases?limit=")),
    bad("an offset below nothing", get("/bases?offset=-1")),
    bad("an offset without end", get("/bases?offset=99999999999999999999")),
    bad("a truth that is none", get("/bases?removed=perhaps")),
    bad("a scope there is not", get("/bases?scope=galaxy")),
    bad("a query that is not UTF-8", get("/bases?query=%ff")),
    bad("NUL in a query", get("/bases?query=%00")),
    bad("parameters without end", get("/bases?" + "&".join(f"p{n}=1" for n in range(60)))),
]  # fmt: skip


@pytest.mark.parametrize("wrong", WRONG, ids=lambda wrong: wrong.why)
def test_what_is_wrong_is_refused_in_one_form(shared: Running, wrong: Wrong):
    answer = exchange(shared.port, wrong.raw.replace(b"@TOKEN@", shared.token.encode()))
    assert (answer.status, answer.json["code"]) == (wrong.status, wrong.code), answer.body
    assert answer.json.keys() == {"error", "code"}
    assert answer.headers["content-type"] == "application/json"
    assert shared.token not in answer.body.decode()
    if wrong.code != "not_found":
        assert answer.headers["x-request-id"]
    if answer.status == 401:
        assert answer.headers["www-authenticate"].startswith('Bearer realm="almanac"')
    if answer.status == 405:
        assert "GET" in answer.headers["allow"]


def test_nothing_of_what_was_wrong_changed_anything(shared: Running):
    rows = shared.run(lambda db: db.fetch("SELECT 1 FROM bases UNION ALL SELECT 1 FROM documents"))
    assert rows == []


@pytest.mark.parametrize(
    ("sent", "told"),
    [
        ({}, "name: Field required. About name: What users and agents call it."),
        ({"name": 7}, "name: Input should be a valid string. About name: What users and agents call it."),
        (
            {"name": 7, "colour": 1},
            "name: Input should be a valid string; colour: is not an argument of this operation."
            " It takes: name, description (optional), level (optional), group (optional), splitter (optional).",
        ),
        (
            {"name": "x", "splitter": {"size": "5"}},
            "splitter.size: Input should be a valid integer. About splitter: How its documents are cut into passages.",
        ),
    ],
)
def test_a_refusal_names_the_field_and_what_is_expected(api: Api, sent: Any, told: str):
    answer = api.send("POST", "/bases", json=sent)
    assert answer.json()["error"] == told


# Authentication


def test_a_token_comes_as_bearer_or_as_a_key(api: Api):
    for headers in (
        {"authorization": f"Bearer {api.token}"},
        {"authorization": f"bearer   {api.token}"},
        {"x-api-key": api.token},
        {"x-api-key": api.token, "authorization": "Basic something"},
        {"x-api-key": api.token, "authorization": f"Bearer {api.token}"},
    ):
        assert api.live.http.get("/api/v1/bases", headers=headers).status_code == 200, headers


def test_a_scope_that_a_token_lacks_is_named(api: Api):
    reader = api.by(api.live.new_token("scoped", scope=["knowledge:read"]))
    assert reader.ask("GET", "/bases")["total"] == 0
    answer = reader.send("POST", "/bases", json={"name": "x"})
    assert (answer.status_code, answer.json()["code"]) == (403, "insufficient_scope")
    assert "knowledge:write" in answer.json()["error"]
    nobody = api.by(api.live.new_token("scoped", scope=["memory:read"]))
    assert nobody.refused("GET", "/bases") == (403, "insufficient_scope")


def test_a_token_that_is_limited_to_some_tools_is_limited_here_too(api: Api):
    limited = api.by(api.live.new_token("admin", tools=["list_bases", "whoami"]))
    assert limited.send("GET", "/bases").status_code == 200
    assert limited.refused("GET", "/bases/1") == (403, "forbidden")
    assert limited.refused("POST", "/bases", json={"name": "x"}) == (403, "forbidden")


def test_a_head_is_a_get_without_a_body(api: Api):
    whole, head = api.send("GET", "/bases"), api.send("HEAD", "/bases")
    assert (head.status_code, head.content) == (200, b"")
    assert head.headers["content-length"] == whole.headers["content-length"]


# Metrics and audit


def test_a_request_carries_its_id_through_to_the_trail(api: Api):
    answer = api.send("GET", "/bases?limit=7", headers={"x-request-id": "rest.id-1"})
    assert answer.headers["x-request-id"] == "rest.id-1"
    [row] = audit_of(api.live, "rest.id-1")
    assert (row["surface"], row["tool"], row["outcome"], row["actor"]) == ("rest", "list_bases", "ok", "admin")
    assert len(row["digest"]) == 32
    invented = api.send("GET", "/bases", headers={"x-request-id": "no spaces please"}).headers["x-request-id"]
    assert re.fullmatch(r"[0-9a-f]{8}-[0-9a-f]+", invented)


def test_the_trail_tells_what_became_of_a_request_and_what_it_touched(api: Api):
    base = api.ask("POST", "/bases", 201, json={"name": "Trailed"}, headers={"x-request-id": "t-1"})["id"]
    api.send("GET", f"/bases/{base}?x=1", headers={"x-request-id": "t-2"})
    api.send("GET", "/bases/987654321", headers={"x-request-id": "t-3"})
    api.by(api.live.new_token("scoped")).send("DELETE", f"/bases/{base}", headers={"x-request-id": "t-4"})
    api.ask("DELETE", f"/bases/{base}", 204, headers={"x-request-id": "t-5"})
    found = [audit_of(api.live, f"t-{number}")[0] for number in range(1, 6)]
    assert [(row["tool"], row["outcome"], row["touched"]) for row in found] == [
        ("add_base", "ok", f"base:{base}"),
        ("get_base", "bad_request", ""),
        ("get_base", "not_found", ""),
        ("remove_base", "not_found", ""),
        ("remove_base", "ok", f"base:{base}"),
    ]


def test_the_digest_differs_with_what_was_asked_and_tells_nothing_of_it(api: Api):
    for number, name in enumerate(("one", "one", "two")):
        api.send("GET", "/bases", params={"query": name}, headers={"x-request-id": f"d-{number}"})
    one, again, two = (audit_of(api.live, f"d-{number}")[0]["digest"] for number in range(3))
    assert one == again != two


def test_requests_are_counted_in_the_metrics_by_the_endpoint_s_name(api: Api):
    api.send("GET", "/bases/987654321")
    told = api.live.http.get("/metrics").text
    assert re.search(r'almanac_calls_total{outcome="not_found",surface="rest",tool="get_base"} \d', told)
    assert re.search(r'almanac_call_seconds_count{surface="rest",tool="get_base"} \d', told)


def test_a_limit_counts_requests_and_tool_calls_together(shared: Running):
    with beside(shared, rate_limit_calls=3) as live:
        api = Api(live, live.token)
        live.call("whoami")
        api.ask("GET", "/bases")
        api.send("GET", "/bases?wrong=1")
        answer = api.send("GET", "/bases", headers={"x-request-id": "limited-1"})
        assert (answer.status_code, answer.json()["code"]) == (429, "rate_limited")
        assert 1 <= int(answer.headers["retry-after"]) <= 60
        assert audit_of(live, "limited-1")[0]["outcome"] == "rate_limited"


# Internal errors


class Nap(Arguments):
    seconds: float


class Trial:
    """Endpoints for tests only."""

    def __init__(self) -> None:
        self.is_cancelled = threading.Event()

    async def crash(self, _: RequestContext, __: NoArguments) -> None:
        raise RuntimeError("the secret plan")

    async def nap(self, _: RequestContext, given: Nap) -> None:
        try:
            await asyncio.sleep(given.seconds)
        except asyncio.CancelledError:
            self.is_cancelled.set()
            raise

    def operations(self) -> tuple[Operation, ...]:
        return (
            Operation("crash", "Crashes", self.crash, rest=Rest("GET", "/crash")),
            Operation("nap", "Sleeps", self.nap, Nap, rest=Rest("POST", "/nap", status=204)),
        )


@pytest.fixture
def tried(database_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Api, Trial]]:
    trial = Trial()
    monkeypatch.setattr(almanac.app, "API_OPERATIONS", (*API_OPERATIONS, *trial.operations()))
    with running(settings_for(database_url, tmp_path / "home", request_deadline_seconds=0.4)) as live:
        yield Api(live, live.token), trial


def test_a_crash_tells_nobody_why(tried: tuple[Api, Trial]):
    api, _ = tried
    answer = api.send("GET", "/crash", headers={"x-request-id": "crash-1"})
    assert (answer.status_code, answer.json()["code"]) == (500, "internal_error")
    assert "secret plan" not in answer.text
    assert audit_of(api.live, "crash-1")[0]["outcome"] == "internal_error"
    assert api.ask("GET", "/bases")["total"] == 0


def test_what_takes_too_long_is_stopped(tried: tuple[Api, Trial]):
    api, trial = tried
    answer = api.send("POST", "/nap", json={"seconds": 30.0}, headers={"x-request-id": "nap-1"})
    assert (answer.status_code, answer.json()["code"]) == (504, "deadline_exceeded")
    assert trial.is_cancelled.wait(5)
    assert audit_of(api.live, "nap-1")[0]["outcome"] == "deadline_exceeded"


def test_a_body_that_does_not_come_is_waited_for_no_longer(tried: tuple[Api, Trial]):
    api, _ = tried
    raw = http(b'{"name"', first=b"POST /api/v1/bases HTTP/1.1", content_length=b"100", x_request_id=b"late-1")
    answer = exchange(api.live.port, raw.replace(b"@TOKEN@", api.token.encode()))
    assert (answer.status, answer.json["code"]) == (408, "request_timeout")
    assert answer.headers["connection"] == "close"
    assert audit_of(api.live, "late-1")[0]["outcome"] == "request_timeout"


def test_a_body_that_ends_too_early_changes_nothing(api: Api):
    raw = http(b'{"name": "Half"}', first=b"POST /api/v1/bases HTTP/1.1", content_length=b"100", x_request_id=b"half-1")
    with socket.create_connection(("127.0.0.1", api.live.port)) as connection:
        connection.sendall(raw.replace(b"@TOKEN@", api.token.encode()))
    assert audit_of(api.live, "half-1")[0]["outcome"] == "cancelled"
    assert api.ask("GET", "/bases", params={"query": "half"})["total"] == 0


# The description


def test_the_description_is_served_without_a_token(shared: Running):
    answer = shared.http.get("/api/v1/openapi.json")
    assert (answer.status_code, answer.headers["content-type"]) == (200, "application/json")
    assert answer.json() == DESCRIBED
    assert DESCRIBED["openapi"] == "3.1.0"


def test_every_endpoint_is_described_and_everything_described_is_served(shared: Running):
    described = {(method.upper(), path) for path, item in DESCRIBED["paths"].items() for method in item}
    assert described == {(it.rest.method, it.rest.path) for it in API_OPERATIONS if it.rest}
    for method, path in described:
        # Without a token, an existing path gives another error than a missing one.
        answer = shared.http.request(method, "/api/v1" + re.sub(r"\{\w+\}", "1", path))
        assert answer.status_code == 401, (method, path)


def test_names_are_told_once_and_parameters_match_their_paths():
    names = [operation.name for operation in API_OPERATIONS]
    assert len(names) == len(set(names))
    for path, item in DESCRIBED["paths"].items():
        for operation in item.values():
            told = {each["name"] for each in operation.get("parameters", []) if each["in"] == "path"}
            assert told == set(re.findall(r"\{(\w+)\}", path)), operation["operationId"]
            assert all(each["required"] for each in operation.get("parameters", []) if each["in"] == "path")


def test_every_example_is_what_its_schema_says():
    shown = 0
    for item in DESCRIBED["paths"].values():
        for operation in item.values():
            bodies = [operation.get("requestBody", {}), *operation["responses"].values()]
            for form in (form for body in bodies for form in body.get("content", {}).values() if "example" in form):
                validate(form["schema"], form["example"])
                shown += 1
    assert shown >= 30
    for operation in API_OPERATIONS:
        example = operation.example
        if (model := openapi.body_model(operation)) is not None:
            assert example.arguments is not None, operation.name
            ids = {name: 1 for name in openapi.body_omits(operation) if name in model.model_fields}
            model.model_validate({**ids, **example.arguments})
        assert (example.answer is None) == (operation.answer in (None, FileAnswer)), operation.name


def test_every_reference_in_the_description_leads_somewhere():
    told = json.dumps(DESCRIBED)
    names = set(re.findall(r'"#/components/schemas/(\w+)"', told))
    assert names <= DESCRIBED["components"]["schemas"].keys()
    assert '"$defs"' not in told


# Random requests

EXAMPLES = int(os.environ.get("ALMANAC_TEST_EXAMPLES", "300"))
text = st.text(st.characters(exclude_categories=["Cs"]), max_size=20) | st.sampled_from(["", "\0", "a" * 300, "a/b"])
numbers = st.integers(-(2**65), 2**65) | st.integers(0, 12) | st.floats(allow_nan=False, allow_infinity=False)
scalars = st.none() | st.booleans() | numbers | text
anything = st.recursive(scalars, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(text, inner, max_size=3))
ids = st.sampled_from([str(number) for number in range(1, 8)]) | st.integers().map(str)


@st.composite
def requests(draw: st.DrawFn) -> tuple[str, str, dict[str, Any]]:
    """A request of an endpoint: mostly valid, with random values in some places."""
    chosen = [each for each in API_OPERATIONS if each.name not in ("remove_base", "download_file")]
    operation = draw(st.sampled_from(chosen))
    rest = operation.rest
    assert rest is not None
    path = re.sub(r"\{\w+\}", lambda _: draw(ids), rest.path)
    named = [each["name"] for each in openapi.parameters(operation) if each["in"] == "query"]
    values = st.sampled_from(["1", "0", "true", "move", "delete", "all", "user"]) | text
    query = draw(st.dictionaries(st.sampled_from(named) if named else text, values, max_size=2))
    how: dict[str, Any] = {"params": query} if query else {}
    if (model := openapi.body_model(operation)) is not None:
        fields = st.sampled_from(list(model.model_fields)) | text
        example = dict(operation.example.arguments or {})
        given = {**example, **draw(st.dictionaries(fields, anything, max_size=3))}
        how["json"] = draw(st.just(given) | st.just(example) | anything)
        how["json"] = draw(st.just(how["json"]) | anything) if draw(st.integers(0, 9)) == 0 else how["json"]
    return rest.method, path, how


@settings(
    max_examples=EXAMPLES,
    deadline=None,
    derandomize="ALMANAC_TEST_EXAMPLES" not in os.environ,
    database=None,
    phases=(Phase.explicit, Phase.generate, Phase.shrink),
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture, HealthCheck.data_too_large],
)
@given(sent=requests())
def test_whatever_is_sent_is_answered_as_described_and_never_with_a_fault_of_ours(shared: Running, sent: Any):
    method, path, how = sent
    headers = {"authorization": f"Bearer {shared.token}"}
    answer = shared.http.request(method, f"/api/v1{path}", headers=headers, **how)
    assert answer.status_code < 500 or answer.json()["code"] == "fetch_failed", (method, path, how, answer.text)
    check(method, path, answer)
