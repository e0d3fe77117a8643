"""The quality of search on sets with human relevance judgements: `make bench-retrieval`.

The bench compares four rankings of the same passages: by words (BM25), by vectors, by reciprocal rank fusion of both,
and ours, which the tools return. The third is computed here; the others use the search function of the tools, as
`almanac bench retrieval` does. Documents are ranked by their best passage.

The curves that turn scores into probabilities were fitted on these sets, so their error here is too good. "left out" is
the error of a curve that is fitted, for each set, on the other sets. The weights of words, vectors and the other
features were chosen on these sets too. The bench cannot correct that: its nDCG and recall for our ranking are too good.
"""

import argparse
import asyncio
import json
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from random import Random

import numpy as np
import uvloop
from command_line import add_json, console_of, exit_with_message, parser_of
from contestants import BenchFailed
from numpy.typing import NDArray
from retrieval_library import Home, opened
from rich.console import Console
from rich.table import Table

from almanac.cli.support.retrieval import retrieval_measures as measures
from almanac.cli.support.retrieval.retrieval_set import SetLine, read_set
from almanac.knowledge import document_index, document_search
from almanac.search.query import MAX_QUERY_CHARS, SearchQuery

SETS = ("scifact", "cranfield", "cmrc2018_dev_zh", "squad_v2.0_dev", "locomo")
SAMPLED = {"squad_v2.0_dev": 1_000, "cmrc2018_dev_zh": 1_000}  # queries asked, unless all are asked for
UNKNOWN_SCRIPT = ("cmrc2018_dev_zh",)  # sets in a script that the bundled model does not support
TOP, DEPTH = 10, 100
RANK = 60  # the constant of reciprocal rank fusion

BM25, VECTORS, RRF, OURS = "BM25 alone", "vectors alone", "RRF of both", "ours"
ASKED = {BM25: ("keyword", False), VECTORS: ("vector", False), OURS: ("hybrid", True)}  # mode, rerank

NDCG_AIMS = {"scifact": 0.76, "cranfield": 0.46}
RECALL_AIMS = {"cmrc2018_dev_zh": 0.997, "locomo": 0.75}
CALIBRATION_AIM = 0.10
STEPS = 25  # of a fit

Judged = list[tuple[float, bool]]  # scores, and whether they were of an answer


@dataclass(slots=True)
class Tally:
    """The results of a set's queries with one ranking."""

    gained: list[float] = field(default_factory=list[float])
    found: list[float] = field(default_factory=list[float])
    found_further: list[float] = field(default_factory=list[float])
    judged: list[tuple[float, bool]] = field(default_factory=list[tuple[float, bool]])
    seconds: list[float] = field(default_factory=list[float])

    def add(self, first: Sequence[str], further: Sequence[str], grades: Mapping[str, float], seconds: float) -> None:
        self.gained.append(measures.ndcg(first, grades, TOP))
        self.found.append(measures.recall(first, grades, TOP))
        self.found_further.append(measures.recall(further, grades, DEPTH))
        self.seconds.append(seconds)


@dataclass(frozen=True, slots=True)
class Row:
    """One ranking on one set."""

    set: str
    way: str
    queries: int
    ndcg: float
    recall: float
    recall_further: float
    calibration_error: float | None
    left_out_error: float | None  # by a curve fitted on the other sets; None where there are none
    p50_ms: float


@dataclass(frozen=True, slots=True)
class Measured:
    """All rankings on one set."""

    name: str
    tallies: dict[str, Tally]
    documents: int
    passages: int
    embedding_ms: float  # of a query, p50


# Measuring


async def measure_set(folder: Path, cache: Path, every_query: bool) -> Measured:
    test = read_set(folder)
    queries = list(test.queries)
    if not every_query and len(queries) > SAMPLED.get(test.name, len(queries)):
        queries = Random(4).sample(queries, SAMPLED[test.name])
    async with opened(test, folder, cache) as library:
        embedding = await _embed(library, queries)
        tallies = {way: Tally() for way in (BM25, VECTORS, RRF, OURS)}
        for query in queries:
            await _ask_all(library, query, tallies)
        return Measured(test.name, tallies, len(test.corpus), library.passages, embedding)


async def _embed(library: Home, queries: Sequence[SetLine]) -> float:
    """Embed every query, one by one, so that it is cached in the measurement; return the milliseconds."""
    names = [document_index.collection_of(base) for base in library.bases.values()]
    seconds: list[float] = []
    for model in await library.search.models(names):
        embedder = library.search.embedders.get(model)
        assert embedder is not None
        for query in queries:
            begun = time.perf_counter()
            await embedder.query(query.text[:MAX_QUERY_CHARS])
            seconds.append(time.perf_counter() - begun)
    return 1000 * measures.percentile(seconds, 0.5)


async def _ask_all(library: Home, query: SetLine, tallies: Mapping[str, Tally]) -> None:
    grades = library.test.grades[query.id]
    bases = [library.bases[query.part]] if query.part else []
    reach = await document_search.resolve_scope(library.call, bases)
    question = SearchQuery(
        query.text[:MAX_QUERY_CHARS], reach.collections, limit=TOP, max_per_source=0 if query.part else 1
    )
    ways = {way: replace(question, mode=mode, rerank=rerank) for way, (mode, rerank) in ASKED.items()}
    # All rankings once before the measurement: otherwise the later ones find the words of passages in the cache.
    lists = {way: [id for id, _ in await ask(library, replace(asked, limit=DEPTH))] for way, asked in ways.items()}
    for way, asked in ways.items():
        begun = time.perf_counter()
        first = await ask(library, asked)
        tallies[way].add([id for id, _ in first], lists[way], grades, time.perf_counter() - begun)
        tallies[way].judged += [(score, grades.get(id, 0) > 0) for id, score in first]
    fused = fuse(lists[BM25], lists[VECTORS])
    spent = tallies[BM25].seconds[-1] + tallies[VECTORS].seconds[-1]
    tallies[RRF].add(fused[:TOP], fused, grades, spent)


async def ask(library: Home, question: SearchQuery) -> list[tuple[str, float]]:
    """Documents by the names they have in the set, with the scores of their passages."""
    found = await document_search.find(replace(library.call, accessed=[]), library.search, question)
    return [(library.library.line_id(hit), hit.found.score) for hit in found.hits]


def fuse(*lists: Sequence[str]) -> list[str]:
    """Reciprocal rank fusion of the lists."""
    scores: dict[str, float] = {}
    for ranked in lists:
        for place, id in enumerate(ranked, 1):
            scores[id] = scores.get(id, 0.0) + 1 / (RANK + place)
    return sorted(scores, key=lambda id: -scores[id])


# Results


@dataclass(frozen=True, slots=True)
class Aim:
    """A target."""

    text: str
    value: float | None  # None where it was not measured
    met: bool

    def __str__(self) -> str:
        if self.value is None:
            return f"{self.text}: not measured"
        return f"{self.text}: {'met' if self.met else 'not met'} ({self.value:.4f})"


def rows_of(every: Sequence[Measured]) -> list[Row]:
    return [_row(every, measured, way) for measured in every for way in measured.tallies]


def _row(every: Sequence[Measured], measured: Measured, way: str) -> Row:
    tally = measured.tallies[way]
    others = _others(every, measured, way)
    return Row(
        measured.name,
        way,
        len(tally.gained),
        measures.mean(tally.gained),
        measures.mean(tally.found),
        measures.mean(tally.found_further),
        measures.calibration_error(tally.judged) if tally.judged else None,
        measures.calibration_error(refitted(tally.judged, others)) if tally.judged and others else None,
        1000 * measures.percentile(tally.seconds, 0.5),
    )


def _others(every: Sequence[Measured], measured: Measured, way: str) -> list[Judged]:
    """The results of the others with the same curve. Words alone answer a question in a script that the model does not
    support, because its vectors mean nothing."""
    same = BM25 if way == OURS and measured.name in UNKNOWN_SCRIPT else way
    fitting = [each for each in every if same == BM25 or each.name not in UNKNOWN_SCRIPT]
    return [each.tallies[same].judged for each in fitting if each is not measured]


def refitted(judged: Judged, others: Sequence[Judged]) -> Judged:
    """The scores of a curve that was fitted on other sets."""
    offset, slope = fit(others)
    scores = 1 / (1 + np.exp(-offset - slope * _odds(judged)))
    return [(float(score), is_right) for score, (_, is_right) in zip(scores, judged, strict=True)]


def fit(others: Sequence[Judged]) -> tuple[float, float]:
    """A logistic curve over the odds of scores, by Newton's method; every set weighs the same."""
    odds = np.concatenate([_odds(each) for each in others])
    right = np.array([is_right for each in others for _, is_right in each], float)
    weights = np.repeat([1 / len(each) for each in others], [len(each) for each in others])
    terms = np.column_stack((np.ones(len(odds)), odds))
    curve = np.array([0.0, 1.0])
    for _ in range(STEPS):
        likely = 1 / (1 + np.exp(-terms @ curve))
        bend = (terms * (weights * likely * (1 - likely))[:, None]).T @ terms + 1e-6 * np.eye(2)
        curve = curve + np.linalg.solve(bend, terms.T @ (weights * (right - likely)))
    return float(curve[0]), float(curve[1])


def _odds(judged: Judged) -> NDArray[np.float64]:
    """The scores before the curve was applied, except for two constants, which are fitted again."""
    scores = np.clip([score for score, _ in judged], 5e-5, 1 - 5e-5)  # scores are rounded to four places
    return np.log(scores / (1 - scores))


def aims_of(rows: Sequence[Row]) -> list[Aim]:
    ours = {row.set: row for row in rows if row.way == OURS}
    aims: list[Aim] = []
    for name, least in NDCG_AIMS.items():
        value = ours[name].ndcg if name in ours else None
        aims.append(Aim(f"{name}: nDCG@10 ≥ {least:g}", value, value is not None and value >= least))
    for name, least in RECALL_AIMS.items():
        value = ours[name].recall if name in ours else None
        aims.append(Aim(f"{name}: recall@10 ≥ {least:g}", value, value is not None and value >= least))
    for name, row in ours.items():
        value = row.left_out_error
        text = f"{name}: calibration error, its curve fitted without it, ≤ {CALIBRATION_AIM:g}"
        aims.append(Aim(text, value, value is not None and value <= CALIBRATION_AIM))
    return aims


def table_of(every: Sequence[Measured]) -> Table:
    table = Table()
    table.add_column("set")
    table.add_column("ranked by")
    for title in ("queries", "nDCG@10", "recall@10", "recall@100", "ECE", "ECE, left out", "p50 ms"):
        table.add_column(title, justify="right")
    for row in rows_of(every):
        if row.way == BM25:
            table.add_section()
        numbers = [f"{number:.4f}" for number in (row.ndcg, row.recall, row.recall_further)]
        errors = ["–" if each is None else f"{each:.3f}" for each in (row.calibration_error, row.left_out_error)]
        name = row.set if row.way == BM25 else ""
        table.add_row(name, row.way, f"{row.queries:,}", *numbers, *errors, f"{row.p50_ms:.1f}")
    return table


NOTES = """\
p50 is the time of the first ten results for a repeated query with a cached vector, to compare the rankings. For RRF it
is the sum of both legs. `make bench-search` measures new questions.
ECE uses the shipped curves, which were fitted on these sets; "left out" uses a curve that was fitted on the other sets
(for a script that the model does not support: the curve of the words, which our search uses there).
The weights of our ranking were chosen on these sets too, so its nDCG and recall on unseen sets may be lower."""


def show(every: Sequence[Measured], console: Console) -> None:
    console.print(table_of(every))
    for each in every:
        told = f"{each.documents:,} documents, {each.passages:,} passages"
        console.print(f"{each.name}: {told}; to embed a query took {each.embedding_ms:.1f} ms (p50).")
    console.print(NOTES)
    for aim in aims_of(rows_of(every)):
        console.print(str(aim))


def write(path: Path, every: Sequence[Measured]) -> None:
    rows = rows_of(every)
    sizes = {each.name: {"documents": each.documents, "passages": each.passages} for each in every}
    numbers = {"sets": sizes, "rows": list(map(asdict, rows)), "aims": list(map(asdict, aims_of(rows)))}
    path.write_text(json.dumps(numbers, indent=2, ensure_ascii=False) + "\n")


# The command


def arguments() -> argparse.Namespace:
    parser = parser_of(__doc__, data=True)
    parser.add_argument("sets", nargs="*", metavar="SET", help=f"of {', '.join(SETS)} (all)")
    parser.add_argument("--all", action="store_true", help="ask every query, also where there are thousands")
    parser.add_argument(
        "--cache",
        type=Path,
        default=Path(tempfile.gettempdir()) / "almanac-bench-retrieval",
        help="where homes are kept",
    )
    add_json(parser)
    return parser.parse_args()


def folders_of(options: argparse.Namespace) -> list[Path]:
    names: Sequence[str] = options.sets or SETS
    if unknown := [name for name in names if name not in SETS]:
        raise BenchFailed(f"there is no set {', '.join(unknown)}: the sets are {', '.join(SETS)}")
    if missing := [name for name in names if not (options.data / name / "corpus.jsonl").exists()]:
        raise BenchFailed(
            f"{options.data} has no {', '.join(missing)}: name the folder that holds the sets in ALMANAC_DATA or"
            " --data; each is a folder with corpus.jsonl, queries.jsonl and qrels.jsonl (BEIR form)"
        )
    return [options.data / name for name in names]


def main() -> None:
    console, options = console_of(130), arguments()
    options.cache.mkdir(parents=True, exist_ok=True)
    every: list[Measured] = []
    with exit_with_message():
        for folder in folders_of(options):
            console.print(f"{folder.name} …")
            with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
                every.append(runner.run(measure_set(folder, options.cache, options.all)))
    show(every, console)
    if options.json:
        write(options.json, every)


if __name__ == "__main__":
    main()
