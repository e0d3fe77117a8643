"""The arguments of external callers, checked in the order and with the messages of the seed's document.

Types are strict: True, "10" and 10.0 are not integers. An error names the first argument that is wrong.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, cast

from almanac.core.arguments import MAX_ID
from almanac.core.errors import BadRequest
from almanac.knowledge import bases, document_text, downloads

MAX_BASES_LISTED = 100
MAX_NODES_LISTED = 500
MAX_OWNERS = 100
MAX_BASES_SEARCHED = 100
MAX_RESULTS = 50
MAX_QUERY_CHARS = 2000

RawArguments = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class BaseListArguments:
    """Arguments of `wegent_kb_list_knowledge_bases`."""

    scope: str
    group_name: str | None
    query: str | None
    owner_user_ids: tuple[int, ...]
    limit: int
    offset: int


@dataclass(frozen=True, slots=True)
class NodeListArguments:
    """Arguments of `wegent_kb_list_nodes`."""

    knowledge_base_id: int
    folder_id: int
    recursive: bool
    include_inactive: bool
    limit: int
    offset: int


@dataclass(frozen=True, slots=True)
class ContentArguments:
    """Arguments of `wegent_kb_get_document_content`."""

    document_id: int
    offset: int
    limit: int


@dataclass(frozen=True, slots=True)
class DownloadArguments:
    """Arguments of `wegent_kb_get_document_download`."""

    document_id: int
    disposition: str


@dataclass(frozen=True, slots=True)
class ContentSearchArguments:
    """Arguments of `wegent_kb_search_content`."""

    query: str
    knowledge_base_ids: tuple[int, ...]
    max_results: int


def parse_list_bases(raw: RawArguments) -> BaseListArguments:
    """Return the arguments of a base list."""
    _check_names(raw, BaseListArguments)
    scope = _string(raw, "scope", "all")
    group_name, query = _string(raw, "group_name", None), _string(raw, "query", None)
    owners = _owner_ids(raw.get("owner_user_ids"))
    limit, offset = _integer(raw, "limit", 50), _integer(raw, "offset", 0)
    _check_range("limit", limit, MAX_BASES_LISTED)
    _check_not_negative("offset", offset)
    if scope is None or scope.strip() not in bases.SCOPES:
        raise BadRequest("Invalid scope")
    group_name = (group_name or "").strip() or None
    if scope.strip() == "group" and group_name is None:
        raise BadRequest("group_name is required when scope is group")
    return BaseListArguments(scope.strip(), group_name, (query or "").strip() or None, owners, limit, _clamp(offset))


def parse_list_nodes(raw: RawArguments) -> NodeListArguments:
    """Return the arguments of a node list."""
    _check_names(raw, NodeListArguments)
    if "knowledge_base_id" not in raw:
        raise BadRequest("knowledge_base_id is required")
    base_id, folder_id = _integer(raw, "knowledge_base_id"), _integer(raw, "folder_id", 0)
    recursive, inactive = _boolean(raw, "recursive", False), _boolean(raw, "include_inactive", True)
    limit, offset = _integer(raw, "limit", 100), _integer(raw, "offset", 0)
    if base_id <= 0:
        raise BadRequest("knowledge_base_id is required")
    _check_not_negative("folder_id", folder_id)
    _check_range("limit", limit, MAX_NODES_LISTED)
    _check_not_negative("offset", offset)
    return NodeListArguments(_clamp(base_id), _clamp(folder_id), recursive, inactive, limit, _clamp(offset))


def parse_content(raw: RawArguments) -> ContentArguments:
    """Return the arguments of a read."""
    _check_names(raw, ContentArguments)
    document_id = _document_id(raw)
    offset, limit = _integer(raw, "offset", 0), _integer(raw, "limit", document_text.MAX_READ_CHARS)
    _check_not_negative("offset", offset)
    _check_range("limit", limit, document_text.MAX_READ_CHARS)
    return ContentArguments(document_id, min(offset, MAX_ID - limit), limit)


def parse_download(raw: RawArguments) -> DownloadArguments:
    """Return the arguments of a download."""
    _check_names(raw, DownloadArguments)
    document_id, disposition = _document_id(raw), raw.get("disposition", "inline")
    disposition = disposition.strip().lower() if isinstance(disposition, str) else ""
    if disposition not in downloads.DISPOSITIONS:
        raise BadRequest("disposition must be either inline or attachment")
    return DownloadArguments(document_id, disposition)


def parse_search(raw: RawArguments) -> ContentSearchArguments:
    """Return the arguments of a search."""
    _check_names(raw, ContentSearchArguments)
    query = raw.get("query")
    if not isinstance(query, str):
        raise BadRequest("query must be a string")
    if not query.strip():
        raise BadRequest("query must not be empty")
    if len(query.strip()) > MAX_QUERY_CHARS:
        raise BadRequest(f"query must be at most {MAX_QUERY_CHARS} characters")
    max_results = _integer(raw, "max_results", 10)
    _check_range("max_results", max_results, MAX_RESULTS)
    return ContentSearchArguments(query.strip(), _base_ids(raw.get("knowledge_base_ids")), max_results)


def _base_ids(ids: Any) -> tuple[int, ...]:
    if ids is None:
        raise BadRequest("knowledge_base_ids is required")
    if not isinstance(ids, list):
        raise BadRequest("knowledge_base_ids must be a list of integers")
    if any(type(id) is not int for id in cast("list[Any]", ids)):
        raise BadRequest("knowledge_base_ids must contain only integers")
    unique = tuple(dict.fromkeys(cast("list[int]", ids)))
    if not unique:
        raise BadRequest("knowledge_base_ids must not be empty")
    if len(unique) > MAX_BASES_SEARCHED:
        raise BadRequest(f"knowledge_base_ids must contain at most {MAX_BASES_SEARCHED} items")
    return unique


def _owner_ids(ids: Any) -> tuple[int, ...]:
    if ids is None:
        return ()
    if not isinstance(ids, list):
        raise BadRequest("owner_user_ids must be a list of integers")
    values = cast("list[Any]", ids)
    if len(values) > MAX_OWNERS:
        raise BadRequest(f"owner_user_ids must contain at most {MAX_OWNERS} items")
    if any(type(id) is not int for id in values):
        raise BadRequest("owner_user_ids must be a list of integers")
    return tuple(dict.fromkeys(_clamp(id) for id in values))


def _document_id(raw: RawArguments) -> int:
    document_id = _integer(raw, "document_id")
    if document_id <= 0:
        raise BadRequest("document_id must be a positive integer")
    return _clamp(document_id)


def _string(raw: RawArguments, name: str, default: str | None) -> str | None:
    value = raw.get(name, default)
    if not isinstance(value, str) and (value is not None or default is not None):
        raise BadRequest(f"{name} must be a string")
    return value


def _integer(raw: RawArguments, name: str, default: int | None = None) -> int:
    value = raw.get(name, default)
    if type(value) is not int:
        raise BadRequest(f"{name} must be an integer")
    return value


def _boolean(raw: RawArguments, name: str, default: bool) -> bool:
    value = raw.get(name, default)
    if type(value) is not bool:
        raise BadRequest(f"{name} must be a boolean")
    return value


def _check_range(name: str, value: int, maximum: int) -> None:
    if not 1 <= value <= maximum:
        raise BadRequest(f"{name} must be between 1 and {maximum}")


def _check_not_negative(name: str, value: int) -> None:
    if value < 0:
        raise BadRequest(f"{name} must be greater than or equal to 0")


def _check_names(raw: RawArguments, model: type[Any]) -> None:
    """Refuse unknown arguments: a caller must not believe that an ignored filter was applied."""
    for name in raw:
        if name not in model.__dataclass_fields__:
            raise BadRequest(f"Unknown argument: {name[:60]}")


def _clamp(number: int) -> int:
    """Return the nearest number that the databases can store. No id lies beyond it."""
    return max(-MAX_ID, min(number, MAX_ID))
