"""Passages: the pieces of text that are searched, of whatever kind of thing they come from.

A passage knows whose it is only as `(kind, owner_id)` and what it may be searched with only as its collection.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Passage:
    """One piece of a thing's text."""

    start: int  # in the thing's own text, up to but not including `end`
    end: int
    text: str  # what is searched and shown: the span, after the header of the table it was cut from
    kind: str = "text"  # text, table or code
    headings: tuple[str, ...] = ()  # those it stands under, the highest first
    page: int | None = None  # where it begins
    boxes: tuple[tuple[int, float, float, float, float], ...] = ()  # page, x0, y0, x1, y1; one for each page it is on
    parent: int | None = None  # its place in the list of the passage around it; None for one that stands alone
