"""Searches documents together with notes, entities and datasets, in one ranking.

Each kind has collections of its own. A search reads only those that the scopes of the token open, and the objects of
the results are read again with the rights of the caller before they are shown.
"""

from collections.abc import Awaitable, Callable, Collection, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from almanac.catalogue import entities, entity_index
from almanac.core import clock
from almanac.core.errors import BadRequest
from almanac.data import dataset, dataset_index, datasets
from almanac.knowledge import document_search
from almanac.knowledge.document_search import SearchArguments
from almanac.memory import note_index, notes
from almanac.operations.context import RequestContext
from almanac.search.query import SearchResponse, SearchResult

Included = Literal["notes", "entities", "datasets"]


@dataclass(frozen=True, slots=True)
class JointResult:
    """A passage of a document, a note, an entity or a dataset."""

    found: SearchResult
    url: str
    base_id: int | None = None  # of a document
    document_id: int | None = None

    @property
    def id(self) -> str:
        """The kind and id of the object."""
        return f"{self.found.kind}:{self.found.object_id}"


@dataclass(frozen=True, slots=True)
class _IncludedKind:
    """A kind of object that a search can include."""

    scope: str
    kind: str  # of the source
    collection_of: Callable[[str], str]  # by the id of the organisation
    visible: Callable[[RequestContext, Sequence[str]], Awaitable[set[str]]]  # those of some objects
    url: str


async def find(
    ctx: RequestContext, arguments: SearchArguments, included: Collection[Included]
) -> tuple[list[JointResult], SearchResponse]:
    """Search documents and the included kinds. Returns the results that the caller may see, and the whole response."""
    if included and (arguments.folder_ids or arguments.document_ids):
        raise BadRequest(
            "include: cannot be combined with folder_ids or document_ids.",
            remedy="Leave include out to search only documents.",
        )
    scope = await document_search.resolve_scope(ctx, arguments.base_ids)
    query = document_search.build_query(arguments, scope)
    wanted = {name: _KINDS[name] for name in included}
    remarks = [
        f"Your token finds no {name}: it lacks the scope {kind.scope}."
        for name, kind in wanted.items()
        if kind.scope not in ctx.actor.scopes
    ]
    readable = [kind for kind in wanted.values() if kind.scope in ctx.actor.scopes]
    collections = (*query.collections, *(kind.collection_of(ctx.actor.org_id) for kind in readable))
    if not collections:
        return [], SearchResponse((), (*scope.notes, *remarks))
    response = await ctx.app.search.search(replace(query, collections=collections))
    results = await _visible(ctx, query.collections, readable, response.results)
    for result in results:
        ctx.record_access(result.found.kind, result.found.object_id)
    return results, replace(response, notes=(*scope.notes, *remarks, *response.notes))


async def _visible(
    ctx: RequestContext, bases: Sequence[str], kinds: Sequence[_IncludedKind], results: Sequence[SearchResult]
) -> list[JointResult]:
    """The results whose objects still exist and may be seen, in the same order."""
    server = ctx.app.settings.url
    shown = {
        each.found.passage_id: JointResult(
            each.found,
            document_search.url_of(server, each.document_id, each.source_url),
            each.base_id,
            each.document_id,
        )
        for each in await document_search.with_documents(ctx, bases, results)
    }
    for kind in kinds:
        of_kind = [result for result in results if result.kind == kind.kind]
        ids = await kind.visible(ctx, sorted({result.object_id for result in of_kind})) if of_kind else set[str]()
        shown |= {
            result.passage_id: JointResult(result, kind.url.format(server=server, id=result.object_id))
            for result in of_kind
            if result.object_id in ids
        }
    return [shown[result.passage_id] for result in results if result.passage_id in shown]


async def _live_notes(ctx: RequestContext, ids: Sequence[str]) -> set[str]:
    now = clock.now()
    found = await notes.find(ctx.db, ctx.actor.org_id, ids)
    return {note.id for note in found if note.head_id is None and (note.expires_at is None or note.expires_at > now)}


async def _entities(ctx: RequestContext, ids: Sequence[str]) -> set[str]:
    return set(await entities.get_many(ctx.db, ctx.actor.org_id, ids))


async def _datasets(ctx: RequestContext, ids: Sequence[str]) -> set[str]:
    return {str(each.id) for each in await datasets.find_by_ids(ctx, [int(id) for id in ids])}


_KINDS: dict[Included, _IncludedKind] = {
    "notes": _IncludedKind(
        "memory:read", note_index.KIND, note_index.collection_of, _live_notes, "almanac://notes/{id}"
    ),
    "entities": _IncludedKind("catalogue:read", entity_index.ENTITY, entity_index.catalogue_of, _entities, ""),
    "datasets": _IncludedKind(
        "data:read", dataset.KIND, dataset_index.collection_of, _datasets, "{server}/api/v1/datasets/{id}"
    ),
}
