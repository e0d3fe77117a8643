"""The title index: finds sources whose title contains a text of any length, ignoring the case of the letters A to Z.

A row for each character of a title holds that character and the next two, its gram. A text of three or more characters
is found by its rarest gram, a shorter one by the range of the grams that begin with it. Grams belong to a collection:
the cost of a search does not depend on the titles of other collections. Only the collections of notes are indexed.
"""

from collections.abc import Mapping, Sequence

from almanac.core.database import Database, Reader, Transaction, Value
from almanac.core.text import lower_ascii
from almanac.db.sql import id_list, placeholders
from almanac.search.index.protocol import SearchScope

GRAM_CHARS = 3
MAX_COUNTED_GRAMS = 8  # grams of a query whose frequencies are compared
MAX_COUNT = 1_000  # a gram that more titles have counts as frequent
MAX_SCANNED_TITLES = 2_000  # the newest titles, for a query of one or two characters
MAX_SHORT_MATCHES = 50_000  # grams of older titles, for such a query
MAX_TITLE_QUERY_CHARS = 200  # a longer query is no part of a title

_BITS = 21  # of a code point
_ROW = "scope = $1 AND gram = $2 AND source_id = $3"
# As in search/filters/conditions.py: both databases compare code points and lower the letters A to Z.
_TITLE = "lower(s.title || substr(CAST('' AS name), 1, 0))"
_FIND = """
SELECT s.id AS source_id, p.id FROM {candidates} JOIN passages p ON p.source_id = s.id AND p.ordinal = 0
WHERE {where} AND length(s.title) >= {length} AND replace({title}, ${text}, '') <> {title}
ORDER BY {order} DESC LIMIT {limit}
"""
_NEWEST_SOURCES = """(SELECT {columns} FROM sources WHERE collection = {collection} AND is_live = 1
    ORDER BY id DESC LIMIT {newest}) s"""
_BEGINNING_WITH = """(SELECT DISTINCT source_id FROM (SELECT source_id FROM title_grams WHERE scope = {scope}
    AND gram >= {first} AND gram < {end} LIMIT {most}) h) g
    JOIN sources s ON s.id = g.source_id AND s.collection = {collection} AND s.is_live = 1"""
_WITH_GRAM = """title_grams g JOIN sources s ON g.scope = {scope} AND g.gram = {gram} AND s.id = g.source_id
    AND s.collection = {collection} AND s.is_live = 1"""


def has(title: str, text: str) -> bool:
    """Whether a title contains a text."""
    return lower_ascii(text.strip()) in lower_ascii(title) if text.strip() else False


async def add(tx: Transaction, collection: str, titles: Mapping[int, str]) -> None:
    """Index the titles of new sources of a collection, by source id."""
    scope = await _scope(tx, collection)
    rows = [(scope, gram, source_id) for source_id, title in titles.items() for gram in grams(title)]
    await tx.insert_many("title_grams", ("scope", "gram", "source_id"), rows)


async def move(tx: Transaction, source_id: int, title: str, before: str, after: str) -> None:
    """Follow a source into another collection."""
    if before != after:
        old, new = await _scope(tx, before), await _scope(tx, after)
        rows = [(old, gram, source_id, new) for gram in grams(title)]
        await tx.execute_many(f"UPDATE title_grams SET scope = $4 WHERE {_ROW}", rows)  # noqa: S608 - a constant


async def find(db: Database, scope: SearchScope, text: str, limit: int) -> list[int]:
    """The first passages of the newest sources whose title contains this text."""
    text = lower_ascii(text.strip())
    if not text or len(text) > MAX_TITLE_QUERY_CHARS or "\0" in text:
        return []
    scopes = await _scopes(db, scope.collections)
    search = _TitleSearch(db, scope, text, limit)
    if len(text) < GRAM_CHARS:
        found = [await search.short(*each) for each in scopes.items()]
    else:
        gram = await _rarest_gram(db, list(scopes.values()), text) if scopes else None
        found = [] if gram is None else [await search.long(*each, gram) for each in scopes.items()]
    newest = sorted((row for rows in found for row in rows), reverse=True)
    return [id for _, id in newest[:limit]]


def grams(title: str) -> list[int]:
    """The grams of a title, each once."""
    points = [*map(ord, lower_ascii(title)), 0, 0]
    return list({_gram(*points[place : place + GRAM_CHARS]) for place in range(len(points) - 2)})


class _TitleSearch:
    """The search for one text in several collections. Results are ids of sources and of their first passages."""

    def __init__(self, db: Database, scope: SearchScope, text: str, limit: int) -> None:
        self._db = db
        self._scope = scope
        self._text = text
        self._limit = limit

    async def long(self, collection: str, number: int, gram: int) -> list[tuple[int, int]]:
        """For a text of three or more characters: the titles with a gram of it."""
        return await self._find(_WITH_GRAM, collection, "g.source_id", scope=number, gram=gram)

    async def short(self, collection: str, number: int) -> list[tuple[int, int]]:
        """For one or two characters, which most titles have or few: the newest titles, or else all that have them."""
        columns = "*" if self._scope.where else "id, title"
        newest = await self._find(_NEWEST_SOURCES, collection, "s.id", columns=columns, newest=MAX_SCANNED_TITLES)
        if len(newest) >= self._limit:
            return newest
        points = list(map(ord, self._text))
        first = _gram(*points, *[0] * (GRAM_CHARS - len(points)))
        end = first + (1 << _BITS * (GRAM_CHARS - len(points)))
        return await self._find(
            _BEGINNING_WITH, collection, "s.id", scope=number, first=first, end=end, most=MAX_SHORT_MATCHES
        )

    async def _find(self, candidates: str, collection: str, order: str, **numbers: object) -> list[tuple[int, int]]:
        args: tuple[Value, ...] = (*self._scope.args, collection, self._text)
        sql = _FIND.format(
            candidates=candidates.format(collection=f"${len(args) - 1}", **numbers),
            where=f"({self._scope.where or '1 = 1'})",
            length=len(self._text),  # compared first, because it rules out most titles for a long query and costs less
            title=_TITLE,
            text=len(args),
            order=order,
            limit=self._limit,
        )
        return [(row["source_id"], row["id"]) for row in await self._db.scan(sql, *args)]


async def _rarest_gram(db: Database, scopes: Sequence[int], text: str) -> int | None:
    """The gram of a text that the fewest titles have, or None if no title has one of them."""
    places = len(text) - GRAM_CHARS + 1
    step = max(1, places // MAX_COUNTED_GRAMS)
    chosen = list(dict.fromkeys(_gram(*map(ord, text[at : at + GRAM_CHARS])) for at in range(0, places, step)))
    count = (
        "(SELECT count(*) FROM (SELECT 1 FROM title_grams WHERE scope IN ({scopes}) AND gram = ${number}"
        " LIMIT {most}) c) AS count{number}"
    )
    columns = [
        count.format(scopes=id_list(scopes), number=number, most=MAX_COUNT) for number in range(1, len(chosen) + 1)
    ]
    [row] = await db.scan(f"SELECT {', '.join(columns)}", *chosen)
    counts = {gram: row[f"count{number}"] for number, gram in enumerate(chosen, 1)}
    rarest = min(counts, key=counts.__getitem__)
    return rarest if counts[rarest] else None


async def _scope(tx: Transaction, collection: str) -> int:
    """The number of a collection in the table of grams."""
    found = (await _scopes(tx, (collection,))).get(collection)
    if found is None:
        await tx.execute("INSERT INTO title_scopes (collection) VALUES ($1) ON CONFLICT DO NOTHING", collection)
        found = (await _scopes(tx, (collection,)))[collection]
    return found


async def _scopes(db: Reader, collections: Sequence[str]) -> Mapping[str, int]:
    """The numbers of the indexed ones of these collections."""
    names = placeholders(len(collections))
    rows = await db.fetch(f"SELECT collection, number FROM title_scopes WHERE collection IN ({names})", *collections)  # noqa: S608
    return {row["collection"]: row["number"] for row in rows}


def _gram(first: int, second: int, third: int) -> int:
    return (first << 2 * _BITS) + (second << _BITS) + third
