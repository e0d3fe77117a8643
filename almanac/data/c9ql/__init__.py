"""C9QL: a small query language over the rows of one dataset, compiled to SQL for DuckDB.

query = parse("select sum(sent) as Total Sent, Customer group by Customer", fields)
compiled = compile_query(query, fields, "sales")
compiled.query.sql("duckdb")
"""

from collections.abc import Sequence

from almanac.data.c9ql.compiler import Compiled, compile_query, fields_after
from almanac.data.c9ql.errors import C9qlError
from almanac.data.c9ql.parser import read_query
from almanac.data.c9ql.placeholders import Context
from almanac.data.c9ql.printer import print_query
from almanac.data.c9ql.tree import Query
from almanac.data.fields import Field

__all__ = ["C9qlError", "Compiled", "Context", "Query", "compile_query", "parse", "print_query"]


def parse(text: str, fields: Sequence[Field] | None = None) -> Query:
    """Return the tree of a query over these fields. Without fields, names with operators or keywords need backticks."""
    return read_query(text, fields, fields_after)
