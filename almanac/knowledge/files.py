"""Files as they came, kept by their content: the same content is stored once, whoever brings it.

A file is written under `incoming/`, into a folder that its process holds locked, then linked into its place under a
name of its own, and only then named by a row. Whenever a process dies, the row is the truth: what lies in an incoming
folder that nobody holds any more was either adopted by a row, or is removed (`clear`).
"""

import asyncio
import errno
import fcntl
import hashlib
import os
import secrets
import shutil
import threading
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from almanac.core import clock
from almanac.core.database import Database, Reader, Transaction
from almanac.core.errors import BadRequest, TooLarge, Unavailable

SNIFF_BYTES = 64 * 1024  # bytes kept of the beginning, to tell what it is
_HELD = """EXISTS (SELECT 1 FROM documents d WHERE d.blob_id = {id})
OR EXISTS (SELECT 1 FROM attachments a WHERE a.blob_id = {id})"""


class DiskFull(Unavailable):
    """There is no room left to store the file."""

    code = "disk_full"
    status = 507
    remedy = "An operator has to free space in the home folder; nothing was stored."


@dataclass(frozen=True, slots=True)
class StoredFile:
    """A file that is in its place, and not yet anybody's."""

    hash: str
    name: str
    size: int
    head: bytes


@dataclass(frozen=True, slots=True)
class Blob:
    """A row for a content, and the file that has it."""

    id: int
    name: str


class FileStore:
    """The store below one folder."""

    def __init__(self, home: Path, most_bytes: int) -> None:
        self._folder = home / "files"
        self._most = most_bytes
        self._mine: Path | None = None
        self._lock = -1
        self._claiming = threading.Lock()

    def path(self, name: str) -> Path:
        """Where the file of a row is."""
        return self._folder / name[:2] / name

    @asynccontextmanager
    async def receive(self, db: Database) -> AsyncGenerator["IncomingFile"]:
        """Take a file in for as long as the block lasts; it stays if a row adopts it until then."""
        draft = await asyncio.to_thread(self._draft)
        try:
            incoming = IncomingFile(self, draft, self._most)
        except OSError as error:
            raise _translated(error) from None
        try:
            yield incoming
        except OSError as error:
            await incoming.close(db, is_settled=False)
            raise _translated(error) from None
        except BaseException:
            await incoming.close(db, is_settled=False)
            raise
        await incoming.close(db)

    @asynccontextmanager
    async def mark_for_deletion(self, names: Sequence[str]) -> AsyncGenerator[None]:
        """Note which files may lose their rows in this block, so that `clear` sees to them if this process dies in it.

        The notes stay where it is left by an error, which may hide that the rows are gone.
        """
        notes = await asyncio.to_thread(self._note, names)
        yield
        for note in notes:
            note.unlink(missing_ok=True)

    async def clear(self, db: Database) -> int:
        """Remove what processes that died left behind; how many files."""
        folders = await asyncio.to_thread(self._abandoned)
        removed = 0
        for folder, lock in folders:
            for draft in list(folder.iterdir()):
                placed = self.path(draft.name)
                if placed.exists() and not await _is_adopted(db, draft.name):
                    placed.unlink(missing_ok=True)
                    removed += 1
            shutil.rmtree(folder, ignore_errors=True)
            os.close(lock)
        return removed

    def remove(self, name: str) -> None:
        """Remove a file that no row names any more."""
        self.path(name).unlink(missing_ok=True)

    def close(self) -> None:
        """Let go of the incoming folder."""
        if self._mine is not None:
            with suppress(OSError):
                self._mine.rmdir()
            os.close(self._lock)
            self._mine = None

    def _draft(self) -> Path:
        try:
            with self._claiming:
                if self._mine is None:
                    self._mine, self._lock = self._claim()
                return self._mine / secrets.token_hex(16)
        except OSError as error:
            raise _translated(error) from None

    def _note(self, names: Sequence[str]) -> list[Path]:
        notes: list[Path] = []
        with suppress(OSError, Unavailable):  # where there is no room for a note, files have to go all the more
            for name in names:
                note = self._draft().with_name(name)
                note.touch()
                notes.append(note)
        return notes

    def _claim(self) -> tuple[Path, int]:
        while True:
            folder = self._folder / "incoming" / f"{os.getpid()}-{secrets.token_hex(4)}"
            folder.mkdir(parents=True, mode=0o700)
            lock = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
            fcntl.flock(lock, fcntl.LOCK_EX)
            if folder.exists():  # between its making and its locking somebody may have cleared it away
                return folder, lock
            os.close(lock)

    def _abandoned(self) -> list[tuple[Path, int]]:
        found: list[tuple[Path, int]] = []
        incoming = self._folder / "incoming"
        for folder in incoming.iterdir() if incoming.exists() else ():
            try:
                lock = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
            except OSError:
                continue
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                found.append((folder, lock))
            except OSError:
                os.close(lock)  # somebody is writing there
        return found


class IncomingFile:
    """A file on its way in."""

    def __init__(self, files: FileStore, draft: Path, most: int) -> None:
        self._files = files
        self._draft = draft
        self._most = most
        draft.touch(mode=0o600, exist_ok=False)
        self._file = draft.open("wb", buffering=0)
        self._digest = hashlib.sha256()
        self._head = b""
        self._placed: Path | None = None
        self._busy: asyncio.Future[None] | None = None
        self.size = 0

    async def write(self, piece: bytes) -> None:
        """Append to it."""
        self.size += len(piece)
        if self.size > self._most:
            raise TooLarge(f"The file is larger than {amount(self._most)}.", remedy="Split it, or ask an operator.")
        if len(self._head) < SNIFF_BYTES:
            self._head += piece[: SNIFF_BYTES - len(self._head)]
        if len(piece) <= SNIFF_BYTES:
            self._append(piece)  # shorter than the way to a thread and back
        else:
            await self._in_thread(lambda: self._append(piece))

    async def finish(self) -> StoredFile:
        """That was all of it: put it in its place, where it outlives a crash."""
        if not self.size:
            raise BadRequest("The file is empty.", remedy="Send its content.")
        self._placed = placed = self._files.path(self._draft.name)
        await self._in_thread(lambda: self._place(placed))
        return StoredFile(self._digest.hexdigest(), self._draft.name, self.size, self._head)

    async def close(self, db: Database, *, is_settled: bool = True) -> None:
        """Remove it, unless a row has adopted it.

        Of one whose caller was cancelled or met an error that is not settled: the transaction may still be under way.
        It is asked about in another one, which comes after it.
        """
        if self._busy is not None:
            await asyncio.wait([self._busy])
        self._file.close()
        if self._placed is not None and not await _is_kept(db, self._placed.name, is_settled):
            await self._mend(db, self._placed)
            self._placed.unlink(missing_ok=True)
        self._draft.unlink(missing_ok=True)

    async def _mend(self, db: Reader, placed: Path) -> None:
        """Where the content was here already and its file has been lost, bring it back."""
        row = await db.fetch_one("SELECT name FROM blobs WHERE hash = $1", self._digest.hexdigest())
        if row is not None:
            with suppress(FileExistsError, FileNotFoundError):  # it is there, as nearly always; ours was never placed
                os.link(placed, self._files.path(row["name"]))

    async def _in_thread(self, work: Callable[[], None]) -> None:
        # A thread goes on when its caller is cancelled; `close` waits for it.
        self._busy = asyncio.ensure_future(asyncio.to_thread(work))
        await asyncio.shield(self._busy)

    def _append(self, piece: bytes) -> None:
        self._digest.update(piece)
        while piece:  # the last piece before a full disk may go in only in part
            piece = piece[self._file.write(piece) :]

    def _place(self, placed: Path) -> None:
        os.fsync(self._file.fileno())
        is_new = not placed.parent.exists()
        placed.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        os.link(self._draft, placed)
        _sync(placed.parent)
        if is_new:
            _sync(placed.parent.parent)


def amount(size: int) -> str:
    """A number of bytes as people write it: 1000 bytes, 512 MiB."""
    units = {1 << 30: "GiB", 1 << 20: "MiB", 1 << 10: "KiB"}
    return next((f"{size / unit:.4g} {name}" for unit, name in units.items() if size >= unit), f"{size} bytes")


async def ensure_blob(tx: Transaction, stored: StoredFile) -> int:
    """The id of the row for a stored file's content, made unless the content is already here."""
    row = await tx.fetch_one(
        "INSERT INTO blobs (hash, name, size, created_at) VALUES ($1, $2, $3, $4)"
        " ON CONFLICT (hash) DO UPDATE SET hash = excluded.hash RETURNING id",  # an update, to lock the row
        stored.hash,
        stored.name,
        stored.size,
        clock.now(),
    )
    assert row is not None
    return row["id"]


async def unused(db: Database, limit: int = 1000) -> list[Blob]:
    """Rows that nothing refers to, neither a document nor an attachment."""
    held = _HELD.format(id="b.id")
    sql = f"SELECT b.id, b.name FROM blobs b WHERE NOT ({held}) ORDER BY b.id LIMIT $1"  # noqa: S608 - constants
    rows = await db.scan(sql, limit)
    return [Blob(row["id"], row["name"]) for row in rows]


async def forget(tx: Transaction, blobs: Sequence[Blob]) -> list[str]:
    """Drop those of these rows that still nobody refers to; the names of their files, to be removed after this commits.

    Something may be adopting the content just now. So each row is locked, as `adopt` does, before it is asked again
    whether anybody refers to it.
    """
    names: list[str] = []
    for blob in blobs:
        await tx.execute("UPDATE blobs SET size = size WHERE id = $1", blob.id)
        sql = f"DELETE FROM blobs WHERE id = $1 AND NOT ({_HELD.format(id='$1')}) RETURNING name"  # noqa: S608
        row = await tx.fetch_one(sql, blob.id)
        names += [row["name"]] if row else []
    return names


async def _is_kept(db: Database, name: str, is_settled: bool) -> bool:
    if is_settled:
        return await _is_adopted(db, name)
    return await db.write(lambda tx: _is_adopted(tx, name))


async def _is_adopted(db: Reader, name: str) -> bool:
    return await db.fetch_one("SELECT 1 FROM blobs WHERE name = $1", name) is not None


def _translated(error: OSError) -> Exception:
    if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
        return DiskFull()
    return Unavailable("The file store cannot be used.", remedy="An operator should look at the home folder.")


def _sync(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
