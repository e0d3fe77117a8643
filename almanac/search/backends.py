"""Opens the search engine: the index that belongs to the database, and the embedding models."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

from almanac.ai.bundled import DEFAULT, BundledEmbedder
from almanac.ai.embedder import Embedder
from almanac.ai.embedder_choice import open_embedder
from almanac.core.database import Database
from almanac.core.settings import Settings
from almanac.search.engine import SearchEngine
from almanac.search.index.embedded import compaction_process
from almanac.search.index.embedded.embedded_index import EmbeddedIndex
from almanac.search.index.postgres import postgres_index
from almanac.search.index.postgres.postgres_index import PostgresIndex
from almanac.search.index.protocol import SearchIndex


def folder_of(settings: Settings) -> Path:
    """The folder of the embedded index."""
    return settings.home / "index"


@asynccontextmanager
async def open_search(settings: Settings, db: Database) -> AsyncGenerator[SearchEngine]:
    """A search engine for a database, closed at the end of the context."""
    index: SearchIndex = EmbeddedIndex(db, folder_of(settings)) if settings.on_sqlite else PostgresIndex(db)
    embedders = _embedders(settings)
    try:
        yield SearchEngine(db, index, {each.name: each for each in embedders})
    finally:
        await index.close()
        for each in embedders:
            await each.close()


async def maintain(settings: Settings, db: Database) -> None:
    """Run the background work of the index."""
    if settings.on_sqlite:
        await compaction_process.run(db, settings.store_url, folder_of(settings))
    else:
        await postgres_index.maintain(db)


def _embedders(settings: Settings) -> list[Embedder]:
    """The configured model, and the bundled one, whose vectors the collections may still have."""
    chosen = open_embedder(settings)
    bundled = BundledEmbedder(DEFAULT, settings.embedding_threads)
    return [chosen] if chosen.name == bundled.name else [chosen, bundled]
