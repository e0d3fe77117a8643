"""Conditions on the metadata of what is searched.

    {"and": [{"key": "year", "op": "gte", "value": 2020}, {"or": [{"key": "author", "op": "eq", "value": "Li"}, …]}]}

A condition is a test of one key, or several conditions joined by `and` or `or`. What the tests mean is the same in
Python (`holds`) and in both databases (`to_sql`):

- A key is looked up at the top of the metadata, as it is written: a dot in it is a dot.
- `eq`, `in`: equal and of the same kind: 5 is 5.0, but neither "5" nor true. `eq` null: the key is missing or null.
- `ne`, `nin`: the opposite, so what lacks the key meets them.
- `gt`, `gte`, `lt`, `lte`: numbers with numbers; texts with texts, by code points, which puts ISO dates in their order.
- `contains`: a text has this within it, whatever the case of the letters A to Z (other letters have to be the same:
  the two databases do not agree on their cases); a list has this as a member, as by `eq`.
- `text_match`: all words of the value are in the text, whatever the case of A to Z. A word of ASCII letters, digits and
  underscores has to be a word there too. Another may be part of one, for not every language puts spaces between words.
- A list meets a test other than `ne` and `nin` if one of its first 100 members does.

Numbers are compared as double precision. Metadata with a NUL in it, which PostgreSQL cannot read, counts as empty.
"""

import math
import operator
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, cast

import orjson

from almanac.core.database import Value
from almanac.core.errors import BadRequest

MAX_CONDITION_DEPTH = 5  # groups within groups
MOST_TESTS = 50
MOST_VALUES = 1_000  # in all the lists of a condition; each is a parameter, of which a statement has some 32,000
MOST_MEMBERS = 100
MOST_WORDS = 20
MOST_WORDS_IN_ALL = 40  # each is looked for in every text; a few dozen take a second for some ten thousand of these
LONGEST_KEY = 200
LONGEST_VALUE = 1_000

Scalar = str | int | float | bool | None

_ORDER: dict[str, tuple[str, Callable[[Any, Any], bool]]] = {
    "gt": (">", operator.gt),
    "gte": (">=", operator.ge),
    "lt": ("<", operator.lt),
    "lte": ("<=", operator.le),
}
_OPPOSITE = {"ne": "eq", "nin": "in"}
OPERATORS = ("eq", "ne", *_ORDER, "in", "nin", "contains", "text_match")

_FORM = 'Write {"key": "…", "op": "…", "value": …} for a test, and {"and": […]} or {"or": […]} to join several.'
_UNFIT = re.compile("[\0\ud800-\udfff]")  # what PostgreSQL, or UTF-8, has no place for
UNFIT_KEY = re.compile('[\0-\x1f"\\\\\ud800-\udfff]')  # those that JSON escapes: SQLite finds no key by them
_ASCII_CASE = str.maketrans("ABCDEFGHIJKLMNOPQRSTUVWXYZ", "abcdefghijklmnopqrstuvwxyz")
_MARKS = "\t\n\v\f\r!\"#$%&'()*+,-./:;<=>?@[\\]^`{|}~"  # what stands between words, beside the space
_MARKS_TO_SPACES = str.maketrans(_MARKS, " " * len(_MARKS))


@dataclass(frozen=True, slots=True)
class ConditionTest:
    """A test of one key."""

    key: str
    op: str
    value: Scalar | tuple[Scalar, ...]  # several for `in` and `nin`


@dataclass(frozen=True, slots=True)
class ConditionGroup:
    """Conditions joined: all of them must hold, or any."""

    every: bool
    parts: "tuple[Condition, ...]"


Condition = ConditionTest | ConditionGroup


def parse(raw: object) -> Condition:
    """The condition that JSON describes; BadRequest names the part that is wrong and what to write instead."""
    condition = _parse(raw, "condition", 1)
    leaves = list(_leaves(condition))
    if len(leaves) > MOST_TESTS:
        raise BadRequest(f"condition: has more than {MOST_TESTS} tests.", remedy="Use 'in' for many values of one key.")
    if sum(len(leaf.value) for leaf in leaves if isinstance(leaf.value, tuple)) > MOST_VALUES:
        raise BadRequest(f"condition: its lists have more than {MOST_VALUES} values in all.", remedy="Narrow it down.")
    if sum(len(_words(str(leaf.value))) for leaf in leaves if leaf.op == "text_match") > MOST_WORDS_IN_ALL:
        raise BadRequest(f"condition: matches more than {MOST_WORDS_IN_ALL} words in all.", remedy="Narrow it down.")
    return condition


def holds(condition: Condition, metadata: dict[str, Any]) -> bool:
    """Whether metadata, as it would be stored, meets a condition."""
    packed = orjson.dumps(metadata)
    return _holds(condition, {} if b"\\u0000" in packed else orjson.loads(packed))


def to_sql(condition: Condition, start: int) -> tuple[str, list[Value]]:
    """The same as a condition on the sources `s`, never NULL, and its parameters, numbered from `start`."""
    args = _Args(start)
    said = _sql(condition, args)
    otherwise = "TRUE" if _holds(condition, {}) else "FALSE"
    text = "CAST(s.metadata AS TEXT)"
    return f"CASE WHEN replace({text}, '\\u0000', '') = {text} THEN {said} ELSE {otherwise} END", args.values


# From JSON to a condition


def _parse(raw: object, where: str, depth: int) -> Condition:
    if not isinstance(raw, dict):
        raise BadRequest(f"{where}: is not an object.", remedy=_FORM)
    given = cast(dict[object, object], raw)
    if given.keys() == {"key", "op", "value"}:
        return _parse_leaf(given, where)
    if given.keys() not in ({"and"}, {"or"}):
        raise BadRequest(f"{where}: is neither a test nor a group.", remedy=_FORM)
    ((word, parts),) = given.items()
    where = f"{where}.{word}"
    if not isinstance(parts, list) or not parts:
        raise BadRequest(f"{where}: is not a list of at least one condition.", remedy=_FORM)
    if depth > MAX_CONDITION_DEPTH:
        raise BadRequest(
            f"{where}: groups are nested deeper than {MAX_CONDITION_DEPTH}.", remedy="Join what is alike in one group."
        )
    each = enumerate(cast(list[object], parts))
    return ConditionGroup(word == "and", tuple(_parse(part, f"{where}[{index}]", depth + 1) for index, part in each))


def _parse_leaf(given: dict[object, object], where: str) -> ConditionTest:
    key, op, value = given["key"], given["op"], given["value"]
    if not isinstance(key, str) or not 1 <= len(key) <= LONGEST_KEY or UNFIT_KEY.search(key):
        raise BadRequest(
            f"{where}.key: is not a key that can be tested.",
            remedy=f"It is a text of 1 to {LONGEST_KEY} characters without quotes, backslashes and control characters.",
        )
    if not isinstance(op, str) or op not in OPERATORS:
        raise BadRequest(f"{where}.op: there is no such operator.", remedy=f"There are {', '.join(OPERATORS)}.")
    return ConditionTest(key, op, _parse_value(op, value, f"{where}.value"))


def _parse_value(op: str, value: object, where: str) -> Scalar | tuple[Scalar, ...]:
    if op in ("in", "nin"):
        if not isinstance(value, list) or not value:
            raise BadRequest(f"{where}: is not a list of at least one value.", remedy=f"'{op}' takes a list.")
        each = enumerate(cast(list[object], value))
        return tuple(_parse_scalar(member, f"{where}[{index}]") for index, member in each)
    if value is None and op in ("eq", "ne"):
        return None
    scalar = _parse_scalar(value, where)
    if op in _ORDER and isinstance(scalar, bool):
        raise BadRequest(f"{where}: true and false have no order.", remedy=f"'{op}' takes a number or a text.")
    if op == "contains" and scalar == "":
        raise BadRequest(f"{where}: is empty.", remedy="Give the text to look for.")
    if op == "text_match" and not (isinstance(scalar, str) and 1 <= len(_words(scalar)) <= MOST_WORDS):
        raise BadRequest(f"{where}: is not a text to match.", remedy=f"'{op}' takes 1 to {MOST_WORDS} words.")
    return scalar


def _parse_scalar(value: object, where: str) -> str | int | float | bool:
    if isinstance(value, str):
        if len(value) > LONGEST_VALUE or _UNFIT.search(value):
            raise BadRequest(
                f"{where}: is not a text that can be looked for.",
                remedy=f"It has at most {LONGEST_VALUE} characters, and none of them is NUL or half of a pair.",
            )
        return value
    if not isinstance(value, int | float):
        raise BadRequest(f"{where}: is no single value.", remedy="Give a text, a number, true or false.")
    try:
        if math.isfinite(value):
            return value
    except OverflowError:
        pass
    raise BadRequest(f"{where}: is not a finite number.", remedy="Give one below 1e308.")


def _leaves(condition: Condition) -> Iterator[ConditionTest]:
    if isinstance(condition, ConditionTest):
        yield condition
    else:
        for part in condition.parts:
            yield from _leaves(part)


# In Python


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
        return any(_fits(op, value, member) for member in cast(list[Any], stored)[:MOST_MEMBERS])
    return _fits(op, value, stored)


def _fits(op: str, value: Any, stored: Any) -> bool:
    """Whether a value that is no list meets a test."""
    if op == "in":
        return any(_fits("eq", each, stored) for each in value)
    if op == "eq" or op in _ORDER:
        compare = _ORDER[op][1] if op in _ORDER else operator.eq
        return _kind(value) is _kind(stored) and compare(*map(_kind(value), (stored, value)))
    if not isinstance(stored, str) or not isinstance(value, str):
        return False
    text = _lower(stored)
    if op == "contains":
        return _lower(value) in text
    spaced = f" {text.translate(_MARKS_TO_SPACES)} "
    return all(f" {word} " in spaced if word.isascii() else word in text for word in _words(value))


def _kind(value: object) -> type:
    return float if type(value) is int else type(value)


def _lower(text: str) -> str:
    return text.translate(_ASCII_CASE)


def _words(text: str) -> list[str]:
    return list(dict.fromkeys(word for word in _lower(text).translate(_MARKS_TO_SPACES).split(" ") if word))


# In SQL

# SQLite takes what is right of `->` for a path and PostgreSQL for a key, so each is given its own; they are told apart
# by how they write what is true.
_KEY = """(CASE CAST(TRUE AS TEXT) WHEN '1' THEN '$."' || {key} || '"' ELSE {key} END)"""
# j: the value as JSON, t: as a text
_TESTED = """COALESCE((SELECT CASE WHEN substr(v.j, 1, 1) = '[' THEN {listed} ELSE {alone} END
FROM (SELECT s.metadata -> {key} AS a, CAST(s.metadata -> {key} AS TEXT) AS j, s.metadata ->> {key} AS t) v), FALSE)"""
_MEMBERS = """EXISTS (WITH RECURSIVE n(i) AS
(SELECT 0 UNION ALL SELECT i + 1 FROM n WHERE i + 1 < json_array_length(v.a) AND i + 1 < {most})
SELECT 1 FROM (SELECT CAST(v.a -> n.i AS TEXT) AS j, v.a ->> n.i AS t FROM n) m WHERE {test})"""
_NUMBER = "CAST({text} AS DOUBLE PRECISION)"
_IS_NUMBER = "ltrim(substr({at}.j, 1, 1), '-0123456789') = ''"
_IS_TEXT = "substr({at}.j, 1, 1) = '\"'"
# A text with an empty one of PostgreSQL's type `name` behind it, which makes it be compared and lowered as in SQLite,
# by code points and from A to Z, whatever the language of the database. SQLite has no such type, and adds nothing.
_PLAIN = "({at}.t || substr(CAST('' AS name), 1, 0))"
_LOWER = f"lower({_PLAIN})"
# One mark at a time: nested calls would be a third cheaper, but SQLite's parser has room for a hundred symbols only,
# and a test within five groups, in the statement of an index, must fit.
_SPACED = """EXISTS (WITH RECURSIVE w(i, x) AS (SELECT 1, {text} UNION ALL
SELECT i + 1, replace(x, substr('{marks}', i, 1), ' ') FROM w WHERE i <= {last})
SELECT 1 FROM (SELECT ' ' || x || ' ' AS x FROM w WHERE i > {last}) w WHERE {words})"""
_MARKED = {"marks": _MARKS.replace("'", "''"), "last": len(_MARKS)}


class _Args:
    """Parameters, each known by its number."""

    def __init__(self, start: int) -> None:
        self.values: list[Value] = []
        self._start = start

    def add(self, value: str) -> str:
        """How SQL names a parameter, always a text."""
        self.values.append(value)
        return f"CAST(${self._start + len(self.values) - 1} AS TEXT)"


def _sql(condition: Condition, args: _Args) -> str:
    if isinstance(condition, ConditionGroup):
        return f"({(' AND ' if condition.every else ' OR ').join(_sql(part, args) for part in condition.parts)})"
    negation = "NOT " if condition.op in _OPPOSITE else ""
    op = _OPPOSITE.get(condition.op, condition.op)
    key = _KEY.format(key=args.add(condition.key))
    if condition.value is None:
        return f"{negation}(COALESCE(CAST(s.metadata -> {key} AS TEXT), 'null') = 'null')"
    alone = _test(op, condition.value, "v", args)
    member = _test("eq" if op == "contains" else op, condition.value, "m", args)
    listed = _MEMBERS.format(most=MOST_MEMBERS, test=member)
    return negation + _TESTED.format(key=key, alone=alone, listed=listed)


def _test(op: str, value: Any, at: str, args: _Args) -> str:
    """A test of a value that is no list, in the row `at`; it may be NULL for false."""
    if op in ("eq", "in"):
        return _equals(value if op == "in" else (value,), at, args)
    if op in _ORDER:
        return _compares(_ORDER[op][0], value, at, args)
    if not isinstance(value, str):
        return "FALSE"
    text = _LOWER.format(at=at)
    if op == "contains":
        found = _within(args.add(_lower(value)), text)
    else:
        words = _words(value)
        found = " AND ".join(_within(args.add(word), text) for word in words)
        if whole := [_within(args.add(f" {word} "), "w.x") for word in words if word.isascii()]:
            found = f"CASE WHEN {found} THEN {_SPACED.format(text=text, words=' AND '.join(whole), **_MARKED)} END"
    return f"CASE WHEN {_IS_TEXT.format(at=at)} THEN {found} END"


def _equals(values: tuple[Scalar, ...], at: str, args: _Args) -> str:
    numbers = [each for each in values if _kind(each) is float]
    others = [args.add(orjson.dumps(each).decode()) for each in values if _kind(each) is not float]
    tests = [f"{at}.j IN ({', '.join(others)})"] if others else []
    if numbers:
        among = ", ".join(_number(each, args) for each in numbers)
        stored = _NUMBER.format(text=f"{at}.j")
        tests.append(f"CASE WHEN {_IS_NUMBER.format(at=at)} THEN {stored} IN ({among}) ELSE FALSE END")
    return f"({' OR '.join(tests)})"


def _compares(sign: str, value: Any, at: str, args: _Args) -> str:
    if isinstance(value, str):
        return f"CASE WHEN {_IS_TEXT.format(at=at)} THEN {_PLAIN.format(at=at)} {sign} {args.add(value)} END"
    stored = _NUMBER.format(text=f"{at}.j")
    return f"CASE WHEN {_IS_NUMBER.format(at=at)} THEN {stored} {sign} {_number(value, args)} END"


def _number(value: Any, args: _Args) -> str:
    """A number as the text that metadata would have it in: SQLite may read another text as a neighbour of it."""
    small = isinstance(value, float) or -(2**63) <= value < 2**64
    return _NUMBER.format(text=args.add(orjson.dumps(value).decode() if small else repr(float(value))))


def _within(part: str, text: str) -> str:
    return f"replace({text}, {part}, '') <> {text}"
