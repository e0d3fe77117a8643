"""Opening search: the index that goes with the database, and the models whose vectors there can be."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

from almanac.ai.bundled import DEFAULT, BundledEmbedder
from almanac.ai.choice import open_embedder
from almanac.ai.embedder import Embedder
from almanac.core.database import Database
from almanac.core.settings import Settings
from almanac.search import compactor, index_postgres
from almanac.search.index import Index
from almanac.search.index_embedded import EmbeddedIndex
from almanac.search.index_postgres import PostgresIndex
from almanac.search.search import Search


def folder_of(settings: Settings) -> Path:
    """Where the files of the embedded index are."""
    return settings.home / "index"


@asynccontextmanager
async def open_search(settings: Settings, db: Database) -> AsyncGenerator[Search]:
    """Search over a database, for as long as it is needed."""
    index: Index = EmbeddedIndex(db, folder_of(settings)) if settings.on_sqlite else PostgresIndex(db)
    embedders = _embedders(settings)
    try:
        yield Search(db, index, {each.name: each for each in embedders})
    finally:
        await index.close()
        for each in embedders:
            await each.close()


async def maintain(settings: Settings, db: Database) -> None:
    """What an index needs done in the background, if anything."""
    if settings.on_sqlite:
        await compactor.run(db, settings.store_url, folder_of(settings))
    else:
        await index_postgres.maintain(db)


def _embedders(settings: Settings) -> list[Embedder]:
    """The one the settings ask for and, where that is another, the bundled one, which what is there may still use."""
    chosen = open_embedder(settings)
    bundled = BundledEmbedder(DEFAULT, settings.embedding_threads)
    return [chosen] if chosen.name == bundled.name else [chosen, bundled]
