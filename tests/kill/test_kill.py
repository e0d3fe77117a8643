"""kill −9 of server and workers while 500 jobs are made and done: nothing acknowledged is lost, nothing done twice."""

import asyncio
import os
import random
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx2
import pytest

from almanac.core import clock
from almanac.core.database import Database
from almanac.db.connect import connect
from almanac.identity import first_start
from tests.house import request
from tests.kill.program import create_tables

pytestmark = pytest.mark.xdist_group("kill")  # each of these keeps a machine busy, and has deadlines

JOBS = 500
LEASE = 2.0
# How long after its lease a job may wait for another worker that is there: a few polls of 0.1 s on a busy machine.
SLACK = 2.0
# How long before a kill a call may have been answered and be missing from the trail, with a database that writes at
# once: a quarter of a second, and three times that for a busy machine.
WINDOW = 1.0


@dataclass(frozen=True)
class Answer:
    """A promise acknowledged: by which server, and when it was asked for and answered, as the client saw it."""

    server: int
    asked: float
    answered: float


class Process:
    """A program that is killed and started again."""

    def __init__(self, environment: dict[str, str], *arguments: str) -> None:
        self._command = [sys.executable, "-m", "tests.kill.program", *arguments]
        self._environment = environment
        self.kills = 0
        self.start()

    def start(self) -> None:
        self._process = subprocess.Popen(self._command, env=self._environment)

    @property
    def pid(self) -> int:
        return self._process.pid

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()
        self.kills += 1

    def stop(self) -> None:
        self._process.terminate()
        self._process.wait(30)


class Client:
    """Makes promises through the front door, again and again, and remembers which were acknowledged."""

    def __init__(self, port: int, token: str) -> None:
        self._url = f"http://127.0.0.1:{port}/kill"
        self._token = token
        self.acknowledged: dict[str, Answer] = {}  # by name
        self.attempts: list[tuple[float, float]] = []  # from when to when, those that a kill cut short included
        self.stopping = threading.Event()

    def run(self, who: int) -> None:
        number = 0
        with httpx2.Client(timeout=10) as http:
            while not self.stopping.is_set() and len(self.acknowledged) < JOBS:
                number += 1
                asked = time.monotonic()
                server = self._promise(http, f"{who}-{number}")
                answered = time.monotonic()
                self.attempts.append((asked, answered))
                if server is not None:
                    self.acknowledged[f"{who}-{number}"] = Answer(server, asked, answered)
                time.sleep(0.05)  # so that making them lasts as long as the killing

    def _promise(self, http: httpx2.Client, name: str) -> int | None:
        """The server that acknowledged it, if one did."""
        message, headers = request("tools/call", {"name": "promise", "arguments": {"name": name}})
        headers |= {"authorization": f"Bearer {self._token}", "accept": "application/json, text/event-stream"}
        headers["x-request-id"] = name
        try:
            response = http.post(self._url, json=message, headers=headers)
        except httpx2.HTTPError:
            return None
        result: dict[str, Any] = response.json()["result"] if response.status_code == 200 else {"isError": True}
        return None if result["isError"] else result["structuredContent"]["server"]


@contextmanager
def everything(
    database_url: str, home: Path, work_seconds: float = 0.02
) -> Generator[tuple[Process, list[Process], Client]]:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port = listener.getsockname()[1]
    environment = {
        **os.environ,
        "ALMANAC_HOME": str(home),
        "ALMANAC_DATABASE_URL": database_url,
        "ALMANAC_JOB_LEASE_SECONDS": str(LEASE),
        "ALMANAC_RATE_LIMIT_CALLS": "0",
        "KILL_WORK_SECONDS": str(work_seconds),
    }
    token = ask(database_url, prepare)
    server = Process(environment, "serve", str(port))
    workers = [Process(environment, "worker") for _ in range(2)]
    client = Client(port, token)
    try:
        yield server, workers, client
    finally:
        client.stopping.set()  # or a test that failed would never end
        for process in (server, *workers):
            process.stop()


async def prepare(db: Database) -> str:
    await create_tables(db)
    token = await first_start.create_first_admin(db)
    assert token is not None
    return token


def ask(database_url: str, work: Callable[[Database], Any]) -> Any:
    async def go() -> Any:
        db = await connect(database_url, pool_size=2)
        try:
            return await work(db)
        finally:
            await db.close()

    return asyncio.run(go())


async def unfinished(db: Database) -> int:
    rows = await db.fetch("SELECT count(*) AS n FROM jobs WHERE state <> 'done'")
    return rows[0]["n"]


def wait_until(done: Callable[[], bool], seconds: float) -> float:
    begun = time.monotonic()
    while not done():
        assert time.monotonic() - begun < seconds, f"not done within {seconds} s"
        time.sleep(0.1)
    return time.monotonic() - begun


def test_every_acknowledged_promise_is_kept_exactly_once_through_kills(database_url: str, tmp_path: Path):
    chance = random.Random(20261115)
    with everything(database_url, tmp_path) as (server, workers, client):
        threads = [threading.Thread(target=client.run, args=(who,)) for who in range(4)]
        for thread in threads:
            thread.start()
        kills = kill_at_random(chance, server, workers, client)
        for thread in threads:
            thread.join(120)
            assert not thread.is_alive()
        client.stopping.set()
        wait_until(lambda: ask(database_url, unfinished) == 0, 120)
        assert server.kills == 3
        assert sum(worker.kills for worker in workers) == 6
    check_promises(database_url, client)
    check_audit(database_url, client, kills)


def kill_at_random(chance: random.Random, server: Process, workers: list[Process], client: Client) -> dict[int, float]:
    """Kill something at every fiftieth promise or so, the server each third time; when each server was killed."""
    times: dict[int, float] = {}
    for turn in range(1, 10):
        wait_until(lambda least=turn * 50: len(client.acknowledged) >= least, 120)
        time.sleep(chance.uniform(0, 0.1))
        victim = server if turn % 3 == 0 else workers[turn % 2]
        if victim is server:
            times[server.pid] = time.monotonic()
        victim.kill()
        victim.start()
    return times


def check_promises(database_url: str, client: Client) -> None:
    async def read(db: Database) -> tuple[set[str], list[str], int]:
        promised = {row["name"] for row in await db.fetch("SELECT name FROM promises")}
        kept = [row["name"] for row in await db.fetch("SELECT name FROM kept")]
        jobs = await db.fetch("SELECT count(*) AS n FROM jobs WHERE kind = 'keep'")
        return promised, kept, jobs[0]["n"]

    promised, kept, jobs = ask(database_url, read)
    assert client.acknowledged.keys() <= promised
    assert len(client.acknowledged) >= JOBS
    assert sorted(kept) == sorted(promised)  # each once: no job lost, none done twice
    assert jobs == len(promised)


def check_audit(database_url: str, client: Client, kills: dict[int, float]) -> None:
    """A kill takes the end of that server's trail and nothing else: no gaps, and nothing older than the window."""

    async def read(db: Database) -> set[str]:
        rows = await db.fetch("SELECT request_id FROM audit WHERE tool = 'promise' AND outcome = 'ok'")
        return {row["request_id"] for row in rows}

    kept = ask(database_url, read)
    for server in {answer.server for answer in client.acknowledged.values()}:
        calls = {name: answer for name, answer in client.acknowledged.items() if answer.server == server}
        lost = [answer for name, answer in calls.items() if name not in kept]
        if not lost:
            continue
        assert server in kills, "a clean stop lost calls"
        first_lost, killed = min(answer.answered for answer in lost), kills[server]
        # Calls that overlap may be entered in either order; one asked for after another's answer is entered after it.
        gaps = [name for name, answer in calls.items() if name in kept and answer.asked > first_lost]
        assert not gaps, "the trail lacks a call and has later ones"
        # A promise is written to the same database: what stalled the trail then stalled a promise too.
        stalls = [ended - asked for asked, ended in client.attempts if asked < killed and ended > first_lost]
        assert killed - first_lost <= WINDOW + max(stalls, default=0.0)


def test_jobs_of_a_dead_worker_are_taken_over_within_their_lease(database_url: str, tmp_path: Path):
    async def running(db: Database) -> list[tuple[int, int, str]]:
        rows = await db.fetch("SELECT id, fence, worker FROM jobs WHERE state = 'running'")
        return [(row["id"], row["fence"], row["worker"]) for row in rows]

    async def begun(db: Database) -> dict[tuple[int, int], int]:
        return {(row["job_id"], row["fence"]): row["at"] for row in await db.fetch("SELECT * FROM begun")}

    with everything(database_url, tmp_path, work_seconds=0.5) as (_, workers, client):
        thread = threading.Thread(target=client.run, args=(0,))
        thread.start()
        wait_until(lambda: len({worker for *_, worker in ask(database_url, running)}) == 2, 60)
        workers[0].kill()
        died = clock.now()
        orphans = [
            (id, fence) for id, fence, worker in ask(database_url, running) if worker.endswith(f":{workers[0].pid}")
        ]
        client.stopping.set()
        thread.join()
        wait_until(lambda: ask(database_url, unfinished) == 0, 60)
        started = ask(database_url, begun)
        workers[0].start()
    assert orphans, "the worker died between jobs; nothing was shown"
    for id, fence in orphans:
        assert started[id, fence + 1] - died <= (LEASE + SLACK) * clock.SECOND
