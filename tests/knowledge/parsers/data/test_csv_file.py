"""Tables in text."""

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
def test_the_delimiter_is_the_one_that_agrees(text: str, delimiter: str):
    assert csv_file.delimiter_of(text) == delimiter


def test_a_table_has_a_header_and_keeps_its_cells(tmp_path: Path):
    file = tmp_path / "x.csv"
    file.write_text('name,note\nrope,"two\nlines, and a | pipe"\ntar,\n', "utf-8")
    found = csv_file.parse(file, "x.csv")
    assert found.text == "| name | note |\n| --- | --- |\n| rope | two lines, and a \\| pipe |\n| tar |  |"
    assert found.text[: found.blocks[0].header_end] == "| name | note |\n| --- | --- |\n"


def test_a_quotation_mark_that_is_never_closed_costs_no_row(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(csv_file, "LONGEST_FIELD", 1_000)
    found = csv_file.rows("a,b\n" + '"c,d\n' + "e,f\n" * 500, ",")
    assert len(found) == 502
    assert found[1] == ['"c', "d"]


@given(st.lists(st.lists(CELL, min_size=2, max_size=5), min_size=1, max_size=10), st.sampled_from(",;\t"))
def test_what_was_written_is_read_back(rows: list[list[str]], delimiter: str):
    written = io.StringIO()
    csv.writer(written, delimiter=delimiter, lineterminator="\n", quoting=csv.QUOTE_ALL).writerows(rows)
    assert csv_file.rows(written.getvalue(), delimiter) == rows


@given(st.text(alphabet='a,";\t\n|', max_size=100))
def test_any_text_is_some_table(text: str):
    csv_file.rows(text, csv_file.delimiter_of(text))
