"""The data of the external bench: 100,000 documents in fifty bases, a tree of 5,000 nodes, and some texts to search."""

import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from almanac.core import clock
from almanac.core.database import Database, Transaction, Value
from almanac.db import migrate
from almanac.db.connect import connect
from almanac.identity import first_start
from almanac.jobs import queue

BASES = 50
DOCUMENTS = 100_000
FOLDERS = 500
NODES = 5_000  # folders and documents of the tree
LONG = 20_000  # characters of the document that is read
TEXTS = 200  # searchable texts

WORDS = ("pump", "valve", "boiler", "gauge", "filter", "motor", "seal", "bearing", "flange", "hose", "tank", "relay")


@dataclass(frozen=True)
class Library:
    """Where to look."""

    token: str
    tree: int
    document: int


async def fill(store: str) -> Library:
    """Insert all of it as rows, except the searchable texts, which are ingested afterwards in the usual way."""
    db = await connect(store)
    try:
        await migrate.apply(db)
        token = await first_start.create_first_admin(db)
        assert token is not None
        tree = await db.write(_bases)
        for start in range(0, DOCUMENTS, 10_000):
            await db.write(lambda tx, start=start: _documents(tx, range(start, start + 10_000)))
        await db.write(lambda tx: _tree(tx, tree))
        return Library(token, tree, 1)
    finally:
        await db.close()


async def is_idle(store: str) -> bool:
    """Whether every job is done."""
    db = await connect(store, pool_size=1)
    try:
        counts = await queue.counts(db)
        return not counts["queued"] and not counts["running"]
    finally:
        await db.close()


async def passages(db: Database, number: int) -> list[int]:
    rows = await db.fetch("SELECT id FROM passages ORDER BY id LIMIT $1", number)
    return [row["id"] for row in rows]


def write_texts(folder: Path) -> None:
    folder.mkdir(parents=True)
    for number in range(TEXTS):
        (folder / f"note-{number:04}.txt").write_text(f"Note {number}.\n\n{_text(number, 400)}\n")


def run(almanac: str, *arguments: str, env: dict[str, str]) -> str:
    done = subprocess.run([almanac, *arguments], env=env, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr[-1000:]
    return done.stdout.strip()


async def _bases(tx: Transaction) -> int:
    now = clock.now()
    org = await tx.fetch_one("SELECT org_id FROM principals WHERE id = 1")
    assert org is not None
    columns = ("org_id", "level", "owner_id", "name", "description", "folded", "splitter", "created_at", "updated_at")
    rows = [
        (org["org_id"], "personal", 1, f"Base {number}", "", f"base {number}\n", "{}", now - number, now)
        for number in range(BASES)
    ]
    tree = (org["org_id"], "personal", 1, "Tree", "", "tree\n", "{}", now - clock.DAY, now)
    await tx.insert_many("bases", columns, [*rows, tree])
    return BASES + 1


async def _documents(tx: Transaction, numbers: range) -> None:
    await _insert(tx, [(1 + number % BASES, 0, number + 1) for number in numbers])


async def _tree(tx: Transaction, tree: int) -> None:
    """Ten folders at the top, each with some below it, and documents in all of them."""
    now = clock.now()
    columns = ("base_id", "parent_id", "name", "creator_id", "created_at", "updated_at")
    parents = [0 if number < 10 else 1 + number % 10 for number in range(FOLDERS)]
    rows = [(tree, parent, f"folder {number}", 1, now + number, now) for number, parent in enumerate(parents)]
    await tx.insert_many("folders", columns, rows)
    await _insert(tx, [(tree, 1 + number % FOLDERS, DOCUMENTS + 1 + number) for number in range(NODES - FOLDERS)])


async def _insert(tx: Transaction, places: Sequence[tuple[int, int, int]]) -> None:
    """Documents (base, folder, id) that have been read."""
    now = clock.now()
    blobs = [(f"hash {id}", f"name {id}", 100, now) for _, _, id in places]
    await tx.insert_many("blobs", ("hash", "name", "size", "created_at"), blobs)
    columns = (
        "base_id", "folder_id", "name", "source_type", "extension", "mime_type", "size", "blob_id", "tags", "metadata",
        "is_enabled", "creator_id", "created_at", "updated_at", "generation", "index_status",
    )  # fmt: skip
    rows = [
        (base, folder, f"document {id}.txt", "text", "txt", "text/plain", 100, id, "[]", "{}", 1, 1, now + id, now, 1,
         "success")
        for base, folder, id in places
    ]  # fmt: skip
    await tx.insert_many("documents", columns, rows)
    columns = (
        "document_id", "generation", "title", "characters", "passages", "pages", "page_count", "facts", "warnings",
    )  # fmt: skip
    lengths = [(id, LONG if id == 1 else 300) for _, _, id in places]
    await tx.insert_many("readings", columns, [(id, 1, "", length, 1, "[]", 0, "{}", "[]") for id, length in lengths])
    parts: Iterator[tuple[Value, ...]] = ((id, 0, _text(id, length)) for id, length in lengths)
    await tx.insert_many("reading_parts", ("document_id", "part", "text"), list(parts))


def _text(number: int, length: int) -> str:
    words = " ".join(WORDS[(number * 7 + each * (1 + number % 5)) % len(WORDS)] for each in range(length // 4))
    return words[:length].ljust(length, ".")
