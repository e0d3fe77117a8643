"""The official conformance suites against the real application.

`scripts` can be imported as a package, because pytest has the project's root on its path.
"""

import json
import sys
from collections.abc import Iterator

import pytest

from scripts import conformance
from scripts.conformance import SUITES, Outcome, Suite

# A suite writes its results to a folder of its own, so two runs of one suite cannot overlap.
pytestmark = pytest.mark.xdist_group("conformance")

# The number of scenarios that each suite scores. A suite that runs fewer has not passed.
SCORED = {"0.1.16": 30, "0.2 at 2025-11-25": 30, "0.2 at 2026-07-28": 37}


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    port = conformance.free_port()
    home = tmp_path_factory.mktemp("home")
    with conformance.serving(f"{sys.executable} -m tests.conformance.surface {{port}} {home}", port):
        yield f"http://127.0.0.1:{port}/conformance"


@pytest.mark.parametrize("suite", SUITES, ids=lambda suite: suite.name)
def test_every_scored_scenario_passes(url: str, suite: Suite):
    outcomes = conformance.run_suite(suite, url)
    scored = [outcome for outcome in outcomes if outcome.scored]
    assert [_summary(outcome) for outcome in scored if not outcome.passed] == []
    assert {outcome.scenario for outcome in scored} == {
        name for name, is_scored in conformance.scenarios(suite).items() if is_scored
    }
    assert len(scored) == SCORED[suite.name]
    assert all(outcome.ran and outcome.successes > 0 for outcome in scored)


def test_the_suites_have_the_pinned_versions():
    assert [suite.name for suite in SUITES] == list(SCORED)
    assert sum(SCORED.values()) >= 67
    conformance.ensure_node()
    for folder, (_, version) in conformance.PINS.items():
        manifest = json.loads((conformance.MODULES / folder / "package.json").read_text())
        assert manifest["version"] == version


def test_a_suite_that_reaches_no_server_does_not_pass():
    outcomes = conformance.run_suite(SUITES[0], f"http://127.0.0.1:{conformance.free_port()}/conformance")
    scored = [outcome for outcome in outcomes if outcome.scored]
    assert len(scored) >= SCORED[SUITES[0].name]
    assert not any(outcome.passed for outcome in scored)


def _summary(outcome: Outcome) -> str:
    return f"{outcome.scenario}: {'; '.join(outcome.failures) or ('no success' if outcome.ran else 'did not run')}"
