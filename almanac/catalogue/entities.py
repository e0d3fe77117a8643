"""Entities: the things a catalogue is of."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any, Literal

import orjson
from pydantic import AfterValidator, Field

from almanac.catalogue import access, categories, entity_index, ids, vocabulary
from almanac.catalogue.categories import Category
from almanac.catalogue.entity import SELECT, Entity, entity_from_row
from almanac.core import clock
from almanac.core.arguments import Arguments
from almanac.core.call import Call
from almanac.core.database import Reader, Transaction, Value
from almanac.core.errors import BadRequest, Conflict, NotFound
from almanac.core.pages import Page

MOST_TAGS = 200
MOST_METADATA = 100_000  # bytes of it
LONGEST_DETAILS = 1_000_000

_COLUMNS = (
    "id", "org_id", "category", "name", "description", "details", "source", "sku", "status", "tags", "metadata",
    "folded", "created_at", "updated_at",
)  # fmt: skip
_CHANGE = """
UPDATE entities SET category = $3, name = $4, description = $5, details = $6, source = $7, sku = $8, status = $9,
    tags = $10, metadata = $11, folded = $12, updated_at = $13 WHERE id = $1 AND org_id = $2
"""


def _storable(metadata: dict[str, Any]) -> dict[str, Any]:
    try:
        packed = orjson.dumps(metadata)
    except TypeError:
        raise ValueError("is not JSON that can be stored") from None
    if len(packed) > MOST_METADATA:
        raise ValueError(f"is larger than {MOST_METADATA} bytes")
    return orjson.loads(packed)


def _few(tags: list[str]) -> list[str]:
    if len(tags) > MOST_TAGS or any(not 1 <= len(tag) <= 200 for tag in tags):
        raise ValueError(f"has at most {MOST_TAGS} tags of 1 to 200 characters")
    return list(dict.fromkeys(tags))


Status = Literal["draft", "active", "archived"]
Tags = Annotated[list[str], AfterValidator(_few)]
Metadata = Annotated[dict[str, Any], AfterValidator(_storable)]
Details = Annotated[str, Field(max_length=LONGEST_DETAILS)]


class EntityDraft(Arguments):
    """An entity to be made."""

    name: Annotated[str, Field(min_length=1, max_length=500)]
    category: Annotated[str, Field(min_length=1, max_length=2000, description="Id, alias key or path (Tools/Washers).")]
    description: vocabulary.Text = ""
    details: Annotated[Details, Field(description="Markdown or HTML.")] = ""
    source: Annotated[str, Field(max_length=2000)] = ""
    sku: Annotated[str, Field(max_length=200)] = ""
    status: Status = "active"
    tags: Annotated[Tags, Field(default_factory=list[str])]
    metadata: Annotated[Metadata, Field(default_factory=dict[str, Any])]


class EntityChanges(Arguments):
    """What is to be different about an entity; what is left out stays."""

    name: Annotated[str | None, Field(min_length=1, max_length=500)] = None
    category: Annotated[str | None, Field(min_length=1, max_length=2000)] = None
    description: vocabulary.Text | None = None
    details: Details | None = None
    source: Annotated[str | None, Field(max_length=2000)] = None
    sku: Annotated[str | None, Field(max_length=200)] = None
    status: Status | None = None
    tags: Tags | None = None
    metadata: Metadata | None = None


@dataclass(frozen=True, slots=True)
class EntityFilter:
    """Which entities are asked for. What is left empty does not matter."""

    text: str = ""  # in name, description or details, in any case of letters
    categories: tuple[int, ...] = ()
    source: str = ""
    sku: str = ""
    tags: tuple[str, ...] = ()  # any of them
    status: str = ""


def new_entity(org_id: str, draft: EntityDraft, category: Category, id: str | None = None) -> Entity:
    """An entity that is not stored yet."""
    now = clock.now()
    return Entity(
        id=id or ids.new(),
        org_id=org_id,
        category=category.number,
        category_id=category.id,
        category_name=category.name,
        alias_key=category.alias_key,
        name=categories.check_name(draft.name),
        description=vocabulary.fit(draft.description, "description"),
        details=vocabulary.fit(draft.details, "details"),
        source=vocabulary.fit(draft.source, "source"),
        sku=vocabulary.fit(draft.sku, "sku"),
        status=draft.status,
        tags=tuple(vocabulary.fit(tag, "tags") for tag in draft.tags),
        metadata=draft.metadata,
        created_at=now,
        updated_at=now,
    )


async def add(tx: Transaction, call: Call, draft: EntityDraft) -> Entity:
    """Make an entity. It can be searched for when the transaction is done."""
    await access.require_write(tx, call)
    found = await categories.tree_in(tx, call.actor.org_id)
    entity = new_entity(call.actor.org_id, draft, found.pick(draft.category))
    await write(tx, [entity])
    await entity_index.put(tx, [(entity, entity_index.prepare(entity))])
    call.record_access("entity", entity.id)
    return entity


async def write(tx: Transaction, new: Sequence[Entity]) -> None:
    """Store entities that are not there yet, as they are."""
    await tx.insert_many("entities", _COLUMNS, [(each.id, each.org_id, *_values(each), each.created_at, each.updated_at)
                                                for each in new])  # fmt: skip


async def update(tx: Transaction, call: Call, id: str, changes: EntityChanges) -> Entity:
    """Change what is given of an entity; at least something has to be."""
    given = changes.model_dump(exclude_none=True)
    if not given:
        raise BadRequest("There is nothing to change.", remedy="Send at least one field.")
    await access.require_write(tx, call)
    old = await by_id(tx, call.actor.org_id, id)
    if old is None:
        raise missing(id)
    named = given.pop("category", None)
    if named is not None:
        category = (await categories.tree_in(tx, call.actor.org_id)).pick(named)
        old = replace(
            old,
            category=category.number,
            category_id=category.id,
            category_name=category.name,
            alias_key=category.alias_key,
        )
    for name in given.keys() & {"name", "description", "details", "source", "sku"}:
        given[name] = vocabulary.fit(given[name], name)
    if "name" in given:
        given["name"] = categories.check_name(given["name"])
    if "tags" in given:
        given["tags"] = tuple(vocabulary.fit(tag, "tags") for tag in given["tags"])
    entity = replace(old, **given, updated_at=clock.now())
    await rewrite(tx, entity)
    await entity_index.put(tx, [(entity, entity_index.prepare(entity))])
    call.record_access("entity", id)
    return entity


async def rewrite(tx: Transaction, entity: Entity) -> None:
    """Store an entity in the place of what it was."""
    await tx.execute(_CHANGE, entity.id, entity.org_id, *_values(entity), entity.updated_at)


async def remove(tx: Transaction, call: Call, id: str) -> None:
    """Remove an entity with its relations; what was attached to it stays."""
    await access.require_write(tx, call)
    if not await tx.execute("DELETE FROM entities WHERE id = $1 AND org_id = $2", id, call.actor.org_id):
        raise missing(id)
    await entity_index.remove(tx, entity_index.ENTITY, [id])
    call.record_access("entity", id)


async def get(db: Reader, call: Call, key: str) -> Entity:
    """The entity with this id or, where no id is meant, the one with exactly this name."""
    entity = await by_id(db, call.actor.org_id, key) if ids.is_id(key) else None
    if entity is None:
        rows = await db.fetch(
            f"{SELECT} WHERE e.org_id = $1 AND e.name = $2 ORDER BY e.id LIMIT 6", call.actor.org_id, key
        )
        if len(rows) > 1:
            listed = ", ".join(row["id"] for row in rows[:5])
            raise Conflict("More than one entity has this name.", remedy=f"Use an id: {listed}.")
        entity = entity_from_row(rows[0]) if rows else None
    if entity is None:
        raise missing(key)
    call.record_access("entity", entity.id)
    return entity


async def by_id(db: Reader, org_id: str, id: str) -> Entity | None:
    """An entity of an organisation, if it is there."""
    row = await db.fetch_one(f"{SELECT} WHERE e.id = $2 AND e.org_id = $1", org_id, id)
    return None if row is None else entity_from_row(row)


async def get_many(db: Reader, org_id: str, wanted: Iterable[str]) -> dict[str, Entity]:
    """Entities of an organisation by their ids, as many as are there."""
    return {each.id: each for each in await among(db, org_id, "id", wanted)}


async def among(db: Reader, org_id: str, column: str, values: Iterable[str]) -> list[Entity]:
    """The entities whose id, sku or name is one of these."""
    asked = list(dict.fromkeys(values))
    if not asked:
        return []
    listed = ", ".join(f"${place + 2}" for place in range(len(asked)))
    rows = await db.fetch(f"{SELECT} WHERE e.org_id = $1 AND e.{column} IN ({listed}) ORDER BY e.id", org_id, *asked)
    return [entity_from_row(row) for row in rows]


async def find(db: Reader, org_id: str, wanted: EntityFilter, *, limit: int = 100, offset: int = 0) -> Page[Entity]:
    """Those that are asked for, oldest first."""
    where, args = _where(org_id, wanted)
    total = await db.fetch_one(f"SELECT count(*) AS n FROM entities e WHERE {where}", *args)  # noqa: S608 - parameters
    rows = await db.fetch(f"{SELECT} WHERE {where} ORDER BY e.id LIMIT {limit:d} OFFSET {offset:d}", *args)
    return Page([entity_from_row(row) for row in rows], total["n"] if total else 0, offset)


async def names_in(db: Reader, org_id: str, category: int, limit: int) -> list[tuple[str, str]]:
    """Ids and names of what is right in a category."""
    sql = "SELECT id, name FROM entities WHERE category = $1 AND org_id = $2 ORDER BY id LIMIT $3"
    rows = await db.fetch(sql, category, org_id, limit)
    return [(row["id"], row["name"]) for row in rows]


async def after(db: Reader, org_id: str, id: str, limit: int, category: int | None = None) -> list[Entity]:
    """The entities behind an id, in the order of ids: for going through all of them."""
    which = "" if category is None else f"AND e.category = {category:d}"
    sql = f"{SELECT} WHERE e.org_id = $1 AND e.id > $2 {which} ORDER BY e.id LIMIT {limit:d}"
    return [entity_from_row(row) for row in await db.fetch(sql, org_id, id)]


def missing(key: str) -> NotFound:
    """What is said of an entity that is not there."""
    return NotFound(f"There is no entity {key[:100]!r}.", remedy="Search for it, or use an id from a search.")


def _where(org_id: str, wanted: EntityFilter) -> tuple[str, list[Value]]:
    args: list[Value] = [org_id]

    def add(value: Value) -> str:
        args.append(value)
        return f"${len(args)}"

    parts = ["e.org_id = $1"]
    if wanted.text:
        word = add(wanted.text.casefold())
        parts.append(f"replace(e.folded, {word}, '') <> e.folded")
    if wanted.categories:
        parts.append(f"e.category IN ({', '.join(f'{number:d}' for number in wanted.categories)})")
    for column in ("source", "sku", "status"):
        if value := getattr(wanted, column):
            parts.append(f"e.{column} = {add(value)}")
    if wanted.tags:
        packed = [add(orjson.dumps(tag).decode()) for tag in wanted.tags]
        tests = [f"replace(CAST(e.tags AS TEXT), {each}, '') <> CAST(e.tags AS TEXT)" for each in packed]
        parts.append(f"({' OR '.join(tests)})")
    return " AND ".join(parts), args


def _values(entity: Entity) -> tuple[Value, ...]:
    return (
        entity.category,
        entity.name,
        entity.description,
        entity.details,
        entity.source,
        entity.sku,
        entity.status,
        orjson.dumps(entity.tags).decode(),
        orjson.dumps(entity.metadata).decode(),
        "\n".join((entity.name, entity.description, entity.details)).casefold(),
    )
