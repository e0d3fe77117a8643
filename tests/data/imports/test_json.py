"""JSON in the structures that people have."""

from datetime import date, datetime
from typing import Any

import pytest

from almanac.core.errors import BadRequest
from tests.data.imports.importing import Importing

ROWS = [{"a": 1, "b": "x"}, {"a": 2, "b": "y"}]

STRUCTURES: dict[str, str] = {
    "list": '[{"a":1,"b":"x"},{"a":2,"b":"y"}]',
    "lines": '{"a":1,"b":"x"}\n{"a":2,"b":"y"}\n',
    "columns": '{"a":[1,2],"b":["x","y"]}',
    "list under 'data'": '{"count":2,"data":[{"a":1,"b":"x"},{"a":2,"b":"y"}]}',
    "list under 'result.rows'": '{"result":{"rows":[{"a":1,"b":"x"},{"a":2,"b":"y"}]}}',
}


@pytest.mark.parametrize("structure", STRUCTURES)
async def test_rows_are_found_in_every_structure(importing: Importing, structure: str):
    result = await importing.load(STRUCTURES[structure])
    assert (result.format, result.assumed["structure"]) == ("json", structure)
    assert await importing.rows() == ROWS


async def test_values_keep_their_types(importing: Importing):
    await importing.load(
        '[{"d":"2024-01-31","t":"2024-01-31T10:00:00+02:00","x":1,"n":12345678901234567890123,"l":[1,2.5],"o":{"a":1},'
        '"b":true,"m":"03/04/2024","z":null,"\\u00e4 B":"\\ud800"}, {"x":1.5}]'
    )
    assert await importing.types() == {
        "d": "date", "t": "timestamp", "x": "decimal", "n": "text", "l": "list", "o": "record", "b": "boolean",
        "m": "text", "z": "text", "ä B": "text",
    }  # fmt: skip
    first: dict[str, Any] = (await importing.rows())[0]
    assert first == {
        "d": date(2024, 1, 31), "t": datetime(2024, 1, 31, 8), "x": 1.0, "n": "12345678901234567890123",
        "l": [1.0, 2.5], "o": {"a": 1}, "b": True, "m": "03/04/2024", "z": None, "ä B": "?",
    }  # fmt: skip


async def test_a_bad_line_refuses_the_file_or_is_left_out(importing: Importing):
    content = '{"a":1}\n{"a":\n[3]\n{"a":NaN}\n{"a":4}\n'
    with pytest.raises(BadRequest, match=r"3 bad rows.* 2: not valid JSON.* 3: not an object; 4: a number"):
        await importing.load(content)
    assert not await importing.exists()
    result = await importing.load(content, on_error="skip")
    assert (result.bad.count, [each.line for each in result.bad.first]) == (3, [2, 3, 4])
    assert await importing.rows() == [{"a": 1}, {"a": 4}]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ('{"a":', "cannot be read"),
        ("[1,2,3]", "3 bad rows"),
        ("[" * 100_000, "nested too deeply"),
        ('{"a":' * 100_000, "nested too deeply"),
        ('[{"a":' + "[" * 50_000 + "]" * 50_000 + "}]", "nested too deeply"),
        ("{}", "no fields"),
        ("[]", "no rows"),
    ],
    ids=["cut off", "numbers", "open brackets", "deep objects", "a deep value", "no keys", "no rows"],
)
async def test_what_is_no_table_is_refused(importing: Importing, content: str, message: str):
    with pytest.raises(BadRequest, match=message):
        await importing.load(content, file_type="json")
    assert not await importing.exists()
