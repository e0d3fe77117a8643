"""The MCP SDK's low-level server with one echo tool, in its leanest documented mode."""

from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import mcp_types as types
from mcp.server.context import ServerRequestContext
from mcp.server.lowlevel import Server
from mcp.server.streamable_http_manager import StreamableHTTPASGIApp, StreamableHTTPSessionManager
from starlette.applications import Starlette
from starlette.routing import Route

SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {"text": {"type": "string"}},
    "required": ["text"],
}


async def list_tools(
    ctx: ServerRequestContext[Any], params: types.PaginatedRequestParams | None
) -> types.ListToolsResult:
    return types.ListToolsResult(tools=[types.Tool(name="echo", input_schema=SCHEMA)])


async def call_tool(ctx: ServerRequestContext[Any], params: types.CallToolRequestParams) -> types.CallToolResult:
    text = (params.arguments or {})["text"]
    return types.CallToolResult(content=[types.TextContent(type="text", text=text)])


def input_schema(name: str) -> Mapping[str, Any] | None:
    return SCHEMA if name == "echo" else None


# Without get_tool_input_schema every modern call would run tools/list first.
server = Server[Any]("echo", get_tool_input_schema=input_schema, on_list_tools=list_tools, on_call_tool=call_tool)
manager = StreamableHTTPSessionManager(server, stateless=True, json_response=True)


@asynccontextmanager
async def lifespan(app: Starlette) -> AsyncGenerator[None]:
    async with manager.run():
        yield


app = Starlette(routes=[Route("/mcp", StreamableHTTPASGIApp(manager))], lifespan=lifespan)
