"""Folders form a tree, also after concurrent and random operations."""

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test

from almanac.core.database import Transaction
from almanac.core.errors import AlmanacError, BadRequest, Conflict, NotFound
from almanac.db.connect import connect
from almanac.knowledge import bases, document_status, document_tree, documents, folders, trash
from almanac.knowledge.folders import ROOT
from tests.knowledge.workspace import Workspace, open_workspace

Work = Callable[[Transaction], Awaitable[Any]]

MAX_DEPTH = 4  # in the state machine, so that it reaches the limit


async def attempt(work: Awaitable[Any]) -> Any:
    try:
        return await work
    except AlmanacError as error:
        return error


async def parents(workspace: Workspace) -> dict[int, int]:
    rows = await workspace.db.fetch("SELECT id, parent_id FROM folders WHERE removed_at IS NULL")
    return {row["id"]: row["parent_id"] for row in rows}


async def path_of(workspace: Workspace, folder_id: int) -> str:
    return (await document_status.folder_paths(workspace.call, workspace.base.id))[folder_id]


def has_cycle(tree: dict[int, int]) -> bool:
    for start in tree:
        at, steps = start, 0
        while at in tree and steps <= len(tree):
            at, steps = tree[at], steps + 1
        if steps > len(tree):
            return True
    return False


# Single operations


async def test_a_folder_is_added_renamed_and_moved(workspace: Workspace):
    call = workspace.call
    pumps = await workspace.add_folder(" Pumps ")
    care = await workspace.add_folder("Care", pumps.id)
    assert (pumps.name, pumps.parent_id, care.parent_id) == ("Pumps", ROOT, pumps.id)
    assert await path_of(workspace, care.id) == "Pumps/Care"
    renamed = await workspace.do(lambda tx: folders.rename(call, tx, pumps.id, "Valves"))
    assert (renamed.id, renamed.name) == (pumps.id, "Valves")
    moved = await workspace.do(lambda tx: folders.move(call, tx, care.id, ROOT))
    assert (moved.parent_id, moved.name) == (ROOT, "Care")
    again = await workspace.do(lambda tx: folders.move(call, tx, care.id, ROOT))
    assert again.parent_id == ROOT


async def test_the_missing_folders_of_a_path_are_added(workspace: Workspace):
    ensured = await workspace.do(lambda tx: folders.ensure(workspace.call, tx, workspace.base.id, " a / b //c/ "))
    assert await path_of(workspace, ensured) == "a/b/c"
    assert await workspace.do(lambda tx: folders.ensure(workspace.call, tx, workspace.base.id, "a/b/c")) == ensured
    below = await workspace.do(lambda tx: folders.ensure(workspace.call, tx, workspace.base.id, "d", ensured))
    assert await path_of(workspace, below) == "a/b/c/d"
    assert await workspace.do(lambda tx: folders.ensure(workspace.call, tx, workspace.base.id, "")) == ROOT
    assert await workspace.count("folders") == 4


@pytest.mark.parametrize(
    "name",
    ["", " ", ".", "..", "a/b", "a\\b", "a\x00", "a\nb", "\x7f", "\x9b1m", "\u202egpj.exe", "\ud800", "x" * 256],
)
async def test_a_name_that_would_divide_a_path_or_mislead_a_reader_is_refused(workspace: Workspace, name: str):
    there = await workspace.add_folder("There")
    works: list[Work] = [
        lambda tx: folders.add(workspace.call, tx, workspace.base.id, name),
        lambda tx: folders.rename(workspace.call, tx, there.id, name),
    ]
    for work in works:
        with pytest.raises(BadRequest, match="cannot be used"):
            await workspace.do(work)
    with pytest.raises(BadRequest, match="cannot be used"):
        await workspace.add(name, "A text.")
    assert (await workspace.count("folders"), await workspace.count("documents"), workspace.stored_names()) == (
        1,
        0,
        set(),
    )


async def test_names_are_unique_in_a_folder_but_a_folder_may_have_the_name_of_a_document(workspace: Workspace):
    pumps = await workspace.add_folder("Pumps")
    other = await workspace.add_folder("Other")
    await workspace.add("Pumps", "A text.")
    inner = await workspace.add_folder("Pumps", other.id)
    works: list[Work] = [
        lambda tx: folders.add(workspace.call, tx, workspace.base.id, "Pumps"),
        lambda tx: folders.rename(workspace.call, tx, other.id, "Pumps"),
        lambda tx: folders.move(workspace.call, tx, inner.id, ROOT),
    ]
    for work in works:
        with pytest.raises(Conflict, match="already a folder named 'Pumps'"):
            await workspace.do(work)
    same = await workspace.do(lambda tx: folders.rename(workspace.call, tx, pumps.id, "Pumps"))
    assert same.name == "Pumps"


async def test_a_folder_cannot_be_moved_into_itself_or_below_itself_or_into_another_base(workspace: Workspace):
    other = await workspace.do(lambda tx: bases.add(workspace.call, tx, "Other"))
    a = await workspace.add_folder("a")
    b = await workspace.add_folder("b", a.id)
    c = await workspace.add_folder("c", b.id)
    far = await workspace.add_folder("far", base=other)
    for target in (a, b, c):
        with pytest.raises(Conflict, match="into itself"):
            await workspace.do(lambda tx, t=target: folders.move(workspace.call, tx, a.id, t.id))
    works: list[Work] = [
        lambda tx: folders.move(workspace.call, tx, a.id, far.id),
        lambda tx: folders.move(workspace.call, tx, a.id, 99_999),
        lambda tx: folders.add(workspace.call, tx, workspace.base.id, "x", far.id),
    ]
    for work in works:
        with pytest.raises(NotFound):
            await workspace.do(work)
    assert await parents(workspace) == {a.id: ROOT, b.id: a.id, c.id: b.id, far.id: ROOT}


async def test_folders_can_be_at_most_a_hundred_deep(workspace: Workspace):
    path = "/".join(f"f{n}" for n in range(100))
    deepest = await workspace.do(lambda tx: folders.ensure(workspace.call, tx, workspace.base.id, path))
    assert await path_of(workspace, deepest) == path
    with pytest.raises(BadRequest, match="100 deep"):
        await workspace.add_folder("one more", deepest)
    single = await workspace.add_folder("single")
    with pytest.raises(BadRequest, match="100 deep"):
        await workspace.do(lambda tx: folders.move(workspace.call, tx, single.id, deepest))
    with pytest.raises(BadRequest, match="100 deep"):
        await workspace.do(lambda tx: folders.ensure(workspace.call, tx, workspace.base.id, "a/" * 101))
    assert await workspace.count("folders") == 101
    tree = await document_tree.tree(workspace.call, workspace.base.id)
    assert (tree.count, tree.warnings) == (101, [])


async def test_the_contents_of_a_removed_folder_move_up_under_unique_names(workspace: Workspace):
    outer = await workspace.add_folder("outer")
    inner = await workspace.add_folder("outer", outer.id)
    below = await workspace.add_folder("below", inner.id)
    await workspace.add_folder("twin")
    twin = await workspace.add_folder("twin", outer.id)
    await workspace.add("a.txt", "1")
    clash = await workspace.add("a.txt", "2", folder_id=outer.id)
    free = await workspace.add("b.txt", "3", folder_id=outer.id)
    await workspace.do(lambda tx: folders.remove(workspace.call, tx, outer.id, contents="move"))
    level = await document_tree.browse(workspace.call, workspace.base.id)
    names = {(node.is_folder, node.item.id): node.item.name for node in level.nodes}
    assert names[True, inner.id] == "outer"  # the name is free, because its folder is removed
    assert names[True, twin.id] == "twin (2)"
    assert (names[False, clash.document.id], names[False, free.document.id]) == ("a (2).txt", "b.txt")
    assert (await parents(workspace))[below.id] == inner.id
    back = await workspace.do(lambda tx: folders.restore(workspace.call, tx, outer.id))
    assert (back.name, back.parent_id) == ("outer (2)", ROOT)
    assert (await document_tree.browse(workspace.call, workspace.base.id, outer.id)).nodes == []


async def test_the_removal_of_a_folder_needs_a_decision_about_its_contents(workspace: Workspace):
    folder = await workspace.add_folder("a")
    with pytest.raises(BadRequest, match="'move' or 'delete'"):
        await workspace.do(lambda tx: folders.remove(workspace.call, tx, folder.id, contents="keep"))
    assert await workspace.count("folders", "removed_at IS NULL") == 1


async def test_a_folder_is_removed_and_restored_with_its_contents(workspace: Workspace):
    outer = await workspace.add_folder("outer")
    inner = await workspace.add_folder("inner", outer.id)
    deep = await workspace.add_parsed("deep.txt", "Deep down.", folder_id=inner.id)
    off = await workspace.add_parsed("off.txt", "Switched off.", folder_id=inner.id)
    earlier = await workspace.add_parsed("earlier.txt", "Went before.", folder_id=outer.id)
    await workspace.do(lambda tx: documents.enable(workspace.call, tx, [off.id], False))
    await workspace.do(lambda tx: documents.remove(workspace.call, tx, [earlier.id]))
    await workspace.do(lambda tx: folders.remove(workspace.call, tx, outer.id, contents="delete"))
    assert await workspace.count("sources", "is_live = 1") == 0
    assert [(gone.kind, gone.id) for gone in await trash.find(workspace.call, workspace.base.id)] == [
        ("folder", outer.id),
        ("document", earlier.id),
    ]
    for missing in (outer.id, inner.id):
        with pytest.raises(NotFound):
            await folders.get(workspace.db, workspace.call, missing)
    await workspace.do(lambda tx: folders.restore(workspace.call, tx, outer.id))
    assert await parents(workspace) == {outer.id: ROOT, inner.id: outer.id}
    assert (await workspace.get(deep.id)).folder_id == inner.id
    live = await workspace.rows("SELECT owner_id FROM sources WHERE is_live = 1")
    assert [row["owner_id"] for row in live] == [str(deep.id)]
    with pytest.raises(NotFound):
        await workspace.get(earlier.id)
    with pytest.raises(NotFound):
        await workspace.do(lambda tx: folders.restore(workspace.call, tx, outer.id))


async def test_a_document_removed_with_its_folder_while_queued_is_parsed_after_it_is_restored(
    workspace: Workspace,
):
    folder = await workspace.add_folder("a")
    added = await workspace.add("a.txt", "Waiting.", folder_id=folder.id)
    await workspace.do(lambda tx: folders.remove(workspace.call, tx, folder.id, contents="delete"))
    assert await workspace.run_jobs() == 1  # the job drops its result
    await workspace.do(lambda tx: folders.restore(workspace.call, tx, folder.id))
    assert await workspace.run_jobs() == 1
    assert (await workspace.get(added.document.id)).index_status == "success"


async def test_a_folder_in_a_removed_folder_can_be_restored_by_itself(workspace: Workspace):
    outer = await workspace.add_folder("outer")
    inner = await workspace.add_folder("inner", outer.id)
    below = await workspace.add_folder("below", inner.id)
    mine = await workspace.add_parsed("mine.txt", "Mine.", folder_id=below.id)
    other = await workspace.add_parsed("other.txt", "Other.", folder_id=outer.id)
    await workspace.do(lambda tx: folders.remove(workspace.call, tx, outer.id, contents="delete"))
    await workspace.do(lambda tx: folders.restore(workspace.call, tx, inner.id))
    assert await parents(workspace) == {inner.id: ROOT, below.id: inner.id}
    assert (await workspace.get(mine.id)).folder_id == below.id
    await workspace.add("other.txt", "A new one.", folder_id=below.id)
    await workspace.do(lambda tx: folders.restore(workspace.call, tx, outer.id))
    assert await parents(workspace) == {outer.id: ROOT, inner.id: ROOT, below.id: inner.id}
    assert (await workspace.get(other.id)).folder_id == outer.id


async def test_a_restored_folder_is_at_the_top_if_its_parent_is_gone_or_too_deep(workspace: Workspace):
    outer = await workspace.add_folder("outer")
    inner = await workspace.add_folder("inner", outer.id)
    await workspace.do(lambda tx: folders.remove(workspace.call, tx, inner.id, contents="delete"))
    deep = await workspace.do(lambda tx: folders.ensure(workspace.call, tx, workspace.base.id, "/".join(["d"] * 99)))
    await workspace.do(lambda tx: folders.move(workspace.call, tx, outer.id, deep))
    back = await workspace.do(lambda tx: folders.restore(workspace.call, tx, inner.id))
    assert back.parent_id == ROOT
    await workspace.do(lambda tx: folders.remove(workspace.call, tx, inner.id, contents="delete"))
    await workspace.do(lambda tx: folders.remove(workspace.call, tx, outer.id, contents="delete"))
    back = await workspace.do(lambda tx: folders.restore(workspace.call, tx, inner.id))
    assert back.parent_id == ROOT


@pytest.mark.parametrize(
    ("name", "second", "third"),
    [
        ("plan.pdf", "plan (2).pdf", "plan (3).pdf"),
        ("plan", "plan (2)", "plan (3)"),
        (".env", ".env (2)", ".env (3)"),
        ("a.tar.gz", "a.tar (2).gz", "a.tar (3).gz"),
        ("100%_\\(2)"[:5], "100%_ (2)", "100%_ (3)"),
        ("x" * 255, "x" * 240 + " (2)", "x" * 240 + " (3)"),
        ("a." + "b" * 253, "a." + "b" * 238 + " (2)", "a." + "b" * 238 + " (3)"),
    ],
)
async def test_a_taken_name_gets_a_number(workspace: Workspace, name: str, second: str, third: str):
    names = [(await workspace.add(name, f"{n}", if_exists="keep_both")).document.name for n in range(3)]
    assert names == [name, second, third]
    assert all(len(each) <= folders.MAX_NAME_CHARS for each in names)


# Concurrent operations


async def test_of_two_moves_into_each_other_exactly_one_succeeds(workspace: Workspace):
    a, b = await workspace.add_folder("a"), await workspace.add_folder("b")
    for _ in range(25):
        outcomes = await asyncio.gather(
            attempt(workspace.do(lambda tx: folders.move(workspace.call, tx, a.id, b.id))),
            attempt(workspace.do(lambda tx: folders.move(workspace.call, tx, b.id, a.id))),
        )
        assert sorted(type(outcome).__name__ for outcome in outcomes) == ["Conflict", "Folder"]
        assert not has_cycle(await parents(workspace))
        for folder in (a, b):
            await workspace.do(lambda tx, f=folder: folders.move(workspace.call, tx, f.id, ROOT))


async def test_concurrent_moves_and_renames_never_make_a_cycle(workspace: Workspace):
    made = [await workspace.add_folder(f"f{n}") for n in range(6)]
    for turn in range(15):
        work: list[Awaitable[Any]] = []
        for n, folder in enumerate(made):
            target = made[(n + 1 + turn) % 6].id
            work.append(workspace.do(lambda tx, f=folder, t=target: folders.move(workspace.call, tx, f.id, t)))
            work.append(
                workspace.do(lambda tx, f=folder, t=turn: folders.rename(workspace.call, tx, f.id, f"{f.id}-{t}"))
            )
        outcomes = await asyncio.gather(*map(attempt, work))
        assert all(not isinstance(outcome, Exception) or isinstance(outcome, Conflict) for outcome in outcomes)
        assert not has_cycle(await parents(workspace))
        assert {row["name"] for row in await workspace.rows("SELECT name FROM folders")} == {
            f"{folder.id}-{turn}" for folder in made
        }


async def test_a_rename_does_not_undo_a_concurrent_move(workspace: Workspace):
    home, target = await workspace.add_folder("home"), await workspace.add_folder("target")
    folder = await workspace.add_folder("wanderer", home.id)
    for turn in range(25):
        to = (target, home)[turn % 2].id
        await asyncio.gather(
            workspace.do(lambda tx, n=turn: folders.rename(workspace.call, tx, folder.id, f"wanderer {n}")),
            workspace.do(lambda tx, t=to: folders.move(workspace.call, tx, folder.id, t)),
        )
        now = await folders.get(workspace.db, workspace.call, folder.id)
        assert (now.parent_id, now.name) == (to, f"wanderer {turn}")


@pytest.mark.parametrize("contents", ["move", "delete"])
async def test_nothing_is_put_into_a_folder_that_is_being_removed(workspace: Workspace, contents: str):
    for turn in range(12):
        folder = await workspace.add_folder(f"f{turn}")
        inner = await workspace.add_folder("inner", folder.id)
        stray = (await workspace.add(f"stray {turn}", "s")).document
        work: list[Awaitable[Any]] = [
            workspace.do(lambda tx, f=folder: folders.remove(workspace.call, tx, f.id, contents=contents)),
            *[workspace.add(f"{turn}-{n}.txt", "x", folder_id=folder.id) for n in range(3)],
            workspace.add_folder(f"late {turn}", folder.id),
            workspace.add_folder(f"later {turn}", inner.id),
            workspace.do(lambda tx, s=stray, f=inner: documents.move(workspace.call, tx, [s.id], f.id)),
        ]
        outcomes = await asyncio.gather(*map(attempt, work[turn % 2 :] + work[: turn % 2]))
        assert all(not isinstance(outcome, Exception) or isinstance(outcome, NotFound) for outcome in outcomes)
        tree = await document_tree.tree(workspace.call, workspace.base.id)
        assert tree.warnings == []


async def test_a_document_restored_while_its_folder_is_removed_is_in_a_valid_place(workspace: Workspace):
    for turn in range(12):
        folder = await workspace.add_folder(f"f{turn}")
        document = (await workspace.add(f"d{turn}", "x", folder_id=folder.id)).document
        await workspace.do(lambda tx, d=document: documents.remove(workspace.call, tx, [d.id]))
        await asyncio.gather(
            workspace.do(lambda tx, f=folder: folders.remove(workspace.call, tx, f.id, contents="delete")),
            workspace.do(lambda tx, d=document: documents.restore(workspace.call, tx, [d.id])),
        )
        assert (await document_tree.tree(workspace.call, workspace.base.id)).warnings == []


async def test_ten_concurrent_requests_for_a_path_get_the_same_folder(workspace: Workspace):
    work = [workspace.do(lambda tx: folders.ensure(workspace.call, tx, workspace.base.id, "a/b/c")) for _ in range(10)]
    assert len(set(await asyncio.gather(*work))) == 1
    assert await workspace.count("folders") == 3


async def test_of_ten_concurrent_additions_of_a_folder_one_succeeds(workspace: Workspace):
    outcomes = await asyncio.gather(*[attempt(workspace.add_folder("a")) for _ in range(10)])
    assert sorted(type(outcome).__name__ for outcome in outcomes) == ["Conflict"] * 9 + ["Folder"]


# Random operations


@dataclass
class Item:
    """A folder or document in the model."""

    kind: str
    parent: int
    name: str
    group: int | None = None  # 0: removed by itself; otherwise the folder with which it was removed
    is_live: bool = True


class Trees(RuleBasedStateMachine):
    """Compares folders and documents with a simple model of dictionaries."""

    workspace: Workspace
    runner: asyncio.Runner

    @initialize()
    def begin(self) -> None:
        self.items: dict[tuple[str, int], Item] = {}
        self.base = self.do(lambda tx: bases.add(self.workspace.call, tx, "A base"))

    def run(self, work: Awaitable[Any]) -> Any:
        async def go() -> Any:
            return await attempt(work)

        return self.runner.run(go())

    def do(self, body: Work) -> Any:
        return self.run(self.workspace.do(body))

    # The model

    def live(self, kind: str) -> list[int]:
        return sorted(id for (k, id), item in self.items.items() if k == kind and item.is_live)

    def names(self, kind: str, parent: int) -> dict[str, int]:
        return {
            item.name: id
            for (k, id), item in self.items.items()
            if k == kind and item.is_live and item.parent == parent
        }

    def depth(self, folder: int) -> int:
        return 0 if folder == ROOT else 1 + self.depth(self.items["folder", folder].parent)

    def below(self, folder: int, keep: Callable[[Item], bool]) -> list[int]:
        found = [folder]
        for at in found:
            found += [id for (k, id), i in self.items.items() if k == "folder" and i.parent == at and keep(i)]
        return found

    def height(self, ids: list[int]) -> int:
        top = ids[0]

        def steps(id: int) -> int:
            return 1 if id == top else 1 + steps(self.items["folder", id].parent)

        return max(steps(id) for id in ids)

    def free(self, kind: str, parent: int, name: str) -> str:
        taken = self.names(kind, parent)
        numbered = (f"{name} ({n})" for n in range(2, 1000))
        return name if name not in taken else next(each for each in numbered if each not in taken)

    # The rules

    @rule(data=st.data(), name=st.sampled_from("abc"))
    def add_folder(self, data: st.DataObject, name: str) -> None:
        parent = data.draw(st.sampled_from([ROOT, *self.live("folder")]))
        made = self.do(lambda tx: folders.add(self.workspace.call, tx, self.base.id, name, parent))
        if self.depth(parent) >= MAX_DEPTH:
            assert isinstance(made, BadRequest)
        elif name in self.names("folder", parent):
            assert isinstance(made, Conflict)
        else:
            self.items["folder", made.id] = Item("folder", parent, name)

    @rule(data=st.data(), name=st.sampled_from("abc"))
    def add_document(self, data: st.DataObject, name: str) -> None:
        parent = data.draw(st.sampled_from([ROOT, *self.live("folder")]))
        made = self.run(self.workspace.add(name, "text", base=self.base, folder_id=parent))
        if name in self.names("document", parent):
            assert isinstance(made, Conflict)
        else:
            self.items["document", made.document.id] = Item("document", parent, name)

    @rule(data=st.data())
    def move_folder(self, data: st.DataObject) -> None:
        if not (ids := self.live("folder")):
            return
        id = data.draw(st.sampled_from(ids))
        parent = data.draw(st.sampled_from([ROOT, *ids]))
        item = self.items["folder", id]
        below = self.below(id, lambda each: each.is_live)
        moved = self.do(lambda tx: folders.move(self.workspace.call, tx, id, parent))
        if parent in below:
            assert isinstance(moved, Conflict)
        elif self.depth(parent) + self.height(below) > MAX_DEPTH:
            assert isinstance(moved, BadRequest)
        elif self.names("folder", parent).get(item.name, id) != id:
            assert isinstance(moved, Conflict)
        else:
            assert moved.parent_id == parent
            item.parent = parent

    @rule(data=st.data(), name=st.sampled_from("abc"))
    def rename_folder(self, data: st.DataObject, name: str) -> None:
        if not (ids := self.live("folder")):
            return
        id = data.draw(st.sampled_from(ids))
        item = self.items["folder", id]
        renamed = self.do(lambda tx: folders.rename(self.workspace.call, tx, id, name))
        if self.names("folder", item.parent).get(name, id) != id:
            assert isinstance(renamed, Conflict)
        else:
            item.name = name

    @rule(data=st.data())
    def move_document(self, data: st.DataObject) -> None:
        if not (ids := self.live("document")):
            return
        id = data.draw(st.sampled_from(ids))
        parent = data.draw(st.sampled_from([ROOT, *self.live("folder")]))
        assert self.do(lambda tx: documents.move(self.workspace.call, tx, [id], parent)) is None
        item = self.items["document", id]
        if parent != item.parent:
            item.parent, item.name = parent, self.free("document", parent, item.name)

    @rule(data=st.data())
    def delete_folder(self, data: st.DataObject) -> None:
        if not (ids := self.live("folder")):
            return
        id = data.draw(st.sampled_from(ids))
        assert self.do(lambda tx: folders.remove(self.workspace.call, tx, id, contents="delete")) is None
        below = self.below(id, lambda each: each.is_live)
        for (kind, each), item in self.items.items():
            if item.is_live and (each in below if kind == "folder" else item.parent in below):
                item.is_live, item.group = False, id

    @rule(data=st.data())
    def empty_folder(self, data: st.DataObject) -> None:
        if not (ids := self.live("folder")):
            return
        id = data.draw(st.sampled_from(ids))
        assert self.do(lambda tx: folders.remove(self.workspace.call, tx, id, contents="move")) is None
        gone = self.items["folder", id]
        gone.is_live, gone.group = False, id
        inside = [item for item in self.items.values() if item.is_live and item.parent == id]
        inside.sort(key=lambda item: item.name in self.names(item.kind, gone.parent))
        for item in inside:
            name = self.free(item.kind, gone.parent, item.name)
            item.parent, item.name = gone.parent, name

    @rule(data=st.data())
    def remove_document(self, data: st.DataObject) -> None:
        if not (ids := self.live("document")):
            return
        id = data.draw(st.sampled_from(ids))
        assert self.do(lambda tx: documents.remove(self.workspace.call, tx, [id])) is None
        item = self.items["document", id]
        item.is_live, item.group = False, 0

    @rule(data=st.data())
    def restore(self, data: st.DataObject) -> None:
        gone = sorted(key for key, item in self.items.items() if not item.is_live)
        if gone:
            self.bring_back(*data.draw(st.sampled_from(gone)))

    def bring_back(self, kind: str, id: int) -> None:
        item = self.items[kind, id]
        home = item.parent if item.parent == ROOT or self.items["folder", item.parent].is_live else ROOT
        if kind == "document":
            assert self.do(lambda tx: documents.restore(self.workspace.call, tx, [id])) is None
            item.parent, item.name = home, self.free(kind, home, item.name)
            item.is_live, item.group = True, None
            return
        restored = self.do(lambda tx: folders.restore(self.workspace.call, tx, id))
        group = item.group
        below = self.below(id, lambda each: not each.is_live and each.group == group)
        home = home if self.depth(home) + self.height(below) <= MAX_DEPTH else ROOT
        assert restored.parent_id == home
        item.parent, item.name = home, self.free(kind, home, item.name)
        for (k, each), other in self.items.items():
            with_it = each in below if k == "folder" else other.parent in below
            if with_it and other.group == group and not other.is_live:
                other.is_live, other.group = True, None

    @invariant()
    def agrees(self) -> None:
        if not hasattr(self, "items"):
            return
        there = self.run(self._read())
        assert there == {key: (item.parent, item.name) for key, item in self.items.items() if item.is_live}
        tree = self.run(document_tree.tree(self.workspace.call, self.base.id))
        assert tree.warnings == []
        assert tree.count == len(there)
        assert not has_cycle({id: parent for (kind, id), (parent, _) in there.items() if kind == "folder"})
        listed = self.run(trash.find(self.workspace.call, self.base.id, limit=1000))
        tops = {
            key for key, i in self.items.items() if not i.is_live and i.group == (key[1] if key[0] == "folder" else 0)
        }
        assert {(gone.kind, gone.id) for gone in listed} == tops

    async def _read(self) -> dict[tuple[str, int], tuple[int, str]]:
        found: dict[tuple[str, int], tuple[int, str]] = {}
        for kind, column in (("folder", "parent_id"), ("document", "folder_id")):
            sql = f"SELECT id, {column} AS parent, name FROM {kind}s WHERE base_id = $1 AND removed_at IS NULL"
            for row in await self.workspace.db.fetch(sql, self.base.id):
                found[kind, row["id"]] = (row["parent"], row["name"])
        return found

    def teardown(self) -> None:
        """Restore everything from the trash."""
        if not hasattr(self, "items"):
            return
        while listed := self.run(trash.find(self.workspace.call, self.base.id)):
            self.bring_back(listed[0].kind, listed[0].id)
            self.agrees()
        assert all(item.is_live for item in self.items.values())


@pytest.fixture
def machine(database_url: str, tmp_path: Path) -> Iterator[type[Trees]]:
    with asyncio.Runner() as runner, patch.object(folders, "MAX_FOLDER_DEPTH", MAX_DEPTH):
        db = runner.run(connect(database_url))
        workspace = runner.run(open_workspace(db, tmp_path / "home"))
        yield type("Trees", (Trees,), {"workspace": workspace, "runner": runner})
        workspace.files.close()
        runner.run(db.close())


def test_after_random_operations_the_tree_equals_a_simple_model(machine: type[Trees]):
    suppressed = [HealthCheck.too_slow, HealthCheck.data_too_large]  # a step queries a database
    many_steps = settings(
        max_examples=25, stateful_step_count=30, deadline=None, suppress_health_check=suppressed, database=None
    )
    run_state_machine_as_test(machine, settings=many_steps)
