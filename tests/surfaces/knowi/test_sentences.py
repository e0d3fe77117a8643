"""The table of the seed's sentences: it is complete, and the tests that it names exist."""

import ast
from functools import cache
from pathlib import Path

from almanac.surfaces.knowi.tools import MISSING_TOOLS, SURFACE
from tests.surfaces.knowi import seed
from tests.surfaces.knowi.seed_sentences import SENTENCES

ROOT = Path(__file__).parents[3]
FOLDER = Path(__file__).parent
MAX_HEADING_WORDS = 8
LATER = {
    "OAuth", "pages", "boards", "datasets", "datasources", "delivery", "questions", "all tools", "agent executions",
    "agent call quota",
}  # fmt: skip

# Sentences of served tools about kinds of assets that come with later work.
PARTLY_SERVED = {
    "Retrieve data from a widget or dataset.": "boards",
    "| widgetId | integer | No* | Widget ID to get data from |": "boards",
    "Get full details for any asset.": "boards",
    "| assetType | string | Yes | Type of asset: dashboard, widget, dataset, query, report, alert, datasource |":
        "boards",
    "Returns full metadata including schema (for datasets), widget counts (for dashboards), and configuration details.":
        "boards",
    "Delete a Knowi asset.": "boards",
    "| assetType | string | Yes | Type of asset: dashboard, widget, dataset, report, alert |": "boards",
}  # fmt: skip

# Advice and background, which no server can fulfil or break.
ADVICE = (
    "For connecting AI tools, see the setup guides:",
    "Instance URL: While the examples here use",
    "On-Premise: Your on-premise Knowi URL",
    "Understanding what data is sent where",
    "These results may contain actual data rows",
    "For example, if you ask Claude Code to get data",
    "This is inherent to MCP",
    "See AI Model Providers to configure",
    "Where this data goes depends",
    "| Sent to Knowi's AI Model |",
    "Security implication: Even if Knowi is configured",
    "Evaluate whether the data accessible",
    "For maximum data isolation",
    "- No per-user rate limiting: The MCP server does not enforce",
    "Rate limiting should be applied at the network layer",
    "There is no mechanism to create a token scoped",
    "| Method | Endpoint | Description |",
    "| Parameter | Type | Required | Description |",
    '"instruction": "Create a sales dashboard',
)


def test_the_table_has_every_sentence_of_the_seed_in_its_order():
    assert [sentence for sentence, _, _ in SENTENCES] == seed.sentences()


def test_every_sentence_has_a_test_or_waits_for_later_work():
    unshown = [sentence for sentence, tests, later in SENTENCES if not tests and not later]
    assert [
        sentence
        for sentence in unshown
        if len(sentence.split()) > MAX_HEADING_WORDS and not sentence.startswith(ADVICE)
    ] == []
    assert {later for _, _, later in SENTENCES if later} == LATER


def test_every_named_test_exists():
    here = {name for file in FOLDER.glob("test_*.py") for name in _tests_in(file)}
    for _, tests, _ in SENTENCES:
        for named in tests:
            path, _, name = named.rpartition("::")
            assert name in (_tests_in(ROOT / path) if path else here), named


def test_no_sentence_of_a_served_tool_waits():
    served = {tool.name for tool in SURFACE.operations}
    tool = ""
    for sentence, tests, later in SENTENCES:
        if sentence in served | MISSING_TOOLS:
            tool = sentence
        elif sentence == "Streamable HTTP Transport":
            break
        if tool in served and sentence != "Deterministic Tools":
            assert later == PARTLY_SERVED.get(sentence, ""), sentence
            assert not later or len(tests) > 1, sentence  # besides the one of the contract


@cache
def _tests_in(file: Path) -> frozenset[str]:
    tree = ast.parse(file.read_text("utf-8"))
    functions = (node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))
    return frozenset(function.name for function in functions if function.name.startswith("test_"))
