"""What is asked of search, and what it answers."""

from dataclasses import dataclass, field
from typing import Any

MODES = ("hybrid", "vector", "keyword")


@dataclass(frozen=True, slots=True)
class SourceFilter:
    """What a source must be like for its passages to be found. What is left empty does not matter."""

    kinds: tuple[str, ...] = ()
    objects: tuple[tuple[str, str], ...] = ()  # (kind, id): only these things
    folders: tuple[int, ...] = ()  # only things in one of these folders
    tags: tuple[str, ...] = ()  # things with all of these
    created_from: int | None = None
    created_until: int | None = None  # exclusive
    updated_from: int | None = None
    updated_until: int | None = None  # exclusive
    condition: dict[str, Any] | None = None  # on the metadata; see search/conditions.py
    excluded_objects: tuple[tuple[str, str], ...] = ()  # (kind, id): not these things
    media: tuple[str, ...] = ()  # media types, or what they begin with up to the stroke, as in image/


@dataclass(frozen=True, slots=True)
class SearchQuery:
    """One search. Whoever asks has made sure that the caller may see the collections."""

    text: str
    collections: tuple[str, ...]
    mode: str = "hybrid"
    filter: SourceFilter = SourceFilter()
    limit: int = 10
    offset: int = 0
    min_score: float = 0.0
    rerank: bool = True
    max_per_source: int = 3  # passages of one thing; 0 for as many as there are
    by_ranks: bool = False  # fused by the places in both legs, titles too; 1 is first in both, 0.5 first in one
    graded: bool = False  # scores are grades (see `rank.grade`) in place of probabilities
    ef_search: int | None = None  # how widely a graph of vectors is searched, where there is one
    explain: bool = False


@dataclass(frozen=True, slots=True)
class SearchResult:
    """One passage that answers, and where it stands."""

    passage_id: int
    kind: str  # of the thing it is in
    owner_id: str
    collection: str
    title: str
    text: str
    score: float  # how likely it answers, 0 to 1
    legs: tuple[str, ...]  # how it was found: words, vectors
    headings: tuple[str, ...]
    page: int | None
    boxes: tuple[tuple[int, float, float, float, float], ...]
    start: int  # in the thing's own text
    end: int
    hash: str  # of the text, to verify a citation by
    highlights: tuple[tuple[int, int], ...]  # in `text`


@dataclass(frozen=True, slots=True)
class SearchResponse:
    """What was found, the best first."""

    found: tuple[SearchResult, ...]
    notes: tuple[str, ...] = ()  # what the caller should know: vectors still being made, reranking failed
    has_more: bool = False
    timings: dict[str, float] = field(default_factory=dict[str, float])  # milliseconds by stage; when explained
    counts: dict[str, int] = field(default_factory=dict[str, int])  # passages before and after each stage; likewise
