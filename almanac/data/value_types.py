"""The types of JSON values: inferring them, widening one type to hold another's values, and writing values of a type.

A type is as narrow as the values permit. Text in the form of ISO 8601 is a date or a timestamp; no other text is. A
value that does not fit widens the type: integer to decimal, date to timestamp, and anything else to text.
"""

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, date, datetime
from typing import Any, cast

from almanac.data.fields import (
    BOOLEAN,
    DATE,
    DECIMAL,
    INTEGER,
    JSON,
    TEXT,
    TIMESTAMP,
    DataType,
    Field,
    Kind,
    list_of,
    record_of,
)

MAX_NESTING = 6  # a record or list nested deeper is stored as JSON text
MAX_RECORD_FIELDS = 100  # a record with more names is a map and is stored as JSON text
MIN_INTEGER, MAX_INTEGER = -(2**63), 2**63 - 1  # other whole numbers keep their digits as text

_ISO_DATE = re.compile(r"\d{4}-\d\d-\d\d")
_ISO_TIMESTAMP = re.compile(r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d(:\d\d([.,]\d{1,9})?)?(Z|[+-]\d\d(:?\d\d)?)?")
_WIDER = {(Kind.INTEGER, Kind.DECIMAL): DECIMAL, (Kind.DATE, Kind.TIMESTAMP): TIMESTAMP}


def type_of(value: Any, depth: int = 0) -> DataType | None:
    """Return the type of a JSON value; None for null, which every type can hold."""
    match value:
        case None:
            return None
        case bool():
            return BOOLEAN
        case int():
            return INTEGER if MIN_INTEGER <= value <= MAX_INTEGER else TEXT
        case float():
            return DECIMAL
        case str():
            return _type_of_text(value)
        case list():
            return _type_of_list(cast("list[Any]", value), depth)
        case dict():
            return _type_of_record(cast("dict[str, Any]", value), depth)
        case _:
            raise TypeError(f"no JSON value: {type(value).__name__}")


def widest(types: Iterable[DataType | None]) -> DataType | None:
    """Return the narrowest type that holds the values of all these types; None if all are None."""
    result: DataType | None = None
    for each in types:
        result = each if result is None else result if each is None or each == result else widen(result, each)
    return result


def widen(one: DataType, other: DataType) -> DataType:
    """Return the narrowest type that holds the values of two types."""
    if one == other:
        return one
    if one.kind == other.kind:
        return _widen_contents(one, other)
    return _WIDER.get((one.kind, other.kind)) or _WIDER.get((other.kind, one.kind)) or TEXT


def holds(wider: DataType, narrower: DataType) -> bool:
    """Whether a type holds every value of another one without a change of its meaning."""
    return wider == narrower or (wider != TEXT and widen(wider, narrower) == wider)


def to_stored(value: Any, data_type: DataType) -> Any:
    """Return a JSON value in the form in which a column of a type, which holds it, is written."""
    if value is None:
        return None
    match data_type.kind:
        case Kind.TEXT:
            return as_text(value)
        case Kind.TIMESTAMP:
            return _parse_timestamp(value).isoformat(sep=" ")
        case Kind.LIST if data_type.element is not None:
            element = data_type.element
            return [to_stored(each, element) for each in value]
        case Kind.RECORD if data_type.fields:
            return {each.name: to_stored(value.get(each.name), each.type) for each in data_type.fields}
        case Kind.LIST | Kind.RECORD:
            return _to_json(value)
        case _:
            return value


def as_text(value: Any) -> str:
    """Return a JSON value as text: text as it is, and anything else as JSON."""
    if isinstance(value, str):
        return value
    return _to_json(value)


def infer_fields(rows: Sequence[Mapping[str, Any]]) -> dict[str, DataType | None]:
    """Return the names in rows, in the order of their first use, each with the narrowest type of its values."""
    found: dict[str, DataType | None] = {}
    for row in rows:
        for name, value in row.items():
            known = found.get(name)
            kind = type_of(value)
            if known is None:
                found[name] = kind
            elif kind is not None and kind is not known and kind != known:
                found[name] = widen(known, kind)
    return found


def _to_json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))  # orjson has no integers beyond 64 bits


def _type_of_text(text: str) -> DataType:
    # Nearly all text is neither, and the length tells.
    if not 10 <= len(text) <= 35 or not text[:4].isascii() or not text[:4].isdigit():
        return TEXT
    try:
        if _ISO_DATE.fullmatch(text):
            date.fromisoformat(text)
            return DATE
        if _ISO_TIMESTAMP.fullmatch(text):
            _parse_timestamp(text)
            return TIMESTAMP
    except (ValueError, OverflowError):  # such as 2026-02-30
        return TEXT
    return TEXT


def _parse_timestamp(text: str) -> datetime:
    """Return a timestamp in UTC. Text without an offset is in UTC already; digits after microseconds are cut."""
    whole, fraction = re.match(r"([^.,]*)(?:[.,](\d+))?", text).groups()  # type: ignore[union-attr]
    rest = text[len(whole) + (len(fraction) + 1 if fraction else 0) :]
    moment = datetime.fromisoformat(f"{whole}{'.' + fraction[:6].ljust(6, '0') if fraction else ''}{rest}")
    return moment.astimezone(UTC).replace(tzinfo=None) if moment.tzinfo is not None else moment


def _type_of_list(values: list[Any], depth: int) -> DataType:
    if depth >= MAX_NESTING:
        return list_of(None)
    return list_of(widest(type_of(value, depth + 1) for value in values))


def _type_of_record(record: dict[str, Any], depth: int) -> DataType:
    if depth >= MAX_NESTING or not _can_be_columns(record):
        return JSON
    fields = {name: type_of(value, depth + 1) for name, value in record.items()}
    return record_of(*(Field(name, data_type) for name, data_type in fields.items() if data_type is not None))


def _can_be_columns(names: Iterable[str]) -> bool:
    """Whether these names can be the fields of a stored record. DuckDB does not distinguish A from a."""
    folded = [name.casefold() for name in names]
    return 0 < len(folded) <= MAX_RECORD_FIELDS and len(set(folded)) == len(folded) and all(folded)


def _widen_contents(one: DataType, other: DataType) -> DataType:
    if one.kind == Kind.LIST:
        return list_of(widest((one.element, other.element)))
    if not one.fields or not other.fields:
        return JSON
    types = {field.name: field.type for field in one.fields}
    for field in other.fields:
        known = types.get(field.name)
        types[field.name] = field.type if known is None else widen(known, field.type)
    return record_of(*(Field(*item) for item in types.items())) if _can_be_columns(types) else JSON
