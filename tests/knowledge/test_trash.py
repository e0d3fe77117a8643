"""The trash: its contents, and the complete removal of purged documents."""

import asyncio
from pathlib import Path

import pytest

from almanac.core import clock
from almanac.core.errors import NotFound
from almanac.identity.roles import Role
from almanac.knowledge import bases, documents, folders, trash
from tests.knowledge.workspace import Workspace

TABLES = ("documents", "readings", "reading_parts", "passages", "blobs")


async def rows(workspace: Workspace) -> dict[str, int]:
    return {table: await workspace.count(table) for table in TABLES}


async def empty(workspace: Workspace, before: int | None = None) -> int:
    return await trash.purge(workspace.db, clock.now() + 1 if before is None else before)


async def test_the_trash_is_listed_latest_first_in_pages(workspace: Workspace):
    folder = await workspace.add_folder("f")
    await workspace.add("in.txt", "1", folder_id=folder.id)
    made = [(await workspace.add(f"{n}.txt", f"{n}")).document for n in range(3)]
    for document in made:
        await workspace.do(lambda tx, d=document: documents.remove(workspace.call, tx, [d.id]))
    await workspace.do(lambda tx: folders.remove(workspace.call, tx, folder.id, contents="delete"))
    listed = await trash.find(workspace.call, workspace.base.id)
    assert [(gone.kind, gone.name) for gone in listed] == [
        ("folder", "f"), ("document", "2.txt"), ("document", "1.txt"), ("document", "0.txt"),
    ]  # fmt: skip
    assert all(gone.removed_at <= clock.now() for gone in listed)
    assert await trash.find(workspace.call, workspace.base.id, limit=2, offset=1) == listed[1:3]


async def test_purged_documents_leave_nothing_and_others_lose_nothing(workspace: Workspace):
    kept = await workspace.add_parsed("kept.txt", "Kept.\fTwo pages.")
    folder = await workspace.add_folder("f")
    doomed = await workspace.add_parsed("doomed.txt", "Doomed. " * 10_000, folder_id=folder.id)
    alone = await workspace.add_parsed("alone.txt", "Alone.")
    before = await rows(workspace)
    await workspace.do(lambda tx: folders.remove(workspace.call, tx, folder.id, contents="delete"))
    await workspace.do(lambda tx: documents.remove(workspace.call, tx, [alone.id]))
    assert await empty(workspace, before=1) == 0
    assert (await rows(workspace)) == before
    assert await empty(workspace) == 2
    assert await workspace.files.remove_unused(workspace.db) == 2
    assert await rows(workspace) == {"documents": 1, "readings": 1, "reading_parts": 1, "passages": 1, "blobs": 1}
    assert await workspace.count("folders") == 0
    assert workspace.stored_names() == {(await workspace.get(kept.id)).blob_name}
    for gone in (doomed, alone):
        with pytest.raises(NotFound):
            await workspace.do(lambda tx, g=gone: documents.restore(workspace.call, tx, [g.id]))
    assert await empty(workspace) == 0


async def test_a_shared_file_is_kept_until_its_last_document_is_purged(workspace: Workspace):
    one = await workspace.add_parsed("one.txt", "The same.")
    two = await workspace.add_parsed("two.txt", "The same.")
    assert (await rows(workspace))["blobs"] == len(workspace.stored_names()) == 1
    await workspace.do(lambda tx: documents.remove(workspace.call, tx, [one.id]))
    await empty(workspace)
    assert await workspace.files.remove_unused(workspace.db) == 0
    assert workspace.files.path(two.blob_name).read_text() == "The same."
    await workspace.do(lambda tx: documents.remove(workspace.call, tx, [two.id]))
    assert await workspace.files.remove_unused(workspace.db) == 0  # it is in the trash, but not purged
    await empty(workspace)
    assert await workspace.files.remove_unused(workspace.db) == 1
    assert workspace.stored_names() == set()


async def test_the_file_of_a_replaced_content_is_removed(workspace: Workspace):
    document = await workspace.add_parsed("a.txt", "Old.")
    await workspace.replace(document.id, "New.")
    assert len(workspace.stored_names()) == 2
    assert await workspace.files.remove_unused(workspace.db) == 1
    await workspace.run_jobs()
    assert workspace.stored_names() == {(await workspace.get(document.id)).blob_name}
    assert workspace.incoming_files() == []


async def test_a_removed_base_is_purged_with_its_contents_and_grants(workspace: Workspace):
    other = await workspace.do(lambda tx: bases.add(workspace.call, tx, "Other"))
    await workspace.town.add("maria")
    await workspace.do(lambda tx: bases.share(workspace.call, tx, workspace.base.id, Role.Reporter, user="maria"))
    folder = await workspace.add_folder("f")
    await workspace.add_parsed("a.txt", "A.", folder_id=folder.id)
    await workspace.add_parsed("b.txt", "B.")
    kept = await workspace.add_parsed("c.txt", "C.", base=other)
    await workspace.do(lambda tx: bases.remove(workspace.call, tx, workspace.base.id))
    assert await empty(workspace) == 2
    assert await workspace.files.remove_unused(workspace.db) == 2
    assert (await workspace.count("bases"), await workspace.count("folders"), await workspace.count("grants")) == (
        1,
        0,
        0,
    )
    assert await rows(workspace) == dict.fromkeys(TABLES, 1)
    assert (await workspace.get(kept.id)).index_status == "success"
    with pytest.raises(NotFound):
        await workspace.do(lambda tx: bases.restore(workspace.call, tx, workspace.base.id))


async def test_documents_are_purged_in_several_transactions(workspace: Workspace, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(trash, "BATCH_DOCUMENTS", 3)
    ids = [(await workspace.add(f"{n}.txt", f"{n}")).document.id for n in range(8)]
    await workspace.do(lambda tx: documents.remove(workspace.call, tx, ids))
    assert await empty(workspace) == 8
    assert await workspace.count("documents") == 0
    assert await workspace.files.remove_unused(workspace.db) == 8


async def test_a_job_for_a_purged_document_does_nothing(workspace: Workspace):
    document = (await workspace.add("a.txt", "A.")).document
    await workspace.do(lambda tx: documents.remove(workspace.call, tx, [document.id]))
    await empty(workspace)
    assert await workspace.run_jobs() == 1
    assert await rows(workspace) == {"documents": 0, "readings": 0, "reading_parts": 0, "passages": 0, "blobs": 1}


async def test_a_document_restored_during_a_purge_is_either_restored_or_purged(workspace: Workspace):
    for turn in range(20):
        document = await workspace.add_parsed(f"{turn}.txt", f"Text {turn}.")
        await workspace.do(lambda tx, d=document: documents.remove(workspace.call, tx, [d.id]))
        work = [
            empty(workspace),
            workspace.do(lambda tx, d=document: documents.restore(workspace.call, tx, [d.id])),
        ]
        purged, restored = await asyncio.gather(*work, return_exceptions=True)
        assert not isinstance(purged, BaseException)
        if restored is None:
            assert (await workspace.get(document.id)).characters == len(f"Text {turn}.")
        else:
            assert isinstance(restored, NotFound)


async def test_a_document_restored_after_it_was_selected_is_not_purged(workspace: Workspace):
    document = await workspace.add_parsed("a.txt", "A.")
    await workspace.do(lambda tx: documents.remove(workspace.call, tx, [document.id]))
    real, db = workspace.db.scan, workspace.db

    async def scan(sql: str, *args: object) -> object:
        found = await real(sql, *args)  # type: ignore[arg-type]
        if "removed_at <" in sql and found:
            await workspace.do(lambda tx: documents.restore(workspace.call, tx, [document.id]))
        return found

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(db, "scan", scan)
        assert await empty(workspace) == 0
    assert (await workspace.get(document.id)).index_status == "success"


@pytest.mark.parametrize("first", ["purge", "upload"])
async def test_a_purge_during_an_upload_of_the_same_content_never_loses_its_file(workspace: Workspace, first: str):
    for turn in range(40):
        content = f"Content {turn % 4}."
        name = f"{turn}.txt"
        work = [workspace.files.remove_unused(workspace.db), workspace.add(name, content)]
        if first == "upload":
            work.reverse()
        await asyncio.gather(*work)
        there = await workspace.rows("SELECT b.name, b.size FROM blobs b JOIN documents d ON d.blob_id = b.id")
        for row in there:
            assert workspace.files.path(row["name"]).stat().st_size == row["size"]
        named = {row["name"] for row in await workspace.rows("SELECT name FROM blobs")}
        assert workspace.stored_names() == named
        ids = [row["id"] for row in await workspace.rows("SELECT id FROM documents")]
        await workspace.do(lambda tx, i=ids: documents.remove(workspace.call, tx, i))
        await empty(workspace)


async def test_files_of_a_purge_that_died_after_its_commit_are_cleared(
    workspace: Workspace, monkeypatch: pytest.MonkeyPatch
):
    document = await workspace.add_parsed("a.txt", "A.")
    kept = await workspace.add_parsed("b.txt", "B.")
    await workspace.do(lambda tx: documents.remove(workspace.call, tx, [document.id]))
    await empty(workspace)

    def die(name: str) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(workspace.files, "remove", die)
    with pytest.raises(KeyboardInterrupt):
        await workspace.files.remove_unused(workspace.db)
    monkeypatch.undo()
    assert len(workspace.stored_names()) == 2
    workspace.files.close()  # the end of the process does the same
    assert await workspace.files.clear(workspace.db) == 1
    assert workspace.stored_names() == {kept.blob_name}
    assert not list(Path(workspace.home / "files" / "incoming").iterdir())
