"""Answers a question without a language model, by quoting sentences of the search results.

The score of a sentence combines the share of the question's words in it, weighted by their rarity, with the score of
its search result.
"""

import math
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from almanac.assist.weknora.weknora_result import WeKnoraResult
from almanac.core.text import one_line
from almanac.search.analysis import analyser

MAX_SENTENCES = 3  # in an answer
MAX_RESULTS = 5  # the best results; their sentences are compared
MAX_SENTENCE_CHARS = 400  # a longer sentence is shortened
MAX_CONTENT_CHARS = 30_000  # per result
_WORD_WEIGHT = 0.6  # of the shared words; the rest is the weight of the result's score
_MIN_RELATIVE_SCORE = 0.4  # relative to the best sentence

# A full stop ends a sentence only before white space, so that numbers and names stay whole. A Chinese or Japanese one
# always does.
_SENTENCE_END = re.compile(r"(?<=[.!?…])\s+(?=[^\s\d])|(?<=[。！？；])|\n+")
_MARKUP = "#>*-| "  # stripped from the start of a sentence


@dataclass(frozen=True, slots=True)
class Quote:
    """A quoted sentence and its search result."""

    result: WeKnoraResult
    text: str
    score: float


def read(question: str, results: Sequence[WeKnoraResult]) -> list[Quote]:
    """The sentences that answer the question best, without duplicates."""
    question_terms = set(analyser.terms_of(question))
    sentences = [
        (result, text, set(analyser.terms_of(text))) for result in results[:MAX_RESULTS] for text in _sentences(result)
    ]
    rarity = _rarity([terms for _, _, terms in sentences])
    total = sum(rarity.get(term, 0.0) for term in question_terms) or 1.0
    quotes: dict[str, Quote] = {}
    for result, text, terms in sentences:
        share = sum(rarity[term] for term in question_terms & terms) / total
        quotes.setdefault(text, Quote(result, text, _WORD_WEIGHT * share + (1 - _WORD_WEIGHT) * result.score))
    ranked = sorted(quotes.values(), key=lambda quote: -quote.score)[:MAX_SENTENCES]
    return [quote for quote in ranked if quote.score >= _MIN_RELATIVE_SCORE * ranked[0].score]


def best(question: str, result: WeKnoraResult) -> str:
    """The sentence of one result that answers the question best, or an empty text if the result has none."""
    quotes = read(question, [result])
    return quotes[0].text if quotes else ""


def _sentences(result: WeKnoraResult) -> list[str]:
    # A regular expression that also matches surrounding white space would take quadratic time on long runs of it.
    parts = (one_line(part).lstrip(_MARKUP) for part in _SENTENCE_END.split(result.content[:MAX_CONTENT_CHARS]))
    return [_shorten(part) for part in parts if part]


def _shorten(text: str) -> str:
    return text if len(text) <= MAX_SENTENCE_CHARS else text[: MAX_SENTENCE_CHARS - 1].rsplit(" ", 1)[0] + "…"


def _rarity(sentences: Sequence[set[str]]) -> dict[str, float]:
    counts = Counter(term for terms in sentences for term in terms)
    return {term: math.log1p(len(sentences) / count) for term, count in counts.items()}
