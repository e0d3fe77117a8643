"""The cost of a search, compared with other engines: `make bench-search`.

All contestants have the same passages (`search_corpus.py`) with the same vectors: generated text with planted answers,
in hundreds of collections of uneven size. "one" is a search of the collection with ten thousand passages, at every size
of the corpus; "all" is a search of everything. Each contestant runs in a process of its own. They are measured in turn,
in rounds, so that other load on the machine affects all equally; numbers are medians over the rounds. Their files are
read once before, so that the bench does not measure the disk.

Vectors are synthetic, because embedding a million passages would take hours. Questions come with vectors, as if they
were cached; "question embedded" adds the time of the bundled model, whose vector is discarded.
"""

import argparse
import json
import re
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from importlib.metadata import version
from itertools import chain, product
from pathlib import Path
from statistics import mean, median

import search_corpus
from command_line import add_json, console_of, exit_with_message, parser_of
from contestants import BenchFailed
from rich.console import Console
from rich.table import Table
from search_asking import Built, Memory, Order, Sample
from search_corpus import ONE, SCOPES, Corpus
from search_peers import CONTESTANTS, KEYS, OURS, Asked, Contestant, Store, install, opened, postgres

CALLERS = (1, 8)
CACHED_AIM = 8.0  # ms, one collection
EMBEDDED_AIM = 20.0  # ms, likewise
ALL_AIM = 60.0  # ms
BARE_AIM = 2.0
RECALL_AIM = 0.98
MEMORY_AIM = 1200  # bytes a passage
GROWTH_AIM = 1.25  # times the cost of the collection alone: the difference between two equal runs
MB = 1_000_000
SMALLEST = 1_000  # passages

LEGS = {"whole": "", "words": "  words alone", "vectors": "  vectors alone", "embedded": "  question embedded"}
ALONE = f"{OURS[0]}, alone"

Key = tuple[str, str, str, int]  # contestant, leg, scope, callers


@dataclass(frozen=True, slots=True)
class Numbers:
    """The results of one order in one round."""

    p50: float
    p99: float
    asked: int
    recall: float  # share of the exact ten nearest that were found
    planted: float  # share of the questions with their passage among the first ten


@dataclass(frozen=True, slots=True)
class Held:
    """A contestant's build time, disk space and memory."""

    built: Built
    is_new: bool  # built in this run
    empty: Memory
    after: Memory


@dataclass(frozen=True)
class Measured:
    """All results at one size."""

    size: int
    collections: int
    numbers: dict[Key, list[Numbers]]  # by round
    held: dict[str, Held]
    cold: dict[str, float]  # p50 of the first questions to a new process, ms

    def p50(self, name: str, leg: str, scope: str, callers: int = 1) -> float | None:
        return self._median((name, leg, scope, callers), "p50")

    def recall(self, name: str, leg: str, scope: str) -> float | None:
        return self._median((name, leg, scope, 1), "recall")

    def _median(self, key: Key, what: str) -> float | None:
        found = self.numbers.get(key)
        return median(getattr(each, what) for each in found) if found else None


# Measuring


@dataclass(frozen=True, slots=True)
class Entry:
    """A contestant with its built corpus."""

    name: str
    contestant: Contestant
    corpus: Corpus
    place: str
    built: Built
    is_new: bool


def measure(
    size: int, chosen: Sequence[Contestant], store: Store, options: argparse.Namespace, console: Console
) -> Measured:
    entries = list(_entries(size, chosen, store, options.cache, console))
    console.print("Reading their files once …")
    for each in reversed(entries):  # ours last, in case memory is too small for all
        store.warm(each.contestant, each.corpus)
    with ExitStack() as stack:
        asked: dict[str, Asked] = {}
        for each in entries:
            log = options.cache / f"{each.contestant.key}-{each.corpus.size}.log"
            asked[each.name] = stack.enter_context(opened(each.contestant, each.corpus, each.place, log))
        numbers, after, cold = _rounds(entries, asked, options, console)
    held = {each.name: Held(each.built, each.is_new, asked[each.name].empty, after[each.name]) for each in entries}
    return Measured(size, len(set(entries[0].corpus.collections.tolist())), numbers, held, cold)


def _entries(size: int, chosen: Sequence[Contestant], store: Store, cache: Path, console: Console) -> Iterator[Entry]:
    console.print(f"{size:,} passages: making them …")
    corpus = search_corpus.prepare(cache, size)
    for contestant in chosen:
        console.print(f"{size:,} passages: building {contestant.name} …")
        yield Entry(contestant.name, contestant, corpus, *store.build(contestant, corpus))
        if size > ONE and contestant.name == OURS[0]:  # directly after the contestant it is compared with
            alone = search_corpus.prepare(cache, ONE)
            yield Entry(ALONE, contestant, alone, *store.build(contestant, alone))


def _rounds(
    entries: Sequence[Entry], asked: dict[str, Asked], options: argparse.Namespace, console: Console
) -> tuple[dict[Key, list[Numbers]], dict[str, Memory], dict[str, float]]:
    numbers: dict[Key, list[Numbers]] = {}
    after: dict[str, Memory] = {}
    cold: dict[str, float] = {}
    questions = {(each.name, scope): each.corpus.questions(scope) for each in entries for scope in SCOPES}
    for turn in range(options.rounds):
        console.print(f"Round {turn + 1} …")
        # Each round begins with another one, so that none always follows the heaviest. All contestants get one order
        # before the next order follows, so that compared measurements are close in time.
        first = turn % len(entries)
        for order, name in _turns((*entries[first:], *entries[:first]), options.seconds):
            if order.leg.startswith("embed") and name not in after:
                after[name] = asked[name].memory()  # before the model is loaded, because it holds no passages
            sample = asked[name].ask(order)
            if sample.cold:
                cold.setdefault(name, median(sample.cold))
            key = (name, order.leg, order.scope, order.callers)
            numbers.setdefault(key, []).append(_numbers(sample, questions[name, order.scope]))
        for each in entries:
            after.setdefault(each.name, asked[each.name].memory())
    return numbers, after, cold


def _turns(entries: Sequence[Entry], seconds: float) -> Iterator[tuple[Order, str]]:
    legs = {each.name: ("whole",) if each.name == ALONE else each.contestant.legs for each in entries}
    orders = {name: list(_orders(of, seconds)) for name, of in legs.items()}
    for order in dict.fromkeys(chain.from_iterable(sorted(orders.values(), key=len, reverse=True))):
        yield from ((order, name) for name, of in orders.items() if order in of)


def _orders(legs: Sequence[str], seconds: float) -> Iterator[Order]:
    for leg, scope, callers in product(legs, SCOPES, CALLERS):
        if leg == legs[0] or callers == 1:
            yield Order(leg, scope, callers, seconds)
    if "embedded" in legs:
        yield Order("embedding", "one", 1, seconds)


def _numbers(sample: Sample, questions: Sequence[search_corpus.Question]) -> Numbers:
    times = sorted(sample.milliseconds)
    answers = [(questions[number], set(found)) for number, found in sample.found.items()]
    return Numbers(
        p50=median(times),
        p99=times[int(0.99 * (len(times) - 1))],
        asked=len(times),
        recall=mean(len(question.nearest & found) / len(question.nearest) for question, found in answers),
        planted=mean(question.planted in found for question, found in answers),
    )


# Results


@dataclass(frozen=True, slots=True)
class Aim:
    """A target, compared with the medians over the rounds."""

    text: str
    value: float | None  # None where it was not measured
    most: float
    unit: str = " ms"
    is_least: bool = False

    @property
    def met(self) -> bool:
        return self.value is not None and (self.value >= self.most if self.is_least else self.value <= self.most)

    def __str__(self) -> str:
        if self.value is None:
            return f"{self.text}: not measured"
        return f"{self.text}: {'met' if self.met else 'not met'} ({self.value:.3g}{self.unit})"


def aims_of(measured: Measured) -> list[Aim]:
    """The targets of the embedded index, at the largest measured size."""
    ours, one = OURS[0], f"one collection of {_short(ONE)}"
    recalls = [each for scope in SCOPES if (each := measured.recall(ours, "vectors", scope)) is not None]
    return [
        Aim(f"{one}, p50 ≤ {CACHED_AIM:g} ms", measured.p50(ours, "whole", "one"), CACHED_AIM),
        Aim(
            f"{one}, question embedded, p50 ≤ {EMBEDDED_AIM:g} ms", measured.p50(ours, "embedded", "one"), EMBEDDED_AIM
        ),
        Aim(f"everything, p50 ≤ {ALL_AIM:g} ms", measured.p50(ours, "whole", "all"), ALL_AIM),
        *(
            Aim(f"{what}, ≤ {BARE_AIM:g}× the bare engines with the question embedded", ratio, BARE_AIM, "×")
            for what, ratio in ((one, _to_bare(measured, "one")), ("everything", _to_bare(measured, "all")))
        ),
        Aim(
            f"recall@10 of vectors ≥ {RECALL_AIM:g} of an exact scan", min(recalls, default=None), RECALL_AIM, "", True
        ),
        Aim(f"memory ≤ {MEMORY_AIM} bytes a passage", _bytes_each(measured, ours), MEMORY_AIM, " bytes"),
        Aim(f"{one} costs no more than it does alone (≤ {GROWTH_AIM:g}×)", _growth(measured), GROWTH_AIM, "×"),
    ]


def _to_bare(measured: Measured, scope: str) -> float | None:
    """Our time divided by that of the bare engines, in each round, with the embedding on both sides."""
    keys: list[Key] = [
        (OURS[0], "embedded", scope, 1),
        (OURS[0], "embedding", "one", 1),
        ("usearch + tantivy", "whole", scope, 1),
    ]
    if not all(key in measured.numbers for key in keys):
        return None
    ours, model, bare = (measured.numbers[key] for key in keys)
    return median(our.p50 / (its.p50 + their.p50) for our, its, their in zip(ours, model, bare, strict=True))


def _growth(measured: Measured) -> float | None:
    keys: list[Key] = [(OURS[0], "whole", "one", 1), (ALONE, "whole", "one", 1)]
    if not all(key in measured.numbers for key in keys):
        return None
    inside, alone = (measured.numbers[key] for key in keys)
    return median(here.p50 / there.p50 for here, there in zip(inside, alone, strict=True))


def _bytes_each(measured: Measured, name: str) -> float | None:
    held = measured.held.get(name)
    return (held.after.resident - held.empty.resident) / measured.size if held else None


# Tables


def table_of(measured: Measured, chosen: Sequence[Contestant]) -> Table:
    table = Table(title=f"{measured.size:,} passages in {measured.collections} collections", title_justify="left")
    table.add_column("p50 / p99 ms")
    titles = ("build s", "disk MB", "RSS MB", "one", "one, 8 callers", "all", "all, 8 callers", "recall@10", "answered")
    for title in titles:
        table.add_column(title, justify="right", no_wrap=True)
    for contestant in chosen:
        for leg in contestant.legs:
            own = _own_cells(measured, contestant.name) if leg == contestant.legs[0] else [""] * 3
            label = f"{contestant.name}{'' if 'whole' in contestant.legs else ', vectors'}"
            table.add_row(label if own[0] else LEGS[leg], *own, *_cells(measured, contestant.name, leg))
        table.add_section()
    if ALONE in measured.held:
        table.add_row(
            f"{OURS[0]}, {_short(ONE)} alone", *_own_cells(measured, ALONE), *_cells(measured, ALONE, "whole")
        )
    return table


def _own_cells(measured: Measured, name: str) -> list[str]:
    held = measured.held[name]
    grown = held.after.resident - held.empty.resident
    build = f"{held.built.seconds:.0f}{'' if held.is_new else '*'}"
    return [build, f"{held.built.disk / MB:,.0f}", f"{grown / MB:,.0f}"]


def _cells(measured: Measured, name: str, leg: str) -> list[str]:
    cells: list[str] = []
    for scope, callers in product(SCOPES, CALLERS):
        found = measured.numbers.get((name, leg, scope, callers))
        cells.append(f"{_median(found, 'p50'):.1f} / {_median(found, 'p99'):.1f}" if found else "")
    firsts = [measured.numbers[name, leg, scope, 1] for scope in SCOPES]
    recall = " ".join(f"{_median(each, 'recall'):.3f}" for each in firsts) if leg == "vectors" else ""
    return [*cells, recall, " ".join(f"{_median(each, 'planted'):.2f}" for each in firsts)]


def _median(found: Sequence[Numbers], what: str) -> float:
    return median(getattr(each, what) for each in found)


def _short(number: int) -> str:
    for unit, letter in ((MB, "M"), (1_000, "k")):
        if number % unit == 0:
            return f"{number // unit}{letter}"
    return f"{number:,}"


NOTES = f"""\
Vectors are synthetic, with {search_corpus.DIMENSION} dimensions. "question embedded" also runs the bundled model and
discards its vector; the other questions come with vectors. recall@10 and answered: one, then all.
RSS: the growth of the searching process since its start; on PostgreSQL, of the client alone.
usearch has no filters, so "one" has a graph of its own there; Chroma has no ranking by words.
* built in an earlier run by the same code."""


def show(measured: Measured, chosen: Sequence[Contestant], console: Console) -> None:
    console.print(table_of(measured, chosen))
    for name in (each.name for each in chosen if each.is_ours):
        held = measured.held[name]
        stages = ", ".join(f"{seconds:.0f} s ({what})" for what, seconds in held.built.stages.items())
        own = held.after.anonymous - held.empty.anonymous
        shared = held.after.resident - held.empty.resident - own
        memory = f"{own / MB:,.0f} MB of its own and {shared / MB:,.0f} MB of mapped files"
        first = f"its first questions took {measured.cold[name]:.1f} ms (p50)"
        console.print(f"{name}: built in {stages}; grew by {memory}; {first}.")


def show_aims(measured: Measured, console: Console) -> None:
    console.print(NOTES)
    console.print(f"Embedded, {_short(measured.size)} passages:")
    for aim in aims_of(measured):
        console.print(f"  {aim}")


def write(path: Path, every: Sequence[Measured], versions: dict[str, str]) -> None:
    told = [
        {
            "size": each.size,
            "collections": each.collections,
            "cold": each.cold,
            "held": {name: asdict(held) for name, held in each.held.items()},
            "numbers": [
                {
                    "contestant": name,
                    "leg": leg,
                    "scope": scope,
                    "callers": callers,
                    "rounds": list(map(asdict, rounds)),
                }
                for (name, leg, scope, callers), rounds in each.numbers.items()
            ],
            "aims": [{**asdict(aim), "met": aim.met} for aim in aims_of(each)],
        }
        for each in every
    ]
    path.write_text(json.dumps({"versions": versions, "sizes": told}, indent=2, ensure_ascii=False) + "\n")


# The command


def _sizes(text: str) -> list[int]:
    units = {"": 1, "k": 1_000, "m": MB}
    parts = [re.fullmatch(r"(\d+)([km]?)", part.strip().lower()) for part in text.split(",")]
    sizes = {int(part[1]) * units[part[2]] for part in parts if part}
    if not all(parts) or min(sizes) < SMALLEST:
        raise argparse.ArgumentTypeError(f"sizes are such as 10k,100k,1M and at least {SMALLEST:,}")
    return sorted(sizes)


def _keys(text: str) -> list[str]:
    keys = text.split(",")
    if not set(keys) <= set(KEYS):
        raise argparse.ArgumentTypeError(f"there are {', '.join(KEYS)}")
    return keys


def arguments() -> argparse.Namespace:
    parser = parser_of(__doc__, seconds=2.0, rounds=3)
    parser.add_argument("--sizes", type=_sizes, default=[10_000, 100_000, MB], help="passages (10k,100k,1M)")
    parser.add_argument("--without", type=_keys, default=[], help=f"leave these out: {','.join(KEYS)}")
    parser.add_argument(
        "--cache",
        type=Path,
        default=Path(tempfile.gettempdir()) / "almanac-bench-search",
        help="where passages and what was built of them are kept",
    )
    add_json(parser)
    return parser.parse_args()


def bench(options: argparse.Namespace, console: Console) -> None:
    chosen = [each for each in CONTESTANTS if each.key not in options.without]
    if not chosen:
        raise BenchFailed("nobody is left to measure")
    versions = {"almanac": version("almanac"), **install(chosen)}
    every: list[Measured] = []
    with ExitStack() as stack:
        on_postgres = any(each.on_postgres for each in chosen)
        url = stack.enter_context(postgres(options.cache)) if on_postgres else ""
        for size in options.sizes:
            every.append(measure(size, chosen, Store(options.cache, url), options, console))
            show(every[-1], chosen, console)
    console.print(", ".join(f"{name} {number}" for name, number in versions.items()))
    show_aims(every[-1], console)
    if options.json:
        write(options.json, every, versions)


def main() -> None:
    with exit_with_message():
        bench(arguments(), console_of(150))


if __name__ == "__main__":
    main()
