"""Answers queries of the external surface: with our own search, or with the knowledge runtime of an operator.

`RAG_RUNTIME_MODE` is `local`, `remote`, or a JSON map of operations to one of the two. This server sends only queries
to the runtime. The modes of other operations are accepted, so that several programs can share one value, but they have
no effect here. If the runtime cannot be reached or reports a failure, our own search answers instead. If the runtime
refuses a query, the caller gets an error.
"""

from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, cast

import orjson
import structlog

from almanac.core.call import Call
from almanac.core.errors import AlmanacError
from almanac.core.settings import InvalidSetting, Settings
from almanac.knowledge import document_search
from almanac.knowledge.document_search import DocumentResult, SearchArguments
from almanac.net.errors import BadUrl, FetchError
from almanac.net.fetcher import Fetcher, FetchRules
from almanac.net.url import read_url
from almanac.search.engine import SearchEngine

RUNTIME_OPERATIONS = ("default", "index", "query", "delete", "list_chunks")
RUNTIME_MODES = ("local", "remote")
TIMEOUT_SECONDS = 30
CHARS_PER_TOKEN = 4  # an estimate

_MAX_ANSWER_BYTES = 32_000_000
_log = structlog.get_logger("almanac.runtime")


class RuntimeFailed(AlmanacError):
    """The knowledge runtime did not answer the query."""

    code = "knowledge_runtime_failed"
    status = 502

    def __init__(self, reason: str, *, can_fall_back: bool) -> None:
        self.reason = reason
        self.can_fall_back = can_fall_back  # whether our own search may answer instead
        super().__init__()


@dataclass(frozen=True, slots=True)
class RuntimeQuery:
    """A query, and the bases to search, which the caller may read."""

    text: str
    base_ids: tuple[int, ...]
    limit: int


@dataclass(frozen=True, slots=True)
class RuntimeAnswer:
    """Records in the format of the runtime, best first, with an estimate of their tokens."""

    records: list[dict[str, Any]]
    tokens: int
    total: int | None = None  # from the runtime; None means the number of records
    notes: tuple[str, ...] = ()  # of our own search


@dataclass(frozen=True, slots=True)
class Runtime:
    """A knowledge runtime at a URL that an operator configured."""

    url: str
    fetcher: Fetcher
    token: str = field(default="", repr=False)

    async def ask(self, user_id: int, query: RuntimeQuery) -> RuntimeAnswer:
        """Send a query with its bases and the user. The runtime gets none of our search settings."""
        body: dict[str, Any] = {
            "knowledge_base_ids": list(query.base_ids),
            "user_id": user_id,
            "query": query.text,
            "max_results": query.limit,
        }
        authorization = {"authorization": f"Bearer {self.token}"} if self.token else {}
        try:
            answer = await self.fetcher.send(
                "POST",
                f"{self.url}/internal/rag/query",
                content=orjson.dumps(body),
                headers={"content-type": "application/json", **authorization},
                max_bytes=_MAX_ANSWER_BYTES,
            )
        except FetchError as error:
            raise RuntimeFailed(f"remote_transport_error: {error.code}", can_fall_back=True) from None
        if answer.status != 200:
            raise _failure(answer.status, answer.body)
        return _parse_answer(answer.body, query)


async def query(call: Call, search: SearchEngine, runtime: Runtime | None, query: RuntimeQuery) -> RuntimeAnswer:
    """The answer of the runtime. Our own search answers if there is no runtime or it cannot answer."""
    if runtime is not None:
        try:
            return await runtime.ask(call.actor.id, query)
        except RuntimeFailed as error:
            if not error.can_fall_back:
                _log.error("runtime_refused", reason=error.reason)
                raise
            _log.warning("runtime_unavailable", reason=error.reason)
    return await _search(call, search, query)


def query_mode(settings: Settings) -> str:
    """The mode of queries: `local` or `remote`. InvalidSetting if the settings make no sense."""
    modes = _modes(settings.rag_runtime_mode)
    mode = modes.get("query", modes.get("default", "local"))
    if mode == "remote":
        try:
            read_url(settings.knowledge_runtime_url)
        except BadUrl:
            raise InvalidSetting(
                "rag_runtime_mode sends queries to a knowledge runtime, but knowledge_runtime_url is not a URL.",
                remedy="Set KNOWLEDGE_RUNTIME_URL, such as http://runtime.internal:8200.",
            ) from None
    return mode


@asynccontextmanager
async def open_runtime(settings: Settings) -> AsyncGenerator[Runtime | None]:
    """The runtime for queries, or None if our own search answers them."""
    if query_mode(settings) == "local":
        yield None
        return
    # The host may be internal, because an operator configured it. All other checks of the fetcher apply.
    host = read_url(settings.knowledge_runtime_url).host
    async with Fetcher(
        FetchRules(allow=(host,), max_bytes=_MAX_ANSWER_BYTES, total_seconds=TIMEOUT_SECONDS)
    ) as fetcher:
        yield Runtime(settings.knowledge_runtime_url.rstrip("/"), fetcher, settings.internal_service_token)


def _modes(text: str) -> dict[str, str]:
    if text in RUNTIME_MODES:
        return {"default": text}
    try:
        modes = orjson.loads(text)
    except orjson.JSONDecodeError:
        modes = None
    if not isinstance(modes, dict) or not all(
        key in RUNTIME_OPERATIONS and value in RUNTIME_MODES for key, value in cast("dict[str, Any]", modes).items()
    ):
        raise InvalidSetting(
            "rag_runtime_mode is neither a mode nor a map of operations to modes.",
            remedy=f"The modes are: {', '.join(RUNTIME_MODES)}. The operations are: {', '.join(RUNTIME_OPERATIONS)}.",
        )
    return cast("dict[str, str]", modes)


async def _search(call: Call, search: SearchEngine, query: RuntimeQuery) -> RuntimeAnswer:
    # One search of all bases gives the same records as one search of each base, merged and cut to the limit.
    arguments = SearchArguments(
        query=query.text, base_ids=list(query.base_ids), folder_ids=[], document_ids=[], kinds=[], tags=[],
        limit=query.limit, most_per_document=0,
    )  # fmt: skip
    results = await document_search.search_documents(call, search, arguments)
    records = [_record(result) for result in results.hits]
    return RuntimeAnswer(records, _count_tokens(records), notes=results.notes)


def _record(result: DocumentResult) -> dict[str, Any]:
    passage = result.found
    return {
        "content": passage.text,
        "title": passage.title,
        "score": passage.score,
        "knowledge_base_id": result.base_id,
        "document_id": result.document_id,
    }


def _count_tokens(records: Sequence[dict[str, Any]]) -> int:
    return sum(len(record["content"]) // CHARS_PER_TOKEN for record in records)


def _failure(status: int, body: bytes) -> RuntimeFailed:
    try:
        answer = orjson.loads(body)
    except orjson.JSONDecodeError:
        answer = None
    is_retryable = isinstance(answer, dict) and cast("dict[str, Any]", answer).get("retryable") is True
    return RuntimeFailed(f"status {status}", can_fall_back=is_retryable or status >= 500)


def _parse_answer(body: bytes, query: RuntimeQuery) -> RuntimeAnswer:
    """The valid records of an answer. Records of bases outside the query are left out."""
    try:
        answer = orjson.loads(body)
        records: list[dict[str, Any]] = [{**record} for record in answer["records"]]
        tokens, total = answer.get("total_estimated_tokens"), answer.get("total")
    except (orjson.JSONDecodeError, TypeError, LookupError, AttributeError):
        raise RuntimeFailed("remote_transport_error: not an answer", can_fall_back=True) from None
    kept = [record for record in records if _is_valid(record, query.base_ids)][: query.limit]
    is_complete = len(kept) == len(records)  # otherwise the counts of the runtime would reveal the omitted records
    return RuntimeAnswer(
        kept,
        tokens if type(tokens) is int and is_complete else _count_tokens(kept),
        total if type(total) is int and total >= 0 and is_complete else None,
    )


def _is_valid(record: dict[str, Any], base_ids: Sequence[int]) -> bool:
    score, base_id = record.get("score"), record.get("knowledge_base_id")
    return (
        isinstance(record.setdefault("content", ""), str)
        and isinstance(record.setdefault("title", ""), str)
        and (score is None or type(score) in (int, float))
        and (base_id is None or base_id in base_ids)
    )
