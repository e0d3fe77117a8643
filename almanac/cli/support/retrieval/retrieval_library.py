"""A home with the documents of a retrieval set, added and indexed as documents of users are."""

import asyncio
from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, groupby
from pathlib import Path
from typing import Any, TypeVar

from almanac import reactions
from almanac.cli.support.local_worker import local_worker
from almanac.cli.support.operator_call import call_as_principal
from almanac.cli.support.progress import Display, Stage
from almanac.cli.support.retrieval.retrieval_set import SetLine
from almanac.core import clock
from almanac.core.call import Call
from almanac.core.database import Database, Transaction
from almanac.core.errors import Internal
from almanac.core.settings import Settings
from almanac.files.blobs import StoredFile
from almanac.files.file_store import FileStore
from almanac.identity import orgs, principals
from almanac.jobs import queue
from almanac.knowledge import bases, documents
from almanac.knowledge.document_search import DocumentResult
from almanac.knowledge.documents import DocumentDraft
from almanac.knowledge.ingest import splitter
from almanac.knowledge.ingest.ingest_job import Ingest
from almanac.knowledge.parsers import file_signatures, parse_file, parse_message
from almanac.knowledge.parsers.parsed_file import Block, ParsedFile
from almanac.sandbox.pool import SandboxPool
from almanac.search.passage import Passage

T = TypeVar("T")

_BATCH_SIZE = 500  # documents in a transaction
_POLL_SECONDS = 0.2


@dataclass(frozen=True, slots=True)
class SetDocument:
    """A document of the library: one line of the set, or the turns of a conversation under one title."""

    lines: Sequence[SetLine]

    @property
    def text(self) -> str:
        """The lines, one below the other. A line without text is represented by its title."""
        return "\n".join(_line_text(line) for line in self.lines)

    @property
    def starts(self) -> list[int]:
        """The offset of each line."""
        return list(accumulate((len(_line_text(line)) + 1 for line in self.lines[:-1]), initial=0))


def _line_text(line: SetLine) -> str:
    # Sanitised as the parser does it, so that the offsets of lines are right.
    return parse_file.sanitise(ParsedFile(line.text if line.text.strip() else line.title, ())).text


def set_documents(corpus: Sequence[SetLine]) -> list[SetDocument]:
    """Return the documents of a corpus. Consecutive lines of one part and title make one document."""
    lines = [line for line in corpus if line.text.strip() or line.title.strip()]

    def key(numbered: tuple[int, SetLine]) -> object:
        number, line = numbered
        return (line.part, line.title) if line.part else number

    return [SetDocument([line for _, line in group]) for _, group in groupby(enumerate(lines), key=key)]


class _SetParser(SandboxPool):
    """Parses the documents of a set in this process: they are plain text and need no sandbox."""

    def __init__(self, documents: Mapping[str, SetDocument]) -> None:
        super().__init__("")
        self._documents = documents

    async def run(self, paths: Sequence[Path], name: str, options: dict[str, Any]) -> bytes:
        document = self._documents[name]
        text = document.text
        parsed = ParsedFile(text, (Block("text", 0, len(text)),), title=document.lines[0].title)
        if len(document.lines) == 1:
            passages = splitter.split(parsed, splitter.PassageSplitter.from_options(options))
        else:
            starts = document.starts
            ends = (start + len(_line_text(line)) for start, line in zip(starts, document.lines, strict=True))
            passages = [Passage(start, end, text[start:end]) for start, end in zip(starts, ends, strict=True)]
        return parse_message.pack(file_signatures.PLAIN, parsed, passages)


@dataclass(slots=True)
class RetrievalLibrary:
    """A knowledge base for each part of a set, with the documents of that part."""

    call: Call
    bases: dict[str, int] = field(default_factory=dict[str, int])  # part: id
    documents: dict[int, SetDocument] = field(default_factory=dict[int, SetDocument])  # by id

    def line_id(self, hit: DocumentResult) -> str:
        """Return the id of the line that a result belongs to."""
        document = self.documents[hit.document_id]
        return document.lines[bisect_right(document.starts, hit.found.start) - 1].id

    async def add_documents(self, settings: Settings, corpus: Sequence[SetLine], display: Display) -> None:
        """Add the documents through the same functions as uploads, and parse them."""
        db = self.call.db
        named = {f"{number}.txt": document for number, document in enumerate(set_documents(corpus))}
        self.bases = await db.write(lambda tx: self._add_bases(tx, corpus))
        files = FileStore(settings.home, settings.max_file_bytes)
        ingest = Ingest(db, files, _SetParser(named), _BATCH_SIZE)
        try:
            async with files.receive(db) as incoming:
                await incoming.write(b"a line of the set")
                stored = await incoming.finish()
                for batch in _batches(list(named.items())):
                    self.documents |= await db.write(lambda tx, batch=batch: self._add(tx, batch, stored))
                    await _run_ingest_jobs(db, ingest)
                    display.show(Stage("Parsing", len(self.documents), len(named), "document"))
        finally:
            files.close()

    async def _add_bases(self, tx: Transaction, corpus: Sequence[SetLine]) -> dict[str, int]:
        parts = dict.fromkeys(line.part for line in corpus)
        return {part: (await bases.add(self.call, tx, f"Part {n}")).id for n, part in enumerate(parts, 1)}

    async def _add(
        self, tx: Transaction, batch: Sequence[tuple[str, SetDocument]], stored: StoredFile
    ) -> dict[int, SetDocument]:
        added: dict[int, SetDocument] = {}
        for name, document in batch:
            base_id = self.bases[document.lines[0].part]
            result = await documents.add(self.call, tx, base_id, DocumentDraft(name), stored)
            added[result.document.id] = document
        return added


def _batches(items: Sequence[T]) -> Iterator[Sequence[T]]:
    return (items[start : start + _BATCH_SIZE] for start in range(0, len(items), _BATCH_SIZE))


async def add_search_user(db: Database) -> Call:
    """Create an organisation and a user, and return a call of that user."""

    async def body(tx: Transaction) -> Call:
        org = await orgs.add(tx, "bench")
        return call_as_principal(db, org, await principals.add(tx, org.id, "user", "bench"))

    return await db.write(body)


async def _run_ingest_jobs(db: Database, ingest: Ingest) -> None:
    """Run the waiting ingest jobs, many in a transaction."""
    jobs = await queue.claim(db, "bench", ["ingest"], limit=_BATCH_SIZE, lease=clock.HOUR)
    effects = await asyncio.gather(*(ingest(job) for job in jobs))

    async def body(tx: Transaction) -> None:
        for job, effect in zip(jobs, effects, strict=True):
            if await queue.finish(tx, job) and effect is not None:
                await effect(tx)

    await db.write(body)


async def run_waiting_jobs(db: Database, settings: Settings, display: Display) -> None:
    """Run a worker until no job waits: it computes the vectors."""
    passages = (await db.scan("SELECT count(*) AS n FROM passages"))[0]["n"]
    failed = asyncio.Event()  # the worker, which then ends the block with its error
    async with (
        reactions.open_job_handlers(db, settings) as handlers,
        local_worker(db, settings, handlers, failed, settings.job_concurrency, 0),
    ):
        while (count := await queue.counts(db))["queued"] or count["running"]:
            if failed.is_set():
                break
            vectors = (await db.scan("SELECT count(*) AS n FROM vectors"))[0]["n"]
            display.show(Stage("Embedding", vectors, passages, "passage", "embedded"))
            await asyncio.sleep(_POLL_SECONDS)
    if count["dead"]:
        raise Internal("Indexing failed.", remedy="The log has the reason.")
