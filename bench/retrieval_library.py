"""The homes that the retrieval bench searches: one for each set, filled as `almanac bench retrieval` fills its own.

To embed a set takes minutes, so homes are kept. One is filled anew when its corpus, the model or the way documents are
cut has changed; where only the analysis of words has, the words are counted anew and the vectors stay.
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
from almanac.cli.support import retrieval_library
from almanac.cli.support.operator_call import call_as_principal
from almanac.cli.support.progress import open_display
from almanac.cli.support.retrieval_library import RetrievalLibrary
from almanac.cli.support.retrieval_set import RetrievalSet
from almanac.core.call import Call
from almanac.core.database import Database
from almanac.core.settings import Settings
from almanac.identity import orgs, principals
from almanac.search.backends import open_search
from almanac.search.engine import SearchEngine
from almanac.search.jobs import collection_status, embed_passages

_CODE = ROOT / "almanac"
_CUTTING = ("knowledge/passages.py", "search/neighbours.py", "db/migrations/0004_search.sql")
_COUNTING = ("search/analysis.py", "search/languages.py")
_AT_ONCE = 500


@dataclass(frozen=True)
class Home:
    """A set that can be searched, and somebody to search it as."""

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
    """What a home was made of: all of it, and the words alone."""
    # Of that file only this one function, for the rest changes for other reasons too.
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
        async for passages in collection_status.walk(db, row["name"], _AT_ONCE):
            await collection_status.analyse(db, passages)


async def _found(test: RetrievalSet, db: Database, search: SearchEngine) -> Home:
    """Who is who in a home that was filled before: documents are named by the line they were, bases by their turn."""
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
