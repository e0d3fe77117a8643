"""Searches the documents of knowledge bases that the caller may read, and verifies citations of them.

Permissions are checked here: the search engine trusts the collections that it is given.
"""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Annotated, Any, Literal, cast

from pydantic import AfterValidator, BeforeValidator, Field

from almanac.core import clock
from almanac.core.arguments import MAX_ID, Arguments, Id, RecordId
from almanac.core.call import Call
from almanac.core.errors import BadRequest, NotFound
from almanac.db.sql import Parameters, id_list
from almanac.identity.access import MIN_ROLE_BY_ACTION
from almanac.knowledge import bases, document_index, document_text, documents, folders, visible_bases
from almanac.search import citations
from almanac.search.citations import MAX_QUOTE_CHARS, CitationCheck
from almanac.search.engine import SearchEngine
from almanac.search.query import MAX_QUERY_CHARS, SearchQuery, SearchResult, SourceFilter

MAX_SEARCHED_BASES = 2_000  # if the caller names no base, folder or document
MAX_SEARCHED_FOLDERS = 5_000  # including the folders below the requested ones
MAX_LIST_ITEMS = 500
MAX_KINDS = 50

# Fields of `SearchArguments` that can leave a search without results.
RESTRICTING_FIELDS = (
    "kinds", "tags", "condition", "created_from", "created_until", "updated_from", "updated_until", "min_score",
)  # fmt: skip
_DATE_CHARS = len("2026-11-02")  # in every form of ISO 8601, a longer text also has a time
_MEDIA_TYPE = re.compile(r"[a-zA-Z0-9-]{1,30}/[a-zA-Z0-9._+-]{0,100}")
_DOCUMENT_REF = re.compile(r"document:([1-9][0-9]{0,18})", re.ASCII)
_TOOL_BY_KIND = {"note": "recall", "entity": "get_entity", "dataset": "find_datasets"}  # results that are no documents


# The arguments of a search and of a citation check


def _id_of_ref(value: Any) -> Any:
    """The number in an id from search results. Any other value is returned as it is, to be validated as a number."""
    match = _DOCUMENT_REF.fullmatch(value) if isinstance(value, str) else None
    return value if match is None else int(match[1])


DocumentId = Annotated[RecordId, BeforeValidator(_id_of_ref, json_schema_input_type=int | str)]


def _check_timestamp(text: str) -> str:
    try:
        datetime.fromisoformat(text)
    except ValueError:
        raise ValueError("is not a date such as 2026-11-02 or 2026-11-02T09:30:00Z") from None
    return text


def _check_query(text: str) -> str:
    if not text.strip():
        raise ValueError("has no words")
    return text


def _check_length(items: Any) -> Any:
    """Check the length of a list before its items are validated."""
    if isinstance(items, list) and len(cast("list[Any]", items)) > MAX_LIST_ITEMS:
        raise ValueError(f"has more than {MAX_LIST_ITEMS} items")
    return cast("Any", items)


def _check_kinds(kinds: list[str]) -> list[str]:
    if len(kinds) > MAX_KINDS:
        raise ValueError(f"has more than {MAX_KINDS} items")
    for kind in kinds:
        if not _MEDIA_TYPE.fullmatch(kind):
            raise ValueError(
                f"has {kind[:50]!r}: use media types, such as application/pdf, or prefixes, such as image/"
            )
    return kinds


# The limits are checked outside the JSON schema, as for `Id`, to keep the schema short.
Ids = Annotated[list[Id], Field(default_factory=list[int]), BeforeValidator(_check_length)]
Timestamp = Annotated[str, AfterValidator(_check_timestamp)]


class SearchArguments(Arguments):
    """A query, and the documents to search."""

    query: Annotated[
        str, Field(max_length=MAX_QUERY_CHARS, description="A question or keywords."), AfterValidator(_check_query)
    ]
    base_ids: Annotated[Ids, Field(description="From list_bases. Default: all you may read.")]
    folder_ids: Annotated[Ids, Field(description="From browse; with all folders below.")]
    document_ids: Annotated[
        list[DocumentId],
        Field(description="Only in these: 12 or document:12.", default_factory=list[int]),
        BeforeValidator(_check_length),
    ]
    kinds: Annotated[
        list[str],
        Field(description="Media types, such as application/pdf or image/.", default_factory=list[str]),
        AfterValidator(_check_kinds),
    ]
    tags: Annotated[
        list[str],
        Field(description="Only documents with all of these.", default_factory=list[str]),
        BeforeValidator(_check_length),
    ]
    condition: Annotated[
        dict[str, Any] | None,
        Field(
            description='On metadata: {"key", "op", "value"}, or a list of such under "and" or "or". '
            "op: eq ne gt gte lt lte in nin contains text_match."
        ),
    ] = None
    created_from: Annotated[Timestamp | None, Field(description="ISO 8601 date or time.")] = None
    created_until: Annotated[Timestamp | None, Field(description="A date includes its whole day.")] = None
    updated_from: Annotated[Timestamp | None, Field(description="As created_from.")] = None
    updated_until: Annotated[Timestamp | None, Field(description="As created_until.")] = None
    mode: Annotated[
        Literal["hybrid", "vector", "keyword"], Field(description="keyword: words; vector: meaning; hybrid: both.")
    ] = "hybrid"
    limit: Annotated[int, Field(ge=1, le=50, description="Passages on a page.")] = 10
    offset: Annotated[int, Field(ge=0, description="Passages to skip; offset + limit is at most 500.")] = 0
    min_score: Annotated[float, Field(ge=0, le=1, description="Leave out passages with a lower score.")] = 0.0
    rerank: Annotated[bool, Field(description="Compare the best 50 more closely with the query.")] = True
    most_per_document: Annotated[int, Field(ge=0, description="Passages of one document; 0: any number.")] = 3
    explain: Annotated[bool, Field(description="Add timings and counts.")] = False


class CitationArguments(Arguments):
    """A quotation from a document: its hash, its text, or both."""

    id: Annotated[str, Field(description="Of the result of search, such as document:12.")]
    hash: Annotated[str | None, Field(max_length=64, description="hash of the result.")] = None
    text: Annotated[str | None, Field(max_length=MAX_QUOTE_CHARS, description="Instead of hash: the quoted text.")] = (
        None
    )


# Search


@dataclass(frozen=True, slots=True)
class DocumentScope:
    """The part of a search request that the caller may read. Empty `folders` or `documents` mean no restriction."""

    collections: tuple[str, ...]
    folders: tuple[int, ...] = ()
    documents: tuple[int, ...] = ()
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class DocumentResult:
    """A passage and its document."""

    found: SearchResult
    document_id: int
    base_id: int
    source_url: str | None
    name: str = ""  # the file name of the document

    @property
    def id(self) -> str:
        """The document's id in search results."""
        return document_ref(self.document_id)


@dataclass(frozen=True, slots=True)
class DocumentResults:
    """The results of a search, best first. The other fields are those of `SearchResponse`."""

    hits: tuple[DocumentResult, ...]
    notes: tuple[str, ...] = ()
    has_more: bool = False
    timings: dict[str, float] = field(default_factory=dict[str, float])
    counts: dict[str, int] = field(default_factory=dict[str, int])


async def search_documents(call: Call, search: SearchEngine, arguments: SearchArguments) -> DocumentResults:
    """Search the documents that the caller may read."""
    scope = await resolve_scope(call, arguments.base_ids, arguments.folder_ids, arguments.document_ids)
    results = await find(call, search, build_query(arguments, scope), scope.notes)
    restricting = [name for name in RESTRICTING_FIELDS if getattr(arguments, name)]
    if results.hits or arguments.offset or not (scope.collections and restricting):
        return results
    pronoun = "it" if len(restricting) == 1 else "them"
    note = f"No passage matches {', '.join(restricting)}: leave {pronoun} out to search more documents."
    return replace(results, notes=(*results.notes, note))


async def resolve_scope(
    call: Call, base_ids: Iterable[int] = (), folder_ids: Iterable[int] = (), document_ids: Iterable[int] = ()
) -> DocumentScope:
    """The bases that contain all requested objects; without a request, all bases that the caller may read. An object
    that the caller may not read is an error."""
    requested_bases, folder_scope, document_scope = (
        tuple(dict.fromkeys(ids)) for ids in (base_ids, folder_ids, document_ids)
    )
    notes: tuple[str, ...] = ()
    candidates: list[set[int]] = []
    if requested_bases:
        candidates.append(await _check_bases(call, requested_bases))
    if folder_scope:
        folder_bases, folder_scope = await _with_descendants(call, folder_scope)
        candidates.append(folder_bases)
    if document_scope:
        candidates.append(await _check_documents(call, document_scope))
    if candidates:
        ids = set[int].intersection(*candidates)
        notes = () if ids else ("The requested bases, folders and documents have no document in common.",)
    else:
        ids, notes = await _all_readable_bases(call)
    collections = tuple(document_index.collection_of(id) for id in sorted(ids))
    return DocumentScope(collections, folder_scope, document_scope, notes)


def build_query(arguments: SearchArguments, scope: DocumentScope) -> SearchQuery:
    """The search engine's query for these arguments."""
    created_from, created_until = _period("created", arguments.created_from, arguments.created_until)
    updated_from, updated_until = _period("updated", arguments.updated_from, arguments.updated_until)
    return SearchQuery(
        text=arguments.query,
        collections=scope.collections,
        mode=arguments.mode,
        filter=SourceFilter(
            objects=tuple((document_index.KIND, str(id)) for id in scope.documents),
            folders=scope.folders,
            # The caller's kinds are media types. To the search engine, all documents are of one kind.
            media=tuple(kind.lower() for kind in arguments.kinds),
            tags=tuple(arguments.tags),
            created_from=created_from,
            created_until=created_until,
            updated_from=updated_from,
            updated_until=updated_until,
            condition=arguments.condition,
        ),
        limit=arguments.limit,
        offset=arguments.offset,
        min_score=arguments.min_score,
        rerank=arguments.rerank,
        # A caller that names one document wants all of its passages.
        max_per_source=0 if len(set(arguments.document_ids)) == 1 else arguments.most_per_document,
        explain=arguments.explain,
    )


async def find(call: Call, search: SearchEngine, query: SearchQuery, notes: Sequence[str] = ()) -> DocumentResults:
    """Run a query whose collections come from `resolve_scope`. The audit trail records every document shown."""
    if not query.collections:
        return DocumentResults((), tuple(notes))
    response = await search.search(query)
    results = await with_documents(call, query.collections, response.results)
    for result in results:
        call.record_access("document", result.document_id)
    return DocumentResults(results, (*notes, *response.notes), response.has_more, response.timings, response.counts)


async def with_documents(
    call: Call, collections: Sequence[str], results: Sequence[SearchResult]
) -> tuple[DocumentResult, ...]:
    """Passages with the current rows of their documents. Documents that have left the collections are left out."""
    results = [result for result in results if result.kind == document_index.KIND]
    ids = id_list(sorted({int(result.object_id) for result in results}))
    rows = await call.db.fetch(
        f"SELECT id, base_id, source_url, name FROM documents WHERE id IN ({ids}) AND removed_at IS NULL"  # noqa: S608
    )
    searched = set(collections)
    documents_by_id = {row["id"]: row for row in rows if document_index.collection_of(row["base_id"]) in searched}
    pairs = ((result, documents_by_id.get(int(result.object_id))) for result in results)
    return tuple(
        DocumentResult(result, row["id"], row["base_id"], row["source_url"], row["name"])
        for result, row in pairs
        if row is not None
    )


# Citations


async def verify(call: Call, citation: CitationArguments, span: Sequence[int] | None = None) -> CitationCheck:
    """Check whether a quotation is still in its document; `span` is its start and end when it was quoted. A document
    that the caller may not read is `gone`, like a document that does not exist."""
    document_id = parse_document_ref(citation.id)
    if citation.hash is None and citation.text is None:
        raise BadRequest("Give the hash of the quotation from its search result, or its text.")
    try:
        await documents.get(call.db, call, document_id)
    except NotFound:
        return CitationCheck("gone")
    start, end = span or (None, None)
    check = await citations.verify(
        call.db,
        document_index.KIND,
        str(document_id),
        hash=citation.hash,
        text=citation.text,
        start=start,
        end=end,
    )
    outline = await document_text.get(call.db, document_id) if check.page is not None else None
    for number, start, end, _ in outline.pages if outline else ():
        if check.start is not None and start <= check.start < end:  # its passage may begin on the page before
            return replace(check, page=number)
    return check


def document_ref(document_id: int) -> str:
    """The id of a document in search results."""
    return f"{document_index.KIND}:{document_id}"


def parse_document_ref(ref: str) -> int:
    """The document id in an id from search results."""
    match = _DOCUMENT_REF.fullmatch(ref)
    kind = ref.partition(":")[0]
    if kind in _TOOL_BY_KIND:
        raise BadRequest(f"id: is that of a {kind}, not of a document.", remedy=f"Use {_TOOL_BY_KIND[kind]}.")
    if match is None or int(match[1]) > MAX_ID:
        raise BadRequest("id: is not the id of a search result.", remedy="Use an id from search, such as document:12.")
    return int(match[1])


def url_of(server_url: str, document_id: int, source_url: str | None) -> str:
    """The URL of a document: its source, or its address on this server."""
    return source_url or f"{server_url}/api/v1/documents/{document_id}"


# The scope of a search


async def _check_bases(call: Call, base_ids: Sequence[int]) -> set[int]:
    readable = {base.id for base in await bases.get_many(call, base_ids)}
    for base_id in base_ids:
        if base_id not in readable:
            await bases.get(call.db, call, base_id)  # raises the usual error for this base
        call.record_access("base", base_id)
    return set(base_ids)


async def _check_documents(call: Call, document_ids: Sequence[int]) -> set[int]:
    """The bases of the documents. The caller must be able to read all of them."""
    rows = await call.db.fetch(
        "SELECT d.id, d.base_id FROM documents d JOIN bases b ON b.id = d.base_id"  # noqa: S608 - ids are integers
        f" WHERE d.id IN ({id_list(document_ids)}) AND d.removed_at IS NULL AND b.org_id = $1",
        call.actor.org_id,
    )
    base_by_document: dict[int, int] = {row["id"]: row["base_id"] for row in rows}
    checked: set[int] = set()
    for document_id in document_ids:
        if base_by_document.get(document_id, 0) not in checked:
            checked.add((await documents.get(call.db, call, document_id)).base_id)
        call.record_access("document", document_id)
    return checked


async def _with_descendants(call: Call, folder_ids: Sequence[int]) -> tuple[set[int], tuple[int, ...]]:
    """The bases of folders that the caller may read, and these folders with all folders below them."""
    base_ids: set[int] = set()
    searched: set[int] = set()
    for folder_id in folder_ids:
        folder = await folders.get(call.db, call, folder_id)
        levels = await folders.descend(call.db.scan, folder.base_id, folder_id, max_folders=MAX_SEARCHED_FOLDERS)
        base_ids.add(folder.base_id)
        searched |= {folder_id, *(row["id"] for level in levels for row in level)}
        if len(searched) > MAX_SEARCHED_FOLDERS:
            raise BadRequest(
                f"There are more than {MAX_SEARCHED_FOLDERS:,} folders below the requested ones.",
                remedy="Request folders further down, or the whole base.",
            )
    return base_ids, tuple(sorted(searched))


async def _all_readable_bases(call: Call) -> tuple[set[int], tuple[str, ...]]:
    """The bases that the caller may read, and a note if there are none or only the newest are searched."""
    parameters = Parameters()
    visible = visible_bases.condition(call.actor, parameters, min_role=MIN_ROLE_BY_ACTION["read"])
    rows = await call.db.scan(
        f"SELECT b.id FROM bases b WHERE {visible} AND b.removed_at IS NULL"  # noqa: S608 - numbers and constants
        f" ORDER BY b.created_at DESC, b.id DESC LIMIT {MAX_SEARCHED_BASES + 1}",
        *parameters.values,
    )
    if not rows:
        return set(), ("There is no knowledge base that you may read.",)
    notes: tuple[str, ...] = ()
    if len(rows) > MAX_SEARCHED_BASES:
        notes = (
            f"You may read more than {MAX_SEARCHED_BASES:,} knowledge bases; the newest were searched."
            " Name others in 'base_ids'.",
        )
    return {row["id"] for row in rows[:MAX_SEARCHED_BASES]}, notes


def _period(field_prefix: str, first: str | None, last: str | None) -> tuple[int | None, int | None]:
    """A period as timestamps. A period that ends with a date includes that whole day."""
    start = None if first is None else clock.parse_timestamp(first)
    end = None
    if last is not None:
        end = clock.parse_timestamp(last) + (clock.DAY if len(last.strip()) <= _DATE_CHARS else 0)
    if start is not None and end is not None and start > end:
        message = f"{field_prefix}_from is after {field_prefix}_until."
        raise BadRequest(message, remedy="Swap them, or leave one out.")
    return start, end
