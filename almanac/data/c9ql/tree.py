"""The tree of a C9QL query, which does not depend on the types of the fields.

Two nodes are equal if they say the same; `at`, the offset in the text, does not count.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Literal


@dataclass(frozen=True, slots=True)
class Name:
    """A field."""

    name: str
    at: int = field(default=0, compare=False)


@dataclass(frozen=True, slots=True)
class Word:
    """Text in double quotes, or a word that may be a field: a field if there is one with this name, else a text."""

    text: str
    at: int = field(default=0, compare=False)


@dataclass(frozen=True, slots=True)
class Text:
    """A text, with date tokens and parameters still in it."""

    value: str
    at: int = field(default=0, compare=False)


@dataclass(frozen=True, slots=True)
class Number:
    """A number as it was written, so that it can be compared with text such as `007`."""

    digits: str
    at: int = field(default=0, compare=False)


@dataclass(frozen=True, slots=True)
class Constant:
    """True, false or null."""

    value: bool | None
    at: int = field(default=0, compare=False)


@dataclass(frozen=True, slots=True)
class Placeholder:
    """A date token such as `{$c9_today-1d:yyyyMMdd}` or a parameter such as `$c9_region$(West)$`, as written."""

    source: str
    at: int = field(default=0, compare=False)


@dataclass(frozen=True, slots=True)
class Path:
    """A place inside a record or list: names of fields, and indexes from 0."""

    base: "Expression"
    steps: tuple[str | int, ...]
    at: int = field(default=0, compare=False)


UnaryOperator = Literal["-", "not"]
BinaryOperator = Literal["+", "-", "*", "/", "%", "^", "=", "!=", "<", "<=", ">", ">=", "like", "not like"]
LogicOperator = Literal["and", "or"]


@dataclass(frozen=True, slots=True)
class Unary:
    """A negated number or condition."""

    operator: UnaryOperator
    operand: "Expression"
    at: int = field(default=0, compare=False)


@dataclass(frozen=True, slots=True)
class Binary:
    """Arithmetic or a comparison."""

    operator: BinaryOperator
    left: "Expression"
    right: "Expression"
    at: int = field(default=0, compare=False)


@dataclass(frozen=True, slots=True)
class Logic:
    """Two or more conditions, joined by the same operator."""

    operator: LogicOperator
    operands: tuple["Expression", ...]
    at: int = field(default=0, compare=False)


@dataclass(frozen=True, slots=True)
class IsNull:
    """A test for null."""

    operand: "Expression"
    negated: bool = False
    at: int = field(default=0, compare=False)


@dataclass(frozen=True, slots=True)
class In:
    """A test for one of several values."""

    operand: "Expression"
    options: tuple["Expression", ...]
    negated: bool = False
    at: int = field(default=0, compare=False)


@dataclass(frozen=True, slots=True)
class Between:
    """A test for a range, with both ends."""

    operand: "Expression"
    low: "Expression"
    high: "Expression"
    negated: bool = False
    at: int = field(default=0, compare=False)


@dataclass(frozen=True, slots=True)
class Case:
    """The value of the first branch with a true condition or, if there is an operand, an equal value."""

    operand: "Expression | None"
    branches: tuple[tuple["Expression", "Expression"], ...]
    otherwise: "Expression | None" = None
    at: int = field(default=0, compare=False)


@dataclass(frozen=True, slots=True)
class AllFields:
    """The star: all fields, or all rows in `count(*)`."""

    at: int = field(default=0, compare=False)


@dataclass(frozen=True, slots=True)
class Sort:
    """One key of an order."""

    expression: "Expression"
    descending: bool = False


@dataclass(frozen=True, slots=True)
class Over:
    """The rows that a window function looks at."""

    partition: tuple["Expression", ...] = ()
    order: tuple[Sort, ...] = ()


@dataclass(frozen=True, slots=True)
class Call:
    """A function; its name is in lower case."""

    function: str
    arguments: tuple["Expression", ...] = ()
    over: Over | None = None
    at: int = field(default=0, compare=False)


Expression = (
    Name
    | Word
    | Text
    | Number
    | Constant
    | Placeholder
    | Path
    | Unary
    | Binary
    | Logic
    | IsNull
    | In
    | Between
    | Case
    | AllFields
    | Call
)


@dataclass(frozen=True, slots=True)
class Item:
    """One entry of a select list."""

    expression: Expression
    alias: str | None = None


@dataclass(frozen=True, slots=True)
class Without:
    """An excluded field: `~Name`."""

    field: Name


@dataclass(frozen=True, slots=True)
class Statement:
    """One statement of a chain."""

    items: tuple[Item | Without, ...]
    distinct: bool = False
    where: Expression | None = None
    group: tuple[Expression, ...] = ()
    having: Expression | None = None
    order: tuple[Sort, ...] = ()
    limit: int | None = None


@dataclass(frozen=True, slots=True)
class Query:
    """A chain of statements: each reads the result of the one before."""

    statements: tuple[Statement, ...]
    text: str = field(default="", compare=False)  # the text that it was read from, for errors


def children(node: Expression) -> tuple[Expression, ...]:
    """Return the expressions directly inside this one."""
    match node:
        case Path(base=base):
            return (base,)
        case Unary(operand=operand) | IsNull(operand=operand):
            return (operand,)
        case Binary(left=left, right=right):
            return (left, right)
        case Logic(operands=operands):
            return operands
        case In(operand=operand, options=options):
            return (operand, *options)
        case Between(operand=operand, low=low, high=high):
            return (operand, low, high)
        case Case():
            ends = [each for each in (node.operand, node.otherwise) if each is not None]
            return (*ends, *(each for branch in node.branches for each in branch))
        case Call():
            over = node.over or Over()
            return (*node.arguments, *over.partition, *(each.expression for each in over.order))
        case _:
            return ()


def rewrite(node: Expression, change: Callable[[Expression], Expression]) -> Expression:
    """Return the expression with each expression directly inside it changed."""
    match node:
        case Path():
            return replace(node, base=change(node.base))
        case Unary() | IsNull():
            return replace(node, operand=change(node.operand))
        case Binary():
            return replace(node, left=change(node.left), right=change(node.right))
        case Logic():
            return replace(node, operands=tuple(map(change, node.operands)))
        case In():
            return replace(node, operand=change(node.operand), options=tuple(map(change, node.options)))
        case Between():
            return replace(node, operand=change(node.operand), low=change(node.low), high=change(node.high))
        case Case():
            return Case(
                None if node.operand is None else change(node.operand),
                tuple((change(condition), change(value)) for condition, value in node.branches),
                None if node.otherwise is None else change(node.otherwise),
                node.at,
            )
        case Call():
            return replace(node, arguments=tuple(map(change, node.arguments)), over=_rewrite_over(node.over, change))
        case _:
            return node


def _rewrite_over(over: Over | None, change: Callable[[Expression], Expression]) -> Over | None:
    if over is None:
        return None
    order = tuple(replace(each, expression=change(each.expression)) for each in over.order)
    return Over(tuple(map(change, over.partition)), order)


def walk(node: Expression) -> Iterator[Expression]:
    """Return the expression and every expression inside it."""
    waiting = [node]
    while waiting:
        waiting.extend(children(current := waiting.pop()))
        yield current


def depth(node: Expression) -> int:
    """Return the number of levels of the expression."""
    level, levels = [node], 0
    while level:
        level, levels = [child for each in level for child in children(each)], levels + 1
    return levels
