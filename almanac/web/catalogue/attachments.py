"""The REST operations that store attachments, from a form, base64 or a URL, and send their files."""

import re
from pathlib import PurePosixPath
from typing import Annotated, Any

from pydantic import Field

from almanac.catalogue import access, attachments, contract_json, entities, ids, vocabulary
from almanac.catalogue.attachments import Attachment, AttachmentDraft, UploadedFile
from almanac.core.arguments import Arguments
from almanac.core.database import Transaction
from almanac.core.errors import BadRequest
from almanac.files import blobs
from almanac.files.blobs import StoredFile
from almanac.files.encoded import decode_base64
from almanac.files.file_store import IncomingFile
from almanac.knowledge import downloads
from almanac.knowledge.downloads import FileUnavailable
from almanac.knowledge.parsers import file_types
from almanac.operations.context import RequestContext, Upload
from almanac.operations.operation import parse_arguments
from almanac.operations.pipeline.file_answer import FileAnswer
from almanac.web.catalogue.models import IdPath

FILE_PATH = "/knowledge-base/attachments/{id}/file"

_DATA_URL = re.compile(r"data:([\w.+/-]*)(?:;[\w.+=/-]*)*;base64,", re.ASCII | re.IGNORECASE)
_MEDIA_TYPE = re.compile(r"[a-z0-9][a-z0-9.+-]{0,60}/[a-z0-9][a-z0-9.+-]{0,100}", re.ASCII)
_UNKNOWN_TYPE = "application/octet-stream"


class AttachmentFields(Arguments):
    """The fields of a new attachment beside its file."""

    name: Annotated[vocabulary.Name | None, Field(description="Default: the name of the file.")] = None
    filename: Annotated[vocabulary.Name | None, Field(description="Another name of the field `name`.")] = None
    description: vocabulary.Text = ""
    annotations: Annotated[
        entities.Metadata, Field(default_factory=dict[str, Any], description="Names and values that describe it.")
    ]
    type: Annotated[str | None, Field(max_length=100, description="Key or id of an attachment type.")] = None
    entities: Annotated[list[str], Field(max_length=1000, default_factory=list[str], description="Entity ids.")]
    contentType: Annotated[
        str | None, Field(max_length=200, description="Used if the file's content does not show its type.")
    ] = None
    folder: Annotated[str | None, Field(max_length=500, description="Accepted and ignored.")] = None


class NewAttachment(AttachmentFields):
    """A new attachment, from a file or a URL."""

    file: Annotated[str | None, Field(description="Base64, or a data URL.")] = None
    url: Annotated[attachments.Url | None, Field(description="The address of the content; it is not fetched.")] = None


async def add_attachment(ctx: RequestContext, _: Any, body: NewAttachment) -> dict[str, Any]:
    """Create an attachment from a file or a URL."""
    await access.require_write(ctx.db, ctx)  # otherwise the upload would be stored first
    attachment = await (_store_upload(ctx, ctx.upload) if ctx.upload is not None else _store_json(ctx, body))
    return {"success": True, "attachment": await contract_json.attachment(ctx, attachment)}


async def get_attachment_file(ctx: RequestContext, path_parameters: IdPath, _: Any) -> FileAnswer:
    """The file of an attachment that was uploaded; whole or in ranges."""
    attachment = await attachments.get(ctx.db, ctx, path_parameters.id)
    if attachment.file_name is None or attachment.file_hash is None:
        raise FileUnavailable("This attachment has no file here.", remedy="Its content is at its url.")
    path = ctx.app.files.path(attachment.file_name)
    disposition = "inline" if attachment.media_type in downloads.PREVIEWABLE else "attachment"
    headers = downloads.headers_of(attachment.name, disposition, attachment.file_hash)
    state = await downloads.file_state(path)
    return FileAnswer(path, attachment.media_type or _UNKNOWN_TYPE, headers, state)


async def _store_upload(ctx: RequestContext, upload: Upload) -> Attachment:
    async with ctx.app.files.receive(ctx.db) as incoming:
        fields = parse_arguments(AttachmentFields, await upload.write_to(ctx, incoming))
        return await _finish_upload(ctx, fields, incoming, upload.file_name)


async def _store_json(ctx: RequestContext, body: NewAttachment) -> Attachment:
    if (body.file is None) == (body.url is None):
        raise BadRequest("An attachment is a file or a URL.", remedy="Send one of: file, url.")
    if body.file is None:
        url = body.url or ""
        name = body.name or body.filename or _short_name(PurePosixPath(url.partition("?")[0]).name or url)
        return await ctx.db.write(lambda tx: _attach(tx, ctx, _draft(body, name, url), body.entities))
    data_url = _DATA_URL.match(body.file)
    content = decode_base64(body.file[data_url.end() :] if data_url else body.file)
    body = body.model_copy(update={"contentType": body.contentType or (data_url[1] if data_url else None)})
    async with ctx.app.files.receive(ctx.db) as incoming:
        await incoming.write(content)
        return await _finish_upload(ctx, body, incoming, "")


async def _finish_upload(
    ctx: RequestContext, about: AttachmentFields, incoming: IncomingFile, file_name: str
) -> Attachment:
    """Store the received file and create its attachment, in one transaction."""
    stored = await incoming.finish()
    id = ids.new()
    name = about.name or about.filename or _short_name(file_name) or id
    media_type = _media_type(stored, name, about.contentType)
    draft = _draft(about, name, ctx.app.settings.url + FILE_PATH.format(id=id))

    async def write(tx: Transaction) -> Attachment:
        file = UploadedFile(await blobs.ensure(tx, stored), stored.size, media_type)
        return await _attach(tx, ctx, draft, about.entities, file, id)

    return await ctx.db.write(write)


async def _attach(
    tx: Transaction,
    ctx: RequestContext,
    draft: AttachmentDraft,
    entity_ids: list[str],
    file: UploadedFile | None = None,
    id: str | None = None,
) -> Attachment:
    attachment = await attachments.add(tx, ctx, draft, file, id=id)
    for entity_id in dict.fromkeys(entity_ids):
        await attachments.link(tx, ctx, entity_id, id=attachment.id)
    return attachment


def _short_name(name: str) -> str:
    """Return a name that was not body as one, such as a file name, cut to the maximum length."""
    return name[: vocabulary.MAX_NAME_CHARS]


def _draft(about: AttachmentFields, name: str, url: str) -> AttachmentDraft:
    fields = about.model_dump(include={"description", "annotations", "type"})
    return parse_arguments(AttachmentDraft, {"name": name, "url": url, **fields})


def _media_type(stored: StoredFile, name: str, declared: str | None) -> str:
    """Return the type that the content shows; the declared type counts only if the content shows none."""
    detected = file_types.detect_file_type(stored.head, name).mime_type
    declared = (declared or "").partition(";")[0].strip().lower()
    return declared if detected == _UNKNOWN_TYPE and _MEDIA_TYPE.fullmatch(declared) else detected
