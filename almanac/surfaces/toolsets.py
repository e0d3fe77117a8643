"""Toolsets: a client names the parts of a surface that it uses, and gets only their tools.

The names are in the header `X-MCP-Toolsets` or in the parameter `toolsets` of the URL, separated by commas. A tool
that is not listed cannot be called either.
"""

from collections.abc import Mapping
from dataclasses import replace

from almanac.core.call import Actor
from almanac.core.errors import BadRequest
from almanac.net.http_exchange import HttpExchange
from almanac.net.query_string import read_query_string

HEADER = b"x-mcp-toolsets"
PARAMETER = "toolsets"


def narrowed(actor: Actor, http: HttpExchange, toolsets: Mapping[str, frozenset[str]]) -> Actor:
    """Return the caller, limited to the tools of the toolsets that the request names; unchanged if it names none."""
    asked = http.headers.get(HEADER, b"").decode("latin-1")
    if not asked and http.scope["query_string"]:
        asked = read_query_string(http).get(PARAMETER, "")
    names = {name.strip().lower() for name in asked.split(",")} - {""}
    if not names:
        return actor
    if unknown := sorted(names - toolsets.keys()):
        raise BadRequest(
            f"There is no toolset {unknown[0][:50]!r}.", remedy=f"The toolsets are: {', '.join(toolsets)}."
        )
    tools = frozenset[str]().union(*(toolsets[name] for name in names))
    return replace(actor, tools=tools if actor.tools is None else actor.tools & tools)
