"""The analyser: turns text into the terms of the index.

- Words are folded (case, width, accents) and stemmed in the language of their script or of their text.
- Scripts without spaces between words are cut into single characters and pairs.
- Identifiers (`HTTP2Client`, `SKU-9931`, `v1.2.3`) are indexed whole and by their parts.
- In languages with compound words, a long word is also indexed by its beginnings and ends.

The terms of a passage are stored as their sorted hashes, followed by their counts. Counts are in tenths, because a word
of the title counts more than a word of the text, and a word of the surrounding text less.
"""

import hashlib
import re
import unicodedata
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from almanac.search.analysis import languages, surrounding_text
from almanac.search.passage import Passage

_UNSPACED = (
    "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff"  # Thai, Lao, Burmese, Khmer
    "\u3005\u3040-\u30ff\u31f0-\u31ff\u3400-\u4dbf\u4e00-\u9fff\uac00-\ud7af\uf900-\ufaff"  # Japanese, Chinese, Korean
    "\U00020000-\U0003ffff"
)
# Marks that belong to the word of their letter: separate accents, vowel signs of India, points of Arabic and Hebrew,
# soft hyphens and joiners.
_MARKS = "\u00ad\u200d" + "".join(
    chr(code)
    for block in (
        (0x0300, 0x0E00),
        (0x0F00, 0x1000),
        (0x1AB0, 0x1E00),
        (0x20D0, 0x2100),
        (0xA800, 0xAC00),
        (0xFE20, 0xFE30),
    )
    for code in range(*block)
    if unicodedata.category(chr(code)).startswith("M")
)
_LETTERS = rf"[^\W_{_UNSPACED}]+(?:[{_MARKS}]+[^\W_{_UNSPACED}]*)*"
_WORD = re.compile(rf"[{_UNSPACED}]+|{_LETTERS}(?:[-_./'’:@+#]{_LETTERS})*(?:\+\+|#(?!\w))?")
_IS_UNSPACED = re.compile(f"[{_UNSPACED}]")
_JOINT = re.compile(r"[-_./'’:@]")
_CAMEL = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+|[^\W\d_A-Za-z]+")
_IS_CAMEL = re.compile(r"[a-z][A-Z]|[A-Za-z]\d|\d[A-Za-z]")
_IS_PLAIN = re.compile(r"[a-z]+")
# Letters that Unicode does not decompose, and invisible characters.
_PLAIN = str.maketrans("øłđðħŧı", "olddhti") | str.maketrans(
    {"œ": "oe", "æ": "ae", "þ": "th", "\u00ad": "", "\u200d": ""}
)
_KEPT = frozenset((0, 9))  # combining classes: letters with vowel signs, and signs that silence a vowel
MAX_WORD_CHARS = 64  # the rest of a longer word is ignored
_COMPOUND = 9  # the shortest compound word, in characters
_SURE_COMPOUND = 14  # the same in an unknown language
_PIECES = range(4, 15)  # lengths of the indexed beginnings and ends of a compound
MAX_TERM_COUNT = 255  # in tenths
_TEXT, _TITLE, _AROUND = 10, 15, 4  # tenths that a word counts, by its place


def terms_of(text: str) -> list[str]:
    """The terms of a text, in order."""
    return [term for _, _, terms in words_of(text) for term in terms]


def words_of(text: str) -> Iterator[tuple[int, int, tuple[str, ...]]]:
    """The words of a text that have terms: start, end and terms of each. Common words have none."""
    language = languages.detect(text)
    for match in _WORD.finditer(text):
        word = match[0]
        if terms := _unspaced(word) if _IS_UNSPACED.match(word) else _terms(word[:MAX_WORD_CHARS], language):
            yield match.start(), match.end(), terms


def terms_of_word(word: str) -> tuple[str, ...]:
    """The terms of a single English word."""
    return _terms(word[:MAX_WORD_CHARS], languages.ENGLISH)


def is_unspaced(character: str) -> bool:
    """Whether a character belongs to a script without spaces between words."""
    return _IS_UNSPACED.match(character) is not None


@lru_cache(5_000)
def term_hash(term: str) -> int:
    """The stored form of a term: a signed number of 64 bits."""
    digest = hashlib.blake2b(term.encode("utf-8", "replace"), digest_size=8).digest()
    return int.from_bytes(digest, "little", signed=True)


def encode_terms(title: str, headings: Sequence[str], text: str, around: str = "") -> bytes:
    """The counted terms of a passage, as they are stored. `around` is the surrounding text of a short passage."""
    counted: Counter[int] = Counter()
    for part, worth in ((text, _TEXT), ("\n".join((title, *headings)), _TITLE), (around, _AROUND)):
        for term in terms_of(part):
            counted[term_hash(term)] += worth
    hashes = np.fromiter(counted.keys(), np.int64, len(counted))
    counts = np.fromiter((min(n, MAX_TERM_COUNT) for n in counted.values()), np.uint8, len(counted))
    order = np.argsort(hashes)
    return hashes[order].tobytes() + counts[order].tobytes()


def count(title: str, passages: Sequence[Passage], context: str = "") -> list[bytes]:
    """The terms of each passage of a source, as they are stored. `context` is text that precedes the first passage."""
    return [
        encode_terms(title, each.headings, each.text, surrounding_text.surrounding_text(passages, place, context))
        for place, each in enumerate(passages)
    ]


def decode_terms(words: bytes) -> tuple[NDArray[np.int64], NDArray[np.uint8]]:
    """The hashes and the counts of a passage's terms."""
    number = len(words) // 9
    return np.frombuffer(words, np.int64, number), np.frombuffer(words, np.uint8, number, 8 * number)


class Bags(NamedTuple):
    """The terms of several passages in sequence."""

    hashes: NDArray[np.int64]
    counts: NDArray[np.uint8]
    ends: NDArray[np.int64]  # of each passage's terms
    lengths: NDArray[np.int64]  # the sum of the counts of each passage


def decode_all(words: Sequence[bytes]) -> Bags:
    """The stored terms of passages."""
    sizes = [len(each) // 9 for each in words]
    lengths, some = np.zeros(len(words), np.int64), np.flatnonzero(sizes)
    hashes = np.frombuffer(b"".join([each[: 8 * n] for each, n in zip(words, sizes, strict=True)]), np.int64)
    counts = np.frombuffer(b"".join([each[8 * n :] for each, n in zip(words, sizes, strict=True)]), np.uint8)
    ends = np.cumsum(np.array(sizes, np.int64))
    if len(some):
        lengths[some] = np.add.reduceat(counts, np.concatenate(([0], ends))[some], dtype=np.int64)
    return Bags(hashes, counts, ends, lengths)


def occurrences(words: Sequence[bytes], terms: NDArray[np.int64]) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """The counts of terms, with a row per term and a column per passage, and the lengths of the passages."""
    bags = decode_all(words)
    counts = np.zeros((len(terms), len(words)), np.uint8)
    for row, term in zip(counts, terms, strict=True):
        places = np.flatnonzero(bags.hashes == term)
        row[bags.ends.searchsorted(places, "right")] = bags.counts[places]
    return counts, bags.lengths


def own(words: bytes) -> NDArray[np.int64]:
    """The hashes of a passage's terms without those that occur only in its surrounding text."""
    hashes, counts = decode_terms(words)
    return hashes[counts >= _TEXT]


def count_shared(words: Sequence[bytes], terms: NDArray[np.int64]) -> NDArray[np.int64]:
    """The number of the sorted terms that each passage contains, not counting those of its surrounding text."""
    bags = decode_all(words)
    if not len(terms) or not len(bags.hashes):
        return np.zeros(len(words), np.int64)
    nearest = terms[np.minimum(terms.searchsorted(bags.hashes), len(terms) - 1)]
    found = np.concatenate(([0], np.cumsum((nearest == bags.hashes) & (bags.counts >= _TEXT))))
    return np.diff(found[np.concatenate(([0], bags.ends))])


def fold(word: str) -> str:
    """A word in lower case without accents."""
    if word.isascii():
        return word.lower()
    apart = unicodedata.normalize("NFKD", unicodedata.normalize("NFKC", word).casefold()).translate(_PLAIN)
    return unicodedata.normalize("NFC", "".join(each for each in apart if unicodedata.combining(each) in _KEPT))


@lru_cache(10_000)
def _terms(word: str, language: str | None) -> tuple[str, ...]:
    word = unicodedata.normalize("NFKC", word)
    if _IS_UNSPACED.match(word):
        return _unspaced(word)
    parts = [part for part in _JOINT.split(word) if part]
    found = [term for part in parts for term in _forms(part, language, is_alone=len(parts) == 1)]
    if len(parts) > 1 and any(each.isdigit() for each in word):
        found.append(fold(word))
    if _IS_CAMEL.search(word):
        pieces = (fold(piece) for piece in _CAMEL.findall(word) if len(piece) > 1)
        found += (languages.stem(piece, languages.ENGLISH) for piece in pieces)
    return tuple(dict.fromkeys(found))


def _unspaced(run: str) -> tuple[str, ...]:
    """Characters and pairs. A run has no maximum length, because it may be a whole sentence."""
    run = unicodedata.normalize("NFKC", run)
    return (*run, *(run[at : at + 2] for at in range(len(run) - 1)))


def _forms(part: str, language: str | None, *, is_alone: bool) -> Iterable[str]:
    """The indexed forms of one word without punctuation."""
    whole = fold(part)
    spoken = language or languages.ENGLISH
    if (len(whole) == 1 and not is_alone and whole.isascii() and whole.isalpha()) or languages.is_common(whole, spoken):
        return
    for script, letters in languages.SCRIPTS:
        if letters.match(whole):
            yield languages.stem(whole, script)
            return
    if spoken == languages.ENGLISH:
        yield languages.stem(whole, spoken) if _IS_PLAIN.fullmatch(whole) else whole
    else:
        # Also unstemmed and with the English stem, because a query of a word or two does not show its language.
        english = languages.stem(whole, languages.ENGLISH) if _IS_PLAIN.fullmatch(whole) else whole
        yield from dict.fromkeys((fold(languages.stem(part.casefold(), spoken)), whole, english))
    shortest = _COMPOUND if language in languages.COMPOUNDING else _SURE_COMPOUND
    if language != languages.ENGLISH and len(whole) >= shortest and whole.isalpha():
        yield from (whole[:length] for length in _PIECES if length <= len(whole) - _PIECES.start)
        yield from (whole[-length:] for length in _PIECES if length <= len(whole) - _PIECES.start)
