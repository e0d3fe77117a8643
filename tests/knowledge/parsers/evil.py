"""What a parser in the hands of a hostile file might do. Each function is the work of a child, as `reading.read` is."""

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

from almanac.knowledge.parsers.parsed_file import UnreadableFile
from almanac.sandbox.pool import SandboxPool

SECRET = "the-text-of-the-document"


def echo(content: Path, name: str, options: dict[str, Any]) -> bytes:
    return name.encode() + b":" + content.read_bytes()


def allocate(content: Path, name: str, options: dict[str, Any]) -> bytes:
    hoard: list[bytearray] = []
    while True:
        hoard.append(bytearray(1 << 20))


def fill(content: Path, name: str, options: dict[str, Any]) -> bytes:
    """As much as there is, and then how much that was."""
    hoard: list[bytearray] = []
    try:
        while True:
            hoard.append(bytearray(b"x" * (1 << 20)))
    except MemoryError:
        size = len(hoard) << 20
        hoard.clear()
    return json.dumps(size).encode()


def abort_hungry(content: Path, name: str, options: dict[str, Any]) -> NoReturn:
    """As native code does whose allocation fails."""
    size = 1 << 40
    assert ctypes.CDLL(None).malloc(ctypes.c_size_t(size)) == 0
    os.write(2, b"memory allocation of %d bytes failed" % size)
    os.abort()


def abort_hungry_in_silence(content: Path, name: str, options: dict[str, Any]) -> NoReturn:
    hoard = bytearray(600 << 20)  # an anonymous mapping, whose pages have to be touched to count
    hoard[:: resource.getpagesize()] = b"x" * len(range(0, len(hoard), resource.getpagesize()))
    os.abort()


def spin(content: Path, name: str, options: dict[str, Any]) -> NoReturn:
    while True:
        pass


def spin_deaf(content: Path, name: str, options: dict[str, Any]) -> NoReturn:
    signal.signal(signal.SIGXCPU, signal.SIG_IGN)
    spin(content, name, options)


def sleep(content: Path, name: str, options: dict[str, Any]) -> bytes:
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    time.sleep(3600)
    return b""


def write_much(content: Path, name: str, options: dict[str, Any]) -> bytes:
    return bytes(options["size"])


def chatter(content: Path, name: str, options: dict[str, Any]) -> bytes:
    """More on standard error than it may write, and then a result."""
    line = SECRET.encode() * 1000
    for _ in range(options["size"] // len(line) + 1):
        try:
            os.write(2, line)
        except OSError as error:
            assert error.errno == errno.EFBIG
    os.write(1, line)
    return b"result"


def crash(content: Path, name: str, options: dict[str, Any]) -> bytes:
    return ctypes.string_at(0)


def abort(content: Path, name: str, options: dict[str, Any]) -> NoReturn:
    os.write(2, SECRET.encode())
    os.abort()


def recurse(content: Path, name: str, options: dict[str, Any]) -> bytes:
    return recurse(content, name, options)


def leave(content: Path, name: str, options: dict[str, Any]) -> NoReturn:
    os._exit(options["status"])


def stumble(content: Path, name: str, options: dict[str, Any]) -> NoReturn:
    raise KeyError(SECRET)


class Panic(BaseException):
    """What native code raises when it panics is no Exception."""


def panic(content: Path, name: str, options: dict[str, Any]) -> NoReturn:
    raise Panic(SECRET)


def refuse(content: Path, name: str, options: dict[str, Any]) -> NoReturn:
    raise UnreadableFile("encrypted", "The file is protected by a password.", retryable=options["retryable"])


def lie(content: Path, name: str, options: dict[str, Any]) -> NoReturn:
    """Say something that no parser would."""
    raise UnreadableFile(options["code"], "x" * 100_000)


def write_and_leave(content: Path, name: str, options: dict[str, Any]) -> NoReturn:
    os.pwrite(4, options["words"].encode(), 0)
    os._exit(options["status"])


def describe(content: Path, name: str, options: dict[str, Any]) -> bytes:
    """What a child finds around itself."""
    found = {
        "environment": dict(os.environ),
        "descriptors": [each for each in range(256) if _is_open(each)],
        "session": os.getsid(0) == os.getpid(),
        "limits": {each: resource.getrlimit(getattr(resource, each))[0] for each in options.get("limits", ())},
        "folder": os.getcwd(),
        "path": sys.path,
    }
    return json.dumps(found).encode()


def _next(number: int) -> int:
    return number + 1


def run_threads(content: Path, name: str, options: dict[str, Any]) -> bytes:
    done: list[int] = []
    threads = [threading.Thread(target=done.append, args=(each,)) for each in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    pair = socket.socketpair()  # as the event loops of runtimes use to wake themselves
    callback = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_int)(_next)  # as pdfium reads its file
    asyncio.run(asyncio.sleep(0))
    return json.dumps([sorted(done), len(pair), callback(1)]).encode()


def attempt(content: Path, name: str, options: dict[str, Any]) -> bytes:
    """Try something forbidden, and say what came of it."""
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


def _call(number: int, *arguments: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.syscall(*(ctypes.c_long(each) for each in (number, *arguments))) < 0:
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
    except ValueError as error:  # Python's word for it
        raise PermissionError(errno.EPERM, "refused") from error


ATTEMPTS: dict[str, Callable[[dict[str, Any]], Any]] = {
    "connect": _connect,
    "udp": lambda given: socket.socket(socket.AF_INET, socket.SOCK_DGRAM),
    "ipv6": lambda given: socket.socket(socket.AF_INET6),
    "local socket": lambda given: socket.socket(socket.AF_UNIX),
    "netlink": lambda given: socket.socket(16, socket.SOCK_RAW, 0),
    "pair of datagram sockets": lambda given: socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM),
    "fork": _fork,
    "spawn": lambda given: os.posix_spawn("/bin/true", ["true"], {}),
    "run": lambda given: subprocess.run(["/bin/true"], check=False),
    "exec": lambda given: os.execv("/bin/true", ["true"]),
    "kill parent": lambda given: os.kill(os.getppid(), signal.SIGKILL),
    "kill all": lambda given: os.kill(-1, signal.SIGKILL),
    "kill thread": lambda given: _call(200 if os.uname().machine == "x86_64" else 130, os.getppid(), signal.SIGKILL),
    "read elsewhere": lambda given: Path(given["path"]).read_bytes(),
    "list elsewhere": lambda given: os.listdir(Path(given["path"]).parent),
    "read by the parent's root": lambda given: Path(f"/proc/{os.getppid()}/root{given['path']}").read_bytes(),
    "read the parent's environment": lambda given: Path(f"/proc/{os.getppid()}/environ").read_bytes(),
    "write elsewhere": lambda given: _write(given["path"] + ".new"),
    "write to the file": lambda given: os.open("/proc/self/fd/3", os.O_WRONLY),
    "truncate the file": lambda given: os.truncate("/proc/self/fd/3", 0),
    "write to shared memory": lambda given: _write(f"/dev/shm/almanac-evil-{os.getpid()}"),
    "delete": lambda given: os.unlink(given["path"]),
    "rename": lambda given: os.rename(given["path"], given["path"] + ".old"),
    "change mode": lambda given: os.chmod(given["path"], 0o777),
    "make a folder": lambda given: os.mkdir(given["path"] + ".folder"),
    "link": lambda given: os.symlink(given["path"], given["path"] + ".link"),
    "hide memory": lambda given: os.memfd_create("hidden"),
    "raise limits": _raise_limits,
    "outlive the parent": lambda given: _call(157 if os.uname().machine == "x86_64" else 167, 1, 0),
    "become another": lambda given: os.setuid(12345),
    "trace": lambda given: _call(101 if os.uname().machine == "x86_64" else 117, 16, os.getppid()),
    "io_uring": lambda given: _call(425, 1, 0),
    "a call of the future": lambda given: _call(460),
}


async def serve(path: Path) -> None:
    """A worker that says which processes it started, and then waits for a file that never ends."""
    async with SandboxPool(work="tests.knowledge.parsers.evil:sleep") as nursery:
        sys.stdout.write("ready\n")
        sys.stdout.flush()
        await nursery.parse(path, "file", {})


if __name__ == "__main__":
    asyncio.run(serve(Path(sys.argv[1])))
