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
from almanac.sandbox.pool import SandboxPool
from tests.sandbox.hostile_work import ATTEMPTS

ALLOWED = 0x7FFF0000
KILLED = 0x80000000
PID = 4321

KERNEL = detect_kernel_features()
NEEDS_SECCOMP = pytest.mark.skipif(not KERNEL.seccomp, reason="this kernel or processor has no seccomp filter")
NEEDS_LANDLOCK = pytest.mark.skipif(not KERNEL.landlock, reason="this kernel has no Landlock")

BY_LANDLOCK = {"read elsewhere", "list elsewhere", "read by the parent's root", "read the parent's environment"}
# Not attempted outside a child: they would end the test process or its parent, or have no effect to see.
UNTRIED = {"an unknown call", "exec", "kill all", "kill parent", "kill thread", "trace"}
REFUSALS = {name: {"EPERM"} for name in ATTEMPTS if name not in BY_LANDLOCK} | {
    "write elsewhere": {"EACCES"},
    "write to the file": {"EACCES"},
    "write to shared memory": {"EACCES"},
    "an unknown call": {"ENOSYS"},
}


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
    return (await pool.run(file, name, options)).decode()


@NEEDS_SECCOMP
@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize("name", REFUSALS)
async def test_a_child_may_not(pool: SandboxPool, name: str, file: Path, other: Path, listener: socket.socket):
    assert await attempt(pool, name, file, other, listener) in REFUSALS[name]
    with pytest.raises(BlockingIOError):
        listener.accept()
    assert other.read_bytes() == b"secret"
    assert [path.name for path in other.parent.iterdir()] == ["secret"]
    assert file.read_bytes() == b"content"


@NEEDS_LANDLOCK
@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize("name", sorted(BY_LANDLOCK))
async def test_a_child_cannot_read(pool: SandboxPool, name: str, file: Path, other: Path, listener: socket.socket):
    assert await attempt(pool, name, file, other, listener) == "EACCES"


@pytest.mark.parametrize("name", sorted(set(ATTEMPTS) - UNTRIED))
def test_the_same_attempts_succeed_outside_a_child(name: str, file: Path, other: Path, listener: socket.socket):
    """Otherwise the refusals would prove nothing. Some attempts need a superuser, some a recent kernel."""
    program = (
        "import json, os, sys; from pathlib import Path; from tests.sandbox import hostile_work;"
        "options = json.loads(sys.argv[1]); os.open(options['path'], os.O_RDONLY);"
        "print(hostile_work.attempt(Path(options['path']), options['name'], options).decode())"
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
        assert json.loads(await pool.run(file, "file", {})) == [list(range(8)), 2, 2]


# The filter


def run(machine: str, number: int, *arguments: int, audit: int | None = None) -> int:
    """The answer of a processor's filter to a system call, by an interpreter for its few instructions."""
    machine_type = syscall_filter.MACHINES[machine]
    data = struct.pack("<II Q 6Q", number, audit or machine_type.audit, 0, *(*arguments, 0, 0, 0, 0, 0, 0)[:6])
    code = list(struct.iter_unpack("=HBBI", syscall_filter.assemble(machine_type, PID)))
    accumulator, position = 0, 0
    while True:
        operation, true, false, value = code[position]
        position += 1
        match operation:
            case 0x20:
                (accumulator,) = struct.unpack_from("<I", data, value)
            case 0x54:
                accumulator &= value
            case 0x06:
                return value
            case _:
                jumps = {0x15: accumulator == value, 0x35: accumulator >= value, 0x45: bool(accumulator & value)}
                position += true if jumps[operation] else false


def refused(answer: int) -> str:
    return "" if answer == ALLOWED else errno.errorcode[answer & 0xFFFF]


COLUMNS = {"x86_64": 0, "aarch64": 1}


@pytest.mark.parametrize("machine", COLUMNS)
def test_the_filter_refuses_every_call_of_its_list(machine: str):
    refused_calls = [row[COLUMNS[machine]] for row in syscall_filter.REFUSED.values()]
    assert {refused(run(machine, number)) for number in refused_calls if number is not None} == {"EPERM"}
    absent_calls = [row[COLUMNS[machine]] for row in syscall_filter.ABSENT.values()]
    assert {refused(run(machine, number)) for number in absent_calls if number is not None} == {"ENOSYS"}


@pytest.mark.parametrize("machine", COLUMNS)
def test_the_filter_allows_all_other_calls(machine: str):
    tables = (syscall_filter.REFUSED, syscall_filter.ABSENT, syscall_filter.CHECKED)
    listed = {row[COLUMNS[machine]] for table in tables for row in table.values()}
    others = set(range(syscall_filter.FIRST_UNKNOWN)) - listed
    assert len(others) > 250
    assert {run(machine, number) for number in others} == {ALLOWED}
    assert refused(run(machine, syscall_filter.FIRST_UNKNOWN)) == "ENOSYS"
    assert refused(run(machine, 0x40000000)) == "ENOSYS"  # the 32-bit numbers of x86_64


@pytest.mark.parametrize("machine", COLUMNS)
@pytest.mark.parametrize(
    ("name", "arguments", "answer"),
    [
        ("clone", (0x3D0F00,), ""),  # a libc starts a thread
        ("clone", (0x1200011,), "EPERM"),  # it forks
        ("clone", (0x4111,), "EPERM"),  # it spawns
        ("kill", (PID, 6), ""),
        ("kill", (PID + 1, 6), "EPERM"),
        ("kill", (0, 6), "EPERM"),
        ("kill", (0xFFFFFFFF, 9), "EPERM"),
        ("tgkill", (PID, PID, 6), ""),
        ("tgkill", (1, 1, 9), "EPERM"),
        ("rt_sigqueueinfo", (1, 9), "EPERM"),
        ("rt_tgsigqueueinfo", (1, 1, 9), "EPERM"),
        ("open", (0, 0), ""),
        ("open", (0, 0o2000000), ""),
        ("open", (0, 1), "EACCES"),
        ("openat", (0, 0, 0o2000000), ""),
        ("openat", (0, 0, 1), "EACCES"),
        ("openat", (0, 0, 2), "EACCES"),
        ("openat", (0, 0, 0o100), "EACCES"),
        ("openat", (0, 0, 0o1000), "EACCES"),
        ("socketpair", (1, 0o2004001), ""),
        ("socketpair", (1, 2), "EPERM"),
        ("socketpair", (1, 5), "EPERM"),
        ("socketpair", (2, 1), "EPERM"),
        ("prctl", (15,), ""),
        ("prctl", (16,), ""),
        ("prctl", (0x53564D41,), ""),
        ("prctl", (1, 0), "EPERM"),
        ("prctl", (22, 0), "EPERM"),
        ("prlimit64", (0, 7, 0, 0x7F0000001000), ""),
        ("prlimit64", (0, 7, 0x1000, 0), "EPERM"),
        ("prlimit64", (0, 7, 0x7F0000000000, 0), "EPERM"),
    ],
)
def test_the_filter_checks_arguments(machine: str, name: str, arguments: tuple[int, ...], answer: str):
    number = syscall_filter.CHECKED[name][COLUMNS[machine]]
    if number is not None:
        assert refused(run(machine, number, *arguments)) == answer


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
    listed = {**syscall_filter.REFUSED, **syscall_filter.ABSENT, **syscall_filter.CHECKED}
    assert {name: row[COLUMNS[machine]] for name, row in listed.items()} == {name: known.get(name) for name in listed}
