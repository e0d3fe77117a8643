"""The commands that measure: how well search finds what people judged to be the answers."""

import asyncio
import json
import tempfile
import time
from bisect import bisect_right
from collections.abc import AsyncGenerator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from itertools import accumulate, groupby
from pathlib import Path
from typing import Annotated, Any, TypeVar, cast

import orjson
import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from almanac import reactions
from almanac.bootstrap import open_database
from almanac.cli.search import Mode, call_of, inquire
from almanac.cli.support.terminal import Json, print_line, print_rows, settings_at
from almanac.core import clock
from almanac.core.call import Call
from almanac.core.database import Database, Transaction
from almanac.core.errors import BadRequest, Internal
from almanac.core.settings import Settings
from almanac.identity import orgs, principals
from almanac.jobs import queue
from almanac.jobs.worker import Worker
from almanac.knowledge import bases, document_search, documents
from almanac.knowledge.document_search import DocumentResult, SearchArguments
from almanac.knowledge.documents import DocumentDraft
from almanac.knowledge.files import FileStore, StoredFile
from almanac.knowledge.ingest import splitter as cutting
from almanac.knowledge.ingest.ingest_job import Ingest
from almanac.knowledge.parsers import file_types, parse_file, parse_message
from almanac.knowledge.parsers.parsed_file import Block, ParsedFile
from almanac.sandbox.pool import SandboxPool
from almanac.sandbox.result import SandboxResult
from almanac.search import measure
from almanac.search.backends import open_search
from almanac.search.engine import MAX_QUERY_CHARS, SearchEngine
from almanac.search.passage import Passage

T = TypeVar("T")

DEPTHS = (10, 100)
_AT_ONCE = 500  # documents in a transaction
_LOOK_EVERY = 0.2  # seconds

bench_app = typer.Typer(
    help="Measurements of this program on your own machine.", no_args_is_help=True, rich_markup_mode="rich"
)


@bench_app.command("retrieval")
def retrieval(
    folder: Annotated[
        Path, typer.Argument(metavar="DIR", help="With corpus.jsonl, queries.jsonl and qrels.jsonl.", file_okay=False)
    ],
    mode: Mode = "hybrid",
    limit_queries: Annotated[
        int | None, typer.Option("--limit-queries", min=1, help="Only so many, from the first.", show_default=False)
    ] = None,
    rerank: Annotated[bool, typer.Option("--rerank/--no-rerank", help="Look at what was found a second time.")] = True,
    as_json: Json = False,
) -> None:
    """Measure search on a set of documents, queries and judgements (BEIR form), in a home of its own.

    corpus.jsonl has a document in each line ("_id", "text", and if it has one "title"), queries.jsonl a query ("_id",
    "text"), and qrels.jsonl a judgement ("query-id", "corpus-id", "score"). A "conv" in documents and queries lets each
    query search its own part alone; lines of one "conv" and title that follow each other are the turns of a
    conversation, and become the passages of one document. What is asked goes the way of the tools, as a user with one
    knowledge base for each part. Only queries with judgements are asked.

    Prints nDCG@10, recall@10 and recall@100 (means over the queries), the expected calibration error of the scores of
    the first ten, and how long the answers took, one at a time.

    Example: [bold]almanac bench retrieval data/scifact --json[/bold]
    """
    test = read_set(folder)
    asked = inquire(query="-", mode=mode, rerank=rerank, limit=DEPTHS[0])
    settings = settings_at(None)
    with tempfile.TemporaryDirectory(prefix="almanac-bench-") as home:
        # The embedded default, whatever serves here; models and their settings stay.
        (Path(home) / "models").symlink_to(settings.home.absolute() / "models")
        settings = replace(settings, home=Path(home), database_url="")
        found = asyncio.run(_run(settings, test, asked, limit_queries, as_json))
    if as_json:
        print_line(json.dumps(found))
    else:
        print_rows([{name: _shown(value) for name, value in found.items()}], False, empty="")


# The set


@dataclass(frozen=True, slots=True)
class Line:
    """A document or a query."""

    id: str
    text: str
    title: str = ""
    part: str = ""


@dataclass(frozen=True, slots=True)
class TestSet:
    """Documents, queries, and for each query the grades of documents."""

    name: str
    corpus: Sequence[Line]
    queries: Sequence[Line]
    grades: Mapping[str, Mapping[str, float]]


def read_set(folder: Path) -> TestSet:
    """A set from its three files."""
    corpus = _lines(folder / "corpus.jsonl")
    queries = _lines(folder / "queries.jsonl", has_text=True)
    parts = {line.part for line in corpus}
    for number, query in enumerate(queries, 1):
        if query.part and query.part not in parts:
            raise BadRequest(f"queries.jsonl, line {number}: no document has this 'conv'.")
    grades: dict[str, dict[str, float]] = {}
    for number, row in _rows(folder / "qrels.jsonl"):
        query, document, grade = row.get("query-id"), row.get("corpus-id"), row.get("score")
        if query is None or document is None or not isinstance(grade, int | float) or isinstance(grade, bool):
            raise BadRequest(f"qrels.jsonl, line {number}: it needs 'query-id', 'corpus-id' and a number as 'score'.")
        grades.setdefault(str(query), {})[str(document)] = grade
    judged = [query for query in queries if any(grade > 0 for grade in grades.get(query.id, {}).values())]
    if not corpus or not judged:
        raise BadRequest("There is nothing to measure.", remedy="qrels.jsonl has to judge queries of queries.jsonl.")
    return TestSet(folder.resolve().name, corpus, judged, grades)


def _lines(file: Path, *, has_text: bool = False) -> list[Line]:
    found: dict[str, Line] = {}
    for number, row in _rows(file):
        id, text, title, part = (row.get(name, "") for name in ("_id", "text", "title", "conv"))
        if not isinstance(id, str | int) or id == "" or not isinstance(text, str) or not isinstance(title, str):
            raise BadRequest(f"{file.name}, line {number}: it needs '_id', and texts as 'text' and 'title'.")
        if has_text and not text.strip():
            raise BadRequest(f"{file.name}, line {number}: 'text' is empty.")
        if str(id) in found:
            raise BadRequest(f"{file.name}, line {number}: this '_id' has been there before.")
        found[str(id)] = Line(str(id), text, title, str(part))
    return list(found.values())


def _rows(file: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """The objects of a file, each with the number of its line."""
    try:
        with file.open("rb") as lines:
            for number, line in enumerate(lines, 1):
                if line.strip():
                    yield number, _row(file, number, line)
    except OSError as error:
        raise BadRequest(
            f"{file.name} cannot be read: {error.strerror}.",
            remedy="The folder needs corpus.jsonl, queries.jsonl and qrels.jsonl.",
        ) from None


def _row(file: Path, number: int, line: bytes) -> dict[str, Any]:
    try:
        row = orjson.loads(line)
    except orjson.JSONDecodeError:
        raise BadRequest(f"{file.name}, line {number}: it is not JSON.") from None
    if not isinstance(row, dict):
        raise BadRequest(f"{file.name}, line {number}: it is not a JSON object.")
    return cast("dict[str, Any]", row)


# The measurement


@dataclass(slots=True)
class _Tally:
    """What the queries have come to so far."""

    gained: list[float] = field(default_factory=list[float])
    found: dict[int, list[float]] = field(default_factory=lambda: {depth: list[float]() for depth in DEPTHS})
    judged: list[tuple[float, bool]] = field(default_factory=list[tuple[float, bool]])
    seconds: list[float] = field(default_factory=list[float])


async def _run(
    settings: Settings, test: TestSet, asked: SearchArguments, most: int | None, quiet: bool
) -> dict[str, Any]:
    async with open_database(settings) as db, open_search(settings, db) as search:
        with display_of(quiet) as display:
            call = await settle(db)
            begun = time.perf_counter()
            library = Library(call)
            await library.fill(settings, test.corpus, display)
            await work_off(db, settings, display)
            built = time.perf_counter() - begun
            tally = _Tally()
            queries = test.queries[:most]
            for query in display.track(queries, description="Asking"):
                await _ask(replace(call, accessed=[]), search, library, test, query, asked, tally)
            rows = await db.scan("SELECT count(*) AS n FROM passages")
    return {
        "set": test.name,
        "mode": asked.mode,
        "documents": len(test.corpus),
        "passages": rows[0]["n"],
        "queries": len(queries),
        "ndcg@10": round(measure.mean(tally.gained), 4),
        **{f"recall@{depth}": round(measure.mean(shares), 4) for depth, shares in tally.found.items()},
        "calibration_error": round(measure.calibration_error(tally.judged), 4),
        "p50_ms": round(1000 * measure.percentile(tally.seconds, 0.5), 2),
        "p99_ms": round(1000 * measure.percentile(tally.seconds, 0.99), 2),
        "queries_per_second": round(len(tally.seconds) / sum(tally.seconds), 1),
        "index_seconds": round(built, 1),
    }


async def _ask(
    call: Call,
    search: SearchEngine,
    library: "Library",
    test: TestSet,
    query: Line,
    asked: SearchArguments,
    tally: _Tally,
) -> None:
    """Ask one query as a tool would, and a second time, not counting how long that takes, for those further down."""
    where = [library.bases[query.part]] if query.part else []
    most = 0 if query.part else 1  # a turn of a conversation is a passage, any other line a document
    inquiry = asked.model_copy(
        update={"query": query.text[:MAX_QUERY_CHARS], "bases": where, "most_per_document": most}
    )
    begun = time.perf_counter()
    found = await document_search.search_documents(call, search, inquiry)
    tally.seconds.append(time.perf_counter() - begun)
    question = document_search.build_query(inquiry, await document_search.resolve_scope(call, where))
    further = await document_search.find(call, search, replace(question, limit=DEPTHS[-1]))
    grades = test.grades[query.id]
    first = [library.line(hit) for hit in found.hits]
    tally.gained.append(measure.ndcg(first, grades, DEPTHS[0]))
    tally.found[DEPTHS[0]].append(measure.recall(first, grades, DEPTHS[0]))
    tally.found[DEPTHS[-1]].append(measure.recall([library.line(hit) for hit in further.hits], grades, DEPTHS[-1]))
    tally.judged += [(hit.found.score, grades.get(id, 0) > 0) for id, hit in zip(first, found.hits, strict=True)]


# The library that is searched


@dataclass(frozen=True, slots=True)
class Sheet:
    """A document of the library: one line, or the turns of a conversation under one title."""

    lines: Sequence[Line]

    @property
    def text(self) -> str:
        """The lines, one below the other; the title of one that has no text."""
        return "\n".join(_said(line) for line in self.lines)

    @property
    def starts(self) -> list[int]:
        """Where each line begins."""
        return list(accumulate((len(_said(line)) + 1 for line in self.lines[:-1]), initial=0))


def _said(line: Line) -> str:
    """What a line says, on one line of a conversation, so that it can be told where it is."""
    return parse_file.sanitise(ParsedFile(line.text if line.text.strip() else line.title, ())).text


def sheets(corpus: Sequence[Line]) -> list[Sheet]:
    """The documents that a corpus becomes."""
    lines = [line for line in corpus if line.text.strip() or line.title.strip()]
    numbered = enumerate(lines)
    runs = groupby(numbered, key=lambda each: (each[1].part, each[1].title) if each[1].part else each[0])
    return [Sheet([line for _, line in run]) for _, run in runs]


class _Reader(SandboxPool):
    """Reads the sheets of a set as documents. They are plain text and nobody's attack, so it needs no process."""

    def __init__(self, sheets: Mapping[str, Sheet]) -> None:
        super().__init__("")
        self._sheets = sheets

    async def run(self, path: Path, name: str, options: dict[str, Any]) -> SandboxResult:
        sheet = self._sheets[name]
        parsed = ParsedFile(sheet.text, (Block("text", 0, len(sheet.text)),), title=sheet.lines[0].title)
        if len(sheet.lines) == 1:
            passages = cutting.split(parsed, cutting.PassageSplitter.from_options(options))
        else:
            ends = (start + len(_said(line)) for start, line in zip(sheet.starts, sheet.lines, strict=True))
            passages = [
                Passage(start, end, parsed.text[start:end]) for start, end in zip(sheet.starts, ends, strict=True)
            ]
        return SandboxResult(parse_message.pack(file_types.PLAIN, parsed, passages), 0, 0.0, 0.0)


@dataclass(slots=True)
class Library:
    """A knowledge base for each part of a set, and in it the sheets."""

    call: Call
    bases: dict[str, int] = field(default_factory=dict[str, int])  # by part
    sheets: dict[int, Sheet] = field(default_factory=dict[int, Sheet])  # by document

    def line(self, hit: DocumentResult) -> str:
        """The id of the line that was found."""
        sheet = self.sheets[hit.document_id]
        return sheet.lines[bisect_right(sheet.starts, hit.found.start) - 1].id

    async def fill(self, settings: Settings, corpus: Sequence[Line], display: Progress) -> None:
        """Put the documents where they can be found, by the verbs that everyone uses."""
        db = self.call.db
        named = {f"{number}.txt": sheet for number, sheet in enumerate(sheets(corpus))}
        self.bases = await db.write(lambda tx: self._add_bases(tx, corpus))
        files = FileStore(settings.home, settings.max_file_bytes)
        ingest = Ingest(db, files, _Reader(named), _AT_ONCE)
        task = display.add_task("Reading", total=len(named))
        try:
            async with files.receive(db) as incoming:
                await incoming.write(b"a line of the set")
                stored = await incoming.finish()
                for part in _batches(list(named.items())):
                    self.sheets |= await db.write(lambda tx, part=part: self._add(tx, part, stored))
                    await _read(db, ingest)
                    display.update(task, advance=len(part))
        finally:
            files.close()

    async def _add_bases(self, tx: Transaction, corpus: Sequence[Line]) -> dict[str, int]:
        parts = dict.fromkeys(line.part for line in corpus)
        return {part: (await bases.add(self.call, tx, f"Part {n}")).id for n, part in enumerate(parts, 1)}

    async def _add(self, tx: Transaction, part: Sequence[tuple[str, Sheet]], stored: StoredFile) -> dict[int, Sheet]:
        added: dict[int, Sheet] = {}
        for name, sheet in part:
            base_id = self.bases[sheet.lines[0].part]
            document = (await documents.add(self.call, tx, base_id, DocumentDraft(name), stored)).document
            added[document.id] = sheet
        return added


def _batches(items: Sequence[T]) -> Iterator[Sequence[T]]:
    return (items[start : start + _AT_ONCE] for start in range(0, len(items), _AT_ONCE))


async def settle(db: Database) -> Call:
    """Somebody to search as."""

    async def body(tx: Transaction) -> Call:
        org = await orgs.add(tx, "bench")
        return call_of(db, org, await principals.add(tx, org.id, "user", "bench"))

    return await db.write(body)


async def _read(db: Database, ingest: Ingest) -> None:
    """Do the ingest jobs that wait, many in a transaction."""
    jobs = await queue.claim(db, "bench", ["ingest"], limit=_AT_ONCE, lease=clock.HOUR)
    effects = await asyncio.gather(*(ingest(job) for job in jobs))

    async def body(tx: Transaction) -> None:
        for job, effect in zip(jobs, effects, strict=True):
            if await queue.finish(tx, job) and effect is not None:
                await effect(tx)

    await db.write(body)


async def work_off(db: Database, settings: Settings, display: Progress) -> None:
    """Let a worker do whatever else is waiting: the vectors."""
    passages = (await db.scan("SELECT count(*) AS n FROM passages"))[0]["n"]
    task = display.add_task("Embedding", total=passages)
    async with reactions.open_job_handlers(db, settings) as handlers, _worker(db, handlers, settings) as working:
        while (count := await queue.counts(db))["queued"] or count["running"]:
            if working.done():
                await working
            display.update(task, completed=(await db.scan("SELECT count(*) AS n FROM vectors"))[0]["n"])
            await asyncio.sleep(_LOOK_EVERY)
    display.update(task, completed=passages)
    if count["dead"]:
        raise Internal("Indexing failed.", remedy="What failed is in the log.")


@asynccontextmanager
async def _worker(
    db: Database, handlers: Mapping[str, Any], settings: Settings
) -> AsyncGenerator["asyncio.Task[None]"]:
    over = asyncio.Event()
    worker = Worker(db, handlers, concurrency=settings.job_concurrency, poll=clock.SECOND // 20)
    working = asyncio.create_task(worker.run(over))
    try:
        yield working
    finally:
        over.set()
        await working


def display_of(quiet: bool) -> Progress:
    console = Console(stderr=True)
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        console=console,
        disable=quiet and not console.is_terminal,
    )


def _shown(value: Any) -> str:
    return f"{value:,}" if isinstance(value, int) else str(value)
