"""`almanac docs`: the documents of a knowledge base."""

from collections import defaultdict
from typing import Annotated, Any

import typer
from rich.text import Text
from rich.tree import Tree

from almanac.cli.support import operator_call
from almanac.cli.support.operation_call import print_answer, request_of
from almanac.cli.support.options import BaseKey, Json
from almanac.cli.support.output import output_console, print_note, print_rows
from almanac.cli.support.startup import database_command
from almanac.core.database import Database
from almanac.core.errors import BadRequest
from almanac.knowledge import bases, document_status
from almanac.knowledge.document_tree import Node
from almanac.knowledge.folders import ROOT
from almanac.operations import browse
from almanac.operations.browse import Browse, NodeInfo, NodeList, node_info

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
    answer = await (_tree(db, base_id) if tree else _documents(db, base_id, status))
    if as_json:
        print_answer(answer)
    elif tree:
        _print_tree(answer)
    else:
        empty = "No documents." if status else f"No documents yet: almanac ingest {base_id} PATH"
        print_rows([_row(node) for node in answer.items], False, empty=empty)


async def _tree(db: Database, base_id: int) -> NodeList:
    call = await operator_call.call_for_base(db, base_id)
    return await browse.browse(request_of(call), Browse(base_id=base_id, recursive=True))


async def _documents(db: Database, base_id: int, status: str | None) -> NodeList:
    """Return all documents of a base, by path. The operation `browse` has no filter by status, and a limit."""
    call = await operator_call.call_for_base(db, base_id)
    base = await bases.get(db, call, base_id)
    paths = await document_status.folder_paths(call, base_id)
    found = await document_status.find_all(call, base_id, status)
    nodes = [
        node_info(Node(document, is_orphan=document.folder_id not in paths), paths.get(document.folder_id, ""))
        for document in found
    ]
    return NodeList(base.name, sorted(nodes, key=lambda node: (node.path, node.name)), False, [], 0)


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
