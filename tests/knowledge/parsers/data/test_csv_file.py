"""Tables in text files: delimiters, quotation marks, headers."""

import csv
import io
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from almanac.knowledge.parsers.data import csv_file

CELL = st.text(st.characters(codec="utf-8", exclude_characters="\r\x00", exclude_categories=["Cs"]), max_size=12)


@pytest.mark.parametrize(
    ("text", "delimiter"),
    [
        ("a,b,c\n1,2,3\n", ","),
        ("a;b\n1,5;2,5\n3,5;4,5\n", ";"),
        ("a\tb\n1, 2\tc\n", "\t"),
        ("a|b|c\n1|2|3\n", "|"),
        ('"a;b",c\n"d;e;f",g\n', ","),
        ("sep=;\na;b\n", ";"),
    ],
)
def test_the_delimiter_is_detected(text: str, delimiter: str):
    assert csv_file.detect_delimiter(text) == delimiter


def test_a_file_becomes_a_table_with_a_header(tmp_path: Path):
    file = tmp_path / "x.csv"
    file.write_text('name,note\nrope,"two\nlines, and a | pipe"\ntar,\n', "utf-8")
    parsed = csv_file.parse(file, "x.csv")
    assert parsed.text == "| name | note |\n| --- | --- |\n| rope | two lines, and a \\| pipe |\n| tar |  |"
    assert parsed.text[: parsed.blocks[0].header_end] == "| name | note |\n| --- | --- |\n"


def test_an_unclosed_quotation_mark_loses_no_row(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(csv_file, "MAX_FIELD_CHARS", 1_000)
    rows = csv_file.split_rows("a,b\n" + '"c,d\n' + "e,f\n" * 500, ",")
    assert len(rows) == 502
    assert rows[1] == ['"c', "d"]


@given(st.lists(st.lists(CELL, min_size=2, max_size=5), min_size=1, max_size=10), st.sampled_from(",;\t"))
def test_written_rows_are_read_back(rows: list[list[str]], delimiter: str):
    written = io.StringIO()
    csv.writer(written, delimiter=delimiter, lineterminator="\n", quoting=csv.QUOTE_ALL).writerows(rows)
    assert csv_file.split_rows(written.getvalue(), delimiter) == rows


@given(st.text(alphabet='a,";\t\n|', max_size=100))
def test_any_text_can_be_split_into_rows(text: str):
    csv_file.split_rows(text, csv_file.detect_delimiter(text))
