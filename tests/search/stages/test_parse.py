"""The retrievers that a query runs, by its mode, its profile and its words."""

import pytest

from almanac.search.query import DOCUMENTS, NOTES, SearchProfile, SearchQuery, SourceFilter
from almanac.search.stages.parse import MAX_QUERY_TERMS, parse


@pytest.mark.parametrize(
    ("profile", "mode", "text", "expected"),
    [
        (DOCUMENTS, "hybrid", "oil the pump", {"keyword", "vector"}),
        (DOCUMENTS, "keyword", "oil the pump", {"keyword"}),
        (DOCUMENTS, "vector", "oil the pump", {"vector"}),
        (DOCUMENTS, "hybrid", "who is it", {"vector"}),
        (DOCUMENTS, "keyword", "who is it", set[str]()),
        (NOTES, "hybrid", "oil the pump", {"keyword", "vector", "title"}),
        (NOTES, "keyword", "who is it", {"common_words", "title"}),
        (NOTES, "vector", "who is it", {"vector"}),
    ],
)
def test_mode_profile_and_words_choose_the_retrievers(profile: SearchProfile, mode: str, text: str, expected: set[str]):
    assert parse(SearchQuery(text, ("base:1",), mode=mode, profile=profile)).retrievers == expected


def test_the_scope_has_each_collection_once_and_the_filter():
    scope = parse(SearchQuery("pump", ("base:2", "base:1", "base:2"), filter=SourceFilter(folders=(7,)))).scope
    assert scope.collections == ("base:1", "base:2")
    assert scope.where == "s.folder_id IN (7)"


def test_a_long_query_is_searched_by_its_first_terms():
    parsed = parse(SearchQuery(" ".join(f"word{number}x" for number in range(1_000)), ("base:1",)))
    assert len(parsed.terms) == len(parsed.hashes) == MAX_QUERY_TERMS
