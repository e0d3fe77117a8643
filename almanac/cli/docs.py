"""Commands that look into knowledge bases: what documents there are, and what one was read as."""

import json
import re
import sys
from collections.abc import AsyncGenerator
from dataclasses import asdict
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.text import Text
from rich.tree import Tree as Drawing

from almanac.cli.ingest import BaseId
from almanac.cli.support import operator_call
from almanac.cli.support.terminal import Home, Json, print_line, print_rows, with_database
from almanac.core import clock
from almanac.core.call import Call
from almanac.core.database import Database
from almanac.core.errors import BadRequest, Conflict
from almanac.knowledge import document_status, document_text, document_tree, documents
from almanac.knowledge.document_text import TextOutline
from almanac.knowledge.document_tree import Node
from almanac.knowledge.documents import Document
from almanac.knowledge.ingest.queue import UNFINISHED_STATUSES

_COLOURS = {"success": "green", "failed": "red"}
_OBEYED = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")  # what a terminal would take for a command

DocumentId = Annotated[int, typer.Argument(metavar="DOC_ID", help="Its id, from 'almanac docs KB_ID'.")]


def docs(
    base_id: BaseId,
    tree: Annotated[bool, typer.Option("--tree", help="Draw them in their folders.")] = False,
    status: Annotated[str | None, typer.Option("--status", help="Only those that are so far, such as failed.")] = None,
    home: Home = None,
    as_json: Json = False,
) -> None:
    """List the documents of a knowledge base, with how far each has been read, and why not if it failed.

    Example: [bold]almanac docs 1 --tree[/bold]
    """
    if tree and status is not None:
        raise BadRequest("A tree shows every document.", remedy="Leave --tree or --status out.")
    if tree:
        found = with_database(home, lambda db: _tree(db, base_id))
        _draw(found, as_json)
        return
    found = with_database(home, lambda db: _documents(db, base_id, status))
    rows = [_document(each, place) if as_json else _cells(each, place) for each, place in found]
    print_rows(rows, as_json, empty="No documents." if status else f"No documents yet: almanac ingest {base_id} PATH")


def read(
    document_id: DocumentId,
    page: Annotated[int | None, typer.Option("--page", min=1, help="Only this page, slide or sheet.")] = None,
    offset: Annotated[int, typer.Option("--offset", min=0, help="From this character on.")] = 0,
    limit: Annotated[int | None, typer.Option("--limit", min=1, help="At most so many characters.")] = None,
    home: Home = None,
    as_json: Json = False,
) -> None:
    """Print what a document was read as. Where it has pages, their numbers go to standard error.

    Example: [bold]almanac read 1 --offset 0 --limit 500[/bold]
    """

    async def work(db: Database) -> None:
        call = await operator_call.call_for_document(db, document_id)
        document = await documents.get(db, call, document_id)
        outline = await _outline(db, document)
        start, end = _stretch(outline, page, offset, limit)
        if as_json:
            print_line(json.dumps(await _as_object(call, document, outline, start, end), ensure_ascii=False))
        else:
            await _print(call, document_id, outline, start, end)

    with_database(home, work)


async def _documents(db: Database, base_id: int, status: str | None) -> list[tuple[Document, str]]:
    """The documents of a base by path, each with that of its folder."""
    call = await operator_call.call_for_base(db, base_id)
    places = await document_status.folder_paths(call, base_id)
    found: list[Document] = []
    while more := await document_status.find(call, base_id, status=status, after=found[-1].id if found else 0):
        found += more
    placed = [(each, places.get(each.folder_id, "")) for each in found]
    return sorted(placed, key=lambda pair: (pair[1], pair[0].name))


def _document(document: Document, place: str) -> dict[str, Any]:
    return {
        "id": document.id,
        "folder": place,
        "name": document.name,
        "type": document.mime_type,
        "size": document.size,
        "status": document.index_status,
        "pages": document.page_count,
        "characters": document.characters,
        "enabled": document.is_enabled,
        "tags": document.tags,
        "updated": clock.format_timestamp(document.updated_at),
        "failure": asdict(document.failure) if document.failure else None,
    }


def _cells(document: Document, place: str) -> dict[str, Any]:
    """A row for people: what is missing is in the JSON."""
    names = ("id", "folder", "name", "status", "pages", "size")
    row = _document(document, place)
    return {name: row[name] for name in names} | {"failure": document.failure.message if document.failure else ""}


async def _tree(db: Database, base_id: int) -> document_tree.FolderTree:
    return await document_tree.tree(await operator_call.call_for_base(db, base_id), base_id)


def _draw(tree: document_tree.FolderTree, as_json: bool) -> None:
    if as_json:
        print_line(
            json.dumps({"nodes": [_branch(node) for node in tree.nodes], "warnings": tree.warnings}, ensure_ascii=False)
        )
        return
    drawing = Drawing(Text(tree.base.name, "bold"))
    waiting = [(drawing, tree.nodes)]
    while waiting:
        place, level = waiting.pop()
        ordered = sorted(level, key=lambda node: (not node.is_folder, node.item.name))
        waiting += [(place.add(_label(node)), node.children) for node in ordered]
    console = Console()
    console = console if console.is_terminal else Console(width=10_000)
    console.print(drawing, soft_wrap=True)
    for warning in tree.warnings:
        Console(stderr=True).print(f"Warning: {warning}", markup=False, highlight=False, soft_wrap=True)


def _branch(node: Node) -> dict[str, Any]:
    if isinstance(node.item, Document):
        about = {name: value for name, value in _document(node.item, "").items() if name != "folder"}
        return {"kind": "document", **about, "orphan": node.is_orphan}
    about = {"id": node.item.id, "name": node.item.name, "orphan": node.is_orphan}
    return {"kind": "folder", **about, "children": [_branch(child) for child in node.children]}


def _label(node: Node) -> Text:
    orphan = Text("  (its place is gone)", "yellow") if node.is_orphan else Text()
    if not isinstance(node.item, Document):
        return Text(f"{node.item.name}/", "bold") + orphan
    document = node.item
    status = document.failure.code if document.failure else ""
    told = f"  {document.index_status}{f': {status}' if status else ''}"
    colour = _COLOURS.get(document.index_status, "yellow")
    return Text(f"{document.name}  ") + Text(f"#{document.id}", "dim") + Text(told, colour) + orphan


async def _outline(db: Database, document: Document) -> TextOutline:
    """What a document was read as, or why there is nothing to read."""
    outline = await document_text.get(db, document.id)
    if outline is not None:
        return outline
    if document.failure is not None:
        reason = f"{document.failure.message} ({document.failure.code})"
        raise Conflict(f"Document {document.id} could not be read: {reason}", remedy="")
    waits = document.index_status in UNFINISHED_STATUSES
    raise Conflict(
        f"Document {document.id} has not been read yet: it is {document.index_status}.",
        remedy="Wait for a worker, or run 'almanac ingest' or 'almanac worker'." if waits else "",
    )


def _stretch(outline: TextOutline, page: int | None, offset: int, limit: int | None) -> tuple[int, int]:
    """From which character to which."""
    if page is None:
        start = min(offset, outline.characters)
        return start, outline.characters if limit is None else min(start + limit, outline.characters)
    for number, start, end, _ in outline.pages:
        if number == page:
            return min(start + offset, end), end if limit is None else min(start + offset + limit, end)
    if not outline.pages:
        raise BadRequest("This document has no pages.", remedy="Read it with --offset and --limit.")
    raise BadRequest(f"This document has the pages 1 to {len(outline.pages)}.", remedy="Choose one of them.")


async def _as_object(call: Call, document: Document, outline: TextOutline, start: int, end: int) -> dict[str, Any]:
    text = "".join([part async for part in _parts(call, document.id, start, end)])
    pages = [{"number": number, "name": name, "start": s, "end": e} for number, s, e, name in outline.pages]
    about = {"id": document.id, "name": document.name, "title": outline.title, "characters": outline.characters}
    return {**about, "pages": pages, "warnings": outline.warnings, "offset": start, "text": text}


async def _print(call: Call, document_id: int, outline: TextOutline, start: int, end: int) -> None:
    """The text to standard output, page by page, with what is not text on standard error."""
    is_shown = sys.stdout.isatty()
    console = Console(stderr=True)
    last = "\n"
    for number, first, after, name in outline.pages or [(0, 0, outline.characters, "")]:
        if not start < after or not first < end:
            continue
        if number:
            sys.stdout.write("" if last == "\n" else "\n")
            sys.stdout.flush()
            console.print(f"— page {number}{f': {name}' if name else ''} —", markup=False, highlight=False)
        async for part in _parts(call, document_id, max(first, start), min(after, end)):
            sys.stdout.write(_OBEYED.sub("\ufffd", part) if is_shown else part)
            last = part[-1]
    sys.stdout.write("" if last == "\n" else "\n")
    sys.stdout.flush()


async def _parts(call: Call, document_id: int, start: int, end: int) -> AsyncGenerator[str]:
    """The text from one character to another, as much at a time as is read at once."""
    while start < end:
        part = (await document_text.read(call, document_id, offset=start, limit=end - start)).text
        if not part:  # replaced by a shorter one in the meantime
            return
        yield part
        start += len(part)
