"""The runtime: where a query is answered. By our own search or, where an operator says so, by a knowledge runtime.

`RAG_RUNTIME_MODE` is `local`, `remote`, or a JSON map of operations to one of the two. This server asks the runtime
queries and nothing else: the modes of other operations are read, so that one value can serve several programs, and
change nothing here. A runtime that cannot be reached, or says that it failed, is stood in for by our own search; one
that refuses a query is not.
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

OPERATIONS = ("default", "index", "query", "delete", "list_chunks")
MODES = ("local", "remote")
SECONDS = 30
CHARACTERS_PER_TOKEN = 4

_MOST_BYTES = 32_000_000
_log = structlog.get_logger("almanac.runtime")


class RuntimeFailed(AlmanacError):
    """The knowledge runtime did not answer the query."""

    code = "knowledge_runtime_failed"
    status = 502

    def __init__(self, reason: str, *, passes: bool) -> None:
        self.reason = reason
        self.can_fall_back = passes  # whether another may answer in its place
        super().__init__()


@dataclass(frozen=True, slots=True)
class RuntimeQuery:
    """What is looked for, in bases that the caller may read."""

    text: str
    base_ids: tuple[int, ...]
    limit: int


@dataclass(frozen=True, slots=True)
class RuntimeAnswer:
    """Records in the runtime's own form, the best first, and about how many tokens they are."""

    records: list[dict[str, Any]]
    tokens: int
    total: int | None = None  # as a runtime says it; None for as many as there are records


@dataclass(frozen=True, slots=True)
class Runtime:
    """A knowledge runtime at an address that an operator chose."""

    url: str
    fetcher: Fetcher
    token: str = field(default="", repr=False)

    async def ask(self, user_id: int, query: RuntimeQuery) -> RuntimeAnswer:
        """Its answer. It is told what is asked, where and by whom, and nothing of how we would search."""
        spec: dict[str, Any] = {
            "knowledge_base_ids": list(query.base_ids),
            "user_id": user_id,
            "query": query.text,
            "max_results": query.limit,
        }
        headers = {"content-type": "application/json", "authorization": f"Bearer {self.token}"}
        try:
            answer = await self.fetcher.send(
                "POST",
                f"{self.url}/internal/rag/query",
                content=orjson.dumps(spec),
                headers=headers if self.token else {"content-type": "application/json"},
                max_bytes=_MOST_BYTES,
            )
        except FetchError as error:
            raise RuntimeFailed(f"remote_transport_error: {error.code}", passes=True) from None
        if answer.status != 200:
            raise _failure(answer.status, answer.body)
        return _read(answer.body, query)


async def query(call: Call, search: SearchEngine, runtime: Runtime | None, asked: RuntimeQuery) -> RuntimeAnswer:
    """The answer of the runtime, or of our own search where there is none or it cannot answer."""
    if runtime is not None:
        try:
            return await runtime.ask(call.actor.id, asked)
        except RuntimeFailed as error:
            if not error.can_fall_back:
                _log.error("runtime_refused", reason=error.reason)
                raise
            _log.warning("runtime_unavailable", reason=error.reason)
    return await _search(call, search, asked)


def check(settings: Settings) -> str:
    """Where queries are answered; an error where that is not well said."""
    modes = _modes(settings.rag_runtime_mode)
    mode = modes.get("query", modes.get("default", "local"))
    if mode == "remote":
        try:
            read_url(settings.knowledge_runtime_url)
        except BadUrl:
            raise InvalidSetting(
                "rag_runtime_mode sends queries to a knowledge runtime, and knowledge_runtime_url is no address.",
                remedy="Set KNOWLEDGE_RUNTIME_URL, such as http://runtime.internal:8200.",
            ) from None
    return mode


@asynccontextmanager
async def open_runtime(settings: Settings) -> AsyncGenerator[Runtime | None]:
    """The runtime that queries go to; None where they stay here."""
    if check(settings) == "local":
        yield None
        return
    # An operator chose the address, so it may be inside; everything else of a fetch is guarded as ever.
    host = read_url(settings.knowledge_runtime_url).host
    async with Fetcher(FetchRules(allow=(host,), max_bytes=_MOST_BYTES, total_seconds=SECONDS)) as fetcher:
        yield Runtime(settings.knowledge_runtime_url.rstrip("/"), fetcher, settings.internal_service_token)


def _modes(text: str) -> dict[str, str]:
    if text in MODES:
        return {"default": text}
    try:
        given = orjson.loads(text)
    except orjson.JSONDecodeError:
        given = None
    if not isinstance(given, dict) or not all(
        key in OPERATIONS and value in MODES for key, value in cast("dict[str, Any]", given).items()
    ):
        raise InvalidSetting(
            "rag_runtime_mode is neither a mode nor a map of operations to modes.",
            remedy=f"The modes are: {', '.join(MODES)}. The operations are: {', '.join(OPERATIONS)}.",
        )
    return cast("dict[str, str]", given)


async def _search(call: Call, search: SearchEngine, asked: RuntimeQuery) -> RuntimeAnswer:
    # One search of all the bases: as many as are asked for of each, merged and cut, come to the same records.
    inquiry = SearchArguments(
        query=asked.text, bases=list(asked.base_ids), folders=[], documents=[], kinds=[], tags=[],
        limit=asked.limit, most_per_document=0,
    )  # fmt: skip
    found = await document_search.search_documents(call, search, inquiry)
    records = [_record(hit) for hit in found.hits]
    return RuntimeAnswer(records, sum(len(record["content"]) // CHARACTERS_PER_TOKEN for record in records))


def _record(hit: DocumentResult) -> dict[str, Any]:
    found = hit.found
    return {
        "content": found.text,
        "title": found.title,
        "score": found.score,
        "knowledge_base_id": hit.base_id,
        "document_id": hit.document_id,
    }


def _failure(status: int, body: bytes) -> RuntimeFailed:
    try:
        said = orjson.loads(body)
    except orjson.JSONDecodeError:
        said = None
    retryable = isinstance(said, dict) and cast("dict[str, Any]", said).get("retryable") is True
    return RuntimeFailed(f"status {status}", passes=retryable or status >= 500)


def _read(body: bytes, query: RuntimeQuery) -> RuntimeAnswer:
    """The records of an answer, as far as they are of bases that were asked about."""
    try:
        said = orjson.loads(body)
        records: list[dict[str, Any]] = [{**record} for record in said["records"]]
        tokens, total = said.get("total_estimated_tokens"), said.get("total")
    except (orjson.JSONDecodeError, TypeError, LookupError, AttributeError):
        raise RuntimeFailed("remote_transport_error: not an answer", passes=True) from None
    kept = [each for each in records if _is_sound(each, query.base_ids)][: query.limit]
    counted = sum(len(each["content"]) // CHARACTERS_PER_TOKEN for each in kept)
    is_whole = len(kept) == len(records)  # otherwise a count would tell of what is withheld
    return RuntimeAnswer(
        kept,
        tokens if type(tokens) is int and is_whole else counted,
        total if type(total) is int and total >= 0 and is_whole else None,
    )


def _is_sound(record: dict[str, Any], base_ids: Sequence[int]) -> bool:
    score, base_id = record.get("score"), record.get("knowledge_base_id")
    return (
        isinstance(record.setdefault("content", ""), str)
        and isinstance(record.setdefault("title", ""), str)
        and (score is None or type(score) in (int, float))
        and (base_id is None or base_id in base_ids)
    )
