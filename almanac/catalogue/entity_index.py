"""The shelf: what search is told of entities and pictures, in the transaction that changes them."""

from collections.abc import Iterable, Sequence
from typing import Any, Protocol, cast

from almanac.catalogue import entity_text
from almanac.core.database import Transaction
from almanac.search import passage_store, sources
from almanac.search.passage_store import AnalysedPassages
from almanac.search.sources import Source

ENTITY = "entity"
IMAGE = "picture"


class Shelved(Protocol):
    """As much of an entity as search has to know."""

    @property
    def id(self) -> str: ...
    @property
    def org_id(self) -> str: ...
    @property
    def category(self) -> int: ...
    @property
    def category_id(self) -> str: ...
    @property
    def category_name(self) -> str: ...
    @property
    def name(self) -> str: ...
    @property
    def description(self) -> str: ...
    @property
    def details(self) -> str: ...
    @property
    def source(self) -> str: ...
    @property
    def sku(self) -> str: ...
    @property
    def status(self) -> str: ...
    @property
    def tags(self) -> tuple[str, ...]: ...
    @property
    def metadata(self) -> dict[str, Any]: ...
    @property
    def created_at(self) -> int: ...
    @property
    def updated_at(self) -> int: ...


def catalogue_of(org_id: str) -> str:
    """What the entities of an organisation are searched by."""
    return f"catalogue:{org_id}"


def image_collection(org_id: str) -> str:
    """What the pictures attached to them are searched by."""
    return f"pictures:{org_id}"


async def put(tx: Transaction, entities: Sequence[tuple[Shelved, AnalysedPassages]]) -> None:
    """Let search know entities as they are now; each comes with what `prepare` made of it."""
    await passage_store.add_many(tx, [(source_of(entity), prepared) for entity, prepared in entities])


async def remove(tx: Transaction, kind: str, owner_ids: Iterable[str]) -> None:
    """Let nothing of these be found any more."""
    await sources.remove(tx, kind, owner_ids)


def prepare(entity: Shelved) -> AnalysedPassages:
    """The passages of an entity with their words counted: best done before the transaction."""
    facts = {"SKU": entity.sku, "tags": list(entity.tags), **entity.metadata}
    cut = entity_text.entity_passages((entity.description, entity.details), facts, entity.category_name)
    return passage_store.analyse(entity.name, cut)


def source_of(entity: Shelved) -> Source:
    """An entity as search knows it: what is archived is not found."""
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


def _filterable(entity: Shelved) -> dict[str, Any]:
    """What an entity can be filtered by: its metadata and its own fields. Where both have a name, either will do."""
    own: dict[str, list[Any]] = {
        "category": [entity.category_id],
        "name": [entity.name],
        "sku": [entity.sku] if entity.sku else [],
        "source": [entity.source] if entity.source else [],
        "status": [entity.status],
        "tags": list(entity.tags),
    }
    found = dict(entity.metadata)
    for name, values in own.items():
        given = entity.metadata.get(name)
        joined = [*values, *(cast("list[Any]", given) if isinstance(given, list) else [] if given is None else [given])]
        if joined:
            found[name] = joined if len(joined) > 1 or name == "tags" else joined[0]
    return found
