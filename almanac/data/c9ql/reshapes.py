"""Compiles the statements that make other rows and fields: expand, transpose and inject.

The function stands alone in its select list, apart from `*` and fields.
"""

from dataclasses import dataclass, replace

from sqlglot import exp

from almanac.data.c9ql.dates import read_duration
from almanac.data.c9ql.emitter import INPUT, Column, Emitter
from almanac.data.c9ql.errors import C9qlError
from almanac.data.c9ql.functions import FUNCTIONS, Role
from almanac.data.c9ql.names import fold
from almanac.data.c9ql.placeholders import Context
from almanac.data.c9ql.printer import name_of
from almanac.data.c9ql.relations import (
    EMPTY_NAME,
    ROW,
    Chain,
    Key,
    Relation,
    Result,
    column,
    columns_for,
    named,
    table_named,
)
from almanac.data.c9ql.resolver import Resolver, require_rows_only
from almanac.data.c9ql.scalars import interval
from almanac.data.c9ql.selects import select_list
from almanac.data.c9ql.tree import AllFields, Call, Expression, Item, Name, Statement, Text
from almanac.data.c9ql.values import (
    Typed,
    cast,
    copies,
    func,
    identifier,
    integer,
    string,
    to_json,
    to_text,
    unify,
)
from almanac.data.fields import DATE, JSON, TEXT, TIMESTAMP, DataType, Field, Kind

MAX_TRANSPOSED_FIELDS = 500
ITEM, POSITION, KNOWN = "c9 item", "c9 position", "c9 known"


class KeysNeededError(Exception):
    """A transpose cannot be compiled before the values of its key are known; `query` returns them."""

    def __init__(self, query: exp.Select) -> None:
        self.query = query
        super().__init__("the keys of a transpose are needed")


@dataclass(frozen=True, slots=True)
class Reshape:
    """A statement with such a function: the call, and the fields beside it; None if it stands alone."""

    call: Call
    kept: tuple[Column, ...] | None


def reshaping_call(statement: Statement) -> Call | None:
    """Return the function of a statement that makes other rows and fields; None if it has none."""
    for item in statement.items:
        expression = item.expression if isinstance(item, Item) else None
        if isinstance(expression, Call) and FUNCTIONS[expression.function].role == Role.RESHAPING:
            return expression
    return None


def compile_reshape(relation: Relation, statement: Statement, chain: Chain, context: Context,
                    keys: list[str] | None) -> Result:  # fmt: skip
    """Add the selects of a statement to the chain, up to its order and limit."""
    shape = _read(relation, statement)
    relation = _filtered(relation, statement, chain, context)
    builder = Builder(relation, chain, context, shape)
    match shape.call.function:
        case "expand" | "expand_arrays":
            made = builder.expand([(each, None) for each in shape.call.arguments])
        case "expand_arrays_with_defaults":
            made = builder.expand(_pairs(shape.call))
        case "transpose":
            made = builder.transpose(keys)
        case "reverse_transpose":
            made = builder.reverse_transpose()
        case _:
            made = builder.inject()
    return Result(made, _keys(made, statement), statement.limit, mixed=not made.numbered)


def _read(relation: Relation, statement: Statement) -> Reshape:
    call = reshaping_call(statement)
    assert call is not None
    if statement.group or statement.having is not None or statement.distinct:
        raise C9qlError(f"{call.function} cannot be combined with 'distinct', 'group by' or 'having'.", at=call.at,
                        remedy="Use two statements, separated by ';'.")  # fmt: skip
    others = tuple(each for each in statement.items if not isinstance(each, Item) or each.expression != call)
    for each in others:
        if isinstance(each, Item) and not isinstance(each.expression, AllFields | Name):
            raise C9qlError(f"{call.function} can only stand beside '*' and fields.", at=each.expression.at,
                            remedy="Use two statements, separated by ';'.")  # fmt: skip
    if not others:
        return Reshape(call, None)
    outputs = select_list(relation, replace(statement, items=others))
    names = [each.expression.name for each in outputs if isinstance(each.expression, Name)]
    return Reshape(call, tuple(relation.scope.column(each, call.at) for each in names))


def _filtered(relation: Relation, statement: Statement, chain: Chain, context: Context) -> Relation:
    if statement.where is None:
        return relation
    where = Resolver(relation.scope).resolve(statement.where)
    require_rows_only(where, "'where'")
    condition = Emitter(relation.scope, context).condition(where)
    select = relation.select(*relation.all).where(condition, copy=False)
    return replace(relation, table=chain.add(select))


def _keys(made: Relation, statement: Statement) -> tuple[Key, ...]:
    keys: list[Key] = []
    for each in statement.order:
        expression = Resolver(made.scope).resolve(each.expression)
        if not isinstance(expression, Name):
            raise C9qlError("this statement can only be sorted by fields.", at=expression.at,
                            remedy="Sort in a second statement, after ';'.")  # fmt: skip
        keys.append(Key(made.scope.column(expression.name, expression.at).sql_name, each.descending))
    return tuple(keys)


def _pairs(call: Call) -> list[tuple[Expression, Expression | None]]:
    if len(call.arguments) % 2:
        raise C9qlError(f"{call.function} takes a default for each field.", at=call.at,
                        remedy=f"Write {call.function}(field, default, …).")  # fmt: skip
    return list(zip(call.arguments[::2], call.arguments[1::2], strict=True))


@dataclass(slots=True)
class Builder:
    """Builds the selects of one function."""

    relation: Relation
    chain: Chain
    context: Context
    shape: Reshape

    def _value(self, node: Expression) -> Typed:
        resolved = Resolver(self.relation.scope).resolve(node)
        require_rows_only(resolved, self.shape.call.function)
        return Emitter(self.relation.scope, self.context).value(resolved)

    def _field(self, node: Expression) -> Column:
        resolved = Resolver(self.relation.scope).resolve(node)
        if not isinstance(resolved, Name):
            raise C9qlError(f"{self.shape.call.function} needs a field here.", at=node.at)
        return self.relation.scope.column(resolved.name, node.at)

    # Expand

    def expand(self, arguments: list[tuple[Expression, Expression | None]]) -> Relation:
        """Turn the elements of lists into rows, and the members of records into fields."""
        resolver, relation = Resolver(self.relation.scope), self.relation
        nodes = [resolver.resolve(node) for node, _ in arguments]
        lists = [self._list(node, default) for node, (_, default) in zip(nodes, arguments, strict=True)]
        expanded = {each.name for each in nodes if isinstance(each, Name)}
        kept = [each for each in self.shape.kept or () if each.field.name not in expanded]
        items = [named(exp.Unnest(expressions=[each.sql]), f"{ITEM} {at}") for at, each in enumerate(lists)]
        columns = [each.sql for each in kept]
        if relation.numbered:
            longest = [func("len", copies(each.sql)) for each in lists]
            items.append(named(exp.Unnest(expressions=[func("range", func("greatest", *longest))]), POSITION))
            columns.append(column(ROW))
        table = self.chain.add(relation.select(*columns, *items))
        defaults = [None if default is None else self._value(default) for _, default in arguments]
        made = _members(nodes, lists, defaults, {fold(each.field.name) for each in kept})
        return self._expanded(table, kept, made)

    def _expanded(self, table: str, kept: list[Column], made: list[tuple[Field, exp.Expr]]) -> Relation:
        columns = columns_for([*(each.field for each in kept), *(field for field, _ in made)])
        sources = [*(each.sql for each in kept), *(sql for _, sql in made)]
        shown = [named(sql, each.sql_name) for sql, each in zip(sources, columns, strict=True)]
        if self.relation.numbered:
            order = [exp.Ordered(this=column(each), desc=False, nulls_first=False) for each in (ROW, POSITION)]
            rows = exp.Window(this=func("row_number"), order=exp.Order(expressions=order), over="OVER")
            shown.append(named(rows, ROW))
        select = Relation(table, ()).select(*shown)
        return self.chain.add_relation(select, columns, numbered=self.relation.numbered)

    def _list(self, node: Expression, default: Expression | None) -> Typed:
        """Return a value as a list: a record is a list of one, JSON text is read."""
        require_rows_only(node, self.shape.call.function)
        value = Emitter(self.relation.scope, self.context).value(node)
        if value.kind == Kind.TEXT or value.is_json:
            value = _json_list(to_json(value))
        elif value.kind == Kind.RECORD:
            value = Typed(exp.Array(expressions=[value.sql]), DataType(Kind.LIST, value.type))
        elif value.kind != Kind.LIST:
            raise C9qlError(f"{self.shape.call.function} needs a list or record, not a {value.kind}.", at=node.at)
        if default is None:
            return value
        empty = exp.EQ(this=func("coalesce", func("len", copies(value.sql)), integer(0)), expression=integer(0))
        one = exp.Array(expressions=[exp.Null()])
        return Typed(exp.Case(ifs=[exp.If(this=empty, true=one)], default=value.sql), value.type)

    # Transpose

    def transpose(self, keys: list[str] | None) -> Relation:
        """Turn the values of a field into fields. Rows that agree in the other fields become one."""
        relation = self.relation = self.chain.number(self.relation)
        key_node, value_node = self.shape.call.arguments
        key, value = to_text(self._value(key_node)).sql, self._value(value_node)
        if keys is None:
            raise KeysNeededError(self._keys_query(key))
        groups = self._transposed_groups(key_node, value_node)
        fields = [*(each.field for each in groups), *(Field(name or EMPTY_NAME, value.type or TEXT) for name in keys)]
        columns = columns_for(fields)
        picked = [_picked(value.sql, key, each) for each in keys]
        sources = [*(each.sql for each in groups), *picked]
        shown = [named(sql, each.sql_name) for sql, each in zip(sources, columns, strict=True)]
        first = func("min", column(ROW))
        select = relation.select(*shown, named(first, ROW))
        if groups:
            select = select.group_by(*(each.sql for each in groups), copy=False)
        return self.chain.add_relation(select, columns, numbered=True)

    def _transposed_groups(self, key: Expression, value: Expression) -> list[Column]:
        if self.shape.kept is not None and not self._has_star(self.shape.kept):
            return list(self.shape.kept)
        resolver = Resolver(self.relation.scope)
        used = {each.name for each in map(resolver.resolve, (key, value)) if isinstance(each, Name)}
        return [each for each in self.shape.kept or self.relation.columns if each.field.name not in used]

    def _has_star(self, kept: tuple[Column, ...]) -> bool:
        return len(kept) == len(self.relation.columns)

    def _keys_query(self, key: exp.Expr) -> exp.Select:
        """Return the select of the keys, in the order of their first rows."""
        select = self.relation.select(named(key, "key"), named(func("min", column(ROW)), ROW))
        table = self.chain.add(select.group_by(integer(1), copy=False))
        keys = Relation(table, columns_for([Field("key", TEXT)]), numbered=True)
        present = exp.Not(this=exp.Is(this=column("key"), expression=exp.Null()))
        filtered = replace(keys, table=self.chain.add(keys.select(*keys.all).where(present, copy=False)))
        return self.chain.finish(Result(filtered, limit=MAX_TRANSPOSED_FIELDS + 1))

    def reverse_transpose(self) -> Relation:
        """Turn fields into rows: one with the name and the value of each field that is not fixed."""
        new_key, new_value, *fixed_nodes = self.shape.call.arguments
        fixed = [self._field(each) for each in fixed_nodes]
        turned = [each for each in self.relation.columns if each not in fixed]
        if not turned:
            raise C9qlError("reverse_transpose has no field to turn into rows.", at=self.shape.call.at)
        values, data_type = unify([Typed(each.sql, each.field.type) for each in turned])
        if data_type is not None and data_type.kind in (Kind.LIST, Kind.RECORD):
            values, data_type = [to_text(each) for each in values], TEXT
        names = exp.Array(expressions=[string(each.field.name) for each in turned])
        array = exp.Array(expressions=[each.sql for each in values])
        lists = [Typed(names, DataType(Kind.LIST, TEXT)), Typed(array, DataType(Kind.LIST, data_type))]
        items = [named(exp.Unnest(expressions=[each.sql]), f"{ITEM} {at}") for at, each in enumerate(lists)]
        positions = exp.Unnest(expressions=[func("range", integer(len(turned)))])
        numbered = [column(ROW), named(positions, POSITION)] if self.relation.numbered else []
        table = self.chain.add(self.relation.select(*(each.sql for each in fixed), *items, *numbered))
        made = [(Field(_literal(new_key), TEXT), column(f"{ITEM} 0")),
                (Field(_literal(new_value), data_type or TEXT), column(f"{ITEM} 1"))]  # fmt: skip
        return self._expanded(table, fixed, made)

    # Inject

    def inject(self) -> Relation:
        """Add a row for each missing date between the first and the last one, for each group."""
        date_node, step_node, *group_nodes = self.shape.call.arguments
        date, groups = self._field(date_node), [self._field(each) for each in group_nodes]
        if date.field.type not in (DATE, TIMESTAMP):
            raise C9qlError(f"inject needs a date, not a {date.field.type.kind}.", at=date_node.at)
        step = read_duration(_literal(step_node), step_node.at)
        if step.months + step.seconds <= 0 or (date.field.type == DATE and not step.is_whole_days):
            raise C9qlError("inject needs a step of whole days, or of any length for timestamps.", at=step_node.at)
        series = self._series(date, groups, interval(step))
        missing = self._missing(date, groups, series)
        columns = [each.sql for each in self.relation.columns]
        plain = Relation(self.relation.table, self.relation.columns)
        union = exp.Union(this=plain.select(*columns), expression=missing, distinct=False)
        both = exp.Select(expressions=[each.copy() for each in columns]).from_(
            exp.Subquery(this=union, alias=exp.TableAlias(this=identifier(INPUT)))
        )
        made = Relation(self.chain.add(both), self.relation.columns)
        order = [exp.Ordered(this=each.sql, desc=False, nulls_first=False) for each in (*groups, date)]
        rows = exp.Window(this=func("row_number"), order=exp.Order(expressions=order), over="OVER")
        return self.chain.add_relation(made.select(*made.all, named(rows, ROW)), made.columns, numbered=True)

    def _series(self, date: Column, groups: list[Column], step: exp.Expr) -> Relation:
        """Return the relation with all dates that each group should have."""
        ends = [cast(func(each, date.sql), Kind.TIMESTAMP) for each in ("min", "max")]
        dates = exp.Unnest(expressions=[func("generate_series", *ends, step)])
        select = self.relation.select(*(each.sql for each in groups), named(dates, ITEM))
        if groups:
            select = select.group_by(*(each.sql for each in groups), copy=False)
        return Relation(self.chain.add(select), ())

    def _missing(self, date: Column, groups: list[Column], series: Relation) -> exp.Select:
        """Return the rows of the dates that are not in the input; the other fields are null."""
        given = cast(column(ITEM), date.field.type.kind)
        sources = {date.sql_name: given} | {each.sql_name: each.sql for each in groups}
        shown = [sources.get(each.sql_name, exp.Null()) for each in self.relation.columns]
        same: list[exp.Expr] = [
            exp.NullSafeEQ(this=column(each.sql_name, KNOWN), expression=column(each.sql_name)) for each in groups
        ]
        moment = cast(column(date.sql_name, KNOWN), Kind.TIMESTAMP)
        same.append(exp.EQ(this=moment, expression=column(ITEM)))
        known = table_named(self.relation.table, KNOWN)
        found = exp.Select(expressions=[integer(1)]).from_(known).where(*same, copy=False)
        return series.select(*shown).where(exp.Not(this=exp.Exists(this=found)), copy=False)


def _literal(node: Expression) -> str:
    if not isinstance(node, Text):
        raise C9qlError("a literal is needed here.", at=node.at)
    return node.value


def _json_list(value: Typed) -> Typed:
    """Return the elements of a JSON array; any other value is a list of one."""
    is_list = exp.EQ(this=func("json_type", copies(value.sql)), expression=string("ARRAY"))
    elements = exp.Cast(this=copies(value.sql), to=exp.DataType.build("JSON[]", dialect="duckdb"))
    one = exp.Array(expressions=[value.sql])
    is_null = exp.Is(this=copies(value.sql), expression=exp.Null())
    branches = [exp.If(this=is_null, true=exp.Null()), exp.If(this=is_list, true=elements)]
    return Typed(exp.Case(ifs=branches, default=one), DataType(Kind.LIST, JSON))


def _members(nodes: list[Expression], lists: list[Typed], defaults: list[Typed | None],
             taken: set[str]) -> list[tuple[Field, exp.Expr]]:  # fmt: skip
    """Return the fields of the expanded values: the members of records, or the value itself."""
    made: list[tuple[Field, exp.Expr]] = []
    for at, (node, each) in enumerate(zip(nodes, lists, strict=True)):
        item, element = column(f"{ITEM} {at}"), each.type.element if each.type else None
        default, name = defaults[at], name_of(node)
        if element is not None and element.kind == Kind.RECORD and element.fields:
            members = [(one.name, Typed(func("struct_extract", item.copy(), string(one.name)), one.type))
                       for one in element.fields]  # fmt: skip
        else:
            members = [(name, Typed(item, element))]
        for member, value in members:
            unique = member if fold(member) not in taken else f"{name}.{member}"
            taken.add(fold(unique))
            filled = value if default is None else _filled(value, default)
            made.append((Field(unique, filled.type or TEXT), filled.sql))
    return made


def _filled(value: Typed, default: Typed) -> Typed:
    values, data_type = unify([value, default])
    return Typed(func("coalesce", *(each.sql for each in values)), data_type)


def _picked(value: exp.Expr, key: exp.Expr, name: str) -> exp.Expr:
    """Return the last value of the rows with this key."""
    same = exp.Where(this=exp.EQ(this=key.copy(), expression=string(name)))
    return exp.Filter(this=func("arg_max", copies(value), column(ROW)), expression=same)
