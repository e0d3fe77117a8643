"""Searches through the RAG query gateway: the remote runtime, its requests, and the fallback to our own search."""

import json
import threading
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from almanac.core.settings import InvalidSetting
from almanac.core.settings_loader import load
from almanac.knowledge import document_search, knowledge_runtime
from almanac.search.engine import SearchEngine
from almanac.surfaces.external import responses
from tests.live_server import Running, running, settings_for
from tests.quotas.test_rate_limits import free_port
from tests.surfaces.external.caller import NO_LIMITS, Town, failed, found

pytestmark = pytest.mark.xdist_group("external")

INTERNAL = failed("internal_error", "Internal error")
Reply = tuple[int, Any]


class Elsewhere:
    """A knowledge runtime that sends prepared answers and records its requests."""

    def __init__(self) -> None:
        self.reply: Reply = (200, {"records": []})
        self.asked: list[tuple[str, dict[str, str], Any]] = []
        self.waits = threading.Event()
        self.waits.set()


class _Handler(BaseHTTPRequestHandler):
    elsewhere: Elsewhere

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["content-length"]))
        headers = {name.lower(): value for name, value in self.headers.items()}
        self.elsewhere.asked.append((self.path, headers, json.loads(body)))
        self.elsewhere.waits.wait(20)
        status, said = self.elsewhere.reply
        sent = said if isinstance(said, bytes) else json.dumps(said).encode()
        self.send_response(status)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(sent)))
        self.end_headers()
        self.wfile.write(sent)

    def log_message(self, format: str, *args: Any) -> None:
        """Silence."""


@contextmanager
def answering() -> Generator[tuple[Elsewhere, str]]:
    elsewhere = Elsewhere()
    handler = type("Handler", (_Handler,), {"elsewhere": elsewhere})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield elsewhere, f"http://127.0.0.1:{server.server_port}/"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@pytest.fixture(scope="module")
def place(new_sqlite: Callable[[], str], tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Town, Elsewhere]]:
    """A server that sends queries to the runtime; its own search could answer them by words."""
    with answering() as (elsewhere, url):
        options = {
            **NO_LIMITS, "embedding": False, "rag_runtime_mode": '{"default": "local", "query": "remote"}',
            "knowledge_runtime_url": url, "internal_service_token": "s3rvice",
        }  # fmt: skip
        with running(settings_for(new_sqlite(), tmp_path_factory.mktemp("home"), **options)) as server:
            town = server.run(lambda db: found(server, db))
            server.work()
            yield town, elsewhere


def search(town: Town, **more: Any) -> Any:
    ada = town.caller("ada")
    return ada.search(query="oil the pump", knowledge_base_ids=[town["own"], town["group"], 999], **more)


def test_a_runtime_is_told_the_basic_spec_and_nothing_of_how_we_would_search(
    place: tuple[Town, Elsewhere], monkeypatch: pytest.MonkeyPatch
):
    async def never(*_: Any) -> Any:
        raise AssertionError("our own search was prepared")

    town, elsewhere = place
    monkeypatch.setattr(SearchEngine, "search", never)
    monkeypatch.setattr(document_search, "resolve_scope", never)
    elsewhere.asked.clear()
    elsewhere.reply = (
        200,
        {
            "records": [
                {
                    "content": "From elsewhere.", "title": "Away", "score": 0.75, "metadata": {"lang": "en"},
                    "knowledge_base_id": town["own"], "document_id": 77, "index_family": "chunk_vector",
                }
            ],
            "total": 1,
            "total_estimated_tokens": 12,
        },
    )  # fmt: skip
    assert search(town, max_results=7) == {
        "query": "oil the pump",
        "total": 1,
        "total_estimated_tokens": 12,
        "searched_knowledge_base_ids": [town["own"], town["group"]],
        "ignored_knowledge_base_ids": [999],
        "warnings": ["Some requested knowledge_base_ids were ignored because they are not accessible"],
        "records": [
            {
                "content": "From elsewhere.", "title": "Away", "score": 0.75, "knowledge_base_id": town["own"],
                "knowledge_base_name": "Manuals", "document_id": 77,
            }
        ],
    }  # fmt: skip
    [(path, headers, body)] = elsewhere.asked
    assert path == "/internal/rag/query"
    assert headers["authorization"] == "Bearer s3rvice"
    assert body == {
        "knowledge_base_ids": [town["own"], town["group"]],
        "user_id": town["ada"],
        "query": "oil the pump",
        "max_results": 7,
    }


@pytest.mark.parametrize(
    "reply",
    [
        (500, {"code": "boom", "message": "x", "retryable": False}),
        (503, b"not json"),
        (502, b""),
        (429, {"code": "busy", "message": "x", "retryable": True}),
        (400, {"code": "later", "message": "x", "retryable": True}),
        (200, b"not json"),
        (200, {"records": None}),
        (200, {"records": [1]}),
    ],
)
def test_our_own_search_stands_in_where_the_failure_is_passing_or_the_runtime_s(
    place: tuple[Town, Elsewhere], reply: Reply
):
    town, elsewhere = place
    elsewhere.reply = reply
    answer = search(town)
    assert answer["records"][0]["document_id"] == town["guide"]
    assert answer["records"][0]["knowledge_base_name"] == "Manuals"


@pytest.mark.parametrize(
    "reply",
    [
        (400, {"code": "bad_query", "message": "x", "retryable": False}),
        (401, b""),
        (404, b"not json"),
        (422, {"retryable": "true"}),
        (301, {}),
    ],
)
def test_a_refusal_of_the_runtime_stands(place: tuple[Town, Elsewhere], reply: Reply):
    town, elsewhere = place
    elsewhere.reply = reply
    assert search(town) == INTERNAL


def test_what_a_runtime_says_of_bases_that_were_not_asked_about_is_left_out(place: tuple[Town, Elsewhere]):
    town, elsewhere = place
    records: list[dict[str, Any]] = [
        {"content": "a", "knowledge_base_id": town["bobs"], "document_id": 1},
        {"content": "b" * 8, "knowledge_base_id": town["group"], "doc_ref": "doc_5"},
        {"content": "c" * 8},
        {"content": 5, "knowledge_base_id": town["own"]},
        {"content": "d", "score": "high", "knowledge_base_id": town["own"]},
    ]
    elsewhere.reply = (200, {"records": records, "total_estimated_tokens": 99})
    answer = search(town)
    assert [(each["content"], each["document_id"]) for each in answer["records"]] == [("b" * 8, 5), ("c" * 8, None)]
    assert answer["records"][1] == {
        "content": "c" * 8, "title": "", "score": None, "knowledge_base_id": None, "knowledge_base_name": None,
        "document_id": None,
    }  # fmt: skip
    assert (answer["total"], answer["total_estimated_tokens"]) == (2, 4)


@pytest.mark.parametrize(("told", "expected"), [(40, 40), (None, 1), ("many", 1), (-1, 1), (True, 1)])
def test_the_runtime_says_how_many_there_are_in_all(place: tuple[Town, Elsewhere], told: Any, expected: int):
    town, elsewhere = place
    elsewhere.reply = (200, {"records": [{"content": "x"}], "total": told})
    assert search(town)["total"] == expected


def test_no_more_records_are_passed_on_than_were_asked_for(place: tuple[Town, Elsewhere]):
    town, elsewhere = place
    elsewhere.reply = (200, {"records": [{"content": f"{n}"} for n in range(9)]})
    assert [each["content"] for each in search(town, max_results=3)["records"]] == ["0", "1", "2"]


def test_a_runtime_that_cannot_be_reached_or_hangs_is_stood_in_for(
    sqlite_home: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    assert knowledge_runtime.TIMEOUT_SECONDS == 30
    monkeypatch.setattr(knowledge_runtime, "TIMEOUT_SECONDS", 0.3)
    with answering() as (elsewhere, url):
        elsewhere.waits.clear()
        for address in (url, f"http://localhost:{free_port()}"):
            options = {
                **NO_LIMITS, "embedding": False, "rag_runtime_mode": "remote", "knowledge_runtime_url": address,
            }  # fmt: skip
            home = tmp_path / address.rpartition(":")[2].strip("/")
            home.mkdir()
            database = home / "almanac.db"
            database.write_bytes(Path(sqlite_home.removeprefix("sqlite:///")).read_bytes())
            with running(settings_for(f"sqlite:///{database}", home, **options)) as server:
                town = server.run(lambda db, server=server: found(server, db))
                server.work()
                assert search(town)["records"][0]["document_id"] == town["guide"]
        elsewhere.waits.set()
        assert len(elsewhere.asked) == 1


def test_local_is_the_default_and_asks_nobody(live: Running, town: Town):
    assert load({}).settings.rag_runtime_mode == "local"
    assert search(town)["records"][0]["document_id"] == town["guide"]


@pytest.mark.parametrize(
    ("mode", "expected"),
    [
        ("local", "local"),
        ("remote", "remote"),
        ("{}", "local"),
        ('{"default": "remote"}', "remote"),
        ('{"default": "remote", "query": "local"}', "local"),
        ('{"index": "remote", "delete": "remote", "list_chunks": "remote"}', "local"),
        ('{"query": "remote", "index": "local"}', "remote"),
    ],
)
def test_a_mode_is_of_all_operations_or_of_each(mode: str, expected: str):
    variables = {"RAG_RUNTIME_MODE": mode, "KNOWLEDGE_RUNTIME_URL": "http://runtime.internal:8200"}
    assert knowledge_runtime.query_mode(load(variables).settings) == expected


@pytest.mark.parametrize(
    "variables",
    [
        {"RAG_RUNTIME_MODE": "both"},
        {"RAG_RUNTIME_MODE": '["remote"]'},
        {"RAG_RUNTIME_MODE": '{"query": "else"}'},
        {"RAG_RUNTIME_MODE": '{"search": "remote"}'},
        {"RAG_RUNTIME_MODE": "remote"},
        {"RAG_RUNTIME_MODE": "remote", "KNOWLEDGE_RUNTIME_URL": "http://user@runtime.internal"},
    ],
)
def test_a_mode_that_cannot_work_is_refused_at_the_start(variables: dict[str, str]):
    with pytest.raises(InvalidSetting, match=r"rag_runtime_mode|knowledge_runtime_url"):
        knowledge_runtime.query_mode(load(variables).settings)


@pytest.mark.parametrize(
    ("record", "expected"),
    [
        ({"document_id": 4, "metadata": {"document_id": 5}, "doc_ref": "6"}, 4),
        ({"document_id": "4"}, 4),
        ({"document_id": "doc_4"}, 4),
        ({"document_id": None, "metadata": {"document_id": "5"}, "doc_ref": "6"}, 5),
        ({"document_id": 0, "metadata": {"document_id": 5}}, 5),
        ({"document_id": True, "doc_ref": "6", "metadata": {"doc_ref": "7"}}, 6),
        ({"doc_ref": "doc_x", "metadata": {"doc_ref": "doc_7"}}, 7),
        ({"metadata": {"doc_ref": 7}}, 7),
        ({"metadata": "nothing"}, None),
        ({"doc_ref": "-6", "document_id": 1.5}, None),
        ({"doc_ref": "doc_"}, None),
        ({"doc_ref": "doc_0009"}, 9),
        ({"document_id": "007"}, 7),
        ({"doc_ref": "doc_000"}, None),
        ({}, None),
    ],
)
def test_a_document_is_named_in_one_of_four_places(record: dict[str, Any], expected: int | None):
    assert responses.document_id(record) == expected
