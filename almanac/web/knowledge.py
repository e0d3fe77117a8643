"""The REST endpoints of knowledge bases, folders and documents: what they mean in verbs."""

from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from almanac.core import clock
from almanac.core.arguments import Arguments
from almanac.core.database import Transaction
from almanac.core.errors import BadRequest
from almanac.identity.roles import Role
from almanac.knowledge import bases, document_status, document_text, document_tree, documents, folders, trash
from almanac.knowledge.bases import KnowledgeBase
from almanac.knowledge.document_tree import Node
from almanac.knowledge.documents import AddResult, Document
from almanac.knowledge.folders import Folder
from almanac.knowledge.ingest.splitter import PassageSplitter
from almanac.search import passage_store
from almanac.search.index.protocol import Coverage
from almanac.web import multipart, shapes
from almanac.web.rest import PREFIX, Ask, RestAnswer

# Bases


async def list_bases(ask: Ask, at: shapes.FindBases, _: None) -> shapes.BaseList:
    """The bases the caller may see."""
    page = await bases.find(ask, **at.model_dump())
    return shapes.BaseList(await _bases(ask, page.items), page.total, page.offset, page.has_more)


async def add_base(ask: Ask, _: Any, given: shapes.AddBase) -> RestAnswer:
    """A new base."""
    splitter = _splitter(given.splitter)
    base = await ask.db.write(
        lambda tx: bases.add(
            ask,
            tx,
            given.name,
            description=given.description,
            level=given.level,
            group=given.group,
            splitter=splitter,
        )
    )
    return _created(f"/bases/{base.id}", await _base(ask, base))


async def get_base(ask: Ask, at: shapes.AtBase, _: None) -> shapes.BaseFacts:
    """One base."""
    return await _base(ask, await bases.get(ask.db, ask, at.base_id))


async def change_base(ask: Ask, at: shapes.AtBase, given: shapes.ChangeBase) -> shapes.BaseFacts:
    """A base, renamed or described."""
    _check_change(given)
    splitter = _splitter(given.splitter)
    base = await ask.db.write(
        lambda tx: bases.update(ask, tx, at.base_id, name=given.name, description=given.description, splitter=splitter)
    )
    return await _base(ask, base)


async def remove_base(ask: Ask, at: shapes.AtBase, _: None) -> None:
    """A base, into the trash."""
    await ask.db.write(lambda tx: bases.remove(ask, tx, at.base_id))


async def restore_base(ask: Ask, at: shapes.AtBase, _: None) -> shapes.BaseFacts:
    """A base, out of the trash."""
    return await _base(ask, await ask.db.write(lambda tx: bases.restore(ask, tx, at.base_id)))


async def list_shares(ask: Ask, at: shapes.AtBase, _: None) -> shapes.ShareList:
    """With whom a base is shared."""
    found = await bases.shares(ask.db, ask, at.base_id)
    return shapes.ShareList([shapes.ShareFacts(share.kind, share.name, share.role.name) for share in found])


async def share_base(ask: Ask, at: shapes.AtBase, given: shapes.ShareBase) -> None:
    """A role on a base, given to someone; nothing is told, for it may be one's own that was lowered."""
    role = Role[given.role]
    await ask.db.write(lambda tx: bases.share(ask, tx, at.base_id, role, user=given.user, group=given.group))


async def unshare_base(ask: Ask, at: shapes.AtShare, _: None) -> None:
    """A role on a base, taken back."""
    await ask.db.write(lambda tx: bases.share(ask, tx, at.base_id, None, user=at.user, group=at.group))


async def browse(ask: Ask, at: shapes.AtNodes, _: None) -> shapes.NodeList:
    """What is in a folder, or all that is below it."""
    if at.recursive:
        if at.model_fields_set & {"limit", "offset"}:
            raise BadRequest("limit and offset are for one level at a time.", remedy="Leave them or recursive out.")
        tree = await document_tree.tree(ask, at.base_id, at.folder_id)
        below = [_node(node, deep=True) for node in tree.nodes]
        return shapes.NodeList(at.base_id, at.folder_id, below, 0, False, tree.count, tree.warnings)
    level = await document_tree.browse(ask, at.base_id, at.folder_id, limit=at.limit, offset=at.offset)
    found = [_node(node, deep=False) for node in level.nodes]
    return shapes.NodeList(at.base_id, at.folder_id, found, at.offset, level.has_more, None, [])


async def list_trash(ask: Ask, at: shapes.AtTrash, _: None) -> shapes.RemovedList:
    """What was removed from a base."""
    found = await trash.find(ask, at.base_id, limit=at.limit + 1, offset=at.offset)
    shown = [shapes.RemovedFacts(it.kind, it.id, it.name, _moment(it.removed_at)) for it in found[: at.limit]]
    return shapes.RemovedList(shown, at.offset, len(found) > at.limit)


async def retry_base(ask: Ask, at: shapes.AtBase, _: None) -> shapes.Counted:
    """Every document that failed, to be read again."""
    return shapes.Counted(await documents.retry_all(ask, at.base_id))


# Folders


async def add_folder(ask: Ask, at: shapes.AtBase, given: shapes.AddFolder) -> RestAnswer:
    """A new folder."""
    folder = await ask.db.write(lambda tx: folders.add(ask, tx, at.base_id, given.name, given.parent_id))
    return _created(f"/folders/{folder.id}", _folder(folder))


async def get_folder(ask: Ask, at: shapes.AtFolder, _: None) -> shapes.FolderFacts:
    """One folder."""
    return _folder(await folders.get(ask.db, ask, at.folder_id))


async def change_folder(ask: Ask, at: shapes.AtFolder, given: shapes.ChangeFolder) -> shapes.FolderFacts:
    """A folder, renamed or moved."""
    _check_change(given)

    async def body(tx: Transaction) -> Folder:
        if given.name is not None:
            await folders.rename(ask, tx, at.folder_id, given.name)
        if given.parent_id is not None:
            await folders.move(ask, tx, at.folder_id, given.parent_id)
        return await folders.get(tx, ask, at.folder_id, "write")

    return _folder(await ask.db.write(body))


async def remove_folder(ask: Ask, at: shapes.RemoveFolder, _: None) -> None:
    """A folder, into the trash."""
    await ask.db.write(lambda tx: folders.remove(ask, tx, at.folder_id, contents=at.contents))


async def restore_folder(ask: Ask, at: shapes.AtFolder, _: None) -> shapes.FolderFacts:
    """A folder, out of the trash."""
    return _folder(await ask.db.write(lambda tx: folders.restore(ask, tx, at.folder_id)))


# Documents


async def add_document(ask: Ask, at: shapes.AtBase, _: None) -> RestAnswer:
    """A new document, of what comes in the body."""
    added = await multipart.add(ask, at.base_id)
    shown = _added(added)
    return _created(f"/documents/{shown.id}", shown) if added.outcome == "added" else RestAnswer(shown, 200)


async def get_document(ask: Ask, at: shapes.AtDocument, _: None) -> shapes.DocumentFacts:
    """One document."""
    return _document(await documents.get(ask.db, ask, at.document_id))


async def change_document(ask: Ask, at: shapes.AtDocument, given: shapes.ChangeDocument) -> shapes.DocumentFacts:
    """A document, renamed, tagged, described, moved, or shown or hidden."""
    _check_change(given)

    async def body(tx: Transaction) -> Document:
        # Moved first: a name that is taken there does not matter if it gets another anyway.
        if given.folder_id is not None or given.base_id is not None:
            await documents.move(ask, tx, [at.document_id], given.folder_id or folders.ROOT, given.base_id)
        if given.is_enabled is not None:
            await documents.enable(ask, tx, [at.document_id], given.is_enabled)
        return await documents.update(
            ask, tx, at.document_id, name=given.name, tags=given.tags, metadata=given.metadata
        )

    return _document(await ask.db.write(body))


async def remove_document(ask: Ask, at: shapes.AtDocument, _: None) -> None:
    """A document, into the trash."""
    await ask.db.write(lambda tx: documents.remove(ask, tx, [at.document_id]))


async def restore_document(ask: Ask, at: shapes.AtDocument, _: None) -> shapes.DocumentFacts:
    """A document, out of the trash."""
    await ask.db.write(lambda tx: documents.restore(ask, tx, [at.document_id]))
    return await get_document(ask, at, None)


async def reindex_document(ask: Ask, at: shapes.AtDocument, _: None) -> shapes.DocumentFacts:
    """A document, to be read again."""
    await ask.db.write(lambda tx: documents.reindex(ask, tx, [at.document_id]))
    return await get_document(ask, at, None)


async def replace_content(ask: Ask, at: shapes.AtDocument, _: None) -> shapes.AddedFacts:
    """A document, with new content."""
    return _added(await multipart.replace(ask, at.document_id))


async def read_document(ask: Ask, at: shapes.AtContent, _: None) -> shapes.Excerpt:
    """Some of a document's text."""
    if at.page is None:
        found = await document_text.read(ask, at.document_id, offset=at.offset, limit=at.limit)
    elif at.model_fields_set & {"limit", "offset"}:
        raise BadRequest("A page is read as a whole.", remedy="Leave out offset and limit, or page.")
    else:
        found = await document_text.read_page(ask, at.document_id, at.page)
    return shapes.Excerpt(
        document_id=at.document_id,
        name=found.document.name,
        index_status=found.document.index_status,
        text=found.text,
        offset=found.offset,
        total=found.total,
        has_more=found.has_more,
        page=found.page,
        page_name=found.page_name or None,
    )


async def list_passages(ask: Ask, at: shapes.AtPassages, _: None) -> shapes.PassageList:
    """Some of a document's passages."""
    document = await documents.get(ask.db, ask, at.document_id)
    found = await passage_store.find(ask.db, "document", str(at.document_id), offset=at.offset, limit=at.limit)
    items = [_passage(each, ordinal) for ordinal, each in enumerate(found, at.offset)]
    total = document.passages or 0
    return shapes.PassageList(items, total, at.offset, at.offset + len(items) < total)


async def change_documents(ask: Ask, _: Any, given: shapes.Batch) -> shapes.Counted:
    """The same done to many documents, or to none."""
    if (given.action == "move") != (given.folder_id is not None):
        raise BadRequest("folder_id is given for the action 'move', and only then.")
    if given.action != "move" and given.base_id is not None:
        raise BadRequest("base_id is given for the action 'move' only.")

    async def body(tx: Transaction) -> None:
        if given.action == "move":
            await documents.move(ask, tx, given.ids, given.folder_id or folders.ROOT, given.base_id)
        elif given.action in ("enable", "disable"):
            await documents.enable(ask, tx, given.ids, given.action == "enable")
        else:
            await _BATCHES[given.action](ask, tx, given.ids)

    await ask.db.write(body)
    return shapes.Counted(len(set(given.ids)))


_BATCHES: dict[str, Callable[[Ask, Transaction, list[int]], Awaitable[None]]] = {
    "delete": documents.remove,
    "restore": documents.restore,
    "reindex": documents.reindex,
}


def _created(path: str, value: Any) -> RestAnswer:
    return RestAnswer(value, 201, ((b"location", f"{PREFIX}{path}".encode()),))


def _check_change(given: Arguments) -> None:
    if all(value is None for _, value in given):
        raise BadRequest("There is nothing to change.", remedy=f"Give one of: {', '.join(type(given).model_fields)}.")


def _splitter(given: shapes.Splitting | None) -> PassageSplitter | None:
    return None if given is None else PassageSplitter.from_options(given.model_dump(exclude_none=True))


def _moment(at: int) -> str:
    return clock.format_timestamp(at) or ""


async def _base(ask: Ask, base: KnowledgeBase) -> shapes.BaseFacts:
    return (await _bases(ask, [base]))[0]


async def _bases(ask: Ask, found: Sequence[KnowledgeBase]) -> list[shapes.BaseFacts]:
    covered = await document_status.coverages(ask.db, ask.rest.search.index, [base.id for base in found])
    return [_base_facts(base, covered.get(base.id)) for base in found]


def _base_facts(base: KnowledgeBase, covered: Coverage | None) -> shapes.BaseFacts:
    splitter = base.splitter
    parent_size = splitter.parent_size if splitter.strategy == "hierarchical" else None
    return shapes.BaseFacts(
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
        splitter=shapes.SplitterFacts(splitter.strategy, splitter.size, splitter.overlap, parent_size),
        created_at=_moment(base.created_at),
        updated_at=_moment(base.updated_at),
        removed_at=clock.format_timestamp(base.removed_at),
    )


def _folder(folder: Folder) -> shapes.FolderFacts:
    return shapes.FolderFacts(
        folder.id,
        folder.base_id,
        folder.parent_id,
        folder.name,
        _moment(folder.created_at),
        _moment(folder.updated_at),
    )


def _node(node: Node, *, deep: bool) -> shapes.NodeFacts:
    item = node.item
    children = [_node(child, deep=True) for child in node.children] if deep and isinstance(item, Folder) else None
    return shapes.NodeFacts(
        kind="folder" if isinstance(item, Folder) else "document",
        folder=_folder(item) if isinstance(item, Folder) else None,
        document=_document(item) if isinstance(item, Document) else None,
        has_children=node.has_children,
        is_orphan=node.is_orphan,
        children=children,
    )


def _facts(document: Document) -> dict[str, Any]:
    failure = document.failure
    return {
        "id": document.id,
        "base_id": document.base_id,
        "folder_id": document.folder_id,
        "name": document.name,
        "title": document.title,
        "source_type": document.source_type,
        "source_url": document.source_url,
        "mime_type": document.mime_type,
        "extension": document.extension,
        "size": document.size,
        "sha256": document.blob_hash,
        "tags": list(document.tags),
        "metadata": document.metadata,
        "is_enabled": document.is_enabled,
        "creator": document.creator_name,
        "created_at": _moment(document.created_at),
        "updated_at": _moment(document.updated_at),
        "generation": document.generation,
        "index_status": document.index_status,
        "failure": failure
        and shapes.FailureFacts(
            failure.stage, failure.code, failure.message, failure.retryable, _moment(failure.occurred_at)
        ),
        "characters": document.characters,
        "page_count": document.page_count,
        "passages": document.passages,
        "warnings": list(document.warnings),
    }


def _document(document: Document) -> shapes.DocumentFacts:
    return shapes.DocumentFacts(**_facts(document))


def _added(added: AddResult) -> shapes.AddedFacts:
    return shapes.AddedFacts(**_facts(added.document), outcome=added.outcome)


def _passage(passage: passage_store.Passage, ordinal: int) -> shapes.PassageFacts:
    return shapes.PassageFacts(
        ordinal=ordinal,
        kind=passage.kind,
        text=passage.text,
        start=passage.start,
        end=passage.end,
        headings=list(passage.headings),
        page=passage.page,
        boxes=[list(box) for box in passage.boxes],
        parent=passage.parent,
    )
