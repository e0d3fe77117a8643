"""The fork server: a process that has the work loaded and forks a child for each file.

python -m almanac.sandbox.fork_server '{"work": "module:function", "limits": {…}, "parent": 123}'

It has one thread and little memory, so that forking is fast and safe, and an environment without secrets. Standard
input is a socket from its parent, a worker. Each byte on it brings three descriptors: the file, the output and the
result socket, which belongs to this file alone. The server sends the exit report over the result socket; if the worker
closes that socket, the server kills the child. The server ends with the worker, and its children with it.
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

from almanac.sandbox import child, private_root
from almanac.sandbox.confinement import (
    SandboxLimits,
    detect_kernel_features,
    exit_with_parent,
    prepare_filter,
    readable_paths,
)

# If memory runs out, the system should kill a child rather than the server.
OOM_SCORE = "500"

# A child lives for one file and leaves few reference cycles. The usual thresholds take 5 % of its time.
GC_THRESHOLDS = (50_000, 20, 100)


@dataclass(slots=True)
class ChildProcess:
    """A running child."""

    pid: int
    result_socket: socket.socket
    started: float
    deadline: float
    late: bool = False


class ForkServer:
    """Forks children, kills those that miss their deadline, and reports how they ended."""

    def __init__(self, control: socket.socket, work: child.Work, limits: SandboxLimits) -> None:
        self._control = control
        self._work = work
        self._limits = limits
        self._has_private_root = private_root.enter(readable_paths())
        self._kernel = detect_kernel_features()
        prepare_filter(limits.profile)
        self._children: dict[int, ChildProcess] = {}
        self._open = True
        self._wakeup_reader, self._wakeup_writer = socket.socketpair()
        self._selector = selectors.DefaultSelector()
        self._selector.register(control, selectors.EVENT_READ, self._accept)
        self._selector.register(self._wakeup_reader, selectors.EVENT_READ, self._reap)

    def run(self) -> None:
        """Serve until the worker closes its end of the socket."""
        self._watch_sigchld()
        self._control.sendall(json.dumps(self._features()).encode())
        while self._open:
            for key, _ in self._selector.select(self._seconds_to_next_deadline()):
                key.data()
            self._kill_late()
        for pid in self._children:
            _kill(pid)
            os.waitpid(pid, 0)

    def _features(self) -> dict[str, int]:
        return {
            "seccomp": self._kernel.seccomp,
            "landlock": self._kernel.landlock,
            "own_users": self._kernel.users,
            "private_root": self._has_private_root,
        }

    def _watch_sigchld(self) -> None:
        self._wakeup_reader.setblocking(False)
        self._wakeup_writer.setblocking(False)
        signal.signal(signal.SIGCHLD, lambda number, frame: None)  # an ignored signal would not wake the selector
        signal.set_wakeup_fd(self._wakeup_writer.fileno(), warn_on_full_buffer=False)

    def _seconds_to_next_deadline(self) -> float | None:
        deadlines = [running.deadline for running in self._children.values() if not running.late]
        return max(0.0, min(deadlines) - time.monotonic()) if deadlines else None

    def _accept(self) -> None:
        try:
            byte, descriptors, _, _ = socket.recv_fds(self._control, 1, 3)
        except ConnectionResetError:
            byte, descriptors = b"", []
        if not byte:
            self._open = False
        elif len(descriptors) == 3:
            source, output, result_socket = descriptors
            self._fork_child(source, output, socket.socket(fileno=result_socket))
        else:  # this process has too many descriptors open; for the worker, the result socket is closed
            for descriptor in descriptors:
                os.close(descriptor)

    def _fork_child(self, source: int, output: int, result_socket: socket.socket) -> None:
        server_pid, now = os.getpid(), time.monotonic()
        try:
            pid = os.fork()
        except OSError:  # the system allows no more processes; for the worker, the result socket is closed
            result_socket.close()
        else:
            if pid == 0:
                child.run_child(source, output, self._work, self._limits, self._kernel, server_pid)
            self._children[pid] = forked = ChildProcess(pid, result_socket, now, now + self._limits.wall_seconds)
            self._selector.register(result_socket, selectors.EVENT_READ, lambda: self._cancel_child(forked))
        finally:
            os.close(source)
            os.close(output)

    def _cancel_child(self, running: ChildProcess) -> None:
        """The worker sends nothing over a result socket, so a readable socket is a closed one."""
        if running.pid in self._children:
            _kill(running.pid)
            self._close_result_socket(running)

    def _kill_late(self) -> None:
        now = time.monotonic()
        for running in self._children.values():
            if not running.late and now >= running.deadline:
                running.late = True
                _kill(running.pid)

    def _reap(self) -> None:
        with suppress(BlockingIOError):
            self._wakeup_reader.recv(4096)
        for running in list(self._children.values()):
            pid, status, usage = os.wait4(running.pid, os.WNOHANG)
            if pid:
                del self._children[pid]
                self._report(running, status, usage)

    def _report(self, ended: ChildProcess, status: int, usage: Any) -> None:
        if ended.result_socket.fileno() < 0:
            return
        peak = usage.ru_maxrss * (1024 if sys.platform == "linux" else 1)
        cpu, seconds = usage.ru_utime + usage.ru_stime, time.monotonic() - ended.started
        report = child.ExitReport(status, peak, cpu, seconds, ended.late)
        with suppress(OSError):  # the worker closed the socket at this moment
            ended.result_socket.sendall(json.dumps(asdict(report)).encode())
        self._close_result_socket(ended)

    def _close_result_socket(self, ended: ChildProcess) -> None:
        self._selector.unregister(ended.result_socket)
        ended.result_socket.close()


def _kill(pid: int) -> None:
    """Kill a child. Until it is reaped, no other process gets its id."""
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


def _load(work: str) -> child.Work:
    """The function to run in each child. If its module has a `preload`, the children find its imports done."""
    module_name, _, function = work.partition(":")
    module = importlib.import_module(module_name)
    getattr(module, "preload", lambda: None)()
    return getattr(module, function)


def _count_threads() -> int:
    """The threads of this process; on Linux also the native ones."""
    tasks = Path("/proc/self/task")
    return len(list(tasks.iterdir())) if tasks.exists() else threading.active_count()


def main() -> None:
    arguments = json.loads(sys.argv[1])
    exit_with_parent(arguments["parent"])
    for number in (signal.SIGINT, signal.SIGTERM):  # only the worker handles these: it may finish its jobs first
        signal.signal(number, signal.SIG_IGN)
    with suppress(OSError):  # other systems, and containers that forbid it
        Path("/proc/self/oom_score_adj").write_text(OOM_SCORE, "ascii")
    work = _load(arguments["work"])
    if _count_threads() > 1:
        raise SystemExit(f"importing {arguments['work']} starts threads, which a forked child would not have")
    gc.collect()
    gc.freeze()  # so that collections in a child do not write to the memory pages that it shares
    gc.set_threshold(*GC_THRESHOLDS)
    with socket.socket(fileno=os.dup(0)) as control:
        ForkServer(control, work, SandboxLimits(**arguments["limits"])).run()


if __name__ == "__main__":
    main()
