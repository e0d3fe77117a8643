"""Folders: a tree that stays one whatever is done to it, by however many at once."""

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
from tests.knowledge.library import Library, found

Work = Callable[[Transaction], Awaitable[Any]]

DEEPEST = 4  # for the machine, so that it gets there


async def attempt(work: Awaitable[Any]) -> Any:
    try:
        return await work
    except AlmanacError as error:
        return error


async def parents(library: Library) -> dict[int, int]:
    rows = await library.db.fetch("SELECT id, parent_id FROM folders WHERE removed_at IS NULL")
    return {row["id"]: row["parent_id"] for row in rows}


async def path_of(library: Library, folder_id: int) -> str:
    return (await document_status.paths(library.call, library.base.id))[folder_id]


def has_cycle(tree: dict[int, int]) -> bool:
    for start in tree:
        at, steps = start, 0
        while at in tree and steps <= len(tree):
            at, steps = tree[at], steps + 1
        if steps > len(tree):
            return True
    return False


# One at a time


async def test_a_folder_is_made_renamed_moved_and_named_by_its_path(library: Library):
    call = library.call
    pumps = await library.folder(" Pumps ")
    care = await library.folder("Care", pumps.id)
    assert (pumps.name, pumps.parent_id, care.parent_id) == ("Pumps", ROOT, pumps.id)
    assert await path_of(library, care.id) == "Pumps/Care"
    renamed = await library.do(lambda tx: folders.rename(call, tx, pumps.id, "Valves"))
    assert (renamed.id, renamed.name) == (pumps.id, "Valves")
    moved = await library.do(lambda tx: folders.move(call, tx, care.id, ROOT))
    assert (moved.parent_id, moved.name) == (ROOT, "Care")
    again = await library.do(lambda tx: folders.move(call, tx, care.id, ROOT))
    assert again.parent_id == ROOT


async def test_the_folders_of_a_path_are_made_where_they_are_missing(library: Library):
    ensured = await library.do(lambda tx: folders.ensure(library.call, tx, library.base.id, " a / b //c/ "))
    assert await path_of(library, ensured) == "a/b/c"
    assert await library.do(lambda tx: folders.ensure(library.call, tx, library.base.id, "a/b/c")) == ensured
    below = await library.do(lambda tx: folders.ensure(library.call, tx, library.base.id, "d", ensured))
    assert await path_of(library, below) == "a/b/c/d"
    assert await library.do(lambda tx: folders.ensure(library.call, tx, library.base.id, "")) == ROOT
    assert await library.count("folders") == 4


@pytest.mark.parametrize(
    "name", ["", " ", ".", "..", "a/b", "a\\b", "a\x00", "a\nb", "\x7f", "\u202egpj.exe", "\ud800", "x" * 256]
)
async def test_a_name_that_would_divide_a_path_or_mislead_is_refused(library: Library, name: str):
    there = await library.folder("There")
    works: list[Work] = [
        lambda tx: folders.add(library.call, tx, library.base.id, name),
        lambda tx: folders.rename(library.call, tx, there.id, name),
    ]
    for work in works:
        with pytest.raises(BadRequest, match="cannot be used"):
            await library.do(work)
    with pytest.raises(BadRequest, match="cannot be used"):
        await library.add(name, "A text.")
    assert (await library.count("folders"), await library.count("documents"), library.stored()) == (1, 0, set())


async def test_names_are_unique_side_by_side_and_a_folder_may_be_called_as_a_document(library: Library):
    pumps = await library.folder("Pumps")
    other = await library.folder("Other")
    await library.add("Pumps", "A text.")
    inner = await library.folder("Pumps", other.id)
    works: list[Work] = [
        lambda tx: folders.add(library.call, tx, library.base.id, "Pumps"),
        lambda tx: folders.rename(library.call, tx, other.id, "Pumps"),
        lambda tx: folders.move(library.call, tx, inner.id, ROOT),
    ]
    for work in works:
        with pytest.raises(Conflict, match="already a folder named 'Pumps'"):
            await library.do(work)
    same = await library.do(lambda tx: folders.rename(library.call, tx, pumps.id, "Pumps"))
    assert same.name == "Pumps"


async def test_a_folder_goes_neither_into_itself_nor_below_itself_nor_into_another_base(library: Library):
    other = await library.do(lambda tx: bases.add(library.call, tx, "Other"))
    a = await library.folder("a")
    b = await library.folder("b", a.id)
    c = await library.folder("c", b.id)
    far = await library.folder("far", base=other)
    for target in (a, b, c):
        with pytest.raises(Conflict, match="into itself"):
            await library.do(lambda tx, t=target: folders.move(library.call, tx, a.id, t.id))
    works: list[Work] = [
        lambda tx: folders.move(library.call, tx, a.id, far.id),
        lambda tx: folders.move(library.call, tx, a.id, 99_999),
        lambda tx: folders.add(library.call, tx, library.base.id, "x", far.id),
    ]
    for work in works:
        with pytest.raises(NotFound):
            await library.do(work)
    assert await parents(library) == {a.id: ROOT, b.id: a.id, c.id: b.id, far.id: ROOT}


async def test_folders_can_be_a_hundred_deep_and_no_deeper(library: Library):
    path = "/".join(f"f{n}" for n in range(100))
    deepest = await library.do(lambda tx: folders.ensure(library.call, tx, library.base.id, path))
    assert await path_of(library, deepest) == path
    with pytest.raises(BadRequest, match="100 deep"):
        await library.folder("one more", deepest)
    single = await library.folder("single")
    with pytest.raises(BadRequest, match="100 deep"):
        await library.do(lambda tx: folders.move(library.call, tx, single.id, deepest))
    with pytest.raises(BadRequest, match="100 deep"):
        await library.do(lambda tx: folders.ensure(library.call, tx, library.base.id, "a/" * 101))
    assert await library.count("folders") == 101
    tree = await document_tree.tree(library.call, library.base.id)
    assert (tree.count, tree.warnings) == (101, [])


async def test_what_is_in_a_removed_folder_moves_up_under_names_that_are_free(library: Library):
    outer = await library.folder("outer")
    inner = await library.folder("outer", outer.id)
    below = await library.folder("below", inner.id)
    await library.folder("twin")
    twin = await library.folder("twin", outer.id)
    await library.add("a.txt", "1")
    clash = await library.add("a.txt", "2", folder_id=outer.id)
    free = await library.add("b.txt", "3", folder_id=outer.id)
    await library.do(lambda tx: folders.remove(library.call, tx, outer.id, contents="move"))
    level = await document_tree.browse(library.call, library.base.id)
    names = {(node.is_folder, node.item.id): node.item.name for node in level.nodes}
    assert names[True, inner.id] == "outer"  # which its folder has left
    assert names[True, twin.id] == "twin (2)"
    assert (names[False, clash.document.id], names[False, free.document.id]) == ("a (2).txt", "b.txt")
    assert (await parents(library))[below.id] == inner.id
    back = await library.do(lambda tx: folders.restore(library.call, tx, outer.id))
    assert (back.name, back.parent_id) == ("outer (2)", ROOT)
    assert (await document_tree.browse(library.call, library.base.id, outer.id)).nodes == []


async def test_removing_a_folder_needs_a_word_on_its_contents(library: Library):
    folder = await library.folder("a")
    with pytest.raises(BadRequest, match="'move' or 'delete'"):
        await library.do(lambda tx: folders.remove(library.call, tx, folder.id, contents="keep"))
    assert await library.count("folders", "removed_at IS NULL") == 1


async def test_a_removed_folder_takes_its_contents_with_it_and_brings_them_back(library: Library):
    outer = await library.folder("outer")
    inner = await library.folder("inner", outer.id)
    deep = await library.shelve("deep.txt", "Deep down.", folder_id=inner.id)
    off = await library.shelve("off.txt", "Switched off.", folder_id=inner.id)
    earlier = await library.shelve("earlier.txt", "Went before.", folder_id=outer.id)
    await library.do(lambda tx: documents.enable(library.call, tx, [off.id], False))
    await library.do(lambda tx: documents.remove(library.call, tx, [earlier.id]))
    await library.do(lambda tx: folders.remove(library.call, tx, outer.id, contents="delete"))
    assert await library.count("sources", "is_live = 1") == 0
    assert [(gone.kind, gone.id) for gone in await trash.find(library.call, library.base.id)] == [
        ("folder", outer.id),
        ("document", earlier.id),
    ]
    for missing in (outer.id, inner.id):
        with pytest.raises(NotFound):
            await folders.get(library.db, library.call, missing)
    await library.do(lambda tx: folders.restore(library.call, tx, outer.id))
    assert await parents(library) == {outer.id: ROOT, inner.id: outer.id}
    assert (await library.get(deep.id)).folder_id == inner.id
    live = await library.rows("SELECT owner_id FROM sources WHERE is_live = 1")
    assert [row["owner_id"] for row in live] == [str(deep.id)]
    with pytest.raises(NotFound):
        await library.get(earlier.id)
    with pytest.raises(NotFound):
        await library.do(lambda tx: folders.restore(library.call, tx, outer.id))


async def test_a_document_that_was_removed_with_its_folder_while_it_waited_is_read_after_all(library: Library):
    folder = await library.folder("a")
    added = await library.add("a.txt", "Waiting.", folder_id=folder.id)
    await library.do(lambda tx: folders.remove(library.call, tx, folder.id, contents="delete"))
    assert await library.read_all() == 1  # and drops what it reads
    await library.do(lambda tx: folders.restore(library.call, tx, folder.id))
    assert await library.read_all() == 1
    assert (await library.get(added.document.id)).index_status == "success"


async def test_a_folder_of_a_removed_one_comes_back_alone_with_what_is_below_it(library: Library):
    outer = await library.folder("outer")
    inner = await library.folder("inner", outer.id)
    below = await library.folder("below", inner.id)
    mine = await library.shelve("mine.txt", "Mine.", folder_id=below.id)
    other = await library.shelve("other.txt", "Other.", folder_id=outer.id)
    await library.do(lambda tx: folders.remove(library.call, tx, outer.id, contents="delete"))
    await library.do(lambda tx: folders.restore(library.call, tx, inner.id))
    assert await parents(library) == {inner.id: ROOT, below.id: inner.id}
    assert (await library.get(mine.id)).folder_id == below.id
    await library.add("other.txt", "A new one.", folder_id=below.id)
    await library.do(lambda tx: folders.restore(library.call, tx, outer.id))
    assert await parents(library) == {outer.id: ROOT, inner.id: ROOT, below.id: inner.id}
    assert (await library.get(other.id)).folder_id == outer.id


async def test_a_folder_comes_back_at_the_top_where_its_place_is_gone_or_too_deep(library: Library):
    outer = await library.folder("outer")
    inner = await library.folder("inner", outer.id)
    await library.do(lambda tx: folders.remove(library.call, tx, inner.id, contents="delete"))
    deep = await library.do(lambda tx: folders.ensure(library.call, tx, library.base.id, "/".join(["d"] * 99)))
    await library.do(lambda tx: folders.move(library.call, tx, outer.id, deep))
    back = await library.do(lambda tx: folders.restore(library.call, tx, inner.id))
    assert back.parent_id == ROOT
    await library.do(lambda tx: folders.remove(library.call, tx, inner.id, contents="delete"))
    await library.do(lambda tx: folders.remove(library.call, tx, outer.id, contents="delete"))
    back = await library.do(lambda tx: folders.restore(library.call, tx, inner.id))
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
async def test_a_taken_name_gets_a_number(library: Library, name: str, second: str, third: str):
    names = [(await library.add(name, f"{n}", if_exists="keep_both")).document.name for n in range(3)]
    assert names == [name, second, third]
    assert all(len(each) <= folders.LONGEST_NAME for each in names)


# Many at once


async def test_of_two_moves_into_one_another_exactly_one_wins(library: Library):
    a, b = await library.folder("a"), await library.folder("b")
    for _ in range(25):
        outcomes = await asyncio.gather(
            attempt(library.do(lambda tx: folders.move(library.call, tx, a.id, b.id))),
            attempt(library.do(lambda tx: folders.move(library.call, tx, b.id, a.id))),
        )
        assert sorted(type(outcome).__name__ for outcome in outcomes) == ["Conflict", "Folder"]
        assert not has_cycle(await parents(library))
        for folder in (a, b):
            await library.do(lambda tx, f=folder: folders.move(library.call, tx, f.id, ROOT))


async def test_moves_and_renames_of_a_whole_tree_at_once_never_make_a_cycle(library: Library):
    made = [await library.folder(f"f{n}") for n in range(6)]
    for turn in range(15):
        work: list[Awaitable[Any]] = []
        for n, folder in enumerate(made):
            target = made[(n + 1 + turn) % 6].id
            work.append(library.do(lambda tx, f=folder, t=target: folders.move(library.call, tx, f.id, t)))
            work.append(library.do(lambda tx, f=folder, t=turn: folders.rename(library.call, tx, f.id, f"{f.id}-{t}")))
        outcomes = await asyncio.gather(*map(attempt, work))
        assert all(not isinstance(outcome, Exception) or isinstance(outcome, Conflict) for outcome in outcomes)
        assert not has_cycle(await parents(library))
        assert {row["name"] for row in await library.rows("SELECT name FROM folders")} == {
            f"{folder.id}-{turn}" for folder in made
        }


async def test_a_rename_does_not_undo_a_move_made_at_the_same_time(library: Library):
    home, target = await library.folder("home"), await library.folder("target")
    folder = await library.folder("wanderer", home.id)
    for turn in range(25):
        to = (target, home)[turn % 2].id
        await asyncio.gather(
            library.do(lambda tx, n=turn: folders.rename(library.call, tx, folder.id, f"wanderer {n}")),
            library.do(lambda tx, t=to: folders.move(library.call, tx, folder.id, t)),
        )
        now = await folders.get(library.db, library.call, folder.id)
        assert (now.parent_id, now.name) == (to, f"wanderer {turn}")


@pytest.mark.parametrize("contents", ["move", "delete"])
async def test_nothing_is_put_into_a_folder_that_is_being_removed(library: Library, contents: str):
    for turn in range(12):
        folder = await library.folder(f"f{turn}")
        inner = await library.folder("inner", folder.id)
        stray = (await library.add(f"stray {turn}", "s")).document
        work: list[Awaitable[Any]] = [
            library.do(lambda tx, f=folder: folders.remove(library.call, tx, f.id, contents=contents)),
            *[library.add(f"{turn}-{n}.txt", "x", folder_id=folder.id) for n in range(3)],
            library.folder(f"late {turn}", folder.id),
            library.folder(f"later {turn}", inner.id),
            library.do(lambda tx, s=stray, f=inner: documents.move(library.call, tx, [s.id], f.id)),
        ]
        outcomes = await asyncio.gather(*map(attempt, work[turn % 2 :] + work[: turn % 2]))
        assert all(not isinstance(outcome, Exception) or isinstance(outcome, NotFound) for outcome in outcomes)
        tree = await document_tree.tree(library.call, library.base.id)
        assert tree.warnings == []


async def test_a_document_restored_while_its_folder_is_removed_is_in_one_place_or_the_other(library: Library):
    for turn in range(12):
        folder = await library.folder(f"f{turn}")
        document = (await library.add(f"d{turn}", "x", folder_id=folder.id)).document
        await library.do(lambda tx, d=document: documents.remove(library.call, tx, [d.id]))
        await asyncio.gather(
            library.do(lambda tx, f=folder: folders.remove(library.call, tx, f.id, contents="delete")),
            library.do(lambda tx, d=document: documents.restore(library.call, tx, [d.id])),
        )
        assert (await document_tree.tree(library.call, library.base.id)).warnings == []


async def test_ten_at_once_who_need_the_same_path_get_the_same_folder(library: Library):
    work = [library.do(lambda tx: folders.ensure(library.call, tx, library.base.id, "a/b/c")) for _ in range(10)]
    assert len(set(await asyncio.gather(*work))) == 1
    assert await library.count("folders") == 3


async def test_of_ten_at_once_who_make_the_same_folder_one_does(library: Library):
    outcomes = await asyncio.gather(*[attempt(library.folder("a")) for _ in range(10)])
    assert sorted(type(outcome).__name__ for outcome in outcomes) == ["Conflict"] * 9 + ["Folder"]


# Anything in any order


@dataclass
class Item:
    """What the model knows of a folder or document."""

    kind: str
    parent: int
    name: str
    group: int | None = None  # 0: in the trash by itself; else the folder it went with
    is_live: bool = True


class Trees(RuleBasedStateMachine):
    """Folders and documents beside a model of dictionaries, which is plain enough to be right."""

    library: Library
    runner: asyncio.Runner

    @initialize()
    def begin(self) -> None:
        self.items: dict[tuple[str, int], Item] = {}
        self.base = self.do(lambda tx: bases.add(self.library.call, tx, "A base"))

    def run(self, work: Awaitable[Any]) -> Any:
        async def go() -> Any:
            return await attempt(work)

        return self.runner.run(go())

    def do(self, body: Work) -> Any:
        return self.run(self.library.do(body))

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
        made = self.do(lambda tx: folders.add(self.library.call, tx, self.base.id, name, parent))
        if self.depth(parent) >= DEEPEST:
            assert isinstance(made, BadRequest)
        elif name in self.names("folder", parent):
            assert isinstance(made, Conflict)
        else:
            self.items["folder", made.id] = Item("folder", parent, name)

    @rule(data=st.data(), name=st.sampled_from("abc"))
    def add_document(self, data: st.DataObject, name: str) -> None:
        parent = data.draw(st.sampled_from([ROOT, *self.live("folder")]))
        made = self.run(self.library.add(name, "text", base=self.base, folder_id=parent))
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
        moved = self.do(lambda tx: folders.move(self.library.call, tx, id, parent))
        if parent in below:
            assert isinstance(moved, Conflict)
        elif self.depth(parent) + self.height(below) > DEEPEST:
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
        renamed = self.do(lambda tx: folders.rename(self.library.call, tx, id, name))
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
        assert self.do(lambda tx: documents.move(self.library.call, tx, [id], parent)) is None
        item = self.items["document", id]
        if parent != item.parent:
            item.parent, item.name = parent, self.free("document", parent, item.name)

    @rule(data=st.data())
    def delete_folder(self, data: st.DataObject) -> None:
        if not (ids := self.live("folder")):
            return
        id = data.draw(st.sampled_from(ids))
        assert self.do(lambda tx: folders.remove(self.library.call, tx, id, contents="delete")) is None
        below = self.below(id, lambda each: each.is_live)
        for (kind, each), item in self.items.items():
            if item.is_live and (each in below if kind == "folder" else item.parent in below):
                item.is_live, item.group = False, id

    @rule(data=st.data())
    def empty_folder(self, data: st.DataObject) -> None:
        if not (ids := self.live("folder")):
            return
        id = data.draw(st.sampled_from(ids))
        assert self.do(lambda tx: folders.remove(self.library.call, tx, id, contents="move")) is None
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
        assert self.do(lambda tx: documents.remove(self.library.call, tx, [id])) is None
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
            assert self.do(lambda tx: documents.restore(self.library.call, tx, [id])) is None
            item.parent, item.name = home, self.free(kind, home, item.name)
            item.is_live, item.group = True, None
            return
        restored = self.do(lambda tx: folders.restore(self.library.call, tx, id))
        group = item.group
        below = self.below(id, lambda each: not each.is_live and each.group == group)
        home = home if self.depth(home) + self.height(below) <= DEEPEST else ROOT
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
        tree = self.run(document_tree.tree(self.library.call, self.base.id))
        assert tree.warnings == []
        assert tree.count == len(there)
        assert not has_cycle({id: parent for (kind, id), (parent, _) in there.items() if kind == "folder"})
        listed = self.run(trash.find(self.library.call, self.base.id, limit=1000))
        tops = {
            key for key, i in self.items.items() if not i.is_live and i.group == (key[1] if key[0] == "folder" else 0)
        }
        assert {(gone.kind, gone.id) for gone in listed} == tops

    async def _read(self) -> dict[tuple[str, int], tuple[int, str]]:
        found: dict[tuple[str, int], tuple[int, str]] = {}
        for kind, column in (("folder", "parent_id"), ("document", "folder_id")):
            sql = f"SELECT id, {column} AS parent, name FROM {kind}s WHERE base_id = $1 AND removed_at IS NULL"
            for row in await self.library.db.fetch(sql, self.base.id):
                found[kind, row["id"]] = (row["parent"], row["name"])
        return found

    def teardown(self) -> None:
        """Everything comes back from the trash."""
        if not hasattr(self, "items"):
            return
        while listed := self.run(trash.find(self.library.call, self.base.id)):
            self.bring_back(listed[0].kind, listed[0].id)
            self.agrees()
        assert all(item.is_live for item in self.items.values())


@pytest.fixture
def machine(database_url: str, tmp_path: Path) -> Iterator[type[Trees]]:
    with asyncio.Runner() as runner, patch.object(folders, "MAX_FOLDER_DEPTH", DEEPEST):
        db = runner.run(connect(database_url))
        library = runner.run(found(db, tmp_path / "home"))
        yield type("Trees", (Trees,), {"library": library, "runner": runner})
        library.files.close()
        runner.run(db.close())


def test_whatever_is_done_in_whatever_order_the_tree_is_as_a_plain_model_of_it(machine: type[Trees]):
    quiet = [HealthCheck.too_slow, HealthCheck.data_too_large]  # a step asks a database, which takes its time
    often = settings(max_examples=25, stateful_step_count=30, deadline=None, suppress_health_check=quiet, database=None)
    run_state_machine_as_test(machine, settings=often)
