"""Plain words: passages that have the words of a text which is made of nothing but common ones, such as "who is it".

Common words are not in the index, for they stand everywhere and say little. A question of them alone is answered from
the texts: those of the newest passages of a scope, as many as can be read in some tens of milliseconds.
"""

import asyncio
import re
from collections import Counter
from collections.abc import Sequence

import numpy as np

from almanac.core.database import Database, Row, Value
from almanac.search.index.protocol import KeywordHits, SearchScope

MAX_SCANNED_PASSAGES = 5_000  # passages that are read
MAX_QUERY_WORDS = 50  # words of a question that are looked for

_WORD = re.compile(r"\w+")
_READ = """
SELECT p.id, p.source_id, p.text, s.title FROM sources s JOIN passages p ON p.source_id = s.id
WHERE s.collection IN ({names}) AND s.is_live = 1 AND ({where}) ORDER BY s.id DESC LIMIT {newest}
"""


def words_of(text: str) -> list[str]:
    """The words of a text, in small letters and in its order."""
    return _WORD.findall(text.casefold())


def first(text: str, words: Sequence[str]) -> tuple[int, int] | None:
    """Where the first of some words stands in a text."""
    found = re.search(rf"(?i)\b(?:{'|'.join(map(re.escape, words[:MAX_QUERY_WORDS]))})\b", text) if words else None
    return found and found.span()


async def find(db: Database, scope: SearchScope, text: str, limit: int) -> KeywordHits:
    """The newest passages with any of a text's words: those with more of them first, then those with less beside."""
    wanted = frozenset(words_of(text)[:MAX_QUERY_WORDS])
    start = len(scope.args) + 1
    names = ", ".join(f"${number}" for number in range(start, start + len(scope.collections)))
    args: tuple[Value, ...] = (*scope.args, *scope.collections)
    sql = _READ.format(names=names, where=scope.where or "1 = 1", newest=MAX_SCANNED_PASSAGES)
    rows = await db.scan(sql, *args) if wanted else []
    scored = await asyncio.to_thread(_score, rows, wanted)
    best = sorted(scored, key=lambda each: (-each[1], -each[0]))[:limit]
    ids, sources = (np.array([each[place] for each in best], np.int64) for place in (0, 2))
    return KeywordHits(ids, np.array([score for _, score, _ in best], np.float32), sources, 0, 0.0, ())


def _score(rows: Sequence[Row], wanted: frozenset[str]) -> list[tuple[int, float, int]]:
    """Passages, with how many words they have, a little for how much of their text these are, and their sources."""
    found: list[tuple[int, float, int]] = []
    for row in rows:
        counted = Counter(words_of(f"{row['title']}\n{row['text']}"))
        has = [counted[word] for word in wanted if word in counted]
        if has:
            found.append((row["id"], len(has) + sum(has) / (1 + counted.total()), row["source_id"]))
    return found
