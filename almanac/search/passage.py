"""The passage as a value, in a module of its own because each sandboxed parser process loads it."""

from dataclasses import dataclass

import orjson

from almanac.core.database import Row


@dataclass(frozen=True, slots=True)
class Passage:
    """A searchable part of a text."""

    start: int  # in the whole text
    end: int  # exclusive
    text: str  # the span, preceded by the table header if the passage is a part of a table
    kind: str = "text"  # text, table or code
    headings: tuple[str, ...] = ()  # of the sections that contain it, the highest first
    page: int | None = None  # of its beginning
    boxes: tuple[tuple[int, float, float, float, float], ...] = ()  # page, x0, y0, x1, y1; one for each of its pages
    parent: int | None = None  # the place of the containing passage in the list


def passage_from_row(row: Row) -> Passage:
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
