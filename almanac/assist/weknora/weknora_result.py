"""A search result as WeKnora's clients know it: from a document of this server or from a remote endpoint, and in the
forms of both kinds of endpoints (see `backends`)."""

import hashlib
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, cast

from almanac.knowledge.document_search import DocumentResult

MAX_CONTENT_CHARS, MAX_FIELD_CHARS, MAX_HIGHLIGHTS = 20_000, 500, 100  # more from a remote endpoint is cut

# The match types of a real WeKnora, which returns their positions in this list.
MATCH_TYPES = ("vector", "keyword", "nearby", "history", "parent", "relation", "graph", "web", "direct", "data")
_MATCH_TYPE_NAMES = frozenset((*MATCH_TYPES, "hybrid"))

HideKey = Callable[[str], str]  # replaces the key in a text


@dataclass(frozen=True, slots=True)
class WeKnoraResult:
    """A passage of a document that matches a query."""

    id: str
    content: str
    score: float
    knowledge_id: str
    title: str
    filename: str
    match_type: str
    highlights: tuple[tuple[int, int], ...] = ()
    base_id: int | None = None  # None for a result of another server


def of_document(hit: DocumentResult) -> WeKnoraResult:
    """A result of this server's search."""
    passage = hit.found
    leg = {"words": "keyword", "vectors": "vector"}.get("".join(passage.legs))
    return WeKnoraResult(
        id=str(passage.passage_id),
        content=passage.text,
        score=passage.score,
        knowledge_id=str(hit.document_id),
        title=passage.title,
        filename=hit.name,
        match_type=leg or "hybrid",
        highlights=passage.highlights,
        base_id=hit.base_id,
    )


def documented_form(hit: DocumentResult, *, highlight: bool) -> dict[str, Any]:
    """A result in the form of WeKnora's document."""
    result = of_document(hit)
    fields: dict[str, Any] = {
        "id": result.id,
        "content": result.content,
        "score": result.score,
        "knowledge_id": result.knowledge_id,
        "knowledge_title": result.title,
        "knowledge_filename": result.filename,
        "match_type": result.match_type,
    }
    return fields | {"highlights": [list(span) for span in result.highlights]} if highlight else fields


def server_form(hit: DocumentResult) -> dict[str, Any]:
    """A result in the form of a real WeKnora."""
    passage = hit.found
    return {
        **documented_form(hit, highlight=False),
        "match_type": MATCH_TYPES.index("vector" if "vectors" in passage.legs else "keyword"),
        "chunk_type": "text",
        "start_at": passage.start,
        "end_at": passage.end,
        "matched_content": passage.text,
        "metadata": {"page": str(passage.page)} if passage.page is not None else {},
        "knowledge_base_id": str(hit.base_id),
        "knowledge_source": hit.source_url or "",
    }


def from_endpoint(entry: dict[str, Any], hide_key: HideKey) -> WeKnoraResult:
    """A result that a remote endpoint sent, in either form."""
    match: Any = entry.get("match_type")
    name: Any = MATCH_TYPES[match] if type(match) is int and 0 <= match < len(MATCH_TYPES) else match
    content = _text(entry, "content", hide_key, MAX_CONTENT_CHARS)
    knowledge_id = _text(entry, "knowledge_id", hide_key)
    return WeKnoraResult(
        id=_text(entry, "id", hide_key) or f"{knowledge_id}-{hashlib.sha256(content.encode()).hexdigest()[:16]}",
        content=content,
        score=_score(entry.get("score")),
        knowledge_id=knowledge_id,
        title=_text(entry, "knowledge_title", hide_key),
        filename=_text(entry, "knowledge_filename", hide_key),
        match_type=name if isinstance(name, str) and name in _MATCH_TYPE_NAMES else "",
        highlights=_highlights(entry.get("highlights"), len(content)),
    )


def _score(value: Any) -> float:
    is_number = type(value) in (int, float) and math.isfinite(value)
    return max(0.0, float(value)) if is_number else 0.0


def _text(entry: dict[str, Any], name: str, hide_key: HideKey, max_chars: int = MAX_FIELD_CHARS) -> str:
    value: Any = entry.get(name)
    text = value if isinstance(value, str) else str(value) if type(value) is int else ""
    return hide_key(text.replace("\0", ""))[:max_chars]  # PostgreSQL cannot store NUL


def _highlights(value: Any, length: int) -> tuple[tuple[int, int], ...]:
    """The first valid spans of a content with this length. A span that overlaps the previous one is left out."""
    spans: list[tuple[int, int]] = []
    for entry in cast("list[Any]", value) if isinstance(value, list) else []:
        pair = cast("list[Any]", entry) if isinstance(entry, list) else []
        if len(pair) == 2 and all(type(offset) is int for offset in pair):
            start, end = pair
            if (spans[-1][1] if spans else 0) <= start < end <= length:
                spans.append((start, end))
        if len(spans) == MAX_HIGHLIGHTS:
            break
    return tuple(spans)
