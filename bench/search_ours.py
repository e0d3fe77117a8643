"""Almanac in the search bench: the rows as search itself writes them, and questions through `Search.find`.

Callers are tasks on one event loop, as they are in a server. "embedded" includes the time to embed the question with
the bundled model; its vector is discarded, because the passages have synthetic vectors.
"""

import asyncio
import os
import sys
import time
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import asynccontextmanager
from itertools import count, pairwise
from multiprocessing import get_context
from pathlib import Path

import numpy as np
import search_asking
import search_corpus
import uvloop
from contestants import BenchFailed
from numpy.typing import NDArray
from search_asking import DEPTH, TOP, Built, Order, Sample, Turns, memory, say
from search_corpus import DIMENSION, SCOPES, Corpus

from almanac.ai.embedder import Embedder
from almanac.ai.embedder_choice import open_embedder
from almanac.core.database import Database, Transaction
from almanac.core.settings import Settings
from almanac.db import migrate
from almanac.db.connect import connect
from almanac.identity import orgs
from almanac.search import passage_store
from almanac.search.engine import SearchEngine
from almanac.search.index import tables
from almanac.search.index.embedded import compaction
from almanac.search.index.embedded.embedded_index import EmbeddedIndex
from almanac.search.index.postgres import postgres_index
from almanac.search.index.postgres.postgres_index import PostgresIndex
from almanac.search.index.protocol import SearchIndex, SearchScope
from almanac.search.passage import Passage
from almanac.search.passage_store import AnalysedPassages
from almanac.search.query import SearchQuery
from almanac.search.sources import Source
from almanac.search.stages.parse import parse

MODEL = "stand-in"
SOURCES_AT_ONCE = 50
CORES = os.cpu_count() or 1

_BLANKS = str.maketrans("01", " \t")

Ask = Callable[[search_corpus.Question], Awaitable[Sequence[int]]]


class StandIn:
    """The vectors of the questions, as if they were cached; optionally after a model has embedded the text."""

    name = MODEL
    dimension = DIMENSION
    languages = frozenset({"en"})

    def __init__(self, vectors: dict[str, NDArray[np.float32]]) -> None:
        self._vectors = vectors
        self._number = count()
        self.model: Embedder | None = None

    async def query(self, text: str) -> NDArray[np.float32]:
        if self.model is not None:
            blanks = f"{next(self._number):b}".translate(_BLANKS)
            await self.model.query(text + blanks)  # a text that is not in its cache, of the same tokens
        return self._vectors[text]

    async def passages(self, texts: Sequence[str]) -> NDArray[np.float32]:
        raise NotImplementedError

    async def close(self) -> None:
        return


@asynccontextmanager
async def opened(place: str) -> AsyncGenerator[Database]:
    """The database in a folder, or at a URL."""
    db = await connect(place if "://" in place else f"sqlite:///{place}/almanac.db")
    try:
        yield db
    finally:
        await db.close()


def name_of(collection: int) -> str:
    return f"base:{collection + 1}"


# Building


async def build(corpus: Corpus, place: str) -> Built:
    begun = time.perf_counter()
    async with opened(place) as db:
        await migrate.apply(db)
        org = await db.write(lambda tx: orgs.add(tx, "bench"))
        first = 0
        async for prepared in _prepared(corpus):
            await db.write(lambda tx, first=first, prepared=prepared: _store(tx, corpus, org.id, first, prepared))
            first += len(prepared)
        await db.write(lambda tx: _finish(tx, corpus.size))
        rows = time.perf_counter() - begun
        await _index(db, place)
        spent = time.perf_counter() - begun
        return Built(spent, await _disk(db, place), {"rows": rows, "index": spent - rows})


async def _prepared(corpus: Corpus) -> AsyncGenerator[list[AnalysedPassages]]:
    """The sources, in batches, with their words counted in other processes, as by parsers."""
    loop = asyncio.get_running_loop()
    waiting: deque[Awaitable[list[AnalysedPassages]]] = deque()
    bounds = [*range(0, len(corpus.titles), SOURCES_AT_ONCE), len(corpus.titles)]
    with ProcessPoolExecutor(CORES, get_context("spawn")) as pool:
        for first, last in pairwise(bounds):
            texts = [corpus.texts[begin:end] for begin, end in pairwise(corpus.firsts[first : last + 1])]
            waiting.append(loop.run_in_executor(pool, _prepare, corpus.titles[first:last], texts))
            if len(waiting) > 2 * CORES:
                yield await waiting.popleft()
        while waiting:
            yield await waiting.popleft()


def _prepare(titles: Sequence[str], texts: Sequence[Sequence[str]]) -> list[AnalysedPassages]:
    return [
        passage_store.analyse(title, [Passage(0, len(text), text) for text in of_source])
        for title, of_source in zip(titles, texts, strict=True)
    ]


async def _store(
    tx: Transaction, corpus: Corpus, org_id: str, first: int, prepared: Sequence[AnalysedPassages]
) -> None:
    places: list[tuple[int, int, str]] = []
    for number, each in enumerate(prepared, first):
        collection = name_of(int(corpus.collections[number]))
        source = Source(org_id, collection, "document", str(number), each.title, number, number)
        source_id = await passage_store.replace(tx, source, each)
        rows = await tx.fetch("SELECT id FROM passages WHERE source_id = $1 ORDER BY ordinal", source_id)
        places.extend((row["id"], source_id, collection) for row in rows)
    begin, end = corpus.firsts[first], corpus.firsts[first + len(prepared)]
    await tables.write_vectors(tx, MODEL, places, corpus.vectors[begin:end].astype(np.float32))


async def _finish(tx: Transaction, size: int) -> None:
    await tx.execute("UPDATE collections SET model = $1", MODEL)
    await tx.execute("UPDATE sources SET is_embedded = 1")
    row = await tx.fetch_one("SELECT min(id) AS least, max(id) AS most, count(*) AS number FROM passages")
    if row is None or (row["least"], row["most"], row["number"]) != (1, size, size):
        raise BenchFailed("the ids of passages are not their numbers plus one, so that answers cannot be judged")


async def _index(db: Database, place: str) -> None:
    """Do the work of the background jobs."""
    if db.dialect == "postgres":
        await postgres_index.maintain(db)
        await db.write(lambda tx: tx.execute("ANALYZE"))
        return
    while await compaction.compact(db, Path(place) / "index"):
        pass


async def _disk(db: Database, place: str) -> int:
    if db.dialect == "sqlite":
        return search_asking.size_of(place)
    row = await db.fetch_one("SELECT pg_database_size(current_database()) AS size")
    assert row is not None
    return row["size"]


# Asking


async def serve(corpus: Corpus, place: str) -> None:
    turns = Turns(corpus)
    names = tuple(map(name_of, sorted(set(corpus.collections.tolist()))))
    stand_in = StandIn({each.text: each.vector for scope in SCOPES for each in corpus.questions(scope)})
    before = memory()
    async with opened(place) as db:
        index: SearchIndex = PostgresIndex(db) if db.dialect == "postgres" else EmbeddedIndex(db, Path(place) / "index")
        legs = _Legs(SearchEngine(db, index, {MODEL: stand_in}), stand_in, names)
        say(before)
        for order in search_asking.orders():
            say(memory() if order is None else await _ask(legs.get(order), order, turns))
        await index.close()


class _Legs:
    """The measured parts of a search: all of it, or one leg."""

    def __init__(self, search: SearchEngine, stand_in: StandIn, collections: tuple[str, ...]) -> None:
        self._search = search
        self._stand_in = stand_in
        self._collections = collections
        self._model: Embedder | None = None

    def get(self, order: Order) -> Ask:
        """The measured function of an order."""
        self._stand_in.model = self._opened() if order.leg in ("embedded", "embedding") else None
        asks: dict[str, Ask] = {"words": self._words, "vectors": self._vectors, "embedding": self._embedding}
        return asks.get(order.leg, self._whole)

    def _opened(self) -> Embedder:
        if self._model is None:
            self._model = open_embedder(Settings())
        return self._model

    def _names(self, question: search_corpus.Question) -> tuple[str, ...]:
        return self._collections if question.collection is None else (name_of(question.collection),)

    async def _whole(self, question: search_corpus.Question) -> Sequence[int]:
        answer = await self._search.search(SearchQuery(question.text, self._names(question)))
        return [found.passage_id - 1 for found in answer.results]

    async def _words(self, question: search_corpus.Question) -> Sequence[int]:
        asked = parse(SearchQuery(question.text, self._names(question)))
        found = await self._search.index.keyword_hits(asked.scope, asked.hashes, DEPTH)
        return (found.ids[:TOP] - 1).tolist()

    async def _vectors(self, question: search_corpus.Question) -> Sequence[int]:
        found = await self._search.index.vector_hits(SearchScope(self._names(question)), MODEL, question.vector, DEPTH)
        return (found.ids[:TOP] - 1).tolist()

    async def _embedding(self, question: search_corpus.Question) -> Sequence[int]:
        await self._stand_in.query(question.text)
        return ()


async def _ask(ask: Ask, order: Order, turns: Turns) -> Sample:
    """Ask with several callers, each in a task."""
    sample = Sample()

    async def call(question: search_corpus.Question, times: list[float]) -> None:
        begun = time.perf_counter()
        found = await ask(question)
        times.append(1000 * (time.perf_counter() - begun))
        sample.found[question.number] = list(found)

    async def call_on() -> None:
        while time.perf_counter() < until:
            await call(turns.next(order.scope), sample.milliseconds)

    for question in turns.early(order.leg):
        await call(question, sample.cold)
    sample.found.clear()
    until = time.perf_counter() + order.seconds
    await asyncio.gather(*(call_on() for _ in range(order.callers)))
    return sample


def main() -> None:
    word, folder, place = sys.argv[1:]
    corpus = Corpus(Path(folder))
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        if word == "build":
            say(runner.run(build(corpus, place)))
        else:
            runner.run(serve(corpus, place))


if __name__ == "__main__":
    main()
