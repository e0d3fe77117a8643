"""Attachments of entities: references to a URL, or uploaded files.

Searches find images by their name, description and annotations and, after text recognition by a job, by their text.
"""

import mimetypes
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Annotated, Any
from urllib.parse import urlsplit

import orjson
from pydantic import AfterValidator, Field

from almanac.catalogue import access, entities, entity_index, entity_text, ids, vocabulary
from almanac.core import clock
from almanac.core.arguments import Arguments
from almanac.core.call import Call
from almanac.core.database import Reader, Row, Transaction
from almanac.core.errors import BadRequest, NotFound
from almanac.db.sql import from_row, placeholders
from almanac.jobs import queue
from almanac.search import passage_store, sources
from almanac.search.sources import Source

IMAGE_TEXT_JOB = "image_text"

_SELECT = """
SELECT a.*, v.key AS type_key, b.name AS file_name, b.hash AS file_hash FROM attachments a
LEFT JOIN vocabulary v ON v.id = a.type_id LEFT JOIN blobs b ON b.id = a.blob_id
"""
_INSERT = """
INSERT INTO attachments (id, org_id, name, url, description, annotations, type_id, media_type, blob_id, size,
    created_at, updated_at) VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $11)
"""
_MISSING_REMEDY = "Use one from the list of attachments."
_IMAGE_TYPE_KEYS = frozenset(("image", "images", "picture", "photo"))
_IMAGE_PREFIX = "image/"


def _check_url(url: str) -> str:
    if urlsplit(url).scheme not in ("http", "https") or not urlsplit(url).netloc:
        raise ValueError("is not an http or https URL")
    return url


Url = Annotated[str, Field(max_length=2000), AfterValidator(_check_url)]


class AttachmentDraft(Arguments):
    """The fields of a new attachment."""

    name: vocabulary.Name
    url: Url
    description: vocabulary.Text = ""
    annotations: Annotated[entities.Metadata, Field(default_factory=dict[str, Any])]
    type: Annotated[str | None, Field(max_length=100, description="Key of an attachment type.")] = None


@dataclass(frozen=True, slots=True)
class UploadedFile:
    """An uploaded file that is in the file store."""

    blob_id: int
    size: int
    media_type: str


@dataclass(frozen=True, slots=True)
class Attachment:
    """One attachment."""

    id: str
    org_id: str
    name: str
    url: str
    description: str
    annotations: dict[str, Any]
    type_key: str | None
    media_type: str
    size: int  # in bytes; 0 for a reference to a URL
    text: str  # recognised by `IMAGE_TEXT_JOB`
    file_name: str | None  # in the file store; None for a reference to a URL
    file_hash: str | None
    created_at: int
    updated_at: int


async def add(
    tx: Transaction, call: Call, draft: AttachmentDraft, file: UploadedFile | None = None, *, id: str | None = None
) -> Attachment:
    """Add an attachment: a reference to a URL, which is not fetched, or an uploaded file that is served at the URL."""
    await access.require_write(tx, call)
    org_id = call.actor.org_id
    term = await vocabulary.get_by_key(tx, org_id, "attachment", draft.type) if draft.type else None
    id = id or ids.new()
    await tx.execute(
        _INSERT,
        id,
        org_id,
        vocabulary.check_name(draft.name),
        vocabulary.check_text(draft.url, "url"),
        vocabulary.check_text(draft.description, "description"),
        orjson.dumps(draft.annotations).decode(),
        term.id if term else None,
        file.media_type if file else _media_type(draft.url, term.key if term else ""),
        file.blob_id if file else None,
        file.size if file else 0,
        clock.now(),
    )
    attachment = await get(tx, call, id)
    await _index(tx, attachment)
    if file and file.media_type.startswith(_IMAGE_PREFIX):
        key = f"{IMAGE_TEXT_JOB}:{id}"
        await queue.add(tx, IMAGE_TEXT_JOB, {"attachment": id}, key=key, org_id=call.actor.org_id)
    return attachment


def changed_fields(old: Attachment, draft: AttachmentDraft) -> dict[str, Any]:
    """The fields that the draft names and that differ from the stored ones. Annotations are changed key by key."""
    stored = {
        "name": old.name, "description": old.description, "annotations": old.annotations, "type": old.type_key
    }  # fmt: skip
    named: dict[str, Any] = {name: getattr(draft, name) for name in draft.model_fields_set if name in stored}
    named["name"] = vocabulary.check_name(draft.name)
    if "annotations" in named:
        named["annotations"] = {**old.annotations, **draft.annotations}
        try:
            entities.check_metadata(named["annotations"])
        except ValueError as error:
            message = f"The field annotations of the attachment {draft.name[:100]!r}, with the stored keys, {error}."
            raise BadRequest(message) from None
    return {name: value for name, value in named.items() if stored[name] != value}


async def update(tx: Transaction, call: Call, old: Attachment, draft: AttachmentDraft) -> None:
    """Change the fields of an attachment that the draft names; its URL stays."""
    await access.require_write(tx, call)
    changes = changed_fields(old, draft)
    if not changes:
        return
    type_key: str | None = changes.get("type", old.type_key)
    term = await vocabulary.get_by_key(tx, old.org_id, "attachment", type_key) if type_key else None
    is_file = old.file_hash is not None
    await tx.execute(
        "UPDATE attachments SET name = $2, description = $3, annotations = $4, type_id = $5, media_type = $6,"
        " updated_at = $7 WHERE id = $1",
        old.id,
        changes.get("name", old.name),
        vocabulary.check_text(changes.get("description", old.description), "description"),
        orjson.dumps(changes.get("annotations", old.annotations)).decode(),
        term.id if term else None,
        old.media_type if is_file else _media_type(old.url, term.key if term else ""),
        clock.now(),
    )
    new = await get(tx, call, old.id)
    if not new.media_type.startswith(_IMAGE_PREFIX):
        await sources.remove(tx, entity_index.IMAGE, [new.id])
    await _index(tx, new)


async def set_text(tx: Transaction, id: str, text: str) -> None:
    """Store the recognised text of an image and index it. Does nothing if the attachment was removed meanwhile."""
    await tx.execute("UPDATE attachments SET text = $2 WHERE id = $1", id, text)
    if (attachment := await get_or_none(tx, id)) is not None:
        await _index(tx, attachment)


async def get_or_none(db: Reader, id: str) -> Attachment | None:
    """The attachment with this id in any organisation, or None. Only for jobs, which have no actor."""
    row = await db.fetch_one(f"{_SELECT} WHERE a.id = $1", id)
    return None if row is None else _attachment_from_row(row)


async def get(db: Reader, call: Call, id: str) -> Attachment:
    """An attachment by its id."""
    row = await db.fetch_one(f"{_SELECT} WHERE a.org_id = $1 AND a.id = $2", call.actor.org_id, id)
    if row is None:
        raise NotFound(f"There is no attachment {id[:100]!r}.", remedy=_MISSING_REMEDY)
    call.record_access("attachment", id)
    return _attachment_from_row(row)


async def find(db: Reader, org_id: str, *, limit: int, offset: int) -> list[Attachment]:
    """A page of an organisation's attachments, oldest first."""
    sql = f"{_SELECT} WHERE a.org_id = $1 ORDER BY a.id LIMIT {limit:d} OFFSET {offset:d}"
    return [_attachment_from_row(row) for row in await db.fetch(sql, org_id)]


async def get_many(db: Reader, org_id: str, ids: Sequence[str]) -> dict[str, Attachment]:
    """The existing attachments of an organisation with these ids, by id."""
    if not ids:
        return {}
    rows = await db.fetch(f"{_SELECT} WHERE a.org_id = $1 AND a.id IN ({placeholders(len(ids), 2)})", org_id, *ids)
    return {row["id"]: _attachment_from_row(row) for row in rows}


async def of(db: Reader, org_id: str, entity_id: str) -> list[Attachment]:
    """The attachments of an entity."""
    sql = f"{_SELECT} JOIN attached t ON t.attachment_id = a.id WHERE a.org_id = $1 AND t.entity_id = $2 ORDER BY a.id"
    return [_attachment_from_row(row) for row in await db.fetch(sql, org_id, entity_id)]


async def entity_ids_of(db: Reader, org_id: str, id: str) -> list[str]:
    """The ids of the entities that an attachment is linked to."""
    rows = await db.fetch(
        "SELECT t.entity_id FROM attached t JOIN entities e ON e.id = t.entity_id"
        " WHERE t.attachment_id = $2 AND e.org_id = $1 ORDER BY t.entity_id",
        org_id,
        id,
    )
    return [row["entity_id"] for row in rows]


async def link(
    tx: Transaction,
    call: Call,
    entity_id: str,
    *,
    id: str | None = None,
    url: str | None = None,
    is_linked: bool = True,
) -> Attachment:
    """Link an attachment to an entity by id or URL, or unlink it. Linking an unknown URL adds an attachment for it."""
    await access.require_write(tx, call)
    org_id = call.actor.org_id
    if (id is None) == (url is None):
        raise BadRequest(
            "An attachment is named by its id or its URL.", remedy="Give either attachmentId or attachmentUrl."
        )
    if await entities.get_or_none(tx, org_id, entity_id) is None:
        raise entities.missing(entity_id)
    attachment = (
        await get(tx, call, id) if id is not None else await _get_by_url(tx, call, url or "", add_new=is_linked)
    )
    if is_linked:
        await attach(tx, [(entity_id, attachment.id)])
    else:
        await tx.execute("DELETE FROM attached WHERE entity_id = $1 AND attachment_id = $2", entity_id, attachment.id)
    call.record_access("entity", entity_id)
    return attachment


async def attach(tx: Transaction, pairs: Iterable[tuple[str, str]]) -> None:
    """Link attachments to entities, from pairs of entity id and attachment id."""
    await tx.execute_many(
        "INSERT INTO attached (entity_id, attachment_id) VALUES ($1, $2) ON CONFLICT DO NOTHING", list(pairs)
    )


async def attached_urls(db: Reader, org_id: str, entity_ids: Sequence[str]) -> set[tuple[str, str]]:
    """The links of some entities, as pairs of entity id and attachment URL."""
    rows = await db.fetch(
        "SELECT t.entity_id, a.url FROM attached t JOIN attachments a ON a.id = t.attachment_id"  # noqa: S608 - parameter numbers
        f" WHERE a.org_id = $1 AND t.entity_id IN ({placeholders(len(entity_ids), 2)})",
        org_id,
        *entity_ids,
    )
    return {(row["entity_id"], row["url"]) for row in rows}


async def find_by_url(db: Reader, org_id: str, url: str) -> Attachment | None:
    """The oldest attachment of an organisation with this URL, or None."""
    row = await db.fetch_one(f"{_SELECT} WHERE a.org_id = $1 AND a.url = $2 ORDER BY a.id LIMIT 1", org_id, url)
    return None if row is None else _attachment_from_row(row)


async def find_by_urls(db: Reader, org_id: str, urls: Sequence[str]) -> dict[str, Attachment]:
    """The oldest attachment of an organisation with each of these URLs, by URL."""
    if not urls:
        return {}
    sql = f"{_SELECT} WHERE a.org_id = $1 AND a.url IN ({placeholders(len(urls), 2)}) ORDER BY a.id DESC"
    return {row["url"]: _attachment_from_row(row) for row in await db.fetch(sql, org_id, *urls)}


async def remove(tx: Transaction, call: Call, id: str) -> None:
    """Remove an attachment and its links to entities."""
    await access.require_write(tx, call)
    if not await tx.execute("DELETE FROM attachments WHERE id = $1 AND org_id = $2", id, call.actor.org_id):
        raise NotFound(f"There is no attachment {id[:100]!r}.", remedy=_MISSING_REMEDY)
    await sources.remove(tx, entity_index.IMAGE, [id])
    call.record_access("attachment", id)


async def _get_by_url(tx: Transaction, call: Call, url: str, *, add_new: bool) -> Attachment:
    attachment = await find_by_url(tx, call.actor.org_id, url)
    if attachment is None and add_new:
        name = urlsplit(url).path.rsplit("/", 1)[-1] or url
        return await add(tx, call, AttachmentDraft(name=name[: vocabulary.MAX_NAME_CHARS], url=url, annotations={}))
    if attachment is None:
        raise NotFound("There is no attachment with this URL.", remedy=_MISSING_REMEDY)
    return attachment


async def _index(tx: Transaction, attachment: Attachment) -> None:
    """Index an image for search. Other attachments are not searched."""
    if not attachment.media_type.startswith(_IMAGE_PREFIX):
        return
    texts = (attachment.description, attachment.text)
    passages = entity_text.entity_passages(texts, attachment.annotations, "")
    source = Source(
        org_id=attachment.org_id,
        collection=entity_index.image_collection(attachment.org_id),
        kind=entity_index.IMAGE,
        object_id=attachment.id,
        title=attachment.name,
        created_at=attachment.created_at,
        updated_at=attachment.updated_at,
        metadata={**attachment.annotations, "type": attachment.type_key, "url": attachment.url},
        media=attachment.media_type,
    )
    await passage_store.replace(tx, source, passage_store.analyse(attachment.name, passages))


def _media_type(url: str, type_key: str) -> str:
    guessed = mimetypes.guess_type(urlsplit(url).path)[0] or ""
    return "image/*" if type_key.lower() in _IMAGE_TYPE_KEYS and not guessed.startswith(_IMAGE_PREFIX) else guessed


def _attachment_from_row(row: Row) -> Attachment:
    return from_row(Attachment, row, annotations=orjson.loads(row["annotations"]))
