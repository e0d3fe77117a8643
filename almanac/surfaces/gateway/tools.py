"""The gateway surface: four tools over a knowledge-base service, as their document describes them."""

from typing import Any

import orjson

from almanac import __version__
from almanac.core import clock
from almanac.core.errors import AlmanacError, Limited, Unauthorized
from almanac.identity.credentials import api_key
from almanac.operations.context import RequestContext
from almanac.operations.operation import Handler
from almanac.surfaces import json_rpc
from almanac.surfaces.gateway import zod
from almanac.surfaces.gateway.auth import GatewayAuthenticator
from almanac.surfaces.gateway.state import Gateway, open_gateway
from almanac.surfaces.gateway.upstream import Upstream, UpstreamFailed
from almanac.surfaces.surface import Surface
from almanac.surfaces.tool import load_contract, operation_from_contract

MAX_TOP_K = 50
DEFAULT_TOP_K = 10

CONTRACT = load_contract(__file__)

_ERROR = -32001


def _either(given: dict[str, Any]) -> str | None:
    return None if given["id"] or given["name"] else "At least one of id or name must be provided"


SEARCH = zod.Schema(
    {
        "namespace": zod.Field(zod.text, is_required=True),
        "query": zod.Field(zod.text, is_required=True),
        "metadata": zod.Field(zod.anything),
        "topK": zod.Field(zod.count(MAX_TOP_K), default=DEFAULT_TOP_K),
    }
)
ENTITY = zod.Schema({"id": zod.Field(zod.text), "name": zod.Field(zod.text)}, _either)
STRUCTURE = zod.Schema({"categoryId": zod.Field(zod.text)})


async def search_knowledge_base(ctx: RequestContext, given: dict[str, Any]) -> Any:
    """What of a namespace answers a question."""
    asked = SEARCH.parse(given)
    body = {"namespace": asked["namespace"], "query": asked["query"], "topK": int(asked["topK"])}
    if asked["metadata"] is not None:
        body["metadata"] = asked["metadata"]
    return await _upstream(ctx).retrieve(ctx, ctx.app.search, body)


async def get_entity(ctx: RequestContext, given: dict[str, Any]) -> Any:
    """One entity, by its id or its exact name."""
    asked = ENTITY.parse(given)
    return await _upstream(ctx).entity(ctx, asked["id"] or asked["name"])


async def get_structure(ctx: RequestContext, given: dict[str, Any]) -> Any:
    """The tree of categories, or one of them."""
    return await _upstream(ctx).structure(ctx, STRUCTURE.parse(given)["categoryId"])


async def health_check(ctx: RequestContext, given: dict[str, Any]) -> Any:
    """Whether the gateway and what it stands before work."""
    gateway: Gateway = ctx.surface_state
    parts = {
        "knowledgeBase": await gateway.upstream.is_available(ctx),
        "accessKeys": await gateway.keys.is_available(),
    }
    is_well = all(parts.values())
    return {
        "status": "ok" if is_well else "degraded",
        "message": "Service is operational" if is_well else "A service behind the gateway does not answer",
        "version": __version__,
        "timestamp": clock.format_timestamp(clock.now()),
        **{name: "ok" if works else "unreachable" for name, works in parts.items()},
    }


def _upstream(ctx: RequestContext) -> Upstream:
    gateway: Gateway = ctx.surface_state
    return gateway.upstream


def pretty(value: Any) -> dict[str, Any]:
    """A result as the document shows it: one text, of JSON with two spaces to a level."""
    text = orjson.dumps(value, option=orjson.OPT_INDENT_2).decode()
    return {"content": [{"type": "text", "text": text}], "isError": False}


def tell(error: AlmanacError) -> dict[str, Any]:
    """An error: Zod's account of the arguments as it is, and what the knowledge-base service said as such."""
    if isinstance(error, zod.Invalid | Unauthorized):
        text = error.message
    elif isinstance(error, Limited):
        text = error.text
    else:
        status = error.upstream_status if isinstance(error, UpstreamFailed) else error.status
        text = f"Knowledge Base service error ({status}): {error.text}"
    return {"content": [{"type": "text", "text": text}], "isError": True}


def http_error(error: AlmanacError) -> tuple[int, dict[str, Any]]:
    """A failure before any tool is reached, in the words of the document where it has some."""
    text = error.message if isinstance(error, Unauthorized) else error.text
    return error.status, json_rpc.error(None, _ERROR, text, {"code": error.code})


_READ = frozenset({"catalogue:read"})
_RUNS: dict[str, tuple[Handler, frozenset[str]]] = {
    "search-knowledge-base": (search_knowledge_base, _READ | {"search:read"}),
    "get-entity": (get_entity, _READ),
    "get-knowledge-base-structure": (get_structure, _READ),
    "health-check": (health_check, frozenset()),
}

SURFACE = Surface(
    name="gateway",
    path="/gateway/mcp",
    title="Knowledge Base Gateway",
    operations=tuple(operation_from_contract(entry, *_RUNS[name]) for name, entry in CONTRACT.items()),
    credential=api_key,
    render_error=tell,
    render_result=pretty,
    http_error=http_error,
    authenticator=GatewayAuthenticator,
    open_state=open_gateway,
    lists_all_tools=True,  # the document counts four tools, for everyone
)
