"""Searches a namespace of the catalogue: its entities, or all documents, or all images."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Annotated, Any

from pydantic import Field

from almanac.catalogue import (
    attachments,
    categories,
    entities,
    entity_index,
    metadata_filters,
    namespaces,
    number_conditions,
)
from almanac.catalogue.attachments import Attachment
from almanac.catalogue.categories import Tree
from almanac.catalogue.entity import Entity
from almanac.core.arguments import Arguments
from almanac.core.call import Call
from almanac.core.errors import BadRequest
from almanac.knowledge import document_search
from almanac.knowledge.document_search import DocumentResult
from almanac.search.engine import SearchEngine
from almanac.search.filters import metadata_index
from almanac.search.query import MAX_QUERY_CHARS, SearchQuery, SearchResult, SourceFilter

MAX_TOP_K = 50
DEFAULT_TOP_K = 10
_MAX_SEARCHES = 10  # per query, see `best_per_object`
_IMAGE_PREFIX = "image/"


class NamespaceQuery(Arguments):
    """A query, the namespace to search, and a filter."""

    namespace: Annotated[str, Field(min_length=1, description="Name or id of the namespace to search.")]
    query: Annotated[str, Field(min_length=1, description="A question or keywords.")]
    metadata: Annotated[
        dict[str, Any] | None, Field(description='Filter, such as {"psi": {"$lt": 2000}, "status": "active"}.')
    ] = None
    topK: Annotated[int, Field(ge=1, le=MAX_TOP_K, description="Matches to return.")] = DEFAULT_TOP_K


@dataclass(frozen=True, slots=True)
class NamespaceMatch:
    """An entity, document or image that matches a query. The metadata includes the matching text."""

    id: str
    score: float
    metadata: dict[str, Any]


@dataclass(frozen=True, slots=True)
class NamespaceScope:
    """The collections and the filter of a namespace, and the condition whose matches come first."""

    collections: tuple[str, ...]
    filter: SourceFilter = field(default_factory=SourceFilter)
    preference: dict[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class BestPassages:
    """The best passage of each matching object, best first, and the notes of the search."""

    results: list[SearchResult]
    notes: tuple[str, ...] = ()


async def retrieve(
    call: Call, search: SearchEngine, query: NamespaceQuery
) -> tuple[list[NamespaceMatch], tuple[str, ...]]:
    """The best matches in a namespace, at most one per entity, document or image, and the notes of the search."""
    scope = await _resolve_namespace(call, query)
    best = await preferred_first(search, query.query, scope, query.topK)
    return await _matches(call, best.results, scope), best.notes


async def find(
    call: Call,
    search: SearchEngine,
    query: str,
    *,
    namespace: str | None,
    category: str | None,
    metadata: dict[str, Any] | None,
    limit: int,
) -> tuple[list[tuple[Entity, SearchResult]], tuple[str, ...]]:
    """The best matching entities of the whole catalogue, a namespace or a category, each with its best passage, and the
    notes of the search."""
    tree = await categories.tree(call.db, call.actor.org_id)
    org_id = call.actor.org_id
    folders = (await namespaces.get_by_key(call.db, org_id, namespace)).folders(tree) if namespace else None
    if category is not None:
        below = tree.descend([tree.pick(category).number])
        folders = tuple(below) if folders is None else tuple(set(below) & set(folders))
    scope = await _entity_scope(call, query, tree, folders, metadata)
    best = await preferred_first(search, query, scope, limit)
    known = await entities.get_many(call.db, call.actor.org_id, [result.object_id for result in best.results])
    return [(known[result.object_id], result) for result in best.results if result.object_id in known], best.notes


async def preferred_first(search: SearchEngine, query: str, scope: NamespaceScope, limit: int) -> BestPassages:
    """The best passage of each matching object: first the objects that meet the preference, then the others. No score
    rises from one result to the next."""
    if scope.preference is None:
        return await best_per_object(search, query, scope, limit)
    filter = replace(scope.filter, number_condition=scope.preference)
    first = await best_per_object(search, query, replace(scope, filter=filter), limit)
    if not first.results:
        return await best_per_object(search, query, scope, limit)
    if len(first.results) == limit:
        return first
    known = tuple((result.kind, result.object_id) for result in first.results)
    filter = replace(scope.filter, excluded_objects=(*scope.filter.excluded_objects, *known))
    others = await best_per_object(search, query, replace(scope, filter=filter), limit - len(first.results))
    lowest = first.results[-1].score
    rest = [replace(result, score=min(result.score, lowest)) for result in others.results]
    return BestPassages([*first.results, *rest], tuple(dict.fromkeys((*first.notes, *others.notes))))


async def best_per_object(search: SearchEngine, query: str, scope: NamespaceScope, limit: int) -> BestPassages:
    """The best passage of each matching object.

    The engine also limits results per source, but gives up when a few sources fill its candidate lists, as books with
    a thousand matching passages do. The search is therefore repeated without the objects that it has returned.
    """
    best: dict[tuple[str, str], SearchResult] = {}
    notes: dict[str, None] = {}  # without repetitions
    for _ in range(_MAX_SEARCHES):
        filter = replace(scope.filter, excluded_objects=(*scope.filter.excluded_objects, *best))
        request = SearchQuery(query, scope.collections, filter=filter, limit=limit - len(best), max_per_source=1)
        response = await search.search(request) if scope.collections else None
        if response is not None:
            notes |= dict.fromkeys(response.notes)
        if response is None or not response.results:
            break
        best |= {(result.kind, result.object_id): result for result in response.results}
        if len(best) >= limit:
            break
    return BestPassages(sorted(best.values(), key=lambda result: -result.score)[:limit], tuple(notes))


def render_match(match: NamespaceMatch, **more: Any) -> dict[str, Any]:
    """A match in the form of the gateway's contract. REST has more fields than the tool."""
    return {"id": match.id, "score": match.score, **more, "metadata": match.metadata}


async def _resolve_namespace(call: Call, query: NamespaceQuery) -> NamespaceScope:
    if not query.query.strip():
        raise BadRequest("The question is empty.", remedy="Say what you are looking for.")
    if query.namespace in namespaces.RESERVED:
        collections = (await document_search.resolve_scope(call)).collections
        condition = metadata_filters.to_condition(query.metadata)
        if query.namespace == namespaces.DOCUMENTS:
            return NamespaceScope(collections, SourceFilter(condition=condition))
        collections = (*collections, entity_index.image_collection(call.actor.org_id))
        return NamespaceScope(collections, SourceFilter(media=(_IMAGE_PREFIX,), condition=condition))
    namespace = await namespaces.get_by_key(call.db, call.actor.org_id, query.namespace)
    needs_tree = namespace.categories or metadata_filters.names_category(query.metadata)
    tree = await categories.tree(call.db, call.actor.org_id) if needs_tree else Tree(())
    return await _entity_scope(call, query.query, tree, namespace.folders(tree), query.metadata)


async def _entity_scope(
    call: Call, query: str, tree: Tree, folders: tuple[int, ...] | None, metadata: dict[str, Any] | None
) -> NamespaceScope:
    condition = metadata_filters.to_condition(metadata, tree)
    if folders is not None and not folders:
        return NamespaceScope(())
    filter = SourceFilter(folders=folders or (), condition=condition)
    collection = entity_index.catalogue_of(call.actor.org_id)
    bounds = number_conditions.find_bounds(query[:MAX_QUERY_CHARS])
    fields = await metadata_index.field_names(call.db, collection) if bounds else ()
    return NamespaceScope((collection,), filter, number_conditions.to_condition(bounds, fields))


async def _matches(call: Call, results: Sequence[SearchResult], scope: NamespaceScope) -> list[NamespaceMatch]:
    """The results with their current metadata. Objects that were removed meanwhile are left out."""
    org_id = call.actor.org_id
    entity_by_id = await entities.get_many(call.db, org_id, _object_ids(results, entity_index.ENTITY))
    image_by_id = await attachments.get_many(call.db, org_id, _object_ids(results, entity_index.IMAGE))
    document_results = await document_search.with_documents(call, scope.collections, results)
    document_by_passage = {document.found.passage_id: document for document in document_results}
    matches: list[NamespaceMatch] = []
    for result in results:
        if result.kind == entity_index.ENTITY and result.object_id in entity_by_id:
            entity = entity_by_id[result.object_id]
            call.record_access("entity", entity.id)
            matches.append(NamespaceMatch(entity.id, result.score, _entity_metadata(entity, result)))
        elif result.kind == entity_index.IMAGE and result.object_id in image_by_id:
            image = image_by_id[result.object_id]
            matches.append(NamespaceMatch(image.id, result.score, _image_metadata(image, result)))
        elif result.passage_id in document_by_passage:
            document = document_by_passage[result.passage_id]
            call.record_access("document", document.document_id)
            matches.append(NamespaceMatch(document.id, result.score, _document_metadata(document)))
    return matches


def _entity_metadata(entity: Entity, result: SearchResult) -> dict[str, Any]:
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
    return {**own, **entity.metadata, "text": result.text}  # stored metadata wins, because filters compare with it


def _image_metadata(image: Attachment, result: SearchResult) -> dict[str, Any]:
    own = {
        "name": image.name,
        "url": image.url,
        "type": image.type_key,
        "description": image.description,
        "text": result.text,
    }
    return {**image.annotations, **own}


def _document_metadata(document: DocumentResult) -> dict[str, Any]:
    return {
        "title": document.found.title,
        "documentId": document.document_id,
        "baseId": document.base_id,
        "page": document.found.page,
        "sourceUrl": document.source_url,
        "text": document.found.text,
    }


def _object_ids(results: Sequence[SearchResult], kind: str) -> list[str]:
    return [result.object_id for result in results if result.kind == kind]
