"""Grades: scores with the same threshold in every mode."""

import pytest

from almanac.search.ranking import features


@pytest.mark.parametrize("curve", features.CURVES)
def test_grades_keep_the_order_and_have_their_bands_where_they_say(curve: str):
    likely = [step / 1000 for step in range(1001)]
    grades = [features.grade(curve, each) for each in likely]
    assert grades == sorted(grades)
    assert (grades[0], grades[-1]) == (0, 1)
    assert features.grade(curve, features.RELATED[curve]) == 0.5
    assert features.grade(curve, 0.5) == 0.8
    assert 0 < features.RELATED[curve] < 0.5


def test_every_curve_has_its_threshold():
    assert features.RELATED.keys() == features.CURVES.keys()
