"""The embedder for an endpoint with OpenAI's `/embeddings` API.

After a temporary failure (429, 5xx, a lost connection) the request is sent again, after the delay that the endpoint
states. Redirects are not followed and proxies of the environment are not used, so that the key is sent only to the
configured address.
"""

import asyncio
import base64
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
from almanac.core.retries import TEMPORARY_STATUSES, RetryPolicy, retry

MAX_REQUEST_TEXTS = 64
MAX_TEXT_CHARS = 24_000  # about the 8,191 tokens that such endpoints accept
MAX_REQUEST_CHARS = 400_000
MAX_RESPONSE_BYTES = 64 * 1024 * 1024
MAX_VECTOR_VALUE = 1e30
REFUSED_TEXT_STATUSES = frozenset({400, 413, 422})  # for a text that is too long or otherwise not accepted
MIN_SHORTENED_CHARS = 200  # a shorter text is not refused for its length
EMPTY = "."  # replaces an empty text, which such endpoints refuse
MAX_CONCURRENT_REQUESTS = 4
RETRYABLE_STATUSES = TEMPORARY_STATUSES | {409, 500, 529}


@dataclass(frozen=True, slots=True)
class RequestPolicy:
    """The seconds for one response of the endpoint, and the repetition of requests."""

    seconds: float
    retries: RetryPolicy


FOR_PASSAGES = RequestPolicy(60, RetryPolicy(tries=6))
FOR_QUERIES = RequestPolicy(10, RetryPolicy(tries=3, max_pause_seconds=3))


@dataclass(frozen=True, slots=True)
class _EndpointAnswer:
    """A response of the endpoint; status 0 if there was none."""

    status: int = 0
    body: bytes = b""
    retry_after: str = ""


class _TextsRefused(EmbeddingRefused):
    """The endpoint does not accept these texts."""


class RemoteEmbedder:
    """An embedder that sends texts to an endpoint."""

    languages: frozenset[str] = frozenset()

    def __init__(
        self,
        url: str,
        model: str,
        key: str = "",
        *,
        dimension: int = 0,
        for_passages: RequestPolicy = FOR_PASSAGES,
        for_queries: RequestPolicy = FOR_QUERIES,
    ) -> None:
        self._url = f"{url.rstrip('/')}/embeddings"
        self._model = model
        self._dimension = dimension
        self._for_passages, self._for_queries = for_passages, for_queries
        headers = {"authorization": f"Bearer {key}"} if key else {}
        self._client = httpx2.AsyncClient(headers=headers, trust_env=False, follow_redirects=False)
        self._request_slots = asyncio.Semaphore(MAX_CONCURRENT_REQUESTS)
        self._queries = QueryBatcher(self._embed_queries)

    @property
    def name(self) -> str:
        return f"remote/{self._model}"

    @property
    def dimension(self) -> int:
        return self._dimension

    async def passages(self, texts: Sequence[str]) -> Vectors:
        batches = list(_split([clean(text, MAX_TEXT_CHARS).strip() or EMPTY for text in texts]))
        found = await asyncio.gather(*(self._embed(each, self._for_passages) for each in batches))
        return np.concatenate(found) if found else np.empty((0, self._dimension), np.float32)

    async def query(self, text: str) -> Vectors:
        return await self._queries.get(clean(text, MAX_TEXT_CHARS).strip() or EMPTY)

    async def close(self) -> None:
        await self._queries.close()
        await self._client.aclose()

    async def _embed_queries(self, texts: list[str]) -> Vectors:
        return await self._embed(texts, self._for_queries)

    async def _embed(self, texts: list[str], policy: RequestPolicy) -> Vectors:
        """The vectors of texts. A text that the endpoint refuses is shortened until it is accepted, separately."""
        try:
            return await self._embed_all(texts, policy)
        except _TextsRefused:
            if len(texts) == 1 and len(texts[0]) <= MIN_SHORTENED_CHARS:
                raise
        if len(texts) == 1:
            return await self._embed([texts[0][: len(texts[0]) // 2]], policy)
        half = len(texts) // 2
        return np.concatenate([await self._embed(each, policy) for each in (texts[:half], texts[half:])])

    async def _embed_all(self, texts: list[str], policy: RequestPolicy) -> Vectors:
        async with self._request_slots:
            body = await self._request({"model": self._model, "input": texts, "encoding_format": "float"}, policy)
        rows = await asyncio.to_thread(_read, body, len(texts))
        if self._dimension not in (0, rows.shape[1]):
            raise WrongDimension(f"The embedding endpoint returns {rows.shape[1]} dimensions, not {self._dimension}.")
        self._dimension = rows.shape[1]
        return rows

    async def _request(self, content: Mapping[str, Any], policy: RequestPolicy) -> bytes:
        """The response to a request, which is repeated after temporary failures."""
        body = orjson.dumps(content)
        answer = await retry(lambda: self._post(body, policy.seconds), policy.retries, _requested_delay)
        if answer.status == HTTPStatus.OK:
            return answer.body
        if not answer.status:
            raise EmbeddingUnavailable()
        if answer.status in RETRYABLE_STATUSES:
            raise EmbeddingUnavailable(f"The embedding endpoint answers with status {answer.status}.")
        refusal = _TextsRefused if answer.status in REFUSED_TEXT_STATUSES else EmbeddingRefused
        raise refusal(f"The embedding endpoint refused a request with status {answer.status}.")

    async def _post(self, content: bytes, seconds: float) -> _EndpointAnswer:
        headers = {"content-type": "application/json"}
        try:
            async with (
                asyncio.timeout(seconds),
                self._client.stream("POST", self._url, content=content, headers=headers, timeout=None) as response,
            ):
                body = bytearray()
                async for chunk in response.aiter_bytes():
                    body += chunk
                    if len(body) > MAX_RESPONSE_BYTES:
                        raise EmbeddingRefused("The response of the embedding endpoint is too large.")
                return _EndpointAnswer(response.status_code, bytes(body), response.headers.get("retry-after", ""))
        except (httpx2.RequestError, TimeoutError):
            return _EndpointAnswer()


def _split(texts: Sequence[str]) -> Iterator[list[str]]:
    """The texts in groups that fit into one request."""
    batch: list[str] = []
    size = 0
    for text in texts:
        if batch and (len(batch) == MAX_REQUEST_TEXTS or size + len(text) > MAX_REQUEST_CHARS):
            yield batch
            batch, size = [], 0
        batch.append(text)
        size += len(text)
    if batch:
        yield batch


def _read(body: bytes, count: int) -> Vectors:
    """The vectors of a response in the order of the texts. The response may have another order."""
    try:
        data = cast("list[dict[str, Any]]", orjson.loads(body)["data"])
        places = [item.get("index", place) for place, item in enumerate(data)]
        is_whole = sorted(places) == list(range(count))
        rows = np.array([_decode(item["embedding"]) for item in data], np.float64)
    except (ValueError, TypeError, LookupError, AttributeError):
        raise EmbeddingRefused("The response of the embedding endpoint does not have OpenAI's format.") from None
    if not is_whole or rows.ndim != 2 or not rows.shape[1]:
        raise EmbeddingRefused("The embedding endpoint returns a wrong number of vectors.")
    if not (np.abs(rows).max(axis=1) < MAX_VECTOR_VALUE).all() or not rows.any(axis=1).all():  # also refuses nan
        raise EmbeddingRefused("The embedding endpoint returns zero or infinite vectors.")
    return normalise(rows[np.argsort(places)].astype(np.float32))


def _decode(embedding: Any) -> Any:
    """The numbers of a vector, given as such or as little-endian floats in base64."""
    return np.frombuffer(base64.b64decode(embedding, validate=True), "<f4") if isinstance(embedding, str) else embedding


def _requested_delay(answer: _EndpointAnswer) -> float | None:
    """The seconds of Retry-After. A date is ignored, because the clocks of two machines may differ."""
    if answer.status and answer.status not in RETRYABLE_STATUSES:
        return None
    text = answer.retry_after
    return float(text) if text.isascii() and text.replace(".", "", 1).isdigit() else 0.0
