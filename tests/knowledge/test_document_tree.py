"""Pages and trees of folders and documents, also of trees that a fault has broken."""

from typing import Any

import pytest

from almanac.core.errors import NotFound
from almanac.knowledge import bases, document_tree, documents, folders
from almanac.knowledge.document_tree import FolderTree, Node, ResultTooLarge
from tests.knowledge.workspace import Workspace


async def insert_folder(workspace: Workspace, parent_id: int, name: str, **values: Any) -> int:
    """Insert a row directly, as a fault could leave it."""
    columns = {"base_id": workspace.base.id, "parent_id": parent_id, "name": name, "creator_id": workspace.owner.id,
               "created_at": 1, "updated_at": 1, **values}  # fmt: skip
    marks = ", ".join(f"${n}" for n in range(1, len(columns) + 1))
    sql = f"INSERT INTO folders ({', '.join(columns)}) VALUES ({marks}) RETURNING id"
    row = await workspace.do(lambda tx: tx.fetch_one(sql, *columns.values()))
    assert row is not None
    return row["id"]


async def chain(workspace: Workspace, length: int) -> list[int]:
    made: list[int] = []
    for n in range(length):
        made.append(await insert_folder(workspace, made[-1] if made else 0, f"f{n}"))
    return made


async def set_parent(workspace: Workspace, folder_id: int, parent_id: int) -> None:
    await workspace.do(lambda tx: tx.execute("UPDATE folders SET parent_id = $2 WHERE id = $1", folder_id, parent_id))


def shape(found: list[Node]) -> list[Any]:
    """The names of nodes and of their children. An orphan is marked with an exclamation mark."""
    return [
        (node.item.name + ("!" if node.is_orphan else ""), shape(node.children)) if node.is_folder or node.is_orphan
        else node.item.name
        for node in found
    ]  # fmt: skip


def count(found: list[Node]) -> int:
    return sum(1 + count(node.children) for node in found)


async def tree(workspace: Workspace, folder_id: int = 0) -> FolderTree:
    found = await document_tree.tree(workspace.call, workspace.base.id, folder_id)
    assert found.count == count(found.nodes)
    return found


# Valid trees


async def test_a_page_has_folders_before_documents_and_the_newest_first(workspace: Workspace):
    for name in ("a", "b"):
        await workspace.add(f"{name}.txt", name)
        await workspace.add_folder(name)
    full = await workspace.add_folder("full")
    await workspace.add("inside.txt", "x", folder_id=full.id)
    level = await document_tree.browse(workspace.call, workspace.base.id)
    assert [node.item.name for node in level.nodes] == ["full", "b", "a", "b.txt", "a.txt"]
    assert [node.has_children for node in level.nodes] == [True, False, False, False, False]
    assert (level.has_more, level.total, level.folder_id) == (False, None, 0)
    inside = await document_tree.browse(workspace.call, workspace.base.id, full.id, counted=True)
    assert ([node.item.name for node in inside.nodes], inside.total) == (["inside.txt"], 1)


@pytest.mark.parametrize("limit", [1, 2, 3, 4, 5, 7, 100])
async def test_the_pages_of_a_folder_together_have_each_node_once(workspace: Workspace, limit: int):
    for n in range(4):
        await workspace.add_folder(f"f{n}")
    for n in range(5):
        await workspace.add(f"{n}.txt", f"{n}")
    expected = ["f3", "f2", "f1", "f0", "4.txt", "3.txt", "2.txt", "1.txt", "0.txt"]
    names, offset = list[str](), 0
    while True:
        level = await document_tree.browse(workspace.call, workspace.base.id, limit=limit, offset=offset, counted=True)
        assert level.total == 9
        names += [node.item.name for node in level.nodes]
        offset += limit
        if not level.has_more:
            break
    assert names == expected
    assert (await document_tree.browse(workspace.call, workspace.base.id, limit=limit, offset=100)).nodes == []


async def test_a_tree_is_ordered_at_every_level_and_leaves_out_the_trash(workspace: Workspace):
    a = await workspace.add_folder("a")
    await workspace.add_folder("b")
    inner = await workspace.add_folder("inner", a.id)
    await workspace.add("top.txt", "1")
    await workspace.add("deep.txt", "2", folder_id=inner.id)
    gone = await workspace.add("gone.txt", "3", folder_id=inner.id)
    lost = await workspace.add_folder("lost", a.id)
    await workspace.do(lambda tx: documents.remove(workspace.call, tx, [gone.document.id]))
    await workspace.do(lambda tx: folders.remove(workspace.call, tx, lost.id, contents="delete"))
    whole = await tree(workspace)
    assert shape(whole.nodes) == [("b", []), ("a", [("inner", ["deep.txt"])]), "top.txt"]
    assert (whole.count, whole.warnings) == (5, [])
    part = await tree(workspace, a.id)
    assert shape(part.nodes) == [("inner", ["deep.txt"])]
    assert part.nodes[0].has_children
    assert (part.count, part.warnings) == (2, [])
    assert (await tree(workspace, inner.id)).count == 1


async def test_a_folder_of_another_base_and_a_missing_folder_are_not_found(workspace: Workspace):
    other = await workspace.do(lambda tx: bases.add(workspace.call, tx, "Other"))
    far = await workspace.add_folder("far", base=other)
    for folder_id in (far.id, 99_999, -1):
        for look in (document_tree.browse, document_tree.tree):
            with pytest.raises(NotFound, match=f"no folder {folder_id} in knowledge base {workspace.base.id}"):
                await look(workspace.call, workspace.base.id, folder_id)


async def test_a_tree_of_five_thousand_nodes_is_listed_and_a_larger_one_is_refused(workspace: Workspace):
    top = await insert_folder(workspace, 0, "top")
    columns = ("base_id", "parent_id", "name", "creator_id", "created_at", "updated_at")
    rows = [(workspace.base.id, top, f"w{n}", workspace.owner.id, n, n) for n in range(4998)]
    await workspace.do(lambda tx: tx.insert_many("folders", columns, rows))
    await workspace.add("a.txt", "x", folder_id=top)
    whole = await tree(workspace)
    assert (whole.count, whole.warnings) == (5000, [])
    assert [node.item.name for node in whole.nodes[0].children[:2]] == ["w4997", "w4996"]
    part = await tree(workspace, top)
    assert part.count == 4999
    await workspace.add("b.txt", "x", folder_id=top)
    with pytest.raises(ResultTooLarge, match="Recursive result has 5001 nodes, which exceeds the limit of 5000"):
        await document_tree.tree(workspace.call, workspace.base.id)
    assert (await tree(workspace, top)).count == 5000
    await workspace.add("c.txt", "x", folder_id=top)
    with pytest.raises(ResultTooLarge, match="Recursive result has 5001 nodes"):
        await document_tree.tree(workspace.call, workspace.base.id, top)
    level = await document_tree.browse(workspace.call, workspace.base.id, top, limit=2, offset=4997)
    assert [node.item.name for node in level.nodes] == ["w0", "c.txt"]


async def test_a_deep_tree_is_read_in_few_queries(workspace: Workspace, monkeypatch: pytest.MonkeyPatch):
    made = await chain(workspace, 100)
    await workspace.add("bottom.txt", "x", folder_id=made[-1])
    await workspace.add_folder("beside")
    asked: list[str] = []
    scan = workspace.db.scan

    async def counted(sql: str, *args: Any) -> list[Any]:
        asked.append(sql)
        return await scan(sql, *args)

    monkeypatch.setattr(workspace.db, "scan", counted)
    for start, expected in ((0, 102), (made[0], 100), (made[95], 5)):
        asked.clear()
        found = await tree(workspace, start)
        assert (found.count, found.warnings) == (expected, [])
        assert len(asked) <= 8


async def test_a_deep_tree_in_a_base_with_many_folders_is_read_level_by_level(
    workspace: Workspace, monkeypatch: pytest.MonkeyPatch
):
    made = await chain(workspace, 12)
    monkeypatch.setattr(folders, "MAX_FOLDERS_AT_ONCE", 3)
    assert (await tree(workspace, made[0])).count == 11


async def test_without_inactive_documents_only_searchable_ones_are_listed(workspace: Workspace):
    top = await workspace.add_folder("top")
    shown = await workspace.add_parsed("shown.txt", "x", folder_id=top.id)
    hidden = await workspace.add_parsed("hidden.txt", "y", folder_id=top.id)
    await workspace.do(lambda tx: documents.enable(workspace.call, tx, [hidden.id], False))
    await workspace.add("waiting.txt", "z", folder_id=top.id)
    await workspace.add("broken.txt", "UNREADABLE", folder_id=top.id)
    only = {"counted": True, "inactive": False}
    level = await document_tree.browse(workspace.call, workspace.base.id, top.id, **only)
    assert ([node.item.id for node in level.nodes], level.total) == ([shown.id], 1)
    assert [
        node.has_children for node in (await document_tree.browse(workspace.call, workspace.base.id, **only)).nodes
    ] == [True]
    for folder_id, count in ((0, 2), (top.id, 1)):
        found = await document_tree.tree(workspace.call, workspace.base.id, folder_id, inactive=False)
        assert found.count == count
    await workspace.do(lambda tx: documents.remove(workspace.call, tx, [shown.id]))
    assert [
        node.has_children for node in (await document_tree.browse(workspace.call, workspace.base.id, **only)).nodes
    ] == [False]


# Broken trees


async def test_a_folder_without_its_parent_is_an_orphan_at_the_top(workspace: Workspace):
    lost = await insert_folder(workspace, 777, "lost")
    await insert_folder(workspace, lost, "below")
    whole = await tree(workspace)
    assert shape(whole.nodes) == [("lost!", [("below", [])])]
    assert whole.warnings == [f"Folder {lost} references missing parent 777"]
    assert (await document_tree.browse(workspace.call, workspace.base.id)).nodes == []
    assert shape((await document_tree.browse(workspace.call, workspace.base.id, lost)).nodes) == [("below", [])]


async def test_a_folder_whose_parent_is_in_the_trash_or_in_another_base_is_an_orphan(workspace: Workspace):
    other = await workspace.do(lambda tx: bases.add(workspace.call, tx, "Other"))
    far = await workspace.add_folder("far", base=other)
    gone = await insert_folder(workspace, 0, "gone", removed_at=5, removed_with=1)
    one, two = await insert_folder(workspace, gone, "one"), await insert_folder(workspace, far.id, "two")
    whole = await tree(workspace)
    assert shape(whole.nodes) == [("two!", []), ("one!", [])]
    assert whole.warnings == [
        f"Folder {one} references missing parent {gone}",
        f"Folder {two} references missing parent {far.id}",
    ]


async def test_a_folder_that_is_its_own_parent_is_listed_with_its_contents(workspace: Workspace):
    me = await insert_folder(workspace, 0, "me")
    await set_parent(workspace, me, me)
    await insert_folder(workspace, me, "child")
    await workspace.add("a.txt", "x", folder_id=me)
    whole = await tree(workspace)
    assert shape(whole.nodes) == [("me!", [("child", []), "a.txt"])]
    assert whole.warnings == [
        f"Folder {me} is not reachable from root; attached as orphan",
        f"Cycle detected at folder {me}; subtree skipped",
    ]
    part = await tree(workspace, me)
    assert shape(part.nodes) == [("child", []), "a.txt"]
    assert part.warnings == [f"Cycle detected at folder {me}; edge skipped"]
    level = await document_tree.browse(workspace.call, workspace.base.id, me)
    assert sorted(node.item.name for node in level.nodes) == ["a.txt", "child", "me"]


async def test_two_folders_that_contain_each_other_are_listed_once_each(workspace: Workspace):
    a = await insert_folder(workspace, 0, "a")
    b = await insert_folder(workspace, a, "b")
    await set_parent(workspace, a, b)
    await workspace.add("a.txt", "x", folder_id=a)
    await workspace.add("b.txt", "y", folder_id=b)
    whole = await tree(workspace)
    assert shape(whole.nodes) == [("a!", [("b", ["b.txt"]), "a.txt"])]
    assert whole.warnings == [
        f"Folder {a} is not reachable from root; attached as orphan",
        f"Cycle detected at folder {a}; subtree skipped",
    ]
    for start, expected in ((a, [("b", ["b.txt"]), "a.txt"]), (b, [("a", ["a.txt"]), "b.txt"])):
        part = await tree(workspace, start)
        assert shape(part.nodes) == expected
        assert part.warnings == [f"Cycle detected at folder {start}; edge skipped"]


async def test_folders_below_a_cycle_are_listed_below_it(workspace: Workspace):
    a = await insert_folder(workspace, 0, "a")
    b = await insert_folder(workspace, a, "b")
    await set_parent(workspace, a, b)
    tail = await insert_folder(workspace, b, "tail")
    end = await insert_folder(workspace, tail, "end")
    await insert_folder(workspace, 0, "sound")
    whole = await tree(workspace)
    assert shape(whole.nodes) == [("sound", []), ("a!", [("b", [("tail", [("end", [])])])])]
    assert len(whole.warnings) == 2
    assert shape((await tree(workspace, tail)).nodes) == [("end", [])]
    assert (await tree(workspace, tail)).warnings == []
    assert (await tree(workspace, end)).nodes == []


async def test_several_cycles_are_each_broken_once(workspace: Workspace):
    for _ in range(3):
        ids = await chain(workspace, 3)
        await set_parent(workspace, ids[0], ids[-1])
    whole = await tree(workspace)
    assert shape(whole.nodes) == [("f0!", [("f1", [("f2", [])])])] * 3
    assert (whole.count, len(whole.warnings)) == (9, 6)


async def test_a_document_in_a_missing_folder_is_an_orphan_at_the_top(workspace: Workspace):
    document = (await workspace.add("a.txt", "x")).document
    await workspace.do(lambda tx: tx.execute("UPDATE documents SET folder_id = 888"))
    whole = await tree(workspace)
    assert [(node.item.name, node.is_orphan) for node in whole.nodes] == [("a.txt", True)]
    assert whole.warnings == [f"Document {document.id} references missing folder 888"]
    assert (await document_tree.browse(workspace.call, workspace.base.id)).nodes == []
    assert (await workspace.get(document.id)).folder_id == 888


async def test_folders_deeper_than_a_hundred_are_left_out_with_a_warning(workspace: Workspace):
    ids = await chain(workspace, 150)
    whole = await tree(workspace)
    assert whole.count == 100
    assert whole.warnings == [f"Max folder depth 100 exceeded at folder {ids[100]}; subtree skipped"]
    part = await tree(workspace, ids[0])
    assert part.count == 100
    assert part.warnings == [f"Max folder depth 100 exceeded at folders [{ids[101]}]; subtree skipped"]
    assert (await tree(workspace, ids[49])).warnings == []
    assert (await tree(workspace, ids[49])).count == 100
    assert len((await document_tree.browse(workspace.call, workspace.base.id, ids[140])).nodes) == 1


async def test_a_cycle_longer_than_the_maximum_depth_is_cut(workspace: Workspace):
    ids = await chain(workspace, 130)
    await set_parent(workspace, ids[0], ids[-1])
    whole = await tree(workspace)
    assert whole.count == 100
    assert whole.warnings == [
        f"Folder {ids[0]} is not reachable from root; attached as orphan",
        f"Cycle detected at folder {ids[0]}; subtree skipped",
        f"Max folder depth 100 exceeded at folder {ids[100]}; subtree skipped",
    ]
    part = await tree(workspace, ids[5])
    assert (part.count, len(part.warnings)) == (100, 1)


async def test_broken_folders_can_be_moved_removed_and_restored(workspace: Workspace):
    a = await insert_folder(workspace, 0, "a")
    b = await insert_folder(workspace, a, "b")
    await set_parent(workspace, a, b)
    me = await insert_folder(workspace, 0, "me")
    await set_parent(workspace, me, me)
    await workspace.add("a.txt", "x", folder_id=me)
    await workspace.do(lambda tx: folders.move(workspace.call, tx, a, 0))
    await workspace.do(lambda tx: folders.remove(workspace.call, tx, me, contents="delete"))
    whole = await tree(workspace)
    assert (shape(whole.nodes), whole.warnings) == ([("a", [("b", [])])], [])
    back = await workspace.do(lambda tx: folders.restore(workspace.call, tx, me))
    assert back.parent_id == 0
    assert (await tree(workspace)).warnings == []
