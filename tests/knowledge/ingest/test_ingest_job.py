"""Ingest: from a file in the store to a document that is read and cut, or one that says why not."""

import asyncio
import os
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from almanac import reactions
from almanac.core import clock
from almanac.core.database import Transaction
from almanac.jobs import queue
from almanac.jobs.queue import Job
from almanac.jobs.worker import Worker
from almanac.knowledge import bases, document_text, documents, trash
from almanac.knowledge.documents import Document, DocumentDraft
from almanac.knowledge.ingest import ingest_job
from almanac.knowledge.ingest.ingest_job import Ingest
from almanac.knowledge.ingest.splitter import PassageSplitter
from almanac.sandbox.errors import SandboxUnavailable
from almanac.sandbox.pool import SandboxPool
from almanac.sandbox.result import SandboxResult
from almanac.search import passage_store
from tests.house import settings_for
from tests.knowledge.library import Lectern, Library

CORPUS = Path(__file__).parent.parent / "corpus" / "files"
OLD = clock.HOUR


class Gone(SandboxPool):
    """A parser's process that ends whatever it is given."""

    async def parse(self, path: Path, name: str, options: dict[str, Any]) -> SandboxResult:
        raise SandboxUnavailable("it ended")


class Slow(Lectern):
    """One that takes its time, until it is let go on."""

    def __init__(self) -> None:
        super().__init__()
        self.begun, self.go_on = asyncio.Event(), asyncio.Event()

    async def parse(self, path: Path, name: str, options: dict[str, Any]) -> SandboxResult:
        self.begun.set()
        await self.go_on.wait()
        return await super().parse(path, name, options)


async def bring(library: Library, name: str, content: bytes) -> int:
    async with library.files.receive(library.db) as arriving:
        await arriving.write(content)
        stored = await arriving.finish()
        return (
            await library.do(lambda tx: documents.add(library.call, tx, library.base.id, DocumentDraft(name), stored))
        ).document.id


async def claim(library: Library, **how: Any) -> Job:
    (job,) = await queue.claim(library.db, "a-worker", ["ingest"], limit=1, lease=clock.MINUTE, **how)
    return job


async def age(library: Library, length: int = OLD) -> None:
    await library.do(lambda tx: tx.execute("UPDATE documents SET updated_at = updated_at - $1", length))


async def check_passages(library: Library, document: Document) -> None:
    """Each passage is what the text says at its place."""
    found = await passage_store.find(library.db, "document", str(document.id), limit=100_000)
    assert len(found) == document.passages
    text = await library.text(document.id)
    for passage in found:
        span = text[passage.start : passage.end]
        assert passage.text == span if passage.kind != "table" else passage.text.endswith(span)


@asynccontextmanager
async def working(library: Library, database_url: str) -> AsyncGenerator[None]:
    """A worker as `almanac worker` runs it, with the parsers in their confined children."""
    stop = asyncio.Event()
    settings = settings_for(database_url, library.home)
    async with reactions.open_job_handlers(library.db, settings) as handlers:
        worker = Worker(library.db, handlers, lease=10 * clock.SECOND, poll=clock.SECOND // 20)
        running = asyncio.create_task(worker.run(stop))
        yield
        stop.set()
        await running


async def finished(library: Library, document_id: int) -> Document:
    async with asyncio.timeout(60):
        while (found := await library.get(document_id)).index_status in documents.UNFINISHED_STATUSES:
            await asyncio.sleep(0.02)
    return found


async def test_files_of_several_formats_are_read_in_confined_children_and_those_that_cannot_be_say_why(
    library: Library, database_url: str
):
    names = ("handbook.md", "report.docx", "report.pdf", "budget.xlsx", "locked.odt", "report.doc")
    ids = {name: await bring(library, name, (CORPUS / name).read_bytes()) for name in names}
    ids["noise.bin"] = await bring(library, "noise.bin", b"\x00\xff" + os.urandom(5000))
    ids["torn.pdf"] = await bring(library, "torn.pdf", (CORPUS / "report.pdf").read_bytes()[:900])
    async with working(library, database_url):
        found = {name: await finished(library, id) for name, id in ids.items()}
    assert {name: document.index_status for name, document in found.items()} == {
        "handbook.md": "success", "report.docx": "success", "report.pdf": "success", "budget.xlsx": "success",
        "locked.odt": "failed", "report.doc": "failed", "noise.bin": "failed", "torn.pdf": "failed",
    }  # fmt: skip
    for name, document in found.items():
        if document.index_status == "success":
            assert document.failure is None
            assert document.characters
            assert document.passages
            await check_passages(library, document)
            continue
        assert document.failure is not None
        assert (document.failure.stage, document.failure.generation) == ("conversion", 1)
        assert document.failure.message.endswith(".")
        assert (document.characters, document.passages) == (None, None), name
        assert await passage_store.find(library.db, "document", str(document.id)) == []
        assert str(library.home) not in document.failure.message
    failures = {name: document.failure.code for name, document in found.items() if document.failure}
    assert failures["locked.odt"] == "encrypted"
    assert failures["noise.bin"] == "unsupported_format"
    assert failures["report.doc"] == "unsupported_format"
    assert (found["report.pdf"].mime_type, found["budget.xlsx"].source_type) == ("application/pdf", "table")
    assert (found["report.pdf"].page_count or 0) > 1
    page = await document_text.read_page(library.call, ids["report.pdf"], 2)
    assert page.text.strip()
    boxed = await passage_store.find(library.db, "document", str(ids["report.pdf"]))
    assert all(passage.page and passage.boxes for passage in boxed)


async def test_a_document_shows_how_far_it_has_come(library: Library):
    slow = Slow()
    document_id = (await library.add("a.txt", "A text.")).document.id
    assert (await library.get(document_id)).index_status == "queued"
    job = await claim(library)
    work = asyncio.create_task(library.settle(job, Ingest(library.db, library.files, slow, 1)))
    await slow.begun.wait()
    assert (await library.get(document_id)).index_status == "converting"
    slow.go_on.set()
    await work
    done = await library.get(document_id)
    assert (done.index_status, done.title, done.characters, done.passages) == ("success", "A title", 7, 1)


async def test_no_more_files_are_read_at_once_than_there_are_slots(library: Library):
    for n in range(4):
        await library.add(f"{n}.txt", f"Text {n}.")
    jobs = await queue.claim(library.db, "w", ["ingest"], limit=10, lease=clock.MINUTE)
    slow = Slow()
    handler = Ingest(library.db, library.files, slow, 2)
    work = [asyncio.create_task(library.settle(job, handler)) for job in jobs]
    await slow.begun.wait()
    while await library.count("documents", "index_status = 'converting'") < 2:
        await asyncio.sleep(0.01)
    assert await library.count("documents", "index_status = 'queued'") == 2
    slow.go_on.set()
    await asyncio.gather(*work)
    assert await library.count("documents", "index_status = 'success'") == 4


async def test_a_worker_that_died_is_followed_by_one_that_reads_the_document(library: Library, database_url: str):
    document_id = (await library.add("a.txt", "A text.")).document.id
    job = await claim(library, now=clock.now() + 1)
    effect = await library.ingest(job)  # and here it dies
    assert effect is not None
    assert (await library.get(document_id)).index_status == "converting"
    await library.do(lambda tx: tx.execute("UPDATE jobs SET lease_until = $1", clock.now() - 1))
    async with working(library, database_url):
        assert (await finished(library, document_id)).index_status == "success"
    late = await library.settle(job, library.ingest)  # it was only presumed dead
    assert late is False
    assert await library.count("passages") == 1


async def test_a_worker_that_is_stopped_gives_back_what_it_is_reading(library: Library):
    document_id = (await library.add("a.txt", "A text.")).document.id
    slow, stop = Slow(), asyncio.Event()
    handler = Ingest(library.db, library.files, slow, 1)
    worker = asyncio.create_task(Worker(library.db, {"ingest": handler}, grace=0).run(stop))
    await slow.begun.wait()
    stop.set()
    await worker
    assert (await library.get(document_id)).index_status == "converting"
    assert await library.read_all() == 1
    assert (await library.get(document_id)).index_status == "success"


async def test_a_document_waits_for_another_attempt_after_a_fault_that_was_not_its_own(library: Library):
    document_id = (await library.add("a.txt", "A text.")).document.id
    job = await claim(library)
    with pytest.raises(SandboxUnavailable):
        await Ingest(library.db, library.files, Gone(""), 1)(job)
    assert (await library.get(document_id)).index_status == "pending_conversion"
    await queue.fail(library.db, job, "it ended", 0)
    assert await library.read_all() == 1
    assert (await library.get(document_id)).index_status == "success"


async def test_a_file_that_has_gone_from_the_store_is_an_honest_failure(library: Library):
    document = (await library.add("a.txt", "A text.")).document
    library.files.path(document.blob_name).unlink()
    await library.read_all()
    failed = await library.get(document.id)
    assert failed.failure is not None
    assert (failed.index_status, failed.failure.code, failed.failure.retryable) == ("failed", "file_missing", True)


async def test_a_long_text_is_stored_whole(library: Library):
    text = "".join(f"Sentence {n} says something of its own. " for n in range(60_000)).strip()
    document = await library.shelve("a.txt", text)
    assert (document.index_status, document.characters) == ("success", len(text))
    assert await library.text(document.id) == text
    await check_passages(library, document)


async def test_documents_are_cut_as_their_base_says_when_they_are_read(library: Library):
    text = "\n\n".join(f"Paragraph {n} has a few words in it, and then some more of them." for n in range(60))
    document = await library.shelve("a.txt", text)
    flat = await passage_store.find(library.db, "document", str(document.id))
    assert {passage.parent for passage in flat} == {None}
    finer = PassageSplitter("hierarchical", 400, 40, 1600)
    await library.do(lambda tx: bases.update(library.call, tx, library.base.id, splitter=finer))
    assert await passage_store.find(library.db, "document", str(document.id)) == flat
    await library.do(lambda tx: documents.reindex(library.call, tx, [document.id]))
    await library.read_all()
    found = await passage_store.find(library.db, "document", str(document.id))
    assert len(found) > len(flat)
    assert {passage.parent is None for passage in found} == {True, False}


async def test_the_same_file_gives_the_same_passages_every_time(library: Library):
    document = await library.shelve("a.txt", "One. Two. Three.\f" * 300)
    first = await passage_store.find(library.db, "document", str(document.id))
    await library.do(lambda tx: documents.reindex(library.call, tx, [document.id]))
    await library.read_all()
    assert await passage_store.find(library.db, "document", str(document.id)) == first


async def test_a_document_of_a_base_in_the_trash_is_read_and_is_there_when_the_base_comes_back(library: Library):
    document_id = (await library.add("a.txt", "A text.")).document.id
    await library.do(lambda tx: bases.remove(library.call, tx, library.base.id))
    assert await library.read_all() == 1
    await library.do(lambda tx: bases.restore(library.call, tx, library.base.id))
    assert (await library.get(document_id)).index_status == "success"


async def test_a_document_purged_while_it_is_read_leaves_nothing(library: Library):
    slow = Slow()
    document_id = (await library.add("a.txt", "A text.")).document.id
    job = await claim(library)
    work = asyncio.create_task(library.settle(job, Ingest(library.db, library.files, slow, 1)))
    await slow.begun.wait()
    await library.do(lambda tx: documents.remove(library.call, tx, [document_id]))
    await trash.purge(library.db, clock.now() + 1)
    slow.go_on.set()
    assert await work
    for table in ("documents", "readings", "reading_parts", "passages"):
        assert await library.count(table) == 0


async def test_a_document_whose_job_is_dead_is_given_up_after_a_while_and_can_be_tried_again(library: Library):
    document_id = (await library.add("a.txt", "A text.")).document.id
    job = await claim(library)
    await queue.mark_dead(library.db, job, "every worker died")
    assert await ingest_job.sweep(library.db) == 0  # it may be a moment's
    await age(library)
    assert await ingest_job.sweep(library.db) == 1
    failed = await library.get(document_id)
    assert failed.failure is not None
    assert (failed.index_status, failed.failure.stage, failed.failure.code) == ("failed", "system", "processing_failed")
    assert failed.failure.retryable
    assert await ingest_job.sweep(library.db) == 0
    assert await library.do(lambda tx: documents.retry(library.call, tx, library.base.id)) == 1
    assert await library.read_all() == 1
    assert (await library.get(document_id)).index_status == "success"


async def test_giving_up_takes_what_was_read_before_out_of_the_search(library: Library):
    document = await library.shelve("a.txt", "Readable.")
    await library.replace(document.id, "A killer.")
    await queue.mark_dead(library.db, await claim(library), "every worker died")
    await age(library)
    assert await ingest_job.sweep(library.db) == 1
    assert await library.count("passages") == await library.count("readings") == 0


async def test_nobody_is_given_up_who_still_waits_or_is_in_the_trash_or_done(library: Library):
    waiting = (await library.add("waiting.txt", "W")).document
    running = (await library.add("running.txt", "R")).document
    gone = (await library.add("gone.txt", "G")).document
    await library.shelve("done.txt", "D")  # and with it the other three
    for document in (waiting, running, gone):
        await library.do(lambda tx, d=document: documents.reindex(library.call, tx, [d.id]))
    await library.do(lambda tx: documents.remove(library.call, tx, [gone.id]))
    waiting_jobs = [job for job in await queue.find(library.db, "queued") if job.kind == "ingest"]
    jobs = {job.payload["document_id"]: job for job in waiting_jobs}

    async def lose(tx: Transaction) -> None:
        await tx.execute("DELETE FROM jobs WHERE id = $1", jobs[gone.id].id)
        await tx.execute("UPDATE jobs SET state = 'running', lease_until = 1 WHERE id = $1", jobs[running.id].id)

    await library.do(lose)
    await age(library)
    assert await ingest_job.sweep(library.db) == 0
    assert await library.count("documents", "index_status = 'failed'") == 0


async def test_a_dead_job_of_an_older_generation_does_not_keep_a_document_from_being_given_up(library: Library):
    document_id = (await library.add("a.txt", "A text.")).document.id
    await queue.mark_dead(library.db, await claim(library), "died")
    await library.replace(document_id, "Another.")
    await queue.mark_dead(library.db, await claim(library), "died too")
    await age(library)
    assert await ingest_job.sweep(library.db) == 1
    failed = await library.get(document_id)
    assert failed.failure is not None
    assert failed.failure.generation == 2
