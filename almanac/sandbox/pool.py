"""The nursery: where files are read, by children that can do no harm.

Native parsers abort on hostile files, so that each file is read by a process of its own. Starting an interpreter takes
longer than reading most files; so one small process has the parsers ready and forks a child for each (forkserver.py),
which confines itself (confinement.py) before it looks at the file (child.py).

    async with Nursery(Limits()) as nursery:
        outcome = await nursery.parse(path, "report.pdf", {})
"""

import asyncio
import json
import os
import socket
import sys
import tempfile
from asyncio.subprocess import DEVNULL, Process
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Self

import structlog

from almanac.sandbox.child import ExitReport
from almanac.sandbox.confinement import SandboxLimits
from almanac.sandbox.errors import SandboxUnavailable
from almanac.sandbox.result import SandboxResult, read_result

# Importing the parsers takes about a second; a busy machine may need longer.
START_SECONDS = 60.0

# The process keeps the deadlines. One that has not spoken this long after is stuck.
GRACE_SECONDS = 15.0

STOP_SECONDS = 5.0

# All that the process knows of the system's environment, which holds the server's secrets. Each thread would reserve
# 64 MiB of address space of its own, and runtimes would start one for every processor.
ENVIRONMENT = {
    "LC_ALL": "C.UTF-8",
    "MALLOC_ARENA_MAX": "2",
    "TOKIO_WORKER_THREADS": "2",
    "RAYON_NUM_THREADS": "2",
    "OMP_NUM_THREADS": "2",
    "OPENBLAS_NUM_THREADS": "2",
    "ORT_DISABLE_TELEMETRY": "1",  # the runtime of text recognition would write home
}

_log = structlog.stdlib.get_logger("almanac.parsers")


@dataclass(frozen=True, slots=True)
class _ForkServerProcess:
    """A running process, and the socket on which it is given files."""

    process: Process
    control: socket.socket


class SandboxPool:
    """Reads files, as many at once as the caller asks for. `watch` is told what each took, readable or not."""

    def __init__(
        self,
        work: str,
        limits: SandboxLimits | None = None,
        *,
        watch: Callable[[ExitReport], None] | None = None,
    ) -> None:
        self._limits = limits or SandboxLimits()
        self._work = work
        self._watch = watch
        self._home: _ForkServerProcess | None = None
        self._closed = False
        self._turn = asyncio.Lock()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.close()

    async def start(self) -> None:
        """Start now what `parse` would start when it is first needed."""
        async with self._turn:
            await self._ensure()

    async def parse(self, path: Path, name: str, options: dict[str, Any]) -> SandboxResult:
        """Read a file; raises `Unreadable` or `NurseryGone`. Cancelled, it kills the child."""
        with _opened(path) as source, _nameless() as output:
            os.pwrite(output, json.dumps({"name": name, "options": options}).encode(), 0)
            verdict = await self._run_child(source, output)
            if self._watch is not None:
                self._watch(verdict)
            return read_result(verdict, output, self._limits)

    async def close(self) -> None:
        """End the process and the children in it. Calls under way raise `NurseryGone`."""
        self._closed = True
        async with self._turn:
            await self._end()

    async def _run_child(self, source: int, output: int) -> ExitReport:
        ours, theirs = socket.socketpair()
        with ours:
            ours.setblocking(False)
            with theirs:
                home = await self._send([source, output, theirs.fileno()])
            try:
                async with asyncio.timeout(self._limits.wall_seconds + GRACE_SECONDS):
                    said = await _read_all(ours)
            except TimeoutError:
                _log.error("the nursery does not answer; it is started anew")
                _kill(home)
                raise SandboxUnavailable("the process that reads files did not answer") from None
        if not said:
            raise SandboxUnavailable("the process that reads files ended")
        return ExitReport(**json.loads(said))

    async def _send(self, descriptors: list[int]) -> _ForkServerProcess:
        """Pass the descriptors on, to a new process where the present one turns out to be dead."""
        async with self._turn:
            for _ in range(2):
                home = await self._ensure()
                try:
                    await _pass(home.control, descriptors)
                    return home
                except ConnectionError:
                    await self._end()
        raise SandboxUnavailable("the process that reads files ended")

    async def _ensure(self) -> _ForkServerProcess:
        if self._closed:
            raise SandboxUnavailable("the nursery is closed")
        if self._home is not None and self._home.process.returncode is not None:
            _log.warning("the nursery had ended", status=self._home.process.returncode)
            await self._end()
        if self._home is None:
            self._home = await _start(self._work, self._limits)
        return self._home

    async def _end(self) -> None:
        home, self._home = self._home, None
        if home is not None:
            await _stop(home)


async def _start(work: str, limits: SandboxLimits) -> _ForkServerProcess:
    told = json.dumps({"work": work, "limits": asdict(limits), "parent": os.getpid()})
    # The packages that can be imported here can be imported there, and nothing from the current folder.
    environment = ENVIRONMENT | {"PYTHONPATH": os.pathsep.join(filter(os.path.isabs, sys.path))}
    arguments = (sys.executable, "-P", "-s", "-m", "almanac.sandbox.fork_server", told)
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    try:
        with theirs:
            process = await asyncio.create_subprocess_exec(
                *arguments, stdin=theirs.fileno(), stdout=DEVNULL, env=environment, cwd="/", start_new_session=True
            )
    except BaseException:
        ours.close()
        raise
    home = _ForkServerProcess(process, ours)
    try:
        await _greet(ours)
    except BaseException:
        _kill(home)
        await _stop(home)
        raise
    return home


async def _stop(home: _ForkServerProcess) -> None:
    home.control.close()  # which the process takes as its end
    try:
        async with asyncio.timeout(STOP_SECONDS):
            await home.process.wait()
    except TimeoutError:
        _kill(home)
        await home.process.wait()


async def _greet(control: socket.socket) -> None:
    """Wait until the parsers are imported."""
    try:
        async with asyncio.timeout(START_SECONDS):
            said = await asyncio.get_running_loop().sock_recv(control, 4096)
    except TimeoutError:
        said = b""
    if not said:
        raise SandboxUnavailable("the process that reads files did not start")
    means = json.loads(said)
    if not means["seccomp"] or not means["landlock"]:
        _log.warning("this system confines parsers only in part", **means)


async def _pass(control: socket.socket, descriptors: list[int]) -> None:
    while True:
        try:
            socket.send_fds(control, [b"."], descriptors)
            return
        except BlockingIOError:
            await _writable(control)


async def _writable(control: socket.socket) -> None:
    loop = asyncio.get_running_loop()
    ready = asyncio.Event()
    loop.add_writer(control, ready.set)
    try:
        await ready.wait()
    finally:
        loop.remove_writer(control)


async def _read_all(leash: socket.socket) -> bytes:
    said = b""
    while more := await asyncio.get_running_loop().sock_recv(leash, 4096):
        said += more
    return said


def _kill(home: _ForkServerProcess) -> None:
    with suppress(ProcessLookupError):
        home.process.kill()


@contextmanager
def _opened(path: Path) -> Generator[int]:
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


@contextmanager
def _nameless() -> Generator[int]:
    """A file that nobody can find and that goes with its last holder, however they end."""
    if sys.platform == "linux":
        descriptor = os.memfd_create("output", os.MFD_CLOEXEC)
        try:
            yield descriptor
        finally:
            os.close(descriptor)
    else:
        with tempfile.TemporaryFile(buffering=0) as file:
            yield file.fileno()
