"""Runs work on untrusted files in confined child processes.

Native libraries abort on hostile files, so each request gets a process of its own. Starting an interpreter takes longer
than most of the work; so one small process has the work loaded and forks a child for each request (fork_server.py). The
child confines itself (confinement.py) before it opens its files (child.py).

    async with SandboxPool("module:function", SandboxLimits()) as pool:
        result = await pool.run([path], "report.pdf", {})
"""

import asyncio
import json
import os
import socket
import sys
import tempfile
from asyncio.subprocess import DEVNULL, Process
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO, Any, Self

import structlog

from almanac.sandbox.child import ExitReport
from almanac.sandbox.confinement import SandboxLimits
from almanac.sandbox.descriptors import messages_for
from almanac.sandbox.errors import SandboxUnavailable
from almanac.sandbox.result import check_result

# Loading the work takes about a second; a busy machine may need longer.
START_SECONDS = 60.0

# The fork server enforces the deadlines. A server that has not answered this long after a deadline is stuck.
GRACE_SECONDS = 15.0

STOP_SECONDS = 5.0

# The whole environment of the fork server, because the worker's contains secrets. Each thread would reserve 64 MiB of
# address space of its own, and runtimes would start a thread for every processor.
ENVIRONMENT = {
    "LC_ALL": "C.UTF-8",
    "MALLOC_ARENA_MAX": "2",
    "TOKIO_WORKER_THREADS": "2",
    "RAYON_NUM_THREADS": "2",
    "OMP_NUM_THREADS": "2",
    "OPENBLAS_NUM_THREADS": "2",
    "ORT_DISABLE_TELEMETRY": "1",  # ONNX Runtime would send usage data to its makers
}

_log = structlog.stdlib.get_logger("almanac.sandbox")


@dataclass(frozen=True, slots=True)
class _ForkServerProcess:
    """A running fork server, and the socket over which it receives files."""

    process: Process
    control: socket.socket


class SandboxPool:
    """Runs `work` ("module:function") on files, in as many children at once as the caller asks for.

    `prepared` children are forked ahead of their requests. `on_exit` receives the cost of each child, also of those
    that failed.
    """

    def __init__(
        self,
        work: str,
        limits: SandboxLimits | None = None,
        *,
        prepared: int = 0,
        on_exit: Callable[[ExitReport], None] | None = None,
    ) -> None:
        self._limits = limits or SandboxLimits()
        self._work = work
        self._prepared = prepared
        self._on_exit = on_exit
        self._server: _ForkServerProcess | None = None
        self._closed = False
        self._lock = asyncio.Lock()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.close()

    async def start(self) -> None:
        """Start the fork server now; otherwise the first `run` starts it."""
        async with self._lock:
            await self._ensure_server()

    async def run(self, paths: Sequence[Path], name: str, options: dict[str, Any]) -> bytes:
        """Run the work on files; raises `WorkRejected` or `SandboxUnavailable`. Cancellation kills the child."""
        with _open_nameless_file() as output:
            await self.run_to(output, paths, name, options)
            return os.pread(output.fileno(), os.fstat(output.fileno()).st_size, 0)

    async def run_to(self, output: IO[bytes], paths: Sequence[Path], name: str, options: dict[str, Any]) -> None:
        """Run the work as `run` does, and leave its result in an empty file that the caller has opened."""
        with ExitStack() as stack:
            files = [stack.enter_context(path.open("rb", buffering=0)).fileno() for path in paths]
            os.pwrite(output.fileno(), json.dumps({"name": name, "options": options}).encode(), 0)
            report = await self._run_child([output.fileno(), *files])
            if self._on_exit is not None:
                self._on_exit(report)
            check_result(report, output.fileno(), self._limits)

    async def close(self) -> None:
        """End the fork server and its children. Running calls raise `SandboxUnavailable`."""
        self._closed = True
        async with self._lock:
            await self._end_server()

    async def _run_child(self, descriptors: list[int]) -> ExitReport:
        ours, theirs = socket.socketpair()
        with ours:
            ours.setblocking(False)
            with theirs:
                server = await self._send([theirs.fileno(), *descriptors])
            try:
                async with asyncio.timeout(self._limits.wall_seconds + GRACE_SECONDS):
                    report = await _read_to_end(ours)
            except TimeoutError:
                _log.error("the fork server does not answer; it is restarted")
                _kill(server)
                raise SandboxUnavailable("the fork server did not answer") from None
        if not report:
            raise SandboxUnavailable("the fork server ended")
        return ExitReport(**json.loads(report))

    async def _send(self, descriptors: list[int]) -> _ForkServerProcess:
        """Send descriptors to the fork server. If it turns out to be dead, start a new one and try again."""
        async with self._lock:
            for _ in range(2):
                server = await self._ensure_server()
                try:
                    await _send_descriptors(server.control, descriptors)
                    return server
                except ConnectionError:
                    await self._end_server()
        raise SandboxUnavailable("the fork server ended")

    async def _ensure_server(self) -> _ForkServerProcess:
        if self._closed:
            raise SandboxUnavailable("the sandbox pool is closed")
        if self._server is not None and self._server.process.returncode is not None:
            _log.warning("the fork server ended unexpectedly", status=self._server.process.returncode)
            await self._end_server()
        if self._server is None:
            self._server = await _start_server(self._work, self._limits, self._prepared)
        return self._server

    async def _end_server(self) -> None:
        server, self._server = self._server, None
        if server is not None:
            await _stop(server)


async def _start_server(work: str, limits: SandboxLimits, prepared: int) -> _ForkServerProcess:
    arguments = json.dumps({"work": work, "limits": asdict(limits), "prepared": prepared, "parent": os.getpid()})
    # The server can import the packages that this process can import, but nothing from the current folder.
    environment = ENVIRONMENT | {"PYTHONPATH": os.pathsep.join(filter(os.path.isabs, sys.path))}
    command = (sys.executable, "-P", "-s", "-m", "almanac.sandbox.fork_server", arguments)
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    try:
        with theirs:
            process = await asyncio.create_subprocess_exec(
                *command, stdin=theirs.fileno(), stdout=DEVNULL, env=environment, cwd="/", start_new_session=True
            )
    except BaseException:
        ours.close()
        raise
    server = _ForkServerProcess(process, ours)
    try:
        await _wait_until_ready(ours)
    except BaseException:
        _kill(server)
        await _stop(server)
        raise
    return server


async def _stop(server: _ForkServerProcess) -> None:
    server.control.close()  # the server then ends by itself
    try:
        async with asyncio.timeout(STOP_SECONDS):
            await server.process.wait()
    except TimeoutError:
        _kill(server)
        await server.process.wait()


async def _wait_until_ready(control: socket.socket) -> None:
    """Wait until the server has loaded the work."""
    try:
        async with asyncio.timeout(START_SECONDS):
            message = await asyncio.get_running_loop().sock_recv(control, 4096)
    except TimeoutError:
        message = b""
    if not message:
        raise SandboxUnavailable("the fork server did not start")
    features = json.loads(message)
    if not features["seccomp"] or not features["landlock"]:
        _log.warning("this system can confine child processes only in part", **features)
    elif not features["private_root"]:
        _log.info("child processes can observe the existence of files: see docs/explanation/security.md", **features)


async def _send_descriptors(control: socket.socket, descriptors: list[int]) -> None:
    for header, part in messages_for(descriptors):
        while True:
            try:
                socket.send_fds(control, [header], part)
                break
            except BlockingIOError:
                await _wait_until_writable(control)


async def _wait_until_writable(control: socket.socket) -> None:
    loop = asyncio.get_running_loop()
    ready = asyncio.Event()
    loop.add_writer(control, ready.set)
    try:
        await ready.wait()
    finally:
        loop.remove_writer(control)


async def _read_to_end(result_socket: socket.socket) -> bytes:
    report = b""
    while chunk := await asyncio.get_running_loop().sock_recv(result_socket, 4096):
        report += chunk
    return report


def _kill(server: _ForkServerProcess) -> None:
    with suppress(ProcessLookupError):
        server.process.kill()


def _open_nameless_file() -> IO[bytes]:
    """A file that no other process can open. It disappears with its last descriptor, also after a crash."""
    if sys.platform == "linux":
        return open(os.memfd_create("output", os.MFD_CLOEXEC), "r+b", buffering=0)
    return tempfile.TemporaryFile(buffering=0)
