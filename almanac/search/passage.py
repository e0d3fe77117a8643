"""A passage, as a value: apart from the rest of search, for parsers load it into every confined child."""

from dataclasses import dataclass

import orjson

from almanac.core.database import Row


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


def passage_from_row(row: Row) -> Passage:
    """A passage from its row."""
    return Passage(
        start=row["span_start"],
        end=row["span_end"],
        text=row["text"],
        kind=row["form"],
        headings=tuple(orjson.loads(row["headings"])),
        page=row["page"],
        boxes=tuple(tuple(box) for box in orjson.loads(row["boxes"])),
        parent=row["parent"],
    )
