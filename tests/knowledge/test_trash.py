"""The trash: what is in it, how long, and that what leaves it for good leaves nothing behind."""

import asyncio
from pathlib import Path

import pytest

from almanac.core import clock
from almanac.core.errors import NotFound
from almanac.identity.roles import Role
from almanac.knowledge import bases, documents, folders, trash
from tests.knowledge.library import Library

TABLES = ("documents", "readings", "reading_parts", "passages", "blobs")


async def rows(library: Library) -> dict[str, int]:
    return {table: await library.count(table) for table in TABLES}


async def empty(library: Library, before: int | None = None) -> int:
    return await trash.purge(library.db, clock.now() + 1 if before is None else before)


async def test_the_trash_is_listed_the_latest_first_a_page_at_a_time(library: Library):
    folder = await library.folder("f")
    await library.add("in.txt", "1", folder_id=folder.id)
    made = [(await library.add(f"{n}.txt", f"{n}")).document for n in range(3)]
    for document in made:
        await library.do(lambda tx, d=document: documents.remove(library.call, tx, [d.id]))
    await library.do(lambda tx: folders.remove(library.call, tx, folder.id, contents="delete"))
    listed = await trash.find(library.call, library.base.id)
    assert [(gone.kind, gone.name) for gone in listed] == [
        ("folder", "f"), ("document", "2.txt"), ("document", "1.txt"), ("document", "0.txt"),
    ]  # fmt: skip
    assert all(gone.removed_at <= clock.now() for gone in listed)
    assert await trash.find(library.call, library.base.id, limit=2, offset=1) == listed[1:3]


async def test_what_is_purged_leaves_nothing_and_what_is_not_loses_nothing(library: Library):
    kept = await library.shelve("kept.txt", "Kept.\fTwo pages.")
    folder = await library.folder("f")
    doomed = await library.shelve("doomed.txt", "Doomed. " * 10_000, folder_id=folder.id)
    alone = await library.shelve("alone.txt", "Alone.")
    before = await rows(library)
    await library.do(lambda tx: folders.remove(library.call, tx, folder.id, contents="delete"))
    await library.do(lambda tx: documents.remove(library.call, tx, [alone.id]))
    assert await empty(library, before=1) == 0
    assert (await rows(library)) == before
    assert await empty(library) == 2
    assert await trash.remove_unused(library.db, library.files) == 2
    assert await rows(library) == {"documents": 1, "readings": 1, "reading_parts": 1, "passages": 1, "blobs": 1}
    assert await library.count("folders") == 0
    assert library.stored() == {(await library.get(kept.id)).blob_name}
    for gone in (doomed, alone):
        with pytest.raises(NotFound):
            await library.do(lambda tx, g=gone: documents.restore(library.call, tx, [g.id]))
    assert await empty(library) == 0


async def test_a_file_that_another_document_has_too_is_kept_until_that_one_goes(library: Library):
    one = await library.shelve("one.txt", "The same.")
    two = await library.shelve("two.txt", "The same.")
    assert (await rows(library))["blobs"] == len(library.stored()) == 1
    await library.do(lambda tx: documents.remove(library.call, tx, [one.id]))
    await empty(library)
    assert await trash.remove_unused(library.db, library.files) == 0
    assert library.files.path(two.blob_name).read_text() == "The same."
    await library.do(lambda tx: documents.remove(library.call, tx, [two.id]))
    assert await trash.remove_unused(library.db, library.files) == 0  # it is in the trash, not gone
    await empty(library)
    assert await trash.remove_unused(library.db, library.files) == 1
    assert library.stored() == set()


async def test_the_file_of_a_content_that_was_replaced_is_removed(library: Library):
    document = await library.shelve("a.txt", "Old.")
    await library.replace(document.id, "New.")
    assert len(library.stored()) == 2
    assert await trash.remove_unused(library.db, library.files) == 1
    await library.read_all()
    assert library.stored() == {(await library.get(document.id)).blob_name}
    assert library.drafts() == []


async def test_a_removed_base_is_purged_with_all_that_was_in_it_and_all_that_was_said_of_it(library: Library):
    other = await library.do(lambda tx: bases.add(library.call, tx, "Other"))
    await library.town.add("maria")
    await library.do(lambda tx: bases.share(library.call, tx, library.base.id, Role.Reporter, user="maria"))
    folder = await library.folder("f")
    await library.shelve("a.txt", "A.", folder_id=folder.id)
    await library.shelve("b.txt", "B.")
    kept = await library.shelve("c.txt", "C.", base=other)
    await library.do(lambda tx: bases.remove(library.call, tx, library.base.id))
    assert await empty(library) == 2
    assert await trash.remove_unused(library.db, library.files) == 2
    assert (await library.count("bases"), await library.count("folders"), await library.count("grants")) == (1, 0, 0)
    assert await rows(library) == dict.fromkeys(TABLES, 1)
    assert (await library.get(kept.id)).index_status == "success"
    with pytest.raises(NotFound):
        await library.do(lambda tx: bases.restore(library.call, tx, library.base.id))


async def test_more_than_fit_into_one_transaction_are_purged(library: Library, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(trash, "_BATCH_DOCUMENTS", 3)
    ids = [(await library.add(f"{n}.txt", f"{n}")).document.id for n in range(8)]
    await library.do(lambda tx: documents.remove(library.call, tx, ids))
    assert await empty(library) == 8
    assert await library.count("documents") == 0
    assert await trash.remove_unused(library.db, library.files) == 8


async def test_a_job_for_a_document_that_was_purged_does_nothing(library: Library):
    document = (await library.add("a.txt", "A.")).document
    await library.do(lambda tx: documents.remove(library.call, tx, [document.id]))
    await empty(library)
    assert await library.read_all() == 1
    assert await rows(library) == {"documents": 0, "readings": 0, "reading_parts": 0, "passages": 0, "blobs": 1}


async def test_what_is_restored_while_the_trash_is_emptied_is_either_back_or_gone(library: Library):
    for turn in range(20):
        document = await library.shelve(f"{turn}.txt", f"Text {turn}.")
        await library.do(lambda tx, d=document: documents.remove(library.call, tx, [d.id]))
        work = [
            empty(library),
            library.do(lambda tx, d=document: documents.restore(library.call, tx, [d.id])),
        ]
        purged, restored = await asyncio.gather(*work, return_exceptions=True)
        assert not isinstance(purged, BaseException)
        if restored is None:
            assert (await library.get(document.id)).characters == len(f"Text {turn}.")
        else:
            assert isinstance(restored, NotFound)


async def test_a_document_restored_after_the_trash_was_looked_through_is_not_purged(library: Library):
    document = await library.shelve("a.txt", "A.")
    await library.do(lambda tx: documents.remove(library.call, tx, [document.id]))
    real, db = library.db.scan, library.db

    async def scan(sql: str, *args: object) -> object:
        found = await real(sql, *args)  # type: ignore[arg-type]
        if "removed_at <" in sql and found:
            await library.do(lambda tx: documents.restore(library.call, tx, [document.id]))
        return found

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(db, "scan", scan)
        assert await empty(library) == 0
    assert (await library.get(document.id)).index_status == "success"


@pytest.mark.parametrize("first", ["purge", "upload"])
async def test_a_purge_that_meets_an_upload_of_the_same_content_never_loses_a_file_that_is_needed(
    library: Library, first: str
):
    for turn in range(40):
        content = f"Content {turn % 4}."
        name = f"{turn}.txt"
        work = [trash.remove_unused(library.db, library.files), library.add(name, content)]
        if first == "upload":
            work.reverse()
        await asyncio.gather(*work)
        there = await library.rows("SELECT b.name, b.size FROM blobs b JOIN documents d ON d.blob_id = b.id")
        for row in there:
            assert library.files.path(row["name"]).stat().st_size == row["size"]
        named = {row["name"] for row in await library.rows("SELECT name FROM blobs")}
        assert library.stored() == named
        ids = [row["id"] for row in await library.rows("SELECT id FROM documents")]
        await library.do(lambda tx, i=ids: documents.remove(library.call, tx, i))
        await empty(library)


async def test_a_purge_that_dies_between_its_commit_and_the_files_leaves_them_to_be_cleared(
    library: Library, monkeypatch: pytest.MonkeyPatch
):
    document = await library.shelve("a.txt", "A.")
    kept = await library.shelve("b.txt", "B.")
    await library.do(lambda tx: documents.remove(library.call, tx, [document.id]))
    await empty(library)

    def die(name: str) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(library.files, "remove", die)
    with pytest.raises(KeyboardInterrupt):
        await trash.remove_unused(library.db, library.files)
    monkeypatch.undo()
    assert len(library.stored()) == 2
    library.files.close()  # as the end of the process does
    assert await library.files.clear(library.db) == 1
    assert library.stored() == {kept.blob_name}
    assert not list(Path(library.home / "files" / "incoming").iterdir())
