"""Documents are added, replaced, changed, moved, disabled, removed and restored, also concurrently."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from almanac.core import clock
from almanac.core.database import Transaction
from almanac.core.errors import AlmanacError, BadRequest, Conflict, NotFound
from almanac.jobs import queue
from almanac.knowledge import bases, document_status, document_text, documents, folders
from almanac.knowledge.documents import DocumentDraft
from almanac.search import passage_store
from tests.knowledge.workspace import Workspace

Work = Callable[[Transaction], Awaitable[Any]]


async def attempt(work: Awaitable[Any]) -> Any:
    try:
        return await work
    except AlmanacError as error:
        return error


async def searchable(workspace: Workspace) -> dict[str, set[str]]:
    """The texts that search may find, by collection."""
    rows = await workspace.rows(
        "SELECT s.collection, p.text FROM passages p JOIN sources s ON s.id = p.source_id WHERE s.is_live = 1"
    )
    found: dict[str, set[str]] = {}
    for row in rows:
        found.setdefault(row["collection"], set()).add(row["text"])
    return found


async def readable(workspace: Workspace, document_id: int) -> str:
    return (await document_text.read(workspace.call, document_id)).text


# Adding


async def test_a_document_has_the_given_properties_and_those_of_its_content(workspace: Workspace):
    folder = await workspace.add_folder("Pumps")
    added = await workspace.add(
        "pump.pdf", "# Pumps\n\nOil it.", folder_id=folder.id, tags=(" oil ", "pump", "oil"), metadata={"page": 1}
    )
    document = added.document
    assert added.outcome == "added"
    assert (document.name, document.folder_id, document.base_id) == ("pump.pdf", folder.id, workspace.base.id)
    assert (document.tags, document.metadata) == (("oil", "pump"), {"page": 1})
    assert document.mime_type != "application/pdf"  # the content decides, not the name
    assert (document.size, document.generation, document.index_status) == (16, 1, "queued")
    assert (document.creator_id, document.creator_name) == (workspace.owner.id, "owner")
    assert (document.is_enabled, document.failure, document.characters, document.title) == (True, None, None, None)
    assert document == await workspace.get(document.id)


async def test_the_same_name_is_refused_replaced_or_numbered_as_requested(workspace: Workspace):
    first = await workspace.add("a.txt", "One.")
    with pytest.raises(Conflict, match=f"'a.txt' here, with the id {first.document.id}"):
        await workspace.add("a.txt", "Two.")
    both = await workspace.add("a.txt", "Two.", if_exists="keep_both")
    assert (both.outcome, both.document.name) == ("added", "a (2).txt")
    replaced = await workspace.add("a.txt", "Three.", if_exists="replace")
    assert (replaced.outcome, replaced.document.id, replaced.document.generation) == ("replaced", first.document.id, 2)
    new = await workspace.add("b.txt", "Four.", if_exists="replace")
    assert new.outcome == "added"
    with pytest.raises(BadRequest, match="if_exists"):
        await workspace.add("c.txt", "Five.", if_exists="guess")
    assert await workspace.count("documents") == 3


async def test_the_same_content_changes_nothing_and_is_not_parsed_again(workspace: Workspace):
    document = await workspace.add_parsed("a.txt", "One.")
    again = await workspace.add("a.txt", "One.", if_exists="replace")
    assert (again.outcome, again.document) == ("unchanged", document)
    assert (await workspace.replace(document.id, "One.")).outcome == "unchanged"
    assert await workspace.run_jobs() == 0


async def test_the_same_content_is_parsed_again_if_it_had_failed(workspace: Workspace):
    failed = await workspace.add_parsed("a.txt", "UNREADABLE")
    assert failed.index_status == "failed"
    again = await workspace.replace(failed.id, "UNREADABLE")
    assert (again.outcome, again.document.generation, again.document.failure) == ("replaced", 2, None)


async def test_a_document_is_added_only_to_an_existing_folder(workspace: Workspace):
    other = await workspace.do(lambda tx: bases.add(workspace.call, tx, "Other"))
    far = await workspace.add_folder("far", base=other)
    gone = await workspace.add_folder("gone")
    await workspace.do(lambda tx: folders.remove(workspace.call, tx, gone.id, contents="delete"))
    for folder_id in (far.id, gone.id, 99_999, -1):
        with pytest.raises(NotFound):
            await workspace.add("a.txt", "One.", folder_id=folder_id)
    assert (await workspace.count("documents"), await workspace.count("blobs"), workspace.stored_names()) == (
        0,
        0,
        set(),
    )


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
async def test_invalid_tags_and_metadata_are_refused_and_change_nothing(workspace: Workspace, draft: Any):
    with pytest.raises(BadRequest):
        await workspace.add("a.txt", "One.", **draft)
    document = (await workspace.add("b.txt", "Two.", tags=("kept",), metadata={"kept": True})).document
    with pytest.raises(BadRequest):
        await workspace.do(lambda tx: documents.update(workspace.call, tx, document.id, **draft))
    assert await workspace.get(document.id) == document
    assert await workspace.count("documents") == 1


async def test_the_largest_tags_and_metadata_are_stored_unchanged(workspace: Workspace):
    tags = tuple(f"{n:02}" + "水" * 98 for n in range(50))
    metadata: dict[str, Any] = {"nested": {"list": [1, 2.5, None, True, "𝄞"]}, "nul": "a\x00b", "x": "y" * 16_000}
    document = (await workspace.add("a.txt", "One.", tags=tags, metadata=metadata)).document
    assert (document.tags, document.metadata) == (tags, metadata)


# Concurrent additions


async def test_of_ten_concurrent_additions_of_one_name_one_succeeds_and_nine_are_conflicts(workspace: Workspace):
    outcomes = await asyncio.gather(*[attempt(workspace.add("a.txt", f"{n}")) for n in range(10)])
    assert sorted(type(outcome).__name__ for outcome in outcomes) == ["AddResult"] + ["Conflict"] * 9
    assert len(workspace.stored_names()) == await workspace.count("blobs") == await workspace.count("documents") == 1


@pytest.mark.parametrize("inside", [False, True])
async def test_ten_concurrent_additions_that_keep_both_make_ten_documents(workspace: Workspace, inside: bool):
    folder_id = (await workspace.add_folder("f")).id if inside else 0
    work = [workspace.add("a.txt", f"{n}", if_exists="keep_both", folder_id=folder_id) for n in range(10)]
    added = await asyncio.gather(*work)
    assert {each.outcome for each in added} == {"added"}
    assert len({each.document.id for each in added}) == 10
    assert {each.document.name for each in added} == {"a.txt", *(f"a ({n}).txt" for n in range(2, 11))}


async def test_ten_concurrent_replacements_leave_one_document_with_one_of_the_contents(workspace: Workspace):
    added = await asyncio.gather(*[workspace.add("a.txt", f"text {n}", if_exists="replace") for n in range(10)])
    assert sorted(each.outcome for each in added) == ["added"] + ["replaced"] * 9
    await workspace.run_jobs()
    (document,) = await workspace.rows("SELECT id, generation, index_status FROM documents")
    assert (document["generation"], document["index_status"]) == (10, "success")
    text = await readable(workspace, document["id"])
    assert await searchable(workspace) == {workspace.base.collection: {text}}
    reading = await document_text.get(workspace.db, document["id"])
    assert reading is not None
    assert reading.generation == 10


# Generations


async def test_the_result_for_an_older_generation_is_dropped(workspace: Workspace):
    document = (await workspace.add("a.txt", "The old one.")).document
    (old,) = await queue.claim(workspace.db, "slow", ["ingest"], limit=1, lease=clock.MINUTE)
    effect = await workspace.ingest(old)  # the file has been parsed, but a replacement is faster
    assert effect is not None
    await workspace.replace(document.id, "The new one.")
    await workspace.run_jobs()
    await workspace.do(effect)
    assert await readable(workspace, document.id) == "The new one."
    assert await searchable(workspace) == {workspace.base.collection: {"The new one."}}
    assert await workspace.ingest(old) is None
    now = await workspace.get(document.id)
    assert (now.generation, now.index_status) == (2, "success")


async def test_a_failure_of_an_older_generation_is_dropped(workspace: Workspace):
    document = (await workspace.add("a.txt", "UNREADABLE")).document
    (old,) = await queue.claim(workspace.db, "slow", ["ingest"], limit=1, lease=clock.MINUTE)
    effect = await workspace.ingest(old)
    assert effect is not None
    await workspace.replace(document.id, "The new one.")
    await workspace.run_jobs()
    await workspace.do(effect)
    now = await workspace.get(document.id)
    assert (now.index_status, now.failure) == ("success", None)
    assert await readable(workspace, document.id) == "The new one."


async def test_a_new_content_that_cannot_be_parsed_removes_the_old_text(workspace: Workspace):
    document = await workspace.add_parsed("a.txt", "Sound.")
    assert await searchable(workspace) != {}
    await workspace.replace(document.id, "UNREADABLE now")
    assert await readable(workspace, document.id) == "Sound."  # until the new content has been parsed
    await workspace.run_jobs()
    failed = await workspace.get(document.id)
    assert failed.index_status == "failed"
    assert failed.failure is not None
    assert (failed.failure.stage, failed.failure.code, failed.failure.generation) == ("conversion", "corrupt", 2)
    assert (failed.failure.retryable, failed.failure.message) == (False, "The file is damaged.")
    assert (failed.characters, failed.passages, failed.title) == (None, None, None)
    for table in ("readings", "reading_parts", "passages"):
        assert await workspace.count(table) == 0
    assert await readable(workspace, document.id) == ""
    await workspace.replace(document.id, "Sound again.")
    await workspace.run_jobs()
    assert (await workspace.get(document.id)).failure is None


async def test_readers_see_the_old_or_the_new_text_of_a_document_and_never_a_mix(workspace: Workspace):
    def version(number: int) -> str:
        line = f"Version {number} of it. "
        return "\f".join([line * (700 * (1 + number % 3))] * (2 + number % 2))

    document = await workspace.add_parsed("a.txt", version(0))
    done, looks = asyncio.Event(), 0

    async def look() -> None:
        nonlocal looks
        while not done.is_set():
            excerpt = await document_text.read(workspace.call, document.id)
            page = await document_text.read_page(workspace.call, document.id, 2)
            rows = await workspace.db.scan(
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
            assert row["characters"] - row["last"] <= 1  # the space at the end is in no passage
            looks += 1
            await asyncio.sleep(0)

    watchers = [asyncio.create_task(look()) for _ in range(2)]
    for number in range(1, 25):
        await workspace.replace(document.id, version(number))
        await workspace.run_jobs()
    done.set()
    await asyncio.gather(*watchers)
    assert looks > 24
    assert (await workspace.get(document.id)).generation == 25


# Updates and moves


async def test_an_update_keeps_the_properties_that_it_does_not_name(workspace: Workspace):
    document = (await workspace.add("a.txt", "One.", tags=("t",), metadata={"m": 1})).document
    renamed = await workspace.do(lambda tx: documents.update(workspace.call, tx, document.id, name="b.txt"))
    assert (renamed.name, renamed.tags, renamed.metadata) == ("b.txt", ("t",), {"m": 1})
    tagged = await workspace.do(lambda tx: documents.update(workspace.call, tx, document.id, tags=[]))
    assert (tagged.name, tagged.tags, tagged.metadata) == ("b.txt", (), {"m": 1})
    described = await workspace.do(lambda tx: documents.update(workspace.call, tx, document.id, metadata={}))
    assert (described.name, described.metadata, described.generation) == ("b.txt", {}, 1)


async def test_a_document_cannot_be_renamed_to_a_name_that_is_taken(workspace: Workspace):
    document = (await workspace.add("a.txt", "One.")).document
    await workspace.add("b.txt", "Two.")
    with pytest.raises(Conflict, match=r"'b\.txt'"):
        await workspace.do(lambda tx: documents.update(workspace.call, tx, document.id, name="b.txt"))
    assert (
        await workspace.do(lambda tx: documents.update(workspace.call, tx, document.id, name="a.txt"))
    ).name == "a.txt"


async def test_a_disabled_document_is_not_found_but_parsed_and_readable(workspace: Workspace):
    document = await workspace.add_parsed("a.txt", "One.")
    await workspace.do(lambda tx: documents.enable(workspace.call, tx, [document.id], False))
    assert await searchable(workspace) == {}
    assert await readable(workspace, document.id) == "One."
    assert (await workspace.get(document.id)).index_status == "not_indexed"
    await workspace.replace(document.id, "Two.")
    assert (await workspace.get(document.id)).index_status == "queued"
    await workspace.run_jobs()
    assert await searchable(workspace) == {}
    assert (await workspace.get(document.id)).index_status == "not_indexed"
    for status, count in (("not_indexed", 1), ("success", 0)):
        assert len(await document_status.find(workspace.call, workspace.base.id, status=status)) == count
    assert await document_status.finished_statuses(workspace.db, [document.id]) == {document.id: "not_indexed"}
    await workspace.do(lambda tx: documents.enable(workspace.call, tx, [document.id], True))
    assert (await workspace.get(document.id)).index_status == "success"
    assert await searchable(workspace) == {workspace.base.collection: {"Two."}}


async def test_a_moved_document_is_searched_with_its_new_base(workspace: Workspace):
    other = await workspace.do(lambda tx: bases.add(workspace.call, tx, "Other"))
    folder = await workspace.add_folder("f", base=other)
    document = await workspace.add_parsed("a.txt", "One.")
    await workspace.add_parsed("a.txt", "There already.", base=other, folder_id=folder.id)
    await workspace.do(lambda tx: documents.move(workspace.call, tx, [document.id], folder.id, other.id))
    moved = await workspace.get(document.id)
    assert (moved.base_id, moved.folder_id, moved.name, moved.generation) == (other.id, folder.id, "a (2).txt", 1)
    assert await searchable(workspace) == {other.collection: {"One.", "There already."}}
    await workspace.replace(document.id, "Two.")
    await workspace.run_jobs()
    assert await searchable(workspace) == {other.collection: {"Two.", "There already."}}
    with pytest.raises(NotFound):
        await workspace.do(lambda tx: documents.move(workspace.call, tx, [document.id], folder.id, workspace.base.id))


async def test_a_document_that_is_moved_while_parsed_is_searched_with_its_new_base(workspace: Workspace):
    other = await workspace.do(lambda tx: bases.add(workspace.call, tx, "Other"))
    for turn in range(20):
        document = (await workspace.add(f"{turn}.txt", f"Text {turn}.")).document
        (job,) = await queue.claim(workspace.db, "w", ["ingest"], limit=1, lease=clock.MINUTE)
        work = [
            workspace.run_job(job, workspace.ingest),
            workspace.do(lambda tx, d=document: documents.move(workspace.call, tx, [d.id], 0, other.id)),
        ]
        await asyncio.gather(*work[:: 1 - 2 * (turn % 2)])
        assert (await workspace.get(document.id)).index_status == "success"
        assert workspace.base.collection not in await searchable(workspace)


async def test_a_document_that_is_disabled_or_removed_while_parsed_is_not_found(workspace: Workspace):
    verbs: list[Callable[[Transaction, int], Awaitable[None]]] = [
        lambda tx, id: documents.enable(workspace.call, tx, [id], False),
        lambda tx, id: documents.remove(workspace.call, tx, [id]),
    ]
    for turn in range(20):
        document = (await workspace.add(f"{turn}.txt", f"Text {turn}.")).document
        (job,) = await queue.claim(workspace.db, "w", ["ingest"], limit=1, lease=clock.MINUTE)
        verb = verbs[turn % 2]
        await asyncio.gather(
            workspace.run_job(job, workspace.ingest),
            workspace.do(lambda tx, v=verb, d=document: v(tx, d.id)),
        )
        assert await searchable(workspace) == {}


# Removal


async def test_a_removed_document_cannot_be_found_until_it_is_restored(workspace: Workspace):
    folder = await workspace.add_folder("f")
    document = await workspace.add_parsed("a.txt", "One.", folder_id=folder.id)
    await workspace.do(lambda tx: documents.remove(workspace.call, tx, [document.id]))
    assert await searchable(workspace) == {}
    works: list[Work] = [
        lambda tx: documents.update(workspace.call, tx, document.id, name="b"),
        lambda tx: documents.move(workspace.call, tx, [document.id], 0),
        lambda tx: documents.enable(workspace.call, tx, [document.id], True),
        lambda tx: documents.reindex(workspace.call, tx, [document.id]),
        lambda tx: documents.remove(workspace.call, tx, [document.id]),
    ]
    for work in works:
        with pytest.raises(NotFound):
            await workspace.do(work)
    with pytest.raises(NotFound):
        await workspace.replace(document.id, "Two.")
    await workspace.add("a.txt", "In its place.", folder_id=folder.id)
    await workspace.do(lambda tx: documents.restore(workspace.call, tx, [document.id]))
    back = await workspace.get(document.id)
    assert (back.name, back.folder_id, back.index_status) == ("a (2).txt", folder.id, "success")
    assert await searchable(workspace) == {workspace.base.collection: {"One."}}
    with pytest.raises(NotFound):
        await workspace.do(lambda tx: documents.restore(workspace.call, tx, [document.id]))


async def test_a_document_that_was_disabled_before_its_removal_stays_disabled(workspace: Workspace):
    document = await workspace.add_parsed("a.txt", "One.")
    await workspace.do(lambda tx: documents.enable(workspace.call, tx, [document.id], False))
    await workspace.do(lambda tx: documents.remove(workspace.call, tx, [document.id]))
    await workspace.do(lambda tx: documents.restore(workspace.call, tx, [document.id]))
    assert await searchable(workspace) == {}
    assert (await workspace.get(document.id)).is_enabled is False


async def test_a_document_that_was_removed_while_queued_is_parsed_after_it_is_restored(workspace: Workspace):
    document = (await workspace.add("a.txt", "One.")).document
    (job,) = await queue.claim(workspace.db, "w", ["ingest"], limit=1, lease=clock.MINUTE)
    await workspace.do(lambda tx: documents.remove(workspace.call, tx, [document.id]))
    assert (
        await workspace.ingest(job) is None
    )  # the worker has seen that the document is removed, but has not finished the job
    await workspace.do(lambda tx: documents.restore(workspace.call, tx, [document.id]))
    await workspace.do(lambda tx: queue.finish(tx, job))
    await workspace.run_jobs()
    assert (await workspace.get(document.id)).index_status == "success"


async def test_a_restored_document_is_at_the_top_if_its_folder_is_gone(workspace: Workspace):
    folder = await workspace.add_folder("f")
    document = await workspace.add_parsed("a.txt", "One.", folder_id=folder.id)
    await workspace.do(lambda tx: documents.remove(workspace.call, tx, [document.id]))
    await workspace.do(lambda tx: folders.remove(workspace.call, tx, folder.id, contents="delete"))
    await workspace.do(lambda tx: documents.restore(workspace.call, tx, [document.id]))
    assert (await workspace.get(document.id)).folder_id == folders.ROOT


# Batches


@pytest.mark.parametrize("verb", ["move", "enable", "remove", "restore", "reindex"])
async def test_a_batch_is_done_as_a_whole_or_not_at_all(workspace: Workspace, verb: str):
    folder = await workspace.add_folder("f")
    made = [await workspace.add_parsed(f"{n}.txt", f"Text {n}.") for n in range(3)]
    ids = [document.id for document in made]
    if verb == "restore":
        await workspace.do(lambda tx: documents.remove(workspace.call, tx, ids))
    verbs: dict[str, Callable[[Transaction, list[int]], Awaitable[None]]] = {
        "move": lambda tx, ids: documents.move(workspace.call, tx, ids, folder.id),
        "enable": lambda tx, ids: documents.enable(workspace.call, tx, ids, False),
        "remove": lambda tx, ids: documents.remove(workspace.call, tx, ids),
        "restore": lambda tx, ids: documents.restore(workspace.call, tx, ids),
        "reindex": lambda tx, ids: documents.reindex(workspace.call, tx, ids),
    }
    tables = [f"SELECT * FROM {table} ORDER BY id" for table in ("documents", "passages", "jobs")]
    before = [await workspace.rows(sql) for sql in tables]
    for bad in ([*ids, 99_999], [], list(range(1, 502))):
        with pytest.raises((NotFound, BadRequest)):
            await workspace.do(lambda tx, b=bad: verbs[verb](tx, b))
        assert [await workspace.rows(sql) for sql in tables] == before
    await workspace.do(lambda tx: verbs[verb](tx, [*ids, *ids]))
    assert [await workspace.rows(sql) for sql in tables] != before


async def test_documents_keep_their_text_until_they_have_been_parsed_again(workspace: Workspace):
    document = await workspace.add_parsed("a.txt", "One.")
    await workspace.do(lambda tx: documents.reindex(workspace.call, tx, [document.id]))
    waiting = await workspace.get(document.id)
    assert (waiting.generation, waiting.index_status, await readable(workspace, document.id)) == (2, "queued", "One.")
    assert await workspace.run_jobs() == 1
    assert (await workspace.get(document.id)).index_status == "success"
    found = await passage_store.find(workspace.db, "document", str(document.id))
    assert [passage.text for passage in found] == ["One."]


async def test_only_failed_documents_are_retried(workspace: Workspace):
    failed = await workspace.add_parsed("a.txt", "UNREADABLE")
    gone = await workspace.add_parsed("b.txt", "UNREADABLE too")
    await workspace.add_parsed("c.txt", "Sound.")
    await workspace.do(lambda tx: documents.remove(workspace.call, tx, [gone.id]))
    assert await workspace.do(lambda tx: documents.retry(workspace.call, tx, workspace.base.id)) == 1
    assert (await workspace.get(failed.id)).index_status == "queued"
    assert await workspace.run_jobs() == 1


async def test_a_given_source_type_is_kept_and_a_missing_one_is_detected(workspace: Workspace):
    said = await workspace.store(
        "text",
        lambda tx, s: documents.add(workspace.call, tx, workspace.base.id, DocumentDraft("a", source_type="web"), s),
    )
    told = await workspace.add("b.csv", "a,b\n1,2\n")
    assert (said.document.source_type, told.document.source_type) == ("web", "table")


async def test_new_content_changes_the_source(workspace: Workspace):
    page = (
        await workspace.add("page.html", "<p>one", source_type="web", source_url="https://example.org/page")
    ).document
    assert (page.source_type, page.source_url) == ("web", "https://example.org/page")
    again = (await workspace.replace(page.id, "two")).document
    assert (again.source_type, again.source_url) == ("text", None)
