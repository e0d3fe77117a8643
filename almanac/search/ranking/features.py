"""Rank: how likely each candidate answers the question.

Both legs' scores are brought to one measure: of the words, the share that a perfect match would have; of the vectors,
the cosine. A candidate that only one leg brought gets the other's score all the same. The best are then judged by what
they say as well: words of the question in their titles and next to each other, and the words that the first few have in
common, which a question often leaves out (pseudo-relevance feedback). Last, what is like the first few by its vector
gains by it. The sum becomes a probability by a curve fitted on questions with known answers (`calibration.json`;
`make calibrate`). docs/explanation/search.md says what was fitted on what.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import islice, pairwise, product
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import orjson
from numpy.typing import NDArray

from almanac.core.database import Row
from almanac.search.analysis import analyser, highlights
from almanac.search.index.protocol import Hits, KeywordHits, PassageVectors
from almanac.search.ranking import bm25

# Fitted together on five sets, by a coarse grid; the cosine weighs 1.
KEYWORD_WEIGHT, TITLE_WEIGHT, PROXIMITY_WEIGHT, FEEDBACK_WEIGHT, SIMILARITY_WEIGHT = 0.6, 0.1, 0.2, 0.4, 0.45
RRF_K = 60  # the constant of reciprocal rank fusion
TITLE_MATCH_SCORE = (
    0.5  # what a title that has the whole question within it is worth to the words leg, of which 1 is perfect
)
RERANK_DEPTH = 50  # candidates whose text is looked at
_TERMS = 256  # of a question that are looked for, from its beginning: one as long as a page asks for no more
FEEDBACK_PASSAGES = 5  # candidates whose words are taken for those of the answer
FEEDBACK_TERMS = 30  # words taken from them
_MODELS = 3  # candidates that others are compared with by their vectors
_SHARPNESS = 10.0  # how much more the first of them is believed than the second
_NEAR = 2  # words apart at most
# What the score is made of beside the cosine: words and what was learnt order better than they measure, for how much of
# a question an answer repeats differs from one set to the next; likeness measures nearly as well as it orders.
_SAID_WORDS, _SAID_LEARNT, _SAID_LIKENESS = 0.1, 0.08, 0.4
_READ = 10  # candidates in which it is looked for words that stand together
_LEGS = {
    (is_in_words, is_in_vectors): ("words",) * is_in_words + ("vectors",) * is_in_vectors
    for is_in_words, is_in_vectors in product((False, True), repeat=2)
}

_FITTED: dict[str, Any] = orjson.loads((Path(__file__).parent / "calibration.json").read_bytes())
CURVES: dict[str, tuple[float, float]] = {name: (curve[0], curve[1]) for name, curve in _FITTED["curves"].items()}
# The probability that best tells what answers from what does not: far below a half, for most of what is found does not.
RELATED: dict[str, float] = dict(_FITTED["related"])
LIKELY = 0.5  # more likely than not


@dataclass(frozen=True, slots=True)
class ParsedQuery:
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


class RankedPassage(NamedTuple):
    """A passage that may answer."""

    id: int
    score: float
    legs: tuple[str, ...]


def parse_text(text: str) -> ParsedQuery:
    """Take a question apart."""
    words = tuple(terms for _, _, terms in analyser.words_of(text))
    terms = tuple(islice(dict.fromkeys(term for each in words for term in each), _TERMS))
    return ParsedQuery(text, words, frozenset(terms), tuple(map(analyser.term_hash, terms)))


def probability(curve: str, values: NDArray[np.float32]) -> NDArray[np.float64]:
    """Sums of scores as probabilities."""
    offset, slope = CURVES[curve]
    return 1 / (1 + np.exp(-offset - slope * values.astype(np.float64)))


def _by_words(curve: str, shares: NDArray[np.float32]) -> NDArray[np.float32]:
    """The sums with which a curve says what that of the words says of these shares."""
    (offset, slope), (other_offset, other_slope) = CURVES["keyword"], CURVES[curve]
    return ((offset - other_offset + slope * shares) / other_slope).astype(np.float32)


def grade(curve: str, likely: float) -> float:
    """A probability as a grade: above 0.8 directly relevant, more likely than not the answer; from 0.5 related; below
    it tangential. Grades of all curves mean the same, and are in the same order as probabilities."""
    return round(float(np.interp(likely, (0.0, RELATED[curve], LIKELY, 1.0), (0.0, 0.5, 0.8, 1.0))), 4)


class CandidateScorer:
    """The candidates of one question, with all that is known of them."""

    def __init__(
        self,
        asked: ParsedQuery,
        words: KeywordHits,
        vectors: Hits,
        stored: Sequence[tuple[PassageVectors, NDArray[np.float32]]],  # of each model, with the question's own
        weights: Mapping[int, float],  # of their words, by passage
        sources: Mapping[int, int],
        titled: Sequence[int] = (),
    ) -> None:
        self._asked = asked
        self.curve = ""  # by which the scores became probabilities
        by_words, by_vectors = {*words.ids.tolist(), *titled}, set(vectors.ids.tolist())
        self.ids = list(sources)
        self._ids = np.array(self.ids, np.int64)
        self._legs = [_LEGS[id in by_words, id in by_vectors] for id in self.ids]
        self._titled = np.isin(self._ids, titled)
        self._sources = sources
        self._idf = {
            hash: bm25.idf(words.passages, frequency)
            for hash, frequency in zip(asked.hashes, words.frequencies, strict=False)
        }
        frequencies = dict(zip(asked.hashes, words.frequencies, strict=False))
        # What a perfect match would score; terms that no passage has cannot be asked of one.
        self._most = sum(self._idf[hash] for hash, number in frequencies.items() if number)
        covered = self._most / max(self._most + self._missing(frequencies), 1e-9)
        place = {id: at for at, id in enumerate(self.ids)}
        self._cosines = np.zeros(len(self.ids), np.float32)
        self._is_near = np.zeros(len(self.ids), np.bool_)
        self._groups: list[tuple[list[int], NDArray[np.float32]]] = []  # places of candidates with a model's vectors
        for each, question in stored:
            group = [place[id] for id in each.ids.tolist()], each.rows
            self._cosines[group[0]] = group[1] @ question
            self._is_near[group[0]] = True
            self._groups.append(group)
        self._average = words.average or 1.0
        found = np.array([weights.get(id, 0.0) for id in self.ids], np.float32)
        self._shares: NDArray[np.float32] = found / np.float32(max(self._most, 1e-3))
        # A word that no passage has changes nothing about which is best, but a lot about how good the best can be.
        self._sure: NDArray[np.float32] = self._shares * covered
        # What has no vector yet has the cosine with which both legs say what its words say.
        late = self._sure[~self._is_near]
        self._cosines[~self._is_near] = _by_words("fused", late) - KEYWORD_WEIGHT * late

    def rank_by_keywords(self) -> list[RankedPassage]:
        """In the order of the words leg alone."""
        return self._ranked("keyword", self._shares, self._sure)

    def rank_by_vectors(self) -> list[RankedPassage]:
        """In the order of the vectors leg alone."""
        return self._ranked("vector", self._cosines)

    def fuse_by_score(self) -> list[RankedPassage]:
        """By both legs, and no more."""
        return self._ranked(
            "fused", KEYWORD_WEIGHT * self._shares + self._cosines, KEYWORD_WEIGHT * self._sure + self._cosines
        )

    def rerank_ids(self) -> list[int]:
        """The candidates whose text is worth a look."""
        order = np.lexsort((self._ids, -(KEYWORD_WEIGHT * self._shares + self._cosines)))
        return self._ids[order[:RERANK_DEPTH]].tolist()

    def rerank_by_text(self, rows: Mapping[int, Row]) -> list[RankedPassage]:
        """By both legs and by what the best of them say."""
        if not self.ids:
            return []
        order, learnt, told = self._look(rows)
        head, rest = order[:RERANK_DEPTH], order[RERANK_DEPTH:]
        plain: NDArray[np.float32] = KEYWORD_WEIGHT * self._shares + self._cosines
        values = plain + learnt + told
        like = self._similarity(head, values)
        values += SIMILARITY_WEIGHT * like
        measured = _SAID_WORDS * self._sure + self._cosines + _SAID_LEARNT * learnt + _SAID_LIKENESS * like
        said = measured.astype(np.float32)
        said[~self._is_near] = _by_words("hybrid", self._sure[~self._is_near])
        # What was not looked at keeps its place behind what was.
        values[rest] += np.minimum(0, values[head].min(initial=np.inf) - values[rest].max(initial=-np.inf))
        return self._ranked("hybrid", values, said)

    def by_ranks(self, rows: Mapping[int, Row], *, rerank: bool) -> list[RankedPassage]:
        """By their places in the two legs and nothing else (reciprocal rank fusion): 1 for what is first in both, half
        for what is first in the only one that has it. One passage of each source; those that tie in the order of both
        legs together. With `rerank`, what the best say counts in the legs."""
        words, near = self._shares.copy(), self._cosines.copy()
        if rerank and self._is_near.any():  # words alone teach nothing that is not in them
            _, learnt, said = self._look(rows)
            words, near = KEYWORD_WEIGHT * words + learnt + said, near + learnt
        words += TITLE_MATCH_SCORE * self._titled
        fused: dict[int, float] = {}
        best: dict[int, int] = {}
        for values, inside in ((words, (self._shares > 0) | self._titled), (near, self._is_near)):
            for place, (source, at) in enumerate(self._places(values, inside)):
                fused[source] = fused.get(source, 0.0) + (RRF_K + 1) / (2 * (RRF_K + 1 + place))
                best.setdefault(source, at)
        order = sorted(fused, key=lambda source: (-fused[source], -float(words[best[source]] + near[best[source]])))
        return [
            RankedPassage(self.ids[best[source]], round(min(fused[source], 1.0), 4), self._legs[best[source]])
            for source in order
        ]

    def _places(self, values: NDArray[np.float32], inside: NDArray[np.bool_]) -> Iterator[tuple[int, int]]:
        """The sources that a leg has, the best first, each with its best passage."""
        seen: set[int] = set()
        for at in np.lexsort((self._ids, -values)).tolist() if self.ids else ():
            source = self._sources[self.ids[at]]
            if inside[at] and source not in seen:
                seen.add(source)
                yield source, at

    def _look(self, rows: Mapping[int, Row]) -> tuple[NDArray[np.intp], NDArray[np.float32], NDArray[np.float32]]:
        """A look at what the best say: the order before it, what each has of the words that the first few have in
        common, and of the question in its title and side by side."""
        plain = KEYWORD_WEIGHT * self._shares + self._cosines
        order = np.lexsort((self._ids, -plain))
        head = order[:RERANK_DEPTH]
        learnt, said = np.zeros(len(plain), np.float32), np.zeros(len(plain), np.float32)
        learnt[head] = FEEDBACK_WEIGHT * self._feedback(head, plain, rows)
        said[head] = TITLE_WEIGHT * self._titles(head, rows) + PROXIMITY_WEIGHT * self._proximity(head, rows)
        return order, learnt, said

    def _rows_of(self, places: NDArray[np.intp], rows: Mapping[int, Row]) -> list[Row | None]:
        ids: list[int] = self._ids[places].tolist()
        return [rows.get(id) for id in ids]

    def _ranked(
        self, curve: str, values: NDArray[np.float32], said: NDArray[np.float32] | None = None
    ) -> list[RankedPassage]:
        """In the order of values; as likely as they say, or what is `said` in their place."""
        self.curve = curve
        order = np.lexsort((self._ids, -values))
        likely = _isotonic(probability(curve, (values if said is None else said)[order]).tolist())
        ids, legs = self.ids, self._legs
        return [RankedPassage(ids[at], score, legs[at]) for at, score in zip(order.tolist(), likely, strict=True)]

    def _missing(self, frequencies: Mapping[int, int]) -> float:
        """What the words would be worth of which no passage has any form."""
        words = ([analyser.term_hash(term) for term in word] for word in dict.fromkeys(self._asked.words))
        return sum(
            self._idf[forms[0]] for forms in words if forms and not any(frequencies.get(form, 1) for form in forms)
        )

    def _mass(self) -> float:
        """What all words of the question are worth, each by the rarest of its forms."""
        return sum(max(self._rarity(term) for term in terms) for terms in dict.fromkeys(self._asked.words))

    def _rarity(self, term: str) -> float:
        return self._idf.get(analyser.term_hash(term), 0.0)

    def _feedback(
        self, head: NDArray[np.intp], plain: NDArray[np.float32], rows: Mapping[int, Row]
    ) -> NDArray[np.float32]:
        """How much each has of the words that the first few have, the best of them 1."""
        known = self._rows_of(head, rows)
        bags = analyser.unpack_all([(row["words"] if row else None) or b"" for row in known])
        taught = np.sort(bags.hashes[: bags.ends[:FEEDBACK_PASSAGES][-1]])
        if not len(taught):
            return np.zeros(len(head), np.float32)
        taught = taught[np.append(True, taught[1:] != taught[:-1])]  # `unique` takes ten times as long
        places = np.minimum(taught.searchsorted(bags.hashes), len(taught) - 1)
        met = np.flatnonzero(taught[places] == bags.hashes)  # what no teacher has, nobody learns
        places, owners = places[met], bags.ends.searchsorted(met, "right")
        worth = bm25.saturate(bags.counts[met], bm25.damp(bags.lengths, self._average)[owners])
        common = np.bincount(places, minlength=len(taught))
        worth *= np.log1p((len(head) - common + 0.5) / (common + 0.5)).astype(np.float32)[places]
        belief = np.exp(_SHARPNESS * (plain[head[:FEEDBACK_PASSAGES]] - plain[head[0]]))
        told = owners < FEEDBACK_PASSAGES
        lesson = np.bincount(places[told], worth[told] * (belief / belief.sum())[owners[told]], len(taught))
        if len(lesson) > FEEDBACK_TERMS:
            lesson[lesson < np.partition(lesson, -FEEDBACK_TERMS)[-FEEDBACK_TERMS]] = 0
        learnt = np.bincount(owners, worth * lesson[places], len(head))
        return (learnt / max(float(learnt.max(initial=0)), 1e-9)).astype(np.float32)

    def _similarity(self, head: NDArray[np.intp], values: NDArray[np.float32]) -> NDArray[np.float32]:
        """How near each is to the first few together, by the vectors of one model."""
        first = head[np.argsort(-values[head], kind="stable")[:_MODELS]]
        belief = np.zeros(len(values), np.float32)
        belief[first] = np.exp(_SHARPNESS * (values[first] - values[first[0]]))
        found = np.zeros(len(values), np.float32)
        for places, rows in self._groups:
            middle = belief[places] @ rows
            found[places] = rows @ middle / max(float(np.linalg.norm(middle)), 1e-9)
        if self._is_near.any():  # what has no vector yet is as like as the others are
            found[~self._is_near] = found[self._is_near].mean()
        return found

    def _titles(self, head: NDArray[np.intp], rows: Mapping[int, Row]) -> NDArray[np.float32]:
        """How much of the question is in the title and the headings of each."""
        mass = max(self._mass(), 1e-3)
        found = np.zeros(len(head), np.float32)
        words = [(max(map(self._rarity, each)), each) for each in dict.fromkeys(self._asked.words)]
        for place, row in enumerate(self._rows_of(head, rows)):
            if row is None:
                continue
            terms = _title_terms(row["title"], row["headings"])
            if terms.isdisjoint(self._asked.terms):
                continue
            found[place] = sum(rarity for rarity, each in words if not terms.isdisjoint(each)) / mass
        return found

    def _proximity(self, head: NDArray[np.intp], rows: Mapping[int, Row]) -> NDArray[np.float32]:
        """How many of the words that stand together in the question stand together in each, by their rarity."""
        words = self._asked.words
        pairs = [(first, second) for first, second in pairwise(words) if first != second]
        worth = [sum(max(map(self._rarity, each)) for each in pair) for pair in pairs]
        if not sum(worth):
            return np.zeros(len(head), np.float32)
        number = {term: place for place, each in enumerate(dict.fromkeys(words)) for term in each}
        wanted = [(number[first[0]], number[second[0]]) for first, second in pairs]
        found = np.zeros(len(head), np.float32)
        for place, row in enumerate(self._rows_of(head[:_READ], rows)):
            if row is None:
                continue
            met = _neighbours(row["text"], self._asked.terms, number)
            found[place] = sum(each for each, pair in zip(worth, wanted, strict=True) if pair in met) / sum(worth)
        return found


def _isotonic(values: Sequence[float]) -> list[float]:
    """Values of which none is above one before it: those that are share their mean (pool adjacent violators)."""
    pools: list[tuple[float, int]] = []
    for value in values:
        mean, number = value, 1
        while pools and pools[-1][0] < mean:
            before, others = pools.pop()
            mean, number = (before * others + mean * number) / (others + number), others + number
        pools.append((mean, number))
    return [mean for mean, number in pools for _ in range(number)]


def _neighbours(text: str, terms: frozenset[str], number: Mapping[str, int]) -> set[tuple[int, int]]:
    """The words of a question, by their numbers, of which one stands next to another in a text, in either order."""
    met: set[tuple[int, int]] = set()
    last: list[tuple[int, int]] = []
    for start, end, term in highlights.everywhere(text, terms):
        last = [(at, other) for at, other in last if text.count(" ", at, start) <= _NEAR]
        for _, other in last:
            met |= {(number[term], other), (other, number[term])}
        last.append((end, number[term]))
    return met


@lru_cache(20_000)
def _title_terms(title: str, headings: str) -> frozenset[str]:
    return frozenset(analyser.terms_of(" ".join((title, *orjson.loads(headings)))))
