"""Commands about the index that searches read: how far it is, and having it made anew."""

import asyncio
import json
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from dataclasses import asdict, dataclass
from typing import Annotated, Any

import typer
from rich.console import Console

from almanac.ai.embedder import Embedder
from almanac.ai.embedder_choice import open_embedder
from almanac.cli.ingest import INTERRUPTED, stoppable, working
from almanac.cli.support import operator_call
from almanac.cli.support.progress import Display, Stage, counted, display
from almanac.cli.support.terminal import Home, Json, print_line, print_rows, settings_at, with_database
from almanac.core.database import Database, Row
from almanac.core.settings import Settings
from almanac.knowledge import document_index, document_status
from almanac.knowledge.files import format_size
from almanac.search.backends import open_search
from almanac.search.index.protocol import Coverage, SearchIndex
from almanac.search.jobs import collection_status, embed_passages
from almanac.search.jobs.collection_status import CollectionStatus
from almanac.search.jobs.embed_passages import DeleteOldVectors, EmbedPassages

index_app = typer.Typer(
    help="The index that searches read: how far it is, and making it anew.",
    no_args_is_help=True,
    rich_markup_mode="rich",
)

_LOOK_EVERY = 0.5  # seconds between two looks at how far the workers are


@index_app.command("status")
def show_status(home: Home = None, as_json: Json = False) -> None:
    """Show how many passages each knowledge base has, how many of them are embedded by which model, and its size.
    "next" is a model that the passages are being embedded with anew; it takes over when all have been. Changes that
    wait are found already; they only are in no file yet.

    Example: [bold]almanac index status[/bold]
    """
    settings = settings_at(home)

    async def work(db: Database) -> dict[str, Any]:
        names = await document_status.base_names(db)
        standings = await collection_status.collection_statuses(db)
        return {
            "collections": [{"name": names.get(each.collection), **asdict(each)} for each in standings],
            "parts": [asdict(part) for part in await collection_status.parts(settings, db)],
            "changes": await collection_status.changes(settings, db),
        }

    found = with_database(home, work)
    if as_json:
        print_line(json.dumps(found, ensure_ascii=False))
        return
    print_rows([_status_row(each) for each in found["collections"]], False, empty="Nothing has been read yet.")
    size = format_size(sum(part["bytes"] for part in found["parts"]))
    number = counted(len(found["parts"]), "file")
    changes = counted(found["changes"], "change")
    print_line(
        f"{size} in {number}; {changes} in no file yet" if settings.on_sqlite else f"{size} in tables and indexes"
    )


@index_app.command("rebuild")
def rebuild(
    words: Annotated[bool, typer.Option("--words", help="Also analyse every text anew.")] = False,
    vectors: Annotated[bool, typer.Option("--vectors", help="Also embed every passage anew.")] = False,
    base_id: Annotated[
        int | None, typer.Option("--kb", help="Only this knowledge base, from 'almanac kb list'.", show_default=False)
    ] = None,
    home: Home = None,
    as_json: Json = False,
) -> None:
    """Make the index anew from what is stored. Searches go on meanwhile, with what there was, and so does a server.

    Vectors are made by the model that the settings name. If that is another than before, searches change over to it
    when every passage has been embedded. Ctrl-C stops it at any time: what was done is kept, and nothing is broken.

    Example: [bold]almanac index rebuild --words[/bold]
    """
    settings = settings_at(home)

    async def work(db: Database) -> "_Rebuilding":
        if base_id is not None:
            await operator_call.call_for_base(db, base_id)
        async with stoppable() as stop:
            with display(quiet=as_json) as shown:
                only = None if base_id is None else document_index.collection_of(base_id)
                rebuilding = _Rebuilding(db, settings, only, shown, stop)
                await rebuilding.run(words=words, vectors=vectors)
            return rebuilding

    done = with_database(home, work)
    if as_json:
        print_line(json.dumps(asdict(done.did)))
    else:
        _tell(done)
    if done.was_stopped:
        raise typer.Exit(INTERRUPTED)


@dataclass(slots=True)
class _Did:
    """What a rebuilding has come to."""

    mended: int = 0  # documents that search did not know as they are
    analysed: int = 0  # passages
    changed: int = 0  # of these, whose words were other ones than now
    embedded: int = 0
    waiting: int = 0  # passages that a worker has still to embed
    is_renewed: bool = False  # what is derived from words and vectors


class _Rebuilding:
    """One run of the command."""

    def __init__(
        self, db: Database, settings: Settings, collection: str | None, shown: Display, stop: asyncio.Event
    ) -> None:
        self._db = db
        self._settings = settings
        self._only = collection
        self._shown = shown
        self._stop = stop
        self.did = _Did()
        self.was_stopped = False

    async def run(self, *, words: bool, vectors: bool) -> None:
        """Do what was asked for, one after the other: what is derived comes last."""
        if self._only is None:
            self.did.mended = await document_index.repair(self._db)
        if words:
            await self._analyse()
        if vectors:
            await self._embed()
        if not self._stop.is_set():
            await self._renew()
        self.was_stopped = self._stop.is_set()

    async def _analyse(self) -> None:
        async def analyse(rows: list[Row]) -> None:
            self.did.changed += await collection_status.analyse(self._db, rows)
            self.did.analysed += len(rows)

        await self._walk(await self._standings(), collection_status.AT_ONCE, analyse, ("Analysing", "analysed"))

    async def _embed(self) -> None:
        embedder = open_embedder(self._settings)
        try:
            standings = await self._standings()
            await self._replace([each for each in standings if each.model == embedder.name], embedder)
            await self._complete([each for each in standings if _is_behind(each, embedder.name)], embedder)
        finally:
            await embedder.close()

    async def _replace(self, standings: Sequence[CollectionStatus], embedder: Embedder) -> None:
        """New vectors where there are some of the model already, a batch at a time."""

        async def embed(rows: list[Row]) -> None:
            await collection_status.embed(self._db, embedder, rows)
            self.did.embedded += len(rows)

        await self._walk(standings, embed_passages.AT_ONCE, embed, ("Embedding", "embedded"))

    async def _complete(self, standings: Sequence[CollectionStatus], embedder: Embedder) -> None:
        """Have what lacks vectors of the model embedded as it always is, by our own worker or by another."""
        for each in standings:
            await self._db.write(lambda tx, name=each.collection: embed_passages.enqueue(tx, name))
        handlers = {"embed": EmbedPassages(self._db, embedder), "forget": DeleteOldVectors(self._db)}
        async with (
            open_search(self._settings, self._db) as search,
            working(self._db, self._settings, handlers, self._stop, 1, 0),
        ):
            for each in standings:
                covered = await self._follow(each.collection, search.index)
                self.did.embedded += covered.embedded if each.model != embedder.name else 0
                self.did.waiting += covered.passages - covered.embedded

    async def _follow(self, collection: str, index: SearchIndex) -> Coverage:
        while True:
            is_going_on = await collection_status.is_under_way(self._db, collection) and not self._stop.is_set()
            covered = await collection_status.coverage(self._db, index, collection)
            if not is_going_on:
                return covered
            if covered.embedded < covered.passages:
                doing = f"Embedding {collection}"
                self._shown.show(Stage(doing, covered.embedded, covered.passages, "passage", "embedded"))
            await self._unless_stopped(asyncio.sleep(_LOOK_EVERY))

    async def _renew(self) -> None:
        """Once more all that is derived from words and vectors."""
        done = 0

        def told(number: int) -> None:
            nonlocal done
            done += number
            self._shown.show(Stage("Indexing", done, None, "document"))

        told(0)
        renewing = collection_status.renew(self._settings, self._db, self._only, told)
        self.did.is_renewed = await self._unless_stopped(renewing)

    async def _standings(self) -> list[CollectionStatus]:
        found = await collection_status.collection_statuses(self._db)
        return [each for each in found if self._only in (None, each.collection)]

    async def _walk(
        self,
        standings: Sequence[CollectionStatus],
        at_once: int,
        step: Callable[[list[Row]], Awaitable[None]],
        said: tuple[str, str],
    ) -> None:
        """Take a step for each batch of passages, until it is told to stop."""
        total, done = sum(each.passages for each in standings), 0
        for each in standings:
            async for rows in collection_status.walk(self._db, each.collection, at_once):
                if self._stop.is_set():
                    return
                await step(rows)
                done += len(rows)
                # There may be more than were counted: those of what is hidden, and what has come meanwhile.
                self._shown.show(Stage(said[0], done, max(total, done), "passage", said[1]))

    async def _unless_stopped(self, work: Coroutine[Any, Any, None]) -> bool:
        """Do something, and whether it was done: it is left where Ctrl-C comes first."""
        task, stopping = asyncio.create_task(work), asyncio.create_task(self._stop.wait())
        await asyncio.wait((task, stopping), return_when=asyncio.FIRST_COMPLETED)
        stopping.cancel()
        if not task.done():
            task.cancel()
            await asyncio.wait((task,))
        if task.cancelled():
            return False
        task.result()
        return True


def _is_behind(standing: CollectionStatus, model: str) -> bool:
    """Whether a collection has still to come to a model, or to all its vectors."""
    return standing.model != model or not standing.is_embedded


def _status_row(about: dict[str, Any]) -> dict[str, Any]:
    upcoming = f"{about['next_model']} {about['next_embedded']:,}/{about['passages']:,}"
    return {
        "collection": about["collection"],
        "name": about["name"],
        "passages": about["passages"],
        "embedded": about["embedded"],
        "unread": about["unread"],
        "model": about["model"],
        "next": upcoming if about["next_model"] else None,
    }


def _tell(done: _Rebuilding) -> None:
    did = done.did
    parts = (
        f"{counted(did.mended, 'document')} mended" if did.mended else "",
        f"{counted(did.analysed, 'passage')} analysed, {did.changed:,} of them otherwise than before"
        if did.analysed
        else "",
        f"{counted(did.embedded, 'passage')} embedded" if did.embedded else "",
        "index made anew" if did.is_renewed else "",
    )
    print_line("; ".join(filter(None, parts)) or "nothing done")
    console = Console(stderr=True)
    if done.was_stopped:
        console.print("Stopped; what was done is kept. Run the command again to have all of it done.", soft_wrap=True)
    elif did.waiting:
        told = f"{counted(did.waiting, 'passage')} wait to be embedded; see 'almanac doctor'."
        console.print(told, highlight=False, soft_wrap=True)
