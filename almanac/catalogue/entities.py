"""Entities of the catalogue: reading, writing and listing them."""

from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import suppress
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
from almanac.core.database import Database, Reader, Row, Transaction, Value
from almanac.core.errors import BadRequest, Conflict, NotFound
from almanac.core.fair_slots import compute, compute_for
from almanac.core.pages import Page
from almanac.db.sql import Parameters, id_list, placeholders
from almanac.search import sources
from almanac.search.passage_store import AnalysedPassages

MAX_TAGS = 200
MAX_METADATA_BYTES = 100_000
MAX_DETAILS_CHARS = 1_000_000
MAX_ATTEMPTS = 5  # to write an entity that others change at the same time

_COLUMNS = (
    "id", "org_id", "category", "name", "description", "details", "source", "sku", "status", "tags", "metadata",
    "folded", "created_at", "updated_at",
)  # fmt: skip
_UPDATE = """
UPDATE entities SET category = $3, name = $4, description = $5, details = $6, source = $7, sku = $8, status = $9,
    tags = $10, metadata = $11, folded = $12, updated_at = $13 WHERE id = $1 AND org_id = $2
"""


def check_metadata(metadata: dict[str, Any]) -> dict[str, Any]:
    """The metadata as it will be stored. Raises ValueError if it cannot be stored or is too large."""
    try:
        encoded = orjson.dumps(metadata)
    except TypeError:
        raise ValueError("is not JSON that can be stored") from None
    if len(encoded) > MAX_METADATA_BYTES:
        raise ValueError(f"is larger than {MAX_METADATA_BYTES} bytes")
    return orjson.loads(encoded)


def _check_tags(tags: list[str]) -> list[str]:
    if len(tags) > MAX_TAGS or any(not 1 <= len(tag) <= 200 for tag in tags):
        raise ValueError(f"has at most {MAX_TAGS} tags of 1 to 200 characters")
    return list(dict.fromkeys(tags))


class ChangedMeanwhile(Conflict):
    """The entity or its category was changed at the same time."""

    remedy = "Try again."


Status = Literal["draft", "active", "archived"]
Tags = Annotated[list[str], AfterValidator(_check_tags)]
Metadata = Annotated[dict[str, Any], AfterValidator(check_metadata)]
Details = Annotated[str, Field(max_length=MAX_DETAILS_CHARS)]

_SOURCE = "Where the data comes from, such as a file or a URL."
_SKU = "Article number; finds the entity like its id."
_STATUS = "draft and archived entities are stored, and a filter can leave them out."
_TAGS = "Labels to filter by."
_METADATA = "Names and values to filter by."


class EntityDraft(Arguments):
    """The fields of a new entity."""

    name: Annotated[str, Field(min_length=1, max_length=500, description="The name that people see.")]
    category: Annotated[str, Field(min_length=1, max_length=2000, description="Id, alias key or path (Tools/Washers).")]
    description: vocabulary.Text = ""
    details: Annotated[Details, Field(description="Markdown or HTML.")] = ""
    source: Annotated[str, Field(max_length=2000, description=_SOURCE)] = ""
    sku: Annotated[str, Field(max_length=200, description=_SKU)] = ""
    status: Annotated[Status, Field(description=_STATUS)] = "active"
    tags: Annotated[Tags, Field(default_factory=list[str], description=_TAGS)]
    metadata: Annotated[Metadata, Field(default_factory=dict[str, Any], description=_METADATA)]


class EntityChanges(Arguments):
    """Changes to an entity. Omitted fields stay as they are."""

    name: Annotated[str | None, Field(min_length=1, max_length=500, description="New name.")] = None
    category: Annotated[
        str | None, Field(min_length=1, max_length=2000, description="Move it to this category: id, alias key or path.")
    ] = None
    description: Annotated[vocabulary.Text | None, Field(description="A few sentences.")] = None
    details: Annotated[Details | None, Field(description="Markdown or HTML.")] = None
    source: Annotated[str | None, Field(max_length=2000, description=_SOURCE)] = None
    sku: Annotated[str | None, Field(max_length=200, description=_SKU)] = None
    status: Annotated[Status | None, Field(description=_STATUS)] = None
    tags: Annotated[Tags | None, Field(description="Replace all tags.")] = None
    metadata: Annotated[Metadata | None, Field(description="Replaces all metadata.")] = None


@dataclass(frozen=True, slots=True)
class EntityFilter:
    """The entities that `find` lists. An empty field excludes nothing."""

    text: str = ""  # a part of the name, description or details, in upper or lower case
    categories: tuple[int, ...] = ()
    source: str = ""
    sku: str = ""
    tags: tuple[str, ...] = ()  # at least one of them
    status: str = ""


def new_entity(org_id: str, draft: EntityDraft, category: Category, id: str | None = None) -> Entity:
    """An entity from its draft, not stored yet."""
    now = clock.now()
    return Entity(
        id=id or ids.new(),
        org_id=org_id,
        category=category.number,
        category_id=category.id,
        category_name=category.name,
        alias_key=category.alias_key,
        name=categories.check_name(draft.name),
        description=vocabulary.check_text(draft.description, "description"),
        details=vocabulary.check_text(draft.details, "details"),
        source=vocabulary.check_text(draft.source, "source"),
        sku=vocabulary.check_text(draft.sku, "sku"),
        status=draft.status,
        tags=tuple(vocabulary.check_text(tag, "tags") for tag in draft.tags),
        metadata=draft.metadata,
        created_at=now,
        updated_at=now,
    )


async def store(call: Call, draft: EntityDraft) -> Entity:
    """Add an entity. Searches find it when this returns."""
    return await _repeated(lambda: _store(call, draft))


async def _store(call: Call, draft: EntityDraft) -> Entity:
    await access.require_write(call.db, call)
    tree = await categories.tree(call.db, call.actor.org_id)
    entity = new_entity(call.actor.org_id, draft, tree.pick(draft.category))
    passages = await compute(entity_index.prepare, entity)
    await call.db.write(lambda tx: _add(tx, call, entity, passages))
    call.record_access("entity", entity.id)
    return entity


async def _add(tx: Transaction, call: Call, entity: Entity, passages: AnalysedPassages) -> None:
    await access.require_write(tx, call)
    await _check_category(tx, entity)
    await write(tx, [entity])
    await entity_index.put(tx, [(entity, passages)])


async def write(tx: Transaction, new: Sequence[Entity]) -> None:
    """Insert new entities as they are, without indexing them."""
    rows = [(entity.id, entity.org_id, *_values(entity), entity.created_at, entity.updated_at) for entity in new]
    await tx.insert_many("entities", _COLUMNS, rows)


async def change(call: Call, id: str, changes: EntityChanges) -> Entity:
    """Change the given fields of an entity. At least one is required."""
    fields = changes.model_dump(exclude_none=True)
    if not fields:
        raise BadRequest("There is nothing to change.", remedy="Send at least one field.")
    return await _repeated(lambda: _change(call, id, fields))


async def _change(call: Call, id: str, fields: dict[str, Any]) -> Entity:
    await access.require_write(call.db, call)
    old = await get_or_none(call.db, call.actor.org_id, id)
    if old is None:
        raise missing(id)
    category = None
    if "category" in fields:
        category = (await categories.tree(call.db, call.actor.org_id)).pick(fields["category"])
    entity = _changed(old, fields, category)
    passages = await compute(entity_index.prepare, entity)
    await call.db.write(lambda tx: _replace(tx, call, old, entity, passages))
    call.record_access("entity", id)
    return entity


async def _replace(tx: Transaction, call: Call, old: Entity, new: Entity, passages: AnalysedPassages) -> None:
    await access.require_write(tx, call)
    sql = "UPDATE entities SET updated_at = $4 WHERE id = $1 AND org_id = $2 AND updated_at = $3"
    if not await tx.execute(sql, old.id, old.org_id, old.updated_at, new.updated_at):
        raise ChangedMeanwhile()  # a concurrent change of the row waits here, and then finds another time
    await _check_category(tx, new)
    await rewrite(tx, new)
    await entity_index.put(tx, [(new, passages)])


def _changed(old: Entity, fields: dict[str, Any], category: Category | None) -> Entity:
    """The entity with other values in some fields."""
    values = dict(fields)
    if category is not None:
        values |= {"category": category.number, "category_id": category.id, "category_name": category.name}
        values["alias_key"] = category.alias_key
    for name in values.keys() & {"name", "description", "details", "source", "sku"}:
        values[name] = vocabulary.check_text(values[name], name)
    if "name" in values:
        values["name"] = categories.check_name(values["name"])
    if "tags" in values:
        values["tags"] = tuple(vocabulary.check_text(tag, "tags") for tag in values["tags"])
    return replace(old, **values, updated_at=clock.now())


async def _check_category(tx: Transaction, entity: Entity) -> None:
    """The name of the category is part of the indexed text, which was prepared before the transaction."""
    row = await tx.fetch_one("SELECT name FROM categories WHERE number = $1", entity.category)
    if row is None or row["name"] != entity.category_name:
        raise ChangedMeanwhile()


async def _repeated(write: Callable[[], Awaitable[Entity]]) -> Entity:
    """Prepare and write again if another write came between."""
    for _ in range(MAX_ATTEMPTS - 1):
        with suppress(ChangedMeanwhile):
            return await write()
    return await write()


async def rewrite(tx: Transaction, entity: Entity) -> None:
    """Overwrite the row of an entity, without indexing it."""
    await tx.execute(_UPDATE, entity.id, entity.org_id, *_values(entity), entity.updated_at)


async def remove(tx: Transaction, call: Call, id: str) -> None:
    """Remove an entity with its relations. Its attachments stay."""
    await access.require_write(tx, call)
    if not await tx.execute("DELETE FROM entities WHERE id = $1 AND org_id = $2", id, call.actor.org_id):
        raise missing(id)
    await sources.remove(tx, entity_index.ENTITY, [id])
    call.record_access("entity", id)


async def get(db: Reader, call: Call, key: str, columns: Sequence[Literal["name", "sku"]] = ("name",)) -> Entity:
    """The entity with this id, or with exactly this value in the first of the columns in which an entity has it. Raises
    Conflict if several entities have the value."""
    entity = await get_or_none(db, call.actor.org_id, key) if ids.is_id(key) else None
    for column in columns if entity is None else ():
        rows = await db.fetch(
            f"{SELECT} WHERE e.org_id = $1 AND e.{column} = $2 ORDER BY e.id LIMIT 6", call.actor.org_id, key
        )
        if len(rows) > 1:
            listed = ", ".join(row["id"] for row in rows[:5])
            raise Conflict(f"More than one entity has this {column}.", remedy=f"Use an id: {listed}.")
        if rows:
            entity = entity_from_row(rows[0])
            break
    if entity is None:
        raise missing(key)
    call.record_access("entity", entity.id)
    return entity


async def get_or_none(db: Reader, org_id: str, id: str) -> Entity | None:
    """The entity of an organisation with this id, or None."""
    row = await db.fetch_one(f"{SELECT} WHERE e.id = $2 AND e.org_id = $1", org_id, id)
    return None if row is None else entity_from_row(row)


async def get_many(db: Database, org_id: str, ids: Iterable[str]) -> dict[str, Entity]:
    """The existing entities of an organisation with these ids, by id."""
    return {entity.id: entity for entity in await find_by(db, org_id, "id", ids)}


async def find_by(
    db: Database, org_id: str, column: Literal["id", "sku", "name"], values: Iterable[str]
) -> list[Entity]:
    """The entities of an organisation that have one of the values in a column."""
    unique = list(dict.fromkeys(values))
    if not unique:
        return []
    sql = f"{SELECT} WHERE e.org_id = $1 AND e.{column} IN ({placeholders(len(unique), 2)}) ORDER BY e.id"
    rows = await db.scan(sql, org_id, *unique)
    return await compute_for(len(rows), _from_rows, rows)


def _from_rows(rows: Sequence[Row]) -> list[Entity]:
    return [entity_from_row(row) for row in rows]


async def find(db: Database, org_id: str, filter: EntityFilter, *, limit: int = 100, offset: int = 0) -> Page[Entity]:
    """A page of the entities that pass a filter, oldest first."""
    where, args = _where(org_id, filter)
    (total,) = await db.scan(f"SELECT count(*) AS n FROM entities e WHERE {where}", *args)  # noqa: S608 - parameters
    rows = await db.scan(f"{SELECT} WHERE {where} ORDER BY e.id LIMIT {limit:d} OFFSET {offset:d}", *args)
    return Page(await compute_for(len(rows), _from_rows, rows), total["n"], offset)


async def names_in(db: Database, org_id: str, categories: Sequence[int], limit: int) -> list[Row]:
    """Category, id and name of the entities directly in some categories, at most `limit` of each."""
    return await db.scan(
        "SELECT category, id, name FROM (SELECT category, id, name, row_number() OVER"  # noqa: S608 - integers
        " (PARTITION BY category ORDER BY id) AS place FROM entities"
        f" WHERE org_id = $1 AND category IN ({id_list(categories)})) AS numbered WHERE place <= $2 ORDER BY id",
        org_id,
        limit,
    )


async def after(db: Reader, org_id: str, id: str, limit: int) -> list[Entity]:
    """The next entities after an id, in the order of ids, to read all entities in batches."""
    sql = f"{SELECT} WHERE e.org_id = $1 AND e.id > $2 ORDER BY e.id LIMIT {limit:d}"
    return [entity_from_row(row) for row in await db.fetch(sql, org_id, id)]


def missing(key: str) -> NotFound:
    """The error for an entity that does not exist."""
    return NotFound(f"There is no entity {key[:100]!r}.", remedy="Search for it, or use an id from a search.")


def _where(org_id: str, filter: EntityFilter) -> tuple[str, list[Value]]:
    parameters = Parameters()
    conditions = [f"e.org_id = {parameters.add(org_id)}"]
    if filter.text:
        conditions.append(f"replace(e.folded, {parameters.add(filter.text.casefold())}, '') <> e.folded")
    if filter.categories:
        conditions.append(f"e.category IN ({id_list(filter.categories)})")
    for column in ("source", "sku", "status"):
        if value := getattr(filter, column):
            conditions.append(f"e.{column} = {parameters.add(value)}")
    if filter.tags:
        encoded = [parameters.add(orjson.dumps(tag).decode()) for tag in filter.tags]
        tests = [f"replace(CAST(e.tags AS TEXT), {tag}, '') <> CAST(e.tags AS TEXT)" for tag in encoded]
        conditions.append(f"({' OR '.join(tests)})")
    return " AND ".join(conditions), parameters.values


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
