"""The memory surface over HTTP: functions for its tests."""

import json
from collections.abc import Sequence
from typing import Any

from tests.live_server import Running

PATH = "/mcp/memory"
BOTH = ["knowledge:read", "knowledge:write"]


def agent(server: Running, name: str, *, scope: Sequence[str] = BOTH, **how: Any) -> str:
    """A token of an agent with all scopes of the surface."""
    return server.new_token(name, kind="agent", scope=scope, **how)


def ask(server: Running, tool: str, *, token: str, era: str = "2025-11-25", **arguments: Any) -> Any:
    """Call a tool that must succeed; return its structured content."""
    result = server.call(tool, arguments, token=token, path=PATH, era=era)
    assert not result["isError"], result["content"]
    assert json.loads(result["content"][0]["text"]) == result["structuredContent"]
    return result["structuredContent"]


def refused(server: Running, tool: str, *, token: str, **arguments: Any) -> dict[str, Any]:
    """Call a tool that must fail; return its error."""
    result = server.call(tool, arguments, token=token, path=PATH)
    assert result["isError"], result
    assert result.keys() == {"content", "isError"}
    return json.loads(result["content"][0]["text"])["error"]


def titles(found: Any) -> list[str]:
    return [each["title"] for each in found["results"]]
