"""The nursery: whatever a child does, its file gets an honest reason and the others are read."""

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from almanac.sandbox.confinement import MIB, SandboxLimits
from almanac.sandbox.errors import SandboxUnavailable, WorkRejected
from almanac.sandbox.pool import SandboxPool
from almanac.sandbox.result import SandboxResult
from tests.knowledge.parsers import evil
from tests.knowledge.parsers.processes import children_of, ends_within, eventually, nursery_of, open_descriptors

ROOT = Path(__file__).parents[2]
LIMITS = SandboxLimits(memory_bytes=256 * MIB, cpu_seconds=20, wall_seconds=60, output_bytes=8 * MIB)

Raise = Callable[..., Awaitable[SandboxPool]]


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "file"
    path.write_bytes(b"content")
    return path


@pytest.fixture
async def nursery_for() -> AsyncIterator[Raise]:
    """Nurseries whose children do the named work."""
    made: list[SandboxPool] = []

    async def start(work: str, limits: SandboxLimits = LIMITS) -> SandboxPool:
        made.append(SandboxPool(f"tests.knowledge.parsers.evil:{work}", limits))
        await made[-1].start()
        return made[-1]

    yield start
    for nursery in made:
        await nursery.close()


async def reason(nursery: SandboxPool, file: Path, options: dict[str, Any] | None = None) -> WorkRejected:
    """Why a file cannot be read, said twice: the nursery is there after the first time."""
    with pytest.raises(WorkRejected) as first:
        await nursery.parse(file, "file", options or {})
    serving = nursery_of(os.getpid())
    with pytest.raises(WorkRejected) as second:
        await nursery.parse(file, "file", options or {})
    assert first.value.args == second.value.args
    assert nursery_of(os.getpid()) == serving
    assert evil.SECRET not in second.value.message
    return second.value


# What comes back


async def test_a_file_is_read_and_its_cost_is_told(nursery_for: Raise, file: Path):
    outcome = await (await nursery_for("echo")).parse(file, "näme.txt", {})
    assert outcome.result == "näme.txt:content".encode()
    assert 4 * MIB < outcome.peak_bytes < 200 * MIB
    assert outcome.cpu_seconds > 0
    assert 0 < outcome.seconds < LIMITS.wall_seconds


async def test_a_file_need_not_fit_into_the_message_that_asks_for_it(nursery_for: Raise, file: Path):
    name = "x" * 5_000_000
    outcome = await (await nursery_for("echo")).parse(file, name, {})
    assert len(outcome.result) == len(name) + len(":content")


async def test_fifty_files_at_once_are_each_read(nursery_for: Raise, tmp_path: Path):
    nursery = await nursery_for("echo")
    files = [tmp_path / str(each) for each in range(50)]
    for each in files:
        each.write_bytes(each.name.encode())
    outcomes = await asyncio.gather(*(nursery.parse(each, each.name, {}) for each in files))
    assert [each.result for each in outcomes] == [f"{each.name}:{each.name}".encode() for each in files]


async def test_what_native_code_says_on_standard_error_is_not_in_the_result(nursery_for: Raise, file: Path):
    outcome = await (await nursery_for("chatter")).parse(file, "file", {"size": 9 * MIB})
    assert outcome.result == b"result"


async def test_a_file_that_is_not_there_is_the_caller_s_to_deal_with(nursery_for: Raise, tmp_path: Path):
    with pytest.raises(FileNotFoundError):
        await (await nursery_for("echo")).parse(tmp_path / "none", "none", {})


# What goes wrong in a child


async def test_memory_without_end_is_a_memory_limit(nursery_for: Raise, file: Path):
    error = await reason(await nursery_for("allocate"), file)
    assert (error.code, error.retryable) == ("memory_limit", False)
    assert "256 MiB" in error.message


async def test_native_code_that_aborts_because_an_allocation_failed_is_a_memory_limit(nursery_for: Raise, file: Path):
    assert (await reason(await nursery_for("abort_hungry"), file)).code == "memory_limit"


async def test_native_code_that_aborts_with_most_of_its_memory_used_is_a_memory_limit(nursery_for: Raise, file: Path):
    limits = SandboxLimits(memory_bytes=1024 * MIB, cpu_seconds=20)
    assert (await reason(await nursery_for("abort_hungry_in_silence", limits), file)).code == "memory_limit"


@pytest.mark.parametrize("work", ["spin", "spin_deaf"])
async def test_computing_without_end_is_a_timeout(nursery_for: Raise, file: Path, work: str):
    error = await reason(await nursery_for(work, SandboxLimits(cpu_seconds=1, wall_seconds=50)), file)
    assert (error.code, error.retryable) == ("parse_timeout", False)
    assert "1 s of processor time" in error.message


async def test_waiting_without_end_is_a_timeout(nursery_for: Raise, file: Path):
    error = await reason(await nursery_for("sleep", SandboxLimits(wall_seconds=0.2)), file)
    assert error.code == "parse_timeout"
    assert "0.2 s" in error.message


@pytest.mark.parametrize("size", [9 * MIB, 100 * MIB])
async def test_more_output_than_allowed_is_said_to_be_too_large(nursery_for: Raise, file: Path, size: int):
    error = await reason(await nursery_for("write_much"), file, {"size": size})
    assert error.code == "output_too_large"
    assert "8 MiB" in error.message


@pytest.mark.parametrize(("work", "name"), [("crash", "SIGSEGV"), ("abort", "SIGABRT")])
async def test_a_crash_is_told_with_the_name_of_its_signal(nursery_for: Raise, file: Path, work: str, name: str):
    error = await reason(await nursery_for(work), file)
    assert (error.code, error.retryable) == ("parser_crashed", False)
    assert f"({name})" in error.message


async def test_nesting_without_end_is_too_complex(nursery_for: Raise, file: Path):
    assert (await reason(await nursery_for("recurse"), file)).code == "too_complex"


@pytest.mark.parametrize("status", [0, 1, 39, 255])
async def test_an_exit_without_a_result_is_a_crash_whatever_its_status(nursery_for: Raise, file: Path, status: int):
    error = await reason(await nursery_for("leave"), file, {"status": status})
    assert error.code == "parser_crashed"
    assert "without a result" in error.message


@pytest.mark.parametrize(("work", "kind"), [("stumble", "KeyError"), ("panic", "Panic")])
async def test_an_unexpected_error_is_told_by_its_kind_and_not_its_message(
    nursery_for: Raise, file: Path, work: str, kind: str
):
    error = await reason(await nursery_for(work), file)
    assert error.code == "parser_crashed"
    assert kind in error.message


@pytest.mark.parametrize("retryable", [True, False])
async def test_what_a_parser_says_of_a_file_is_passed_on(nursery_for: Raise, file: Path, retryable: bool):
    error = await reason(await nursery_for("refuse"), file, {"retryable": retryable})
    assert (error.code, error.message) == ("encrypted", "The file is protected by a password.")
    assert error.retryable is retryable


@pytest.mark.parametrize("code", ["", "Has Space", "x" * 50, "new\nline"])
async def test_a_code_that_no_parser_would_give_is_not_believed(nursery_for: Raise, file: Path, code: str):
    assert (await reason(await nursery_for("lie"), file, {"code": code})).code == "parser_crashed"


async def test_a_message_is_cut_to_a_sentence(nursery_for: Raise, file: Path):
    error = await reason(await nursery_for("lie"), file, {"code": "corrupt"})
    assert error.code == "parser_crashed"  # a report so long is not read to its end


@pytest.mark.parametrize("words", ["", "{", "[]", "null", "[" * 10_000, '{"code": 1}', '{"error": "a b", "where": []}'])
@pytest.mark.parametrize("status", [41, 42])
async def test_a_child_that_forges_its_report_is_only_a_crash(nursery_for: Raise, file: Path, words: str, status: int):
    error = await reason(await nursery_for("write_and_leave"), file, {"words": words, "status": status})
    assert error.code == "parser_crashed"


# Death


async def test_a_child_killed_from_outside_can_be_tried_again(nursery_for: Raise, file: Path):
    nursery = await nursery_for("sleep")
    call = asyncio.create_task(nursery.parse(file, "file", {}))
    home = nursery_of(os.getpid())
    await eventually(lambda: children_of(home))
    os.kill(children_of(home)[0], signal.SIGKILL)
    with pytest.raises(WorkRejected) as error:
        await call
    assert (error.value.code, error.value.retryable) == ("parser_crashed", True)
    assert nursery_of(os.getpid()) == home


async def test_calls_under_way_say_that_the_nursery_died_and_the_next_one_works(nursery_for: Raise, file: Path):
    nursery = await nursery_for("sleep", SandboxLimits(wall_seconds=0.5))
    home = nursery_of(os.getpid())
    calls = [asyncio.create_task(nursery.parse(file, "file", {})) for _ in range(3)]
    await eventually(lambda: len(children_of(home)) == 3)
    wards = children_of(home)
    os.kill(home, signal.SIGKILL)
    ended = await asyncio.gather(*calls, return_exceptions=True)
    assert [type(each) for each in ended] == [SandboxUnavailable] * 3
    assert all(ends_within(pid, 1) for pid in wards)
    with pytest.raises(WorkRejected, match="longer than 0"):
        await nursery.parse(file, "file", {})
    assert nursery_of(os.getpid()) != home


async def test_a_nursery_that_died_between_two_files_is_replaced_unnoticed(nursery_for: Raise, file: Path):
    nursery = await nursery_for("echo")
    home = nursery_of(os.getpid())
    os.kill(home, signal.SIGKILL)
    assert ends_within(home, 5)  # which the event loop has not seen yet
    assert (await nursery.parse(file, "a", {})).result == b"a:content"
    home = nursery_of(os.getpid())
    os.kill(home, signal.SIGKILL)
    await eventually(lambda: not Path(f"/proc/{home}").exists())  # the event loop has seen it, and buried it
    assert (await nursery.parse(file, "b", {})).result == b"b:content"


async def test_a_nursery_that_is_stuck_is_replaced(nursery_for: Raise, file: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("almanac.sandbox.pool.GRACE_SECONDS", 0.2)
    nursery = await nursery_for("echo", SandboxLimits(wall_seconds=0.1))
    home = nursery_of(os.getpid())
    os.kill(home, signal.SIGSTOP)
    with pytest.raises(SandboxUnavailable):
        await nursery.parse(file, "a", {})
    assert ends_within(home, 5)
    assert (await nursery.parse(file, "b", {})).result == b"b:content"


async def test_a_worker_killed_leaves_no_process_behind(file: Path):
    arguments = [sys.executable, "-m", "tests.knowledge.parsers.evil", str(file)]
    with subprocess.Popen(arguments, stdout=subprocess.PIPE, cwd=ROOT) as worker:
        assert worker.stdout is not None
        assert worker.stdout.readline() == b"ready\n"
        home = nursery_of(worker.pid)
        await eventually(lambda: children_of(home))
        (ward,) = children_of(home)
        worker.kill()
        assert ends_within(home, 1)
        assert ends_within(ward, 1)


async def test_a_cancelled_call_kills_its_child_and_no_other(nursery_for: Raise, file: Path):
    nursery = await nursery_for("sleep", SandboxLimits(wall_seconds=1))
    home = nursery_of(os.getpid())
    cancelled = asyncio.create_task(nursery.parse(file, "file", {}))
    await eventually(lambda: len(children_of(home)) == 1)
    (first,) = children_of(home)
    other = asyncio.create_task(nursery.parse(file, "file", {}))
    await eventually(lambda: len(children_of(home)) == 2)
    cancelled.cancel()
    with pytest.raises(asyncio.CancelledError):
        await cancelled
    assert ends_within(first, 1)
    with pytest.raises(WorkRejected, match="longer than 1 s"):
        await other


async def test_closing_ends_everything(nursery_for: Raise, file: Path):
    nursery = await nursery_for("sleep")
    home = nursery_of(os.getpid())
    call = asyncio.create_task(nursery.parse(file, "file", {}))
    await eventually(lambda: children_of(home))
    (ward,) = children_of(home)
    await nursery.close()
    with pytest.raises(SandboxUnavailable):
        await call
    assert ends_within(home, 0)
    assert ends_within(ward, 0)
    with pytest.raises(SandboxUnavailable):
        await nursery.parse(file, "file", {})


async def test_a_nursery_whose_parsers_cannot_be_imported_says_so(file: Path, capfd: pytest.CaptureFixture[str]):
    nursery = SandboxPool(work="tests.knowledge.parsers.nothing:read")
    with pytest.raises(SandboxUnavailable, match="did not start"):
        await nursery.parse(file, "file", {})
    assert "ModuleNotFoundError" in capfd.readouterr().err
    await nursery.close()


async def test_signals_to_the_whole_group_leave_the_nursery_to_its_worker(nursery_for: Raise, file: Path):
    nursery = await nursery_for("echo")
    home = nursery_of(os.getpid())
    for number in (signal.SIGINT, signal.SIGTERM):
        os.kill(home, number)
    assert (await nursery.parse(file, "a", {})).result == b"a:content"
    assert nursery_of(os.getpid()) == home


async def test_two_hundred_files_leave_no_descriptor_open(nursery_for: Raise, file: Path):
    nursery = await nursery_for("echo")
    home = nursery_of(os.getpid())

    async def each(number: int) -> None:
        call = asyncio.create_task(nursery.parse(file, "file", {}))
        if number % 10 == 0:
            await asyncio.sleep(0)
            call.cancel()
        with suppress(asyncio.CancelledError):
            await call

    await each(0)
    await each(1)
    await eventually(lambda: not children_of(home))
    ours, theirs = open_descriptors(os.getpid()), open_descriptors(home)
    for number in range(200):
        await each(number)
    await eventually(lambda: open_descriptors(os.getpid()) <= ours and open_descriptors(home) <= theirs)


# What a child finds


async def describe(nursery: SandboxPool, file: Path, **options: Any) -> dict[str, Any]:
    return json.loads((await nursery.parse(file, "file", options)).result)


async def test_a_child_knows_no_secret_of_the_server(nursery_for: Raise, file: Path, monkeypatch: pytest.MonkeyPatch):
    for name in ("ALMANAC_SECRET_KEY", "REDIS_URL", "DATABASE_URL", "AWS_SECRET_ACCESS_KEY", "HOME", "PATH"):
        monkeypatch.setenv(name, "a-secret")
    found = await describe(await nursery_for("describe"), file)
    assert "a-secret" not in found["environment"].values()
    assert {each for each in found["environment"] if "ALMANAC" in each or "URL" in each or "KEY" in each} == set()
    assert found["environment"]["MALLOC_ARENA_MAX"] == "2"
    assert found["folder"] == "/"


async def test_a_child_holds_no_descriptor_but_the_file_and_its_output(nursery_for: Raise, file: Path):
    found = await describe(await nursery_for("describe"), file)
    assert found["descriptors"] == [0, 1, 2, 3, 4]
    assert found["session"]


async def test_a_child_has_the_limits_it_was_given(nursery_for: Raise, file: Path):
    names = ["RLIMIT_AS", "RLIMIT_CPU", "RLIMIT_FSIZE", "RLIMIT_CORE", "RLIMIT_NOFILE"]
    found = await describe(await nursery_for("describe"), file, limits=names)
    assert list(found["limits"].values()) == [256 * MIB, 20, 8 * MIB, 0, 64]


async def test_a_child_stays_below_its_memory_limit(nursery_for: Raise, file: Path):
    nursery = await nursery_for("fill", SandboxLimits(memory_bytes=512 * MIB))
    outcome: SandboxResult = await nursery.parse(file, "file", {})
    assert json.loads(outcome.result) > 200 * MIB
    assert 200 * MIB < outcome.peak_bytes <= 512 * MIB
