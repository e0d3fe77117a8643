"""The number of values in a JSON text is counted without parsing it."""

import json
from typing import Any, cast

from hypothesis import given
from hypothesis import strategies as st

from almanac.core import json_size
from almanac.core.json_size import CHUNK_BYTES, MAX_JSON_VALUES, has_too_many_values

TEXTS = st.text(st.sampled_from(',[{"\\\\ab:'), max_size=12)
VALUES = st.recursive(
    st.integers() | TEXTS, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXTS, inner, max_size=4)
)


def separators_of(value: Any) -> int:
    """The commas and opening brackets that the value has in JSON, outside of strings."""
    if isinstance(value, dict):
        items = list(cast("dict[str, Any]", value).values())
    elif isinstance(value, list):
        items = cast("list[Any]", value)
    else:
        return 0
    return 1 + max(len(items) - 1, 0) + sum(map(separators_of, items))


@given(VALUES, st.sampled_from((1, 2, 3, 7, 256 * 1024)))
def test_separators_inside_of_strings_do_not_count(value: Any, chunk_bytes: int):
    raw = json.dumps({"padding": "," * 20, "value": value}).encode()
    assert not has_too_many_values(raw)
    limit = 2 + separators_of(value)
    try:
        json_size.MAX_JSON_VALUES, json_size.CHUNK_BYTES = limit, chunk_bytes
        assert not has_too_many_values(raw)
        json_size.MAX_JSON_VALUES = limit - 1
        assert has_too_many_values(raw)
    finally:
        json_size.MAX_JSON_VALUES, json_size.CHUNK_BYTES = MAX_JSON_VALUES, CHUNK_BYTES


def test_a_long_text_is_one_value():
    assert not has_too_many_values(json.dumps({"content": 'a,"b"\\\\,[{\n' * 200_000}).encode())


def test_many_short_strings_are_many_values():
    assert has_too_many_values(json.dumps([""] * (MAX_JSON_VALUES + 1)).encode())
