"""From models to JSON schemas, for MCP and for REST; and from the text of a URL to the values that a model expects."""

import dataclasses
import re
from collections.abc import Mapping
from functools import cache
from typing import Any, cast, get_args, get_type_hints

from pydantic import BaseModel, TypeAdapter

from almanac.operations.operation import RestOnly

Schema = dict[str, Any]

_IMPLIED: tuple[tuple[str, Any], ...] = (
    ("default", None),
    ("default", False),  # equal to 0 and 0.0 as well
    ("default", ""),
    ("additionalProperties", True),
    ("items", {}),
)
_DIGITS = re.compile(r"-?[0-9]{1,19}", re.ASCII)
_BOOLEANS = {"true": True, "false": False, "1": True, "0": False}


# MCP


def input_schema(model: type[BaseModel], omit: frozenset[str] = frozenset()) -> Schema:
    """Return the schema of a tool's arguments in as few words as possible: an agent reads all of them at its start.

    An optional argument is not said to be nullable as well, because some clients cannot read that.
    """
    schema = _compact_schema(model, nulls=False)
    if omit:
        schema["properties"] = {name: part for name, part in schema["properties"].items() if name not in omit}
    return schema


def output_schema(answer: type[Any]) -> Schema:
    """Return the outline of an answer: its fields, and the fields of the objects in its lists."""
    schema = _compact_schema(answer, nulls=True)
    hidden = {cls.__name__: _hidden_fields(cls) for cls in _classes_in(answer)}
    outline = _outline(schema, answer.__name__, schema.get("$defs", {}), hidden)
    return outline | {"required": _distinguishing_fields(schema)}


def minimal_output_schema(answer: type[Any]) -> Schema:
    """Return a schema that tells an answer from other data and lists none of its fields."""
    return {"type": "object", "required": _distinguishing_fields(_compact_schema(answer, nulls=True))}


def without_hidden_fields(value: Any) -> Any:
    """Return an answer without the fields that are marked `REST_ONLY`."""
    if isinstance(value, list):
        return [without_hidden_fields(item) for item in cast("list[Any]", value)]
    if not dataclasses.is_dataclass(value) or isinstance(value, type) or not _hides_fields(type(value)):
        return value
    hidden = _hidden_fields(type(value))
    return {
        field.name: without_hidden_fields(getattr(value, field.name))
        for field in dataclasses.fields(value)
        if field.name not in hidden
    }


def _distinguishing_fields(schema: Schema) -> list[str]:
    # All fields are always there; to require the first one is enough to tell an answer from anything else.
    return schema.get("required", [])[:1]


def _compact_schema(model: type[Any], *, nulls: bool) -> Schema:
    schema = cast("Schema", _compact(TypeAdapter(model).json_schema(), nulls))
    schema.pop("description", None)
    return schema


def _outline(schema: Schema, name: str, definitions: Schema, hidden: Mapping[str, frozenset[str]]) -> Schema:
    left_out = hidden.get(name, frozenset())
    fields = {key: field for key, field in schema.get("properties", {}).items() if key not in left_out}
    return {
        "properties": {key: _outline_field(field, definitions, hidden) for key, field in fields.items()},
        "type": "object",
    }


def _outline_field(field: Schema, definitions: Schema, hidden: Mapping[str, frozenset[str]]) -> Schema:
    description = {key: field[key] for key in ("description",) if key in field}
    match field:
        case {"$ref": _}:
            return description | {"type": "object"}
        case {"anyOf": [{"$ref": _}, {"type": "null"}]}:
            return description | {"type": ["object", "null"]}
        case {"items": {"$ref": str(reference)}}:
            name = reference.rpartition("/")[2]
            return field | {"items": _outline(definitions[name], name, definitions, hidden)}
        case _:
            # The values of a map are not described, unless there are none.
            return {key: value for key, value in field.items() if key != "additionalProperties" or value is False}


def _compact(node: Any, nulls: bool, is_names: bool = False) -> Any:
    """Remove titles, implied defaults and the second way of saying that a value may be null."""
    if isinstance(node, dict):
        # Below "properties" and "$defs" the keys are names, so a field that is called "title" stays.
        kept = {
            key: _compact(value, nulls, key in ("properties", "$defs"))
            for key, value in cast("Schema", node).items()
            if is_names or (key != "title" and (key, value) not in _IMPLIED)
        }
        return kept if is_names else _simplify(kept, nulls)
    if isinstance(node, list):
        return [_compact(item, nulls) for item in cast("list[Any]", node)]
    return node


def _simplify(schema: Schema, nulls: bool) -> Schema:
    if "ge" in schema:  # as pydantic writes the bound of a number that is strict as well
        schema["minimum"] = schema.pop("ge")
    match schema.get("anyOf"):
        case [*kinds, {"type": "null"}] if len(kinds) > 1 and not nulls:
            return {**schema, "anyOf": kinds}
        case [{"type": str(kind)} as known, {"type": "null"}]:
            rest = {key: value for key, value in schema.items() if key != "anyOf"}
            return {**cast("Schema", known), **rest, "type": [kind, "null"] if nulls else kind}
        case _:
            return schema


@cache
def _hidden_fields(cls: type[Any]) -> frozenset[str]:
    return frozenset(
        name
        for name, hint in _hints(cls).items()
        if any(isinstance(mark, RestOnly) for mark in getattr(hint, "__metadata__", ()))
    )


@cache
def _hides_fields(cls: type[Any]) -> bool:
    return any(_hidden_fields(each) for each in _classes_in(cls))


def _classes_in(cls: type[Any]) -> set[type[Any]]:
    """Return a dataclass and all dataclasses that its fields refer to."""
    found: set[type[Any]] = set()
    waiting: list[Any] = [cls]
    while waiting:
        hint = waiting.pop()
        if isinstance(hint, type) and dataclasses.is_dataclass(hint) and hint not in found:
            found.add(hint)
            waiting += _hints(hint).values()
        waiting += get_args(hint)
    return found


def _hints(cls: type[Any]) -> dict[str, Any]:
    return get_type_hints(cls, include_extras=True) if dataclasses.is_dataclass(cls) else {}


# REST


@cache
def properties(model: type[BaseModel]) -> dict[str, Schema]:
    """Return the schema of each argument, as OpenAPI shows it."""
    schema = cast("Schema", plain_schema(model.model_json_schema(ref_template="#/$defs/{model}")))
    return schema.get("properties", {})


def value_from_text(model: type[BaseModel], name: str, text: str) -> Any:
    """Return the value that the text of a path or a query string stands for. Strict validation refuses other text."""
    schema = properties(model).get(name, {})
    kinds = {schema.get("type"), *(each.get("type") for each in schema.get("anyOf", ()))}
    if "integer" in kinds and _DIGITS.fullmatch(text):
        return int(text)
    if "boolean" in kinds and text.lower() in _BOOLEANS:
        return _BOOLEANS[text.lower()]
    return text


def plain_schema(node: Any, is_names: bool = False) -> Any:
    """Return a schema without the titles that pydantic makes of names and without the line breaks of docstrings."""
    if isinstance(node, dict):
        return {
            key: plain_schema(value, key in ("properties", "$defs"))
            for key, value in cast("Schema", node).items()
            if is_names or key != "title"
        }
    if isinstance(node, list):
        return [plain_schema(item) for item in cast("list[Any]", node)]
    return re.sub(r"\s+", " ", node) if isinstance(node, str) else node
