"""Readings: what the file of a document was read as, its text kept in parts so that a page costs a page."""

from collections.abc import Sequence
from dataclasses import dataclass

import orjson

from almanac.core.call import Call
from almanac.core.database import Reader, Transaction
from almanac.core.errors import BadRequest
from almanac.knowledge import documents
from almanac.knowledge.documents import Document
from almanac.knowledge.parsers.parse_file import ParsedDocument

TEXT_PART_CHARS = 32_768  # characters
MAX_READ_CHARS = 100_000  # characters read at once


@dataclass(frozen=True, slots=True)
class TextOutline:
    """What a document was read as, without the text itself."""

    generation: int
    title: str
    characters: int
    passages: int
    pages: tuple[tuple[int, int, int, str], ...]  # number, start, end, name
    facts: dict[str, str]
    warnings: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class TextExcerpt:
    """Some of a document's text."""

    document: Document
    text: str
    offset: int  # of its first character in the whole text
    total: int  # characters of the whole text
    page: int | None = None
    page_name: str = ""

    @property
    def has_more(self) -> bool:
        """Whether the text goes on after it."""
        return self.offset + len(self.text) < self.total


async def read(call: Call, document_id: int, *, offset: int = 0, limit: int = MAX_READ_CHARS) -> TextExcerpt:
    """The text of a document from a character on. Of one that has not been read there is none."""
    document = await documents.get(call.db, call, document_id)
    offset = max(0, offset)
    part = await _part(call.db, document_id, offset, offset + min(limit, MAX_READ_CHARS))
    return TextExcerpt(document, part.text, min(offset, part.total), part.total)


async def read_page(call: Call, document_id: int, number: int) -> TextExcerpt:
    """The text of one page, slide or sheet."""
    document = await documents.get(call.db, call, document_id)
    while True:
        outline = await get(call.db, document_id)
        page, start, end, name = _page(document, outline, number)
        part = await _part(call.db, document_id, start, min(end, start + MAX_READ_CHARS))
        if outline is not None and part.generation == outline.generation:  # else it was replaced between the two
            return TextExcerpt(document, part.text, start, part.total, page, name)


async def save(tx: Transaction, document_id: int, generation: int, reading: ParsedDocument) -> None:
    """Put a reading in the place of the one before it."""
    await remove(tx, [document_id])
    text = reading.text
    await tx.execute(
        "INSERT INTO readings (document_id, generation, title, characters, passages, pages, page_count, facts,"
        " warnings) VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9)",
        document_id,
        generation,
        reading.title,
        len(text),
        len(reading.passages),
        _json([(page.number, page.start, page.end, page.name) for page in reading.pages]),
        len(reading.pages),
        _json(reading.metadata),
        _json(reading.warnings),
    )
    parts = [
        (document_id, start // TEXT_PART_CHARS, text[start : start + TEXT_PART_CHARS])
        for start in range(0, len(text), TEXT_PART_CHARS)
    ]
    await tx.insert_many("reading_parts", ("document_id", "part", "text"), parts)


async def remove(tx: Transaction, document_ids: Sequence[int]) -> None:
    """Forget what documents were read as."""
    rows = [(id,) for id in document_ids]
    await tx.execute_many("DELETE FROM reading_parts WHERE document_id = $1", rows)
    await tx.execute_many("DELETE FROM readings WHERE document_id = $1", rows)


async def get(db: Reader, document_id: int) -> TextOutline | None:
    """What a document was read as, if it was."""
    row = await db.fetch_one("SELECT * FROM readings WHERE document_id = $1", document_id)
    if row is None:
        return None
    return TextOutline(
        generation=row["generation"],
        title=row["title"],
        characters=row["characters"],
        passages=row["passages"],
        pages=tuple((number, start, end, name) for number, start, end, name in orjson.loads(row["pages"])),
        facts=orjson.loads(row["facts"]),
        warnings=tuple(orjson.loads(row["warnings"])),
    )


async def text(db: Reader, document_id: int, start: int, end: int) -> str:
    """The characters from `start` up to `end`."""
    return (await _part(db, document_id, start, end)).text


@dataclass(frozen=True, slots=True)
class _Part:
    generation: int
    total: int
    text: str


async def _part(db: Reader, document_id: int, start: int, end: int) -> _Part:
    # In one query, so that the length and every part are of one reading, whoever replaces it meanwhile.
    first = start // TEXT_PART_CHARS
    rows = await db.fetch(
        "SELECT r.generation, r.characters, p.text FROM readings r LEFT JOIN reading_parts p"
        " ON p.document_id = r.document_id AND p.part BETWEEN $2 AND $3 WHERE r.document_id = $1 ORDER BY p.part",
        document_id,
        first,
        (end - 1) // TEXT_PART_CHARS if end > start else first - 1,
    )
    if not rows:
        return _Part(0, 0, "")
    joined = "".join(row["text"] or "" for row in rows)
    return _Part(
        rows[0]["generation"],
        rows[0]["characters"],
        joined[start - first * TEXT_PART_CHARS : end - first * TEXT_PART_CHARS],
    )


def _page(document: Document, outline: TextOutline | None, number: int) -> tuple[int, int, int, str]:
    document_id, failure = document.id, document.failure
    if outline is None and failure is not None:
        raise BadRequest(f"Document {document_id} could not be read: {failure.code}. {failure.message}")
    if outline is None:
        raise BadRequest(f"Document {document_id} has not been read yet.", remedy="Try again in a few seconds.")
    pages = outline.pages
    if not pages:
        raise BadRequest(f"Document {document_id} has no pages.", remedy="Read it by offset and limit.")
    for page in pages:
        if page[0] == number:
            return page
    raise BadRequest(f"Document {document_id} has the pages 1 to {len(pages)}.", remedy="Choose one of them.")


def _json(value: object) -> str:
    return orjson.dumps(value).decode()
