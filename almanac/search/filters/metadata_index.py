"""The index of source metadata: the single values and the tags of each source, stored in the table `facts` by key and
value.

Testing a condition on the JSON of every source in a large collection takes longer than the search itself. The index
finds the sources that can meet the condition. It never leaves out a source that does; if its result is exact, the JSON
is not tested. The result is not exact for long texts, of which only the beginning is stored. Texts, numbers and
Booleans are never equal to each other: numbers have their own column, Booleans their own keys, and so have tags.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, cast

import orjson

from almanac.core.database import Reader, Transaction
from almanac.db.sql import Parameters
from almanac.search.filters.conditions import (
    MAX_KEY_CHARS,
    MAX_LIST_MEMBERS,
    UNFIT_KEY,
    Condition,
    ConditionGroup,
    ConditionTest,
)

MAX_INDEXED_CHARS = 40  # of a text
MAX_COLLECTIONS = 200  # for more, the index is not used

MAX_FIELD_NAMES = 2_000

_SIGNS = {"eq": "IN", "in": "IN", "gt": ">", "gte": ">=", "lt": "<", "lte": "<="}
_BOOLEAN = "\1"  # appended to the keys of Booleans; no key that can be tested contains it
_TAGS = "\2"  # the key of the tags, which cannot be tested either
_AMONG = "s.id IN ("
_COLUMNS = ("source_id", "field", "text", "number")

SourceMetadata = tuple[int, str, dict[str, Any], Sequence[str]]  # source id, collection, metadata, tags


@dataclass(frozen=True, slots=True)
class IndexedCondition:
    """SQL on the sources `s` that selects all that may meet a condition or, if `is_exact`, exactly those that do. It is
    empty if the index does not cover the condition."""

    sql: str = ""
    is_exact: bool = False


async def write(tx: Transaction, rows: Sequence[SourceMetadata]) -> None:
    """Add the values of sources that are not in the index."""
    values = [
        (source_id, collection, *value)
        for source_id, collection, metadata, tags in rows
        for value in _values(metadata, tags)
    ]
    # Sorted, because the same order in every transaction avoids deadlocks.
    keys = sorted({(collection, name) for _, collection, name, _, _ in values})
    fields = {key: await _field(tx, *key) for key in keys}
    found = [(source_id, fields[collection, name], *value) for source_id, collection, name, *value in values]
    await tx.insert_many("facts", _COLUMNS, found)


async def rewrite(tx: Transaction, row: SourceMetadata) -> None:
    """Replace the values of a source."""
    await tx.execute("DELETE FROM facts WHERE source_id = $1", row[0])
    await write(tx, [row])


def tagged(tags: Sequence[str], collections: Sequence[str], parameters: Parameters) -> IndexedCondition:
    """Return the condition that a source has all of these tags."""
    if "\0" in "".join(tags):
        return IndexedCondition()  # such tags are not stored
    tests = tuple(ConditionTest(_TAGS, "eq", tag) for tag in tags)
    condition = tests[0] if len(tests) == 1 else ConditionGroup(True, tests)
    return indexed_condition(condition, collections, parameters)


def indexed_condition(condition: Condition, collections: Sequence[str], parameters: Parameters) -> IndexedCondition:
    """Translate a condition on the sources of these collections into lookups in the index."""
    if not 1 <= len(collections) <= MAX_COLLECTIONS or not _is_indexed(condition):
        return IndexedCondition()
    return _translate(condition, parameters.add_all(collections), parameters)


def as_select(where: str) -> str | None:
    """Return the SELECT of source ids in a condition, if the condition is a single lookup. The condition contains only
    parameters and no literal text, so every parenthesis in it is SQL."""
    if not where.startswith(_AMONG):
        return None
    depth = 0
    for position, character in enumerate(where):
        depth += {"(": 1, ")": -1}.get(character, 0)
        if character == ")" and not depth:
            return where[len(_AMONG) : position] if position == len(where) - 1 else None
    return None


def _is_indexed(condition: Condition) -> bool:
    if isinstance(condition, ConditionTest):
        return condition.op in _SIGNS and condition.value is not None
    return (any if condition.every else all)(map(_is_indexed, condition.parts))


def _translate(condition: Condition, names: str, parameters: Parameters) -> IndexedCondition:
    if isinstance(condition, ConditionTest):
        return _lookup(condition, names, parameters)
    parts = [_translate(part, names, parameters) for part in condition.parts if _is_indexed(part)]
    joined = f"({(' AND ' if condition.every else ' OR ').join(part.sql for part in parts)})"
    return IndexedCondition(joined, len(parts) == len(condition.parts) and all(part.is_exact for part in parts))


def _lookup(test: ConditionTest, names: str, parameters: Parameters) -> IndexedCondition:
    sign = _SIGNS[test.op]
    by_column: dict[tuple[str, str], list[str]] = {}
    is_exact = True
    for value in test.value if isinstance(test.value, tuple) else (test.value,):
        if value is None:
            continue
        key, text, number = _stored(test.key, value)
        is_cut = text is not None and len(text) >= MAX_INDEXED_CHARS
        is_exact = is_exact and not is_cut
        sign = sign if sign == "IN" or not is_cut else sign.rstrip("=") + "="  # the stored beginnings may be equal
        column = "number" if text is None else "text"
        by_column.setdefault((key, column), []).append(parameters.add(number if text is None else text))
    found = [
        f"SELECT f.source_id FROM facts f WHERE f.field IN (SELECT id FROM fields WHERE collection IN ({names})"  # noqa: S608
        f" AND name = {parameters.add(key)}) AND f.{column} {sign} ({', '.join(placeholders)})"
        for (key, column), placeholders in by_column.items()
    ]
    return IndexedCondition(f"{_AMONG}{' UNION ALL '.join(found)})", is_exact)


async def field_names(db: Reader, collection: str) -> list[str]:
    """Return the metadata keys of a collection that can be tested, at most `MAX_FIELD_NAMES`."""
    rows = await db.fetch(
        "SELECT name FROM fields WHERE collection = $1 ORDER BY name LIMIT $2", collection, MAX_FIELD_NAMES
    )
    return [row["name"] for row in rows if len(row["name"]) <= MAX_KEY_CHARS and not UNFIT_KEY.search(row["name"])]


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


def _values(metadata: dict[str, Any], tags: Sequence[str]) -> Iterator[tuple[str, str | None, float | None]]:
    yield from (_stored(_TAGS, tag) for tag in dict.fromkeys(tags) if "\0" not in tag)
    if b"\\u0000" in orjson.dumps(metadata):
        return  # conditions treat such metadata as empty
    for name, value in metadata.items():
        if UNFIT_KEY.search(name):
            continue
        for each in cast("list[Any]", value)[:MAX_LIST_MEMBERS] if isinstance(value, list) else (value,):
            if isinstance(each, str | int | float):
                yield _stored(name, each)


def _stored(key: str, value: str | int | float | bool) -> tuple[str, str | None, float | None]:
    """Return the key, and the text or the number, under which a value is stored."""
    if isinstance(value, bool):
        return key + _BOOLEAN, str(value).lower(), None
    return (key, value[:MAX_INDEXED_CHARS], None) if isinstance(value, str) else (key, None, float(value))
