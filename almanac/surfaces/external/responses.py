"""The answers of the external surface, in the form of the seed's document: unknown values are null, never left out."""

import re
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, cast

import orjson

from almanac.core import clock
from almanac.core.errors import AlmanacError, Internal
from almanac.core.pages import Page
from almanac.knowledge import downloads
from almanac.knowledge.bases import KnowledgeBase
from almanac.knowledge.document_text import TextExcerpt
from almanac.knowledge.document_tree import DocumentBrief, FolderPage, FolderTree, Node
from almanac.knowledge.documents import Document
from almanac.knowledge.downloads import DownloadToken
from almanac.knowledge.folders import Folder
from almanac.surfaces.surface import Result, text_result

JsonObject = dict[str, Any]
Creators = Mapping[int, JsonObject | None]

TOKEN_HEADER = "X-Wegent-Download-Token"  # noqa: S105 - the name of the header
DEFAULT_MEDIA_TYPE = "application/octet-stream"

# The error codes of the document. Any other failure becomes internal_error, which callers cannot act upon.
ERROR_CODES = frozenset(
    {"bad_request", "unauthorized", "not_found", "forbidden", "file_unavailable", "unsupported_media_type",
     "rate_limited", "rate_limit_unavailable", "result_too_large", "internal_error"}
)  # fmt: skip

_REFERENCE = re.compile(r"(?:doc_)?0*([1-9][0-9]{0,18})", re.ASCII)


def render_result(value: Any) -> Result:
    """Return a tool's answer: one text of JSON."""
    return text_result(orjson.dumps(value, option=orjson.OPT_UTC_Z).decode())


def error_body(error: AlmanacError) -> JsonObject:
    """Return a failure of a tool with a code of the document."""
    error = error if error.code in ERROR_CODES else Internal()
    return _error_object(error)


def render_error(error: AlmanacError) -> Result:
    """Return a tool's failure. The document wants an ordinary answer, not one marked as an error of the protocol."""
    return render_result(error_body(error))


def http_error(error: AlmanacError) -> tuple[int, JsonObject]:
    """Return the status and body of a failure before a tool is reached. Codes outside the document are kept."""
    return error.status, _error_object(error)


def _error_object(error: AlmanacError) -> JsonObject:
    return {"error": error.message.removesuffix("."), "code": error.code}


def base_list(page: Page[KnowledgeBase], limit: int, org_name: str, creators: Creators) -> JsonObject:
    """Return a page of knowledge bases."""
    return {
        "total": page.total,
        "total_returned": len(page.items),
        "has_more": page.has_more,
        "limit": limit,
        "offset": page.offset,
        "items": [_base(base, org_name, creators) for base in page.items],
    }


def node_list(listed: FolderPage | FolderTree, creators: Creators) -> JsonObject:
    """Return the nodes of a folder or of its whole subtree."""
    is_tree = isinstance(listed, FolderTree)
    return {
        "knowledge_base_id": listed.base.id,
        "knowledge_base_name": listed.base.name,
        "folder_id": listed.folder_id,
        "recursive": is_tree,
        "total_returned": listed.count if is_tree else len(listed.nodes),
        "total_available": listed.count if is_tree else listed.total,
        "has_more": not is_tree and listed.has_more,
        "items": _nodes(listed.nodes, creators),
        "warnings": listed.warnings if is_tree else [],
    }


def content(excerpt: TextExcerpt) -> JsonObject:
    """Return a part of a document's text."""
    document = excerpt.document
    return {
        "document_id": document.id,
        "node_id": f"document:{document.id}",
        "knowledge_base_id": document.base_id,
        "name": document.name,
        "content": excerpt.text,
        "content_format": "text",
        "content_source": "parsed_attachment",
        "content_available": excerpt.total > 0,
        "offset": excerpt.offset,
        "returned_length": len(excerpt.text),
        "total_length": excerpt.total,
        "has_more": excerpt.has_more,
        "index_status": document.index_status,
    }


def download(token: DownloadToken, mount: str) -> JsonObject:
    """Return the address of a file and the token that opens it."""
    document = token.document
    return {
        "document_id": document.id,
        "node_id": f"document:{document.id}",
        "knowledge_base_id": document.base_id,
        "resource_url": f"{mount}/documents/{document.id}/file",
        "headers": {TOKEN_HEADER: token.token},
        "expiration_seconds": token.seconds,
        "disposition": token.disposition,
        "mime_type": document.mime_type or DEFAULT_MEDIA_TYPE,
        "file_name": document.name,
        "file_extension": document.extension,
        "file_size": document.size,
        "downloadable": True,
        "previewable": downloads.is_previewable(document),
    }


def record(result: JsonObject, base_names: Mapping[int, str]) -> JsonObject:
    """Return a search result, from the form of a knowledge runtime."""
    base_id = result.get("knowledge_base_id")
    return {
        "content": result["content"],
        "title": result["title"],
        "score": result.get("score"),
        "knowledge_base_id": base_id,
        "knowledge_base_name": base_names.get(base_id) if base_id is not None else None,
        "document_id": document_id(result),
    }


def document_id(result: JsonObject) -> int | None:
    """Return the document id of a result: the first valid one of the four fields that may contain it."""
    value = result.get("metadata")
    metadata = cast("JsonObject", value) if isinstance(value, dict) else {}
    values = (result.get("document_id"), metadata.get("document_id"), result.get("doc_ref"), metadata.get("doc_ref"))
    return next((id for value in values if (id := _parse_document_id(value)) is not None), None)


def _parse_document_id(value: Any) -> int | None:
    if type(value) is int:
        return value if value > 0 else None
    match = _REFERENCE.fullmatch(value) if isinstance(value, str) else None
    return int(match[1]) if match else None


def _base(base: KnowledgeBase, org_name: str, creators: Creators) -> JsonObject:
    space = {
        "personal": ("default", "personal"),
        "group": (base.group_name, base.group_display or base.group_name),
        "organization": (org_name, org_name),
    }
    namespace, display = space[base.level]
    return {
        "knowledge_base_id": base.id,
        "knowledge_base_name": base.name,
        "description": base.description or None,
        "namespace": namespace,
        "namespace_level": base.level,
        "namespace_display_name": display,
        "owner_user_id": base.owner_id,
        "creator": creators.get(base.owner_id),
        "document_count": base.documents,
        "created_at": _timestamp(base.created_at),
        "updated_at": _timestamp(base.updated_at),
    }


def _nodes(nodes: Sequence[Node], creators: Creators) -> list[JsonObject]:
    """Return nodes with their descendants. There is no recursion, because a tree may have a hundred levels."""
    top: list[JsonObject] = []
    pending = [(nodes, top)]
    while pending:
        siblings, entries = pending.pop()
        for node in siblings:
            entry = _node(node, creators)
            entries.append(entry)
            if node.children:
                pending.append((node.children, entry["children"]))
    return top


def _node(node: Node, creators: Creators) -> JsonObject:
    item = node.item
    is_folder = isinstance(item, Folder)
    kind = "folder" if is_folder else "document"
    return {
        "node_id": f"{kind}:{item.id}",
        "raw_id": item.id,
        "name": item.name,
        "node_type": kind,
        "parent_id": item.parent_id if is_folder else item.folder_id,
        "has_children": is_folder and node.has_children,
        "children": [],
        **(_NO_DOCUMENT if is_folder else _document_fields(item, creators)),
        "created_at": _timestamp(item.created_at),
        "updated_at": _timestamp(item.updated_at),
        "orphan": node.is_orphan,
    }


def _document_fields(document: Document | DocumentBrief, creators: Creators) -> JsonObject:
    return {
        "source_type": document.source_type,
        "index_status": document.index_status,
        "file_extension": document.extension,
        "content_readable": bool(document.characters),
        "downloadable": True,
        "previewable": document.mime_type in downloads.PREVIEWABLE,
        "mime_type": document.mime_type,
        "file_size": document.size,
        "creator": creators.get(document.creator_id),
    }


_NO_DOCUMENT: JsonObject = {
    "source_type": None,
    "index_status": None,
    "file_extension": None,
    "content_readable": False,
    "downloadable": False,
    "previewable": False,
    "mime_type": None,
    "file_size": None,
    "creator": None,
}


def _timestamp(at: int) -> datetime:
    return datetime.fromtimestamp(at / clock.SECOND, UTC)
