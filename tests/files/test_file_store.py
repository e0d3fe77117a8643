"""The file store: each content is stored once and kept while a row names it, even if a process dies."""

import asyncio
import fcntl
import hashlib
import os
import resource
import subprocess
import sys
import threading
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from almanac.core.database import Transaction
from almanac.core.errors import BadRequest, TooLarge, Unavailable
from almanac.files import blobs, file_store
from almanac.files.blobs import StoredFile
from almanac.files.file_store import DiskFull, FileStore
from almanac.knowledge import documents
from almanac.knowledge.documents import DocumentDraft
from tests.knowledge.workspace import Workspace

STEPS = ("draft", "write", "sync", "link", "folder", "adopt", "commit", "closed")


async def pause() -> None:
    """Let the other tasks of this event loop continue."""
    for _ in range(50):
        await asyncio.sleep(0)


async def let_threads_run() -> None:
    """Let the threads go on that have begun before."""
    for _ in range(50):
        await asyncio.to_thread(int)


async def add_row(workspace: Workspace, stored: StoredFile) -> None:
    """Add a document with a stored file."""
    draft = DocumentDraft("a.txt")
    await workspace.do(lambda tx: documents.add(workspace.call, tx, workspace.base.id, draft, stored))


async def check_store(workspace: Workspace) -> None:
    """Check that the files on disk are those of the rows, and that each row belongs to a document."""
    rows = await workspace.rows("SELECT id, hash, name, size FROM blobs")
    assert workspace.stored_names() == {row["name"] for row in rows}
    for row in rows:
        content = workspace.files.path(row["name"]).read_bytes()
        assert (len(content), hashlib.sha256(content).hexdigest()) == (row["size"], row["hash"])
    used = {row["blob_id"] for row in await workspace.rows("SELECT blob_id FROM documents")}
    assert {row["id"] for row in rows} == used


def incoming(workspace: Workspace) -> list[Path]:
    folder = workspace.home / "files" / "incoming"
    return list(folder.iterdir()) if folder.exists() else []


async def test_a_file_is_stored_unchanged_with_its_digest_and_its_head(workspace: Workspace):
    content = os.urandom(300_000)
    async with workspace.files.receive(workspace.db) as incoming_file:
        for start in range(0, len(content), 70_001):
            await incoming_file.write(content[start : start + 70_001])
        stored = await incoming_file.finish()
        assert stored.hash == hashlib.sha256(content).hexdigest()
        assert (stored.size, stored.head) == (len(content), content[: file_store.HEAD_BYTES])
        path = workspace.files.path(stored.name)
        assert path.read_bytes() == content
        await workspace.do(
            lambda tx: documents.add(workspace.call, tx, workspace.base.id, DocumentDraft("a.bin"), stored)
        )
    assert path.read_bytes() == content
    assert workspace.incoming_files() == []
    await check_store(workspace)


async def test_the_same_content_is_stored_once(workspace: Workspace):
    for name in ("a.txt", "b.txt", "c.txt"):
        await workspace.add(name, "The same.")
    await workspace.add("d.txt", "Another.")
    assert len(workspace.stored_names()) == 2
    await check_store(workspace)


async def test_a_missing_file_is_restored_when_its_content_is_added_again(workspace: Workspace):
    first = (await workspace.add("a.txt", "the same")).document
    workspace.files.path(first.blob_name).unlink()
    await workspace.add("b.txt", "the same")
    assert workspace.files.path(first.blob_name).read_text() == "the same"
    assert workspace.stored_names() == {first.blob_name}


async def test_twenty_uploads_of_the_same_content_at_once_leave_one_file(workspace: Workspace):
    await asyncio.gather(*[workspace.add(f"{n}.txt", "The same.") for n in range(20)])
    assert (await workspace.count("documents"), len(workspace.stored_names())) == (20, 1)
    assert workspace.incoming_files() == []
    assert len(incoming(workspace)) == 1  # one folder for this process
    await check_store(workspace)


async def test_a_transaction_that_fails_leaves_no_file(workspace: Workspace):
    async def fail(tx: Transaction, stored: StoredFile) -> None:
        await documents.add(workspace.call, tx, workspace.base.id, DocumentDraft("a.txt"), stored)
        raise ValueError

    with pytest.raises(ValueError, match=r"^$"):
        await workspace.store("A text.", fail)
    assert workspace.stored_names() == set()
    assert workspace.incoming_files() == []
    await check_store(workspace)


async def test_an_upload_cancelled_while_the_row_is_written_leaves_row_and_file_or_neither(workspace: Workspace):
    for turn in range(60):
        upload = asyncio.create_task(workspace.add(f"{turn}.txt", f"Text {turn}."))
        for _ in range(turn % 20):
            await asyncio.sleep(0)
        upload.cancel()
        await asyncio.wait([upload])
        await check_store(workspace)
    assert workspace.incoming_files() == []


async def test_a_write_that_continues_after_its_cancellation_keeps_its_file(workspace: Workspace):
    begun, held = asyncio.Event(), asyncio.Event()
    loop = asyncio.get_running_loop()

    async def slow(tx: Transaction, stored: StoredFile) -> None:
        await documents.add(workspace.call, tx, workspace.base.id, DocumentDraft("a.txt"), stored)
        loop.call_soon_threadsafe(begun.set)
        if workspace.db.dialect == "sqlite":  # SQLite runs the body in the writer thread, where it cannot be cancelled
            asyncio.run_coroutine_threadsafe(held.wait(), loop).result(10)

    upload = asyncio.create_task(workspace.store("A text.", slow))
    await begun.wait()
    upload.cancel()
    await pause()
    held.set()
    with pytest.raises(asyncio.CancelledError):
        await upload
    await workspace.do(lambda tx: tx.fetch("SELECT 1"))  # runs after the other write has ended
    await check_store(workspace)
    assert workspace.incoming_files() == []


async def test_an_upload_cancelled_while_the_file_is_linked_leaves_nothing(
    workspace: Workspace, monkeypatch: pytest.MonkeyPatch
):
    loop, begun, held, real = asyncio.get_running_loop(), asyncio.Event(), threading.Event(), os.link

    def link(draft: Path, placed: Path) -> None:
        loop.call_soon_threadsafe(begun.set)
        held.wait(10)
        real(draft, placed)

    monkeypatch.setattr(os, "link", link)
    upload = asyncio.create_task(workspace.add("a.txt", "A text."))
    await begun.wait()
    upload.cancel()
    await pause()
    await let_threads_run()
    assert not upload.done()  # a thread is still writing
    held.set()
    with pytest.raises(asyncio.CancelledError):
        await upload
    assert (workspace.incoming_files(), workspace.stored_names()) == ([], set())


async def test_the_first_two_concurrent_uploads_share_one_folder(workspace: Workspace, monkeypatch: pytest.MonkeyPatch):
    begun, held, real = threading.Event(), threading.Event(), fcntl.flock

    def flock(lock: int, how: int) -> None:
        begun.set()
        held.wait(10)
        real(lock, how)

    async def upload() -> None:
        async with workspace.files.receive(workspace.db) as incoming_file:
            await incoming_file.write(b"A.")

    monkeypatch.setattr(fcntl, "flock", flock)
    first = asyncio.create_task(upload())
    await asyncio.to_thread(begun.wait, 10)
    second = asyncio.create_task(upload())
    await pause()
    await let_threads_run()  # the second upload is at the lock of the first, or makes a folder of its own
    held.set()
    await asyncio.gather(first, second)
    assert len(incoming(workspace)) == 1
    await check_store(workspace)


async def test_a_file_that_is_too_large_is_refused_early_and_leaves_nothing(workspace: Workspace):
    small = FileStore(workspace.home, 1000)
    with pytest.raises(TooLarge, match="larger than 1000 bytes"):
        async with small.receive(workspace.db) as incoming_file:
            await incoming_file.write(b"x" * 600)
            await incoming_file.write(b"x" * 600)
    assert workspace.incoming_files() == []
    async with small.receive(workspace.db) as incoming_file:
        await incoming_file.write(b"x" * 1000)
        assert (await incoming_file.finish()).size == 1000
    small.close()
    await check_store(workspace)


async def test_an_empty_file_is_refused(workspace: Workspace):
    with pytest.raises(BadRequest, match="The file is empty"):
        async with workspace.files.receive(workspace.db) as incoming_file:
            await incoming_file.finish()
    assert (workspace.incoming_files(), workspace.stored_names()) == ([], set())


async def test_a_store_that_cannot_be_written_is_an_error_without_its_path(workspace: Workspace):
    (workspace.home / "files").mkdir(parents=True)
    (workspace.home / "files" / "incoming").write_text("in the way")
    with pytest.raises(Unavailable, match="The file store cannot be used") as caught:
        await workspace.add("a.txt", "A text.")
    assert str(workspace.home) not in caught.value.text


async def test_a_full_disk_is_reported_when_the_incoming_file_is_created(workspace: Workspace):
    await workspace.add("first.txt", "So that there is a folder.")
    before = workspace.stored_names()
    with pytest.MonkeyPatch.context() as patch:

        def full(*_: object, **__: object) -> None:
            raise OSError(28, "No space left on device")

        patch.setattr(Path, "open", full)
        with pytest.raises(DiskFull):
            await workspace.add("a.txt", "A text.")
    assert workspace.stored_names() == before


@pytest.mark.parametrize("piece", [10_000, 200_000])
async def test_a_full_disk_is_reported_and_leaves_nothing(workspace: Workspace, piece: int):
    held = resource.getrlimit(resource.RLIMIT_FSIZE)
    # Python ignores SIGXFSZ, so that a write beyond the limit fails as on a full disk.
    try:
        with pytest.raises(DiskFull, match="no room left"):
            async with workspace.files.receive(workspace.db) as incoming_file:
                resource.setrlimit(resource.RLIMIT_FSIZE, (65_536, held[1]))
                for _ in range(20):
                    await incoming_file.write(b"x" * piece)
                await incoming_file.finish()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, held)
    assert (workspace.incoming_files(), workspace.stored_names()) == ([], set())
    await workspace.add("a.txt", "There is room again.")
    await check_store(workspace)


# Processes that die


async def test_files_that_a_living_process_receives_are_not_cleared(workspace: Workspace):
    other = FileStore(workspace.home, 1000)
    async with workspace.files.receive(workspace.db) as incoming_file:
        await incoming_file.write(b"on its way")
        stored = await incoming_file.finish()
        assert await other.clear(workspace.db) == 0
        assert workspace.files.path(stored.name).exists()
        await workspace.do(
            lambda tx: documents.add(workspace.call, tx, workspace.base.id, DocumentDraft("a.txt"), stored)
        )
    assert await other.clear(workspace.db) == 0
    await check_store(workspace)


async def test_an_incoming_folder_removed_before_it_is_locked_is_created_again(workspace: Workspace):
    real, seen = fcntl.flock, list[int]()

    def flock(lock: int, how: int) -> None:
        if not seen:  # another process is faster
            seen.append(lock)
            for folder in incoming(workspace):
                folder.rmdir()
        real(lock, how)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fcntl, "flock", flock)
        await workspace.add("a.txt", "A text.")
    assert seen
    await check_store(workspace)


PROGRAM = """
import asyncio, os, signal, sys
from pathlib import Path
from almanac.core import scopes
from almanac.core.call import Actor, Call
from almanac.db.connect import connect
from almanac.files import blobs, file_store
from almanac.knowledge import documents
from almanac.knowledge.documents import DocumentDraft
from almanac.files.file_store import FileStore

url, home, org, user, base, step = sys.argv[1:]

def die(*_, **__):
    os.kill(os.getpid(), signal.SIGKILL)

async def main():
    db = await connect(url, pool_size=2)
    actor = Actor(int(user), "owner", "user", org, "Acme", False, 1, "user", frozenset(scopes.SCOPES))
    call = Call(actor, db, "r")
    store = FileStore(Path(home), 10_000_000)
    real_sync, real_link, synced = os.fsync, os.link, []
    def fsync(handle):
        if step == "sync" or (step == "folder" and synced):
            die()
        synced.append(handle)
        real_sync(handle)
    def link(*names):
        if step == "link":
            die()
        real_link(*names)
    os.fsync, os.link = fsync, link
    async with store.receive(db) as incoming_file:
        if step == "draft":
            die()
        await incoming_file.write(b"A text of the one who dies.")
        if step == "write":
            die()
        stored = await incoming_file.finish()
        async def add(tx):
            added = await documents.add(call, tx, int(base), DocumentDraft("dead.txt"), stored)
            if step == "adopt":
                die()
            return added
        await db.write(add)
        if step == "commit":
            die()
    die()

asyncio.run(main())
"""


def die_at(workspace: Workspace, url: str, step: str) -> None:
    arguments = (url, workspace.home, workspace.town.acme.id, workspace.owner.id, workspace.base.id, step)
    done = subprocess.run([sys.executable, "-c", PROGRAM, *map(str, arguments)], capture_output=True, timeout=60)
    assert done.returncode == -9, done.stderr.decode()


async def test_after_the_death_of_a_process_clear_leaves_exactly_the_files_with_rows(
    workspace: Workspace, database_url: str
):
    await workspace.add("kept.txt", "Kept.")
    for step in STEPS:
        await asyncio.to_thread(die_at, workspace, database_url, step)
        is_added = await workspace.count("documents", "name = 'dead.txt'") == 1
        assert is_added == (step in ("commit", "closed")), step
        assert (step == "closed") == (len(incoming(workspace)) == 1 or not workspace.incoming_files()), step
        await workspace.files.clear(workspace.db)
        await check_store(workspace)
        assert workspace.incoming_files() == []
        await workspace.do(lambda tx: tx.execute("DELETE FROM documents WHERE name = 'dead.txt'"))
        dead = await blobs.find_unused(workspace.db)
        for name in await workspace.do(lambda tx, d=dead: blobs.delete_unused(tx, d)):
            workspace.files.remove(name)
    assert len(workspace.stored_names()) == 1


async def test_a_row_that_is_being_reused_is_not_deleted(workspace: Workspace):
    document = (await workspace.add("old.txt", "A text.")).document
    await workspace.do(lambda tx: tx.execute("DELETE FROM documents WHERE id = $1", document.id))
    (blob,) = await blobs.find_unused(workspace.db)
    adopted = asyncio.Event()
    # Only PostgreSQL needs a pause: SQLite has a single writer.
    hold = {"postgres": "SELECT pg_sleep(0.3)", "sqlite": "SELECT 1"}[workspace.db.dialect]

    async def adopt(tx: Transaction, stored: StoredFile) -> None:
        await documents.add(workspace.call, tx, workspace.base.id, DocumentDraft("new.txt"), stored)
        if workspace.db.dialect == "postgres":
            adopted.set()
        await tx.fetch(hold)

    upload = asyncio.create_task(workspace.store("A text.", adopt))
    if workspace.db.dialect == "postgres":
        await adopted.wait()
    else:
        await upload
    assert await workspace.do(lambda tx: blobs.delete_unused(tx, [blob])) == []
    await upload
    await check_store(workspace)


async def test_a_row_in_use_is_not_deleted(workspace: Workspace):
    await workspace.add("a.txt", "A text.")
    (blob,) = [blobs.Blob(row["id"], row["name"]) for row in await workspace.rows("SELECT id, name FROM blobs")]
    assert await workspace.do(lambda tx: blobs.delete_unused(tx, [blob])) == []
    assert await blobs.find_unused(workspace.db) == []


@pytest.mark.parametrize("turn", range(2))
async def test_content_that_is_deleted_and_stored_at_the_same_time_exists(workspace: Workspace, turn: int):
    """One transaction deletes the row while the other looks for it. There is no error."""
    for number in range(25):
        document = (await workspace.add("old.txt", f"Text {number}.")).document
        await workspace.do(lambda tx, d=document: tx.execute("DELETE FROM jobs"))
        await workspace.do(lambda tx, d=document: tx.execute("DELETE FROM documents WHERE id = $1", d.id))
        unused = await blobs.find_unused(workspace.db)

        async def forget(unused: list[blobs.Blob] = unused) -> None:
            async with workspace.files.mark_for_deletion([blob.name for blob in unused]):
                for name in await workspace.do(lambda tx: blobs.delete_unused(tx, unused)):
                    workspace.files.remove(name)

        work: list[Callable[[], Awaitable[object]]] = [
            forget,
            lambda number=number: workspace.add(f"new {number}.txt", f"Text {number}."),
        ]
        await asyncio.gather(*(each() for each in (work if turn else work[::-1])))
        await check_store(workspace)
