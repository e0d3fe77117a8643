"""Fit the curves that turn scores into probabilities, on the sets of `bench-retrieval`, and write them to a file.

    make calibrate                    fit, and write almanac/search/ranking/calibration.json
    make calibrate ARGS="--dry-run"   only print the curves

Each mode has a curve of two numbers. All sets have the same weight, whatever their number of queries. The output shows
the error with all sets in the fit and the error with the set left out of the fit; the second predicts the error on
unseen questions. Sets in a script that the model does not support are left out where its vectors are judged.

With each curve, the output shows the probability that best separates answers from other passages (the highest mean F2
of the first ten over the sets), which grades map to 0.5, and for each set the share of its own best F2 that it reaches.
"""

import asyncio
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from random import Random

import orjson
import uvloop
from contestants import ROOT, BenchFailed
from retrieval import SAMPLED, UNKNOWN_SCRIPT, Judged, arguments, ask, fit, folders_of, refitted
from retrieval_library import opened
from rich.console import Console
from rich.table import Table

from almanac.cli.support.retrieval import retrieval_measures as measures
from almanac.cli.support.retrieval.retrieval_set import read_set
from almanac.core.errors import AlmanacError
from almanac.knowledge import document_search
from almanac.search.query import MAX_QUERY_CHARS, SearchQuery
from almanac.search.ranking import calibration

FILE = ROOT / "almanac" / "search" / "ranking" / "calibration.json"
CURVES = {
    "hybrid": ("hybrid", True),
    "fused": ("hybrid", False),
    "keyword": ("keyword", False),
    "vector": ("vector", False),
}
THRESHOLDS = [percent / 100 for percent in range(1, 50)]


def telling(judged: Judged, least: float) -> float:
    """The F2 of a threshold between right and wrong passages (a right one that is hidden costs more than a wrong
    one that is shown)."""
    shown = sum(score >= least for score, _ in judged)
    right = sum(score >= least and is_right for score, is_right in judged)
    return 5 * right / max(1, shown + 4 * sum(is_right for _, is_right in judged))


def related(every: Sequence[Judged]) -> float:
    """The threshold with the highest mean F2 over all sets."""
    return max(THRESHOLDS, key=lambda least: sum(telling(judged, least) for judged in every))


async def judge(folder: Path, cache: Path) -> dict[str, Judged]:
    """The scores of the first ten for every query of a set, and whether they were right, by curve."""
    test = read_set(folder)
    queries = list(test.queries)
    if len(queries) > SAMPLED.get(test.name, len(queries)):
        queries = Random(4).sample(queries, SAMPLED[test.name])
    judged: dict[str, Judged] = {curve: [] for curve in CURVES}
    async with opened(test, folder, cache) as home:
        for query in queries:
            reach = await document_search.resolve_scope(home.call, [home.bases[query.part]] if query.part else [])
            question = SearchQuery(
                query.text[:MAX_QUERY_CHARS], reach.collections, max_per_source=0 if query.part else 1
            )
            for curve, (mode, rerank) in CURVES.items():
                found = await ask(home, replace(question, mode=mode, rerank=rerank))
                judged[curve] += [(score, test.grades[query.id].get(id, 0) > 0) for id, score in found]
    return judged


def main() -> None:
    console = Console(width=None if sys.stdout.isatty() else 110, highlight=False)
    dry = "--dry-run" in sys.argv
    sys.argv = [each for each in sys.argv if each != "--dry-run"]
    options = arguments()
    options.cache.mkdir(parents=True, exist_ok=True)
    every: dict[str, dict[str, Judged]] = {}
    # The current curves would round values near 0 or 1; these leave the values unchanged.
    calibration.CURVES.update(dict.fromkeys(calibration.CURVES, (0.0, 1.0)))
    try:
        for folder in folders_of(options):
            console.print(f"{folder.name} …")
            with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
                every[folder.name] = runner.run(judge(folder, options.cache))
    except (BenchFailed, AlmanacError) as failure:
        sys.exit(f"calibration failed: {failure}")
    curves: dict[str, list[float]] = {}
    thresholds: dict[str, float] = {}
    table = Table()
    for title in (
        "curve",
        "set",
        "ECE, all in the fit",
        "ECE, left out",
        "F2 at the threshold",
        "F2, left out",
        "best F2",
    ):
        table.add_column(title)
    for curve in CURVES:
        sets = [name for name in every if curve == "keyword" or name not in UNKNOWN_SCRIPT]
        curves[curve] = [round(each, 3) for each in fit([every[name][curve] for name in sets])]
        likely = {name: refitted(every[name][curve], [every[each][curve] for each in sets]) for name in sets}
        thresholds[curve] = related(list(likely.values()))
        for name in sets:
            own, others = every[name][curve], [every[each][curve] for each in sets if each != name]
            errors = [
                measures.calibration_error(refitted(own, fitted)) for fitted in ([own, *others], others) if fitted
            ]
            apart = related([likely[each] for each in sets if each != name] or [likely[name]])
            reached = [telling(likely[name], least) for least in (thresholds[curve], apart, related([likely[name]]))]
            table.add_row(curve, name, *(f"{error:.3f}" for error in errors), *(f"{each:.3f}" for each in reached))
    console.print(table)
    fitted = {"curves": curves, "related": thresholds, "fitted_on": sorted(every)}
    written = orjson.dumps(fitted, option=orjson.OPT_INDENT_2) + b"\n"
    console.print(written.decode())
    if not dry:
        FILE.write_bytes(written)


if __name__ == "__main__":
    main()
