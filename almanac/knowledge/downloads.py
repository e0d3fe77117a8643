"""Download tokens: each permits one user to download the file of one document within a few minutes.

A download token is a signed JWT. When it is used, the current permissions of the user are checked again.
"""

import asyncio
import os
import secrets
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from urllib.parse import quote

import jwt

from almanac.core import clock
from almanac.core.call import Actor, Call
from almanac.core.database import Reader
from almanac.core.errors import AlmanacError, BadRequest, Forbidden, NotFound, Unauthorized
from almanac.files.file_store import FileStore
from almanac.identity import tokens
from almanac.knowledge import documents
from almanac.knowledge.documents import Document

DOWNLOAD_TOKEN_SECONDS = 300
DOWNLOAD_HEADER = "X-Almanac-Download-Token"
_CLAIM_TYPE = "external_knowledge_document_download"
DISPOSITIONS = ("inline", "attachment")

# Media types that a browser displays without running code of the file.
PREVIEWABLE = frozenset(
    {"application/pdf", "image/jpeg", "image/png", "image/webp", "image/gif", "text/plain", "text/markdown", "text/csv"}
)
_ALGORITHM = "HS256"
_CLAIMS = ("exp", "type", "user_id", "document_id", "disposition", "token_id")


class NotPreviewable(AlmanacError):
    """Document file is not previewable."""

    code = "unsupported_media_type"
    status = 415
    remedy = "Use the disposition 'attachment'."


class FileUnavailable(NotFound):
    """Document file is unavailable."""

    code = "file_unavailable"


class DownloadForbidden(Forbidden):
    """Access denied to this document."""


class BadCredential(Unauthorized):
    """Invalid or expired download token."""

    remedy = f"Request a new one; it is valid for {DOWNLOAD_TOKEN_SECONDS} s."


@dataclass(frozen=True, slots=True)
class DownloadToken:
    """A signed permission to download one file."""

    token: str
    document: Document
    disposition: str
    seconds: int

    @property
    def path(self) -> str:
        """The path of the download on this server."""
        return f"/api/v1/documents/{self.document.id}/file"


@dataclass(frozen=True, slots=True)
class Download:
    """A file to send, and how to send it."""

    path: Path
    document: Document
    disposition: str
    state: os.stat_result

    @property
    def headers(self) -> dict[str, str]:
        """The response headers of the file."""
        return headers_of(self.document.name, self.disposition, self.document.blob_hash)


def headers_of(file_name: str, disposition: str, hash: str) -> dict[str, str]:
    """The response headers of a file, which keep browsers from running code in it."""
    name = quote(file_name, safe="")
    return {
        "content-disposition": f"{disposition}; filename=\"{name}\"; filename*=UTF-8''{name}",
        "x-content-type-options": "nosniff",
        "content-security-policy": "sandbox; default-src 'none'",
        "cache-control": "private, no-store",
        "etag": f'"{hash}"',
    }


def is_previewable(document: Document) -> bool:
    """Whether a browser may display the file of a document."""
    return document.mime_type in PREVIEWABLE


async def issue(
    call: Call, key: bytes, document_id: int, disposition: str = "inline", *, files: FileStore | None = None
) -> DownloadToken:
    """A download token for a document that the caller may read. With `files`, the file must exist."""
    disposition = disposition.strip().lower()
    if disposition not in DISPOSITIONS:
        raise BadRequest("disposition must be either inline or attachment")
    document = await documents.get(call.db, call, document_id)
    if disposition == "inline" and not is_previewable(document):
        raise NotPreviewable()
    if files is not None:
        await file_state(files.path(document.blob_name))
    claims = {
        "type": _CLAIM_TYPE,
        "user_id": call.actor.id,
        "document_id": document_id,
        "disposition": disposition,
        "token_id": call.actor.token_id,
        "exp": clock.now() // clock.SECOND + DOWNLOAD_TOKEN_SECONDS,
        "jti": secrets.token_hex(8),
    }
    return DownloadToken(jwt.encode(claims, key, _ALGORITHM), document, disposition, DOWNLOAD_TOKEN_SECONDS)


async def token_holder(db: Reader, key: bytes, token: str, document_id: int) -> tuple[Actor, str]:
    """The actor to whom a download token for this document was issued, with current scopes, and the disposition."""
    claims = _decode(key, token)
    if claims["document_id"] != document_id:
        raise BadCredential()
    actor = await tokens.actor_by_token_id(db, claims["user_id"], claims["token_id"])
    if actor is None:
        raise BadCredential()
    # The token carries its own rights: a limit to some tools or to MCP on its holder's token does not apply.
    return replace(actor, tools=None, token_kind="download"), claims["disposition"]  # noqa: S106 - a kind


async def open_with_token(call: Call, files: FileStore, document_id: int, disposition: str) -> Download:
    """`open_file` for the holder of a download token, who may learn that the document exists."""
    try:
        return await open_file(call, files, document_id, disposition)
    except FileUnavailable:
        raise
    except (NotFound, Forbidden):
        if await documents.exists(call, document_id):
            raise DownloadForbidden() from None
        raise NotFound("Document not found.") from None


async def open_file(call: Call, files: FileStore, document_id: int, disposition: str) -> Download:
    """The file of a document that the caller may read, with a disposition that the file permits."""
    document = await documents.get(call.db, call, document_id)
    if disposition == "inline" and not is_previewable(document):
        raise NotPreviewable()  # the file may have been replaced after the token was issued
    path = files.path(document.blob_name)
    return Download(path, document, disposition, await file_state(path))


async def file_state(path: Path) -> os.stat_result:
    """The size and times of a stored file. FileUnavailable if the file is missing."""
    try:
        return await asyncio.to_thread(os.stat, path)
    except FileNotFoundError:
        raise FileUnavailable() from None


def _decode(key: bytes, token: str) -> dict[str, Any]:
    try:
        claims: dict[str, Any] = jwt.decode(token, key, [_ALGORITHM], options={"require": list(_CLAIMS)})
    except (jwt.PyJWTError, UnicodeEncodeError):
        raise BadCredential() from None
    ids = (claims["user_id"], claims["document_id"], claims["token_id"])
    if (
        claims["type"] != _CLAIM_TYPE
        or any(type(id) is not int for id in ids)
        or claims["disposition"] not in DISPOSITIONS
    ):
        raise BadCredential()
    return claims
