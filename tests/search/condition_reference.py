"""The meaning of conditions on metadata in plain Python, with which both databases are compared."""

import operator
from typing import Any, cast

import orjson

from almanac.search.filters.conditions import MAX_LIST_MEMBERS, Condition, ConditionGroup

_COMPARE = {"eq": operator.eq, "gt": operator.gt, "gte": operator.ge, "lt": operator.lt, "lte": operator.le}
_OPPOSITE = {"ne": "eq", "nin": "in"}
_LOWER = str.maketrans("ABCDEFGHIJKLMNOPQRSTUVWXYZ", "abcdefghijklmnopqrstuvwxyz")
_MARKS = "\t\n\v\f\r!\"#$%&'()*+,-./:;<=>?@[\\]^`{|}~"
_TO_SPACES = str.maketrans(_MARKS, " " * len(_MARKS))


def holds(condition: Condition, metadata: dict[str, Any]) -> bool:
    """Whether metadata, as the database stores it, meets a condition."""
    stored = orjson.dumps(metadata)
    return _holds(condition, {} if b"\\u0000" in stored else orjson.loads(stored))


def _holds(condition: Condition, metadata: dict[str, Any]) -> bool:
    if isinstance(condition, ConditionGroup):
        return (all if condition.every else any)(_holds(part, metadata) for part in condition.parts)
    stored = metadata.get(condition.key)
    if condition.op in _OPPOSITE:
        return not _meets(_OPPOSITE[condition.op], condition.value, stored)
    return _meets(condition.op, condition.value, stored)


def _meets(op: str, value: Any, stored: Any) -> bool:
    if value is None:
        return stored is None
    if isinstance(stored, list):
        op = "eq" if op == "contains" else op
        return any(_fits(op, value, member) for member in cast(list[Any], stored)[:MAX_LIST_MEMBERS])
    return _fits(op, value, stored)


def _fits(op: str, value: Any, stored: Any) -> bool:
    """Whether a single value meets a test."""
    if op == "in":
        return any(_fits("eq", each, stored) for each in value)
    if op in _COMPARE:
        return _type(value) is _type(stored) and _COMPARE[op](*map(_type(value), (stored, value)))
    if not isinstance(stored, str) or not isinstance(value, str):
        return False
    text, wanted = stored.translate(_LOWER), value.translate(_LOWER)
    if op == "contains":
        return wanted in text
    words = [word for word in wanted.translate(_TO_SPACES).split(" ") if word]
    spaced = f" {text.translate(_TO_SPACES)} "
    return all(f" {word} " in spaced if word.isascii() else word in text for word in words)


def _type(value: object) -> type:
    return float if type(value) is int else type(value)
