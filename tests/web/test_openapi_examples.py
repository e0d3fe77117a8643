"""Requests that schemathesis generates from the three OpenAPI documents: every answer is one that its document has."""

import importlib
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, seed, settings

from tests.live_server import Running
from tests.web.api import Api

DOCUMENTS = ("/api/v1/openapi.json", "/knowledge-base/openapi.json", "/a2a/openapi.json")
EXAMPLES = 3  # of each operation, valid ones and invalid ones
schemathesis: Any = importlib.import_module("schemathesis")  # its types are incomplete
schemathesis.checks.load_all_checks()
RULES = schemathesis.checks.CHECKS.get_by_names(
    [
        "not_a_server_error",
        "status_code_conformance",
        "content_type_conformance",
        "response_headers_conformance",
        "response_schema_conformance",
        "negative_data_rejection",
    ]
)


@pytest.mark.parametrize("document", DOCUMENTS)
def test_generated_requests_are_answered_as_the_document_says(shared: Running, document: str) -> None:
    schema = schemathesis.openapi.from_dict(shared.http.get(document).json())
    operations = [found.ok() for found in schema.get_all_operations()]
    assert operations
    for operation in operations:
        for mode in schemathesis.GenerationMode:
            send_examples(shared, operation, mode)


def send_examples(live: Running, operation: Any, mode: Any) -> None:
    """Send some requests of an operation, the same in every run, and check their answers."""

    @seed(29)
    @settings(
        max_examples=EXAMPLES,
        database=None,
        deadline=None,
        phases=[Phase.generate],
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much, HealthCheck.data_too_large],
    )
    @given(case=operation.as_strategy(mode))
    def check(case: Any) -> None:
        response = case.call(base_url=str(live.http.base_url), headers={"x-api-key": live.token})
        case.validate_response(response, checks=RULES)

    check()


def test_an_error_with_an_envelope_is_in_the_document(api: Api) -> None:
    body = {"question": "pumps", "knowledge_base_ids": ["999999"]}
    answer = api.ask("POST", "/knowledge-search?envelope=true", 404, json=body)
    assert (answer["success"], answer["error"]["code"]) == (False, "not_found")
    assert api.ask("POST", "/knowledge-search", 404, json=body)["code"] == "not_found"
