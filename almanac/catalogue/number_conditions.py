"""Numbers in questions, as conditions on the metadata of entities.

"pressure washers under 2000 PSI" stands for {"psi": {"$lt": 2000}}. A bound is a number with a comparison ("at least",
"<", "or more"), a range ("between 100 and 300", "100-300 PSI") or a unit ("1800 PSI"). It applies to the metadata
fields whose names share words with the question: the unit or noun after the number, the words before it, a comparative
("cheaper than") or a currency sign. Units of the same quantity are converted: "under 100 bar" is compared with
`psi`. A bound without such a field is ignored. Comparisons in words are read in English only.
"""

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

MAX_BOUNDS = 4  # of a question
MAX_FIELDS = 5  # that a bound applies to
MAX_NUMBER = 1e15  # conditions take no infinite numbers
MAX_CONTEXT_WORDS = 3  # words before a comparison that decide between several fields with its unit

# The factor converts to the first unit of the quantity.
_UNITS = {
    "pressure": {"psi": 1, "bar": 14.5038, "kpa": 0.145038, "mpa": 145.038},
    "weight": {
        "kg": 1, "kilo": 1, "kilogram": 1, "g": 0.001, "gram": 0.001, "lb": 0.453592, "lbs": 0.453592,
        "pound": 0.453592, "oz": 0.0283495, "ounce": 0.0283495, "ton": 1000, "tonne": 1000,
    },
    "length": {
        "m": 1, "metre": 1, "meter": 1, "cm": 0.01, "mm": 0.001, "km": 1000, "in": 0.0254, "inch": 0.0254,
        "ft": 0.3048, "foot": 0.3048, "feet": 0.3048,
    },
    "power": {"w": 1, "watt": 1, "kw": 1000, "kilowatt": 1000, "hp": 745.7, "horsepower": 745.7},
    "voltage": {"v": 1, "volt": 1, "kv": 1000},
    "volume": {"l": 1, "litre": 1, "liter": 1, "ml": 0.001, "gal": 3.78541, "gallon": 3.78541},
    "noise": {"db": 1, "dba": 1, "decibel": 1},
}  # fmt: skip
_QUANTITY_OF_UNIT = {unit: quantity for quantity, units in _UNITS.items() for unit in units}
_CURRENCIES = frozenset({"dollar", "usd", "euro", "eur", "gbp", "chf"})
_PRICE = frozenset({"price", "cost"})

_COMPARISONS = {
    "lt": (
        "<", "under", "below", "less than", "lower than", "fewer than", "smaller than", "cheaper than", "lighter than",
        "shorter than", "narrower than", "quieter than", "slower than",
    ),
    "lte": (
        "<=", "≤", "up to", "at most", "no more than", "not more than", "not exceeding", "maximum of", "maximum", "max",
        "within",
    ),
    "gt": (
        ">", "over", "above", "more than", "greater than", "higher than", "larger than", "bigger than", "heavier than",
        "longer than", "wider than", "taller than", "louder than", "faster than", "exceeding",
    ),
    "gte": (
        ">=", "≥", "at least", "no less than", "not less than", "minimum of", "minimum", "min", "starting at", "from",
    ),
}  # fmt: skip
_COMPARISONS_AFTER = {
    "lte": ("or less", "or fewer", "or lower", "or below", "or under", "or cheaper", "max", "maximum"),
    "gte": ("+", "or more", "or higher", "or above", "or over", "and up", "and above", "min", "minimum"),
}
_OPERATOR_BEFORE = {phrase: op for op, phrases in _COMPARISONS.items() for phrase in phrases}
_OPERATOR_AFTER = {phrase: op for op, phrases in _COMPARISONS_AFTER.items() for phrase in phrases}
MAX_PHRASE_TOKENS = 3
_NAMES_OF_COMPARATIVE = {
    "cheaper": _PRICE, "lighter": {"weight"}, "heavier": {"weight"}, "shorter": {"length"}, "longer": {"length"},
    "narrower": {"width"}, "wider": {"width"}, "taller": {"height"}, "quieter": {"noise"}, "louder": {"noise"},
    "slower": {"speed"}, "faster": {"speed"},
}  # fmt: skip
_FILLERS = frozenset({"of", "is", "are", "a", "an", "the", "rated", "with", "that", "between"})
_NO_UNITS = frozenset({"or", "and", "to", "in", "max", "maximum", "min", "minimum"})  # after a number
_CURRENCY_SIGNS = frozenset("$€£")

# An identifier such as PJ-1800 is one word, so that its number is no bound.
_TOKEN = re.compile(r"[^\W\d_]\w*(?:[-/.']\w+)*|\d{1,3}(?:,\d{3})+(?:\.\d+)?(?!\d)|\d+(?:\.\d+)?|[<>]=|[<>≤≥$€£+–-]")
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
    tokens = [token.lower() for token in _TOKEN.findall(question)]
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


def _bound_at(tokens: list[str], place: int) -> tuple[Bound, int]:
    """The bound of the number at a place, and the place after it."""
    start = place
    is_negative = start > 0 and tokens[start - 1] == "-"
    start -= is_negative
    is_price = start > 0 and tokens[start - 1] in _CURRENCY_SIGNS
    start -= is_price
    before = next((phrase for phrase in _phrases_before(tokens, start) if phrase in _OPERATOR_BEFORE), "")
    start -= len(before.split())
    low, unit, end = _quantity_at(tokens, place)
    low = -low if is_negative else low
    high, high_unit, end = _range_end(tokens, end, is_between="between" in tokens[max(0, start - 1) : start])
    unit = high_unit or unit
    after = next((phrase for phrase in _phrases_at(tokens, end) if phrase in _OPERATOR_AFTER), "")
    end += len(after.split())
    if after and not unit and _is_unit(tokens, end):
        unit, end = _singular(tokens[end]), end + 1
    comparisons: tuple[tuple[str, float], ...]
    if high is not None and high >= low:
        comparisons = (("gte", low), ("lte", high))
    else:
        comparisons = ((_OPERATOR_BEFORE.get(before) or _OPERATOR_AFTER.get(after, "eq"), low),)
    is_price = is_price or unit in _CURRENCIES
    words = [_singular(token) for token in _words_before(tokens, start)]
    subjects = {*words[-1:], *_NAMES_OF_COMPARATIVE.get(before.split(" ")[0], ()), *(_PRICE if is_price else ())}
    return Bound(comparisons, "" if is_price else unit, frozenset(subjects), frozenset(words)), end


def _quantity_at(tokens: list[str], place: int) -> tuple[float, str, int]:
    """The number at a place, its unit if it has one, and the place after them."""
    value, place = min(float(tokens[place].replace(",", "")), MAX_NUMBER), place + 1
    if tokens[place : place + 1] == ["k"]:
        value, place = 1000 * value, place + 1
    return (value, _singular(tokens[place]), place + 1) if _is_unit(tokens, place) else (value, "", place)


def _range_end(tokens: list[str], place: int, *, is_between: bool) -> tuple[float | None, str, int]:
    """The second number of a range, if one is at a place, with its unit and the place after them."""
    joint = tokens[place] if place < len(tokens) else ""
    if joint in ("-", "–", "to") or (joint == "and" and is_between):
        number = place + 1 + (not _CURRENCY_SIGNS.isdisjoint(tokens[place + 1 : place + 2]))
        if _is_number(tokens, number):
            return _quantity_at(tokens, number)
    return None, "", place


def _phrases_before(tokens: list[str], end: int) -> Iterator[str]:
    """The phrases that end at a place, the longest first."""
    return (" ".join(tokens[max(0, end - count) : end]) for count in range(MAX_PHRASE_TOKENS, 0, -1))


def _phrases_at(tokens: list[str], start: int) -> Iterator[str]:
    """The phrases that begin at a place, the longest first."""
    return (" ".join(tokens[start : start + count]) for count in range(MAX_PHRASE_TOKENS, 0, -1))


def _words_before(tokens: list[str], end: int) -> list[str]:
    """The last words before a place, back to the last number."""
    words: list[str] = []
    for token in reversed(tokens[:end]):
        if token[0].isdecimal() or len(words) == MAX_CONTEXT_WORDS:
            break
        if token[0].isalpha() and token not in _FILLERS:
            words.insert(0, token)
    return words


def _is_number(tokens: list[str], place: int) -> bool:
    return place < len(tokens) and tokens[place][0].isdecimal()


def _is_unit(tokens: list[str], place: int) -> bool:
    return place < len(tokens) and tokens[place][0].isalpha() and tokens[place] not in _NO_UNITS


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
    shared = {field: len(bound.context & parts_by_field[field]) for field in factors}
    best = [field for field in factors if shared[field] == max(shared.values())][:MAX_FIELDS]
    return {
        "or": [
            {"and": [{"key": field, "op": op, "value": number * factors[field]} for op, number in bound.comparisons]}
            for field in best
        ]
    }


def _factor(bound: Bound, parts: frozenset[str]) -> float | None:
    """The factor from the unit of a bound to that of a field with these parts of its name; None if they do not fit."""
    if bound.unit in parts:
        return 1
    is_equality = bound.comparisons[0][0] == "eq"  # converted numbers are hardly ever equal
    quantity = _QUANTITY_OF_UNIT.get(bound.unit)
    own_units = [part for part in parts if part in _QUANTITY_OF_UNIT]
    if quantity is not None and own_units:
        same = [unit for unit in own_units if _QUANTITY_OF_UNIT[unit] == quantity]
        return _UNITS[quantity][bound.unit] / _UNITS[quantity][same[0]] if same and not is_equality else None
    if quantity in parts or (not is_equality and not parts.isdisjoint(bound.subjects)):
        return 1
    return None
