"""The store of uploaded files. Files with the same content are stored once.

A file is written under `incoming/`, in a folder that its process has locked. It is then linked to its permanent path
under a name of its own, and only then named by a row of `blobs`. If a process dies, the rows decide: `clear` looks at
the incoming folders that no process has locked any more, and removes the files in them that no row names.
"""

import asyncio
import errno
import fcntl
import hashlib
import os
import secrets
import shutil
import tempfile
import threading
from collections.abc import AsyncGenerator, Callable, Generator, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path
from typing import IO

from almanac.core.database import Database, Reader
from almanac.core.errors import BadRequest, TooLarge, Unavailable
from almanac.files import blobs
from almanac.files.blobs import StoredFile

HEAD_BYTES = 64 * 1024  # the beginning of a file, from which its type is detected


class DiskFull(Unavailable):
    """There is no room left to store the file."""

    code = "disk_full"
    status = 507
    remedy = "An operator has to free space in the home folder; nothing was stored."


class FileStore:
    """The files below `files/` in the home folder."""

    def __init__(self, home: Path, max_bytes: int) -> None:
        self._folder = home / "files"
        self._max_bytes = max_bytes
        self._incoming: Path | None = None  # the incoming folder of this process
        self._lock = -1  # the descriptor that locks it
        self._creating = threading.Lock()

    def path(self, name: str) -> Path:
        """The permanent path of the file with this name."""
        return self._folder / name[:2] / name

    @asynccontextmanager
    async def receive(self, db: Database) -> AsyncGenerator["IncomingFile"]:
        """A file to write. At the end of the block it is removed, unless a row names it."""
        with _translated_errors():
            incoming = IncomingFile(self, await asyncio.to_thread(self._new_draft), self._max_bytes)
            try:
                yield incoming
            except BaseException:
                await incoming.close(db, is_settled=False)
                raise
        await incoming.close(db)

    @asynccontextmanager
    async def mark_for_deletion(self, names: Sequence[str]) -> AsyncGenerator[None]:
        """Mark files whose rows the block may delete, so that `clear` removes them if this process dies in the block.

        An error leaves the marks, because the transaction may have been committed.
        """
        marks = await asyncio.to_thread(self._mark, names)
        yield
        for mark in marks:
            mark.unlink(missing_ok=True)

    async def clear(self, db: Database) -> int:
        """Remove the files that dead processes left without a row; return their number."""
        folders = await asyncio.to_thread(self._lock_abandoned_folders)
        removed = 0
        for folder, lock in folders:
            for draft in list(folder.iterdir()):
                path = self.path(draft.name)
                if path.exists() and not await blobs.exists(db, draft.name):
                    path.unlink(missing_ok=True)
                    removed += 1
            shutil.rmtree(folder, ignore_errors=True)
            os.close(lock)
        return removed

    async def remove_unused(self, db: Database) -> int:
        """Remove the files that no object refers to; return their number."""
        removed = 0
        while unused := await blobs.find_unused(db):
            async with self.mark_for_deletion([blob.name for blob in unused]):
                names = await db.write(lambda tx, unused=unused: blobs.delete_unused(tx, unused))
                for name in names:
                    self.remove(name)
            removed += len(names)
            if not names:
                break  # all of them are used again
        return removed

    @contextmanager
    def open_scratch(self) -> Generator[IO[bytes]]:
        """An empty file that disappears at the end of the block; `clear` removes it if this process dies."""
        with _translated_errors(), tempfile.NamedTemporaryFile(dir=self._new_draft().parent, buffering=0) as file:
            yield file

    def remove(self, name: str) -> None:
        """Remove a file that no row names any more."""
        self.path(name).unlink(missing_ok=True)

    def close(self) -> None:
        """Remove and unlock the incoming folder of this process."""
        if self._incoming is not None:
            with suppress(OSError):
                self._incoming.rmdir()
            os.close(self._lock)
            self._incoming = None

    def _new_draft(self) -> Path:
        with self._creating:
            if self._incoming is None:
                self._incoming, self._lock = self._create_incoming_folder()
            return self._incoming / secrets.token_hex(16)

    def _mark(self, names: Sequence[str]) -> list[Path]:
        marks: list[Path] = []
        with suppress(OSError):  # if the disk has no space for a mark, deleting files is the more urgent
            for name in names:
                mark = self._new_draft().with_name(name)
                mark.touch()
                marks.append(mark)
        return marks

    def _create_incoming_folder(self) -> tuple[Path, int]:
        while True:
            folder = self._folder / "incoming" / f"{os.getpid()}-{secrets.token_hex(4)}"
            folder.mkdir(parents=True, mode=0o700)
            lock = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
            fcntl.flock(lock, fcntl.LOCK_EX)
            if folder.exists():  # another process may have removed the folder before it was locked
                return folder, lock
            os.close(lock)

    def _lock_abandoned_folders(self) -> list[tuple[Path, int]]:
        abandoned: list[tuple[Path, int]] = []
        incoming = self._folder / "incoming"
        for folder in incoming.iterdir() if incoming.exists() else ():
            try:
                lock = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
            except OSError:
                continue
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                abandoned.append((folder, lock))
            except OSError:
                os.close(lock)  # a living process has locked it
        return abandoned


class IncomingFile:
    """A file that is being received."""

    def __init__(self, files: FileStore, draft: Path, max_bytes: int) -> None:
        self._files = files
        self._draft = draft
        self._max_bytes = max_bytes
        draft.touch(mode=0o600, exist_ok=False)
        self._file = draft.open("wb", buffering=0)
        self._digest = hashlib.sha256()
        self._head = b""
        self._linked: Path | None = None
        self._thread: asyncio.Future[None] | None = None
        self.size = 0

    @property
    def path(self) -> Path:
        """Where the file is until it is finished."""
        return self._draft

    @property
    def head(self) -> bytes:
        """The first bytes that were received, at most `HEAD_BYTES`."""
        return self._head

    async def write(self, chunk: bytes) -> None:
        """Append a chunk."""
        self.size += len(chunk)
        if self.size > self._max_bytes:
            raise TooLarge(
                f"The file is larger than {format_size(self._max_bytes)}.", remedy="Split it, or ask an operator."
            )
        if len(self._head) < HEAD_BYTES:
            self._head += chunk[: HEAD_BYTES - len(self._head)]
        if len(chunk) <= HEAD_BYTES:
            self._append(chunk)  # a write this small takes less time than a thread switch
        else:
            await self._in_thread(lambda: self._append(chunk))

    async def finish(self) -> StoredFile:
        """Link the complete file to its permanent path, where it survives a crash."""
        if not self.size:
            raise BadRequest("The file is empty.", remedy="Send its content.")
        self._linked = path = self._files.path(self._draft.name)
        await self._in_thread(lambda: self._link(path))
        return StoredFile(self._digest.hexdigest(), self._draft.name, self.size, self._head)

    async def close(self, db: Database, *, is_settled: bool = True) -> None:
        """Remove the file, unless a row names it.

        If the block was cancelled or failed, the file is not settled: the transaction with the row may still be
        running. The row is then looked up in another transaction, which runs after it.
        """
        if self._thread is not None:
            await asyncio.wait([self._thread])
        self._file.close()
        if (linked := self._linked) is not None:
            has_row = (
                blobs.exists(db, linked.name) if is_settled else db.write(lambda tx: blobs.exists(tx, linked.name))
            )
            if not await has_row:
                await self._repair(db, linked)
                linked.unlink(missing_ok=True)
        self._draft.unlink(missing_ok=True)

    async def _repair(self, db: Reader, linked: Path) -> None:
        """If another row has the same content and its file is missing, restore that file."""
        row = await db.fetch_one("SELECT name FROM blobs WHERE hash = $1", self._digest.hexdigest())
        if row is not None:
            # The other file nearly always exists. This file is missing if linking it failed.
            with suppress(FileExistsError, FileNotFoundError):
                os.link(linked, self._files.path(row["name"]))

    async def _in_thread(self, work: Callable[[], None]) -> None:
        # The thread continues if the caller is cancelled; `close` waits for it.
        self._thread = asyncio.ensure_future(asyncio.to_thread(work))
        await asyncio.shield(self._thread)

    def _append(self, chunk: bytes) -> None:
        self._digest.update(chunk)
        while chunk:  # just before the disk is full, only a part of the chunk may be written
            chunk = chunk[self._file.write(chunk) :]

    def _link(self, path: Path) -> None:
        os.fsync(self._file.fileno())
        is_new = not path.parent.exists()
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        os.link(self._draft, path)
        _sync(path.parent)
        if is_new:
            _sync(path.parent.parent)


def format_size(size: int) -> str:
    """A number of bytes with a unit: 1000 bytes, 512 MiB."""
    units = {1 << 30: "GiB", 1 << 20: "MiB", 1 << 10: "KiB"}
    return next((f"{size / unit:.4g} {name}" for unit, name in units.items() if size >= unit), f"{size} bytes")


@contextmanager
def _translated_errors() -> Generator[None]:
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            raise DiskFull() from None
        raise Unavailable(
            "The file store cannot be used.", remedy="An operator has to check the home folder."
        ) from None


def _sync(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
