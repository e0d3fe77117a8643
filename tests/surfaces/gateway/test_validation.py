"""Error texts for invalid arguments: those of Zod, recorded from the real library (zod 3.25.76) in zod.json."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from almanac.surfaces.gateway import tools, zod
from tests.surfaces.gateway.caller import Caller

GOLDENS: list[dict[str, Any]] = json.loads((Path(__file__).parent / "zod.json").read_text("utf-8"))
SCHEMAS = {
    "search-knowledge-base": tools.SEARCH,
    "get-entity": tools.ENTITY,
    "get-knowledge-base-structure": tools.STRUCTURE,
}


@pytest.mark.parametrize("case", GOLDENS, ids=lambda case: json.dumps(case["arguments"])[:60])
def test_arguments_are_judged_as_zod_judges_them(case: dict[str, Any]):
    try:
        SCHEMAS[case["tool"]].parse(case["arguments"])
        said = None
    except zod.InvalidZodArguments as error:
        said = json.loads(error.message)
    assert said == case["flat"]


@pytest.mark.parametrize("tool", SCHEMAS)
def test_a_wrong_argument_is_a_tool_error_of_one_text_with_the_flattened_account(caller: Caller, tool: str):
    case = next(each for each in GOLDENS if each["tool"] == tool and each["flat"])
    text = caller.refused(tool, **case["arguments"])
    assert text == json.dumps(case["flat"], indent=2)
    assert json.loads(text).keys() == {"formErrors", "fieldErrors"}


def test_an_entity_needs_an_id_or_a_name(caller: Caller):
    assert json.loads(caller.refused("get-entity")) == {
        "formErrors": ["At least one of id or name must be provided"],
        "fieldErrors": {},
    }


json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-100, 100) | st.floats(-100, 100) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=5,
)


@given(st.dictionaries(st.sampled_from(["namespace", "query", "metadata", "topK", "other"]), json_values))
def test_whatever_is_sent_is_either_right_or_accounted_for_field_by_field(arguments: dict[str, Any]):
    try:
        parsed = tools.SEARCH.parse(arguments)
    except zod.InvalidZodArguments as error:
        flat = json.loads(error.message)
        assert set(flat["fieldErrors"]) <= {"namespace", "query", "metadata", "topK"}
        assert flat["fieldErrors"]
        return
    assert parsed["namespace"]
    assert parsed["query"]
    assert 1 <= parsed["topK"] <= 50
    assert parsed["topK"] == int(parsed["topK"])
    assert isinstance(parsed["metadata"], dict | None)
