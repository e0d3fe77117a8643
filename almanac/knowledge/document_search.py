"""Finding: a search of knowledge bases, within what the caller may read.

Permission is settled here, before search is asked: search itself looks wherever it is told to.
"""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Annotated, Any, Literal, TypeVar

from pydantic import AfterValidator, Field

from almanac.core import clock
from almanac.core.arguments import MAX_ID, Arguments, Id
from almanac.core.call import Call
from almanac.core.database import Value
from almanac.core.errors import BadRequest, NotFound
from almanac.identity import access
from almanac.identity.access import MIN_ROLE_BY_ACTION, ProtectedObject
from almanac.identity.roles import Role
from almanac.knowledge import bases, document_index, document_text, documents, folders
from almanac.search import citations
from almanac.search.citations import CitationCheck
from almanac.search.engine import MAX_QUERY_CHARS, SearchEngine
from almanac.search.query import SearchQuery, SearchResult, SourceFilter

T = TypeVar("T")

MOST_BASES = 2_000  # searched at once where none is named
MOST_FOLDERS = 5_000  # below those that are named
MOST_NAMED = 500
MOST_KINDS = 50
LONGEST_QUOTE = 20_000

# What of an inquiry may leave nothing to find.
RESTRICTING_FIELDS = (
    "kinds",
    "tags",
    "condition",
    "created_from",
    "created_until",
    "updated_from",
    "updated_until",
    "min_score",
)
_DAY = len("2026-11-02")  # what is longer has a time as well, in whatever form of ISO 8601
_MEDIA_TYPE = re.compile(r"[a-zA-Z0-9-]{1,30}/[a-zA-Z0-9._+-]{0,100}")
_DOCUMENT = re.compile(r"document:([1-9][0-9]{0,18})", re.ASCII)

_BASES = "SELECT b.id, b.org_id, b.level, b.owner_id, b.group_id FROM bases b WHERE b.removed_at IS NULL AND"
_ROLES = ", ".join(f"'{role.name}'" for role in Role if role >= MIN_ROLE_BY_ACTION["read"])
# Those a caller could read, for `access` to judge; $1 is the organisation, $2 the caller, $3 whether they are an
# administrator (1) or at the command line (2).
_WITHIN_REACH = f"""b.org_id = $1 AND ($3 = 2 OR b.level = 'organization' OR b.owner_id = $2
    OR ($3 = 1 AND b.level = 'group')
    OR b.group_id IN (SELECT group_id FROM members WHERE principal_id = $2 AND role IN ({_ROLES}))
    OR b.id IN (SELECT CAST(thing_id AS BIGINT) FROM grants
        WHERE thing_kind = 'base' AND principal_id = $2 AND role IN ({_ROLES})
        UNION ALL SELECT CAST(r.thing_id AS BIGINT) FROM grants r JOIN members m ON m.group_id = r.group_id
        WHERE r.thing_kind = 'base' AND m.principal_id = $2 AND r.role IN ({_ROLES})))"""  # noqa: S608 - names of roles


def _check_moment(text: str) -> str:
    try:
        datetime.fromisoformat(text)
    except ValueError:
        raise ValueError("is not a date such as 2026-11-02 or 2026-11-02T09:30:00Z") from None
    return text


def _check_words(text: str) -> str:
    if not text.strip():
        raise ValueError("has no words")
    return text


def _check_number(items: list[T]) -> list[T]:
    if len(items) > MOST_NAMED:
        raise ValueError(f"has more than {MOST_NAMED} items")
    return items


def _check_kinds(kinds: list[str]) -> list[str]:
    if len(kinds) > MOST_KINDS:
        raise ValueError(f"has more than {MOST_KINDS} items")
    for kind in kinds:
        if not _MEDIA_TYPE.fullmatch(kind):
            raise ValueError(f"has {kind[:50]!r}: name media types, as application/pdf, or how they begin, as image/")
    return kinds


# Checked without a word in the schema, as ids are.
Ids = Annotated[list[Id], Field(default_factory=list[int]), AfterValidator(_check_number)]
Moment = Annotated[str, AfterValidator(_check_moment)]


class SearchArguments(Arguments):
    """What to look for, and where."""

    query: Annotated[str, Field(max_length=MAX_QUERY_CHARS), AfterValidator(_check_words)]
    bases: Annotated[Ids, Field(description="Only these; otherwise all you may read.")]
    folders: Annotated[Ids, Field(description="With all below them.")]
    documents: Ids
    kinds: Annotated[
        list[str],
        Field(description="Media types: application/pdf, image/.", default_factory=list[str]),
        AfterValidator(_check_kinds),
    ]
    tags: Annotated[
        list[str], Field(description="All of these.", default_factory=list[str]), AfterValidator(_check_number)
    ]
    condition: Annotated[
        dict[str, Any] | None,
        Field(
            description='On metadata: {"key", "op", "value"}, or a list of such under "and" or "or". '
            "op: eq ne gt gte lt lte in nin contains text_match."
        ),
    ] = None
    created_from: Annotated[Moment | None, Field(description="ISO 8601.")] = None
    created_until: Moment | None = None
    updated_from: Moment | None = None
    updated_until: Moment | None = None
    mode: Annotated[
        Literal["hybrid", "vector", "keyword"], Field(description="keyword: exact words; vector: meaning.")
    ] = "hybrid"
    limit: Annotated[int, Field(ge=1, le=50)] = 10
    offset: Annotated[int, Field(ge=0)] = 0
    min_score: Annotated[float, Field(ge=0, le=1)] = 0.0
    rerank: bool = True
    most_per_document: Annotated[int, Field(ge=0, description="Passages; 0: any number.")] = 3
    explain: Annotated[bool, Field(description="Also timings and counts.")] = False


class CitationSpan(Arguments):
    """Something that was quoted from a document: its hash, its text, or both."""

    id: Annotated[str, Field(description="As search gave it.")]
    hash: Annotated[str | None, Field(max_length=64)] = None
    text: Annotated[str | None, Field(max_length=LONGEST_QUOTE, description="Or the words quoted.")] = None


class CitationArguments(CitationSpan):
    """The same, with where it stood."""

    start: Annotated[Id | None, Field(description="Where it stood, if known.")] = None
    end: Id | None = None


@dataclass(frozen=True, slots=True)
class DocumentScope:
    """Where a caller may search, of what they named. No folders or documents: any."""

    collections: tuple[str, ...]
    folders: tuple[int, ...] = ()
    documents: tuple[int, ...] = ()
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class DocumentResult:
    """A passage that was found, and the document it is in."""

    found: SearchResult
    document_id: int
    base_id: int
    source_url: str | None
    name: str = ""  # of the document's file

    @property
    def id(self) -> str:
        """What callers know the document by."""
        return document_ref(self.document_id)


@dataclass(frozen=True, slots=True)
class DocumentResults:
    """What a search found, the best first; beside it, what `search.question.Answer` says."""

    hits: tuple[DocumentResult, ...]
    notes: tuple[str, ...] = ()
    has_more: bool = False
    timings: dict[str, float] = field(default_factory=dict[str, float])
    counts: dict[str, int] = field(default_factory=dict[str, int])


async def search_documents(call: Call, search: SearchEngine, inquiry: SearchArguments) -> DocumentResults:
    """What a caller looks for, as far as they may read it."""
    reach = await resolve_scope(call, inquiry.bases, inquiry.folders, inquiry.documents)
    found = await find(call, search, question(inquiry, reach), reach.notes)
    narrowed = [name for name in RESTRICTING_FIELDS if getattr(inquiry, name)]
    if found.hits or inquiry.offset or not (reach.collections and narrowed):
        return found
    these = "it" if len(narrowed) == 1 else "them"
    note = f"Nothing was found within {', '.join(narrowed)}: leave {these} out to look further."
    return replace(found, notes=(*found.notes, note))


async def resolve_scope(
    call: Call, base_ids: Iterable[int] = (), folder_ids: Iterable[int] = (), document_ids: Iterable[int] = ()
) -> DocumentScope:
    """Where to search: what is in all that was named, or in all that the caller can read. An error where something
    named is not there for them."""
    named, places, chosen = (tuple(dict.fromkeys(ids)) for ids in (base_ids, folder_ids, document_ids))
    notes: tuple[str, ...] = ()
    within: list[set[int]] = []
    if named:
        within.append(await _check_bases(call, named))
    if places:
        homes, places = await _descendant_folders(call, places)
        within.append(homes)
    if chosen:
        within.append(await _check_documents(call, chosen))
    if within:
        ids = set[int].intersection(*within)
        notes = () if ids else ("The bases, folders and documents that were named have nothing in common.",)
    else:
        ids, notes = await _all_readable_bases(call)
    return DocumentScope(tuple(document_index.collection_of(id) for id in sorted(ids)), places, chosen, notes)


def question(inquiry: SearchArguments, reach: DocumentScope) -> SearchQuery:
    """An inquiry as search is asked it."""
    created_from, created_until = _period("created", inquiry.created_from, inquiry.created_until)
    updated_from, updated_until = _period("updated", inquiry.updated_from, inquiry.updated_until)
    return SearchQuery(
        text=inquiry.query,
        collections=reach.collections,
        mode=inquiry.mode,
        filter=SourceFilter(
            objects=tuple((document_index.KIND, str(id)) for id in reach.documents),
            folders=reach.folders,
            # Whoever asks knows documents only, and their kinds by media type; to search, all of them are of one kind.
            media=tuple(kind.lower() for kind in inquiry.kinds),
            tags=tuple(inquiry.tags),
            created_from=created_from,
            created_until=created_until,
            updated_from=updated_from,
            updated_until=updated_until,
            condition=inquiry.condition,
        ),
        limit=inquiry.limit,
        offset=inquiry.offset,
        min_score=inquiry.min_score,
        rerank=inquiry.rerank,
        # Whoever names one document has asked for as many passages of it as there are.
        max_per_source=0 if len(set(inquiry.documents)) == 1 else inquiry.most_per_document,
        explain=inquiry.explain,
    )


async def find(call: Call, search: SearchEngine, question: SearchQuery, notes: Sequence[str] = ()) -> DocumentResults:
    """Ask a question whose collections come from `scope`; every document that is shown is in the audit trail."""
    if not question.collections:
        return DocumentResults((), tuple(notes))
    answer = await search.search(question)
    hits = await with_documents(call, question.collections, answer.found)
    for hit in hits:
        call.record_access("document", hit.document_id)
    return DocumentResults(hits, (*notes, *answer.notes), answer.has_more, answer.timings, answer.counts)


async def verify(call: Call, citation: CitationArguments) -> CitationCheck:
    """Whether what was quoted still stands where it stood. A document that the caller cannot read is gone for them,
    like one that was removed or never was."""
    document_id = parse_document_ref(citation.id)
    if citation.hash is None and citation.text is None:
        raise BadRequest("Give what was quoted: its hash, as search gave it, or its text.")
    try:
        await documents.get(call.db, call, document_id)
    except NotFound:
        return CitationCheck("gone")
    verdict = await citations.verify(
        call.db,
        document_index.KIND,
        str(document_id),
        hash=citation.hash,
        text=citation.text,
        start=citation.start,
        end=citation.end,
    )
    outline = await document_text.get(call.db, document_id) if verdict.page is not None else None
    for number, start, end, _ in outline.pages if outline else ():
        if verdict.start is not None and start <= verdict.start < end:  # a passage may begin on the page before
            return replace(verdict, page=number)
    return verdict


def document_ref(document_id: int) -> str:
    """What search results call a document; later other things too."""
    return f"{document_index.KIND}:{document_id}"


def parse_document_ref(name: str) -> int:
    """The document that a search result names."""
    match = _DOCUMENT.fullmatch(name)
    if match is None or int(match[1]) > MAX_ID:
        raise BadRequest("id: is not one that search gives.", remedy="Use one as search gave it, such as document:12.")
    return int(match[1])


def url_of(public: str, document_id: int, source_url: str | None) -> str:
    """Where a document can be looked at: where it came from, or here."""
    return source_url or f"{public}/api/v1/documents/{document_id}"


async def _check_bases(call: Call, base_ids: Sequence[int]) -> set[int]:
    readable = {thing.id for thing in await _readable(call, f"b.id IN ({_listed(base_ids)})")}
    for base_id in base_ids:
        if base_id not in readable:
            await bases.get(call.db, call, base_id)  # which says why not, as it does everywhere
        call.record_access("base", base_id)
    return set(base_ids)


async def _check_documents(call: Call, document_ids: Sequence[int]) -> set[int]:
    """The bases of documents, every one of which the caller may read."""
    rows = await call.db.fetch(
        f"SELECT id, base_id FROM documents WHERE id IN ({_listed(document_ids)}) AND removed_at IS NULL"  # noqa: S608
    )
    homes: dict[int, int] = {row["id"]: row["base_id"] for row in rows}
    seen: set[int] = set()
    for document_id in document_ids:
        if (home := homes.get(document_id, 0)) not in seen:
            home = (await documents.get(call.db, call, document_id)).base_id
            seen.add(home)
        call.record_access("document", document_id)
    return seen


async def _descendant_folders(call: Call, folder_ids: Sequence[int]) -> tuple[set[int], tuple[int, ...]]:
    """The bases of folders that the caller may read, and the folders with all that are below them."""
    homes: set[int] = set()
    found: set[int] = set()
    for folder_id in folder_ids:
        folder = await folders.get(call.db, call, folder_id)
        below = await folders.descend(call.db.scan, folder.base_id, folder_id, most=MOST_FOLDERS)
        homes.add(folder.base_id)
        found |= {folder_id, *(row["id"] for level in below for row in level)}
        if len(found) > MOST_FOLDERS:
            raise BadRequest(
                f"There are more than {MOST_FOLDERS:,} folders below those that were named.",
                remedy="Name folders further down, or the whole base.",
            )
    return homes, tuple(sorted(found))


async def _all_readable_bases(call: Call) -> tuple[set[int], tuple[str, ...]]:
    """The bases that the caller can read, the newest where they are too many."""
    actor = call.actor
    which, args = _WITHIN_REACH, [actor.org_id, actor.id, 2 if actor.is_operator else int(actor.is_admin)]
    if actor.bases is not None:
        which = f"{which} AND b.id IN ({_listed(actor.bases)})"
    found = await _readable(call, f"{which} ORDER BY b.created_at DESC, b.id DESC LIMIT {MOST_BASES + 1}", *args)
    if not found:
        return set(), ("There is no knowledge base that you may read.",)
    if len(found) > MOST_BASES:
        return {int(thing.id) for thing in found[:MOST_BASES]}, (
            f"You may read more than {MOST_BASES:,} knowledge bases; the newest were searched. Name others in 'bases'.",
        )
    return {int(thing.id) for thing in found}, ()


async def _readable(call: Call, which: str, *args: Value) -> list[ProtectedObject]:
    # Named ones are a few rows by their key; all there are may be thousands.
    rows = await (call.db.scan if args else call.db.fetch)(f"{_BASES} {which}", *args)
    things = [
        ProtectedObject("base", row["id"], row["org_id"], row["level"], row["owner_id"], row["group_id"])
        for row in rows
    ]
    held = await access.roles_on(call.db, call.actor, things)
    return [
        thing
        for thing, role in zip(things, held, strict=True)
        if role is not None and role >= MIN_ROLE_BY_ACTION["read"]
    ]


async def with_documents(
    call: Call, collections: Sequence[str], found: Sequence[SearchResult]
) -> tuple[DocumentResult, ...]:
    """Passages with the documents they are in, as these are now: what has left the bases searched is left out."""
    ids = {int(each.owner_id) for each in found if each.kind == document_index.KIND}
    rows = await call.db.fetch(
        f"SELECT id, base_id, source_url, name FROM documents WHERE id IN ({_listed(ids)}) AND removed_at IS NULL"  # noqa: S608
    )
    allowed = set(collections)
    homes = {row["id"]: row for row in rows if document_index.collection_of(row["base_id"]) in allowed}
    placed = ((each, homes.get(int(each.owner_id))) for each in found if each.kind == document_index.KIND)
    return tuple(
        DocumentResult(each, row["id"], row["base_id"], row["source_url"], row["name"])
        for each, row in placed
        if row is not None
    )


def _period(what: str, first: str | None, last: str | None) -> tuple[int | None, int | None]:
    """From one moment until another; a day that it ends with is a part of it."""
    begin = None if first is None else clock.parse_timestamp(first)
    end = None if last is None else clock.parse_timestamp(last) + (clock.DAY if len(last.strip()) <= _DAY else 0)
    if begin is not None and end is not None and begin > end:
        raise BadRequest(f"{what}_from is after {what}_until.", remedy="Exchange them, or leave one out.")
    return begin, end


def _listed(ids: Iterable[int]) -> str:
    return ", ".join(str(int(id)) for id in sorted(ids)) or "NULL"
