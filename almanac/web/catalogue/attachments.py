"""Attachments over REST: uploaded as a form or as base64, or named by a URL, and sent back to whoever may read them."""

import re
from pathlib import PurePosixPath
from typing import Annotated, Any

from pydantic import Field

from almanac.catalogue import access, attachments, contract_json, entities, ids, vocabulary
from almanac.catalogue.attachments import Attachment, AttachmentDraft, UploadedFile
from almanac.core.arguments import Arguments
from almanac.core.database import Transaction
from almanac.core.errors import BadRequest
from almanac.knowledge import downloads, files
from almanac.knowledge.downloads import FileUnavailable
from almanac.knowledge.files import IncomingFile, StoredFile
from almanac.knowledge.ingest import uploads
from almanac.knowledge.parsers import file_types
from almanac.operations.context import RequestContext, Upload
from almanac.operations.pipeline.file_answer import FileAnswer
from almanac.web.catalogue.models import IdPath
from almanac.web.rest import parse

FILE_PATH = "/knowledge-base/attachments/{id}/file"

_DATA_URL = re.compile(r"data:([\w.+/-]*)(?:;[\w.+=/-]*)*;base64,", re.ASCII | re.IGNORECASE)
_MEDIA_TYPE = re.compile(r"[a-z0-9][a-z0-9.+-]{0,60}/[a-z0-9][a-z0-9.+-]{0,100}", re.ASCII)
_UNKNOWN_TYPE = "application/octet-stream"


class AttachmentFields(Arguments):
    """What is said of an attachment that is made."""

    name: Annotated[vocabulary.Name | None, Field(description="Unless given, the file's own.")] = None
    filename: Annotated[vocabulary.Name | None, Field(description="The same, as JSON has called it.")] = None
    description: vocabulary.Text = ""
    annotations: Annotated[entities.Metadata, Field(default_factory=dict[str, Any])]
    type: Annotated[str | None, Field(max_length=100, description="Key or id of an attachment type.")] = None
    entities: Annotated[list[str], Field(max_length=1000, default_factory=list[str], description="To attach it to.")]
    contentType: Annotated[
        str | None, Field(max_length=200, description="Of a file that does not show it by itself.")
    ] = None
    folder: Annotated[str | None, Field(max_length=500, description="Taken and not needed: content has its own.")] = (
        None
    )


class NewAttachment(AttachmentFields):
    """An attachment to be made, of a file or of what is at a URL."""

    file: Annotated[str | None, Field(description="Base64, or a data URL.")] = None
    url: Annotated[attachments.Url | None, Field(description="Where it is; it is not fetched.")] = None


async def add_attachment(ctx: RequestContext, _: Any, given: NewAttachment) -> dict[str, Any]:
    """Create an attachment from a form with a file, or from JSON."""
    await access.require_write(ctx.db, ctx)  # before anything is stored for a caller who may not write
    made = await (_store_upload(ctx, ctx.upload) if ctx.upload is not None else _store_json(ctx, given))
    return {"success": True, "attachment": await contract_json.attachment(ctx, made)}


async def open_file(ctx: RequestContext, place: IdPath, _: Any) -> FileAnswer:
    """The file of an attachment that was uploaded, or the ranges of it that were asked for."""
    found = await attachments.get(ctx.db, ctx, place.id)
    if found.file_name is None or found.file_hash is None:
        raise FileUnavailable("This attachment is elsewhere.", remedy="It is at its url.")
    path = ctx.app.files.path(found.file_name)
    disposition = "inline" if found.media_type in downloads.PREVIEWABLE else "attachment"
    headers = downloads.headers_of(found.name, disposition, found.file_hash)
    state = await downloads.state_of(path)
    return FileAnswer(path, found.media_type or _UNKNOWN_TYPE, headers, state)


async def _store_upload(ctx: RequestContext, upload: Upload) -> Attachment:
    async with ctx.app.files.receive(ctx.db) as incoming:
        about = parse(AttachmentFields, await upload.write_to(ctx, incoming))
        return await _finish_upload(ctx, about, incoming, upload.file_name)


async def _store_json(ctx: RequestContext, given: NewAttachment) -> Attachment:
    if (given.file is None) == (given.url is None):
        raise BadRequest("An attachment is a file or a URL.", remedy="Send one of: file, url.")
    if given.file is None:
        url = given.url or ""
        name = given.name or given.filename or _short_name(PurePosixPath(url.partition("?")[0]).name or url)
        return await ctx.db.write(lambda tx: _attach(tx, ctx, _draft(given, name, url), given.entities))
    kind = _DATA_URL.match(given.file)
    content = uploads.decode(given.file[kind.end() :] if kind else given.file)
    given = given.model_copy(update={"contentType": given.contentType or (kind[1] if kind else None)})
    async with ctx.app.files.receive(ctx.db) as incoming:
        await incoming.write(content)
        return await _finish_upload(ctx, given, incoming, "")


async def _finish_upload(
    ctx: RequestContext, about: AttachmentFields, incoming: IncomingFile, file_name: str
) -> Attachment:
    """Store what has come in, and make it an attachment: all of it or nothing."""
    stored = await incoming.finish()
    id = ids.new()
    name = about.name or about.filename or _short_name(file_name) or id
    media_type = _media_type(stored, name, about.contentType)
    paper = _draft(about, name, ctx.app.settings.url + FILE_PATH.format(id=id))

    async def write(tx: Transaction) -> Attachment:
        file = UploadedFile(await files.ensure_blob(tx, stored), stored.size, media_type)
        return await _attach(tx, ctx, paper, about.entities, file, id)

    return await ctx.db.write(write)


async def _attach(
    tx: Transaction,
    ctx: RequestContext,
    paper: AttachmentDraft,
    entity_ids: list[str],
    file: UploadedFile | None = None,
    id: str | None = None,
) -> Attachment:
    made = await attachments.add(tx, ctx, paper, file, id=id)
    for entity_id in dict.fromkeys(entity_ids):
        await attachments.link(tx, ctx, entity_id, id=made.id)
    return made


def _short_name(name: str) -> str:
    """A name that nobody gave as one."""
    return name[: vocabulary.MAX_NAME_CHARS]


def _draft(about: AttachmentFields, name: str, url: str) -> AttachmentDraft:
    said = about.model_dump(include={"description", "annotations", "type"})
    return parse(AttachmentDraft, {"name": name, "url": url, **said})


def _media_type(stored: StoredFile, name: str, said: str | None) -> str:
    """What a file shows that it is; what is said of it counts only where it shows nothing."""
    shown = file_types.detect_file_type(stored.head, name).mime_type
    said = (said or "").partition(";")[0].strip().lower()
    return said if shown == _UNKNOWN_TYPE and _MEDIA_TYPE.fullmatch(said) else shown
