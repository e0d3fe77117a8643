"""The fork server: a process that has the work loaded and forks a child for each request.

python -m almanac.sandbox.fork_server '{"work": "module:function", "limits": {…}, "prepared": 0, "parent": 123}'

It has one thread and little memory, so that forking is fast and safe, and an environment without secrets. Standard
input is a socket from its parent. Each request on it is a list of descriptors: the result socket, which belongs to this
request alone, the output, and the files. The server sends the exit report over the result socket; if the parent closes
that socket, the server kills the child. The server ends with its parent, and its children with it.

It can keep prepared children, which wait for a request. Each serves one; the server replaces it after its end.
"""

import gc
import importlib
import json
import math
import os
import resource
import selectors
import signal
import socket
import sys
import time
from collections import deque
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from almanac.sandbox import child, private_root
from almanac.sandbox.confinement import (
    SandboxLimits,
    count_threads,
    detect_kernel_features,
    exit_with_parent,
    prepare_filter,
    readable_paths,
)
from almanac.sandbox.descriptors import RequestReceiver, messages_for

# If memory runs out, the system should kill a child rather than the server.
OOM_SCORE = "500"

# A child lives for one file and leaves few reference cycles. The usual thresholds take 5 % of its time.
GC_THRESHOLDS = (50_000, 20, 100)


@dataclass(slots=True)
class ChildProcess:
    """A running child."""

    pid: int
    request_socket: socket.socket
    result_socket: socket.socket | None = None  # none while it waits for a request
    started: float = 0.0
    deadline: float = math.inf
    late: bool = False


class ForkServer:
    """Forks children, kills those that miss their deadline, and reports how they ended."""

    def __init__(self, control: socket.socket, work: child.SandboxedWork, limits: SandboxLimits, prepared: int) -> None:
        self._control = control
        self._receiver = RequestReceiver(control)
        self._work = work
        self._limits = limits
        self._prepared_count = prepared
        self._has_private_root = private_root.enter(readable_paths())
        self._kernel = detect_kernel_features()
        prepare_filter(limits.profile)
        self._children: dict[int, ChildProcess] = {}
        self._waiting: deque[ChildProcess] = deque()  # prepared children
        self._open = True
        self._wakeup_reader, self._wakeup_writer = socket.socketpair()
        self._selector = selectors.DefaultSelector()
        self._selector.register(control, selectors.EVENT_READ, self._accept)
        self._selector.register(self._wakeup_reader, selectors.EVENT_READ, self._reap)

    def run(self) -> None:
        """Serve until the worker closes its end of the socket."""
        self._watch_sigchld()
        self._control.sendall(json.dumps(self._features()).encode())
        self._prepare_children()
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
        deadlines = [each.deadline for each in self._children.values() if each.deadline < math.inf and not each.late]
        return max(0.0, min(deadlines) - time.monotonic()) if deadlines else None

    def _accept(self) -> None:
        try:
            request = self._receiver.receive()
        except EOFError:
            self._open = False
            return
        if request is not None:
            result_socket, *descriptors = request
            self._start(socket.socket(fileno=result_socket), descriptors)
            for descriptor in descriptors:
                os.close(descriptor)

    def _start(self, result_socket: socket.socket, descriptors: list[int]) -> None:
        """Give a request to a prepared child or a new one."""
        try:
            started = self._hand_over(descriptors)
        except OSError:  # the system allows no more processes; for the worker, the result socket is closed
            result_socket.close()
            return
        started.result_socket, started.started = result_socket, time.monotonic()
        started.deadline = started.started + self._limits.wall_seconds
        self._selector.register(result_socket, selectors.EVENT_READ, lambda: self._cancel_child(started))

    def _hand_over(self, descriptors: list[int]) -> ChildProcess:
        while True:
            receiver = self._waiting.popleft() if self._waiting else self._fork()
            with receiver.request_socket as stream, suppress(ConnectionError):  # it was killed while it waited
                for header, part in messages_for(descriptors):
                    socket.send_fds(stream, [header], part)
                return receiver

    def _prepare_children(self) -> None:
        """Replace prepared children that have served a request. Those that failed before one are not replaced here, so
        that a failing preparation is not repeated for ever."""
        with suppress(OSError):  # the system allows no more processes
            while len(self._waiting) < self._prepared_count:
                self._waiting.append(self._fork())

    def _fork(self) -> ChildProcess:
        server_pid = os.getpid()
        ours, theirs = socket.socketpair()
        with theirs:
            try:
                pid = os.fork()
            except OSError:
                ours.close()
                raise
            if pid == 0:
                child.run_child(theirs, self._work, self._limits, self._kernel, server_pid)
        self._children[pid] = forked = ChildProcess(pid, ours)
        return forked

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
                self._handle_exit(running, status, usage)

    def _handle_exit(self, ended: ChildProcess, status: int, usage: Any) -> None:
        if ended.deadline == math.inf:  # it was killed while it waited
            with suppress(ValueError):  # a request was meant for it
                self._waiting.remove(ended)
            ended.request_socket.close()
            return
        if ended.result_socket is not None:
            self._report(ended, ended.result_socket, status, usage)
        self._prepare_children()

    def _report(self, ended: ChildProcess, result_socket: socket.socket, status: int, usage: Any) -> None:
        peak = usage.ru_maxrss * (1024 if sys.platform == "linux" else 1)
        cpu, seconds = usage.ru_utime + usage.ru_stime, time.monotonic() - ended.started
        report = child.ExitReport(status, peak, cpu, seconds, ended.late)
        with suppress(OSError):  # the worker closed the socket at this moment
            result_socket.sendall(json.dumps(asdict(report)).encode())
        self._close_result_socket(ended)

    def _close_result_socket(self, ended: ChildProcess) -> None:
        if ended.result_socket is not None:
            self._selector.unregister(ended.result_socket)
            ended.result_socket.close()
            ended.result_socket = None


def _kill(pid: int) -> None:
    """Kill a child. Until it is reaped, no other process gets its id."""
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


def _load(work: str) -> child.SandboxedWork:
    """The function to run in each child. If its module has a `preload`, the children find its imports done. If it has a
    `prepare`, each child calls that before it waits for its request."""
    module_name, _, function = work.partition(":")
    module = importlib.import_module(module_name)
    getattr(module, "preload", lambda: None)()
    return child.SandboxedWork(getattr(module, function), getattr(module, "prepare", lambda: None))


def _allow_many_descriptors() -> None:
    """The descriptors of a request pass through this process. Each child lowers its own limit again."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def main() -> None:
    arguments = json.loads(sys.argv[1])
    exit_with_parent(arguments["parent"])
    for number in (signal.SIGINT, signal.SIGTERM):  # only the worker handles these: it may finish its jobs first
        signal.signal(number, signal.SIG_IGN)
    with suppress(OSError):  # other systems, and containers that forbid it
        Path("/proc/self/oom_score_adj").write_text(OOM_SCORE, "ascii")
    _allow_many_descriptors()
    work = _load(arguments["work"])
    if count_threads() > 1:
        raise SystemExit(f"importing {arguments['work']} starts threads, which a forked child would not have")
    gc.collect()
    gc.freeze()  # so that collections in a child do not write to the memory pages that it shares
    gc.set_threshold(*GC_THRESHOLDS)
    with socket.socket(fileno=os.dup(0)) as control:
        ForkServer(control, work, SandboxLimits(**arguments["limits"]), arguments["prepared"]).run()


if __name__ == "__main__":
    main()
    os._exit(0)  # all children have ended; finalisers of native libraries only write warnings
