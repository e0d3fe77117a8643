"""A base of a hundred thousand documents: what a first page costs must not depend on how many others there are.

Cost is counted, not timed: instructions of SQLite's machine, and pages that PostgreSQL touches.
"""

import json
import re
import sqlite3
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from almanac.core.call import Call
from almanac.core.database import Row
from almanac.identity.roles import Role
from almanac.knowledge import bases, document_text, document_tree, documents, folders, trash
from almanac.knowledge.bases import KnowledgeBase
from almanac.knowledge.document_tree import MOST_NODES, ResultTooLarge
from almanac.knowledge.folders import Folder
from tests.knowledge.library import Library

FEW, MANY = 1_000, 100_000
DEARER = 3  # how many times as much a page may cost among a hundred times as many

Statement = tuple[str, tuple[Any, ...], int]  # what was asked, and how many rows came back


class Meter:
    """Notes what a database is asked, and asks it again to see what that costs."""

    def __init__(self, library: Library, path: Path, patch: pytest.MonkeyPatch) -> None:
        self._library = library
        self._path = path
        self.asked: list[Statement] = []
        for name in ("fetch", "scan"):
            patch.setattr(library.db, name, self._noting(getattr(library.db, name)))

    def _noting(self, real: Callable[..., Awaitable[list[Row]]]) -> Callable[..., Awaitable[list[Row]]]:
        async def ask(sql: str, *args: Any) -> list[Row]:
            rows = await real(sql, *args)
            self.asked.append((sql, args, len(rows)))
            return rows

        return ask

    async def cost(self, work: Callable[[], Awaitable[Any]]) -> int:
        """What the statements of some work cost."""
        self.asked.clear()
        await work()
        asked = list(self.asked)
        if self._library.db.dialect == "sqlite":
            return sum(self._instructions(sql, args) for sql, args, _ in asked)
        return sum([await self._pages(sql, args) for sql, args, _ in asked])

    def _instructions(self, sql: str, args: tuple[Any, ...]) -> int:
        count = 0

        def tick() -> None:
            nonlocal count
            count += 1

        connection = sqlite3.connect(self._path)
        connection.set_progress_handler(tick, 1)
        connection.execute(re.sub(r"\$(\d+)", r"?\1", sql), args).fetchall()
        connection.close()
        return count

    async def _pages(self, sql: str, args: tuple[Any, ...]) -> int:
        (row,) = await self._library.db.fetch(f"EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) {sql}", *args)
        (plan,) = json.loads(row[0])
        return plan["Plan"]["Shared Hit Blocks"] + plan["Plan"]["Shared Read Blocks"]


async def fill(library: Library, base: KnowledgeBase, number: int, folder: Folder | None = None) -> None:
    """Documents by the thousand, all of one file."""
    model = (await library.add("model.txt", "A text.", base=base)).document
    (blob,) = await library.rows("SELECT blob_id FROM documents WHERE id = $1", model.id)
    columns = (
        "base_id", "folder_id", "name", "source_type", "extension", "mime_type", "size", "blob_id", "tags", "metadata",
        "is_enabled", "creator_id", "created_at", "updated_at", "generation", "index_status",
    )  # fmt: skip
    place = folder.id if folder else 0
    rows = [
        (base.id, place, f"{n}.txt", "text", "txt", "text/plain", 7, blob["blob_id"], "[]", "{}", 1,
         library.librarian.id, n + 1, n + 1, 1, "success")
        for n in range(number)
    ]  # fmt: skip
    await library.do(lambda tx: tx.insert_many("documents", columns, rows))


async def freeze(library: Library) -> None:
    """Let a database look at its tables only when it is told to, so that old statistics stay old."""
    if library.db.dialect == "sqlite":
        return
    for row in await library.rows("SELECT tablename FROM pg_tables WHERE schemaname = current_schema()"):
        sql = f"ALTER TABLE {row['tablename']} SET (autovacuum_enabled = false)"
        await library.do(lambda tx, sql=sql: tx.execute(sql))


async def analyse(library: Library) -> None:
    await library.do(lambda tx: tx.execute("ANALYZE"))


async def shelve(library: Library, name: str, number: int) -> KnowledgeBase:
    """A base with so many documents, half of them in a folder."""
    base = await library.do(lambda tx: bases.add(library.call, tx, name))
    full = await library.folder("full", base=base)
    await library.folder("empty", base=base)
    await fill(library, base, number // 2)
    await fill_folder(library, base, full, number // 2)
    return base


@pytest.fixture
async def shelves(library: Library) -> tuple[KnowledgeBase, KnowledgeBase]:
    """A base with few documents and one with many, alike in everything else: each has folders, one of them full."""
    await freeze(library)
    return await shelve(library, "Few", FEW), await shelve(library, "Many", MANY)


async def fill_folder(library: Library, base: KnowledgeBase, folder: Folder, number: int) -> None:
    await library.do(
        lambda tx: tx.execute(
            "INSERT INTO documents (base_id, folder_id, name, source_type, extension, mime_type, size, blob_id, tags,"
            " metadata, is_enabled, creator_id, created_at, updated_at, generation, index_status)"
            " SELECT base_id, $2, name, source_type, extension, mime_type, size, blob_id, tags, metadata, is_enabled,"
            " creator_id, created_at, updated_at, generation, index_status FROM documents"
            " WHERE base_id = $1 AND folder_id = 0 ORDER BY id LIMIT $3",
            base.id,
            folder.id,
            number,
        )
    )


async def full_folder(library: Library, base: KnowledgeBase) -> int:
    (row,) = await library.rows("SELECT id FROM folders WHERE base_id = $1 AND name = 'full'", base.id)
    return row["id"]


Look = Callable[[KnowledgeBase, int], Awaitable[Any]]


def first_pages(library: Library) -> dict[str, Look]:
    return {
        "the top": lambda base, _: document_tree.browse(library.call, base.id),
        "a folder": lambda base, full: document_tree.browse(library.call, base.id, full),
        "a short page": lambda base, full: document_tree.browse(library.call, base.id, full, limit=10),
        "a further page": lambda base, full: document_tree.browse(library.call, base.id, full, limit=10, offset=30),
        "the trash": lambda base, _: trash.find(library.call, base.id),
        "a folder by its path": lambda base, _: library.do(
            lambda tx: folders.ensure(library.call, tx, base.id, "full")
        ),
    }


async def find_dearer(
    library: Library, meter: Meter, shelves: tuple[KnowledgeBase, KnowledgeBase], looks: dict[str, Look]
) -> list[str]:
    """What costs more in the second base than in the first."""
    places = {base.id: await full_folder(library, base) for base in shelves}
    found: list[str] = []
    for name, look in looks.items():
        few, many = [await meter.cost(lambda b=base, k=look: k(b, places[b.id])) for base in shelves]
        if many > DEARER * few + 50:
            found.append(f"{name}: {few} among few, {many} among many")
    return found


async def test_a_first_page_costs_the_same_among_a_thousand_and_a_hundred_thousand(
    library: Library, shelves: tuple[KnowledgeBase, KnowledgeBase], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    looks = first_pages(library)
    meter = Meter(library, tmp_path / "almanac.db", monkeypatch)
    # Before it has ever looked at a table, PostgreSQL asks an index that is not the best whether folders are empty.
    unseen = {name: look for name, look in looks.items() if name != "the top"}
    assert await find_dearer(library, meter, shelves, unseen) == []
    await analyse(library)
    assert await find_dearer(library, meter, shelves, looks) == []
    level = await document_tree.browse(library.call, shelves[1].id, limit=100)
    assert [node.item.name for node in level.nodes[:2]] == ["empty", "full"]
    assert [node.has_children for node in level.nodes[:2]] == [False, True]
    assert (len(level.nodes), level.has_more) == (100, True)


async def test_a_first_page_of_what_came_after_the_database_last_looked_costs_the_same(
    library: Library, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    await freeze(library)
    few = await shelve(library, "Few", FEW)
    await analyse(library)
    many = await shelve(library, "Many", MANY)
    meter = Meter(library, tmp_path / "almanac.db", monkeypatch)
    assert await find_dearer(library, meter, (few, many), first_pages(library)) == []


async def test_a_tree_that_is_too_large_is_refused_before_it_is_loaded(
    library: Library, shelves: tuple[KnowledgeBase, KnowledgeBase], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    few, many = shelves
    assert (await document_tree.tree(library.call, few.id)).count == FEW + 3
    full = await full_folder(library, many)
    meter = Meter(library, tmp_path / "almanac.db", monkeypatch)
    for folder_id, count in ((0, MANY + 3), (full, MANY // 2)):
        meter.asked.clear()
        with pytest.raises(ResultTooLarge, match=f"has {count} nodes, which exceeds the limit of {MOST_NODES}"):
            await document_tree.tree(library.call, many.id, folder_id)
        assert sum(rows for *_, rows in meter.asked) < 20


async def test_one_document_costs_what_one_document_costs(
    library: Library, shelves: tuple[KnowledgeBase, KnowledgeBase], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    await library.read_all()
    newest = "SELECT max(id) AS id FROM documents WHERE base_id = $1"
    ids = [(await library.rows(newest, base.id))[0]["id"] for base in shelves]
    meter = Meter(library, tmp_path / "almanac.db", monkeypatch)
    looks: list[Callable[[int], Awaitable[Any]]] = [
        lambda id: documents.get(library.db, library.call, id),
        lambda id: document_text.read(library.call, id),
        lambda id: library.do(lambda tx: documents.update(library.call, tx, id, tags=["x"])),
        lambda id: library.do(lambda tx: documents.remove(library.call, tx, [id])),
    ]
    for look in looks:
        few, many = [await meter.cost(lambda i=id, k=look: k(i)) for id in ids]
        assert many <= DEARER * few + 50


async def test_a_listing_of_bases_counts_the_documents_of_its_page_and_of_no_other(
    library: Library, shelves: tuple[KnowledgeBase, KnowledgeBase], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    few, many = shelves
    for n in range(60):
        await library.do(lambda tx, n=n: bases.add(library.call, tx, f"Base {n}"))
    maria = await library.town.add("maria")
    lonely = library.town.call(await library.town.actor(maria))
    for n in range(20):
        await library.do(lambda tx, n=n: bases.add(lonely, tx, f"Hers {n}"))
    meter = Meter(library, tmp_path / "almanac.db", monkeypatch)

    async def page(call: Call, offset: int = 0) -> dict[str, int | None]:
        return {base.name: base.documents for base in (await bases.find(call, limit=20, offset=offset)).items}

    without = await meter.cost(lambda: page(library.call))
    alone = await meter.cost(lambda: page(lonely))
    assert without <= DEARER * alone + 500
    last = await page(library.call, 60)
    assert (last["Few"], last["Many"], last["Manuals"]) == (FEW + 1, MANY + 1, 0)
    assert few.id != many.id


async def test_a_listing_costs_no_more_for_what_is_shared_among_others(
    library: Library, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    town = library.town
    made = [await library.do(lambda tx, n=n: bases.add(library.call, tx, f"Base {n}")) for n in range(30)]
    mine = await town.add("maria")
    await town.group("team", maria=Role.Reporter)
    maria = town.call(await town.actor(mine))
    await library.do(lambda tx: bases.share(library.call, tx, made[0].id, Role.Reporter, user="maria"))
    await library.do(lambda tx: bases.share(library.call, tx, made[1].id, Role.Reporter, group="team"))
    meter = Meter(library, tmp_path / "almanac.db", monkeypatch)
    before = await meter.cost(lambda: bases.find(maria))
    columns = ("org_id", "thing_kind", "thing_id", "principal_id", "role", "created_at")
    crowd = [(await town.add(f"user {n}")).id for n in range(200)]
    grants = [(town.acme.id, "base", str(base.id), id, "Reporter", 1) for base in made for id in crowd]
    await library.do(lambda tx: tx.insert_many("grants", columns, grants))
    await analyse(library)
    after = await meter.cost(lambda: bases.find(maria))
    assert after <= DEARER * before + 50
    assert {base.name for base in (await bases.find(maria)).items} == {"Base 0", "Base 1"}
