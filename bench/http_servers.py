"""The HTTP servers that could run Almanac, by cost and by safety: `make bench-http-servers`.

Each server runs the same application in one process, with a home of its own. The cost is that of `whoami` at `/mcp`,
taken in short rounds in turn; ratios are taken within a round first. The safety is the number of forms of
`tests/hostile` that a server handles correctly, and the limits that it has on its own, without a proxy in front.
"""

import argparse
import asyncio
import os
import select
import socket
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from importlib.metadata import version
from itertools import product
from pathlib import Path
from statistics import median

import uvloop
from client import CONNECTIONS, Sample, load, prepare
from command_line import console_of, exit_with_message, parser_of
from contestants import HIGH_LIMIT, ROOT, Contestant, Running, started
from rich.console import Console
from rich.table import Table

from almanac.bootstrap import open_database
from almanac.core.settings_loader import load as load_settings
from almanac.identity import first_start

sys.path.insert(0, str(ROOT))
from tests.hostile import raw_http
from tests.hostile.raw_http import Answer, RawConnection, exchange, request
from tests.hostile.smuggling import FORMS, SMUGGLED_ANSWER, Form, Outcome

PEERS = ROOT / ".tools" / "http-servers"
PINS = ("granian==2.8.7", "hypercorn==0.18.0", "zttp==0.0.35")
APP = "almanac.app:from_environment"
OURS = "almanac serve"
ERA = "modern"
PATIENCE_SECONDS = 40.0
NEXT_REQUEST = request("GET", "/health", "Connection: close")
FLOOD_BYTES = 20_000_000


def contestants(scratch: Path) -> list[Contestant]:
    def uvicorn(http: str) -> Callable[[int], list[str]]:
        start = [
            sys.executable,
            "-m",
            "uvicorn",
            APP,
            "--factory",
            "--loop",
            "uvloop",
            "--http",
            http,
            "--no-access-log",
        ]
        return lambda port: [*start, "--log-level", "critical", "--port", str(port)]

    def granian(port: int) -> list[str]:
        start = [sys.executable, "-m", "granian", APP, "--factory", "--interface", "asgi", "--loop", "uvloop"]
        return [*start, "--no-ws", "--log-level", "critical", "--port", str(port)]

    def hypercorn(port: int) -> list[str]:
        # By default it closes a connection after 1,000 requests.
        config = scratch / "hypercorn.toml"
        config.write_text('worker_class = "uvloop"\nloglevel = "critical"\nkeep_alive_max_requests = 1000000000\n')
        return [sys.executable, "-m", "hypercorn", f"{APP}()", "-c", str(config), "--bind", f"127.0.0.1:{port}"]

    commands: dict[str, Callable[[int], list[str]]] = {
        OURS: lambda port: [sys.executable, "-m", "almanac", "serve", "--port", str(port)],
        "uvicorn, httptools": uvicorn("httptools"),
        "uvicorn, h11": uvicorn("h11"),
        "uvicorn, zttp": uvicorn("zttp"),
        "granian": granian,
        "hypercorn": hypercorn,
    }
    return [
        Contestant(name, command, "whoami", {}, "admin", env=environment(scratch / str(number)))
        for number, (name, command) in enumerate(commands.items())
    ]


def environment(home: Path) -> dict[str, str]:
    return {
        "ALMANAC_HOME": str(home),
        "ALMANAC_RATE_LIMIT_CALLS": HIGH_LIMIT,
        "ALMANAC_JOB_WORKERS": "0",
        "ALMANAC_LOG_LEVEL": "error",
        "PYTHONPATH": str(PEERS),
    }


async def with_token(contestant: Contestant) -> Contestant:
    """Create the contestant's home and first token."""
    settings = load_settings(contestant.env).settings
    async with open_database(settings) as db:
        token = await first_start.create_first_admin(db)
    return replace(contestant, token_command=("echo", str(token)))


def install_peers() -> None:
    if not PEERS.exists():
        command = [
            ROOT / "scripts" / "uv",
            "pip",
            "install",
            "-q",
            "--python",
            sys.executable,
            "--target",
            PEERS,
            *PINS,
        ]
        subprocess.run(command, check=True)


# Cost


Samples = dict[tuple[str, int], list[Sample]]


async def measure(servers: list[Running], rounds: int, seconds: float) -> Samples:
    samples: Samples = {}
    for running in servers:
        await load(running, ERA, max(CONNECTIONS), 0.5)  # warm up, not counted
    for number in range(rounds):
        first = number % len(servers)
        for connections, running in product(CONNECTIONS, servers[first:] + servers[:first]):
            sample = await load(running, ERA, connections, seconds)
            samples.setdefault((running.contestant.name, connections), []).append(sample)
    return samples


def cost_table(samples: Samples, names: list[str]) -> Table:
    table = Table("conns", "server")
    for column in ("req/s", "p50 ms", "p99 ms", "CPU ms/call", f"CPU × {names[1]}"):
        table.add_column(column, justify="right")
    for connections, name in product(CONNECTIONS, names):
        found = samples[name, connections]
        pairs = zip(found, samples[names[1], connections], strict=True)
        ratio = median(one.cpu_with_children_ms / other.cpu_with_children_ms for one, other in pairs)
        numbers = [median(getattr(each, field) for each in found) for field in ("requests_per_s", "p50_ms", "p99_ms")]
        cpu = median(each.cpu_with_children_ms for each in found)
        table.add_row(str(connections), name, *(f"{number:,.2f}" for number in numbers), f"{cpu:.3f}", f"{ratio:.2f}")
    return table


# Safety


def outcome(port: int, form: Form) -> str:
    *segments, last = form.segments
    try:
        answers = exchange(port, [*segments, last + NEXT_REQUEST])
    except TimeoutError:
        return "no answer"
    except (AssertionError, ValueError, IndexError, OSError):
        return "wrong"
    return judge(form, answers)


def judge(form: Form, answers: list[Answer]) -> str:
    if any(SMUGGLED_ANSWER in answer.body for answer in answers):
        return "smuggled"
    is_open = len(answers) == 2 and b"healthy" in answers[1].body
    if is_open:
        return "correct" if form.outcome is Outcome.ONE_REQUEST else "accepted"
    if len(answers) != 1:
        return "wrong"
    if form.outcome is Outcome.REFUSED:
        return "correct" if answers[0].status >= 400 else "accepted"
    return "correct" if form.outcome is Outcome.LAST_REQUEST else "closed"


def seconds_until_closed(port: int, begin: bytes, piece: bytes) -> float | None:
    """Send a piece each second; return the time until the server answers or closes, or None."""
    started_at = time.monotonic()
    with RawConnection(port) as connection:
        connection.send(begin)
        while time.monotonic() - started_at < PATIENCE_SECONDS:
            if select.select([connection.socket], [], [], 1.0)[0]:
                return time.monotonic() - started_at
            connection.send(piece)
    return None


def headers_accepted(port: int) -> int:
    """Return the number of bytes of headers that the server reads before it answers."""
    with RawConnection(port) as connection:
        connection.socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 65536)
        connection.send(request()[:-2])
        sent = 0
        while sent < FLOOD_BYTES and not select.select([connection.socket], [], [], 0)[0]:
            block = b"".join(b"X-%d: %s\r\n" % (number, b"a" * 50) for number in range(1000))
            try:
                connection.socket.sendall(block)
            except OSError:
                break
            sent += len(block)
    return sent


def safety_table(servers: list[Running]) -> Table:
    raw_http.LONGEST_WAIT_SECONDS = 3
    kinds = ("correct", "smuggled", "accepted", "closed", "wrong", "no answer")
    table = Table("server", *kinds, "MB of headers", "slow headers", "slow body")
    for running in servers:
        found = Counter(outcome(running.port, form) for form in FORMS)
        accepted = headers_accepted(running.port) / 1e6
        slow = [
            seconds_until_closed(running.port, request()[:-2] + b"X: ", b"a"),
            seconds_until_closed(running.port, request("POST", "/keys/verify", "Content-Length: 10000"), b"a"),
        ]
        told = [f"{seconds:.0f} s" if seconds else f"> {PATIENCE_SECONDS:.0f} s" for seconds in slow]
        table.add_row(running.contestant.name, *(str(found[kind]) for kind in kinds), f"{accepted:.1f}", *told)
    return table


def bench(options: argparse.Namespace, console: Console) -> None:
    install_peers()
    console.print(", ".join((*(f"{name} {version(name)}" for name in ("uvicorn", "httptools", "h11")), *PINS)))
    with ExitStack() as stack:
        scratch = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="almanac-bench-")))
        wanted = [each for each in contestants(scratch) if each.name not in options.without]
        chosen = [asyncio.run(with_token(each)) for each in wanted]
        servers = [stack.enter_context(started(each, scratch / f"{each.name}.log")) for each in chosen]
        for running in servers:
            prepare(running, console)
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            samples = runner.run(measure(servers, options.rounds, options.seconds))
        console.print(cost_table(samples, [each.name for each in chosen]))
        if not options.cost_only:
            console.print(safety_table(servers))


def main() -> None:
    parser = parser_of(__doc__, seconds=1.5, rounds=5)
    parser.add_argument("--without", action="append", default=[], help="leave this server out")
    parser.add_argument("--cost-only", action="store_true", help="leave the safety out")
    os.environ["PYTHONPATH"] = str(PEERS)
    with exit_with_message():
        bench(parser.parse_args(), console_of(140))


if __name__ == "__main__":
    main()
