"""The stages of ingest one by one, in this process and with the functions that the server itself runs.

Storing works as in `almanac ingest`: many files at a time, so that one commit holds several. Parsing works as in a
worker: a sandboxed child process for each file, as many at a time as there are cores. Writing runs as many at a time as
a worker has jobs. The work of the child is measured again without a child, to separate its parts from the cost of the
sandbox.
"""

import asyncio
import os
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from ingest_corpus import File

from almanac.core import scopes
from almanac.core.call import Actor, Call
from almanac.core.database import Transaction
from almanac.db import migrate
from almanac.db.connect import connect
from almanac.files.file_store import FileStore
from almanac.identity import first_start, orgs, principals
from almanac.knowledge import bases, document_index, document_text, documents
from almanac.knowledge.documents import DocumentDraft
from almanac.knowledge.ingest import splitter as text_splitter
from almanac.knowledge.ingest.splitter import PassageSplitter
from almanac.knowledge.parsers import file_types, parse_file, parse_message
from almanac.knowledge.parsers.parse_message import ParsedDocument
from almanac.sandbox.child import ExitReport
from almanac.sandbox.pool import SandboxPool
from almanac.search import passage_store as search_passages

STORED_AT_ONCE = 32
WRITTEN_AT_ONCE = 4
MAX_FILE_BYTES = 1 << 30

T = TypeVar("T")
U = TypeVar("U")


@dataclass(frozen=True, slots=True)
class Stage:
    """The time of a stage for all files together."""

    name: str
    seconds: float
    cpu_seconds: float | None = None  # CPU seconds of the process that does the work


@dataclass(frozen=True, slots=True)
class Staged:
    """All stages, and the peak memory of the largest child."""

    stages: tuple[Stage, ...]
    child_peak_bytes: int


async def measure(home: Path, files: Sequence[File]) -> Staged:
    """Take the files through every stage."""
    async with _base(home) as (call, base_id):
        spent = _clocked()
        stored = await _each(files, STORED_AT_ONCE, _storing(call, FileStore(home, MAX_FILE_BYTES), base_id))
        store = spent("store: hash, fsync, rows")
        messages, children, read = await _read(files)
        alone = _read_unconfined(files)
        spent = _clocked()
        found = [parse_message.unpack(message) for message in messages]
        unpack = spent("unpack: check what a child answered")
        spent = _clocked()
        await _each(list(zip(stored, found, strict=True)), WRITTEN_AT_ONCE, _writing(call))
        write = spent("write: text and passages, one commit")
    return Staged((store, read, *alone, unpack, write), max(child.peak_bytes for child in children))


@asynccontextmanager
async def _base(home: Path) -> AsyncGenerator[tuple[Call, int]]:
    """A knowledge base on SQLite in a fresh home, and a call by its owner."""
    home.mkdir(parents=True)
    db = await connect(f"sqlite:///{home / 'almanac.db'}")
    try:
        await migrate.apply(db)
        await first_start.create_first_admin(db)
        org = await orgs.get_by_name(db, None)
        admin = await principals.get_by_name(db, org.id, "admin")
        all_scopes = frozenset(scopes.SCOPES)
        actor = Actor(admin.id, admin.name, "user", org.id, org.name, True, 1, "user", all_scopes)
        call = Call(actor, db, "bench")
        base = await db.write(lambda tx: bases.add(call, tx, "Bench"))
        yield call, base.id
    finally:
        await db.close()


def _storing(call: Call, files: FileStore, base_id: int) -> Callable[[File], Awaitable[int]]:
    async def store(file: File) -> int:
        content = file.path.read_bytes()
        async with files.receive(call.db) as incoming:
            await incoming.write(content)
            stored = await incoming.finish()
            draft = DocumentDraft(file.path.name)
            added = await call.db.write(lambda tx: documents.add(call, tx, base_id, draft, stored))
        return added.document.id

    return store


async def _read(files: Sequence[File]) -> tuple[list[bytes], list[ExitReport], Stage]:
    """Parse in sandboxed child processes, as many as there are cores."""
    options = PassageSplitter().as_options()
    children: list[ExitReport] = []
    async with SandboxPool(parse_file.PARSE_FUNCTION, on_exit=children.append) as pool:
        began = time.perf_counter()
        messages = await _each(files, os.cpu_count() or 1, lambda file: pool.run([file.path], file.path.name, options))
        seconds = time.perf_counter() - began
    cpu_seconds = sum(child.cpu_seconds for child in children)
    return messages, children, Stage("read: in confined children", seconds, cpu_seconds)


def _read_unconfined(files: Sequence[File]) -> tuple[Stage, ...]:
    """The work of a child, done in this process, with the time of each part."""
    splitter = PassageSplitter()
    parse_file.preload()
    spent = _clocked()
    parsed = [
        (kind, parse_file.sanitise(parse_file.parse(file.path, file.path.name, kind)))
        for file in files
        for kind in (file_types.detect_file_type(file.path, file.path.name),)
    ]
    parse = spent("  of it parse")
    spent = _clocked()
    found = [text_splitter.split(each, splitter) for _, each in parsed]
    split = spent("  of it passages")
    spent = _clocked()
    for (kind, each), cut in zip(parsed, found, strict=True):
        parse_message.pack(kind, each, cut)
    return parse, split, spent("  of it pack")


def _writing(call: Call) -> Callable[[tuple[int, ParsedDocument]], Awaitable[None]]:
    async def write(pair: tuple[int, ParsedDocument]) -> None:
        document_id, found = pair
        prepared = search_passages.analyse(found.title, found.passages)

        async def body(tx: Transaction) -> None:
            await document_text.save(tx, document_id, 1, found)
            source = await document_index.describe(tx, document_id)
            assert source is not None
            await search_passages.replace(tx, source, prepared)

        await call.db.write(body)

    return write


async def _each(items: Sequence[T], at_once: int, work: Callable[[T], Awaitable[U]]) -> list[U]:
    """The result for every item, with a limit on the number in progress."""
    slots = asyncio.Semaphore(at_once)

    async def one(item: T) -> U:
        async with slots:
            return await work(item)

    return list(await asyncio.gather(*map(one, items)))


def _clocked() -> Callable[[str], Stage]:
    """Start measuring; the returned function stops it."""
    began, cpu = time.perf_counter(), time.process_time()
    return lambda name: Stage(name, time.perf_counter() - began, time.process_time() - cpu)
