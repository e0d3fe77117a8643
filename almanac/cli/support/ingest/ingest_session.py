"""The work of `almanac ingest` and `almanac retry`: follow documents until they are parsed and embedded."""

import asyncio
import time
from collections.abc import AsyncGenerator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from enum import IntEnum
from pathlib import Path

from almanac import reactions
from almanac.cli.support.ingest import file_walk, folder_changes, ingest_report
from almanac.cli.support.ingest.file_walk import FoundFile, SkippedFile, Stamp
from almanac.cli.support.ingest.folder_changes import FolderChange
from almanac.cli.support.ingest.ingest_run import IngestRun
from almanac.cli.support.local_worker import EXIT_INTERRUPTED, local_worker, stop_on_signal
from almanac.cli.support.output import print_json, print_note
from almanac.cli.support.progress import Display, embedding_stage, open_display, parsing_stage
from almanac.core import clock
from almanac.core.call import Call
from almanac.core.database import Database
from almanac.core.errors import BadRequest
from almanac.core.settings import Settings
from almanac.files.file_store import FileStore
from almanac.knowledge import document_index
from almanac.search.backends import open_search
from almanac.search.engine import SearchEngine
from almanac.search.index.protocol import Coverage
from almanac.search.jobs import collection_status, embed_queue

_STATUS_POLL_SECONDS = 0.1
_COVERAGE_POLL_SECONDS = 0.5  # counting passages costs more than reading the status of documents
_WALK_INTERVAL_SECONDS = 1.0  # between two walks of --watch, and at least ten times as long as a walk takes


class Wait(IntEnum):
    """The state of the documents at which a session ends."""

    QUEUED = 0
    PARSED = 1  # keyword search finds them
    EMBEDDED = 2  # vector search finds them too


@dataclass(slots=True)
class IngestSession:
    """The knowledge base and options of one command, and the files that have failed so far."""

    call: Call
    base_id: int
    settings: Settings
    search: SearchEngine
    stop: asyncio.Event
    wait: Wait
    as_json: bool
    is_watching: bool = False
    failing: set[str] = field(default_factory=set[str])

    @property
    def exit_code(self) -> int:
        """The exit status of the command."""
        return EXIT_INTERRUPTED if self.stop.is_set() and not self.is_watching else int(bool(self.failing))

    async def watch(self, paths: Sequence[Path], folder: str, *, prune: bool) -> None:
        """Add all files, and then every new or changed one. A changed file is added once two walks found it equal, and
        a missing file is pruned once two walks found the same files."""
        added: dict[str, Stamp] = {}
        before: dict[str, Stamp] | None = None
        pruned: dict[str, str] | None = None
        while not self.stop.is_set():
            started = time.monotonic()
            files = await asyncio.to_thread(file_walk.walk, paths, folder, self.settings.home)
            walk_seconds = time.monotonic() - started
            now = {file.label: file.stamp for file in files.found}
            changed = [file for file in files.found if added.get(file.label) != file.stamp]
            settled = [file for file in changed if before is None or before.get(file.label) == file.stamp]
            changes: list[FolderChange] = []
            problems = {file.label: file.problem for file in files.found}
            if prune and before in (None, now) and pruned != problems:
                changes = await self.prune(folder, files.found)
                pruned = problems
            if settled or changes or before is None:
                await self.add(settled, files.skipped if before is None else [], changes)
                added |= {file.label: file.stamp for file in settled}
                if before is None and not self.as_json:
                    print_note("Watching for changes; Ctrl-C stops.")
            before = now
            await self._rest(max(_WALK_INTERVAL_SECONDS, 10 * walk_seconds))

    async def prune(self, folder: str, found: Sequence[FoundFile]) -> list[FolderChange]:
        """Move the documents of renamed files and remove those of missing files, below a folder of the base."""
        if reason := folder_changes.keep_reason(found):
            print_note(reason)
            return []
        changes = await folder_changes.open_changes(self.call, self.base_id)
        await changes.find_missing(folder, found)
        return await changes.apply()

    async def add(
        self, found: list[FoundFile], skipped: list[SkippedFile], changes: Sequence[FolderChange] = ()
    ) -> None:
        """Add files to the base and follow them; report them with the changes that were made before."""
        files = FileStore(self.settings.home, self.settings.max_file_bytes)
        run = IngestRun(self.call, self.base_id, changes=list(changes))
        try:
            adding = asyncio.create_task(run.add(found, files, self.settings.max_file_bytes, self.stop))
            await self.follow(run, skipped, adding)
        finally:
            files.close()

    async def follow(
        self, run: IngestRun, skipped: list[SkippedFile], adding: "asyncio.Task[None] | None" = None
    ) -> None:
        """Show the progress of a run until it ends, then print its report."""
        with open_display(quiet=self.as_json) as display:
            while True:
                all_added = adding is None or adding.done()
                await run.update()
                display.show(parsing_stage(run))
                if all_added and (self.stop.is_set() or self.wait == Wait.QUEUED or run.is_over):
                    break
                await self._rest(_STATUS_POLL_SECONDS)
            run.ended = time.monotonic()
            if self.wait == Wait.EMBEDDED and not self.is_watching:
                run.coverage = await self._follow_embedding(display)
                run.embedded = time.monotonic()
            elif self.as_json or self.wait == Wait.PARSED:
                run.coverage = await self._coverage()
        if adding is not None:
            await adding
        self.failing -= {file.label for file in run.files}
        self.failing |= {file.label for file in run.failures}
        if self.as_json:
            print_json(ingest_report.to_json(run, skipped))
        else:
            ingest_report.print_report(run, skipped, is_stopped=self.stop.is_set())

    async def _follow_embedding(self, display: Display) -> Coverage:
        """Show the progress of embedding until every passage has a vector or no worker is left that embeds."""
        while True:
            # Read before the coverage: vectors that the last job writes are then counted.
            is_running = await embed_queue.is_under_way(self.call.db, document_index.collection_of(self.base_id))
            coverage = await self._coverage()
            if coverage.passages:
                display.show(embedding_stage(coverage))
            if self.stop.is_set() or not is_running or coverage.embedded >= coverage.passages:
                return coverage
            await self._rest(_COVERAGE_POLL_SECONDS)

    async def _coverage(self) -> Coverage:
        collection = document_index.collection_of(self.base_id)
        return await collection_status.coverage(self.call.db, self.search.index, collection)

    async def _rest(self, seconds: float) -> None:
        try:
            async with asyncio.timeout(seconds):
                await self.stop.wait()
        except TimeoutError:
            return
        await asyncio.sleep(_STATUS_POLL_SECONDS)  # after Ctrl-C, until the work in progress is finished


def parse_wait(wait: bool, no_wait: bool) -> Wait:
    """Return the state that the options --wait and --no-wait name."""
    if wait and no_wait:
        raise BadRequest("--wait and --no-wait exclude each other.", remedy="Leave one of them out.")
    return Wait.EMBEDDED if wait else Wait.QUEUED if no_wait else Wait.PARSED


@asynccontextmanager
async def open_session(
    call: Call, base_id: int, settings: Settings, *, wait: Wait, as_json: bool, is_watching: bool = False
) -> AsyncGenerator[IngestSession]:
    """Open search for a session and run the workers of the work that it waits for. Ctrl-C stops the session."""
    async with open_search(settings, call.db) as search, stop_on_signal() as stop, AsyncExitStack() as stack:
        if wait != Wait.QUEUED:
            embeds = wait == Wait.EMBEDDED or is_watching
            await stack.enter_async_context(_ingest_workers(call.db, settings, stop, embeds=embeds))
        yield IngestSession(call, base_id, settings, search, stop, wait, as_json, is_watching)


@asynccontextmanager
async def _ingest_workers(
    db: Database, settings: Settings, stop: asyncio.Event, *, embeds: bool
) -> AsyncGenerator[None]:
    """Run one worker for documents and, if the session embeds, one for vectors, beside those of a server."""
    grace = round(settings.shutdown_grace_seconds * clock.SECOND)
    async with AsyncExitStack() as stack:
        handlers = await stack.enter_async_context(reactions.open_job_handlers(db, settings))
        ingest = {"ingest": handlers["ingest"]}
        await stack.enter_async_context(local_worker(db, settings, ingest, stop, settings.job_concurrency, grace))
        if embeds:
            # Separate, so that no document waits for a model, and without grace: the rest may belong to other bases.
            embed = {embed_queue.KIND: handlers[embed_queue.KIND]}
            await stack.enter_async_context(local_worker(db, settings, embed, stop, 1, 0))
        yield
