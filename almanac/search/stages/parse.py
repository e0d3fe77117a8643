"""Parse: check a query, find its terms, translate its filter to SQL and choose the retrievers."""

from collections.abc import Mapping
from itertools import islice

from almanac.core.errors import BadRequest
from almanac.search.analysis import analyser
from almanac.search.filters import source_filter
from almanac.search.index.protocol import SearchScope
from almanac.search.query import MAX_QUERY_CHARS, MAX_RESULT_DEPTH, MODES, ParsedQuery, Retriever, SearchQuery

MAX_QUERY_TERMS = 256

_UNUSED_RETRIEVERS: Mapping[str, frozenset[Retriever]] = {
    "hybrid": frozenset(),
    "keyword": frozenset(("vector",)),
    "vector": frozenset(("keyword", "title", "common_words")),
}


def check(query: SearchQuery) -> None:
    """Raise BadRequest for an invalid query."""
    if not query.text.strip():
        raise BadRequest("The query is empty.", remedy="Describe the subject in a few words or a sentence.")
    if len(query.text) > MAX_QUERY_CHARS:
        raise BadRequest(
            f"The query is longer than {MAX_QUERY_CHARS} characters.", remedy="Search for one subject at a time."
        )
    if query.mode not in MODES:
        raise BadRequest(f"There is no mode {query.mode!r}.", remedy=f"The modes are: {', '.join(MODES)}.")
    if query.limit < 1 or query.offset < 0 or query.offset + query.limit > MAX_RESULT_DEPTH:
        raise BadRequest(
            f"A search returns only the best {MAX_RESULT_DEPTH} passages.",
            remedy=f"Keep the sum of offset and limit within {MAX_RESULT_DEPTH}, or narrow the search.",
        )
    if not 0 <= query.min_score <= 1:
        raise BadRequest("'min_score' must be between 0 and 1.")


def parse(query: SearchQuery) -> ParsedQuery:
    """The terms, the scope and the retrievers of a query."""
    words = tuple(terms for _, _, terms in analyser.words_of(query.text))
    terms = tuple(islice(dict.fromkeys(term for word in words for term in word), MAX_QUERY_TERMS))
    collections = tuple(sorted(set(query.collections)))
    scope = SearchScope(collections, *source_filter.resolve(query.filter, collections=collections))
    # The index lacks common words. They are searched only in a query that consists of them.
    unused: set[Retriever] = {*_UNUSED_RETRIEVERS[query.mode], "common_words" if terms else "keyword"}
    hashes = tuple(map(analyser.term_hash, terms))
    return ParsedQuery(query, words, frozenset(terms), hashes, scope, query.profile.retrievers - unused)
