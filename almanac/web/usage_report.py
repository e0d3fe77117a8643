"""`GET /mcp/usage`: what remains of the caller's limit, and what its organisation may store and has stored."""

from typing import Any

from starlette.routing import Route

from almanac.memory import limits
from almanac.web.rest import Ask, Endpoint, Rest, RestEndpoint

PATH = "/mcp/usage"


async def usage(ask: Ask, _: Any, __: Any) -> dict[str, Any]:
    """The caller's limit, entitlements and usage."""
    return await limits.report(ask, ask.rest.settings, ask.rest.rates)


USAGE = Endpoint("GET", PATH, "usage", "What remains of your limits", usage, scope="", answer=dict)


def route(rest: Rest) -> Route:
    """It stands beside the MCP endpoints, where their clients look for it, and not below the REST prefix."""
    return Route(PATH, RestEndpoint(rest, {"GET": USAGE}))
