"""The quality of search in agents' notes: `make bench-memory`.

The turns of LoCoMo's conversations are stored as notes, in their order. Each conversation is an organisation, so that a
question searches only its own conversation. The bench compares four rankings of the same notes: by words (BM25), by
vectors, by reciprocal rank fusion of both, and the results of the tool `search_knowledge`.

Consecutive notes with one title have the preceding notes as context. `--apart` stores the turns in a shuffled order, so
that no note has the context of its conversation: the results then depend on the notes alone.
"""

import asyncio
import json
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

import uvloop
from command_line import console_of, exit_with_message, parser_of
from contestants import BenchFailed
from rich.console import Console
from rich.table import Table

from almanac.app import open_app
from almanac.cli.support.operator_call import call_as_principal
from almanac.cli.support.progress import Stage, open_display
from almanac.cli.support.retrieval import retrieval_library
from almanac.cli.support.retrieval import retrieval_measures as measures
from almanac.cli.support.retrieval.retrieval_set import RetrievalSet, SetLine, read_set
from almanac.core.call import Call
from almanac.core.database import Transaction
from almanac.core.settings import Settings
from almanac.identity import orgs, principals
from almanac.memory import note_search, notes
from almanac.memory.note import NoteDraft
from almanac.memory.note_search import NoteQuery
from almanac.search.engine import SearchEngine
from almanac.surfaces.dispatcher import ToolDispatcher

TOP = 10
AIM = 0.75
OURS = "search_knowledge"
WAYS = {"BM25 alone": "keyword", "the model alone": "vector", "plain RRF": "hybrid"}


@dataclass(slots=True)
class Tally:
    """The results of the questions with one ranking."""

    found: list[float] = field(default_factory=list[float])
    gained: list[float] = field(default_factory=list[float])

    def add(self, ranked: Sequence[str], grades: dict[str, float]) -> None:
        self.found.append(measures.recall(ranked, grades, TOP))
        self.gained.append(measures.ndcg(ranked, grades, TOP))


async def run(folder: Path, most: int | None, *, apart: bool) -> dict[str, Tally]:
    test = read_set(folder)
    tallies = {way: Tally() for way in (*WAYS, OURS)}
    with tempfile.TemporaryDirectory(prefix="almanac-bench-memory-") as home:
        settings = Settings(home=Path(home), memory_calls=0, memory_read_calls=0)
        async with open_app(settings) as running:
            [dispatcher] = [each for each in running.dispatchers if each.surface.name == "memory"]
            calls, names = await _fill(dispatcher, test, apart)
            with open_display(quiet=False) as display:
                await retrieval_library.run_waiting_jobs(dispatcher.app.db, settings, display)
                asked = test.queries[:most]
                for number, query in enumerate(asked):
                    display.show(Stage("Asking", number, len(asked), "question"))
                    await _ask(dispatcher, calls[query.part], names, test, query, tallies)
    return tallies


async def _fill(dispatcher: ToolDispatcher, test: RetrievalSet, apart: bool) -> tuple[dict[str, Call], dict[str, str]]:
    """Callers by conversation, and line names by note id."""
    calls: dict[str, Call] = {}
    names: dict[str, str] = {}
    lines = list(test.corpus)
    if apart:
        Random(0).shuffle(lines)
    for line in lines:
        if line.part not in calls:
            calls[line.part] = await dispatcher.app.db.write(lambda tx, part=line.part: _agent(dispatcher, tx, part))
        if line.text.strip():
            draft = NoteDraft(line.title or "A turn", line.text)
            note = await notes.store(calls[line.part], draft, dispatcher.app.idempotency, 0)
            names[note.id] = line.id
    return calls, names


async def _agent(dispatcher: ToolDispatcher, tx: Transaction, part: str) -> Call:
    org = await orgs.add(tx, f"conversation {part}")
    return call_as_principal(dispatcher.app.db, org, await principals.add(tx, org.id, "agent", f"agent {part}"))


async def _ask(
    dispatcher: ToolDispatcher,
    call: Call,
    names: dict[str, str],
    test: RetrievalSet,
    query: SetLine,
    tallies: dict[str, Tally],
) -> None:
    grades = dict(test.grades[query.id])
    for way, mode in WAYS.items():
        tallies[way].add(await _plain(dispatcher.app.search, call, query.text, mode, names), grades)
    result = await dispatcher.call(
        call.actor, OURS, {"query": query.text[: note_search.MAX_NOTE_QUERY_CHARS], "limit": TOP}, "bench"
    )
    if result["isError"]:
        raise BenchFailed(result["content"][0]["text"])
    found = json.loads(result["content"][0]["text"])["results"]
    tallies[OURS].add([names[each["id"]] for each in found], grades)


async def _plain(search: SearchEngine, call: Call, text: str, mode: str, names: dict[str, str]) -> list[str]:
    inquiry = NoteQuery(text[: note_search.MAX_NOTE_QUERY_CHARS], limit=TOP, mode=mode, rerank=False)
    return [names[hit.note.id] for hit in (await note_search.find(call, search, inquiry)).hits]


def show(tallies: dict[str, Tally], console: Console) -> None:
    table = Table("ranked by")
    for title in ("questions", "recall@10", "nDCG@10"):
        table.add_column(title, justify="right")
    for way, tally in tallies.items():
        shares = (f"{measures.mean(values):.4f}" for values in (tally.found, tally.gained))
        table.add_row(way, f"{len(tally.found):,}", *shares)
    console.print(table)
    reached = measures.mean(tallies[OURS].found)
    console.print(f"locomo: recall@10 ≥ {AIM:g}: {'met' if reached >= AIM else 'not met'} ({reached:.4f})")


def main() -> None:
    parser = parser_of(__doc__, data=True)
    parser.add_argument("--limit-queries", type=int, help="only so many, from the first")
    parser.add_argument("--apart", action="store_true", help="store the turns so that none follows its own")
    options = parser.parse_args()
    with exit_with_message(), asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        found = runner.run(run(options.data / "locomo", options.limit_queries, apart=options.apart))
        show(found, console_of(100))


if __name__ == "__main__":
    main()
