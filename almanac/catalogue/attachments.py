"""Attachments: what is at some URL, or was uploaded, and belongs to entities.

Pictures are found by what is said of them and, once a worker has read them, by what is written in them.
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
from almanac.jobs import queue
from almanac.search import passage_store
from almanac.search.sources import Source

IMAGE_TEXT_JOB = "picture"  # the job that reads what is written in a picture

_SELECT = """
SELECT a.*, v.key AS type_key, b.name AS file_name, b.hash AS file_hash FROM attachments a
LEFT JOIN vocabulary v ON v.id = a.type_id LEFT JOIN blobs b ON b.id = a.blob_id
"""
_INSERT = """
INSERT INTO attachments (id, org_id, name, url, description, annotations, type_id, media_type, blob_id, size,
    created_at, updated_at) VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $11)
"""
_PICTURES = frozenset(("image", "images", "picture", "photo"))
_IMAGE = "image/"


def _web(url: str) -> str:
    if urlsplit(url).scheme not in ("http", "https") or not urlsplit(url).netloc:
        raise ValueError("is not an http or https URL")
    return url


Url = Annotated[str, Field(max_length=2000), AfterValidator(_web)]


class AttachmentDraft(Arguments):
    """An attachment to be made."""

    name: vocabulary.Name
    url: Url
    description: vocabulary.Text = ""
    annotations: Annotated[entities.Metadata, Field(default_factory=dict[str, Any])]
    type: Annotated[str | None, Field(max_length=100, description="Key of an attachment type.")] = None


@dataclass(frozen=True, slots=True)
class UploadedFile:
    """Content that was uploaded and is in the file store."""

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
    size: int  # 0 of what is elsewhere
    text: str  # what is written in it, where it was read
    file_name: str | None  # in the file store; None of what is elsewhere
    file_hash: str | None
    created_at: int
    updated_at: int


async def add(
    tx: Transaction, call: Call, paper: AttachmentDraft, file: UploadedFile | None = None, *, id: str | None = None
) -> Attachment:
    """Make an attachment of what is at a URL, which is not fetched, or of a file that has come to be there."""
    await access.require_write(tx, call)
    org_id = call.actor.org_id
    term = await vocabulary.get_by_key(tx, org_id, "attachment", paper.type) if paper.type else None
    id = id or ids.new()
    await tx.execute(
        _INSERT,
        id,
        org_id,
        vocabulary.fit(paper.name, "name"),
        vocabulary.fit(paper.url, "url"),
        vocabulary.fit(paper.description, "description"),
        orjson.dumps(paper.annotations).decode(),
        term.id if term else None,
        file.media_type if file else _media_type(paper.url, term.key if term else ""),
        file.blob_id if file else None,
        file.size if file else 0,
        clock.now(),
    )
    made = await get(tx, call, id)
    await _shelve(tx, made)
    if file and file.media_type.startswith(_IMAGE):
        await queue.add(tx, IMAGE_TEXT_JOB, {"attachment": id}, key=f"{IMAGE_TEXT_JOB}:{id}")
    return made


async def note_text(tx: Transaction, id: str, text: str) -> None:
    """Let a picture be found by what is written in it, if it is still there."""
    await tx.execute("UPDATE attachments SET text = $2 WHERE id = $1", id, text)
    if (found := await get_or_none(tx, id)) is not None:
        await _shelve(tx, found)


async def get_or_none(db: Reader, id: str) -> Attachment | None:
    """An attachment of whichever organisation, for the job that was told of it."""
    row = await db.fetch_one(f"{_SELECT} WHERE a.id = $1", id)
    return None if row is None else _attachment(row)


async def get(db: Reader, call: Call, id: str) -> Attachment:
    """An attachment by its id."""
    row = await db.fetch_one(f"{_SELECT} WHERE a.org_id = $1 AND a.id = $2", call.actor.org_id, id)
    if row is None:
        raise NotFound(f"There is no attachment {id[:100]!r}.")
    call.record_access("attachment", id)
    return _attachment(row)


async def find(db: Reader, org_id: str, *, limit: int, offset: int) -> list[Attachment]:
    """An organisation's attachments, oldest first."""
    sql = f"{_SELECT} WHERE a.org_id = $1 ORDER BY a.id LIMIT {limit:d} OFFSET {offset:d}"
    return [_attachment(row) for row in await db.fetch(sql, org_id)]


async def get_many(db: Reader, org_id: str, wanted: Sequence[str]) -> dict[str, Attachment]:
    """Attachments by their ids, as many as are there."""
    if not wanted:
        return {}
    listed = ", ".join(f"${place + 2}" for place in range(len(wanted)))
    rows = await db.fetch(f"{_SELECT} WHERE a.org_id = $1 AND a.id IN ({listed})", org_id, *wanted)
    return {row["id"]: _attachment(row) for row in rows}


async def of(db: Reader, org_id: str, entity_id: str) -> list[Attachment]:
    """What is attached to an entity."""
    sql = f"{_SELECT} JOIN attached t ON t.attachment_id = a.id WHERE a.org_id = $1 AND t.entity_id = $2 ORDER BY a.id"
    return [_attachment(row) for row in await db.fetch(sql, org_id, entity_id)]


async def holders(db: Reader, org_id: str, id: str) -> list[str]:
    """The entities that something is attached to."""
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
    """Attach something to an entity, or detach it, by its id or its URL; a URL that is new becomes an attachment."""
    await access.require_write(tx, call)
    org_id = call.actor.org_id
    if (id is None) == (url is None):
        raise BadRequest("Give either attachmentId or attachmentUrl.")
    if await entities.by_id(tx, org_id, entity_id) is None:
        raise entities.missing(entity_id)
    found = await get(tx, call, id) if id is not None else await _at(tx, call, url or "", make=is_linked)
    if is_linked:
        await attach(tx, [(entity_id, found.id)])
    else:
        await tx.execute("DELETE FROM attached WHERE entity_id = $1 AND attachment_id = $2", entity_id, found.id)
    call.record_access("entity", entity_id)
    return found


async def attach(tx: Transaction, pairs: Iterable[tuple[str, str]]) -> None:
    """Attach things to entities, from pairs of the entity's id and theirs."""
    await tx.execute_many(
        "INSERT INTO attached (entity_id, attachment_id) VALUES ($1, $2) ON CONFLICT DO NOTHING", list(pairs)
    )


async def attached_urls(db: Reader, org_id: str, entity_ids: Sequence[str]) -> set[tuple[str, str]]:
    """What is attached to some entities: pairs of the entity's id and the URL."""
    listed = ", ".join(f"${place + 2}" for place in range(len(entity_ids)))
    rows = await db.fetch(
        "SELECT t.entity_id, a.url FROM attached t JOIN attachments a ON a.id = t.attachment_id"  # noqa: S608 - numbers
        f" WHERE a.org_id = $1 AND t.entity_id IN ({listed})",
        org_id,
        *entity_ids,
    )
    return {(row["entity_id"], row["url"]) for row in rows}


async def known_at(db: Reader, org_id: str, url: str) -> Attachment | None:
    """The attachment that is at a URL, if it is known."""
    row = await db.fetch_one(f"{_SELECT} WHERE a.org_id = $1 AND a.url = $2 ORDER BY a.id LIMIT 1", org_id, url)
    return None if row is None else _attachment(row)


async def remove(tx: Transaction, call: Call, id: str) -> None:
    """Remove an attachment from wherever it is attached."""
    await access.require_write(tx, call)
    if not await tx.execute("DELETE FROM attachments WHERE id = $1 AND org_id = $2", id, call.actor.org_id):
        raise NotFound(f"There is no attachment {id[:100]!r}.")
    await entity_index.remove(tx, entity_index.IMAGE, [id])
    call.record_access("attachment", id)


async def _at(tx: Transaction, call: Call, url: str, *, make: bool) -> Attachment:
    found = await known_at(tx, call.actor.org_id, url)
    if found is None and make:
        name = urlsplit(url).path.rsplit("/", 1)[-1] or url
        return await add(tx, call, AttachmentDraft(name=name[: vocabulary.LONGEST_NAME], url=url, annotations={}))
    if found is None:
        raise NotFound("There is no attachment with this URL.")
    return found


async def _shelve(tx: Transaction, paper: Attachment) -> None:
    """Let a picture be found by what is said of it."""
    if not paper.media_type.startswith(_IMAGE):
        return
    cut = entity_text.entity_passages((paper.description, paper.text), paper.annotations, "")
    source = Source(
        org_id=paper.org_id,
        collection=entity_index.image_collection(paper.org_id),
        kind=entity_index.IMAGE,
        object_id=paper.id,
        title=paper.name,
        created_at=paper.created_at,
        updated_at=paper.updated_at,
        metadata={**paper.annotations, "type": paper.type_key, "url": paper.url},
        media=paper.media_type,
    )
    await passage_store.replace(tx, source, passage_store.analyse(paper.name, cut))


def _media_type(url: str, type_key: str) -> str:
    guessed = mimetypes.guess_type(urlsplit(url).path)[0] or ""
    return "image/*" if type_key.lower() in _PICTURES and not guessed.startswith(_IMAGE) else guessed


def _attachment(row: Row) -> Attachment:
    return Attachment(
        id=row["id"],
        org_id=row["org_id"],
        name=row["name"],
        url=row["url"],
        description=row["description"],
        annotations=orjson.loads(row["annotations"]),
        type_key=row["type_key"],
        media_type=row["media_type"],
        size=row["size"],
        text=row["text"],
        file_name=row["file_name"],
        file_hash=row["file_hash"],
        created_at=row["created_at"],
        updated_at=row["updated_at"],
    )
