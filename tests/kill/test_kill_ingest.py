"""kill −9 of the server, the workers and the parsers' processes while 300 documents come in and are read.

Whatever dies when: every document that was acknowledged is there, once, and whole; it has been read, or says honestly
why not; and the store has the files of the documents, and no other.
"""

import asyncio
import hashlib
import json
import os
import random
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Generator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import httpx2
import pytest

from almanac.core import clock, scopes
from almanac.core.call import Actor, Call
from almanac.core.database import Database
from almanac.identity import first_start, orgs, principals
from almanac.knowledge import bases, documents, trash
from almanac.knowledge.files import FileStore
from almanac.knowledge.ingest import ingest_job
from tests.kill.test_kill import ask, wait_until

pytestmark = pytest.mark.xdist_group("kill")  # each of these keeps a machine busy, and has deadlines

CORPUS = Path(__file__).parent.parent / "knowledge" / "corpus" / "files"
DOCUMENTS = 300
CLIENTS = 4
LEASE = 2.0
# Each a kill: of the server, a worker, a process that reads one file, or the one that forks those.
KILLS = ("worker", "parser", "server", "nursery", "worker", "parser", "server", "worker", "parser", "worker", "nursery")
UNFINISHED = ", ".join(f"'{status}'" for status in documents.UNFINISHED_STATUSES)


def content_of(number: int) -> tuple[str, bytes]:
    """The document of a number: most are short, some share their content, some cannot be read."""
    if number % 25 == 7:
        return f"{number}.docx", (CORPUS / "report.docx").read_bytes()
    if number % 25 == 13:
        return f"{number}.pdf", (CORPUS / "report.pdf").read_bytes()
    if number % 25 == 19:
        return f"{number}.bin", b"\x7fELF" + bytes(500) + bytes([number % 251])
    own = number // 5 if number % 5 == 0 else number  # some say the same as another
    return f"{number}.md", (f"# Document {own}\n\n" + f"Sentence of document {own}. " * (20 + own % 700)).encode()


def is_readable(name: str) -> bool:
    return not name.endswith(".bin")


class Process:
    """One of our programs, which is killed and started again."""

    def __init__(self, environment: dict[str, str], *arguments: str) -> None:
        self._command = [sys.executable, "-m", "almanac", *arguments]
        self._environment = environment
        self.start()

    def start(self) -> None:
        self._process = subprocess.Popen(self._command, env=self._environment, stdout=subprocess.DEVNULL)

    @property
    def pid(self) -> int:
        return self._process.pid

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()
        self.start()

    def stop(self) -> None:
        self._process.terminate()
        self._process.wait(30)


def children(pid: int) -> list[int]:
    """The processes below one, as the system knows them at this moment."""
    with suppress(OSError, ValueError):
        return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    return []


class Client:
    """Uploads documents through the front door, each until it is acknowledged."""

    def __init__(self, port: int, token: str, base_id: int) -> None:
        self._url = f"http://127.0.0.1:{port}/api/v1/bases/{base_id}/documents"
        self._token = token
        self.acknowledged: dict[str, int] = {}  # name: id
        self.stopping = threading.Event()

    def run(self, who: int) -> None:
        with httpx2.Client(timeout=20) as http:
            for number in range(who, DOCUMENTS, CLIENTS):
                while not self.stopping.is_set() and not self._upload(http, *content_of(number)):
                    time.sleep(0.1)  # the server is on its way back
                time.sleep(0.02)  # so that the coming in lasts as long as the killing

    def _upload(self, http: httpx2.Client, name: str, content: bytes) -> bool:
        headers = {"authorization": f"Bearer {self._token}"}
        form: dict[str, Any] = {"files": {"file": (name, content)}, "data": {"if_exists": "replace"}}
        try:
            response = http.post(self._url, headers=headers, **form)
        except httpx2.HTTPError:
            return False
        if response.status_code not in (200, 201):
            return False
        document = response.json()
        self.acknowledged[name] = document.get("document", document)["id"]
        return True


@contextmanager
def everything(database_url: str, home: Path) -> Generator[tuple[Process, list[Process], Client]]:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port = listener.getsockname()[1]
    environment = {
        **os.environ,
        "ALMANAC_HOME": str(home),
        "ALMANAC_DATABASE_URL": database_url,
        "ALMANAC_JOB_LEASE_SECONDS": str(LEASE),
        "ALMANAC_JOB_WORKERS": "0",
        "ALMANAC_RATE_LIMIT_CALLS": "0",
        "ALMANAC_LOG_LEVEL": "error",
        "ALMANAC_SHUTDOWN_GRACE_SECONDS": "5",
    }
    token, base_id = ask(database_url, prepare)
    server = Process(environment, "serve", "--port", str(port))
    workers = [Process(environment, "worker") for _ in range(2)]
    try:
        yield server, workers, Client(port, token, base_id)
    finally:
        for process in (server, *workers):
            process.stop()


async def administrator(db: Database) -> Call:
    org = await orgs.get_by_name(db, None)
    person = await principals.get_by_name(db, org.id, "admin")
    held = frozenset(scopes.SCOPES)
    return Call(Actor(person.id, person.name, "user", org.id, org.name, True, 1, "user", held), db, "r")


async def prepare(db: Database) -> tuple[str, int]:
    token = await first_start.create_first_admin(db)
    assert token is not None
    call = await administrator(db)
    base = await db.write(lambda tx: bases.add(call, tx, "Manuals"))
    return token, base.id


async def finished(db: Database) -> int:
    rows = await db.fetch(f"SELECT count(*) AS n FROM documents WHERE index_status NOT IN ({UNFINISHED})")
    return rows[0]["n"]


async def waiting(db: Database) -> int:
    rows = await db.fetch("SELECT count(*) AS n FROM jobs WHERE kind = 'ingest' AND state IN ('queued', 'running')")
    return rows[0]["n"]


async def hasten(db: Database) -> None:
    """Let nobody wait for another attempt: how long one waits is the queue's affair."""
    await db.write(lambda tx: tx.execute("UPDATE jobs SET run_at = 0 WHERE kind = 'ingest' AND state = 'queued'"))


def test_whatever_dies_while_documents_come_in_and_are_read_every_one_ends_whole_or_honestly_failed(
    database_url: str, tmp_path: Path
):
    chance = random.Random(20261115)
    with everything(database_url, tmp_path) as (server, workers, client):
        threads = [threading.Thread(target=client.run, args=(who,)) for who in range(CLIENTS)]
        for thread in threads:
            thread.start()
        try:
            killed = kill_at_random(chance, database_url, server, workers, client)
            for thread in threads:
                thread.join(60)
        finally:
            client.stopping.set()
        assert not any(thread.is_alive() for thread in threads)
        wait_until(lambda: (ask(database_url, hasten), ask(database_url, waiting))[1] == 0, 60)
    assert [what for what in killed if what in ("parser", "nursery")], "no parser was there to be killed"
    assert killed.count("server") == 2
    ask(database_url, lambda db: settle(db, tmp_path))
    ask(database_url, lambda db: check(db, tmp_path, client.acknowledged))


def kill_at_random(
    chance: random.Random, database_url: str, server: Process, workers: list[Process], client: Client
) -> list[str]:
    """Kill something whenever so much has come in or been read; what was killed."""
    killed: list[str] = []
    for turn, what in enumerate(KILLS, 1):
        due = turn * (2 * DOCUMENTS - 100) // len(KILLS)
        wait_until(lambda d=due: len(client.acknowledged) + ask(database_url, finished) >= d, 60)
        time.sleep(chance.uniform(0, 0.1))
        victim = server if what == "server" else chance.choice(workers)
        if what in ("server", "worker"):
            victim.kill()
            killed.append(what)
        elif kill_parser(workers, what):
            killed.append(what)
        ask(database_url, hasten)
    return killed


def kill_parser(workers: list[Process], what: str) -> bool:
    """Kill a process that reads a file, or the one that forks those, as soon as there is one."""
    for _ in range(2000):
        nurseries = [child for worker in workers for child in children(worker.pid)]
        victims = nurseries if what == "nursery" else [child for nursery in nurseries for child in children(nursery)]
        for victim in victims:
            with suppress(ProcessLookupError):
                os.kill(victim, signal.SIGKILL)
                return True
        time.sleep(0.001)
    return False


async def settle(db: Database, home: Path) -> None:
    """What the worker's own chores do in the course of an hour."""
    await db.write(lambda tx: tx.execute("UPDATE documents SET updated_at = updated_at - $1", clock.HOUR))
    await ingest_job.sweep(db)
    store = FileStore(home, 10_000_000)
    await store.clear(db)
    await trash.remove_unused(db, store)
    store.close()


async def check(db: Database, home: Path, acknowledged: dict[str, int]) -> None:
    found = {row["name"]: row for row in await db.fetch("SELECT * FROM documents")}
    assert {name: row["id"] for name, row in found.items()} == acknowledged
    assert set(found) == {content_of(number)[0] for number in range(DOCUMENTS)}
    honest = {"parser_crashed", "processing_failed"}
    for name, row in found.items():
        failure = documents.Failure(**json.loads(row["failure"])) if row["failure"] else None
        assert row["index_status"] == ("failed" if failure else "success"), name
        assert is_readable(name) or failure, name
        if failure and is_readable(name):
            assert failure.code in honest, (name, failure)
            assert failure.retryable, name
    await check_texts(db, found)
    await check_files(db, home, found)
    lost = [name for name, row in found.items() if row["failure"] and is_readable(name)]
    assert len(lost) <= len(KILLS), lost


async def check_texts(db: Database, found: dict[str, Any]) -> None:
    """No half document: the parts add up, the passages are all there, and of what failed there is nothing."""
    parts = await sums(db, "SELECT document_id, sum(length(text)) FROM reading_parts GROUP BY document_id")
    live = "SELECT s.owner_id, count(*) FROM passages p JOIN sources s ON s.id = p.source_id WHERE s.is_live = 1"
    cut = await sums(db, f"{live} GROUP BY s.owner_id")
    whole = {row["document_id"]: row for row in await db.fetch("SELECT * FROM readings")}
    for name, row in found.items():
        reading = whole.pop(row["id"], None)
        if row["index_status"] != "success":
            assert (reading, parts.pop(row["id"], 0), cut.pop(row["id"], 0)) == (None, 0, 0), name
            continue
        assert reading is not None, name
        assert parts.pop(row["id"]) == reading["characters"] > 0, name
        assert cut.pop(row["id"]) == reading["passages"] > 0, name
        assert reading["generation"] == row["generation"], name
    assert (whole, parts, cut) == ({}, {}, {})


async def check_files(db: Database, home: Path, found: dict[str, Any]) -> None:
    rows = await db.fetch("SELECT id, hash, name FROM blobs")
    assert {row["id"] for row in rows} == {row["blob_id"] for row in found.values()}
    stored = {path.name: path for path in (home / "files").glob("[0-9a-f][0-9a-f]/*")}
    assert stored.keys() == {row["name"] for row in rows}
    hashes = {row["id"]: row["hash"] for row in rows}
    for row in rows:
        assert await asyncio.to_thread(digest, stored[row["name"]].read_bytes()) == row["hash"]
    for number in range(DOCUMENTS):
        name, content = content_of(number)
        assert hashes[found[name]["blob_id"]] == digest(content)
    assert [path for path in (home / "files" / "incoming").rglob("*") if path.is_file()] == []


def digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


async def sums(db: Database, sql: str) -> dict[int, int]:
    return {int(row[0]): int(row[1]) for row in await db.fetch(sql)}
