"""The process of a contestant of the search bench, which builds a corpus or answers orders, one per line.

    program build CORPUS PLACE    fills the place (a folder or a database's URL); prints the cost
    program ask CORPUS PLACE      opens it, then answers each order on standard input with its measurements

Only numpy is needed, for this also runs in the peers' environment.
"""

import json
import re
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from itertools import cycle, takewhile
from pathlib import Path
from typing import Any, Protocol

from search_corpus import SCOPES, Corpus, Question

DEPTH = 100  # passages from one leg, as in our search
TOP = 10
WARM = 100  # questions of each scope that are asked before the measurement, and never again
WARM_SECONDS = 5.0  # at most


@dataclass(frozen=True, slots=True)
class Order:
    """Ask for some seconds with some callers; each asks its next question when it has an answer."""

    leg: str  # whole, words or vectors; of ours also embedded (whole, with the question embedded) and embedding (alone)
    scope: str
    callers: int
    seconds: float


@dataclass(frozen=True, slots=True)
class Sample:
    """The results of an order."""

    milliseconds: list[float] = field(default_factory=list[float])
    cold: list[float] = field(default_factory=list[float])  # milliseconds too, of the questions asked before
    found: dict[int, list[int]] = field(default_factory=dict[int, list[int]])  # passages, by the number of the question


@dataclass(frozen=True, slots=True)
class Memory:
    """The memory of a process in bytes: all of it, and the part that is not file content."""

    resident: int
    anonymous: int


@dataclass(frozen=True, slots=True)
class Built:
    """The cost of building a corpus."""

    seconds: float
    disk: int
    stages: dict[str, float] = field(default_factory=dict[str, float])


class Turns:
    """The order of the questions. A question is repeated only after all others, because an engine with caches (analysed
    words, rows) would answer a recent question much faster than a real one."""

    def __init__(self, corpus: Corpus) -> None:
        questions = {scope: corpus.questions(scope) for scope in SCOPES}
        self._early = [each for of_scope in questions.values() for each in of_scope[-WARM:]]
        self._turns = {scope: cycle(of_scope[:-WARM]) for scope, of_scope in questions.items()}
        self._warm: set[str] = set()

    def early(self, leg: str) -> Iterator[Question]:
        """The questions before the measurement, of all scopes, when a leg is used for the first time."""
        if leg in self._warm:
            return
        self._warm.add(leg)
        until = time.perf_counter() + WARM_SECONDS
        yield from takewhile(lambda _: time.perf_counter() < until, self._early)

    def next(self, scope: str) -> Question:
        return next(self._turns[scope])


class Engine(Protocol):
    """A contestant whose callers are threads."""

    def ask(self, leg: str, question: Question) -> Sequence[int]:
        """The passages that answer the question, best first."""
        ...


def run(build: Callable[[Corpus, str], None], disk: Callable[[str], int], open_: Callable[[str], Engine]) -> None:
    """Run the program of a contestant whose callers are threads."""
    word, folder, place = sys.argv[1:]
    corpus = Corpus(Path(folder))
    if word == "build":
        begun = time.perf_counter()
        build(corpus, place)
        say(Built(time.perf_counter() - begun, disk(place)))
        return
    turns = Turns(corpus)
    empty = memory()
    engine = open_(place)
    say(empty)
    for order in orders():
        say(memory() if order is None else ask(engine, order, turns))


def orders() -> Iterator[Order | None]:
    """The orders, one after another. None requests the memory."""
    for line in sys.stdin:
        told: dict[str, Any] = json.loads(line)
        yield Order(**told) if told else None


def say(what: Sample | Memory | Built) -> None:
    print(json.dumps(asdict(what)), flush=True)


def ask(engine: Engine, order: Order, turns: Turns) -> Sample:
    """Ask with several callers, each in a thread."""
    sample = Sample()

    def call(question: Question, times: list[float]) -> None:
        begun = time.perf_counter()
        found = engine.ask(order.leg, question)
        times.append(1000 * (time.perf_counter() - begun))
        sample.found[question.number] = [int(each) for each in found[:TOP]]

    def call_on() -> None:
        while time.perf_counter() < until:
            call(turns.next(order.scope), sample.milliseconds)

    for question in turns.early(order.leg):
        call(question, sample.cold)
    sample.found.clear()
    until = time.perf_counter() + order.seconds
    if order.callers == 1:
        call_on()
        return sample
    with ThreadPoolExecutor(order.callers) as pool:
        for each in [pool.submit(call_on) for _ in range(order.callers)]:
            each.result()
    return sample


def memory() -> Memory:
    """The memory of this process, from /proc, so on Linux only."""
    told = dict(re.findall(r"^(VmRSS|RssAnon):\s+(\d+) kB", Path("/proc/self/status").read_text(), re.MULTILINE))
    return Memory(int(told["VmRSS"]) * 1024, int(told["RssAnon"]) * 1024)


def size_of(folder: str) -> int:
    """Bytes of the files in a folder."""
    return sum(file.stat().st_size for file in Path(folder).rglob("*") if file.is_file())
