"""Printing a tree and parsing the text gives the same tree."""

from hypothesis import HealthCheck, given, settings

from almanac.data.c9ql import parse, print_query
from almanac.data.c9ql.tree import Binary, BinaryOperator, Item, Name, Query, Statement, Unary
from almanac.data.fields import INTEGER, Field
from tests.data.c9ql.samples import ODD_NAMES, QUERIES


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(QUERIES)
def test_a_printed_query_is_parsed_to_the_same_tree(query: Query):
    assert parse(print_query(query)) == query


def test_the_fields_do_not_change_the_tree_of_a_printed_query():
    fields = [Field(each, INTEGER) for each in ODD_NAMES]
    for name in ODD_NAMES:
        for form in ("`{}`", "`{}` + 1 as `and`", "sum(`{}`)", "case when `{}` > 1 then 'a' end", "not `{}` in (1, 2)"):
            text = "select " + form.format(name.replace("`", "``"))
            known, unknown = parse(text, fields), parse(text)
            assert known == unknown
            assert parse(print_query(known), fields) == known


def test_two_operators_keep_their_order():
    operators: list[BinaryOperator] = ["+", "-", "*", "/", "%", "^", "=", "<", "like"]
    a, b, c = Name("a"), Name("b"), Name("c")
    for one in operators:
        for other in operators:
            for tree in (Binary(one, a, Binary(other, b, c)), Binary(one, Binary(other, a, b), c)):
                for signed in (tree, Unary("-", tree), Binary("^", Unary("-", tree), a), Unary("not", tree)):
                    query = Query((Statement((Item(signed),)),))
                    assert parse(print_query(query)) == query
