"""The second wall: attacks that reach the engine in a confined child, as if the check of the tree did not exist."""

import asyncio
import json
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from almanac.sandbox.errors import WorkRejected
from almanac.sandbox.pool import SandboxPool
from tests.data.escapes import ATTACKS, CATALOGUE, COSTS, HARMLESS
from tests.data.queries.conftest import LIMITS, ROWS, write_parquet

pytestmark = pytest.mark.asyncio(loop_scope="module")

SECRET = "the content of a foreign file"


@dataclass
class Place:
    """A dataset, and the things around it that an attack must not reach."""

    file: Path
    dataset: Path
    secret: Path
    new: Path
    listener: socket.socket

    def fill(self, sql: str) -> str:
        """The SQL with the names of this place. `{file}` is left to the child."""
        for name, value in {"dataset": self.dataset, "secret": self.secret, "new": self.new}.items():
            sql = sql.replace(f"{{{name}}}", str(value))
        return sql.replace("{port}", str(self.listener.getsockname()[1]))


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    folder = tmp_path_factory.mktemp("place")
    file = write_parquet(folder / "own.parquet", ROWS)
    dataset = write_parquet(folder / "other.parquet", "SELECT 'the content of a foreign file' AS x")
    secret = folder / "secret"
    secret.write_text(SECRET)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.setblocking(False)
        yield Place(file, dataset, secret, folder / "new", listener)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def raw() -> AsyncIterator[SandboxPool]:
    async with SandboxPool("tests.data.queries.raw_work:run_raw", LIMITS.sandbox, prepared=2) as pool:
        yield pool


async def attack(raw: SandboxPool, place: Place, *statements: str, seconds: float = 10) -> Any:
    """The answers to statements that run one after the other, or the reason why the child ended."""
    options = {
        "statements": [place.fill(each) for each in statements],
        "threads": 2,
        "memory_mib": LIMITS.memory_mib,
        "milliseconds": 2000,
    }
    try:
        async with asyncio.timeout(seconds):
            return json.loads(await raw.run([place.file], "raw", options))
    except WorkRejected as error:
        return error.code
    except TimeoutError:
        return "killed by the parent"


async def test_the_engine_itself_works_in_the_child(raw: SandboxPool, place: Place):
    """Otherwise the refusals would prove nothing."""
    answers = await attack(raw, place, "SELECT count(*) FROM read_parquet('{file}')", "SELECT 1 + 1")
    assert answers == [[["5"]], [["2"]]]


@pytest.mark.parametrize("name", ATTACKS)
async def test_an_attack_has_no_effect(raw: SandboxPool, place: Place, name: str):
    before = {path: path.read_bytes() for path in (place.file, place.dataset, place.secret)}
    sql = ATTACKS[name]
    answers = await attack(raw, place, sql, "SELECT count(*) FROM read_parquet('{file}')")
    assert SECRET not in json.dumps(answers)
    assert "PATH=" not in json.dumps(answers)
    if name not in HARMLESS and isinstance(answers, list):
        assert isinstance(answers[0], str) or answers[0] == [], answers  # an error, or no rows
    assert {path: path.read_bytes() for path in before} == before
    assert not place.new.exists()
    with pytest.raises(BlockingIOError):
        place.listener.accept()


@pytest.mark.parametrize("name", CATALOGUE)
async def test_the_catalogue_of_a_child_tells_nothing_about_the_server(raw: SandboxPool, place: Place, name: str):
    text = json.dumps(await attack(raw, place, CATALOGUE[name]))
    assert SECRET not in text
    assert str(place.file) not in text
    assert str(place.file.parent) not in text


@pytest.mark.parametrize("name", COSTS)
async def test_a_costly_query_ends_in_time(raw: SandboxPool, place: Place, name: str):
    async with asyncio.timeout(25):
        await attack(raw, place, COSTS[name].replace("{{", "{").replace("}}", "}"))
        assert await attack(raw, place, "SELECT 1") == [[["1"]]]


async def test_a_long_function_that_ignores_the_time_limit_is_killed(raw: SandboxPool, place: Place):
    answer = await attack(raw, place, "SELECT list_sum(list_transform(range(100000000), lambda x: sin(x)))", seconds=4)
    assert answer in ("killed by the parent", "memory_limit", "timeout") or isinstance(answer[0], str)


async def test_threads_of_the_engine_are_confined_like_the_child(place: Place):
    async with SandboxPool("tests.data.queries.raw_work:run_threads", LIMITS.sandbox) as pool:
        options = {"threads": 2, "memory_mib": 256, "milliseconds": 2000, "secret": str(place.secret)}
        answers = json.loads(await pool.run([place.file], "threads", options))
    assert len(answers) == 3
    assert set(answers) <= {"PermissionError", "FileNotFoundError", "OSError"}


async def test_the_server_loads_neither_the_engine_nor_the_reader_of_sql():
    program = (
        "import sys; import almanac.data.queries.query_pool, almanac.app;"
        "print([name for name in ('duckdb', 'sqlglot', 'arro3') if name in sys.modules])"
    )
    process = await asyncio.create_subprocess_exec(sys.executable, "-c", program, stdout=subprocess.PIPE)
    output, _ = await process.communicate()
    assert output.strip() == b"[]"
