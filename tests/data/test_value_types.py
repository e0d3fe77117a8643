"""Types of JSON values: as narrow as the values permit, and wider only as far as they need."""

from datetime import datetime, timedelta, timezone
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from almanac.data import value_types
from almanac.data.fields import (
    BOOLEAN,
    DATE,
    DECIMAL,
    INTEGER,
    JSON,
    TEXT,
    TIMESTAMP,
    DataType,
    Field,
    list_of,
    record_of,
)

SCALARS = (
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=20)
    | st.dates().map(str)
    | st.datetimes().map(lambda moment: moment.isoformat())
)
VALUES = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=4)
)


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (None, None),
        (True, BOOLEAN),
        (1, INTEGER),
        (2**63, TEXT),
        (1.0, DECIMAL),
        ("word", TEXT),
        ("", TEXT),
        ("2026-11-19", DATE),
        ("2026-02-30", TEXT),
        ("20261119", TEXT),
        ("19.11.2026", TEXT),
        ("03/04/2026", TEXT),
        ("2026-11-19T10:00", TIMESTAMP),
        ("2026-11-19 10:00:00.123456789Z", TIMESTAMP),
        ("2026-11-19T10:00:00+02", TIMESTAMP),
        ("2026-11-19T25:00", TEXT),
        ("007", TEXT),
        ([], list_of(None)),
        ([1, 2.5, None], list_of(DECIMAL)),
        ([1, "a"], list_of(TEXT)),
        ({"a": 1, "b": None}, record_of(Field("a", INTEGER))),
        ({"a": 1, "A": 2}, JSON),
        ({}, JSON),
        ({str(number): number for number in range(101)}, JSON),
    ],
)
def test_a_value_has_the_narrowest_type(value: Any, expected: DataType | None):
    assert value_types.type_of(value) == expected


@pytest.mark.parametrize(
    ("one", "other", "expected"),
    [
        (INTEGER, DECIMAL, DECIMAL),
        (DATE, TIMESTAMP, TIMESTAMP),
        (INTEGER, BOOLEAN, TEXT),
        (DATE, INTEGER, TEXT),
        (list_of(INTEGER), list_of(DECIMAL), list_of(DECIMAL)),
        (list_of(INTEGER), INTEGER, TEXT),
        (record_of(Field("a", INTEGER)), record_of(Field("b", DATE)), record_of(Field("a", INTEGER), Field("b", DATE))),
        (record_of(Field("a", INTEGER)), record_of(Field("A", INTEGER)), JSON),
        (record_of(Field("a", INTEGER)), JSON, JSON),
    ],
)
def test_two_types_widen_to_the_narrowest_that_holds_both(one: DataType, other: DataType, expected: DataType):
    assert value_types.widen(one, other) == expected
    assert value_types.widen(other, one).kind == expected.kind


def test_a_declared_type_holds_narrower_values_only_without_a_change_of_meaning():
    assert value_types.holds(DECIMAL, INTEGER)
    assert value_types.holds(TIMESTAMP, DATE)
    assert not value_types.holds(INTEGER, DECIMAL)
    assert not value_types.holds(TEXT, INTEGER)
    assert value_types.holds(TEXT, TEXT)


def test_timestamps_are_stored_in_utc_to_the_microsecond():
    stored = [value_types.to_stored(text, TIMESTAMP) for text in ("2026-11-19T10:00:00.1234567+02:00", "2026-11-19")]
    assert stored == ["2026-11-19 08:00:00.123456", "2026-11-19 00:00:00"]


@given(st.datetimes(min_value=datetime(1000, 1, 2), max_value=datetime(9998, 1, 1)), st.integers(-840, 840))
def test_an_offset_never_changes_the_moment(moment: datetime, minutes: int):
    text = moment.replace(tzinfo=timezone(timedelta(minutes=minutes))).isoformat()
    assert value_types.to_stored(text, TIMESTAMP) == (moment - timedelta(minutes=minutes)).isoformat(sep=" ")


@settings(suppress_health_check=[HealthCheck.too_slow], deadline=None)
@given(st.lists(VALUES, max_size=6))
def test_the_type_of_a_column_holds_each_of_its_values(values: list[Any]):
    kind = value_types.widest(value_types.type_of(value) for value in values)
    for value in values:
        own = value_types.type_of(value)
        assert own is None or (kind is not None and value_types.widen(kind, own) == kind)
        assert kind is not None or value is None
        if kind is not None:
            value_types.to_stored(value, kind)


@settings(suppress_health_check=[HealthCheck.too_slow], deadline=None)
@given(st.lists(st.dictionaries(st.sampled_from(["a", "b", "c d"]), VALUES), max_size=5))
def test_the_fields_of_rows_are_all_names_with_the_type_of_their_values(rows: list[dict[str, Any]]):
    inferred = value_types.infer_fields(rows)
    assert list(inferred) == list(dict.fromkeys(name for row in rows for name in row))
    for name, kind in inferred.items():
        kinds = value_types.widest(value_types.type_of(row[name]) for row in rows if name in row)
        assert kinds == kind or {kinds and kinds.kind, kind and kind.kind} <= {kind and kind.kind, "text"}
