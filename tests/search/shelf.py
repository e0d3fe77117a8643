"""Generated sources for tests of the indexes: texts, collections and vectors."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from almanac.core.database import Database, Transaction
from almanac.identity import orgs
from almanac.search import passage_store, sources
from almanac.search.analysis import analyser
from almanac.search.index import tables
from almanac.search.passage import Passage
from almanac.search.sources import Source

MODEL = "a model's"
HANZI = "水泵压力阀门维修手册系统检查报告安全温度记录电机轴承更换安装说明数据分析管理计划项目人员培训"


def tongue(seed: int, size: int = 3_000) -> list[str]:
    """Invented words, the most frequent first; every fifth is written in Chinese."""
    rng = np.random.default_rng(seed)
    letters = [list("bcdfghklmnprstvz"), list("aeiou")]
    words: dict[str, None] = {}
    while len(words) < size:
        if len(words) % 5 == 4:
            words["".join(rng.choice(list(HANZI), rng.integers(1, 4)))] = None
        else:
            words["".join(str(rng.choice(letters[n % 2])) for n in range(rng.integers(3, 10)))] = None
    return list(words)


def write(rng: np.random.Generator, words: Sequence[str], length: int) -> str:
    """A text with word frequencies by Zipf's law."""
    places = np.minimum(rng.zipf(1.25, length) - 1, len(words) - 1)
    return " ".join(words[int(place)] for place in places)


def turn(rng: np.random.Generator, number: int, dimension: int) -> NDArray[np.float32]:
    """Vectors of length one in clusters, like those of texts."""
    heaps = np.random.default_rng(0).standard_normal((40, dimension))
    found = heaps[rng.integers(0, len(heaps), number)] + 0.6 * rng.standard_normal((number, dimension))
    return (found / np.linalg.norm(found, axis=1, keepdims=True)).astype(np.float32)


@dataclass
class Shelf:
    """The sources of a test in a database."""

    db: Database
    org_id: str
    rng: np.random.Generator = field(default_factory=lambda: np.random.default_rng(7))
    words: list[str] = field(default_factory=lambda: tongue(7))
    things: dict[str, Source] = field(default_factory=dict[str, Source])

    async def put(
        self, name: str, texts: Sequence[str], collection: str = "base:1", title: str = "", folder_id: int = 0
    ) -> Source:
        """Store a source; it replaces one of the same name."""
        source = Source(self.org_id, collection, "document", name, title, 1, 1, folder_id)
        found = [Passage(0, len(text), text) for text in texts]
        prepared = passage_store.analyse(source.title, found)
        await self.db.write(lambda tx: passage_store.replace(tx, source, prepared))
        self.things[name] = source
        return source

    async def change(self, name: str, **about: Any) -> None:
        source = self.things[name] = replace(self.things[name], **about)
        await self.db.write(lambda tx: sources.put(tx, source))

    async def remove(self, name: str) -> None:
        del self.things[name]
        await self.db.write(lambda tx: sources.remove(tx, "document", [name]))

    async def embed(self, name: str, vectors: NDArray[np.float32] | None = None, model: str = MODEL) -> None:
        """Store vectors for the first passages of a source."""

        async def body(tx: Transaction) -> None:
            rows = await tx.fetch(
                "SELECT p.id, p.source_id, s.collection FROM passages p JOIN sources s ON s.id = p.source_id"
                " WHERE s.kind = 'document' AND s.owner_id = $1 ORDER BY p.id",
                name,
            )
            made = turn(self.rng, len(rows), 32) if vectors is None else vectors
            await sources.mark_changed(tx, {row["source_id"] for row in rows})
            places = [(row["id"], row["source_id"], row["collection"]) for row in rows[: len(made)]]
            await tables.write_vectors(tx, model, places, made[: len(places)])

        await self.db.write(body)

    async def fill(self, number: int, collections: Sequence[str], dimension: int = 32, per: int = 10) -> None:
        """Store a number of sources with passages and vectors in random collections."""
        for n in range(number):
            texts = [write(self.rng, self.words, int(self.rng.integers(15, 80))) for _ in range(per)]
            collection = collections[int(self.rng.integers(len(collections)))]
            await self.put(f"{n}", texts, collection, folder_id=n % 7, title=write(self.rng, self.words, 3))
            await self.embed(f"{n}", turn(self.rng, per, dimension))

    def question(self, length: int, skipped: int = 0) -> list[int]:
        """The terms of a question, with the frequencies of a text, without the most frequent words."""
        return terms(write(self.rng, self.words[skipped:], length))


def terms(text: str) -> list[int]:
    return [analyser.term_hash(term) for term in analyser.terms_of(text)]


async def open_shelf(db: Database, seed: int = 7) -> Shelf:
    org = await db.write(lambda tx: orgs.add(tx, "an-org"))
    return Shelf(db, org.id, np.random.default_rng(seed))
