"""Calibration: turns sums of scores into probabilities and grades.

`make calibrate` fits a curve of two numbers per mode on queries with known answers, and writes calibration.json.
docs/explanation/search.md lists the data sets.
"""

from pathlib import Path
from typing import Any

import numpy as np
import orjson
from numpy.typing import NDArray

_FITTED: dict[str, Any] = orjson.loads((Path(__file__).parent / "calibration.json").read_bytes())
CURVES: dict[str, tuple[float, float]] = {name: (curve[0], curve[1]) for name, curve in _FITTED["curves"].items()}
# The probability that best separates answers from other passages. It is far below one half, because most hits are no
# answers.
RELATED: dict[str, float] = dict(_FITTED["related"])
DIRECTLY_RELEVANT = 0.5


def probability(curve: str, values: NDArray[np.float32]) -> NDArray[np.float64]:
    """The probabilities of sums of scores."""
    offset, slope = CURVES[curve]
    return 1 / (1 + np.exp(-offset - slope * values.astype(np.float64)))


def from_keyword_shares(curve: str, shares: NDArray[np.float32]) -> NDArray[np.float32]:
    """The sums that have on this curve the probabilities that the shares have on the keyword curve."""
    (keyword_offset, keyword_slope), (offset, slope) = CURVES["keyword"], CURVES[curve]
    return ((keyword_offset - offset + keyword_slope * shares) / slope).astype(np.float32)


def grade(curve: str, probability: float) -> float:
    """The grade of a probability: above 0.8 directly relevant, from 0.5 related, below that tangential.

    Grades mean the same on all curves, and have the same order as probabilities.
    """
    return round(float(np.interp(probability, (0.0, RELATED[curve], DIRECTLY_RELEVANT, 1.0), (0.0, 0.5, 0.8, 1.0))), 4)


def non_increasing(values: NDArray[np.float64]) -> list[float]:
    """Replace values that are above an earlier one by a common mean (isotonic regression: pool adjacent violators)."""
    if (values[1:] <= values[:-1]).all():
        return values.tolist()
    pools: list[tuple[float, int]] = []
    for value in values.tolist():
        mean, size = value, 1
        while pools and pools[-1][0] < mean:
            earlier_mean, earlier_size = pools.pop()
            mean, size = (earlier_mean * earlier_size + mean * size) / (earlier_size + size), earlier_size + size
        pools.append((mean, size))
    return [mean for mean, size in pools for _ in range(size)]
