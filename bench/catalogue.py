"""The cost of a large catalogue, over the gateway and compared with the bare engine: `make bench-catalogue`.

The command imports the entities into a running server, on each database. Vectors are random, of length one, because
`bench-embedding` measures the embedding of passages. The bundled model embeds the questions; each is asked once before
the measurement, so that its vector is cached. Every call is an authenticated, limited and audited MCP call of the
newest era over HTTP.

"bare" is the same without any of that: for `get`, one SQL statement by the key; for a search, the two index queries.
"""

import asyncio
import json
import tempfile
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import catalogue_corpus as corpus
import numpy as np
from command_line import console_of, exit_with_message, parser_of
from contestants import BenchFailed
from ingest_server import AlmanacServer, almanac_server, postgres
from rich.console import Console
from rich.table import Table

from almanac.ai.embedder_choice import open_embedder
from almanac.catalogue import entity_index, metadata_filters
from almanac.core.database import Database
from almanac.core.settings import Settings
from almanac.core.settings_loader import load
from almanac.db.connect import connect
from almanac.search import backends
from almanac.search.analysis import analyser
from almanac.search.filters import source_filter
from almanac.search.index import tables
from almanac.search.index.protocol import SearchIndex, SearchScope
from almanac.search.query import SourceFilter

CONNECTIONS = (1, 16)
GET_AIM = 2.0  # ms over the bare read
RECALL_AIM = 0.98
TOP = 10
MODERN = "2026-07-28"
AT_ONCE = 2_000

Ask = Callable[[int], tuple[str, dict[str, Any]]]


@dataclass(frozen=True, slots=True)
class Sample:
    """How long calls took, ms."""

    p50: float
    p99: float
    per_s: float


@dataclass(frozen=True, slots=True)
class Measured:
    """Everything about one database."""

    import_rate: float
    calls: dict[tuple[str, int], Sample]  # by operation and number of connections
    bare: dict[str, Sample]
    recall: float


def settings_of(server: AlmanacServer) -> Settings:
    return load(server.env).settings


def bring(server: AlmanacServer, frame: Path, items: Path, number: int) -> float:
    """Entities per second, from the file until they can be searched."""
    server.command("catalogue", "import", str(frame), "--json")
    began = time.perf_counter()
    report = json.loads(server.command("catalogue", "import", str(items), "--json"))
    if report["counts"]["entity"] != {"add": number}:
        raise BenchFailed(f"the import did something else: {report['counts']}")
    return number / (time.perf_counter() - began)


async def give_vectors(db: Database, model: str, dimension: int) -> None:
    """Stand-in vectors for every passage, as the job would store them."""
    made = np.random.default_rng(7)
    last = 0
    while True:
        rows = await db.fetch(
            "SELECT p.id, p.source_id, s.collection FROM passages p JOIN sources s ON s.id = p.source_id"
            " WHERE p.id > $1 ORDER BY p.id LIMIT $2",
            last,
            AT_ONCE,
        )
        if not rows:
            break
        last = rows[-1]["id"]
        vectors = made.standard_normal((len(rows), dimension)).astype(np.float32)
        vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
        places = [(row["id"], row["source_id"], row["collection"]) for row in rows]

        async def store(tx: Any, places: Any = places, vectors: Any = vectors) -> None:
            await tables.write_vectors(tx, model, places, vectors)

        await db.write(store)

    async def settle(tx: Any) -> None:
        await tx.execute("UPDATE sources SET is_embedded = 1, version = version + 1")
        await tx.execute("UPDATE collections SET model = $1", model)
        await tx.execute("DELETE FROM jobs WHERE kind = 'embed'")

    await db.write(settle)


# Over the gateway


class Line:
    """One connection to a server that parses as little of the answers as possible."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, token: str) -> None:
        self._reader, self._writer = reader, writer
        self._token = token

    async def call(self, tool: str, arguments: dict[str, Any]) -> bytes:
        meta: dict[str, Any] = {
            "io.modelcontextprotocol/protocolVersion": MODERN,
            "io.modelcontextprotocol/clientCapabilities": {},
        }
        params = {"name": tool, "arguments": arguments, "_meta": meta}
        body = json.dumps({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}).encode()
        head = (
            f"POST /gateway/mcp HTTP/1.1\r\nhost: 127.0.0.1\r\nx-api-key: {self._token}\r\n"
            "content-type: application/json\r\naccept: application/json, text/event-stream\r\n"
            f"mcp-protocol-version: {MODERN}\r\nmcp-method: tools/call\r\n"
            f"mcp-name: {tool}\r\ncontent-length: {len(body)}\r\n\r\n"
        )
        self._writer.write(head.encode() + body)
        answer = await self._reader.readuntil(b"\r\n\r\n")
        length = int(answer.lower().split(b"content-length:")[1].split(b"\r\n")[0])
        said = await self._reader.readexactly(length)
        if b'"isError":false' not in said:
            raise BenchFailed(f"{tool}: {said[:300]!r}")
        return said

    def close(self) -> None:
        self._writer.close()


async def measure(server: AlmanacServer, ask: Ask, connections: int, seconds: float) -> Sample:
    """Make calls over a number of connections for a number of seconds."""
    place = urlsplit(server.url)
    lines = [Line(*await asyncio.open_connection(place.hostname, place.port), server.token) for _ in range(connections)]
    taken: list[float] = []
    for number in range(len(corpus.QUESTIONS)):  # each question once, so that its vector is cached
        await lines[0].call(*ask(number))
    until = time.perf_counter() + seconds

    async def go(line: Line, first: int) -> None:
        number = first
        while time.perf_counter() < until:
            began = time.perf_counter()
            await line.call(*ask(number))
            taken.append(time.perf_counter() - began)
            number += connections

    began = time.perf_counter()
    await asyncio.gather(*(go(line, place) for place, line in enumerate(lines)))
    spent = time.perf_counter() - began
    for line in lines:
        line.close()
    return sample(taken, spent)


def sample(taken: Sequence[float], spent: float) -> Sample:
    ms = np.array(taken) * 1000
    return Sample(float(np.percentile(ms, 50)), float(np.percentile(ms, 99)), len(taken) / spent)


def _bucket(number: int) -> str:
    return f"b{number % len(corpus.QUESTIONS) % corpus.BUCKETS}"


def asks(ids: Sequence[str]) -> dict[str, Ask]:
    def question(number: int) -> dict[str, Any]:
        return {"namespace": "products", "query": corpus.QUESTIONS[number % len(corpus.QUESTIONS)], "topK": TOP}

    def filtered(number: int) -> tuple[str, dict[str, Any]]:
        return "search-knowledge-base", {**question(number), "metadata": {"bucket": _bucket(number)}}

    return {
        "get": lambda number: ("get-entity", {"id": ids[number * 7919 % len(ids)]}),
        "structure": lambda number: ("get-knowledge-base-structure", {}),
        "search": lambda number: ("search-knowledge-base", question(number)),
        "search, 1 %": filtered,
    }


# The bare engine


async def bare(
    db: Database, settings: Settings, org_id: str, ids: Sequence[str], seconds: float
) -> tuple[dict[str, Sample], float]:
    embedder = open_embedder(settings)
    try:
        vectors = [await embedder.query(text) for text in corpus.QUESTIONS]
    finally:
        await embedder.close()
    async with backends.open_search(settings, db) as search:
        collection = entity_index.catalogue_of(org_id)
        found = {
            "get": await _timed(
                lambda n: db.fetch_one("SELECT * FROM entities WHERE id = $1", ids[n * 7919 % len(ids)]), seconds
            ),
            "search": await _timed(
                lambda n: _legs(search.index, SearchScope((collection,)), embedder.name, n, vectors), seconds
            ),
            "search, 1 %": await _timed(
                lambda n: _legs(search.index, _scope(collection, n), embedder.name, n, vectors), seconds
            ),
        }
        recall = await _recall(db, search.index, collection, embedder.name, vectors)
    return found, recall


async def _timed(work: Callable[[int], Awaitable[Any]], seconds: float) -> Sample:
    for number in range(5):
        await work(number)
    taken: list[float] = []
    began = time.perf_counter()
    while (now := time.perf_counter()) - began < seconds:
        await work(len(taken))
        taken.append(time.perf_counter() - now)
    return sample(taken, time.perf_counter() - began)


def _scope(collection: str, number: int) -> SearchScope:
    condition = metadata_filters.to_condition({"bucket": _bucket(number)})
    return SearchScope(
        (collection,), *source_filter.resolve(SourceFilter(condition=condition), collections=[collection])
    )


async def _legs(index: SearchIndex, scope: SearchScope, model: str, number: int, vectors: Sequence[Any]) -> None:
    text = corpus.QUESTIONS[number % len(vectors)]
    terms = [analyser.term_hash(term) for term in analyser.terms_of(text)]
    await asyncio.gather(
        index.keyword_hits(scope, terms, 50), index.vector_hits(scope, model, vectors[number % len(vectors)], 50)
    )


async def _recall(db: Database, index: SearchIndex, collection: str, model: str, vectors: Sequence[Any]) -> float:
    """The share of the ten nearest in a filtered search that an exact scan of the filtered passages also finds."""
    shares: list[float] = []
    for number in range(len(vectors)):
        scope = _scope(collection, number)
        where = scope.where
        rows = await db.scan(
            f"SELECT v.passage_id, {_TEXT[db.dialect]} AS vector FROM vectors v JOIN sources s ON s.id = v.source_id"
            f" WHERE s.collection = '{collection}' AND ({where})",
            *scope.args,
        )
        stored = np.array([_READ[db.dialect](row["vector"]) for row in rows], np.float32)
        order = np.argsort(-(stored @ vectors[number]), kind="stable")[:TOP]
        exact: set[int] = {rows[place]["passage_id"] for place in order}
        got = await index.vector_hits(scope, model, vectors[number], TOP)
        shares.append(len(exact & set(got.ids.tolist())) / TOP)
    return float(np.mean(shares))


_TEXT = {"sqlite": "v.vector", "postgres": "CAST(v.vector AS text)"}
_READ: dict[str, Callable[[Any], Any]] = {"sqlite": lambda raw: np.frombuffer(raw, np.float16), "postgres": json.loads}


# The whole run


def run(server: AlmanacServer, number: int, frame: Path, items: Path, seconds: float, console: Console) -> Measured:
    console.print(f"  importing {number:,} entities …")
    rate = bring(server, frame, items, number)
    return asyncio.run(_run(server, rate, seconds, console))


async def _run(server: AlmanacServer, rate: float, seconds: float, console: Console) -> Measured:
    settings = settings_of(server)
    db = await connect(server.database, pool_size=4)
    try:
        embedder = open_embedder(settings)
        name, dimension = embedder.name, embedder.dimension
        await embedder.close()
        console.print("  storing vectors, writing the index …")
        await give_vectors(db, name, dimension)
        await backends.maintain(settings, db)
        if db.dialect == "postgres":
            await db.scan("VACUUM ANALYZE")
        rows = await db.fetch("SELECT id, org_id FROM entities ORDER BY id LIMIT 20000")
        ids = [row["id"] for row in rows]
        calls: dict[tuple[str, int], Sample] = {}
        for what, ask in asks(ids).items():
            for connections in CONNECTIONS:
                calls[what, connections] = await measure(server, ask, connections, seconds)
        console.print("  asking the bare engine …")
        alone, recall = await bare(db, settings, rows[0]["org_id"], ids, seconds)
        return Measured(rate, calls, alone, recall)
    finally:
        await db.close()


def show(found: dict[str, Measured], number: int, console: Console) -> None:
    table = Table(title=f"{number:,} entities", box=None)
    for column in ("database", "what", "connections", "p50 ms", "p99 ms", "calls/s", "bare p50 ms"):
        table.add_column(column)
    for database, measured in found.items():
        for (what, connections), each in measured.calls.items():
            beside = f"{measured.bare[what].p50:.2f}" if connections == 1 and what in measured.bare else ""
            table.add_row(
                database, what, str(connections), f"{each.p50:.2f}", f"{each.p99:.2f}", f"{each.per_s:,.0f}", beside
            )
    console.print(table)
    for database, measured in found.items():
        over = measured.calls["get", 1].p50 - measured.bare["get"].p50
        plain, narrow = measured.calls["search", 1].p50, measured.calls["search, 1 %", 1].p50
        console.print(f"{database}: imported {measured.import_rate:,.0f} entities/s")
        _judge(console, f"{database}: get {over:.2f} ms over the bare read (aim ≤ {GET_AIM:g})", over <= GET_AIM)
        _judge(console, f"{database}: filtered search {narrow:.2f} ms, unfiltered {plain:.2f} ms", narrow <= plain)
        _judge(
            console,
            f"{database}: recall {measured.recall:.3f} of exact (aim ≥ {RECALL_AIM})",
            measured.recall >= RECALL_AIM,
        )


def _judge(console: Console, said: str, is_met: bool) -> None:
    console.print(f"{said}: {'met' if is_met else 'not met'}", highlight=False)


def main() -> None:
    parser = parser_of(__doc__, seconds=8.0)
    parser.add_argument("--entities", type=int, default=100_000, help="how many (100,000)")
    parser.add_argument("--databases", nargs="+", default=["sqlite", "postgres"], choices=["sqlite", "postgres"])
    options = parser.parse_args()
    console = console_of(140)
    found: dict[str, Measured] = {}
    with exit_with_message(), tempfile.TemporaryDirectory(prefix="almanac-bench-") as scratch, ExitStack() as stack:
        frame, items = corpus.write(Path(scratch), options.entities)
        for name in options.databases:
            console.print(f"{name} …")
            url = stack.enter_context(postgres()) if name == "postgres" else ""
            (Path(scratch) / name).mkdir()
            more = {"ALMANAC_EMBEDDING": "true", "ALMANAC_JOB_WORKERS": "0"}
            server = stack.enter_context(almanac_server(Path(scratch) / name, url, more))
            found[name] = run(server, options.entities, frame, items, options.seconds, console)
    show(found, options.entities, console)


if __name__ == "__main__":
    main()
