"""The cost of a page must not depend on the number of documents, tested with a hundred thousand of them.

Cost is counted, not timed: instructions of SQLite's virtual machine, or buffers that PostgreSQL reads.
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
from almanac.knowledge.document_tree import MAX_NODES, ResultTooLarge
from almanac.knowledge.folders import Folder
from tests.knowledge.workspace import Workspace

FEW, MANY = 1_000, 100_000
MAX_COST_RATIO = 3  # for a hundred times as many documents

Bases = tuple[KnowledgeBase, KnowledgeBase]
Statement = tuple[str, tuple[Any, ...], int]  # the SQL, its parameters and the number of rows


class CostMeter:
    """Records the queries of a database, and repeats them to measure their cost."""

    def __init__(self, workspace: Workspace, path: Path, patch: pytest.MonkeyPatch) -> None:
        self._library = workspace
        self._path = path
        self.queries: list[Statement] = []
        for name in ("fetch", "scan"):
            patch.setattr(workspace.db, name, self._recording(getattr(workspace.db, name)))

    def _recording(self, real: Callable[..., Awaitable[list[Row]]]) -> Callable[..., Awaitable[list[Row]]]:
        async def ask(sql: str, *args: Any) -> list[Row]:
            rows = await real(sql, *args)
            self.queries.append((sql, args, len(rows)))
            return rows

        return ask

    async def cost(self, work: Callable[[], Awaitable[Any]]) -> int:
        """The cost of the queries of some work."""
        self.queries.clear()
        await work()
        queries = list(self.queries)
        if self._library.db.dialect == "sqlite":
            return sum(self._instructions(sql, args) for sql, args, _ in queries)
        return sum([await self._pages(sql, args) for sql, args, _ in queries])

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


async def fill(workspace: Workspace, base: KnowledgeBase, number: int, folder: Folder | None = None) -> None:
    """Add many documents with the same file."""
    model = (await workspace.add("model.txt", "A text.", base=base)).document
    (blob,) = await workspace.rows("SELECT blob_id FROM documents WHERE id = $1", model.id)
    columns = (
        "base_id", "folder_id", "name", "source_type", "extension", "mime_type", "size", "blob_id", "tags", "metadata",
        "is_enabled", "creator_id", "created_at", "updated_at", "generation", "index_status",
    )  # fmt: skip
    place = folder.id if folder else 0
    rows = [
        (base.id, place, f"{n}.txt", "text", "txt", "text/plain", 7, blob["blob_id"], "[]", "{}", 1,
         workspace.owner.id, n + 1, n + 1, 1, "success")
        for n in range(number)
    ]  # fmt: skip
    await workspace.do(lambda tx: tx.insert_many("documents", columns, rows))


async def freeze_statistics(workspace: Workspace) -> None:
    """Switch off automatic statistics, so that they become outdated."""
    if workspace.db.dialect == "sqlite":
        return
    for row in await workspace.rows("SELECT tablename FROM pg_tables WHERE schemaname = current_schema()"):
        sql = f"ALTER TABLE {row['tablename']} SET (autovacuum_enabled = false)"
        await workspace.do(lambda tx, sql=sql: tx.execute(sql))


async def analyse(workspace: Workspace) -> None:
    await workspace.do(lambda tx: tx.execute("ANALYZE"))


async def add_base(workspace: Workspace, name: str, number: int) -> KnowledgeBase:
    """A base with this number of documents, half of them in a folder."""
    base = await workspace.do(lambda tx: bases.add(workspace.call, tx, name))
    full = await workspace.add_folder("full", base=base)
    await workspace.add_folder("empty", base=base)
    await fill(workspace, base, number // 2)
    await fill_folder(workspace, base, full, number // 2)
    return base


@pytest.fixture
async def two_bases(workspace: Workspace) -> tuple[KnowledgeBase, KnowledgeBase]:
    """A base with few documents and one with many. Both have an empty folder and a full one."""
    await freeze_statistics(workspace)
    return await add_base(workspace, "Few", FEW), await add_base(workspace, "Many", MANY)


async def fill_folder(workspace: Workspace, base: KnowledgeBase, folder: Folder, number: int) -> None:
    await workspace.do(
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


async def full_folder(workspace: Workspace, base: KnowledgeBase) -> int:
    (row,) = await workspace.rows("SELECT id FROM folders WHERE base_id = $1 AND name = 'full'", base.id)
    return row["id"]


View = Callable[[KnowledgeBase, int], Awaitable[Any]]


def first_pages(workspace: Workspace) -> dict[str, View]:
    return {
        "the top": lambda base, _: document_tree.browse(workspace.call, base.id),
        "a folder": lambda base, full: document_tree.browse(workspace.call, base.id, full),
        "a short page": lambda base, full: document_tree.browse(workspace.call, base.id, full, limit=10),
        "a further page": lambda base, full: document_tree.browse(workspace.call, base.id, full, limit=10, offset=30),
        "the trash": lambda base, _: trash.find(workspace.call, base.id),
        "a folder by its path": lambda base, _: workspace.do(
            lambda tx: folders.ensure(workspace.call, tx, base.id, "full")
        ),
    }


async def find_expensive(workspace: Workspace, meter: CostMeter, two_bases: Bases, looks: dict[str, View]) -> list[str]:
    """The views that cost more in the second base than in the first."""
    places = {base.id: await full_folder(workspace, base) for base in two_bases}
    found: list[str] = []
    for name, look in looks.items():
        few, many = [await meter.cost(lambda b=base, k=look: k(b, places[b.id])) for base in two_bases]
        if many > MAX_COST_RATIO * few + 50:
            found.append(f"{name}: {few} among few, {many} among many")
    return found


async def test_a_first_page_costs_the_same_for_a_thousand_and_a_hundred_thousand_documents(
    workspace: Workspace,
    two_bases: Bases,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
):
    looks = first_pages(workspace)
    meter = CostMeter(workspace, tmp_path / "almanac.db", monkeypatch)
    # Without any statistics, PostgreSQL does not use the best index to find out whether folders are empty.
    unseen = {name: look for name, look in looks.items() if name != "the top"}
    assert await find_expensive(workspace, meter, two_bases, unseen) == []
    await analyse(workspace)
    assert await find_expensive(workspace, meter, two_bases, looks) == []
    level = await document_tree.browse(workspace.call, two_bases[1].id, limit=100)
    assert [node.item.name for node in level.nodes[:2]] == ["empty", "full"]
    assert [node.has_children for node in level.nodes[:2]] == [False, True]
    assert (len(level.nodes), level.has_more) == (100, True)


async def test_a_first_page_costs_the_same_with_outdated_statistics(
    workspace: Workspace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    await freeze_statistics(workspace)
    few = await add_base(workspace, "Few", FEW)
    await analyse(workspace)
    many = await add_base(workspace, "Many", MANY)
    meter = CostMeter(workspace, tmp_path / "almanac.db", monkeypatch)
    assert await find_expensive(workspace, meter, (few, many), first_pages(workspace)) == []


async def test_a_tree_that_is_too_large_is_refused_before_it_is_loaded(
    workspace: Workspace,
    two_bases: Bases,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
):
    few, many = two_bases
    assert (await document_tree.tree(workspace.call, few.id)).count == FEW + 3
    full = await full_folder(workspace, many)
    meter = CostMeter(workspace, tmp_path / "almanac.db", monkeypatch)
    for folder_id, count in ((0, MANY + 3), (full, MANY // 2)):
        meter.queries.clear()
        with pytest.raises(ResultTooLarge, match=f"has {count} nodes, which exceeds the limit of {MAX_NODES}"):
            await document_tree.tree(workspace.call, many.id, folder_id)
        assert sum(rows for *_, rows in meter.queries) < 20


async def test_the_cost_of_one_document_does_not_depend_on_the_size_of_its_base(
    workspace: Workspace,
    two_bases: Bases,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
):
    await workspace.run_jobs()
    newest = "SELECT max(id) AS id FROM documents WHERE base_id = $1"
    ids = [(await workspace.rows(newest, base.id))[0]["id"] for base in two_bases]
    meter = CostMeter(workspace, tmp_path / "almanac.db", monkeypatch)
    looks: list[Callable[[int], Awaitable[Any]]] = [
        lambda id: documents.get(workspace.db, workspace.call, id),
        lambda id: document_text.read(workspace.call, id),
        lambda id: workspace.do(lambda tx: documents.update(workspace.call, tx, id, tags=["x"])),
        lambda id: workspace.do(lambda tx: documents.remove(workspace.call, tx, [id])),
    ]
    for look in looks:
        few, many = [await meter.cost(lambda i=id, k=look: k(i)) for id in ids]
        assert many <= MAX_COST_RATIO * few + 50


async def test_a_list_of_bases_counts_only_the_documents_of_its_page(
    workspace: Workspace,
    two_bases: Bases,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
):
    few, many = two_bases
    for n in range(60):
        await workspace.do(lambda tx, n=n: bases.add(workspace.call, tx, f"Base {n}"))
    maria = await workspace.town.add("maria")
    lonely = workspace.town.call(await workspace.town.actor(maria))
    for n in range(20):
        await workspace.do(lambda tx, n=n: bases.add(lonely, tx, f"Hers {n}"))
    meter = CostMeter(workspace, tmp_path / "almanac.db", monkeypatch)

    async def page(call: Call, offset: int = 0) -> dict[str, int | None]:
        return {base.name: base.documents for base in (await bases.find(call, limit=20, offset=offset)).items}

    without = await meter.cost(lambda: page(workspace.call))
    alone = await meter.cost(lambda: page(lonely))
    assert without <= MAX_COST_RATIO * alone + 500
    last = await page(workspace.call, 60)
    assert (last["Few"], last["Many"], last["Manuals"]) == (FEW + 1, MANY + 1, 0)
    assert few.id != many.id


async def test_the_cost_of_a_list_of_bases_does_not_depend_on_grants_to_others(
    workspace: Workspace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    town = workspace.town
    made = [await workspace.do(lambda tx, n=n: bases.add(workspace.call, tx, f"Base {n}")) for n in range(30)]
    mine = await town.add("maria")
    await town.group("team", maria=Role.Reporter)
    maria = town.call(await town.actor(mine))
    await workspace.do(lambda tx: bases.share(workspace.call, tx, made[0].id, Role.Reporter, user="maria"))
    await workspace.do(lambda tx: bases.share(workspace.call, tx, made[1].id, Role.Reporter, group="team"))
    meter = CostMeter(workspace, tmp_path / "almanac.db", monkeypatch)
    before = await meter.cost(lambda: bases.find(maria))
    columns = ("org_id", "thing_kind", "thing_id", "principal_id", "role", "created_at")
    crowd = [(await town.add(f"user {n}")).id for n in range(200)]
    grants = [(town.acme.id, "base", str(base.id), id, "Reporter", 1) for base in made for id in crowd]
    await workspace.do(lambda tx: tx.insert_many("grants", columns, grants))
    await analyse(workspace)
    after = await meter.cost(lambda: bases.find(maria))
    assert after <= MAX_COST_RATIO * before + 50
    assert {base.name for base in (await bases.find(maria)).items} == {"Base 0", "Base 1"}
