"""The external knowledge surface: five tools for trusted systems, exactly as their document has them."""

import asyncio
from collections.abc import Generator, Iterable
from contextlib import contextmanager
from typing import Any

from almanac.core.errors import Forbidden, NotFound
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
IGNORED = "Some requested knowledge_base_ids were ignored because they are not accessible"

CONTRACT = load_contract(__file__)


async def list_knowledge_bases(ctx: RequestContext, given: dict[str, Any]) -> JsonObject:
    """The knowledge bases that the caller may see."""
    asked = arguments.list_bases(given)
    page = await bases.find(
        ctx,
        scope=asked.scope,
        group=asked.group_name if asked.scope == "group" else None,
        query=asked.query,
        owners=asked.owner_user_ids,
        limit=asked.limit,
        offset=asked.offset,
    )
    owners = await auth.creators(ctx.db, {base.owner_id: base.owner_name for base in page.items}.items())
    return responses.base_list(page, asked.limit, ctx.actor.org_name, owners)


async def list_nodes(ctx: RequestContext, given: dict[str, Any]) -> JsonObject:
    """What is in a folder, or below it."""
    asked = arguments.list_nodes(given)
    with _translated_errors("Knowledge base not found", "Access denied to knowledge base"):
        if asked.recursive:
            listed = await document_tree.tree(
                ctx, asked.knowledge_base_id, asked.folder_id, inactive=asked.include_inactive, brief=True
            )
        else:
            listed = await document_tree.browse(
                ctx,
                asked.knowledge_base_id,
                asked.folder_id,
                limit=asked.limit,
                offset=asked.offset,
                counted=True,
                inactive=asked.include_inactive,
            )
    makers = await auth.creators(ctx.db, _makers(listed.nodes).items())
    if asked.recursive:  # thousands of nodes: not on the event loop
        return await asyncio.to_thread(responses.node_list, listed, makers)
    return responses.node_list(listed, makers)


async def get_document_content(ctx: RequestContext, given: dict[str, Any]) -> JsonObject:
    """Some of a document's text."""
    asked = arguments.read_content(given)
    with _translated_errors("Document not found", "Access denied to this document"):
        return responses.content(
            await document_text.read(ctx, asked.document_id, offset=asked.offset, limit=asked.limit)
        )


async def get_document_download(ctx: RequestContext, given: dict[str, Any]) -> JsonObject:
    """A credential with which the original file can be fetched, at the mount that this call came by."""
    asked = arguments.ask_download(given)
    with _translated_errors("Document not found", "Access denied to this document"):
        credential = await downloads.issue(ctx, ctx.app.key, asked.document_id, asked.disposition, files=ctx.app.files)
    return responses.download(credential, ctx.path.removesuffix(TRANSPORT))


async def search_content(ctx: RequestContext, given: dict[str, Any]) -> JsonObject:
    """What answers a query, in those of the bases named that the caller may read."""
    asked = arguments.search_content(given)
    await limits.count_search(ctx)
    named = [id for id in asked.knowledge_base_ids if id > 0]
    found = await bases.get_many(ctx, named)
    if not found:
        raise NotFound("No accessible knowledge bases found")
    names = {base.id: base.name for base in found}
    ignored = [id for id in asked.knowledge_base_ids if id not in names]
    query = knowledge_runtime.RuntimeQuery(asked.query, tuple(names), asked.max_results)
    answer = await knowledge_runtime.query(ctx, ctx.app.search, ctx.app.runtime, query)
    return {
        "query": asked.query,
        "total": len(answer.records) if answer.total is None else answer.total,
        "total_estimated_tokens": answer.tokens,
        "searched_knowledge_base_ids": list(names),
        "ignored_knowledge_base_ids": ignored,
        "warnings": [IGNORED] if ignored else [],
        "records": [responses.record(each, names) for each in answer.records],
    }


@contextmanager
def _translated_errors(missing: str, denied: str) -> Generator[None]:
    """Say in this surface's words that something is not there for the caller, or not open to them."""
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


def _makers(found: Iterable[Node]) -> dict[int, str]:
    makers: dict[int, str] = {}
    waiting = list(found)
    while waiting:
        node = waiting.pop()
        if not isinstance(node.item, Folder):
            makers[node.item.creator_id] = node.item.creator_name
        waiting += node.children
    return makers


_KNOWLEDGE, _SEARCH = frozenset({"knowledge:read"}), frozenset({"search:read"})
_RUNS: dict[str, tuple[Handler, frozenset[str]]] = {
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
    operations=tuple(operation_from_contract(entry, *_RUNS[name]) for name, entry in CONTRACT.items()),
    authenticator=auth.ExternalAuthenticator,
    limit_before_body=limits.count_request,
    sends_retry_after=False,
    render_error=responses.as_error,
    render_result=responses.as_text,
    http_error=responses.http_error,
    setting="external_enabled",
)
