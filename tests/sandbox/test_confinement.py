"""What a child cannot do, tried for real; and the filter on a machine that is not at hand, tried by an interpreter."""

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
from tests.knowledge.parsers.evil import ATTEMPTS

ALLOWED = 0x7FFF0000
KILLED = 0x80000000
PID = 4321

MEANS = detect_kernel_features()
FILTERED = pytest.mark.skipif(not MEANS.seccomp, reason="this kernel or processor has no seccomp filter")
SHUT = pytest.mark.skipif(not MEANS.landlock, reason="this kernel has no Landlock")

BY_LANDLOCK = {"read elsewhere", "list elsewhere", "read by the parent's root", "read the parent's environment"}
UNTRIED = {"a call of the future", "exec", "kill all", "kill parent", "kill thread", "trace"}  # not where tests run
REFUSALS = {name: {"EPERM"} for name in ATTEMPTS if name not in BY_LANDLOCK} | {
    "write elsewhere": {"EACCES"},
    "write to the file": {"EACCES"},
    "write to shared memory": {"EACCES"},
    "a call of the future": {"ENOSYS"},
}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def nursery() -> AsyncIterator[SandboxPool]:
    async with SandboxPool(work="tests.knowledge.parsers.evil:attempt") as nursery:
        yield nursery


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


async def attempt(nursery: SandboxPool, name: str, file: Path, other: Path, listener: socket.socket) -> str:
    options = {"path": str(other), "port": listener.getsockname()[1]}
    return (await nursery.parse(file, name, options)).result.decode()


@FILTERED
@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize("name", REFUSALS)
async def test_a_child_is_refused(nursery: SandboxPool, name: str, file: Path, other: Path, listener: socket.socket):
    assert await attempt(nursery, name, file, other, listener) in REFUSALS[name]
    with pytest.raises(BlockingIOError):
        listener.accept()
    assert other.read_bytes() == b"secret"
    assert [each.name for each in other.parent.iterdir()] == ["secret"]
    assert file.read_bytes() == b"content"


@SHUT
@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize("name", sorted(BY_LANDLOCK))
async def test_a_child_cannot_read(nursery: SandboxPool, name: str, file: Path, other: Path, listener: socket.socket):
    assert await attempt(nursery, name, file, other, listener) == "EACCES"


@pytest.mark.parametrize("name", sorted(set(ATTEMPTS) - UNTRIED))
def test_what_a_child_is_refused_would_work_elsewhere(name: str, file: Path, other: Path, listener: socket.socket):
    """Or the refusals above would prove nothing. Some need a superuser, and some a kernel that has them."""
    program = (
        "import json, os, sys; from pathlib import Path; from tests.knowledge.parsers import evil;"
        "given = json.loads(sys.argv[1]); os.open(given['path'], os.O_RDONLY);"
        "print(evil.attempt(Path(given['path']), given['name'], given).decode())"
    )
    told = json.dumps({"name": name, "path": str(other), "port": listener.getsockname()[1]})
    answer = subprocess.run(
        [sys.executable, "-c", program, told], stdout=subprocess.PIPE, check=True, cwd=Path(__file__).parents[2]
    )
    assert answer.stdout.decode().strip() in {"it worked", "ESRCH", "EFAULT"} | (
        {"ENOSYS", "EPERM"} if name == "io_uring" or os.getuid() else set()
    )


async def test_threads_event_loops_and_callbacks_of_native_parsers_still_work(file: Path):
    async with SandboxPool(work="tests.knowledge.parsers.evil:run_threads") as nursery:
        assert json.loads((await nursery.parse(file, "file", {})).result) == [list(range(8)), 2, 2]


# The filter


def run(machine: str, number: int, *arguments: int, audit: int | None = None) -> int:
    """What the filter for a machine answers to a call: an interpreter of the few instructions it has."""
    kind = syscall_filter.MACHINES[machine]
    data = struct.pack("<II Q 6Q", number, audit or kind.audit, 0, *(*arguments, 0, 0, 0, 0, 0, 0)[:6])
    code = list(struct.iter_unpack("=HBBI", syscall_filter.assemble(kind, PID)))
    held, place = 0, 0
    while True:
        operation, true, false, value = code[place]
        place += 1
        match operation:
            case 0x20:
                (held,) = struct.unpack_from("<I", data, value)
            case 0x54:
                held &= value
            case 0x06:
                return value
            case _:
                holds = {0x15: held == value, 0x35: held >= value, 0x45: bool(held & value)}[operation]
                place += true if holds else false


def refused(answer: int) -> str:
    return "" if answer == ALLOWED else errno.errorcode[answer & 0xFFFF]


MACHINES = {"x86_64": 0, "aarch64": 1}


@pytest.mark.parametrize("machine", MACHINES)
def test_the_filter_refuses_every_call_of_its_list(machine: str):
    numbers = [each[MACHINES[machine]] for each in syscall_filter.REFUSED.values()]
    assert {refused(run(machine, each)) for each in numbers if each is not None} == {"EPERM"}
    absent = [each[MACHINES[machine]] for each in syscall_filter.ABSENT.values()]
    assert {refused(run(machine, each)) for each in absent if each is not None} == {"ENOSYS"}


@pytest.mark.parametrize("machine", MACHINES)
def test_the_filter_allows_what_it_does_not_list(machine: str):
    tables = (syscall_filter.REFUSED, syscall_filter.ABSENT, syscall_filter.CHECKED)
    listed = {each[MACHINES[machine]] for table in tables for each in table.values()}
    others = set(range(syscall_filter.FIRST_UNKNOWN)) - listed
    assert len(others) > 250
    assert {run(machine, each) for each in others} == {ALLOWED}
    assert refused(run(machine, syscall_filter.FIRST_UNKNOWN)) == "ENOSYS"
    assert refused(run(machine, 0x40000000)) == "ENOSYS"  # the 32-bit numbers of x86_64


@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize(
    ("name", "arguments", "answer"),
    [
        ("clone", (0x3D0F00,), ""),  # as a libc starts a thread
        ("clone", (0x1200011,), "EPERM"),  # as it forks
        ("clone", (0x4111,), "EPERM"),  # as it spawns
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
def test_the_filter_looks_at_arguments(machine: str, name: str, arguments: tuple[int, ...], answer: str):
    number = syscall_filter.CHECKED[name][MACHINES[machine]]
    if number is not None:
        assert refused(run(machine, number, *arguments)) == answer


def test_calls_by_the_numbers_of_another_machine_are_the_end():
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
    assert {name: each[MACHINES[machine]] for name, each in listed.items()} == {
        name: known.get(name) for name in listed
    }
