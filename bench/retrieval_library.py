"""The homes that the retrieval bench searches: one for each set, filled as `almanac bench retrieval` fills its own.

Embedding a set takes minutes, so homes are kept. A home is filled again when its corpus, the model or the splitter has
changed. If only the analysis of words has changed, the words are counted again and the vectors stay.
"""

import hashlib
import inspect
import json
import shutil
from collections.abc import AsyncGenerator, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from contestants import ROOT, BenchFailed

from almanac.ai.embedder_choice import open_embedder
from almanac.bootstrap import open_database
from almanac.cli.support.operator_call import call_as_principal
from almanac.cli.support.progress import open_display
from almanac.cli.support.retrieval import retrieval_library
from almanac.cli.support.retrieval.retrieval_library import RetrievalLibrary
from almanac.cli.support.retrieval.retrieval_set import RetrievalSet
from almanac.core.call import Call
from almanac.core.database import Database
from almanac.core.settings import Settings
from almanac.identity import orgs, principals
from almanac.search.backends import open_search
from almanac.search.engine import SearchEngine
from almanac.search.jobs import analyse_passages, embed_passages, passage_batches

_CODE = ROOT / "almanac"
_CUTTING = ("knowledge/passages.py", "search/neighbours.py", "db/migrations/0004_search.sql")
_COUNTING = ("search/analysis.py", "search/languages.py")
_AT_ONCE = 500


@dataclass(frozen=True)
class Home:
    """A searchable set and a caller."""

    test: RetrievalSet
    search: SearchEngine
    library: RetrievalLibrary
    passages: int

    @property
    def call(self) -> Call:
        return self.library.call

    @property
    def bases(self) -> dict[str, int]:
        """By part of the set."""
        return self.library.bases


@asynccontextmanager
async def opened(test: RetrievalSet, folder: Path, cache: Path) -> AsyncGenerator[Home]:
    """A set's home, from the cache or filled now."""
    settings = Settings(home=cache / test.name)
    keys = _keys(folder, settings)
    told = cache / f"{test.name}.json"
    known: dict[str, str] = json.loads(told.read_text()) if told.exists() else {}
    if known.get("filled") != keys["filled"]:
        told.unlink(missing_ok=True)
        shutil.rmtree(settings.home, ignore_errors=True)
        await _fill(settings, test)
        known = keys
    async with open_database(settings) as db:
        if known != keys:
            await _count_anew(db)
        told.write_text(json.dumps(keys))
        async with open_search(settings, db) as search:
            yield await _found(test, db, search)


def _keys(folder: Path, settings: Settings) -> dict[str, str]:
    """Digests of a home's inputs: of all inputs, and of those of the words."""
    # Only this function of the file, because the rest changes for other reasons.
    embedded = inspect.getsource(embed_passages.text_of) + inspect.getsource(retrieval_library.set_documents)
    cut = [folder / "corpus.jsonl", *(_CODE / name for name in _CUTTING)]
    return {
        "filled": _digest(cut, open_embedder(settings).name, embedded),
        "counted": _digest(_CODE / name for name in _COUNTING),
    }


async def _fill(settings: Settings, test: RetrievalSet) -> None:
    async with open_database(settings) as db:
        with open_display(quiet=False) as display:
            library = RetrievalLibrary(await retrieval_library.add_search_user(db))
            await library.add_documents(settings, test.corpus, display)
            await retrieval_library.run_waiting_jobs(db, settings, display)


async def _count_anew(db: Database) -> None:
    for row in await db.scan("SELECT name FROM collections"):
        async for passages in passage_batches.walk(db, row["name"], _AT_ONCE):
            await analyse_passages.analyse(db, passages)


async def _found(test: RetrievalSet, db: Database, search: SearchEngine) -> Home:
    """The documents and bases of a home that was filled before: documents are named by their line, bases by their
    position.
    """
    org = await orgs.get_by_name(db, "bench")
    call = call_as_principal(db, org, await principals.get_by_name(db, org.id, "bench"))
    named = {row["name"]: row["id"] for row in await db.scan("SELECT id, name FROM bases")}
    parts = dict.fromkeys(line.part for line in test.corpus)
    rows = await db.scan("SELECT id, name FROM documents")
    counts = await db.scan(
        "SELECT (SELECT count(*) FROM passages) AS passages, (SELECT count(*) FROM vectors) AS vectors"
    )
    if counts[0]["passages"] != counts[0]["vectors"]:
        raise BenchFailed(f"{test.name}: not every passage has its vector")
    documents = retrieval_library.set_documents(test.corpus)
    library = RetrievalLibrary(
        call,
        {part: named[f"Part {number}"] for number, part in enumerate(parts, 1)},
        {row["id"]: documents[int(row["name"].removesuffix(".txt"))] for row in rows},
    )
    return Home(test, search, library, counts[0]["passages"])


def _digest(files: Iterable[Path], *more: str) -> str:
    content = b"\0".join([*(file.read_bytes() for file in files), *(each.encode() for each in more)])
    return hashlib.sha256(content).hexdigest()
