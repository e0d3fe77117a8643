"""Fresh and true: after every step of a random life, search finds exactly what a plain model of it says it should.

The model is a dictionary of documents and a set of who may read which base. Scope, deletion and permission must agree
exactly; the order by words must be that of plain BM25 over the rows; and by meaning, what is nearest must be first.
"""

import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from almanac.ai.embedder_choice import open_embedder
from almanac.core import clock
from almanac.core.call import Call
from almanac.core.database import Database
from almanac.core.settings import Settings
from almanac.identity.roles import Role
from almanac.jobs import queue
from almanac.knowledge import bases, document_search, documents, folders
from almanac.knowledge.bases import KnowledgeBase
from almanac.knowledge.document_search import SearchArguments
from almanac.search import backends
from almanac.search.engine import SearchEngine
from almanac.search.index.embedded import compaction
from almanac.search.index.protocol import SearchScope
from almanac.search.jobs.embed_passages import EmbedPassages
from almanac.search.ranking.features import parse_text
from tests.house import settings_for
from tests.knowledge.library import Library, found
from tests.search.reference import Reference

WORDS = [
    "pump",
    "valve",
    "ship",
    "oil",
    "engine",
    "rope",
    "anchor",
    "deck",
    "sail",
    "hull",
    "mast",
    "rudder",
    "cabin",
    "galley",
    "bell",
    "chart",
]
STEPS = 45


def mark(number: int) -> str:
    """A word of its own for a number, of letters that no stemmer cuts off."""
    return "".join("bcdfghjklm"[int(digit)] for digit in str(number)) + "zx"


@dataclass
class Known:
    """A document as the model has it."""

    base: int
    folder: int
    text: str
    is_enabled: bool = True
    is_removed: bool = False


@dataclass
class Life:
    """A library, who may read what of it, and what search should therefore find."""

    library: Library
    reader: Call
    bases: list[KnowledgeBase]
    folders: dict[int, list[int]]
    settings: Settings
    chance: random.Random
    search: SearchEngine
    embed: EmbedPassages
    documents: dict[int, Known] = field(default_factory=dict[int, Known])
    shared: set[int] = field(default_factory=set[int])
    made: int = 0

    def text(self) -> str:
        """A few words of a sailor's, and one nobody else has."""
        self.made += 1
        words = self.chance.choices(WORDS, weights=range(len(WORDS), 0, -1), k=self.chance.randint(3, 40))
        return " ".join([mark(self.made), *words])

    def pick(self, *, removed: bool = False) -> int | None:
        ids = [id for id, known in self.documents.items() if known.is_removed == removed]
        return self.chance.choice(ids) if ids else None

    async def add(self) -> None:
        base = self.chance.choice(self.bases)
        folder = self.chance.choice(self.folders[base.id])
        text = self.text()
        document = await self.library.shelve(f"{self.made}.txt", text, base=base, folder_id=folder)
        self.documents[document.id] = Known(base.id, folder, text)

    async def replace(self) -> None:
        if id := self.pick():
            self.documents[id].text = self.text()
            await self.library.replace(id, self.documents[id].text)
            await self.library.read_all()

    async def move(self) -> None:
        if id := self.pick():
            base = self.chance.choice(self.bases)
            folder = self.chance.choice(self.folders[base.id])
            await self.library.do(lambda tx: documents.move(self.library.call, tx, [id], folder, base.id))
            self.documents[id].base, self.documents[id].folder = base.id, folder

    async def enable(self) -> None:
        if id := self.pick():
            known = self.documents[id]
            known.is_enabled = not known.is_enabled
            await self.library.do(lambda tx: documents.enable(self.library.call, tx, [id], known.is_enabled))

    async def remove(self) -> None:
        if id := self.pick():
            self.documents[id].is_removed = True
            await self.library.do(lambda tx: documents.remove(self.library.call, tx, [id]))

    async def restore(self) -> None:
        if id := self.pick(removed=True):
            self.documents[id].is_removed = False
            await self.library.do(lambda tx: documents.restore(self.library.call, tx, [id]))

    async def share(self) -> None:
        base = self.chance.choice(self.bases)
        role = None if base.id in self.shared else Role.Reporter
        self.shared ^= {base.id}
        call = self.library.call
        await self.library.do(lambda tx: bases.share(call, tx, base.id, role, user=self.reader.actor.name))

    async def make_vectors(self) -> None:
        jobs = await queue.claim(self.library.db, "a-worker", ["embed"], limit=10, lease=clock.MINUTE)
        for job in jobs:
            await self.library.settle(job, self.embed)

    async def tidy(self) -> None:
        """As the background job does it, but at once."""
        if self.library.db.dialect == "sqlite":
            await compaction.compact(self.library.db, backends.folder_of(self.settings), least=1)
        else:
            await backends.maintain(self.settings, self.library.db)

    def expected(self, call: Call, word: str, base: int | None = None) -> set[int]:
        mine = {each.id for each in self.bases} if call is self.library.call else self.shared
        return {
            id
            for id, known in self.documents.items()
            if known.base in mine
            and base in (None, known.base)
            and known.is_enabled
            and not known.is_removed
            and word in known.text.split()
        }


@pytest.fixture
def settings(database_url: str, tmp_path: Path) -> Settings:
    return settings_for(database_url, tmp_path / "home")


async def asked(life: Life, call: Call, query: str, **how: object) -> list[int]:
    given = SearchArguments.model_validate({"query": query, "limit": 50, "most_per_document": 1, **how})
    found = await document_search.search_documents(call, life.search, given)
    return [hit.document_id for hit in found.hits]


async def check(life: Life) -> None:
    word = life.chance.choice([*WORDS, mark(life.chance.randint(1, max(1, life.made)))])
    for call in (life.library.call, life.reader):
        assert set(await asked(life, call, word, mode="keyword")) == life.expected(call, word)
    base = life.chance.choice(life.bases)
    narrow = await asked(life, life.library.call, word, bases=[base.id])
    assert life.expected(life.library.call, word, base.id) <= set(narrow)
    assert {life.documents[id].base for id in narrow} <= {base.id}
    assert not any(life.documents[id].is_removed or not life.documents[id].is_enabled for id in narrow)
    await check_order(life, base, word)


async def check_order(life: Life, base: KnowledgeBase, word: str) -> None:
    query = parse_text(f"{word} {life.chance.choice(WORDS)} {life.chance.choice(WORDS)}")
    scope = SearchScope((base.collection,))
    ours = await life.search.index.keyword_hits(scope, query.hashes, 20)
    plain = await Reference(life.library.db).words(scope, query.hashes, 20)
    assert ours.scores.tolist() == pytest.approx(plain.scores.tolist(), rel=1e-3)
    assert set(ours.ids.tolist()) == set(plain.ids.tolist()) or len(plain.ids) == 20


@pytest.mark.parametrize("seed", [1, 2])
async def test_search_agrees_with_the_store_after_every_step(
    seed: int, database: Database, settings: Settings, tmp_path: Path
):
    library = await found(database, tmp_path / "files")
    reader = library.town.call(await library.town.actor(await library.town.add("reader")))
    more = [await library.do(lambda tx, n=n: bases.add(library.call, tx, f"Base {n}")) for n in range(2)]
    every = [library.base, *more]
    places = {
        base.id: [0, (await library.do(lambda tx, id=base.id: folders.add(library.call, tx, id, "Deck"))).id]
        for base in every
    }
    embedder = open_embedder(settings)
    chance = random.Random(seed)
    async with backends.open_search(settings, database) as search:
        life = Life(library, reader, every, places, settings, chance, search, EmbedPassages(database, embedder))
        steps: list[Callable[[], Awaitable[None]]] = [
            life.add, life.add, life.add, life.replace, life.move, life.enable, life.remove, life.restore, life.share,
            life.tidy, life.make_vectors,
        ]  # fmt: skip
        for number in range(STEPS):
            await chance.choice(steps)()
            await check(life)
            if number % 15 == 14:  # as another process would: nothing remembered
                async with backends.open_search(settings, database) as life.search:
                    await check(life)
                life.search = search
        await check_meaning(life)
    await embedder.close()


async def check_meaning(life: Life) -> None:
    """When all vectors are there, a document's own text finds it first."""
    while await queue.find(life.library.db, "queued"):
        await life.make_vectors()
    for id, known in life.documents.items():
        if known.is_enabled and not known.is_removed:
            assert (await asked(life, life.library.call, known.text, mode="vector"))[0] == id
