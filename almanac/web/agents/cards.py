"""Agent cards: the descriptions of agents in the form of the A2A protocol."""

from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from almanac import __version__
from almanac.core.settings import Settings

WELL_KNOWN = "/.well-known/agent-card.json"
AGENTS_PREFIX = "/a2a"


def card(settings: Settings, agent: str) -> dict[str, Any]:
    """Return the card of an agent."""
    return {
        "name": agent,
        "description": "Answers questions from this server's knowledge bases, with citations.",
        "version": __version__,
        "supportedInterfaces": [
            {"url": f"{settings.url}{AGENTS_PREFIX}/{agent}", "protocolBinding": "JSONRPC", "protocolVersion": "1.0"}
        ],
        "capabilities": {"streaming": True, "pushNotifications": False, "extendedAgentCard": False},
        "defaultInputModes": ["text/plain"],
        "defaultOutputModes": ["text/plain", "application/json"],
        "securitySchemes": {
            "bearer": {"httpAuthSecurityScheme": {"scheme": "Bearer"}},
            "key": {"apiKeySecurityScheme": {"location": "header", "name": "X-API-Key"}},
        },
        "securityRequirements": [{"schemes": {"bearer": {"list": []}}}, {"schemes": {"key": {"list": []}}}],
        "skills": [
            {
                "id": "answer",
                "name": "Answer from knowledge bases",
                "description": "Searches documents by words and by meaning, searches again if there are few "
                "results, and answers from them, with citations. A message's metadata may have kb_ids, api_key and "
                "weknora_base_url. Without them, all documents that the caller may read are searched.",
                "tags": ["search", "knowledge", "citations"],
                "examples": ["How often is the pump oiled?"],
            }
        ],
    }


def card_routes(settings: Settings) -> list[Route]:
    """Return the routes of the cards: the first agent at the well-known path, and each agent below its own path.

    Cards contain nobody's data, so they need no token.
    """

    async def first(_: Request) -> Response:
        return JSONResponse(card(settings, settings.agent_names[0]))

    async def each(request: Request) -> Response:
        name = request.path_params["agent"]
        if name in settings.agent_names:
            return JSONResponse(card(settings, name))
        return JSONResponse({"error": "There is no such agent.", "code": "not_found"}, 404)

    named = Route(f"{AGENTS_PREFIX}/{{agent}}{WELL_KNOWN}", each, methods=["GET"])
    return [Route(WELL_KNOWN, first, methods=["GET"]), named] if settings.agent_names else []
