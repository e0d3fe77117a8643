"""The tool `weknora_search`: searches WeKnora's knowledge bases and renders the results as Markdown for a model.

The endpoint and the API key are bound before a model sees the tool. They are not among its arguments, and no output of
the tool contains the key, not even an error message.
"""

import time
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, Protocol

import orjson
from pydantic import Field, ValidationError

from almanac.assist.weknora.knowledge_search import DEFAULT_TOP_K, MIN_SCORE, MinScore, Mode, TopK
from almanac.assist.weknora.weknora_result import HideKey, WeKnoraResult
from almanac.core.arguments import Arguments, describe_problems
from almanac.core.errors import AlmanacError
from almanac.core.text import one_line

TOOL = "weknora_search"
PATH = "/api/v1/knowledge-search"
MAX_TOOL_QUERY_CHARS = 2000
EXCERPT_CHARS = 500  # shown of a result's content
MIN_RESULTS = 3  # with fewer results, suggestions are added
HIDDEN_KEY = "[key]"  # replaces the key in texts

_MAX_REASON_CHARS = 500  # of an endpoint's error response
_NONE_FOUND = (
    "Try different keywords or rephrase your query",
    "Use more general terms if query is too specific",
    "Check if the topic exists in the knowledge bases",
)
_FEW_FOUND = (
    "Consider lowering min_score to get more results",
    "Try breaking the query into smaller parts",
    'Use "keyword" mode if looking for exact terms',
)


@dataclass(frozen=True, slots=True)
class WeKnoraContext:
    """The endpoint, knowledge bases and API key of a tool. The key is never shown."""

    api_key: str = field(repr=False)
    kb_ids: Sequence[str | int]
    weknora_base_url: str = ""
    is_real_weknora: bool = False  # the endpoint also needs `query` and the header X-API-Key
    document_ids: Sequence[str | int] = ()  # on this server only

    def without_key(self, text: str) -> str:
        """The text with the key replaced by a placeholder."""
        return text.replace(self.api_key, HIDDEN_KEY) if self.api_key else text


class WeKnoraQuery(Arguments):
    """Arguments of the tool."""

    query: Annotated[str, Field(min_length=1, max_length=MAX_TOOL_QUERY_CHARS)]
    search_mode: Mode = "hybrid"
    top_k: TopK = DEFAULT_TOP_K
    min_score: MinScore = MIN_SCORE
    rerank: bool = True


@dataclass(frozen=True, slots=True)
class WeKnoraResults:
    """The results of a search, best first."""

    items: tuple[WeKnoraResult, ...] = ()
    total: int = 0
    dropped: int = 0  # the number of matches below the threshold or dropped by the reranker
    notes: tuple[str, ...] = ()


class SearchRefused(AlmanacError):
    """The knowledge bases did not answer the search."""

    code = "search_refused"
    status = 502

    def __init__(self, upstream_status: int, reason: str) -> None:
        super().__init__(f"{upstream_status} - {reason}")


@dataclass(frozen=True, slots=True)
class ToolUseResult:
    """One use of the tool: the query and its results, or the reason for a failure."""

    query: WeKnoraQuery | None
    results: WeKnoraResults = WeKnoraResults()
    failure: str = ""
    marks: bool = False  # whether to print highlighted words in bold

    @property
    def suggestions(self) -> tuple[str, ...]:
        """Suggestions for a better search if there are few results."""
        if self.failure or len(self.results.items) >= MIN_RESULTS:
            return ()
        return _FEW_FOUND if self.results.items else _NONE_FOUND

    def blocks(self, numbers: Mapping[str, int] | None = None) -> list[str]:
        """The texts that a model reads. `numbers` gives results, by id, the numbers that several searches share."""
        if self.failure or self.query is None:
            return [self.failure]
        blocks = [_summary(self.query, self.results)]
        if self.results.items:
            shared = numbers or {}
            numbered = ((shared.get(result.id, rank), result) for rank, result in enumerate(self.results.items, 1))
            texts = (_render_result(number, result, self.marks) for number, result in numbered)
            blocks.append("### Matched Documents\n\n" + "".join(texts))
        if self.suggestions:
            lines = "".join(f"- {suggestion}\n" for suggestion in self.suggestions)
            blocks.append(f"\n### Suggestions for Better Results\n\n{lines}")
        return blocks

    @property
    def result(self) -> dict[str, Any]:
        """The result of the tool on the wire."""
        content = [{"type": "text", "text": text} for text in self.blocks()]
        return {"content": content, **({"isError": True} if self.failure else {})}


class SearchBackend(Protocol):
    """Runs searches: in this server, or at a remote endpoint."""

    async def find(self, query: WeKnoraQuery) -> WeKnoraResults:
        """Search. Raises SearchRefused if the backend rejects the query, another AlmanacError if it is unreachable."""
        ...


class WeKnoraTool:
    """The tool, bound to a backend and a context."""

    def __init__(self, backend: SearchBackend, context: WeKnoraContext, *, marks: bool = False) -> None:
        self._backend = backend
        self._context = context
        self._marks = marks

    async def run(self, arguments: Mapping[str, Any]) -> ToolUseResult:
        """Validate the arguments and search. A failure is returned as a result, not raised."""
        try:
            query = WeKnoraQuery.model_validate(dict(arguments))
        except ValidationError as error:
            return ToolUseResult(
                None, failure=f"Search error: {describe_problems(error, 'is not an argument of this tool')}"
            )
        try:
            return ToolUseResult(query, await self._backend.find(query), marks=self._marks)
        except SearchRefused as refusal:
            return ToolUseResult(query, failure=self._context.without_key(f"Search failed: {refusal.message}"))
        except AlmanacError as error:
            return ToolUseResult(query, failure=self._context.without_key(f"Search error: {error.text}"))


class CachedBackend:
    """Caches the results of another backend for some seconds."""

    def __init__(self, backend: SearchBackend, seconds: float, max_entries: int) -> None:
        self._backend = backend
        self._seconds = seconds
        self._max_entries = max_entries
        self._entries: OrderedDict[WeKnoraQuery, tuple[float, WeKnoraResults]] = OrderedDict()

    async def find(self, query: WeKnoraQuery) -> WeKnoraResults:
        """The cached or new results of a query."""
        expires_at, results = self._entries.get(query, (0.0, WeKnoraResults()))
        if expires_at > time.monotonic():
            self._entries.move_to_end(query)
            return results
        results = await self._backend.find(query)
        if self._seconds and self._max_entries:
            self._entries[query] = (time.monotonic() + self._seconds, results)
            self._entries.move_to_end(query)
            while len(self._entries) > self._max_entries:
                self._entries.popitem(last=False)
        return results


def refusal(status: int, value: Any, text: str, hide_key: HideKey) -> SearchRefused:
    """The error for an endpoint's error response: its text, of which `value` is the JSON value or None."""
    shown = hide_key(text.replace("\0", ""))
    # In the text, JSON escapes can hide the key, such as `\/` for `/`. Serialised again, the value has none of them.
    serialised = orjson.dumps(value).decode()
    if hide_key(serialised) != serialised:
        shown = hide_key(serialised)
    return SearchRefused(status, shown[:_MAX_REASON_CHARS] if shown.strip() else "It gave no reason.")


def _summary(query: WeKnoraQuery, results: WeKnoraResults) -> str:
    lines = [
        f"**Query:** {query.query}",
        f"**Total Found:** {results.total}",
        f"**Returned:** {len(results.items)}",
        f"**Search Mode:** {query.search_mode}",
    ]
    if results.dropped:
        lines.append(f"**Left Out:** {results.dropped} below min_score {query.min_score:g} or dropped by reranking")
    lines += [f"**Note:** {note}" for note in results.notes]
    return "## Search Results\n\n" + "\n".join(lines) + "\n\n"


def _render_result(number: int, result: WeKnoraResult, marks: bool) -> str:
    ellipsis = "..." if len(result.content) > EXCERPT_CHARS else ""
    excerpt = _marked_excerpt(result) if marks else result.content[:EXCERPT_CHARS]
    # Every line is quoted, so that the content of a document cannot imitate other parts of this answer.
    quoted = f"{excerpt}{ellipsis}".replace("\r\n", "\n").replace("\r", "\n").replace("\n", "\n> ")
    return (
        f"#### [{number}] {one_line(result.title) or 'Untitled'}\n"
        f"- **Score:** {result.score * 100:.1f}%\n"
        f"- **Source:** {one_line(result.filename) or 'Unknown'}\n"
        f"- **Match Type:** {result.match_type or 'hybrid'}\n\n"
        f"> {quoted}\n\n"
    )


def _marked_excerpt(result: WeKnoraResult) -> str:
    """The excerpt with the highlighted words in bold."""
    text, parts, position = result.content[:EXCERPT_CHARS], list[str](), 0
    for start, end in result.highlights:
        if position <= start < end <= len(text):
            parts += [text[position:start], "**", text[start:end], "**"]
            position = end
    return "".join((*parts, text[position:]))
