"""Downloads: a credential that is good for one document, for one user, for a few minutes.

It is a signed statement (a JWT) and no key to anything: whoever redeems it is checked again, as they are now.
"""

import asyncio
import os
import secrets
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

import jwt

from almanac.core import clock
from almanac.core.call import Actor, Call
from almanac.core.database import Reader
from almanac.core.errors import AlmanacError, BadRequest, Forbidden, NotFound, Unauthorized
from almanac.identity import tokens
from almanac.knowledge import documents
from almanac.knowledge.documents import Document
from almanac.knowledge.files import FileStore

DOWNLOAD_TOKEN_SECONDS = 300
HEADER = "X-Almanac-Download-Token"
TYPE = "external_knowledge_document_download"
DISPOSITIONS = ("inline", "attachment")

# What a browser shows without running anything of it.
PREVIEWABLE = frozenset(
    {"application/pdf", "image/jpeg", "image/png", "image/webp", "image/gif", "text/plain", "text/markdown", "text/csv"}
)
_ALGORITHM = "HS256"
_CLAIMS = ("exp", "type", "user_id", "document_id", "disposition", "token_id")


class NotPreviewable(AlmanacError):
    """Document file is not previewable."""

    code = "unsupported_media_type"
    status = 415
    remedy = "Ask for it with the disposition 'attachment'."


class FileUnavailable(NotFound):
    """Document file is unavailable."""

    code = "file_unavailable"


class Revoked(Forbidden):
    """Access denied to this document."""


class BadCredential(Unauthorized):
    """Invalid or expired download token."""

    remedy = "Ask for a new one; it is good for 300 s."


@dataclass(frozen=True, slots=True)
class DownloadToken:
    """Permission to fetch one file."""

    token: str
    document: Document
    disposition: str
    seconds: int

    @property
    def path(self) -> str:
        """Where it is redeemed."""
        return f"/api/v1/documents/{self.document.id}/file"


@dataclass(frozen=True, slots=True)
class Download:
    """A file to send."""

    path: Path
    document: Document
    disposition: str
    state: os.stat_result

    @property
    def headers(self) -> dict[str, str]:
        """What it is sent with."""
        return headers_of(self.document.name, self.disposition, self.document.blob_hash)


def headers_of(file_name: str, disposition: str, hash: str) -> dict[str, str]:
    """What a file is sent with, so that no browser runs anything of it."""
    name = quote(file_name, safe="")
    return {
        "content-disposition": f"{disposition}; filename=\"{name}\"; filename*=UTF-8''{name}",
        "x-content-type-options": "nosniff",
        "content-security-policy": "sandbox; default-src 'none'",
        "cache-control": "private, no-store",
        "etag": f'"{hash}"',
    }


def is_previewable(document: Document) -> bool:
    """Whether a browser may show it in place."""
    return document.mime_type in PREVIEWABLE


async def issue(
    call: Call, key: bytes, document_id: int, disposition: str = "inline", *, files: FileStore | None = None
) -> DownloadToken:
    """A credential for a document that the caller may read and whose file, if the store is given, is there."""
    disposition = disposition.strip().lower()
    if disposition not in DISPOSITIONS:
        raise BadRequest("disposition must be either inline or attachment")
    document = await documents.get(call.db, call, document_id)
    if disposition == "inline" and not is_previewable(document):
        raise NotPreviewable()
    if files is not None:
        await state_of(files.path(document.blob_name))
    claims = {
        "type": TYPE,
        "user_id": call.actor.id,
        "document_id": document_id,
        "disposition": disposition,
        "token_id": call.actor.token_id,
        "exp": clock.now() // clock.SECOND + DOWNLOAD_TOKEN_SECONDS,
        "jti": secrets.token_hex(8),
    }
    return DownloadToken(jwt.encode(claims, key, _ALGORITHM), document, disposition, DOWNLOAD_TOKEN_SECONDS)


async def token_holder(db: Reader, key: bytes, token: str, document_id: int) -> tuple[Actor, str]:
    """Whoever a credential for this document was given to, as they are now, and how they want it sent."""
    claims = _verified(key, token)
    if claims["document_id"] != document_id:
        raise BadCredential()
    actor = await tokens.actor_by_token_id(db, claims["user_id"], claims["token_id"])
    if actor is None:
        raise BadCredential()
    return actor, claims["disposition"]


async def open_with_token(call: Call, files: FileStore, document_id: int, disposition: str) -> Download:
    """As `open_file`, for whoever holds a credential: that the document exists is no secret to them."""
    try:
        return await open_file(call, files, document_id, disposition)
    except FileUnavailable:
        raise
    except (NotFound, Forbidden):
        if await documents.is_there(call, document_id):
            raise Revoked() from None
        raise NotFound("Document not found.") from None


async def open_file(call: Call, files: FileStore, document_id: int, disposition: str) -> Download:
    """The file of a document, if the caller may read it and wants it in a way it can be sent."""
    document = await documents.get(call.db, call, document_id)
    if disposition == "inline" and not is_previewable(document):
        raise NotPreviewable()  # it may have been replaced by something else since
    path = files.path(document.blob_name)
    return Download(path, document, disposition, await state_of(path))


async def state_of(path: Path) -> os.stat_result:
    """What the system knows of a stored file, if it is there."""
    try:
        return await asyncio.to_thread(os.stat, path)
    except FileNotFoundError:
        raise FileUnavailable() from None


def _verified(key: bytes, token: str) -> dict[str, Any]:
    try:
        claims: dict[str, Any] = jwt.decode(token, key, [_ALGORITHM], options={"require": list(_CLAIMS)})
    except (jwt.PyJWTError, UnicodeEncodeError):
        raise BadCredential() from None
    ids = (claims["user_id"], claims["document_id"], claims["token_id"])
    if claims["type"] != TYPE or any(type(id) is not int for id in ids) or claims["disposition"] not in DISPOSITIONS:
        raise BadCredential()
    return claims
