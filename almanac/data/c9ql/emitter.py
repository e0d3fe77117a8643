"""Turns an expression of C9QL into SQL with a type."""

from dataclasses import dataclass, replace
from typing import assert_never

from sqlglot import exp

from almanac.data.c9ql import comparisons
from almanac.data.c9ql.aggregates import Frame, emit_aggregate, emit_rolling
from almanac.data.c9ql.errors import C9qlError, no_field
from almanac.data.c9ql.functions import FUNCTIONS, Role
from almanac.data.c9ql.names import FieldNames
from almanac.data.c9ql.placeholders import Context, Value, as_text, resolve, substitute
from almanac.data.c9ql.scalars import Arguments, emit_scalar
from almanac.data.c9ql.tree import (
    AllFields,
    Between,
    Binary,
    Call,
    Case,
    Constant,
    Expression,
    In,
    IsNull,
    Logic,
    Name,
    Number,
    Over,
    Path,
    Placeholder,
    Text,
    Unary,
    Word,
)
from almanac.data.c9ql.values import (
    TEMPORAL,
    Typed,
    boolean_literal,
    cast,
    copies,
    func,
    identifier,
    integer,
    is_date_text,
    moment_literal,
    null,
    number_literal,
    string,
    text_literal,
    to_boolean,
    to_moment,
    to_number,
    to_timestamp,
    unify,
)
from almanac.data.fields import BOOLEAN, DECIMAL, INTEGER, TEXT, TIMESTAMP, Field, Kind

# The alias of the table that a select reads. Every column has it: without it, a name could mean a result of the same
# select in some clauses.
INPUT = "c9"

ARITHMETIC: dict[str, type[exp.Binary]] = {"+": exp.Add, "-": exp.Sub, "*": exp.Mul}


@dataclass(frozen=True, slots=True)
class Column:
    """A field and the SQL name of its column."""

    field: Field
    sql_name: str

    @property
    def sql(self) -> exp.Expr:
        """The column as an expression."""
        return exp.Column(this=identifier(self.sql_name), table=identifier(INPUT))


class Scope:
    """The columns that an expression can name."""

    def __init__(self, columns: tuple[Column, ...]) -> None:
        self.columns = columns
        self.names = FieldNames(each.field.name for each in columns)
        self._by_name: dict[str, Column] = {}
        for each in columns:
            self._by_name.setdefault(each.field.name, each)

    def column(self, name: str, at: int) -> Column:
        """Return the column of a field."""
        found = self.names.find(name)
        if found is None:
            raise no_field(name, self.names.names, at)
        return self._by_name[found]


@dataclass(frozen=True, slots=True)
class Emitter:
    """Turns expressions over these columns into SQL.

    `row` is the column with the number of the row, if the rows have an order. `lag_groups` are the groups of a
    statement that only has `lag`.
    """

    scope: Scope
    context: Context
    row: exp.Expr | None = None
    lag_groups: tuple[Expression, ...] = ()

    def condition(self, node: Expression) -> exp.Expr:
        """Return the SQL of a condition."""
        return to_boolean(self.value(node)).sql

    def value(self, node: Expression) -> Typed:
        """Return the SQL of an expression, with its type and its place in the text."""
        found = self._value(node)
        return found if found.at else replace(found, at=node.at)

    def _value(self, node: Expression) -> Typed:
        match node:
            case Name(name=name, at=at):
                column = self.scope.column(name, at)
                return Typed(column.sql, column.field.type)
            case Text(value=value, at=at) | Word(text=value, at=at):
                return self._resolved(substitute(value, self.context, at), at)
            case Placeholder(source=source, at=at):
                return self._resolved(resolve(source, self.context, at), at)
            case Number(digits=digits, at=at):
                return number_literal(digits, at)
            case Constant(value=value, at=at):
                return null(at) if value is None else boolean_literal(value, at)
            case Path():
                return self._path(node)
            case Unary():
                return self._unary(node)
            case Binary():
                return self._binary(node)
            case Logic() | IsNull() | In() | Between():
                return self._predicate(node)
            case Case():
                return self._case(node)
            case Call():
                return self._call(node)
            case AllFields():
                raise C9qlError("'*' cannot be part of an expression.", at=node.at)
            case _:
                assert_never(node)

    def _resolved(self, value: Value, at: int) -> Typed:
        if isinstance(value, tuple):
            raise C9qlError(f"a list of values ({as_text(value)[:40]}) can only stand after 'in'.", at=at)
        if value is None:
            return null(at)
        return text_literal(value, at) if isinstance(value, str) else moment_literal(value, at)

    # Operators

    def _unary(self, node: Unary) -> Typed:
        if node.operator == "not":
            return Typed(exp.Not(this=exp.Paren(this=self.condition(node.operand))), BOOLEAN)
        number = to_number(self.value(node.operand))
        if number.literal is not None:
            return number_literal(number.literal.removeprefix("-") if number.literal.startswith("-")
                                  else f"-{number.literal}", node.at)  # fmt: skip
        return Typed(exp.Neg(this=exp.Paren(this=number.sql)), number.type)

    def _binary(self, node: Binary) -> Typed:
        left, right = self.value(node.left), self.value(node.right)
        if node.operator in comparisons.OPERATORS:
            return comparisons.compare(node.operator, left, right)
        if node.operator in ("like", "not like"):
            test = comparisons.like(left, right)
            return Typed(test if node.operator == "like" else exp.Not(this=test), BOOLEAN)
        if left.kind in TEMPORAL or right.kind in TEMPORAL:
            return self._date_arithmetic(node, left, right)
        return self._arithmetic(node, to_number(left), to_number(right))

    def _arithmetic(self, node: Binary, left: Typed, right: Typed) -> Typed:
        whole = left.kind in (Kind.INTEGER, None) and right.kind in (Kind.INTEGER, None)
        match node.operator:
            case "/":
                divisor = func("nullif", cast(right.sql, Kind.DECIMAL), integer(0))
                sql: exp.Expr = exp.Div(this=cast(left.sql, Kind.DECIMAL), expression=divisor)
                whole = False
            case "%":
                sql = exp.Mod(this=exp.Paren(this=left.sql), expression=func("nullif", right.sql, integer(0)))
            case "^":
                power = func("pow", cast(left.sql, Kind.DECIMAL), cast(right.sql, Kind.DECIMAL))
                sql, whole = func("nullif", power, cast(string("nan"), Kind.DECIMAL)), False
            case _:
                sql = ARITHMETIC[node.operator](this=left.sql, expression=right.sql)
        return Typed(exp.Paren(this=sql), INTEGER if whole else DECIMAL)

    def _date_arithmetic(self, node: Binary, left: Typed, right: Typed) -> Typed:
        """Add or subtract milliseconds, or return the milliseconds between two dates."""
        left, right = (to_moment(each) if is_date_text(each) else each for each in (left, right))
        both = left.kind in (*TEMPORAL, None) and right.kind in (*TEMPORAL, None)
        if node.operator == "-" and both:
            first, second = (func("epoch_ms", to_timestamp(each).sql) for each in (left, right))
            return Typed(exp.Paren(this=exp.Sub(this=first, expression=second)), INTEGER)
        if node.operator == "+" and right.kind in TEMPORAL:
            left, right = right, left
        if node.operator not in ("+", "-") or left.kind not in TEMPORAL or right.kind in TEMPORAL:
            raise C9qlError(f"'{node.operator}' has no meaning for these dates.", at=node.at,
                            remedy="Add or subtract milliseconds, or subtract a date from a date.")  # fmt: skip
        milliseconds = func("to_milliseconds", cast(to_number(right).sql, Kind.DECIMAL))
        shifted = ARITHMETIC[node.operator](this=to_timestamp(left).sql, expression=milliseconds)
        return Typed(exp.Paren(this=shifted), TIMESTAMP)

    def _predicate(self, node: Logic | IsNull | In | Between) -> Typed:
        match node:
            case Logic(operator=operator, operands=operands):
                conditions = [self.condition(each) for each in operands]
                joined = comparisons.all_of(conditions) if operator == "and" else comparisons.any_of(conditions)
                return Typed(joined, BOOLEAN)
            case IsNull(operand=operand, negated=negated):
                return comparisons.is_null(self.value(operand), negated=negated)
            case In(operand=operand, options=options, negated=negated):
                value = self.value(operand)
                if len(options) > 1:
                    copies(value.sql)
                listed = [typed for each in options for typed in self._options(each)]
                return comparisons.is_one_of(value, listed, negated=negated)
            case Between(operand=operand, low=low, high=high, negated=negated):
                value = self.value(operand)
                copies(value.sql)
                bounds = [comparisons.compare(">=", value, self.value(low)).sql,
                          comparisons.compare("<=", value, self.value(high)).sql]  # fmt: skip
                within = comparisons.all_of(bounds)
                return Typed(exp.Not(this=within) if negated else within, BOOLEAN)

    def _options(self, node: Expression) -> list[Typed]:
        """Return the values of one entry after `in`; a parameter can have several."""
        if isinstance(node, Placeholder | Text | Word):
            text = node.source if isinstance(node, Placeholder) else node.value if isinstance(node, Text) else node.text
            found = resolve(text, self.context, node.at) if isinstance(node, Placeholder) else substitute(
                text, self.context, node.at)  # fmt: skip
            if isinstance(found, tuple):
                return [text_literal(each, node.at) for each in found]
        return [self.value(node)]

    def _case(self, node: Case) -> Typed:
        conditions = [condition for condition, _ in node.branches]
        if node.operand is None:
            tests = [self.condition(each) for each in conditions]
        else:
            operand = self.value(node.operand)
            copies(operand.sql)
            tests = [comparisons.compare("=", operand, self.value(each)).sql for each in conditions]
        otherwise = null() if node.otherwise is None else self.value(node.otherwise)
        results, data_type = unify([*(self.value(value) for _, value in node.branches), otherwise])
        branches = [exp.If(this=test, true=result.sql) for test, result in zip(tests, results, strict=False)]
        return Typed(exp.Case(ifs=branches, default=results[-1].sql), data_type)

    # Paths

    def _path(self, node: Path) -> Typed:
        value = self.value(node.base)
        for position, step in enumerate(node.steps):
            if value.is_json:
                return self._json_path(value, node.steps[position:])
            value = self._index(value, step, node) if isinstance(step, int) else self._member(value, step, node)
        return value

    def _json_path(self, value: Typed, steps: tuple[str | int, ...]) -> Typed:
        quoted = (f"[{each}]" if isinstance(each, int) else '."' + each.replace('"', '\\"') + '"' for each in steps)
        return Typed(func("json_extract_string", value.sql, string("$" + "".join(quoted))), TEXT)

    def _index(self, value: Typed, step: int, node: Path) -> Typed:
        if value.type is None or value.type.element is None:
            raise C9qlError(f"an index needs a list, not a {value.kind}.", at=node.at)
        return Typed(func("list_extract", value.sql, integer(step + 1)), value.type.element)

    def _member(self, value: Typed, step: str, node: Path) -> Typed:
        if value.kind != Kind.RECORD or value.type is None:
            remedy = {Kind.LIST: "Use an index such as [0], or expand the list.", Kind.TEXT: "Use parse(…) first."}
            raise C9qlError(f"'.{step}' needs a record, not a {value.kind}.", at=node.at,
                            remedy=remedy.get(value.kind or Kind.TEXT, ""))  # fmt: skip
        names = FieldNames(each.name for each in value.type.fields)
        found = names.find(step)
        if found is None:
            raise no_field(step, names.names, node.at)
        member = next(each for each in value.type.fields if each.name == found)
        return Typed(func("struct_extract", value.sql, string(found)), member.type)

    # Calls

    def _call(self, node: Call) -> Typed:
        function = FUNCTIONS[node.function]
        match function.role:
            case Role.RESHAPING:
                raise C9qlError(f"{node.function} must stand alone, apart from '*' and fields.",
                                at=node.at)  # fmt: skip
            case Role.SCALAR:
                if node.over is not None:
                    raise C9qlError(f"{node.function} is not an aggregate, so it takes no 'over'.", at=node.at)
                return emit_scalar(node.function, self._arguments(node), self.context, node.at)
            case Role.AGGREGATE:
                return self._aggregate(node)
            case Role.ROLLING:
                return self._rolling(node)
            case Role.RANKING:
                if node.over is None or not node.over.order:
                    raise C9qlError(f"{node.function} needs 'over (order by …)'.", at=node.at)
                return Typed(self._frame(node.over).over(func(node.function)), INTEGER)

    def _arguments(self, node: Call) -> list[Typed]:
        return [self.value(each) for each in node.arguments if not isinstance(each, AllFields)]

    def _aggregate(self, node: Call) -> Typed:
        given = Arguments(node.function, self._arguments(node), self.context, node.at)
        if node.over is None:
            return emit_aggregate(given, self.row)
        result = emit_aggregate(given, None)
        frame = self._frame(node.over)
        if isinstance(result.sql, exp.Cast):
            return Typed(cast(frame.over(result.sql.this), result.kind or Kind.INTEGER), result.type)
        if node.function == "array":
            raise C9qlError("array takes no 'over'.", at=node.at)
        return Typed(frame.over(result.sql), result.type)

    def _frame(self, over: Over) -> Frame:
        order = [sort_key(self.value(each.expression).sql, each.descending) for each in over.order]
        return Frame([self.value(each).sql for each in over.partition], order)

    def _rolling(self, node: Call) -> Typed:
        if node.over is not None:
            raise C9qlError(f"{node.function} takes its groups as arguments, not 'over'.", at=node.at)
        assert self.row is not None, "a statement with a rolling function numbers its rows"
        first_group = {"lag": 3, "sma": 2, "tma": 3}.get(node.function, 1)
        groups = self.lag_groups if node.function == "lag" else node.arguments[first_group:]
        frame = Frame([self.value(each).sql for each in groups], [sort_key(self.row.copy(), False)])
        values = [self.value(each) for each in node.arguments[:first_group]]
        return emit_rolling(Arguments(node.function, values, self.context, node.at), frame)


def sort_key(sql: exp.Expr, descending: bool) -> exp.Ordered:
    """Return one key of an order; null comes last."""
    return exp.Ordered(this=sql, desc=descending, nulls_first=False)


def output(value: Typed) -> Typed:
    """Return a value as a column: null alone is a text."""
    if value.type is None:
        return Typed(cast(value.sql, Kind.TEXT), TEXT)
    return value
