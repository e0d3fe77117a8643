"""Columns of a result as JSON values, computed by the engine.

Each type of the engine has an expression that gives a value with the same meaning in JSON. A number that a double
cannot hold exactly becomes text, and so do NaN and the infinities: JSON has none of them.

integer      a number, or text beyond ±(2^53 - 1)
decimal      a number, or text with more than 15 digits; "NaN", "Infinity", "-Infinity"
boolean      true, false
date         "2026-01-31"
timestamp    "2026-01-31T12:00:00", with "Z" if the type has a time zone
list         a list
record       an object; a map is a list of objects with key and value
text         text; also times, intervals, UUIDs, and bytes as base64
"""

from typing import Any

from almanac.data.fields import (
    BOOLEAN,
    DATE,
    DECIMAL,
    INTEGER,
    TEXT,
    TIMESTAMP,
    DataType,
    Field,
    list_of,
    record_of,
)
from almanac.data.parquet_source import text

MAX_EXACT_INTEGER = 2**53 - 1
EXACT_DIGITS = 15

_SMALL_INTEGERS = {"tinyint", "smallint", "integer", "utinyint", "usmallint", "uinteger"}
_LARGE_INTEGERS = {"bigint", "ubigint", "hugeint", "uhugeint"}
_TIMESTAMPS = {"timestamp", "timestamp_s", "timestamp_ms", "timestamp_ns"}


def field_type(engine_type: Any) -> DataType:
    """The type of a field for a type of the engine."""
    kind = engine_type.id
    if kind in _SMALL_INTEGERS | _LARGE_INTEGERS:
        return INTEGER
    if kind in ("float", "double", "decimal"):
        return DECIMAL
    if kind in ("list", "array"):
        return list_of(field_type(_element(engine_type)))
    if kind == "struct":
        return record_of(*(Field(name, field_type(each)) for name, each in engine_type.children))
    if kind == "map":
        key, value = (each for _, each in engine_type.children)
        return list_of(record_of(Field("key", field_type(key)), Field("value", field_type(value))))
    if kind in _TIMESTAMPS or kind == "timestamp with time zone":
        return TIMESTAMP
    return {"boolean": BOOLEAN, "date": DATE}.get(kind, TEXT)


def json_expression(value: str, engine_type: Any, depth: int = 0) -> str:
    """The SQL of the JSON value of `value`, which is SQL too."""
    kind = engine_type.id
    if kind in _LARGE_INTEGERS:
        bounds = f"BETWEEN -{MAX_EXACT_INTEGER} AND {MAX_EXACT_INTEGER}"
        return f"CASE WHEN {value} {bounds} THEN to_json({value}::BIGINT) ELSE to_json({value}::VARCHAR) END"
    if kind in ("float", "double"):
        return (
            f"CASE WHEN isfinite({value}) THEN to_json({value}::DOUBLE) WHEN isnan({value}) THEN to_json('NaN') "
            f"WHEN {value} > 0 THEN to_json('Infinity') WHEN {value} < 0 THEN to_json('-Infinity') END"
        )
    if kind == "decimal":
        return _decimal(value, engine_type)
    if kind in ("list", "array", "struct", "map"):
        return _nested(value, engine_type, depth)
    if kind in _TIMESTAMPS:
        return f"to_json(replace({value}::VARCHAR, ' ', 'T'))"
    if kind == "timestamp with time zone":
        return f"to_json(replace(timezone('UTC', {value})::VARCHAR, ' ', 'T') || 'Z')"
    if kind == "blob":
        return f"to_json(base64({value}))"
    if kind in _SMALL_INTEGERS or kind == "boolean":
        return f"to_json({value})"
    return f"to_json({value}::VARCHAR)"


def _decimal(value: str, engine_type: Any) -> str:
    (_, precision), (_, scale) = engine_type.children
    if precision <= EXACT_DIGITS:
        return f"to_json({value}::DOUBLE)"
    if scale >= EXACT_DIGITS:
        return f"to_json({value}::VARCHAR)"
    bound = 10 ** (EXACT_DIGITS - scale)
    exact = f"{value} BETWEEN -{bound - 1} AND {bound - 1}"
    return f"CASE WHEN {exact} THEN to_json({value}::DOUBLE) ELSE to_json({value}::VARCHAR) END"


def _nested(value: str, engine_type: Any, depth: int) -> str:
    element = f"almanac_element_{depth}"
    if engine_type.id in ("list", "array"):
        inner = json_expression(element, _element(engine_type), depth + 1)
        return f"to_json(list_transform({value}, lambda {element}: {inner}))"
    if engine_type.id == "map":
        (_, key), (_, content) = engine_type.children
        inner = (
            f"json_object('key', {json_expression(element + '.key', key, depth + 1)}, "
            f"'value', {json_expression(element + '.value', content, depth + 1)})"
        )
        return f"to_json(list_transform(map_entries({value}), lambda {element}: {inner}))"
    parts = (
        f"{text(name)}, {json_expression(f'struct_extract({value}, {text(name)})', each, depth + 1)}"
        for name, each in engine_type.children
    )
    return f"CASE WHEN {value} IS NOT NULL THEN json_object({', '.join(parts)}) END"


def _element(engine_type: Any) -> Any:
    return engine_type.children[0][1]
