"""The sentences of the gateway's document, and the tests of each."""

import ast
from pathlib import Path

import pytest

FOLDER = Path(__file__).parent

# Each sentence, with the file in this folder and the tests in it.
SENTENCES: dict[str, tuple[str, ...]] = {
    "There are currently 4 MCP tools in the public gateway.": ("tools there_are_exactly_four_tools",),
    "There is currently no active auth-whoami or auth-verify-key MCP tool.": ("tools there_are_exactly_four_tools",),
    "This gateway exposes a small surface for health checks and knowledge base access.": ("tools health_is_checked",),
    "Authenticate using x-api-key, x-access-key or Authorization: Bearer.": (
        "credentials each_of_the_three_headers_lets_a_caller_in",
        "typescript the_examples_of_the_document_work",
    ),
    "The gateway uses the first non-empty header in that order.": (
        "credentials the_first_header_that_is_not_empty_decides",
        "credentials white_space_around_a_key_is_nothing_and_a_header_of_white_space_is_empty",
    ),
    "Tools resolve the tenant from auth headers, then proxy using that tenant id.": (
        "upstream the_validated_request_goes_upstream_with_the_tenant_and_without_the_key",
        "credentials the_same_names_in_two_tenants_never_meet",
    ),
    "Successful tool responses return content with a single text item of pretty-printed JSON.": (
        "tools an_entity_is_had_by_its_id_or_its_exact_name",
        "tools the_example_of_the_document_finds_pressure_washers",
    ),
    "Initial MCP connection auth verifies the key through the Access Keys Manager.": (
        "upstream a_key_is_verified_by_the_manager_and_its_revocation_ends_the_session_within_a_second",
        "upstream a_manager_that_fails_lets_nobody_in",
    ),
    "Requests with an existing session id reuse that session.": (
        "credentials a_session_stands_for_the_key_it_was_opened_with",
        "credentials a_session_is_served_by_any_process_and_ends_everywhere_when_its_key_is_revoked",
        "upstream a_live_session_goes_on_while_the_manager_is_away",
    ),
    "Invalid or missing session ids return 401 Invalid or missing sessionId.": (
        "credentials without_a_good_session_nothing_is_served_in_the_older_eras",
        "credentials a_session_is_left_and_then_gone",
    ),
    "Missing token: Missing API key.": ("credentials without_a_key_one_is_missing",),
    "Invalid token: Invalid API key.": ("credentials a_key_that_nobody_has_is_invalid",),
    "Validation failures return isError and serialized zod flatten() output as JSON.": (
        "validation arguments_are_judged_as_zod_judges_them",
        "validation a_wrong_argument_is_a_tool_error_of_one_text_with_the_flattened_account",
    ),
    "Upstream failures are surfaced by the gateway as HTTP/MCP errors.": (
        "upstream what_goes_wrong_upstream_is_told_as_an_error",
        "tools what_the_service_refuses_is_an_error_and_never_an_empty_result",
    ),
    "search-knowledge-base: semantic vector search using a natural language query.": (
        "tools meaning_finds_what_shares_no_word_with_the_question",
    ),
    "namespace and query are non-empty strings, metadata an arbitrary object, topK positive, max 50, default 10.": (
        "validation arguments_are_judged_as_zod_judges_them",
        "validation whatever_is_sent_is_either_right_or_accounted_for_field_by_field",
    ),
    "Sends upstream: namespace, query, topK, and metadata when provided.": (
        "upstream the_validated_request_goes_upstream_with_the_tenant_and_without_the_key",
    ),
    "The example request for pressure washers under 2000 PSI, and its response.": (
        "tools the_example_of_the_document_finds_pressure_washers",
        "tools metadata_filters_as_users_of_vector_stores_expect",
    ),
    "get-entity: retrieve a full entity by id or exact name.": ("tools an_entity_is_had_by_its_id_or_its_exact_name",),
    "At least one of id or name must be provided.": ("validation an_entity_needs_an_id_or_a_name",),
    "Uses id if present, otherwise name; URL-encodes the selected key; GET /knowledge-base/entities/{idOrAlias}.": (
        "upstream the_validated_request_goes_upstream_with_the_tenant_and_without_the_key",
        "tools the_alias_key_of_a_category_gives_what_is_in_it",
    ),
    "get-knowledge-base-structure: browse the tree or one category; GET /knowledge-base/categories[/{key}].": (
        "tools the_structure_is_shown_whole_or_from_a_category",
        "upstream the_validated_request_goes_upstream_with_the_tenant_and_without_the_key",
    ),
}


@pytest.mark.parametrize("sentence", SENTENCES)
def test_every_sentence_has_tests_that_are_there(sentence: str):
    for named in SENTENCES[sentence]:
        file, _, name = named.partition(" ")
        tree = ast.parse((FOLDER / f"test_{file}.py").read_text("utf-8"))
        assert f"test_{name}" in {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}
