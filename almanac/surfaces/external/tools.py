"""The external knowledge surface: five tools for trusted systems, as the seed's document describes them."""

from collections.abc import Generator, Iterable
from contextlib import contextmanager
from typing import Any

from almanac.core.errors import Forbidden, NotFound
from almanac.core.fair_slots import compute
from almanac.knowledge import bases, document_text, document_tree, downloads, knowledge_runtime
from almanac.knowledge.document_tree import Node
from almanac.knowledge.folders import Folder, FolderNotFound
from almanac.operations.context import RequestContext
from almanac.operations.operation import Handler
from almanac.surfaces.external import arguments, auth, limits, responses
from almanac.surfaces.external.responses import JsonObject
from almanac.surfaces.surface import Surface
from almanac.surfaces.tool import load_contract, operation_from_contract

MOUNT = "/mcp/knowledge-external"
TRANSPORT = "/sse"
SERVICE = "wegent-knowledge-external-mcp"
IGNORED_BASES_WARNING = "Some requested knowledge_base_ids were ignored because they are not accessible"

CONTRACT = load_contract(__file__)


async def list_knowledge_bases(ctx: RequestContext, raw: dict[str, Any]) -> JsonObject:
    """Return the knowledge bases that the caller may see."""
    args = arguments.parse_list_bases(raw)
    page = await bases.find(
        ctx,
        scope=args.scope,
        group=args.group_name if args.scope == "group" else None,
        query=args.query,
        owners=args.owner_user_ids,
        limit=args.limit,
        offset=args.offset,
    )
    creators = await auth.find_creators(ctx.db, {base.owner_id: base.owner_name for base in page.items}.items())
    return responses.base_list(page, args.limit, ctx.actor.org_name, creators)


async def list_nodes(ctx: RequestContext, raw: dict[str, Any]) -> JsonObject:
    """Return the nodes of a folder or of its whole subtree."""
    args = arguments.parse_list_nodes(raw)
    with _translated_errors("Knowledge base not found", "Access denied to knowledge base"):
        if args.recursive:
            listed = await document_tree.tree(
                ctx, args.knowledge_base_id, args.folder_id, inactive=args.include_inactive, brief=True
            )
        else:
            listed = await document_tree.browse(
                ctx,
                args.knowledge_base_id,
                args.folder_id,
                limit=args.limit,
                offset=args.offset,
                counted=True,
                inactive=args.include_inactive,
            )
    creators = await auth.find_creators(ctx.db, _creator_names(listed.nodes).items())
    if args.recursive:  # thousands of nodes would block the event loop
        return await compute(responses.node_list, listed, creators)
    return responses.node_list(listed, creators)


async def get_document_content(ctx: RequestContext, raw: dict[str, Any]) -> JsonObject:
    """Return a part of a document's text."""
    args = arguments.parse_content(raw)
    with _translated_errors("Document not found", "Access denied to this document"):
        return responses.content(await document_text.read(ctx, args.document_id, offset=args.offset, limit=args.limit))


async def get_document_download(ctx: RequestContext, raw: dict[str, Any]) -> JsonObject:
    """Return a download token for the original file, with its address below the mount of this request."""
    args = arguments.parse_download(raw)
    with _translated_errors("Document not found", "Access denied to this document"):
        token = await downloads.issue(ctx, ctx.app.key, args.document_id, args.disposition, files=ctx.app.files)
    return responses.download(token, ctx.path.removesuffix(TRANSPORT))


async def search_content(ctx: RequestContext, raw: dict[str, Any]) -> JsonObject:
    """Search the named bases that the caller may read."""
    args = arguments.parse_search(raw)
    await limits.count_search(ctx)
    readable = await bases.get_many(ctx, [id for id in args.knowledge_base_ids if id > 0])
    if not readable:
        raise NotFound("No accessible knowledge bases found")
    names = {base.id: base.name for base in readable}
    ignored = [id for id in args.knowledge_base_ids if id not in names]
    query = knowledge_runtime.RuntimeQuery(args.query, tuple(names), args.max_results)
    answer = await knowledge_runtime.query(ctx, ctx.app.search, ctx.app.runtime, query)
    return {
        "query": args.query,
        "total": len(answer.records) if answer.total is None else answer.total,
        "total_estimated_tokens": answer.tokens,
        "searched_knowledge_base_ids": list(names),
        "ignored_knowledge_base_ids": ignored,
        "warnings": [*([IGNORED_BASES_WARNING] if ignored else []), *answer.notes],
        "records": [responses.record(record, names) for record in answer.records],
    }


@contextmanager
def _translated_errors(missing: str, denied: str) -> Generator[None]:
    """Replace the messages of NotFound and Forbidden by those of the document."""
    try:
        yield
    except FolderNotFound:
        raise NotFound("Folder not found in knowledge base") from None
    except NotFound as error:
        if error.code != NotFound.code:
            raise
        raise NotFound(missing) from None
    except Forbidden:
        raise Forbidden(denied) from None


def _creator_names(nodes: Iterable[Node]) -> dict[int, str]:
    names: dict[int, str] = {}
    pending = list(nodes)
    while pending:
        node = pending.pop()
        if not isinstance(node.item, Folder):
            names[node.item.creator_id] = node.item.creator_name
        pending += node.children
    return names


_KNOWLEDGE, _SEARCH = frozenset({"knowledge:read"}), frozenset({"search:read"})
_HANDLERS: dict[str, tuple[Handler, frozenset[str]]] = {
    "wegent_kb_list_knowledge_bases": (list_knowledge_bases, _KNOWLEDGE),
    "wegent_kb_list_nodes": (list_nodes, _KNOWLEDGE),
    "wegent_kb_get_document_content": (get_document_content, _KNOWLEDGE),
    "wegent_kb_get_document_download": (get_document_download, _KNOWLEDGE),
    "wegent_kb_search_content": (search_content, _SEARCH),
}

SURFACE = Surface(
    name="external",
    path=MOUNT + TRANSPORT,
    server_name=SERVICE,
    title="External knowledge",
    operations=tuple(operation_from_contract(entry, *_HANDLERS[name]) for name, entry in CONTRACT.items()),
    authenticator=auth.ExternalAuthenticator,
    limit_before_body=limits.count_request,
    sends_retry_after=False,
    render_error=responses.render_error,
    render_result=responses.render_result,
    http_error=responses.http_error,
    setting="external_enabled",
)
