"""The surface /mcp over HTTP."""

import json
from typing import Any

import pytest

from almanac.core import scopes
from tests.live_server import ERAS, Running


@pytest.mark.parametrize("era", ERAS)
def test_whoami_says_who_calls_and_what_remains(server: Running, era: str):
    result = server.call("whoami", era=era)
    me = result["structuredContent"]
    assert (me["name"], me["kind"], me["organisation"]["name"], me["is_admin"]) == ("admin", "user", "main", True)
    assert me["scopes"] == sorted(scopes.SCOPES)
    assert me["rate_limit"]["limit"] == 100_000
    assert me["rate_limit"]["remaining"] == 99_999
    assert json.loads(result["content"][0]["text"]) == me


@pytest.mark.parametrize(
    ("tool", "arguments", "text"),
    [
        (
            "browse", {"base_id": 999},
            "not_found: There is no knowledge base 999, or you may not see it. Use an id from a list or a search.",
        ),
        (
            "read_document", {"document_id": 999},
            "not_found: There is no document 999, or you may not see it. Use an id from a list or a search.",
        ),
        (
            "list_bases", {"offset": -1},
            "bad_request: offset: Input should be greater than or equal to 0. About offset: Items to skip.",
        ),
        (
            "browse", {"base_id": -1},
            "bad_request: base_id: is not an id: use one that a list or a search returned."
            " About base_id: From list_bases.",
        ),
        (
            "search", {"query": "oil", "base_ids": ["manuals"]},
            "bad_request: base_ids.0: Input should be a valid integer."
            " About base_ids: From list_bases. Default: all you may read.",
        ),
        (
            "fetch", {"id": "12", "from": 0},
            "bad_request: from: is not an argument of this operation."
            " It takes: id, offset (optional), limit (optional).",
        ),
    ],
)  # fmt: skip
def test_a_refusal_names_the_next_step(server: Running, tool: str, arguments: dict[str, Any], text: str):
    result = server.call(tool, arguments)
    assert result["isError"] is True
    assert result["content"][0]["text"] == text
