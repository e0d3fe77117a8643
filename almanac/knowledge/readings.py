"""Readings: what the file of a document was read as, its text kept in parts so that a page costs a page."""

from collections.abc import Sequence
from dataclasses import dataclass

import orjson

from almanac.core.call import Call
from almanac.core.database import Reader, Transaction
from almanac.core.errors import BadRequest
from almanac.knowledge import documents
from almanac.knowledge.documents import Document
from almanac.knowledge.parsers.reading import Reading

PART = 32_768  # characters
MOST = 100_000  # characters read at once


@dataclass(frozen=True, slots=True)
class Outline:
    """What a document was read as, without the text itself."""

    generation: int
    title: str
    characters: int
    passages: int
    pages: tuple[tuple[int, int, int, str], ...]  # number, start, end, name
    facts: dict[str, str]
    warnings: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Excerpt:
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


async def read(call: Call, document_id: int, *, offset: int = 0, limit: int = MOST) -> Excerpt:
    """The text of a document from a character on. Of one that has not been read there is none."""
    document = await documents.get(call.db, call, document_id)
    total = document.characters or 0
    offset = min(max(0, offset), total)
    found = await text(call.db, document_id, offset, min(offset + min(limit, MOST), total))
    return Excerpt(document, found, offset, total)


async def read_page(call: Call, document_id: int, number: int) -> Excerpt:
    """The text of one page, slide or sheet."""
    document = await documents.get(call.db, call, document_id)
    outline = await get(call.db, document_id)
    pages = outline.pages if outline else ()
    for page, start, end, name in pages:
        if page == number:
            found = await text(call.db, document_id, start, min(end, start + MOST))
            return Excerpt(document, found, start, document.characters or 0, page, name)
    if not pages:
        raise BadRequest(f"Document {document_id} has no pages.", remedy="Read it by offset and limit.")
    raise BadRequest(f"Document {document_id} has the pages 1 to {len(pages)}.", remedy="Choose one of them.")


async def save(tx: Transaction, document_id: int, generation: int, reading: Reading) -> None:
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
    parts = [(document_id, start // PART, text[start : start + PART]) for start in range(0, len(text), PART)]
    await tx.insert_many("reading_parts", ("document_id", "part", "text"), parts)


async def remove(tx: Transaction, document_ids: Sequence[int]) -> None:
    """Forget what documents were read as."""
    rows = [(id,) for id in document_ids]
    await tx.execute_many("DELETE FROM reading_parts WHERE document_id = $1", rows)
    await tx.execute_many("DELETE FROM readings WHERE document_id = $1", rows)


async def get(db: Reader, document_id: int) -> Outline | None:
    """What a document was read as, if it was."""
    row = await db.fetch_one("SELECT * FROM readings WHERE document_id = $1", document_id)
    if row is None:
        return None
    return Outline(
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
    if end <= start:
        return ""
    first = start // PART
    rows = await db.fetch(
        "SELECT text FROM reading_parts WHERE document_id = $1 AND part BETWEEN $2 AND $3 ORDER BY part",
        document_id,
        first,
        (end - 1) // PART,
    )
    joined = "".join(row["text"] for row in rows)
    return joined[start - first * PART : end - first * PART]


def _json(value: object) -> str:
    return orjson.dumps(value).decode()
