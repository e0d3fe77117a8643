"""A knowledge base with its file store and its parser, and the functions that tests need for them."""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

from almanac.core import clock
from almanac.core.call import Actor, Call
from almanac.core.database import Database, Transaction
from almanac.files.blobs import StoredFile
from almanac.files.file_store import FileStore
from almanac.identity.principals import Principal
from almanac.jobs import queue
from almanac.jobs.queue import Job
from almanac.jobs.worker import Handler
from almanac.knowledge import bases, documents, folders
from almanac.knowledge.bases import KnowledgeBase
from almanac.knowledge.documents import AddResult, Document, DocumentDraft
from almanac.knowledge.folders import Folder
from almanac.knowledge.ingest import splitter
from almanac.knowledge.ingest.ingest_job import Ingest
from almanac.knowledge.parsers import file_signatures
from almanac.knowledge.parsers.parse_message import pack
from almanac.knowledge.parsers.parsed_file import Block, ParsedFile, TextPage, UnreadableFile
from almanac.sandbox.pool import SandboxPool
from tests.identity.people import Town, settle

T = TypeVar("T")

MAX_FILE_BYTES = 10_000_000


class PlainTextSandbox(SandboxPool):
    """Parses plain text in the process of the test. A form feed begins a page. A text that begins with UNREADABLE
    cannot be parsed."""

    def __init__(self) -> None:
        super().__init__("")

    async def run(self, paths: Sequence[Path], name: str, options: dict[str, Any]) -> bytes:
        content = paths[0].read_text("utf-8")
        if content.startswith("UNREADABLE"):
            raise UnreadableFile("corrupt", "The file is damaged.")
        parsed = parse_pages(content)
        passages = splitter.split(parsed, splitter.PassageSplitter.from_options(options))
        return pack(file_signatures.PLAIN, parsed, passages)


def parse_pages(content: str) -> ParsedFile:
    """A text as a parser returns it, with a page for each part between form feeds."""
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
class Workspace:
    """A base, its owner, and the store of its files."""

    town: Town
    home: Path
    files: FileStore
    owner: Principal
    call: Call
    base: KnowledgeBase
    ingest: Ingest

    @property
    def db(self) -> Database:
        return self.town.db

    async def do(self, body: Callable[[Transaction], Awaitable[T]]) -> T:
        return await self.db.write(body)

    async def add_folder(self, name: str, parent_id: int = 0, base: KnowledgeBase | None = None) -> Folder:
        base_id = (base or self.base).id
        return await self.do(lambda tx: folders.add(self.call, tx, base_id, name, parent_id))

    async def add(self, name: str, content: str, *, base: KnowledgeBase | None = None, **draft: Any) -> AddResult:
        """Add a document, without parsing it."""
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

    async def add_parsed(self, name: str, content: str, **how: Any) -> Document:
        """Add a document and parse it."""
        added = await self.add(name, content, **how)
        await self.run_jobs()
        return await self.get(added.document.id)

    async def get(self, document_id: int, **how: Any) -> Document:
        return await documents.get(self.db, self.call, document_id, **how)

    async def run_jobs(self) -> int:
        """Run the queued ingest jobs; return their number."""
        jobs = await queue.claim(self.db, "a-worker", ["ingest"], limit=10_000, lease=clock.MINUTE)
        for job in jobs:
            await self.run_job(job, self.ingest)
        return len(jobs)

    async def run_job(self, job: Job, handler: Handler) -> bool:
        """Run a job as a worker does. Return whether the job still belonged to this worker."""
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

    def stored_names(self) -> set[str]:
        """The names of the files at their permanent paths."""
        return {file.name for file in self.files.path("xx").parent.parent.glob("[0-9a-f][0-9a-f]/*")}

    def incoming_files(self) -> list[Path]:
        """The files in the incoming folders."""
        return [file for file in self.files.path("xx").parent.parent.glob("incoming/*/*") if file.is_file()]


async def open_workspace(db: Database, home: Path) -> Workspace:
    """Create a workspace in the organisation Acme."""
    town = await settle(db)
    owner = await town.add("owner")
    call = town.call(await town.actor(owner))
    base = await db.write(lambda tx: bases.add(call, tx, "Manuals"))
    files = FileStore(home, MAX_FILE_BYTES)
    return Workspace(town, home, files, owner, call, base, Ingest(db, files, PlainTextSandbox(), 2))


def operator_of(actor: Actor) -> Actor:
    """The same actor with the rights of the operator."""
    return replace(actor, is_operator=True)
