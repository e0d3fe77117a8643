"""Zod's rules and words, for the arguments of the gateway: what version 3 of that library would say of them.

A field that is not in a schema is ignored, and so is the difference between 5 and 5.0, which JavaScript does not know.
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


class Invalid(BadRequest):
    """The arguments are not what the schema says; the message is Zod's account of it, flattened, as JSON."""

    def __init__(self, form: list[str], fields: Mapping[str, list[str]]) -> None:
        flat = {"formErrors": form, "fieldErrors": fields}
        super().__init__(orjson.dumps(flat, option=orjson.OPT_INDENT_2).decode())


@dataclass(frozen=True, slots=True)
class Field:
    """One field of an object."""

    check: Check
    is_required: bool = False
    default: Any = None


@dataclass(frozen=True, slots=True)
class Schema:
    """An object's fields, and a rule over all of them, looked at where each of them is of the right type."""

    fields: Mapping[str, Field]
    rule: Callable[[dict[str, Any]], str | None] = lambda _: None

    def parse(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """What was given, with defaults, or all that is wrong with it."""
        found: dict[str, Any] = {}
        wrong: dict[str, list[str]] = {}
        for name, field in self.fields.items():
            value = given.get(name, _MISSING)
            if value is _MISSING:
                if field.is_required:
                    wrong[name] = ["Required"]
                else:
                    found[name] = field.default
            else:
                found[name] = value
                if problems := field.check(value):
                    wrong[name] = problems
        broken = self.rule(found) if all(_is_typed(each) for each in wrong.values()) else None
        if wrong or broken:
            raise Invalid([broken] if broken else [], wrong)
        return found


def text(value: Any) -> list[str]:
    """A string with something in it: z.string().min(1)."""
    if wrong := _expect("string", value):
        return wrong
    return [] if value else ["String must contain at least 1 character(s)"]


def anything(value: Any) -> list[str]:
    """Any object: z.record(z.unknown())."""
    return _expect("object", value)


def count(most: int) -> Check:
    """A whole number from 1: z.number().int().positive().max(most)."""

    def check(value: Any) -> list[str]:
        if wrong := _expect("number", value):
            return wrong
        number = cast("float", value)
        return [
            message
            for message, is_wrong in (
                (_NOT_WHOLE, number != int(number)),
                ("Number must be greater than 0", number <= 0),
                (f"Number must be less than or equal to {most}", number > most),
            )
            if is_wrong
        ]

    return check


def _is_typed(problems: list[str]) -> bool:
    """Whether what is wrong with a value is something else than its type, which ends the matter for Zod."""
    return problems[0] != "Required" and (not problems[0].startswith("Expected ") or problems[0] == _NOT_WHOLE)


def _expect(kind: str, value: Any) -> list[str]:
    received = _TYPES[type(value)]
    return [] if received == kind else [f"Expected {kind}, received {received}"]
