"""What answers searches for `weknora_search`: this server itself, or an endpoint that speaks WeKnora's REST.

An endpoint may be of the kind that WeKnora's document describes, as ours is, or a real WeKnora: the first takes
`question` and answers with `results`, the second takes `query` and answers with `data`. Both are sent what both know.
"""

import asyncio
import hashlib
import math
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any, cast

import orjson
from pydantic import ValidationError

from almanac.assist.weknora import knowledge_search
from almanac.assist.weknora.knowledge_search import Results, WeKnoraSearchArguments, match_type
from almanac.assist.weknora.weknora_tool import (
    PATH,
    CachedBackend,
    Hide,
    SearchBackend,
    SearchRefused,
    WeKnoraContext,
    WeKnoraQuery,
    WeKnoraResult,
    WeKnoraResults,
    refusal,
)
from almanac.core.arguments import describe_problems
from almanac.core.call import Call
from almanac.core.errors import AlmanacError, BadRequest
from almanac.core.settings import Settings
from almanac.knowledge.document_search import DocumentResult
from almanac.net.errors import FetchError, FetchFailed, FetchTimeout
from almanac.net.fetcher import Fetcher
from almanac.net.service_client import PASSING, PAUSE, ServiceClient, ServiceResponse, ServiceUnavailable
from almanac.search.engine import SearchEngine

DROPPED = "x-dropped-by-min-score"  # the header in which our endpoint tells what its answer leaves out
MOST_BYTES = 8_000_000
LONGEST_CONTENT, LONGEST_NAME = 20_000, 500  # characters that are taken of what an endpoint answers
MOST_PIECES, MOST_SPANS = 500, 100
BEST_RANK_SUM = 1 / 61  # the most that ranks joined reciprocally come to; without a reranker, WeKnora's scores are such

# WeKnora's numbers for how a piece was found.
MATCHES = ("vector", "keyword", "nearby", "history", "parent", "relation", "graph", "web", "direct", "data")
NAMED = frozenset((*MATCHES, "hybrid"))

Post = Callable[[bytes, dict[str, str]], Awaitable[ServiceResponse]]
Work = Callable[[Call], Awaitable[Results]]
Account = Callable[[WeKnoraQuery, Work], Awaitable[Results]]


class LocalBackend:
    """This server, searched as whoever holds the key: `account` finds out who that is, and accounts for the search."""

    def __init__(self, engine: SearchEngine, context: WeKnoraContext, account: Account) -> None:
        self._engine = engine
        self._context = context
        self._account = account

    async def find(self, query: WeKnoraQuery) -> WeKnoraResults:
        """What is found in this process; refusals as our endpoint would put them."""
        try:
            results = await self._account(query, lambda call: self._look(call, query))
        except AlmanacError as error:
            raise SearchRefused(error.status, error.text) from None
        pieces = tuple(_of_hit(hit) for hit in results.hits)
        return WeKnoraResults(pieces, results.total_count, results.below_min_score, results.notes)

    async def _look(self, call: Call, query: WeKnoraQuery) -> Results:
        given: dict[str, Any] = {**query.model_dump(exclude={"query"}), "question": query.query}
        try:
            asked = WeKnoraSearchArguments.model_validate({**given, "knowledge_base_ids": list(self._context.kb_ids)})
        except ValidationError as error:
            raise BadRequest(describe_problems(error, "is not taken here")) from None
        return await knowledge_search.look(call, self._engine, asked)


class RemoteBackend:
    """An endpoint elsewhere."""

    def __init__(self, context: WeKnoraContext, post: Post, *, highlight: bool = False) -> None:
        self._context = context
        self._post = post
        self._more: dict[str, Any] = {"highlight": True} if highlight else {}

    async def find(self, query: WeKnoraQuery) -> WeKnoraResults:
        """What the endpoint found."""
        body: dict[str, Any] = {
            "question": query.query,
            "query": query.query,
            "knowledge_base_ids": list(self._context.kb_ids),
            "search_mode": query.search_mode,
            "top_k": query.top_k,
            "min_score": query.min_score,
            "rerank": query.rerank,
            **self._more,
        }
        # WeKnora takes API keys in the one header and its users' tokens in the other.
        key = self._context.api_key
        headers = {"authorization": f"Bearer {key}", "x-api-key": key, "content-type": "application/json"}
        return _read(await self._post(orjson.dumps(body), headers), query, self._context.without_key)


@asynccontextmanager
async def open_trusted_backend(context: WeKnoraContext, settings: Settings) -> AsyncGenerator[SearchBackend]:
    """An endpoint whose address a developer chose: it may be inside, and its connections are kept."""
    peer = ServiceClient(context.weknora_base_url, settings.weknora_timeout_seconds, tries=settings.weknora_tries)

    async def post(content: bytes, headers: dict[str, str]) -> ServiceResponse:
        try:
            return await peer.request("POST", PATH, content=content, headers=headers)
        except ServiceUnavailable:
            raise ServiceUnavailable("The knowledge bases cannot be reached, or do not answer in time.") from None

    try:
        there = RemoteBackend(context, post, highlight=settings.weknora_highlight)
        yield CachedBackend(there, settings.weknora_cache_seconds, settings.weknora_cache_entries)
    finally:
        await peer.close()


def untrusted_backend(context: WeKnoraContext, settings: Settings, fetcher: Fetcher) -> SearchBackend:
    """An endpoint whose address came with a request: fetched from as from any stranger."""
    url = f"{context.weknora_base_url.rstrip('/')}{PATH}"

    async def post(content: bytes, headers: dict[str, str]) -> ServiceResponse:
        try:
            async with asyncio.timeout(settings.weknora_timeout_seconds):
                return await _persist(fetcher, url, content, headers, settings.weknora_tries)
        except TimeoutError:
            raise FetchTimeout() from None

    return RemoteBackend(context, post)


async def _persist(fetcher: Fetcher, url: str, content: bytes, headers: dict[str, str], tries: int) -> ServiceResponse:
    """The answer to a search, which changes nothing and so may be sent again where a failure may pass."""
    for attempt in range(tries):
        is_last = attempt + 1 == tries
        if attempt:
            await asyncio.sleep(PAUSE * 3 ** (attempt - 1))
        try:
            got = await fetcher.send("POST", url, content=content, headers=headers, max_bytes=MOST_BYTES)
        except FetchError as error:
            if is_last or not error.retryable:
                raise
            continue
        if is_last or got.status not in PASSING:
            return ServiceResponse(got.status, got.body, got.headers)
    raise FetchFailed()


def _of_hit(hit: DocumentResult) -> WeKnoraResult:
    found = hit.found
    return WeKnoraResult(
        id=str(found.passage_id),
        content=found.text,
        score=found.score,
        knowledge_id=str(hit.document_id),
        title=found.title,
        filename=hit.name,
        match_type=match_type(hit),
        highlights=found.highlights,
    )


def _read(answer: ServiceResponse, query: WeKnoraQuery, hide: Hide) -> WeKnoraResults:
    """What an endpoint's answer holds, of whichever kind it is. An endpoint may say the key that it was sent anywhere:
    it is hidden before anything is cut, lest a part of it be left."""
    try:
        said = orjson.loads(answer.body)
    except orjson.JSONDecodeError:
        said = None
    given = cast("dict[str, Any]", said) if isinstance(said, dict) else {}
    if not 200 <= answer.status < 300 or given.get("success") is False:
        raise refusal(answer.status, given, answer.body.decode("utf-8", "replace"), hide)
    is_real = "results" not in given and "data" in given
    listed: Any = given.get("data" if is_real else "results")
    if not given or not isinstance(listed or [], list):
        raise ServiceUnavailable("What answers at the address of the knowledge bases does not speak WeKnora's REST.")
    entries = cast("list[Any]", listed or [])
    pieces = [_piece(cast("dict[str, Any]", each), hide) for each in entries[:MOST_PIECES] if isinstance(each, dict)]
    return _cut(pieces, query) if is_real else _counted(pieces, query, answer, given.get("total_count"))


def _counted(pieces: list[WeKnoraResult], query: WeKnoraQuery, answer: ServiceResponse, total: Any) -> WeKnoraResults:
    count = total if type(total) is int and total else len(pieces)
    pieces = [piece if piece.score <= 1 else replace(piece, score=0.0) for piece in pieces[: query.top_k]]
    told = answer.headers.get(DROPPED, "")
    if told.isascii() and told.isdigit():
        return WeKnoraResults(tuple(pieces), count, int(told[:12]))
    # An endpoint that shows fewer than it found, though there was room for more, has dropped the rest.
    return WeKnoraResults(tuple(pieces), count, count - len(pieces) if len(pieces) < min(query.top_k, count) else 0)


def _cut(pieces: list[WeKnoraResult], query: WeKnoraQuery) -> WeKnoraResults:
    """What a real WeKnora answers, by the threshold and the number that it does not know."""
    most = max((piece.score for piece in pieces), default=0.0)
    # Sums of ranks are far below 1, some of them rounded up; what counts words alone has no bound.
    best = BEST_RANK_SUM if 0 < most <= BEST_RANK_SUM * 1.01 else max(most, 1.0)
    pieces = [replace(piece, score=min(1.0, piece.score / best)) for piece in pieces]
    good = [piece for piece in pieces if piece.score >= query.min_score]
    return WeKnoraResults(tuple(good[: query.top_k]), len(good), len(pieces) - len(good))


def _piece(given: dict[str, Any], hide: Hide) -> WeKnoraResult:
    match: Any = given.get("match_type")
    named: Any = MATCHES[match] if type(match) is int and 0 <= match < len(MATCHES) else match
    content, knowledge_id = _text(given, "content", hide, LONGEST_CONTENT), _text(given, "knowledge_id", hide)
    return WeKnoraResult(
        id=_text(given, "id", hide) or f"{knowledge_id}-{hashlib.sha256(content.encode()).hexdigest()[:16]}",
        content=content,
        score=_score(given.get("score")),
        knowledge_id=knowledge_id,
        title=_text(given, "knowledge_title", hide),
        filename=_text(given, "knowledge_filename", hide),
        match_type=named if isinstance(named, str) and named in NAMED else "",
        highlights=_spans(given.get("highlights"), len(content)),
    )


def _score(given: Any) -> float:
    is_number = type(given) in (int, float) and math.isfinite(given)
    return max(0.0, float(given)) if is_number else 0.0


def _text(given: dict[str, Any], name: str, hide: Hide, most: int = LONGEST_NAME) -> str:
    value: Any = given.get(name)
    text = value if isinstance(value, str) else str(value) if type(value) is int else ""
    return hide(text.replace("\0", ""))[:most]  # no database of ours would store a NUL


def _spans(given: Any, length: int) -> tuple[tuple[int, int], ...]:
    """The first spans of a content of some length, as far as they are pairs of places in it, one after another."""
    found: list[tuple[int, int]] = []
    for each in cast("list[Any]", given) if isinstance(given, list) else []:
        pair = cast("list[Any]", each) if isinstance(each, list) else []
        if len(pair) == 2 and all(type(place) is int for place in pair):
            start, end = pair
            if (found[-1][1] if found else 0) <= start < end <= length:
                found.append((start, end))
        if len(found) == MOST_SPANS:
            break
    return tuple(found)
