"""The in-process MCP server with the tool `weknora_search`. Its key and knowledge bases are hidden from the model.

It is for programs that run their own agent, and is not served over HTTP. `tool.json` is written by hand and listed
literally.
"""

from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, cast

import orjson

from almanac.assist.weknora.backends import open_trusted_backend
from almanac.assist.weknora.weknora_tool import TOOL, WeKnoraContext, WeKnoraTool
from almanac.core.settings import InvalidSetting, Settings
from almanac.net.errors import BadUrl
from almanac.net.url import read_url
from almanac.surfaces.sdk_server import build_in_process_server

SERVER_NAME = "weknora"
VERSION = "1.0.0"
QUALIFIED_TOOL_NAME = f"mcp__{SERVER_NAME}__{TOOL}"  # its name in the Agent SDK

CONTRACT: list[dict[str, Any]] = orjson.loads((Path(__file__).parent / "tool.json").read_bytes())


def create(context: WeKnoraContext, settings: Settings) -> Any:
    """Return an MCP server with one tool, which searches the bases of a context with its key."""
    _check(context)

    @asynccontextmanager
    async def open_tool(_: Any) -> AsyncGenerator[WeKnoraTool]:
        async with open_trusted_backend(context, settings) as backend:
            yield WeKnoraTool(backend, context, marks=settings.weknora_highlight)

    async def run(tool: WeKnoraTool, name: str, arguments: Mapping[str, Any]) -> dict[str, Any] | None:
        return (await tool.run(arguments)).result if name == TOOL else None

    return build_in_process_server(SERVER_NAME, VERSION, CONTRACT, open_tool, run)


def _check(context: WeKnoraContext) -> None:
    """Refuse a context that no search could use."""
    if not context.api_key.isascii() or not context.api_key.isprintable():
        raise InvalidSetting(
            "api_key contains characters that no key has.", remedy="Use the key as it was issued, in ASCII."
        )
    if isinstance(context.kb_ids, str):
        raise InvalidSetting("kb_ids is a string, not a list.", remedy='Use a list of ids, such as ["12"].')
    try:
        read_url(context.weknora_base_url)
    except BadUrl:
        raise InvalidSetting(
            "weknora_base_url is not the URL of a server.", remedy="Use a URL such as https://weknora.example.org."
        ) from None


def integrate(options: Any, context: WeKnoraContext, settings: Settings) -> Any:
    """Return the options of an agent with the tool added and allowed, or unchanged if there is nothing to search."""
    if not context.api_key or not context.kb_ids:
        return options
    is_mapping = isinstance(options, dict)
    given = cast("dict[str, Any]", options)
    servers = given.get("mcp_servers", {}) if is_mapping else options.mcp_servers
    allowed = given.get("allowed_tools", []) if is_mapping else options.allowed_tools
    if not isinstance(servers, Mapping):
        raise InvalidSetting(
            "mcp_servers of these options is the name of a file. An in-process server cannot be added to a file.",
            remedy="Use a mapping of names to servers.",
        )
    server = {"type": "sdk", "name": SERVER_NAME, "instance": create(context, settings)}
    changed: dict[str, Any] = {
        "mcp_servers": {**cast("Mapping[str, Any]", servers), SERVER_NAME: server},
        "allowed_tools": list(dict.fromkeys((*allowed, QUALIFIED_TOOL_NAME))),
    }
    if is_mapping:
        given.update(changed)
    else:
        for name, value in changed.items():
            setattr(options, name, value)
    return options
