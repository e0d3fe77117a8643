"""Compiles a statement that selects, filters, groups and sorts."""

from dataclasses import dataclass, replace

from almanac.data.c9ql.emitter import Column, Emitter, output
from almanac.data.c9ql.errors import C9qlError
from almanac.data.c9ql.functions import Role
from almanac.data.c9ql.names import fold
from almanac.data.c9ql.placeholders import Context
from almanac.data.c9ql.printer import name_of
from almanac.data.c9ql.relations import ROW, Chain, Key, Relation, Result, column, columns_for, named
from almanac.data.c9ql.resolver import (
    Resolver,
    calls,
    position,
    require_flat,
    require_grouped,
    require_rows_only,
)
from almanac.data.c9ql.tree import AllFields, Expression, Item, Name, Sort, Statement, Without
from almanac.data.c9ql.values import Typed
from almanac.data.fields import TEXT, Field

ORDERED_AGGREGATES = ("array", "group_concat")


@dataclass(frozen=True, slots=True)
class Output:
    """A field of the result and its expression, with exact names."""

    name: str
    expression: Expression


def compile_select(relation: Relation, statement: Statement, chain: Chain, context: Context) -> Result:
    """Add the selects of a statement to the chain, up to its order and limit."""
    outputs = select_list(relation, statement)
    aliases = {each.name: each.expression for each in outputs}
    group = _group(relation, statement, outputs)
    having = statement.having
    if having is not None:
        having = Resolver(relation.scope, aliases, prefer_aliases=True).resolve(having)
    order = _order(relation, statement, outputs)
    everything = [*(each.expression for each in (*outputs, *order)), *([having] if having else [])]
    shape = _shape(statement, group, everything)
    _check(shape, outputs, group, having, order)
    if _needs_rows(everything):
        relation = chain.number(relation)
    emitter = Emitter(relation.scope, context, relation.row, tuple(group) if shape.lags else ())
    return _assemble(relation, statement, chain, emitter, _Parts(outputs, group, having, order, shape))


@dataclass(frozen=True, slots=True)
class _Shape:
    grouped: bool
    lags: bool
    distinct: bool


@dataclass(frozen=True, slots=True)
class _Parts:
    outputs: list[Output]
    group: list[Expression]
    having: Expression | None
    order: list[Sort]
    shape: _Shape


def select_list(relation: Relation, statement: Statement) -> list[Output]:
    """Return the fields of the result: `*` without the excluded fields, and later items in place of earlier ones."""
    resolver = Resolver(relation.scope)
    excluded = {relation.scope.column(each.field.name, each.field.at).field.name
                for each in statement.items if isinstance(each, Without)}  # fmt: skip
    all_fields = [Output(each.field.name, Name(each.field.name)) for each in relation.columns
                  if each.field.name not in excluded]  # fmt: skip
    items = [each for each in statement.items if isinstance(each, Item)] or [Item(AllFields())]
    if excluded and all(not isinstance(each.expression, AllFields) for each in items):
        raise C9qlError("'~' excludes a field from '*'.", at=0, remedy="Write 'select *, ~Field'.")
    outputs: list[Output] = []
    for item in items:
        if isinstance(item.expression, AllFields):
            outputs += [each for each in all_fields if each.name not in {one.name for one in outputs}]
        else:
            expression = resolver.resolve(item.expression)
            _place(outputs, Output(item.alias or name_of(expression), expression))
    if not outputs:
        raise C9qlError("no field is left in the select list.", at=0)
    return outputs


def _place(outputs: list[Output], new: Output) -> None:
    """Add a field, in place of an earlier one with its name in any case. Two fields of the input are never the same."""
    is_field = isinstance(new.expression, Name) and new.expression.name == new.name
    names = [each.name for each in outputs]
    folded = [] if is_field else [fold(each) for each in names]
    if new.name in names:
        outputs[names.index(new.name)] = new
    elif fold(new.name) in folded:
        outputs[folded.index(fold(new.name))] = new
    else:
        outputs.append(new)


def _group(relation: Relation, statement: Statement, outputs: list[Output]) -> list[Expression]:
    resolver = Resolver(relation.scope, {each.name: each.expression for each in outputs})
    keys: list[Expression] = []
    for each in statement.group:
        index = position(each, len(outputs))
        key = resolver.resolve(each) if index is None else outputs[index].expression
        require_rows_only(key, "'group by'")
        keys.append(key)
    return keys


def _order(relation: Relation, statement: Statement, outputs: list[Output]) -> list[Sort]:
    aliases = {each.name: each.expression for each in outputs}
    resolver = Resolver(relation.scope, aliases, prefer_aliases=True)
    keys: list[Sort] = []
    for each in statement.order:
        index = position(each.expression, len(outputs))
        key = resolver.resolve(each.expression) if index is None else outputs[index].expression
        keys.append(replace(each, expression=key))
    return keys


def _shape(statement: Statement, group: list[Expression], everything: list[Expression]) -> _Shape:
    aggregates = any(calls(each, Role.AGGREGATE) for each in everything)
    lags = any(each.function == "lag" for one in everything for each in calls(one, Role.ROLLING))
    only_lags = lags and bool(group) and not aggregates
    grouped = aggregates or (bool(group) and not only_lags) or statement.having is not None
    return _Shape(grouped, only_lags, statement.distinct)


def _check(shape: _Shape, outputs: list[Output], group: list[Expression], having: Expression | None,
           order: list[Sort]) -> None:  # fmt: skip
    sorts = [each.expression for each in order]
    for each in [*(each.expression for each in outputs), *sorts]:
        require_flat(each)
    if shape.grouped:
        for each in [*(each.expression for each in outputs), *([having] if having else []), *sorts]:
            require_grouped(each, group)
    if shape.distinct:
        shown = [each.expression for each in outputs]
        missing = next((each for each in sorts if each not in shown), None)
        if missing is not None:
            raise C9qlError("a distinct result can only be sorted by its own fields.", at=missing.at)


def _needs_rows(expressions: list[Expression]) -> bool:
    return any(
        calls(each, Role.ROLLING) or any(one.function in ORDERED_AGGREGATES for one in calls(each, Role.AGGREGATE))
        for each in expressions
    )


def _assemble(relation: Relation, statement: Statement, chain: Chain, emitter: Emitter, parts: _Parts) -> Result:
    values = [output(emitter.value(each.expression)) for each in parts.outputs]
    fields = [Field(each.name, value.type or TEXT)
              for each, value in zip(parts.outputs, values, strict=True)]  # fmt: skip
    columns = columns_for(fields)
    shown = [named(value.sql, each.sql_name) for value, each in zip(values, columns, strict=True)]
    keys, hidden = _keys(parts, columns, emitter)
    numbered = relation.numbered and not parts.shape.grouped and not parts.shape.distinct
    row = [column(ROW)] if numbered else []
    select = relation.select(*shown, *(named(value.sql, name) for name, value in hidden), *row)
    if statement.where is not None:
        where = Resolver(relation.scope).resolve(statement.where)
        require_rows_only(where, "'where'", "Use 'having' for groups, or a second statement after ';'.")
        select = select.where(emitter.condition(where), copy=False)
    if parts.shape.grouped and parts.group:
        select = select.group_by(*(emitter.value(each).sql for each in parts.group), copy=False)
    if parts.having is not None:
        select = select.having(emitter.condition(parts.having), copy=False)
    if parts.shape.distinct:
        select = select.distinct(copy=False)
    settled = Relation(chain.add(select), columns, numbered)
    return Result(settled, tuple(keys), statement.limit, mixed=parts.shape.grouped or parts.shape.distinct)


def _keys(parts: _Parts, columns: tuple[Column, ...], emitter: Emitter) -> tuple[list[Key], list[tuple[str, Typed]]]:
    """Return the keys of the order, and those that are no column of the result."""
    keys, hidden = list[Key](), list[tuple[str, Typed]]()
    shown = [each.expression for each in parts.outputs]
    for each in parts.order:
        if each.expression in shown:
            name = columns[shown.index(each.expression)].sql_name
        else:
            name = _unused(f"c9 key {len(hidden) + 1}", columns)
            hidden.append((name, emitter.value(each.expression)))
        keys.append(Key(name, each.descending))
    return keys, hidden


def _unused(name: str, columns: tuple[Column, ...]) -> str:
    while any(fold(each.sql_name) == fold(name) for each in columns):
        name += "'"
    return name
