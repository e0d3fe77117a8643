"""Compiles the tree of a C9QL query to SQL for DuckDB.

The names in the SQL are quoted, and the texts of the caller are literals in it.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime

from sqlglot import exp

from almanac.data.c9ql.emitter import Column
from almanac.data.c9ql.errors import C9qlError
from almanac.data.c9ql.placeholders import Context
from almanac.data.c9ql.relations import Chain, Relation, Result
from almanac.data.c9ql.reshapes import MAX_TRANSPOSED_FIELDS, KeysNeededError, compile_reshape, reshaping_call
from almanac.data.c9ql.selects import compile_select
from almanac.data.c9ql.tree import Query, Statement
from almanac.data.fields import TEXT, Field


@dataclass(frozen=True, slots=True)
class Compiled:
    """A query for DuckDB and the fields of its result.

    If `asks_for_keys` is true, the query returns one column of texts: the values that become the fields of a transpose.
    Run it, and compile again with these values added to `transposed`.
    """

    query: exp.Query
    fields: tuple[Field, ...]
    asks_for_keys: bool = False


@dataclass(slots=True)
class _Run:
    chain: Chain
    context: Context
    transposed: list[Sequence[str]] = field(default_factory=list[Sequence[str]])

    def statement(self, relation: Relation, statement: Statement) -> Result:
        call = reshaping_call(statement)
        if call is None:
            return compile_select(relation, statement, self.chain, self.context)
        keys = None
        if call.function == "transpose" and self.transposed:
            keys = list(self.transposed.pop(0))
            if len(keys) > MAX_TRANSPOSED_FIELDS:
                raise C9qlError(f"the transpose would make more than {MAX_TRANSPOSED_FIELDS} fields.", at=call.at,
                                remedy="Filter the rows or limit the keys first.")  # fmt: skip
        return compile_reshape(relation, statement, self.chain, self.context, keys)


def compile_query(
    query: Query,
    fields: Sequence[Field],
    source_table: str,
    *,
    context: Context | None = None,
    transposed: Sequence[Sequence[str]] = (),
) -> Compiled:
    """Compile a query over a table with these fields.

    `transposed` has the keys of each transpose so far, as the queries of earlier compilations returned them.
    """
    run = _Run(Chain(source_table), context or Context(datetime.now(UTC).replace(tzinfo=None)), list(transposed))
    relation = Relation(source_table, tuple(Column(each, each.column or each.name) for each in fields))
    try:
        for statement in query.statements[:-1]:
            relation = run.chain.settle(run.statement(relation, statement))
        result = run.statement(relation, query.statements[-1])
    except C9qlError as error:
        raise error.within(query.text) from None
    except KeysNeededError as error:
        return Compiled(error.query, (Field("key", TEXT),), asks_for_keys=True)
    return Compiled(run.chain.finish(result), tuple(each.field for each in result.relation.columns))


def fields_after(statement: Statement, fields: Sequence[Field]) -> tuple[Field, ...] | None:
    """Return the fields of a statement's result; None if they depend on the rows."""
    call = reshaping_call(statement)
    if call is not None and call.function == "transpose":
        return None
    run = _Run(Chain("source"), _ANY_CONTEXT)
    relation = Relation("source", tuple(Column(each, each.column or each.name) for each in fields))
    return tuple(each.field for each in run.statement(relation, statement).relation.columns)


_ANY_CONTEXT = Context(datetime(2000, 1, 1), is_trial=True)
