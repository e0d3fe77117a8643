"""The chain of SQL selects that a query becomes. Each one reads the one before it."""

from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from sqlglot import exp

from almanac.data.c9ql.emitter import INPUT, Column, Scope, sort_key
from almanac.data.c9ql.names import fold
from almanac.data.c9ql.values import func, identifier
from almanac.data.fields import Field

ROW = "c9 row"  # the hidden column with the number of a row
EMPTY_NAME = "(empty)"  # DuckDB cannot name a column with no characters


def column(name: str, table: str = INPUT) -> exp.Expr:
    """Return a column by its SQL name."""
    return exp.Column(this=identifier(name), table=identifier(table))


def table_named(name: str, alias: str = INPUT) -> exp.Table:
    """Return a table under an alias."""
    return exp.Table(this=identifier(name), alias=exp.TableAlias(this=identifier(alias)))


def named(sql: exp.Expr, name: str) -> exp.Expr:
    """Return an expression with a name."""
    return exp.Alias(this=sql, alias=identifier(name))


def columns_for(fields: Iterable[Field]) -> tuple[Column, ...]:
    """Return columns for fields, with SQL names that are unique in any case, as DuckDB requires."""
    used, columns = {fold(ROW)}, list[Column]()
    for each in fields:
        name, count = each.name or EMPTY_NAME, 1
        while fold(name) in used:
            count += 1
            name = f"{each.name} {count}"
        used.add(fold(name))
        columns.append(Column(replace(each, column=None), name))
    return tuple(columns)


@dataclass(frozen=True, slots=True)
class Relation:
    """A table or select with its columns. `numbered` says that it has the hidden column with the row's number."""

    table: str
    columns: tuple[Column, ...]
    numbered: bool = False

    @property
    def scope(self) -> Scope:
        """The names of the relation."""
        return Scope(self.columns)

    @property
    def row(self) -> exp.Expr | None:
        """The column with the row's number, if there is one."""
        return column(ROW) if self.numbered else None

    def select(self, *expressions: exp.Expr) -> exp.Select:
        """Return a select from the relation."""
        return exp.Select(expressions=list(expressions)).from_(table_named(self.table))

    @property
    def all(self) -> list[exp.Expr]:
        """All columns, the hidden one too."""
        return [each.sql for each in self.columns] + ([column(ROW)] if self.numbered else [])


@dataclass(frozen=True, slots=True)
class Key:
    """A column that the rows of a result are sorted by."""

    sql_name: str
    descending: bool = False

    @property
    def sql(self) -> exp.Expr:
        """The key in an order."""
        return sort_key(column(self.sql_name), self.descending)


@dataclass(frozen=True, slots=True)
class Result:
    """The result of a statement before its order and limit, which is a relation with the keys as further columns."""

    relation: Relation
    keys: tuple[Key, ...] = ()
    limit: int | None = None
    mixed: bool = False  # the rows have no order of their own, as after grouping


@dataclass(slots=True)
class Chain:
    """The selects so far."""

    source: str
    selects: list[tuple[str, exp.Select]] = field(default_factory=list[tuple[str, exp.Select]])

    def add(self, select: exp.Select) -> str:
        """Add a select, and return its name."""
        number = len(self.selects) + 1
        name = f"step {number}"
        while fold(name) == fold(self.source):
            name += " "
        self.selects.append((name, select))
        return name

    def add_relation(self, select: exp.Select, columns: tuple[Column, ...], *, numbered: bool) -> Relation:
        """Add a select, and return it as a relation."""
        return Relation(self.add(select), columns, numbered)

    def number(self, relation: Relation) -> Relation:
        """Return the relation with the hidden column: the number of the row in the order of the input."""
        if relation.numbered:
            return relation
        rows = exp.Window(this=func("row_number"), over="OVER")
        return self.add_relation(relation.select(*relation.all, named(rows, ROW)), relation.columns, numbered=True)

    def settle(self, result: Result) -> Relation:
        """Apply the order and limit of a statement that is not the last one."""
        relation, keys = result.relation, _keys(result)
        if result.limit is not None:
            limited = relation.select(*_with_keys(relation, result.keys)).limit(result.limit, copy=False)
            if keys:
                limited = limited.order_by(*keys, copy=False)
            relation = replace(relation, table=self.add(limited))
        if not result.keys:
            return relation
        rows = exp.Window(this=func("row_number"), order=exp.Order(expressions=_keys(result)), over="OVER")
        columns = [each.sql for each in relation.columns]
        return self.add_relation(relation.select(*columns, named(rows, ROW)), relation.columns, numbered=True)

    def finish(self, result: Result) -> exp.Select:
        """Return the whole query: the last select has the names of the fields, the order and the limit."""
        relation, keys = result.relation, _keys(result)
        select = relation.select(*(named(each.sql, each.field.name or EMPTY_NAME) for each in relation.columns))
        if not select.expressions:
            select = relation.select(named(exp.Null(), EMPTY_NAME)).where(exp.false(), copy=False)
        if keys:
            select = select.order_by(*keys, copy=False)
        if result.limit is not None:
            select = select.limit(result.limit, copy=False)
        for name, each in self.selects:
            select = select.with_(identifier(name), as_=each, copy=False)
        return select


def _with_keys(relation: Relation, keys: tuple[Key, ...]) -> list[exp.Expr]:
    shown = {each.sql_name for each in relation.columns}
    return relation.all + [column(each.sql_name) for each in keys if each.sql_name not in shown]


def _keys(result: Result) -> list[exp.Expr]:
    """Return the order of a result.

    Rows that are equal in the keys keep the order of the input. If that is lost, a limit sorts by all columns, so that
    the same query on the same rows always returns the same rows.
    """
    keys = [each.sql for each in result.keys]
    if result.relation.numbered:
        return [*keys, sort_key(column(ROW), False)]
    if result.limit is not None and (result.mixed or keys):
        used = {each.sql_name for each in result.keys}
        return keys + [sort_key(each.sql, False) for each in result.relation.columns if each.sql_name not in used]
    return keys
