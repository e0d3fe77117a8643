"""Wire: what a catalogue holds as the gateway's contract writes it, for REST and for the gateway alike."""

import asyncio
from collections.abc import Sequence
from typing import Any

from almanac.catalogue import attachments, categories, entities, entity_index, namespaces, relations, vocabulary
from almanac.catalogue.attachments import Attachment
from almanac.catalogue.categories import TOP, Category, Tree
from almanac.catalogue.entity import Entity
from almanac.catalogue.namespaces import Namespace
from almanac.catalogue.relations import Relation
from almanac.catalogue.vocabulary import Term
from almanac.core import clock
from almanac.core.call import Call
from almanac.core.errors import NotFound
from almanac.search import sources

MOST_LISTED = 500  # entities named in a category
_KEYS = {"alias": "aliasKey", "policy": "policyKey", "relation": "typeKey", "attachment": "typeKey"}

Json = dict[str, Any]


async def entity(call: Call, key: str) -> Json | list[Json]:
    """The entity with this id or exact name; where none has it, all those in the categories with this alias key."""
    try:
        found = await entities.get(call.db, call, key)
    except NotFound:
        tree = await categories.tree(call.db, call.actor.org_id)
        numbers = [each.number for each in tree.by_number.values() if each.alias_key == key]
        if not numbers:
            raise
        wanted = entities.EntityFilter(categories=tuple(numbers))
        page = await entities.find(call.db, call.actor.org_id, wanted, limit=MOST_LISTED)
        return await entity_list(call, list(page.items))
    return await entity_with_links(call, found)


async def entity_with_links(call: Call, found: Entity) -> Json:
    """An entity with its relations and what is attached to it."""
    org_id = call.actor.org_id
    related, papers, embedded = await asyncio.gather(
        relations.of(call.db, org_id, found.id),
        attachments.of(call.db, org_id, found.id),
        sources.embedded(call.db, entity_index.ENTITY, [found.id]),
    )
    tree = await categories.tree(call.db, org_id) if related else None
    return {
        **entity_facts(found, found.id in embedded),
        "attachments": [_attached(each) for each in papers],
        "relations": [relation(each, tree) for each in related],
        **_moments(found.created_at, found.updated_at),
    }


async def entity_list(call: Call, found: Sequence[Entity]) -> list[Json]:
    """Entities without their relations and attachments."""
    embedded = await sources.embedded(call.db, entity_index.ENTITY, [each.id for each in found])
    return [{**entity_facts(each, each.id in embedded), **_moments(each.created_at, each.updated_at)} for each in found]


def entity_facts(found: Entity, is_embedded: bool) -> Json:
    """An entity's own fields."""
    return {
        "_id": found.id,
        "name": found.name,
        "description": found.description,
        "details": found.details,
        "source": found.source,
        "sku": found.sku,
        "status": found.status,
        "category": {"_id": found.category_id, "name": found.category_name, "aliasKey": found.alias_key},
        "isVectorized": is_embedded,
        "tags": list(found.tags),
        "metadata": found.metadata,
    }


def relation(found: Relation, tree: Tree | None) -> Json:
    """A relation, with the path of the category that the other entity is in."""
    return {
        "sourceEntity": {"_id": found.source_id, "name": found.source_name},
        "targetEntity": {"_id": found.target_id, "name": found.target_name},
        "categoryPath": list(tree.path(found.other_category)) if tree else [],
        "type": found.type_key,
        "relationDescription": found.description,
    }


async def structure(call: Call, key: str | None = None) -> Json | list[Json]:
    """The whole tree, or what is in one category (a list of those that share an alias key)."""
    tree = await categories.tree(call.db, call.actor.org_id)
    if key is None:
        view = CategoryRenderer(tree, await categories.counts(call.db, call.actor.org_id))
        return [view.node(each) for each in tree.children(TOP)]
    return await category(call, tree, key)


async def category(call: Call, tree: Tree, key: str, *, recursive: bool = False) -> Json | list[Json]:
    """One category by its id (or its path or name) with what is in it; a list of those that share an alias key."""
    view = CategoryRenderer(tree, await categories.counts(call.db, call.actor.org_id))
    aliased = [each for each in tree.by_number.values() if each.alias_key == key and each.id != key]
    if aliased:
        return [await view.whole(call, each, recursive) for each in aliased]
    found = tree.pick(key)
    call.record_access("category", found.id)
    return await view.whole(call, found, recursive)


class CategoryRenderer:
    """How a tree is shown."""

    def __init__(
        self, tree: Tree, counts: dict[int, int], terms: dict[str, Term] | None = None, *, listed: bool = False
    ) -> None:
        self._tree = tree
        self._counts = counts
        self._terms = terms  # where aliases and policies are shown as a whole
        self._listed = listed

    def node(self, found: Category, *, deep: bool = True) -> Json:
        """A category with those below it: all of them, or only the next."""
        below = self._tree.children(found.number)
        above = self._tree.by_number.get(found.parent)
        count = self._counts.get(found.number, 0)
        return {
            "_id": found.id,
            "name": found.name,
            "description": found.description,
            "categoryAlias": self._term(found.alias_id, found.alias_key),
            "policy": self._term(found.policy_id, found.policy_id),
            "parent": above.id if above else None,
            "children": [self.node(each) if deep else self._leaf(each) for each in below],
            "entityCount": count,
            "permissions": {"canDelete": not below and not count, "canChangeHierarchy": True},
            **_moments(found.created_at, found.updated_at),
        }

    async def whole(self, call: Call, found: Category, recursive: bool) -> Json:
        """A category with the entities in it; recursively, with those of all below it."""
        node = self.node(found, deep=recursive)
        await self._name_entities(call, node, recursive)
        return node

    async def _name_entities(self, call: Call, node: Json, recursive: bool) -> None:
        number = self._tree.by_id[node["_id"]].number
        named = await entities.names_in(call.db, call.actor.org_id, number, MOST_LISTED)
        node["entities"] = [{"_id": id, "name": name} for id, name in named]
        for below in node["children"] if recursive else ():
            await self._name_entities(call, below, recursive)

    def _leaf(self, found: Category) -> Json:
        return {"_id": found.id, "name": found.name, "entityCount": self._counts.get(found.number, 0)}

    def _term(self, id: str | None, short: str | None) -> Json | str | None:
        return short if self._terms is None or id is None else term(self._terms[id])


def term(found: Term) -> Json:
    """A word of the vocabulary."""
    return {
        "_id": found.id,
        "name": found.name,
        "description": found.description,
        _KEYS[found.kind]: found.key,
        **(found.details if found.kind == "policy" else {}),
        **_moments(found.created_at, found.updated_at),
    }


async def attachment(call: Call, found: Attachment) -> Json:
    """An attachment with the entities it is attached to."""
    return {
        "_id": found.id,
        "name": found.name,
        "url": found.url,
        "description": found.description,
        "annotations": found.annotations,
        "type": found.type_key,
        "contentType": found.media_type or None,
        "size": found.size or None,  # of what is elsewhere it is not known
        "entities": await attachments.holders(call.db, call.actor.org_id, found.id),
        **_moments(found.created_at, found.updated_at),
    }


async def namespace(call: Call, found: Namespace, tree: Tree) -> Json:
    """A namespace, with how far its vectors are."""
    return {
        "_id": found.id,
        "name": found.name,
        "notes": found.notes,
        "status": await namespaces.status(call.db, call.actor.org_id, found, tree),
        "categories": list(found.categories),
        **_moments(found.created_at, found.updated_at),
    }


async def terms(call: Call, kind: str) -> list[Json]:
    """All words of a kind."""
    return [term(each) for each in await vocabulary.find(call.db, call.actor.org_id, kind)]


def _attached(found: Attachment) -> Json:
    return {"id": found.id, "type": found.type_key, "url": found.url, "name": found.name}


def _moments(created_at: int, updated_at: int) -> Json:
    return {"createdAt": clock.format_timestamp(created_at), "updatedAt": clock.format_timestamp(updated_at)}
