"""Commands that bring files into a knowledge base and have them read."""

import asyncio
import json
import signal
import time
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from almanac import reactions
from almanac.cli import disk, operator, report
from almanac.cli.disk import Found, Skipped, Stamp
from almanac.cli.haul import Haul
from almanac.cli.progress import display
from almanac.cli.terminal import Home, Json, say, settings_at, with_database
from almanac.core import clock
from almanac.core.call import Call
from almanac.core.database import Database
from almanac.core.errors import BadRequest
from almanac.core.settings import Settings
from almanac.jobs.worker import Worker
from almanac.knowledge import bases, documents, folders, inventory
from almanac.knowledge.documents import Document
from almanac.knowledge.files import Files

INTERRUPTED = 130  # the exit status of whatever Ctrl-C ended
_LOOK_EVERY = 0.1  # seconds between two looks at how far documents are
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
    """Bring files into a knowledge base and read them. Folders keep their structure.

    A file that is there already is left alone if it is the same, and replaced if it has changed; one that was removed
    from the disk stays in the base. Hidden files are left out, and links that lead out of a folder. Ctrl-C stops; run
    it again to go on. Exits with 1 if a file failed.

    With --json, "added", "replaced", "unchanged" and "retried" count the files that the base has taken, "failed" those
    that it could not take and those of the taken that could not be read. "queued" are still to be read, "left" were not
    reached before Ctrl-C, and "skipped" are listed in "left_out". "pages" counts only where a format has pages.

    Example: [bold]almanac ingest 1 manuals --folder engineering/pumps[/bold]
    """
    _check_folder(folder)
    settings = settings_at(home)

    async def work(db: Database) -> int:
        call = await operator.over_base(db, base_id)
        await bases.get(db, call, base_id, "write")
        session = _Session(call, base_id, settings, not no_wait, as_json)
        async with _stoppable() as stop, _worker(db, settings, stop, wanted=not no_wait):
            if watch:
                return await _watch(session, paths, folder, stop)
            tour = await asyncio.to_thread(disk.walk, paths, folder, settings.home)
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
        call = await operator.over_base(db, base_id)
        failed = await _failed(call, base_id)
        session = _Session(call, base_id, settings, not no_wait, as_json)
        await documents.retry_all(call, base_id)
        haul = Haul(call, base_id)
        haul.expect(failed)
        async with _stoppable() as stop, _worker(db, settings, stop, wanted=not no_wait):
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
    is_waiting: bool
    as_json: bool
    failing: set[str] = field(default_factory=set[str])


async def _watch(session: _Session, paths: Sequence[Path], folder: str, stop: asyncio.Event) -> int:
    """Bring in everything, and then whatever changes. A file is taken when two looks have found it the same."""
    taken: dict[str, Stamp] = {}
    before: dict[str, Stamp] | None = None
    while not stop.is_set():
        started = time.monotonic()
        tour = await asyncio.to_thread(disk.walk, paths, folder, session.settings.home)
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


async def _bring(session: _Session, found: list[Found], skipped: list[Skipped], stop: asyncio.Event) -> None:
    files = Files(session.settings.home, session.settings.max_file_bytes)
    haul = Haul(session.call, session.base_id)
    try:
        bringing = asyncio.create_task(haul.bring(found, files, session.settings.max_file_bytes, stop))
        await _follow(session, haul, skipped, bringing, stop)
    finally:
        files.close()


async def _follow(
    session: _Session,
    haul: Haul,
    skipped: list[Skipped],
    bringing: "asyncio.Task[None] | None",
    stop: asyncio.Event,
) -> None:
    """Show how a haul goes on until it is over, then tell what came of it."""
    with display(quiet=session.as_json) as shown:
        while True:
            has_come = bringing is None or bringing.done()
            await haul.look()
            shown.show(haul)
            if has_come and (stop.is_set() or not session.is_waiting or haul.is_over):
                break
            await _rest(_LOOK_EVERY, stop)
    if bringing is not None:
        await bringing
    session.failing -= {piece.label for piece in haul.pieces}
    session.failing |= {piece.label for piece in haul.failures}
    if session.as_json:
        say(json.dumps(report.as_object(haul, skipped), ensure_ascii=False))
    else:
        report.tell(haul, skipped, is_stopped=stop.is_set())


def _check_folder(path: str) -> None:
    """Blame the option once, and not every file that would go there."""
    names = [name for name in path.split("/") if name.strip()]
    if len(names) > folders.DEEPEST:
        raise BadRequest(f"--folder: Folders can be {folders.DEEPEST} deep and no deeper.")
    for name in names:
        try:
            folders.check_name(name)
        except BadRequest:
            raise BadRequest(
                f"--folder: {name!r} cannot be the name of a folder.",
                remedy=f"Use names of 1 to {folders.LONGEST_NAME} characters with slashes between them, and no '..'.",
            ) from None


async def _failed(call: Call, base_id: int) -> list[tuple[Document, str]]:
    """The documents that failed, each with its path in the base."""
    places = await inventory.paths(call, base_id)
    found: list[Document] = []
    while more := await inventory.find(call, base_id, status="failed", after=found[-1].id if found else 0):
        found += more
    return [(each, f"{places.get(each.folder_id, '')}/{each.name}".strip("/")) for each in found]


@asynccontextmanager
async def _stoppable() -> AsyncGenerator[asyncio.Event]:
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
async def _worker(db: Database, settings: Settings, stop: asyncio.Event, *, wanted: bool) -> AsyncGenerator[None]:
    """A worker of our own that reads documents, beside those of a server if there is one."""
    if not wanted:
        yield
        return
    over = asyncio.Event()
    async with reactions.handlers(db, settings) as handlers:
        worker = Worker(
            db,
            {"ingest": handlers["ingest"]},
            concurrency=settings.job_concurrency,
            lease=round(settings.job_lease_seconds * clock.SECOND),
            poll=_POLL,
            grace=round(settings.shutdown_grace_seconds * clock.SECOND),
        )
        working = asyncio.create_task(worker.run(over))
        working.add_done_callback(lambda _: stop.set())  # if it should fail, nobody waits for it
        try:
            yield
        finally:
            over.set()
            await working


async def _rest(seconds: float, stop: asyncio.Event) -> None:
    try:
        async with asyncio.timeout(seconds):
            await stop.wait()
    except TimeoutError:
        return
    await asyncio.sleep(_LOOK_EVERY)  # what has been begun is being finished
