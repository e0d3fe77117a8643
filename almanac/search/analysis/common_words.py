"""Common words: searches a query that has no other words, such as "is it for me", in the texts of passages.

The index does not contain common words, because they occur almost everywhere. The newest passages of a scope are read
instead, as many as some tens of milliseconds allow.
"""

import re
from collections import Counter
from collections.abc import Sequence

import numpy as np

from almanac.core.database import Database, Row, Value
from almanac.core.fair_slots import compute
from almanac.db.sql import placeholders
from almanac.search.index.protocol import KeywordHits, SearchScope

MAX_SCANNED_PASSAGES = 5_000
MAX_QUERY_WORDS = 50

_WORD = re.compile(r"\w+")
_READ = """
SELECT p.id, p.source_id, p.text, s.title FROM sources s JOIN passages p ON p.source_id = s.id
WHERE s.collection IN ({names}) AND s.is_live = 1 AND ({where}) ORDER BY s.id DESC LIMIT {newest}
"""


def words_of(text: str) -> list[str]:
    """The words of a text in lower case, in order."""
    return _WORD.findall(text.casefold())


def first(text: str, words: Sequence[str]) -> tuple[int, int] | None:
    """The span of the first word in a text that is one of `words`."""
    found = re.search(rf"(?i)\b(?:{'|'.join(map(re.escape, words[:MAX_QUERY_WORDS]))})\b", text) if words else None
    return found and found.span()


async def find(db: Database, scope: SearchScope, text: str, limit: int) -> KeywordHits:
    """The newest passages that contain words of a text: first by the number of these words, then by their share."""
    wanted = frozenset(words_of(text)[:MAX_QUERY_WORDS])
    names = placeholders(len(scope.collections), start=len(scope.args) + 1)
    args: tuple[Value, ...] = (*scope.args, *scope.collections)
    sql = _READ.format(names=names, where=scope.where or "1 = 1", newest=MAX_SCANNED_PASSAGES)
    rows = await db.scan(sql, *args) if wanted else []
    scored = await compute(_score, rows, wanted)
    best = sorted(scored, key=lambda each: (-each[1], -each[0]))[:limit]
    ids, sources = (np.array([each[place] for each in best], np.int64) for place in (0, 2))
    return KeywordHits(ids, np.array([score for _, score, _ in best], np.float32), sources, 0, 0.0, ())


def _score(rows: Sequence[Row], wanted: frozenset[str]) -> list[tuple[int, float, int]]:
    """Id, score and source of each passage with any of the words: the number of words plus their share of the text."""
    found: list[tuple[int, float, int]] = []
    for row in rows:
        counted = Counter(words_of(f"{row['title']}\n{row['text']}"))
        has = [counted[word] for word in wanted if word in counted]
        if has:
            found.append((row["id"], len(has) + sum(has) / (1 + counted.total()), row["source_id"]))
    return found
