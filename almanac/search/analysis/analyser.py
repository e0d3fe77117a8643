"""Analysis: from text to the terms it is found by.

Words are folded (case, width, accents) and stemmed by the language of their script or of their text; scripts that put
no spaces between words are cut into single characters and pairs; identifiers (`HTTP2Client`, `SKU-9931`, `v1.2.3`) are
kept whole and cut into their parts as well; in languages that join words, a long word is found by its two ends too.

A passage's terms are stored counted and hashed: the hash of each, then how often it stands there, sorted by hash.
Counts are in tenths, for a word of the title is worth more than one of the text, and one of its neighbourhood less.
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
# What stands over, under or beside a letter and belongs to its word: accents apart from their letters, vowel signs of
# India, points of Arabic and Hebrew; and what only says how a word is joined or broken.
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
# Letters that no decomposition takes an accent from; and what is written but not read.
_PLAIN = str.maketrans("øłđðħŧı", "olddhti") | str.maketrans(
    {"œ": "oe", "æ": "ae", "þ": "th", "\u00ad": "", "\u200d": ""}
)
_KEPT = frozenset((0, 9))  # classes of combining characters: letters and vowel signs, and those that silence a vowel
MAX_WORD_CHARS = 64  # characters of a word that are looked at
_COMPOUND = 9  # characters from which a word may be several
_SURE_COMPOUND = 14  # the same where the language is not known
_PIECES = range(4, 15)  # lengths of what a compound begins or ends with
MAX_TERM_COUNT = 255  # tenths of an occurrence that are counted
_TEXT, _TITLE, _AROUND = 10, 15, 4  # what a word is worth by where it stands


def terms_of(text: str) -> list[str]:
    """The terms of a text, in its order."""
    return [term for _, _, terms in words_of(text) for term in terms]


def words_of(text: str) -> Iterator[tuple[int, int, tuple[str, ...]]]:
    """The words of a text that mean something: where each starts and ends, and the terms it is found by."""
    language = languages.detect(text)
    for match in _WORD.finditer(text):
        word = match[0]
        if terms := _unspaced(word) if _IS_UNSPACED.match(word) else _terms(word[:MAX_WORD_CHARS], language):
            yield match.start(), match.end(), terms


def terms_of_word(word: str) -> tuple[str, ...]:
    """The terms of a single word, taken for English."""
    return _terms(word[:MAX_WORD_CHARS], languages.ENGLISH)


def is_unspaced(character: str) -> bool:
    """Whether a character is of a script that puts no spaces between words."""
    return _IS_UNSPACED.match(character) is not None


@lru_cache(5_000)
def term_hash(term: str) -> int:
    """The number a term is stored as: 64 bits, signed."""
    digest = hashlib.blake2b(term.encode("utf-8", "replace"), digest_size=8).digest()
    return int.from_bytes(digest, "little", signed=True)


def encode_terms(title: str, headings: Sequence[str], text: str, around: str = "") -> bytes:
    """The terms of a passage, counted, as they are stored; `around` is what stands beside one that is short."""
    counted: Counter[int] = Counter()
    for part, worth in ((text, _TEXT), ("\n".join((title, *headings)), _TITLE), (around, _AROUND)):
        for term in terms_of(part):
            counted[term_hash(term)] += worth
    hashes = np.fromiter(counted.keys(), np.int64, len(counted))
    counts = np.fromiter((min(n, MAX_TERM_COUNT) for n in counted.values()), np.uint8, len(counted))
    order = np.argsort(hashes)
    return hashes[order].tobytes() + counts[order].tobytes()


def count(title: str, passages: Sequence[Passage], context: str = "") -> list[bytes]:
    """The terms of each of a thing's passages, as they are stored; `context` is what was said before the first."""
    return [
        encode_terms(title, each.headings, each.text, surrounding_text.surrounding_text(passages, place, context))
        for place, each in enumerate(passages)
    ]


def decode_terms(words: bytes) -> tuple[NDArray[np.int64], NDArray[np.uint8]]:
    """The hashes of a passage's terms, and how often each stands there."""
    number = len(words) // 9
    return np.frombuffer(words, np.int64, number), np.frombuffer(words, np.uint8, number, 8 * number)


class Bags(NamedTuple):
    """The terms of several passages, one after the other."""

    hashes: NDArray[np.int64]
    counts: NDArray[np.uint8]
    ends: NDArray[np.int64]  # by passage: where its terms end
    lengths: NDArray[np.int64]  # by passage: how often its terms stand there, in all


def unpack_all(words: Sequence[bytes]) -> Bags:
    """The terms of passages."""
    sizes = [len(each) // 9 for each in words]
    lengths, some = np.zeros(len(words), np.int64), np.flatnonzero(sizes)
    hashes = np.frombuffer(b"".join([each[: 8 * n] for each, n in zip(words, sizes, strict=True)]), np.int64)
    counts = np.frombuffer(b"".join([each[8 * n :] for each, n in zip(words, sizes, strict=True)]), np.uint8)
    ends = np.cumsum(np.array(sizes, np.int64))
    if len(some):
        lengths[some] = np.add.reduceat(counts, np.concatenate(([0], ends))[some], dtype=np.int64)
    return Bags(hashes, counts, ends, lengths)


def occurrences(words: Sequence[bytes], terms: NDArray[np.int64]) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """How often each term stands in each passage (a row for each term), and how long the passages are."""
    bags = unpack_all(words)
    counts = np.zeros((len(terms), len(words)), np.uint8)
    for row, term in zip(counts, terms, strict=True):
        places = np.flatnonzero(bags.hashes == term)
        row[bags.ends.searchsorted(places, "right")] = bags.counts[places]
    return counts, bags.lengths


def own(words: bytes) -> NDArray[np.int64]:
    """The hashes of those of a passage's terms that do not only stand beside it."""
    hashes, counts = decode_terms(words)
    return hashes[counts >= _TEXT]


def fold(word: str) -> str:
    """A word in small letters of plain shape, without accents."""
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
    """Characters and pairs. A run may be as long as its sentence, so that none of it is left out."""
    run = unicodedata.normalize("NFKC", run)
    return (*run, *(run[at : at + 2] for at in range(len(run) - 1)))


def _forms(part: str, language: str | None, *, is_alone: bool) -> Iterable[str]:
    """The forms of one word, without punctuation in it, that it is found by."""
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
        # As it stands too, and as English has it: in a question of a word or two, little or nothing tells the language.
        english = languages.stem(whole, languages.ENGLISH) if _IS_PLAIN.fullmatch(whole) else whole
        yield from dict.fromkeys((fold(languages.stem(part.casefold(), spoken)), whole, english))
    shortest = _COMPOUND if language in languages.COMPOUNDING else _SURE_COMPOUND
    if language != languages.ENGLISH and len(whole) >= shortest and whole.isalpha():
        yield from (whole[:length] for length in _PIECES if length <= len(whole) - _PIECES.start)
        yield from (whole[-length:] for length in _PIECES if length <= len(whole) - _PIECES.start)
