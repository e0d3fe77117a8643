"""Backends of `weknora_search`: this server itself, or a remote endpoint with WeKnora's REST interface.

There are two kinds of endpoints. The one that WeKnora's document describes, as this server implements it, takes
`question` and returns `results`. A real WeKnora takes `query` and returns `data`. A request is the documented one,
unless the context says that the endpoint is a real WeKnora. Responses of both kinds are read.
"""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any, cast

import orjson
from pydantic import ValidationError

from almanac.assist.weknora import knowledge_search
from almanac.assist.weknora.knowledge_search import GradedResults, WeKnoraSearchArguments
from almanac.assist.weknora.weknora_result import HideKey, WeKnoraResult, from_endpoint, of_document
from almanac.assist.weknora.weknora_tool import (
    PATH,
    CachedBackend,
    SearchBackend,
    SearchRefused,
    WeKnoraContext,
    WeKnoraQuery,
    WeKnoraResults,
    refusal,
)
from almanac.core.arguments import describe_problems
from almanac.core.call import Call
from almanac.core.errors import AlmanacError, BadRequest
from almanac.core.retries import TEMPORARY_STATUSES, RetryPolicy, retry
from almanac.core.settings import Settings
from almanac.net.errors import FetchError, FetchTimeout
from almanac.net.fetcher import Fetcher
from almanac.net.service_client import (
    FIRST_PAUSE_SECONDS,
    ServiceClient,
    ServiceResponse,
    ServiceUnavailable,
)
from almanac.search.engine import SearchEngine

DROPPED_HEADER = "x-dropped-by-min-score"  # response header of our endpoint: the number of results below the threshold
MAX_RESPONSE_BYTES = 8_000_000
MAX_REMOTE_RESULTS = 500
MAX_RANK_FUSION_SCORE = 1 / 61  # the best score of a real WeKnora without a reranker

Post = Callable[[bytes, dict[str, str]], Awaitable[ServiceResponse]]
SearchFunction = Callable[[Call], Awaitable[GradedResults]]
RunAsKeyOwner = Callable[[WeKnoraQuery, SearchFunction], Awaitable[GradedResults]]


class LocalBackend:
    """Searches this server as the owner of the API key. `run_as_key_owner` checks the key and records the search."""

    def __init__(self, engine: SearchEngine, context: WeKnoraContext, run_as_key_owner: RunAsKeyOwner) -> None:
        self._engine = engine
        self._context = context
        self._run_as_key_owner = run_as_key_owner

    async def find(self, query: WeKnoraQuery) -> WeKnoraResults:
        """Search in this process. Errors become SearchRefused, with the status that our endpoint would return."""
        try:
            response = await self._run_as_key_owner(query, lambda call: self._search(call, query))
        except AlmanacError as error:
            raise SearchRefused(error.status, error.text) from None
        results = tuple(of_document(hit) for hit in response.hits)
        return WeKnoraResults(results, response.total_count, response.below_min_score, response.notes)

    async def _search(self, call: Call, query: WeKnoraQuery) -> GradedResults:
        fields: dict[str, Any] = {
            **query.model_dump(exclude={"query"}),
            "question": query.query,
            "knowledge_base_ids": list(self._context.kb_ids),
            "knowledge_ids": list(self._context.document_ids),
        }
        try:
            arguments = WeKnoraSearchArguments.model_validate(fields)
        except ValidationError as error:
            raise BadRequest(describe_problems(error, "is not taken here")) from None
        return await knowledge_search.search_anywhere(call, self._engine, arguments)


class RemoteBackend:
    """Searches a remote endpoint."""

    def __init__(self, context: WeKnoraContext, post: Post, *, highlight: bool = False) -> None:
        self._context = context
        self._post = post
        key = context.api_key
        self._extra_fields: dict[str, Any] = {"highlight": True} if highlight else {}
        self._headers = {"authorization": f"Bearer {key}", "content-type": "application/json"}
        if context.is_real_weknora:
            self._headers["x-api-key"] = key  # WeKnora reads user tokens from authorization

    async def find(self, query: WeKnoraQuery) -> WeKnoraResults:
        """Send the query to the endpoint and read its response."""
        body: dict[str, Any] = {
            "question": query.query,
            "knowledge_base_ids": list(self._context.kb_ids),
            "search_mode": query.search_mode,
            "top_k": query.top_k,
            "min_score": query.min_score,
            "rerank": query.rerank,
            **self._extra_fields,
        }
        if self._context.is_real_weknora:
            body["query"] = query.query
        return _read_response(await self._post(orjson.dumps(body), self._headers), query, self._context.without_key)


@asynccontextmanager
async def open_trusted_backend(context: WeKnoraContext, settings: Settings) -> AsyncGenerator[SearchBackend]:
    """A backend for an address that a developer configured. It may be an internal one; connections are reused."""
    client = ServiceClient(context.weknora_base_url, settings.weknora_timeout_seconds, tries=settings.weknora_tries)

    async def post(content: bytes, headers: dict[str, str]) -> ServiceResponse:
        try:
            return await client.request("POST", PATH, content=content, headers=headers)
        except ServiceUnavailable:
            raise ServiceUnavailable("The knowledge bases cannot be reached, or do not answer in time.") from None

    try:
        backend = RemoteBackend(context, post, highlight=settings.weknora_highlight)
        yield CachedBackend(backend, settings.weknora_cache_seconds, settings.weknora_cache_entries)
    finally:
        await client.close()


def untrusted_backend(context: WeKnoraContext, settings: Settings, fetcher: Fetcher) -> SearchBackend:
    """A backend for an address from a request. The fetcher refuses addresses that are not public."""
    url = f"{context.weknora_base_url.rstrip('/')}{PATH}"
    policy = RetryPolicy(settings.weknora_tries, FIRST_PAUSE_SECONDS)

    async def post(content: bytes, headers: dict[str, str]) -> ServiceResponse:
        async def attempt() -> ServiceResponse | FetchError:
            try:
                found = await fetcher.send("POST", url, content=content, headers=headers, max_bytes=MAX_RESPONSE_BYTES)
            except FetchError as error:
                return error
            return ServiceResponse(found.status, found.body, found.headers)

        try:
            async with asyncio.timeout(settings.weknora_timeout_seconds):
                outcome = await retry(attempt, policy, _requested_delay)
        except TimeoutError:
            raise FetchTimeout() from None
        if isinstance(outcome, FetchError):
            raise outcome
        return outcome

    return RemoteBackend(context, post)


def _requested_delay(outcome: ServiceResponse | FetchError) -> float | None:
    is_temporary = outcome.retryable if isinstance(outcome, FetchError) else outcome.status in TEMPORARY_STATUSES
    return 0.0 if is_temporary else None


def _read_response(response: ServiceResponse, query: WeKnoraQuery, hide_key: HideKey) -> WeKnoraResults:
    """The results in the response of either kind of endpoint.

    An endpoint may echo the key anywhere. It is replaced before a text is cut, because a cut key would not be found.
    """
    try:
        value = orjson.loads(response.body)
    except orjson.JSONDecodeError:
        value = None
    body = cast("dict[str, Any]", value) if isinstance(value, dict) else {}
    if not 200 <= response.status < 300 or body.get("success") is False:
        raise refusal(response.status, value, response.body.decode("utf-8", "replace"), hide_key)
    is_real_weknora = "results" not in body and "data" in body
    entries: Any = body.get("data" if is_real_weknora else "results") or []
    if not body or not isinstance(entries, list):
        raise ServiceUnavailable(
            "The server at the address of the knowledge bases does not implement WeKnora's REST interface."
        )
    listed = cast("list[Any]", entries)[:MAX_REMOTE_RESULTS]
    results = [from_endpoint(cast("dict[str, Any]", entry), hide_key) for entry in listed if isinstance(entry, dict)]
    if is_real_weknora:
        return _apply_threshold(results, query)
    return _with_counts(results, query, response, body.get("total_count"))


def _with_counts(
    results: list[WeKnoraResult], query: WeKnoraQuery, response: ServiceResponse, total_count: Any
) -> WeKnoraResults:
    total = total_count if type(total_count) is int and total_count else len(results)
    results = [result if result.score <= 1 else replace(result, score=0.0) for result in results[: query.top_k]]
    dropped = response.headers.get(DROPPED_HEADER, "")
    if dropped.isascii() and dropped.isdigit():
        return WeKnoraResults(tuple(results), total, int(dropped[:12]))
    # Without the header: fewer results than matches, although more were requested, means that the rest was dropped.
    return WeKnoraResults(tuple(results), total, total - len(results) if len(results) < min(query.top_k, total) else 0)


def _apply_threshold(results: list[WeKnoraResult], query: WeKnoraQuery) -> WeKnoraResults:
    """Scale the scores of a real WeKnora to 0..1 and apply `min_score` and `top_k`, which it does not support."""
    highest = max((result.score for result in results), default=0.0)
    # Scores are rank fusion sums, far below 1 and sometimes rounded up, or keyword scores without an upper bound.
    is_rank_fusion = 0 < highest <= MAX_RANK_FUSION_SCORE * 1.01
    scale = MAX_RANK_FUSION_SCORE if is_rank_fusion else max(highest, 1.0)
    results = [replace(result, score=min(1.0, result.score / scale)) for result in results]
    good = [result for result in results if result.score >= query.min_score]
    return WeKnoraResults(tuple(good[: query.top_k]), len(good), len(results) - len(good))
