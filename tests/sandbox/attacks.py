"""Attacks on other processes and on the file system, by code that has taken control of a sandboxed child.

python -m tests.sandbox.attacks '[["renice", 123, "/a/file"], …]'

makes the attacks on processes in a sandbox of an ordinary user, also where the tests run as a superuser.
"""

import asyncio
import ctypes
import errno
import fcntl
import json
import os
import signal
import socket
import struct
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from almanac.sandbox.pool import SandboxPool

ORDINARY_USER = 65534

IS_X86 = os.uname().machine == "x86_64"

F_SETSIG, F_SETOWN_EX, F_OWNER_PID = 10, 15, 1
FIOSETOWN, FIOASYNC = 0x8901, 0x5452
AT_FDCWD = -100
AT_EMPTY_PATH = 0x1000
SCHED_IDLE = 5

_libc = ctypes.CDLL(None, use_errno=True)


def number_of(on_x86: int, on_arm: int) -> int:
    """The number of a system call on this processor."""
    return on_x86 if IS_X86 else on_arm


def system_call(number: int, *arguments: Any) -> int:
    words = [ctypes.c_long(each) if isinstance(each, int) else each for each in arguments]
    result = _libc.syscall(ctypes.c_long(number), *words)
    if result < 0:
        raise OSError(ctypes.get_errno(), "refused")
    return result


def answer_of(action: Callable[[], Any]) -> str:
    """The name of the error that an action raises, or "it worked"."""
    try:
        action()
    except OSError as error:
        return errno.errorcode[error.errno or 0]
    return "it worked"


# Other processes


def attack_process(files: list[Path], name: str, options: dict[str, Any]) -> bytes:
    """Attack the process `victim` in the way `name`."""
    return answer_of(lambda: ON_PROCESSES[name](options["victim"])).encode()


def _set_affinity(victim: int) -> None:
    os.sched_setaffinity(victim, {min(os.sched_getaffinity(0))})


def _set_io_priority(victim: int) -> None:
    system_call(number_of(251, 30), 1, victim, 3 << 13)


def _lower_limit(victim: int) -> None:
    system_call(number_of(302, 261), victim, 7, struct.pack("=QQ", 8, 8), None)


def _signal_by_owner(victim: int) -> None:
    """Have the kernel send SIGKILL when a pipe becomes readable."""
    reader, writer = _pair()
    fcntl.fcntl(reader, F_SETSIG, signal.SIGKILL)
    fcntl.fcntl(reader, fcntl.F_SETOWN, victim)
    fcntl.fcntl(reader, fcntl.F_SETFL, os.O_ASYNC)
    os.write(writer, b"x")


def _signal_by_owner_structure(victim: int) -> None:
    reader, writer = _pair()
    fcntl.fcntl(reader, F_SETOWN_EX, struct.pack("=ii", F_OWNER_PID, victim))
    fcntl.fcntl(reader, F_SETSIG, signal.SIGKILL)
    fcntl.fcntl(reader, fcntl.F_SETFL, os.O_ASYNC)
    os.write(writer, b"x")


def _signal_by_ioctl(victim: int) -> None:
    """The signal is SIGIO, which ends a process too."""
    reader, writer = _pair()
    fcntl.ioctl(reader, FIOSETOWN, struct.pack("=i", victim))
    fcntl.ioctl(reader, FIOASYNC, struct.pack("=i", 1))
    os.write(writer, b"x")


def _pair() -> tuple[int, int]:
    reader, writer = socket.socketpair()
    return reader.detach(), writer.detach()


ON_PROCESSES: dict[str, Callable[[int], Any]] = {
    "renice": lambda victim: os.setpriority(os.PRIO_PROCESS, victim, 19),
    "renice the user": lambda victim: os.setpriority(os.PRIO_USER, 0, 19),
    "pin": _set_affinity,
    "reschedule": lambda victim: os.sched_setscheduler(victim, SCHED_IDLE, os.sched_param(0)),
    "reschedule by attributes": lambda victim: system_call(
        number_of(314, 274), victim, struct.pack("=IIQiIQQQ", 48, SCHED_IDLE, 0, 0, 0, 0, 0, 0), 0
    ),
    "set the priority of its disk access": _set_io_priority,
    "lower its limits": _lower_limit,
    "signal": lambda victim: os.kill(victim, signal.SIGKILL),
    "signal a thread": lambda victim: system_call(number_of(200, 130), victim, signal.SIGKILL),
    "signal with tgkill": lambda victim: system_call(number_of(234, 131), victim, victim, signal.SIGKILL),
    "signal the owner of a socket": _signal_by_owner,
    "signal the owner of a socket, by structure": _signal_by_owner_structure,
    "signal the owner of a socket, by ioctl": _signal_by_ioctl,
    "probe with an empty signal": lambda victim: os.kill(victim, 0),
    "query its priority": lambda victim: os.getpriority(os.PRIO_PROCESS, victim),
    "query its affinity": os.sched_getaffinity,
    "query its scheduler": os.sched_getscheduler,
    "query its limits": lambda victim: system_call(number_of(302, 261), victim, 7, None, bytes(16)),
    "query its group": os.getpgid,
    "query its session": os.getsid,
    "query its robust list": lambda victim: system_call(number_of(274, 100), victim, bytes(8), bytes(8)),
    "list its files": lambda victim: os.listdir(f"/proc/{victim}/fd"),
    "read its memory map": lambda victim: Path(f"/proc/{victim}/maps").read_bytes(),
    "write its memory score": lambda victim: Path(f"/proc/{victim}/oom_score_adj").write_text("1000", "ascii"),
}


# The file system


def observe(files: list[Path], name: str, options: dict[str, Any]) -> bytes:
    """The answers of the method `name` for each of `paths`."""
    method = ON_PATHS[name]
    answers = [answer_of(lambda path=path: method(path)) for path in options["paths"]]
    return json.dumps(answers).encode()


def _watch(path: str) -> None:
    descriptor = system_call(number_of(294, 26), 0)
    system_call(number_of(254, 27), descriptor, path.encode(), 0xFFF)


def _watch_folder_by_signal(path: str) -> None:
    """Have the kernel send a signal when a folder that may be read changes."""
    fcntl.fcntl(os.open("/usr/lib", os.O_RDONLY), fcntl.F_NOTIFY, fcntl.DN_CREATE | fcntl.DN_MULTISHOT)


ON_PATHS: dict[str, Callable[[str], Any]] = {
    "stat": os.stat,
    "lstat": os.lstat,
    "statx": lambda path: system_call(number_of(332, 291), AT_FDCWD, path.encode(), 0, 0x7FF, bytes(256)),
    "newfstatat with AT_EMPTY_PATH": lambda path: system_call(
        number_of(262, 79), AT_FDCWD, path.encode(), bytes(256), AT_EMPTY_PATH
    ),
    "access": lambda path: system_call(number_of(269, 48), AT_FDCWD, path.encode(), os.F_OK),
    "faccessat2": lambda path: system_call(439, AT_FDCWD, path.encode(), os.F_OK, 0),
    "readlink": os.readlink,
    "open": lambda path: os.open(path, os.O_RDONLY),
    "open as a path": lambda path: os.open(path, os.O_PATH),
    "list": os.listdir,
    "chdir": os.chdir,
    "statfs": os.statvfs,
    "getxattr": lambda path: os.getxattr(path, "user.x"),
    "name_to_handle_at": lambda path: system_call(
        number_of(303, 264), AT_FDCWD, path.encode(), bytes(256), bytes(8), 0
    ),
    "inotify": _watch,
    "dnotify": _watch_folder_by_signal,
    "fanotify": lambda path: system_call(number_of(300, 262), 0, 0),
    "stat through the parent's root": lambda path: os.stat(f"/proc/{os.getppid()}/root{path}"),
    "stat through the parent's folder": lambda path: os.stat(f"/proc/{os.getppid()}/cwd/../../../..{path}"),
    "stat through the first process": lambda path: os.stat(f"/proc/1/root{path}"),
    "stat above the root": lambda path: os.stat(f"/../../..{path}"),
    "stat beside the file": lambda path: os.stat(f"/proc/self/fd/4/..{path}"),
}


# Calls by number


def call_by_number(files: list[Path], name: str, options: dict[str, Any]) -> bytes:
    """The answers to system calls by number, with arguments that no call accepts."""
    numbers: list[int] = options["numbers"]
    return json.dumps([answer_of(lambda number=number: system_call(number, *[-1] * 6)) for number in numbers]).encode()


# As an ordinary user


async def _attack_as_ordinary_user(attacks: list[tuple[str, int, str]]) -> list[str]:
    async with SandboxPool("tests.sandbox.attacks:attack_process") as pool:
        results = [await pool.run([Path(file)], name, {"victim": victim}) for name, victim, file in attacks]
    return [result.decode() for result in results]


def become_ordinary() -> None:
    """Give up the superuser. The permission to read every file stays, because the interpreter may be in its home."""
    if os.geteuid():
        return
    prctl = _libc.prctl
    prctl(8, 1, 0, 0, 0)  # PR_SET_KEEPCAPS
    os.setgroups([])
    os.setresgid(ORDINARY_USER, ORDINARY_USER, ORDINARY_USER)
    os.setresuid(ORDINARY_USER, ORDINARY_USER, ORDINARY_USER)
    header, may_read = (ctypes.c_uint32 * 2)(0x20080522, 0), 1 << 2
    assert _libc.capset(header, (ctypes.c_uint32 * 6)(may_read, may_read, may_read)) == 0
    assert prctl(47, 2, 2, 0, 0) == 0  # PR_CAP_AMBIENT, PR_CAP_AMBIENT_RAISE, CAP_DAC_READ_SEARCH
    prctl(4, 1, 0, 0, 0)  # PR_SET_DUMPABLE: a change of user clears it


if __name__ == "__main__":
    become_ordinary()
    sys.stdout.write(json.dumps(asyncio.run(_attack_as_ordinary_user(json.loads(sys.argv[1])))))
