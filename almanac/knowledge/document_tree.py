"""Nodes: folders and documents as one browses them, a level at a time or as a whole tree.

A tree that a fault has broken (a missing parent, a cycle) is listed all the same: what hangs in the air is shown
at the top as an orphan, and a warning says why.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, cast

from almanac.core.call import Call
from almanac.core.errors import AlmanacError
from almanac.knowledge import bases, folders
from almanac.knowledge.bases import KnowledgeBase
from almanac.knowledge.documents import SELECT, Document, document_from_row
from almanac.knowledge.folders import ROOT, Folder

MOST_NODES = 5000
DEEPEST = folders.MAX_FOLDER_DEPTH
_FOLDERS = "SELECT * FROM folders"
_HERE = "base_id = $1 AND {0} = $2 AND removed_at IS NULL"
# What search can find: enabled, and read at least once.
_ACTIVE = " AND d.is_enabled = 1 AND EXISTS (SELECT 1 FROM readings a WHERE a.document_id = d.id)"
# After a large ingest PostgreSQL's statistics are old, and it believes that the base asked for has no rows: then any
# index will do, and all rows are read and sorted for the newest of them. In a subquery it cannot look the base up and
# expects as many rows as others have.
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
    """A document in brief, for listings of thousands: reading and making one takes a third of the time."""

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


_BRIEF = """
SELECT d.id, d.folder_id, d.name, d.source_type, d.extension, d.mime_type, d.size, d.creator_id, p.name AS creator_name,
    d.created_at, d.updated_at, d.index_status, r.characters
FROM documents d JOIN principals p ON p.id = d.creator_id LEFT JOIN readings r ON r.document_id = d.id
"""


@dataclass(slots=True)
class Node:
    """A folder with its children, or a document."""

    item: Folder | Document | DocumentBrief
    children: list["Node"] = field(default_factory=list["Node"])
    has_children: bool = False
    is_orphan: bool = False

    @property
    def is_folder(self) -> bool:
        """Whether it can have children."""
        return isinstance(self.item, Folder)


@dataclass(frozen=True, slots=True)
class FolderPage:
    """Some of what is in one folder: its folders, then its documents."""

    base: KnowledgeBase
    folder_id: int
    nodes: list[Node]
    has_more: bool
    total: int | None = None  # where it was asked for: counting costs more than a page of a large folder


@dataclass(frozen=True, slots=True)
class FolderTree:
    """Everything below a folder."""

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
    """A page of what is in a folder; without `inactive`, of documents only those that search can find."""
    base, also = await _enter(call, base_id, folder_id), "" if inactive else _ACTIVE
    page = _PAGE.format("", "parent_id", "")
    found = await call.db.scan(f"{_FOLDERS} {page}", base_id, folder_id, limit + 1, offset)
    nodes = [Node(folders.folder_from_row(row)) for row in found]
    within = 0
    if not nodes or counted:
        count = await call.db.scan(
            f"SELECT count(*) AS n FROM folders WHERE {_HERE.format('parent_id')}",  # noqa: S608
            base_id,
            folder_id,
        )
        within = count[0]["n"]
    wanted = limit + 1 - len(nodes)
    if wanted > 0:
        skip = max(0, offset - within) if not nodes else 0
        page = _PAGE.format("d.", "folder_id", also)
        rows = await call.db.scan(f"{SELECT} {page}", base_id, folder_id, wanted, skip)
        nodes += [Node(document_from_row(row)) for row in rows]
    total = None
    if counted:
        row = await call.db.scan(
            f"SELECT count(*) AS n FROM documents d WHERE {_HERE.format('folder_id')}{also}",  # noqa: S608
            base_id,
            folder_id,
        )
        total = within + row[0]["n"]
    shown = nodes[:limit]
    await _mark_parents(call, shown, also)
    return FolderPage(base, folder_id, shown, len(nodes) > limit, total)


async def tree(
    call: Call, base_id: int, folder_id: int = ROOT, *, inactive: bool = True, brief: bool = False
) -> FolderTree:
    """Everything below a folder, if it is not too much: that is found out before anything is loaded.

    With `brief`, documents are given as `Entry`.
    """
    base, also = await _enter(call, base_id, folder_id), "" if inactive else _ACTIVE
    if folder_id == ROOT:
        await _refuse_large(call, base_id, also)
        found, documents = await _everything(call, base_id, also, brief)
        return _whole(base, found, documents)
    found, warnings = await _descendant_folders(call, base_id, folder_id)
    places = [folder_id, *(folder.id for folder in found)]
    await _refuse_full(call, base_id, places, len(found), also)
    which = f"d.folder_id IN ({', '.join(map(str, places))}){also}"
    documents = await _documents(call, base_id, which, brief)
    return FolderTree(base, folder_id, _hang(found, documents), len(found) + len(documents), warnings)


def too_large(count: int) -> ResultTooLarge:
    """The refusal of a tree with so many nodes."""
    return ResultTooLarge(f"Recursive result has {count} nodes, which exceeds the limit of {MOST_NODES}")


async def _enter(call: Call, base_id: int, folder_id: int) -> KnowledgeBase:
    base = await bases.get(call.db, call, base_id)
    if folder_id != ROOT and not await folders.is_there(call.db, base_id, folder_id):
        raise folders.missing(folder_id, base_id)
    return base


async def _refuse_large(call: Call, base_id: int, also: str) -> None:
    rows = await call.db.scan(
        "SELECT (SELECT count(*) FROM folders WHERE base_id = $1 AND removed_at IS NULL)"  # noqa: S608
        f" + (SELECT count(*) FROM documents d WHERE d.base_id = $1 AND d.removed_at IS NULL{also}) AS n",
        base_id,
    )
    if rows[0]["n"] > MOST_NODES:
        raise too_large(rows[0]["n"])


async def _everything(
    call: Call, base_id: int, also: str, brief: bool
) -> tuple[list[Folder], list[Document] | list[DocumentBrief]]:
    found = await call.db.scan(
        f"{_FOLDERS} WHERE base_id = $1 AND removed_at IS NULL LIMIT $2", base_id, MOST_NODES + 1
    )
    return [folders.folder_from_row(row) for row in found], await _documents(call, base_id, f"1 = 1{also}", brief)


async def _documents(call: Call, base_id: int, which: str, brief: bool) -> list[Document] | list[DocumentBrief]:
    where = f"WHERE d.base_id = $1 AND d.removed_at IS NULL AND {which} LIMIT $2"
    rows = await call.db.scan(f"{_BRIEF if brief else SELECT} {where}", base_id, MOST_NODES + 1)
    if brief:
        return [DocumentBrief._make(cast("Iterable[Any]", row)) for row in rows]
    return [document_from_row(row) for row in rows]


async def _descendant_folders(call: Call, base_id: int, folder_id: int) -> tuple[list[Folder], list[str]]:
    """The folders below one; an edge that leads back to it is left out."""
    levels = await folders.descend(call.db.scan, base_id, folder_id, most=MOST_NODES)
    if (count := sum(map(len, levels))) > MOST_NODES:
        raise too_large(count)
    found = [folders.folder_from_row(row) for level in levels[:DEEPEST] for row in level]
    start = await call.db.fetch_one("SELECT parent_id FROM folders WHERE id = $1", folder_id)
    is_cyclic = start is not None and start["parent_id"] in {folder_id, *(folder.id for folder in found)}
    warnings = [f"Cycle detected at folder {folder_id}; edge skipped"] if is_cyclic else []
    if len(levels) > DEEPEST:
        deep = sorted(row["id"] for row in levels[DEEPEST])
        warnings.append(f"Max folder depth {DEEPEST} exceeded at folders {deep}; subtree skipped")
    return found, warnings


async def _refuse_full(call: Call, base_id: int, folder_ids: Sequence[int], besides: int, also: str) -> None:
    """Refuse folders whose documents are, with so many other nodes, too many."""
    places = ", ".join(map(str, folder_ids))
    counted = await call.db.scan(
        "SELECT count(*) AS n FROM documents d"  # noqa: S608 - numbers of our own
        f" WHERE d.base_id = $1 AND d.folder_id IN ({places}) AND d.removed_at IS NULL{also}",
        base_id,
    )
    if (count := besides + counted[0]["n"]) > MOST_NODES:
        raise too_large(count)


async def _mark_parents(call: Call, page: Iterable[Node], also: str) -> None:
    ids = ", ".join(str(node.item.id) for node in page if node.is_folder)
    if not ids:
        return
    # Ordered as an index is, so that the one row there may be is looked up there, however many others there are.
    first = (
        "WHERE {0}.base_id = f.base_id AND {0}.{1} = f.id AND {0}.removed_at IS NULL{2} ORDER BY {0}.created_at, {0}.id"
    )
    rows = await call.db.scan(
        f"SELECT f.id FROM folders f WHERE f.id IN ({ids}) AND coalesce("  # noqa: S608 - numbers of our own
        f"(SELECT c.id FROM folders c {first.format('c', 'parent_id', '')} LIMIT 1),"
        f" (SELECT d.id FROM documents d {first.format('d', 'folder_id', also)} LIMIT 1)) IS NOT NULL"
    )
    full = {row["id"] for row in rows}
    for node in page:
        node.has_children = node.is_folder and node.item.id in full


def _hang(found: list[Folder], documents: Sequence[Document | DocumentBrief]) -> list[Node]:
    """The nodes below one folder, each in its place."""
    nodes = {folder.id: Node(folder) for folder in found}
    top: list[Node] = []
    for node in nodes.values():
        parent = nodes.get(node.item.parent_id) if isinstance(node.item, Folder) else None
        (parent.children if parent else top).append(node)
    for document in documents:
        parent = nodes.get(document.folder_id)
        (parent.children if parent else top).append(Node(document))
    return _ordered(top)


def _whole(base: KnowledgeBase, found: list[Folder], documents: Sequence[Document | DocumentBrief]) -> FolderTree:
    """The tree of a base, with what is not connected to its top attached there, as orphans."""
    nodes = {folder.id: Node(folder) for folder in found}
    parents = {folder.id: folder.parent_id for folder in found}
    warnings: list[str] = []
    top: list[Node] = []
    for id, node in sorted(nodes.items()):
        parent_id = parents[id]
        if parent_id == ROOT:
            top.append(node)
        elif parent_id not in nodes:
            warnings.append(f"Folder {id} references missing parent {parent_id}")
            node.is_orphan = True
            top.append(node)
    top += _break_cycles(nodes, parents, warnings)
    loose = {node.item.id for node in top}
    for id, node in nodes.items():
        if id not in loose:
            nodes[parents[id]].children.append(node)
    for document in documents:
        node = Node(document)
        if document.folder_id == ROOT:
            top.append(node)
        elif document.folder_id in nodes:
            nodes[document.folder_id].children.append(node)
        else:
            warnings.append(f"Document {document.id} references missing folder {document.folder_id}")
            node.is_orphan = True
            top.append(node)
    count = _cut_deep(top, warnings)
    return FolderTree(base, ROOT, _ordered(top), count, warnings)


def _break_cycles(nodes: dict[int, Node], parents: dict[int, int], warnings: list[str]) -> list[Node]:
    """One folder of each cycle, to be attached at the top: from the others it can be reached no more."""
    seen: dict[int, int] = {}  # folder: the walk that came by
    found: list[Node] = []
    for start in sorted(nodes):
        walk: list[int] = []
        at = start
        while at in nodes and at not in seen:
            seen[at] = start
            walk.append(at)
            at = parents[at]
        if at in nodes and seen.get(at) == start and at in walk:
            first = min(walk[walk.index(at) :])
            warnings.append(f"Folder {first} is not reachable from root; attached as orphan")
            warnings.append(f"Cycle detected at folder {first}; subtree skipped")
            nodes[first].is_orphan = True
            found.append(nodes[first])
    return found


def _cut_deep(top: list[Node], warnings: list[str]) -> int:
    count, level, depth = 0, top, 1
    while level:
        count += len(level)
        for node in level if depth == DEEPEST else ():
            if any(child.is_folder for child in node.children):
                warnings += [
                    f"Max folder depth {DEEPEST} exceeded at folder {child.item.id}; subtree skipped"
                    for child in node.children
                    if child.is_folder
                ]
                node.children = [child for child in node.children if not child.is_folder]
        level = [child for node in level for child in node.children]
        depth += 1
    return count


def _ordered(top: list[Node]) -> list[Node]:
    waiting = [top]
    while waiting:
        siblings = waiting.pop()
        siblings.sort(key=_rank)
        for node in siblings:
            if node.children:
                node.has_children = True
                waiting.append(node.children)
    return top


def _rank(node: Node) -> tuple[bool, int, int]:
    """A node's place among its siblings: folders first, then the newest first."""
    item = node.item
    return not isinstance(item, Folder), -item.created_at, -item.id
