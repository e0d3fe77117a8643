"""FastMCP's echo, in its leanest documented mode. Runs in its own environment with its own versions."""
# FastMCP is not installed beside our pins, so its types are unknown here.
# pyright: reportMissingImports=false, reportUnknownVariableType=false
# pyright: reportUnknownMemberType=false, reportUntypedFunctionDecorator=false

from fastmcp import FastMCP

server = FastMCP("echo")


# A coroutine, because FastMCP runs plain functions in a thread, which costs more.
@server.tool
async def echo(text: str) -> str:
    return text


app = server.http_app(path="/mcp", stateless_http=True, json_response=True)
