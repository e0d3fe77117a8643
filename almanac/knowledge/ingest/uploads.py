"""The ways in which content arrives: as text, base64, an upload or a URL. Each adds or replaces a document.

Content is stored before the transaction that adds the document, because storing may take minutes. The permission of the
caller is therefore checked twice; the first check keeps content of callers without permission from being stored.
"""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace

from almanac.core.call import Call
from almanac.core.database import Transaction
from almanac.files.encoded import decode_base64
from almanac.files.file_store import FileStore, IncomingFile
from almanac.knowledge import bases, documents
from almanac.knowledge.documents import AddResult, DocumentDraft
from almanac.net.fetcher import Fetcher

_TEXT_EXTENSION = ".md"

WriteContent = Callable[[IncomingFile], Awaitable[DocumentDraft | None]]


@dataclass(frozen=True, slots=True)
class UploadTarget:
    """The destination of content: a base for a new document, or a document that gets new content."""

    base_id: int | None = None
    document_id: int | None = None


async def store_content(
    call: Call, files: FileStore, target: UploadTarget, draft: DocumentDraft, write_content: WriteContent
) -> AddResult:
    """Store content as a document. `write_content` may return another draft, with properties of the content."""
    await _check_permission(call, target)
    async with files.receive(call.db) as incoming:
        final_draft = await write_content(incoming) or draft
        stored = await incoming.finish()

        async def add(tx: Transaction) -> AddResult:
            if target.document_id is not None:
                return await documents.replace(call, tx, target.document_id, stored, final_draft)
            assert target.base_id is not None
            return await documents.add(call, tx, target.base_id, final_draft, stored)

        return await call.db.write(add)


async def take_text(call: Call, files: FileStore, target: UploadTarget, draft: DocumentDraft, text: str) -> AddResult:
    """Add text from the caller. A name without an extension gets that of Markdown."""
    name = draft.name if "." in draft.name or target.document_id else draft.name + _TEXT_EXTENSION
    content = text.encode("utf-8", "replace")
    return await store_content(
        call, files, target, replace(draft, name=name, source_type="text"), lambda incoming: incoming.write(content)
    )


async def take_base64(
    call: Call, files: FileStore, target: UploadTarget, draft: DocumentDraft, encoded: str
) -> AddResult:
    """Add a small file that is encoded as base64."""
    content = decode_base64(encoded)
    return await store_content(call, files, target, draft, lambda incoming: incoming.write(content))


async def take_url(
    call: Call, files: FileStore, fetcher: Fetcher, target: UploadTarget, draft: DocumentDraft, url: str
) -> AddResult:
    """Fetch the file at a URL and add it. If the draft has no name, the file keeps the name that it has there."""

    async def download(incoming: IncomingFile) -> DocumentDraft:
        fetched = await fetcher.download(url, incoming.write)
        source = url.partition("?")[0].partition("#")[0]  # a query may hold a secret
        return replace(draft, name=draft.name or fetched.filename, source_type="web", source_url=source)

    return await store_content(call, files, target, draft, download)


async def _check_permission(call: Call, target: UploadTarget) -> None:
    if target.document_id is not None:
        await documents.get(call.db, call, target.document_id, "write")
    else:
        assert target.base_id is not None
        await bases.get(call.db, call, target.base_id, "write")
