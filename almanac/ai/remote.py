"""The embedder behind an endpoint that speaks OpenAI's `/embeddings`.

What fails for the moment (429, 5xx, a connection that breaks) is tried again, after as long as the endpoint asks for.
Redirects are not followed and proxies of the environment not used: the key goes where the operator said, nowhere else.
"""

import asyncio
import base64
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any, cast

import httpx2
import numpy as np
import orjson

from almanac.ai.embedder import Vectors, clean, normalise
from almanac.ai.errors import EmbeddingRefused, EmbeddingUnavailable, WrongDimension
from almanac.ai.query_batcher import QueryBatcher

MOST_TEXTS = 64  # in a request
MOST_CHARACTERS = 24_000  # of a text: about the 8,191 tokens that such endpoints take
MOST_IN_REQUEST = 400_000  # characters
MOST_BYTES = 64 * 1024 * 1024  # of an answer
MAX_VECTOR_VALUE = 1e30  # number in a vector
UNFIT = frozenset({400, 413, 422})  # statuses with which a text is refused that is too long, or otherwise unfit
MIN_SHORTENED_CHARS = 200  # characters; a text as short as this is not refused for its length
EMPTY = "."  # in place of a text without characters, which such endpoints refuse
REQUESTS_AT_ONCE = 4
PASSING = frozenset({408, 409, 425, 429, 500, 502, 503, 504, 529})  # statuses that another try may find gone


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """How long one waits for an endpoint."""

    tries: int
    seconds: float  # for an answer
    pause: float = 0.5  # before the second try; twice as long before each further one
    longest_pause: float = 30.0


FOR_PASSAGES = RetryPolicy(tries=6, seconds=60)
FOR_QUERIES = RetryPolicy(tries=3, seconds=10, longest_pause=3)


class _Unfit(EmbeddingRefused):
    """The endpoint does not take these texts."""


class RemoteEmbedder:
    """An embedder that asks an endpoint."""

    languages: frozenset[str] = frozenset()

    def __init__(
        self,
        url: str,
        model: str,
        key: str = "",
        *,
        dimension: int = 0,
        for_passages: RetryPolicy = FOR_PASSAGES,
        for_queries: RetryPolicy = FOR_QUERIES,
    ) -> None:
        self._url = f"{url.rstrip('/')}/embeddings"
        self._model = model
        self._dimension = dimension
        self._for_passages, self._for_queries = for_passages, for_queries
        headers = {"authorization": f"Bearer {key}"} if key else {}
        self._client = httpx2.AsyncClient(headers=headers, trust_env=False, follow_redirects=False)
        self._places = asyncio.Semaphore(REQUESTS_AT_ONCE)
        self._queries = QueryBatcher(self._embed_queries)

    @property
    def name(self) -> str:
        return f"remote/{self._model}"

    @property
    def dimension(self) -> int:
        return self._dimension

    async def passages(self, texts: Sequence[str]) -> Vectors:
        batches = list(_split([clean(text, MOST_CHARACTERS).strip() or EMPTY for text in texts]))
        found = await asyncio.gather(*(self._embed(each, self._for_passages) for each in batches))
        return np.concatenate(found) if found else np.empty((0, self._dimension), np.float32)

    async def query(self, text: str) -> Vectors:
        return await self._queries.get(clean(text, MOST_CHARACTERS).strip() or EMPTY)

    async def close(self) -> None:
        await self._queries.close()
        await self._client.aclose()

    async def _embed_queries(self, texts: list[str]) -> Vectors:
        return await self._embed(texts, self._for_queries)

    async def _embed(self, texts: list[str], patience: RetryPolicy) -> Vectors:
        """Vectors of texts. One that the endpoint does not take is embedded by its beginning, and spoils no others."""
        try:
            return await self._embed_all(texts, patience)
        except _Unfit:
            if len(texts) == 1 and len(texts[0]) <= MIN_SHORTENED_CHARS:
                raise
        if len(texts) == 1:
            return await self._embed([texts[0][: len(texts[0]) // 2]], patience)
        half = len(texts) // 2
        return np.concatenate([await self._embed(each, patience) for each in (texts[:half], texts[half:])])

    async def _embed_all(self, texts: list[str], patience: RetryPolicy) -> Vectors:
        async with self._places:
            body = await self._ask({"model": self._model, "input": texts, "encoding_format": "float"}, patience)
        rows = await asyncio.to_thread(_read, body, len(texts))
        if self._dimension not in (0, rows.shape[1]):
            raise WrongDimension(f"The embedding endpoint gives {rows.shape[1]} dimensions, not {self._dimension}.")
        self._dimension = rows.shape[1]
        return rows

    async def _ask(self, question: Mapping[str, Any], patience: RetryPolicy) -> bytes:
        """The answer to a question, which is put again while it may be answered later."""
        pause = patience.pause
        for left in reversed(range(patience.tries)):
            failure = EmbeddingUnavailable()
            asked_for = 0.0
            try:
                async with asyncio.timeout(patience.seconds):
                    status, headers, body = await self._post(orjson.dumps(question))
            except (httpx2.RequestError, TimeoutError):
                pass
            else:
                if status == HTTPStatus.OK:
                    return body
                if status not in PASSING:
                    refusal = _Unfit if status in UNFIT else EmbeddingRefused
                    raise refusal(f"The embedding endpoint refused a request with status {status}.")
                failure = EmbeddingUnavailable(f"The embedding endpoint answers with status {status}.")
                asked_for = _read_seconds(headers.get("retry-after", ""))
            if not left or asked_for > patience.longest_pause:
                raise failure
            await asyncio.sleep(max(asked_for, min(pause, patience.longest_pause) * random.uniform(0.5, 1)))  # noqa: S311 - no secret
            pause *= 2
        raise EmbeddingUnavailable()

    async def _post(self, content: bytes) -> tuple[int, httpx2.Headers, bytes]:
        headers = {"content-type": "application/json"}
        async with self._client.stream("POST", self._url, content=content, headers=headers, timeout=None) as answer:
            body = bytearray()
            async for piece in answer.aiter_bytes():
                body += piece
                if len(body) > MOST_BYTES:
                    raise EmbeddingRefused("The embedding endpoint answers with more than it should.")
            return answer.status_code, answer.headers, bytes(body)


def _split(texts: Sequence[str]) -> Iterator[list[str]]:
    """Texts in requests that endpoints take."""
    batch: list[str] = []
    size = 0
    for text in texts:
        if batch and (len(batch) == MOST_TEXTS or size + len(text) > MOST_IN_REQUEST):
            yield batch
            batch, size = [], 0
        batch.append(text)
        size += len(text)
    if batch:
        yield batch


def _read(body: bytes, count: int) -> Vectors:
    """The vectors of an answer in the order of the texts, which it need not keep."""
    try:
        data = cast("list[dict[str, Any]]", orjson.loads(body)["data"])
        places = [item.get("index", place) for place, item in enumerate(data)]
        is_whole = sorted(places) == list(range(count))
        rows = np.array([_decode(item["embedding"]) for item in data], np.float64)
    except (ValueError, TypeError, LookupError, AttributeError):
        raise EmbeddingRefused("The embedding endpoint's answer is not of OpenAI's form.") from None
    if not is_whole or rows.ndim != 2 or not rows.shape[1]:
        raise EmbeddingRefused("The embedding endpoint answers with another number of vectors than it was asked for.")
    if not (np.abs(rows).max(axis=1) < MAX_VECTOR_VALUE).all() or not rows.any(axis=1).all():  # nan is not less, either
        raise EmbeddingRefused("The embedding endpoint answers with vectors that have no direction.")
    return normalise(rows[np.argsort(places)].astype(np.float32))


def _decode(embedding: Any) -> Any:
    """Numbers as they are, or as little-endian floats in base64."""
    return np.frombuffer(base64.b64decode(embedding, validate=True), "<f4") if isinstance(embedding, str) else embedding


def _read_seconds(text: str) -> float:
    """How long to wait, where it is said in seconds; a date is not worth trusting the clocks of two machines."""
    return float(text) if text.isascii() and text.replace(".", "", 1).isdigit() else 0.0
