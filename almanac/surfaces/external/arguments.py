"""What external callers send, checked in the order and with the messages that their document gives.

A type is exactly itself: True is no integer, and neither is "10" or 10.0. The first thing that is wrong is said.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, cast

from almanac.core.arguments import MAX_ID
from almanac.core.errors import BadRequest
from almanac.knowledge import bases, document_text, downloads

MOST_BASES_LISTED = 100
MOST_NODES_LISTED = 500
MOST_OWNERS = 100
MOST_BASES_SEARCHED = 100
MOST_RESULTS = 50
LONGEST_QUERY = 2000

Given = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class ListBases:
    """Arguments of `wegent_kb_list_knowledge_bases`."""

    scope: str
    group_name: str | None
    query: str | None
    owner_user_ids: tuple[int, ...]
    limit: int
    offset: int


@dataclass(frozen=True, slots=True)
class ListNodes:
    """Arguments of `wegent_kb_list_nodes`."""

    knowledge_base_id: int
    folder_id: int
    recursive: bool
    include_inactive: bool
    limit: int
    offset: int


@dataclass(frozen=True, slots=True)
class ReadContent:
    """Arguments of `wegent_kb_get_document_content`."""

    document_id: int
    offset: int
    limit: int


@dataclass(frozen=True, slots=True)
class AskDownload:
    """Arguments of `wegent_kb_get_document_download`."""

    document_id: int
    disposition: str


@dataclass(frozen=True, slots=True)
class SearchContent:
    """Arguments of `wegent_kb_search_content`."""

    query: str
    knowledge_base_ids: tuple[int, ...]
    max_results: int


def list_bases(given: Given) -> ListBases:
    """Which bases to list."""
    _check_names(given, ListBases)
    scope = _text(given, "scope", "all")
    group_name, query = _text(given, "group_name", None), _text(given, "query", None)
    owners = _owners(given.get("owner_user_ids"))
    limit, offset = _integer(given, "limit", 50), _integer(given, "offset", 0)
    _check_range("limit", limit, MOST_BASES_LISTED)
    _check_floor("offset", offset)
    if scope is None or scope.strip() not in bases.SCOPES:
        raise BadRequest("Invalid scope")
    group_name = (group_name or "").strip() or None
    if scope.strip() == "group" and group_name is None:
        raise BadRequest("group_name is required when scope is group")
    return ListBases(scope.strip(), group_name, (query or "").strip() or None, owners, limit, _held(offset))


def list_nodes(given: Given) -> ListNodes:
    """Which nodes to list."""
    _check_names(given, ListNodes)
    if "knowledge_base_id" not in given:
        raise BadRequest("knowledge_base_id is required")
    base_id, folder_id = _integer(given, "knowledge_base_id"), _integer(given, "folder_id", 0)
    recursive, inactive = _truth(given, "recursive", False), _truth(given, "include_inactive", True)
    limit, offset = _integer(given, "limit", 100), _integer(given, "offset", 0)
    if base_id <= 0:
        raise BadRequest("knowledge_base_id is required")
    _check_floor("folder_id", folder_id)
    _check_range("limit", limit, MOST_NODES_LISTED)
    _check_floor("offset", offset)
    return ListNodes(_held(base_id), _held(folder_id), recursive, inactive, limit, _held(offset))


def read_content(given: Given) -> ReadContent:
    """Which text to read."""
    _check_names(given, ReadContent)
    document_id = _document_id(given)
    offset, limit = _integer(given, "offset", 0), _integer(given, "limit", document_text.MAX_READ_CHARS)
    _check_floor("offset", offset)
    _check_range("limit", limit, document_text.MAX_READ_CHARS)
    return ReadContent(document_id, min(offset, MAX_ID - limit), limit)


def ask_download(given: Given) -> AskDownload:
    """Which file, and how it is to be sent."""
    _check_names(given, AskDownload)
    document_id, disposition = _document_id(given), given.get("disposition", "inline")
    disposition = disposition.strip().lower() if isinstance(disposition, str) else ""
    if disposition not in downloads.DISPOSITIONS:
        raise BadRequest("disposition must be either inline or attachment")
    return AskDownload(document_id, disposition)


def search_content(given: Given) -> SearchContent:
    """What to look for, and where."""
    _check_names(given, SearchContent)
    query = given.get("query")
    if not isinstance(query, str):
        raise BadRequest("query must be a string")
    if not query.strip():
        raise BadRequest("query must not be empty")
    if len(query.strip()) > LONGEST_QUERY:
        raise BadRequest(f"query must be at most {LONGEST_QUERY} characters")
    most = _integer(given, "max_results", 10)
    _check_range("max_results", most, MOST_RESULTS)
    return SearchContent(query.strip(), _searched(given.get("knowledge_base_ids")), most)


def _searched(ids: Any) -> tuple[int, ...]:
    if ids is None:
        raise BadRequest("knowledge_base_ids is required")
    if not isinstance(ids, list):
        raise BadRequest("knowledge_base_ids must be a list of integers")
    if any(type(id) is not int for id in cast("list[Any]", ids)):
        raise BadRequest("knowledge_base_ids must contain only integers")
    unique = tuple(dict.fromkeys(cast("list[int]", ids)))
    if not unique:
        raise BadRequest("knowledge_base_ids must not be empty")
    if len(unique) > MOST_BASES_SEARCHED:
        raise BadRequest(f"knowledge_base_ids must contain at most {MOST_BASES_SEARCHED} items")
    return unique


def _owners(ids: Any) -> tuple[int, ...]:
    if ids is None:
        return ()
    if not isinstance(ids, list):
        raise BadRequest("owner_user_ids must be a list of integers")
    named = cast("list[Any]", ids)
    if len(named) > MOST_OWNERS:
        raise BadRequest(f"owner_user_ids must contain at most {MOST_OWNERS} items")
    if any(type(id) is not int for id in named):
        raise BadRequest("owner_user_ids must be a list of integers")
    return tuple(dict.fromkeys(_held(id) for id in named))


def _document_id(given: Given) -> int:
    document_id = _integer(given, "document_id")
    if document_id <= 0:
        raise BadRequest("document_id must be a positive integer")
    return _held(document_id)


def _text(given: Given, name: str, default: str | None) -> str | None:
    value = given.get(name, default)
    if not isinstance(value, str) and (value is not None or default is not None):
        raise BadRequest(f"{name} must be a string")
    return value


def _integer(given: Given, name: str, default: int | None = None) -> int:
    value = given.get(name, default)
    if type(value) is not int:
        raise BadRequest(f"{name} must be an integer")
    return value


def _truth(given: Given, name: str, default: bool) -> bool:
    value = given.get(name, default)
    if type(value) is not bool:
        raise BadRequest(f"{name} must be a boolean")
    return value


def _check_range(name: str, value: int, most: int) -> None:
    if not 1 <= value <= most:
        raise BadRequest(f"{name} must be between 1 and {most}")


def _check_floor(name: str, value: int) -> None:
    if value < 0:
        raise BadRequest(f"{name} must be greater than or equal to 0")


def _check_names(given: Given, form: type[Any]) -> None:
    """A filter that nobody applies would be worse than none, so what is not taken is refused."""
    for name in given:
        if name not in form.__dataclass_fields__:
            raise BadRequest(f"Unknown argument: {name[:60]}")


def _held(number: int) -> int:
    """A number that the databases can hold: what is beyond has never been given out as an id."""
    return max(-MAX_ID, min(number, MAX_ID))
