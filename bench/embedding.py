"""Passages embedded per second, compared with the bare model: `python bench/embedding.py`.

Ours is `Embedder.passages` with texts of mixed lengths in one call: tokenising, sorting, filling up and putting back in
order are counted. The bare ONNX session gets ready-made tokens in batches of one length each, with as many tokens in
all and none to fill up, in the faster of two ways: a thread for each core with a batch of its own, or all cores on one
batch after the other.

A shared machine may be half as fast a minute later. So the three take short turns, and our rate is divided by the rate
of the bare session in the same turn. The result is the median of these ratios; the quartiles show its reliability.
"""

import asyncio
import os
import random
import resource
import time
from collections.abc import Awaitable, Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from statistics import median, quantiles
from typing import Any

import numpy as np
from command_line import parser_of
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table

from almanac.ai.bundled import DEFAULT, BundledEmbedder
from almanac.ai.encoder import MODEL, batch

import onnxruntime  # pyright: ignore[reportMissingTypeStubs]  # isort: skip - after the lines that set its environment

AIM = 0.9
MODEST = 10  # niceness, as the threads that embed passages have
WORDS = (
    "the of policy leave report to customer and in invoice engine a for pressure is that market with delivery by",
    "contract quarterly on measured service at from supplier laboratory this we cells protein storage network are",
    "result which training meeting holiday budget not safety machine board was flow question has project be",
    "team its winter",
)
VOCABULARY = [word for line in WORDS for word in line.split()]

Feed = dict[str, NDArray[np.int32]]


def write_texts(count: int) -> list[str]:
    """Texts of lengths as in documents: most have 50 to 400 words, some have a few."""
    chance = random.Random(4)
    lengths = [min(500, max(4, int(chance.lognormvariate(5, 0.8)))) for _ in range(count)]
    return [" ".join(chance.choices(VOCABULARY, k=length)) for length in lengths]


def make_ideal_batches(lengths: list[int]) -> list[Feed]:
    """The same number of texts and tokens, in batches without padding."""
    dice = np.random.default_rng(4)
    shapes = [(len(places), round(np.mean([lengths[place] for place in places]))) for places in batch(lengths)]
    return [
        {
            "ids": dice.integers(1000, 20_000, (count, length)).astype(np.int32),
            "lengths": np.full(count, length, np.int32),
        }
        for count, length in shapes
    ]


def open_session(threads: int) -> Any:
    runtime: Any = onnxruntime
    options = runtime.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    return runtime.InferenceSession(DEFAULT.path / MODEL, options, providers=["CPUExecutionProvider"])


async def time_it(work: Callable[[], Awaitable[object]]) -> float:
    start = time.perf_counter()
    await work()
    return time.perf_counter() - start


async def measure_queries(embedder: BundledEmbedder) -> tuple[float, float]:
    """Milliseconds of a new question, and of one that was asked before."""
    questions = [
        f"how is the {first} of the {second} measured?" for first in VOCABULARY[:8] for second in VOCABULARY[8:14]
    ]
    new = [await time_it(lambda question=question: embedder.query(question)) for question in questions]
    known = [await time_it(lambda question=question: embedder.query(question)) for question in questions]
    return median(new) * 1e3, median(known) * 1e3


def read_memory() -> float:
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * resource.getpagesize() / 1e6


async def measure(count: int, rounds: int, threads: int) -> None:
    texts = write_texts(count)
    embedder = BundledEmbedder(threads=threads)
    before = read_memory()
    loading = await time_it(lambda: embedder.query("first"))
    single, known = await measure_queries(embedder)
    ideal = make_ideal_batches([len(row) for row in DEFAULT.load().tokenise(texts, "")])
    apart, together = open_session(1), open_session(threads)
    with ThreadPoolExecutor(threads) as pool:

        async def run_apart() -> None:
            await asyncio.to_thread(lambda: list(pool.map(partial(apart.run, None), ideal)))

        async def run_together() -> None:
            await asyncio.to_thread(lambda: [together.run(None, feed) for feed in ideal])

        ways = {"ours": lambda: embedder.passages(texts), "apart": run_apart, "together": run_together}
        taken = await take_turns(ways, rounds)
    memory = read_memory() - before
    await embedder.close()
    print_table(taken, count, sum(feed["ids"].size for feed in ideal) / count, threads)
    print(
        f"A question alone: {single:.1f} ms; asked again: {known:.3f} ms. The first one, with loading: {loading:.2f} s."
    )
    print(f"Memory beyond what was there before loading, with the two bare sessions: {memory:.0f} MB.")


async def take_turns(ways: Mapping[str, Callable[[], Awaitable[object]]], rounds: int) -> dict[str, list[float]]:
    """Seconds of each way in each round. The first of one round is the last of the next."""
    names = list(ways)
    for name in names:  # to warm up
        await ways[name]()
    taken: dict[str, list[float]] = {name: [] for name in names}
    for turn in range(rounds):
        first = turn % len(names)
        for name in names[first:] + names[:first]:
            taken[name].append(await time_it(ways[name]))
    return taken


def print_table(taken: dict[str, list[float]], count: int, length: float, threads: int) -> None:
    bare = min(taken["apart"], taken["together"], key=median)
    table = Table(title=f"{DEFAULT.describe().name}, {threads} threads, {length:.0f} tokens a passage on average")
    for heading in ("", "passages/s", "tokens/s", "of bare", "quartiles"):
        table.add_column(heading, justify="left" if not heading else "right")
    rows = {"Almanac": "ours", "bare ONNX session, a batch a thread": "apart",
            "bare ONNX session, all threads on a batch": "together"}  # fmt: skip
    ratios = {name: [best / own for best, own in zip(bare, seconds, strict=True)] for name, seconds in taken.items()}
    for title, name in rows.items():
        rate, (low, middle, high) = count / median(taken[name]), quantiles(ratios[name], n=4)
        table.add_row(title, f"{rate:.1f}", f"{rate * length:,.0f}", f"{middle:.2f}", f"{low:.2f} to {high:.2f}")
    Console(width=100).print(table)
    ratio = median(ratios["ours"])
    print(f"Aim: at least {AIM} of bare; {'met' if ratio >= AIM else 'missed'} at {ratio:.3f}.")


def main() -> None:
    parser = parser_of(__doc__, rounds=24)
    parser.add_argument("--count", type=int, default=64, help="passages in a round")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    given = parser.parse_args()
    os.setpriority(os.PRIO_PROCESS, 0, max(MODEST, os.getpriority(os.PRIO_PROCESS, 0)))
    asyncio.run(measure(given.count, given.rounds, given.threads))


if __name__ == "__main__":
    main()
