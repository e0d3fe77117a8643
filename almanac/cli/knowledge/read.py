"""`almanac read`: the text of a document."""

import sys
from dataclasses import replace
from typing import Annotated

import typer

from almanac.cli.support import operator_call
from almanac.cli.support.operation_call import print_answer
from almanac.cli.support.options import DocumentId, Json
from almanac.cli.support.output import error_console, printable
from almanac.cli.support.startup import database_command
from almanac.core.call import Call
from almanac.core.database import Database
from almanac.core.errors import Conflict
from almanac.knowledge import document_text, documents
from almanac.knowledge.document_text import TextExcerpt, TextOutline
from almanac.knowledge.documents import Document
from almanac.knowledge.ingest.queue import UNFINISHED_STATUSES
from almanac.operations.document_models import DocumentExcerpt


@database_command
async def read(
    db: Database,
    document_id: DocumentId,
    page: Annotated[int | None, typer.Option("--page", min=1, help="Only this page, slide or sheet.")] = None,
    offset: Annotated[int, typer.Option("--offset", min=0, help="Begin at this character.")] = 0,
    limit: Annotated[
        int | None, typer.Option("--limit", min=1, help="Print at most this number of characters.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Print the extracted text of a document. Page numbers go to standard error.

    On a terminal, characters that would change the terminal or the direction of a line are replaced. A pipe receives
    the text as it is.

    Example: [bold]almanac read 1 --offset 0 --limit 500[/bold]
    """
    call = await operator_call.call_for_document(db, document_id)
    document = await documents.get(db, call, document_id)
    outline = await _outline(db, document)
    excerpt = await _read(call, document, outline, page, offset, limit)
    if as_json:
        print_answer(DocumentExcerpt.of(excerpt))
    else:
        _print_text(excerpt, outline)


async def _outline(db: Database, document: Document) -> TextOutline:
    """Return the outline of a document's text, or raise an error that says why there is no text."""
    outline = await document_text.get(db, document.id)
    if outline is not None:
        return outline
    if document.failure is not None:
        reason = f"{document.failure.message} ({document.failure.code})"
        raise Conflict(f"Document {document.id} could not be read: {reason}", remedy="")
    is_queued = document.index_status in UNFINISHED_STATUSES
    raise Conflict(
        f"Document {document.id} has not been read yet: it is {document.index_status}.",
        remedy="Wait for a worker, or run 'almanac ingest' or 'almanac worker'." if is_queued else "",
    )


async def _read(
    call: Call, document: Document, outline: TextOutline, page: int | None, offset: int, limit: int | None
) -> TextExcerpt:
    """Return a page, or the whole text, or a part of either, however long it is."""
    whole = (None, 0, outline.characters, "")
    number, first, last, name = whole if page is None else document_text.find_page(document, outline, page)
    end = last if limit is None else min(first + offset + limit, last)
    excerpt = await document_text.read(call, document.id, offset=min(first + offset, last), limit=0)
    parts, position = list[str](), excerpt.offset
    while position < end:
        part = (await document_text.read(call, document.id, offset=position, limit=end - position)).text
        if not part:  # the document was replaced by a shorter one meanwhile
            break
        parts.append(part)
        position += len(part)
    return replace(excerpt, text="".join(parts), page=number, page_name=name)


def _print_text(excerpt: TextExcerpt, outline: TextOutline) -> None:
    """Print the text page by page on standard output, and the page numbers on standard error."""
    console = error_console()
    start, end = excerpt.offset, excerpt.offset + len(excerpt.text)
    last = "\n"
    for number, first, after, name in outline.pages or [(0, 0, outline.characters, "")]:
        text = excerpt.text[max(first - start, 0) : max(after - start, 0)]
        if first >= end or after <= start or not text:
            continue
        if number:
            sys.stdout.write("" if last == "\n" else "\n")
            sys.stdout.flush()
            console.print(f"— page {number}{f': {name}' if name else ''} —", markup=False)
        sys.stdout.write(printable(text) if sys.stdout.isatty() else text)
        last = text[-1]
    sys.stdout.write("" if last == "\n" else "\n")
    sys.stdout.flush()
