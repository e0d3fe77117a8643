"""A knowledge base with its file store and its reader, and the few verbs tests need around them."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

from almanac.core import clock
from almanac.core.call import Actor, Call
from almanac.core.database import Database, Transaction
from almanac.identity.principals import Principal
from almanac.jobs import queue
from almanac.jobs.queue import Job
from almanac.jobs.worker import Handler
from almanac.knowledge import bases, documents, folders
from almanac.knowledge.bases import KnowledgeBase
from almanac.knowledge.documents import AddResult, Document, DocumentDraft
from almanac.knowledge.files import FileStore, StoredFile
from almanac.knowledge.folders import Folder
from almanac.knowledge.ingest import splitter as cutting
from almanac.knowledge.ingest.ingest_job import Ingest
from almanac.knowledge.parsers import file_types
from almanac.knowledge.parsers.parse_file import pack
from almanac.knowledge.parsers.parsed_file import Block, ParsedFile, TextPage, UnreadableFile
from almanac.sandbox.pool import SandboxPool
from almanac.sandbox.result import SandboxResult
from tests.identity.people import Town, settle

T = TypeVar("T")

MOST_BYTES = 10_000_000


class Lectern(SandboxPool):
    """Reads plain text in this very process, which is all that tests of the verbs need: a form feed begins a page,
    and what begins with UNREADABLE cannot be read."""

    def __init__(self) -> None:
        super().__init__("")

    async def parse(self, path: Path, name: str, options: dict[str, Any]) -> SandboxResult:
        content = path.read_text("utf-8")
        if content.startswith("UNREADABLE"):
            raise UnreadableFile("corrupt", "The file is damaged.")
        parsed = paged(content)
        found = cutting.split(parsed, cutting.PassageSplitter.from_options(options))
        return SandboxResult(pack(file_types.PLAIN, parsed, found), 0, 0.0, 0.0)


def paged(content: str) -> ParsedFile:
    """A text as a parser gives it, with a page for each part between form feeds."""
    parts, start, pages, blocks = content.split("\f"), 0, list[TextPage](), list[Block]()
    for number, part in enumerate(parts, 1):
        end = start + len(part)
        pages.append(TextPage(number, start, min(end + 1, len(content))))
        blocks += [Block("text", start, end)] if part.strip() else []
        start = end + 1
    return ParsedFile(
        content.replace("\f", "\n"), tuple(blocks), tuple(pages) if len(parts) > 1 else (), title="A title"
    )


@dataclass
class Library:
    """A base of its librarian's, and the store its files are in."""

    town: Town
    home: Path
    files: FileStore
    librarian: Principal
    call: Call
    base: KnowledgeBase
    ingest: Ingest

    @property
    def db(self) -> Database:
        return self.town.db

    async def do(self, body: Callable[[Transaction], Awaitable[T]]) -> T:
        return await self.db.write(body)

    async def folder(self, name: str, parent_id: int = 0, base: KnowledgeBase | None = None) -> Folder:
        base_id = (base or self.base).id
        return await self.do(lambda tx: folders.add(self.call, tx, base_id, name, parent_id))

    async def add(self, name: str, content: str, *, base: KnowledgeBase | None = None, **draft: Any) -> AddResult:
        """A document, waiting to be read."""
        base_id = (base or self.base).id
        return await self.store(
            content, lambda tx, s: documents.add(self.call, tx, base_id, DocumentDraft(name, **draft), s)
        )

    async def replace(self, document_id: int, content: str) -> AddResult:
        return await self.store(content, lambda tx, s: documents.replace(self.call, tx, document_id, s))

    async def store(self, content: str, body: Callable[[Transaction, StoredFile], Awaitable[T]]) -> T:
        async with self.files.receive(self.db) as incoming:
            await incoming.write(content.encode())
            stored = await incoming.finish()
            return await self.do(lambda tx: body(tx, stored))

    async def shelve(self, name: str, content: str, **how: Any) -> Document:
        """A document that has been read."""
        added = await self.add(name, content, **how)
        await self.read_all()
        return await self.get(added.document.id)

    async def get(self, document_id: int, **how: Any) -> Document:
        return await documents.get(self.db, self.call, document_id, **how)

    async def read_all(self) -> int:
        """Do the jobs that wait; how many."""
        jobs = await queue.claim(self.db, "a-worker", ["ingest"], limit=10_000, lease=clock.MINUTE)
        for job in jobs:
            await self.settle(job, self.ingest)
        return len(jobs)

    async def settle(self, job: Job, handler: Handler) -> bool:
        """Do one job, as a worker does it."""
        effect = await handler(job)

        async def body(tx: Transaction) -> bool:
            is_ours = await queue.finish(tx, job)
            if is_ours and effect is not None:
                await effect(tx)
            return is_ours

        return await self.do(body)

    async def rows(self, sql: str, *args: Any) -> list[dict[str, Any]]:
        return [{name: row[name] for name in row.keys()} for row in await self.db.fetch(sql, *args)]  # noqa: SIM118

    async def count(self, table: str, where: str = "1 = 1", *args: Any) -> int:
        return (await self.db.fetch(f"SELECT count(*) AS n FROM {table} WHERE {where}", *args))[0]["n"]

    async def text(self, document_id: int) -> str:
        """The stored text of a document."""
        rows = await self.rows("SELECT text FROM reading_parts WHERE document_id = $1 ORDER BY part", document_id)
        return "".join(row["text"] for row in rows)

    def stored(self) -> set[str]:
        """The names of the files in the store."""
        return {file.name for file in self.files.path("xx").parent.parent.glob("[0-9a-f][0-9a-f]/*")}

    def drafts(self) -> list[Path]:
        return [file for file in self.files.path("xx").parent.parent.glob("incoming/*/*") if file.is_file()]


async def found(db: Database, home: Path) -> Library:
    """Make one, in the organisation Acme."""
    town = await settle(db)
    librarian = await town.add("librarian")
    call = town.call(await town.actor(librarian))
    base = await db.write(lambda tx: bases.add(call, tx, "Manuals"))
    files = FileStore(home, MOST_BYTES)
    return Library(town, home, files, librarian, call, base, Ingest(db, files, Lectern(), 2))


def operator_of(actor: Actor) -> Actor:
    """The same person, at the command line."""
    return replace(actor, is_operator=True)
