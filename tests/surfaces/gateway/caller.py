"""A caller of the gateway, over raw HTTP."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import httpx2

from tests.live_server import LEGACY, MODERN, Running, request

PATH = "/gateway/mcp"
HELLO = {"protocolVersion": LEGACY, "capabilities": {}, "clientInfo": {"name": "test", "version": "1"}}


def post(live: Running, message: Any, headers: Mapping[str, str]) -> httpx2.Response:
    """Send a message with only these headers."""
    sent = {"content-type": "application/json", "accept": "application/json, text/event-stream", **headers}
    return live.http.post(PATH, content=json.dumps(message), headers=sent)


def initialize(live: Running, headers: Mapping[str, str]) -> httpx2.Response:
    """The first message of a connection in the older eras."""
    return post(live, {"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": HELLO}, headers)


@dataclass
class Caller:
    """A connected caller, identified by the session or, in the newest era, by the key."""

    live: Running
    headers: dict[str, str] = field(default_factory=dict[str, str])
    era: str = LEGACY

    @classmethod
    def connect(cls, live: Running, key: str | None = None) -> "Caller":
        response = initialize(live, {"x-api-key": key or live.token})
        assert response.status_code == 200, response.text
        return cls(live, {"mcp-session-id": response.headers["mcp-session-id"]})

    @classmethod
    def newest(cls, live: Running, key: str | None = None) -> "Caller":
        return cls(live, {"x-api-key": key or live.token}, MODERN)

    def rpc(self, method: str, params: Mapping[str, Any] | None = None) -> httpx2.Response:
        message, sent = request(method, params, era=self.era)
        return post(self.live, message, {**sent, **self.headers})

    def call(self, tool: str, arguments: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """Call a tool; return its result, one text."""
        response = self.rpc("tools/call", {"name": tool, "arguments": arguments or {}})
        assert response.status_code == 200, response.text
        result = response.json()["result"]
        assert [part["type"] for part in result["content"]] == ["text"]
        assert "structuredContent" not in result
        return result

    def ask(self, tool: str, **arguments: Any) -> Any:
        """Call a tool; return its answer from JSON, which is indented by two spaces."""
        result = self.call(tool, arguments)
        assert result["isError"] is False, result
        text = result["content"][0]["text"]
        value = json.loads(text)
        assert text == json.dumps(value, indent=2, ensure_ascii=False)
        return value

    def refused(self, tool: str, **arguments: Any) -> str:
        """Call a tool that fails; return the error text."""
        result = self.call(tool, arguments)
        assert result["isError"] is True, result
        return result["content"][0]["text"]
