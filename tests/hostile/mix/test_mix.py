"""One organisation sends a hostile mix of requests: the event loop stays responsive, and others are served.

`ALMANAC_TEST_SECONDS=600 make test-hostile` runs the mix for ten minutes on each database. `ARGS=-s` shows the numbers.
"""

import http.client
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path
from statistics import quantiles
from typing import Any

import pytest

from tests.cli.program import Server, run, serving
from tests.conftest import Cluster
from tests.waiting import wait_until

SECONDS = float(os.environ.get("ALMANAC_TEST_SECONDS", "30"))
MAX_STALL_MILLISECONDS = 100
MAX_SLOWDOWN = 5
MIN_QUIET_MILLISECONDS = 5.0  # below this, the slowdown measures the scheduler of the operating system
MAX_GROWTH_MIB = 400
PAUSE_SECONDS = 0.01
PAUSE = threading.Event()  # never set: a pause between requests
UNLIMITED = (
    "ALMANAC_RATE_LIMIT_CALLS",
    "ALMANAC_MEMORY_CALLS",
    "ALMANAC_MEMORY_READ_CALLS",
    "ALMANAC_MEMORY_NOTES_A_MONTH",
)
ATTACKER = Path(__file__).with_name("attacker.py")
KINDS = (
    "unknown_arguments",
    "many_numbers",
    "missing_quotation",
    "search",
    "large_note",
    "nodes",
    "entities",
    "large_entity",
)
WORDS = "pump valve seal rotor shaft bearing oil filter"


class Client:
    """A client with one connection, which measures how long answers take."""

    def __init__(self, server: Server, token: str) -> None:
        self._connection = http.client.HTTPConnection(server.url.removeprefix("http://"), timeout=60)
        self._headers = {"authorization": f"Bearer {token}", "x-api-key": token, "content-type": "application/json"}

    def send(self, method: str, path: str, body: Any = None) -> tuple[float, Any]:
        """Send a request; return the milliseconds to its answer, and the answer."""
        began = time.perf_counter()
        self._connection.request(method, path, None if body is None else json.dumps(body), self._headers)
        answer = self._connection.getresponse()
        content = answer.read()
        milliseconds = 1000 * (time.perf_counter() - began)
        assert answer.status < 300, content[:500]
        return milliseconds, json.loads(content)


def measure(send: Callable[[], float], seconds: float, pause: float) -> list[float]:
    """Repeat a request for some time."""
    found: list[float] = []
    ends = time.monotonic() + seconds
    while time.monotonic() < ends:
        found.append(send())
        PAUSE.wait(pause)
    return found


def p99(values: list[float]) -> float:
    return quantiles(values, n=100)[-1]


@contextmanager
def attacked(server: Server, base: int, document: int) -> Generator[None]:
    """Let another process send the hostile mix meanwhile. Each kind of request must have been answered."""
    port = server.url.rpartition(":")[2]
    command = [sys.executable, str(ATTACKER), port, server.token, str(base), str(document)]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        yield
    finally:
        output, _ = process.communicate(timeout=120)
    answers: dict[str, int] = json.loads(output)
    print("answers to the attacker:", dict(sorted(answers.items())))
    assert {name.partition(" ")[0] for name in answers if not name.endswith("closed")} == set(KINDS)
    assert not [name for name in answers if name.endswith(" 500")]


def fill(admin: Client) -> tuple[int, int]:
    """Add a base with folders and one large document, and a category. Return the ids of base and document."""
    _, base = admin.send("POST", "/api/v1/bases", {"name": "Manuals", "level": "organization"})
    for number in range(300):
        admin.send("POST", f"/api/v1/bases/{base['id']}/folders", {"name": f"folder {number}"})
    text = "\n\n".join(f"Section {number}. {WORDS} {number}. {WORDS}." for number in range(40_000))
    _, added = admin.send("POST", f"/api/v1/bases/{base['id']}/documents", {"name": "large.txt", "content": text})
    admin.send("POST", "/knowledge-base/category-aliases", {"name": "Pumps", "aliasKey": "pumps"})
    admin.send("POST", "/knowledge-base/policies", {"name": "Open", "policyKey": "open"})
    category = {"name": "Pumps", "description": "Pumps", "categoryAlias": "pumps", "policy": "open"}
    admin.send("POST", "/knowledge-base/categories", category)
    path = f"/api/v1/documents/{added['document']['id']}"
    wait_until(lambda: admin.send("GET", path)[1]["index_status"] == "success", seconds=120)
    return base["id"], added["document"]["id"]


def resident_mib(server: Server) -> float:
    status = Path(f"/proc/{server.process.pid}/status").read_text()
    return int(status.split("VmRSS:")[1].split()[0]) / 1024


@pytest.mark.parametrize("database", ["sqlite", "postgres"])
def test_a_hostile_mix_of_one_organisation_neither_stalls_the_server_nor_another_organisation(
    database: str, tmp_path: Path, postgres_cluster: Cluster
):
    home = tmp_path / "data"
    settings = {**dict.fromkeys(UNLIMITED, "0"), "ALMANAC_EMBEDDING": "false", "ALMANAC_JOB_WORKERS": "1"}
    if database == "postgres":
        settings["ALMANAC_DATABASE_URL"] = postgres_cluster.take()
    with serving(home, settings=settings) as server:
        base, document = fill(Client(server, server.token))
        for command in (("org", "add", "Other"), ("user", "add", "otto", "--org", "Other")):
            assert run(home, *command, **settings).code == 0
        token = run(home, "token", "add", "otto", "--org", "Other", **settings).out.split()[-1]
        health, other = Client(server, token), Client(server, token)

        def stall() -> float:
            return health.send("GET", "/health")[0]

        def work() -> float:
            return other.send("POST", "/api/v1/notes", {"title": "A note", "body": WORDS})[0]

        quiet, before = measure(work, 3, PAUSE_SECONDS), resident_mib(server)
        stalls: list[float] = []
        with attacked(server, base, document):
            busy: list[float] = []
            ends = time.monotonic() + SECONDS
            while time.monotonic() < ends:
                stalls.append(stall())
                busy.append(work())
                PAUSE.wait(PAUSE_SECONDS)
        growth = resident_mib(server) - before
        slowdown = p99(busy) / max(p99(quiet), MIN_QUIET_MILLISECONDS)
        print(
            f"{database}: longest stall {max(stalls):.0f} ms, p99 {p99(stalls):.0f} ms of {len(stalls)}; another "
            f"organisation p99 {p99(quiet):.1f} ms quiet, {p99(busy):.1f} ms attacked; memory grew {growth:.0f} MiB"
        )
        assert max(stalls) <= MAX_STALL_MILLISECONDS
        assert slowdown <= MAX_SLOWDOWN
        assert growth <= MAX_GROWTH_MIB
