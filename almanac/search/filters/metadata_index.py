"""Facts: the single values in the metadata of sources, and their tags, looked up by key and value.

A condition on metadata is a test of JSON, and to test every source of a large collection takes longer than the search
itself. Facts lead to those that can meet it. They leave out nothing that does; where they say all there is to say, what
they bring need not be tested, and where long texts were cut, it is. Texts, numbers and truth values never meet: numbers
have a column of their own, truth values a key of their own. So have tags.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, cast

import orjson

from almanac.core.database import Transaction, Value
from almanac.search.filters.conditions import MOST_MEMBERS, UNFIT_KEY, Condition, ConditionGroup, ConditionTest

MAX_INDEXED_CHARS = 40  # characters kept of a text
MOST_COLLECTIONS = 200  # for more, a condition is tested on what there is

_SIGNS = {"eq": "IN", "in": "IN", "gt": ">", "gte": ">=", "lt": "<", "lte": "<="}
_TRUTH = "\1"  # behind the keys of truth values; no key that can be tested has it
_TAGS = "\2"  # the key of tags, which none can be tested by either
_AMONG = "s.id IN ("
_COLUMNS = ("source_id", "field", "text", "number")


Described = tuple[int, str, dict[str, Any], Sequence[str]]  # a source, its collection, its metadata and its tags


@dataclass(frozen=True, slots=True)
class IndexedCondition:
    """SQL on the sources `s` that leaves all that may meet a condition, or, if it is `exact`, all that do; empty where
    facts say nothing of it."""

    sql: str = ""
    exact: bool = False


async def write(tx: Transaction, rows: Sequence[Described]) -> None:
    """Note the facts of sources that have none noted."""
    fields: dict[tuple[str, str], int] = {}
    for collection, names in _keys(rows).items():
        for name in sorted(names):  # in one order, so that two writers cannot lock each other out
            fields[collection, name] = await _field(tx, collection, name)
    found = [
        (source_id, fields[collection, name], text, number)
        for source_id, collection, metadata, tags in rows
        for name, text, number in _values(metadata, tags)
    ]
    await tx.insert_many("facts", _COLUMNS, found)


async def rewrite(tx: Transaction, described: Described) -> None:
    """Put a source's facts as they are now in the place of what they were."""
    await tx.execute("DELETE FROM facts WHERE source_id = $1", described[0])
    await write(tx, [described])


def tagged(tags: Sequence[str], collections: Sequence[str], start: int) -> tuple[IndexedCondition, list[Value]]:
    """As `narrow`, for the sources that have all of some tags."""
    if "\0" in "".join(tags):
        return IndexedCondition(), []  # which is not noted
    leaves = tuple(ConditionTest(_TAGS, "eq", tag) for tag in tags)
    return indexed_condition(leaves[0] if len(leaves) == 1 else ConditionGroup(True, leaves), collections, start)


def indexed_condition(
    condition: Condition, collections: Sequence[str], start: int
) -> tuple[IndexedCondition, list[Value]]:
    """What leads to the sources of these collections that meet a condition, and its parameters, from `start` on."""
    if not 1 <= len(collections) <= MOST_COLLECTIONS:
        return IndexedCondition(), []
    args: list[Value] = list(collections)
    names = ", ".join(f"${start + place}" for place in range(len(collections)))
    found = _narrowed(condition, names, args, start)
    return found, args if found.sql else []


def as_select(where: str) -> str | None:
    """The select of sources' ids that a condition on them is, where facts say all of it in one look; parameters alone
    are in it, and no text that could have a parenthesis."""
    if not where.startswith(_AMONG):
        return None
    depth = 0
    for place, character in enumerate(where):
        depth += {"(": 1, ")": -1}.get(character, 0)
        if character == ")" and not depth:
            return where[len(_AMONG) : place] if place == len(where) - 1 else None
    return None


def _narrowed(condition: Condition, names: str, args: list[Value], start: int) -> IndexedCondition:
    if isinstance(condition, ConditionTest):
        return _looked_up(condition, names, args, start)
    kept = len(args)
    parts = [_narrowed(part, names, args, start) for part in condition.parts]
    told = [part.sql for part in parts if part.sql]
    if not told or (not condition.every and len(told) < len(parts)):
        del args[kept:]  # a parameter that no statement mentions is an error
        return IndexedCondition()
    joined = f"({(' AND ' if condition.every else ' OR ').join(told)})"
    return IndexedCondition(joined, len(told) == len(parts) and all(part.exact for part in parts))


def _looked_up(leaf: ConditionTest, names: str, args: list[Value], start: int) -> IndexedCondition:
    sign = _SIGNS.get(leaf.op)
    values = [each for each in (leaf.value if isinstance(leaf.value, tuple) else (leaf.value,)) if each is not None]
    if sign is None or not values:
        return IndexedCondition()

    def add(value: Value) -> str:
        args.append(value)
        return f"${start + len(args) - 1}"

    kinds: dict[tuple[str, str], list[str]] = {}
    exact = True
    for value in values:
        key, text, number = _written(leaf.key, value)
        is_cut = text is not None and len(text) >= MAX_INDEXED_CHARS
        exact = exact and not is_cut
        sign = sign if sign == "IN" or not is_cut else sign.rstrip("=") + "="  # it may be equal to what was cut
        kinds.setdefault((key, "number" if text is None else "text"), []).append(add(number if text is None else text))
    found = [
        f"SELECT f.source_id FROM facts f WHERE f.field IN (SELECT id FROM fields WHERE collection IN ({names})"  # noqa: S608
        f" AND name = {add(key)}) AND f.{column} {sign} ({', '.join(each)})"
        for (key, column), each in kinds.items()
    ]
    return IndexedCondition(f"{_AMONG}{' UNION ALL '.join(found)})", exact)


def _keys(rows: Iterable[Described]) -> dict[str, set[str]]:
    found: dict[str, set[str]] = {}
    for _, collection, metadata, tags in rows:
        found.setdefault(collection, set()).update(name for name, _, _ in _values(metadata, tags))
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


def _values(metadata: dict[str, Any], tags: Sequence[str]) -> Iterator[tuple[str, str | None, float | None]]:
    yield from (_written(_TAGS, tag) for tag in dict.fromkeys(tags) if "\0" not in tag)
    if b"\\u0000" in orjson.dumps(metadata):
        return  # to a condition, such metadata is empty
    for name, value in metadata.items():
        if UNFIT_KEY.search(name):
            continue
        for each in cast("list[Any]", value)[:MOST_MEMBERS] if isinstance(value, list) else (value,):
            if isinstance(each, str | int | float):
                yield _written(name, each)


def _written(key: str, value: str | int | float | bool) -> tuple[str, str | None, float | None]:
    if isinstance(value, bool):
        return key + _TRUTH, str(value).lower(), None
    return (key, value[:MAX_INDEXED_CHARS], None) if isinstance(value, str) else (key, None, float(value))
