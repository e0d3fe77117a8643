"""The catalogue as JSON in the format of the gateway's contract, for REST and the gateway surface."""

import asyncio
from collections.abc import Sequence
from typing import Any

from almanac.catalogue import attachments, categories, entities, entity_index, namespaces, relations, vocabulary
from almanac.catalogue.attachments import Attachment
from almanac.catalogue.categories import MAX_CATEGORY_DEPTH, TOP, Category, Tree
from almanac.catalogue.entity import Entity
from almanac.catalogue.namespaces import Namespace
from almanac.catalogue.relations import Relation
from almanac.catalogue.vocabulary import Term
from almanac.core import clock
from almanac.core.call import Call
from almanac.core.database import Row
from almanac.core.errors import NotFound
from almanac.core.fair_slots import compute_for
from almanac.search import sources

MAX_LISTED_ENTITIES = 500  # per category

Json = dict[str, Any]


async def entity(call: Call, key: str) -> Json | list[Json]:
    """The entity with this id or exact name. If there is none, all entities in the categories with this alias key."""
    try:
        value = await entities.get(call.db, call, key)
    except NotFound:
        tree = await categories.tree(call.db, call.actor.org_id)
        numbers = [category.number for category in tree.by_number.values() if category.alias_key == key]
        if not numbers:
            raise
        filter = entities.EntityFilter(categories=tuple(numbers))
        page = await entities.find(call.db, call.actor.org_id, filter, limit=MAX_LISTED_ENTITIES)
        return await entity_list(call, list(page.items))
    return await entity_with_links(call, value)


async def entity_with_links(call: Call, value: Entity) -> Json:
    """An entity with its relations and attachments."""
    org_id = call.actor.org_id
    related, attached, embedded = await asyncio.gather(
        relations.of(call.db, org_id, value.id),
        attachments.of(call.db, org_id, value.id),
        sources.embedded(call.db, entity_index.ENTITY, [value.id]),
    )
    tree = await categories.tree(call.db, org_id) if related else None
    return {
        **_own_fields(value, value.id in embedded),
        "attachments": [
            {"id": item.id, "type": item.type_key, "url": item.url, "name": item.name} for item in attached
        ],
        "relations": [relation(item, tree) for item in related],
        **_timestamps(value),
    }


async def entity_list(call: Call, values: Sequence[Entity]) -> list[Json]:
    """Entities without their relations and attachments."""
    embedded = await sources.embedded(call.db, entity_index.ENTITY, [value.id for value in values])
    return [{**_own_fields(value, value.id in embedded), **_timestamps(value)} for value in values]


def _own_fields(value: Entity, is_embedded: bool) -> Json:
    return {
        "_id": value.id,
        "name": value.name,
        "description": value.description,
        "details": value.details,
        "source": value.source,
        "sku": value.sku,
        "status": value.status,
        "category": {"_id": value.category_id, "name": value.category_name, "aliasKey": value.alias_key},
        "isVectorized": is_embedded,
        "tags": list(value.tags),
        "metadata": value.metadata,
    }


def relation(value: Relation, tree: Tree | None) -> Json:
    """A relation, with the category path of the other entity if the tree is given."""
    return {
        "sourceEntity": {"_id": value.source_id, "name": value.source_name},
        "targetEntity": {"_id": value.target_id, "name": value.target_name},
        "categoryPath": list(tree.path(value.other_category)) if tree else [],
        "type": value.type_key,
        "relationDescription": value.description,
    }


async def structure(call: Call, key: str | None = None) -> Json | list[Json]:
    """The whole category tree, or one category with its contents. A shared alias key gives a list."""
    tree = await categories.tree(call.db, call.actor.org_id)
    if key is None:
        renderer = CategoryRenderer(tree, await categories.counts(call.db, call.actor.org_id))
        return await compute_for(len(tree.by_number), renderer.nodes, tree.children(TOP))
    return await category(call, tree, key)


async def category(call: Call, tree: Tree, key: str, *, recursive: bool = False) -> Json | list[Json]:
    """The category with this id, path or name, with its contents. An alias key gives a list of all that have it."""
    renderer = CategoryRenderer(tree, await categories.counts(call.db, call.actor.org_id))
    aliased = [value for value in tree.by_number.values() if value.alias_key == key and value.id != key]
    if aliased:
        return await renderer.whole(call, aliased, recursive)
    value = tree.pick(key)
    call.record_access("category", value.id)
    return (await renderer.whole(call, [value], recursive))[0]


class CategoryRenderer:
    """Renders the categories of one tree. With `terms`, aliases and policies are whole terms, otherwise key and id."""

    def __init__(self, tree: Tree, counts: dict[int, int], terms: dict[str, Term] | None = None) -> None:
        self._tree = tree
        self._counts = counts
        self._terms = terms

    def node(self, value: Category, *, levels: int = MAX_CATEGORY_DEPTH) -> Json:
        """A category with the categories below it, down to a number of levels. The categories at the last level have
        no children here; each can be read by its id. A tree that an earlier version stored may be deeper."""
        children = self._tree.children(value.number)
        parent = self._tree.by_number.get(value.parent)
        count = self._counts.get(value.number, 0)
        return {
            "_id": value.id,
            "name": value.name,
            "description": value.description,
            "categoryAlias": self._term(value.alias_id, value.alias_key),
            "policy": self._term(value.policy_id, value.policy_id),
            "parent": parent.id if parent else None,
            "children": [
                self.node(child, levels=levels - 1) if levels > 1 else self._leaf(child) for child in children
            ],
            "entityCount": count,
            "permissions": {"canDelete": not children and not count, "canChangeHierarchy": True},
            **_timestamps(value),
        }

    def nodes(self, values: Sequence[Category]) -> list[Json]:
        """Categories with all categories below them."""
        return [self.node(value) for value in values]

    async def whole(self, call: Call, values: Sequence[Category], recursive: bool) -> list[Json]:
        """Categories with the names of their entities and, if `recursive`, those of the categories below them."""
        numbers = [value.number for value in values]
        numbers = self._tree.descend(numbers) if recursive else numbers
        names = await entities.names_in(call.db, call.actor.org_id, numbers, MAX_LISTED_ENTITIES)
        return await compute_for(len(numbers) + len(names), self._with_names, values, names, recursive)

    def _with_names(self, values: Sequence[Category], rows: Sequence[Row], recursive: bool) -> list[Json]:
        names: dict[int, list[Json]] = {}
        for row in rows:
            names.setdefault(row["category"], []).append({"_id": row["id"], "name": row["name"]})
        nodes = [self.node(value, levels=MAX_CATEGORY_DEPTH if recursive else 1) for value in values]
        pending = list(nodes)
        while pending:
            node = pending.pop()
            node["entities"] = names.get(self._tree.by_id[node["_id"]].number, [])
            pending += node.get("children", ()) if recursive else ()
        return nodes

    def _leaf(self, value: Category) -> Json:
        return {"_id": value.id, "name": value.name, "entityCount": self._counts.get(value.number, 0)}

    def _term(self, id: str | None, short: str | None) -> Json | str | None:
        return short if self._terms is None or id is None else term(self._terms[id])


def term(value: Term) -> Json:
    """A vocabulary term."""
    return {
        "_id": value.id,
        "name": value.name,
        "description": value.description,
        vocabulary.KEY_FIELDS[value.kind]: value.key,
        **(value.details if value.kind == "policy" else {}),
        **_timestamps(value),
    }


async def attachment(call: Call, value: Attachment) -> Json:
    """An attachment with the ids of its entities."""
    return {
        "_id": value.id,
        "name": value.name,
        "url": value.url,
        "description": value.description,
        "annotations": value.annotations,
        "type": value.type_key,
        "contentType": value.media_type or None,
        "size": value.size or None,  # unknown for a reference to a URL
        "entities": await attachments.entity_ids_of(call.db, call.actor.org_id, value.id),
        **_timestamps(value),
    }


async def namespace(call: Call, value: Namespace, tree: Tree) -> Json:
    """A namespace with the state of its embeddings."""
    return {
        "_id": value.id,
        "name": value.name,
        "notes": value.notes,
        "status": await namespaces.status(call.db, call.actor.org_id, value, tree),
        "categories": list(value.categories),
        **_timestamps(value),
    }


async def terms(call: Call, kind: str) -> list[Json]:
    """All terms of a kind."""
    return [term(value) for value in await vocabulary.find(call.db, call.actor.org_id, kind)]


def _timestamps(value: Entity | Category | Term | Attachment | Namespace) -> Json:
    return {
        "createdAt": clock.format_timestamp(value.created_at),
        "updatedAt": clock.format_timestamp(value.updated_at),
    }
