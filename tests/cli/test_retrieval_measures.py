"""The measures of retrieval, against values worked out by hand."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from almanac.cli.support.retrieval import retrieval_measures as measures

RANKED = ["a", "b", "c", "d"]


@pytest.mark.parametrize(
    ("grades", "depth", "expected"),
    [
        ({"a": 1}, 10, 1.0),
        ({"b": 1}, 10, 0.63093),  # 1 / log2(3)
        ({"a": 1, "c": 1}, 10, 0.91972),  # (1 + 1/2) / (1 + 1/log2(3))
        ({"b": 3, "a": 1}, 10, 0.79671),  # (1 + 3/log2(3)) / (3 + 1/log2(3))
        ({"d": 1}, 3, 0.0),
        ({"a": 1, "x": 1, "y": 1}, 1, 1.0),  # at a depth of one, no more gain is possible
        ({"a": 1, "x": 1}, 10, 0.61315),
        ({"x": 1}, 10, 0.0),
        ({"a": 0}, 10, 0.0),
        ({}, 10, 0.0),
    ],
)
def test_ndcg_is_the_gain_discounted_by_place_over_the_best_there_could_be(
    grades: dict[str, float], depth: int, expected: float
):
    assert measures.ndcg(RANKED, grades, depth) == pytest.approx(expected, abs=1e-5)


@pytest.mark.parametrize(
    ("grades", "depth", "expected"),
    [
        ({"a": 1, "d": 2}, 10, 1.0),
        ({"a": 1, "d": 2}, 3, 0.5),
        ({"a": 1, "x": 1, "y": 1, "z": 1}, 10, 0.25),
        ({"a": 1, "b": 0}, 1, 1.0),  # a passage of grade 0 is not missed
        ({}, 10, 0.0),
    ],
)
def test_recall_is_the_share_of_what_is_relevant(grades: dict[str, float], depth: int, expected: float):
    assert measures.recall(RANKED, grades, depth) == expected


@pytest.mark.parametrize(
    ("judged", "expected"),
    [
        ([(1.0, True), (1.0, True)], 0.0),
        ([(1.0, False)], 1.0),
        ([(0.0, False)] * 7, 0.0),
        ([(0.75, True), (0.75, True), (0.75, True), (0.75, False)], 0.0),
        ([(0.95, True), (0.95, False), (0.15, False), (0.15, False)], 0.3),  # (2·|0.95−0.5| + 2·|0.15−0|) / 4
        ([(0.91, True), (0.99, False)], 0.45),  # in one bin: |0.95 − 0.5|
        ([], 0.0),
    ],
)
def test_calibration_error_is_how_far_scores_are_from_how_often_they_were_right(
    judged: list[tuple[float, bool]], expected: float
):
    assert measures.calibration_error(judged) == pytest.approx(expected, abs=1e-9)


@pytest.mark.parametrize(("share", "expected"), [(0.5, 50), (0.99, 99), (1.0, 100), (0.001, 1)])
def test_a_percentile_is_one_of_the_values(share: float, expected: float):
    assert measures.percentile([float(value) for value in range(100, 0, -1)], share) == expected


def test_of_nothing_there_is_nothing_to_measure():
    assert (measures.percentile([], 0.5), measures.mean([])) == (0.0, 0.0)
    assert measures.mean([1.0, 2.0]) == 1.5


@given(
    st.lists(st.sampled_from("abcdefgh"), unique=True),
    st.dictionaries(st.sampled_from("abcdefgh"), st.integers(0, 4)),
    st.integers(1, 10),
)
def test_every_measure_is_a_share_and_the_best_order_gains_all(ranked: list[str], grades: dict[str, int], depth: int):
    assert 0 <= measures.ndcg(ranked, grades, depth) <= 1 + 1e-9
    assert 0 <= measures.recall(ranked, grades, depth) <= 1
    best = sorted(grades, key=lambda id: -grades[id])
    assert measures.ndcg(best, grades, depth) == pytest.approx(float(any(grades.values())))
