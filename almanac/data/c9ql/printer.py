"""Prints the tree of a C9QL query. Parsing the printed text gives the same tree, whatever the fields are.

Names stand in backticks, so that no other field, keyword or operator can be found in them.
"""

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
    Item,
    Logic,
    Name,
    Number,
    Over,
    Path,
    Placeholder,
    Query,
    Sort,
    Statement,
    Text,
    Unary,
    Without,
    Word,
)

CONSTANTS = {True: "true", False: "false", None: "null"}

# A larger number binds tighter.
_OR, _AND, _NOT, _COMPARISON, _SUM, _PRODUCT, _SIGN, _POWER, _OPERAND = range(9)
_STRENGTH = {"+": _SUM, "-": _SUM, "*": _PRODUCT, "/": _PRODUCT, "%": _PRODUCT, "^": _POWER}


def print_query(query: Query) -> str:
    """Return the text of a query."""
    return "; ".join(print_statement(each) for each in query.statements)


def print_statement(statement: Statement) -> str:
    """Return the text of a statement."""
    parts = ["select", *(["distinct"] if statement.distinct else []), ", ".join(map(_item, statement.items))]
    if statement.where is not None:
        parts += ["where", print_expression(statement.where)]
    if statement.group:
        parts += ["group by", _list(statement.group)]
    if statement.having is not None:
        parts += ["having", print_expression(statement.having)]
    if statement.order:
        parts += ["order by", ", ".join(map(_sort, statement.order))]
    if statement.limit is not None:
        parts += ["limit", str(statement.limit)]
    return " ".join(parts)


def print_expression(expression: Expression) -> str:
    """Return the text of an expression."""
    return _print(expression, quoted=True)


def name_of(expression: Expression) -> str:
    """Return the name of a result field without an alias: its expression, with plain names."""
    return _print(expression, quoted=False)


def _item(item: Item | Without) -> str:
    if isinstance(item, Without):
        return f"~{_backticks(item.field.name)}"
    alias = "" if item.alias is None else f" as {_backticks(item.alias)}"
    return print_expression(item.expression) + alias


def _list(expressions: tuple[Expression, ...]) -> str:
    return ", ".join(map(print_expression, expressions))


def _sort(sort: Sort) -> str:
    return print_expression(sort.expression) + (" desc" if sort.descending else "")


def _backticks(name: str) -> str:
    return f"`{name.replace('`', '``')}`"


def _print(node: Expression, *, quoted: bool) -> str:
    def inside(child: Expression, strength: int) -> str:
        text = _print(child, quoted=quoted)
        return text if _strength(child) >= strength else f"({text})"

    match node:
        case Name() | Word() | Text() | Number() | Constant() | Placeholder() | AllFields():
            return _print_leaf(node, quoted)
        case Path(base=base, steps=steps):
            return inside(base, _OPERAND) + "".join(_step(each, quoted) for each in steps)
        case Unary(operator="-", operand=operand):
            return f"-{inside(operand, _SIGN)}"
        case Unary(operand=operand):
            return f"not {inside(operand, _NOT)}"
        case Binary(operator="^", left=left, right=right):
            return f"{inside(left, _OPERAND)} ^ {inside(right, _SIGN)}"
        case Binary(operator=operator, left=left, right=right):
            own = _STRENGTH.get(operator, _COMPARISON)
            return f"{inside(left, own)} {operator} {inside(right, max(own, _COMPARISON) + 1)}"
        case Logic(operator=operator, operands=operands):
            own = _AND if operator == "and" else _OR
            return f" {operator} ".join(inside(each, own + 1) for each in operands)
        case IsNull(operand=operand, negated=negated):
            return f"{inside(operand, _COMPARISON)} is {'not ' if negated else ''}null"
        case In(operand=operand, options=options, negated=negated):
            listed = ", ".join(inside(each, _SUM) for each in options)
            return f"{inside(operand, _COMPARISON)} {'not ' if negated else ''}in ({listed})"
        case Between(operand=operand, low=low, high=high, negated=negated):
            bounds = f"{inside(low, _SUM)} and {inside(high, _SUM)}"
            return f"{inside(operand, _COMPARISON)} {'not ' if negated else ''}between {bounds}"
        case Case():
            return _print_case(node, quoted)
        case Call():
            return _print_call(node, quoted)


def _strength(node: Expression) -> int:
    match node:
        case Logic(operator=operator):
            return _AND if operator == "and" else _OR
        case Unary(operator="not"):
            return _NOT
        case Unary():
            return _SIGN
        case Binary(operator=operator):
            return _STRENGTH.get(operator, _COMPARISON)
        case IsNull() | In() | Between():
            return _COMPARISON
        case _:
            return _OPERAND


def _print_leaf(node: Name | Word | Text | Number | Constant | Placeholder | AllFields, quoted: bool) -> str:
    match node:
        case Name(name=name):
            return _backticks(name) if quoted else name
        case Word(text=text):
            return '"' + text.replace('"', '""') + '"' if quoted else text
        case Text(value=value):
            return "'" + value.replace("'", "''") + "'"
        case Number(digits=digits):
            return digits
        case Constant(value=value):
            return CONSTANTS[value]
        case Placeholder(source=source):
            return source
        case AllFields():
            return "*"


def _step(step: str | int, quoted: bool) -> str:
    return f"[{step}]" if isinstance(step, int) else f".{_backticks(step) if quoted else step}"


def _print_case(node: Case, quoted: bool) -> str:
    parts = ["case"] if node.operand is None else ["case", _print(node.operand, quoted=quoted)]
    for condition, value in node.branches:
        parts += ["when", _print(condition, quoted=quoted), "then", _print(value, quoted=quoted)]
    if node.otherwise is not None:
        parts += ["else", _print(node.otherwise, quoted=quoted)]
    return " ".join([*parts, "end"])


def _print_call(node: Call, quoted: bool) -> str:
    printed = f"{node.function}({', '.join(_print(each, quoted=quoted) for each in node.arguments)})"
    return printed if node.over is None else f"{printed} over ({_print_over(node.over, quoted)})"


def _print_over(over: Over, quoted: bool) -> str:
    parts: list[str] = []
    if over.partition:
        parts.append("partition by " + ", ".join(_print(each, quoted=quoted) for each in over.partition))
    if over.order:
        keys = [_print(each.expression, quoted=quoted) + (" desc" if each.descending else "") for each in over.order]
        parts.append("order by " + ", ".join(keys))
    return " ".join(parts)
