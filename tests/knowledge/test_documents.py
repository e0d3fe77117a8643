"""Documents: added, replaced, changed, moved, switched off, removed and restored, one at a time and many at once."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from almanac.core import clock
from almanac.core.database import Transaction
from almanac.core.errors import AlmanacError, BadRequest, Conflict, NotFound
from almanac.jobs import queue
from almanac.knowledge import bases, document_text, documents, folders
from almanac.knowledge.documents import DocumentDraft
from almanac.search import passage_store
from tests.knowledge.library import Library

Work = Callable[[Transaction], Awaitable[Any]]


async def attempt(work: Awaitable[Any]) -> Any:
    try:
        return await work
    except AlmanacError as error:
        return error


async def searchable(library: Library) -> dict[str, set[str]]:
    """The texts that search may find, by collection."""
    rows = await library.rows(
        "SELECT s.collection, p.text FROM passages p JOIN sources s ON s.id = p.source_id WHERE s.is_live = 1"
    )
    found: dict[str, set[str]] = {}
    for row in rows:
        found.setdefault(row["collection"], set()).add(row["text"])
    return found


async def readable(library: Library, document_id: int) -> str:
    return (await document_text.read(library.call, document_id)).text


# Adding


async def test_a_document_has_what_was_said_of_it_and_what_its_content_says(library: Library):
    folder = await library.folder("Pumps")
    added = await library.add(
        "pump.pdf", "# Pumps\n\nOil it.", folder_id=folder.id, tags=(" oil ", "pump", "oil"), metadata={"page": 1}
    )
    document = added.document
    assert added.outcome == "added"
    assert (document.name, document.folder_id, document.base_id) == ("pump.pdf", folder.id, library.base.id)
    assert (document.tags, document.metadata) == (("oil", "pump"), {"page": 1})
    assert document.mime_type != "application/pdf"  # the name says so, the content does not
    assert (document.size, document.generation, document.index_status) == (16, 1, "queued")
    assert (document.creator_id, document.creator_name) == (library.librarian.id, "librarian")
    assert (document.is_enabled, document.failure, document.characters, document.title) == (True, None, None, None)
    assert document == await library.get(document.id)


async def test_the_same_name_is_refused_replaced_or_numbered_as_was_asked(library: Library):
    first = await library.add("a.txt", "One.")
    with pytest.raises(Conflict, match=f"'a.txt' here, with the id {first.document.id}"):
        await library.add("a.txt", "Two.")
    both = await library.add("a.txt", "Two.", if_exists="keep_both")
    assert (both.outcome, both.document.name) == ("added", "a (2).txt")
    replaced = await library.add("a.txt", "Three.", if_exists="replace")
    assert (replaced.outcome, replaced.document.id, replaced.document.generation) == ("replaced", first.document.id, 2)
    new = await library.add("b.txt", "Four.", if_exists="replace")
    assert new.outcome == "added"
    with pytest.raises(BadRequest, match="if_exists"):
        await library.add("c.txt", "Five.", if_exists="guess")
    assert await library.count("documents") == 3


async def test_the_same_content_again_changes_nothing_and_reads_nothing_anew(library: Library):
    document = await library.shelve("a.txt", "One.")
    again = await library.add("a.txt", "One.", if_exists="replace")
    assert (again.outcome, again.document) == ("unchanged", document)
    assert (await library.replace(document.id, "One.")).outcome == "unchanged"
    assert await library.read_all() == 0


async def test_the_same_content_again_is_read_anew_where_reading_it_had_failed(library: Library):
    failed = await library.shelve("a.txt", "UNREADABLE")
    assert failed.index_status == "failed"
    again = await library.replace(failed.id, "UNREADABLE")
    assert (again.outcome, again.document.generation, again.document.failure) == ("replaced", 2, None)


async def test_a_document_is_added_only_to_a_folder_that_is_there(library: Library):
    other = await library.do(lambda tx: bases.add(library.call, tx, "Other"))
    far = await library.folder("far", base=other)
    gone = await library.folder("gone")
    await library.do(lambda tx: folders.remove(library.call, tx, gone.id, contents="delete"))
    for folder_id in (far.id, gone.id, 99_999, -1):
        with pytest.raises(NotFound):
            await library.add("a.txt", "One.", folder_id=folder_id)
    assert (await library.count("documents"), await library.count("blobs"), library.stored()) == (0, 0, set())


@pytest.mark.parametrize(
    "draft",
    [
        {"tags": ("",)},
        {"tags": ("x" * 101,)},
        {"tags": tuple(f"t{n}" for n in range(51))},
        {"tags": ("a\x00b",)},
        {"tags": ("\ud800",)},
        {"metadata": {"text": "x" * documents.MAX_METADATA_BYTES}},
        {"metadata": {"when": object()}},
        {"metadata": {"half": "\ud800"}},
        {"metadata": {"huge": 2**70}},
        {"metadata": {1: "a number for a name"}},
    ],
)
async def test_tags_and_metadata_beyond_their_bounds_are_refused_and_change_nothing(library: Library, draft: Any):
    with pytest.raises(BadRequest):
        await library.add("a.txt", "One.", **draft)
    document = (await library.add("b.txt", "Two.", tags=("kept",), metadata={"kept": True})).document
    with pytest.raises(BadRequest):
        await library.do(lambda tx: documents.update(library.call, tx, document.id, **draft))
    assert await library.get(document.id) == document
    assert await library.count("documents") == 1


async def test_tags_and_metadata_within_their_bounds_are_kept_as_they_are(library: Library):
    tags = tuple(f"{n:02}" + "水" * 98 for n in range(50))
    metadata: dict[str, Any] = {"nested": {"list": [1, 2.5, None, True, "𝄞"]}, "nul": "a\x00b", "x": "y" * 16_000}
    document = (await library.add("a.txt", "One.", tags=tags, metadata=metadata)).document
    assert (document.tags, document.metadata) == (tags, metadata)


# Many at once


async def test_of_ten_who_add_the_same_name_at_once_one_does_and_the_others_are_told(library: Library):
    outcomes = await asyncio.gather(*[attempt(library.add("a.txt", f"{n}")) for n in range(10)])
    assert sorted(type(outcome).__name__ for outcome in outcomes) == ["AddResult"] + ["Conflict"] * 9
    assert len(library.stored()) == await library.count("blobs") == await library.count("documents") == 1


@pytest.mark.parametrize("inside", [False, True])
async def test_ten_who_keep_both_at_once_have_ten_documents(library: Library, inside: bool):
    folder_id = (await library.folder("f")).id if inside else 0
    work = [library.add("a.txt", f"{n}", if_exists="keep_both", folder_id=folder_id) for n in range(10)]
    added = await asyncio.gather(*work)
    assert {each.outcome for each in added} == {"added"}
    assert len({each.document.id for each in added}) == 10
    assert {each.document.name for each in added} == {"a.txt", *(f"a ({n}).txt" for n in range(2, 11))}


async def test_ten_who_replace_at_once_leave_one_document_with_the_content_of_one_of_them(library: Library):
    added = await asyncio.gather(*[library.add("a.txt", f"text {n}", if_exists="replace") for n in range(10)])
    assert sorted(each.outcome for each in added) == ["added"] + ["replaced"] * 9
    await library.read_all()
    (document,) = await library.rows("SELECT id, generation, index_status FROM documents")
    assert (document["generation"], document["index_status"]) == (10, "success")
    text = await readable(library, document["id"])
    assert await searchable(library) == {library.base.collection: {text}}
    reading = await document_text.get(library.db, document["id"])
    assert reading is not None
    assert reading.generation == 10


# Generations


async def test_what_comes_back_for_an_older_generation_is_dropped(library: Library):
    document = (await library.add("a.txt", "The old one.")).document
    (old,) = await queue.claim(library.db, "slow", ["ingest"], limit=1, lease=clock.MINUTE)
    effect = await library.ingest(old)  # it has read the file; then somebody is quicker
    assert effect is not None
    await library.replace(document.id, "The new one.")
    await library.read_all()
    await library.do(effect)
    assert await readable(library, document.id) == "The new one."
    assert await searchable(library) == {library.base.collection: {"The new one."}}
    assert await library.ingest(old) is None
    now = await library.get(document.id)
    assert (now.generation, now.index_status) == (2, "success")


async def test_a_failure_of_an_older_generation_is_dropped(library: Library):
    document = (await library.add("a.txt", "UNREADABLE")).document
    (old,) = await queue.claim(library.db, "slow", ["ingest"], limit=1, lease=clock.MINUTE)
    effect = await library.ingest(old)
    assert effect is not None
    await library.replace(document.id, "The new one.")
    await library.read_all()
    await library.do(effect)
    now = await library.get(document.id)
    assert (now.index_status, now.failure) == ("success", None)
    assert await readable(library, document.id) == "The new one."


async def test_a_file_that_cannot_be_read_leaves_nothing_to_find_even_where_the_one_before_could(library: Library):
    document = await library.shelve("a.txt", "Sound.")
    assert await searchable(library) != {}
    await library.replace(document.id, "UNREADABLE now")
    assert await readable(library, document.id) == "Sound."  # until the new one has been read
    await library.read_all()
    failed = await library.get(document.id)
    assert failed.index_status == "failed"
    assert failed.failure is not None
    assert (failed.failure.stage, failed.failure.code, failed.failure.generation) == ("conversion", "corrupt", 2)
    assert (failed.failure.retryable, failed.failure.message) == (False, "The file is damaged.")
    assert (failed.characters, failed.passages, failed.title) == (None, None, None)
    for table in ("readings", "reading_parts", "passages"):
        assert await library.count(table) == 0
    assert await readable(library, document.id) == ""
    await library.replace(document.id, "Sound again.")
    await library.read_all()
    assert (await library.get(document.id)).failure is None


async def test_whoever_looks_while_a_document_is_replaced_sees_the_old_or_the_new_and_never_a_mix(library: Library):
    def version(number: int) -> str:
        line = f"Version {number} of it. "
        return "\f".join([line * (700 * (1 + number % 3))] * (2 + number % 2))

    document = await library.shelve("a.txt", version(0))
    done, looks = asyncio.Event(), 0

    async def look() -> None:
        nonlocal looks
        while not done.is_set():
            excerpt = await document_text.read(library.call, document.id)
            page = await document_text.read_page(library.call, document.id, 2)
            rows = await library.db.scan(
                "SELECT r.generation, r.characters, r.passages, r.page_count,"
                " (SELECT sum(length(text)) FROM reading_parts WHERE document_id = r.document_id) AS stored,"
                " (SELECT count(*) FROM passages WHERE source_id = s.id) AS cut,"
                " (SELECT max(span_end) FROM passages WHERE source_id = s.id) AS last"
                " FROM readings r JOIN sources s ON s.kind = 'document' AND s.owner_id = $1 WHERE r.document_id = $2",
                str(document.id),
                document.id,
            )
            number = int(excerpt.text.split()[1])
            assert excerpt.text == version(number).replace("\f", "\n")[: document_text.MAX_READ_CHARS]
            assert excerpt.total == len(version(number))
            number = int(page.text.split()[1])
            assert page.text.strip() == version(number).split("\f")[1].strip()
            assert page.total == len(version(number))
            (row,) = rows
            assert (row["stored"], row["cut"]) == (row["characters"], row["passages"])
            assert row["characters"] == len(version(row["generation"] - 1))
            assert row["characters"] - row["last"] <= 1  # but for the space at the end
            looks += 1
            await asyncio.sleep(0)

    watchers = [asyncio.create_task(look()) for _ in range(2)]
    for number in range(1, 25):
        await library.replace(document.id, version(number))
        await library.read_all()
    done.set()
    await asyncio.gather(*watchers)
    assert looks > 24
    assert (await library.get(document.id)).generation == 25


# Changing


async def test_a_change_keeps_what_it_does_not_name(library: Library):
    document = (await library.add("a.txt", "One.", tags=("t",), metadata={"m": 1})).document
    renamed = await library.do(lambda tx: documents.update(library.call, tx, document.id, name="b.txt"))
    assert (renamed.name, renamed.tags, renamed.metadata) == ("b.txt", ("t",), {"m": 1})
    tagged = await library.do(lambda tx: documents.update(library.call, tx, document.id, tags=[]))
    assert (tagged.name, tagged.tags, tagged.metadata) == ("b.txt", (), {"m": 1})
    described = await library.do(lambda tx: documents.update(library.call, tx, document.id, metadata={}))
    assert (described.name, described.metadata, described.generation) == ("b.txt", {}, 1)


async def test_a_document_cannot_be_renamed_to_a_name_that_is_taken(library: Library):
    document = (await library.add("a.txt", "One.")).document
    await library.add("b.txt", "Two.")
    with pytest.raises(Conflict, match=r"'b\.txt'"):
        await library.do(lambda tx: documents.update(library.call, tx, document.id, name="b.txt"))
    assert (await library.do(lambda tx: documents.update(library.call, tx, document.id, name="a.txt"))).name == "a.txt"


async def test_a_document_that_is_switched_off_is_not_found_and_is_read_all_the_same(library: Library):
    document = await library.shelve("a.txt", "One.")
    await library.do(lambda tx: documents.enable(library.call, tx, [document.id], False))
    assert await searchable(library) == {}
    assert await readable(library, document.id) == "One."
    await library.replace(document.id, "Two.")
    await library.read_all()
    assert await searchable(library) == {}
    await library.do(lambda tx: documents.enable(library.call, tx, [document.id], True))
    assert await searchable(library) == {library.base.collection: {"Two."}}


async def test_a_moved_document_is_searched_with_the_base_it_is_in(library: Library):
    other = await library.do(lambda tx: bases.add(library.call, tx, "Other"))
    folder = await library.folder("f", base=other)
    document = await library.shelve("a.txt", "One.")
    await library.shelve("a.txt", "There already.", base=other, folder_id=folder.id)
    await library.do(lambda tx: documents.move(library.call, tx, [document.id], folder.id, other.id))
    moved = await library.get(document.id)
    assert (moved.base_id, moved.folder_id, moved.name, moved.generation) == (other.id, folder.id, "a (2).txt", 1)
    assert await searchable(library) == {other.collection: {"One.", "There already."}}
    await library.replace(document.id, "Two.")
    await library.read_all()
    assert await searchable(library) == {other.collection: {"Two.", "There already."}}
    with pytest.raises(NotFound):
        await library.do(lambda tx: documents.move(library.call, tx, [document.id], folder.id, library.base.id))


async def test_a_document_moved_while_it_is_read_is_searched_with_the_base_it_went_to(library: Library):
    other = await library.do(lambda tx: bases.add(library.call, tx, "Other"))
    for turn in range(20):
        document = (await library.add(f"{turn}.txt", f"Text {turn}.")).document
        (job,) = await queue.claim(library.db, "w", ["ingest"], limit=1, lease=clock.MINUTE)
        work = [
            library.settle(job, library.ingest),
            library.do(lambda tx, d=document: documents.move(library.call, tx, [d.id], 0, other.id)),
        ]
        await asyncio.gather(*work[:: 1 - 2 * (turn % 2)])
        assert (await library.get(document.id)).index_status == "success"
        assert library.base.collection not in await searchable(library)


async def test_a_document_switched_off_or_removed_while_it_is_read_is_not_found(library: Library):
    verbs: list[Callable[[Transaction, int], Awaitable[None]]] = [
        lambda tx, id: documents.enable(library.call, tx, [id], False),
        lambda tx, id: documents.remove(library.call, tx, [id]),
    ]
    for turn in range(20):
        document = (await library.add(f"{turn}.txt", f"Text {turn}.")).document
        (job,) = await queue.claim(library.db, "w", ["ingest"], limit=1, lease=clock.MINUTE)
        verb = verbs[turn % 2]
        await asyncio.gather(
            library.settle(job, library.ingest),
            library.do(lambda tx, v=verb, d=document: v(tx, d.id)),
        )
        assert await searchable(library) == {}


# Removing


async def test_a_removed_document_is_gone_until_it_is_restored(library: Library):
    folder = await library.folder("f")
    document = await library.shelve("a.txt", "One.", folder_id=folder.id)
    await library.do(lambda tx: documents.remove(library.call, tx, [document.id]))
    assert await searchable(library) == {}
    works: list[Work] = [
        lambda tx: documents.update(library.call, tx, document.id, name="b"),
        lambda tx: documents.move(library.call, tx, [document.id], 0),
        lambda tx: documents.enable(library.call, tx, [document.id], True),
        lambda tx: documents.reindex(library.call, tx, [document.id]),
        lambda tx: documents.remove(library.call, tx, [document.id]),
    ]
    for work in works:
        with pytest.raises(NotFound):
            await library.do(work)
    with pytest.raises(NotFound):
        await library.replace(document.id, "Two.")
    await library.add("a.txt", "In its place.", folder_id=folder.id)
    await library.do(lambda tx: documents.restore(library.call, tx, [document.id]))
    back = await library.get(document.id)
    assert (back.name, back.folder_id, back.index_status) == ("a (2).txt", folder.id, "success")
    assert await searchable(library) == {library.base.collection: {"One."}}
    with pytest.raises(NotFound):
        await library.do(lambda tx: documents.restore(library.call, tx, [document.id]))


async def test_a_document_switched_off_before_it_was_removed_stays_off(library: Library):
    document = await library.shelve("a.txt", "One.")
    await library.do(lambda tx: documents.enable(library.call, tx, [document.id], False))
    await library.do(lambda tx: documents.remove(library.call, tx, [document.id]))
    await library.do(lambda tx: documents.restore(library.call, tx, [document.id]))
    assert await searchable(library) == {}
    assert (await library.get(document.id)).is_enabled is False


async def test_a_document_removed_while_it_waits_is_read_once_it_is_back_whatever_a_job_has_seen(library: Library):
    document = (await library.add("a.txt", "One.")).document
    (job,) = await queue.claim(library.db, "w", ["ingest"], limit=1, lease=clock.MINUTE)
    await library.do(lambda tx: documents.remove(library.call, tx, [document.id]))
    assert await library.ingest(job) is None  # the worker has looked, and not yet said that it is done
    await library.do(lambda tx: documents.restore(library.call, tx, [document.id]))
    await library.do(lambda tx: queue.finish(tx, job))
    await library.read_all()
    assert (await library.get(document.id)).index_status == "success"


async def test_a_restored_document_comes_back_at_the_top_where_its_folder_is_gone(library: Library):
    folder = await library.folder("f")
    document = await library.shelve("a.txt", "One.", folder_id=folder.id)
    await library.do(lambda tx: documents.remove(library.call, tx, [document.id]))
    await library.do(lambda tx: folders.remove(library.call, tx, folder.id, contents="delete"))
    await library.do(lambda tx: documents.restore(library.call, tx, [document.id]))
    assert (await library.get(document.id)).folder_id == folders.ROOT


# In batches


@pytest.mark.parametrize("verb", ["move", "enable", "remove", "restore", "reindex"])
async def test_a_batch_is_done_as_a_whole_or_not_at_all(library: Library, verb: str):
    folder = await library.folder("f")
    made = [await library.shelve(f"{n}.txt", f"Text {n}.") for n in range(3)]
    ids = [document.id for document in made]
    if verb == "restore":
        await library.do(lambda tx: documents.remove(library.call, tx, ids))
    verbs: dict[str, Callable[[Transaction, list[int]], Awaitable[None]]] = {
        "move": lambda tx, ids: documents.move(library.call, tx, ids, folder.id),
        "enable": lambda tx, ids: documents.enable(library.call, tx, ids, False),
        "remove": lambda tx, ids: documents.remove(library.call, tx, ids),
        "restore": lambda tx, ids: documents.restore(library.call, tx, ids),
        "reindex": lambda tx, ids: documents.reindex(library.call, tx, ids),
    }
    tables = [f"SELECT * FROM {table} ORDER BY id" for table in ("documents", "passages", "jobs")]
    before = [await library.rows(sql) for sql in tables]
    for bad in ([*ids, 99_999], [], list(range(1, 502))):
        with pytest.raises((NotFound, BadRequest)):
            await library.do(lambda tx, b=bad: verbs[verb](tx, b))
        assert [await library.rows(sql) for sql in tables] == before
    await library.do(lambda tx: verbs[verb](tx, [*ids, *ids]))
    assert [await library.rows(sql) for sql in tables] != before


async def test_documents_read_again_keep_their_old_text_until_then(library: Library):
    document = await library.shelve("a.txt", "One.")
    await library.do(lambda tx: documents.reindex(library.call, tx, [document.id]))
    waiting = await library.get(document.id)
    assert (waiting.generation, waiting.index_status, await readable(library, document.id)) == (2, "queued", "One.")
    assert await library.read_all() == 1
    assert (await library.get(document.id)).index_status == "success"
    found = await passage_store.find(library.db, "document", str(document.id))
    assert [passage.text for passage in found] == ["One."]


async def test_only_documents_that_failed_are_tried_again(library: Library):
    failed = await library.shelve("a.txt", "UNREADABLE")
    gone = await library.shelve("b.txt", "UNREADABLE too")
    await library.shelve("c.txt", "Sound.")
    await library.do(lambda tx: documents.remove(library.call, tx, [gone.id]))
    assert await library.do(lambda tx: documents.retry(library.call, tx, library.base.id)) == 1
    assert (await library.get(failed.id)).index_status == "queued"
    assert await library.read_all() == 1


async def test_a_document_s_own_name_for_its_kind_is_kept_and_a_file_s_is_told_from_its_content(library: Library):
    said = await library.store(
        "text", lambda tx, s: documents.add(library.call, tx, library.base.id, DocumentDraft("a", source_type="web"), s)
    )
    told = await library.add("b.csv", "a,b\n1,2\n")
    assert (said.document.source_type, told.document.source_type) == ("web", "table")


async def test_new_content_says_where_it_came_from(library: Library):
    page = (await library.add("page.html", "<p>one", source_type="web", source_url="https://example.org/page")).document
    assert (page.source_type, page.source_url) == ("web", "https://example.org/page")
    again = (await library.replace(page.id, "two")).document
    assert (again.source_type, again.source_url) == ("text", None)
