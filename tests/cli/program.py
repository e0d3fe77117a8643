"""The real program, run as an operator runs it."""

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx2

from tests.live_server import request
from tests.waiting import wait_until

OURS = re.compile(
    r"^(ALMANAC_|MCP_|EXTERNAL_KNOWLEDGE_|RAG_|KNOWLEDGE_RUNTIME_|INTERNAL_SERVICE_|OTEL_|PROMETHEUS_"
    r"|REDIS_URL$|API_PREFIX$|SECRET_KEY$)"
)
PATIENCE = 40.0  # seconds for a start on a busy machine


@dataclass
class Answer:
    """The output and exit code of a command."""

    code: int
    out: str
    err: str

    def complaint(self) -> str:
        """The one line that a failed command prints."""
        assert self.code == 1, (self.code, self.out, self.err)
        assert self.out == ""
        assert "Traceback" not in self.err
        lines = self.err.strip().splitlines()
        assert len(lines) == 1, self.err
        assert lines[0].startswith("Error: ")
        return lines[0].removeprefix("Error: ")


def environment(home: Path, settings: Mapping[str, str]) -> dict[str, str]:
    clean = {name: value for name, value in os.environ.items() if not OURS.match(name)}
    return {**clean, "ALMANAC_HOME": str(home), "COLUMNS": "200", **settings}


def command(*arguments: str) -> list[str]:
    return [str(Path(sys.executable).with_name("almanac")), *arguments]


def run(home: Path, *arguments: str, **settings: str) -> Answer:
    """Run a command to its end."""
    home.parent.mkdir(parents=True, exist_ok=True)
    done = subprocess.run(
        command(*arguments),
        capture_output=True,
        text=True,
        timeout=90,
        cwd=home.parent,
        env=environment(home, settings),
    )
    return Answer(done.returncode, done.stdout, done.stderr)


@dataclass
class Server:
    """A server that an operator started."""

    process: "subprocess.Popen[str]"
    log: Path
    said: list[str] = field(default_factory=list[str])

    @property
    def url(self) -> str:
        return self.said[0].removeprefix("Almanac is at ").strip()

    @property
    def token(self) -> str:
        return self.said[1].rpartition(" ")[2].strip()

    @property
    def errors(self) -> str:
        return self.log.read_text()

    def call(self, tool: str, token: str, client: httpx2.Client | None = None) -> httpx2.Response:
        message, headers = request("tools/call", {"name": tool, "arguments": {}})
        headers |= {"authorization": f"Bearer {token}", "accept": "application/json"}
        if client is not None:
            return client.post(f"{self.url}/mcp", json=message, headers=headers)
        return httpx2.post(f"{self.url}/mcp", json=message, headers=headers, timeout=30)

    def stop(self) -> int:
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(30)


@contextmanager
def serving(
    home: Path,
    *arguments: str,
    lines: int = 2,
    settings: Mapping[str, str] | None = None,
    program: Sequence[str] | None = None,
) -> Generator[Server]:
    """Start the server and wait until it answers; `lines` is the number of lines it prints first. `program` is another
    program than `almanac` that takes the same arguments."""
    home.parent.mkdir(parents=True, exist_ok=True)
    log = home.parent / f"{home.name}-{time.monotonic_ns()}.log"
    with log.open("w") as errors:
        process = subprocess.Popen(
            [*(program or command()), "serve", "--port", "0", *arguments],
            stdout=subprocess.PIPE,
            stderr=errors,
            stdin=subprocess.DEVNULL,
            text=True,
            cwd=home.parent,
            env=environment(home, settings or {}),
        )
    try:
        assert process.stdout is not None
        server = Server(process, log, [process.stdout.readline() for _ in range(lines)])
        assert server.said[0].startswith("Almanac is at http"), (server.said, server.errors)
        until_ready(server)
        yield server
    finally:
        if process.poll() is None:
            process.terminate()
            try:
                process.wait(15)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        if process.stdout is not None:
            process.stdout.close()


def until_ready(server: Server) -> None:
    def is_ready() -> bool:
        assert server.process.poll() is None, server.errors
        try:
            return httpx2.get(f"{server.url}/health", timeout=5).status_code == 200
        except httpx2.TransportError:
            return False

    wait_until(is_ready, seconds=PATIENCE)


def children(pid: int) -> dict[int, str]:
    """The child processes of a process, with their command lines."""
    found: dict[int, str] = {}
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            try:
                parent = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
                if parent == pid:
                    found[int(folder.name)] = (folder / "cmdline").read_text().replace("\0", " ").strip()
            except (OSError, ValueError):
                continue
    return found


def workers(pid: int) -> dict[int, str]:
    """The job workers among them, once there are any."""
    return wait_until(lambda: {child: line for child, line in children(pid).items() if " worker " in f"{line} "})


def is_alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z"


def wait_until_gone(seconds: float, *pids: int) -> None:
    wait_until(lambda: [pid for pid in pids if is_alive(pid)], lambda alive: not alive, seconds=seconds)


def facts(answer: httpx2.Response) -> dict[str, Any]:
    """The structured content of a tool result."""
    return answer.json()["result"]["structuredContent"]
