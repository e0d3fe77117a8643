"""Splits prose into passages: the bodies of notes and the texts of the catalogue. Documents have a splitter of their
own, which also reads headings, tables and code."""

import re

# A text is cut after a paragraph if possible, otherwise after a line, a sentence or a word.
_ENDS = tuple(map(re.compile, (r"\n\s*\n", r"\n", r"[.!?。！？]\s", r"\s")))


def split_prose(text: str, max_chars: int) -> list[tuple[int, int]]:
    """The start and end of each passage. All but the last have at least half of the maximum length."""
    spans: list[tuple[int, int]] = []
    start = 0
    while len(text) - start > max_chars:
        end = _last_end(text, start + max_chars // 2, start + max_chars)
        spans.append((start, end))
        start = end
    return [*spans, (start, len(text))]


def _last_end(text: str, low: int, high: int) -> int:
    for pattern in _ENDS:
        if ends := [match.end() for match in pattern.finditer(text, low, high)]:
            return ends[-1]
    return high
