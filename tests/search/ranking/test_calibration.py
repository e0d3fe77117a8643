"""Grades, whose thresholds mean the same in every mode."""

import pytest

from almanac.search.ranking import calibration


@pytest.mark.parametrize("curve", calibration.CURVES)
def test_grades_keep_the_order_of_probabilities_and_their_limits(curve: str):
    likely = [step / 1000 for step in range(1001)]
    grades = [calibration.grade(curve, each) for each in likely]
    assert grades == sorted(grades)
    assert (grades[0], grades[-1]) == (0, 1)
    assert calibration.grade(curve, calibration.RELATED[curve]) == 0.5
    assert calibration.grade(curve, 0.5) == 0.8
    assert 0 < calibration.RELATED[curve] < 0.5


def test_every_curve_has_its_threshold():
    assert calibration.RELATED.keys() == calibration.CURVES.keys()
