"""Facts: the single values in the metadata of sources, looked up by key and value.

A condition on metadata is a test of JSON, and to test every source of a large collection takes longer than the search
itself. Facts lead to those few that can meet it. They leave out nothing that does, and may bring some that does not,
for long texts are cut and kinds of values mixed; what they bring is tested.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, cast

from almanac.core.database import Transaction, Value
from almanac.search.conditions import MOST_MEMBERS, Condition, Leaf

LONGEST = 40  # characters kept of a text
MOST_COLLECTIONS = 200  # for more, a condition is tested on what there is

# At or beyond: a text that was cut may be equal to one that was not.
_SIGNS = {"eq": "IN", "in": "IN", "gt": ">=", "gte": ">=", "lt": "<=", "lte": "<="}
_COLUMNS = ("source_id", "field", "text", "number")


async def write(tx: Transaction, rows: Sequence[tuple[int, str, dict[str, Any]]]) -> None:
    """Note the facts of sources that have none noted: each a source, its collection and its metadata."""
    fields: dict[tuple[str, str], int] = {}
    for collection, names in _keys(rows).items():
        for name in sorted(names):  # in one order, so that two writers cannot lock each other out
            fields[collection, name] = await _field(tx, collection, name)
    found = [
        (source_id, fields[collection, name], text, number)
        for source_id, collection, metadata in rows
        for name, text, number in _values(metadata)
    ]
    await tx.insert_many("facts", _COLUMNS, found)


async def rewrite(tx: Transaction, source_id: int, collection: str, metadata: dict[str, Any]) -> None:
    """Put a source's facts as they are now in the place of what they were."""
    await tx.execute("DELETE FROM facts WHERE source_id = $1", source_id)
    await write(tx, [(source_id, collection, metadata)])


def narrow(condition: Condition, collections: Sequence[str], start: int) -> tuple[str, list[Value]]:
    """SQL on the sources `s` that leaves all of these collections that may meet a condition, and its parameters,
    numbered from `start`; empty where facts say nothing of it."""
    if not 1 <= len(collections) <= MOST_COLLECTIONS:
        return "", []
    args: list[Value] = list(collections)
    names = ", ".join(f"${start + place}" for place in range(len(collections)))
    return _narrowed(condition, names, args, start), args


def _narrowed(condition: Condition, names: str, args: list[Value], start: int) -> str:
    if isinstance(condition, Leaf):
        return _looked_up(condition, names, args, start)
    parts = [_narrowed(part, names, args, start) for part in condition.parts]
    if condition.every:
        parts = [part for part in parts if part]
    elif not all(parts):
        return ""
    return f"({(' AND ' if condition.every else ' OR ').join(parts)})" if parts else ""


def _looked_up(leaf: Leaf, names: str, args: list[Value], start: int) -> str:
    sign = _SIGNS.get(leaf.op)
    if sign is None or leaf.value is None:
        return ""

    def add(value: Value) -> str:
        args.append(value)
        return f"${start + len(args) - 1}"

    field = f"f.field IN (SELECT id FROM fields WHERE collection IN ({names}) AND name = {add(leaf.key)})"  # noqa: S608
    written = [
        _written(each) for each in (leaf.value if isinstance(leaf.value, tuple) else (leaf.value,)) if each is not None
    ]
    columns = {
        "text": [add(text) for text, _ in written if text is not None],
        "number": [add(number) for _, number in written if number is not None],
    }
    found = [
        f"SELECT f.source_id FROM facts f WHERE {field} AND f.{column} {sign} ({', '.join(values)})"  # noqa: S608
        for column, values in columns.items()
        if values
    ]
    return f"s.id IN ({' UNION ALL '.join(found)})"


def _keys(rows: Iterable[tuple[int, str, dict[str, Any]]]) -> dict[str, set[str]]:
    found: dict[str, set[str]] = {}
    for _, collection, metadata in rows:
        found.setdefault(collection, set()).update(name for name, _, _ in _values(metadata))
    return found


async def _field(tx: Transaction, collection: str, name: str) -> int:
    row = await tx.fetch_one("SELECT id FROM fields WHERE collection = $1 AND name = $2", collection, name)
    if row is None:
        row = await tx.fetch_one(
            "INSERT INTO fields (collection, name) VALUES ($1, $2)"
            " ON CONFLICT (collection, name) DO UPDATE SET name = excluded.name RETURNING id",
            collection,
            name,
        )
    assert row is not None
    return row["id"]


def _values(metadata: dict[str, Any]) -> Iterator[tuple[str, str | None, float | None]]:
    for name, value in metadata.items():
        if "\0" in name:
            continue
        for each in cast("list[Any]", value)[:MOST_MEMBERS] if isinstance(value, list) else (value,):
            if isinstance(each, str | int | float):
                text, number = _written(each)
                if text is None or "\0" not in text:
                    yield name, text, number


def _written(value: str | int | float | bool) -> tuple[str | None, float | None]:
    if isinstance(value, bool):
        return str(value).lower(), None
    return (value[:LONGEST], None) if isinstance(value, str) else (None, float(value))
