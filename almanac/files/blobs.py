"""Blobs: the rows that name stored files, one for each content. Documents, attachments and datasets refer to them."""

from collections.abc import Sequence
from dataclasses import dataclass

from almanac.core import clock
from almanac.core.database import Database, Reader, Transaction

_IS_USED = """EXISTS (SELECT 1 FROM documents d WHERE d.blob_id = {id})
OR EXISTS (SELECT 1 FROM attachments a WHERE a.blob_id = {id})
OR EXISTS (SELECT 1 FROM dataset_files f WHERE f.blob_id = {id})"""


@dataclass(frozen=True, slots=True)
class StoredFile:
    """A file at its permanent path, which no row names yet."""

    hash: str
    name: str
    size: int
    head: bytes  # the first `HEAD_BYTES`


@dataclass(frozen=True, slots=True)
class Blob:
    """A row of `blobs`: the id, and the name of the file with the content."""

    id: int
    name: str


async def ensure(tx: Transaction, stored: StoredFile) -> int:
    """The id of the row with the content of a stored file. A new row is added if no row has the content."""
    sql = (
        "INSERT INTO blobs (hash, name, size, created_at) VALUES ($1, $2, $3, $4)"
        " ON CONFLICT (hash) DO UPDATE SET hash = excluded.hash RETURNING id"  # the update locks an existing row
    )
    row = await tx.fetch_one(sql, stored.hash, stored.name, stored.size, clock.now())
    assert row is not None
    return row["id"]


async def exists(db: Reader, name: str) -> bool:
    """Whether a row names the file with this name."""
    return await db.fetch_one("SELECT 1 FROM blobs WHERE name = $1", name) is not None


async def find_unused(db: Database, limit: int = 1000) -> list[Blob]:
    """Rows that no object refers to."""
    is_used = _IS_USED.format(id="b.id")
    sql = f"SELECT b.id, b.name FROM blobs b WHERE NOT ({is_used}) ORDER BY b.id LIMIT $1"  # noqa: S608 - constants
    rows = await db.scan(sql, limit)
    return [Blob(row["id"], row["name"]) for row in rows]


async def delete_unused(tx: Transaction, blobs: Sequence[Blob]) -> list[str]:
    """Delete those of these rows that are still unused. The caller removes the returned files after the commit.

    Another transaction may be adding a reference. Each row is therefore locked, as `ensure` does, before the
    references are looked up again.
    """
    names: list[str] = []
    for blob in blobs:
        await tx.execute("UPDATE blobs SET size = size WHERE id = $1", blob.id)
        sql = f"DELETE FROM blobs WHERE id = $1 AND NOT ({_IS_USED.format(id='$1')}) RETURNING name"  # noqa: S608
        row = await tx.fetch_one(sql, blob.id)
        names += [row["name"]] if row else []
    return names
