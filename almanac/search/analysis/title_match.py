"""Titles: things whose title has a text within it, whatever the case of the letters A to Z.

Words find titles too (`analysis.py` counts them more than text), and of a text of three words or more at least one
stands whole in every title that has the text within it: such titles are looked for among what words have found. For a
shorter text, which may be part of a word, titles are read one by one: those of the newest things of a scope, as many as
can be read in some milliseconds.
"""

from almanac.core.database import Database, Value
from almanac.search.index.protocol import SearchScope

MAX_SCANNED_TITLES = 20_000  # things whose titles are read
MAX_TITLE_QUERY_CHARS = 200  # characters: what is longer is no part of a title
FEW = 2  # words, more of which are left to the words leg

# As in search/conditions.py: compared by code points and lowered from A to Z in both databases.
_TITLE = "lower(s.title || substr(CAST('' AS name), 1, 0))"
_FIND = """
SELECT p.id FROM (SELECT {columns} FROM sources WHERE collection IN ({names}) AND is_live = 1
    ORDER BY id DESC LIMIT {newest}) s JOIN passages p ON p.source_id = s.id AND p.ordinal = 0
WHERE {where} AND replace({title}, ${text}, '') <> {title} ORDER BY s.id DESC LIMIT {limit}
"""
_LOWER = str.maketrans("ABCDEFGHIJKLMNOPQRSTUVWXYZ", "abcdefghijklmnopqrstuvwxyz")


def has(title: str, text: str) -> bool:
    """Whether a title has a text within it."""
    return _lowered(text) in _lowered(title) if text.strip() else False


async def find(db: Database, scope: SearchScope, text: str, limit: int) -> list[int]:
    """The first passages of the newest things with this short text in their title."""
    text = _lowered(text)
    if not text or len(text) > MAX_TITLE_QUERY_CHARS or len(text.split()) > FEW or "\0" in text:
        return []
    first = len(scope.args) + 1
    args: tuple[Value, ...] = (*scope.args, *scope.collections, text)
    sql = _FIND.format(
        columns="*" if scope.where else "id, title",
        names=", ".join(f"${number}" for number in range(first, first + len(scope.collections))),
        newest=MAX_SCANNED_TITLES,
        where=f"({scope.where or '1 = 1'})",
        title=_TITLE,
        text=len(args),
        limit=limit,
    )
    return [row["id"] for row in await db.scan(sql, *args)]


def _lowered(text: str) -> str:
    return text.strip().translate(_LOWER)
