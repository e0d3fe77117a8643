"""One run of an ingest: files of the disk become documents, until each is parsed or has failed.

Several files are added at a time, so that one commit can hold many of them. A worker parses the first documents while
later files are still being added.
"""

import asyncio
import os
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from almanac.cli.support.ingest import file_walk
from almanac.cli.support.ingest.file_walk import FoundFile
from almanac.cli.support.ingest.folder_changes import FolderChange
from almanac.core.call import Call
from almanac.core.errors import AlmanacError
from almanac.files.file_store import HEAD_BYTES, FileStore, IncomingFile
from almanac.knowledge import document_status, documents, folders
from almanac.knowledge.documents import AddResult, Document, DocumentDraft
from almanac.knowledge.parsers.parsed_file import UnreadableFile
from almanac.search.index.protocol import Coverage

OUTCOMES = ("added", "replaced", "unchanged", "retried")
CONCURRENT_FILES = 32
MAX_POLLED_DOCUMENTS = 500  # the oldest first, so that an update costs the same in a run of any length
_READ_BYTES = 1 << 20

_LOST = UnreadableFile("processing_failed", "Parsing failed several times and was given up.", retryable=True)


@dataclass(slots=True)
class IngestFile:
    """One file of a run and its state."""

    label: str
    outcome: str = ""  # one of OUTCOMES; empty until the file is added
    status: str = "waiting"  # then the status of its document, or failed if it never became one
    document_id: int | None = None
    pages: int = 0  # 0 for formats without pages
    code: str = ""
    message: str = ""
    was_parsed: bool = False  # in this run, not earlier

    @property
    def has_ended(self) -> bool:
        """Whether the state is final."""
        return self.status in ("success", "failed", "removed", "not_indexed")

    def fail(self, code: str, message: str) -> None:
        """Record why the file could not be added or parsed."""
        self.status, self.code, self.message = "failed", code, message


@dataclass(slots=True)
class IngestRun:
    """All files of one run."""

    call: Call
    base_id: int
    files: list[IngestFile] = field(default_factory=list[IngestFile])
    began: float = field(default_factory=time.monotonic)
    done: int = 0
    failures: list[IngestFile] = field(default_factory=list[IngestFile])
    pages: int = 0  # of parsed files
    unpaged: int = 0  # parsed files of formats without pages
    ended: float | None = None  # when the last document was parsed
    coverage: Coverage | None = None  # the vectors of the base at the end of the run
    embedded: float | None = None  # when the session stopped waiting for vectors, if it did
    changes: list[FolderChange] = field(default_factory=list[FolderChange])  # documents of renamed and missing files
    _pending: dict[int, IngestFile] = field(default_factory=dict[int, IngestFile])
    _folders: dict[str, int] = field(default_factory=dict[str, int])
    _folder_lock: asyncio.Lock = field(default_factory=asyncio.Lock)

    @property
    def seconds(self) -> float:
        """Seconds of parsing: from the beginning until the last document was parsed, or until now."""
        return max((self.ended or time.monotonic()) - self.began, 0.001)

    @property
    def embedding_seconds(self) -> float | None:
        """Seconds of waiting for vectors after the last document was parsed."""
        return None if self.embedded is None or self.ended is None else self.embedded - self.ended

    @property
    def is_over(self) -> bool:
        """Whether every added document is parsed or has failed."""
        return not self._pending

    async def add(self, found: Sequence[FoundFile], store: FileStore, max_bytes: int, stop: asyncio.Event) -> None:
        """Store the files and add them as documents, until `stop` is set."""
        self.files += [IngestFile(source.label) for source in found]
        waiting = iter(zip(list(self.files), found, strict=True))

        async def add_files() -> None:
            for file, source in waiting:
                if stop.is_set():
                    return
                await self._add_file(file, source, store, max_bytes)

        await asyncio.gather(*(add_files() for _ in range(CONCURRENT_FILES)))

    def expect(self, retried: Iterable[tuple[Document, str]]) -> None:
        """Follow documents that are parsed again, each with its label."""
        for document, label in retried:
            file = IngestFile(label, "retried", "queued", document.id)
            self.files.append(file)
            self._pending[document.id] = file

    async def update(self) -> None:
        """Read the status of documents that are not parsed yet."""
        ids = list(self._pending)[:MAX_POLLED_DOCUMENTS]
        statuses = await document_status.finished_statuses(self.call.db, ids) if ids else {}
        for document in await document_status.get_many(self.call.db, list(statuses)) if statuses else ():
            file = self._pending[document.id]
            file.status, file.pages = statuses[document.id], document.page_count or 0
            file.was_parsed = file.status in ("success", "not_indexed")
            if file.status == "lost":
                file.fail(_LOST.code, _LOST.message)
            elif document.failure and file.status == "failed":
                file.fail(document.failure.code, document.failure.message)
        for id in statuses:
            file = self._pending.pop(id)
            file.status = file.status if file.has_ended else "removed"
            self._count(file)

    async def _add_file(self, file: IngestFile, source: FoundFile, store: FileStore, max_bytes: int) -> None:
        try:
            if source.problem:
                raise UnreadableFile(source.code, source.problem)
            added = await self._add_document(source, store, max_bytes)
        except UnreadableFile as error:
            file.fail(error.code, error.message)
        except AlmanacError as error:
            file.fail(error.code, error.text)
        except OSError as error:
            file.fail("unreadable", f"The file cannot be read: {error.strerror}.")
        else:
            file.outcome, file.document_id = added.outcome, added.document.id
            file.status, file.pages = added.document.index_status, added.document.page_count or 0
            if not file.has_ended:
                self._pending[added.document.id] = file
        if file.has_ended:
            self._count(file)

    def _count(self, file: IngestFile) -> None:
        self.done += 1
        if file.status == "failed":
            self.failures.append(file)
        elif file.was_parsed:
            self.pages += file.pages
            self.unpaged += not file.pages

    async def _add_document(self, source: FoundFile, store: FileStore, max_bytes: int) -> AddResult:
        with file_walk.open_file(source.path) as (descriptor, size):
            file_walk.check_size(size, max_bytes)
            folder_id = await self._folder(source.folder)
            existing = await document_status.get_by_name(self.call.db, self.base_id, folder_id, source.name)
            is_same = existing is not None and await _is_same(descriptor, size, existing)
            if existing is not None and is_same and existing.index_status != "failed":
                return AddResult(existing, "unchanged")
            draft = DocumentDraft(source.name, folder_id, if_exists="replace")
            async with store.receive(self.call.db) as incoming:
                await _copy(descriptor, size, incoming)
                stored = await incoming.finish()
                added = await self.call.db.write(lambda tx: documents.add(self.call, tx, self.base_id, draft, stored))
            return AddResult(added.document, "retried") if is_same else added

    async def _folder(self, path: str) -> int:
        async with self._folder_lock:  # two tasks would both create the folder
            if path not in self._folders:
                self._folders[path] = await self.call.db.write(
                    lambda tx: folders.ensure(self.call, tx, self.base_id, path)
                )
        return self._folders[path]


async def _is_same(descriptor: int, size: int, document: Document) -> bool:
    """Compare a file with a document by hash, which is much cheaper than storing the file."""
    return size == document.size and await asyncio.to_thread(file_walk.sha256, descriptor) == document.blob_hash


async def _copy(descriptor: int, size: int, incoming: IncomingFile) -> None:
    offset = 0
    while data := await _read(descriptor, size, offset):
        await incoming.write(data)
        offset += len(data)


async def _read(descriptor: int, size: int, offset: int) -> bytes:
    try:
        if size <= HEAD_BYTES:
            return os.pread(descriptor, HEAD_BYTES, offset)  # faster than the switch to a thread and back
        return await asyncio.to_thread(os.pread, descriptor, _READ_BYTES, offset)
    except OSError as error:  # caught here, because an error of the file store is no error of the file
        raise UnreadableFile("unreadable", f"The file cannot be read: {error.strerror}.") from None
