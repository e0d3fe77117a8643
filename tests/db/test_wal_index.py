"""The WAL index: it changes with every commit of any connection or process, and with nothing else."""

import os
import sqlite3
import subprocess
import sys
from pathlib import Path

from almanac.core.database import Database
from almanac.db.sqlite import SqliteDatabase

COMMIT_ELSEWHERE = """
import sqlite3, sys
connection = sqlite3.connect(sys.argv[1])
connection.execute("INSERT INTO things VALUES ('from elsewhere')")
connection.commit()
"""


async def make(path: Path) -> SqliteDatabase:
    db = await SqliteDatabase.open(path)
    await db.write(lambda tx: tx.execute("CREATE TABLE IF NOT EXISTS things (name TEXT)"))
    return db


async def add(db: Database, name: str) -> None:
    await db.write(lambda tx: tx.execute("INSERT INTO things VALUES ($1)", name))


async def test_reading_leaves_the_version_as_it_is_and_every_commit_changes_it(tmp_path: Path):
    db = await make(tmp_path / "a.db")
    seen = {db.commit_version()}
    for number in range(50):
        await db.fetch("SELECT * FROM things")
        await db.scan("SELECT * FROM things")
        assert db.commit_version() in seen
        await add(db, str(number))
        assert db.commit_version() not in seen
        seen.add(db.commit_version())
    await db.close()


async def test_a_commit_by_another_process_shows(tmp_path: Path):
    db = await make(tmp_path / "a.db")
    before = db.commit_version()
    subprocess.run([sys.executable, "-c", COMMIT_ELSEWHERE, tmp_path / "a.db"], check=True)
    assert db.commit_version() != before
    assert len(await db.fetch("SELECT * FROM things")) == 1
    await db.close()


async def test_a_transaction_that_is_rolled_back_or_still_open_does_not_show(tmp_path: Path):
    db = await make(tmp_path / "a.db")
    before = db.commit_version()
    other = sqlite3.connect(tmp_path / "a.db")
    other.execute("INSERT INTO things VALUES ('maybe')")
    assert db.commit_version() == before
    other.rollback()
    assert db.commit_version() == before
    other.close()
    await db.close()


async def test_the_log_starting_anew_is_no_way_back_to_an_earlier_version(tmp_path: Path):
    db = await make(tmp_path / "a.db")
    seen = {db.commit_version()}
    for number in range(20):
        other = sqlite3.connect(tmp_path / "a.db")
        other.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
        other.close()
        await add(db, str(number))
        assert db.commit_version() not in seen
        seen.add(db.commit_version())
    await db.close()


async def test_a_database_opened_while_another_of_the_same_file_closes_sees_its_own_commits(tmp_path: Path):
    path = tmp_path / "a.db"
    first = await make(path)
    for number in range(5):
        second = await make(path)
        await first.close()
        before = second.commit_version()
        await add(second, str(number))
        assert second.commit_version() != before
        first = second
    await first.close()


async def test_closing_one_of_two_leaves_the_locks_of_the_other(tmp_path: Path):
    path = tmp_path / "a.db"
    stays, goes = await make(path), await make(path)
    await goes.close()
    # Without the shared lock, another process would remove the index when it closes.
    subprocess.run([sys.executable, "-c", COMMIT_ELSEWHERE, path], check=True)
    assert (tmp_path / "a.db-shm").exists()
    assert (await stays.fetch("SELECT count(*) AS n FROM things"))[0]["n"] == 1
    await stays.close()


async def test_no_descriptor_is_left_open(tmp_path: Path):
    await (await make(tmp_path / "warm.db")).close()
    before = len(os.listdir("/proc/self/fd"))
    for number in range(5):
        await (await make(tmp_path / f"{number}.db")).close()
    assert len(os.listdir("/proc/self/fd")) == before
