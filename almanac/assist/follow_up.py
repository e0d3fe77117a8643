"""Questions that follow others: what is meant by one that leans on what was asked before it."""

import re
from collections.abc import Sequence

from almanac.assist.weknora.weknora_tool import MAX_TOOL_QUERY_CHARS
from almanac.search.analysis import analyser

REMEMBERED = 12  # words of an earlier question that are brought along
FEW = 3  # words that mean something, below which a question can hardly stand alone

_LEANS = re.compile(
    r"\b(it|its|they|them|their|theirs|this|that|these|those|he|him|his|she|her|hers|there|then|same|former"
    r"|latter|both)\b|^\W*(and|but|or|so|also|what about|how about|why|what else|who else|any other)\b"
    r"|[它他她其该此这那们]|呢|还有|另外|为什么",
    re.IGNORECASE,
)
_QUESTIONING = frozenset(
    (
        "what",
        "who",
        "whom",
        "whose",
        "which",
        "when",
        "where",
        "why",
        "how",
        "many",
        "much",
        "long",
        "often",
        "far",
        "old",
    )
)
_PARTS = re.compile(
    r"\s*(?:[?;？；]|,?\s+and\s+(?=(?:what|who|when|where|which|why|how)\b)|以及|并且)\s*", re.IGNORECASE
)


def resolve(question: str, earlier: Sequence[str]) -> str:
    """A question that can be searched for as it stands; `earlier` are those before it, so resolved, oldest first."""
    if not earlier or not _leans(question, earlier[-1]):
        return question
    own = set(analyser.terms_of(question))
    brought = [word for word in keywords(earlier[-1]).split() if not own & set(analyser.terms_of(word))]
    return f"{question} ({' '.join(brought[:REMEMBERED])})"[:MAX_TOOL_QUERY_CHARS] if brought else question


def keywords(question: str) -> str:
    """A question without the words that only make it one."""
    words = [question[start:end] for start, end, _ in analyser.words_of(question)]
    return " ".join(dict.fromkeys(word for word in words if word.lower() not in _QUESTIONING))


def parts(question: str) -> list[str]:
    """The questions that one question is made of; none where it is but one."""
    found = [part.strip() for part in _PARTS.split(question) if len(analyser.terms_of(part)) > 1]
    return found if len(found) > 1 else []


def _leans(question: str, before: str) -> bool:
    if _LEANS.search(question):
        return True
    words = keywords(question)
    is_short = len(words.split()) < FEW and not any(map(analyser.is_unspaced, question))
    return is_short and not set(analyser.terms_of(words)) - set(analyser.terms_of(before))
