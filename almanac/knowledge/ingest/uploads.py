"""Intake: the ways in which content arrives, each ending in a document that waits to be read.

What arrives is stored before the transaction that adds the document, since it may take minutes; whether the caller may
add it is therefore asked twice, first so that nothing is taken in from somebody who may not.
"""

import base64
import binascii
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace

from almanac.core.call import Call
from almanac.core.database import Transaction
from almanac.core.errors import BadRequest, TooLarge
from almanac.knowledge import bases, documents
from almanac.knowledge.documents import AddResult, DocumentDraft
from almanac.knowledge.files import FileStore, IncomingFile
from almanac.net.fetcher import Fetcher

MOST_BASE64 = 10 * 1024 * 1024  # bytes decoded; larger files are uploaded
_TEXT_EXTENSION = ".md"

WriteContent = Callable[[IncomingFile], Awaitable[DocumentDraft | None]]


@dataclass(frozen=True, slots=True)
class UploadTarget:
    """Where content goes: into a base as a new document, or into a document as its new content."""

    base_id: int | None = None
    document_id: int | None = None


async def store_content(
    call: Call, files: FileStore, target: UploadTarget, draft: DocumentDraft, pour: WriteContent
) -> AddResult:
    """Store what `pour` writes, and make it a document; `pour` may know better what it is and return another draft."""
    await _check(call, target)
    async with files.receive(call.db) as incoming:
        found = await pour(incoming) or draft
        stored = await incoming.finish()

        async def add(tx: Transaction) -> AddResult:
            if target.document_id is not None:
                return await documents.replace(call, tx, target.document_id, stored, found)
            assert target.base_id is not None
            return await documents.add(call, tx, target.base_id, found, stored)

        return await call.db.write(add)


async def take_text(call: Call, files: FileStore, target: UploadTarget, draft: DocumentDraft, text: str) -> AddResult:
    """Text written by the caller; Markdown, unless its name says otherwise."""
    named = draft.name if "." in draft.name or target.document_id else draft.name + _TEXT_EXTENSION
    content = text.encode("utf-8", "replace")
    return await store_content(
        call, files, target, replace(draft, name=named, source_type="text"), lambda incoming: incoming.write(content)
    )


async def take_base64(
    call: Call, files: FileStore, target: UploadTarget, draft: DocumentDraft, encoded: str
) -> AddResult:
    """A small file, as base64."""
    content = decode(encoded)
    return await store_content(call, files, target, draft, lambda incoming: incoming.write(content))


def decode(encoded: str) -> bytes:
    """What base64 stands for, if it is not too much to be sent so."""
    if len(encoded) > MOST_BASE64 * 4 // 3 + 1000:
        raise TooLarge(
            f"A file sent as base64 may have {MOST_BASE64} bytes.", remedy="Upload it over REST, or give its URL."
        )
    try:
        return base64.b64decode(encoded, validate=True)
    except (binascii.Error, ValueError):
        raise BadRequest(
            "The content is not valid base64.", remedy="Encode the file again, without line breaks."
        ) from None


async def take_url(
    call: Call, files: FileStore, fetcher: Fetcher, target: UploadTarget, draft: DocumentDraft, url: str
) -> AddResult:
    """What is at a URL, fetched now. Its name is the one it has there, unless the draft gives one."""

    async def pour(incoming: IncomingFile) -> DocumentDraft:
        fetched = await fetcher.download(url, incoming.write)
        source = url.partition("?")[0].partition("#")[0]  # a query may hold a secret
        return replace(draft, name=draft.name or fetched.filename, source_type="web", source_url=source)

    return await store_content(call, files, target, draft, pour)


async def _check(call: Call, target: UploadTarget) -> None:
    if target.document_id is not None:
        await documents.get(call.db, call, target.document_id, "write")
    else:
        assert target.base_id is not None
        await bases.get(call.db, call, target.base_id, "write")
