"""Retrieval: a question in plain words, over whatever a namespace is made of: entities, documents or pictures."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Annotated, Any

from pydantic import Field

from almanac.catalogue import attachments, categories, entities, namespaces, predicates, shelf
from almanac.catalogue.categories import Tree
from almanac.core.arguments import Arguments
from almanac.core.call import Call
from almanac.core.errors import BadRequest
from almanac.knowledge import finding
from almanac.search.question import Filter, Found, Question
from almanac.search.search import Search

MOST = 50
USUAL = 10
_ROUNDS = 10  # of asking again for what many passages of one thing have crowded out
_PICTURE = "image/"


class Retrieve(Arguments):
    """What is asked, and where."""

    namespace: Annotated[str, Field(min_length=1)]
    query: Annotated[str, Field(min_length=1)]
    metadata: dict[str, Any] | None = None
    topK: Annotated[int, Field(ge=1, le=MOST)] = USUAL


@dataclass(frozen=True, slots=True)
class Match:
    """A thing that answers, with what of it does."""

    id: str
    score: float
    metadata: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Reach:
    """Where a namespace has one look, and for what."""

    collections: tuple[str, ...]
    filter: Filter = field(default_factory=Filter)


async def retrieve(call: Call, search: Search, asked: Retrieve) -> list[Match]:
    """The things of a namespace that answer best, each once; as many as were asked for, if there are as many."""
    reach = await _reach(call, asked)
    return await _matches(call, await fill(search, asked.query, reach, asked.topK), reach)


async def find(
    call: Call,
    search: Search,
    query: str,
    *,
    namespace: str | None,
    category: str | None,
    metadata: dict[str, Any] | None,
    limit: int,
) -> list[tuple[entities.Entity, Found]]:
    """The entities that answer best, in all of the catalogue, a namespace or a category."""
    tree = await categories.tree(call.db, call.actor.org_id)
    org_id = call.actor.org_id
    folders = (await namespaces.pick(call.db, org_id, namespace)).folders(tree) if namespace else None
    if category is not None:
        below = tree.descend([tree.pick(category).number])
        folders = tuple(below) if folders is None else tuple(set(below) & set(folders))
    found = await fill(search, query, _entities(call, tree, folders, metadata), limit)
    there = await entities.by_ids(call.db, call.actor.org_id, [each.owner_id for each in found])
    return [(there[each.owner_id], each) for each in found if each.owner_id in there]


async def fill(search: Search, query: str, reach: Reach, limit: int) -> list[Found]:
    """The best passage of each thing that answers. A thing with many passages can crowd others out of what search looks
    at, so it is asked again without those that were found, until there are enough or nothing else answers."""
    found: dict[tuple[str, str], Found] = {}
    for _ in range(_ROUNDS):
        filter = replace(reach.filter, others=(*reach.filter.others, *found))
        question = Question(query, reach.collections, filter=filter, limit=limit - len(found), most_per_source=1)
        answer = await search.find(question) if reach.collections else None
        if answer is None or not answer.found:
            break
        found |= {(each.kind, each.owner_id): each for each in answer.found}
        if len(found) >= limit:
            break
    return sorted(found.values(), key=lambda each: -each.score)[:limit]


async def _reach(call: Call, asked: Retrieve) -> Reach:
    if not asked.query.strip():
        raise BadRequest("The question is empty.", remedy="Say what you are looking for.")
    if asked.namespace == namespaces.DOCUMENTS:
        scope = await finding.scope(call)
        return Reach(scope.collections, Filter(condition=predicates.condition(asked.metadata)))
    if asked.namespace == namespaces.IMAGES:
        scope = await finding.scope(call)
        collections = (*scope.collections, shelf.pictures_of(call.actor.org_id))
        return Reach(collections, Filter(media=(_PICTURE,), condition=predicates.condition(asked.metadata)))
    named = await namespaces.pick(call.db, call.actor.org_id, asked.namespace)
    is_needed = named.categories or predicates.names_category(asked.metadata)
    tree = await categories.tree(call.db, call.actor.org_id) if is_needed else Tree(())
    return _entities(call, tree, named.folders(tree), asked.metadata)


def _entities(call: Call, tree: Tree, folders: tuple[int, ...] | None, metadata: dict[str, Any] | None) -> Reach:
    condition = predicates.condition(metadata, tree)
    if folders is not None and not folders:
        return Reach(())
    return Reach((shelf.catalogue_of(call.actor.org_id),), Filter(folders=folders or (), condition=condition))


async def _matches(call: Call, found: Sequence[Found], reach: Reach) -> list[Match]:
    """What was found as it is now; what has gone meanwhile is left out."""
    org_id = call.actor.org_id
    things = await entities.by_ids(call.db, org_id, _owners(found, shelf.ENTITY))
    pictures = await attachments.by_ids(call.db, org_id, _owners(found, shelf.PICTURE))
    documents = {hit.found.passage_id: hit for hit in await finding.placed(call, reach.collections, found)}
    matches: list[Match] = []
    for each in found:
        if each.owner_id in things and each.kind == shelf.ENTITY:
            entity = things[each.owner_id]
            call.touch("entity", entity.id)
            matches.append(Match(entity.id, each.score, {**_about(entity), "text": each.text}))
        elif each.owner_id in pictures and each.kind == shelf.PICTURE:
            picture = pictures[each.owner_id]
            said = {
                "name": picture.name,
                "url": picture.url,
                "type": picture.type_key,
                "description": picture.description,
                "text": each.text,
            }
            matches.append(Match(picture.id, each.score, {**picture.annotations, **said}))
        elif each.passage_id in documents:
            hit = documents[each.passage_id]
            call.touch("document", hit.document_id)
            place = {"title": each.title, "documentId": hit.document_id, "baseId": hit.base_id, "page": each.page}
            matches.append(Match(hit.id, each.score, {**place, "sourceUrl": hit.source_url, "text": each.text}))
    return matches


def _about(entity: entities.Entity) -> dict[str, Any]:
    own: dict[str, Any] = {
        "name": entity.name,
        "category": entity.category_name,
        "categoryId": entity.category_id,
        "categoryAlias": entity.alias_key,
        "sku": entity.sku,
        "source": entity.source,
        "status": entity.status,
        "tags": list(entity.tags),
    }
    return {**own, **entity.metadata}  # as it was given: what was filtered by is what is shown


def _owners(found: Sequence[Found], kind: str) -> list[str]:
    return [each.owner_id for each in found if each.kind == kind]
