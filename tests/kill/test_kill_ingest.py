"""Kills the server, the workers and the parser processes with SIGKILL while 300 documents are uploaded and parsed.

Every acknowledged document must exist once, and be either complete or failed with a true reason. The file store must
have the files of the documents and no others.
"""

import asyncio
import hashlib
import json
import os
import random
import signal
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
from almanac.files.file_store import FileStore
from almanac.identity import first_start, orgs, principals
from almanac.knowledge import bases, documents
from almanac.knowledge.ingest import ingest_job
from tests.kill.programs import LEASE_SECONDS, Program, free_port, with_database
from tests.waiting import wait_until

pytestmark = pytest.mark.xdist_group("kill")  # each of these tests keeps the machine busy and has time limits

CORPUS = Path(__file__).parent.parent / "knowledge" / "corpus" / "files"
DOCUMENTS = 300
CLIENTS = 4
# The processes that are killed one after the other. A fork server starts one parser process for each file.
KILLS = (
    "worker", "parser", "server", "fork server", "worker", "parser", "server", "worker", "parser", "worker",
    "fork server",
)  # fmt: skip
UNFINISHED = ", ".join(f"'{status}'" for status in documents.UNFINISHED_STATUSES)


def content_of(number: int) -> tuple[str, bytes]:
    """The name and content of a document: most are short, some have the same content, some cannot be parsed."""
    if number % 25 == 7:
        return f"{number}.docx", (CORPUS / "report.docx").read_bytes()
    if number % 25 == 13:
        return f"{number}.pdf", (CORPUS / "report.pdf").read_bytes()
    if number % 25 == 19:
        return f"{number}.bin", b"\x7fELF" + bytes(500) + bytes([number % 251])
    topic = number // 5 if number % 5 == 0 else number  # two documents with the same topic have the same content
    text = f"# Document {topic}\n\n" + f"Sentence of document {topic}. " * (20 + topic % 700)
    return f"{number}.md", text.encode()


def is_parsable(name: str) -> bool:
    return not name.endswith(".bin")


def children(pid: int) -> list[int]:
    """The current child processes of a process."""
    with suppress(OSError, ValueError):
        return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    return []


class Client:
    """Uploads documents over HTTP, and repeats each upload until it is acknowledged."""

    def __init__(self, port: int, token: str, base_id: int) -> None:
        self._url = f"http://127.0.0.1:{port}/api/v1/bases/{base_id}/documents"
        self._token = token
        self.acknowledged: dict[str, int] = {}  # ids by name
        self.stopping = threading.Event()

    def run(self, client_number: int) -> None:
        with httpx2.Client(timeout=20) as http:
            for number in range(client_number, DOCUMENTS, CLIENTS):
                while not self.stopping.is_set() and not self._upload(http, *content_of(number)):
                    time.sleep(0.1)  # the server is starting again
                time.sleep(0.02)  # slow enough that uploads continue until the last kill

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
def running_programs(database_url: str, home: Path) -> Generator[tuple[Program, list[Program], Client]]:
    """A server, two workers and a client."""
    port = free_port()
    environment = {
        **os.environ,
        "ALMANAC_HOME": str(home),
        "ALMANAC_DATABASE_URL": database_url,
        "ALMANAC_JOB_LEASE_SECONDS": str(LEASE_SECONDS),
        "ALMANAC_JOB_WORKERS": "0",
        "ALMANAC_RATE_LIMIT_CALLS": "0",
        "ALMANAC_LOG_LEVEL": "error",
        "ALMANAC_SHUTDOWN_GRACE_SECONDS": "5",
    }
    token, base_id = with_database(database_url, prepare)
    server = Program(environment, "almanac", "serve", "--port", str(port))
    workers = [Program(environment, "almanac", "worker") for _ in range(2)]
    try:
        yield server, workers, Client(port, token, base_id)
    finally:
        for program in (server, *workers):
            program.stop()


async def administrator(db: Database) -> Call:
    org = await orgs.get_by_name(db, None)
    person = await principals.get_by_name(db, org.id, "admin")
    actor = Actor(person.id, person.name, "user", org.id, org.name, True, 1, "user", frozenset(scopes.SCOPES))
    return Call(actor, db, "r")


async def prepare(db: Database) -> tuple[str, int]:
    token = await first_start.create_first_admin(db)
    assert token is not None
    call = await administrator(db)
    base = await db.write(lambda tx: bases.add(call, tx, "Manuals"))
    return token, base.id


async def count_finished_documents(db: Database) -> int:
    rows = await db.fetch(f"SELECT count(*) AS n FROM documents WHERE index_status NOT IN ({UNFINISHED})")
    return rows[0]["n"]


async def count_open_jobs(db: Database) -> int:
    rows = await db.fetch("SELECT count(*) AS n FROM jobs WHERE kind = 'ingest' AND state IN ('queued', 'running')")
    return rows[0]["n"]


async def skip_retry_delays(db: Database) -> None:
    """Let failed jobs run again at once. The tests of the queue cover the delays."""
    await db.write(lambda tx: tx.execute("UPDATE jobs SET run_at = 0 WHERE kind = 'ingest' AND state = 'queued'"))


def test_every_document_becomes_complete_or_fails_with_a_true_reason_despite_kills(database_url: str, tmp_path: Path):
    chance = random.Random(20261115)
    with running_programs(database_url, tmp_path) as (server, workers, client):
        threads = [threading.Thread(target=client.run, args=(number,)) for number in range(CLIENTS)]
        for thread in threads:
            thread.start()
        try:
            killed = kill_at_random(chance, database_url, server, workers, client)
            for thread in threads:
                thread.join(60)
        finally:
            client.stopping.set()
        assert not any(thread.is_alive() for thread in threads)
        wait_until(
            lambda: (
                (with_database(database_url, skip_retry_delays), with_database(database_url, count_open_jobs))[1] == 0
            ),
            seconds=60,
        )
    assert {"parser", "fork server"} & set(killed), "no parser process was killed"
    assert killed.count("server") == 2
    with_database(database_url, lambda db: run_maintenance(db, tmp_path))
    with_database(database_url, lambda db: check_documents(db, tmp_path, client.acknowledged))


def kill_at_random(
    chance: random.Random, database_url: str, server: Program, workers: list[Program], client: Client
) -> list[str]:
    """Kill the processes of `KILLS`, evenly spread over all work; return those that were there to be killed."""

    def progress() -> int:
        return len(client.acknowledged) + with_database(database_url, count_finished_documents)

    killed: list[str] = []
    for turn, kind in enumerate(KILLS, 1):
        due = turn * (2 * DOCUMENTS - 100) // len(KILLS)
        wait_until(lambda due=due: progress() >= due, seconds=60)
        time.sleep(chance.uniform(0, 0.1))  # a random moment within the work
        victim = server if kind == "server" else chance.choice(workers)
        if kind in ("server", "worker"):
            victim.kill()
            victim.start()
            killed.append(kind)
        elif kill_below(workers, kind):
            killed.append(kind)
        with_database(database_url, skip_retry_delays)
    return killed


def kill_below(workers: list[Program], kind: str) -> bool:
    """Kill a parser process or a fork server as soon as there is one."""
    for _ in range(2000):
        fork_servers = [child for worker in workers for child in children(worker.pid)]
        parsers = [child for fork_server in fork_servers for child in children(fork_server)]
        victims = fork_servers if kind == "fork server" else parsers
        for victim in victims:
            with suppress(ProcessLookupError):
                os.kill(victim, signal.SIGKILL)
                return True
        time.sleep(0.001)
    return False


async def run_maintenance(db: Database, home: Path) -> None:
    """Do the scheduled jobs of an hour."""
    await db.write(lambda tx: tx.execute("UPDATE documents SET updated_at = updated_at - $1", clock.HOUR))
    await ingest_job.sweep(db)
    store = FileStore(home, 10_000_000)
    await store.clear(db)
    await store.remove_unused(db)
    store.close()


async def check_documents(db: Database, home: Path, acknowledged: dict[str, int]) -> None:
    stored = {row["name"]: row for row in await db.fetch("SELECT * FROM documents")}
    assert {name: row["id"] for name, row in stored.items()} == acknowledged
    assert set(stored) == {content_of(number)[0] for number in range(DOCUMENTS)}
    codes_of_kills = {"parser_crashed", "processing_failed"}
    for name, row in stored.items():
        failure = documents.Failure(**json.loads(row["failure"])) if row["failure"] else None
        assert row["index_status"] == ("failed" if failure else "success"), name
        assert is_parsable(name) or failure, name
        if failure and is_parsable(name):
            assert failure.code in codes_of_kills, (name, failure)
            assert failure.retryable, name
    await check_texts(db, stored)
    await check_files(db, home, stored)
    lost = [name for name, row in stored.items() if row["failure"] and is_parsable(name)]
    assert len(lost) <= len(KILLS), lost


async def check_texts(db: Database, stored: dict[str, Any]) -> None:
    """Check that each document has all parts of its text and all passages, or none if it failed."""
    parts = await sum_by_document(db, "SELECT document_id, sum(length(text)) FROM reading_parts GROUP BY document_id")
    live = "SELECT s.owner_id, count(*) FROM passages p JOIN sources s ON s.id = p.source_id WHERE s.is_live = 1"
    passages = await sum_by_document(db, f"{live} GROUP BY s.owner_id")
    texts = {row["document_id"]: row for row in await db.fetch("SELECT * FROM readings")}
    for name, row in stored.items():
        text = texts.pop(row["id"], None)
        if row["index_status"] != "success":
            assert (text, parts.pop(row["id"], 0), passages.pop(row["id"], 0)) == (None, 0, 0), name
            continue
        assert text is not None, name
        assert parts.pop(row["id"]) == text["characters"] > 0, name
        assert passages.pop(row["id"]) == text["passages"] > 0, name
        assert text["generation"] == row["generation"], name
    assert (texts, parts, passages) == ({}, {}, {})


async def check_files(db: Database, home: Path, stored: dict[str, Any]) -> None:
    rows = await db.fetch("SELECT id, hash, name FROM blobs")
    assert {row["id"] for row in rows} == {row["blob_id"] for row in stored.values()}
    paths = {path.name: path for path in (home / "files").glob("[0-9a-f][0-9a-f]/*")}
    assert paths.keys() == {row["name"] for row in rows}
    hashes = {row["id"]: row["hash"] for row in rows}
    for row in rows:
        assert await asyncio.to_thread(digest, paths[row["name"]].read_bytes()) == row["hash"]
    for number in range(DOCUMENTS):
        name, content = content_of(number)
        assert hashes[stored[name]["blob_id"]] == digest(content)
    assert [path for path in (home / "files" / "incoming").rglob("*") if path.is_file()] == []


def digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


async def sum_by_document(db: Database, sql: str) -> dict[int, int]:
    return {int(row[0]): int(row[1]) for row in await db.fetch(sql)}
