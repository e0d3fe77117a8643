"""The confinement of a child, by real attempts to break out; and the filters of all processors, by an interpreter."""

import errno
import json
import os
import re
import socket
import struct
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
import pytest_asyncio

from almanac.sandbox import syscall_filter
from almanac.sandbox.confinement import detect_kernel_features
from almanac.sandbox.errors import WorkRejected
from almanac.sandbox.pool import SandboxPool
from tests.sandbox.hostile_work import ATTEMPTS

ALLOWED = 0x7FFF0000
KILLED = 0x80000000
PID = 4321

KERNEL = detect_kernel_features()
NEEDS_SECCOMP = pytest.mark.skipif(not KERNEL.seccomp, reason="this kernel or processor has no seccomp filter")
NEEDS_LANDLOCK = pytest.mark.skipif(not KERNEL.landlock, reason="this kernel has no Landlock")

BY_LANDLOCK = {"read elsewhere", "list elsewhere", "read by the parent's root", "read the parent's environment"}
KILLING = {"change the user", "trace"}
# Not attempted outside a child: they would end the test process or its parent, or have no effect to see.
UNTRIED = {"an unknown call", "exec", "kill all", "kill parent", "kill thread", "trace"}
BY_ARGUMENTS = {
    "fork", "spawn", "run", "kill all", "kill parent", "outlive the parent", "pair of datagram sockets", "raise limits",
}  # fmt: skip
BY_OPEN_FLAGS = {"write elsewhere", "write to the file", "write to shared memory"}
REFUSALS = (
    {name: "ENOSYS" for name in ATTEMPTS if name not in BY_LANDLOCK | KILLING}
    | dict.fromkeys(BY_ARGUMENTS, "EPERM")
    | dict.fromkeys(BY_OPEN_FLAGS, "EACCES")
)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def pool() -> AsyncIterator[SandboxPool]:
    async with SandboxPool(work="tests.sandbox.hostile_work:attempt") as pool:
        yield pool


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "file"
    path.write_bytes(b"content")
    return path


@pytest.fixture
def other(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("elsewhere") / "secret"
    path.write_bytes(b"secret")
    return path


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        listening.setblocking(False)
        yield listening


async def attempt(pool: SandboxPool, name: str, file: Path, other: Path, listener: socket.socket) -> str:
    options = {"path": str(other), "port": listener.getsockname()[1]}
    return (await pool.run([file], name, options)).decode()


@NEEDS_SECCOMP
@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize("name", REFUSALS)
async def test_a_child_may_not(pool: SandboxPool, name: str, file: Path, other: Path, listener: socket.socket):
    assert await attempt(pool, name, file, other, listener) == REFUSALS[name]
    with pytest.raises(BlockingIOError):
        listener.accept()
    assert other.read_bytes() == b"secret"
    assert [path.name for path in other.parent.iterdir()] == ["secret"]
    assert file.read_bytes() == b"content"


@NEEDS_SECCOMP
@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize("name", sorted(KILLING))
async def test_a_child_is_killed_for(pool: SandboxPool, name: str, file: Path, other: Path, listener: socket.socket):
    with pytest.raises(WorkRejected, match="SIGSYS"):
        await attempt(pool, name, file, other, listener)


@NEEDS_LANDLOCK
@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize("name", sorted(BY_LANDLOCK))
async def test_a_child_cannot_read(pool: SandboxPool, name: str, file: Path, other: Path, listener: socket.socket):
    assert await attempt(pool, name, file, other, listener) in {"EACCES", "ENOENT"}  # the second by the private root


@pytest.mark.parametrize("name", sorted(set(ATTEMPTS) - UNTRIED))
def test_the_same_attempts_succeed_outside_a_child(name: str, file: Path, other: Path, listener: socket.socket):
    """Otherwise the refusals would prove nothing. Some attempts need a superuser, some a recent kernel."""
    program = (
        "import json, os, sys; from pathlib import Path; from tests.sandbox import hostile_work;"
        "options = json.loads(sys.argv[1]); os.dup2(os.open(options['path'], os.O_RDONLY), 4);"
        "print(hostile_work.attempt([Path(options['path'])], options['name'], options).decode())"
    )
    options = json.dumps({"name": name, "path": str(other), "port": listener.getsockname()[1]})
    process = subprocess.run(
        [sys.executable, "-c", program, options], stdout=subprocess.PIPE, check=True, cwd=Path(__file__).parents[2]
    )
    assert process.stdout.decode().strip() in {"it worked", "ESRCH", "EFAULT"} | (
        {"ENOSYS", "EPERM"} if name == "io_uring" or os.getuid() else set()
    )


async def test_threads_event_loops_and_callbacks_from_native_code_still_work(file: Path):
    async with SandboxPool(work="tests.sandbox.hostile_work:run_threads") as pool:
        assert json.loads(await pool.run([file], "file", {})) == [list(range(8)), 2, 2]


# The filter


def run(machine: str, number: int, *arguments: int, audit: int | None = None) -> int:
    """The answer of a processor's filter to a system call, by an interpreter for its few instructions."""
    machine_type = syscall_filter.MACHINES[machine]
    data = struct.pack("<II Q 6Q", number, audit or machine_type.audit, 0, *(*arguments, 0, 0, 0, 0, 0, 0)[:6])
    code = list(struct.iter_unpack("=HBBI", syscall_filter.assemble(machine_type, "parsers", PID)))
    accumulator, position = 0, 0
    while True:
        operation, true, false, value = code[position]
        position += 1
        match operation:
            case 0x20:
                (accumulator,) = struct.unpack_from("<I", data, value)
            case 0x54:
                accumulator &= value
            case 0x05:
                position += value
            case 0x06:
                return value
            case _:
                jumps = {0x15: accumulator == value, 0x35: accumulator >= value, 0x45: bool(accumulator & value)}
                position += true if jumps[operation] else false


def answer_to(machine: str, number: int, *arguments: int) -> str:
    answer = run(machine, number, *arguments)
    assert answer != KILLED
    return "" if answer == ALLOWED else errno.errorcode[answer & 0xFFFF]


COLUMNS = {"x86_64": 0, "aarch64": 1}
TABLES = (*syscall_filter.PROFILES["parsers"], syscall_filter.CHECKED, syscall_filter.KILLED)


def numbers(machine: str, *tables: syscall_filter.Calls) -> set[int]:
    return {number for table in tables for row in table.values() if (number := row[COLUMNS[machine]]) is not None}


@pytest.mark.parametrize("machine", COLUMNS)
def test_the_filter_allows_the_calls_of_the_profile(machine: str):
    allowed = numbers(machine, *syscall_filter.PROFILES["parsers"])
    assert len(allowed) > 70
    assert {run(machine, number) for number in allowed} == {ALLOWED}


@pytest.mark.parametrize("machine", COLUMNS)
def test_the_filter_kills_for_the_calls_of_attacks(machine: str):
    assert {run(machine, number) for number in numbers(machine, syscall_filter.KILLED)} == {KILLED}


@pytest.mark.parametrize("machine", COLUMNS)
def test_every_other_call_seems_absent(machine: str):
    others = set(range(1024)) - numbers(machine, *TABLES)
    assert {answer_to(machine, number) for number in others} == {"ENOSYS"}
    assert answer_to(machine, 0x40000000) == "ENOSYS"  # the 32-bit numbers of x86_64
    assert answer_to(machine, 0x40000009) == "ENOSYS"
    assert answer_to(machine, 0xFFFFFFFF) == "ENOSYS"


def test_each_call_is_in_one_table():
    names = [name for table in TABLES for name in table]
    assert len(names) == len(set(names))


@pytest.mark.parametrize("machine", COLUMNS)
@pytest.mark.parametrize(
    ("name", "arguments", "answer"),
    [
        ("clone", (0x3D0F00,), ""),  # a libc starts a thread
        ("clone", (0x1200011,), "EPERM"),  # it forks
        ("clone", (0x4111,), "EPERM"),  # it spawns
        ("clone", (0x103D0F00,), "EPERM"),  # a thread in a user namespace of its own
        ("clone", (0x3F0F00,), "EPERM"),  # a thread in a mount namespace of its own
        ("kill", (PID, 6), ""),
        ("kill", (PID + 1, 6), "EPERM"),
        ("kill", (0, 6), "EPERM"),
        ("kill", (0xFFFFFFFF, 9), "EPERM"),
        ("tgkill", (PID, PID, 6), ""),
        ("tgkill", (1, 1, 9), "EPERM"),
        ("open", (0, 0), ""),
        ("open", (0, 0o2000000), ""),
        ("open", (0, 1), "EACCES"),
        ("openat", (0, 0, 0o2000000), ""),
        ("openat", (0, 0, 1), "EACCES"),
        ("openat", (0, 0, 2), "EACCES"),
        ("openat", (0, 0, 0o100), "EACCES"),
        ("openat", (0, 0, 0o1000), "EACCES"),
        ("openat", (0, 0, 0o10000000), "EACCES"),
        ("socketpair", (1, 0o2004001), ""),
        ("socketpair", (1, 2), "EPERM"),
        ("socketpair", (1, 5), "EPERM"),
        ("socketpair", (2, 1), "EPERM"),
        ("fcntl", (3, 0, 10), ""),
        ("fcntl", (3, 3), ""),
        ("fcntl", (3, 1030, 10), ""),
        ("fcntl", (3, 4, 0o4000), ""),
        ("fcntl", (3, 4, 0o24000), "EPERM"),  # O_ASYNC
        ("fcntl", (3, 8, PID), "EPERM"),  # F_SETOWN
        ("fcntl", (3, 10, 9), "EPERM"),  # F_SETSIG
        ("fcntl", (3, 15, 0), "EPERM"),  # F_SETOWN_EX
        ("fcntl", (3, 1024, 0), "EPERM"),  # F_SETLEASE
        ("fcntl", (3, 1026, 0), "EPERM"),  # F_NOTIFY
        ("fcntl", (3, 1033, 0), "EPERM"),  # F_ADD_SEALS
        ("ioctl", (3, 0x5401), ""),
        ("ioctl", (3, 0x5421), ""),
        ("ioctl", (3, 0x5412), "EPERM"),  # TIOCSTI
        ("ioctl", (3, 0x5452), "EPERM"),  # FIOASYNC
        ("ioctl", (3, 0x8901), "EPERM"),  # FIOSETOWN
        ("prctl", (15,), ""),
        ("prctl", (16,), ""),
        ("prctl", (0x53564D41,), ""),
        ("prctl", (1, 0), "EPERM"),
        ("prctl", (22, 0), "EPERM"),
        ("prlimit64", (0, 7, 0, 0x7F0000001000), ""),
        ("prlimit64", (PID, 7, 0, 0x7F0000001000), ""),
        ("prlimit64", (PID + 1, 7, 0, 0x7F0000001000), "EPERM"),
        ("prlimit64", (0, 7, 0x1000, 0), "EPERM"),
        ("prlimit64", (0, 7, 0x7F0000000000, 0), "EPERM"),
        ("sched_getaffinity", (0,), ""),
        ("sched_getaffinity", (PID,), ""),
        ("sched_getaffinity", (PID + 1,), "ENOSYS"),
    ],
)
def test_the_filter_checks_arguments(machine: str, name: str, arguments: tuple[int, ...], answer: str):
    number = syscall_filter.CHECKED[name][COLUMNS[machine]]
    if number is not None:
        assert answer_to(machine, number, *arguments) == answer


def test_a_call_by_the_numbers_of_another_processor_kills_the_process():
    assert run("x86_64", 0, audit=0x40000003) == KILLED
    assert run("aarch64", 0, audit=0x40000028) == KILLED


HEADERS = {
    "x86_64": Path("/usr/include/x86_64-linux-gnu/asm/unistd_64.h"),
    "aarch64": Path("/usr/include/asm-generic/unistd.h"),
}


@pytest.mark.parametrize("machine", HEADERS)
def test_the_numbers_are_those_of_the_kernel_s_headers(machine: str):
    if not HEADERS[machine].exists():
        pytest.skip("the kernel's headers are not installed")
    lines = HEADERS[machine].read_text("utf-8")
    known = {name: int(number) for name, number in re.findall(r"#define __NR(?:3264)?_(\w+)\s+(\d+)", lines)}
    renamed = re.findall(r"#define __NR_(\w+) __NR3264_(\w+)", lines)
    known |= {name: known[original] for name, original in renamed if original in known}
    listed = {name: row for table in TABLES for name, row in table.items()}
    assert {name: row[COLUMNS[machine]] for name, row in listed.items()} == {name: known.get(name) for name in listed}
