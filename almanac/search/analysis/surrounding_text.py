"""Neighbours: what stands beside a passage that is too short to be understood alone, such as a turn of a conversation.

Its words count a little for it, and what was said before is embedded with it. Only what stands under the same headings
is a neighbour. A thing may also come with a context: what was said before it elsewhere, as in notes that follow each
other; that is a neighbour of its first passage.
"""

from collections.abc import Sequence

from almanac.core.database import Row
from almanac.search.passage import Passage

SHORT = 500  # characters

# Of the passages `p` of the sources `s` in a query: columns for the text of each neighbour, and the joins they need.
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
    """What stands beside one of a thing's passages."""
    here = passages[place]
    if len(here.text) > SHORT:
        return ""
    near = (*passages[max(0, place - 2) : place], *passages[place + 1 : place + 2])
    texts = [each.text for each in near if (each.headings, each.parent) == (here.headings, here.parent)]
    return "\n".join([context, *texts] if context and place == 0 else texts)


def beside_row(row: Row) -> str:
    """The same, of a passage that was read with its neighbours."""
    return "" if len(row["text"]) > SHORT else "\n".join(filter(None, (row[name] for name in ("context", *_PLACES))))


def preceding_text(row: Row) -> str:
    """What was said before a passage that was read with its neighbours."""
    return (
        ""
        if len(row["text"]) > SHORT
        else "\n".join(filter(None, (row[name] for name in ("context", "before_that", "before"))))
    )
