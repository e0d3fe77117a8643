"""Retrieval: a question in plain words, over whatever a namespace is made of: entities, documents or pictures."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Annotated, Any

from pydantic import Field

from almanac.catalogue import attachments, categories, entities, entity_index, metadata_filters, namespaces
from almanac.catalogue.categories import Tree
from almanac.catalogue.entity import Entity
from almanac.core.arguments import Arguments
from almanac.core.call import Call
from almanac.core.errors import BadRequest
from almanac.knowledge import document_search
from almanac.search.engine import SearchEngine
from almanac.search.query import SearchQuery, SearchResult, SourceFilter

MAX_TOP_K = 50
DEFAULT_TOP_K = 10
_ROUNDS = 10  # of asking again for what many passages of one thing have crowded out
_PICTURE = "image/"


class NamespaceQuery(Arguments):
    """What is asked, and where."""

    namespace: Annotated[str, Field(min_length=1)]
    query: Annotated[str, Field(min_length=1)]
    metadata: dict[str, Any] | None = None
    topK: Annotated[int, Field(ge=1, le=MAX_TOP_K)] = DEFAULT_TOP_K


@dataclass(frozen=True, slots=True)
class NamespaceMatch:
    """A thing that answers, with what of it does."""

    id: str
    score: float
    metadata: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Reach:
    """Where a namespace has one look, and for what."""

    collections: tuple[str, ...]
    filter: SourceFilter = field(default_factory=SourceFilter)


async def retrieve(call: Call, search: SearchEngine, asked: NamespaceQuery) -> list[NamespaceMatch]:
    """The things of a namespace that answer best, each once; as many as were asked for, if there are as many."""
    reach = await _reach(call, asked)
    return await _matches(call, await best_per_object(search, asked.query, reach, asked.topK), reach)


async def find(
    call: Call,
    search: SearchEngine,
    query: str,
    *,
    namespace: str | None,
    category: str | None,
    metadata: dict[str, Any] | None,
    limit: int,
) -> list[tuple[Entity, SearchResult]]:
    """The entities that answer best, in all of the catalogue, a namespace or a category."""
    tree = await categories.tree(call.db, call.actor.org_id)
    org_id = call.actor.org_id
    folders = (await namespaces.get_by_key(call.db, org_id, namespace)).folders(tree) if namespace else None
    if category is not None:
        below = tree.descend([tree.pick(category).number])
        folders = tuple(below) if folders is None else tuple(set(below) & set(folders))
    found = await best_per_object(search, query, _entities(call, tree, folders, metadata), limit)
    there = await entities.get_many(call.db, call.actor.org_id, [each.owner_id for each in found])
    return [(there[each.owner_id], each) for each in found if each.owner_id in there]


async def best_per_object(search: SearchEngine, query: str, reach: Reach, limit: int) -> list[SearchResult]:
    """The best passage of each thing that answers. A thing with many passages can crowd others out of what search looks
    at, so it is asked again without those that were found, until there are enough or nothing else answers."""
    found: dict[tuple[str, str], SearchResult] = {}
    for _ in range(_ROUNDS):
        filter = replace(reach.filter, excluded_objects=(*reach.filter.excluded_objects, *found))
        question = SearchQuery(query, reach.collections, filter=filter, limit=limit - len(found), max_per_source=1)
        answer = await search.search(question) if reach.collections else None
        if answer is None or not answer.found:
            break
        found |= {(each.kind, each.owner_id): each for each in answer.found}
        if len(found) >= limit:
            break
    return sorted(found.values(), key=lambda each: -each.score)[:limit]


async def _reach(call: Call, asked: NamespaceQuery) -> Reach:
    if not asked.query.strip():
        raise BadRequest("The question is empty.", remedy="Say what you are looking for.")
    if asked.namespace == namespaces.DOCUMENTS:
        scope = await document_search.resolve_scope(call)
        return Reach(scope.collections, SourceFilter(condition=metadata_filters.to_condition(asked.metadata)))
    if asked.namespace == namespaces.IMAGES:
        scope = await document_search.resolve_scope(call)
        collections = (*scope.collections, entity_index.image_collection(call.actor.org_id))
        return Reach(
            collections, SourceFilter(media=(_PICTURE,), condition=metadata_filters.to_condition(asked.metadata))
        )
    named = await namespaces.get_by_key(call.db, call.actor.org_id, asked.namespace)
    is_needed = named.categories or metadata_filters.names_category(asked.metadata)
    tree = await categories.tree(call.db, call.actor.org_id) if is_needed else Tree(())
    return _entities(call, tree, named.folders(tree), asked.metadata)


def _entities(call: Call, tree: Tree, folders: tuple[int, ...] | None, metadata: dict[str, Any] | None) -> Reach:
    condition = metadata_filters.to_condition(metadata, tree)
    if folders is not None and not folders:
        return Reach(())
    return Reach(
        (entity_index.catalogue_of(call.actor.org_id),), SourceFilter(folders=folders or (), condition=condition)
    )


async def _matches(call: Call, found: Sequence[SearchResult], reach: Reach) -> list[NamespaceMatch]:
    """What was found as it is now; what has gone meanwhile is left out."""
    org_id = call.actor.org_id
    things = await entities.get_many(call.db, org_id, _owners(found, entity_index.ENTITY))
    pictures = await attachments.get_many(call.db, org_id, _owners(found, entity_index.IMAGE))
    documents = {
        hit.found.passage_id: hit for hit in await document_search.with_documents(call, reach.collections, found)
    }
    matches: list[NamespaceMatch] = []
    for each in found:
        if each.owner_id in things and each.kind == entity_index.ENTITY:
            entity = things[each.owner_id]
            call.record_access("entity", entity.id)
            matches.append(NamespaceMatch(entity.id, each.score, {**_about(entity), "text": each.text}))
        elif each.owner_id in pictures and each.kind == entity_index.IMAGE:
            picture = pictures[each.owner_id]
            said = {
                "name": picture.name,
                "url": picture.url,
                "type": picture.type_key,
                "description": picture.description,
                "text": each.text,
            }
            matches.append(NamespaceMatch(picture.id, each.score, {**picture.annotations, **said}))
        elif each.passage_id in documents:
            hit = documents[each.passage_id]
            call.record_access("document", hit.document_id)
            place = {"title": each.title, "documentId": hit.document_id, "baseId": hit.base_id, "page": each.page}
            matches.append(
                NamespaceMatch(hit.id, each.score, {**place, "sourceUrl": hit.source_url, "text": each.text})
            )
    return matches


def _about(entity: Entity) -> dict[str, Any]:
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


def _owners(found: Sequence[SearchResult], kind: str) -> list[str]:
    return [each.owner_id for each in found if each.kind == kind]
