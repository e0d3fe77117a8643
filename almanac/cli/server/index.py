"""`almanac index`: the status of the search index, and rebuilding it."""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from dataclasses import asdict, dataclass
from typing import Annotated, Any

import typer

from almanac.ai.embedder import Embedder
from almanac.ai.embedder_choice import open_embedder
from almanac.cli.support import operator_call
from almanac.cli.support.local_worker import EXIT_INTERRUPTED, local_worker, stop_on_signal
from almanac.cli.support.options import Json, command_group
from almanac.cli.support.output import print_json, print_line, print_note, print_rows
from almanac.cli.support.progress import Display, Stage, counted, open_display
from almanac.cli.support.startup import database_command
from almanac.core.database import Database, Row
from almanac.core.settings import Settings
from almanac.data import dataset_index
from almanac.files.file_store import format_size
from almanac.knowledge import document_index, document_status
from almanac.search.backends import open_search
from almanac.search.index.protocol import Coverage, SearchIndex
from almanac.search.jobs import analyse_passages, collection_status, embed_passages, embed_queue, passage_batches
from almanac.search.jobs.collection_status import CollectionStatus
from almanac.search.jobs.embed_passages import DELETE_OLD_VECTORS_JOB, DeleteOldVectors, EmbedPassages

index_app = command_group("The search index: its status, and rebuilding it.")

_POLL_SECONDS = 0.5


@index_app.command("status")
@database_command
async def show_status(db: Database, settings: Settings, as_json: Json = False) -> None:
    """Show the passages of each knowledge base, how many of them are embedded by which model, and the size of the
    index. "next" is a model that embeds the passages again; searches change over to it when it has embedded all.
    Searches find changes that are in no file yet.

    Example: [bold]almanac index status[/bold]
    """
    names = await document_status.base_names(db)
    statuses = await collection_status.collection_statuses(db)
    status: dict[str, Any] = {
        "collections": [{"name": names.get(each.collection), **asdict(each)} for each in statuses],
        "parts": [asdict(part) for part in await collection_status.index_parts(settings, db)],
        "changes": await collection_status.count_pending_changes(settings, db),
    }
    if as_json:
        print_json(status)
        return
    print_rows([_status_row(each) for each in status["collections"]], False, empty="Nothing has been indexed yet.")
    size = format_size(sum(part["bytes"] for part in status["parts"]))
    number = counted(len(status["parts"]), "file")
    changes = counted(status["changes"], "change")
    print_line(
        f"{size} in {number}; {changes} in no file yet" if settings.on_sqlite else f"{size} in tables and indexes"
    )


@index_app.command("rebuild")
@database_command
async def rebuild(
    db: Database,
    settings: Settings,
    words: Annotated[bool, typer.Option("--words", help="Also analyse every text again.")] = False,
    vectors: Annotated[bool, typer.Option("--vectors", help="Also embed every passage again.")] = False,
    base: Annotated[
        str | None,
        typer.Option(
            "--kb", help="Only this knowledge base, by its id or name from 'almanac kb list'.", show_default=False
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """Rebuild the index from the database. Meanwhile searches use the old index, and a server goes on.

    The model of the settings computes the vectors. If it is a new model, searches change over to it when it has
    embedded every passage. Ctrl-C stops the command at any time; finished work is kept, and the index stays intact.

    Example: [bold]almanac index rebuild --words[/bold]
    """
    collection = None
    if base is not None:
        base_id = await operator_call.base_id(db, base)
        await operator_call.call_for_base(db, base_id)
        collection = document_index.collection_of(base_id)
    async with stop_on_signal() as stop:
        with open_display(quiet=as_json) as display:
            done = _IndexRebuild(db, settings, collection, display, stop)
            await done.run(words=words, vectors=vectors)
    if as_json:
        print_json(asdict(done.counts))
    else:
        _print_report(done)
    if done.was_stopped:
        raise typer.Exit(EXIT_INTERRUPTED)


@dataclass(slots=True)
class _RebuildCounts:
    """The work that a rebuild has done."""

    mended: int = 0  # documents and datasets with a wrong entry in the index
    analysed: int = 0  # passages
    changed: int = 0  # analysed passages with other words than before
    embedded: int = 0
    waiting: int = 0  # passages that a worker has not embedded yet
    is_renewed: bool = False  # the structures that are derived from words and vectors


class _IndexRebuild:
    """One run of `almanac index rebuild`."""

    def __init__(
        self, db: Database, settings: Settings, collection: str | None, display: Display, stop: asyncio.Event
    ) -> None:
        self._db = db
        self._settings = settings
        self._collection = collection
        self._display = display
        self._stop = stop
        self.counts = _RebuildCounts()
        self.was_stopped = False

    async def run(self, *, words: bool, vectors: bool) -> None:
        """Run the steps in order. The structures derived from words and vectors come last."""
        if self._collection is None:
            self.counts.mended = await document_index.repair(self._db) + await dataset_index.repair(self._db)
        if words:
            await self._analyse()
        if vectors:
            await self._embed()
        if not self._stop.is_set():
            await self._renew()
        self.was_stopped = self._stop.is_set()

    async def _analyse(self) -> None:
        async def analyse(rows: list[Row]) -> None:
            self.counts.changed += await analyse_passages.analyse(self._db, rows)
            self.counts.analysed += len(rows)

        await self._for_each_batch(
            await self._statuses(), analyse_passages.BATCH_SIZE, analyse, ("Analysing", "analysed")
        )

    async def _embed(self) -> None:
        embedder = open_embedder(self._settings)
        try:
            statuses = await self._statuses()
            await self._replace_vectors([each for each in statuses if each.model == embedder.name], embedder)
            await self._add_vectors([each for each in statuses if _lacks_vectors(each, embedder.name)], embedder)
        finally:
            await embedder.close()

    async def _replace_vectors(self, statuses: Sequence[CollectionStatus], embedder: Embedder) -> None:
        """Embed again the passages that have vectors of the model, a batch at a time."""

        async def embed(rows: list[Row]) -> None:
            await embed_passages.replace_vectors(self._db, embedder, rows)
            self.counts.embedded += len(rows)

        await self._for_each_batch(statuses, embed_passages.BATCH_SIZE, embed, ("Embedding", "embedded"))

    async def _add_vectors(self, statuses: Sequence[CollectionStatus], embedder: Embedder) -> None:
        """Queue the embedding of passages without vectors of the model, for a worker here or elsewhere."""
        for each in statuses:
            await self._db.write(lambda tx, name=each.collection: embed_queue.enqueue(tx, name))
        handlers = {
            embed_queue.KIND: EmbedPassages(self._db, embedder),
            DELETE_OLD_VECTORS_JOB: DeleteOldVectors(self._db),
        }
        async with (
            open_search(self._settings, self._db) as search,
            local_worker(self._db, self._settings, handlers, self._stop, 1, 0),
        ):
            for each in statuses:
                coverage = await self._follow(each.collection, search.index)
                self.counts.embedded += coverage.embedded if each.model != embedder.name else 0
                self.counts.waiting += coverage.passages - coverage.embedded

    async def _follow(self, collection: str, index: SearchIndex) -> Coverage:
        while True:
            is_running = await embed_queue.is_under_way(self._db, collection) and not self._stop.is_set()
            coverage = await collection_status.coverage(self._db, index, collection)
            if not is_running:
                return coverage
            if coverage.embedded < coverage.passages:
                title = f"Embedding {collection}"
                self._display.show(Stage(title, coverage.embedded, coverage.passages, "passage", "embedded"))
            await self._unless_stopped(asyncio.sleep(_POLL_SECONDS))

    async def _renew(self) -> None:
        """Rebuild the structures that are derived from words and vectors."""
        done = 0

        def show_progress(number: int) -> None:
            nonlocal done
            done += number
            self._display.show(Stage("Indexing", done, None, "document"))

        show_progress(0)
        renewing = collection_status.rebuild_index(self._settings, self._db, self._collection, show_progress)
        self.counts.is_renewed = await self._unless_stopped(renewing)

    async def _statuses(self) -> list[CollectionStatus]:
        statuses = await collection_status.collection_statuses(self._db)
        return [each for each in statuses if self._collection in (None, each.collection)]

    async def _for_each_batch(
        self,
        statuses: Sequence[CollectionStatus],
        batch_size: int,
        step: Callable[[list[Row]], Awaitable[None]],
        words: tuple[str, str],
    ) -> None:
        """Call `step` with each batch of passages, until Ctrl-C."""
        total, done = sum(each.passages for each in statuses), 0
        for each in statuses:
            async for rows in passage_batches.walk(self._db, each.collection, batch_size):
                if self._stop.is_set():
                    return
                await step(rows)
                done += len(rows)
                # The total does not count hidden passages, nor passages that were added meanwhile.
                self._display.show(Stage(words[0], done, max(total, done), "passage", words[1]))

    async def _unless_stopped(self, work: Coroutine[Any, Any, None]) -> bool:
        """Await work and return True, or cancel it at Ctrl-C and return False."""
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


def _lacks_vectors(status: CollectionStatus, model: str) -> bool:
    return status.model != model or not status.is_embedded


def _status_row(status: dict[str, Any]) -> dict[str, Any]:
    next_model = f"{status['next_model']} {status['next_embedded']:,}/{status['passages']:,}"
    return {
        "collection": status["collection"],
        "name": status["name"],
        "passages": status["passages"],
        "embedded": status["embedded"],
        "unread": status["unread"],
        "model": status["model"],
        "next": next_model if status["next_model"] else None,
    }


def _print_report(rebuild: _IndexRebuild) -> None:
    counts = rebuild.counts
    parts = (
        f"{counted(counts.mended, 'document')} mended" if counts.mended else "",
        f"{counted(counts.analysed, 'passage')} analysed, {counts.changed:,} of them with other words than before"
        if counts.analysed
        else "",
        f"{counted(counts.embedded, 'passage')} embedded" if counts.embedded else "",
        "index rebuilt" if counts.is_renewed else "",
    )
    print_line("; ".join(filter(None, parts)) or "nothing done")
    if rebuild.was_stopped:
        print_note("Stopped; finished work is kept. Run the command again to do the rest.")
    elif counts.waiting:
        print_note(f"{counted(counts.waiting, 'passage')} wait to be embedded; see 'almanac doctor'.")
