"""Compaction: after an interruption at any point, searches agree with the database, and no more is written than
needed.
"""

import asyncio
import os
import shutil
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from almanac.core.database import Transaction
from almanac.db.connect import connect
from almanac.search.index.embedded import change_log, compaction, compaction_process
from almanac.search.index.embedded.compaction import Difference, compact, compare, rebuild
from almanac.search.index.embedded.embedded_index import EmbeddedIndex
from almanac.search.index.protocol import SearchScope
from tests.search.reference import Reference, assert_agrees
from tests.search.shelf import MODEL, Shelf, open_shelf, terms, turn
from tests.waiting import until

ALL = SearchScope(("base:1", "base:2", "base:3"))


@pytest.fixture
async def shelf(sqlite_template: Path, tmp_path: Path) -> AsyncIterator[Shelf]:
    shutil.copy(sqlite_template, tmp_path / "almanac.db")
    db = await connect(f"sqlite:///{tmp_path / 'almanac.db'}")
    yield await open_shelf(db)
    await db.close()


@pytest.fixture
def files(tmp_path: Path) -> Path:
    return tmp_path / "index"


async def put_many(shelf: Shelf, first: int, number: int, collection: str = "base:1") -> None:
    for n in range(first, first + number):
        await shelf.put(f"{n}", [f"pump x{n}", "pump and valve"], collection)


async def counts(shelf: Shelf) -> tuple[int, int]:
    """The number of files in the database, and of stored changes."""
    row = await shelf.db.fetch_one("SELECT (SELECT count(*) FROM segments), (SELECT count(*) FROM changes)")
    assert row is not None
    return row[0], row[1]


async def assert_right(shelf: Shelf, files: Path) -> None:
    assert await compare(shelf.db, files) == []
    index = EmbeddedIndex(shelf.db, files)
    found = await index.keyword_hits(ALL, terms("pump valve"), 10)
    assert_agrees(found, await Reference(shelf.db).words(ALL, terms("pump valve")), 10, 1e-5)
    assert {file.name for file in files.iterdir()} >= {file.name for file in await change_log.files(shelf.db)}


# Triggers and size


async def test_a_few_changes_are_not_worth_a_file(shelf: Shelf, files: Path):
    await put_many(shelf, 0, 3)
    assert await compact(shelf.db, files) is None
    assert (await counts(shelf))[0] == 0


async def test_enough_passages_or_enough_changes_are(shelf: Shelf, files: Path):
    await put_many(shelf, 0, 10)
    assert await compact(shelf.db, files, least=20) == 20
    assert await counts(shelf) == (1, 0)
    for n in range(20):
        await shelf.change("0", is_live=n % 2 == 1)
    assert await compact(shelf.db, files, least=20)
    assert await compact(shelf.db, files, least=20) is None
    await assert_right(shelf, files)


async def test_what_no_longer_holds_is_got_rid_of_when_it_is_much(shelf: Shelf, files: Path):
    await put_many(shelf, 0, 40)
    await compact(shelf.db, files, least=1)
    for n in range(7):
        await shelf.remove(f"{n}")
    assert await compact(shelf.db, files, least=14) is None  # 14 passages of 80 are less than a fifth
    for n in range(7, 12):
        await shelf.remove(f"{n}")
    assert await compact(shelf.db, files, least=14) == 56
    assert await counts(shelf) == (1, 0)
    await assert_right(shelf, files)


def written(file: Path) -> tuple[int, int, int]:
    """The modification time and inode of a file, which reads do not change."""
    known = file.stat()
    return known.st_ino, known.st_size, known.st_mtime_ns


async def test_a_large_file_is_not_written_again_for_a_few_passages(shelf: Shelf, files: Path):
    await put_many(shelf, 0, 60)
    await compact(shelf.db, files, least=1)
    (large,) = files.iterdir()
    stamp = written(large)
    await put_many(shelf, 55, 10)  # some of them replace others
    assert await compact(shelf.db, files, least=1) == 20
    assert written(large) == stamp
    assert len(list(files.iterdir())) == 2
    await assert_right(shelf, files)
    await put_many(shelf, 65, 10)
    assert await compact(shelf.db, files, least=1) == 40  # the two small ones in one
    assert len(list(files.iterdir())) == 2
    assert written(large) == stamp
    await assert_right(shelf, files)


async def test_files_stay_few_however_often_something_is_added(shelf: Shelf, files: Path):
    for n in range(30):
        await put_many(shelf, n, 1, f"base:{1 + n % 3}")
        await compact(shelf.db, files, least=1)
    assert len(list(files.iterdir())) <= 4
    assert (await counts(shelf))[1] == 0
    await assert_right(shelf, files)


async def test_more_than_fits_into_memory_at_once_goes_through_files(
    shelf: Shelf, files: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(compaction, "PASSAGES_AT_ONCE", 10)
    monkeypatch.setattr(compaction, "SOURCES_AT_ONCE", 3)
    await put_many(shelf, 0, 20, "base:2")
    await put_many(shelf, 20, 20, "base:1")
    for name in list(shelf.things)[::3]:
        await shelf.embed(name)
    assert await rebuild(shelf.db, files) == 80
    assert len(list(files.iterdir())) == 1
    await assert_right(shelf, files)


async def test_when_everything_was_removed_an_empty_file_says_so(shelf: Shelf, files: Path):
    await put_many(shelf, 0, 3)
    await compact(shelf.db, files, least=1)
    for n in range(3):
        await shelf.remove(f"{n}")
    assert await compact(shelf.db, files, least=1) == 0
    assert await counts(shelf) == (1, 0)
    await put_many(shelf, 0, 3)
    await compact(shelf.db, files, least=1)
    assert len(list(files.iterdir())) == 1
    await assert_right(shelf, files)


# Interruptions


class CutError(OSError):
    """Stands for the end of the process."""


@pytest.mark.parametrize("verb", [compact, rebuild])
@pytest.mark.parametrize("place", [(os, "fsync"), (os, "replace"), (change_log, "replace_files"), (Path, "unlink")])
async def test_cut_short_anywhere_it_leaves_all_to_be_found_and_the_next_one_tidies_up(
    shelf: Shelf, files: Path, monkeypatch: pytest.MonkeyPatch, verb: Any, place: tuple[Any, str]
):
    await put_many(shelf, 0, 10)
    await compact(shelf.db, files, least=1)
    await put_many(shelf, 5, 10)
    how = {"least": 1} if verb is compact else {}

    def cut(*_: Any, **__: Any) -> Any:
        raise CutError

    with monkeypatch.context() as patch:
        patch.setattr(*place, cut)
        with pytest.raises(CutError):
            await verb(shelf.db, files, **how)
    await assert_right(shelf, files)
    await put_many(shelf, 20, 10)
    await verb(shelf.db, files, **how)
    await assert_right(shelf, files)
    assert {file.name for file in files.iterdir()} == {file.name for file in await change_log.files(shelf.db)}


async def test_what_is_written_during_a_compaction_is_not_lost(
    shelf: Shelf, files: Path, monkeypatch: pytest.MonkeyPatch
):
    await put_many(shelf, 0, 10)
    read = change_log.read_sources

    async def write_meanwhile(*args: Any) -> None:
        await shelf.put("0", ["valve"])
        await read(*args)
        await shelf.remove("1")
        await shelf.put("2", ["valve of a pump"])
        await shelf.change("3", is_live=False)
        await shelf.put("new", ["pump"])
        await shelf.embed("4")

    monkeypatch.setattr(change_log, "read_sources", write_meanwhile)
    await compact(shelf.db, files, least=1)
    monkeypatch.setattr(change_log, "read_sources", read)
    assert (await counts(shelf))[1] > 0
    await assert_right(shelf, files)
    await compact(shelf.db, files, least=1)
    await assert_right(shelf, files)


async def test_two_at_once_take_turns(shelf: Shelf, files: Path):
    await put_many(shelf, 0, 10)
    done = await asyncio.gather(*(compact(shelf.db, files, least=1) for _ in range(3)))
    assert [each for each in done if each] == [20]
    await assert_right(shelf, files)


async def test_searches_go_on_while_all_is_written_anew(shelf: Shelf, files: Path):
    await put_many(shelf, 0, 30)
    await compact(shelf.db, files, least=1)
    index = EmbeddedIndex(shelf.db, files)
    rebuilding = asyncio.create_task(rebuild(shelf.db, files))
    searches = 0
    while not rebuilding.done() or not searches:
        assert len((await index.keyword_hits(ALL, terms("pump"), 100)).ids) == 60
        searches += 1
        await asyncio.sleep(0)
    assert await rebuilding == 60
    assert len(list(files.iterdir())) == 1


async def test_foreign_files_in_the_folder_are_left_alone(shelf: Shelf, files: Path):
    files.mkdir()
    (files / "notes.txt").write_text("mine")
    (files / "old.segment").write_text("of a compaction that was cut short")
    (files / "older.unfinished").write_text("likewise")
    await put_many(shelf, 0, 3)
    await compact(shelf.db, files, least=1)
    assert {file.suffix for file in files.iterdir()} == {".txt", ".segment"}
    assert len(list(files.iterdir())) == 2


# Comparison with the database


async def test_index_and_store_agree_whatever_happened(shelf: Shelf, files: Path):
    await shelf.fill(20, ALL.collections, per=3)
    assert await compare(shelf.db, files) == []
    await compact(shelf.db, files, least=1)
    await shelf.remove("3")
    await shelf.change("4", is_live=False)
    await shelf.change("5", collection="base:9")
    assert await compare(shelf.db, files) == []


async def test_a_change_that_was_never_told_is_a_difference(shelf: Shelf, files: Path):
    await put_many(shelf, 0, 5)
    await shelf.embed("0")
    await compact(shelf.db, files, least=1)

    async def body(tx: Transaction) -> None:
        ids = [row["id"] for row in await tx.fetch("SELECT id FROM passages ORDER BY id")]
        await tx.execute("DELETE FROM passages WHERE id = $1", ids[-1])
        await tx.execute("UPDATE passages SET words = NULL WHERE id = $1", ids[-2])
        await tx.execute("UPDATE vectors SET model = 'another' WHERE passage_id = $1", ids[0])

    await shelf.db.write(body)
    assert await compare(shelf.db, files) == [
        Difference("base:1", "passages", 0, 1),
        Difference("base:1", f"vectors of {MODEL}", 0, 1),
        Difference("base:1", "vectors of another", 1, 0),
        Difference("base:1", "words", 0, 2),
    ]
    await rebuild(shelf.db, files)
    assert await compare(shelf.db, files) == []


async def test_a_rebuild_keeps_vectors_as_near_as_they_were(shelf: Shelf, files: Path):
    await put_many(shelf, 0, 10)
    vectors = turn(shelf.rng, 20, 32)
    for n in range(10):
        await shelf.embed(f"{n}", vectors[2 * n : 2 * n + 2])
    index = EmbeddedIndex(shelf.db, files)
    before = await index.vector_hits(ALL, MODEL, vectors[3], 8)
    await rebuild(shelf.db, files)
    after = await index.vector_hits(ALL, MODEL, vectors[3], 8)
    assert np.array_equal(before.ids, after.ids)
    assert np.array_equal(before.scores, after.scores)


# In its own process


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path / 'almanac.db'}"


@pytest.fixture
def begun(monkeypatch: pytest.MonkeyPatch) -> list[asyncio.subprocess.Process]:
    """The started processes."""
    started: list[asyncio.subprocess.Process] = []
    start: Any = asyncio.create_subprocess_exec

    async def watched(*args: Any, **options: Any) -> asyncio.subprocess.Process:
        started.append(await start(*args, **options))
        return started[-1]

    monkeypatch.setattr(asyncio, "create_subprocess_exec", watched)
    return started


async def lose_file(shelf: Shelf, files: Path) -> None:
    """Remove a file, so that there is work to do even without changes."""
    await put_many(shelf, 0, 10)
    await compact(shelf.db, files, least=1)
    for file in files.iterdir():
        file.unlink()


async def test_where_there_is_little_to_do_no_process_is_begun(
    shelf: Shelf, files: Path, url: str, begun: list[asyncio.subprocess.Process]
):
    await put_many(shelf, 0, 3)
    await compaction_process.run(shelf.db, url, files)
    assert begun == []


async def test_another_process_writes_the_files(
    shelf: Shelf, files: Path, url: str, begun: list[asyncio.subprocess.Process]
):
    await lose_file(shelf, files)
    await compaction_process.run(shelf.db, url, files)
    assert [each.returncode for each in begun] == [0]
    assert [file.name for file in files.iterdir()] == [file.name for file in await change_log.files(shelf.db)]
    await assert_right(shelf, files)


async def test_what_cannot_be_written_is_told(shelf: Shelf, files: Path, url: str, capfd: pytest.CaptureFixture[str]):
    await lose_file(shelf, files)
    files.rmdir()
    files.write_text("in the way")
    with pytest.raises(compaction_process.CompactionFailed):
        await compaction_process.run(shelf.db, url, files)
    assert "FileExistsError" in capfd.readouterr().err


async def test_who_stops_waiting_stops_the_process(
    shelf: Shelf, files: Path, url: str, begun: list[asyncio.subprocess.Process]
):
    await lose_file(shelf, files)
    async with shelf.db.lock("index"):  # so that it has to wait
        running = asyncio.create_task(compaction_process.run(shelf.db, url, files))
        await until(lambda: begun)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
    assert begun[0].returncode == -9
    assert list(files.iterdir()) == []
