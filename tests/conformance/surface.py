"""The suites' fixtures as a surface of the real application, behind a shim that adds a token to each request.

python -m tests.conformance.surface PORT HOME
"""

import asyncio
import os
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import uvicorn
from mcp.shared.exceptions import MCPError
from starlette.types import ASGIApp, Receive, Scope, Send

from almanac.app import SURFACES, create_app
from almanac.bootstrap import load_settings, open_database
from almanac.core.settings import Settings
from almanac.identity import first_start
from almanac.surfaces.surface import ProtocolError, Surface
from almanac.surfaces.tool import RawResult, Run, Tool, ToolCall, tool_from_contract
from tests.conformance.fixtures import EVENT_STORE, HANDLERS, TOOLS, FixtureTool

# These never talk back to the client, so in the modern era our own fast path answers them.
PLAIN = {
    "test_simple_text",
    "test_image_content",
    "test_audio_content",
    "test_embedded_resource",
    "test_multiple_content_types",
    "test_error_handling",
}


def adapt(fixture: FixtureTool) -> Tool:
    entry = {"name": fixture.name, "description": fixture.description, "inputSchema": fixture.input_schema}
    return replace(tool_from_contract(entry, _runner(fixture)), needs_client=fixture.name not in PLAIN)


def _runner(fixture: FixtureTool) -> Run:
    async def run(call: ToolCall, arguments: dict[str, Any]) -> RawResult:
        try:
            return RawResult(await fixture.run(call.client, arguments))
        except MCPError as error:
            raise ProtocolError(error.code, error.message, error.data) from None

    return run


def surface() -> Surface:
    return Surface(
        name="conformance",
        path="/conformance",
        tools=tuple(adapt(tool) for tool in TOOLS),
        sessions=True,
        streams=True,
        transport={"event_store": EVENT_STORE(), "retry_interval": 100},
        handlers=HANDLERS,
    )


class Shim:
    """Adds the token that the suites have no option for."""

    def __init__(self, app: ASGIApp, token: str) -> None:
        self._app = app
        self._header = (b"authorization", f"Bearer {token}".encode())

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            scope["headers"] = [*scope["headers"], self._header]
        await self._app(scope, receive, send)


async def first_token(settings: Settings) -> str:
    async with open_database(settings) as db:
        token = await first_start.create_first_admin(db)
    assert token is not None
    return token


def main(port: int, home: Path) -> None:
    os.environ |= {"ALMANAC_HOME": str(home), "ALMANAC_RATE_LIMIT_CALLS": "100000"}
    settings = load_settings().settings
    token = asyncio.run(first_token(settings))
    app = Shim(create_app(settings, (*SURFACES, surface())), token)
    uvicorn.run(app, port=port, loop="uvloop", http="httptools", log_level="warning", access_log=False)


if __name__ == "__main__":
    main(int(sys.argv[1]), Path(sys.argv[2]))
