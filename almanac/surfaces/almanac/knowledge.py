"""The tools of our own surface that look around in knowledge bases, read and download; upkeep.py has the others."""

from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import Field

from almanac.core import clock
from almanac.core.arguments import Id
from almanac.knowledge import bases, document_status, document_text, document_tree, downloads
from almanac.knowledge.bases import KnowledgeBase
from almanac.knowledge.document_tree import Node
from almanac.knowledge.documents import Document
from almanac.knowledge.folders import ROOT, Folder
from almanac.search.index.protocol import Coverage
from almanac.surfaces.tool import READS, Arguments, Tool, ToolCall

_READ = frozenset({"knowledge:read"})

# What goes in


class ListBases(Arguments):
    """Arguments of `list_bases`."""

    scope: Literal["all", "personal", "group", "organization"] = "all"
    query: Annotated[str | None, Field(max_length=200, description="Words of the name or description.")] = None
    limit: Annotated[int, Field(ge=1, le=100)] = 50
    offset: Annotated[Id, Field(ge=0)] = 0


class Browse(Arguments):
    """Arguments of `browse`."""

    base_id: Id
    folder_id: Annotated[Id, Field(ge=0, description="0 is the top.")] = ROOT
    recursive: Annotated[
        bool, Field(description="Everything below, up to 5,000 items; limit and offset do not apply.")
    ] = False
    limit: Annotated[int, Field(ge=1, le=500)] = 100
    offset: Annotated[Id, Field(ge=0)] = 0


class ReadDocument(Arguments):
    """Arguments of `read_document`."""

    document_id: Id
    page: Annotated[int | None, Field(ge=1, description="One page, slide or sheet instead of offset and limit.")] = None
    offset: Annotated[Id, Field(ge=0, description="First character.")] = 0
    limit: Annotated[int, Field(ge=1, le=document_text.MAX_READ_CHARS, description="Characters.")] = 20_000


class DownloadDocument(Arguments):
    """Arguments of `download_document`."""

    document_id: Id
    disposition: Literal["attachment", "inline"] = "attachment"


# What comes out


@dataclass(slots=True)
class BaseFacts:
    """A knowledge base."""

    id: int
    name: str
    description: str
    level: str
    owner: str
    group: str | None
    role: Annotated[str, Field(description="Yours.")]
    documents: int | None
    passages: Annotated[int | None, Field(description="Null unless some lack vectors.")]
    embedded: int | None
    updated_at: str | None


@dataclass(slots=True)
class BaseList:
    """The answer of `list_bases`."""

    bases: list[BaseFacts]
    total: int
    has_more: bool


@dataclass(slots=True)
class Item:
    """A folder or a document."""

    kind: str
    id: int
    name: str
    folder_id: int
    path: Annotated[str, Field(description="Its path below the one browsed.")]
    status: Annotated[str | None, Field(description="success: can be read.")]
    failure: Annotated[str | None, Field(description="Why not.")]
    mime_type: str | None
    size: int | None
    pages: int | None
    tags: list[str]
    has_children: bool


@dataclass(slots=True)
class Listing:
    """The answer of `browse`."""

    base: str
    items: list[Item]
    has_more: bool
    warnings: list[str]


@dataclass(slots=True)
class DocumentFacts:
    """A document."""

    id: int
    base_id: int
    folder_id: int
    name: str
    title: str | None
    status: str
    failure: Annotated[str | None, Field(description="Why it could not be read.")]
    warnings: Annotated[list[str], Field(description="What its text lacks.")]
    mime_type: str
    size: int
    pages: int | None
    characters: int | None
    tags: list[str]
    metadata: dict[str, Any]
    is_enabled: bool
    source_url: str | None
    creator: str
    updated_at: str | None


@dataclass(slots=True)
class Excerpt:
    """The answer of `read_document`."""

    document: DocumentFacts
    text: str
    offset: int
    next_offset: Annotated[int | None, Field(description="Read on from here; null at the end.")]
    page: int | None


@dataclass(slots=True)
class Download:
    """The answer of `download_document`."""

    url: str
    headers: Annotated[dict[str, str], Field(description="Send these with the GET.")]
    expires_in: int
    file_name: str
    mime_type: str
    size: int


# What they do


async def list_bases(call: ToolCall, given: ListBases) -> BaseList:
    """The knowledge bases the caller may see."""
    page = await bases.find(call, scope=given.scope, query=given.query, limit=given.limit, offset=given.offset)
    covered = await document_status.coverages(call.db, call.house.search.index, [base.id for base in page.items])
    return BaseList([_base_facts(base, covered.get(base.id)) for base in page.items], page.total, page.has_more)


async def browse(call: ToolCall, given: Browse) -> Listing:
    """What is in a folder, or below it."""
    if given.recursive:
        tree = await document_tree.tree(call, given.base_id, given.folder_id)
        return Listing(tree.base.name, _flattened(tree.nodes), False, tree.warnings)
    level = await document_tree.browse(call, given.base_id, given.folder_id, limit=given.limit, offset=given.offset)
    return Listing(level.base.name, [_item(node, "") for node in level.nodes], level.has_more, [])


async def read_document(call: ToolCall, given: ReadDocument) -> Excerpt:
    """Some of a document's text."""
    if given.page is not None:
        excerpt = await document_text.read_page(call, given.document_id, given.page)
    else:
        excerpt = await document_text.read(call, given.document_id, offset=given.offset, limit=given.limit)
    return Excerpt(
        document=document_facts(excerpt.document),
        text=excerpt.text,
        offset=excerpt.offset,
        next_offset=excerpt.offset + len(excerpt.text) if excerpt.has_more else None,
        page=excerpt.page,
    )


async def download_document(call: ToolCall, given: DownloadDocument) -> Download:
    """A credential with which the original file can be fetched."""
    house = call.house
    credential = await downloads.issue(call, house.key, given.document_id, given.disposition)
    document = credential.document
    return Download(
        url=f"{house.settings.url}{credential.path}",
        headers={downloads.HEADER: credential.token},
        expires_in=credential.seconds,
        file_name=document.name,
        mime_type=document.mime_type,
        size=document.size,
    )


def _base_facts(base: KnowledgeBase, covered: Coverage | None) -> BaseFacts:
    return BaseFacts(
        id=base.id,
        name=base.name,
        description=base.description,
        level=base.level,
        owner=base.owner_name,
        group=base.group_name,
        role=base.role.name if base.role else "",
        documents=base.documents,
        passages=covered and covered.passages,
        embedded=covered and covered.embedded,
        updated_at=clock.format_timestamp(base.updated_at),
    )


def document_facts(document: Document) -> DocumentFacts:
    """What is told of a document."""
    return DocumentFacts(
        id=document.id,
        base_id=document.base_id,
        folder_id=document.folder_id,
        name=document.name,
        title=document.title,
        status=document.index_status,
        failure=_why(document),
        warnings=list(document.warnings),
        mime_type=document.mime_type,
        size=document.size,
        pages=document.page_count,
        characters=document.characters,
        tags=list(document.tags),
        metadata=document.metadata,
        is_enabled=document.is_enabled,
        source_url=document.source_url,
        creator=document.creator_name,
        updated_at=clock.format_timestamp(document.updated_at),
    )


def _why(document: Document) -> str | None:
    failure = document.failure
    return f"{failure.code}: {failure.message}" if failure else None


def _flattened(top: list[Node]) -> list[Item]:
    """A tree as a list, each item with its path, which is shorter to read than nesting and as clear."""
    found: list[Item] = []
    waiting = [(node, "") for node in reversed(top)]
    while waiting:
        node, path = waiting.pop()
        found.append(_item(node, path))
        below = f"{path}/{node.item.name}" if path else node.item.name
        waiting += [(child, below) for child in reversed(node.children)]
    return found


def _item(node: Node, path: str) -> Item:
    item = node.item
    if isinstance(item, Folder):
        return Item(
            "folder", item.id, item.name, item.parent_id, path, None, None, None, None, None, [], node.has_children
        )
    assert isinstance(item, Document)
    return Item(
        "document", item.id, item.name, item.folder_id, path, item.index_status, _why(item), item.mime_type, item.size,
        item.page_count, list(item.tags), False,
    )  # fmt: skip


TOOLS = (
    Tool(
        name="list_bases",
        title="List knowledge bases",
        description="The knowledge bases you may see, newest first, with your role and the number of documents.",
        run=list_bases,
        arguments=ListBases,
        output=BaseList,
        scopes=_READ,
        annotations=READS,
    ),
    Tool(
        name="browse",
        title="Browse a knowledge base",
        description=(
            "The folders and documents in a folder of a knowledge base, folders first, then the newest first. "
            "Status success: read_document has its text."
        ),
        run=browse,
        arguments=Browse,
        output=Listing,
        scopes=_READ,
        annotations=READS,
    ),
    Tool(
        name="read_document",
        title="Read a document",
        description="A document's text, by character offset or by page, and what is known of it.",
        run=read_document,
        arguments=ReadDocument,
        output=Excerpt,
        scopes=_READ,
        annotations=READS,
    ),
    Tool(
        name="download_document",
        title="Download a document",
        description="Where to fetch the original file, with a credential good for five minutes.",
        run=download_document,
        arguments=DownloadDocument,
        output=Download,
        scopes=_READ,
        annotations=READS,
    ),
)
