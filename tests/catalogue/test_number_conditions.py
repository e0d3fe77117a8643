"""Numbers in questions, as conditions on metadata."""

import time
from typing import Any

import pytest

from almanac.catalogue.number_conditions import MAX_BOUNDS, MAX_NUMBER, find_bounds, to_condition

FIELDS = (
    "psi",
    "price",
    "width",
    "weight_kg",
    "Noise (dB)",
    "maxFlow",
    "wheels",
    "category",
    "tags",
    "name",
    "depth-m",
)


def read(question: str) -> Any:
    """The tests of a question, as field: {operator: number}."""
    condition = to_condition(find_bounds(question), FIELDS)
    found: dict[str, dict[str, float]] = {}
    for bound in condition["and"] if condition else ():
        for field in bound["or"]:
            for test in field["and"]:
                found.setdefault(test["key"], {})[test["op"]] = round(test["value"], 3)
    return found


@pytest.mark.parametrize(
    ("question", "expected"),
    [
        ("Find pressure washer models under 2000 PSI", {"psi": {"lt": 2000}}),
        ("washers below 2,000psi", {"psi": {"lt": 2000}}),
        ("at most 2k psi", {"psi": {"lte": 2000}}),
        ("psi <= 1500.5", {"psi": {"lte": 1500.5}}),
        ("PSI>3000", {"psi": {"gt": 3000}}),
        ("2000+ PSI", {"psi": {"gte": 2000}}),
        ("1500 psi or more", {"psi": {"gte": 1500}}),
        ("1500 or less psi", {"psi": {"lte": 1500}}),
        ("a washer with 1800 PSI", {"psi": {"eq": 1800}}),
        ("1000-2000 psi", {"psi": {"gte": 1000, "lte": 2000}}),
        ("from 1000 psi to 2000 psi", {"psi": {"gte": 1000, "lte": 2000}}),
        ("between $100 and $300", {"price": {"gte": 100, "lte": 300}}),
        ("between 100 and 300 euros", {"price": {"gte": 100, "lte": 300}}),
        ("price under 200", {"price": {"lt": 200}}),
        ("cheaper than 200", {"price": {"lt": 200}}),
        ("under €200 and over 1500 psi", {"price": {"lt": 200}, "psi": {"gt": 1500}}),
        ("below 100 bar", {"psi": {"lt": 1450.38}}),
        ("lighter than 40 lbs", {"weight_kg": {"lt": 18.144}}),
        ("a weight of at most 500 grams", {"weight_kg": {"lte": 0.5}}),
        ("quieter than 70", {"Noise (dB)": {"lt": 70}}),
        ("no more than 70 decibels", {"Noise (dB)": {"lte": 70}}),
        ("width of at least 40 cm", {"width": {"gte": 40}}),
        ("at least 4 wheels", {"wheels": {"gte": 4}}),
        ("flow over 6", {"maxFlow": {"gt": 6}}),
        ("down to below -10 metres", {"depth-m": {"lt": -10}}),
    ],
)
def test_a_bound_becomes_a_condition(question: str, expected: dict[str, dict[str, float]]):
    assert read(question) == expected


@pytest.mark.parametrize(
    "question",
    [
        "", "PowerJet 1800", "PJ-1800 psi", "returns within 30 days", "under 300", "pressure washers under 300",
        "3 mowers", "the weight of 3 trucks", "under two thousand psi", "²psi", "between 5", "100 bar", "-", "< psi",
    ],
)  # fmt: skip
def test_a_number_without_a_field_or_a_comparison_is_ignored(question: str):
    assert read(question) == {}


def test_of_several_fields_with_the_unit_the_words_before_decide():
    fields = ("min_psi", "max_psi")
    condition = to_condition(find_bounds("a max psi below 2000 psi"), fields)
    assert condition == {"and": [{"or": [{"and": [{"key": "max_psi", "op": "lt", "value": 2000}]}]}]}
    either = to_condition(find_bounds("below 2000 psi"), fields)
    assert either is not None
    assert [part["and"][0]["key"] for part in either["and"][0]["or"]] == ["min_psi", "max_psi"]


def test_hostile_questions_take_little_time_and_make_few_conditions():
    begun = time.perf_counter()
    for question in ("under 5 psi " * 300, "9" * 4000 + " psi", "-" * 4000, "1," * 2000, "between 1 and " * 300):
        assert len(find_bounds(question)) <= MAX_BOUNDS
    assert read("9" * 4000 + " psi") == {"psi": {"eq": MAX_NUMBER}}
    assert time.perf_counter() - begun < 1
