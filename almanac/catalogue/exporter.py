"""Exporting: a catalogue as the seed that it could be made of again."""

from collections.abc import AsyncGenerator
from typing import Any

from almanac.catalogue import attachments, categories, entities, namespaces, relations, vocabulary
from almanac.catalogue.categories import TOP, Category, Tree
from almanac.catalogue.entity import Entity
from almanac.core.call import Call

AT_ONCE = 500

Json = dict[str, Any]


async def frame(call: Call) -> Json:
    """Everything but the entities."""
    org_id = call.actor.org_id
    tree = await categories.tree(call.db, org_id)
    words = {kind: await vocabulary.find(call.db, org_id, kind) for kind in vocabulary.KINDS}
    keyed = {"alias": "aliasKey", "policy": "policyKey", "relation": "typeKey", "attachment": "typeKey"}
    listed = {
        kind: [
            {"name": word.name, "description": word.description, keyed[kind]: word.key, **word.details}
            for word in found
        ]
        for kind, found in words.items()
    }
    return {
        "tenantId": org_id,
        "categoryAliases": listed["alias"],
        "policies": listed["policy"],
        "relationshipTypes": listed["relation"],
        "attachmentTypes": listed["attachment"],
        "categories": [_branch(tree, each) for each in tree.children(TOP)],
        "indexes": [
            {
                "name": each.name,
                "notes": each.notes,
                "categories": [
                    "/".join(tree.path(tree.by_id[id].number)) for id in each.categories if id in tree.by_id
                ],
            }
            for each in await namespaces.find(call.db, org_id)
        ],
    }


async def items(call: Call) -> AsyncGenerator[Json]:
    """The entities, oldest first."""
    org_id = call.actor.org_id
    tree = await categories.tree(call.db, org_id)
    last = ""
    while part := await entities.after(call.db, org_id, last, AT_ONCE):
        for entity in part:
            yield await _item(call, tree, entity)
        last = part[-1].id


async def _item(call: Call, tree: Tree, entity: Entity) -> Json:
    org_id = call.actor.org_id
    papers = await attachments.of(call.db, org_id, entity.id)
    ties = [each for each in await relations.of(call.db, org_id, entity.id) if each.source_id == entity.id]
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
        "relations": [{"target": tie.target_id, "type": tie.type_key, "description": tie.description} for tie in ties],
        "attachments": [
            {
                "name": paper.name,
                "url": paper.url,
                "description": paper.description,
                "annotations": paper.annotations,
                "type": paper.type_key,
            }
            for paper in papers
        ],
    }


def _branch(tree: Tree, category: Category) -> Json:
    return {
        "_id": category.id,
        "name": category.name,
        "description": category.description,
        "aliasKey": category.alias_key,
        "policyKey": category.policy_key,
        "children": [_branch(tree, each) for each in tree.children(category.number)],
    }
