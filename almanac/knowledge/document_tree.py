"""Lists of folders and documents: one folder, or the whole tree below a folder.

A tree that a fault has broken (a missing parent, a cycle) is listed too. Nodes that cannot be reached from the top are
shown there as orphans, and a warning names the reason.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, cast

from almanac.core.call import Call
from almanac.core.database import Row, Value
from almanac.core.errors import AlmanacError
from almanac.core.fair_slots import compute_for
from almanac.db.sql import from_row, id_list
from almanac.knowledge import bases, folders
from almanac.knowledge.bases import KnowledgeBase
from almanac.knowledge.documents import SELECT, Document, document_from_row
from almanac.knowledge.folders import MAX_FOLDER_DEPTH, ROOT, Folder
from almanac.knowledge.ingest.queue import INDEX_STATUS

MAX_NODES = 5000
_FOLDERS = "SELECT * FROM folders "
_FOLDERS_OF_BASE = "folders WHERE base_id = $1 AND removed_at IS NULL"
_DOCUMENTS_OF_BASE = "documents d WHERE d.base_id = $1 AND d.removed_at IS NULL"
# Documents that search can find: they are enabled, and have been parsed at least once.
_IS_ACTIVE = " AND d.is_enabled = 1 AND EXISTS (SELECT 1 FROM readings a WHERE a.document_id = d.id)"
# After a large ingest, PostgreSQL's statistics are outdated and claim that the base has no rows. PostgreSQL then uses
# any index, and reads and sorts all rows to find the newest. It cannot look up the value of a subquery in the
# statistics, and expects as many rows as other bases have.
_PAGE = (
    "WHERE {0}base_id = (SELECT CAST($1 AS BIGINT)) AND {0}{1} = (SELECT CAST($2 AS BIGINT))"
    " AND {0}removed_at IS NULL{2} ORDER BY {0}created_at DESC, {0}id DESC LIMIT $3 OFFSET $4"
)


class ResultTooLarge(AlmanacError):
    """The tree has more nodes than can be listed at once."""

    code = "result_too_large"
    status = 413
    remedy = "List one folder at a time, or begin further down."


class DocumentBrief(NamedTuple):
    """The main properties of a document, for large trees. It takes a third of the time of a `Document` to load."""

    id: int
    folder_id: int
    name: str
    source_type: str
    extension: str
    mime_type: str
    size: int
    creator_id: int
    creator_name: str
    created_at: int
    updated_at: int
    index_status: str
    characters: int | None


_BRIEF = f"""
SELECT d.id, d.folder_id, d.name, d.source_type, d.extension, d.mime_type, d.size, d.creator_id, p.name AS creator_name,
    d.created_at, d.updated_at, {INDEX_STATUS} AS index_status, r.characters
FROM documents d JOIN principals p ON p.id = d.creator_id LEFT JOIN readings r ON r.document_id = d.id
"""  # noqa: S608 - constants


@dataclass(slots=True)
class Node:
    """A folder with its children, or a document."""

    item: Folder | Document | DocumentBrief
    children: list["Node"] = field(default_factory=list["Node"])
    has_children: bool = False
    is_orphan: bool = False

    @property
    def is_folder(self) -> bool:
        """Whether the node is a folder, which can have children."""
        return isinstance(self.item, Folder)


@dataclass(frozen=True, slots=True)
class FolderPage:
    """A page of the contents of one folder: its folders, then its documents."""

    base: KnowledgeBase
    folder_id: int
    nodes: list[Node]
    has_more: bool
    total: int | None = None  # only on request: to count a large folder costs more than to read a page of it


@dataclass(frozen=True, slots=True)
class FolderTree:
    """All folders and documents below a folder."""

    base: KnowledgeBase
    folder_id: int
    nodes: list[Node]
    count: int
    warnings: list[str]


async def browse(
    call: Call,
    base_id: int,
    folder_id: int = ROOT,
    *,
    limit: int = 100,
    offset: int = 0,
    counted: bool = False,
    inactive: bool = True,
) -> FolderPage:
    """A page of the contents of a folder. Without `inactive`, it has only the documents that search can find."""
    base, condition = await _base_of_folder(call, base_id, folder_id), "" if inactive else _IS_ACTIVE
    page = _PAGE.format("", "parent_id", "")
    rows = await call.db.scan(_FOLDERS + page, base_id, folder_id, limit + 1, offset)
    nodes = [Node(from_row(Folder, row)) for row in rows]
    folder_count = 0
    if not nodes or counted:
        folder_count = await _count(call, f"{_FOLDERS_OF_BASE} AND parent_id = $2", base_id, folder_id)
    missing = limit + 1 - len(nodes)
    if missing > 0:
        page = _PAGE.format("d.", "folder_id", condition)
        document_offset = 0 if nodes else max(0, offset - folder_count)
        rows = await call.db.scan(f"{SELECT} {page}", base_id, folder_id, missing, document_offset)
        nodes += [Node(document_from_row(row)) for row in rows]
    total = None
    if counted:
        documents = f"{_DOCUMENTS_OF_BASE} AND d.folder_id = $2{condition}"
        total = folder_count + await _count(call, documents, base_id, folder_id)
    shown = nodes[:limit]
    await _mark_parents(call, shown, condition)
    return FolderPage(base, folder_id, shown, len(nodes) > limit, total)


async def tree(
    call: Call, base_id: int, folder_id: int = ROOT, *, inactive: bool = True, brief: bool = False
) -> FolderTree:
    """All folders and documents below a folder; with `brief`, documents as `DocumentBrief`. They are counted first, so
    that a tree too large is never loaded."""
    base, condition = await _base_of_folder(call, base_id, folder_id), "" if inactive else _IS_ACTIVE
    warnings: list[str] = []
    if folder_id == ROOT:
        await _check_size(call, base_id, await _count(call, _FOLDERS_OF_BASE, base_id), condition)
        where = "WHERE base_id = $1 AND removed_at IS NULL LIMIT $2"
        rows = await call.db.scan(_FOLDERS + where, base_id, MAX_NODES + 1)
        descendants = await compute_for(len(rows), _folders_from, rows)
    else:
        descendants, warnings = await _descendant_folders(call, base_id, folder_id)
        condition = f" AND d.folder_id IN ({id_list([folder_id, *(folder.id for folder in descendants)])}){condition}"
        await _check_size(call, base_id, len(descendants), condition)
    documents = await _documents(call, base_id, condition, brief)
    nodes, count = await compute_for(
        len(descendants) + len(documents), _build_tree, folder_id, descendants, documents, warnings
    )
    return FolderTree(base, folder_id, nodes, count, warnings)


def too_large(count: int) -> ResultTooLarge:
    """The error for a tree with this number of nodes."""
    return ResultTooLarge(f"Recursive result has {count} nodes, which exceeds the limit of {MAX_NODES}")


# Reading folders and documents


async def _base_of_folder(call: Call, base_id: int, folder_id: int) -> KnowledgeBase:
    """The base, after a check that it has the folder."""
    base = await bases.get(call.db, call, base_id)
    if folder_id != ROOT and not await folders.exists(call.db, base_id, folder_id):
        raise folders.missing(folder_id, base_id)
    return base


async def _count(call: Call, source: str, *args: Value) -> int:
    return (await call.db.scan(f"SELECT count(*) AS n FROM {source}", *args))[0]["n"]  # noqa: S608 - constants


async def _check_size(call: Call, base_id: int, folder_count: int, condition: str) -> None:
    """Refuse a tree if its documents, together with its folders, are too many."""
    count = folder_count + await _count(call, f"{_DOCUMENTS_OF_BASE}{condition}", base_id)
    if count > MAX_NODES:
        raise too_large(count)


async def _documents(call: Call, base_id: int, condition: str, brief: bool) -> list[Document] | list[DocumentBrief]:
    where = f"WHERE d.base_id = $1 AND d.removed_at IS NULL{condition} LIMIT $2"
    rows = await call.db.scan(f"{_BRIEF if brief else SELECT} {where}", base_id, MAX_NODES + 1)
    return await compute_for(len(rows), _documents_from, rows, brief)


def _documents_from(rows: Sequence[Row], brief: bool) -> list[Document] | list[DocumentBrief]:
    if brief:
        return [DocumentBrief._make(cast("Iterable[Any]", row)) for row in rows]
    return [document_from_row(row) for row in rows]


def _folders_from(rows: Sequence[Row]) -> list[Folder]:
    return [from_row(Folder, row) for row in rows]


async def _descendant_folders(call: Call, base_id: int, folder_id: int) -> tuple[list[Folder], list[str]]:
    """The folders below a folder, and warnings about a cycle that was cut and about folders that are too deep."""
    levels = await folders.descend(call.db.scan, base_id, folder_id, max_folders=MAX_NODES)
    if (count := sum(map(len, levels))) > MAX_NODES:
        raise too_large(count)
    rows = [row for level in levels[:MAX_FOLDER_DEPTH] for row in level]
    descendants = await compute_for(len(rows), _folders_from, rows)
    start = await call.db.fetch_one("SELECT parent_id FROM folders WHERE id = $1", folder_id)
    is_cyclic = start is not None and start["parent_id"] in {folder_id, *(folder.id for folder in descendants)}
    warnings = [f"Cycle detected at folder {folder_id}; edge skipped"] if is_cyclic else []
    if len(levels) > MAX_FOLDER_DEPTH:
        too_deep = sorted(row["id"] for row in levels[MAX_FOLDER_DEPTH])
        warnings.append(f"Max folder depth {MAX_FOLDER_DEPTH} exceeded at folders {too_deep}; subtree skipped")
    return descendants, warnings


async def _mark_parents(call: Call, page: Iterable[Node], condition: str) -> None:
    """Set `has_children` of the folders on a page."""
    ids = [node.item.id for node in page if node.is_folder]
    if not ids:
        return
    # The order is that of an index. The database then looks up the first row in the index instead of reading all rows.
    first = (
        "WHERE {0}.base_id = f.base_id AND {0}.{1} = f.id AND {0}.removed_at IS NULL{2} ORDER BY {0}.created_at, {0}.id"
    )
    rows = await call.db.scan(
        f"SELECT f.id FROM folders f WHERE f.id IN ({id_list(ids)}) AND coalesce("  # noqa: S608 - ids are integers
        f"(SELECT c.id FROM folders c {first.format('c', 'parent_id', '')} LIMIT 1),"
        f" (SELECT d.id FROM documents d {first.format('d', 'folder_id', condition)} LIMIT 1)) IS NOT NULL"
    )
    parents = {row["id"] for row in rows}
    for node in page:
        node.has_children = node.is_folder and node.item.id in parents


# Building trees


def _build_tree(
    top_id: int, descendants: list[Folder], documents: Sequence[Document | DocumentBrief], warnings: list[str]
) -> tuple[list[Node], int]:
    """The nodes directly below a folder, each with its own descendants, and the number of all nodes.

    Nodes that are not connected to the folder are attached there as orphans.
    """
    nodes = {folder.id: Node(folder) for folder in descendants}
    parents = {folder.id: folder.parent_id for folder in descendants}
    top: list[Node] = []
    for id, node in sorted(nodes.items()):
        parent_id = parents[id]
        if parent_id == top_id:
            top.append(node)
        elif parent_id not in nodes:
            warnings.append(f"Folder {id} references missing parent {parent_id}")
            node.is_orphan = True
            top.append(node)
    top += _break_cycles(nodes, parents, warnings)
    attached = {node.item.id for node in top}
    for id, node in nodes.items():
        if id not in attached:
            nodes[parents[id]].children.append(node)
    for document in documents:
        node = Node(document)
        if document.folder_id == top_id:
            top.append(node)
        elif document.folder_id in nodes:
            nodes[document.folder_id].children.append(node)
        else:
            warnings.append(f"Document {document.id} references missing folder {document.folder_id}")
            node.is_orphan = True
            top.append(node)
    count = _cut_deep_levels(top, warnings)
    return _sorted(top), count


def _break_cycles(nodes: dict[int, Node], parents: dict[int, int], warnings: list[str]) -> list[Node]:
    """One folder of each cycle, to attach at the top. It keeps its children, but is no longer a child itself."""
    walk_by_folder: dict[int, int] = {}  # the walk that first reached each folder
    orphans: list[Node] = []
    for start in sorted(nodes):
        walk: list[int] = []
        at = start
        while at in nodes and at not in walk_by_folder:
            walk_by_folder[at] = start
            walk.append(at)
            at = parents[at]
        if at in nodes and walk_by_folder.get(at) == start and at in walk:
            first = min(walk[walk.index(at) :])
            warnings.append(f"Folder {first} is not reachable from root; attached as orphan")
            warnings.append(f"Cycle detected at folder {first}; subtree skipped")
            nodes[first].is_orphan = True
            orphans.append(nodes[first])
    return orphans


def _cut_deep_levels(top: list[Node], warnings: list[str]) -> int:
    """Remove folders that are too deep, and return the number of remaining nodes."""
    count, level, depth = 0, top, 1
    while level:
        count += len(level)
        for node in level if depth == MAX_FOLDER_DEPTH else ():
            warnings += [
                f"Max folder depth {MAX_FOLDER_DEPTH} exceeded at folder {child.item.id}; subtree skipped"
                for child in node.children
                if child.is_folder
            ]
            node.children = [child for child in node.children if not child.is_folder]
        level = [child for node in level for child in node.children]
        depth += 1
    return count


def _sorted(top: list[Node]) -> list[Node]:
    """The nodes, with the children at every level in order."""
    pending = [top]
    while pending:
        siblings = pending.pop()
        siblings.sort(key=_sort_key)
        for node in siblings:
            if node.children:
                node.has_children = True
                pending.append(node.children)
    return top


def _sort_key(node: Node) -> tuple[bool, int, int]:
    """Folders come before documents, and newer nodes before older ones."""
    item = node.item
    return not isinstance(item, Folder), -item.created_at, -item.id
