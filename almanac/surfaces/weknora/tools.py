"""The in-process server: `weknora_search` as an MCP tool, bound to a key and bases that no model sees.

It is made for programs that run an agent of their own, and is not served over HTTP. `tool.json` is written by hand
and listed to the letter.
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

SERVER = "weknora"
VERSION = "1.0.0"
ALLOWED = f"mcp__{SERVER}__{TOOL}"  # what the Agent SDK calls it

# Written by hand, and listed as it is.
CONTRACT: list[dict[str, Any]] = orjson.loads((Path(__file__).parent / "tool.json").read_bytes())


def create(context: WeKnoraContext, settings: Settings) -> Any:
    """An MCP server whose one tool searches the bases of a context with its key."""
    _check(context)

    @asynccontextmanager
    async def bound(_: Any) -> AsyncGenerator[WeKnoraTool]:
        async with open_trusted_backend(context, settings) as source:
            yield WeKnoraTool(source, context, marks=settings.weknora_highlight)

    async def run(lookup: WeKnoraTool, name: str, arguments: Mapping[str, Any]) -> dict[str, Any] | None:
        return (await lookup.run(arguments)).result if name == TOOL else None

    return build_in_process_server(SERVER, VERSION, CONTRACT, bound, run)


def _check(context: WeKnoraContext) -> None:
    """Refuse what nothing could be searched with."""
    if not context.api_key.isascii() or not context.api_key.isprintable():
        raise InvalidSetting(
            "api_key has characters that no key has.", remedy="Give the key as it was issued, in ASCII."
        )
    if isinstance(context.kb_ids, str):
        raise InvalidSetting("kb_ids is one text, not a list.", remedy='Give a list of ids, such as ["12"].')
    try:
        read_url(context.weknora_base_url)
    except BadUrl:
        raise InvalidSetting(
            "weknora_base_url is no address of a server.", remedy="Give one such as https://weknora.example.org."
        ) from None


def integrate(options: Any, context: WeKnoraContext, settings: Settings) -> Any:
    """An agent's options, with the tool added and allowed; as they were where there is nothing to search."""
    if not context.api_key or not context.kb_ids:
        return options
    is_mapping = isinstance(options, dict)
    given = cast("dict[str, Any]", options)
    servers = given.get("mcp_servers", {}) if is_mapping else options.mcp_servers
    allowed = given.get("allowed_tools", []) if is_mapping else options.allowed_tools
    if not isinstance(servers, Mapping):
        raise InvalidSetting(
            "mcp_servers of these options is the name of a file, to which no server in process can be added.",
            remedy="Give it as a mapping of names to servers.",
        )
    server = {"type": "sdk", "name": SERVER, "instance": create(context, settings)}
    changed: dict[str, Any] = {
        "mcp_servers": {**cast("Mapping[str, Any]", servers), SERVER: server},
        "allowed_tools": list(dict.fromkeys((*allowed, ALLOWED))),
    }
    if is_mapping:
        given.update(changed)
    else:
        for name, value in changed.items():
            setattr(options, name, value)
    return options
