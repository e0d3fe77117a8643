"""`almanac bench`: measure search on a set of documents, queries and judgements."""

import asyncio
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any

import typer

from almanac.bootstrap import open_database
from almanac.cli.support.operation_call import parse_arguments
from almanac.cli.support.options import Json, SearchMode, command_group
from almanac.cli.support.output import print_json, print_rows
from almanac.cli.support.progress import Stage, open_display
from almanac.cli.support.retrieval import retrieval_measures as measures
from almanac.cli.support.retrieval.retrieval_library import RetrievalLibrary, add_search_user, run_waiting_jobs
from almanac.cli.support.retrieval.retrieval_set import RetrievalSet, SetLine, read_set
from almanac.cli.support.startup import command_settings
from almanac.core.call import Call
from almanac.core.settings import Settings
from almanac.knowledge import document_search
from almanac.knowledge.document_search import SearchArguments
from almanac.search.backends import open_search
from almanac.search.engine import SearchEngine
from almanac.search.query import MAX_QUERY_CHARS

_DEPTHS = (10, 100)

bench_app = command_group("Measurements of this program on your own machine.")


@bench_app.command("retrieval")
def retrieval(
    folder: Annotated[
        Path, typer.Argument(metavar="DIR", help="With corpus.jsonl, queries.jsonl and qrels.jsonl.", file_okay=False)
    ],
    mode: SearchMode = "hybrid",
    limit_queries: Annotated[
        int | None,
        typer.Option("--limit-queries", min=1, help="Only the first queries, up to this number.", show_default=False),
    ] = None,
    rerank: Annotated[
        bool, typer.Option("--rerank/--no-rerank", help="Reorder the first results by their text.")
    ] = True,
    as_json: Json = False,
) -> None:
    """Measure search on a set of documents, queries and judgements (BEIR form), in a temporary home.

    corpus.jsonl has a document in each line ("_id", "text" and optionally "title"), queries.jsonl a query ("_id",
    "text"), and qrels.jsonl a judgement ("query-id", "corpus-id", "score"). A "conv" in documents and queries limits
    each query to the documents of its own conversation; each "conv" gets a knowledge base. Consecutive lines with one
    "conv" and title are the turns of a conversation, and become the passages of one document. The command searches as a
    user does. It leaves out queries without judgements.

    It prints nDCG@10, recall@10 and recall@100 (means over the queries), the expected calibration error of the first
    ten scores, and the time of an answer, with one query at a time.

    Example: [bold]almanac bench retrieval data/scifact --json[/bold]
    """
    retrieval_set = read_set(folder)
    arguments = parse_arguments(SearchArguments, query="-", mode=mode, rerank=rerank, limit=_DEPTHS[0])
    settings = command_settings(None)
    with tempfile.TemporaryDirectory(prefix="almanac-bench-") as home:
        # Always the embedded database; models and all other settings stay.
        (Path(home) / "models").symlink_to(settings.home.absolute() / "models")
        settings = replace(settings, home=Path(home), database_url="")
        report = asyncio.run(_measure(settings, retrieval_set, arguments, limit_queries, as_json))
    if as_json:
        print_json(report)
    else:
        print_rows([{name: _format(value) for name, value in report.items()}], False, empty="")


@dataclass(slots=True)
class _Measurements:
    """The measures of the queries so far."""

    ndcg: list[float] = field(default_factory=list[float])
    recall: dict[int, list[float]] = field(default_factory=lambda: {depth: list[float]() for depth in _DEPTHS})
    judged: list[tuple[float, bool]] = field(default_factory=list[tuple[float, bool]])
    seconds: list[float] = field(default_factory=list[float])


async def _measure(
    settings: Settings, test: RetrievalSet, arguments: SearchArguments, max_queries: int | None, quiet: bool
) -> dict[str, Any]:
    async with open_database(settings) as db, open_search(settings, db) as search:
        with open_display(quiet) as display:
            call = await add_search_user(db)
            started = time.perf_counter()
            library = RetrievalLibrary(call)
            await library.add_documents(settings, test.corpus, display)
            await run_waiting_jobs(db, settings, display)
            index_seconds = time.perf_counter() - started
            measured = _Measurements()
            queries = test.queries[:max_queries]
            for number, query in enumerate(queries):
                display.show(Stage("Searching", number, len(queries), "question"))
                grades = test.grades[query.id]
                await _search(replace(call, accessed=[]), search, library, query, grades, arguments, measured)
            rows = await db.scan("SELECT count(*) AS n FROM passages")
    return {
        "set": test.name,
        "mode": arguments.mode,
        "documents": len(test.corpus),
        "passages": rows[0]["n"],
        "queries": len(queries),
        "ndcg@10": round(measures.mean(measured.ndcg), 4),
        **{f"recall@{depth}": round(measures.mean(shares), 4) for depth, shares in measured.recall.items()},
        "calibration_error": round(measures.calibration_error(measured.judged), 4),
        "p50_ms": round(1000 * measures.percentile(measured.seconds, 0.5), 2),
        "p99_ms": round(1000 * measures.percentile(measured.seconds, 0.99), 2),
        "queries_per_second": round(len(measured.seconds) / sum(measured.seconds), 1),
        "index_seconds": round(index_seconds, 1),
    }


async def _search(
    call: Call,
    search: SearchEngine,
    library: RetrievalLibrary,
    query: SetLine,
    grades: Mapping[str, float],
    arguments: SearchArguments,
    measured: _Measurements,
) -> None:
    """Search as a user does, and measure the results. A second search, which is not timed, reads deeper."""
    base_ids = [library.bases[query.part]] if query.part else []
    most_per_document = 0 if query.part else 1  # a turn of a conversation is a passage, any other line a document
    changes = {"query": query.text[:MAX_QUERY_CHARS], "base_ids": base_ids, "most_per_document": most_per_document}
    search_arguments = arguments.model_copy(update=changes)
    started = time.perf_counter()
    results = await document_search.search_documents(call, search, search_arguments)
    measured.seconds.append(time.perf_counter() - started)
    search_query = document_search.build_query(search_arguments, await document_search.resolve_scope(call, base_ids))
    deeper = await document_search.find(call, search, replace(search_query, limit=_DEPTHS[-1]))
    first = [library.line_id(hit) for hit in results.hits]
    measured.ndcg.append(measures.ndcg(first, grades, _DEPTHS[0]))
    for depth, hits in zip(_DEPTHS, (results.hits, deeper.hits), strict=True):
        measured.recall[depth].append(measures.recall([library.line_id(hit) for hit in hits], grades, depth))
    measured.judged += [(hit.found.score, grades.get(id, 0) > 0) for id, hit in zip(first, results.hits, strict=True)]


def _format(value: Any) -> str:
    return f"{value:,}" if isinstance(value, int) else str(value)
