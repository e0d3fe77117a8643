"""The lines of WeKnora's document, and their tests."""

import ast
from pathlib import Path

LINES = 477  # of the document

TOOL = "test_there_is_one_tool_and_it_is_listed_to_the_letter"
SCHEMA = "test_the_schema_has_the_bounds_and_defaults_of_the_document"
BOUNDS = "test_arguments_out_of_bounds_are_an_error_and_nothing_is_asked"
ASKED = "test_the_endpoint_is_asked_as_the_document_says"
TOLD = "test_the_example_of_the_document_is_told_in_its_words"
REFUSED = "test_a_refusal_is_told_with_its_status_and_the_text_of_the_response"
NO_ANSWER = "test_an_endpoint_that_is_away_is_an_error"
NONE_FOUND = "test_nothing_found_brings_the_first_suggestions"
FEW_FOUND = "test_few_found_bring_the_other_suggestions_and_three_bring_none"
KEY = "test_the_key_is_in_no_text_that_anybody_reads"
SDK = "test_the_agent_sdk_is_given_the_tool_and_may_use_it"
NOTHING = "test_options_that_are_a_dict_will_do_and_nothing_is_added_where_there_is_nothing_to_search"
MESSAGE = "test_a_message_is_answered_from_the_bases_with_citations"
CONTEXT = "test_a_context_may_be_plain_or_under_a_name_of_its_own_and_needs_no_address"
RETRIES = "test_where_the_threshold_leaves_nothing_the_agent_looks_below_it_and_says_so"
REST = "test_the_request_of_the_document_is_answered_in_its_form"
GRADES = "test_grades_mean_what_the_tool_says_they_do_in_every_mode"
MODEL = "test_a_model_searches_with_the_tool_reads_and_answers_with_citations"

# Headings, code that frames code, and the names of the other system's files: (first line, last line).
SILENT = [
    (1, 4), (6, 8), (10, 11), (62, 67), (72, 80), (107, 108), (143, 154), (156, 156), (159, 160), (174, 176),
    (185, 187), (190, 194), (202, 204), (215, 220), (232, 236), (238, 238), (246, 255), (315, 318), (322, 332),
    (337, 338), (341, 341), (344, 345), (348, 351), (356, 357), (359, 360), (363, 376), (378, 381), (384, 395),
    (397, 400), (402, 408), (412, 413), (415, 416), (418, 420), (424, 425), (428, 429), (432, 434),
    (435, 435),  # graphs: of another API, which is not there
    (438, 444), (453, 456), (471, 477),
]  # fmt: skip

# (first line, last line), the statement, and its test.
TABLE = [
    ((5, 5), "knowledge bases as an MCP tool for agents", SDK),
    ((9, 9), "in process", SDK),
    ((12, 26), "a UI sends messages with a key and bases", MESSAGE),
    ((27, 36), "the route takes the context out", CONTEXT),
    ((37, 46), "the tool is bound to key, bases and address", ASKED),
    ((47, 54), "the agent analyses, searches and decides whether to try again", RETRIES),
    ((47, 54), "so does a language model", MODEL),
    ((55, 61), "hybrid search, reranked, structured", REST),
    ((68, 68), "no process of its own", TOOL),
    ((69, 69), "key and bases with each call, of many tenants",
     "test_our_own_address_is_searched_in_process_as_the_holder_of_the_key"),
    ((70, 70), "pure search", REST),
    ((71, 71), "total_count and suggestions", NONE_FOUND),
    ((71, 71), "which guide tries", RETRIES),
    ((81, 106), "name and description, to the letter", "test_the_description_is_the_document_s_to_the_letter"),
    ((98, 101), "what scores mean", GRADES),
    ((109, 142), "arguments, bounds and defaults", SCHEMA),
    ((109, 142), "bounds hold", BOUNDS),
    ((155, 155), "every argument is used", "test_what_the_model_chooses_is_passed_on"),
    ((157, 158), "key, bases and address are captured, not arguments", BOUNDS),
    ((161, 173), "what is sent", ASKED),
    ((177, 184), "Search failed", REFUSED),
    ((188, 189), "results, or none", NONE_FOUND),
    ((195, 201), "the summary", TOLD),
    ((199, 199), "total_count or how many there are", "test_what_is_missing_of_a_piece_has_a_name"),
    ((205, 214), "the matched documents", TOLD),
    ((210, 213), "what stands in for what is missing", "test_what_is_missing_of_a_piece_has_a_name"),
    ((214, 214), "500 characters", "test_a_piece_is_quoted_to_500_characters_and_every_line_of_it"),
    ((221, 227), "suggestions where nothing is found", NONE_FOUND),
    ((228, 231), "suggestions where little is", FEW_FOUND),
    ((237, 237), "an answer is no error", TOLD),
    ((239, 245), "Search error", NO_ANSWER),
    ((256, 278), "the request's body", CONTEXT),
    ((279, 291), "the route hands the context on", CONTEXT),
    ((292, 303), "the server captures it", ASKED),
    ((304, 314), "the tool uses what was captured", ASKED),
    ((319, 319), "the key is not in a prompt", MODEL),
    ((320, 320), "nor an argument", BOUNDS),
    ((321, 321), "and goes into the request's header alone", KEY),
    ((333, 336), "the context", "test_the_key_is_in_no_text_that_anybody_reads"),
    ((339, 340), "a server is made of a context", TOOL),
    ((342, 343), "with one tool", TOOL),
    ((346, 347), "bound to it", ASKED),
    ((352, 355), "weknora, 1.0.0", TOOL),
    ((358, 358), "the server is returned", TOOL),
    ((361, 362), "the tool's name", TOOL),
    ((377, 377), "a context may be given", SDK),
    ((382, 383), "the tool only where there are a key and bases", NOTHING),
    ((396, 396), "message, sessionId, sessionMode, context",
     "test_a_session_is_begun_anew_on_request_and_is_its_caller_s_own"),
    ((401, 401), "under a name of its own", CONTEXT),
    ((409, 411), "the server and its tool", TOOL),
    ((414, 414), "integration", SDK),
    ((417, 417), "the context is taken out and passed on", CONTEXT),
    ((421, 422), "arguments are validated", BOUNDS),
    ((423, 423), "calls of a stand-in", ASKED),
    ((426, 426), "the whole way of A2A", MESSAGE),
    ((427, 427), "what fails", "test_a_revoked_or_narrow_key_searches_nothing"),
    ((430, 430), "timeouts",
     "test_an_endpoint_that_does_not_answer_is_not_waited_for_longer_than_the_setting_says"),
    ((431, 431), "a cache", "test_a_search_is_remembered_for_a_while_and_a_failure_is_not"),
    ((436, 436), "conversations", "test_a_question_that_follows_is_understood_by_those_before_it"),
    ((437, 437), "highlights", "test_highlights_are_where_the_words_stand"),
    ((445, 452), "the request", REST),
    ((457, 470), "the response", REST),
]  # fmt: skip


def test_every_line_of_the_document_is_shown_by_a_test_that_is_there():
    silent = {line for first, last in SILENT for line in range(first, last + 1)}
    covered = {line for (first, last), _, _ in TABLE for line in range(first, last + 1)}
    assert covered & silent == set()
    assert covered | silent == set(range(1, LINES + 1))
    there = {
        node.name
        for file in Path(__file__).parent.glob("test_*.py")
        for node in ast.walk(ast.parse(file.read_text("utf-8")))
        if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")
    }
    assert {name for _, _, name in TABLE} - there == set()
