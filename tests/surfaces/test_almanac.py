"""The surface /mcp over HTTP."""

import json

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
