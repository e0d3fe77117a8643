"""The lines of this surface's document, and the tests of each.

The number is the line of the document (seed 000), the words are ours. A line that holds no promise (a heading, the
frame of a table) is in `SILENT`. That nothing is left out is itself a test.
"""

import ast
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from almanac.core.errors import (
    BadRequest,
    DeadlineExceeded,
    Forbidden,
    Internal,
    NotFound,
    RateLimited,
    RateLimitUnavailable,
    Unauthorized,
)
from almanac.db.sql import id_list
from almanac.knowledge import bases
from almanac.knowledge.document_tree import too_large
from almanac.knowledge.downloads import FileUnavailable, NotPreviewable
from almanac.surfaces.external import arguments, responses
from almanac.surfaces.external.tools import CONTRACT
from tests.surfaces.external.caller import Caller, Town, failed

pytestmark = pytest.mark.xdist_group("external")

LINES = 144
SILENT = {1, 2, 4, 8, 9, 15, 17, 20, 21, 36, 54, 55, 57, 58, 59, 65, 66, 69, 71, 72, 73, 80, 86, 87, 89, 90, 91, 95, 99,
          101, 102, 103, 106, 107, 113, 115, 116, 117, 121, 126, 128, 129, 130, 131, 132, 133, 134}  # fmt: skip

STRICT = "test_a_wrong_argument_is_refused_with_the_documented_message_in_the_documented_order"
DEFAULT = "test_every_documented_setting_has_its_documented_default_and_can_be_set"
SCHEMA = "test_the_parameters_are_those_of_the_document_with_their_defaults"
CODES = "test_every_documented_code_is_told_as_json_with_its_message"
EXAMPLE = "test_the_documented_example_resolves_a_trusted_gateway_header"
FILES_ORDER = "test_downloads_are_limited_by_address_then_by_address_and_document_before_the_token_is_looked_at"
HIDDEN = "test_what_is_not_the_callers_is_not_there_in_the_same_words_as_what_never_was"

TABLE: list[tuple[int, str, str]] = [
    # Name and location
    (3, "five things can be done", "test_the_tools_are_listed_character_for_character_as_the_contract_has_them"),
    (3, "a caller lists bases, browses, reads, or searches", "test_bare_http_runs_the_documented_workflow"),
    (5, "it is not exposed by default", "test_it_is_not_exposed_unless_it_is_enabled"),
    (6, "a setting exposes it", "test_without_a_prefix_there_is_one_mount"),
    (7, "enabled, it is mounted", "test_the_root_says_what_it_is_to_anybody"),
    (10, "metadata at the root", "test_the_root_says_what_it_is_to_anybody"),
    (11, "a health check", "test_the_health_check_is_open_to_anybody"),
    (12, "streamable HTTP", "test_the_python_sdk_s_client_runs_the_documented_workflow"),
    (12, "for clients of other makers too", "test_the_typescript_client_runs_the_documented_workflow"),
    (13, "original files", "test_a_file_is_sent_as_it_came_and_named"),
    (14, "also below the prefix", "test_bare_http_runs_the_documented_workflow"),
    (14, "only with a prefix", "test_without_a_prefix_there_is_one_mount"),
    (14, "concurrent requests find the task group running", "test_two_hundred_requests_at_once_are_all_answered"),
    (16, "mounted by itself, with its own endpoints", "test_the_server_s_own_limit_is_not_this_surface_s"),
    # Access control and limits
    (18, "not for the internet: allowlists", "test_the_guide_says_plainly_where_the_limiter_counts"),
    (19, "limits in Redis, at REDIS_URL", "test_two_server_processes_on_one_redis_share_a_limit_exactly"),
    (19, "not affected by the general limit", "test_the_server_s_own_limit_is_not_this_surface_s"),
    *((line, "a setting and its default", DEFAULT) for line in range(22, 35)),
    (22, "the transport's limit can be off", "test_limits_that_are_switched_off_or_nought_limit_nothing"),
    (23, "requests in a window", "test_the_transport_is_limited_by_address_whatever_is_asked"),
    (24, "windows end", "test_aligned_windows_begin_at_multiples_of_their_length_in_memory_and_in_redis"),
    (26, "searches in a window", "test_searches_are_limited_by_user_once_their_arguments_are_good"),
    (29, "downloads by address before the token", FILES_ORDER),
    (31, "downloads by address and document before the token", FILES_ORDER),
    (33, "downloads after the token", "test_downloads_are_limited_by_user_and_document_once_the_token_is_good"),
    (35, "by address", "test_the_transport_is_limited_by_address_whatever_is_asked"),
    (35, "by token", "test_the_transport_is_limited_by_token_from_whatever_address"),
    (35, "either is enough to be refused", "test_of_fifty_racing_callers_exactly_as_many_pass_as_the_limit_says"),
    (35, "searches by user", "test_searches_are_limited_by_user_once_their_arguments_are_good"),
    (35, "files: address, then address and document", FILES_ORDER),
    (35, "then user and document", "test_downloads_are_limited_by_user_and_document_once_the_token_is_good"),
    (35, "no Redis, no costly work", "test_without_redis_everything_is_refused_before_any_costly_work"),
    (35, "Redis lost under load",
     "test_when_redis_is_killed_mid_load_calls_are_refused_as_uncounted_and_then_taken_again"),
    (35, "no raw tokens in keys",
     "test_keys_in_redis_have_the_documented_form_and_hold_hashes_of_addresses_and_tokens"),
    (35, "allowlists all the same", "test_the_guide_says_plainly_where_the_limiter_counts"),
    # Authentication
    (37, "nobody reaches the transport unknown", "test_nobody_reaches_the_transport_without_a_token"),
    (37, "root and health are public", "test_public_paths_stay_public_whatever_the_handler_says"),
    (37, "files need no bearer", "test_no_bearer_is_asked_for_and_none_helps"),
    (38, "only users' own tokens", "test_only_tokens_that_users_made_for_themselves_are_taken"),
    (39, "as bearer", "test_a_token_that_is_unknown_revoked_or_of_no_bearer_is_refused"),
    (40, "the token's owner is the user", "test_the_owner_of_a_token_is_the_user"),
    (40, "X-User-Name is for handlers only", "test_an_api_key_or_a_user_name_establishes_nobody"),
    (41, "X-API-Key establishes nobody", "test_an_api_key_or_a_user_name_establishes_nobody"),
    (42, "the handler can be replaced", EXAMPLE),
    (42, "it gets token and request", "test_a_handler_may_be_a_coroutine_and_find_users_by_their_names"),
    (42, "None refuses", "test_a_handler_cannot_name_a_user_who_is_not_there"),
    (43, "files need the header", "test_no_bearer_is_asked_for_and_none_helps"),
    (43, "300 seconds", "test_a_credential_is_a_signed_statement_of_what_it_is_good_for"),
    (43, "bound to user, document and disposition",
     "test_a_credential_for_another_document_user_or_disposition_or_past_its_time_is_refused"),
    (43, "permission is checked again", "test_permission_that_was_revoked_after_the_credential_was_given_is_forbidden"),
    (43, "and the file", "test_a_document_that_is_gone_is_not_found_and_a_file_that_is_gone_unavailable"),
    *((line, "the example", EXAMPLE) for line in range(44, 54)),
    # Listing bases
    (56, "bases the caller can see", "test_bases_are_listed_newest_first_with_every_field"),
    *((line, "a parameter and its default", SCHEMA) for line in range(60, 65)),
    (60, "scopes", "test_a_scope_shows_what_it_says"),
    (61, "a group is named for its scope; empty is missing", STRICT),
    (62, "name and description, in any case",
     "test_a_query_matches_name_and_description_in_any_case_and_letter_by_letter"),
    (63, "1 to 100", STRICT),
    (64, "0 and above", STRICT),
    (67, "newest first", "test_bases_are_listed_newest_first_with_every_field"),
    (67, "inactive documents count", "test_documents_are_counted_whatever_their_state"),
    (67, "each entry says its space", "test_bases_are_listed_newest_first_with_every_field"),
    (68, "personal, group, organization", "test_bases_are_listed_newest_first_with_every_field"),
    (68, "sharing does not change the space's name", "test_a_base_that_is_shared_keeps_the_name_of_its_own_space"),
    (68, "documents are counted for the page alone", "test_documents_are_counted_for_the_page_alone"),
    (68, "totals and pages", "test_bases_are_paged_by_limit_and_offset"),
    # Listing nodes
    (70, "folders and documents", "test_nodes_of_a_level_are_folders_first_then_the_newest_with_every_field"),
    *((line, "a parameter and its default", SCHEMA) for line in range(74, 80)),
    (74, "required", STRICT),
    (75, "0 is the root", "test_a_tree_is_whole_and_counts_every_node"),
    (76, "the subtree", "test_a_tree_is_whole_and_counts_every_node"),
    (77, "inactive or not", "test_inactive_documents_are_shown_unless_they_are_not_wanted"),
    (78, "1 to 500", STRICT),
    (79, "0 and above", STRICT),
    (81, "folders before documents", "test_nodes_of_a_level_are_folders_first_then_the_newest_with_every_field"),
    (82, "newest first", "test_nodes_of_a_level_are_folders_first_then_the_newest_with_every_field"),
    (82, "strict booleans", STRICT),
    (82, "inactive shown by default", "test_inactive_documents_are_shown_unless_they_are_not_wanted"),
    (82, "index_status tells what is searchable", "test_inactive_documents_are_shown_unless_they_are_not_wanted"),
    (83, "total_available and has_more", "test_nodes_of_a_level_are_paged_in_one_space_of_folders_and_documents"),
    (83, "total_returned counts what is nested", "test_a_tree_is_whole_and_counts_every_node"),
    (84, "too large is known before it is loaded", "test_a_base_too_large_is_refused_before_it_is_loaded"),
    (84, "a folder's subtree alone matters", "test_a_base_too_large_is_refused_before_it_is_loaded"),
    (85, "orphans and cycles", "test_what_hangs_in_the_air_is_an_orphan_at_the_root_and_warnings_say_why"),
    # Reading
    (88, "parsed text", "test_the_text_that_was_parsed_is_read_with_every_field"),
    *((line, "a parameter and its default", SCHEMA) for line in range(92, 95)),
    (93, "0 and above", STRICT),
    (94, "1 to the most", STRICT),
    (96, "not the original file", "test_the_text_that_was_parsed_is_read_with_every_field"),
    (97, "whether there is any text",
     "test_a_document_that_has_not_been_read_has_no_content_and_says_how_far_it_is"),
    (97, "pages", "test_text_is_read_by_pages_and_an_offset_beyond_the_end_is_the_end"),
    (98, "how far it is indexed", "test_a_document_that_has_not_been_read_has_no_content_and_says_how_far_it_is"),
    # Downloading
    (100, "a credential", "test_a_download_says_where_the_file_is_and_with_what"),
    *((line, "a parameter and its default", SCHEMA) for line in range(104, 106)),
    (105, "inline or attachment", STRICT),
    (108, "where, and with what", "test_a_download_says_where_the_file_is_and_with_what"),
    (108, "300 seconds", "test_a_credential_is_a_signed_statement_of_what_it_is_good_for"),
    (109, "bound to all three",
     "test_a_credential_for_another_document_user_or_disposition_or_past_its_time_is_refused"),
    (109, "inline only for what can be previewed", "test_inline_is_for_what_can_be_previewed_and_attachment_for_all"),
    (109, "permission again", "test_permission_that_was_revoked_after_the_credential_was_given_is_forbidden"),
    (110, "revoked is forbidden", "test_permission_that_was_revoked_after_the_credential_was_given_is_forbidden"),
    (110, "limits of its own", "test_downloads_are_limited_by_user_and_document_once_the_token_is_good"),
    (111, "rate_limited", FILES_ORDER),
    (111, "rate_limit_unavailable", "test_without_redis_everything_is_refused_before_any_costly_work"),
    (112, "limits before and after, then permission, then the file", FILES_ORDER),
    # Searching
    (114, "selected bases", "test_a_search_of_selected_bases_finds_passages_with_every_field"),
    *((line, "a parameter and its default", SCHEMA) for line in range(118, 121)),
    (118, "at most 2000 characters", STRICT),
    (119, "at most 100 of them", "test_ids_are_deduplicated_before_they_are_counted"),
    (120, "1 to 50", STRICT),
    (122, "ids must be given", STRICT),
    (122, "bases are listed first", "test_bare_http_runs_the_documented_workflow"),
    (122, "repeated ids count once", "test_ids_are_deduplicated_before_they_are_counted"),
    (122, "strict integers", "test_a_strict_type_is_refused_alike_in_both_eras_and_by_the_sdk"),
    (123, "what is not accessible is ignored", "test_a_search_of_selected_bases_finds_passages_with_every_field"),
    (123, "nothing accessible is not_found", "test_a_search_of_nothing_accessible_is_not_found"),
    (124, "four places for a document's id", "test_a_document_is_named_in_one_of_four_places"),
    (125, "the gateway decides", "test_a_mode_is_of_all_operations_or_of_each"),
    (125, "a runtime gets the basic spec alone",
     "test_a_runtime_is_told_the_basic_spec_and_nothing_of_how_we_would_search"),
    (125, "local when it is to be, or must stand in",
     "test_our_own_search_stands_in_where_the_failure_is_passing_or_the_runtime_s"),
    # Errors
    (127, "errors are JSON strings", CODES),
    *((line, "a code", CODES) for line in range(135, 145)),
    (136, "unauthorized", "test_nobody_reaches_the_transport_without_a_token"),
    (137, "not_found", HIDDEN),
    (138, "forbidden", "test_whoever_may_only_search_restricted_is_forbidden_to_browse_and_read"),
    (139, "file_unavailable", "test_a_document_that_is_gone_is_not_found_and_a_file_that_is_gone_unavailable"),
    (140, "unsupported_media_type", "test_what_became_unfit_for_preview_is_not_sent_inline"),
    (142, "rate_limit_unavailable", "test_without_redis_everything_is_refused_before_any_costly_work"),
    (143, "result_too_large", "test_a_base_too_large_is_refused_before_it_is_loaded"),
    (144, "internal_error", "test_a_crash_is_an_internal_error_and_says_nothing_of_itself"),
]  # fmt: skip


def test_every_line_of_the_document_is_shown_by_a_test_that_is_there():
    covered = {line for line, _, _ in TABLE}
    assert covered.isdisjoint(SILENT)
    assert covered | SILENT == set(range(1, LINES + 1))
    folder = Path(__file__).parent
    files = [*folder.glob("test_*.py"), folder.parents[1] / "quotas" / "test_rate_limits.py"]
    there = {
        node.name
        for file in files
        for node in ast.walk(ast.parse(file.read_text("utf-8")))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test_")
    }
    assert {name for _, _, name in TABLE} - there == set()


# --- all tools ---------------------------------------------------------------------------------------------

PARAMETERS: dict[str, dict[str, Any]] = {
    "list_knowledge_bases": {
        "scope": "all", "group_name": None, "query": None, "owner_user_ids": None, "limit": 50, "offset": 0,
    },
    "list_nodes": {
        "knowledge_base_id": ..., "folder_id": 0, "recursive": False, "include_inactive": True, "limit": 100,
        "offset": 0,
    },
    "get_document_content": {"document_id": ..., "offset": 0, "limit": 100_000},
    "get_document_download": {"document_id": ..., "disposition": "inline"},
    "search_content": {"query": ..., "knowledge_base_ids": ..., "max_results": 10},
}  # fmt: skip


def test_the_parameters_are_those_of_the_document_with_their_defaults():
    for entry in CONTRACT.values():
        schema = entry["inputSchema"]
        expected = PARAMETERS[entry["name"].removeprefix("wegent_kb_")]
        assert list(schema["properties"]) == list(expected)
        assert schema.get("required", []) == [name for name, default in expected.items() if default is ...]
        for name, default in expected.items():
            assert schema["properties"][name].get("default", ...) == default
    # The listed defaults are the real ones: a call with only the required arguments gives the same result.
    assert arguments.parse_list_bases({}) == arguments.BaseListArguments("all", None, None, (), 50, 0)
    assert arguments.parse_list_nodes({"knowledge_base_id": 1}) == arguments.NodeListArguments(
        1, 0, False, True, 100, 0
    )
    assert arguments.parse_content({"document_id": 1}) == arguments.ContentArguments(1, 0, 100_000)
    assert arguments.parse_download({"document_id": 1}) == arguments.DownloadArguments(1, "inline")
    assert arguments.parse_search({"query": "x", "knowledge_base_ids": [1]}) == arguments.ContentSearchArguments(
        "x", (1,), 10
    )


def test_every_documented_code_is_told_as_json_with_its_message():
    told = {
        "bad_request": (BadRequest("max_results must be between 1 and 50"), "max_results must be between 1 and 50"),
        "unauthorized": (Unauthorized("Authentication required"), "Authentication required"),
        "not_found": (NotFound("Knowledge base not found"), "Knowledge base not found"),
        "forbidden": (Forbidden("Access denied to knowledge base"), "Access denied to knowledge base"),
        "file_unavailable": (FileUnavailable(), "Document file is unavailable"),
        "unsupported_media_type": (NotPreviewable(), "Document file is not previewable"),
        "rate_limited": (RateLimited(7), "Rate limit exceeded"),
        "rate_limit_unavailable": (RateLimitUnavailable(), "Rate limit service unavailable"),
        "result_too_large": (too_large(5001), "Recursive result has 5001 nodes, which exceeds the limit of 5000"),
        "internal_error": (Internal(), "Internal error"),
    }
    assert set(told) == responses.ERROR_CODES
    for code, (error, message) in told.items():
        assert responses.render_error(error) == {
            "content": [{"type": "text", "text": f'{{"error":"{message}","code":"{code}"}}'}],
            "isError": False,
        }
    assert responses.error_body(DeadlineExceeded()) == failed("internal_error", "Internal error")


def test_a_crash_is_an_internal_error_and_says_nothing_of_itself(ada: Caller, monkeypatch: pytest.MonkeyPatch):
    async def crash(*_: Any, **__: Any) -> Any:
        raise RuntimeError("the secret plan")

    monkeypatch.setattr(bases, "find", crash)
    assert ada.bases() == failed("internal_error", "Internal error")


def test_documents_are_counted_for_the_page_alone(town: Town, ada: Caller, monkeypatch: pytest.MonkeyPatch):
    """In one query for any length of the page, and only for the bases on it."""
    counted: list[list[int]] = []

    def watched(ids: Iterable[int]) -> str:
        counted.append(list(ids))
        return id_list(counted[-1])

    monkeypatch.setattr(bases, "id_list", watched)
    ada.bases(limit=1, offset=1)
    assert counted == [[town["group"]]]


def test_the_table_of_the_guide_has_every_code():
    guide = Path(__file__).parents[3] / "docs" / "how-to" / "connect-an-external-caller.md"
    listed = set(re.findall(r"^\| `([a-z_]+)` \|", guide.read_text("utf-8"), re.MULTILINE))
    assert listed == responses.ERROR_CODES
