"""The embedder behind an endpoint, against a real server on loopback that can break the API."""

import asyncio
import base64
import hashlib
import json
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest

from almanac.ai import remote
from almanac.ai.errors import EmbeddingRefused, EmbeddingUnavailable, WrongDimension
from almanac.ai.remote import EMPTY, MAX_REQUEST_TEXTS, MAX_TEXT_CHARS, RemoteEmbedder, RequestPolicy
from almanac.core import retries
from almanac.core.retries import RetryPolicy
from tests.waiting import until

KEY = "sk-a-key-that-nobody-may-see"
QUICK = RequestPolicy(30, RetryPolicy(tries=3, pause_seconds=0.001))


def vector(text: str) -> list[float]:
    """Three numbers that differ between texts."""
    return [1.0 + byte for byte in hashlib.sha256(text.encode()).digest()[:3]]


def expect(*texts: str) -> Any:
    rows = np.array([vector(text) for text in texts])
    return pytest.approx(rows / np.linalg.norm(rows, axis=1, keepdims=True), abs=1e-6)


@dataclass
class Answer:
    status: int = 200
    body: bytes = b"{}"
    headers: str = ""


@dataclass
class Endpoint:
    """A server with prepared answers, sent in order; after them, it answers as the API demands."""

    answers: list[Answer | None] = field(default_factory=list["Answer | None"])
    requests: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])
    headers: list[str] = field(default_factory=list[str])
    form: Callable[[list[str]], Any] = lambda texts: {
        "data": [{"index": place, "embedding": vector(text)} for place, text in reversed(list(enumerate(texts)))]
    }
    url: str = ""

    def __post_init__(self) -> None:
        self.answer = self._embed

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode()
                length = next(int(line[15:]) for line in head.lower().splitlines() if line.startswith("content-length"))
                self.headers.append(head)
                self.requests.append(json.loads(await reader.readexactly(length)))
                answer = self.answers.pop(0) if self.answers else self.answer()
                if answer is None:  # hang up
                    break
                size = f"content-length: {len(answer.body)}\r\n"
                writer.write(f"HTTP/1.1 {answer.status} X\r\n{size}{answer.headers}\r\n".encode() + answer.body)
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    def _embed(self) -> Answer:
        return Answer(body=json.dumps(self.form(self.requests[-1]["input"])).encode())


@asynccontextmanager
async def serving(endpoint: Endpoint) -> AsyncGenerator[Endpoint]:
    server = await asyncio.start_server(endpoint.serve, "127.0.0.1", 0)
    endpoint.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1"
    async with server:
        yield endpoint


@pytest.fixture
async def endpoint() -> AsyncIterator[Endpoint]:
    async with serving(Endpoint()) as served:
        yield served


@pytest.fixture
async def embedder(endpoint: Endpoint) -> AsyncIterator[RemoteEmbedder]:
    opened = RemoteEmbedder(endpoint.url + "/", "a-model", KEY, for_passages=QUICK, for_queries=QUICK)
    yield opened
    await opened.close()


async def test_vectors_come_back_in_the_order_of_the_texts_and_of_length_one(
    endpoint: Endpoint, embedder: RemoteEmbedder
):
    assert await embedder.passages(["a", "b", "c"]) == expect("a", "b", "c")
    assert endpoint.requests == [{"model": "a-model", "input": ["a", "b", "c"], "encoding_format": "float"}]
    assert endpoint.headers[0].startswith("POST /v1/embeddings HTTP/1.1\r\n")
    assert f"authorization: bearer {KEY}\r\n" in endpoint.headers[0].lower()


async def test_it_says_what_it_is_once_it_has_been_asked(embedder: RemoteEmbedder):
    assert (embedder.name, embedder.dimension, embedder.languages) == ("remote/a-model", 0, frozenset())
    await embedder.query("a")
    assert embedder.dimension == 3


async def test_without_a_key_none_is_sent(endpoint: Endpoint):
    opened = RemoteEmbedder(endpoint.url, "a-model")
    await opened.query("a")
    await opened.close()
    assert "authorization" not in endpoint.headers[0].lower()


async def test_many_texts_go_in_several_requests_and_come_back_in_order(endpoint: Endpoint, embedder: RemoteEmbedder):
    texts = [str(number) for number in range(2 * MAX_REQUEST_TEXTS + 5)]
    assert await embedder.passages(texts) == expect(*texts)
    assert sorted(len(request["input"]) for request in endpoint.requests) == [5, MAX_REQUEST_TEXTS, MAX_REQUEST_TEXTS]


async def test_long_texts_are_cut_and_spread_over_requests(
    endpoint: Endpoint, embedder: RemoteEmbedder, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(remote, "MAX_REQUEST_CHARS", 50_000)
    await embedder.passages([letter * 1_000_000 for letter in "abc"])
    sizes = sorted([len(text) for text in request["input"]] for request in endpoint.requests)
    assert sizes == [[MAX_TEXT_CHARS], [MAX_TEXT_CHARS] * 2]


async def test_texts_that_no_endpoint_takes_are_made_harmless(endpoint: Endpoint, embedder: RemoteEmbedder):
    await embedder.passages(["", " \n", "\ud800x", "a\x00b"])
    assert endpoint.requests[0]["input"] == [EMPTY, EMPTY, "?x", "a\x00b"]


async def test_no_texts_are_not_asked_for(endpoint: Endpoint, embedder: RemoteEmbedder):
    assert len(await embedder.passages([])) == 0
    assert endpoint.requests == []


async def test_a_query_asked_again_is_not_sent_again(endpoint: Endpoint, embedder: RemoteEmbedder):
    for _ in range(3):
        assert (await embedder.query("a"))[None] == expect("a")
    assert len(endpoint.requests) == 1


async def test_vectors_in_base64_are_read(endpoint: Endpoint, embedder: RemoteEmbedder):
    def pack(text: str) -> str:
        return base64.b64encode(np.array(vector(text), "<f4").tobytes()).decode()

    endpoint.form = lambda texts: {"data": [{"embedding": pack(text)} for text in texts]}
    assert await embedder.passages(["a", "b"]) == expect("a", "b")


# Failures


@pytest.mark.parametrize("status", [429, 500, 502, 503])
async def test_what_fails_for_the_moment_is_tried_again(endpoint: Endpoint, embedder: RemoteEmbedder, status: int):
    endpoint.answers = [Answer(status), Answer(status)]
    assert await embedder.passages(["a"]) == expect("a")
    assert len(endpoint.requests) == 3


async def test_a_connection_that_breaks_is_tried_again(endpoint: Endpoint, embedder: RemoteEmbedder):
    endpoint.answers = [None]
    assert await embedder.passages(["a"]) == expect("a")


async def test_it_waits_for_as_long_as_the_endpoint_asks(endpoint: Endpoint, monkeypatch: pytest.MonkeyPatch):
    paused: list[float] = []

    async def pause(seconds: float) -> None:
        paused.append(seconds)

    monkeypatch.setattr(retries.asyncio, "sleep", pause)
    endpoint.answers = [Answer(429, headers="retry-after: 7\r\n"), Answer(503), Answer(503)]
    opened = RemoteEmbedder(
        endpoint.url, "a-model", for_passages=RequestPolicy(30, RetryPolicy(tries=4, pause_seconds=0.4))
    )
    await opened.passages(["a"])
    await opened.close()
    paused = [each for each in paused if each >= 0.4]  # without those of the server in this process
    assert paused[0] == 7
    assert 0.4 <= paused[1] <= 0.8
    assert 0.8 <= paused[2] <= 1.6


async def test_it_does_not_wait_for_longer_than_it_has_patience(endpoint: Endpoint, embedder: RemoteEmbedder):
    endpoint.answers = [Answer(429, headers="retry-after: 3600\r\n")]
    with pytest.raises(EmbeddingUnavailable, match="status 429"):
        await embedder.passages(["a"])
    assert len(endpoint.requests) == 1


async def test_what_keeps_failing_is_given_up(endpoint: Endpoint, embedder: RemoteEmbedder):
    endpoint.answers = [Answer(503)] * 3
    with pytest.raises(EmbeddingUnavailable, match="status 503") as caught:
        await embedder.query("a secret question")
    assert "ALMANAC_EMBEDDING_URL" in caught.value.text
    assert len(endpoint.requests) == 3


async def test_an_endpoint_that_is_not_there_is_given_up():
    opened = RemoteEmbedder("http://127.0.0.1:9/v1", "a-model", KEY, for_queries=QUICK)
    with pytest.raises(EmbeddingUnavailable, match="cannot be reached"):
        await opened.query("a")
    await opened.close()


async def test_an_endpoint_that_does_not_answer_in_time_is_given_up():
    async def be_silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()
        writer.close()

    async with await asyncio.start_server(be_silent, "127.0.0.1", 0) as server:
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        opened = RemoteEmbedder(
            url, "a-model", for_queries=RequestPolicy(0.05, RetryPolicy(tries=2, pause_seconds=0.001))
        )
        with pytest.raises(EmbeddingUnavailable):
            await opened.query("a")
        await opened.close()


@pytest.mark.parametrize("status", [301, 307, 400, 401, 403, 404, 422])
async def test_what_will_not_get_better_is_not_tried_again(endpoint: Endpoint, embedder: RemoteEmbedder, status: int):
    endpoint.answers = [Answer(status, headers="location: http://127.0.0.1:9/\r\n")]
    with pytest.raises(EmbeddingRefused, match=f"status {status}") as caught:
        await embedder.passages(["a"])
    assert "ALMANAC_EMBEDDING_KEY" in caught.value.text
    assert len(endpoint.requests) == 1


@pytest.mark.parametrize("status", [400, 413, 422])
async def test_a_text_that_is_refused_is_embedded_by_its_beginning_and_spoils_no_others(
    endpoint: Endpoint, embedder: RemoteEmbedder, status: int
):
    def answer() -> Answer:
        texts = endpoint.requests[-1]["input"]
        if any(len(text) > 300 for text in texts):
            return Answer(status)
        return Answer(body=json.dumps(endpoint.form(texts)).encode())

    endpoint.answer = answer
    texts = [f"text {number}" for number in range(20)]
    texts[7] = "long " * 200
    found = await embedder.passages(texts)
    assert found == expect(*texts[:7], texts[7][:249], *texts[8:])  # without the space that it ends with, or not
    both = await asyncio.gather(embedder.query("short"), embedder.query("q" * 900))
    assert np.array(both) == expect("short", "q" * 225)


async def test_a_body_that_cannot_be_decoded_is_no_answer(endpoint: Endpoint, embedder: RemoteEmbedder):
    endpoint.answers = [Answer(body=b"no gzip", headers="content-encoding: gzip\r\n") for _ in range(3)]
    with pytest.raises(EmbeddingUnavailable):
        await embedder.query("a")


async def test_neither_the_key_nor_texts_nor_answers_are_told(
    endpoint: Endpoint, embedder: RemoteEmbedder, caplog: pytest.LogCaptureFixture
):
    caplog.set_level(logging.DEBUG)
    endpoint.answers = [Answer(400, f"bad key {KEY} for 'a secret question'".encode())]
    with pytest.raises(EmbeddingRefused) as caught:
        await embedder.query("a secret question")
    told = caplog.text + caught.value.text + repr(caught.value) + repr(embedder)
    assert KEY not in told
    assert "secret question" not in told


NONSENSE: list[Any] = [
    [],
    {"error": "x"},
    {"data": "x"},
    {"data": [1]},
    {"data": []},
    {"data": [{"embedding": [1, 2]}, {"embedding": [1, 2]}]},
    {"data": [{"embedding": []}]},
    {"data": [{"embedding": 1}]},
    {"data": [{"embedding": ["x", "y"]}]},
    {"data": [{"embedding": "not base64!"}]},
    {"data": [{"embedding": [0, 0, 0]}]},
    {"data": [{"embedding": [1e300, 1, 1]}]},
    {"data": [{"embedding": [1, None, 1]}]},
    {"data": [{"index": 1, "embedding": [1, 2]}]},
    {"data": [{"index": "0", "embedding": [1, 2]}]},
    {"data": [{"index": None, "embedding": [1, 2]}]},
    {"data": [{"index": None, "embedding": [1, 2]}, {"index": 0, "embedding": [1, 2]}]},
]


@pytest.mark.parametrize("answer", NONSENSE, ids=json.dumps)
async def test_an_answer_that_makes_no_sense_is_refused(endpoint: Endpoint, embedder: RemoteEmbedder, answer: Any):
    endpoint.form = lambda texts: answer
    with pytest.raises(EmbeddingRefused):
        await embedder.passages(["a"])


async def test_an_answer_that_is_too_large_is_not_read_to_its_end(
    endpoint: Endpoint, embedder: RemoteEmbedder, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(remote, "MAX_RESPONSE_BYTES", 1000)
    endpoint.answers = [Answer(body=b" " * 5000)]
    with pytest.raises(EmbeddingRefused, match="too large"):
        await embedder.passages(["a"])


async def test_a_dimension_that_changes_is_an_error_that_names_the_fix(endpoint: Endpoint, embedder: RemoteEmbedder):
    await embedder.passages(["a"])
    endpoint.form = lambda texts: {"data": [{"embedding": [1, 2]} for _ in texts]}
    with pytest.raises(WrongDimension, match="2 dimensions, not 3") as caught:
        await embedder.passages(["b"])
    assert "ALMANAC_EMBEDDING_MODEL" in caught.value.text


async def test_an_endpoint_is_held_to_the_dimension_that_is_expected(endpoint: Endpoint):
    opened = RemoteEmbedder(endpoint.url, "a-model", dimension=1536)
    with pytest.raises(WrongDimension, match="3 dimensions, not 1536"):
        await opened.query("a")
    await opened.close()


async def test_who_gives_up_leaves_nothing_open(endpoint: Endpoint, embedder: RemoteEmbedder):
    endpoint.answers = [Answer(503, headers="retry-after: 20\r\n")]
    work = asyncio.create_task(embedder.passages(["a"]))
    await until(lambda: endpoint.requests)
    work.cancel()
    with pytest.raises(asyncio.CancelledError):
        await work
    assert await embedder.passages(["b"]) == expect("b")
