"""The values of a search: the query with its filter and profile, the parsed query, the results and the response."""

from dataclasses import dataclass, field, replace
from typing import Any, Literal

from almanac.search.index.protocol import SearchScope

MODES = ("hybrid", "vector", "keyword")
MAX_QUERY_CHARS = 4_000
MAX_RESULT_DEPTH = 500  # the last result that a page can contain

Retriever = Literal["keyword", "vector", "title", "common_words"]


@dataclass(frozen=True, slots=True)
class SourceFilter:
    """The conditions that a source must meet. An empty field is no condition."""

    kinds: tuple[str, ...] = ()
    objects: tuple[tuple[str, str], ...] = ()  # (kind, object id)
    folders: tuple[int, ...] = ()
    tags: tuple[str, ...] = ()  # a source must have all of them
    created_from: int | None = None
    created_until: int | None = None  # exclusive
    updated_from: int | None = None
    updated_until: int | None = None  # exclusive
    condition: dict[str, Any] | None = None  # on the metadata; see search/filters/conditions.py
    number_condition: dict[str, Any] | None = None  # must hold too; apart, because a condition has a maximum depth
    excluded_objects: tuple[tuple[str, str], ...] = ()  # (kind, object id)
    media: tuple[str, ...] = ()  # media types, or their beginnings up to the slash, such as image/


@dataclass(frozen=True, slots=True)
class SearchProfile:
    """The retrievers of a search and the meaning of its scores.

    A `rank` score depends only on the ranks of a source in the keyword and vector hits: 1 for the first in both, 0.5
    for the first in one.
    """

    retrievers: frozenset[Retriever]
    score: Literal["probability", "grade", "rank"]
    counts_missing_vectors: bool = True  # off where new sources arrive all the time: counting is slow among millions


DOCUMENTS = SearchProfile(frozenset(("keyword", "vector")), "probability")
GRADED_DOCUMENTS = replace(DOCUMENTS, score="grade")
NOTES = SearchProfile(frozenset(("keyword", "vector", "title", "common_words")), "rank", counts_missing_vectors=False)


@dataclass(frozen=True, slots=True)
class SearchQuery:
    """One search. The caller must be allowed to read the collections: search does not check permissions."""

    text: str
    collections: tuple[str, ...]
    mode: str = "hybrid"
    filter: SourceFilter = SourceFilter()
    limit: int = 10
    offset: int = 0
    min_score: float = 0.0
    rerank: bool = True
    max_per_source: int = 3  # 0 for no limit
    profile: SearchProfile = DOCUMENTS
    ef_search: int | None = None  # the candidate list size of a vector graph
    explain: bool = False


@dataclass(frozen=True, slots=True)
class ParsedQuery:
    """A query with its terms, its search scope and the retrievers to run."""

    query: SearchQuery
    words: tuple[tuple[str, ...], ...]  # the terms of each word, in the order of the text
    terms: frozenset[str]
    hashes: tuple[int, ...]  # of the terms
    scope: SearchScope
    retrievers: frozenset[Retriever]


@dataclass(frozen=True, slots=True)
class SearchResult:
    """A passage that matches a query."""

    passage_id: int
    kind: str  # of the object that contains the passage
    object_id: str
    collection: str
    title: str
    text: str
    score: float  # 0 to 1; the profile defines its meaning
    legs: tuple[str, ...]  # the retrievers that found it: words, vectors
    headings: tuple[str, ...]
    page: int | None
    boxes: tuple[tuple[int, float, float, float, float], ...]
    start: int  # in the text of the object
    end: int
    hash: str  # of the text, to verify a citation
    highlights: tuple[tuple[int, int], ...]  # in `text`


@dataclass(frozen=True, slots=True)
class SearchResponse:
    """The results of a page, best first."""

    results: tuple[SearchResult, ...]
    notes: tuple[str, ...] = ()  # limits of this response, such as passages without vectors
    has_more: bool = False
    timings: dict[str, float] = field(default_factory=dict[str, float])  # milliseconds by stage, if requested
    counts: dict[str, int] = field(default_factory=dict[str, int])  # passages after each stage, if requested
