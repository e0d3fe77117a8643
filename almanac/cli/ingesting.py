"""Commands that bring files into a knowledge base and have them read."""

import asyncio
import json
import signal
import time
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from almanac import reactions
from almanac.cli import disk, operator
from almanac.cli.disk import Found, Skipped, Stamp
from almanac.cli.haul import OUTCOMES, Haul, Piece
from almanac.cli.progress import display, rate
from almanac.cli.terminal import Home, Json, say, settings_at, show, with_database
from almanac.core import clock
from almanac.core.call import Call
from almanac.core.database import Database
from almanac.core.settings import Settings
from almanac.jobs.worker import Worker
from almanac.knowledge import bases, documents, inventory
from almanac.knowledge.documents import Document
from almanac.knowledge.files import Files

INTERRUPTED = 130  # the exit status of whatever Ctrl-C ended
_LOOK_EVERY = 0.1  # seconds between two looks at how far documents are
_WALK_EVERY = 1.0  # seconds between two looks at the disk, and ten times as long as a look takes at least
_POLL = clock.SECOND // 10
_MOST_SKIPPED = 20  # lines about what was left out

BaseId = Annotated[int, typer.Argument(metavar="KB_ID", help="Its id, from 'almanac kb list'.")]
NoWait = Annotated[bool, typer.Option("--no-wait", help="Only queue the documents; the worker of a server reads them.")]


def ingest(
    base_id: BaseId,
    paths: Annotated[
        list[Path], typer.Argument(metavar="PATH", exists=True, help="Files, and folders with all that is in them.")
    ],
    folder: Annotated[str, typer.Option("--folder", help="The folder of the base to put them into.")] = "",
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

    Example: [bold]almanac ingest 1 manuals --folder engineering/pumps[/bold]
    """
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
        await db.write(lambda tx: documents.retry(call, tx, base_id))
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
    """Show how a haul goes on until it is over, then say what came of it."""
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
    _report(session, haul, skipped)


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


def _report(session: _Session, haul: Haul, skipped: Sequence[Skipped]) -> None:
    if session.as_json:
        say(json.dumps(_as_object(session, haul, skipped), ensure_ascii=False))
        return
    console = Console(stderr=True)
    for each in skipped[:_MOST_SKIPPED]:
        console.print(f"skipped {each.label}: {each.reason}", markup=False, highlight=False, soft_wrap=True)
    if len(skipped) > _MOST_SKIPPED:
        console.print(f"skipped {len(skipped) - _MOST_SKIPPED} more")
    if haul.failures:
        rows = [{"file": piece.label, "code": piece.code, "message": piece.message} for piece in haul.failures]
        show(rows, False, empty="")
    say(_summary(haul, len(skipped)))


def _summary(haul: Haul, skipped: int) -> str:
    """As in: 9 files: 7 added, 1 replaced; 2 failed, 4 skipped; 31 pages in 0.9 s, 34.4 pages/s."""
    numbers = _numbers(haul, skipped)
    came = ", ".join(f"{numbers[word]} {word}" for word in OUTCOMES if numbers[word]) or "none taken"
    rest = ", ".join(f"{number} {word}" for word, number in numbers.items() if number and word not in OUTCOMES)
    speed = f"{haul.pages} pages in {haul.seconds:.1f} s, {rate(haul)}" if haul.pages else ""
    files = f"{len(haul.pieces)} file{'' if len(haul.pieces) == 1 else 's'}: {came}"
    return "; ".join(filter(None, (files, rest, speed)))


def _numbers(haul: Haul, skipped: int) -> dict[str, int]:
    left = sum(piece.status == "waiting" for piece in haul.pieces)
    return {
        **{outcome: sum(piece.outcome == outcome for piece in haul.pieces) for outcome in OUTCOMES},
        "failed": len(haul.failures),
        "queued": len(haul.pieces) - haul.done - left,
        "left": left,
        "skipped": skipped,
    }


def _as_object(session: _Session, haul: Haul, skipped: Sequence[Skipped]) -> Mapping[str, Any]:
    return {
        "base": session.base_id,
        **_numbers(haul, len(skipped)),
        "pages": haul.pages,
        "seconds": round(haul.seconds, 3),
        "files": [_as_file(piece) for piece in haul.pieces],
        "left_out": [{"path": each.label, "reason": each.reason} for each in skipped],
    }


def _as_file(piece: Piece) -> Mapping[str, Any]:
    reason = {"code": piece.code, "message": piece.message} if piece.status == "failed" else None
    return {
        "path": piece.label,
        "document_id": piece.document_id,
        "outcome": piece.outcome or None,
        "status": piece.status,
        "pages": piece.pages,
        "failure": reason,
    }
