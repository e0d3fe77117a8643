"""A slow and obvious interpreter of C9QL over rows, as a second opinion on the compiler.

Rows are dictionaries with the names of the fields. It reads the same trees as the compiler, and shares no code with it.
"""

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from functools import cmp_to_key
from typing import Any, cast

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
    Path,
    Query,
    Sort,
    Statement,
    Text,
    Unary,
    Without,
    children,
)

Row = dict[str, Any]
AGGREGATES = {"count", "sum", "avg", "min", "max", "median", "sd", "distinct", "percentile", "array", "group_concat"}
ROLLING = {"accumulate", "growth", "delta", "sma", "cma", "tma", "lag"}
RESHAPES = {"expand", "transpose", "reverse_transpose", "inject"}


def run(query: Query, rows: Sequence[Row]) -> list[Row]:
    """Return the rows of the result."""
    result = list(rows)
    for statement in query.statements:
        result = run_statement(statement, result)
    return result


@dataclass
class Group:
    """The rows that an expression is evaluated for: a row with its neighbours, or a group."""

    rows: list[Row]
    position: int | None  # None for a group
    lag_groups: tuple[Expression, ...] = ()

    @property
    def row(self) -> Row:
        return self.rows[self.position or 0] if self.rows else {}


def run_statement(statement: Statement, rows: list[Row]) -> list[Row]:
    """Return the rows of one statement."""
    if statement.where is not None:
        rows = [row for row in rows if value(statement.where, Group([row], 0)) is True]
    reshape = next((each.expression for each in statement.items
                    if isinstance(each, Item) and isinstance(each.expression, Call)
                    and each.expression.function in RESHAPES), None)  # fmt: skip
    if reshape is not None:
        results = [(row, None) for row in run_reshape(statement, reshape, rows)]
    else:
        results = run_select(statement, rows)
    if statement.order:
        results.sort(key=cmp_to_key(lambda a, b: compare_results(statement.order, a, b)))
    shown = [row for row, _ in results]
    if statement.limit is not None:
        if not statement.order and (statement.distinct or is_grouped(statement)):
            shown.sort(key=lambda row: [sort_value(each) for each in row.values()])
        shown = shown[: statement.limit]
    return shown


def run_select(statement: Statement, rows: list[Row]) -> list[tuple[Row, Group | None]]:
    """Return the rows of a statement that selects, each with the rows that it was made from."""
    lags = any(contains(each.expression, {"lag"}) for each in statement.items if isinstance(each, Item))
    if is_grouped(statement):
        groups = make_groups(statement.group, rows)
    else:
        groups = [Group(rows, position, statement.group if lags else ()) for position in range(len(rows))]
    results: list[tuple[Row, Group | None]] = []
    for group in groups:
        row = select_row(statement, group)
        if statement.having is not None and value(statement.having, group, row) is not True:
            continue
        if statement.distinct and any(row == other for other, _ in results):
            continue
        results.append((row, group))
    return results


def is_grouped(statement: Statement) -> bool:
    """Return whether a statement makes one row for each group."""
    items = [each.expression for each in statement.items if isinstance(each, Item)]
    if any(contains(each, AGGREGATES) for each in items):
        return True
    return bool(statement.group) and not any(contains(each, {"lag"}) for each in items)


def contains(node: Expression, functions: set[str]) -> bool:
    """Return whether an expression calls one of these functions, not over a window."""
    if isinstance(node, Call) and node.function in functions and node.over is None:
        return True
    return any(contains(each, functions) for each in children(node))


def make_groups(keys: Sequence[Expression], rows: list[Row]) -> list[Group]:
    """Return the rows by the values of the keys; without keys, all rows are one group."""
    if not keys:
        return [Group(rows, None)]
    groups: list[tuple[list[Any], list[Row]]] = []
    for row in rows:
        key = [value(each, Group([row], 0)) for each in keys]
        for other, members in groups:
            if other == key:
                members.append(row)
                break
        else:
            groups.append((key, [row]))
    return [Group(members, None) for _, members in groups]


def select_row(statement: Statement, group: Group) -> Row:
    """Return the row of the select list."""
    excluded = {each.field.name for each in statement.items if isinstance(each, Without)}
    row: Row = {}
    for item in statement.items:
        if isinstance(item, Without):
            continue
        if isinstance(item.expression, AllFields):
            row |= {name: cell for name, cell in group.row.items() if name not in excluded and name not in row}
        else:
            assert item.alias is not None or isinstance(item.expression, Name)
            row[item.alias or getattr(item.expression, "name", "")] = value(item.expression, group)
    return row


def compare_results(order: Sequence[Sort], one: tuple[Row, Group | None], other: tuple[Row, Group | None]) -> int:
    """Compare two results by the keys of the order, then by all their values."""
    for key in order:
        left, right = (sort_key_of(key.expression, each) for each in (one, other))
        if left is None or right is None:
            difference = (left is None) - (right is None)
        else:
            difference = ((left > right) - (left < right)) * (-1 if key.descending else 1)
        if difference:
            return difference
    left, right = ([sort_value(each) for each in result[0].values()] for result in (one, other))
    return (left > right) - (left < right)


def sort_key_of(expression: Expression, result: tuple[Row, Group | None]) -> Any:
    row, group = result
    if isinstance(expression, Name) and expression.name in row:
        return row[expression.name]
    assert group is not None
    return value(expression, group)


def sort_value(cell: Any) -> tuple[bool, Any]:
    return (cell is None, "" if cell is None else cell)


# Values


def value(node: Expression, group: Group, results: Mapping[str, Any] | None = None) -> Any:
    """Return the value of an expression. `results` are the values of the select list, for `having`."""

    def of(child: Expression) -> Any:
        return value(child, group, results)

    match node:
        case Name(name=name):
            return results[name] if results is not None and name in results else group.row.get(name)
        case Text(value=text):
            return text
        case Number(digits=digits):
            return int(digits) if digits.isdigit() else float(digits)
        case Constant(value=constant):
            return constant
        case Path(base=base, steps=steps):
            return follow(of(base), steps)
        case Unary(operator="not", operand=operand):
            inner = of(operand)
            return None if inner is None else not inner
        case Unary(operand=operand):
            inner = of(operand)
            return None if inner is None else -inner
        case Binary(operator=operator, left=left, right=right):
            return operate(operator, of(left), of(right))
        case Logic(operator=operator, operands=operands):
            return join(operator, [of(each) for each in operands])
        case IsNull(operand=operand, negated=negated):
            return (of(operand) is None) != negated
        case In(operand=operand, options=options, negated=negated):
            found = join("or", [operate("=", of(operand), of(each)) for each in options])
            return None if found is None else found != negated
        case Between(operand=operand, low=low, high=high, negated=negated):
            found = join("and", [operate(">=", of(operand), of(low)), operate("<=", of(operand), of(high))])
            return None if found is None else found != negated
        case Case(operand=operand, branches=branches, otherwise=otherwise):
            for condition, result in branches:
                test = of(condition) if operand is None else operate("=", of(operand), of(condition))
                if test is True:
                    return of(result)
            return None if otherwise is None else of(otherwise)
        case Call():
            return call(node, group, of)
        case _:
            raise AssertionError(node)


def follow(base: Any, steps: Sequence[str | int]) -> Any:
    for step in steps:
        if base is None or (isinstance(step, int) and step >= len(base)):
            return None
        base = base[step]
    return base


def join(operator: str, cells: list[Any]) -> bool | None:
    """Return `and` or `or` with SQL's null: unknown."""
    decisive = operator == "or"
    if decisive in cells:
        return decisive
    return None if None in cells else not decisive


def operate(operator: str, left: Any, right: Any) -> Any:
    """Return the result of an operator; null if a side is null."""
    if left is None or right is None:
        return None
    if operator in ("like", "not like"):
        return (str(right).lower() in str(left).lower()) == (operator == "like")
    if isinstance(left, date) or isinstance(right, date):
        return operate_on_dates(operator, left, right)
    comparisons: dict[str, Callable[[], Any]] = {
        "=": lambda: left == right,
        "!=": lambda: left != right,
        "<": lambda: left < right,
        "<=": lambda: left <= right,
        ">": lambda: left > right,
        ">=": lambda: left >= right,
        "+": lambda: left + right,
        "-": lambda: left - right,
        "*": lambda: left * right,
        "/": lambda: None if right == 0 else left / right,
        "%": lambda: None if right == 0 else remainder(left, right),
        "^": lambda: power(left, right),
    }
    return comparisons[operator]()


def remainder(left: float, right: float) -> float:
    """Return the remainder with the sign of the left side."""
    if isinstance(left, int) and isinstance(right, int):
        return int(math.copysign(abs(left) % abs(right), left)) if left else 0
    return math.fmod(left, right)


def power(left: float, right: float) -> float | None:
    try:
        result = float(left) ** float(right)
    except ZeroDivisionError:
        return math.inf
    return None if isinstance(result, complex) else result


def operate_on_dates(operator: str, left: Any, right: Any) -> Any:
    left, right = (read_moment(each) if isinstance(each, str) else each for each in (left, right))
    if isinstance(left, date) and isinstance(right, date):
        if operator == "-":
            return (moment(left) - moment(right)) // timedelta(milliseconds=1)
        if isinstance(left, datetime) != isinstance(right, datetime):
            # A timestamp and a date are compared by the day.
            left, right = (each.date() if isinstance(each, datetime) else each for each in (left, right))
        return operate(operator, left.toordinal(), right.toordinal()) if not isinstance(left, datetime) else operate(
            operator, (left - datetime(1, 1, 1)) / timedelta(microseconds=1),
            (right - datetime(1, 1, 1)) / timedelta(microseconds=1))  # fmt: skip
    if not isinstance(left, date):
        left, right = right, left
    shift = timedelta(milliseconds=right)
    return moment(left) + shift if operator == "+" else moment(left) - shift


def read_moment(text: str) -> date | datetime:
    return date.fromisoformat(text) if len(text) == 10 else datetime.fromisoformat(text)


def moment(day: date) -> datetime:
    return day if isinstance(day, datetime) else datetime(day.year, day.month, day.day)


# Functions


def call(node: Call, group: Group, of: Callable[[Expression], Any]) -> Any:
    if node.function in AGGREGATES:
        if node.over is not None:
            return over_window(node, group)
        return aggregate(node, group.rows)
    if node.function in ("rank", "dense_rank"):
        return over_window(node, group)
    if node.function in ROLLING:
        return rolling(node, group)
    return SCALARS[node.function](*(of(each) for each in node.arguments))


def aggregate(node: Call, rows: list[Row]) -> Any:
    if isinstance(node.arguments[0], AllFields):
        return len(rows)
    cells = [value(node.arguments[0], Group([row], 0)) for row in rows]
    present = [cell for cell in cells if cell is not None]
    options = [value(each, Group([], None)) for each in node.arguments[1:]]
    match node.function:
        case "count":
            return len(present)
        case "distinct":
            return len({str(cell) for cell in present})
        case "array":
            dedupe, filter_null = [*options, False, False][:2]
            kept = present if filter_null else cells
            if not dedupe:
                return kept
            unique = sorted({cell for cell in kept if cell is not None})
            return unique + ([None] if None in kept else [])
        case "group_concat":
            return (options or [","])[0].join(map(str, present)) if present else None
        case "sd":
            return statistics.stdev(present) if len(present) > 1 else None
        case _:
            return of_numbers(node.function, present, options) if present else None


def of_numbers(function: str, numbers: list[Any], options: list[Any]) -> Any:
    match function:
        case "sum":
            return sum(numbers)
        case "avg":
            return sum(numbers) / len(numbers)
        case "median":
            return statistics.median(numbers)
        case "percentile":
            place = (len(numbers) - 1) * options[0] / 100
            low, high = sorted(numbers)[math.floor(place)], sorted(numbers)[math.ceil(place)]
            return low + (high - low) * (place - math.floor(place))
        case _:
            return min(numbers) if function == "min" else max(numbers)


def over_window(node: Call, group: Group) -> Any:
    assert node.over is not None
    assert group.position is not None
    own = group.row
    key = [value(each, Group([own], 0)) for each in node.over.partition]
    rows = [row for row in group.rows if [value(each, Group([row], 0)) for each in node.over.partition] == key]

    def compared(one: Row, other: Row) -> int:
        for each in node.over.order if node.over else ():
            left, right = (value(each.expression, Group([row], 0)) for row in (one, other))
            if left is None or right is None:
                difference = (left is None) - (right is None)
            else:
                difference = ((left > right) - (left < right)) * (-1 if each.descending else 1)
            if difference:
                return difference
        return 0

    before = [row for row in rows if compared(row, own) < 0]
    if node.function == "rank":
        return len(before) + 1
    if node.function == "dense_rank":
        keys = [[value(each.expression, Group([row], 0)) for each in node.over.order] for row in before]
        return len([key for at, key in enumerate(keys) if key not in keys[:at]]) + 1
    return aggregate(Call(node.function, node.arguments), [row for row in rows if compared(row, own) <= 0])


def rolling(node: Call, group: Group) -> Any:
    assert group.position is not None
    first_group = {"lag": 3, "sma": 2, "tma": 3}.get(node.function, 1)
    groups = group.lag_groups if node.function == "lag" else node.arguments[first_group:]

    def key(row: Row) -> list[Any]:
        return [value(each, Group([row], 0)) for each in groups]

    rows = [row for row in group.rows[: group.position + 1] if key(row) == key(group.row)]
    cells = [value(node.arguments[0], Group([row], 0)) for row in rows]
    options = [value(each, Group([group.row], 0)) for each in node.arguments[1:first_group]]
    before = cells[-2] if len(cells) > 1 else None
    match node.function:
        case "lag":
            offset = options[0] if options else 1
            default = options[1] if len(options) > 1 else None
            return cells[-1 - offset] if len(cells) > offset else default
        case "delta" | "growth":
            if before is None or cells[-1] is None or (node.function == "growth" and before == 0):
                return None
            difference = cells[-1] - before
            return difference if node.function == "delta" else difference / before * 100
        case "sma":
            return average(cells[-options[0] :])
        case "cma":
            return average(cells)
        case "accumulate":
            present = [cell for cell in cells if cell is not None]
            return sum(present) if present else None
        case _:
            return time_average(node, group, key)


def time_average(node: Call, group: Group, key: Callable[[Row], Any]) -> Any:
    """Return the average over the days of the window, which ends at this row's time."""
    at = value(node.arguments[1], Group([group.row], 0))
    days = int(value(node.arguments[2], Group([], None)).removesuffix("d"))
    rows = [row for row in group.rows if key(row) == key(group.row)]
    times = [(row, value(node.arguments[1], Group([row], 0))) for row in rows]
    if at is None:
        inside = [row for row, time in times if time is None]
    else:
        inside = [row for row, time in times if time is not None
                  and timedelta() <= moment(at) - moment(time) < timedelta(days=days)]  # fmt: skip
    return average([value(node.arguments[0], Group([row], 0)) for row in inside])


def average(cells: list[Any]) -> Any:
    present = [cell for cell in cells if cell is not None]
    return sum(present) / len(present) if present else None


def skipping_null(function: Callable[..., Any]) -> Callable[..., Any]:
    return lambda *cells: None if None in cells else function(*cells)


def _months_later(day: datetime, months: int) -> datetime:
    year, month = divmod(day.year * 12 + day.month - 1 + months, 12)
    return day.replace(year=year, month=month + 1)  # the tests have no day after the 28th


def _date_add(day: date, step: str) -> date:
    count, unit = int(step[:-1]), step[-1]
    later = _months_later(moment(day), count) if unit == "m" else moment(day) + timedelta(
        **{"d": {"days": count}, "w": {"weeks": count}, "h": {"hours": count}}[unit])  # fmt: skip
    return later.date() if not isinstance(day, datetime) and unit != "h" else later


def _whole(start: date, end: date, size: timedelta) -> int:
    difference = moment(end) - moment(start)
    return difference // size if difference >= timedelta() else -(-difference // size)


def _round(number: float, digits: int = 0) -> float:
    return math.copysign(math.floor(abs(number) * 10**digits + 0.5) / 10**digits, number)


def _in_domain(function: Callable[[float], float]) -> Callable[[float], float | None]:
    def of(number: float) -> float | None:
        try:
            return function(number)
        except ValueError:
            return None

    return of


def _format(day: date, pattern: str) -> str:
    return moment(day).strftime({"yyyy-MM-dd": "%Y-%m-%d", "ddMMMyyyy": "%d%b%Y", "HH:mm": "%H:%M"}[pattern])


def _substring(text: str, start: int, length: int = 10**9) -> str:
    return text[start - 1 : start - 1 + length]


def _before(text: str, mark: str) -> str:
    return text.partition(mark)[0]


def _after(text: str, mark: str) -> str:
    return text.partition(mark)[2]


def _strip(text: str) -> str:
    return text.strip(" ")


def _day(day: date) -> date:
    return moment(day).date()


def _hour(day: date) -> datetime:
    return moment(day).replace(minute=0, second=0, microsecond=0)


def _week(day: date) -> date:
    return (moment(day) - timedelta(days=day.weekday())).date()


def _month(day: date) -> date:
    return date(day.year, day.month, 1)


def _quarter(day: date) -> date:
    return date(day.year, (day.month - 1) // 3 * 3 + 1, 1)


def _year(day: date) -> date:
    return date(day.year, 1, 1)


def _month_only(day: date) -> int:
    return day.month


def _day_of_month(day: date) -> int:
    return day.day


def _day_of_week(day: date) -> int:
    return day.isoweekday() % 7 + 1


def _week_of_year(day: date) -> int:
    return day.isocalendar()[1]


def _between(size: timedelta) -> Callable[[date, date], int]:
    def of(start: date, end: date) -> int:
        return _whole(start, end, size)

    return of


def _since_1970(size: timedelta) -> Callable[[date], int]:
    def of(day: date) -> int:
        return (moment(day) - datetime(1970, 1, 1)) // size

    return of


def _if_null(cell: Any, default: Any) -> Any:
    return default if cell is None else cell


def _concat(*cells: Any) -> str:
    return "".join(str(cell) for cell in cells if cell is not None)


STRICT: dict[str, Callable[..., Any]] = {
    "abs": abs,
    "ceil": math.ceil,
    "floor": math.floor,
    "cos": math.cos,
    "sqrt": _in_domain(math.sqrt),
    "acos": _in_domain(math.acos),
    "atan": math.atan,
    "round": _round,
    "upper": str.upper,
    "lower": str.lower,
    "trim": _strip,
    "length": len,
    "substring": _substring,
    "substring_before": _before,
    "substring_after": _after,
    "replace": str.replace,
    "split": str.split,
    "date": _day,
    "hour": _hour,
    "week": _week,
    "month": _month,
    "quarter": _quarter,
    "year": _year,
    "month_only": _month_only,
    "day_of_month": _day_of_month,
    "day_of_week": _day_of_week,
    "week_of_year": _week_of_year,
    "date_format": _format,
    "date_add": _date_add,
    "days_between": _between(timedelta(days=1)),
    "hours_between": _between(timedelta(hours=1)),
    "minutes_between": _between(timedelta(minutes=1)),
    "epoch_ms": _since_1970(timedelta(milliseconds=1)),
    "epoch_secs": _since_1970(timedelta(seconds=1)),
}
SCALARS: dict[str, Callable[..., Any]] = {
    **{name: skipping_null(function) for name, function in STRICT.items()},
    "ifnull": _if_null,
    "concat": _concat,
}


# Other rows and fields


def run_reshape(statement: Statement, node: Call, rows: list[Row]) -> list[Row]:
    """Return the rows of a statement with `expand`, `transpose` or `inject`."""
    has_star = any(isinstance(each, Item) and isinstance(each.expression, AllFields) for each in statement.items)
    beside = [each.expression.name for each in statement.items if isinstance(each, Item)
              and isinstance(each.expression, Name)]  # fmt: skip
    names = [each.name for each in node.arguments if isinstance(each, Name)]
    match node.function:
        case "expand":
            kept = [name for name in (rows[0] if rows else {}) if name != names[0] and (has_star or name in beside)]
            return [expanded(row, kept, names[0], element) for row in rows for element in elements(row[names[0]])]
        case "transpose":
            return transpose(names[0], names[1], beside, rows)
        case _:
            texts = [each.value for each in node.arguments if isinstance(each, Text)]
            return [
                {name: row[name] for name in names} | {texts[0]: name, texts[1]: cell}
                for row in rows
                for name, cell in row.items()
                if name not in names
            ]


def elements(cell: list[Any] | None) -> list[Any]:
    return cell or []


def expanded(row: Row, kept: list[str], name: str, element: Any) -> Row:
    members = cast("Row", element) if isinstance(element, dict) else {name: element}
    return {each: row[each] for each in kept} | members


def transpose(key: str, cell: str, beside: list[str], rows: list[Row]) -> list[Row]:
    keys = list(dict.fromkeys(str(row[key]) for row in rows if row[key] is not None))
    results: list[tuple[Row, Row]] = []
    for row in rows:
        group = {name: row[name] for name in row if name in beside or (not beside and name not in (key, cell))}
        found = next((result for other, result in results if other == group), None)
        if found is None:
            found = dict(group) | dict.fromkeys(keys)
            results.append((group, found))
        if row[key] is not None and row[cell] is not None:
            found[str(row[key])] = row[cell]
    return [result for _, result in results]
