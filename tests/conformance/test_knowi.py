"""The conformance suites against the transport of the Knowi surface, and its differences from the specification.

The seed's document has no streams: "the server returns the result immediately". So the server cannot send messages to
the client during a call, and the scenarios that need such messages fail. All others pass.
"""

import sys
from collections.abc import Iterator

import pytest

from scripts import conformance
from scripts.conformance import SUITES, Suite

# A suite writes its results to a folder of its own, so two runs of one suite cannot overlap.
pytestmark = pytest.mark.xdist_group("conformance")

NEEDS_MESSAGES_TO_THE_CLIENT = {
    "tools-call-with-logging",
    "tools-call-with-progress",
    "tools-call-sampling",
    "tools-call-elicitation",
    "elicitation-sep1034-defaults",
    "elicitation-sep1330-enums",
}
DIFFERENCES = {
    "0.1.16": NEEDS_MESSAGES_TO_THE_CLIENT,
    "0.2 at 2025-11-25": NEEDS_MESSAGES_TO_THE_CLIENT,
    "0.2 at 2026-07-28": {"tools-call-with-progress"},
}
SUITE_ITSELF = "the suite itself"  # its exit status says that a scenario failed


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    port = conformance.free_port()
    home = tmp_path_factory.mktemp("home")
    with conformance.serving(f"{sys.executable} -m tests.conformance.knowi_surface {{port}} {home}", port):
        yield f"http://127.0.0.1:{port}/conformance"


@pytest.mark.parametrize("suite", SUITES, ids=lambda suite: suite.name)
def test_every_scored_scenario_passes_but_for_the_listed_differences(url: str, suite: Suite):
    outcomes = {outcome.scenario: outcome for outcome in conformance.run_suite(suite, url) if outcome.scored}
    failed = {name: outcome.failures for name, outcome in outcomes.items() if not outcome.passed}
    assert failed.keys() == DIFFERENCES[suite.name] | {SUITE_ITSELF}, failed
    assert all(outcome.ran for outcome in outcomes.values())
    assert len(outcomes) >= 30
