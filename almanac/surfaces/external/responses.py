"""What external callers are told, field by field as their document has it: what is unknown is null, never left out."""

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
from almanac.knowledge.document_tree import FolderPage, FolderTree, Node
from almanac.knowledge.downloads import DownloadToken
from almanac.knowledge.folders import Folder
from almanac.surfaces.surface import Result

JsonObject = dict[str, Any]
Creators = Mapping[int, JsonObject | None]

TOKEN_HEADER = "X-Wegent-Download-Token"  # noqa: S105 - its name
OCTETS = "application/octet-stream"

# The codes that callers know. Any other failure is one they cannot do anything about.
CODES = frozenset(
    {"bad_request", "unauthorized", "not_found", "forbidden", "file_unavailable", "unsupported_media_type",
     "rate_limited", "rate_limit_unavailable", "result_too_large", "internal_error"}
)  # fmt: skip

_REFERENCE = re.compile(r"(?:doc_)?0*([1-9][0-9]{0,18})", re.ASCII)


def as_text(value: Any) -> Result:
    """A tool's answer: one text that is JSON."""
    text = orjson.dumps(value, option=orjson.OPT_UTC_Z).decode()
    return {"content": [{"type": "text", "text": text}], "isError": False}


def refusal(error: AlmanacError) -> JsonObject:
    """A failure, as it is told anywhere on this surface."""
    known = error if error.code in CODES else Internal()
    return {"error": known.message.removesuffix("."), "code": known.code}


def as_error(error: AlmanacError) -> Result:
    """A tool's failure: by this document an answer like any other, not marked as an error of the protocol."""
    return as_text(refusal(error))


def http_error(error: AlmanacError) -> tuple[int, JsonObject]:
    """A failure before any tool is reached. What the document knows no code for keeps its own."""
    return error.status, {"error": error.message.removesuffix("."), "code": error.code}


def base_list(page: Page[KnowledgeBase], limit: int, org_name: str, creators: Creators) -> JsonObject:
    """A page of knowledge bases."""
    return {
        "total": page.total,
        "total_returned": len(page.items),
        "has_more": page.has_more,
        "limit": limit,
        "offset": page.offset,
        "items": [_base(base, org_name, creators) for base in page.items],
    }


def node_list(listed: FolderPage | FolderTree, creators: Creators) -> JsonObject:
    """The nodes of a folder, or of all below it."""
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
    """Some of a document's text."""
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


def download(credential: DownloadToken, mount: str) -> JsonObject:
    """Where a file can be fetched, and with what."""
    document = credential.document
    return {
        "document_id": document.id,
        "node_id": f"document:{document.id}",
        "knowledge_base_id": document.base_id,
        "resource_url": f"{mount}/documents/{document.id}/file",
        "headers": {TOKEN_HEADER: credential.token},
        "expiration_seconds": credential.seconds,
        "disposition": credential.disposition,
        "mime_type": document.mime_type or OCTETS,
        "file_name": document.name,
        "file_extension": document.extension,
        "file_size": document.size,
        "downloadable": True,
        "previewable": downloads.is_previewable(document),
    }


def record(found: JsonObject, names: Mapping[int, str]) -> JsonObject:
    """Something that was found, from the form a knowledge runtime gives it."""
    base_id = found.get("knowledge_base_id")
    return {
        "content": found["content"],
        "title": found["title"],
        "score": found.get("score"),
        "knowledge_base_id": base_id,
        "knowledge_base_name": names.get(base_id) if base_id is not None else None,
        "document_id": document_id(found),
    }


def document_id(found: JsonObject) -> int | None:
    """The document a record is of, from the first of the four places that names one."""
    metadata = found.get("metadata")
    beside = cast("JsonObject", metadata) if isinstance(metadata, dict) else {}
    named = (found.get("document_id"), beside.get("document_id"), found.get("doc_ref"), beside.get("doc_ref"))
    return next((number for each in named if (number := _number(each)) is not None), None)


def _number(given: Any) -> int | None:
    if type(given) is int:
        return given if given > 0 else None
    match = _REFERENCE.fullmatch(given) if isinstance(given, str) else None
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
        "created_at": _moment(base.created_at),
        "updated_at": _moment(base.updated_at),
    }


def _nodes(nodes: Sequence[Node], creators: Creators) -> list[JsonObject]:
    """Nodes with all that is below them, without recursion: a tree may be a hundred deep."""
    top: list[JsonObject] = []
    waiting = [(nodes, top)]
    while waiting:
        siblings, told = waiting.pop()
        for node in siblings:
            entry = _node(node, creators)
            told.append(entry)
            if node.children:
                waiting.append((node.children, entry["children"]))
    return top


def _node(node: Node, creators: Creators) -> JsonObject:
    item = node.item
    if isinstance(item, Folder):
        return {
            "node_id": f"folder:{item.id}",
            "raw_id": item.id,
            "name": item.name,
            "node_type": "folder",
            "parent_id": item.parent_id,
            "has_children": node.has_children,
            "children": [],
            **_NO_DOCUMENT,
            "created_at": _moment(item.created_at),
            "updated_at": _moment(item.updated_at),
            "orphan": node.is_orphan,
        }
    return {
        "node_id": f"document:{item.id}",
        "raw_id": item.id,
        "name": item.name,
        "node_type": "document",
        "parent_id": item.folder_id,
        "has_children": False,
        "children": [],
        "source_type": item.source_type,
        "index_status": item.index_status,
        "file_extension": item.extension,
        "content_readable": bool(item.characters),
        "downloadable": True,
        "previewable": item.mime_type in downloads.PREVIEWABLE,
        "mime_type": item.mime_type,
        "file_size": item.size,
        "creator": creators.get(item.creator_id),
        "created_at": _moment(item.created_at),
        "updated_at": _moment(item.updated_at),
        "orphan": node.is_orphan,
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


def _moment(moment: int) -> datetime:
    return datetime.fromtimestamp(moment / clock.SECOND, UTC)
