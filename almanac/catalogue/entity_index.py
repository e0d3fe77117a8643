"""Keeps search up to date with entities and images, in the transaction that changes them."""

from collections.abc import Sequence
from typing import Any, cast

from almanac.catalogue import entity_text
from almanac.catalogue.entity import SELECT, Entity, entity_from_row
from almanac.core.database import Database, Transaction
from almanac.jobs.queue import Job
from almanac.jobs.worker import Effect
from almanac.search import passage_store
from almanac.search.passage_store import AnalysedPassages
from almanac.search.sources import Source

ENTITY = "entity"
IMAGE = "picture"  # as stored in `sources.kind`
REINDEX_CATEGORY_JOB = "reindex_category"

_BATCH_ENTITIES = 100
_NEXT_IN_CATEGORY = f"{SELECT} WHERE e.category = $1 AND e.id > $2 ORDER BY e.id LIMIT {_BATCH_ENTITIES}"


def catalogue_of(org_id: str) -> str:
    """The collection of an organisation's entities."""
    return f"catalogue:{org_id}"


def image_collection(org_id: str) -> str:
    """The collection of an organisation's image attachments."""
    return f"pictures:{org_id}"


async def put(tx: Transaction, entities: Sequence[tuple[Entity, AnalysedPassages]]) -> None:
    """Index entities, each with the passages that `prepare` returned for it."""
    await passage_store.add_many(tx, [(source_of(entity), passages) for entity, passages in entities])


def prepare(entity: Entity) -> AnalysedPassages:
    """Split an entity into passages and count their words. Call it before the transaction where possible."""
    fields = {"SKU": entity.sku, "tags": list(entity.tags), **entity.metadata}
    passages = entity_text.entity_passages((entity.description, entity.details), fields, entity.category_name)
    return passage_store.analyse(entity.name, passages)


def source_of(entity: Entity) -> Source:
    """Search's record of an entity. Searches leave archived entities out."""
    return Source(
        org_id=entity.org_id,
        collection=catalogue_of(entity.org_id),
        kind=ENTITY,
        object_id=entity.id,
        title=entity.name,
        created_at=entity.created_at,
        updated_at=entity.updated_at,
        folder_id=entity.category,
        tags=entity.tags,
        metadata=_filterable(entity),
        is_live=entity.status != "archived",
    )


def _filterable(entity: Entity) -> dict[str, Any]:
    """The values that filters see: metadata and own fields. A name that both have matches the values of both."""
    own: dict[str, list[Any]] = {
        "category": [entity.category_id],
        "name": [entity.name],
        "sku": [entity.sku] if entity.sku else [],
        "source": [entity.source] if entity.source else [],
        "status": [entity.status],
        "tags": list(entity.tags),
    }
    merged = dict(entity.metadata)
    for name, values in own.items():
        value = entity.metadata.get(name)
        joined = [*values, *(cast("list[Any]", value) if isinstance(value, list) else [] if value is None else [value])]
        if joined:
            merged[name] = joined if len(joined) > 1 or name == "tags" else joined[0]
    return merged


class ReindexCategory:
    """Handler of `REINDEX_CATEGORY_JOB`: index the entities of a renamed category, whose name is part of their text."""

    def __init__(self, db: Database) -> None:
        self._db = db

    async def __call__(self, job: Job) -> Effect | None:
        """Index all entities of the category in batches. Running twice has the same result."""
        category, last_id = int(job.payload["category"]), ""
        while ids := await self._db.write(lambda tx, last_id=last_id: _reindex_after(tx, category, last_id)):
            last_id = ids[-1]
        return None


async def _reindex_after(tx: Transaction, category: int, last_id: str) -> list[str]:
    """Index the next batch of a category's entities and return their ids."""
    entities = [entity_from_row(row) for row in await tx.fetch(_NEXT_IN_CATEGORY, category, last_id)]
    if entities:
        await put(tx, [(entity, prepare(entity)) for entity in entities])
    return [entity.id for entity in entities]
