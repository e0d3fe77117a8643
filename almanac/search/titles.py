"""Titles: things whose title has a text within it, whatever the case of the letters A to Z.

Words find titles too (`analysis.py` counts them more than text); this finds parts of words. It reads titles one by one,
so it looks at the newest things of a scope alone, as many as can be read in some milliseconds.
"""

from almanac.core.database import Database, Value
from almanac.search.index import Scope

NEWEST = 50_000  # things whose titles are read
LONGEST = 200  # characters: what is longer is no part of a title

# As in search/conditions.py: compared by code points and lowered from A to Z in both databases.
_TITLE = "lower(s.title || substr(CAST('' AS name), 1, 0))"
_FIND = """
SELECT p.id FROM (SELECT * FROM sources WHERE collection IN ({names}) AND is_live = 1
    ORDER BY id DESC LIMIT {newest}) s JOIN passages p ON p.source_id = s.id AND p.ordinal = 0
WHERE {where} AND replace({title}, ${text}, '') <> {title} ORDER BY s.id DESC LIMIT {limit}
"""
_LOWER = str.maketrans("ABCDEFGHIJKLMNOPQRSTUVWXYZ", "abcdefghijklmnopqrstuvwxyz")


async def find(db: Database, scope: Scope, text: str, limit: int) -> list[int]:
    """The first passages of the newest things with this text in their title."""
    text = text.strip().translate(_LOWER)
    if not text or len(text) > LONGEST or "\0" in text:
        return []
    first = len(scope.args) + 1
    args: tuple[Value, ...] = (*scope.args, *scope.collections, text)
    names = ", ".join(f"${number}" for number in range(first, first + len(scope.collections)))
    sql = _FIND.format(
        names=names, newest=NEWEST, where=f"({scope.where or '1 = 1'})", title=_TITLE, text=len(args), limit=limit
    )
    return [row["id"] for row in await db.scan(sql, *args)]
