"""Title match: finds sources whose title contains the query, ignoring the case of the letters A to Z.

A query may be any part of a title, so no index of words finds all of them. `find` therefore reads the newest titles of
a scope, as many as some milliseconds allow. Beyond those, `has` tests the keyword hits, which contain most titles that
contain a query of three or more words, because they contain at least one of these words as a whole.
"""

from almanac.core.database import Database, Value
from almanac.core.text import lower_ascii
from almanac.db.sql import placeholders
from almanac.search.index.protocol import SearchScope

MAX_SCANNED_TITLES = 20_000
MAX_TITLE_QUERY_CHARS = 200  # a longer query is no part of a title

# As in search/filters/conditions.py: both databases compare code points and lower the letters A to Z.
_TITLE = "lower(s.title || substr(CAST('' AS name), 1, 0))"
_FIND = """
SELECT p.id FROM (SELECT {columns} FROM sources WHERE collection IN ({names}) AND is_live = 1
    ORDER BY id DESC LIMIT {newest}) s JOIN passages p ON p.source_id = s.id AND p.ordinal = 0
WHERE {where} AND length(s.title) >= {length} AND replace({title}, ${text}, '') <> {title}
ORDER BY s.id DESC LIMIT {limit}
"""


def has(title: str, text: str) -> bool:
    """Whether a title contains a text."""
    return _lowered(text) in _lowered(title) if text.strip() else False


async def find(db: Database, scope: SearchScope, text: str, limit: int) -> list[int]:
    """The first passages of the newest sources whose title contains this text."""
    text = _lowered(text)
    if not text or len(text) > MAX_TITLE_QUERY_CHARS or "\0" in text:
        return []
    args: tuple[Value, ...] = (*scope.args, *scope.collections, text)
    sql = _FIND.format(
        columns="*" if scope.where else "id, title",
        names=placeholders(len(scope.collections), start=len(scope.args) + 1),
        newest=MAX_SCANNED_TITLES,
        where=f"({scope.where or '1 = 1'})",
        length=len(text),  # compared first, because it rules out most titles for a long query and costs less
        title=_TITLE,
        text=len(args),
        limit=limit,
    )
    return [row["id"] for row in await db.scan(sql, *args)]


def _lowered(text: str) -> str:
    return lower_ascii(text.strip())
