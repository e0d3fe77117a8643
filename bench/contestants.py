"""The servers that the transport bench measures: their definitions, how they start, and their CPU time.

CPU comes from /proc, so this runs on Linux only.
"""

import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SERVERS = ROOT / "bench" / "servers"
FASTMCP = ROOT / ".tools" / "fastmcp"
TEXT = "almanac-bench-echo"
UVICORN = ["--loop", "uvloop", "--http", "httptools", "--no-access-log", "--log-level", "warning"]
HIGH_LIMIT = "1000000000"
NAMES = ("almanac", "knowi", "starlette", "sdk", "fastmcp")


class BenchFailed(Exception):
    """A server did not start, or its answer was wrong."""


@dataclass(frozen=True)
class Contestant:
    """A server to measure: its start command and its requests."""

    name: str
    command: Callable[[int], list[str]]
    tool: str = "echo"
    arguments: Mapping[str, str | bool] = field(default_factory=lambda: {"text": TEXT})
    expected: str = TEXT
    speaks_mcp: bool = True
    path: str = "/mcp"
    is_refused: bool = False  # the expected text is in an error of the tool
    env: Mapping[str, str] = field(default_factory=dict[str, str])
    token_command: tuple[str, ...] = ()


def contestants(home: str) -> list[Contestant]:
    almanac = str(ROOT / ".venv" / "bin" / "almanac")
    return [
        Contestant(
            "almanac",
            lambda port: [almanac, "serve", "--port", str(port)],
            tool="whoami",
            arguments={},
            expected="admin",
            # The limits count every call but are too high to refuse one.
            env={"ALMANAC_HOME": home, "ALMANAC_RATE_LIMIT_CALLS": HIGH_LIMIT},
            token_command=(almanac, "token", "add", "admin"),
        ),
        Contestant(
            "knowi",
            lambda port: [almanac, "serve", "--port", str(port)],
            # Refused by the tool itself, before the database is asked: the rest of the call is its transport.
            tool="knowi_delete_document",
            arguments={"documentId": "1", "confirm": False},
            expected="confirm must be true",
            env={"ALMANAC_HOME": f"{home}-knowi", "ALMANAC_RATE_LIMIT_CALLS": HIGH_LIMIT},
            token_command=(almanac, "token", "add", "admin"),
            path="/api/2.0/mcp",
            is_refused=True,
        ),
        Contestant("starlette", uvicorn(sys.executable, "starlette_echo"), speaks_mcp=False),
        Contestant("sdk", uvicorn(sys.executable, "sdk_echo")),
        Contestant(
            "fastmcp",
            uvicorn(str(FASTMCP / "bin" / "python"), "fastmcp_echo"),
            env={"FASTMCP_LOG_LEVEL": "WARNING", "FASTMCP_CHECK_FOR_UPDATES": "off"},
        ),
    ]


def uvicorn(python: str, module: str) -> Callable[[int], list[str]]:
    start = [python, "-m", "uvicorn", f"{module}:app", "--app-dir", str(SERVERS), *UVICORN, "--port"]
    return lambda port: [*start, str(port)]


def fastmcp_version() -> str | None:
    python = FASTMCP / "bin" / "python"
    if not python.exists():
        return None
    ask = "import uvloop, httptools, uvicorn, importlib.metadata as m; print(m.version('fastmcp'))"
    done = subprocess.run([python, "-c", ask], capture_output=True, text=True)
    return done.stdout.strip() if done.returncode == 0 else None


def install_fastmcp() -> str:
    """Create an environment for FastMCP, with our version of uvicorn."""
    if installed := fastmcp_version():
        return installed
    uv = str(ROOT / "scripts" / "uv")
    subprocess.run([uv, "venv", "-q", "--clear", "--python", sys.executable, FASTMCP], check=True)
    beneath = [f"{name}=={version(name)}" for name in ("uvicorn", "uvloop", "httptools")]
    install = [uv, "pip", "install", "-q", "--python", str(FASTMCP / "bin" / "python"), *beneath]
    for wanted in ("fastmcp>=4.0,<4.1", "fastmcp>=4,<5"):
        if subprocess.run([*install, wanted]).returncode == 0 and (installed := fastmcp_version()):
            return installed
    raise BenchFailed("FastMCP could not be installed: see above, or add `--without fastmcp`")


@dataclass
class Running:
    """A started server and, for each era it supports, the request to send on each connection."""

    contestant: Contestant
    pid: int
    port: int
    requests: dict[str, list[bytes]] = field(default_factory=dict[str, list[bytes]])


@contextmanager
def started(contestant: Contestant, log: Path) -> Generator[Running]:
    port = free_port()
    env = {**os.environ, **contestant.env}
    command = contestant.command(port)
    if not Path(command[0]).exists():
        raise BenchFailed(f"{command[0]} is missing: run `make setup`, or add `--without {contestant.name}`")
    with log.open("w") as output:
        process = subprocess.Popen(command, env=env, stdout=output, stderr=output)
    try:
        wait_until_open(contestant.name, process, port, log)
        yield Running(contestant, process.pid, port)
    finally:
        process.terminate()
        try:
            process.wait(15)
        except subprocess.TimeoutExpired:
            process.kill()


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def wait_until_open(name: str, process: subprocess.Popen[bytes], port: int, log: Path) -> None:
    deadline = time.monotonic() + 90
    while time.monotonic() < deadline and process.poll() is None:
        try:
            socket.create_connection(("127.0.0.1", port), 1).close()
            return
        except OSError:
            time.sleep(0.05)
    raise BenchFailed(f"{name} did not start:\n{log.read_text()[-2000:]}")


def cpu_ticks(pid: int) -> tuple[int, int]:
    """The CPU time of the process alone, and with its children."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:  # a child that ended since it was listed
        return 0, 0
    own, reaped = int(fields[11]) + int(fields[12]), int(fields[13]) + int(fields[14])
    children = sum(cpu_ticks(child)[1] for child in child_pids(pid))
    return own, own + reaped + children


def child_pids(pid: int) -> list[int]:
    lists = Path(f"/proc/{pid}/task").glob("*/children")
    return [int(child) for text in lists for child in text.read_text().split()]
