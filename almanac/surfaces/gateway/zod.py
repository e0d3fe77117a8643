"""Validation of the gateway's arguments, with the rules and messages of version 3 of the JavaScript library Zod.

Fields that a schema does not have are ignored. 5 and 5.0 are equal, as in JavaScript.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, cast

import orjson

from almanac.core.errors import BadRequest

_MISSING = object()
_TYPES = {
    type(None): "null",
    bool: "boolean",
    int: "number",
    float: "number",
    str: "string",
    list: "array",
    dict: "object",
}

_NOT_WHOLE = "Expected integer, received float"

Check = Callable[[Any], list[str]]


class InvalidZodArguments(BadRequest):
    """The arguments do not match the schema. The message is Zod's flattened error as JSON."""

    def __init__(self, form_errors: list[str], field_errors: Mapping[str, list[str]]) -> None:
        flat = {"formErrors": form_errors, "fieldErrors": field_errors}
        super().__init__(orjson.dumps(flat, option=orjson.OPT_INDENT_2).decode())


@dataclass(frozen=True, slots=True)
class ZodField:
    """One field of an object."""

    check: Check
    is_required: bool = False
    default: Any = None


@dataclass(frozen=True, slots=True)
class ZodSchema:
    """The fields of an object, and a rule over all of them, which is checked if every field has the right type."""

    fields: Mapping[str, ZodField]
    rule: Callable[[dict[str, Any]], str | None] = lambda _: None

    def parse(self, raw: Mapping[str, Any]) -> dict[str, Any]:
        """Return the arguments with defaults, or raise an error that lists every problem."""
        arguments: dict[str, Any] = {}
        errors: dict[str, list[str]] = {}
        for name, field in self.fields.items():
            value = raw.get(name, _MISSING)
            if value is _MISSING:
                if field.is_required:
                    errors[name] = ["Required"]
                else:
                    arguments[name] = field.default
            else:
                arguments[name] = value
                if problems := field.check(value):
                    errors[name] = problems
        form_error = self.rule(arguments) if all(map(_has_right_type, errors.values())) else None
        if errors or form_error:
            raise InvalidZodArguments([form_error] if form_error else [], errors)
        return arguments


def non_empty_string(value: Any) -> list[str]:
    """A string of at least one character: z.string().min(1)."""
    if problems := _check_type("string", value):
        return problems
    return [] if value else ["String must contain at least 1 character(s)"]


def any_object(value: Any) -> list[str]:
    """Any object: z.record(z.unknown())."""
    return _check_type("object", value)


def positive_integer(maximum: int) -> Check:
    """A whole number from 1: z.number().int().positive().max(maximum)."""

    def check(value: Any) -> list[str]:
        if problems := _check_type("number", value):
            return problems
        number = cast("float", value)
        return [
            message
            for message, is_wrong in (
                (_NOT_WHOLE, number != int(number)),
                ("Number must be greater than 0", number <= 0),
                (f"Number must be less than or equal to {maximum}", number > maximum),
            )
            if is_wrong
        ]

    return check


def _has_right_type(problems: list[str]) -> bool:
    """Return whether a value has the right type. If not, Zod does not check the rule of the object."""
    return problems[0] != "Required" and (not problems[0].startswith("Expected ") or problems[0] == _NOT_WHOLE)


def _check_type(kind: str, value: Any) -> list[str]:
    received = _TYPES[type(value)]
    return [] if received == kind else [f"Expected {kind}, received {received}"]
