"""An error gives the position, the expectation and the nearest name."""

import pytest

from almanac.data.c9ql import C9qlError, compile_query, parse
from almanac.data.c9ql.parser import MAX_QUERY_CHARS
from almanac.data.fields import BOOLEAN, DATE, INTEGER, TEXT, Field, list_of, record_of

FIELDS = [
    Field("Revenue", INTEGER),
    Field("Region", TEXT),
    Field("day", DATE),
    Field("ok", BOOLEAN),
    Field("tags", list_of(TEXT)),
    Field("rec", record_of(Field("street", TEXT))),
]

ERRORS = {
    "select Region, sum(Revenu)": "Column 20: there is no field 'Revenu'. Did you mean 'Revenue'?",
    "select 1; select Revenu": "Column 18: there is no field 'Revenu'.",
    "select *;\nselect Revenu": "Line 2, column 8: there is no field 'Revenu'. Did you mean 'Revenue'?",
    "select zzz": "Column 8: there is no field 'zzz'. The fields are: Revenue, Region, day, ok, tags, rec.",
    "select summ(Revenue)": "Column 8: there is no function 'summ'. Did you mean 'sum'?",
    "select sum(Revenue": "Column 19: expected ',' or ')', found the end.",
    "select sma(Revenue)": "Column 8: sma takes 2 or more arguments, not 1. Use sma(number, window, [group…]).",
    "select * wher Revenue > 1": "Did you mean 'where'?",
    "select Region where": "Column 20: expected a field, a value or a function, found the end.",
    "select 'abc": "Column 8: the quote ' is not closed.",
    "where Revenue > many": "Column 17: 'many' is not a number: the comparison needs one.",
    "where day > soon": "Column 13: 'soon' is not a date: the comparison needs one. Write it as 2026-01-31.",
    "where Region": "Column 7: a condition is needed, not a text.",
    "select sum(day)": "Column 12: sum needs numbers, not a date.",
    "select sum(Revenue), Region": "'Region' is neither aggregated nor in 'group by'. Add 'group by Region'",
    "where sum(Revenue) > 5": "Column 7: sum cannot stand in 'where'. Use 'having' for groups",
    "select sum(avg(Revenue))": "Column 12: avg cannot stand in sum. Use two statements",
    "select accumulate(Revenue), sum(Revenue)": "accumulate cannot be combined with aggregates.",
    "select expand(tags), upper(Region)": "expand can only stand beside '*' and fields.",
    "select expand(Region) as x group by Region": "expand cannot be combined with",
    "select rec.stret": "there is no field 'stret'. Did you mean 'street'?",
    "select Region.x": "'.x' needs a record, not a text. Use parse(…) first.",
    "select tags.x": "'.x' needs a record, not a list. Use an index such as [0], or expand the list.",
    "select day * 2": "'*' has no meaning for these dates.",
    "select date_format(day, qqq)": "'qqq' has no meaning in a date pattern.",
    "select date_add(day, soon)": "'soon' is not a duration.",
    "where day > {$c9_todai}": "there is no date token '{$c9_todai}'. Did you mean 'today'?",
    "where Region = $c9_x$": "the parameter '$c9_x$' has no value. Give it one, or write a default: $c9_x$(default)$.",
    "select day, ~Region": "'~' excludes a field from '*'.",
    "select * limit many": "Column 16: expected a whole number up to 1,000,000,000, found 'many'.",
    "select Region order by 3": "there is no item 3 in the select list.",
    "": "the query is empty. Start with 'select *'.",
    "select \0": "Column 8: this character cannot be part of a query.",
    "select " + "(" * 100 + "1" + ")" * 100: "the expression is nested too deeply.",
    "select " + "+".join("1" * 100): "more than 40 operators in a row.",
    "select " + "1," * 20_000: "the query is longer than 20,000 characters.",
}  # fmt: skip


def at_nothing(text: str) -> bool:
    """Return whether the error of a text has no place: there is no text, or too much."""
    return not text or len(text) > MAX_QUERY_CHARS


@pytest.mark.parametrize("text", ERRORS, ids=lambda text: str(text)[:40])
def test_an_error_says_where_the_problem_is_and_what_helps(text: str):
    with pytest.raises(C9qlError) as raised:
        compile_query(parse(text, FIELDS), FIELDS, "t")
    assert ERRORS[text] in raised.value.text
    assert raised.value.text.startswith(("Column", "Line")) or at_nothing(text)


def test_an_error_after_a_transpose_names_the_nearest_of_the_new_fields():
    query = parse("select transpose(Region, Revenue); select Wset", FIELDS)
    with pytest.raises(C9qlError, match=r"^Column 43: there is no field 'Wset'") as raised:
        compile_query(query, FIELDS, "t", transposed=[["West", "East"]])
    assert raised.value.remedy == "Did you mean 'West'?"
