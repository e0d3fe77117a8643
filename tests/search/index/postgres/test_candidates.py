"""The bounds of candidate lists, compared with the real weights of passages."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from almanac.search.analysis import analyser
from almanac.search.index import tables
from almanac.search.index.postgres.candidates import CandidateLists
from almanac.search.index.postgres.term_counts import PostingLists
from almanac.search.ranking import bm25

TERMS = np.array([analyser.term_hash(f"term {n}") for n in range(4)], np.int64)
OTHER = np.array([analyser.term_hash("another")], np.int64)
NAME = "base:1"

passages = st.lists(
    st.tuples(st.lists(st.integers(0, 255), min_size=4, max_size=4), st.integers(1, 255)), min_size=1, max_size=12
)
choices = st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3)), unique_by=lambda each: each[1], max_size=4)


def pack(counts: list[int], rest: int) -> bytes:
    """A passage with these frequencies of the terms, and another word."""
    has = np.flatnonzero(counts)
    hashes = np.concatenate((TERMS[has], OTHER))
    numbers = np.append(np.array(counts, np.uint8)[has], np.uint8(rest))
    order = np.argsort(hashes)
    return hashes[order].tobytes() + numbers[order].tobytes()


def lists_of(words: list[bytes], lists: PostingLists) -> CandidateLists:
    """The passages, numbered from 1, on the lists as they are written."""
    keys = [tables.short_hashes(TERMS[place : place + 1])[0] ^ tables.level_salt(level) for level, place in lists]
    on = [set((tables.posting_keys(NAME, each) ^ tables.collection_salt(NAME)).tolist()) for each in words]
    everything = np.arange(1, len(words) + 1, dtype=">i8")
    found = [everything[[int(key) in each for each in on]].tobytes() for key in keys]
    return CandidateLists.of([*found, everything.tobytes()])  # the last list was not read


@given(passages, choices, st.floats(20, 20_000), st.lists(st.floats(0, 16), min_size=4, max_size=4))
def test_no_passage_is_worth_more_than_its_lists_say(
    found: list[tuple[list[int], int]], followed: PostingLists, average: float, rarities: list[float]
):
    words = [pack(*each) for each in found]
    weights = np.array(rarities, np.float64)
    listed = lists_of(words, followed)
    counts, lengths = analyser.occurrences(words, TERMS)
    worth = bm25.score(counts, lengths, average, weights)
    assert (worth <= listed.max_scores(followed, weights, average)).all()


def test_a_passage_that_is_on_no_list_of_a_term_gains_nothing_by_it():
    listed = lists_of([pack([10, 0, 0, 0], 90), pack([10, 200, 0, 0], 90)], [(0, 0), (0, 1), (2, 2)])
    weights = np.array([4.0, 2.0, 1.0, 0.5])
    off = 0.7  # of the third term: passages with more occurrences are on the list
    assert listed.ids.tolist() == [1, 2]
    assert np.allclose(listed.max_scores([(0, 0), (0, 1), (2, 2)], weights, 500), [4.5 + off, 6.5 + off], rtol=1e-4)
