"""`almanac docs`: the documents of a knowledge base."""

from collections import defaultdict
from typing import Annotated, Any

import typer
from rich.text import Text
from rich.tree import Tree

from almanac.cli.support import operator_call
from almanac.cli.support.operation_call import all_pages, print_answer, request_of
from almanac.cli.support.options import BaseKey, Json
from almanac.cli.support.output import output_console, print_note, print_rows
from almanac.cli.support.startup import database_command
from almanac.core.database import Database
from almanac.core.errors import BadRequest
from almanac.knowledge.folders import ROOT
from almanac.operations import browse
from almanac.operations.browse import Browse, DocumentList, ListDocuments, NodeInfo, NodeList
from almanac.operations.context import RequestContext
from almanac.operations.models import MAX_PAGE_ITEMS

_COLOURS = {"success": "green", "failed": "red"}


@database_command
async def docs(
    db: Database,
    base: BaseKey,
    tree: Annotated[bool, typer.Option("--tree", help="Draw them in their folders.")] = False,
    status: Annotated[
        str | None, typer.Option("--status", help="Only documents with this status, such as failed.")
    ] = None,
    as_json: Json = False,
) -> None:
    """List the documents of a knowledge base with their status, and the reason if one failed.

    Example: [bold]almanac docs 1 --tree[/bold]
    """
    if tree and status is not None:
        raise BadRequest("A tree shows every document.", remedy="Leave --tree or --status out.")
    base_id = await operator_call.base_id(db, base)
    ctx = request_of(await operator_call.call_for_base(db, base_id))
    answer = await (_tree(ctx, base_id) if tree else _documents(ctx, base_id, status))
    if as_json:
        print_answer(answer)
    elif isinstance(answer, NodeList):
        _print_tree(answer)
    else:
        empty = "No documents." if status else f"No documents yet: almanac ingest {base_id} PATH"
        print_rows([_row(node) for node in answer.items], False, empty=empty)


async def _tree(ctx: RequestContext, base_id: int) -> NodeList:
    return await browse.browse(ctx, Browse(base_id=base_id, recursive=True))


async def _documents(ctx: RequestContext, base_id: int, status: str | None) -> DocumentList:
    """Return all documents of a base, by path."""
    arguments = ListDocuments(base_id=base_id, status=status, limit=MAX_PAGE_ITEMS)
    answer = await all_pages(browse.list_documents, ctx, arguments)
    answer.items.sort(key=lambda node: (node.path, node.name))
    return answer


def _row(node: NodeInfo) -> dict[str, Any]:
    return {
        "id": node.id,
        "folder": node.path,
        "name": node.name,
        "status": node.index_status,
        "pages": node.page_count,
        "size": node.size,
        "failure": node.failure,
    }


def _print_tree(answer: NodeList) -> None:
    children: defaultdict[int, list[NodeInfo]] = defaultdict(list)
    for node in answer.items:
        children[ROOT if node.is_orphan else node.folder_id].append(node)
    drawing = Tree(Text(answer.base, "bold"))
    waiting = [(drawing, ROOT)]
    while waiting:
        branch, folder_id = waiting.pop()
        for node in sorted(children[folder_id], key=lambda node: (node.kind == "document", node.name)):
            below = branch.add(_label(node))
            if node.kind == "folder":
                waiting.append((below, node.id))
    output_console().print(drawing, soft_wrap=True)
    for warning in answer.warnings:
        print_note(f"Warning: {warning}")


def _label(node: NodeInfo) -> Text:
    orphan = Text("  (its folder is missing)", "yellow") if node.is_orphan else Text()
    if node.kind == "folder":
        return Text(f"{node.name}/", "bold") + orphan
    code = f": {node.failure.partition(':')[0]}" if node.failure else ""
    status = Text(f"  {node.index_status}{code}", _COLOURS.get(node.index_status or "", "yellow"))
    return Text(f"{node.name}  ") + Text(f"#{node.id}", "dim") + status + orphan
