"""Conditions on the metadata of sources.

    {"and": [{"key": "year", "op": "gte", "value": 2020}, {"or": [{"key": "author", "op": "eq", "value": "Li"}, …]}]}

A condition is a test of one key, or several conditions joined by `and` or `or`. The tests have the same meaning in both
databases:

- A key is looked up at the top level of the metadata, exactly as it is written. A dot in it has no special meaning.
- `eq`, `in`: equal and of the same type. 5 equals 5.0, but neither "5" nor true. `eq` null: the key is missing or null.
- `ne`, `nin`: the opposite, so metadata without the key meets them.
- `gt`, `gte`, `lt`, `lte`: numbers with numbers; texts with texts, by code points, which sorts ISO dates correctly.
- `contains`: a text contains this text, ignoring the case of the letters A to Z. Other letters must be identical,
  because the two databases treat their case differently. A list contains this value, as by `eq`.
- `text_match`: the text contains all words of the value, ignoring the case of A to Z. A word of ASCII letters, digits
  and underscores must be a whole word of the text. Other words may be part of a word, because not every language
  separates words by spaces.
- A list meets a test other than `ne` and `nin` if one of its first 100 members does.

Numbers are compared in double precision. Metadata that contains a NUL character, which PostgreSQL cannot read, counts
as empty.
"""

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, cast

import orjson

from almanac.core.errors import BadRequest
from almanac.core.text import lower_ascii
from almanac.db.sql import Parameters

MAX_CONDITION_DEPTH = 5  # groups within groups
MAX_TESTS = 50
MAX_LIST_VALUES = 1_000  # in all lists of a condition; each is a parameter, and a statement has at most some 32,000
MAX_LIST_MEMBERS = 100
MAX_TEST_WORDS = 20
MAX_WORDS = 40  # in all tests; testing a few dozen words in ten thousand texts takes about a second
MAX_KEY_CHARS = 200
MAX_VALUE_CHARS = 1_000

Scalar = str | int | float | bool | None

_SIGNS = {"gt": ">", "gte": ">=", "lt": "<", "lte": "<="}
_OPPOSITE = {"ne": "eq", "nin": "in"}
OPERATORS = ("eq", "ne", *_SIGNS, "in", "nin", "contains", "text_match")

_SYNTAX = 'Write {"key": "…", "op": "…", "value": …} for a test, and {"and": […]} or {"or": […]} to join several.'
_UNFIT = re.compile("[\0\ud800-\udfff]")  # characters that PostgreSQL or UTF-8 cannot represent
UNFIT_KEY = re.compile('[\0-\x1f"\\\\\ud800-\udfff]')  # characters that JSON escapes; SQLite finds no key with them
_PUNCTUATION = "\t\n\v\f\r!\"#$%&'()*+,-./:;<=>?@[\\]^`{|}~"  # separates words, as a space does
_PUNCTUATION_TO_SPACES = str.maketrans(_PUNCTUATION, " " * len(_PUNCTUATION))


@dataclass(frozen=True, slots=True)
class ConditionTest:
    """A test of one key."""

    key: str
    op: str
    value: Scalar | tuple[Scalar, ...]  # a tuple for `in` and `nin`


@dataclass(frozen=True, slots=True)
class ConditionGroup:
    """Several conditions: all of them must hold if `every`, otherwise at least one."""

    every: bool
    parts: "tuple[Condition, ...]"


Condition = ConditionTest | ConditionGroup


def parse(raw: object) -> Condition:
    """Parse a condition from JSON. BadRequest names the wrong part, and the correct form."""
    condition = _parse(raw, "condition", 1)
    tests = list(_tests(condition))
    if len(tests) > MAX_TESTS:
        raise BadRequest(f"condition: has more than {MAX_TESTS} tests.", remedy="Use 'in' for many values of one key.")
    if sum(len(test.value) for test in tests if isinstance(test.value, tuple)) > MAX_LIST_VALUES:
        raise BadRequest(f"condition: its lists have more than {MAX_LIST_VALUES} values in total.", remedy="Use fewer.")
    if sum(len(_words(str(test.value))) for test in tests if test.op == "text_match") > MAX_WORDS:
        raise BadRequest(f"condition: matches more than {MAX_WORDS} words in total.", remedy="Use fewer words.")
    return condition


def to_sql(condition: Condition, parameters: Parameters) -> str:
    """Translate a condition into SQL on the sources `s` that is never NULL."""
    sql = _sql(condition, parameters)
    text = "CAST(s.metadata AS TEXT)"
    otherwise = "TRUE" if _holds_for_empty(condition) else "FALSE"
    return f"CASE WHEN replace({text}, '\\u0000', '') = {text} THEN {sql} ELSE {otherwise} END"


# Parsing


def _parse(raw: object, where: str, depth: int) -> Condition:
    if not isinstance(raw, dict):
        raise BadRequest(f"{where}: is not an object.", remedy=_SYNTAX)
    given = cast(dict[object, object], raw)
    if given.keys() == {"key", "op", "value"}:
        return _parse_test(given, where)
    if given.keys() not in ({"and"}, {"or"}):
        raise BadRequest(f"{where}: is neither a test nor a group.", remedy=_SYNTAX)
    ((word, parts),) = given.items()
    where = f"{where}.{word}"
    if not isinstance(parts, list) or not parts:
        raise BadRequest(f"{where}: is not a list of at least one condition.", remedy=_SYNTAX)
    if depth > MAX_CONDITION_DEPTH:
        raise BadRequest(
            f"{where}: groups are nested deeper than {MAX_CONDITION_DEPTH}.", remedy="Join conditions in fewer groups."
        )
    numbered = enumerate(cast(list[object], parts))
    return ConditionGroup(word == "and", tuple(_parse(part, f"{where}[{n}]", depth + 1) for n, part in numbered))


def _parse_test(given: dict[object, object], where: str) -> ConditionTest:
    key, op, value = given["key"], given["op"], given["value"]
    if not isinstance(key, str) or not 1 <= len(key) <= MAX_KEY_CHARS or UNFIT_KEY.search(key):
        raise BadRequest(
            f"{where}.key: is not a key that can be tested.",
            remedy=f"Use a text of 1 to {MAX_KEY_CHARS} characters without quotes, backslashes and control characters.",
        )
    if not isinstance(op, str) or op not in OPERATORS:
        raise BadRequest(f"{where}.op: there is no such operator.", remedy=f"There are {', '.join(OPERATORS)}.")
    return ConditionTest(key, op, _parse_value(op, value, f"{where}.value"))


def _parse_value(op: str, value: object, where: str) -> Scalar | tuple[Scalar, ...]:
    if op in ("in", "nin"):
        if not isinstance(value, list) or not value:
            raise BadRequest(f"{where}: is not a list of at least one value.", remedy=f"'{op}' takes a list.")
        numbered = enumerate(cast(list[object], value))
        return tuple(_parse_scalar(member, f"{where}[{n}]") for n, member in numbered)
    if value is None and op in ("eq", "ne"):
        return None
    scalar = _parse_scalar(value, where)
    if op in _SIGNS and isinstance(scalar, bool):
        raise BadRequest(f"{where}: true and false have no order.", remedy=f"'{op}' takes a number or a text.")
    if op == "contains" and scalar == "":
        raise BadRequest(f"{where}: is empty.", remedy="Use a text of at least one character.")
    if op == "text_match" and not (isinstance(scalar, str) and 1 <= len(_words(scalar)) <= MAX_TEST_WORDS):
        raise BadRequest(f"{where}: is not a text to match.", remedy=f"'{op}' takes 1 to {MAX_TEST_WORDS} words.")
    return scalar


def _parse_scalar(value: object, where: str) -> str | int | float | bool:
    if isinstance(value, str):
        if len(value) > MAX_VALUE_CHARS or _UNFIT.search(value):
            raise BadRequest(
                f"{where}: is not a text that can be compared.",
                remedy=f"Use at most {MAX_VALUE_CHARS} characters, without NUL and without lone surrogates.",
            )
        return value
    if not isinstance(value, int | float):
        raise BadRequest(f"{where}: is not a single value.", remedy="Use a text, a number, true or false.")
    try:
        if math.isfinite(value):
            return value
    except OverflowError:
        pass
    raise BadRequest(f"{where}: is not a finite number.", remedy="Use a number below 1e308.")


def _tests(condition: Condition) -> Iterator[ConditionTest]:
    if isinstance(condition, ConditionTest):
        yield condition
    else:
        for part in condition.parts:
            yield from _tests(part)


def _words(text: str) -> list[str]:
    return list(dict.fromkeys(word for word in lower_ascii(text).translate(_PUNCTUATION_TO_SPACES).split(" ") if word))


# SQL

# SQLite reads the right side of `->` as a path, PostgreSQL as a key, so each gets its own form. The text of TRUE tells
# the databases apart.
_KEY = """(CASE CAST(TRUE AS TEXT) WHEN '1' THEN '$."' || {key} || '"' ELSE {key} END)"""
# In the row `v`: the value as JSON (j) and as text (t).
_TESTED = """COALESCE((SELECT CASE WHEN substr(v.j, 1, 1) = '[' THEN {listed} ELSE {single} END
FROM (SELECT s.metadata -> {key} AS a, CAST(s.metadata -> {key} AS TEXT) AS j, s.metadata ->> {key} AS t) v), FALSE)"""
_MEMBERS = """EXISTS (WITH RECURSIVE n(i) AS
(SELECT 0 UNION ALL SELECT i + 1 FROM n WHERE i + 1 < json_array_length(v.a) AND i + 1 < {most})
SELECT 1 FROM (SELECT CAST(v.a -> n.i AS TEXT) AS j, v.a ->> n.i AS t FROM n) m WHERE {test})"""
_NUMBER = "CAST({text} AS DOUBLE PRECISION)"
_IS_NUMBER = "ltrim(substr({at}.j, 1, 1), '-0123456789') = ''"
_IS_TEXT = "substr({at}.j, 1, 1) = '\"'"
# An empty value of PostgreSQL's type `name` is appended to the text. PostgreSQL then compares and lowers it as SQLite
# does, by code points and from A to Z, in a database of any language. In SQLite it appends nothing.
_PLAIN = "({at}.t || substr(CAST('' AS name), 1, 0))"
_LOWER = f"lower({_PLAIN})"
# Replaces one punctuation character at a time. Nested calls would be a third cheaper, but SQLite's parser has room for
# only a hundred symbols, and a test within five groups, in the statement of an index, must fit.
_SPACED = """EXISTS (WITH RECURSIVE w(i, x) AS (SELECT 1, {text} UNION ALL
SELECT i + 1, replace(x, substr('{marks}', i, 1), ' ') FROM w WHERE i <= {last})
SELECT 1 FROM (SELECT ' ' || x || ' ' AS x FROM w WHERE i > {last}) w WHERE {words})"""
_SPACED_VALUES = {"marks": _PUNCTUATION.replace("'", "''"), "last": len(_PUNCTUATION)}


def _holds_for_empty(condition: Condition) -> bool:
    """Return True if empty metadata meets a condition. Only a test for null, and the opposite tests, hold for it."""
    if isinstance(condition, ConditionGroup):
        return (all if condition.every else any)(map(_holds_for_empty, condition.parts))
    return (condition.value is None) != (condition.op in _OPPOSITE)


def _sql(condition: Condition, parameters: Parameters) -> str:
    if isinstance(condition, ConditionGroup):
        return f"({(' AND ' if condition.every else ' OR ').join(_sql(part, parameters) for part in condition.parts)})"
    negation = "NOT " if condition.op in _OPPOSITE else ""
    op = _OPPOSITE.get(condition.op, condition.op)
    key = _KEY.format(key=_add_text(parameters, condition.key))
    if condition.value is None:
        return f"{negation}(COALESCE(CAST(s.metadata -> {key} AS TEXT), 'null') = 'null')"
    single = _test(op, condition.value, "v", parameters)
    member = _test("eq" if op == "contains" else op, condition.value, "m", parameters)
    listed = _MEMBERS.format(most=MAX_LIST_MEMBERS, test=member)
    return negation + _TESTED.format(key=key, single=single, listed=listed)


def _test(op: str, value: Any, at: str, parameters: Parameters) -> str:
    """Return the test of a single value in the row `at`. It may be NULL instead of false."""
    if op in ("eq", "in"):
        return _equals(value if op == "in" else (value,), at, parameters)
    if op in _SIGNS:
        return _compares(_SIGNS[op], value, at, parameters)
    if not isinstance(value, str):
        return "FALSE"
    text = _LOWER.format(at=at)
    if op == "contains":
        found = _contains(_add_text(parameters, lower_ascii(value)), text)
    else:
        words = _words(value)
        found = " AND ".join(_contains(_add_text(parameters, word), text) for word in words)
        if whole := [_contains(_add_text(parameters, f" {word} "), "w.x") for word in words if word.isascii()]:
            as_words = _SPACED.format(text=text, words=" AND ".join(whole), **_SPACED_VALUES)
            found = f"CASE WHEN {found} THEN {as_words} END"
    return f"CASE WHEN {_IS_TEXT.format(at=at)} THEN {found} END"


def _equals(values: tuple[Scalar, ...], at: str, parameters: Parameters) -> str:
    numbers = [each for each in values if type(each) in (int, float)]
    others = [_add_text(parameters, orjson.dumps(each).decode()) for each in values if type(each) not in (int, float)]
    tests = [f"{at}.j IN ({', '.join(others)})"] if others else []
    if numbers:
        among = ", ".join(_number(each, parameters) for each in numbers)
        stored = _NUMBER.format(text=f"{at}.j")
        tests.append(f"CASE WHEN {_IS_NUMBER.format(at=at)} THEN {stored} IN ({among}) ELSE FALSE END")
    return f"({' OR '.join(tests)})"


def _compares(sign: str, value: Any, at: str, parameters: Parameters) -> str:
    if isinstance(value, str):
        is_comparable, stored, compared = _IS_TEXT, _PLAIN.format(at=at), _add_text(parameters, value)
    else:
        is_comparable, stored, compared = _IS_NUMBER, _NUMBER.format(text=f"{at}.j"), _number(value, parameters)
    return f"CASE WHEN {is_comparable.format(at=at)} THEN {stored} {sign} {compared} END"


def _add_text(parameters: Parameters, value: str) -> str:
    """Add a text. The cast is needed where PostgreSQL cannot infer the type."""
    return f"CAST({parameters.add(value)} AS TEXT)"


def _number(value: Any, parameters: Parameters) -> str:
    """Return a number in the form that JSON metadata has. SQLite may convert another form to a neighbouring number."""
    small = isinstance(value, float) or -(2**63) <= value < 2**64
    return _NUMBER.format(text=_add_text(parameters, orjson.dumps(value).decode() if small else repr(float(value))))


def _contains(part: str, text: str) -> str:
    return f"replace({text}, {part}, '') <> {text}"
