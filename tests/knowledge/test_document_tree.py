"""Nodes: browsing a level and listing a tree, sound or broken by a fault."""

from typing import Any

import pytest

from almanac.core.errors import NotFound
from almanac.knowledge import bases, document_tree, documents, folders
from almanac.knowledge.document_tree import FolderTree, Node, ResultTooLarge
from tests.knowledge.library import Library


async def insert_folder(library: Library, parent_id: int, name: str, **values: Any) -> int:
    """A row written by hand, as a fault would leave it."""
    columns = {"base_id": library.base.id, "parent_id": parent_id, "name": name, "creator_id": library.librarian.id,
               "created_at": 1, "updated_at": 1, **values}  # fmt: skip
    marks = ", ".join(f"${n}" for n in range(1, len(columns) + 1))
    sql = f"INSERT INTO folders ({', '.join(columns)}) VALUES ({marks}) RETURNING id"
    row = await library.do(lambda tx: tx.fetch_one(sql, *columns.values()))
    assert row is not None
    return row["id"]


async def chain(library: Library, length: int) -> list[int]:
    made: list[int] = []
    for n in range(length):
        made.append(await insert_folder(library, made[-1] if made else 0, f"f{n}"))
    return made


async def set_parent(library: Library, folder_id: int, parent_id: int) -> None:
    await library.do(lambda tx: tx.execute("UPDATE folders SET parent_id = $2 WHERE id = $1", folder_id, parent_id))


def shape(found: list[Node]) -> list[Any]:
    """Names, with what is below each and whether it is an orphan."""
    return [
        (node.item.name + ("!" if node.is_orphan else ""), shape(node.children)) if node.is_folder or node.is_orphan
        else node.item.name
        for node in found
    ]  # fmt: skip


def count(found: list[Node]) -> int:
    return sum(1 + count(node.children) for node in found)


async def tree(library: Library, folder_id: int = 0) -> FolderTree:
    found = await document_tree.tree(library.call, library.base.id, folder_id)
    assert found.count == count(found.nodes)
    return found


# Sound trees


async def test_a_level_has_folders_before_documents_and_the_newest_first(library: Library):
    for name in ("a", "b"):
        await library.add(f"{name}.txt", name)
        await library.folder(name)
    full = await library.folder("full")
    await library.add("inside.txt", "x", folder_id=full.id)
    level = await document_tree.browse(library.call, library.base.id)
    assert [node.item.name for node in level.nodes] == ["full", "b", "a", "b.txt", "a.txt"]
    assert [node.has_children for node in level.nodes] == [True, False, False, False, False]
    assert (level.has_more, level.total, level.folder_id) == (False, None, 0)
    inside = await document_tree.browse(library.call, library.base.id, full.id, counted=True)
    assert ([node.item.name for node in inside.nodes], inside.total) == (["inside.txt"], 1)


@pytest.mark.parametrize("limit", [1, 2, 3, 4, 5, 7, 100])
async def test_pages_of_a_level_together_are_the_level_each_node_once(library: Library, limit: int):
    for n in range(4):
        await library.folder(f"f{n}")
    for n in range(5):
        await library.add(f"{n}.txt", f"{n}")
    expected = ["f3", "f2", "f1", "f0", "4.txt", "3.txt", "2.txt", "1.txt", "0.txt"]
    names, offset = list[str](), 0
    while True:
        level = await document_tree.browse(library.call, library.base.id, limit=limit, offset=offset, counted=True)
        assert level.total == 9
        names += [node.item.name for node in level.nodes]
        offset += limit
        if not level.has_more:
            break
    assert names == expected
    assert (await document_tree.browse(library.call, library.base.id, limit=limit, offset=100)).nodes == []


async def test_a_tree_is_ordered_at_every_level_and_leaves_out_the_trash(library: Library):
    a = await library.folder("a")
    await library.folder("b")
    inner = await library.folder("inner", a.id)
    await library.add("top.txt", "1")
    await library.add("deep.txt", "2", folder_id=inner.id)
    gone = await library.add("gone.txt", "3", folder_id=inner.id)
    lost = await library.folder("lost", a.id)
    await library.do(lambda tx: documents.remove(library.call, tx, [gone.document.id]))
    await library.do(lambda tx: folders.remove(library.call, tx, lost.id, contents="delete"))
    whole = await tree(library)
    assert shape(whole.nodes) == [("b", []), ("a", [("inner", ["deep.txt"])]), "top.txt"]
    assert (whole.count, whole.warnings) == (5, [])
    part = await tree(library, a.id)
    assert shape(part.nodes) == [("inner", ["deep.txt"])]
    assert part.nodes[0].has_children
    assert (part.count, part.warnings) == (2, [])
    assert (await tree(library, inner.id)).count == 1


async def test_a_folder_of_another_base_or_none_is_not_there(library: Library):
    other = await library.do(lambda tx: bases.add(library.call, tx, "Other"))
    far = await library.folder("far", base=other)
    for folder_id in (far.id, 99_999, -1):
        for look in (document_tree.browse, document_tree.tree):
            with pytest.raises(NotFound, match=f"no folder {folder_id} in knowledge base {library.base.id}"):
                await look(library.call, library.base.id, folder_id)


async def test_a_tree_five_thousand_wide_is_listed_and_one_more_is_refused(library: Library):
    top = await insert_folder(library, 0, "top")
    columns = ("base_id", "parent_id", "name", "creator_id", "created_at", "updated_at")
    rows = [(library.base.id, top, f"w{n}", library.librarian.id, n, n) for n in range(4998)]
    await library.do(lambda tx: tx.insert_many("folders", columns, rows))
    await library.add("a.txt", "x", folder_id=top)
    whole = await tree(library)
    assert (whole.count, whole.warnings) == (5000, [])
    assert [node.item.name for node in whole.nodes[0].children[:2]] == ["w4997", "w4996"]
    part = await tree(library, top)
    assert part.count == 4999
    await library.add("b.txt", "x", folder_id=top)
    with pytest.raises(ResultTooLarge, match="Recursive result has 5001 nodes, which exceeds the limit of 5000"):
        await document_tree.tree(library.call, library.base.id)
    assert (await tree(library, top)).count == 5000
    await library.add("c.txt", "x", folder_id=top)
    with pytest.raises(ResultTooLarge, match="Recursive result has 5001 nodes"):
        await document_tree.tree(library.call, library.base.id, top)
    level = await document_tree.browse(library.call, library.base.id, top, limit=2, offset=4997)
    assert [node.item.name for node in level.nodes] == ["w0", "c.txt"]


async def test_a_deep_tree_is_read_in_a_few_queries_and_not_one_for_each_folder(
    library: Library, monkeypatch: pytest.MonkeyPatch
):
    made = await chain(library, 100)
    await library.add("bottom.txt", "x", folder_id=made[-1])
    await library.folder("beside")
    asked: list[str] = []
    scan = library.db.scan

    async def counted(sql: str, *args: Any) -> list[Any]:
        asked.append(sql)
        return await scan(sql, *args)

    monkeypatch.setattr(library.db, "scan", counted)
    for start, expected in ((0, 102), (made[0], 100), (made[95], 5)):
        asked.clear()
        found = await tree(library, start)
        assert (found.count, found.warnings) == (expected, [])
        assert len(asked) <= 8


async def test_a_deep_tree_in_a_base_of_very_many_folders_is_read_level_by_level(
    library: Library, monkeypatch: pytest.MonkeyPatch
):
    made = await chain(library, 12)
    monkeypatch.setattr(folders, "_MAX_FOLDERS_AT_ONCE", 3)
    assert (await tree(library, made[0])).count == 11


async def test_without_inactive_documents_those_that_search_finds_remain(library: Library):
    top = await library.folder("top")
    shown = await library.shelve("shown.txt", "x", folder_id=top.id)
    hidden = await library.shelve("hidden.txt", "y", folder_id=top.id)
    await library.do(lambda tx: documents.enable(library.call, tx, [hidden.id], False))
    await library.add("waiting.txt", "z", folder_id=top.id)
    await library.add("broken.txt", "UNREADABLE", folder_id=top.id)
    only = {"counted": True, "inactive": False}
    level = await document_tree.browse(library.call, library.base.id, top.id, **only)
    assert ([node.item.id for node in level.nodes], level.total) == ([shown.id], 1)
    assert [
        node.has_children for node in (await document_tree.browse(library.call, library.base.id, **only)).nodes
    ] == [True]
    for folder_id, count in ((0, 2), (top.id, 1)):
        found = await document_tree.tree(library.call, library.base.id, folder_id, inactive=False)
        assert found.count == count
    await library.do(lambda tx: documents.remove(library.call, tx, [shown.id]))
    assert [
        node.has_children for node in (await document_tree.browse(library.call, library.base.id, **only)).nodes
    ] == [False]


# Broken trees


async def test_a_folder_without_its_parent_is_an_orphan_at_the_top(library: Library):
    lost = await insert_folder(library, 777, "lost")
    await insert_folder(library, lost, "below")
    whole = await tree(library)
    assert shape(whole.nodes) == [("lost!", [("below", [])])]
    assert whole.warnings == [f"Folder {lost} references missing parent 777"]
    assert (await document_tree.browse(library.call, library.base.id)).nodes == []
    assert shape((await document_tree.browse(library.call, library.base.id, lost)).nodes) == [("below", [])]


async def test_a_folder_whose_parent_is_in_the_trash_or_in_another_base_is_an_orphan(library: Library):
    other = await library.do(lambda tx: bases.add(library.call, tx, "Other"))
    far = await library.folder("far", base=other)
    gone = await insert_folder(library, 0, "gone", removed_at=5, removed_with=1)
    one, two = await insert_folder(library, gone, "one"), await insert_folder(library, far.id, "two")
    whole = await tree(library)
    assert shape(whole.nodes) == [("two!", []), ("one!", [])]
    assert whole.warnings == [
        f"Folder {one} references missing parent {gone}",
        f"Folder {two} references missing parent {far.id}",
    ]


async def test_a_folder_that_is_its_own_parent_is_listed_with_what_is_in_it(library: Library):
    me = await insert_folder(library, 0, "me")
    await set_parent(library, me, me)
    await insert_folder(library, me, "child")
    await library.add("a.txt", "x", folder_id=me)
    whole = await tree(library)
    assert shape(whole.nodes) == [("me!", [("child", []), "a.txt"])]
    assert whole.warnings == [
        f"Folder {me} is not reachable from root; attached as orphan",
        f"Cycle detected at folder {me}; subtree skipped",
    ]
    part = await tree(library, me)
    assert shape(part.nodes) == [("child", []), "a.txt"]
    assert part.warnings == [f"Cycle detected at folder {me}; edge skipped"]
    level = await document_tree.browse(library.call, library.base.id, me)
    assert sorted(node.item.name for node in level.nodes) == ["a.txt", "child", "me"]


async def test_two_folders_in_one_another_are_listed_once_each_from_wherever_one_looks(library: Library):
    a = await insert_folder(library, 0, "a")
    b = await insert_folder(library, a, "b")
    await set_parent(library, a, b)
    await library.add("a.txt", "x", folder_id=a)
    await library.add("b.txt", "y", folder_id=b)
    whole = await tree(library)
    assert shape(whole.nodes) == [("a!", [("b", ["b.txt"]), "a.txt"])]
    assert whole.warnings == [
        f"Folder {a} is not reachable from root; attached as orphan",
        f"Cycle detected at folder {a}; subtree skipped",
    ]
    for start, expected in ((a, [("b", ["b.txt"]), "a.txt"]), (b, [("a", ["a.txt"]), "b.txt"])):
        part = await tree(library, start)
        assert shape(part.nodes) == expected
        assert part.warnings == [f"Cycle detected at folder {start}; edge skipped"]


async def test_a_chain_that_leads_into_a_cycle_hangs_below_it(library: Library):
    a = await insert_folder(library, 0, "a")
    b = await insert_folder(library, a, "b")
    await set_parent(library, a, b)
    tail = await insert_folder(library, b, "tail")
    end = await insert_folder(library, tail, "end")
    await insert_folder(library, 0, "sound")
    whole = await tree(library)
    assert shape(whole.nodes) == [("sound", []), ("a!", [("b", [("tail", [("end", [])])])])]
    assert len(whole.warnings) == 2
    assert shape((await tree(library, tail)).nodes) == [("end", [])]
    assert (await tree(library, tail)).warnings == []
    assert (await tree(library, end)).nodes == []


async def test_several_cycles_are_each_broken_once(library: Library):
    for _ in range(3):
        ids = await chain(library, 3)
        await set_parent(library, ids[0], ids[-1])
    whole = await tree(library)
    assert shape(whole.nodes) == [("f0!", [("f1", [("f2", [])])])] * 3
    assert (whole.count, len(whole.warnings)) == (9, 6)


async def test_a_document_in_a_folder_that_is_not_there_is_an_orphan_at_the_top(library: Library):
    document = (await library.add("a.txt", "x")).document
    await library.do(lambda tx: tx.execute("UPDATE documents SET folder_id = 888"))
    whole = await tree(library)
    assert [(node.item.name, node.is_orphan) for node in whole.nodes] == [("a.txt", True)]
    assert whole.warnings == [f"Document {document.id} references missing folder 888"]
    assert (await document_tree.browse(library.call, library.base.id)).nodes == []
    assert (await library.get(document.id)).folder_id == 888


async def test_what_is_deeper_than_a_hundred_is_left_out_with_a_warning(library: Library):
    ids = await chain(library, 150)
    whole = await tree(library)
    assert whole.count == 100
    assert whole.warnings == [f"Max folder depth 100 exceeded at folder {ids[100]}; subtree skipped"]
    part = await tree(library, ids[0])
    assert part.count == 100
    assert part.warnings == [f"Max folder depth 100 exceeded at folders [{ids[101]}]; subtree skipped"]
    assert (await tree(library, ids[49])).warnings == []
    assert (await tree(library, ids[49])).count == 100
    assert len((await document_tree.browse(library.call, library.base.id, ids[140])).nodes) == 1


async def test_a_cycle_longer_than_the_greatest_depth_ends_all_the_same(library: Library):
    ids = await chain(library, 130)
    await set_parent(library, ids[0], ids[-1])
    whole = await tree(library)
    assert whole.count == 100
    assert whole.warnings == [
        f"Folder {ids[0]} is not reachable from root; attached as orphan",
        f"Cycle detected at folder {ids[0]}; subtree skipped",
        f"Max folder depth 100 exceeded at folder {ids[100]}; subtree skipped",
    ]
    part = await tree(library, ids[5])
    assert (part.count, len(part.warnings)) == (100, 1)


async def test_broken_folders_can_be_mended_moved_and_removed(library: Library):
    a = await insert_folder(library, 0, "a")
    b = await insert_folder(library, a, "b")
    await set_parent(library, a, b)
    me = await insert_folder(library, 0, "me")
    await set_parent(library, me, me)
    await library.add("a.txt", "x", folder_id=me)
    await library.do(lambda tx: folders.move(library.call, tx, a, 0))
    await library.do(lambda tx: folders.remove(library.call, tx, me, contents="delete"))
    whole = await tree(library)
    assert (shape(whole.nodes), whole.warnings) == ([("a", [("b", [])])], [])
    back = await library.do(lambda tx: folders.restore(library.call, tx, me))
    assert back.parent_id == 0
    assert (await tree(library)).warnings == []
