"""How often the agent cites the right passage, at its first search and after it has tried again: `make bench-agent`.

The agent of /a2a, without a language model, is asked the questions of judged sets, through its own tool, in process. An
answer is right if the passage of its first citation was judged to be an answer; "any" counts all its citations. Where a
set has the words of the answers (SQuAD, CMRC), the bench also counts the replies that contain one of them.

The second table is about the tool's scores of the first ten passages for each question: the share of right passages
that reach the usual threshold of 0.5, and the share of right ones among those that reach 0.5 and 0.8. Sets judge few
passages, often one for a question: a passage that answers but was not judged counts as wrong.
"""

import argparse
import asyncio
import json
import os
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from random import Random
from typing import Any

import uvloop
from contestants import ROOT, BenchFailed
from retrieval_library import Home, opened
from rich.console import Console
from rich.table import Table

from almanac.assist.agent import Agent, AnswerCitation, Reply
from almanac.assist.weknora.backends import LocalBackend, SearchFunction
from almanac.assist.weknora.knowledge_search import GradedResults
from almanac.assist.weknora.weknora_tool import MAX_TOOL_QUERY_CHARS, WeKnoraContext, WeKnoraQuery, WeKnoraTool
from almanac.cli.support.retrieval import retrieval_measures as measures
from almanac.cli.support.retrieval.retrieval_set import SetLine, read_set
from almanac.core.errors import AlmanacError
from almanac.core.settings import Settings
from almanac.surfaces.weknora.tools import CONTRACT

SETS = ("squad_v2.0_dev", "cmrc2018_dev_zh", "scifact", "cranfield")
ASKED = 500  # questions of a set, unless all are asked
MODES: dict[str, dict[str, Any]] = {
    "hybrid": {},
    "hybrid, not reranked": {"rerank": False},
    "keyword": {"search_mode": "keyword"},
    "vector": {"search_mode": "vector"},
}


@dataclass(slots=True)
class Tally:
    """The counts of right answers to the questions of a set."""

    first: list[bool] = field(default_factory=list[bool])  # right, with one search allowed
    right: list[bool] = field(default_factory=list[bool])  # right, with as many as the settings allow
    any: list[bool] = field(default_factory=list[bool])
    worded: list[bool] = field(default_factory=list[bool])
    searches: list[float] = field(default_factory=list[float])
    seconds: list[float] = field(default_factory=list[float])
    judged: dict[str, list[tuple[float, bool]]] = field(default_factory=dict[str, list[tuple[float, bool]]])


@dataclass(frozen=True, slots=True)
class Row:
    """A set and the agent's results on it."""

    set: str
    questions: int
    first: float
    right: float
    any: float
    worded: float | None
    searches: float
    p50_ms: float


@dataclass(frozen=True, slots=True)
class Kept:
    """A search mode and the effect of the threshold on its results."""

    set: str
    mode: str
    right_kept: float
    right_at_half: float | None
    right_above: float | None


async def measure_set(folder: Path, cache: Path, most: int | None) -> Tally:
    test = read_set(folder)
    queries = list(test.queries)
    if most is not None and len(queries) > most:
        queries = Random(4).sample(queries, most)
    wordings = _wordings(folder)
    tally = Tally(judged={mode: [] for mode in MODES})
    async with opened(test, folder, cache) as home:
        for query in queries:
            await _ask(home, query, wordings.get(query.id, ()), tally)
    return tally


async def _ask(home: Home, query: SetLine, wordings: Sequence[str], tally: Tally) -> None:
    grades = home.test.grades[query.id]
    lookup = _lookup(home)
    once = await _answer(lookup, query.text, 1)
    begun = time.perf_counter()
    reply = await _answer(lookup, query.text, Settings().agent_searches)
    tally.seconds.append(time.perf_counter() - begun)
    tally.searches.append(len(reply.searches))
    tally.first.append(_is_right(home, once.citations[:1], grades))
    tally.right.append(_is_right(home, reply.citations[:1], grades))
    tally.any.append(_is_right(home, reply.citations, grades))
    if wordings:
        tally.worded.append(any(each in reply.text for each in wordings))
    for mode, chosen in MODES.items():
        arguments = {"query": query.text[:MAX_TOOL_QUERY_CHARS], "min_score": 0.0, **chosen}
        found = (await lookup.run(arguments)).results
        named = [(_line(home, piece.knowledge_id), piece.score) for piece in found.items]
        tally.judged[mode] += [(score, grades.get(name, 0) > 0) for name, score in named]


def _lookup(home: Home) -> WeKnoraTool:
    """The tool, over the whole set."""

    async def use(_: WeKnoraQuery, work: SearchFunction) -> GradedResults:
        return await work(replace(home.call, accessed=[]))

    context = WeKnoraContext("", tuple(home.bases.values()))
    return WeKnoraTool(LocalBackend(home.search, context, use), context)


async def _answer(lookup: WeKnoraTool, question: str, searches: int) -> Reply:
    agent = Agent(None, CONTRACT[0], searches)
    async for event in agent.answer(lookup, question, ()):
        if isinstance(event, Reply):
            return event
    raise BenchFailed("the agent did not answer")


def _is_right(home: Home, citations: Sequence[AnswerCitation], grades: Mapping[str, float]) -> bool:
    return any(grades.get(_line(home, each.result.knowledge_id), 0) > 0 for each in citations)


def _line(home: Home, document: str) -> str:
    return home.library.documents[int(document)].lines[0].id


def _wordings(folder: Path) -> dict[str, list[str]]:
    """The words of answers, by question, where a set has them."""
    lines = (json.loads(line) for line in (folder / "queries.jsonl").read_text("utf-8").splitlines())
    return {line["_id"]: [each for each in line.get("answers", []) if each] for line in lines}


# Results


def row_of(name: str, tally: Tally) -> Row:
    return Row(
        set=name,
        questions=len(tally.right),
        first=_share(tally.first),
        right=_share(tally.right),
        any=_share(tally.any),
        worded=_share(tally.worded) if tally.worded else None,
        searches=measures.mean(tally.searches),
        p50_ms=1000 * measures.percentile(tally.seconds, 0.5),
    )


def _share(values: Sequence[bool]) -> float:
    return sum(values) / max(1, len(values))


def kept_of(name: str, tally: Tally) -> list[Kept]:
    found: list[Kept] = []
    for mode, judged in tally.judged.items():
        right = [score for score, is_right in judged if is_right]
        half, above = ([is_right for score, is_right in judged if score >= least] for least in (0.5, 0.8))
        shares = [sum(each) / len(each) if each else None for each in (half, above)]
        found.append(Kept(name, mode, sum(score >= 0.5 for score in right) / max(1, len(right)), *shares))
    return found


def show(rows: Sequence[Row], kept: Sequence[Kept], console: Console) -> None:
    table = Table("set")
    for title in (
        "questions",
        "first search",
        "after retries",
        "any citation",
        "words in the reply",
        "searches",
        "p50 ms",
    ):
        table.add_column(title, justify="right")
    for row in rows:
        shares = [f"{each:.3f}" for each in (row.first, row.right, row.any)]
        worded = "–" if row.worded is None else f"{row.worded:.3f}"
        table.add_row(row.set, f"{row.questions:,}", *shares, worded, f"{row.searches:.2f}", f"{row.p50_ms:.1f}")
    console.print(table)
    scores = Table("set", "mode")
    for title in ("right ones kept at 0.5", "right of those kept", "right above 0.8"):
        scores.add_column(title, justify="right")
    for each in kept:
        told = [
            "–" if share is None else f"{share:.3f}"
            for share in (each.right_kept, each.right_at_half, each.right_above)
        ]
        scores.add_row(each.set, each.mode, *told)
    console.print(scores)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("sets", nargs="*", metavar="SET", help=f"of {', '.join(SETS)} (all)")
    data = Path(os.environ.get("ALMANAC_DATA") or ROOT.parent / "shared" / "data")
    parser.add_argument("--data", type=Path, default=data, help="the folder with the sets (ALMANAC_DATA)")
    parser.add_argument("--questions", type=int, default=ASKED, help=f"of each set, 0 for all ({ASKED})")
    cache = Path(tempfile.gettempdir()) / "almanac-bench-retrieval"
    parser.add_argument("--cache", type=Path, default=cache, help="where homes are kept")
    parser.add_argument("--json", type=Path, metavar="PATH", help="also write the numbers here")
    options = parser.parse_args()
    options.cache.mkdir(parents=True, exist_ok=True)
    console = Console(width=None if sys.stdout.isatty() else 130, highlight=False)
    rows: list[Row] = []
    kept: list[Kept] = []
    try:
        for name in options.sets or SETS:
            console.print(f"{name} …")
            with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
                tally = runner.run(measure_set(options.data / name, options.cache, options.questions or None))
            rows.append(row_of(name, tally))
            kept += kept_of(name, tally)
    except (BenchFailed, AlmanacError, OSError) as failure:
        sys.exit(f"bench failed: {failure}")
    show(rows, kept, console)
    if options.json:
        numbers = {"agent": list(map(asdict, rows)), "scores": list(map(asdict, kept))}
        options.json.write_text(json.dumps(numbers, indent=2, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main()
