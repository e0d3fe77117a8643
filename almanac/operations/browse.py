"""The operations that look through the tree and the trash of a knowledge base."""

from dataclasses import dataclass
from typing import Annotated

from pydantic import Field

from almanac.core.arguments import Arguments, Id
from almanac.core.errors import BadRequest
from almanac.core.fair_slots import compute_for
from almanac.knowledge import bases, document_status, document_tree, trash
from almanac.knowledge.document_tree import Node
from almanac.knowledge.documents import Document
from almanac.knowledge.folders import ROOT, Folder
from almanac.knowledge.ingest.queue import STATUSES
from almanac.operations.context import RequestContext
from almanac.operations.models import (
    EXAMPLE_TIMESTAMP,
    BaseId,
    Limit,
    Offset,
    OneBase,
    Timestamp,
    failure_text,
    read_operation,
    timestamp,
)
from almanac.operations.operation import REST_ONLY, Example, Mcp, Rest


class Browse(Arguments):
    base_id: BaseId
    folder_id: Annotated[Id, Field(ge=0, description="A folder from an earlier browse; 0 is the top.")] = ROOT
    recursive: Annotated[bool, Field(description="All below, up to 5,000; no limit or offset.")] = False
    limit: Limit = 100
    offset: Offset = 0


class ListDocuments(OneBase):
    status: Annotated[str | None, Field(description=f"One of: {', '.join(STATUSES)}.")] = None
    limit: Limit = 100
    after: Annotated[Id, Field(ge=0, description="The last id of the page before.")] = 0


class ListTrash(OneBase):
    limit: Limit = 100
    offset: Offset = 0


@dataclass(slots=True)
class RemovedInfo:
    """A folder or a document in the trash."""

    kind: str
    id: int
    name: str
    removed_at: Timestamp


@dataclass(slots=True)
class RemovedList:
    """A page of the trash, the latest first."""

    items: list[RemovedInfo]
    offset: int
    has_more: bool


@dataclass(slots=True)
class NodeInfo:
    """A folder or a document."""

    kind: str
    id: int
    name: str
    folder_id: int
    path: Annotated[str, Field(description="Its path below the one browsed.")]
    index_status: Annotated[str | None, Field(description="success: can be read.")]
    failure: Annotated[str | None, Field(description="Why not.")]
    mime_type: str | None
    size: int | None
    page_count: int | None
    tags: list[str]
    has_children: bool
    is_orphan: Annotated[bool, Field(description="Its folder is missing, so it is shown at the top."), REST_ONLY]
    created_at: Annotated[Timestamp, REST_ONLY]
    updated_at: Annotated[Timestamp, REST_ONLY]


@dataclass(slots=True)
class NodeList:
    """The content of a folder, folders first, then the newest first."""

    base: str
    items: list[NodeInfo]
    has_more: bool
    warnings: list[str]
    offset: Annotated[int, REST_ONLY]


@dataclass(slots=True)
class DocumentList:
    """The documents in all folders of a knowledge base, ordered by id."""

    base: str
    items: list[NodeInfo]
    has_more: bool


async def browse(ctx: RequestContext, args: Browse) -> NodeList:
    """The folders and documents in a folder, folders first, then the newest first."""
    if args.recursive:
        if args.model_fields_set & {"limit", "offset"}:
            raise BadRequest("limit and offset are for one level at a time.", remedy="Leave them or recursive out.")
        tree = await document_tree.tree(ctx, args.base_id, args.folder_id)
        return NodeList(tree.base.name, await compute_for(tree.count, _flat, tree.nodes), False, tree.warnings, 0)
    level = await document_tree.browse(ctx, args.base_id, args.folder_id, limit=args.limit, offset=args.offset)
    return NodeList(level.base.name, [_node_info(node, "") for node in level.nodes], level.has_more, [], args.offset)


async def list_documents(ctx: RequestContext, args: ListDocuments) -> DocumentList:
    """The documents in all folders of a knowledge base, ordered by id."""
    base = await bases.get(ctx.db, ctx, args.base_id)
    paths = await document_status.folder_paths(ctx, args.base_id)
    found = await document_status.find(ctx, args.base_id, status=args.status, after=args.after, limit=args.limit + 1)
    nodes = [
        _node_info(Node(document, is_orphan=document.folder_id not in paths), paths.get(document.folder_id, ""))
        for document in found[: args.limit]
    ]
    return DocumentList(base.name, nodes, len(found) > args.limit)


async def list_trash(ctx: RequestContext, args: ListTrash) -> RemovedList:
    """The folders and documents that were removed from a knowledge base."""
    rows = await trash.find(ctx, args.base_id, limit=args.limit + 1, offset=args.offset)
    items = [RemovedInfo(row.kind, row.id, row.name, timestamp(row.removed_at)) for row in rows[: args.limit]]
    return RemovedList(items, args.offset, len(rows) > args.limit)


def _flat(top: list[Node]) -> list[NodeInfo]:
    """Return a tree as a list of items with paths, which is shorter to read than nesting and as clear."""
    items: list[NodeInfo] = []
    waiting = [(node, "") for node in reversed(top)]
    while waiting:
        node, path = waiting.pop()
        items.append(_node_info(node, path))
        below = f"{path}/{node.item.name}" if path else node.item.name
        waiting += [(child, below) for child in reversed(node.children)]
    return items


def _node_info(node: Node, path: str) -> NodeInfo:
    """Return a folder or a document as callers see it."""
    item = node.item
    document = item if isinstance(item, Document) else None
    return NodeInfo(
        kind="document" if document else "folder",
        id=item.id,
        name=item.name,
        folder_id=item.parent_id if isinstance(item, Folder) else item.folder_id,
        path=path,
        index_status=document and document.index_status,
        failure=document and failure_text(document),
        mime_type=document and document.mime_type,
        size=document and document.size,
        page_count=document and document.page_count,
        tags=list(document.tags) if document else [],
        has_children=node.has_children,
        is_orphan=node.is_orphan,
        created_at=timestamp(item.created_at),
        updated_at=timestamp(item.updated_at),
    )


_AT = EXAMPLE_TIMESTAMP
_NODE = NodeInfo(
    "document", 12, "pump.pdf", 3, "pumps", "success", None, "application/pdf", 48213, 4, ["pump"], False, False,
    _AT, _AT,
)  # fmt: skip

OPERATIONS = (
    read_operation(
        browse,
        title="Browse a knowledge base",
        rest=Rest("GET", "/bases/{base_id}/nodes"),
        mcp=Mcp(advice="Status success: read_document has its text."),
        covers=("get_folder", "list_documents"),
        example=Example(answer=NodeList("Manuals", [_NODE], False, [], 0)),
    ),
    read_operation(
        list_documents,
        rest=Rest("GET", "/bases/{base_id}/documents"),
        example=Example(answer=DocumentList("Manuals", [_NODE], False)),
    ),
    read_operation(
        list_trash,
        rest=Rest("GET", "/bases/{base_id}/trash"),
        people_only="An agent restores by the ids that it removed.",
        example=Example(answer=RemovedList([RemovedInfo("document", 12, "pump.pdf", _AT)], 0, False)),
    ),
)
