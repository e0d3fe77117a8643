"""A caller of the Knowi surface that was written from the seed's document alone."""

import json
from dataclasses import dataclass, field
from typing import Any

import httpx2

from tests.live_server import Running

PATH = "/api/2.0/mcp"


@dataclass
class Caller:
    """A user with a token, and with the session that the server named last."""

    live: Running
    token: str
    session: str = ""
    http: httpx2.Client = field(init=False)

    def __post_init__(self) -> None:
        self.http = self.live.http

    @property
    def headers(self) -> dict[str, str]:
        """The headers of the document."""
        session = {"mcp-session-id": self.session} if self.session else {}
        return {"authorization": f"Bearer {self.token}", "content-type": "application/json", **session}

    def send(self, method: str, params: Any = None, *, id: Any = 1, **headers: str) -> httpx2.Response:
        """Send a JSON-RPC message, and keep the session of its answer. Without an id it is a notification."""
        message: dict[str, Any] = {"jsonrpc": "2.0", "method": method}
        message |= ({"id": id} if id is not None else {}) | ({"params": params} if params is not None else {})
        response = self.http.post(PATH, content=json.dumps(message), headers={**self.headers, **headers})
        self.session = response.headers.get("mcp-session-id", self.session)
        return response

    def connect(self) -> dict[str, Any]:
        """Do the handshake of the document, and return the server's part."""
        result = self.send("initialize", {}).json()["result"]
        assert self.send("notifications/initialized", id=None).status_code == 204
        return result

    def call(self, tool: str, arguments: dict[str, Any] | None = None, **params: Any) -> dict[str, Any]:
        """Call a tool over JSON-RPC and return its result."""
        body = {"name": tool, "arguments": arguments or {}, **params}
        response = self.send("tools/call", body)
        assert response.status_code == 200, response.text
        return response.json()["result"]

    def data(self, tool: str, arguments: dict[str, Any] | None = None) -> Any:
        """Call a tool and return its data, from the second text."""
        result = self.call(tool, arguments)
        assert result["isError"] is False, result
        return json.loads(result["content"][1]["text"])

    def refused(self, tool: str, arguments: dict[str, Any] | None = None) -> str:
        """Call a tool that refuses, and return its text."""
        result = self.call(tool, arguments)
        assert result["isError"] is True, result
        [content] = result["content"]
        return content["text"]

    def rest(self, method: str, path: str, body: Any = None) -> httpx2.Response:
        """Send a REST request."""
        content = None if body is None else json.dumps(body)
        return self.http.request(method, PATH + path, content=content, headers=self.headers)

    def ingest(self, name: str, content: str) -> str:
        """Ingest a text and return the id of the document."""
        return self.data("knowi_ingest_document", {"fileName": name, "content": content})["documentId"]


def caller(live: Running, name: str = "", **options: Any) -> Caller:
    """A caller with a token of its own; without a name, the first administrator."""
    return Caller(live, live.new_token(name, **options) if name else live.token)
