"""People of two organisations with datasets and a file store, and shortcuts to change them."""

import hashlib
import secrets
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from almanac.core.call import Call
from almanac.core.database import Database, Transaction
from almanac.data import datasets, versions
from almanac.data.dataset import Dataset
from almanac.data.fields import INTEGER, Field
from almanac.data.versions import Commit, DatasetVersion, NewFile
from almanac.files.blobs import StoredFile
from almanac.files.file_store import FileStore
from tests.identity.people import Town, settle

T = TypeVar("T")

N = Field("n", INTEGER)


@dataclass
class Warehouse:
    """Ada, who owns datasets, Bob, her colleague, an administrator, and Eve of another organisation."""

    town: Town
    files: FileStore
    ada: Call
    bob: Call
    admin: Call
    eve: Call

    @property
    def db(self) -> Database:
        return self.town.db

    async def do(self, body: Callable[[Transaction], Awaitable[T]]) -> T:
        return await self.db.write(body)

    async def add(self, name: str, *, by: Call | None = None) -> Dataset:
        return await self.do(lambda tx: datasets.add(by or self.ada, tx, name))

    async def get(self, dataset: Dataset, *, by: Call | None = None, **how: Any) -> Dataset:
        return await datasets.get(self.db, by or self.ada, dataset.id, **how)

    async def commit(
        self, dataset: Dataset, change: str = "append", rows: Sequence[int] = (), **how: Any
    ) -> DatasetVersion:
        """Commit a version with a new file for each number of rows. The files are not Parquet."""
        added = [NewFile(await self.file(), (N,), count) for count in rows]
        made = Commit(change, (N,), added, **how)
        return await self.do(lambda tx: versions.commit(tx, dataset, made, self.ada.actor.id))

    async def file(self) -> StoredFile:
        """A file of random content, which no row names yet."""
        content = secrets.token_bytes(16)
        async with self.files.receive(self.db) as incoming:
            await incoming.write(content)
            stored = await incoming.finish()
            # Named at once, because a file without a row is removed at the end of the block.
            row = "INSERT INTO blobs (hash, name, size, created_at) VALUES ($1, $2, $3, 0)"
            await self.do(lambda tx: tx.execute(row, hashlib.sha256(content).hexdigest(), stored.name, stored.size))
        return stored

    async def hashes(self, dataset: Dataset, number: int | None = None) -> list[str]:
        """The hashes of the files of a version."""
        return [file.hash for file in await versions.files_of(self.db, await self.get(dataset), number)]


async def open_warehouse(db: Database, home: Path) -> Warehouse:
    town = await settle(db)
    people = (
        ("ada", town.acme, False),
        ("bob", town.acme, False),
        ("root", town.acme, True),
        ("eve", town.other, False),
    )
    calls = [town.call(await town.actor(await town.add(name, org=org, admin=admin))) for name, org, admin in people]
    return Warehouse(town, FileStore(home, 10_000_000), *calls)
