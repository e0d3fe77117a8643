"""Reading: the sentences of what was found that answer a question, word for word, without a language model.

A sentence counts by how much of the question it has, rare words more than common ones, and by how likely the piece it
stands in answers.
"""

import math
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from almanac.assist.weknora.weknora_tool import WeKnoraResult
from almanac.search.analysis import analyser

MAX_SENTENCES = 3  # sentences of an answer
PIECES = 5  # of the best that are read
MAX_SENTENCE_CHARS = 400  # characters of a sentence that are quoted
READ = 30_000  # characters of a piece that are read
_OVERLAP = 0.6  # what the words of a sentence count, beside the score of its piece
_WORTH = 0.4  # of the best sentence, that another must come to

# After a full stop comes a space, lest numbers and names be cut; after that of Chinese and Japanese nothing need.
_END = re.compile(r"(?<=[.!?…])\s+(?=[^\s\d])|(?<=[。！？；])|\n+")
_MARKUP = "#>*-| "  # that a line may begin with


@dataclass(frozen=True, slots=True)
class Quote:
    """A sentence, and the piece it stands in."""

    piece: WeKnoraResult
    text: str
    worth: float


def read(question: str, pieces: Sequence[WeKnoraResult]) -> list[Quote]:
    """The sentences that answer, the best first, no two of them the same."""
    wanted = set(analyser.terms_of(question))
    sentences = [(piece, text, set(analyser.terms_of(text))) for piece in pieces[:PIECES] for text in _split(piece)]
    rarity = _rarity([terms for _, _, terms in sentences])
    whole = sum(rarity.get(term, 0.0) for term in wanted) or 1.0
    quotes: dict[str, Quote] = {}
    for piece, text, terms in sentences:
        overlap = sum(rarity[term] for term in wanted & terms) / whole
        quotes.setdefault(text, Quote(piece, text, _OVERLAP * overlap + (1 - _OVERLAP) * piece.score))
    ranked = sorted(quotes.values(), key=lambda quote: -quote.worth)[:MAX_SENTENCES]
    return [quote for quote in ranked if quote.worth >= _WORTH * ranked[0].worth]


def best(question: str, piece: WeKnoraResult) -> str:
    """The sentence of one piece that says most of what was asked."""
    found = read(question, [piece])
    return found[0].text if found else ""


def _split(piece: WeKnoraResult) -> list[str]:
    # Without a pattern for what is stripped: one would look at the spaces inside again and again.
    flat = (" ".join(part.split()).lstrip(_MARKUP) for part in _END.split(piece.content[:READ]))
    return [_cut(part) for part in flat if part]


def _cut(flat: str) -> str:
    return flat if len(flat) <= MAX_SENTENCE_CHARS else flat[: MAX_SENTENCE_CHARS - 1].rsplit(" ", 1)[0] + "…"


def _rarity(sentences: Sequence[set[str]]) -> dict[str, float]:
    counts = Counter(term for terms in sentences for term in terms)
    return {term: math.log1p(len(sentences) / number) for term, number in counts.items()}
