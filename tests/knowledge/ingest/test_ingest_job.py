"""Ingest jobs: a stored file becomes a parsed document, or a failed one with a reason."""

import asyncio
import os
from collections.abc import AsyncGenerator, Sequence
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
from almanac.knowledge.ingest.queue import UNFINISHED_STATUSES
from almanac.knowledge.ingest.splitter import PassageSplitter
from almanac.sandbox.errors import SandboxUnavailable
from almanac.sandbox.pool import SandboxPool
from almanac.search import passage_store
from tests.knowledge.workspace import PlainTextSandbox, Workspace
from tests.live_server import settings_for
from tests.waiting import until_stored

CORPUS = Path(__file__).parent.parent / "corpus" / "files"
OLD = clock.HOUR


class BrokenSandbox(SandboxPool):
    """A sandbox whose fork server has ended."""

    async def run(self, paths: Sequence[Path], name: str, options: dict[str, Any]) -> bytes:
        raise SandboxUnavailable("it ended")


class SlowSandbox(PlainTextSandbox):
    """A sandbox that waits for an event before it parses."""

    def __init__(self) -> None:
        super().__init__()
        self.started, self.proceed = asyncio.Event(), asyncio.Event()

    async def run(self, paths: Sequence[Path], name: str, options: dict[str, Any]) -> bytes:
        self.started.set()
        await self.proceed.wait()
        return await super().run(paths, name, options)


async def add_bytes(workspace: Workspace, name: str, content: bytes) -> int:
    async with workspace.files.receive(workspace.db) as incoming:
        await incoming.write(content)
        stored = await incoming.finish()
        draft = DocumentDraft(name)
        added = await workspace.do(lambda tx: documents.add(workspace.call, tx, workspace.base.id, draft, stored))
        return added.document.id


async def claim(workspace: Workspace, **how: Any) -> Job:
    (job,) = await queue.claim(workspace.db, "a-worker", ["ingest"], limit=1, lease=clock.MINUTE, **how)
    return job


async def make_older(workspace: Workspace, length: int = OLD) -> None:
    await workspace.do(lambda tx: tx.execute("UPDATE documents SET updated_at = updated_at - $1", length))


async def check_passages(workspace: Workspace, document: Document) -> None:
    """Check that each passage has the text of its span."""
    found = await passage_store.find(workspace.db, "document", str(document.id), limit=100_000)
    assert len(found) == document.passages
    text = await workspace.text(document.id)
    for passage in found:
        span = text[passage.start : passage.end]
        assert passage.text == span if passage.kind != "table" else passage.text.endswith(span)


@asynccontextmanager
async def working(workspace: Workspace, database_url: str) -> AsyncGenerator[None]:
    """Run a worker as `almanac worker` does, with the parsers in the sandbox."""
    stop = asyncio.Event()
    settings = settings_for(database_url, workspace.home)
    async with reactions.open_job_handlers(workspace.db, settings) as handlers:
        worker = Worker(workspace.db, handlers, lease=10 * clock.SECOND, poll=clock.SECOND // 20)
        running = asyncio.create_task(worker.run(stop))
        yield
        stop.set()
        await running


async def finished(workspace: Workspace, document_id: int) -> Document:
    return await until_stored(
        lambda: workspace.get(document_id), lambda found: found.index_status not in UNFINISHED_STATUSES, seconds=60
    )


async def test_files_of_several_formats_are_parsed_in_the_sandbox_or_fail_with_a_reason(
    workspace: Workspace, database_url: str
):
    names = ("handbook.md", "report.docx", "report.pdf", "budget.xlsx", "locked.odt", "report.doc")
    ids = {name: await add_bytes(workspace, name, (CORPUS / name).read_bytes()) for name in names}
    ids["noise.bin"] = await add_bytes(workspace, "noise.bin", b"\x00\xff" + os.urandom(5000))
    ids["torn.pdf"] = await add_bytes(workspace, "torn.pdf", (CORPUS / "report.pdf").read_bytes()[:900])
    async with working(workspace, database_url):
        found = {name: await finished(workspace, id) for name, id in ids.items()}
    assert {name: document.index_status for name, document in found.items()} == {
        "handbook.md": "success", "report.docx": "success", "report.pdf": "success", "budget.xlsx": "success",
        "locked.odt": "failed", "report.doc": "failed", "noise.bin": "failed", "torn.pdf": "failed",
    }  # fmt: skip
    for name, document in found.items():
        if document.index_status == "success":
            assert document.failure is None
            assert document.characters
            assert document.passages
            await check_passages(workspace, document)
            continue
        assert document.failure is not None
        assert (document.failure.stage, document.failure.generation) == ("conversion", 1)
        assert document.failure.message.endswith(".")
        assert (document.characters, document.passages) == (None, None), name
        assert await passage_store.find(workspace.db, "document", str(document.id)) == []
        assert str(workspace.home) not in document.failure.message
    failures = {name: document.failure.code for name, document in found.items() if document.failure}
    assert failures["locked.odt"] == "encrypted"
    assert failures["noise.bin"] == "unsupported_format"
    assert failures["report.doc"] == "unsupported_format"
    assert (found["report.pdf"].mime_type, found["budget.xlsx"].source_type) == ("application/pdf", "table")
    assert (found["report.pdf"].page_count or 0) > 1
    page = await document_text.read_page(workspace.call, ids["report.pdf"], 2)
    assert page.text.strip()
    boxed = await passage_store.find(workspace.db, "document", str(ids["report.pdf"]))
    assert all(passage.page and passage.boxes for passage in boxed)


async def test_the_status_of_a_document_shows_its_progress(workspace: Workspace):
    slow = SlowSandbox()
    document_id = (await workspace.add("a.txt", "A text.")).document.id
    assert (await workspace.get(document_id)).index_status == "queued"
    job = await claim(workspace)
    work = asyncio.create_task(workspace.run_job(job, Ingest(workspace.db, workspace.files, slow, 1)))
    await slow.started.wait()
    assert (await workspace.get(document_id)).index_status == "converting"
    slow.proceed.set()
    await work
    done = await workspace.get(document_id)
    assert (done.index_status, done.title, done.characters, done.passages) == ("success", "A title", 7, 1)


async def test_a_large_document_is_indexing_while_its_passages_are_prepared(
    workspace: Workspace, monkeypatch: pytest.MonkeyPatch
):
    analyse, seen = passage_store.analyse, list[str]()

    def observe(*args: Any) -> Any:
        seen.append(asyncio.run_coroutine_threadsafe(workspace.get(document_id), loop).result().index_status)
        return analyse(*args)

    loop = asyncio.get_running_loop()
    monkeypatch.setattr(passage_store, "analyse", observe)
    text = "\n\n".join(f"Part {n}. {'A text. ' * 40}" for n in range(1000))
    document_id = (await workspace.add("a.txt", text)).document.id
    await workspace.run_jobs()
    assert seen == ["indexing"]
    assert (await workspace.get(document_id)).index_status == "success"


async def test_the_number_of_concurrent_parsers_is_limited(workspace: Workspace):
    for n in range(4):
        await workspace.add(f"{n}.txt", f"Text {n}.")
    jobs = await queue.claim(workspace.db, "w", ["ingest"], limit=10, lease=clock.MINUTE)
    slow = SlowSandbox()
    handler = Ingest(workspace.db, workspace.files, slow, 2)
    work = [asyncio.create_task(workspace.run_job(job, handler)) for job in jobs]
    await slow.started.wait()
    await until_stored(lambda: workspace.count("documents", "index_status = 'converting'"), lambda n: n >= 2)
    assert await workspace.count("documents", "index_status = 'queued'") == 2
    slow.proceed.set()
    await asyncio.gather(*work)
    assert await workspace.count("documents", "index_status = 'success'") == 4


async def test_after_the_death_of_a_worker_another_one_parses_the_document(workspace: Workspace, database_url: str):
    document_id = (await workspace.add("a.txt", "A text.")).document.id
    job = await claim(workspace, now=clock.now() + 1)
    effect = await workspace.ingest(job)  # the worker dies here
    assert effect is not None
    assert (await workspace.get(document_id)).index_status == "converting"
    await workspace.do(lambda tx: tx.execute("UPDATE jobs SET lease_until = $1", clock.now() - 1))
    async with working(workspace, database_url):
        assert (await finished(workspace, document_id)).index_status == "success"
    late = await workspace.run_job(job, workspace.ingest)  # the first worker was alive after all
    assert late is False
    assert await workspace.count("passages") == 1


async def test_a_stopped_worker_releases_its_job(workspace: Workspace):
    document_id = (await workspace.add("a.txt", "A text.")).document.id
    slow, stop = SlowSandbox(), asyncio.Event()
    handler = Ingest(workspace.db, workspace.files, slow, 1)
    worker = asyncio.create_task(Worker(workspace.db, {"ingest": handler}, grace=0).run(stop))
    await slow.started.wait()
    stop.set()
    await worker
    assert (await workspace.get(document_id)).index_status == "converting"
    assert await workspace.run_jobs() == 1
    assert (await workspace.get(document_id)).index_status == "success"


async def test_a_document_waits_for_another_attempt_after_a_fault_of_the_sandbox(workspace: Workspace):
    document_id = (await workspace.add("a.txt", "A text.")).document.id
    job = await claim(workspace)
    with pytest.raises(SandboxUnavailable):
        await Ingest(workspace.db, workspace.files, BrokenSandbox(""), 1)(job)
    assert (await workspace.get(document_id)).index_status == "pending_conversion"
    await queue.fail(workspace.db, job, "it ended", 0)
    assert await workspace.run_jobs() == 1
    assert (await workspace.get(document_id)).index_status == "success"


async def test_a_missing_file_makes_the_document_fail(workspace: Workspace):
    document = (await workspace.add("a.txt", "A text.")).document
    workspace.files.path(document.blob_name).unlink()
    await workspace.run_jobs()
    failed = await workspace.get(document.id)
    assert failed.failure is not None
    assert (failed.index_status, failed.failure.code, failed.failure.retryable) == ("failed", "file_missing", True)


async def test_a_long_text_is_stored_completely(workspace: Workspace):
    text = "".join(f"Sentence {n} says something of its own. " for n in range(60_000)).strip()
    document = await workspace.add_parsed("a.txt", text)
    assert (document.index_status, document.characters) == ("success", len(text))
    assert await workspace.text(document.id) == text
    await check_passages(workspace, document)


async def test_documents_are_split_with_the_current_splitter_of_their_base(workspace: Workspace):
    text = "\n\n".join(f"Paragraph {n} has a few words in it, and then some more of them." for n in range(60))
    document = await workspace.add_parsed("a.txt", text)
    flat = await passage_store.find(workspace.db, "document", str(document.id))
    assert {passage.parent for passage in flat} == {None}
    finer = PassageSplitter("hierarchical", 400, 40, 1600)
    await workspace.do(lambda tx: bases.update(workspace.call, tx, workspace.base.id, splitter=finer))
    assert await passage_store.find(workspace.db, "document", str(document.id)) == flat
    await workspace.do(lambda tx: documents.reindex(workspace.call, tx, [document.id]))
    await workspace.run_jobs()
    found = await passage_store.find(workspace.db, "document", str(document.id))
    assert len(found) > len(flat)
    assert {passage.parent is None for passage in found} == {True, False}


async def test_the_same_file_gives_the_same_passages_every_time(workspace: Workspace):
    document = await workspace.add_parsed("a.txt", "One. Two. Three.\f" * 300)
    first = await passage_store.find(workspace.db, "document", str(document.id))
    await workspace.do(lambda tx: documents.reindex(workspace.call, tx, [document.id]))
    await workspace.run_jobs()
    assert await passage_store.find(workspace.db, "document", str(document.id)) == first


async def test_a_document_of_a_removed_base_is_parsed_and_can_be_read_after_the_base_is_restored(workspace: Workspace):
    document_id = (await workspace.add("a.txt", "A text.")).document.id
    await workspace.do(lambda tx: bases.remove(workspace.call, tx, workspace.base.id))
    assert await workspace.run_jobs() == 1
    await workspace.do(lambda tx: bases.restore(workspace.call, tx, workspace.base.id))
    assert (await workspace.get(document_id)).index_status == "success"


async def test_a_document_purged_while_it_is_parsed_leaves_nothing(workspace: Workspace):
    slow = SlowSandbox()
    document_id = (await workspace.add("a.txt", "A text.")).document.id
    job = await claim(workspace)
    work = asyncio.create_task(workspace.run_job(job, Ingest(workspace.db, workspace.files, slow, 1)))
    await slow.started.wait()
    await workspace.do(lambda tx: documents.remove(workspace.call, tx, [document_id]))
    await trash.purge(workspace.db, clock.now() + 1)
    slow.proceed.set()
    assert await work
    for table in ("documents", "readings", "reading_parts", "passages"):
        assert await workspace.count(table) == 0


async def test_a_document_with_a_dead_job_fails_after_some_time_and_can_be_retried(workspace: Workspace):
    document_id = (await workspace.add("a.txt", "A text.")).document.id
    job = await claim(workspace)
    await queue.mark_dead(workspace.db, job, "every worker died")
    assert await ingest_job.sweep(workspace.db) == 0  # the job may have died a moment ago
    await make_older(workspace)
    assert await ingest_job.sweep(workspace.db) == 1
    failed = await workspace.get(document_id)
    assert failed.failure is not None
    assert (failed.index_status, failed.failure.stage, failed.failure.code) == ("failed", "system", "processing_failed")
    assert failed.failure.retryable
    assert await ingest_job.sweep(workspace.db) == 0
    assert await workspace.do(lambda tx: documents.retry(workspace.call, tx, workspace.base.id)) == 1
    assert await workspace.run_jobs() == 1
    assert (await workspace.get(document_id)).index_status == "success"


async def test_a_document_that_fails_with_its_job_is_no_longer_searchable(workspace: Workspace):
    document = await workspace.add_parsed("a.txt", "Readable.")
    await workspace.replace(document.id, "A killer.")
    await queue.mark_dead(workspace.db, await claim(workspace), "every worker died")
    await make_older(workspace)
    assert await ingest_job.sweep(workspace.db) == 1
    assert await workspace.count("passages") == await workspace.count("readings") == 0


async def test_documents_that_wait_or_are_removed_or_done_do_not_fail(workspace: Workspace):
    waiting = (await workspace.add("waiting.txt", "W")).document
    running = (await workspace.add("running.txt", "R")).document
    gone = (await workspace.add("gone.txt", "G")).document
    await workspace.add_parsed("done.txt", "D")  # parses the other three documents too
    for document in (waiting, running, gone):
        await workspace.do(lambda tx, d=document: documents.reindex(workspace.call, tx, [d.id]))
    await workspace.do(lambda tx: documents.remove(workspace.call, tx, [gone.id]))
    waiting_jobs = [job for job in await queue.find(workspace.db, "queued") if job.kind == "ingest"]
    jobs = {job.payload["document_id"]: job for job in waiting_jobs}

    async def lose(tx: Transaction) -> None:
        await tx.execute("DELETE FROM jobs WHERE id = $1", jobs[gone.id].id)
        await tx.execute("UPDATE jobs SET state = 'running', lease_until = 1 WHERE id = $1", jobs[running.id].id)

    await workspace.do(lose)
    await make_older(workspace)
    assert await ingest_job.sweep(workspace.db) == 0
    assert await workspace.count("documents", "index_status = 'failed'") == 0


async def test_a_document_fails_with_the_job_of_its_current_generation(workspace: Workspace):
    document_id = (await workspace.add("a.txt", "A text.")).document.id
    await queue.mark_dead(workspace.db, await claim(workspace), "died")
    await workspace.replace(document_id, "Another.")
    await queue.mark_dead(workspace.db, await claim(workspace), "died too")
    await make_older(workspace)
    assert await ingest_job.sweep(workspace.db) == 1
    failed = await workspace.get(document_id)
    assert failed.failure is not None
    assert failed.failure.generation == 2
