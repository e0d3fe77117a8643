"""Exports a catalogue in the format that `catalogue_file` reads."""

from collections.abc import AsyncGenerator
from typing import Any

from almanac.catalogue import attachments, categories, entities, namespaces, relations, vocabulary
from almanac.catalogue.categories import MAX_CATEGORY_DEPTH, TOP, Category, Tree
from almanac.catalogue.entity import Entity
from almanac.catalogue.vocabulary import Term
from almanac.core.call import Call
from almanac.core.errors import Conflict

_BATCH_ENTITIES = 500

Json = dict[str, Any]


async def frame(call: Call) -> Json:
    """The whole catalogue file except its entities."""
    org_id = call.actor.org_id
    tree = await categories.tree(call.db, org_id)
    terms = {kind: await vocabulary.find(call.db, org_id, kind) for kind in vocabulary.KINDS}
    entries = {kind: [_term(term) for term in of_kind] for kind, of_kind in terms.items()}
    return {
        "tenantId": org_id,
        "categoryAliases": entries["alias"],
        "policies": entries["policy"],
        "relationshipTypes": entries["relation"],
        "attachmentTypes": entries["attachment"],
        "categories": [_category(tree, category) for category in tree.children(TOP)],
        "indexes": [
            {
                "name": namespace.name,
                "notes": namespace.notes,
                "categories": [
                    "/".join(tree.path(tree.by_id[id].number)) for id in namespace.categories if id in tree.by_id
                ],
            }
            for namespace in await namespaces.find(call.db, org_id)
        ],
    }


async def items(call: Call) -> AsyncGenerator[Json]:
    """The entities, oldest first."""
    org_id = call.actor.org_id
    tree = await categories.tree(call.db, org_id)
    last_id = ""
    while batch := await entities.after(call.db, org_id, last_id, _BATCH_ENTITIES):
        for entity in batch:
            yield await _entity(call, tree, entity)
        last_id = batch[-1].id


async def _entity(call: Call, tree: Tree, entity: Entity) -> Json:
    org_id = call.actor.org_id
    attached = await attachments.of(call.db, org_id, entity.id)
    related = await relations.of(call.db, org_id, entity.id)
    return {
        "_id": entity.id,
        "name": entity.name,
        "category": "/".join(tree.path(entity.category)),
        "description": entity.description,
        "details": entity.details,
        "source": entity.source,
        "sku": entity.sku,
        "status": entity.status,
        "tags": list(entity.tags),
        "metadata": entity.metadata,
        "relations": [
            {"target": relation.target_id, "type": relation.type_key, "description": relation.description}
            for relation in related
            if relation.source_id == entity.id  # an incoming relation is exported with its own source
        ],
        "attachments": [
            {
                "name": attachment.name,
                "url": attachment.url,
                "description": attachment.description,
                "annotations": attachment.annotations,
                "type": attachment.type_key,
            }
            for attachment in attached
        ],
    }


def _term(term: Term) -> Json:
    key_field = vocabulary.KEY_FIELDS[term.kind]
    return {"name": term.name, "description": term.description, key_field: term.key, **term.details}


def _category(tree: Tree, category: Category, depth: int = 1) -> Json:
    if depth > MAX_CATEGORY_DEPTH:
        raise Conflict(
            f"The category {category.id} is nested deeper than {MAX_CATEGORY_DEPTH}, which no import accepts.",
            remedy="Move it further up, and export again.",
        )
    return {
        "_id": category.id,
        "name": category.name,
        "description": category.description,
        "aliasKey": category.alias_key,
        "policyKey": category.policy_key,
        "children": [_category(tree, child, depth + 1) for child in tree.children(category.number)],
    }
