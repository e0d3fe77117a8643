"""One organisation sends a hostile mix of requests: the event loop stays responsive, and others are served.

`ALMANAC_TEST_SECONDS=600 make test-hostile` runs the mix for ten minutes on each database; `ALMANAC_TEST_SEED` changes
the requests, `ALMANAC_TEST_ATTACKS=search,nodes` sends only some kinds. The report is printed and written to the
file that ALMANAC_TEST_REPORT names.

Quiet and attacked periods alternate in one run, so that other programs on the machine slow both down alike. What is
measured, and what of it the machine causes, is in `watched_server.py`. A process that only sleeps shows the noise of
the machine. The attacker runs with the lowest priority, because attackers have machines of their own.
"""

import http.client
import json
import os
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Generator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from statistics import quantiles
from typing import Any

import pytest

from tests.cli.program import Server, run, serving
from tests.conftest import Cluster
from tests.hostile.mix.attacker import REFUSED, chosen_kinds
from tests.waiting import wait_until

SECONDS = float(os.environ.get("ALMANAC_TEST_SECONDS", "30"))
SEED = os.environ.get("ALMANAC_TEST_SEED", "1")
ROUND_SECONDS = 15.0
QUIET_SHARE = 0.25  # of a round
MAX_STALL_MILLISECONDS = 100
MAX_SLOWDOWN = 5
MIN_QUIET_MILLISECONDS = 5.0  # below this, the slowdown measures the scheduler of the operating system
MAX_GROWTH_MIB = 400
MAX_MORE_FILES = 60  # connections of the attacker, reader connections of the databases
MAX_MORE_THREADS = 60
PAUSE_SECONDS = 0.01
PAUSE = threading.Event()  # never set: a pause between requests
HERE = Path(__file__).parent
SETTINGS = {
    **dict.fromkeys(
        (
            "ALMANAC_RATE_LIMIT_CALLS",
            "ALMANAC_MEMORY_CALLS",
            "ALMANAC_MEMORY_READ_CALLS",
            "ALMANAC_MEMORY_NOTES_A_MONTH",
        ),
        "0",
    ),
    "ALMANAC_EMBEDDING": "false",
    "ALMANAC_JOB_WORKERS": "1",
    "EXTERNAL_KNOWLEDGE_MCP_ENABLED": "true",
    "EXTERNAL_KNOWLEDGE_MCP_RATE_LIMIT_ENABLED": "false",
}
WORDS = "pump valve seal rotor shaft bearing oil filter"
FOLDERS = 600
CATEGORIES = 300


class Client:
    """A client with one connection, which measures how long answers take."""

    def __init__(self, server: Server, token: str) -> None:
        self._connection = http.client.HTTPConnection(server.url.removeprefix("http://"), timeout=90)
        self.close = self._connection.close
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


@dataclass
class Measured:
    """The milliseconds of the other organisation's calls, by call, and the longest delays of the sleeper."""

    calls: dict[str, list[float]] = field(default_factory=dict[str, list[float]])
    noise: list[float] = field(default_factory=list[float])

    def p99(self, name: str) -> float:
        return quantiles(self.calls[name], n=100)[-1]


Calls = dict[str, Callable[[], float]]


def measure(calls: Calls, seconds: float, measured: Measured) -> None:
    """Repeat the calls in turn for some time."""
    ends = time.monotonic() + seconds
    while time.monotonic() < ends:
        for name, call in calls.items():
            measured.calls.setdefault(name, []).append(call())
            PAUSE.wait(PAUSE_SECONDS)


class Program:
    """A helper program that answers a line with a line."""

    def __init__(self, name: str, *arguments: str) -> None:
        command = [sys.executable, str(HERE / name), *arguments]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def tell(self, line: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(f"{line}\n")
        self.process.stdin.flush()

    def ask(self, line: str) -> str:
        assert self.process.stdout is not None
        self.tell(line)
        return self.process.stdout.readline().strip()


@contextmanager
def started(name: str, *arguments: str) -> Generator[Program]:
    program = Program(name, *arguments)
    try:
        yield program
    finally:
        program.process.kill()
        program.process.communicate()


def fill(admin: Client) -> tuple[int, int]:
    """Add a base with folders and one large document, and categories. Return the ids of base and document."""
    _, base = admin.send("POST", "/api/v1/bases", {"name": "Manuals", "level": "organization"})
    for number in range(FOLDERS):
        admin.send("POST", f"/api/v1/bases/{base['id']}/folders", {"name": f"folder {number}"})
    text = "\n\n".join(f"Section {number}. {WORDS} {number}. {WORDS}." for number in range(40_000))
    _, added = admin.send("POST", f"/api/v1/bases/{base['id']}/documents", {"name": "large.txt", "content": text})
    seed = {
        "categoryAliases": [{"name": "Pumps", "aliasKey": "pumps"}],
        "policies": [{"name": "Open", "policyKey": "open"}],
        "categories": [
            {"name": name, "aliasKey": "pumps", "policyKey": "open"}
            for name in ("Pumps", *(f"Category {number}" for number in range(CATEGORIES)))
        ],
        "indexes": [{"name": "everything"}],
    }
    admin.send("POST", "/tenants/seed", seed)
    path = f"/api/v1/documents/{added['document']['id']}"
    wait_until(lambda: admin.send("GET", path)[1]["index_status"] == "success", seconds=120)
    return base["id"], added["document"]["id"]


def calls_of(client: Client) -> Calls:
    """The calls of the other organisation whose times are compared: a write, a search and a list."""
    _, base = client.send("POST", "/api/v1/bases", {"name": "Ours"})
    client.send("POST", f"/api/v1/bases/{base['id']}/documents", {"name": "ours.txt", "content": f"{WORDS}. " * 20})
    nodes = f"/api/v1/bases/{base['id']}/nodes"
    return {
        "remember": lambda: client.send("POST", "/api/v1/notes", {"title": "A note", "body": WORDS})[0],
        "search": lambda: client.send("POST", "/api/v1/search", {"query": "pump and valve"})[0],
        "nodes": lambda: client.send("GET", nodes)[0],
        "health": lambda: client.send("GET", "/health")[0],
    }


@dataclass(frozen=True)
class Usage:
    """What the server process holds."""

    mib: float
    files: int
    threads: int

    @classmethod
    def of(cls, server: Server) -> "Usage":
        folder = Path(f"/proc/{server.process.pid}")
        fields = dict(line.split(":", 1) for line in (folder / "status").read_text().splitlines())
        resident = int(fields["VmRSS"].split()[0]) / 1024
        return cls(resident, len(list((folder / "fd").iterdir())), int(fields["Threads"]))


def stalls_in(file: Path, periods: list[tuple[float, float]]) -> list[dict[str, Any]]:
    """The stalls that the watch saw within periods."""
    found = [json.loads(line) for line in file.read_text().splitlines()]
    return [stall for stall in found if any(begun <= stall["at"] <= ended for begun, ended in periods)]


@dataclass
class Outcome:
    """Everything that a run of the mix measured."""

    database: str
    quiet: Measured
    attacked: Measured
    stalls: list[dict[str, Any]]
    answers: dict[str, int]
    usage: list[Usage]

    def own(self, stall: dict[str, Any]) -> float:
        """The milliseconds of a stall without those in which the machine ran other programs and threads."""
        return stall["wall"] - stall["ready"]

    @property
    def longest(self) -> float:
        return max(map(self.own, self.stalls), default=0.0)

    def slowdown(self, name: str) -> float:
        return self.attacked.p99(name) / max(self.quiet.p99(name), MIN_QUIET_MILLISECONDS)

    def describe_call(self, name: str) -> str:
        quiet, attacked = (
            f"{measured.p99(name):.1f} ms (of {len(measured.calls[name])})" for measured in (self.quiet, self.attacked)
        )
        slowdown = f"{self.slowdown(name):.1f} times (limit {MAX_SLOWDOWN})"
        return f"another organisation's {name}: p99 {quiet} quiet, {attacked} attacked: {slowdown}"

    def report(self) -> str:
        """The figures and the causes of the longest stalls, for people."""
        first, last = self.usage[0], self.usage[-1]
        worst = sorted(self.stalls, key=self.own, reverse=True)[:8]
        lines = [
            f"{self.database}: {SECONDS:.0f} s, seed {SEED}",
            f"longest stall of the loop {self.longest:.0f} ms (limit {MAX_STALL_MILLISECONDS}); with the waits for a "
            f"processor {max((each['wall'] for each in self.stalls), default=0):.0f} ms; "
            f"{sum(self.own(each) > 50 for each in self.stalls)} over 50 ms",
            f"a sleeping process woke at most {max(self.quiet.noise):.0f} ms late in quiet periods, "
            f"{max(self.attacked.noise):.0f} ms in attacked ones",
            *map(self.describe_call, self.quiet.calls),
            f"memory {' '.join(f'{each.mib:.0f}' for each in self.usage)} MiB; files {first.files} to {last.files}; "
            f"threads {first.threads} to {last.threads}",
            f"answers to the attacker: {dict(sorted(self.answers.items()))}",
            *(
                f"stall: {self.own(each):.0f} ms, {each['wall']:.0f} with waits for a processor, loop computed "
                f"{each['cpu']:.0f} ms, collector {each['gc']:.0f} ms (generation {each['generation']})\n"
                + "\n".join(f"    {count} x {stack}" for stack, count in each["stacks"])
                for each in worst
            ),
        ]
        return "\n".join(lines)


def run_mix(server: Server, watch: Path, database: str, token: str) -> Outcome:
    """Alternate quiet and attacked periods."""
    with closing(Client(server, server.token)) as admin:
        base, document = fill(admin)
    outcome = Outcome(database, Measured(), Measured(), [], {}, [])
    periods: list[tuple[float, float]] = []
    rounds = max(2, round(SECONDS / ROUND_SECONDS))
    port = server.url.rpartition(":")[2]
    with (
        closing(Client(server, token)) as client,
        started("sleeper.py") as sleeper,
        started("attacker.py", port, server.token, str(base), str(document), SEED) as attacker,
    ):
        calls = calls_of(client)
        measure(calls, 1, Measured())  # the first calls fill caches
        for _ in range(rounds):
            outcome.usage.append(Usage.of(server))
            sleeper.ask("")
            measure(calls, QUIET_SHARE * SECONDS / rounds, outcome.quiet)
            outcome.quiet.noise.append(float(sleeper.ask("")))
            begun = time.time()
            attacker.tell("go")
            measure(calls, (1 - QUIET_SHARE) * SECONDS / rounds, outcome.attacked)
            outcome.attacked.noise.append(float(sleeper.ask("")))
            assert attacker.ask("pause") == "paused"
            periods.append((begun, time.time()))
        outcome.usage.append(Usage.of(server))
        output, _ = attacker.process.communicate()
    outcome.answers = json.loads(output)
    outcome.stalls = stalls_in(watch, periods)
    return outcome


def unanswered(answers: dict[str, int]) -> set[str]:
    """The kinds of attacks to which the server gave no answer of the status that they need to be worth their time."""
    statuses = {name: "4" if name in REFUSED else "2" for name, _ in chosen_kinds("0", "0")}
    return {name for name, first in statuses.items() if not any(key.startswith(f"{name} {first}") for key in answers)}


@pytest.mark.parametrize("database", ["sqlite", "postgres"])
def test_a_hostile_mix_of_one_organisation_neither_stalls_the_server_nor_another_organisation(
    database: str, tmp_path: Path, postgres_cluster: Cluster
):
    home, watch = tmp_path / "data", tmp_path / "stalls.jsonl"
    settings = {**SETTINGS, "WATCH_FILE": str(watch)}
    if database == "postgres":
        settings["ALMANAC_DATABASE_URL"] = postgres_cluster.take()
    program = (sys.executable, str(HERE / "watched_server.py"))
    with serving(home, settings=settings, program=program) as server:
        for command in (("org", "add", "Other"), ("user", "add", "otto", "--org", "Other")):
            assert run(home, *command, **settings).code == 0
        token = run(home, "token", "add", "otto", "--org", "Other", **settings).out.split()[-1]
        outcome = run_mix(server, watch, database, token)
    report = outcome.report()
    print(report)
    if file := os.environ.get("ALMANAC_TEST_REPORT"):
        with Path(file).open("a") as reports:
            reports.write(f"{report}\n\n")
    growth, files = outcome.usage[-1].mib - outcome.usage[0].mib, outcome.usage[-1].files - outcome.usage[0].files
    statuses = Counter({name: count for name, count in outcome.answers.items() if name[-3:] in ("500", "502", "504")})
    assert not statuses
    assert unanswered(outcome.answers) == set(), report
    assert outcome.longest <= MAX_STALL_MILLISECONDS, report
    assert {name: outcome.slowdown(name) for name in outcome.quiet.calls if outcome.slowdown(name) > MAX_SLOWDOWN} == {}
    assert growth <= MAX_GROWTH_MIB
    assert files <= MAX_MORE_FILES
    assert outcome.usage[-1].threads - outcome.usage[0].threads <= MAX_MORE_THREADS
