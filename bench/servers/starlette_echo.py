"""The floor: a Starlette route that reads JSON and answers JSON in the shape of a tool result."""

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route


async def echo(request: Request) -> JSONResponse:
    message = await request.json()
    text = message["params"]["arguments"]["text"]
    result = {"content": [{"type": "text", "text": text}], "isError": False}
    return JSONResponse({"jsonrpc": "2.0", "id": message["id"], "result": result})


app = Starlette(routes=[Route("/mcp", echo, methods=["POST"])])
