"""The fixtures of the conformance suites as a surface of the real application, with a token added to each request.

python -m tests.conformance.surface PORT HOME
"""

import asyncio
import os
import sys
from pathlib import Path
from typing import Any

import uvicorn
from mcp.shared.exceptions import MCPError
from starlette.types import ASGIApp, Receive, Scope, Send

from almanac.app import SURFACES, create_app
from almanac.bootstrap import load_settings, open_database
from almanac.core.settings import Settings
from almanac.identity import first_start
from almanac.operations.context import RequestContext
from almanac.operations.operation import Handler, Mcp, Operation
from almanac.surfaces.dispatcher import ProtocolError, ToolDispatcher
from almanac.surfaces.sdk_server import SdkServer
from almanac.surfaces.surface import Surface
from almanac.surfaces.tool import RawResult
from tests.conformance.fixtures import EVENT_STORE, HANDLERS, TOOLS, FixtureTool

# These tools send no requests to the client, so our own implementation answers them in the modern era.
PLAIN = {
    "test_simple_text",
    "test_image_content",
    "test_audio_content",
    "test_embedded_resource",
    "test_multiple_content_types",
    "test_error_handling",
}


def adapt(fixture: FixtureTool) -> Operation:
    entry = {"name": fixture.name, "description": fixture.description, "inputSchema": fixture.input_schema}
    mcp = Mcp(entry=entry, sdk_only=fixture.name not in PLAIN)
    return Operation(fixture.name, fixture.description, _runner(fixture), arguments=None, mcp=mcp)


def _runner(fixture: FixtureTool) -> Handler:
    async def run(ctx: RequestContext, arguments: dict[str, Any]) -> RawResult:
        try:
            return RawResult(await fixture.run(ctx.client, arguments))
        except MCPError as error:
            raise ProtocolError(error.code, error.message, error.data) from None

    return run


def open_sdk_server(dispatcher: ToolDispatcher) -> SdkServer:
    """The SDK server with everything that the suites test: streams, an event store and the other protocol methods."""
    sdk = SdkServer(dispatcher, json_response=False, event_store=EVENT_STORE(), retry_interval=100)
    for method, params, handler in HANDLERS:
        sdk.server.add_request_handler(method, params, handler)
    return sdk


def surface() -> Surface:
    return Surface(
        name="conformance",
        path="/conformance",
        operations=tuple(adapt(tool) for tool in TOOLS),
        sessions=True,
        sdk_server=open_sdk_server,
    )


class TokenAdder:
    """Adds a token to each request, because the suites have no option for it."""

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
    app = TokenAdder(create_app(settings, (*SURFACES, surface())), token)
    uvicorn.run(app, port=port, loop="uvloop", http="httptools", log_level="warning", access_log=False)


if __name__ == "__main__":
    main(int(sys.argv[1]), Path(sys.argv[2]))
