"""Commands that bring files into a knowledge base and have them read."""

import asyncio
import json
import signal
import time
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from almanac import reactions
from almanac.cli.support import file_walk, ingest_report, operator_call
from almanac.cli.support.file_walk import FoundFile, Skipped, Stamp
from almanac.cli.support.ingest_run import IngestRun
from almanac.cli.support.progress import Display, display, embedding, reading
from almanac.cli.support.terminal import Home, Json, print_line, settings_at, with_database
from almanac.core import clock
from almanac.core.call import Call
from almanac.core.database import Database
from almanac.core.errors import BadRequest
from almanac.core.settings import Settings
from almanac.jobs.worker import Handler, Worker
from almanac.knowledge import bases, document_index, document_status, documents, folders
from almanac.knowledge.documents import Document
from almanac.knowledge.files import FileStore
from almanac.search.backends import open_search
from almanac.search.engine import SearchEngine
from almanac.search.index.protocol import Coverage
from almanac.search.jobs import collection_status

INTERRUPTED = 130  # the exit status of whatever Ctrl-C ended
_LOOK_EVERY = 0.1  # seconds between two looks at how far documents are
_COUNT_EVERY = 0.5  # seconds between two looks at how far their passages are, which costs more
_WALK_EVERY = 1.0  # seconds between two looks at the disk, and ten times as long as a look takes at least
_POLL = clock.SECOND // 10

BaseId = Annotated[int, typer.Argument(metavar="KB_ID", help="Its id, from 'almanac kb list'.")]
NoWait = Annotated[bool, typer.Option("--no-wait", help="Only queue the documents; the worker of a server reads them.")]


def ingest(
    base_id: BaseId,
    paths: Annotated[
        # What cannot be read is one failure among others, so that it does not stop them.
        list[Path],
        typer.Argument(metavar="PATH", readable=False, help="Files, and folders with all that is in them."),
    ],
    folder: Annotated[
        str, typer.Option("--folder", help="The folder of the base to put them into.", show_default=False)
    ] = "",
    watch: Annotated[
        bool,
        typer.Option("--watch", help="Go on, and bring in what is added or changed, until Ctrl-C."),
    ] = False,
    no_wait: NoWait = False,
    home: Home = None,
    as_json: Json = False,
) -> None:
    """Bring files into a knowledge base, read them and embed their passages. Folders keep their structure.

    A file that is there already is left alone if it is the same, and replaced if it has changed; one that was removed
    from the disk stays in the base. Hidden files are left out, and links that lead out of a folder. Ctrl-C stops; run
    it again to go on. What has been read is found by its words at once, and by its meaning once it has been embedded.
    Exits with 1 if a file failed.

    With --json, "added", "replaced", "unchanged" and "retried" count the files that the base has taken, "failed" those
    that it could not take and those of the taken that could not be read. "queued" are still to be read, "left" were not
    reached before Ctrl-C, and "skipped" are listed in "left_out". "pages" counts only where a format has pages.
    "passages" are all that the base has now, and "embedded" those of them that are found by their meaning too.

    Example: [bold]almanac ingest 1 manuals --folder engineering/pumps[/bold]
    """
    _check_folder(folder)
    settings = settings_at(home)

    async def work(db: Database) -> int:
        call = await operator_call.call_for_base(db, base_id)
        await bases.get(db, call, base_id, "write")
        async with (
            open_search(settings, db) as search,
            stoppable() as stop,
            _workers(db, settings, stop, wanted=not no_wait),
        ):
            session = _Session(call, base_id, settings, search, not no_wait, as_json, is_watching=watch)
            if watch:
                return await _watch(session, paths, folder, stop)
            tour = await asyncio.to_thread(file_walk.walk, paths, folder, settings.home)
            await _bring(session, tour.found, tour.skipped, stop)
            return INTERRUPTED if stop.is_set() else int(bool(session.failing))

    if code := with_database(home, work):
        raise typer.Exit(code)


def retry(base_id: BaseId, no_wait: NoWait = False, home: Home = None, as_json: Json = False) -> None:
    """Read again every document of a knowledge base that failed. Exits with 1 if one fails again.

    Example: [bold]almanac retry 1[/bold]
    """
    settings = settings_at(home)

    async def work(db: Database) -> int:
        call = await operator_call.call_for_base(db, base_id)
        failed = await _failed(call, base_id)
        await documents.retry_all(call, base_id)
        haul = IngestRun(call, base_id)
        haul.expect(failed)
        async with (
            open_search(settings, db) as search,
            stoppable() as stop,
            _workers(db, settings, stop, wanted=not no_wait),
        ):
            session = _Session(call, base_id, settings, search, not no_wait, as_json)
            await _follow(session, haul, [], None, stop)
            return INTERRUPTED if stop.is_set() else int(bool(session.failing))

    if code := with_database(home, work):
        raise typer.Exit(code)


@dataclass(slots=True)
class _Session:
    """What stays the same from one pass to the next, and the files that have failed so far."""

    call: Call
    base_id: int
    settings: Settings
    search: SearchEngine
    is_waiting: bool
    as_json: bool
    is_watching: bool = False
    failing: set[str] = field(default_factory=set[str])

    async def covered(self) -> Coverage:
        """How many passages the base has, and how many of them have vectors."""
        return await collection_status.coverage(
            self.call.db, self.search.index, document_index.collection_of(self.base_id)
        )

    async def is_being_embedded(self) -> bool:
        """Whether somebody sees to the vectors that are lacking."""
        return await collection_status.is_under_way(self.call.db, document_index.collection_of(self.base_id))


async def _watch(session: _Session, paths: Sequence[Path], folder: str, stop: asyncio.Event) -> int:
    """Bring in everything, and then whatever changes. A file is taken when two looks have found it the same."""
    taken: dict[str, Stamp] = {}
    before: dict[str, Stamp] | None = None
    while not stop.is_set():
        started = time.monotonic()
        tour = await asyncio.to_thread(file_walk.walk, paths, folder, session.settings.home)
        took = time.monotonic() - started
        now = {each.label: each.stamp for each in tour.found}
        fresh = [each for each in tour.found if taken.get(each.label) != each.stamp]
        settled = [each for each in fresh if before is None or before.get(each.label) == each.stamp]
        if settled or before is None:
            await _bring(session, settled, tour.skipped if before is None else [], stop)
            taken |= {each.label: each.stamp for each in settled}
            if before is None and not session.as_json:
                Console(stderr=True).print("Watching for changes; Ctrl-C stops.")
        before = now
        await _rest(max(_WALK_EVERY, 10 * took), stop)
    return int(bool(session.failing))


async def _bring(session: _Session, found: list[FoundFile], skipped: list[Skipped], stop: asyncio.Event) -> None:
    files = FileStore(session.settings.home, session.settings.max_file_bytes)
    haul = IngestRun(session.call, session.base_id)
    try:
        bringing = asyncio.create_task(haul.bring(found, files, session.settings.max_file_bytes, stop))
        await _follow(session, haul, skipped, bringing, stop)
    finally:
        files.close()


async def _follow(
    session: _Session,
    haul: IngestRun,
    skipped: list[Skipped],
    bringing: "asyncio.Task[None] | None",
    stop: asyncio.Event,
) -> None:
    """Show how a haul goes on until it is over, then tell what came of it."""
    with display(quiet=session.as_json) as shown:
        while True:
            has_come = bringing is None or bringing.done()
            await haul.look()
            shown.show(reading(haul))
            if has_come and (stop.is_set() or not session.is_waiting or haul.is_over):
                break
            await _rest(_LOOK_EVERY, stop)
        haul.ended = time.monotonic()
        if session.is_waiting and not session.is_watching:
            haul.covered = await _see_embedded(session, shown, stop)
        elif session.as_json:
            haul.covered = await session.covered()
    if bringing is not None:
        await bringing
    session.failing -= {piece.label for piece in haul.pieces}
    session.failing |= {piece.label for piece in haul.failures}
    if session.as_json:
        print_line(json.dumps(ingest_report.as_object(haul, skipped), ensure_ascii=False))
    else:
        ingest_report.tell(haul, skipped, is_stopped=stop.is_set())


async def _see_embedded(session: _Session, shown: Display, stop: asyncio.Event) -> Coverage:
    """Show how the passages of the base get their vectors, until all have theirs or nobody goes on with it."""
    while True:
        is_going_on = await session.is_being_embedded()  # asked first: what it ends with has then been counted
        covered = await session.covered()
        if covered.passages:
            shown.show(embedding(covered))
        if stop.is_set() or not is_going_on or covered.embedded >= covered.passages:
            return covered
        await _rest(_COUNT_EVERY, stop)


def _check_folder(path: str) -> None:
    """Blame the option once, and not every file that would go there."""
    names = [name for name in path.split("/") if name.strip()]
    if len(names) > folders.MAX_FOLDER_DEPTH:
        raise BadRequest(f"--folder: Folders can be {folders.MAX_FOLDER_DEPTH} deep and no deeper.")
    for name in names:
        try:
            folders.check_name(name)
        except BadRequest:
            raise BadRequest(
                f"--folder: {name!r} cannot be the name of a folder.",
                remedy=f"Use names of 1 to {folders.MAX_NAME_CHARS} characters with slashes between them, and no '..'.",
            ) from None


async def _failed(call: Call, base_id: int) -> list[tuple[Document, str]]:
    """The documents that failed, each with its path in the base."""
    places = await document_status.folder_paths(call, base_id)
    found: list[Document] = []
    while more := await document_status.find(call, base_id, status="failed", after=found[-1].id if found else 0):
        found += more
    return [(each, f"{places.get(each.folder_id, '')}/{each.name}".strip("/")) for each in found]


@asynccontextmanager
async def stoppable() -> AsyncGenerator[asyncio.Event]:
    """An event that Ctrl-C sets; a second one ends the program at once."""
    stop, loop = asyncio.Event(), asyncio.get_running_loop()

    def told() -> None:
        stop.set()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.remove_signal_handler(number)

    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, told)
    try:
        yield stop
    finally:
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.remove_signal_handler(number)


@asynccontextmanager
async def _workers(db: Database, settings: Settings, stop: asyncio.Event, *, wanted: bool) -> AsyncGenerator[None]:
    """Workers of our own, beside those of a server if there is one: for documents, and for the vectors of passages."""
    if not wanted:
        yield
        return
    grace = round(settings.shutdown_grace_seconds * clock.SECOND)
    async with (
        reactions.open_job_handlers(db, settings) as handlers,
        working(db, settings, {"ingest": handlers["ingest"]}, stop, settings.job_concurrency, grace),
        # Apart, so that no document waits for a model; and nobody waits for what is to be embedded in other bases.
        working(db, settings, {"embed": handlers["embed"]}, stop, 1, 0),
    ):
        yield


@asynccontextmanager
async def working(
    db: Database, settings: Settings, handlers: Mapping[str, Handler], stop: asyncio.Event, concurrency: int, grace: int
) -> AsyncGenerator[None]:
    """A worker for as long as the block lasts. Should it fail, `stop` is set, so that nobody waits for it."""
    over = asyncio.Event()
    lease = round(settings.job_lease_seconds * clock.SECOND)
    worker = Worker(db, handlers, concurrency=concurrency, lease=lease, poll=_POLL, grace=grace)
    running = asyncio.create_task(worker.run(over))
    running.add_done_callback(lambda _: None if over.is_set() else stop.set())
    try:
        yield
    finally:
        over.set()
        await running


async def _rest(seconds: float, stop: asyncio.Event) -> None:
    try:
        async with asyncio.timeout(seconds):
            await stop.wait()
    except TimeoutError:
        return
    await asyncio.sleep(_LOOK_EVERY)  # what has been begun is being finished
