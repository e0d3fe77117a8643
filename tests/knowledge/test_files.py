"""Files: stored once by their content, kept exactly as long as a row names them, whoever dies when."""

import asyncio
import fcntl
import hashlib
import os
import resource
import subprocess
import sys
import threading
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path

import pytest

from almanac.core.database import Transaction
from almanac.core.errors import BadRequest, TooLarge, Unavailable
from almanac.knowledge import documents, files
from almanac.knowledge.documents import DocumentDraft
from almanac.knowledge.files import DiskFull, FileStore, StoredFile
from tests.knowledge.library import Library

STEPS = ("draft", "write", "sync", "link", "folder", "adopt", "commit", "closed")


async def pause() -> None:
    """Let others on this loop go on for as long as they have anything to do."""
    for _ in range(50):
        await asyncio.sleep(0)


async def check_store(library: Library) -> None:
    """What is on the disk is what the rows say, and each row is some document's."""
    rows = await library.rows("SELECT id, hash, name, size FROM blobs")
    assert library.stored() == {row["name"] for row in rows}
    for row in rows:
        content = library.files.path(row["name"]).read_bytes()
        assert (len(content), hashlib.sha256(content).hexdigest()) == (row["size"], row["hash"])
    used = {row["blob_id"] for row in await library.rows("SELECT blob_id FROM documents")}
    assert {row["id"] for row in rows} == used


def incoming(library: Library) -> list[Path]:
    folder = library.home / "files" / "incoming"
    return list(folder.iterdir()) if folder.exists() else []


async def test_a_file_is_stored_as_it_came_with_its_digest_and_its_beginning(library: Library):
    content = os.urandom(300_000)
    async with library.files.receive(library.db) as arriving:
        for start in range(0, len(content), 70_001):
            await arriving.write(content[start : start + 70_001])
        stored = await arriving.finish()
        assert stored.hash == hashlib.sha256(content).hexdigest()
        assert (stored.size, stored.head) == (len(content), content[: files.SNIFF_BYTES])
        path = library.files.path(stored.name)
        assert path.read_bytes() == content
        await library.do(lambda tx: documents.add(library.call, tx, library.base.id, DocumentDraft("a.bin"), stored))
    assert path.read_bytes() == content
    assert library.drafts() == []
    await check_store(library)


async def test_the_same_content_is_stored_once(library: Library):
    for name in ("a.txt", "b.txt", "c.txt"):
        await library.add(name, "The same.")
    await library.add("d.txt", "Another.")
    assert len(library.stored()) == 2
    await check_store(library)


async def test_content_whose_file_was_lost_is_brought_back_by_whoever_adds_it_again(library: Library):
    first = (await library.add("a.txt", "the same")).document
    library.files.path(first.blob_name).unlink()
    await library.add("b.txt", "the same")
    assert library.files.path(first.blob_name).read_text() == "the same"
    assert library.stored() == {first.blob_name}


async def test_twenty_uploads_of_the_same_content_at_once_leave_one_file(library: Library):
    await asyncio.gather(*[library.add(f"{n}.txt", "The same.") for n in range(20)])
    assert (await library.count("documents"), len(library.stored())) == (20, 1)
    assert library.drafts() == []
    assert len(incoming(library)) == 1  # one folder for this process, however many began at once
    await check_store(library)


async def test_a_transaction_that_fails_leaves_no_file(library: Library):
    async def fail(tx: Transaction, stored: StoredFile) -> None:
        await documents.add(library.call, tx, library.base.id, DocumentDraft("a.txt"), stored)
        raise ValueError

    with pytest.raises(ValueError, match=r"^$"):
        await library.store("A text.", fail)
    assert library.stored() == set()
    assert library.drafts() == []
    await check_store(library)


async def test_a_caller_who_goes_away_while_the_row_is_written_leaves_row_and_file_or_neither(library: Library):
    for turn in range(60):
        upload = asyncio.create_task(library.add(f"{turn}.txt", f"Text {turn}."))
        for _ in range(turn % 20):
            await asyncio.sleep(0)
        upload.cancel()
        await asyncio.wait([upload])
        await check_store(library)
    assert library.drafts() == []


async def test_a_write_that_goes_on_after_its_caller_was_cancelled_keeps_its_file(library: Library):
    begun, held = asyncio.Event(), asyncio.Event()
    loop = asyncio.get_running_loop()

    async def slow(tx: Transaction, stored: StoredFile) -> None:
        await documents.add(library.call, tx, library.base.id, DocumentDraft("a.txt"), stored)
        loop.call_soon_threadsafe(begun.set)
        if library.db.dialect == "sqlite":  # where a body runs in the writer's thread, and its caller can only leave
            asyncio.run_coroutine_threadsafe(held.wait(), loop).result(10)

    upload = asyncio.create_task(library.store("A text.", slow))
    await begun.wait()
    upload.cancel()
    await pause()
    held.set()
    with pytest.raises(asyncio.CancelledError):
        await upload
    await library.do(lambda tx: tx.fetch("SELECT 1"))  # by now that write has ended, one way or the other
    await check_store(library)
    assert library.drafts() == []


async def test_a_caller_who_goes_away_while_the_file_is_put_in_its_place_leaves_nothing(
    library: Library, monkeypatch: pytest.MonkeyPatch
):
    loop, begun, held, real = asyncio.get_running_loop(), asyncio.Event(), threading.Event(), os.link

    def link(draft: Path, placed: Path) -> None:
        loop.call_soon_threadsafe(begun.set)
        held.wait(10)
        real(draft, placed)

    monkeypatch.setattr(os, "link", link)
    upload = asyncio.create_task(library.add("a.txt", "A text."))
    await begun.wait()
    upload.cancel()
    done, _ = await asyncio.wait([upload], timeout=0.3)
    assert not done  # there is a thread that still writes
    held.set()
    with pytest.raises(asyncio.CancelledError):
        await upload
    assert (library.drafts(), library.stored()) == ([], set())


async def test_two_who_come_first_at_once_share_one_folder(library: Library, monkeypatch: pytest.MonkeyPatch):
    both, real = threading.Barrier(2), fcntl.flock

    def flock(lock: int, how: int) -> None:
        with suppress(threading.BrokenBarrierError):  # where one waits for the other, they never meet here
            both.wait(0.2)
        real(lock, how)

    monkeypatch.setattr(fcntl, "flock", flock)
    await asyncio.gather(library.add("a.txt", "A."), library.add("b.txt", "B."))
    assert len(incoming(library)) == 1
    await check_store(library)


async def test_a_file_larger_than_allowed_is_refused_as_soon_as_it_is_known_and_leaves_nothing(library: Library):
    small = FileStore(library.home, 1000)
    with pytest.raises(TooLarge, match="larger than 1000 bytes"):
        async with small.receive(library.db) as arriving:
            await arriving.write(b"x" * 600)
            await arriving.write(b"x" * 600)
    assert library.drafts() == []
    async with small.receive(library.db) as arriving:
        await arriving.write(b"x" * 1000)
        assert (await arriving.finish()).size == 1000
    small.close()
    await check_store(library)


async def test_an_empty_file_is_refused(library: Library):
    with pytest.raises(BadRequest, match="The file is empty"):
        async with library.files.receive(library.db) as arriving:
            await arriving.finish()
    assert (library.drafts(), library.stored()) == ([], set())


async def test_a_store_that_cannot_be_written_says_so_without_its_path(library: Library):
    (library.home / "files").mkdir(parents=True)
    (library.home / "files" / "incoming").write_text("in the way")
    with pytest.raises(Unavailable, match="The file store cannot be used") as caught:
        await library.add("a.txt", "A text.")
    assert str(library.home) not in caught.value.text


async def test_a_draft_that_cannot_be_made_is_a_full_disk_like_any_other(library: Library):
    await library.add("first.txt", "So that there is a folder.")
    before = library.stored()
    with pytest.MonkeyPatch.context() as patch:

        def full(*_: object, **__: object) -> None:
            raise OSError(28, "No space left on device")

        patch.setattr(Path, "open", full)
        with pytest.raises(DiskFull):
            await library.add("a.txt", "A text.")
    assert library.stored() == before


@pytest.mark.parametrize("piece", [10_000, 200_000])
async def test_a_full_disk_is_told_and_leaves_nothing(library: Library, piece: int):
    held = resource.getrlimit(resource.RLIMIT_FSIZE)
    # SIGXFSZ is ignored by Python, so that a write beyond the limit fails as it does on a full disk.
    try:
        with pytest.raises(DiskFull, match="no room left"):
            async with library.files.receive(library.db) as arriving:
                resource.setrlimit(resource.RLIMIT_FSIZE, (65_536, held[1]))
                for _ in range(20):
                    await arriving.write(b"x" * piece)
                await arriving.finish()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, held)
    assert (library.drafts(), library.stored()) == ([], set())
    await library.add("a.txt", "There is room again.")
    await check_store(library)


# A process that dies


async def test_what_a_living_process_is_taking_in_is_not_cleared_away(library: Library):
    other = FileStore(library.home, 1000)
    async with library.files.receive(library.db) as arriving:
        await arriving.write(b"on its way")
        stored = await arriving.finish()
        assert await other.clear(library.db) == 0
        assert library.files.path(stored.name).exists()
        await library.do(lambda tx: documents.add(library.call, tx, library.base.id, DocumentDraft("a.txt"), stored))
    assert await other.clear(library.db) == 0
    await check_store(library)


async def test_a_folder_that_is_cleared_while_it_is_being_claimed_is_claimed_anew(library: Library):
    real, seen = fcntl.flock, list[int]()

    def flock(lock: int, how: int) -> None:
        if not seen:  # somebody else is quicker
            seen.append(lock)
            for folder in incoming(library):
                folder.rmdir()
        real(lock, how)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fcntl, "flock", flock)
        await library.add("a.txt", "A text.")
    assert seen
    await check_store(library)


PROGRAM = """
import asyncio, os, signal, sys
from pathlib import Path
from almanac.core import scopes
from almanac.core.call import Actor, Call
from almanac.db.connect import connect
from almanac.knowledge import documents, files
from almanac.knowledge.documents import DocumentDraft
from almanac.knowledge.files import FileStore

url, home, org, user, base, step = sys.argv[1:]

def die(*_, **__):
    os.kill(os.getpid(), signal.SIGKILL)

async def main():
    db = await connect(url, pool_size=2)
    actor = Actor(int(user), "librarian", "user", org, "Acme", False, 1, "user", frozenset(scopes.SCOPES))
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
    async with store.receive(db) as arriving:
        if step == "draft":
            die()
        await arriving.write(b"A text of the one who dies.")
        if step == "write":
            die()
        stored = await arriving.finish()
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


def die_at(library: Library, url: str, step: str) -> None:
    arguments = (url, library.home, library.town.acme.id, library.librarian.id, library.base.id, step)
    done = subprocess.run([sys.executable, "-c", PROGRAM, *map(str, arguments)], capture_output=True, timeout=60)
    assert done.returncode == -9, done.stderr.decode()


async def test_whenever_a_process_dies_clearing_up_leaves_exactly_the_files_that_rows_name(
    library: Library, database_url: str
):
    await library.add("kept.txt", "Kept.")
    for step in STEPS:
        await asyncio.to_thread(die_at, library, database_url, step)
        is_added = await library.count("documents", "name = 'dead.txt'") == 1
        assert is_added == (step in ("commit", "closed")), step
        assert (step == "closed") == (len(incoming(library)) == 1 or not library.drafts()), step
        await library.files.clear(library.db)
        await check_store(library)
        assert library.drafts() == []
        await library.do(lambda tx: tx.execute("DELETE FROM documents WHERE name = 'dead.txt'"))
        dead = await files.unused(library.db)
        for name in await library.do(lambda tx, d=dead: files.delete_unused(tx, d)):
            library.files.remove(name)
    assert len(library.stored()) == 1


async def test_a_row_is_forgotten_only_after_whoever_is_adopting_it_has_done_so(library: Library):
    document = (await library.add("old.txt", "A text.")).document
    await library.do(lambda tx: tx.execute("DELETE FROM documents WHERE id = $1", document.id))
    (blob,) = await files.unused(library.db)
    adopted = asyncio.Event()
    # A pause that only one of the databases needs: the other has a single writer.
    hold = {"postgres": "SELECT pg_sleep(0.3)", "sqlite": "SELECT 1"}[library.db.dialect]

    async def adopt(tx: Transaction, stored: StoredFile) -> None:
        await documents.add(library.call, tx, library.base.id, DocumentDraft("new.txt"), stored)
        if library.db.dialect == "postgres":
            adopted.set()
        await tx.fetch(hold)

    upload = asyncio.create_task(library.store("A text.", adopt))
    if library.db.dialect == "postgres":
        await adopted.wait()
    else:
        await upload
    assert await library.do(lambda tx: files.delete_unused(tx, [blob])) == []
    await upload
    await check_store(library)


async def test_a_row_that_is_adopted_is_not_forgotten(library: Library):
    await library.add("a.txt", "A text.")
    (blob,) = [files.Blob(row["id"], row["name"]) for row in await library.rows("SELECT id, name FROM blobs")]
    assert await library.do(lambda tx: files.delete_unused(tx, [blob])) == []
    assert await files.unused(library.db) == []


@pytest.mark.parametrize("turn", range(2))
async def test_content_that_is_forgotten_and_stored_anew_at_once_is_there(library: Library, turn: int):
    """The row of the one goes as the other looks for it; nobody is told of an error."""
    for number in range(25):
        document = (await library.add("old.txt", f"Text {number}.")).document
        await library.do(lambda tx, d=document: tx.execute("DELETE FROM jobs"))
        await library.do(lambda tx, d=document: tx.execute("DELETE FROM documents WHERE id = $1", d.id))
        unused = await files.unused(library.db)

        async def forget(unused: list[files.Blob] = unused) -> None:
            async with library.files.mark_for_deletion([blob.name for blob in unused]):
                for name in await library.do(lambda tx: files.delete_unused(tx, unused)):
                    library.files.remove(name)

        work: list[Callable[[], Awaitable[object]]] = [
            forget,
            lambda number=number: library.add(f"new {number}.txt", f"Text {number}."),
        ]
        await asyncio.gather(*(each() for each in (work if turn else work[::-1])))
        await check_store(library)
