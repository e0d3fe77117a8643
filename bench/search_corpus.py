"""The passages that the search bench looks through: generated text with planted answers, in collections of uneven size.

The text consists of invented words, with frequencies by Zipf's law, between real English function words. Each source
has a topic and uses the topic's words more often. Embedding a million passages would take hours, so vectors are
synthetic: the sum of fixed random vectors of a passage's words and topic, with noise. Near neighbours share words and
topics, and the distribution of cosines resembles that of a real model.

Only numpy is needed, for this also runs in the peers' environment. Everything depends on seeds alone, and the
collection that is searched alone has the same content at every size of the corpus.
"""

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

VERSION = 1  # of the generated files: a folder of an older version is not used again
DIMENSION = 384
ONE = 10_000  # passages of the collection that is searched alone
COLLECTIONS = 300  # at most
QUESTIONS = 300  # of each scope
NEIGHBOURS = 10
LENGTHS = (30, 230)  # words of a passage
PASSAGES = (5, 35)  # of a source
SCOPES = ("one", "all")

_WORDS = 60_000
_TOPICS = 1_000
_TOPIC_WORDS = 150
_TOPICS_HERE = 50  # of a collection
_FUNCTION_SHARE = 0.55  # of the words that are not the topic's
_TOPIC_SHARE = 0.25
_LATENT = 64  # dimensions with most of the variance, as in real models
_TOPIC_WEIGHT = 0.6
_NOISE = 0.35
_COMMON = 0.8  # length of the part that all vectors share, as in real models
_PULL = 0.6  # share of the answer's vector in the question's: a model captures more than the words
_FUNCTION = re.findall(
    r"\w+",
    """the of and to in a is that for it as was with be by on not he his but at are this have from or had an they which
    one you were all her she there would their we him been has when who will no more if out so what up said about than
    into them can only other time new some could these two may first then do any like my now over such our""",
)
_SYLLABLES = re.findall(
    r"\w+",
    "ba ce di fo gu har jen kil lom mur nas pel qui ros sta tem ul ven wex yor zan bri cla dro fle gri plo tre sno vak",
)


@dataclass(frozen=True, slots=True)
class Question:
    """A question and its expected results."""

    number: int
    text: str
    vector: NDArray[np.float32]
    planted: int  # the passage that it was made from
    nearest: frozenset[int]  # the passages with the nearest vectors, by an exact scan
    collection: int | None  # the searched collection; None for all


@dataclass(frozen=True)
class Corpus:
    """Passages in the order in which they are stored; the numbers of passages and sources are their positions."""

    folder: Path

    @cached_property
    def texts(self) -> list[str]:
        return (self.folder / "texts.txt").read_text().splitlines()

    @cached_property
    def titles(self) -> list[str]:
        """By source."""
        return (self.folder / "titles.txt").read_text().splitlines()

    @cached_property
    def collections(self) -> NDArray[np.int64]:
        """By source."""
        return np.load(self.folder / "collections.npy")

    @cached_property
    def firsts(self) -> NDArray[np.int64]:
        """The first passage of each source, and at last how many passages there are."""
        return np.load(self.folder / "firsts.npy")

    @cached_property
    def homes(self) -> NDArray[np.int64]:
        """The collection of each passage."""
        return np.repeat(self.collections, np.diff(self.firsts))

    @cached_property
    def vectors(self) -> NDArray[np.float16]:
        return np.load(self.folder / "vectors.npy", mmap_mode="r")

    @property
    def size(self) -> int:
        return int(self.firsts[-1])

    def described(self) -> list[str]:
        """Each passage with the title above it."""
        return [
            f"{title}\n{text}"
            for title, (first, last) in zip(self.titles, pairwise(self.firsts), strict=True)
            for text in self.texts[first:last]
        ]

    def batches(self, size: int) -> Iterator[slice]:
        """The passages, so many at a time."""
        yield from (slice(start, min(start + size, self.size)) for start in range(0, self.size, size))

    def questions(self, scope: str) -> list[Question]:
        told = json.loads((self.folder / f"{scope}.json").read_text())
        vectors, nearest = np.load(self.folder / f"{scope}-vectors.npy"), np.load(self.folder / f"{scope}-nearest.npy")
        where = 0 if scope == "one" else None
        return [
            Question(number, each["text"], vectors[number], each["planted"], frozenset(nearest[number].tolist()), where)
            for number, each in enumerate(told)
        ]


@dataclass(frozen=True, slots=True)
class Language:
    """Words, their frequencies, the words of each topic, and the vector of each word."""

    words: list[str]
    shares: NDArray[np.float64]  # cumulated
    topics: NDArray[np.int64]  # the words of each
    vectors: NDArray[np.float32]
    centres: NDArray[np.float32]  # of topics
    spread: NDArray[np.float32]  # from the latent dimensions to all


@dataclass(frozen=True, slots=True)
class Piece:
    """The sources of one collection."""

    titles: list[str]
    sizes: NDArray[np.int64]  # passages of each source
    texts: list[str]
    words: NDArray[np.int64]  # of all passages, one after the other
    bounds: NDArray[np.int64]
    vectors: NDArray[np.float16]


def prepare(cache: Path, size: int) -> Corpus:
    """The corpus of a number of passages, from the cache or generated now."""
    folder = cache / f"corpus-{VERSION}-{size}"
    if not (folder / "done").exists():
        folder.mkdir(parents=True, exist_ok=True)
        _make(folder, size)
        (folder / "done").touch()
    return Corpus(folder)


def sizes_of(size: int) -> list[int]:
    """The number of passages of each collection: the one that is searched alone, then the others by Zipf's law."""
    left = size - ONE
    if left <= 0:
        return [size]
    number = max(2, min(COLLECTIONS, left // 200))
    shares = 1 / np.arange(1, number + 1)
    sizes = np.maximum(1, left * shares / shares.sum()).astype(int)
    sizes[0] += left - sizes.sum()
    return [ONE, *sizes.tolist()]


# Making it


def _make(folder: Path, size: int) -> None:
    language = _language()
    pieces = [_piece(language, number, count) for number, count in enumerate(sizes_of(size))]
    sizes = np.concatenate([piece.sizes for piece in pieces])
    homes = np.repeat(np.arange(len(pieces)), [len(piece.sizes) for piece in pieces])
    # Sources of all collections are mixed, as in a library to which many people add.
    order = np.random.default_rng(size).permutation(len(sizes))
    owners = np.repeat(np.arange(len(sizes)), sizes)
    places = np.argsort(np.argsort(order)[owners], kind="stable")
    texts = [text for piece in pieces for text in piece.texts]
    titles = [title for piece in pieces for title in piece.titles]
    (folder / "texts.txt").write_text("\n".join(texts[int(place)] for place in places))
    (folder / "titles.txt").write_text("\n".join(titles[int(source)] for source in order))
    np.save(folder / "collections.npy", homes[order])
    np.save(folder / "firsts.npy", np.append(0, np.cumsum(sizes[order])))
    vectors = np.concatenate([piece.vectors for piece in pieces])[places]
    np.save(folder / "vectors.npy", vectors)
    now_at = np.argsort(places)
    _save_questions(folder, "one", language, pieces[:1], now_at, vectors)
    _save_questions(folder, "all", language, pieces, now_at, vectors)


def _language() -> Language:
    random = np.random.default_rng(1)
    syllables = random.integers(len(_SYLLABLES), size=(4 * _WORDS, 4)).tolist()
    made = ("".join(_SYLLABLES[each] for each in word[: 2 + word[3] % 3]) for word in syllables)
    words = list(dict.fromkeys((*_FUNCTION, *made)))[:_WORDS]
    shares = 1 / (np.arange(_WORDS) + 2.7)
    common = len(_FUNCTION)
    shares[:common] *= _FUNCTION_SHARE / shares[:common].sum()
    shares[common:] *= (1 - _FUNCTION_SHARE) / shares[common:].sum()
    topics = random.integers(common + 300, _WORDS, (_TOPICS, _TOPIC_WORDS))
    decay = np.arange(1, _LATENT + 1, dtype=np.float32) ** np.float32(-0.3)
    vectors = _unit(random.standard_normal((_WORDS, _LATENT), np.float32) * decay)
    vectors[:common] = 0
    # One more dimension, for the part that all share.
    spread = np.linalg.qr(random.standard_normal((DIMENSION, _LATENT + 1)))[0].T.astype(np.float32)
    centres = _unit(vectors[topics].sum(1)) * np.float32(_TOPIC_WEIGHT)
    return Language(words, np.cumsum(shares), topics, vectors, centres, np.ascontiguousarray(spread))


def _piece(language: Language, number: int, count: int) -> Piece:
    random = np.random.default_rng((2, number))
    sizes = _partition(random, count)
    of_source = random.choice(random.choice(_TOPICS, _TOPICS_HERE), len(sizes))
    topics = np.repeat(of_source, sizes)
    lengths = random.integers(*LENGTHS, count, endpoint=True)
    bounds = np.append(0, np.cumsum(lengths))
    number_of_words = int(bounds[-1])
    usual = np.minimum(np.searchsorted(language.shares, random.random(number_of_words)), _WORDS - 1)
    of_topic = language.topics[np.repeat(topics, lengths), random.integers(_TOPIC_WORDS, size=number_of_words)]
    words = np.where(random.random(number_of_words) < _TOPIC_SHARE, of_topic, usual)
    titles = language.topics[of_source[:, None], random.integers(_TOPIC_WORDS, size=(len(sizes), 4))]
    return Piece(
        titles=[_say(language, title) for title in titles],
        sizes=sizes,
        texts=[_say(language, words[first:last]) + "." for first, last in pairwise(bounds)],
        words=words,
        bounds=bounds,
        vectors=_vectors(language, random, words, bounds, topics),
    )


def _partition(random: np.random.Generator, count: int) -> NDArray[np.int64]:
    """Passages dealt out to sources."""
    sizes = random.integers(*PASSAGES, count // PASSAGES[0] + 1, endpoint=True)
    kept = sizes[: int(np.searchsorted(np.cumsum(sizes), count)) + 1].copy()
    kept[-1] -= kept.sum() - count
    return kept


def _say(language: Language, words: NDArray[np.int64]) -> str:
    numbers: list[int] = words.tolist()
    return " ".join([language.words[number] for number in numbers]).capitalize()


def _vectors(
    language: Language,
    random: np.random.Generator,
    words: NDArray[np.int64],
    bounds: NDArray[np.int64],
    topics: NDArray[np.int64],
) -> NDArray[np.float16]:
    made = np.empty((len(topics), DIMENSION), np.float16)
    for first in range(0, len(made), 5_000):
        here = bounds[first : first + 5_001]
        sums = np.add.reduceat(language.vectors[words[here[0] : here[-1]]], here[:-1] - here[0])
        latent = _unit(_unit(sums) + language.centres[topics[first : first + 5_000]])
        noise = random.standard_normal((len(sums), DIMENSION), np.float32) * np.float32(_NOISE / DIMENSION**0.5)
        made[first : first + 5_000] = _unit(_spread(language, latent) + noise)
    return made


def _spread(language: Language, latent: NDArray[np.float32]) -> NDArray[np.float32]:
    return latent @ language.spread[:-1] + np.float32(_COMMON) * language.spread[-1]


def _unit(vectors: NDArray[np.floating]) -> NDArray[np.float32]:
    lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
    return (vectors / np.maximum(lengths, 1e-9)).astype(np.float32)


# Questions


def _save_questions(
    folder: Path,
    scope: str,
    language: Language,
    pieces: Sequence[Piece],
    now_at: NDArray[np.int64],
    vectors: NDArray[np.float16],
) -> None:
    """Questions about passages of some pieces, the first of all; `now_at` holds the position of each passage."""
    random = np.random.default_rng(3)
    counts = [len(piece.texts) for piece in pieces]
    shares = np.array(counts) / sum(counts)
    told: list[dict[str, object]] = []
    asked = np.empty((QUESTIONS, DIMENSION), np.float32)
    for number in range(QUESTIONS):
        chosen = int(random.choice(len(pieces), p=shares))
        piece, place = pieces[chosen], int(random.integers(counts[chosen]))
        text, asked[number] = _question(language, random, piece, place)
        told.append({"text": text, "planted": int(now_at[sum(counts[:chosen]) + place])})
    inside = np.sort(now_at[: sum(counts)])
    (folder / f"{scope}.json").write_text(json.dumps(told))
    np.save(folder / f"{scope}-vectors.npy", asked)
    np.save(folder / f"{scope}-nearest.npy", _nearest(asked, vectors, inside))


def _question(
    language: Language, random: np.random.Generator, piece: Piece, place: int
) -> tuple[str, NDArray[np.float32]]:
    """A few words of a passage among function words, and a vector not far from the passage's."""
    there = np.unique(piece.words[piece.bounds[place] : piece.bounds[place + 1]])
    telling = random.choice(there[there >= len(_FUNCTION)], 5, replace=False)
    common = random.choice(len(_FUNCTION), 3, replace=False)
    text = _say(language, random.permutation(np.append(telling, common)))
    own = _unit(_spread(language, _unit(language.vectors[telling].sum(0, keepdims=True))))[0]
    answer = piece.vectors[place].astype(np.float32)
    return f"{text}?", _unit((own * (1 - _PULL) + answer * _PULL)[None])[0]


def _nearest(asked: NDArray[np.float32], vectors: NDArray[np.float16], inside: NDArray[np.int64]) -> NDArray[np.int64]:
    """The nearest of the passages `inside`, by the vectors as they are stored."""
    best = np.empty((len(asked), 0), np.float32)
    ids = np.empty((len(asked), 0), np.int64)
    for first in range(0, len(inside), 50_000):
        here = inside[first : first + 50_000]
        scores = np.hstack((best, asked @ vectors[here].astype(np.float32).T))
        ids = np.hstack((ids, np.broadcast_to(here, (len(asked), len(here)))))
        kept = np.argpartition(-scores, NEIGHBOURS - 1, axis=1)[:, :NEIGHBOURS]
        best, ids = np.take_along_axis(scores, kept, 1), np.take_along_axis(ids, kept, 1)
    return ids
