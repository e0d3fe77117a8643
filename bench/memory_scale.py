"""The cost of many notes: `make bench-memory-scale`.

One organisation's notes on each database: generated texts of about thirty words and random vectors of 384 numbers,
because embedding a million notes would take hours. They are inserted in bulk, first a tenth and then all; each time
the bench measures the functions that the tools call: storing (sixteen at a time), searching (one at a time, the
question's vector remembered; also with tags), finding parts of titles, and superseding. A contradiction hint costs
one more search, and the embedding of the note.
"""

import asyncio
import tempfile
import time
import uuid
from collections.abc import AsyncGenerator, Sequence
from contextlib import ExitStack, asynccontextmanager
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import uvloop
from command_line import console_of, exit_with_message, parser_of
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table
from search_peers import postgres

from almanac.cli.support.operator_call import call_as_principal
from almanac.cli.support.retrieval import retrieval_measures as measures
from almanac.core import clock
from almanac.core.call import Call
from almanac.core.database import Database, Transaction
from almanac.db import migrate
from almanac.db.connect import connect
from almanac.identity import orgs, principals
from almanac.memory import note_index, note_search, notes, supersession
from almanac.memory.note import NoteDraft
from almanac.memory.note_search import NoteQuery
from almanac.quotas.idempotency import DatabaseIdempotencyStore
from almanac.search.analysis import analyser
from almanac.search.engine import SearchEngine
from almanac.search.filters import metadata_index
from almanac.search.index import tables, title_index
from almanac.search.index.embedded import compaction
from almanac.search.index.embedded.embedded_index import EmbeddedIndex
from almanac.search.index.postgres import postgres_index
from almanac.search.index.postgres.postgres_index import PostgresIndex
from almanac.search.index.protocol import SearchIndex, SearchScope

MODEL, DIMENSION = "stand-in", 384
AT_ONCE = 1_000
STORERS = 16
WORDS = 30  # of a note
TITLE_CHARS = 40
VOCABULARY = 50_000
ASKED, LINKED = 400, 200

_SOURCES = ("id", "org_id", "collection", "kind", "owner_id", "title", "folder_id", "tags", "metadata", "created_at",
            "updated_at", "context", "is_live", "version", "is_embedded")  # fmt: skip
_PASSAGES = ("id", "source_id", "ordinal", "parent", "form", "text", "span_start", "span_end", "headings", "page",
             "boxes", "words")  # fmt: skip
_NOTES = ("number", "id", "org_id", "author_id", "source", "title", "body", "tags", "confidence", "created_at",
          "is_expired")  # fmt: skip


class StandIn:
    """Random vectors, the same for the same text."""

    name, dimension, languages = MODEL, DIMENSION, frozenset({"en"})

    async def query(self, text: str) -> NDArray[np.float32]:
        return _turn(np.random.default_rng(abs(hash(text))), 1)[0]

    async def passages(self, texts: Sequence[str]) -> NDArray[np.float32]:
        return np.array([await self.query(text) for text in texts])

    async def close(self) -> None:
        return


@dataclass(frozen=True)
class Measured:
    """The results at one number of notes."""

    database: str
    size: int
    stored: float  # a second
    store_p50: float
    search: tuple[float, float]  # p50, p99
    tagged: tuple[float, float]
    title: tuple[float, float]  # notes whose title has a part of some characters
    supersede: tuple[float, float]


def _title(body: str) -> str:
    return body[:TITLE_CHARS]


def _turn(rng: np.random.Generator, number: int) -> NDArray[np.float32]:
    found = rng.standard_normal((number, DIMENSION), dtype=np.float32)
    return found / np.linalg.norm(found, axis=1, keepdims=True)


class Memory:
    """One organisation's notes, growing."""

    def __init__(self, db: Database, call: Call, home: Path) -> None:
        self.db, self.call, self.home = db, call, home
        self.rng = np.random.default_rng(1)
        self.size = 0
        index: SearchIndex = PostgresIndex(db) if db.dialect == "postgres" else EmbeddedIndex(db, home / "index")
        self.search = SearchEngine(db, index, {MODEL: StandIn()})
        self.collection = note_index.collection_of(call.actor.org_id)

    def say(self, length: int = WORDS) -> str:
        return " ".join(f"w{n}" for n in np.minimum(self.rng.zipf(1.3, length), VOCABULARY))

    async def grow(self, size: int) -> None:
        """Insert notes up to a number, and run the background jobs."""
        while self.size < size:
            number = min(AT_ONCE, size - self.size)
            bodies = [self.say() for _ in range(number)]
            words = [analyser.encode_terms(_title(body), (), body) for body in bodies]
            vectors = _turn(self.rng, number)
            first = await self._first()
            await self.db.write(lambda tx, f=first, b=bodies, w=words, v=vectors: self._add(tx, f, b, w, v))
            self.size += number
        if self.db.dialect == "postgres":
            await self.db.write(_advance)
            await postgres_index.maintain(self.db)
            await self.db.write(lambda tx: tx.execute("ANALYZE"))
        else:
            while await compaction.compact(self.db, self.home / "index"):
                pass

    async def _first(self) -> int:
        """The next id that no note, source or passage has."""
        rows = await self.db.fetch(
            "SELECT coalesce(max(id), 0) AS n FROM sources UNION ALL SELECT coalesce(max(id), 0) FROM passages"
            " UNION ALL SELECT coalesce(max(number), 0) FROM notes"
        )
        return max(row["n"] for row in rows) + 1

    async def _add(
        self, tx: Transaction, first: int, bodies: list[str], words: list[bytes], vectors: NDArray[np.float32]
    ) -> None:
        org_id, now = self.call.actor.org_id, clock.now()
        await tx.execute(
            "INSERT INTO collections (name, org_id, model) VALUES ($1, $2, $3) ON CONFLICT (name) DO NOTHING",
            self.collection,
            org_id,
            MODEL,
        )
        ids = [str(uuid.uuid4()) for _ in bodies]
        places = [(first + n, first + n, self.collection) for n in range(len(bodies))]
        tags = [f'["t{n % 100}"]' for n in range(len(bodies))]
        await tx.insert_many("notes", _NOTES, [
            (first + n, id, org_id, self.call.actor.id, "agent", _title(body), body, tag, 80, now, 0)
            for n, (id, body, tag) in enumerate(zip(ids, bodies, tags, strict=True))
        ])  # fmt: skip
        sources: list[tuple[Any, ...]] = [
            (first + n, org_id, self.collection, "note", id, _title(body), 0, tag, "{}", now, now, "", 1, 1, 1)
            for n, (id, body, tag) in enumerate(zip(ids, bodies, tags, strict=True))
        ]
        if tx.dialect == "postgres":  # a source stores its size
            lengths = (int(analyser.decode_terms(counted)[1].sum()) for counted in words)
            sources = [(*source, 1, length) for source, length in zip(sources, lengths, strict=True)]
        await tx.insert_many("sources", (*_SOURCES, "passages", "length")[: len(sources[0])], sources)
        await tx.insert_many("passages", _PASSAGES, [
            (first + n, first + n, 0, None, "text", body, 0, len(body), "[]", None, "[]", counted)
            for n, (body, counted) in enumerate(zip(bodies, words, strict=True))
        ])  # fmt: skip
        await metadata_index.write(
            tx, [(first + n, self.collection, {}, orjson.loads(tag)) for n, tag in enumerate(tags)]
        )
        await title_index.add(tx, self.collection, {first + n: _title(body) for n, body in enumerate(bodies)})
        await tables.write_vectors(tx, MODEL, places, vectors)
        if tx.dialect == "postgres":
            await self._list(tx, first, words)

    async def _list(self, tx: Transaction, first: int, words: list[bytes]) -> None:
        rows: list[Any] = [
            (first + n, first + n, self.collection, tables.posting_keys(self.collection, counted).tolist())
            for n, counted in enumerate(words)
        ]
        await tx.insert_many("terms", ("passage_id", "source_id", "collection", "terms"), rows)

    async def measure(self, seconds: float) -> Measured:
        taken, spent = await self._store(seconds)
        search = await self._time(ASKED, lambda: self._find(NoteQuery(self.say(4))))
        tagged = await self._time(ASKED // 4, lambda: self._find(NoteQuery(self.say(4), tags=("t7",))))
        title = await self._time(ASKED, self._find_title)
        links = await self._pairs()
        linked = await self._time(len(links), lambda: self._link(*links.pop()))
        name = "PostgreSQL" if self.db.dialect == "postgres" else "embedded"
        return Measured(
            name, self.size, len(taken) / spent, measures.percentile(taken, 0.5), search, tagged, title, linked
        )

    async def _store(self, seconds: float) -> tuple[list[float], float]:
        repeats, taken, begun = DatabaseIdempotencyStore(self.db), list[float](), time.perf_counter()

        async def store() -> None:
            while time.perf_counter() - begun < seconds:
                at = time.perf_counter()
                await notes.store(self.call, NoteDraft(f"Title {self.rng.integers(10**9)}", self.say()), repeats, 0)
                taken.append(1000 * (time.perf_counter() - at))

        await asyncio.gather(*(store() for _ in range(STORERS)))
        self.size += len(taken)
        return taken, time.perf_counter() - begun

    async def _find(self, inquiry: NoteQuery) -> None:
        await note_search.find(self.call, self.search, inquiry)

    async def _find_title(self) -> None:
        title = _title(self.say())
        start = int(self.rng.integers(len(title) - 1))
        part = title[start : start + int(self.rng.integers(1, TITLE_CHARS))]
        if part.strip():
            await title_index.find(self.db, SearchScope((self.collection,)), part, 30)

    async def _pairs(self) -> list[tuple[str, str]]:
        rows = await self.db.fetch(
            "SELECT id FROM notes WHERE head_id IS NULL ORDER BY number DESC LIMIT $1", 2 * LINKED
        )
        ids = [row["id"] for row in rows]
        return list(zip(ids[::2], ids[1::2], strict=True))

    async def _link(self, old: str, new: str) -> None:
        await self.db.write(lambda tx: supersession.supersede(self.call, tx, old, new))

    async def _time(self, number: int, work: Any) -> tuple[float, float]:
        for _ in range(number // 4):  # these open files and read from the disk
            await work()
        taken: list[float] = []
        for _ in range(number - number // 4):
            begun = time.perf_counter()
            await work()
            taken.append(1000 * (time.perf_counter() - begun))
        return measures.percentile(taken, 0.5), measures.percentile(taken, 0.99)


async def _advance(tx: Transaction) -> None:
    """Set the database's sequences after the ids assigned here."""
    for table, column in (("notes", "number"), ("sources", "id"), ("passages", "id")):
        await tx.fetch(
            f"SELECT setval(pg_get_serial_sequence('{table}', '{column}'), (SELECT max({column}) FROM {table}))"
        )


@asynccontextmanager
async def opened(url: str, home: Path) -> AsyncGenerator[Memory]:
    db = await connect(url)
    try:
        await migrate.apply(db)
        (known,) = await db.fetch("SELECT count(*) AS notes FROM notes")
        if known["notes"]:
            org = await orgs.get_by_name(db, "bench")
            agent = await principals.get_by_name(db, org.id, "bench")
        else:
            org = await db.write(lambda tx: orgs.add(tx, "bench"))
            agent = await db.write(lambda tx: principals.add(tx, org.id, "agent", "bench"))
        memory = Memory(db, call_as_principal(db, org, agent), home)
        memory.size = known["notes"]
        yield memory
        await memory.search.index.close()
    finally:
        await db.close()


async def run(url: str, home: Path, size: int, seconds: float, console: Console) -> Measured:
    async with opened(url, home) as memory:
        begun = time.perf_counter()
        await memory.grow(size)
        console.print(f"{memory.db.dialect}: {size:,} notes ready in {time.perf_counter() - begun:.0f} s")
        return await memory.measure(seconds)


def show(found: Sequence[Measured], console: Console) -> None:
    table = Table("database")
    titles = (
        "notes",
        "stored/s",
        "store p50 ms",
        "search p50/p99 ms",
        "with tags p50/p99",
        "titles p50/p99",
        "supersede p50/p99",
    )
    for title in titles:
        table.add_column(title, justify="right")
    for each in found:
        pairs = (f"{p50:.1f} / {p99:.1f}" for p50, p99 in (each.search, each.tagged, each.title, each.supersede))
        table.add_row(each.database, f"{each.size:,}", f"{each.stored:,.0f}", f"{each.store_p50:.1f}", *pairs)
    console.print(table)


def main() -> None:
    parser = parser_of(__doc__, seconds=10.0)
    parser.add_argument("--size", type=int, default=1_000_000, help="notes (1,000,000)")
    parser.add_argument("--without", default="", help="embedded or postgres")
    parser.add_argument("--cache", type=Path, help="where notes are kept for another run; otherwise they are put away")
    options = parser.parse_args()
    console = console_of(120)
    found: list[Measured] = []
    with exit_with_message(), asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        for name, size in product(("embedded", "postgres"), (options.size // 10, options.size)):
            if name == options.without:
                continue
            with ExitStack() as stack:
                if options.cache:
                    home = options.cache / f"{name}-{size}"
                    home.mkdir(parents=True, exist_ok=True)
                else:
                    home = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="almanac-bench-memory-")))
                embedded = f"sqlite:///{home / 'almanac.db'}"
                url = embedded if name == "embedded" else stack.enter_context(postgres(home / "pg"))
                found.append(runner.run(run(url, home, size, options.seconds, console)))
    show(found, console)


if __name__ == "__main__":
    main()
