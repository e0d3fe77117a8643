"""A haul: files on their way from the disk into a knowledge base, until each has been read or has failed.

Several are brought in at a time, so that one commit can hold many of them, and while the later ones are still being
brought a worker reads the first.
"""

import asyncio
import hashlib
import os
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from almanac.cli.support import file_walk
from almanac.cli.support.file_walk import FoundFile
from almanac.core.call import Call
from almanac.core.errors import AlmanacError
from almanac.knowledge import document_status, documents, folders
from almanac.knowledge.documents import AddResult, Document, DocumentDraft
from almanac.knowledge.files import SNIFF_BYTES, FileStore, IncomingFile, format_size
from almanac.knowledge.parsers.parsed_file import UnreadableFile
from almanac.search.index.protocol import Coverage

OUTCOMES = ("added", "replaced", "unchanged", "retried")
AT_ONCE = 32  # files brought in at a time
LOOKED_AT = 500  # documents asked after at a time, the oldest first: however long the haul, a look costs the same
_PIECE = 1 << 20  # bytes of a large file read at a time

_LOST = UnreadableFile("processing_failed", "Reading it was given up after several attempts.", retryable=True)


@dataclass(slots=True)
class IngestFile:
    """One file, and what has become of it."""

    label: str
    outcome: str = ""  # one of OUTCOMES; empty until it has come in
    status: str = "waiting"  # then that of its document, or failed without ever becoming one
    document_id: int | None = None
    pages: int = 0  # none where its format has none
    code: str = ""
    message: str = ""
    was_read: bool = False  # in this haul, and not some time before

    @property
    def has_ended(self) -> bool:
        """Whether nothing more will happen to it."""
        return self.status in ("success", "failed", "removed", "not_indexed")

    def fail(self, code: str, message: str) -> None:
        """Note why it could not be taken in or read."""
        self.status, self.code, self.message = "failed", code, message


@dataclass(slots=True)
class IngestRun:
    """All the files of one pass."""

    call: Call
    base_id: int
    pieces: list[IngestFile] = field(default_factory=list[IngestFile])
    began: float = field(default_factory=time.monotonic)
    done: int = 0
    failures: list[IngestFile] = field(default_factory=list[IngestFile])
    pages: int = 0  # of what was read
    unpaged: int = 0  # files read whose format has no pages
    ended: float | None = None  # when the last of them had been read
    covered: Coverage | None = None  # what of the base could be found by its meaning when last looked at
    _pending: dict[int, IngestFile] = field(default_factory=dict[int, IngestFile])
    _folders: dict[str, int] = field(default_factory=dict[str, int])
    _turn: asyncio.Lock = field(default_factory=asyncio.Lock)

    @property
    def seconds(self) -> float:
        """How long it took, or has taken so far."""
        return max((self.ended or time.monotonic()) - self.began, 0.001)

    @property
    def is_over(self) -> bool:
        """Whether everything that came in has been read or has failed."""
        return not self._pending

    async def bring(self, found: Sequence[FoundFile], files: FileStore, most: int, stop: asyncio.Event) -> None:
        """Store the files and add them as documents, until told to stop."""
        self.pieces += [IngestFile(each.label) for each in found]
        waiting = iter(zip(list(self.pieces), found, strict=True))

        async def carry() -> None:
            for piece, each in waiting:
                if stop.is_set():
                    return
                await self._carry(piece, each, files, most)

        await asyncio.gather(*(carry() for _ in range(AT_ONCE)))

    def expect(self, again: Iterable[tuple[Document, str]]) -> None:
        """Follow documents that are read again; each with the name to show."""
        for document, label in again:
            piece = IngestFile(label, "retried", "queued", document.id)
            self.pieces.append(piece)
            self._pending[document.id] = piece

    async def look(self) -> None:
        """See how far the documents are."""
        ids = list(self._pending)[:LOOKED_AT]
        ended = await document_status.finished_statuses(self.call.db, ids) if ids else {}
        for document in await document_status.get_many(self.call.db, list(ended)) if ended else ():
            piece = self._pending[document.id]
            piece.status, piece.pages = ended[document.id], document.page_count or 0
            piece.was_read = piece.status == "success"
            if piece.status == "lost":
                piece.fail(_LOST.code, _LOST.message)
            elif document.failure and piece.status == "failed":
                piece.fail(document.failure.code, document.failure.message)
        for id in ended:
            piece = self._pending.pop(id)
            piece.status = piece.status if piece.has_ended else "removed"
            self._end(piece)

    async def _carry(self, piece: IngestFile, each: FoundFile, files: FileStore, most: int) -> None:
        try:
            if each.problem:
                raise UnreadableFile(each.code, each.problem)
            added = await self._take(each, files, most)
        except UnreadableFile as error:
            piece.fail(error.code, error.message)
        except AlmanacError as error:
            piece.fail(error.code, error.text)
        except OSError as error:
            piece.fail("unreadable", f"The file cannot be read: {error.strerror}.")
        else:
            piece.outcome, piece.document_id = added.outcome, added.document.id
            piece.status, piece.pages = added.document.index_status, added.document.page_count or 0
            if not piece.has_ended:
                self._pending[added.document.id] = piece
        if piece.has_ended:
            self._end(piece)

    def _end(self, piece: IngestFile) -> None:
        self.done += 1
        if piece.status == "failed":
            self.failures.append(piece)
        elif piece.was_read:
            self.pages += piece.pages
            self.unpaged += not piece.pages

    async def _take(self, each: FoundFile, files: FileStore, most: int) -> AddResult:
        with file_walk.opened(each.path) as (descriptor, size):
            if not size:
                raise UnreadableFile("empty", "The file is empty.")
            if size > most:
                raise UnreadableFile(
                    "too_large", f"The file is larger than {format_size(most)}, the most that is taken."
                )
            folder_id = await self._folder(each.folder)
            there = await document_status.get_by_name(self.call.db, self.base_id, folder_id, each.name)
            is_same = there is not None and await _is_same(descriptor, size, there)
            if there is not None and is_same and there.index_status != "failed":
                return AddResult(there, "unchanged")
            draft = DocumentDraft(each.name, folder_id, if_exists="replace")
            async with files.receive(self.call.db) as incoming:
                await _pour(descriptor, size, incoming)
                stored = await incoming.finish()
                added = await self.call.db.write(lambda tx: documents.add(self.call, tx, self.base_id, draft, stored))
            return AddResult(added.document, "retried") if is_same else added

    async def _folder(self, path: str) -> int:
        async with self._turn:  # two at once would both create it
            if path not in self._folders:
                self._folders[path] = await self.call.db.write(
                    lambda tx: folders.ensure(self.call, tx, self.base_id, path)
                )
        return self._folders[path]


async def _is_same(descriptor: int, size: int, there: Document) -> bool:
    """Whether a file has the content of a document: reading it is much cheaper than storing it to find out."""
    return size == there.size and await asyncio.to_thread(_digest, descriptor) == there.blob_hash


def _digest(descriptor: int) -> str:
    digest, at = hashlib.sha256(), 0
    while piece := os.pread(descriptor, _PIECE, at):
        digest.update(piece)
        at += len(piece)
    return digest.hexdigest()


async def _pour(descriptor: int, size: int, incoming: IncomingFile) -> None:
    at = 0
    while piece := await _piece(descriptor, size, at):
        await incoming.write(piece)
        at += len(piece)


async def _piece(descriptor: int, size: int, at: int) -> bytes:
    try:
        if size <= SNIFF_BYTES:
            return os.pread(descriptor, SNIFF_BYTES, at)  # shorter than the way to a thread and back
        return await asyncio.to_thread(os.pread, descriptor, _PIECE, at)
    except OSError as error:  # of the file, not of the store that it is poured into
        raise UnreadableFile("unreadable", f"The file cannot be read: {error.strerror}.") from None
