"""The types of columns of text, as a CSV file has them.

A column has a type only if all its values fit one notation. The notations are tried on a few rows, and those that fit
are checked on all rows, so that no late value is changed or lost. Everything else stays text.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from almanac.data.fields import BOOLEAN, DATE, DECIMAL, INTEGER, TEXT, TIMESTAMP, DataType
from almanac.data.parquet_source import text

SAMPLE_ROWS = 2_000
MAX_CONDITIONS_PER_SCAN = 500

# Words for a missing value, in a column of numbers, dates or truth values.
NULL_WORDS = ("", "NA", "N/A", "n/a", "#N/A", "NULL", "null", "None", "-")

_WHOLE = r"(0|[1-9][0-9]{0,17})"
_EXPONENT = r"([eE][+-]?[0-9]{1,2})?"
_INTEGER = rf"-?{_WHOLE}"
_DECIMAL = rf"-?({_WHOLE}|{_WHOLE}?\.[0-9]+|{_WHOLE}\.){_EXPONENT}"
_GROUPED = r"(0|[1-9][0-9]{{0,2}}({0}[0-9]{{3}}){{1,5}}|[1-9][0-9]{{0,17}})"
_ISO_DATE = r"[0-9]{4}-[0-9]{2}-[0-9]{2}"
_ISO_TIMESTAMP = (
    rf"{_ISO_DATE}[T ][0-9]{{2}}:[0-9]{{2}}(:[0-9]{{2}}(\.[0-9]{{1,9}})?)?(Z|[+-][0-9]{{2}}(:?[0-9]{{2}})?)?"
)

_DATES = (
    ("%d/%m/%Y", "day first", r"[0-9]{1,2}/[0-9]{1,2}/[0-9]{4}"),
    ("%m/%d/%Y", "month first", r"[0-9]{1,2}/[0-9]{1,2}/[0-9]{4}"),
    ("%d.%m.%Y", "day first", r"[0-9]{1,2}\.[0-9]{1,2}\.[0-9]{4}"),
    ("%d-%m-%Y", "day first", r"[0-9]{1,2}-[0-9]{1,2}-[0-9]{4}"),
    ("%m-%d-%Y", "month first", r"[0-9]{1,2}-[0-9]{1,2}-[0-9]{4}"),
    ("%Y/%m/%d", "year first", r"[0-9]{4}/[0-9]{1,2}/[0-9]{1,2}"),
    ("%Y.%m.%d", "year first", r"[0-9]{4}\.[0-9]{1,2}\.[0-9]{1,2}"),
    ("%d/%m/%y", "day first", r"[0-9]{1,2}/[0-9]{1,2}/[0-9]{2}"),
    ("%m/%d/%y", "month first", r"[0-9]{1,2}/[0-9]{1,2}/[0-9]{2}"),
    ("%d.%m.%y", "day first", r"[0-9]{1,2}\.[0-9]{1,2}\.[0-9]{2}"),
    ("%d %b %Y", "day first", r"[0-9]{1,2} [A-Za-z]{3} [0-9]{4}"),
    ("%d-%b-%Y", "day first", r"[0-9]{1,2}-[A-Za-z]{3}-[0-9]{4}"),
    ("%d %B %Y", "day first", r"[0-9]{1,2} [A-Za-z]{3,9} [0-9]{4}"),
    ("%b %d, %Y", "month first", r"[A-Za-z]{3} [0-9]{1,2}, [0-9]{4}"),
    ("%B %d, %Y", "month first", r"[A-Za-z]{3,9} [0-9]{1,2}, [0-9]{4}"),
)
_TIMES = (
    ("%H:%M", "[0-9]{1,2}:[0-9]{2}"),
    ("%H:%M:%S", "[0-9]{1,2}:[0-9]{2}:[0-9]{2}"),
    ("%I:%M %p", "[0-9]{1,2}:[0-9]{2} [AaPp][Mm]"),
    ("%I:%M:%S %p", "[0-9]{1,2}:[0-9]{2}:[0-9]{2} [AaPp][Mm]"),
)


@dataclass(frozen=True, slots=True)
class Notation:
    """One way in which text stands for values of a type. `condition` and `value` are SQL, with `{0}` for the text."""

    type: DataType
    condition: str
    value: str
    description: str = ""  # for the caller, where the notation is an assumption


@dataclass(frozen=True, slots=True)
class TypedColumn:
    """A column of text and the notation of its values; None: it stays text."""

    column: str
    notation: Notation | None
    has_values: bool

    @property
    def type(self) -> DataType:
        """The type of its values."""
        return self.notation.type if self.notation else TEXT

    @property
    def sql(self) -> str:
        """The values, as SQL."""
        if self.notation is None:
            return self.column
        return f"CASE WHEN {_is_value(self.column)} THEN {self.notation.value.replace('{0}', self.column)} END"


def find_types(
    connection: Any, source: str, columns: Sequence[str], *, prefers_comma: bool
) -> tuple[int, list[TypedColumn]]:
    """Return the number of rows of a source, which is SQL, and its columns with their notations."""
    connection.execute(f"CREATE OR REPLACE TEMP TABLE head AS SELECT * FROM {source} LIMIT {SAMPLE_ROWS}")  # noqa: S608
    notations = list(_notations(prefers_comma))
    possible: dict[str, list[Notation]] = {}
    for column in columns:
        counts = _count(connection, "head", [(column, each) for each in notations], [column])
        filled = counts.filled[column]
        possible[column] = [each for each, n in zip(notations, counts.fitting, strict=True) if n == filled]
    connection.execute("DROP TABLE head")
    pairs = [(column, each) for column in columns for each in possible[column]]
    counts = _count(connection, source, pairs, columns)
    fitting = dict.fromkeys(columns) | _first_fitting(pairs, counts)
    return counts.rows, [TypedColumn(each, fitting[each], counts.present[each] > 0) for each in columns]


@dataclass(slots=True)
class _Counts:
    rows: int
    present: dict[str, int]  # values that are not null
    filled: dict[str, int]  # values that are no word for a missing one
    fitting: list[int]  # of these, the ones that fit; one for each pair


def _count(connection: Any, source: str, pairs: Sequence[tuple[str, Notation]], columns: Sequence[str]) -> _Counts:
    conditions = [f"{_is_value(each)}" for each in columns]
    conditions += [f"{each} IS NOT NULL" for each in columns]
    conditions += [f"{_is_value(column)} AND {each.condition.replace('{0}', column)}" for column, each in pairs]
    counts: list[int] = []
    rows = 0
    for start in range(0, len(conditions), MAX_CONDITIONS_PER_SCAN):
        part = ", ".join(f"count_if({each})" for each in conditions[start : start + MAX_CONDITIONS_PER_SCAN])
        [(rows, *numbers)] = connection.sql(f"SELECT count(*), {part} FROM {source}").fetchall()  # noqa: S608
        counts += numbers
    width = len(columns)
    filled, present = dict(zip(columns, counts, strict=False)), dict(zip(columns, counts[width:], strict=False))
    return _Counts(rows, present, filled, counts[2 * width :])


def _first_fitting(pairs: Sequence[tuple[str, Notation]], counts: _Counts) -> dict[str, Notation | None]:
    found: dict[str, Notation | None] = {}
    for (column, notation), number in zip(pairs, counts.fitting, strict=True):
        if number == counts.filled[column] > 0:
            found.setdefault(column, notation)
    # A column in which both orders are possible is read with the day first, and the caller is told.
    orders = {
        (column, notation.value) for (column, notation), n in zip(pairs, counts.fitting, strict=True)
        if n == counts.filled[column] > 0
    }  # fmt: skip
    return {
        column: _ambiguous(notation) if notation and _swapped(notation.value) in {v for c, v in orders if c == column}
        else notation
        for column, notation in found.items()
    }  # fmt: skip


def _ambiguous(notation: Notation) -> Notation:
    return Notation(
        notation.type, notation.condition, notation.value, f"{notation.description}; month first is possible too"
    )


def _swapped(value: str) -> str:
    for one, other in (("%d/%m/", "%m/%d/"), ("%d-%m-", "%m-%d-")):
        if one in value:
            return value.replace(one, other)
    return ""


def _is_value(column: str) -> str:
    return f"({column} IS NOT NULL AND {column} NOT IN ({', '.join(map(text, NULL_WORDS))}))"


def _notations(prefers_comma: bool) -> Iterator[Notation]:
    yield Notation(BOOLEAN, "lower({0}) IN ('true', 'false')", "lower({0}) = 'true'")
    yield Notation(INTEGER, _fits(_INTEGER), "CAST({0} AS BIGINT)")
    yield Notation(DECIMAL, f"{_fits(_DECIMAL)} AND isfinite(TRY_CAST({{0}} AS DOUBLE))", "CAST({0} AS DOUBLE)")
    for group, point in ((".", ","), (",", ".")) if prefers_comma else ((",", "."), (".", ",")):
        yield from _grouped(group, point)
    yield Notation(DATE, f"{_fits(_ISO_DATE)} AND TRY_CAST({{0}} AS DATE) IS NOT NULL", "CAST({0} AS DATE)")
    moment = "timezone('UTC', TRY_CAST({0} AS TIMESTAMPTZ))"
    yield Notation(TIMESTAMP, f"{_fits(f'({_ISO_TIMESTAMP}|{_ISO_DATE})')} AND {moment} IS NOT NULL", moment)
    yield from _dates()


def _grouped(group: str, point: str) -> Iterator[Notation]:
    """Numbers with a sign between groups of three digits, or with a decimal comma."""
    whole = _GROUPED.format("[.]" if group == "." else ",")
    plain = "replace({0}, ',', '')" if group == "," else "replace(replace({0}, '.', ''), ',', '.')"
    fraction = f"([{point}][0-9]+)?"
    said = f"{group} between groups of digits" if group == "," else "decimal comma"
    yield Notation(INTEGER, _fits(f"-?{whole}"), f"CAST({plain} AS BIGINT)", f"{group} between groups of digits")
    yield Notation(DECIMAL, _fits(f"-?{whole}{fraction}"), f"CAST({plain} AS DOUBLE)", said)


def _dates() -> Iterator[Notation]:
    for form, order, pattern in _DATES:
        said = f"dates as {form.replace('%', '')}, {order}"
        date = f"try_strptime({{0}}, {text(form)})"
        yield Notation(DATE, f"{_fits(pattern)} AND {date} IS NOT NULL", f"CAST({date} AS DATE)", said)
    for form, order, pattern in _DATES:
        for clock, clock_pattern in _TIMES:
            said = f"dates as {form.replace('%', '')}, {order}"
            moment = f"try_strptime({{0}}, {text(f'{form} {clock}')})"
            yield Notation(TIMESTAMP, f"{_fits(f'{pattern} {clock_pattern}')} AND {moment} IS NOT NULL", moment, said)


def _fits(pattern: str) -> str:
    return f"regexp_full_match({{0}}, {text(pattern)})"
