"""The extracted text of documents. It is stored in parts, so that reading a page costs no more than the page."""

from collections.abc import Sequence
from dataclasses import dataclass

import orjson

from almanac.core.call import Call
from almanac.core.database import Reader, Transaction
from almanac.core.errors import BadRequest
from almanac.db.sql import from_row
from almanac.knowledge import documents
from almanac.knowledge.documents import Document
from almanac.knowledge.parsers.parse_message import ParsedDocument

TEXT_PART_CHARS = 32_768
MAX_READ_CHARS = 100_000  # returned by one call
DEFAULT_READ_CHARS = 20_000  # for an agent: about 5,000 tokens


@dataclass(frozen=True, slots=True)
class TextOutline:
    """The properties of a document text, without the text itself."""

    generation: int
    title: str
    characters: int
    passages: int
    pages: tuple[tuple[int, int, int, str], ...]  # number, start, end, name
    warnings: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class TextExcerpt:
    """A part of the text of a document."""

    document: Document
    text: str
    offset: int  # of its first character in the whole text
    total: int  # characters of the whole text
    page: int | None = None
    page_name: str = ""

    @property
    def has_more(self) -> bool:
        """Whether the text continues after this part."""
        return self.offset + len(self.text) < self.total


async def read(call: Call, document_id: int, *, offset: int = 0, limit: int = MAX_READ_CHARS) -> TextExcerpt:
    """The text of a document from an offset on. It is empty if the document has not been parsed."""
    document = await documents.get(call.db, call, document_id)
    offset = max(0, offset)
    _, total, text = await _part(call.db, document_id, offset, offset + min(limit, MAX_READ_CHARS))
    return TextExcerpt(document, text, min(offset, total), total)


async def read_page(call: Call, document_id: int, number: int) -> TextExcerpt:
    """The text of one page, slide or sheet."""
    document = await documents.get(call.db, call, document_id)
    while True:
        outline = await get(call.db, document_id)
        page, start, end, name = find_page(document, outline, number)
        generation, total, text = await _part(call.db, document_id, start, min(end, start + MAX_READ_CHARS))
        # Otherwise the text was replaced between the two queries.
        if outline is not None and generation == outline.generation:
            return TextExcerpt(document, text, start, total, page, name)


def find_page(document: Document, outline: TextOutline | None, number: int) -> tuple[int, int, int, str]:
    """The number, start, end and name of a page of a text."""
    failure = document.failure
    if outline is None and failure is not None:
        raise BadRequest(
            f"Document {document.id} could not be read: {failure.code}. {failure.message}",
            remedy="Replace its content; or reindex it, if the cause is gone.",
        )
    if outline is None:
        raise BadRequest(f"Document {document.id} has not been read yet.", remedy="Try again in a few seconds.")
    if not outline.pages:
        raise BadRequest(f"Document {document.id} has no pages.", remedy="Read it by offset and limit.")
    for page in outline.pages:
        if page[0] == number:
            return page
    raise BadRequest(f"Document {document.id} has the pages 1 to {len(outline.pages)}.", remedy="Choose one of them.")


async def save(tx: Transaction, document_id: int, generation: int, parsed: ParsedDocument) -> None:
    """Store the text of a document in place of the last one."""
    await remove(tx, [document_id])
    text = parsed.text
    await tx.execute(
        "INSERT INTO readings (document_id, generation, title, characters, passages, pages, page_count, facts,"
        " warnings) VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9)",
        document_id,
        generation,
        parsed.title,
        len(text),
        len(parsed.passages),
        _json([(page.number, page.start, page.end, page.name) for page in parsed.pages]),
        len(parsed.pages),
        _json(parsed.metadata),
        _json(parsed.warnings),
    )
    parts = [
        (document_id, start // TEXT_PART_CHARS, text[start : start + TEXT_PART_CHARS])
        for start in range(0, len(text), TEXT_PART_CHARS)
    ]
    await tx.insert_many("reading_parts", ("document_id", "part", "text"), parts)


async def remove(tx: Transaction, document_ids: Sequence[int]) -> None:
    """Delete the texts of documents."""
    rows = [(id,) for id in document_ids]
    await tx.execute_many("DELETE FROM reading_parts WHERE document_id = $1", rows)
    await tx.execute_many("DELETE FROM readings WHERE document_id = $1", rows)


async def get(db: Reader, document_id: int) -> TextOutline | None:
    """The properties of the text of a document, or None if it has not been parsed."""
    row = await db.fetch_one("SELECT * FROM readings WHERE document_id = $1", document_id)
    if row is None:
        return None
    pages = tuple((number, start, end, name) for number, start, end, name in orjson.loads(row["pages"]))
    return from_row(TextOutline, row, pages=pages, warnings=tuple(orjson.loads(row["warnings"])))


async def _part(db: Reader, document_id: int, start: int, end: int) -> tuple[int, int, str]:
    """The generation of a text, its length, and the part of it from `start` to `end`."""
    # One query, so that the length and all parts belong to the same generation.
    first = start // TEXT_PART_CHARS
    sql = (
        "SELECT r.generation, r.characters, p.text FROM readings r LEFT JOIN reading_parts p"
        " ON p.document_id = r.document_id AND p.part BETWEEN $2 AND $3 WHERE r.document_id = $1 ORDER BY p.part"
    )
    rows = await db.fetch(sql, document_id, first, (end - 1) // TEXT_PART_CHARS if end > start else first - 1)
    if not rows:
        return 0, 0, ""
    text = "".join(row["text"] or "" for row in rows)
    offset = first * TEXT_PART_CHARS
    return rows[0]["generation"], rows[0]["characters"], text[start - offset : end - offset]


def _json(value: object) -> str:
    return orjson.dumps(value).decode()
