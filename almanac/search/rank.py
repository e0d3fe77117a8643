"""Rank: how likely each candidate answers the question.

Both legs' scores are brought to one measure: of the words, the share that a perfect match would have; of the vectors,
the cosine. A candidate that only one leg brought gets the other's score all the same. The best are then judged by what
they say as well: words of the question in their titles and next to each other, and the words that the first few have in
common, which a question often leaves out (pseudo-relevance feedback). The sum becomes a probability by a curve fitted
on questions with known answers (`calibration.json`; `make calibrate`). docs/explanation/search.md says what was fitted
on what.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import orjson
from numpy.typing import NDArray

from almanac.core.database import Row
from almanac.search import analysis, bm25, highlights
from almanac.search.index import Hits, WordHits

# Fitted together on five sets, by a coarse grid; the cosine weighs 1.
WORDS, TITLE, PAIRS, FEEDBACK = 0.35, 0.1, 0.1, 0.2
PLAIN_WORDS = 0.5  # without a look at the text
RANK = 60  # the constant of reciprocal rank fusion
TITLED = 0.5  # what a title that has the whole question within it is worth to the words leg, of which 1 is perfect
JUDGED = 50  # candidates whose text is looked at
_TEACHERS = 5  # candidates whose words are taken for those of the answer
_LESSONS = 30  # words taken from them
_SHARPNESS = 10.0  # how much more the first of them is believed than the second
_NEAR = 2  # words apart at most
_READ = 25  # candidates in which it is looked for words that stand together

_CURVES: dict[str, tuple[float, float]] = {
    name: (curve[0], curve[1])
    for name, curve in orjson.loads((Path(__file__).parent / "calibration.json").read_bytes())["curves"].items()
}


@dataclass(frozen=True, slots=True)
class Asked:
    """A question as it is looked for."""

    text: str
    words: tuple[tuple[str, ...], ...]  # each with the terms it is found by, in the order of the question
    terms: frozenset[str]
    hashes: tuple[int, ...]  # of the terms

    @property
    def is_unspaced(self) -> bool:
        """Whether most of it is in a script of its own, which a model of English knows nothing of."""
        letters = [each for each in self.text if each.isalpha()]
        return sum(each > "\u02ff" for each in letters) > 0.3 * len(letters)


@dataclass(frozen=True, slots=True)
class Candidate:
    """A passage that may answer."""

    id: int
    score: float
    legs: tuple[str, ...]


def ask(text: str) -> Asked:
    """Take a question apart."""
    words = tuple(terms for _, _, terms in analysis.words_of(text))
    terms = tuple(dict.fromkeys(term for each in words for term in each))
    return Asked(text, words, frozenset(terms), tuple(map(analysis.hash_of, terms)))


def probability(curve: str, value: float) -> float:
    """A sum of scores as a probability."""
    offset, slope = _CURVES[curve]
    return 1 / (1 + math.exp(-offset - slope * value))


class Judge:
    """The candidates of one question, with all that is known of them."""

    def __init__(
        self,
        asked: Asked,
        words: WordHits,
        near: Mapping[int, float],
        vectors: Hits,
        rows: Mapping[int, Row],
        titled: Sequence[int] = (),
    ) -> None:
        self._asked = asked
        self._by_words = set(words.ids.tolist())
        self._by_vectors = set(vectors.ids.tolist())
        found: dict[Any, None] = dict.fromkeys((*words.ids.tolist(), *vectors.ids.tolist(), *titled))
        self.ids = [id for id in found if id in rows]
        self._titled = np.isin(self.ids, titled)
        self._rows = rows
        self._idf = {
            hash: bm25.idf(words.passages, frequency)
            for hash, frequency in zip(asked.hashes, words.frequencies, strict=False)
        }
        # What a perfect match would score; terms that no passage has cannot be asked of one.
        self._most = sum(
            self._idf[hash] for hash, number in zip(asked.hashes, words.frequencies, strict=False) if number
        )
        self._cosines = np.array([near.get(id, 0.0) for id in self.ids], np.float32)
        self._is_near = np.array([id in near for id in self.ids], np.bool_)
        self._bags: list[tuple[NDArray[np.int64], NDArray[np.uint8]]] = [
            analysis.unpack(rows[id]["words"] or b"") for id in self.ids
        ]
        self._lengths = np.array([int(counts.sum(dtype=np.int64)) for _, counts in self._bags], np.float32)
        self._average = words.average or 1.0
        self._shares = self._share()

    def by_words(self) -> list[Candidate]:
        """In the order of the words leg alone."""
        return self._ranked("keyword", self._shares)

    def by_vectors(self) -> list[Candidate]:
        """In the order of the vectors leg alone."""
        return self._ranked("vector", self._cosines)

    def by_both(self) -> list[Candidate]:
        """By both legs, and no more."""
        return self._ranked("fused", PLAIN_WORDS * self._shares + self._cosines)

    def by_text(self) -> list[Candidate]:
        """By both legs and by what the best of them say."""
        if not self.ids:
            return []
        order, learnt, said = self._look()
        values = WORDS * self._shares + self._cosines + learnt + said
        # What was not looked at keeps its place behind what was.
        values[order[JUDGED:]] = np.minimum(values[order[JUDGED:]], values[order[:JUDGED]].min(initial=np.inf))
        return self._ranked("hybrid", values)

    def by_ranks(self, *, rerank: bool) -> list[Candidate]:
        """By their places in the two legs and nothing else (reciprocal rank fusion): 1 for what is first in both, half
        for what is first in the only one that has it. One passage of each source; those that tie in the order of both
        legs together. With `rerank`, what the best say counts in the legs."""
        words, near = self._shares.copy(), self._cosines.copy()
        if rerank and self._is_near.any():  # words alone teach nothing that is not in them
            _, learnt, said = self._look()
            words, near = WORDS * words + learnt + said, near + learnt
        words += TITLED * self._titled
        fused: dict[int, float] = {}
        best: dict[int, int] = {}
        for values, inside in ((words, (self._shares > 0) | self._titled), (near, self._is_near)):
            for place, (source, at) in enumerate(self._places(values, inside)):
                fused[source] = fused.get(source, 0.0) + (RANK + 1) / (2 * (RANK + 1 + place))
                best.setdefault(source, at)
        order = sorted(fused, key=lambda source: (-fused[source], -float(words[best[source]] + near[best[source]])))
        return [self._candidate(best[source], min(fused[source], 1.0)) for source in order]

    def _places(self, values: NDArray[np.float32], inside: NDArray[np.bool_]) -> Iterator[tuple[int, int]]:
        """The sources that a leg has, the best first, each with its best passage."""
        seen: set[int] = set()
        for at in np.lexsort((self.ids, -values)).tolist() if self.ids else ():
            source = self._rows[self.ids[at]]["source_id"]
            if inside[at] and source not in seen:
                seen.add(source)
                yield source, at

    def _look(self) -> tuple[NDArray[np.intp], NDArray[np.float32], NDArray[np.float32]]:
        """A look at what the best say: the order before it, what each has of the words that the first few have in
        common, and of the question in its title and side by side."""
        plain = PLAIN_WORDS * self._shares + self._cosines
        order = np.lexsort((self.ids, -plain))
        head = order[:JUDGED]
        learnt, said = np.zeros(len(plain), np.float32), np.zeros(len(plain), np.float32)
        learnt[head] = FEEDBACK * self._learn(head, plain)
        said[head] = TITLE * self._titles(head) + PAIRS * self._pairs(head)
        return order, learnt, said

    def _ranked(self, curve: str, values: NDArray[np.float32]) -> list[Candidate]:
        order = np.lexsort((self.ids, -values))
        return [self._candidate(int(at), probability(curve, float(values[at]))) for at in order]

    def _candidate(self, at: int, score: float) -> Candidate:
        id = self.ids[at]
        by_words = id in self._by_words or bool(self._titled[at])
        return Candidate(id, score, ("words",) * by_words + ("vectors",) * (id in self._by_vectors))

    def _share(self) -> NDArray[np.float32]:
        """How much of what a perfect match would score each has by its words."""
        terms = np.array(sorted(self._idf), np.int64)
        counts = np.zeros((len(terms), len(self.ids)), np.uint8)
        for place, (hashes, occurrences) in enumerate(self._bags):
            if len(hashes):
                at = np.minimum(np.searchsorted(hashes, terms), len(hashes) - 1)
                counts[:, place] = np.where(hashes[at] == terms, occurrences[at], 0)
        idfs = np.array([self._idf[int(term)] for term in terms], np.float32)
        score = bm25.score(counts, self._lengths.astype(np.int64), self._average, idfs)
        return score / np.float32(max(self._most, 1e-3))

    def _mass(self) -> float:
        """What all words of the question are worth, each by the rarest of its forms."""
        return sum(max(self._rarity(term) for term in terms) for terms in dict.fromkeys(self._asked.words))

    def _rarity(self, term: str) -> float:
        return self._idf.get(analysis.hash_of(term), 0.0)

    def _learn(self, head: NDArray[np.intp], plain: NDArray[np.float32]) -> NDArray[np.float32]:
        """How much each has of the words that the first few have, the best of them 1."""
        bags = [self._bags[int(at)] for at in head]
        every: NDArray[np.int64] = np.concatenate([each for each, _ in bags])
        hashes, places = np.unique(every, return_inverse=True)
        sizes = [len(each) for each, _ in bags]
        rows = np.repeat(np.arange(len(bags)), sizes)
        damping = bm25.damp(self._lengths[head], self._average)
        worth = bm25.saturate(np.concatenate([counts for _, counts in bags]), np.repeat(damping, sizes))
        common = np.bincount(places, minlength=len(hashes))
        worth *= np.log1p((len(bags) - common + 0.5) / (common + 0.5)).astype(np.float32)[places]
        belief = np.exp(_SHARPNESS * (plain[head[:_TEACHERS]] - plain[head[0]]))
        taught = rows < _TEACHERS
        lesson = np.bincount(places[taught], worth[taught] * (belief / belief.sum())[rows[taught]], len(hashes))
        if len(lesson) > _LESSONS:
            lesson[lesson < np.partition(lesson, -_LESSONS)[-_LESSONS]] = 0
        learnt = np.bincount(rows, worth * lesson[places], len(bags))
        return (learnt / max(float(learnt.max(initial=0)), 1e-9)).astype(np.float32)

    def _titles(self, head: NDArray[np.intp]) -> NDArray[np.float32]:
        """How much of the question is in the title and the headings of each."""
        mass = max(self._mass(), 1e-3)
        found = np.zeros(len(head), np.float32)
        words = [(max(map(self._rarity, each)), each) for each in dict.fromkeys(self._asked.words)]
        for place, at in enumerate(head):
            row = self._rows[self.ids[at]]
            terms = _title_terms(row["title"], row["headings"])
            found[place] = sum(rarity for rarity, each in words if not terms.isdisjoint(each)) / mass
        return found

    def _pairs(self, head: NDArray[np.intp]) -> NDArray[np.float32]:
        """How many of the words that stand together in the question stand together in each, by their rarity."""
        words = self._asked.words
        pairs = [(first, second) for first, second in pairwise(words) if first != second]
        worth = [sum(max(map(self._rarity, each)) for each in pair) for pair in pairs]
        if not sum(worth):
            return np.zeros(len(head), np.float32)
        number = {term: place for place, each in enumerate(dict.fromkeys(words)) for term in each}
        wanted = [(number[first[0]], number[second[0]]) for first, second in pairs]
        found = np.zeros(len(head), np.float32)
        for place, at in enumerate(head[:_READ]):
            met = _neighbours(self._rows[self.ids[at]]["text"], self._asked.terms, number)
            found[place] = sum(each for each, pair in zip(worth, wanted, strict=True) if pair in met) / sum(worth)
        return found


def _neighbours(text: str, terms: frozenset[str], number: Mapping[str, int]) -> set[tuple[int, int]]:
    """The words of a question, by their numbers, of which one stands next to another in a text, in either order."""
    met: set[tuple[int, int]] = set()
    last: list[tuple[int, int]] = []
    for start, end, term in highlights.occurrences(text, terms):
        last = [(at, other) for at, other in last if text.count(" ", at, start) <= _NEAR]
        for _, other in last:
            met |= {(number[term], other), (other, number[term])}
        last.append((end, number[term]))
    return met


@lru_cache(20_000)
def _title_terms(title: str, headings: str) -> frozenset[str]:
    return frozenset(analysis.terms_of(" ".join((title, *orjson.loads(headings)))))
