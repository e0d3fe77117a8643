"""The sandbox pool: the caller learns the reason for each failure of a child, and other files are still processed."""

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

from almanac.sandbox.child import ExitReport
from almanac.sandbox.confinement import MIB, SandboxLimits
from almanac.sandbox.errors import SandboxUnavailable, WorkRejected
from almanac.sandbox.pool import SandboxPool
from tests.sandbox import hostile_work
from tests.sandbox.processes import children_of, ends_within, fork_server_of, open_descriptors
from tests.waiting import until

ROOT = Path(__file__).parents[2]
LIMITS = SandboxLimits(memory_bytes=256 * MIB, cpu_seconds=20, wall_seconds=60, output_bytes=8 * MIB)

StartPool = Callable[..., Awaitable[SandboxPool]]


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "file"
    path.write_bytes(b"content")
    return path


@pytest.fixture
async def pool_for() -> AsyncIterator[StartPool]:
    """Pools that run the named function of `hostile_work`."""
    pools: list[SandboxPool] = []

    async def start(
        work: str, limits: SandboxLimits = LIMITS, on_exit: Callable[[ExitReport], None] | None = None
    ) -> SandboxPool:
        pools.append(SandboxPool(f"tests.sandbox.hostile_work:{work}", limits, on_exit=on_exit))
        await pools[-1].start()
        return pools[-1]

    yield start
    for pool in pools:
        await pool.close()


async def rejection(pool: SandboxPool, file: Path, options: dict[str, Any] | None = None) -> WorkRejected:
    """The error of a file. It is the same the second time, and the fork server survives both."""
    with pytest.raises(WorkRejected) as first:
        await pool.run([file], "file", options or {})
    server = fork_server_of(os.getpid())
    with pytest.raises(WorkRejected) as second:
        await pool.run([file], "file", options or {})
    assert first.value.args == second.value.args
    assert fork_server_of(os.getpid()) == server
    assert hostile_work.SECRET not in second.value.message
    return second.value


# Results


async def test_work_returns_its_result_and_reports_its_cost(pool_for: StartPool, file: Path):
    reports: list[ExitReport] = []
    pool = await pool_for("echo", on_exit=reports.append)
    assert await pool.run([file], "näme.txt", {}) == "näme.txt:content".encode()
    [report] = reports
    assert 4 * MIB < report.peak_bytes < 200 * MIB
    assert report.cpu_seconds > 0
    assert 0 < report.seconds < LIMITS.wall_seconds


async def test_a_request_may_be_larger_than_a_socket_message(pool_for: StartPool, file: Path):
    name = "x" * 5_000_000
    result = await (await pool_for("echo")).run([file], name, {})
    assert len(result) == len(name) + len(":content")


async def test_fifty_files_at_once_are_all_processed(pool_for: StartPool, tmp_path: Path):
    pool = await pool_for("echo")
    files = [tmp_path / str(number) for number in range(50)]
    for path in files:
        path.write_bytes(path.name.encode())
    results = await asyncio.gather(*(pool.run([path], path.name, {}) for path in files))
    assert results == [f"{path.name}:{path.name}".encode() for path in files]


async def test_standard_error_of_native_code_is_not_in_the_result(pool_for: StartPool, file: Path):
    result = await (await pool_for("fill_standard_error")).run([file], "file", {"size": 9 * MIB})
    assert result == b"result"


async def test_a_missing_file_is_the_caller_s_error(pool_for: StartPool, tmp_path: Path):
    with pytest.raises(FileNotFoundError):
        await (await pool_for("echo")).run([tmp_path / "none"], "none", {})


# Failures in a child


async def test_unlimited_allocation_is_a_memory_limit(pool_for: StartPool, file: Path):
    error = await rejection(await pool_for("allocate_forever"), file)
    assert (error.code, error.message, error.retryable) == ("memory_limit", "256 MiB", False)


async def test_native_code_that_aborts_because_an_allocation_failed_is_a_memory_limit(pool_for: StartPool, file: Path):
    assert (await rejection(await pool_for("abort_on_failed_allocation"), file)).code == "memory_limit"


async def test_native_code_that_aborts_with_most_of_its_memory_used_is_a_memory_limit(pool_for: StartPool, file: Path):
    limits = SandboxLimits(memory_bytes=1024 * MIB, cpu_seconds=20)
    assert (await rejection(await pool_for("abort_with_much_memory", limits), file)).code == "memory_limit"


@pytest.mark.parametrize("work", ["compute_forever", "compute_forever_and_ignore_signals"])
async def test_endless_computing_is_a_timeout(pool_for: StartPool, file: Path, work: str):
    error = await rejection(await pool_for(work, SandboxLimits(cpu_seconds=1, wall_seconds=50)), file)
    assert (error.code, error.message, error.retryable) == ("timeout", "50 s, or 1 s of processor time", False)


async def test_endless_waiting_is_a_timeout(pool_for: StartPool, file: Path):
    error = await rejection(await pool_for("sleep", SandboxLimits(wall_seconds=0.2)), file)
    assert error.code == "timeout"
    assert "0.2 s" in error.message


@pytest.mark.parametrize("size", [9 * MIB, 100 * MIB])
async def test_too_large_a_result_is_an_output_limit(pool_for: StartPool, file: Path, size: int):
    error = await rejection(await pool_for("return_bytes"), file, {"size": size})
    assert (error.code, error.message) == ("output_limit", "8 MiB")


@pytest.mark.parametrize(("work", "name"), [("crash", "SIGSEGV"), ("abort", "SIGABRT")])
async def test_a_crash_names_its_signal(pool_for: StartPool, file: Path, work: str, name: str):
    error = await rejection(await pool_for(work), file)
    assert (error.code, error.message, error.retryable) == ("crashed", name, False)


async def test_endless_recursion_is_a_recursion_limit(pool_for: StartPool, file: Path):
    assert (await rejection(await pool_for("recurse"), file)).code == "recursion_limit"


@pytest.mark.parametrize("status", [0, 1, 39, 255])
async def test_an_exit_without_a_result_is_a_crash_with_any_status(pool_for: StartPool, file: Path, status: int):
    error = await rejection(await pool_for("exit_with"), file, {"status": status})
    assert (error.code, error.message) == ("crashed", "no result")


@pytest.mark.parametrize(("work", "name"), [("raise_key_error", "KeyError"), ("panic", "Panic")])
async def test_an_unexpected_error_is_a_crash_with_its_class_but_not_its_message(
    pool_for: StartPool, file: Path, work: str, name: str
):
    error = await rejection(await pool_for(work), file)
    assert (error.code, error.message) == ("crashed", name)


@pytest.mark.parametrize("retryable", [True, False])
async def test_a_rejection_by_the_work_is_passed_on(pool_for: StartPool, file: Path, retryable: bool):
    error = await rejection(await pool_for("reject"), file, {"retryable": retryable})
    assert (error.code, error.message) == ("encrypted", "The file is protected by a password.")
    assert error.retryable is retryable


@pytest.mark.parametrize("code", ["", "Has Space", "x" * 50, "new\nline"])
async def test_a_malformed_code_is_a_crash(pool_for: StartPool, file: Path, code: str):
    assert (await rejection(await pool_for("reject_with_long_message"), file, {"code": code})).code == "crashed"


async def test_a_very_long_report_is_a_crash(pool_for: StartPool, file: Path):
    error = await rejection(await pool_for("reject_with_long_message"), file, {"code": "corrupt"})
    assert error.code == "crashed"  # only the beginning of such a report is read


@pytest.mark.parametrize("report", ["", "{", "[]", "null", "[" * 10_000, '{"code": 1}', '{"error": "a b", "line": []}'])
@pytest.mark.parametrize("status", [41, 42])
async def test_a_forged_report_is_a_crash(pool_for: StartPool, file: Path, report: str, status: int):
    error = await rejection(await pool_for("write_report_and_exit"), file, {"report": report, "status": status})
    assert error.code == "crashed"


# Processes that end


async def test_a_child_killed_from_outside_can_be_retried(pool_for: StartPool, file: Path):
    pool = await pool_for("sleep")
    call = asyncio.create_task(pool.run([file], "file", {}))
    server = fork_server_of(os.getpid())
    await until(lambda: children_of(server))
    os.kill(children_of(server)[0], signal.SIGKILL)
    with pytest.raises(WorkRejected) as error:
        await call
    assert (error.value.code, error.value.retryable) == ("interrupted", True)
    assert fork_server_of(os.getpid()) == server


async def test_running_calls_fail_when_the_fork_server_dies_and_the_next_call_works(pool_for: StartPool, file: Path):
    pool = await pool_for("sleep", SandboxLimits(wall_seconds=0.5))
    server = fork_server_of(os.getpid())
    calls = [asyncio.create_task(pool.run([file], "file", {})) for _ in range(3)]
    await until(lambda: len(children_of(server)) == 3)
    children = children_of(server)
    os.kill(server, signal.SIGKILL)
    errors = await asyncio.gather(*calls, return_exceptions=True)
    assert [type(error) for error in errors] == [SandboxUnavailable] * 3
    assert all(ends_within(pid, 1) for pid in children)
    with pytest.raises(WorkRejected, match=r"0\.5 s") as error:
        await pool.run([file], "file", {})
    assert error.value.code == "timeout"
    assert fork_server_of(os.getpid()) != server


async def test_a_fork_server_that_died_between_two_calls_is_replaced_unnoticed(pool_for: StartPool, file: Path):
    pool = await pool_for("echo")
    server = fork_server_of(os.getpid())
    os.kill(server, signal.SIGKILL)
    assert ends_within(server, 5)  # the event loop has not noticed yet
    assert await pool.run([file], "a", {}) == b"a:content"
    server = fork_server_of(os.getpid())
    os.kill(server, signal.SIGKILL)
    await until(lambda: not Path(f"/proc/{server}").exists())  # the event loop has reaped it
    assert await pool.run([file], "b", {}) == b"b:content"


async def test_a_stuck_fork_server_is_replaced(pool_for: StartPool, file: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("almanac.sandbox.pool.GRACE_SECONDS", 0.2)
    pool = await pool_for("echo", SandboxLimits(wall_seconds=0.1))
    server = fork_server_of(os.getpid())
    os.kill(server, signal.SIGSTOP)
    with pytest.raises(SandboxUnavailable):
        await pool.run([file], "a", {})
    assert ends_within(server, 5)
    assert await pool.run([file], "b", {}) == b"b:content"


async def test_a_killed_worker_leaves_no_process_behind(file: Path):
    arguments = [sys.executable, "-m", "tests.sandbox.hostile_work", str(file)]
    with subprocess.Popen(arguments, stdout=subprocess.PIPE, cwd=ROOT) as worker:
        assert worker.stdout is not None
        assert worker.stdout.readline() == b"ready\n"
        server = fork_server_of(worker.pid)
        await until(lambda: children_of(server))
        (child,) = children_of(server)
        worker.kill()
        assert ends_within(server, 1)
        assert ends_within(child, 1)


async def test_a_cancelled_call_kills_its_child_and_no_other(pool_for: StartPool, file: Path):
    pool = await pool_for("sleep", SandboxLimits(wall_seconds=1))
    server = fork_server_of(os.getpid())
    cancelled = asyncio.create_task(pool.run([file], "file", {}))
    await until(lambda: len(children_of(server)) == 1)
    (first,) = children_of(server)
    other = asyncio.create_task(pool.run([file], "file", {}))
    await until(lambda: len(children_of(server)) == 2)
    cancelled.cancel()
    with pytest.raises(asyncio.CancelledError):
        await cancelled
    assert ends_within(first, 1)
    with pytest.raises(WorkRejected, match="1 s") as error:
        await other
    assert error.value.code == "timeout"


async def test_closing_a_pool_ends_everything(pool_for: StartPool, file: Path):
    pool = await pool_for("sleep")
    server = fork_server_of(os.getpid())
    call = asyncio.create_task(pool.run([file], "file", {}))
    await until(lambda: children_of(server))
    (child,) = children_of(server)
    await pool.close()
    with pytest.raises(SandboxUnavailable):
        await call
    assert ends_within(server, 0)
    assert ends_within(child, 0)
    with pytest.raises(SandboxUnavailable):
        await pool.run([file], "file", {})


async def test_a_pool_whose_work_cannot_be_imported_does_not_start(file: Path, capfd: pytest.CaptureFixture[str]):
    pool = SandboxPool(work="tests.sandbox.nothing:read")
    with pytest.raises(SandboxUnavailable, match="did not start"):
        await pool.run([file], "file", {})
    assert "ModuleNotFoundError" in capfd.readouterr().err
    await pool.close()


async def test_signals_to_the_process_group_do_not_end_the_fork_server(pool_for: StartPool, file: Path):
    pool = await pool_for("echo")
    server = fork_server_of(os.getpid())
    for number in (signal.SIGINT, signal.SIGTERM):
        os.kill(server, number)
    assert await pool.run([file], "a", {}) == b"a:content"
    assert fork_server_of(os.getpid()) == server


async def test_two_hundred_files_leave_no_descriptor_open(pool_for: StartPool, file: Path):
    pool = await pool_for("echo")
    server = fork_server_of(os.getpid())

    async def run(number: int) -> None:
        call = asyncio.create_task(pool.run([file], "file", {}))
        if number % 10 == 0:
            await asyncio.sleep(0)
            call.cancel()
        with suppress(asyncio.CancelledError):
            await call

    await run(0)
    await run(1)
    await until(lambda: not children_of(server))
    ours, theirs = open_descriptors(os.getpid()), open_descriptors(server)
    for number in range(200):
        await run(number)
    await until(lambda: open_descriptors(os.getpid()) <= ours and open_descriptors(server) <= theirs)


# The surroundings of a child


async def describe(pool: SandboxPool, file: Path, **options: Any) -> dict[str, Any]:
    return json.loads(await pool.run([file], "file", options))


async def test_a_child_has_none_of_the_server_s_secrets(
    pool_for: StartPool, file: Path, monkeypatch: pytest.MonkeyPatch
):
    for name in ("ALMANAC_SECRET_KEY", "REDIS_URL", "DATABASE_URL", "AWS_SECRET_ACCESS_KEY", "HOME", "PATH"):
        monkeypatch.setenv(name, "a-secret")
    child = await describe(await pool_for("describe"), file)
    assert "a-secret" not in child["environment"].values()
    assert {name for name in child["environment"] if "ALMANAC" in name or "URL" in name or "KEY" in name} == set()
    assert child["environment"]["MALLOC_ARENA_MAX"] == "2"
    assert child["folder"] == "/"


async def test_a_child_has_only_the_file_and_its_output_open(pool_for: StartPool, file: Path):
    child = await describe(await pool_for("describe"), file)
    assert child["descriptors"] == [0, 1, 2, 3, 4]


async def test_a_child_leads_a_session(pool_for: StartPool, file: Path):
    pool = await pool_for("sleep")
    call = asyncio.create_task(pool.run([file], "file", {}))
    server = fork_server_of(os.getpid())
    await until(lambda: any(os.getsid(child) == child for child in children_of(server)))
    call.cancel()


async def test_a_child_has_the_limits_of_its_pool(pool_for: StartPool, file: Path):
    names = ["RLIMIT_AS", "RLIMIT_CPU", "RLIMIT_FSIZE", "RLIMIT_CORE", "RLIMIT_NOFILE"]
    child = await describe(await pool_for("describe"), file, limits=names)
    assert list(child["limits"].values()) == [256 * MIB, 20, 8 * MIB, 0, 64]


async def test_a_child_stays_below_its_memory_limit(pool_for: StartPool, file: Path):
    reports: list[ExitReport] = []
    pool = await pool_for("fill_memory", SandboxLimits(memory_bytes=512 * MIB), reports.append)
    assert json.loads(await pool.run([file], "file", {})) > 200 * MIB
    assert 200 * MIB < reports[0].peak_bytes <= 512 * MIB
