"""Attacks by code in the real sandbox on other processes and on the file system: each is refused and has no effect."""

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import AsyncGenerator, AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
import pytest_asyncio

from almanac.sandbox import syscall_filter
from almanac.sandbox.confinement import FIRST_CHILD_USER, detect_kernel_features, readable_paths
from almanac.sandbox.errors import WorkRejected
from almanac.sandbox.pool import SandboxPool
from almanac.sandbox.private_root import MOUNT_POINT
from tests.sandbox.attacks import IS_X86, ON_PATHS, ON_PROCESSES, ORDINARY_USER
from tests.sandbox.processes import children_of
from tests.waiting import until

ROOT = Path(__file__).parents[2]
KERNEL = detect_kernel_features()
ENTER_PRIVATE_ROOT = (
    "from almanac.sandbox import confinement, private_root; print(private_root.enter(confinement.readable_paths()))"
)
HAS_PRIVATE_ROOT = (
    b"True" in subprocess.run([sys.executable, "-c", ENTER_PRIVATE_ROOT], cwd=ROOT, stdout=subprocess.PIPE).stdout
)

pytestmark = [
    pytest.mark.skipif(not KERNEL.seccomp, reason="this kernel or processor has no seccomp filter"),
    pytest.mark.asyncio(loop_scope="module"),
]
NEEDS_PRIVATE_ROOT = pytest.mark.skipif(not HAS_PRIVATE_ROOT, reason="this system allows no mount namespace")
NEEDS_USERS = pytest.mark.skipif(not KERNEL.users, reason="children have users of their own only below a superuser")

BY_ARGUMENTS = {
    "lower its limits", "signal", "signal with tgkill", "signal the owner of a socket",
    "signal the owner of a socket, by structure", "signal the owner of a socket, by ioctl", "query its limits",
    "probe with an empty signal",
}  # fmt: skip
IN_PROC = {"list its files", "read its memory map", "write its memory score"}
# The kernel does not make the calls at all, with or without a private root.
UNAVAILABLE = {
    "chdir": "ENOSYS", "statfs": "ENOSYS", "getxattr": "ENOSYS", "name_to_handle_at": "ENOSYS", "inotify": "ENOSYS",
    "fanotify": "ENOSYS", "dnotify": "EPERM", "open as a path": "EACCES",
}  # fmt: skip
# These attacks have no victim outside a child, would harm more than the victim, or need more rights than a user has.
UNTRIED = {"renice the user", "query its robust list"}


@dataclass(frozen=True, slots=True)
class State:
    """The properties of a process that an attack could change."""

    returncode: int | None
    priority: int
    affinity: set[int]
    scheduler: int
    limits: str
    memory_score: str


class Victim:
    """A process of the same user as the sandbox."""

    def __init__(self, user: int) -> None:
        if user == os.geteuid():
            self.process = subprocess.Popen(["sleep", "600"])
        else:
            self.process = subprocess.Popen(["sleep", "600"], user=user, group=user, extra_groups=[])
        self.pid = self.process.pid

    def state(self) -> State:
        folder = Path(f"/proc/{self.pid}")
        priority, scheduler = os.getpriority(os.PRIO_PROCESS, self.pid), os.sched_getscheduler(self.pid)
        limits, score = ((folder / name).read_text("ascii") for name in ("limits", "oom_score_adj"))
        return State(self.process.poll(), priority, os.sched_getaffinity(self.pid), scheduler, limits, score)

    def end(self) -> None:
        self.process.kill()
        self.process.wait()


@dataclass(frozen=True, slots=True)
class Sandbox:
    """A pool and the process id of its fork server."""

    pool: SandboxPool
    server: int

    async def answer(self, file: Path, name: str, options: dict[str, Any]) -> str:
        return (await self.pool.run([file], name, options)).decode()


@asynccontextmanager
async def open_sandbox(work: str) -> AsyncGenerator[Sandbox]:
    others = set(children_of(os.getpid()))
    async with SandboxPool(work) as pool:
        (server,) = set(children_of(os.getpid())) - others
        yield Sandbox(pool, server)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def attacker() -> AsyncIterator[Sandbox]:
    async with open_sandbox("tests.sandbox.attacks:attack_process") as sandbox:
        yield sandbox


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def observer() -> AsyncIterator[Sandbox]:
    async with open_sandbox("tests.sandbox.attacks:observe") as sandbox:
        yield sandbox


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def caller() -> AsyncIterator[Sandbox]:
    async with open_sandbox("tests.sandbox.attacks:call_by_number") as sandbox:
        yield sandbox


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "file"
    path.write_bytes(b"content")
    return path


@pytest.fixture
def victim() -> Iterator[Victim]:
    victim = Victim(os.geteuid())
    yield victim
    victim.end()


def refusals(name: str) -> set[str]:
    if name in IN_PROC:
        return {"EACCES", "ENOENT"}  # the second where a private root hides the process
    return {"EPERM"} if name in BY_ARGUMENTS else {"ENOSYS"}


# Other processes


@pytest.mark.parametrize("name", ON_PROCESSES)
async def test_a_child_cannot_affect_another_process(attacker: Sandbox, name: str, file: Path, victim: Victim):
    before = victim.state()
    answer = await attacker.answer(file, name, {"victim": victim.pid})
    assert victim.state() == before
    assert answer in refusals(name)


@pytest.mark.parametrize("name", ON_PROCESSES)
async def test_a_child_cannot_affect_the_fork_server(attacker: Sandbox, name: str, file: Path):
    assert await attacker.answer(file, name, {"victim": attacker.server}) in refusals(name)
    assert attacker.server in children_of(os.getpid())
    assert os.getpriority(os.PRIO_PROCESS, attacker.server) == os.getpriority(os.PRIO_PROCESS, 0)
    assert os.sched_getaffinity(attacker.server) == os.sched_getaffinity(0)


async def test_the_child_of_an_ordinary_user_cannot_affect_its_other_processes(tmp_path: Path):
    """A superuser's processes are safe from a child without capabilities, so the attacks need an ordinary user."""
    victims = {name: Victim(os.geteuid() or ORDINARY_USER) for name in ON_PROCESSES}
    try:
        file = tmp_path / "file"
        file.write_bytes(b"content")
        before = {name: victim.state() for name, victim in victims.items()}
        arguments = json.dumps([[name, victim.pid, str(file)] for name, victim in victims.items()])
        answers = await run_program("-m", "tests.sandbox.attacks", arguments)
        assert {name: victim.state() for name, victim in victims.items()} == before
        answer_of = dict(zip(victims, json.loads(answers.splitlines()[-1]), strict=True))
        assert {name: answer for name, answer in answer_of.items() if answer not in refusals(name)} == {}
    finally:
        for victim in victims.values():
            victim.end()


@pytest.mark.parametrize("name", sorted(set(ON_PROCESSES) - UNTRIED))
async def test_the_same_attacks_succeed_outside_a_child(name: str, file: Path):
    """Otherwise the refusals would prove nothing."""
    victim = Victim(os.geteuid() or ORDINARY_USER)
    program = (
        "import sys; from pathlib import Path; from tests.sandbox import attacks; attacks.become_ordinary();"
        "print(attacks.attack_process(Path(), sys.argv[1], {'victim': int(sys.argv[2])}).decode())"
    )
    try:
        assert (await run_program("-c", program, name, str(victim.pid))).strip() == b"it worked"
    finally:
        victim.end()


async def run_program(*arguments: str) -> bytes:
    process = await asyncio.create_subprocess_exec(sys.executable, *arguments, cwd=ROOT, stdout=asyncio.subprocess.PIPE)
    output, _ = await process.communicate()
    assert process.returncode == 0
    return output


@NEEDS_USERS
async def test_each_child_of_a_superuser_has_a_user_of_its_own(file: Path):
    async with open_sandbox("tests.sandbox.hostile_work:sleep") as sandbox:
        calls = [asyncio.create_task(sandbox.pool.run([file], "file", {})) for _ in range(2)]
        await until(lambda: len(confined(sandbox.server)) == 2)
        for child in confined(sandbox.server):
            status = status_of(child)
            user = str(FIRST_CHILD_USER + child)
            assert (status["Uid"].split(), status["Gid"].split()) == ([user] * 4, [user] * 4)
            assert status["Groups"].split() == []
            assert int(status["CapEff"], 16) == int(status["CapPrm"], 16) == 1 << 2  # CAP_DAC_READ_SEARCH
            assert status["NoNewPrivs"] == "1"
        for call in calls:
            call.cancel()


def confined(server: int) -> list[int]:
    """The children that have finished confining themselves."""
    return [child for child in children_of(server) if status_of(child)["Seccomp"] == "2"]


def status_of(pid: int) -> dict[str, str]:
    lines = Path(f"/proc/{pid}/status").read_text("utf-8").splitlines()
    return {name: value.strip() for name, _, value in (line.partition(":") for line in lines)}


# The file system


@pytest.mark.parametrize("name", ON_PATHS)
async def test_a_child_cannot_observe_files(observer: Sandbox, name: str, file: Path):
    """An existing file, an existing folder and a missing file look the same."""
    if name not in UNAVAILABLE and not HAS_PRIVATE_ROOT:
        pytest.skip("this system allows no mount namespace")
    paths = [str(path) for path in (file, file.parent, Path("/etc/passwd"), file.with_name("missing"))]
    answers = json.loads(await observer.answer(file, name, {"paths": paths}))
    assert len(set(answers)) == 1
    assert answers[0] == UNAVAILABLE.get(name, answers[0])
    assert answers[0] != "it worked"


@NEEDS_PRIVATE_ROOT
async def test_the_private_root_contains_only_readable_paths(observer: Sandbox):
    root = Path(f"/proc/{observer.server}/root")
    readable = {each for path in readable_paths() if path.exists() for each in (path.absolute(), path.resolve())}
    folders = {folder for path in readable for folder in path.parents if readable.isdisjoint([folder, *folder.parents])}
    for folder in folders - {Path("/proc")}:
        expected = {path.relative_to(folder).parts[0] for path in readable if path.is_relative_to(folder)}
        assert {path.name for path in (root / folder.relative_to("/")).iterdir()} == expected
    with pytest.raises(OSError, match="Read-only file system"):
        (root / "new").touch()


@NEEDS_PRIVATE_ROOT
async def test_a_readable_folder_below_the_mount_point_or_behind_a_link_is_in_the_private_root():
    """A package may be installed below /tmp, or a link may lead to it."""
    with TemporaryDirectory(dir=MOUNT_POINT) as folder:
        (Path(folder) / "package").mkdir()
        (Path(folder) / "package" / "module").write_bytes(b"content")
        (Path(folder) / "link").symlink_to("package")
        (Path(folder) / "other").mkdir()
        program = (
            "import os, sys; from pathlib import Path; from almanac.sandbox import private_root;"
            "assert private_root.enter([Path(sys.argv[1], 'link')]);"
            "print(sorted(os.listdir('/')), sorted(os.listdir(sys.argv[1])), os.listdir(sys.argv[1] + '/link'))"
        )
        output = await run_program("-c", program, folder)
    assert output.decode().strip() == "['proc', 'tmp'] ['link', 'package'] ['module']"


# Calls by number


def numbers(calls: syscall_filter.Calls) -> dict[str, int]:
    """The numbers of the calls that this processor has."""
    return {name: number for name, row in calls.items() if (number := row[0 if IS_X86 else 1]) is not None}


# uretprobe and uprobe on x86_64: recent kernels do not filter them, and send a process without probes SIGILL.
PROBES = {335, 336} if IS_X86 else set[int]()


async def test_every_unlisted_call_seems_absent(caller: Sandbox, file: Path):
    tables = (*syscall_filter.PROFILES["parsers"], syscall_filter.CHECKED, syscall_filter.KILLED)
    listed = {number for table in tables for number in numbers(table).values()}
    unlisted = [number for number in range(600) if number not in listed | PROBES]
    answers = json.loads(await caller.answer(file, "file", {"numbers": unlisted}))
    assert {number: answer for number, answer in zip(unlisted, answers, strict=True) if answer != "ENOSYS"} == {}


@pytest.mark.parametrize("number", numbers(syscall_filter.KILLED).values(), ids=numbers(syscall_filter.KILLED))
async def test_a_call_that_only_an_attack_makes_ends_the_child(caller: Sandbox, number: int, file: Path):
    with pytest.raises(WorkRejected) as error:
        await caller.answer(file, "file", {"numbers": [number]})
    assert (error.value.code, error.value.message) == ("crashed", "SIGSYS")
