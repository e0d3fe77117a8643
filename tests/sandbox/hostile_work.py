"""Work that misbehaves as a parser could after a hostile file took control of it. Each function runs in a child."""

import asyncio
import ctypes
import errno
import json
import os
import resource
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

from almanac.sandbox.errors import WorkRejected
from almanac.sandbox.pool import SandboxPool

SECRET = "the-text-of-the-document"


def echo(files: list[Path], name: str, options: dict[str, Any]) -> bytes:
    return name.encode() + b":" + files[0].read_bytes()


def read_all(files: list[Path], name: str, options: dict[str, Any]) -> bytes:
    return b",".join(file.read_bytes() for file in files)


def read_other_descriptors(files: list[Path], name: str, options: dict[str, Any]) -> bytes:
    """The descriptors that a child has besides its request."""
    return json.dumps([number for number in range(256) if _is_open(number)]).encode()


def allocate_forever(files: list[Path], name: str, options: dict[str, Any]) -> bytes:
    blocks: list[bytearray] = []
    while True:
        blocks.append(bytearray(1 << 20))


def fill_memory(files: list[Path], name: str, options: dict[str, Any]) -> bytes:
    """Allocate all the memory there is; return its size."""
    blocks: list[bytearray] = []
    try:
        while True:
            blocks.append(bytearray(b"x" * (1 << 20)))
    except MemoryError:
        size = len(blocks) << 20
        blocks.clear()
    return json.dumps(size).encode()


def abort_on_failed_allocation(files: list[Path], name: str, options: dict[str, Any]) -> NoReturn:
    """Abort with the message that native code writes when an allocation fails."""
    size = 1 << 40
    assert ctypes.CDLL(None).malloc(ctypes.c_size_t(size)) == 0
    os.write(2, b"memory allocation of %d bytes failed" % size)
    os.abort()


def abort_with_much_memory(files: list[Path], name: str, options: dict[str, Any]) -> NoReturn:
    """Abort without a message, with 600 MiB in use."""
    block = bytearray(600 << 20)  # an anonymous mapping: its pages count once they are written to
    block[:: resource.getpagesize()] = b"x" * len(range(0, len(block), resource.getpagesize()))
    os.abort()


def compute_forever(files: list[Path], name: str, options: dict[str, Any]) -> NoReturn:
    while True:
        pass


def compute_forever_and_ignore_signals(files: list[Path], name: str, options: dict[str, Any]) -> NoReturn:
    signal.signal(signal.SIGXCPU, signal.SIG_IGN)
    compute_forever(files, name, options)


def sleep(files: list[Path], name: str, options: dict[str, Any]) -> bytes:
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    time.sleep(3600)
    return b""


def return_bytes(files: list[Path], name: str, options: dict[str, Any]) -> bytes:
    return bytes(options["size"])


def fill_standard_error(files: list[Path], name: str, options: dict[str, Any]) -> bytes:
    """Write more to standard error than the output may hold, then return a result."""
    line = SECRET.encode() * 1000
    for _ in range(options["size"] // len(line) + 1):
        try:
            os.write(2, line)
        except OSError as error:
            assert error.errno == errno.EFBIG
    os.write(1, line)
    return b"result"


def crash(files: list[Path], name: str, options: dict[str, Any]) -> bytes:
    return ctypes.string_at(0)


def abort(files: list[Path], name: str, options: dict[str, Any]) -> NoReturn:
    os.write(2, SECRET.encode())
    os.abort()


def recurse(files: list[Path], name: str, options: dict[str, Any]) -> bytes:
    return recurse(files, name, options)


def exit_with(files: list[Path], name: str, options: dict[str, Any]) -> NoReturn:
    os._exit(options["status"])


def raise_key_error(files: list[Path], name: str, options: dict[str, Any]) -> NoReturn:
    raise KeyError(SECRET)


class Panic(BaseException):
    """A panic of native code, which is not an Exception."""


def panic(files: list[Path], name: str, options: dict[str, Any]) -> NoReturn:
    raise Panic(SECRET)


def reject(files: list[Path], name: str, options: dict[str, Any]) -> NoReturn:
    raise WorkRejected("encrypted", "The file is protected by a password.", retryable=options["retryable"])


def reject_with_long_message(files: list[Path], name: str, options: dict[str, Any]) -> NoReturn:
    raise WorkRejected(options["code"], "x" * 100_000)


def write_report_and_exit(files: list[Path], name: str, options: dict[str, Any]) -> NoReturn:
    os.pwrite(3, options["report"].encode(), 0)
    os._exit(options["status"])


def describe(files: list[Path], name: str, options: dict[str, Any]) -> bytes:
    """The surroundings that a child sees."""
    surroundings = {
        "environment": dict(os.environ),
        "descriptors": [number for number in range(256) if _is_open(number)],
        "limits": {limit: resource.getrlimit(getattr(resource, limit))[0] for limit in options.get("limits", ())},
        "folder": os.getcwd(),
    }
    return json.dumps(surroundings).encode()


def _next(number: int) -> int:
    return number + 1


def run_threads(files: list[Path], name: str, options: dict[str, Any]) -> bytes:
    finished: list[int] = []
    threads = [threading.Thread(target=finished.append, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    pair = socket.socketpair()  # the event loops of runtimes use one to wake themselves
    callback = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_int)(_next)  # PDFium reads its file through one
    asyncio.run(asyncio.sleep(0))
    return json.dumps([sorted(finished), len(pair), callback(1)]).encode()


def attempt(files: list[Path], name: str, options: dict[str, Any]) -> bytes:
    """Attempt the forbidden operation `name`; return the name of the error or "it worked"."""
    try:
        ATTEMPTS[name](options)
    except OSError as error:
        return errno.errorcode[error.errno or 0].encode()
    return b"it worked"


def _is_open(descriptor: int) -> bool:
    try:
        os.fstat(descriptor)
    except OSError:
        return False
    return True


def _system_call(number: int, *arguments: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.syscall(*(ctypes.c_long(argument) for argument in (number, *arguments))) < 0:
        raise OSError(ctypes.get_errno(), "refused")


def _connect(options: dict[str, Any]) -> None:
    socket.create_connection(("127.0.0.1", options["port"]), timeout=5).close()


def _fork(options: dict[str, Any]) -> None:
    if os.fork() == 0:
        os._exit(0)


def _write(path: str) -> None:
    os.close(os.open(path, os.O_WRONLY | os.O_CREAT, 0o600))
    os.unlink(path)


def _raise_limits(options: dict[str, Any]) -> None:
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (4096, 4096))
    except ValueError as error:  # Python raises this for EPERM
        raise PermissionError(errno.EPERM, "refused") from error


IS_X86 = os.uname().machine == "x86_64"

# Operations that a child may not perform. Their options are the path of a foreign file and a port that is listened on.
ATTEMPTS: dict[str, Callable[[dict[str, Any]], Any]] = {
    "connect": _connect,
    "udp": lambda options: socket.socket(socket.AF_INET, socket.SOCK_DGRAM),
    "ipv6": lambda options: socket.socket(socket.AF_INET6),
    "local socket": lambda options: socket.socket(socket.AF_UNIX),
    "netlink": lambda options: socket.socket(16, socket.SOCK_RAW, 0),
    "pair of datagram sockets": lambda options: socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM),
    "fork": _fork,
    "spawn": lambda options: os.posix_spawn("/bin/true", ["true"], {}),
    "run": lambda options: subprocess.run(["/bin/true"], check=False),
    "exec": lambda options: os.execv("/bin/true", ["true"]),
    "kill parent": lambda options: os.kill(os.getppid(), signal.SIGKILL),
    "kill all": lambda options: os.kill(-1, signal.SIGKILL),
    "kill thread": lambda options: _system_call(200 if IS_X86 else 130, os.getppid(), signal.SIGKILL),
    "read elsewhere": lambda options: Path(options["path"]).read_bytes(),
    "list elsewhere": lambda options: os.listdir(Path(options["path"]).parent),
    "read by the parent's root": lambda options: Path(f"/proc/{os.getppid()}/root{options['path']}").read_bytes(),
    "read the parent's environment": lambda options: Path(f"/proc/{os.getppid()}/environ").read_bytes(),
    "write elsewhere": lambda options: _write(options["path"] + ".new"),
    "write to the file": lambda options: os.open("/proc/self/fd/4", os.O_WRONLY),
    "truncate the file": lambda options: os.truncate("/proc/self/fd/4", 0),
    "write to shared memory": lambda options: _write(f"/dev/shm/almanac-attack-{os.getpid()}"),
    "delete": lambda options: os.unlink(options["path"]),
    "rename": lambda options: os.rename(options["path"], options["path"] + ".old"),
    "change mode": lambda options: os.chmod(options["path"], 0o777),
    "make a folder": lambda options: os.mkdir(options["path"] + ".folder"),
    "link": lambda options: os.symlink(options["path"], options["path"] + ".link"),
    "create a memory file": lambda options: os.memfd_create("hidden"),
    "raise limits": _raise_limits,
    "outlive the parent": lambda options: _system_call(157 if IS_X86 else 167, 1, 0),
    "change the user": lambda options: os.setuid(12345),
    "trace": lambda options: _system_call(101 if IS_X86 else 117, 16, os.getppid()),
    "io_uring": lambda options: _system_call(425, 1, 0),
    "an unknown call": lambda options: _system_call(460),
}


async def run_a_worker(path: Path) -> None:
    """Start a pool, print "ready", then wait for work that never ends."""
    async with SandboxPool(work="tests.sandbox.hostile_work:sleep") as pool:
        sys.stdout.write("ready\n")
        sys.stdout.flush()
        await pool.run([path], "file", {})


if __name__ == "__main__":
    asyncio.run(run_a_worker(Path(sys.argv[1])))
