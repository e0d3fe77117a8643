"""The nursery's process: holds the parsers ready and forks a child for each file.

python -m almanac.sandbox.fork_server '{"work": "module:function", "limits": {…}, "parent": 123}'

It has one thread and a small memory, so that forking is quick and safe, and an environment without secrets. Standard
input is a socket from the worker. Each byte on it brings three descriptors: the file, the output and a leash, which
is a socket for this file alone. How the child ended is told on the leash; a leash let go of kills the child. The
process ends with the worker, and its children with it.
"""

import gc
import importlib
import json
import os
import selectors
import signal
import socket
import sys
import threading
import time
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from almanac.sandbox import child
from almanac.sandbox.confinement import SandboxLimits, detect_kernel_features, exit_with_parent

# When memory runs out, the system should take a parser before the server.
OOM_SCORE = "500"

# A child lives for one file and leaves hardly any cycles: looking for them as often as usual takes a twentieth of its
# time.
COLLECT_AFTER = (50_000, 20, 100)


@dataclass(slots=True)
class ChildProcess:
    """A child at work."""

    pid: int
    result_socket: socket.socket
    started: float
    deadline: float
    late: bool = False


class ForkServer:
    """Forks children, watches them and tells how they ended."""

    def __init__(self, control: socket.socket, work: child.Work, limits: SandboxLimits) -> None:
        self._control = control
        self._work = work
        self._limits = limits
        self._means = detect_kernel_features()
        self._wards: dict[int, ChildProcess] = {}
        self._open = True
        self._deaths, self._bell = socket.socketpair()
        self._selector = selectors.DefaultSelector()
        self._selector.register(control, selectors.EVENT_READ, self._accept)
        self._selector.register(self._deaths, selectors.EVENT_READ, self._reap)

    def run(self) -> None:
        """Serve until the worker closes its end."""
        self._watch_sigchld()
        self._control.sendall(json.dumps({"seccomp": self._means.seccomp, "landlock": self._means.landlock}).encode())
        while self._open:
            for key, _ in self._selector.select(self._patience()):
                key.data()
            self._kill_late()
        for pid in self._wards:
            _kill(pid)
            os.waitpid(pid, 0)

    def _watch_sigchld(self) -> None:
        self._deaths.setblocking(False)
        self._bell.setblocking(False)
        signal.signal(signal.SIGCHLD, lambda number, frame: None)  # an ignored signal would not ring
        signal.set_wakeup_fd(self._bell.fileno(), warn_on_full_buffer=False)

    def _patience(self) -> float | None:
        deadlines = [ward.deadline for ward in self._wards.values() if not ward.late]
        return max(0.0, min(deadlines) - time.monotonic()) if deadlines else None

    def _accept(self) -> None:
        try:
            byte, descriptors, _, _ = socket.recv_fds(self._control, 1, 3)
        except ConnectionResetError:
            byte, descriptors = b"", []
        if not byte:
            self._open = False
        elif len(descriptors) == 3:
            source, output, leash = descriptors
            self._fork_child(source, output, socket.socket(fileno=leash))
        else:  # this process may open no more; the worker finds the leash cut
            for descriptor in descriptors:
                os.close(descriptor)

    def _fork_child(self, source: int, output: int, leash: socket.socket) -> None:
        nursery, now = os.getpid(), time.monotonic()
        try:
            pid = os.fork()
        except OSError:  # the system has no more processes; the worker finds the leash cut
            leash.close()
        else:
            if pid == 0:
                child.run_child(source, output, self._work, self._limits, self._means, nursery)
            self._wards[pid] = ward = ChildProcess(pid, leash, now, now + self._limits.wall_seconds)
            self._selector.register(leash, selectors.EVENT_READ, lambda: self._cancel_child(ward))
        finally:
            os.close(source)
            os.close(output)

    def _cancel_child(self, ward: ChildProcess) -> None:
        """The worker says nothing on a leash, so this is its end."""
        if ward.pid in self._wards:
            _kill(ward.pid)
            self._drop(ward)

    def _kill_late(self) -> None:
        now = time.monotonic()
        for ward in self._wards.values():
            if not ward.late and now >= ward.deadline:
                ward.late = True
                _kill(ward.pid)

    def _reap(self) -> None:
        with suppress(BlockingIOError):
            self._deaths.recv(4096)
        for ward in list(self._wards.values()):
            pid, status, usage = os.wait4(ward.pid, os.WNOHANG)
            if pid:
                del self._wards[pid]
                self._tell(ward, status, usage)

    def _tell(self, ward: ChildProcess, status: int, usage: Any) -> None:
        if ward.result_socket.fileno() < 0:
            return
        peak = usage.ru_maxrss * (1024 if sys.platform == "linux" else 1)
        cpu, seconds = usage.ru_utime + usage.ru_stime, time.monotonic() - ward.started
        verdict = child.ExitReport(status, peak, cpu, seconds, ward.late)
        with suppress(OSError):  # let go of at this very moment
            ward.result_socket.sendall(json.dumps(asdict(verdict)).encode())
        self._drop(ward)

    def _drop(self, ward: ChildProcess) -> None:
        self._selector.unregister(ward.result_socket)
        ward.result_socket.close()


def _kill(pid: int) -> None:
    """A child that is not buried yet keeps its number, so that this hits nobody else."""
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


def _find(work: str) -> child.Work:
    """The function to run in each child. What its module's `warm` loads, no child has to load."""
    place, _, function = work.partition(":")
    module = importlib.import_module(place)
    getattr(module, "preload", lambda: None)()
    return getattr(module, function)


def _count_threads() -> int:
    """Native ones too, where the system tells."""
    tasks = Path("/proc/self/task")
    return len(list(tasks.iterdir())) if tasks.exists() else threading.active_count()


def main() -> None:
    told = json.loads(sys.argv[1])
    exit_with_parent(told["parent"])
    for number in (signal.SIGINT, signal.SIGTERM):  # those are for the worker, which may want to finish
        signal.signal(number, signal.SIG_IGN)
    with suppress(OSError):  # other systems, and containers that forbid it
        Path("/proc/self/oom_score_adj").write_text(OOM_SCORE, "ascii")
    work = _find(told["work"])
    if _count_threads() > 1:
        raise SystemExit("a parser starts threads when it is imported; a forked child would lack them")
    gc.collect()
    gc.freeze()  # so that a child's collections leave the pages it shares alone
    gc.set_threshold(*COLLECT_AFTER)
    with socket.socket(fileno=os.dup(0)) as control:
        ForkServer(control, work, SandboxLimits(**told["limits"])).run()


if __name__ == "__main__":
    main()
