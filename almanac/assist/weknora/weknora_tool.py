"""The tool `weknora_search`: a search of WeKnora's knowledge bases, and what a model is told of it, in Markdown.

Where it searches, and with whose key, was settled before a model ever sees the tool: neither is among its arguments,
and whatever is said of a search, also of one that failed, is without the key.
"""

import re
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, Protocol, cast

from pydantic import Field, ValidationError

from almanac.assist.weknora.knowledge_search import DEFAULT_TOP_K, MIN_SCORE, MinScore, Mode, TopK
from almanac.core.arguments import Arguments, describe_problems
from almanac.core.errors import AlmanacError

TOOL = "weknora_search"
PATH = "/api/v1/knowledge-search"
MAX_TOOL_QUERY_CHARS = 2000  # characters of a query
EXCERPT = 500  # characters of a piece that are shown
FEW = 3  # pieces below which suggestions are made
HIDDEN = "[key]"

_LONGEST_REFUSAL = 500  # characters of what an endpoint says is wrong
_SPACE = re.compile(r"\s+")
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


Hide = Callable[[str], str]  # a key that stands in a text


@dataclass(frozen=True, slots=True)
class WeKnoraContext:
    """Where to search, and as whom. The key is shown nowhere."""

    api_key: str = field(repr=False)
    kb_ids: Sequence[str | int]
    weknora_base_url: str = ""

    def without_key(self, text: str) -> str:
        """A text in which the key, should it stand there, does not."""
        return text.replace(self.api_key, HIDDEN) if self.api_key else text


class WeKnoraQuery(Arguments):
    """Arguments of the tool."""

    query: Annotated[str, Field(min_length=1, max_length=MAX_TOOL_QUERY_CHARS)]
    search_mode: Mode = "hybrid"
    top_k: TopK = DEFAULT_TOP_K
    min_score: MinScore = MIN_SCORE
    rerank: bool = True


@dataclass(frozen=True, slots=True)
class WeKnoraResult:
    """A piece of a document that was found."""

    id: str
    content: str
    score: float
    knowledge_id: str
    title: str
    filename: str
    match_type: str
    highlights: tuple[tuple[int, int], ...] = ()


@dataclass(frozen=True, slots=True)
class WeKnoraResults:
    """What a search found, the best first."""

    pieces: tuple[WeKnoraResult, ...] = ()
    total: int = 0
    dropped: int = 0  # that matched, and were left out by the threshold or the reranker
    notes: tuple[str, ...] = ()


class SearchRefused(AlmanacError):
    """The knowledge bases did not answer the search."""

    code = "search_refused"
    status = 502

    def __init__(self, answered: int, reason: str) -> None:
        self.answered = answered  # the status they answered with
        super().__init__(f"{answered} - {reason}")


@dataclass(frozen=True, slots=True)
class ToolUseResult:
    """One use of the tool: what was asked and what came of it, or why nothing did."""

    query: WeKnoraQuery | None
    found: WeKnoraResults = WeKnoraResults()
    failure: str = ""
    marks: bool = False  # the words that were asked for, in bold, where it is known where they stand

    @property
    def suggestions(self) -> tuple[str, ...]:
        """What to try next, where little was found."""
        if self.failure or len(self.found.pieces) >= FEW:
            return ()
        return _FEW_FOUND if self.found.pieces else _NONE_FOUND

    def blocks(self, numbers: Mapping[str, int] | None = None) -> list[str]:
        """The texts a model reads; `numbers` of pieces by their ids, where several searches share them."""
        if self.failure or self.query is None:
            return [self.failure]
        told = [_summary(self.query, self.found)]
        if self.found.pieces:
            known = numbers or {}
            pieces = enumerate(self.found.pieces, 1)
            shown = (_piece(known.get(piece.id, at), piece, self.marks) for at, piece in pieces)
            told.append("### Matched Documents\n\n" + "".join(shown))
        if self.suggestions:
            lines = "".join(f"- {each}\n" for each in self.suggestions)
            told.append(f"\n### Suggestions for Better Results\n\n{lines}")
        return told

    @property
    def result(self) -> dict[str, Any]:
        """The result of the tool on the wire."""
        content = [{"type": "text", "text": text} for text in self.blocks()]
        return {"content": content, **({"isError": True} if self.failure else {})}


class SearchBackend(Protocol):
    """What answers searches: this server, or an endpoint elsewhere."""

    async def find(self, query: WeKnoraQuery) -> WeKnoraResults:
        """What was found. Refused where the source said no, another error where it could not be asked."""
        ...


class WeKnoraTool:
    """The tool, bound to a source and a context."""

    def __init__(self, source: SearchBackend, context: WeKnoraContext, *, marks: bool = False) -> None:
        self._source = source
        self._context = context
        self._marks = marks

    async def run(self, arguments: Mapping[str, Any]) -> ToolUseResult:
        """Search, whatever was asked: a failure is an outcome too."""
        try:
            query = WeKnoraQuery.model_validate(dict(arguments))
        except ValidationError as error:
            return ToolUseResult(
                None, failure=f"Search error: {describe_problems(error, 'is not an argument of this tool')}"
            )
        return await self.ask(query)

    async def ask(self, query: WeKnoraQuery) -> ToolUseResult:
        """Search by arguments that are known to be good."""
        try:
            return ToolUseResult(query, await self._source.find(query), marks=self._marks)
        except SearchRefused as refusal:
            return ToolUseResult(query, failure=self._context.without_key(f"Search failed: {refusal.message}"))
        except AlmanacError as error:
            return ToolUseResult(query, failure=self._context.without_key(f"Search error: {error.text}"))


class CachedBackend:
    """Searches of the last moments, with what they found."""

    def __init__(self, source: SearchBackend, seconds: float, most: int) -> None:
        self._source = source
        self._seconds = seconds
        self._most = most
        self._known: OrderedDict[WeKnoraQuery, tuple[float, WeKnoraResults]] = OrderedDict()

    async def find(self, query: WeKnoraQuery) -> WeKnoraResults:
        """What was found, a moment ago or now."""
        until, found = self._known.get(query, (0.0, WeKnoraResults()))
        if until > time.monotonic():
            self._known.move_to_end(query)
            return found
        found = await self._source.find(query)
        if self._seconds and self._most:
            self._known[query] = (time.monotonic() + self._seconds, found)
            self._known.move_to_end(query)
            while len(self._known) > self._most:
                self._known.popitem(last=False)
        return found


def refusal(status: int, given: Mapping[str, Any], text: str, hide: Hide) -> SearchRefused:
    """What an endpoint that refused says of it, at whatever place such answers have it, or all of it as it stands."""
    error = given.get("error")
    inner = cast("dict[str, Any]", error).get("message") if isinstance(error, dict) else error
    said_so = (each for each in (inner, given.get("message"), given.get("detail")) if isinstance(each, str))
    reason = next((one_line(each) for each in said_so if each.strip()), text)
    shown = hide(reason.replace("\0", ""))[:_LONGEST_REFUSAL]
    return SearchRefused(status, shown if shown.strip() else "It gave no reason.")


def _summary(query: WeKnoraQuery, found: WeKnoraResults) -> str:
    lines = [
        f"**Query:** {query.query}",
        f"**Total Found:** {found.total}",
        f"**Returned:** {len(found.pieces)}",
        f"**Search Mode:** {query.search_mode}",
    ]
    if found.dropped:
        lines.append(f"**Left Out:** {found.dropped} below min_score {query.min_score:g} or dropped by reranking")
    lines += [f"**Note:** {note}" for note in found.notes]
    return "## Search Results\n\n" + "\n".join(lines) + "\n\n"


def _piece(number: int, piece: WeKnoraResult, marks: bool) -> str:
    more = "..." if len(piece.content) > EXCERPT else ""
    # Every line is quoted: a document must not look like a part of this answer that it is not.
    shown = _marked(piece) if marks else piece.content[:EXCERPT]
    quoted = f"{shown}{more}".replace("\r\n", "\n").replace("\r", "\n").replace("\n", "\n> ")
    return (
        f"#### [{number}] {one_line(piece.title) or 'Untitled'}\n"
        f"- **Score:** {piece.score * 100:.1f}%\n"
        f"- **Source:** {one_line(piece.filename) or 'Unknown'}\n"
        f"- **Match Type:** {piece.match_type or 'hybrid'}\n\n"
        f"> {quoted}\n\n"
    )


def _marked(piece: WeKnoraResult) -> str:
    """The excerpt, with the words that were asked for in bold."""
    text, parts, at = piece.content[:EXCERPT], list[str](), 0
    for start, end in piece.highlights:
        if at <= start < end <= len(text):
            parts += [text[at:start], "**", text[start:end], "**"]
            at = end
    return "".join((*parts, text[at:]))


def one_line(text: str) -> str:
    """A text without its line breaks: it must not look like more than the one thing it is."""
    return _SPACE.sub(" ", text).strip()
