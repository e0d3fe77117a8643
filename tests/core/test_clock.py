"""The clock: durations as people write them, times as answers show them."""

import time
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from almanac.core import clock

UNITS = {"s": clock.SECOND, "m": clock.MINUTE, "h": clock.HOUR, "d": clock.DAY, "w": 7 * clock.DAY}
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
# Until the year 2200, a time in seconds as a float is exact to the microsecond.
MOMENTS = st.integers(0, int((datetime(2200, 1, 1, tzinfo=UTC) - EPOCH).total_seconds()) * clock.SECOND)


def test_now_is_the_system_clock_in_microseconds():
    before = time.time_ns() // 1000
    assert before <= clock.now() <= time.time_ns() // 1000


@given(st.integers(1, 3650), st.sampled_from(sorted(UNITS)), st.sampled_from(["", " ", "  "]))
def test_a_length_of_time_is_a_number_and_a_unit(number: int, unit: str, space: str):
    assert clock.parse_duration(f"{space}{number}{space}{unit}{space}") == number * UNITS[unit]


@given(st.text(max_size=12))
def test_any_other_text_is_refused_with_examples(text: str):
    try:
        length = clock.parse_duration(text)
    except ValueError as error:
        assert "90s, 15m, 1h, 30d or 2w" in str(error)
    else:
        assert length > 0
        assert text.strip()[-1] in UNITS


@pytest.mark.parametrize("text", ["", "0d", "000s", "-1d", "1.5h", "1h30m", "d", "30", "30D", "1y", "1 0 d", "+1d"])
def test_near_misses_are_refused(text: str):
    with pytest.raises(ValueError, match="is not a length of time"):
        clock.parse_duration(text)


@given(st.integers(1, 10**12), st.sampled_from(sorted(UNITS)))
def test_whatever_length_is_accepted_leads_to_a_moment_that_can_be_stored_and_shown(number: int, unit: str):
    try:
        length = clock.parse_duration(f"{number}{unit}")
    except ValueError:
        return
    moment = clock.now() + length
    assert moment < 2**63
    assert clock.format_timestamp(moment) is not None
    assert clock.now() - length > -(2**63)


@given(MOMENTS)
def test_a_moment_is_shown_in_utc_to_the_millisecond(moment: int):
    text = clock.format_timestamp(moment)
    assert text is not None
    assert text.endswith("Z")
    shown = datetime.fromisoformat(text)
    assert shown == EPOCH + timedelta(milliseconds=moment // 1000)


@given(MOMENTS, MOMENTS)
def test_moments_as_text_sort_like_moments(one: int, other: int):
    first, second = sorted((one, other))
    assert (clock.format_timestamp(first) or "") <= (clock.format_timestamp(second) or "")


def test_the_last_moment_there_is_can_be_shown():
    assert clock.format_timestamp(clock.parse_timestamp("9999-12-31T23:59:59.999999Z")) == "9999-12-31T23:59:59.999Z"


def test_a_moment_that_has_no_date_in_utc_can_be_compared_but_not_shown():
    beyond = clock.parse_timestamp("9999-12-31T23:59:59-23:59")
    assert beyond > clock.parse_timestamp("9999-12-31T23:59:59Z")
    with pytest.raises(OverflowError):
        clock.format_timestamp(beyond)


def test_no_moment_is_shown_as_none():
    assert clock.format_timestamp(None) is None
    assert clock.format_timestamp(0) == "1970-01-01T00:00:00.000Z"


@given(MOMENTS)
def test_the_month_is_the_one_the_moment_is_shown_in(moment: int):
    assert clock.month(moment) == (clock.format_timestamp(moment) or "")[:7]


def test_a_month_ends_with_its_last_microsecond_in_utc():
    boundary = int((datetime(2026, 12, 1, tzinfo=UTC) - EPOCH).total_seconds()) * clock.SECOND
    assert clock.month(boundary - 1) == "2026-11"
    assert clock.month(boundary) == "2026-12"
