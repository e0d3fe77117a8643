"""Kills the server and the workers with SIGKILL while 500 items are added and processed.

No acknowledged item may be lost, and none may be processed twice.
"""

import os
import random
import threading
import time
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx2
import pytest

from almanac.core import clock
from almanac.core.database import Database
from almanac.identity import first_start
from tests.kill.program import create_tables
from tests.kill.programs import LEASE_SECONDS, Program, free_port, with_database
from tests.live_server import request
from tests.waiting import wait_until

pytestmark = pytest.mark.xdist_group("kill")  # each of these tests keeps the machine busy and has time limits

ITEMS = 500
# The time that a job may wait for another worker after its lease has ended: a few polls of 0.1 s on a busy machine.
TAKEOVER_SECONDS = 2.0
# The audit trail may lack the calls that were answered this long before a kill, if the database writes at once: the
# trail is written every quarter of a second, and a busy machine needs up to four times as long.
AUDIT_DELAY_SECONDS = 1.0


@dataclass(frozen=True)
class Acknowledgement:
    """The server process that added an item, and the times of request and answer at the client."""

    server_pid: int
    requested_at: float
    answered_at: float


class Client:
    """Adds items over HTTP until it is stopped, and records the answers."""

    def __init__(self, port: int, token: str) -> None:
        self._url = f"http://127.0.0.1:{port}/kill"
        self._token = token
        self.acknowledged: dict[str, Acknowledgement] = {}  # by name
        self.attempts: list[tuple[float, float]] = []  # start and end of each request, also of those that failed
        self.stopping = threading.Event()

    def run(self, client_number: int) -> None:
        number = 0
        with httpx2.Client(timeout=10) as http:
            while not self.stopping.is_set() and len(self.acknowledged) < ITEMS:
                number += 1
                name = f"{client_number}-{number}"
                requested_at = time.monotonic()
                server_pid = self._add_item(http, name)
                answered_at = time.monotonic()
                self.attempts.append((requested_at, answered_at))
                if server_pid is not None:
                    self.acknowledged[name] = Acknowledgement(server_pid, requested_at, answered_at)
                time.sleep(0.05)  # slow enough that items are still added when the last process is killed

    def _add_item(self, http: httpx2.Client, name: str) -> int | None:
        """The process that acknowledged the item, or None."""
        message, headers = request("tools/call", {"name": "add_item", "arguments": {"name": name}})
        headers |= {"authorization": f"Bearer {self._token}", "accept": "application/json, text/event-stream"}
        headers["x-request-id"] = name
        try:
            response = http.post(self._url, json=message, headers=headers)
        except httpx2.HTTPError:
            return None
        result: dict[str, Any] = response.json()["result"] if response.status_code == 200 else {"isError": True}
        return None if result["isError"] else result["structuredContent"]["server_pid"]


@contextmanager
def running_programs(
    database_url: str, home: Path, job_seconds: float = 0.02
) -> Generator[tuple[Program, list[Program], Client]]:
    """A server, two workers and a client."""
    port = free_port()
    environment = {
        **os.environ,
        "ALMANAC_HOME": str(home),
        "ALMANAC_DATABASE_URL": database_url,
        "ALMANAC_JOB_LEASE_SECONDS": str(LEASE_SECONDS),
        "ALMANAC_RATE_LIMIT_CALLS": "0",
        "KILL_JOB_SECONDS": str(job_seconds),
    }
    token = with_database(database_url, prepare)
    server = Program(environment, "tests.kill.program", "serve", str(port))
    workers = [Program(environment, "tests.kill.program", "worker") for _ in range(2)]
    client = Client(port, token)
    try:
        yield server, workers, client
    finally:
        client.stopping.set()  # otherwise a failed test would never end
        for program in (server, *workers):
            program.stop()


async def prepare(db: Database) -> str:
    await create_tables(db)
    token = await first_start.create_first_admin(db)
    assert token is not None
    return token


async def count_unfinished_jobs(db: Database) -> int:
    rows = await db.fetch("SELECT count(*) AS n FROM jobs WHERE state <> 'done'")
    return rows[0]["n"]


def test_every_acknowledged_item_is_processed_exactly_once_despite_kills(database_url: str, tmp_path: Path):
    chance = random.Random(20261115)
    with running_programs(database_url, tmp_path) as (server, workers, client):
        threads = [threading.Thread(target=client.run, args=(number,)) for number in range(4)]
        for thread in threads:
            thread.start()
        kill_times = kill_at_random(chance, server, workers, client)
        for thread in threads:
            thread.join(120)
            assert not thread.is_alive()
        client.stopping.set()
        wait_until(lambda: with_database(database_url, count_unfinished_jobs) == 0, seconds=120)
        assert server.kills == 3
        assert sum(worker.kills for worker in workers) == 6
    check_items(database_url, client)
    check_audit(database_url, client, kill_times)


def kill_at_random(chance: random.Random, server: Program, workers: list[Program], client: Client) -> dict[int, float]:
    """Kill a process after about every fifty items, each third time the server; return when each server was killed."""
    kill_times: dict[int, float] = {}
    for turn in range(1, 10):
        wait_until(lambda count=turn * 50: len(client.acknowledged) >= count, seconds=120)
        time.sleep(chance.uniform(0, 0.1))  # a random moment within the work
        victim = server if turn % 3 == 0 else workers[turn % 2]
        if victim is server:
            kill_times[server.pid] = time.monotonic()
        victim.kill()
        victim.start()
    return kill_times


def check_items(database_url: str, client: Client) -> None:
    async def read(db: Database) -> tuple[set[str], list[str], int]:
        added = {row["name"] for row in await db.fetch("SELECT name FROM items")}
        processed = [row["name"] for row in await db.fetch("SELECT name FROM processed")]
        jobs = await db.fetch("SELECT count(*) AS n FROM jobs WHERE kind = 'process'")
        return added, processed, jobs[0]["n"]

    added, processed, jobs = with_database(database_url, read)
    assert client.acknowledged.keys() <= added
    assert len(client.acknowledged) >= ITEMS
    assert sorted(processed) == sorted(added)  # each once: no job was lost, and none ran twice
    assert jobs == len(added)


def check_audit(database_url: str, client: Client, kill_times: dict[int, float]) -> None:
    """Check that a killed server lost only the end of its audit trail, and no older calls."""

    async def read(db: Database) -> set[str]:
        rows = await db.fetch("SELECT request_id FROM audit WHERE tool = 'add_item' AND outcome = 'ok'")
        return {row["request_id"] for row in rows}

    recorded = with_database(database_url, read)
    for server_pid in {answer.server_pid for answer in client.acknowledged.values()}:
        calls = {name: answer for name, answer in client.acknowledged.items() if answer.server_pid == server_pid}
        lost = [answer for name, answer in calls.items() if name not in recorded]
        if not lost:
            continue
        assert server_pid in kill_times, "a clean stop lost calls"
        first_lost_at, killed_at = min(answer.answered_at for answer in lost), kill_times[server_pid]
        # Concurrent calls may be recorded in any order. A call that began after another's answer is recorded later.
        gaps = [name for name, answer in calls.items() if name in recorded and answer.requested_at > first_lost_at]
        assert not gaps, "the audit trail lacks a call but has later ones"
        # Items are written to the same database: if writing the trail took long, adding an item took as long.
        stalls = [end - start for start, end in client.attempts if start < killed_at and end > first_lost_at]
        assert killed_at - first_lost_at <= AUDIT_DELAY_SECONDS + max(stalls, default=0.0)


def test_jobs_of_a_killed_worker_are_taken_over_when_their_lease_ends(database_url: str, tmp_path: Path):
    async def running_jobs(db: Database) -> list[tuple[int, int, str]]:
        rows = await db.fetch("SELECT id, fence, worker FROM jobs WHERE state = 'running'")
        return [(row["id"], row["fence"], row["worker"]) for row in rows]

    async def start_times(db: Database) -> dict[tuple[int, int], int]:
        return {(row["job_id"], row["fence"]): row["at"] for row in await db.fetch("SELECT * FROM attempts")}

    with running_programs(database_url, tmp_path, job_seconds=0.5) as (_, workers, client):
        thread = threading.Thread(target=client.run, args=(0,))
        thread.start()
        wait_until(lambda: len({worker for *_, worker in with_database(database_url, running_jobs)}) == 2, seconds=60)
        workers[0].kill()
        killed_at = clock.now()
        orphans = [
            (id, fence)
            for id, fence, worker in with_database(database_url, running_jobs)
            if worker.endswith(f":{workers[0].pid}")
        ]
        client.stopping.set()
        thread.join()
        wait_until(lambda: with_database(database_url, count_unfinished_jobs) == 0, seconds=60)
        started_at = with_database(database_url, start_times)
        workers[0].start()
    assert orphans, "the worker died between jobs, so the test shows nothing"
    for id, fence in orphans:
        assert started_at[id, fence + 1] - killed_at <= (LEASE_SECONDS + TAKEOVER_SECONDS) * clock.SECOND
