"""Rows that a caller sends: checking them, finding the types of their fields, and writing them as lines of JSON."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import orjson

from almanac.core.errors import BadRequest
from almanac.core.text import UNPRINTABLE
from almanac.data import value_types
from almanac.data.dataset import FieldNote
from almanac.data.fields import TEXT, DataType, Field, Kind

MAX_FIELDS = 1_000
MAX_FIELD_NAME_CHARS = 200


@dataclass(frozen=True, slots=True)
class NewRows:
    """Rows that are ready to be written: their fields, and a line of JSON for each row.

    A line has the values in the order of the fields, because a name may need quoting, and the keys `c0`, `c1` do not.
    """

    fields: tuple[Field, ...]  # with values; a field of nulls only is in `all_fields`
    all_fields: tuple[Field, ...]
    lines: bytes
    row_count: int


def prepare(
    rows: Sequence[Mapping[str, Any]], known: Sequence[Field] = (), notes: Mapping[str, FieldNote] | None = None
) -> NewRows:
    """Check rows and prepare them for writing. `known` are the fields of the dataset, `notes` their declared types.

    This takes about a second for 100,000 rows: call it in a thread.
    """
    inferred = value_types.infer_fields(rows)
    check_names(inferred)
    declared = {name: Kind(note.declared_type) for name, note in (notes or {}).items() if note.declared_type}
    types = {name: _declared_or_inferred(rows, name, kind, declared) for name, kind in inferred.items()}
    all_fields = with_columns([Field(name, kind or TEXT) for name, kind in types.items()], known)
    fields = tuple(field for field in all_fields if types[field.name] is not None)
    named = [(f"c{index}", field.name, field.type) for index, field in enumerate(fields)]
    lines = (
        orjson.dumps({key: value_types.to_stored(row.get(name), kind) for key, name, kind in named}) for row in rows
    )
    return NewRows(fields, all_fields, b"\n".join(lines), len(rows))


def last_by_keys(rows: Sequence[Mapping[str, Any]], keys: Sequence[str]) -> list[Mapping[str, Any]]:
    """The rows without those that a later row with the same keys replaces."""
    last: dict[bytes, Mapping[str, Any]] = {}
    for number, row in enumerate(rows, 1):
        if missing := [key for key in keys if row.get(key) is None]:
            raise BadRequest(
                f"Row {number} has no value of the key {missing[0]!r}.", remedy="Give it one. Nothing was stored."
            )
        last[orjson.dumps([value_types.as_text(row[key]) for key in keys])] = row
    return list(last.values())


def with_columns(fields: Sequence[Field], known: Sequence[Field]) -> tuple[Field, ...]:
    """Fields with the names of their stored columns: those of the known fields, and new names for new fields.

    The engine does not distinguish names that differ in case only, so the second of them gets a number.
    """
    columns = {field.name: field.column for field in known}
    used = {(field.column or field.name).casefold() for field in known}
    return tuple(
        Field(each.name, each.type, columns[each.name] if each.name in columns else _new_column(each.name, used))
        for each in fields
    )


def merge_fields(known: Sequence[Field], with_values: Collection[str], new: NewRows) -> tuple[Field, ...]:
    """The fields of a dataset after new rows were added: old ones first, types as wide as necessary.

    `with_values` are the names of fields with a value. The type of any other field is only a guess, and changes.
    """
    merged = {field.name: field for field in known}
    for field in new.fields:
        before = merged.get(field.name)
        if before is None or field.name not in with_values:
            merged[field.name] = field
        elif before.type != field.type:
            merged[field.name] = Field(before.name, value_types.widen(before.type, field.type), before.column)
    return (*merged.values(), *(field for field in new.all_fields if field.name not in merged))


def _new_column(name: str, used: set[str]) -> str | None:
    column, number = name, 1
    while column.casefold() in used:
        number += 1
        column = f"{name}_{number}"
    used.add(column.casefold())
    return None if column == name else column


def _declared_or_inferred(
    rows: Sequence[Mapping[str, Any]], name: str, inferred: DataType | None, declared: Mapping[str, Kind]
) -> DataType | None:
    kind = declared.get(name)
    if kind is None or inferred is None or inferred.kind == kind:
        return inferred
    wanted = DataType(kind)
    if value_types.holds(wanted, inferred):
        return wanted
    number = next(
        index
        for index, row in enumerate(rows, 1)
        if (own := value_types.type_of(row.get(name))) is not None and not value_types.holds(wanted, own)
    )
    raise BadRequest(
        f"Row {number}: the value of {name!r} is no {kind}, which is the declared type of this field.",
        remedy="Correct the row, or change the declared type of the field. Nothing was stored.",
    )


def check_names(names: Collection[str]) -> None:
    """Refuse names that fields cannot have, and too many of them."""
    if not names:
        raise BadRequest("The rows have no fields.", remedy='Send objects such as {"city": "Graz", "sales": 12}.')
    if len(names) > MAX_FIELDS:
        raise BadRequest(
            f"The rows have {len(names):,} fields; at most {MAX_FIELDS:,} are possible.",
            remedy="Use one field for a list or an object of values.",
        )
    for name in names:
        if not name.strip() or len(name) > MAX_FIELD_NAME_CHARS or UNPRINTABLE.search(name):
            raise BadRequest(
                f"{name[:MAX_FIELD_NAME_CHARS]!r} cannot be the name of a field.",
                remedy=f"A name has 1 to {MAX_FIELD_NAME_CHARS} characters, without control characters.",
            )
