"""The reference page shows every function, and the results of its examples are right."""

import re

import pytest

from almanac.data.c9ql.functions import FUNCTIONS
from tests.data.c9ql import page

TEXT = page.PAGE.read_text("utf-8")
EXAMPLES = page.EXAMPLE.findall(TEXT)


@pytest.mark.parametrize(("table", "query", "result"), EXAMPLES, ids=[query[:40] for _, query, _ in EXAMPLES])
def test_an_example_has_the_result_on_the_page(table: str, query: str, result: str):
    connection = page.connect()
    assert page.run(connection, table or "sales", query) == result, "run: python -m tests.data.c9ql.page"
    connection.close()


def test_every_function_has_an_example():
    used = {name.lower() for _, query, _ in EXAMPLES for name in re.findall(r"(\w+)\(", query)}
    assert set(FUNCTIONS) - used == set()


def test_the_page_has_no_example_without_a_result():
    assert len(EXAMPLES) == TEXT.count("```c9ql") > 40
    assert all(result for _, _, result in EXAMPLES)
