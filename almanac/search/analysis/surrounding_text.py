"""Surrounding text: the neighbours of a passage that is too short to be understood alone, such as a turn of a
conversation.

The words of the two passages before it and of the one after it count a little for the short passage, and the passages
before it are embedded with it. Neighbours have the same headings. A source may also have a context: text that precedes
it in another source, such as an earlier note. The context is a neighbour of its first passage.
"""

from collections.abc import Sequence

from almanac.core.database import Row
from almanac.search.passage import Passage

SHORT_PASSAGE_CHARS = 500

# For a query of passages `p` and sources `s`: columns with the text of each neighbour, and their joins.
_PLACES = {"before_that": -2, "before": -1, "after": 1}
COLUMNS = ", ".join(f"{name}.text AS {name}" for name in _PLACES) + (
    ", CASE WHEN p.ordinal = 0 THEN s.context ELSE '' END AS context"
)
JOINS = " ".join(
    f"LEFT JOIN passages {name} ON {name}.source_id = p.source_id AND {name}.ordinal = p.ordinal + {place}"
    f" AND CAST({name}.headings AS TEXT) = CAST(p.headings AS TEXT)"
    f" AND coalesce({name}.parent, -1) = coalesce(p.parent, -1)"
    for name, place in _PLACES.items()
)


def surrounding_text(passages: Sequence[Passage], place: int, context: str = "") -> str:
    """The surrounding text of one of a source's passages."""
    here = passages[place]
    if len(here.text) > SHORT_PASSAGE_CHARS:
        return ""
    near = (*passages[max(0, place - 2) : place], *passages[place + 1 : place + 2])
    texts = [each.text for each in near if (each.headings, each.parent) == (here.headings, here.parent)]
    return "\n".join([context, *texts] if context and place == 0 else texts)


def beside_row(row: Row) -> str:
    """The surrounding text of a passage row with `COLUMNS`."""
    return _joined(row, ("context", *_PLACES))


def preceding_text(row: Row) -> str:
    """The part of the surrounding text before a passage, from a row with `COLUMNS`."""
    return _joined(row, ("context", "before_that", "before"))


def _joined(row: Row, columns: Sequence[str]) -> str:
    is_short = len(row["text"]) <= SHORT_PASSAGE_CHARS
    return "\n".join(row[column] for column in columns if row[column]) if is_short else ""
