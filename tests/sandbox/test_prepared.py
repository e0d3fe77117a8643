"""Prepared children: forked ahead, one request each, and replaced. Requests with several files."""

import asyncio
import json
import os
import signal
from pathlib import Path

import pytest

from almanac.sandbox.confinement import SandboxLimits
from almanac.sandbox.descriptors import MAX_DESCRIPTORS_PER_MESSAGE
from almanac.sandbox.errors import WorkRejected
from almanac.sandbox.pool import SandboxPool
from tests.sandbox.processes import children_of, fork_server_of, open_descriptors
from tests.waiting import until


def pool_of(work: str, prepared: int = 0, limits: SandboxLimits | None = None) -> SandboxPool:
    return SandboxPool(f"tests.sandbox.hostile_work:{work}", limits, prepared=prepared)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "file"
    path.write_bytes(b"content")
    return path


async def test_each_prepared_child_serves_one_request_and_is_replaced(file: Path):
    async with pool_of("echo", prepared=3) as pool:
        server = fork_server_of(os.getpid())
        await until(lambda: len(children_of(server)) == 3)
        first = set(children_of(server))
        for _ in range(5):
            assert await pool.run([file], "a", {}) == b"a:content"
        await until(lambda: len(children_of(server)) == 3)
        assert not first & set(children_of(server))


async def test_more_requests_than_prepared_children_are_all_served(file: Path):
    async with pool_of("echo", prepared=2) as pool:
        results = await asyncio.gather(*(pool.run([file], str(number), {}) for number in range(20)))
    assert results == [f"{number}:content".encode() for number in range(20)]


async def test_killed_prepared_children_are_passed_over(file: Path):
    async with pool_of("echo", prepared=3) as pool:
        server = fork_server_of(os.getpid())
        await until(lambda: len(children_of(server)) == 3)
        for pid in children_of(server):
            os.kill(pid, signal.SIGKILL)
        await until(lambda: not children_of(server))
        assert await pool.run([file], "a", {}) == b"a:content"
        await until(lambda: len(children_of(server)) == 3)


async def test_a_prepared_child_has_no_descriptors_of_others(file: Path):
    async with pool_of("read_other_descriptors", prepared=3) as pool:
        assert json.loads(await pool.run([file, file], "a", {})) == [0, 1, 2, 3, 4, 5]


async def test_prepared_children_end_with_the_pool(file: Path):
    async with pool_of("echo", prepared=3) as pool:
        await pool.run([file], "a", {})
        children = children_of(fork_server_of(os.getpid()))
        before = open_descriptors(os.getpid())
    await until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in children))
    assert open_descriptors(os.getpid()) < before


@pytest.mark.parametrize("prepared", [0, 1])
async def test_a_child_reads_the_files_of_its_request_in_their_order(tmp_path: Path, prepared: int):
    files = [tmp_path / str(number) for number in range(700)]
    for path in files:
        path.write_bytes(path.name.encode())
    async with pool_of("read_all", prepared, SandboxLimits(open_files=1500)) as pool:
        for count in (0, 1, MAX_DESCRIPTORS_PER_MESSAGE - 2, MAX_DESCRIPTORS_PER_MESSAGE, 700, 1):
            assert await pool.run(files[:count], "a", {}) == ",".join(path.name for path in files[:count]).encode()


async def test_a_request_with_too_many_files_is_not_run(tmp_path: Path):
    (tmp_path / "x").write_bytes(b"x")
    async with pool_of("read_all", limits=SandboxLimits(open_files=20)) as pool:
        with pytest.raises(WorkRejected) as error:
            await pool.run([tmp_path / "x"] * 50, "a", {})
        assert error.value.code == "interrupted"
        assert await pool.run([tmp_path / "x"], "a", {}) == b"x"


async def test_a_cancelled_request_leaves_no_files_for_the_next(tmp_path: Path, file: Path):
    async with pool_of("read_all", limits=SandboxLimits(open_files=1500)) as pool:
        for _ in range(5):
            task = asyncio.create_task(pool.run([file] * 600, "a", {}))
            await asyncio.sleep(0)
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            assert await pool.run([file], "a", {}) == b"content"


async def test_work_that_starts_threads_before_its_confinement_does_not_run(file: Path):
    async with SandboxPool("tests.sandbox.threaded_work:echo") as pool:
        with pytest.raises(WorkRejected) as error:
            await pool.run([file], "a", {})
    assert (error.value.code, error.value.message) == ("interrupted", "could not be confined")
