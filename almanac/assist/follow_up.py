"""Follow-up questions: completes a question that refers to an earlier one, so that it can be searched."""

import re
from collections.abc import Sequence

from almanac.assist.weknora.weknora_tool import MAX_TOOL_QUERY_CHARS
from almanac.search.analysis import analyser

MAX_ADDED_WORDS = 12  # from the earlier question
MIN_WORDS = 3  # a question with fewer keywords may depend on the earlier one

_REFERENCE = re.compile(
    r"\b(it|its|they|them|their|theirs|this|that|these|those|he|him|his|she|her|hers|there|then|same|former"
    r"|latter|both)\b|^\W*(and|but|or|so|also|what about|how about|why|what else|who else|any other)\b"
    r"|[它他她其该此这那们]|呢|还有|另外|为什么",
    re.IGNORECASE,
)
_QUESTION_WORDS = frozenset((
    "what", "who", "whom", "whose", "which", "when", "where", "why", "how", "many", "much", "long", "often",
    "far", "old",
))  # fmt: skip
_SEPARATOR = re.compile(
    r"\s*(?:[?;？；]|,?\s+and\s+(?=(?:what|who|when|where|which|why|how)\b)|以及|并且)\s*", re.IGNORECASE
)


def resolve(question: str, earlier: Sequence[str]) -> str:
    """The question with the missing words of the previous one. `earlier` are the resolved questions, oldest first."""
    if not earlier or not _is_follow_up(question, earlier[-1]):
        return question
    terms = set(analyser.terms_of(question))
    added = [word for word in keywords(earlier[-1]).split() if not terms & set(analyser.terms_of(word))]
    return f"{question} ({' '.join(added[:MAX_ADDED_WORDS])})"[:MAX_TOOL_QUERY_CHARS] if added else question


def keywords(question: str) -> str:
    """The words of a question without question words, each once."""
    words = [question[start:end] for start, end, _ in analyser.words_of(question)]
    return " ".join(dict.fromkeys(word for word in words if word.lower() not in _QUESTION_WORDS))


def parts(question: str) -> list[str]:
    """The questions in a compound question. Empty if there is only one."""
    questions = [part.strip() for part in _SEPARATOR.split(question) if len(analyser.terms_of(part)) > 1]
    return questions if len(questions) > 1 else []


def _is_follow_up(question: str, previous: str) -> bool:
    if _REFERENCE.search(question):
        return True
    words = keywords(question)
    is_short = len(words.split()) < MIN_WORDS and not any(map(analyser.is_unspaced, question))
    return is_short and not set(analyser.terms_of(words)) - set(analyser.terms_of(previous))
