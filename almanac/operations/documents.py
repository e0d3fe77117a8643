"""The operations of documents."""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from typing import Any

from almanac.core.database import Transaction
from almanac.core.errors import BadRequest
from almanac.files.file_store import IncomingFile
from almanac.knowledge import document_text, documents, folders
from almanac.knowledge.documents import AddResult, Document, DocumentDraft
from almanac.knowledge.ingest import uploads
from almanac.knowledge.ingest.uploads import UploadTarget
from almanac.operations.context import RequestContext, Upload
from almanac.operations.document_models import (
    EXAMPLE_DOCUMENT,
    AddDocument,
    AddedDocument,
    ChangeDocument,
    ChangeDocuments,
    Content,
    DocumentExcerpt,
    DocumentInfo,
    ListPassages,
    ManageDocument,
    OneDocument,
    PassageInfo,
    PassageList,
    ReadDocument,
    ReplaceContent,
)
from almanac.operations.models import DocumentCount, Done, read_operation, require, require_change, write_operation
from almanac.operations.operation import CHANGES, FETCHES_AND_ADDS, Example, Form, Mcp, Rest
from almanac.search import passage_store
from almanac.search.passage import Passage


async def add_document(ctx: RequestContext, args: AddDocument) -> AddedDocument:
    """Add a document to a knowledge base from text, a file or a URL, or give an existing one new content."""
    if (args.base_id is None) == (args.document_id is None):
        raise BadRequest("Give base_id for a new document, or document_id to replace one's content.")
    if args.document_id is not None and (args.name or args.folder):
        raise BadRequest("With document_id a name or folder is not taken.", remedy="Use manage_document for those.")
    target = UploadTarget(args.base_id, args.document_id)
    if ctx.upload is not None:
        return _added(await _store_upload(ctx, target, ctx.upload, args.model_dump(exclude_unset=True)))
    if not args.name and args.url is None and args.document_id is None:
        raise BadRequest("name: a new document needs one.", remedy="Give a file name, such as notes.md.")
    return _added(await _store_content(ctx, target, args.draft(), args))


async def replace_content(ctx: RequestContext, args: ReplaceContent) -> AddedDocument:
    """Give a document new content; search finds the old content until the new one has been parsed."""
    target = UploadTarget(document_id=args.document_id)
    if ctx.upload is not None:
        return _added(await _store_upload(ctx, target, ctx.upload, {"document_id": args.document_id}))
    return _added(await _store_content(ctx, target, DocumentDraft(""), args))


async def get_document(ctx: RequestContext, args: OneDocument) -> DocumentInfo:
    """One document."""
    return DocumentInfo.of(await documents.get(ctx.db, ctx, args.document_id))


async def change_document(ctx: RequestContext, args: ChangeDocument) -> DocumentInfo:
    """Rename, tag, describe, move, enable or disable a document."""
    require_change(args, "document_id")

    async def change(tx: Transaction) -> Document:
        await _change(ctx, tx, [args.document_id], args.model_dump(exclude={"document_id"}))
        return await documents.get(tx, ctx, args.document_id)

    return DocumentInfo.of(await ctx.db.write(change))


async def remove_document(ctx: RequestContext, args: OneDocument) -> None:
    """Put a document into the trash."""
    await _apply(ctx, "delete", [args.document_id])


async def restore_document(ctx: RequestContext, args: OneDocument) -> DocumentInfo:
    """Take a document out of the trash."""
    await _apply(ctx, "restore", [args.document_id])
    return await get_document(ctx, args)


async def reindex_document(ctx: RequestContext, args: OneDocument) -> DocumentInfo:
    """Parse a document again."""
    await _apply(ctx, "reindex", [args.document_id])
    return await get_document(ctx, args)


async def change_documents(ctx: RequestContext, args: ChangeDocuments) -> DocumentCount:
    """Apply one action to many documents, or to none of them."""
    if (args.action == "move") != (args.folder_id is not None):
        raise BadRequest("folder_id is given for the action 'move', and only then.", remedy="Add or remove it.")
    if args.action != "move" and args.base_id is not None:
        raise BadRequest("base_id is given for the action 'move' only.", remedy="Leave it out.")
    await _apply(ctx, args.action, args.ids, folder_id=args.folder_id, base_id=args.base_id)
    return DocumentCount(len(set(args.ids)))


async def manage_document(ctx: RequestContext, args: ManageDocument) -> Done:
    """Rename, move, tag, describe, enable or disable (for search), reindex, delete or restore documents."""
    ids, action = args.document_ids, args.action
    changes: dict[str, Any] = {}
    if (field := _CHANGED_FIELDS.get(action)) is not None:
        changes[field] = require(getattr(args, field), field, action)
    if action == "move":
        changes["base_id"] = args.base_id
    elif action == "rename" and len(ids) > 1:
        raise BadRequest("One name cannot be given to several documents.", remedy="Rename one document at a time.")
    await _apply(ctx, action, ids, **changes)
    return Done(action, sorted(set(ids)))


async def read_document(ctx: RequestContext, args: ReadDocument) -> DocumentExcerpt:
    """A document's text, by character offset or by page, and what is known of it."""
    if args.page is None:
        excerpt = await document_text.read(ctx, args.document_id, offset=args.offset, limit=args.limit)
    elif args.model_fields_set & {"limit", "offset"}:
        raise BadRequest("A page is read as a whole.", remedy="Leave out offset and limit, or page.")
    else:
        excerpt = await document_text.read_page(ctx, args.document_id, args.page)
    return DocumentExcerpt.of(excerpt)


async def list_passages(ctx: RequestContext, args: ListPassages) -> PassageList:
    """The passages of a document's text, as they are searched."""
    document = await documents.get(ctx.db, ctx, args.document_id)
    found = await passage_store.find(ctx.db, "document", str(args.document_id), offset=args.offset, limit=args.limit)
    items = [_passage(passage, ordinal) for ordinal, passage in enumerate(found, args.offset)]
    total = document.passages or 0
    return PassageList(items, total, args.offset, args.offset + len(items) < total)


async def _store_content(ctx: RequestContext, target: UploadTarget, draft: DocumentDraft, args: Content) -> AddResult:
    if sum(value is not None for value in (args.content, args.file_base64, args.url)) != 1:
        raise BadRequest("Give the document's content in one way: content, file_base64 or url.")
    files = ctx.app.files
    if args.url is not None:
        return await uploads.take_url(ctx, files, ctx.app.fetcher, target, draft, args.url)
    if args.content is not None:
        return await uploads.take_text(ctx, files, target, draft, args.content)
    return await uploads.take_base64(ctx, files, target, draft, args.file_base64 or "")


async def _store_upload(ctx: RequestContext, target: UploadTarget, upload: Upload, raw: dict[str, Any]) -> AddResult:
    async def write(incoming: IncomingFile) -> DocumentDraft:
        fields = await upload.write_to(ctx, incoming)
        if target.document_id is not None:
            return DocumentDraft("")
        args = ADD_DOCUMENT.parse({**raw, **fields})
        return args.draft(upload.file_name)

    return await uploads.store_content(ctx, ctx.app.files, target, DocumentDraft(""), write)


async def _apply(ctx: RequestContext, action: str, ids: list[int], **changes: Any) -> None:
    """Apply an action to all documents, or to none of them."""
    if action in _SWITCHES:
        changes = {"is_enabled": _SWITCHES[action]}

    async def apply(tx: Transaction) -> None:
        if action in _VERBS:
            await _VERBS[action](ctx, tx, ids)
        else:
            await _change(ctx, tx, ids, changes)

    await ctx.db.write(apply)


_CHANGED_FIELDS = {"rename": "name", "tag": "tags", "describe": "metadata", "move": "folder_id"}
_SWITCHES = {"enable": True, "disable": False}
_VERBS: dict[str, Callable[[RequestContext, Transaction, list[int]], Awaitable[None]]] = {
    "delete": documents.remove,
    "restore": documents.restore,
    "reindex": documents.reindex,
}


async def _change(ctx: RequestContext, tx: Transaction, ids: list[int], changes: Mapping[str, Any]) -> None:
    """Change the given fields of documents; a field that is missing or None stays."""
    given = {name: value for name, value in changes.items() if value is not None}
    # Moved first: a name that is taken there does not matter if the document gets another one anyway.
    if "folder_id" in given or "base_id" in given:
        await documents.move(ctx, tx, ids, given.pop("folder_id", folders.ROOT), given.pop("base_id", None))
    if "is_enabled" in given:
        await documents.enable(ctx, tx, ids, given.pop("is_enabled"))
    for document_id in sorted(set(ids)) if given else ():
        await documents.update(ctx, tx, document_id, **given)


def _added(result: AddResult) -> AddedDocument:
    return AddedDocument(result.outcome, DocumentInfo.of(result.document))


def _added_status(added: AddedDocument) -> int:
    return 201 if added.outcome == "added" else 200


def _passage(passage: Passage, ordinal: int) -> PassageInfo:
    return PassageInfo(
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


_UNREAD = replace(EXAMPLE_DOCUMENT, index_status="queued", title=None, characters=None, page_count=None, passages=None)

_PASSAGE = PassageInfo(
    0, "text", "Oil it monthly.", 120, 135, ["Care"], 2, [[2, 72.0, 90.5, 523.0, 118.0]], None
)  # fmt: skip

ADD_DOCUMENT = write_operation(
    add_document,
    title="Add or replace a document",
    safety=FETCHES_AND_ADDS,
    rest=Rest(
        "POST",
        "/bases/{base_id}/documents",
        status=201,
        omit=frozenset({"document_id"}),
        location="/documents/{document.id}",
        status_of=_added_status,
        other_statuses={200: "The document of that name was replaced, or is unchanged."},
        form=Form(frozenset({"name", "folder", "folder_id", "tags", "metadata", "if_exists"})),
    ),
    mcp=Mcp(advice="It is read in the background: read_document shows its status.", omit=frozenset({"folder_id"})),
    covers=("replace_content",),
    example=Example({"name": "notes.md", "content": "# Pumps", "tags": ["pump"]}, AddedDocument("added", _UNREAD)),
)

OPERATIONS = (
    ADD_DOCUMENT,
    write_operation(
        replace_content,
        rest=Rest("PUT", "/documents/{document_id}/content", form=Form(takes_raw_bytes=True)),
        example=Example({"content": "# Pumps, revised"}, AddedDocument("replaced", replace(_UNREAD, generation=2))),
    ),
    write_operation(
        change_documents,
        rest=Rest("POST", "/documents/batch"),
        example=Example({"action": "move", "ids": [12, 13], "folder_id": 3}, DocumentCount(2)),
    ),
    read_operation(
        get_document, rest=Rest("GET", "/documents/{document_id}"), example=Example(answer=EXAMPLE_DOCUMENT)
    ),
    write_operation(
        change_document,
        rest=Rest("PATCH", "/documents/{document_id}"),
        example=Example({"tags": ["pump", "2024"]}, EXAMPLE_DOCUMENT),
    ),
    write_operation(remove_document, rest=Rest("DELETE", "/documents/{document_id}", status=204)),
    write_operation(
        restore_document,
        rest=Rest("POST", "/documents/{document_id}/restore"),
        example=Example(answer=EXAMPLE_DOCUMENT),
    ),
    write_operation(
        reindex_document,
        rest=Rest("POST", "/documents/{document_id}/reindex"),
        example=Example(answer=replace(EXAMPLE_DOCUMENT, index_status="queued", generation=2)),
    ),
    read_operation(
        read_document,
        title="Read a document",
        rest=Rest("GET", "/documents/{document_id}/content"),
        mcp=Mcp(),
        covers=("get_document",),
        example=Example(answer=DocumentExcerpt(EXAMPLE_DOCUMENT, "Oil it monthly.", 0, None, None, None, 15)),
    ),
    read_operation(
        list_passages,
        rest=Rest("GET", "/documents/{document_id}/passages"),
        people_only="It shows people how a document was cut; an agent searches and reads instead.",
        example=Example(
            answer=PassageList([_PASSAGE], 6, 0, True),
        ),
    ),
    write_operation(
        manage_document,
        title="Manage documents",
        safety=CHANGES,
        mcp=Mcp(advice="All or none. Restore within 30 days.", outlines_answer=False),
        covers=("change_document", "change_documents", "remove_document", "restore_document", "reindex_document"),
    ),
)
