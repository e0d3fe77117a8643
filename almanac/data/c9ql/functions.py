"""The functions of C9QL: one line for each declares its parameters.

`name` is an expression. `name:word` is one in which a word that is no field is a text. `name:literal` runs to the next
comma or parenthesis, with or without quotes. `name?` may be left out, `name*` may be repeated or left out, `name+` may
be repeated.
"""

import re
from dataclasses import dataclass
from enum import Enum
from typing import Literal

from almanac.data.c9ql.errors import C9qlError


class Role(Enum):
    """The place of a function in a statement."""

    SCALAR = "a value for each row"
    AGGREGATE = "a value for each group, or over a window"
    ROLLING = "a value for each row from the rows before it"
    RANKING = "a number for each row, over a window"
    RESHAPING = "other rows and fields"


DECLARATIONS = {
    Role.SCALAR: """
        abs(number) acos(number) asin(number) atan(number) cbrt(number) ceil(number) cos(number) cosh(number)
        floor(number) sqrt(number) tan(number) sin(number) exp(number) ln(number) log10(number) round(number, digits?)
        date(date) minute(date) hour(date) week(date) month(date) quarter(date) year(date)
        month_only(date) day_of_week(date) day_of_month(date) week_of_year(date)
        str_to_date(text, format:literal) date_format(date, format:literal) date_add(date, step:literal)
        minutes_between(from, to) hours_between(from, to) days_between(from, to) months_between(from, to)
        now() epoch_secs(date) epoch_ms(date)
        upper(text) lower(text) trim(text) length(text) concat(value+) substring(text, start, length?)
        substring_before(text, separator:literal) substring_after(text, separator:literal)
        regex_extract(text, pattern:literal, group?) regex_replace(text, pattern:literal, replacement:literal)
        replace(text, search:literal, replacement:literal) split(text, separator:literal) parse(text)
        ifnull(value, default:word) haversine(latitude1, longitude1, latitude2, longitude2, unit:literal?)
    """,
    Role.AGGREGATE: """
        count(value) sum(number) avg(number) min(value) max(value) median(number) sd(number) distinct(value)
        percentile(number, percent) array(value, dedupe?, filternull?) group_concat(value, separator:literal?)
    """,
    Role.ROLLING: """
        lag(value, offset?, default:word?) accumulate(number, group*) growth(number, group*) delta(number, group*)
        sma(number, window, group*) cma(number, group*) tma(number, date, window:literal, group*)
    """,
    Role.RANKING: """
        rank() dense_rank() row_number()
    """,
    Role.RESHAPING: """
        expand(field) expand_arrays(field+) expand_arrays_with_defaults(field_and_default:word+)
        transpose(key, value) reverse_transpose(key:literal, value:literal, fixed*) inject(date, step:literal, group*)
    """,
}


@dataclass(frozen=True, slots=True)
class Parameter:
    """One parameter of a function."""

    name: str
    form: Literal["", "word", "literal"]
    required: bool
    repeated: bool


@dataclass(frozen=True, slots=True)
class Function:
    """A function and its parameters."""

    name: str
    role: Role
    parameters: tuple[Parameter, ...]

    @property
    def signature(self) -> str:
        """The function as it is written in an error."""
        return f"{self.name}({', '.join(_shown(each) for each in self.parameters)})"

    def parameter(self, position: int) -> Parameter | None:
        """Return the parameter at this position of a call; None if there is none."""
        if position < len(self.parameters):
            return self.parameters[position]
        last = self.parameters[-1] if self.parameters else None
        return last if last is not None and last.repeated else None

    def check_count(self, count: int, at: int) -> None:
        """Raise if a call with so many arguments is not possible."""
        least = sum(each.required for each in self.parameters)
        most = None if any(each.repeated for each in self.parameters) else len(self.parameters)
        if count < least or (most is not None and count > most):
            expected = f"{least}" if most == least else f"{least} or more" if most is None else f"{least} to {most}"
            noun = "argument" if expected == "1" else "arguments"
            raise C9qlError(
                f"{self.name} takes {expected} {noun}, not {count}.", at=at, remedy=f"Use {self.signature}."
            )


def _shown(parameter: Parameter) -> str:
    name = f"{parameter.name}…" if parameter.repeated else parameter.name
    return name if parameter.required else f"[{name}]"


def _parameter(text: str) -> Parameter:
    name, _, form = re.sub(r"[?*+]$", "", text).partition(":")
    assert form in ("", "word", "literal")
    return Parameter(name, form, required=text[-1] not in "?*", repeated=text[-1] in "*+")


def _read(role: Role, declarations: str) -> list[Function]:
    found = re.findall(r"(\w+)\(([^)]*)\)", declarations)
    return [
        Function(name, role, tuple(_parameter(each) for each in inner.split(", ") if each)) for name, inner in found
    ]


FUNCTIONS = {each.name: each for role, text in DECLARATIONS.items() for each in _read(role, text)}
