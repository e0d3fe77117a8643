"""After every step of random operations, search must find the documents of a simple model.

The model is a dictionary of documents and a set of bases that the reader may read. Scope, deletion and permission must
agree exactly. The order of keyword search must be that of BM25 over all rows, and vector search must find the nearest
document first.
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
from almanac.search.jobs.embed_passages import EmbedPassages
from almanac.search.query import SearchQuery
from almanac.search.stages.parse import parse
from tests.knowledge.workspace import Workspace, open_workspace
from tests.live_server import settings_for
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
    """A unique word for a number. Its letters are not removed by a stemmer."""
    return "".join("bcdfghjklm"[int(digit)] for digit in str(number)) + "zx"


@dataclass
class ModelDocument:
    """A document in the model."""

    base: int
    folder: int
    text: str
    is_enabled: bool = True
    is_removed: bool = False


@dataclass
class RandomRun:
    """A workspace, and a model of the documents that search should find."""

    workspace: Workspace
    reader: Call
    bases: list[KnowledgeBase]
    folders: dict[int, list[int]]
    settings: Settings
    rng: random.Random
    search: SearchEngine
    embed: EmbedPassages
    documents: dict[int, ModelDocument] = field(default_factory=dict[int, ModelDocument])
    shared: set[int] = field(default_factory=set[int])
    made: int = 0

    def text(self) -> str:
        """Some random words, and one word that no other document has."""
        self.made += 1
        words = self.rng.choices(WORDS, weights=range(len(WORDS), 0, -1), k=self.rng.randint(3, 40))
        return " ".join([mark(self.made), *words])

    def pick(self, *, removed: bool = False) -> int | None:
        ids = [id for id, document in self.documents.items() if document.is_removed == removed]
        return self.rng.choice(ids) if ids else None

    async def add(self) -> None:
        base = self.rng.choice(self.bases)
        folder = self.rng.choice(self.folders[base.id])
        text = self.text()
        document = await self.workspace.add_parsed(f"{self.made}.txt", text, base=base, folder_id=folder)
        self.documents[document.id] = ModelDocument(base.id, folder, text)

    async def replace(self) -> None:
        if id := self.pick():
            self.documents[id].text = self.text()
            await self.workspace.replace(id, self.documents[id].text)
            await self.workspace.run_jobs()

    async def move(self) -> None:
        if id := self.pick():
            base = self.rng.choice(self.bases)
            folder = self.rng.choice(self.folders[base.id])
            await self.workspace.do(lambda tx: documents.move(self.workspace.call, tx, [id], folder, base.id))
            self.documents[id].base, self.documents[id].folder = base.id, folder

    async def enable(self) -> None:
        if id := self.pick():
            document = self.documents[id]
            document.is_enabled = not document.is_enabled
            await self.workspace.do(lambda tx: documents.enable(self.workspace.call, tx, [id], document.is_enabled))

    async def remove(self) -> None:
        if id := self.pick():
            self.documents[id].is_removed = True
            await self.workspace.do(lambda tx: documents.remove(self.workspace.call, tx, [id]))

    async def restore(self) -> None:
        if id := self.pick(removed=True):
            self.documents[id].is_removed = False
            await self.workspace.do(lambda tx: documents.restore(self.workspace.call, tx, [id]))

    async def share(self) -> None:
        base = self.rng.choice(self.bases)
        role = None if base.id in self.shared else Role.Reporter
        self.shared ^= {base.id}
        call = self.workspace.call
        await self.workspace.do(lambda tx: bases.share(call, tx, base.id, role, user=self.reader.actor.name))

    async def make_vectors(self) -> None:
        jobs = await queue.claim(self.workspace.db, "a-worker", ["embed_passages"], limit=10, lease=clock.MINUTE)
        for job in jobs:
            await self.workspace.run_job(job, self.embed)

    async def maintain_index(self) -> None:
        """Maintain the index as the background job does, but at once."""
        if self.workspace.db.dialect == "sqlite":
            await compaction.compact(self.workspace.db, backends.folder_of(self.settings), least=1)
        else:
            await backends.maintain(self.settings, self.workspace.db)

    def expected(self, call: Call, word: str, base: int | None = None) -> set[int]:
        mine = {each.id for each in self.bases} if call is self.workspace.call else self.shared
        return {
            id
            for id, document in self.documents.items()
            if document.base in mine
            and base in (None, document.base)
            and document.is_enabled
            and not document.is_removed
            and word in document.text.split()
        }


@pytest.fixture
def settings(database_url: str, tmp_path: Path) -> Settings:
    return settings_for(database_url, tmp_path / "home")


async def search_ids(run: RandomRun, call: Call, query: str, **how: object) -> list[int]:
    given = SearchArguments.model_validate({"query": query, "limit": 50, "most_per_document": 1, **how})
    found = await document_search.search_documents(call, run.search, given)
    return [hit.document_id for hit in found.hits]


async def check(run: RandomRun) -> None:
    word = run.rng.choice([*WORDS, mark(run.rng.randint(1, max(1, run.made)))])
    for call in (run.workspace.call, run.reader):
        assert set(await search_ids(run, call, word, mode="keyword")) == run.expected(call, word)
    base = run.rng.choice(run.bases)
    narrow = await search_ids(run, run.workspace.call, word, base_ids=[base.id])
    assert run.expected(run.workspace.call, word, base.id) <= set(narrow)
    assert {run.documents[id].base for id in narrow} <= {base.id}
    assert not any(run.documents[id].is_removed or not run.documents[id].is_enabled for id in narrow)
    await check_order(run, base, word)


async def check_order(run: RandomRun, base: KnowledgeBase, word: str) -> None:
    query = parse(SearchQuery(f"{word} {run.rng.choice(WORDS)} {run.rng.choice(WORDS)}", (base.collection,)))
    ours = await run.search.index.keyword_hits(query.scope, query.hashes, 20)
    plain = await Reference(run.workspace.db).words(query.scope, query.hashes, 20)
    assert ours.scores.tolist() == pytest.approx(plain.scores.tolist(), rel=1e-3)
    assert set(ours.ids.tolist()) == set(plain.ids.tolist()) or len(plain.ids) == 20


@pytest.mark.parametrize("seed", [1, 2])
async def test_search_agrees_with_a_simple_model_after_every_step(
    seed: int, database: Database, settings: Settings, tmp_path: Path
):
    workspace = await open_workspace(database, tmp_path / "files")
    reader = workspace.town.call(await workspace.town.actor(await workspace.town.add("reader")))
    more = [await workspace.do(lambda tx, n=n: bases.add(workspace.call, tx, f"Base {n}")) for n in range(2)]
    every = [workspace.base, *more]
    places = {
        base.id: [0, (await workspace.do(lambda tx, id=base.id: folders.add(workspace.call, tx, id, "Deck"))).id]
        for base in every
    }
    embedder = open_embedder(settings)
    rng = random.Random(seed)
    async with backends.open_search(settings, database) as search:
        run = RandomRun(workspace, reader, every, places, settings, rng, search, EmbedPassages(database, embedder))
        steps: list[Callable[[], Awaitable[None]]] = [
            run.add, run.add, run.add, run.replace, run.move, run.enable, run.remove, run.restore, run.share,
            run.maintain_index, run.make_vectors,
        ]  # fmt: skip
        for number in range(STEPS):
            await rng.choice(steps)()
            await check(run)
            if number % 15 == 14:  # like another process, without cached values
                async with backends.open_search(settings, database) as run.search:
                    await check(run)
                run.search = search
        await check_meaning(run)
    await embedder.close()


async def check_meaning(run: RandomRun) -> None:
    """Check that, with all vectors stored, the text of a document finds the document first."""
    while await queue.find(run.workspace.db, "queued"):
        await run.make_vectors()
    for id, document in run.documents.items():
        if document.is_enabled and not document.is_removed:
            assert (await search_ids(run, run.workspace.call, document.text, mode="vector"))[0] == id
