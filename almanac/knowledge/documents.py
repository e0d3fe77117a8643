"""Documents of a knowledge base: uploaded files with their extracted text and metadata.

    queued → converting → indexing → success    (failed, with a reason, if the file cannot be parsed)
       ↑  ↘ pending_conversion ↗                 (waits for another attempt after a fault that the file did not cause)

A disabled document, which search does not find, is not_indexed instead of success.

Every new content gives a document the next generation. Results for an older generation are dropped.
"""

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, cast

import orjson

from almanac.core import clock
from almanac.core.call import Call
from almanac.core.database import Reader, Row, Transaction
from almanac.core.errors import BadRequest, Conflict, NotFound
from almanac.core.text import CONTROL_CHARACTERS, one_line
from almanac.files import blobs
from almanac.files.blobs import StoredFile
from almanac.identity import access
from almanac.knowledge import bases, document_index, folders
from almanac.knowledge.ingest import queue
from almanac.knowledge.ingest.queue import UNFINISHED_STATUSES
from almanac.knowledge.parsers import file_types

IF_EXISTS = ("error", "replace", "keep_both")
MAX_TAGS = 50
MAX_TAG_CHARS = 100
MAX_METADATA_BYTES = 16_384  # as JSON
MAX_BATCH_DOCUMENTS = 500

# The columns are in the order of the fields of `Document`, because a list converts thousands of rows.
SELECT = f"""
SELECT d.id, d.base_id, d.folder_id, d.name, d.source_type, d.source_url, d.extension, d.mime_type, d.size, d.tags,
    d.metadata, d.is_enabled, d.creator_id, p.name AS creator_name, d.created_at, d.updated_at, d.generation,
    {queue.INDEX_STATUS} AS index_status, d.failure, d.removed_at, b.hash AS blob_hash, b.name AS blob_name, r.title,
    r.characters, r.page_count, r.passages, r.warnings
FROM documents d JOIN blobs b ON b.id = d.blob_id JOIN principals p ON p.id = d.creator_id
    LEFT JOIN readings r ON r.document_id = d.id
"""  # noqa: S608 - constants


@dataclass(frozen=True, slots=True)
class Failure:
    """The reason why a document could not be parsed."""

    stage: str  # conversion or system
    code: str
    message: str
    retryable: bool
    generation: int
    occurred_at: int


@dataclass(frozen=True, slots=True)
class Document:
    """One document, without its text."""

    id: int
    base_id: int
    folder_id: int
    name: str
    source_type: str
    source_url: str | None
    extension: str
    mime_type: str
    size: int
    tags: tuple[str, ...]
    metadata: dict[str, Any]
    is_enabled: bool
    creator_id: int
    creator_name: str
    created_at: int
    updated_at: int
    generation: int
    index_status: str
    failure: Failure | None
    removed_at: int | None
    blob_hash: str
    blob_name: str
    title: str | None
    characters: int | None  # None: not parsed yet
    page_count: int | None
    passages: int | None
    warnings: tuple[str, ...]  # about parts that the parser left out


_TAGS, _METADATA, _ENABLED, _FAILURE, _TITLE, _WARNINGS = (
    list(Document.__dataclass_fields__).index(name)
    for name in ("tags", "metadata", "is_enabled", "failure", "title", "warnings")
)


@dataclass(frozen=True, slots=True)
class DocumentDraft:
    """The properties of a new document, or of the new content of an existing one, which keeps properties that are
    None."""

    name: str
    folder_id: int = folders.ROOT
    tags: tuple[str, ...] | None = None
    metadata: dict[str, Any] | None = None
    source_type: str | None = None  # None: derived from the content
    source_url: str | None = None
    if_exists: str = "error"
    folder: str = ""  # a path below that folder; missing folders are created


@dataclass(frozen=True, slots=True)
class AddResult:
    """The document and the outcome: added, replaced, or unchanged if it already had this content."""

    document: Document
    outcome: str


async def add(call: Call, tx: Transaction, base_id: int, draft: DocumentDraft, stored: StoredFile) -> AddResult:
    """Add a stored file as a document and queue the job that parses it."""
    await bases.get(tx, call, base_id, "write")
    if draft.if_exists not in IF_EXISTS:
        raise BadRequest(f"'if_exists' is one of: {', '.join(IF_EXISTS)}.")
    if draft.folder:
        folder_id = await folders.ensure(call, tx, base_id, draft.folder, draft.folder_id)
        draft = dataclasses.replace(draft, folder_id=folder_id)
    await folders.lock_folder(tx, base_id, draft.folder_id)
    while (document_id := await _insert(call, tx, base_id, draft, stored)) is None:
        # The loop repeats if the other document was removed in the meantime, or with the next number for 'keep_both'.
        name = folders.check_name(draft.name)
        existing_id = await folders.id_by_name(tx, "documents", base_id, draft.folder_id, name)
        if existing_id and draft.if_exists == "replace":
            return await replace(call, tx, existing_id, stored, draft)
        if existing_id and draft.if_exists == "error":
            raise Conflict(
                f"There is already a document named {draft.name!r} here, with the id {existing_id}.",
                remedy="Use if_exists 'replace' to give it this content, 'keep_both' to number the name, or rename it.",
            )
    await queue.enqueue(tx, document_id)
    return AddResult(await get(tx, call, document_id), "added")


async def replace(
    call: Call, tx: Transaction, document_id: int, stored: StoredFile, draft: DocumentDraft | None = None
) -> AddResult:
    """Give a document new content and the properties of the draft. Its text stays until the content has been parsed."""
    document = await get(tx, call, document_id, "write")
    if draft is not None and (draft.tags is not None or draft.metadata is not None):
        document = await update(call, tx, document_id, tags=draft.tags, metadata=draft.metadata)
    if document.blob_hash == stored.hash and document.index_status != "failed":
        return AddResult(document, "unchanged")
    kind = file_types.detect_file_type(stored.head, document.name)
    await tx.execute(
        "UPDATE documents SET blob_id = $2, size = $3, mime_type = $4, extension = $5, source_type = $6,"
        " source_url = $7, generation = generation + 1, index_status = 'queued', failure = NULL, updated_at = $8"
        " WHERE id = $1",
        document_id,
        await blobs.ensure(tx, stored),
        stored.size,
        kind.mime_type,
        kind.extension,
        (draft.source_type if draft else None) or kind.source_type,
        draft.source_url if draft else None,
        clock.now(),
    )
    await queue.enqueue(tx, document_id)
    return AddResult(await get(tx, call, document_id), "replaced")


async def get(db: Reader, call: Call, document_id: int, action: str = "read", *, removed: bool = False) -> Document:
    """A document in a base on which the caller may perform the action. With `removed`, a document in the trash."""
    sql = f"{SELECT} WHERE d.id = $1 AND d.base_id IN (SELECT id FROM bases WHERE org_id = $2 AND id = d.base_id)"  # noqa: S608
    row = await db.fetch_one(sql, document_id, call.actor.org_id)
    is_found = row is not None and (row["removed_at"] is not None) == removed
    try:
        # The query also runs if there is no document. Response times then do not reveal whether a document exists.
        await bases.get(db, call, row["base_id"] if row is not None and is_found else 0, action)
    except NotFound:
        raise _missing(document_id) from None
    assert row is not None
    call.record_access("document", document_id)
    return document_from_row(row)


async def exists(call: Call, document_id: int) -> bool:
    """Whether the caller's organisation has a document, which the caller need not be able to read."""
    row = await call.db.fetch_one(
        "SELECT 1 FROM documents d JOIN bases b ON b.id = d.base_id WHERE d.id = $1 AND b.org_id = $2"
        " AND d.removed_at IS NULL AND b.removed_at IS NULL",
        document_id,
        call.actor.org_id,
    )
    return row is not None


async def newest(call: Call, base_ids: Sequence[int], below: int, limit: int) -> list[Row]:
    """The id, base, name and time of the newest documents with an id below this one that are in the bases and have a
    text. The caller must be able to read the bases."""
    # One indexed look-up for each base: a single one would read all documents of all bases to find the newest.
    parts = [
        f"SELECT * FROM (SELECT id, base_id, name, updated_at FROM documents WHERE base_id = {base_id:d}"  # noqa: S608
        " AND removed_at IS NULL AND index_status = 'success' AND id < $1 ORDER BY id DESC LIMIT $2) AS part"
        for base_id in base_ids
    ]
    if not parts:
        return []
    return list(await call.db.scan(f"{' UNION ALL '.join(parts)} ORDER BY id DESC LIMIT $2", below, limit))


async def update(
    call: Call,
    tx: Transaction,
    document_id: int,
    *,
    name: str | None = None,
    tags: Sequence[str] | None = None,
    metadata: dict[str, Any] | None = None,
) -> Document:
    """Change the name, the tags or the metadata of a document."""
    document = await get(tx, call, document_id, "write")
    name = document.name if name is None else folders.check_name(name)
    folder = document.base_id, document.folder_id
    if name != document.name and await folders.id_by_name(tx, "documents", *folder, name):
        raise Conflict(f"There is already a document named {name!r} here.", remedy="Choose another name.")
    await tx.execute(
        "UPDATE documents SET name = $2, tags = $3, metadata = $4, updated_at = $5 WHERE id = $1",
        document_id,
        name,
        _check_tags(document.tags if tags is None else tags),
        _check_metadata(document.metadata if metadata is None else metadata),
        clock.now(),
    )
    await document_index.update(tx, [document_id])
    return await get(tx, call, document_id)


async def move(
    call: Call, tx: Transaction, document_ids: Sequence[int], folder_id: int, base_id: int | None = None
) -> None:
    """Move documents into another folder of their base, or of another base."""
    for document_id in _check_batch(document_ids):
        document = await get(tx, call, document_id, "write")
        target = document.base_id if base_id is None else base_id
        await bases.get(tx, call, target, "write")
        await folders.lock_folder(tx, target, folder_id)
        if (target, folder_id) == (document.base_id, document.folder_id):
            continue
        await tx.execute(
            "UPDATE documents SET base_id = $2, folder_id = $3, name = $4, updated_at = $5 WHERE id = $1",
            document_id,
            target,
            folder_id,
            await folders.unique_name(tx, "documents", target, folder_id, document.name),
            clock.now(),
        )
        # After the document's own row: a job that stores its passages has finished, or will see the new folder.
        await document_index.update(tx, [document_id])


async def enable(call: Call, tx: Transaction, document_ids: Sequence[int], is_enabled: bool) -> None:
    """Include documents in search, or exclude them."""
    ids = _check_batch(document_ids)
    for document_id in ids:
        await get(tx, call, document_id, "write")
        sql = "UPDATE documents SET is_enabled = $2, updated_at = $3 WHERE id = $1"
        await tx.execute(sql, document_id, int(is_enabled), clock.now())
    await document_index.set_searchable(tx, ids, is_live=is_enabled)


async def remove(call: Call, tx: Transaction, document_ids: Sequence[int]) -> None:
    """Put documents into the trash. Search no longer finds them."""
    ids = _check_batch(document_ids)
    for document_id in ids:
        await get(tx, call, document_id, "write")
        await tx.execute(
            "UPDATE documents SET removed_at = $2, updated_at = $2 WHERE id = $1", document_id, clock.now()
        )
    await document_index.set_searchable(tx, ids, is_live=False)


async def restore(call: Call, tx: Transaction, document_ids: Sequence[int]) -> None:
    """Take documents out of the trash, into their former folder, or to the top if that folder is gone."""
    for document_id in _check_batch(document_ids):
        document = await get(tx, call, document_id, "write", removed=True)
        folder_id = await folders.lock_folder_or_root(tx, document.base_id, document.folder_id)
        if not await tx.execute(
            "UPDATE documents SET removed_at = NULL, removed_with = NULL, folder_id = $2, name = $3, updated_at = $4"
            " WHERE id = $1 AND removed_at IS NOT NULL",
            document_id,
            folder_id,
            await folders.unique_name(tx, "documents", document.base_id, folder_id, document.name),
            clock.now(),
        ):
            raise _missing(document_id)  # it has just been purged
        await document_index.update(tx, [document_id])
        if document.index_status in UNFINISHED_STATUSES:  # the job of a removed document drops its result
            await queue.requeue(tx, document_id)


async def reindex(call: Call, tx: Transaction, document_ids: Sequence[int]) -> None:
    """Parse documents again, as their next generation."""
    for document_id in _check_batch(document_ids):
        await get(tx, call, document_id, "write")
        await queue.requeue(tx, document_id)


async def retry_all(call: Call, base_id: int) -> int:
    """Parse again all documents of a base that have failed so far, in several transactions; return their number."""
    now, total = clock.now(), 0
    while count := await call.db.write(lambda tx: retry(call, tx, base_id, now)):
        total += count
    return total


async def retry(call: Call, tx: Transaction, base_id: int, before: int | None = None) -> int:
    """Parse again one batch of the documents of a base that failed before a time; return their number."""
    await bases.get(tx, call, base_id, "write")
    sql = (
        "SELECT id FROM documents WHERE base_id = $1 AND index_status = 'failed' AND removed_at IS NULL"
        " AND updated_at <= $2 LIMIT $3"
    )
    rows = await tx.fetch(sql, base_id, clock.now() if before is None else before, MAX_BATCH_DOCUMENTS)
    for row in rows:
        await queue.requeue(tx, row["id"])
    return len(rows)


def document_from_row(row: Row) -> Document:
    """A document from a row of `SELECT`."""
    values = list(cast("Sequence[Any]", row))
    values[_TAGS] = _tuple_from_json(values[_TAGS])
    values[_METADATA] = orjson.loads(values[_METADATA])
    values[_ENABLED] = bool(values[_ENABLED])
    values[_TITLE] = values[_TITLE] or None
    values[_WARNINGS] = _tuple_from_json(values[_WARNINGS])
    values[_FAILURE] = Failure(**orjson.loads(values[_FAILURE])) if values[_FAILURE] else None
    return Document(*values)


def _tuple_from_json(text: str | None) -> tuple[str, ...]:
    return tuple(orjson.loads(text)) if text and text != "[]" else ()


async def _insert(call: Call, tx: Transaction, base_id: int, draft: DocumentDraft, stored: StoredFile) -> int | None:
    name, tags, metadata = (
        folders.check_name(draft.name),
        _check_tags(draft.tags or ()),
        _check_metadata(draft.metadata),
    )
    if draft.if_exists == "keep_both":
        name = await folders.unique_name(tx, "documents", base_id, draft.folder_id, name)
    kind = file_types.detect_file_type(stored.head, name)
    row = await tx.fetch_one(
        "INSERT INTO documents (base_id, folder_id, name, source_type, source_url, extension, mime_type, size, blob_id,"
        " tags, metadata, is_enabled, creator_id, created_at, updated_at, generation, index_status)"
        " VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, 1, $12, $13, $13, 1, 'queued')"
        " ON CONFLICT (base_id, folder_id, name) WHERE removed_at IS NULL DO NOTHING RETURNING id",
        base_id,
        draft.folder_id,
        name,
        draft.source_type or kind.source_type,
        draft.source_url,
        kind.extension,
        kind.mime_type,
        stored.size,
        await blobs.ensure(tx, stored),
        tags,
        metadata,
        call.actor.id,
        clock.now(),
    )
    return row["id"] if row else None


def _check_batch(ids: Sequence[int]) -> list[int]:
    unique = sorted(set(ids))  # sorted, so that two callers lock rows in the same order and cannot deadlock
    if not 1 <= len(unique) <= MAX_BATCH_DOCUMENTS:
        raise BadRequest(f"The number of documents in one call is 1 to {MAX_BATCH_DOCUMENTS}.")
    return unique


def _check_tags(tags: Sequence[str]) -> str:
    cleaned = list(dict.fromkeys(one_line(tag) for tag in tags))
    are_valid = all(1 <= len(tag) <= MAX_TAG_CHARS and not CONTROL_CHARACTERS.search(tag) for tag in cleaned)
    if len(cleaned) > MAX_TAGS or not are_valid:
        raise BadRequest(
            f"A document has at most {MAX_TAGS} tags of 1 to {MAX_TAG_CHARS} characters, without control characters.",
            remedy="Leave some out, or shorten them.",
        )
    return orjson.dumps(cleaned).decode()


def _check_metadata(metadata: dict[str, Any] | None) -> str:
    try:
        encoded = orjson.dumps(metadata or {})
    except TypeError:
        raise BadRequest("The metadata cannot be stored.", remedy="Use plain JSON values.") from None
    if len(encoded) > MAX_METADATA_BYTES:
        raise BadRequest(f"The metadata is larger than {MAX_METADATA_BYTES} bytes.", remedy="Shorten its values.")
    return encoded.decode()


def _missing(document_id: int) -> NotFound:
    return access.unknown(f"document {document_id}")
