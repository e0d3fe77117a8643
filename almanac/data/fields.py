"""The fields of a dataset or of a query's result, and their types."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import orjson


class Kind(StrEnum):
    """The kinds of value that a field can hold."""

    TEXT = "text"
    INTEGER = "integer"
    DECIMAL = "decimal"
    BOOLEAN = "boolean"
    DATE = "date"
    TIMESTAMP = "timestamp"
    LIST = "list"
    RECORD = "record"


@dataclass(frozen=True, slots=True)
class DataType:
    """The type of a value.

    A list carries the type of its elements, a record its fields, where they are known. A record without known fields is
    stored as JSON text, and so is a list without a known element type.
    """

    kind: Kind
    element: "DataType | None" = None
    fields: "tuple[Field, ...]" = ()


@dataclass(frozen=True, slots=True)
class Field:
    """A named column.

    The name is kept as it was received. `column` is the name of the stored column if it differs, which is necessary for
    names that differ in case only: DuckDB does not distinguish them.
    """

    name: str
    type: DataType
    column: str | None = None


TEXT = DataType(Kind.TEXT)
INTEGER = DataType(Kind.INTEGER)
DECIMAL = DataType(Kind.DECIMAL)
BOOLEAN = DataType(Kind.BOOLEAN)
DATE = DataType(Kind.DATE)
TIMESTAMP = DataType(Kind.TIMESTAMP)
JSON = DataType(Kind.RECORD)


def list_of(element: DataType | None) -> DataType:
    """Return the type of a list of such elements."""
    return DataType(Kind.LIST, element=element)


def record_of(*fields: Field) -> DataType:
    """Return the type of a record with these fields."""
    return DataType(Kind.RECORD, fields=fields)


def type_to_value(data_type: DataType) -> Any:
    """Return the type as a JSON value: its kind, or an object for a list or record with known contents."""
    if data_type.element is not None:
        return {"type": data_type.kind.value, "element": type_to_value(data_type.element)}
    if data_type.fields:
        return {"type": data_type.kind.value, "fields": [field_to_value(each) for each in data_type.fields]}
    return data_type.kind.value


def type_from_value(value: Any) -> DataType:
    """Return the type of a JSON value that `type_to_value` made."""
    if isinstance(value, str):
        return DataType(Kind(value))
    element = value.get("element")
    return DataType(
        Kind(value["type"]),
        element=None if element is None else type_from_value(element),
        fields=tuple(field_from_value(each) for each in value.get("fields", ())),
    )


def field_to_value(field: Field) -> dict[str, Any]:
    """Return the field as a JSON object."""
    column = {} if field.column is None else {"column": field.column}
    return {"name": field.name, "type": type_to_value(field.type), **column}


def field_from_value(value: Mapping[str, Any]) -> Field:
    """Return the field of a JSON object that `field_to_value` made."""
    return Field(value["name"], type_from_value(value["type"]), value.get("column"))


def fields_to_json(fields: Sequence[Field]) -> str:
    """Return the fields as JSON text."""
    return orjson.dumps([field_to_value(each) for each in fields]).decode()


def fields_from_json(text: str) -> tuple[Field, ...]:
    """Return the fields of a JSON text that `fields_to_json` made."""
    return tuple(field_from_value(each) for each in orjson.loads(text))
    """Return the fields of a JSON text that `fields_to_json` made."""
    return tuple(field_from_value(each) for each in orjson.loads(text))


def find_field(fields: Sequence[Field], name: str) -> Field | None:
    """Return the field with a name, or else the only one with this name in another case."""
    exact = next((each for each in fields if each.name == name), None)
    folded = [each for each in fields if each.name.casefold() == name.strip().casefold()]
    return exact or (folded[0] if len(folded) == 1 else None)
