"""The tools for documents. They are ordinary documents, which every other surface sees."""

from typing import Annotated, Any

from pydantic import Field

from almanac.core import clock
from almanac.core.arguments import Arguments, RecordId
from almanac.core.errors import BadRequest, NotFound
from almanac.files.encoded import decode_base64
from almanac.knowledge import document_search, document_store, documents
from almanac.knowledge.documents import AddResult, Document, DocumentDraft
from almanac.knowledge.ingest import uploads
from almanac.knowledge.ingest.uploads import UploadTarget
from almanac.knowledge.parsers import file_types
from almanac.operations.context import RequestContext
from almanac.surfaces.knowi import object_access
from almanac.surfaces.knowi.responses import KnowiAnswer, counted

MAX_LISTED_DOCUMENTS = 200
BINARY_EXTENSIONS = frozenset(
    (
        *("pdf", "docx", "docm", "doc", "dot", "dotx", "xlsx", "xlsm", "xlsb", "xls", "pptx", "pptm", "ppt", "odt"),
        *("ods", "odp", "odg", "epub", "png", "jpg", "jpeg", "gif", "webp", "tif", "tiff", "bmp"),
    )
)
READING = "It is being read in the background; knowi_list_documents shows when it is ready."

_VERBS = {"added": "Ingested", "replaced": "Ingested a new version of", "unchanged": "Already ingested:"}


class IngestArguments(Arguments):
    fileUrl: Annotated[str | None, Field(max_length=4000)] = None
    content: str | None = None
    fileName: Annotated[str | None, Field(min_length=1, max_length=255)] = None


class ListArguments(Arguments):
    datasourceId: RecordId | None = None
    query: Annotated[str, Field(max_length=255)] = ""


class DeleteArguments(Arguments):
    documentId: Annotated[str, Field(min_length=1, max_length=100)]
    confirm: bool


async def knowi_ingest_document(ctx: RequestContext, args: IngestArguments) -> KnowiAnswer:
    """Add a document to the document store, or give the document of that name new content."""
    if (args.fileUrl is None) == (args.content is None):
        raise BadRequest("One of fileUrl or content is required.", remedy="Give one of them, not both.")
    if args.fileUrl is None and args.fileName is None:
        raise BadRequest("fileName is required with content.", remedy='Give a name with its extension: "report.pdf".')
    content = None if args.content is None else _decoded(args.fileName or "", args.content)
    store = await ctx.db.write(lambda tx: document_store.ensure(ctx, tx))
    target, draft = UploadTarget(store.base_id), DocumentDraft(args.fileName or "", if_exists="replace")
    files = ctx.app.files
    if args.fileUrl is not None:
        added = await uploads.take_url(ctx, files, ctx.app.fetcher, target, draft, args.fileUrl)
    elif isinstance(content, bytes):
        added = await uploads.store_content(ctx, files, target, draft, lambda incoming: incoming.write(content))
    else:
        added = await uploads.take_text(ctx, files, target, draft, content or "")
    return _ingested(ctx, added, store.id)


async def knowi_list_documents(ctx: RequestContext, args: ListArguments) -> KnowiAnswer:
    """List the documents that the caller may read, the newest first."""
    store = await document_store.get_or_none(ctx.db, ctx.actor.org_id)
    if args.datasourceId is not None and (store is None or store.id != args.datasourceId):
        raise NotFound(
            f"There is no document datasource {args.datasourceId}.", remedy="Leave out datasourceId to list all."
        )
    base_id = store.base_id if store is not None and args.datasourceId is not None else None
    found = await document_store.find(ctx, base_id=base_id, name=args.query, limit=MAX_LISTED_DOCUMENTS)
    number = len(found.items)
    more = f", of which these are the newest {number}; narrow the list with query" if found.total > number else ""
    return KnowiAnswer(
        f"Found {counted(found.total, 'document')}{more}",
        {
            "documents": [_describe(ctx, document, store) for document in found.items],
            "totalRows": found.total,
            "returnedRows": number,
        },
        is_untrusted=True,
    )


async def knowi_delete_document(ctx: RequestContext, args: DeleteArguments) -> KnowiAnswer:
    """Put a document into the trash."""
    object_access.require_confirmation(args.confirm)
    document = await object_access.get_document(ctx, args.documentId, "write")
    await ctx.db.write(lambda tx: documents.remove(ctx, tx, [document.id]))
    return KnowiAnswer(
        f"Deleted document {document.name} ({document.id}). It can be restored from the trash for 30 days.",
        {"documentId": str(document.id), "documentName": document.name, "deleted": True},
    )


def _decoded(name: str, content: str) -> bytes | str:
    """Return the content of a file: bytes if its format is binary, and text otherwise."""
    extension = file_types.extension_of(name)
    if "." not in name.strip("."):
        raise BadRequest("fileName has no extension.", remedy='Give a name such as "report.pdf".')
    if extension not in BINARY_EXTENSIONS:
        return content
    return decode_base64("".join(content.rpartition(";base64,")[2].split()))


def _ingested(ctx: RequestContext, added: AddResult, store_id: int) -> KnowiAnswer:
    document = added.document
    url = document_search.url_of(ctx.app.settings.url, document.id, None)
    is_ready = document.index_status in ("success", "not_indexed")
    return KnowiAnswer(
        f"{_VERBS[added.outcome]} {document.name} as document {document.id}.{'' if is_ready else f' {READING}'}",
        {
            "documentId": str(document.id),
            "documentName": document.name,
            "datasourceId": store_id,
            "outcome": added.outcome,
            "status": document.index_status,
            "url": url,
        },
    )


def _describe(ctx: RequestContext, document: Document, store: document_store.DocumentStore | None) -> dict[str, Any]:
    is_in_store = store is not None and document.base_id == store.base_id
    described: dict[str, Any] = {
        "documentId": str(document.id),
        "documentName": document.name,
        "datasourceId": store.id if store is not None and is_in_store else None,
        "status": document.index_status,
        "mimeType": document.mime_type,
        "size": document.size,
        "pages": document.page_count,
        "createdBy": document.creator_name,
        "createdAt": clock.format_timestamp(document.created_at),
        "updatedAt": clock.format_timestamp(document.updated_at),
        "url": document_search.url_of(ctx.app.settings.url, document.id, None),
    }
    return described | ({"failure": document.failure.message} if document.failure else {})
