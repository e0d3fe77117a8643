"""Numbers in questions, as conditions on the metadata of entities.

"pressure washers under 2000 PSI" stands for {"psi": {"$lt": 2000}}. A bound is a number with a comparison ("at least",
"<", "or more"), a range ("between 100 and 300", "100-300 PSI") or a unit ("1800 PSI"). It applies to the metadata
fields whose names share words with the question: the unit or noun after the number, the words before it, a comparative
("cheaper than") or a currency sign. Units of the same quantity are converted: "under 100 bar" is compared with
`psi`. A bound without such a field is ignored. `number_words` has the words, in five languages.
"""

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from almanac.catalogue.number_words import (
    ANY_RANGE_JOINTS,
    ARTICLES,
    CHINESE_WORDS,
    COMPARISONS,
    COMPARISONS_AFTER,
    CURRENCIES,
    CURRENCY_SIGNS,
    DECIMAL_COMMA_WORDS,
    FILLERS,
    NAMES,
    NO_UNITS,
    PRICE_NAMES,
    RANGE_JOINTS,
    UNITS,
)

MAX_BOUNDS = 4  # of a question
MAX_FIELDS = 5  # that a bound applies to
MAX_NUMBER = 1e15  # conditions take no infinite numbers
MAX_CONTEXT_WORDS = 3  # words before a comparison that decide between several fields with its unit

MAX_TOKENS = 400  # of a question
APPROXIMATE_SHARE = 0.1  # "about 100" is 90 to 110

_QUANTITY_OF_UNIT = {unit: quantity for quantity, units in UNITS.items() for unit in units}
_OPERATOR_BEFORE = {phrase: op for op, phrases in COMPARISONS.items() for phrase in phrases}
_OPERATOR_AFTER = {phrase: op for op, phrases in COMPARISONS_AFTER.items() for phrase in phrases}
_MAX_PHRASE_TOKENS = 3

# An identifier such as PJ-1800 is one word, so that its number is no bound.
_TOKEN = re.compile(r"[^\W\d_]\w*(?:[-/.']\w+)*|\d+(?:[.,]\d+)*|[<>]=|[<>≤≥$€£¥+–-]")
_NUMBER = re.compile(r"\d{1,3}(?:,\d{3})+(?:\.\d+)?|\d{1,3}(?:\.\d{3}){2,}|\d+(?:[.,]\d+)?")
_DECIMAL_COMMA_NUMBER = re.compile(r"\d{1,3}(?:\.\d{3})+(?:,\d+)?|\d+(?:[.,]\d+)?")
_CHINESE = re.compile("|".join(CHINESE_WORDS))
_NAME_PART = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[^\W\d_A-Z]+")


@dataclass(frozen=True, slots=True)
class Bound:
    """A bound in a question, with the words that may name its field."""

    comparisons: tuple[tuple[str, float], ...]  # operators of conditions with their numbers; two for a range
    unit: str  # the word after the number, or empty
    subjects: frozenset[str]  # one of these names the field
    context: frozenset[str]


def to_condition(bounds: Iterable[Bound], fields: Iterable[str]) -> dict[str, Any] | None:
    """The condition on these metadata fields that bounds stand for; None if no bound has a field."""
    parts_by_field = {field: frozenset(map(_singular, _NAME_PART.findall(field))) for field in fields}
    tests = [test for bound in bounds if (test := _test(bound, parts_by_field)) is not None]
    return {"and": tests} if tests else None


def find_bounds(question: str) -> list[Bound]:
    """The first bounds of a question."""
    tokens = _tokens_of(question)
    bounds: list[Bound] = []
    place = 0
    while place < len(tokens) and len(bounds) < MAX_BOUNDS:
        if _is_number(tokens, place):
            bound, place = _bound_at(tokens, place)
            bounds.append(bound)
        else:
            place += 1
    return bounds


# Reading the question


def _tokens_of(question: str) -> list[str]:
    """The words, signs and numbers of a question; the numbers with a decimal point and nothing between thousands."""
    text = _CHINESE.sub(lambda word: f" {word[0]} ", question.lower().replace("’", "'"))
    tokens: list[str] = _TOKEN.findall(text)[:MAX_TOKENS]
    has_decimal_comma = not DECIMAL_COMMA_WORDS.isdisjoint(tokens)
    return [_plain_number(token, has_decimal_comma) if token[0].isdecimal() else token for token in tokens]


def _plain_number(token: str, has_decimal_comma: bool) -> str:
    """A number as Python reads it, or "?" for a version such as 3.2.1."""
    if not (_DECIMAL_COMMA_NUMBER if has_decimal_comma else _NUMBER).fullmatch(token):
        return "?"
    groups = re.split("[.,]", token)
    is_grouped = len(groups) > 1 and all(len(group) == 3 for group in groups[1:]) and groups[0] != "0"
    thousands = "." if has_decimal_comma else ","
    if len(groups) > 2 or (is_grouped and thousands in token):
        thousands = token[len(groups[0])]
        return token.replace(thousands, "").replace(",", ".")
    return token.replace(",", ".")


def _bound_at(tokens: list[str], place: int) -> tuple[Bound, int]:
    """The bound of the number at a place, and the place after it."""
    start = place
    is_negative = start > 0 and tokens[start - 1] == "-"
    start -= is_negative
    is_price = start > 0 and tokens[start - 1] in CURRENCY_SIGNS
    start -= is_price
    lead = tokens[start - 1] if start else ""
    start -= lead in ARTICLES
    before = next((phrase for phrase in _phrases_before(tokens, start) if phrase in _OPERATOR_BEFORE), "")
    start -= len(before.split())
    low, unit, end = _quantity_at(tokens, place)
    low = -low if is_negative else low
    high, high_unit, end = _range_end(tokens, end, lead)
    unit = high_unit or unit
    after = next((phrase for phrase in _phrases_at(tokens, end) if phrase in _OPERATOR_AFTER), "")
    end += len(after.split())
    if after and not unit and _is_unit(tokens, end):
        unit, end = _singular(tokens[end]), end + 1
    is_price = is_price or unit in CURRENCIES
    words = _words_before(tokens, start)
    subjects = {*words[-1:], *before.split(), *(PRICE_NAMES if is_price else ())}
    comparisons = _comparisons(low, high, _OPERATOR_BEFORE.get(before) or _OPERATOR_AFTER.get(after, "eq"))
    context = _named((*words, *_words_after(tokens, end)))
    return Bound(comparisons, "" if is_price else unit, _named(subjects), context), end


def _comparisons(low: float, high: float | None, operator: str) -> tuple[tuple[str, float], ...]:
    if high is not None and high >= low:
        return (("gte", low), ("lte", high))
    if operator == "about":
        return (("gte", low * (1 - APPROXIMATE_SHARE)), ("lte", low * (1 + APPROXIMATE_SHARE)))
    return ((operator, low),)


def _named(words: Iterable[str]) -> frozenset[str]:
    """Words as they are in names of fields."""
    return frozenset(name for word in words for name in (_singular(word), *NAMES.get(word, ())))


def _quantity_at(tokens: list[str], place: int) -> tuple[float, str, int]:
    """The number at a place, its unit if it has one, and the place after them."""
    value, place = min(float(tokens[place]), MAX_NUMBER), place + 1
    if tokens[place : place + 1] == ["k"]:
        value, place = 1000 * value, place + 1
    return (value, _singular(tokens[place]), place + 1) if _is_unit(tokens, place) else (value, "", place)


def _range_end(tokens: list[str], place: int, lead: str) -> tuple[float | None, str, int]:
    """The second number of a range, if one is at a place, with its unit and the place after them."""
    joint = tokens[place] if place < len(tokens) else ""
    if joint in ANY_RANGE_JOINTS or joint in RANGE_JOINTS.get(lead, ()):
        number = place + 1 + (not CURRENCY_SIGNS.isdisjoint(tokens[place + 1 : place + 2]))
        if _is_number(tokens, number):
            return _quantity_at(tokens, number)
    return None, "", place


def _phrases_before(tokens: list[str], end: int) -> Iterator[str]:
    """The phrases that end at a place, the longest first."""
    return (" ".join(tokens[max(0, end - count) : end]) for count in range(_MAX_PHRASE_TOKENS, 0, -1))


def _phrases_at(tokens: list[str], start: int) -> Iterator[str]:
    """The phrases that begin at a place, the longest first."""
    return (" ".join(tokens[start : start + count]) for count in range(_MAX_PHRASE_TOKENS, 0, -1))


def _words_before(tokens: list[str], end: int) -> list[str]:
    """The last words before a place, back to the last number."""
    words: list[str] = []
    for token in reversed(tokens[:end]):
        if token[0].isdecimal() or len(words) == MAX_CONTEXT_WORDS:
            break
        if token[0].isalpha() and token not in FILLERS:
            words.insert(0, token)
    return words


def _words_after(tokens: list[str], start: int) -> list[str]:
    """The word after a quantity, as in "16 GB of RAM"."""
    following = [token for token in tokens[start : start + 2] if token not in FILLERS]
    return [token for token in following[:1] if token[0].isalpha() and token not in NO_UNITS]


def _is_number(tokens: list[str], place: int) -> bool:
    return place < len(tokens) and tokens[place][0].isdecimal()


def _is_unit(tokens: list[str], place: int) -> bool:
    return place < len(tokens) and tokens[place][0].isalpha() and tokens[place] not in NO_UNITS


def _singular(word: str) -> str:
    word = word.lower()
    if word.endswith("ches"):
        return word[:-2]
    return word[:-1] if len(word) > 3 and word.endswith("s") and not word.endswith("ss") else word


# Choosing the fields


def _test(bound: Bound, parts_by_field: dict[str, frozenset[str]]) -> dict[str, Any] | None:
    """The condition that one of the fields that fit a bound best is within it; None if no field fits."""
    factors = {
        field: factor for field, parts in parts_by_field.items() if (factor := _factor(bound, parts)) is not None
    }
    if not factors:
        return None
    ranks = {field: _rank(bound, parts_by_field[field], factors[field]) for field in factors}
    best = [field for field in factors if ranks[field] == max(ranks.values())][:MAX_FIELDS]
    return {
        "or": [
            {"and": [{"key": field, "op": op, "value": number * factors[field]} for op, number in bound.comparisons]}
            for field in best
        ]
    }


def _rank(bound: Bound, parts: frozenset[str], factor: float) -> tuple[int, bool, bool]:
    """How well a field fits: by the words around the number, then its unit, then the name of the quantity."""
    words = bound.context | bound.subjects
    return len(words & parts), factor == 1, _QUANTITY_OF_UNIT.get(bound.unit) in parts


def _factor(bound: Bound, parts: frozenset[str]) -> float | None:
    """The factor from the unit of a bound to that of a field with these parts of its name; None if they do not fit."""
    if bound.unit in parts:
        return 1
    is_equality = bound.comparisons[0][0] == "eq"  # converted numbers are hardly ever equal
    quantity = _QUANTITY_OF_UNIT.get(bound.unit)
    own_units = [part for part in parts if part in _QUANTITY_OF_UNIT]
    if quantity is not None and own_units:
        same = [unit for unit in own_units if _QUANTITY_OF_UNIT[unit] == quantity]
        return UNITS[quantity][bound.unit] / UNITS[quantity][same[0]] if same and not is_equality else None
    if quantity in parts or (not is_equality and not parts.isdisjoint(bound.subjects)):
        return 1
    return None
