"""The gateway surface: four tools over a knowledge-base service, as the seed's document describes them."""

from typing import Any

import orjson

from almanac import __version__
from almanac.core import clock
from almanac.core.errors import AlmanacError, Limited, Unauthorized
from almanac.identity.credentials import api_key
from almanac.net import json_rpc
from almanac.operations.context import RequestContext
from almanac.operations.operation import Handler
from almanac.surfaces.gateway import zod
from almanac.surfaces.gateway.auth import GatewayAuthenticator
from almanac.surfaces.gateway.state import GatewayServices, open_gateway
from almanac.surfaces.gateway.upstream import Upstream, UpstreamFailed
from almanac.surfaces.surface import Surface, text_result
from almanac.surfaces.tool import load_contract, operation_from_contract

MAX_TOP_K = 50
DEFAULT_TOP_K = 10

CONTRACT = load_contract(__file__)

_ERROR_CODE = -32001


def _require_id_or_name(raw: dict[str, Any]) -> str | None:
    return None if raw["id"] or raw["name"] else "At least one of id or name must be provided"


SEARCH = zod.ZodSchema(
    {
        "namespace": zod.ZodField(zod.non_empty_string, is_required=True),
        "query": zod.ZodField(zod.non_empty_string, is_required=True),
        "metadata": zod.ZodField(zod.any_object),
        "topK": zod.ZodField(zod.positive_integer(MAX_TOP_K), default=DEFAULT_TOP_K),
    }
)
ENTITY = zod.ZodSchema(
    {"id": zod.ZodField(zod.non_empty_string), "name": zod.ZodField(zod.non_empty_string)}, _require_id_or_name
)
STRUCTURE = zod.ZodSchema({"categoryId": zod.ZodField(zod.non_empty_string)})


async def search_knowledge_base(ctx: RequestContext, raw: dict[str, Any]) -> Any:
    """Search a namespace."""
    args = SEARCH.parse(raw)
    body = {"namespace": args["namespace"], "query": args["query"], "topK": int(args["topK"])}
    if args["metadata"] is not None:
        body["metadata"] = args["metadata"]
    return await _upstream(ctx).retrieve(ctx, ctx.app.search, body)


async def get_entity(ctx: RequestContext, raw: dict[str, Any]) -> Any:
    """Return one entity, by its id or its exact name."""
    args = ENTITY.parse(raw)
    return await _upstream(ctx).entity(ctx, args["id"] or args["name"])


async def get_structure(ctx: RequestContext, raw: dict[str, Any]) -> Any:
    """Return the tree of categories, or one category."""
    return await _upstream(ctx).structure(ctx, STRUCTURE.parse(raw)["categoryId"])


async def health_check(ctx: RequestContext, raw: dict[str, Any]) -> Any:
    """Return the state of the gateway and of the services behind it."""
    gateway: GatewayServices = ctx.surface_state
    parts = {
        "knowledgeBase": await gateway.upstream.is_available(ctx),
        "accessKeys": await gateway.keys.is_available(),
    }
    is_healthy = all(parts.values())
    return {
        "status": "ok" if is_healthy else "degraded",
        "message": "Service is operational" if is_healthy else "A service behind the gateway does not answer",
        "version": __version__,
        "timestamp": clock.format_timestamp(clock.now()),
        **{name: "ok" if is_up else "unreachable" for name, is_up in parts.items()},
    }


def _upstream(ctx: RequestContext) -> Upstream:
    gateway: GatewayServices = ctx.surface_state
    return gateway.upstream


def render_result(value: Any) -> dict[str, Any]:
    """Return a result in the form of the document: one text of JSON, indented by two spaces."""
    return text_result(orjson.dumps(value, option=orjson.OPT_INDENT_2).decode())


def render_error(error: AlmanacError) -> dict[str, Any]:
    """Return an error: Zod's message unchanged, or an error of the knowledge-base service marked as such."""
    if isinstance(error, zod.InvalidZodArguments | Unauthorized):
        text = error.message
    elif isinstance(error, Limited):
        text = error.text
    else:
        status = error.upstream_status if isinstance(error, UpstreamFailed) else error.status
        text = f"Knowledge Base service error ({status}): {error.text}"
    return text_result(text, is_error=True)


def http_error(error: AlmanacError) -> tuple[int, dict[str, Any]]:
    """Return the status and JSON-RPC error of a failure before a tool is reached, in the words of the document."""
    text = error.message if isinstance(error, Unauthorized) else error.text
    return error.status, json_rpc.error(None, _ERROR_CODE, text, {"code": error.code})


_READ = frozenset({"catalogue:read"})
_HANDLERS: dict[str, tuple[Handler, frozenset[str]]] = {
    "search-knowledge-base": (search_knowledge_base, _READ | {"search:read"}),
    "get-entity": (get_entity, _READ),
    "get-knowledge-base-structure": (get_structure, _READ),
    "health-check": (health_check, frozenset()),
}

SURFACE = Surface(
    name="gateway",
    path="/gateway/mcp",
    title="Knowledge Base Gateway",
    operations=tuple(operation_from_contract(entry, *_HANDLERS[name]) for name, entry in CONTRACT.items()),
    credential=api_key,
    render_error=render_error,
    render_result=render_result,
    http_error=http_error,
    authenticator=GatewayAuthenticator,
    open_state=open_gateway,
    lists_all_tools=True,  # the document has four tools for every caller
)
