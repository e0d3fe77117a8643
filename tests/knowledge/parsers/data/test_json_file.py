"""JSON and JSON lines: paths, tables, and invalid documents."""

from pathlib import Path
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from almanac.knowledge.parsers.data import json_file
from almanac.knowledge.parsers.parsed_file import ParsedFile
from tests.knowledge.parsers.test_parse_file import assert_valid

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-1000, 1000) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=4),
    max_leaves=12,
)


def parse(tmp_path: Path, content: str | bytes) -> ParsedFile:
    file = tmp_path / "x.json"
    file.write_bytes(content.encode() if isinstance(content, str) else content)
    return json_file.parse(file, "x.json")


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ({"a": 1, "b": {"c": [1, 2]}}, "a: 1\n\nb.c: 1, 2"),
        ([{"x": {"y": "z"}}, {"x": None}], "[0].x.y: z\n\n[1].x: null"),
        ({"rows": [{"k": 1, "v": 2}, {"k": 3, "v": 4}]}, "rows:\n\n| k | v |\n| --- | --- |\n| 1 | 2 |\n| 3 | 4 |"),
        ("only a string", "only a string"),
        ([1, 2.5, True], "[0]: 1\n\n[1]: 2.5\n\n[2]: true"),
        ({"empty": {}, "none": []}, "empty: {}\n\nnone: []"),
    ],
)
def test_each_value_follows_its_path(value: Any, expected: str, tmp_path: Path):
    assert parse(tmp_path, orjson.dumps(value)).text == expected


def test_an_invalid_line_is_kept_and_counted(tmp_path: Path):
    parsed = parse(tmp_path, '{"a": 1}\n{broken\n{"a": 2}\n')
    assert parsed.text == "a: 1\n\n{broken\n\na: 2"
    assert parsed.warnings == ("1 of 3 lines are not valid JSON.",)


def test_a_file_without_json_is_plain_text(tmp_path: Path):
    parsed = parse(tmp_path, "{broken\nfor good")
    assert (parsed.text, parsed.warnings) == ("{broken\nfor good", (json_file.BROKEN,))


def test_deeply_nested_values_stay_json(tmp_path: Path):
    parsed = parse(tmp_path, '{"a":' * 200 + "1" + "}" * 200)
    assert parsed.text.startswith("a.a.a.")
    assert parsed.text.endswith('{"a":1' + "}" * parsed.text.count("{"))


def test_documents_nested_beyond_the_parser_are_plain_text(tmp_path: Path):
    assert parse(tmp_path, "[" * 100_000).warnings


@given(VALUES)
def test_any_document_can_be_parsed(tmp_path_factory: pytest.TempPathFactory, value: Any):
    assert_valid(parse(tmp_path_factory.getbasetemp(), orjson.dumps(value)))
