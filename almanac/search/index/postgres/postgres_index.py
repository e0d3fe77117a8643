"""The index in PostgreSQL: both legs are statements over its own tables, so there is nothing that could lag behind.

Words. Lists of a GIN index lead to candidates: every passage that has one of the question's rarer terms, or in which
one of its common terms stands often. Those that can be among the best (`index_candidates.py`) are judged by their words
as they are stored, by the same BM25 as in the embedded index. In a scope of up to `CANDIDATES` passages every list is
followed, and the answer is exact; only that names of lists have 32 bits, so that among very many collections one may
look a little longer than it is. In a larger scope lists lead to about as many: what is missed has nothing but very
common terms, each of them rarely; and the weights of terms too common to follow rest on counts that may be out of date
(`index_frequencies.py`). Where nothing but such terms is asked for, some of the passages that have one are judged,
whichever come first. Where a filter leaves few, the lists are not followed: the terms of these few are looked at.

Measured on made-up text (frequencies as in a language, words independent of each other; sixty questions each of one,
two, four and eight words, the sixty commonest words left out): of the ten best, none was lost among 10,000 passages and
one of 600, with eight words, among 50,000.

Vectors. A scope of up to `SCANNED` passages is scanned, exactly. A larger one is searched through a graph, once
`maintain` has built one for the model; until then it is scanned too.
"""

import asyncio
import hashlib
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import orjson
from numpy.typing import NDArray

from almanac.core.database import Database, Row, Transaction
from almanac.search.analysis import analyser
from almanac.search.index import tables
from almanac.search.index.caching import RefreshingCache, SharedTask
from almanac.search.index.postgres import term_counts
from almanac.search.index.postgres.candidates import CandidateScoring, Plan, ScopeSize
from almanac.search.index.postgres.term_counts import Lists, PostingChoice, TermCountCache, choose_postings
from almanac.search.index.protocol import Coverage, Hits, KeywordHits, PassageVectors, SearchScope
from almanac.search.index.tables import LEVELS
from almanac.search.ranking import bm25

CANDIDATES = 4_000  # passages that lists lead to; in a scope that has no more, every term is looked up
MIN_CANDIDATES = 1_000  # candidates, fewer than which are not made do with
TOGETHER = 64  # collections whose lists of a term are followed at a time
FIRST_READ_FACTOR = 3  # times as many as are wanted are read at first
MAX_WIDEN_FACTOR = 8  # times as many are looked at where a filter leaves few of them
MAX_FILTERED_PASSAGES = 20_000  # passages that a filter leaves, each of which is looked at
SCANNED = 50_000  # vectors compared with, rather than going through a graph
REACH = 200  # neighbours a graph keeps in sight on its way: recall against time
TRUSTED = 10.0  # seconds for which the size of a large scope is believed

_PARAMETER = re.compile(r"\$(\d+)")
_SIZE = """
SELECT CAST(coalesce(sum(s.passages), 0) AS bigint) AS passages, CAST(coalesce(sum(s.length), 0) AS bigint) AS length
FROM sources s WHERE s.collection = ANY($1) AND s.is_live = 1 AND {where}
"""
_LISTED = """
SELECT m.place, string_agg(int8send(m.passage_id), '') AS passages
FROM (SELECT (first - 1) / $3 AS place, passage_id, source_id FROM matching($2, $4){sample}) m
    JOIN sources s ON s.id = m.source_id
WHERE s.collection = ANY($1) AND s.is_live = 1 AND {where} GROUP BY m.place
"""
_SAMPLE = " UNION ALL SELECT CAST($5 AS integer), passage_id, source_id FROM some_matching($6, $7)"
_KEPT = """
SELECT p.id, p.source_id, p.words
FROM sources s JOIN terms t ON t.source_id = s.id JOIN passages p ON p.id = t.passage_id
WHERE s.collection = ANY($1) AND s.is_live = 1 AND t.terms && $2 AND p.words IS NOT NULL AND {where}
"""
_FREQUENCY = """
SELECT (m.first - 1) / $3 AS place, count(*) AS passages FROM matching($2, $4) m
    JOIN sources s ON s.id = m.source_id
WHERE s.collection = ANY($1) AND s.is_live = 1 GROUP BY 1
"""
_BAGS = "SELECT id, source_id, words FROM passages WHERE id = ANY($1) AND words IS NOT NULL"
_STORED = """
SELECT passage_id, halfvec_send(vector) AS sent FROM vectors
WHERE model = $1 AND vector_dims(vector) = $2 AND passage_id = ANY($3)
"""
MAX_GRAPH_DIMENSIONS = 4_000  # numbers of a vector that a graph can hold
_HEADER = 2  # numbers of two bytes that come before those of the vector
_NEAR = """
SELECT v.passage_id, v.source_id, {distance} AS distance FROM vectors v JOIN sources s ON s.id = v.source_id
WHERE v.collection = ANY($3) AND v.model = {model} AND vector_dims(v.vector) = {dimension}
    AND s.collection = ANY($1) AND s.is_live = 1 AND {where}
ORDER BY {order} LIMIT {limit}
"""
_COVERAGE = """
SELECT (SELECT count(*) FROM passages p JOIN sources s ON s.id = p.source_id
     WHERE s.collection = ANY($1) AND s.is_live = 1) AS passages,
    (SELECT count(*) FROM vectors v JOIN sources s ON s.id = v.source_id
     WHERE v.collection = ANY($3) AND v.model = $2 AND s.collection = ANY($1) AND s.is_live = 1) AS embedded
"""
_GRAPHS = """
SELECT c.relname AS name, i.indisvalid AS is_whole FROM pg_class c JOIN pg_index i ON i.indexrelid = c.oid
WHERE i.indrelid = CAST('vectors' AS regclass) AND starts_with(c.relname, 'vectors_near_')
"""
_SETTINGS = """
SELECT set_config('hnsw.ef_search', $1, true), set_config('hnsw.iterative_scan', 'relaxed_order', true),
    set_config('enable_sort', 'off', true), set_config('enable_seqscan', 'off', true), set_config('jit', 'off', true)
"""
# As of a disk without moving parts: with the usual 4, all sources are read where a condition leaves a hundredth.
_LOOKING_UP = "SELECT set_config('random_page_cost', '1.1', true)"
_MODELS = """
SELECT m.model, m.passages, (SELECT vector_dims(v.vector) FROM vectors v WHERE v.model = m.model LIMIT 1) AS dimension
FROM (SELECT model, count(*) AS passages FROM vectors GROUP BY model) m WHERE m.passages >= $1
"""
_BUILD = """
CREATE INDEX CONCURRENTLY {name} ON vectors USING hnsw (CAST(vector AS halfvec({dimension})) halfvec_cosine_ops)
WHERE model = {model}
"""
_DIFFERENCES = {
    "passages are not listed under their terms": """
        SELECT count(*) FROM passages p LEFT JOIN terms t ON t.passage_id = p.id
        WHERE p.words IS NOT NULL AND t.passage_id IS NULL""",
    "passages are listed under terms, but have not been analysed": """
        SELECT count(*) FROM terms t JOIN passages p ON p.id = t.passage_id WHERE p.words IS NULL""",
    "passages are listed in another collection or source than theirs": """
        SELECT count(*) FROM terms t JOIN passages p ON p.id = t.passage_id JOIN sources s ON s.id = p.source_id
        WHERE t.collection <> s.collection OR t.source_id <> s.id""",
    "vectors are in another collection or source than their passages": """
        SELECT count(*) FROM vectors v JOIN passages p ON p.id = v.passage_id JOIN sources s ON s.id = p.source_id
        WHERE v.collection <> substring(s.collection FROM '^[^:]*(?::[^:]*)?') OR v.source_id <> s.id""",
    "sources have another number of passages than is noted": """
        SELECT count(*) FROM sources s WHERE s.passages <>
            (SELECT count(*) FROM passages p WHERE p.source_id = s.id AND p.words IS NOT NULL)""",
}


class PostgresIndex:
    """The index of one database."""

    holds_interpreter_lock = False  # the server looks

    def __init__(self, db: Database) -> None:
        self._db = db
        self._known = TermCountCache(db)
        self._sizes = RefreshingCache[ScopeSize]()
        self._shared = SharedTask()
        self._counting: dict[SearchScope, asyncio.Task[int]] = {}
        self._coverages = RefreshingCache[Coverage]()
        self._graphs = RefreshingCache[frozenset[str]]()

    async def keyword_hits(self, scope: SearchScope, terms: Sequence[int], limit: int) -> KeywordHits:
        """The passages that match best by BM25 over these terms (see `analysis.hash_of`)."""
        asked = np.array(list(dict.fromkeys(terms)), np.int64)
        size = await self._size(scope)
        if not len(asked) or not size.passages:
            return KeywordHits(*_nothing(), size.passages, size.average, (0,) * len(terms))
        plan = await self._plan(scope, asked, size)
        find = self._few if scope.where and size.kept <= MAX_FILTERED_PASSAGES else self._many
        judging, hits = await find(scope, plan, Counter(terms), limit)
        by_term = dict(zip(asked.tolist(), judging.frequencies.tolist(), strict=True))
        of_terms = tuple(by_term[term] for term in terms)
        return KeywordHits(hits.ids, hits.scores, hits.sources, size.passages, size.average, of_terms)

    async def vector_hits(
        self, scope: SearchScope, model: str, vector: NDArray[np.float32], limit: int, reach: int | None = None
    ) -> Hits:
        """The passages nearest to a vector of length one, by cosine."""
        size = await self._size(scope)
        if size.kept > SCANNED and _graph_name(model, len(vector)) in await self._whole_graphs():
            rows = await self._walk(scope, model, vector, limit, reach or max(REACH, 2 * limit))
        else:
            rows = await self._scan(scope, model, vector, limit)
        ids, sources = _column(rows, "passage_id"), _column(rows, "source_id")
        scores = 1 - np.fromiter((row["distance"] for row in rows), np.float64, len(rows))
        scores = np.nan_to_num(scores).astype(np.float32)  # a vector of zeros is like nothing
        order = np.lexsort((ids, -scores))
        return Hits(ids[order], scores[order], sources[order])

    async def keyword_scores(self, hits: Hits, terms: Sequence[int], found: KeywordHits) -> NDArray[np.float32]:
        """What the words leg, which found so much with these terms, would have given other passages."""
        asked: Any = hits.ids.tolist()
        words = {row["id"]: row["words"] for row in await self._db.fetch(_BAGS, asked)}
        counts, lengths = analyser.occurrences([words.get(id, b"") for id in asked], np.array(terms, np.int64))
        idfs = np.array([bm25.idf(found.passages, each) for each in found.frequencies], np.float64)
        return bm25.score(counts, lengths, found.average, idfs)

    async def passage_vectors(self, model: str, size: int, ids: Sequence[int]) -> PassageVectors:
        """The vectors of some passages, in any order."""
        asked: Any = list(ids)
        rows = await self._db.fetch(_STORED, model, size, asked)
        numbers = np.frombuffer(b"".join([row["sent"] for row in rows]), ">f2").reshape(-1, _HEADER + size)
        return PassageVectors.of(_column(rows, "passage_id"), numbers[:, _HEADER:])

    async def coverage(self, collections: Sequence[str], model: str) -> Coverage:
        """How many passages there are, and how many have vectors. Of a large scope, a few seconds ago."""
        names: Any = list(collections)

        async def count() -> tuple[Coverage, float]:
            row = (await self._db.scan(_COVERAGE, names, model, _families(collections)))[0]
            return Coverage(row["passages"], row["embedded"]), TRUSTED if row["passages"] > CANDIDATES else 0

        return await self._coverages.renewed((tuple(collections), model), count)

    async def close(self) -> None:
        """Let nothing go on in the background; the database is whoever's opened it."""
        await self._sizes.close()
        await self._coverages.close()
        for task in (counting := list(self._counting.values())):
            task.cancel()
        await asyncio.gather(*counting, return_exceptions=True)

    async def _size(self, scope: SearchScope) -> ScopeSize:
        """How much there is; of a large scope, a few seconds ago."""
        all_of_it = SearchScope(scope.collections)

        async def count() -> tuple[ScopeSize, float]:
            row = (await self._db.scan(*_ask(_SIZE, all_of_it)))[0]
            average = row["length"] / row["passages"] if row["passages"] else 0.0
            size = ScopeSize(row["passages"], average, row["passages"])
            return size, TRUSTED if size.passages > CANDIDATES else 0

        size = await self._sizes.renewed(all_of_it, count)
        return replace(size, kept=await self._kept(scope)) if scope.where else size

    async def _kept(self, scope: SearchScope) -> int:
        """How many passages a scope's condition leaves, counted once for both legs: it only says how to look."""
        if (counting := self._counting.get(scope)) is None or counting.cancelling():
            counting = self._counting[scope] = asyncio.create_task(self._count_kept(scope))
            counting.add_done_callback(partial(self._counted, scope))
        return await self._shared.wait(counting)

    def _counted(self, scope: SearchScope, counting: asyncio.Task[int]) -> None:
        if self._counting.get(scope) is counting:
            del self._counting[scope]

    async def _count_kept(self, scope: SearchScope) -> int:
        return (await self._read(scope, *_ask(_SIZE, scope)))[0]["passages"]

    async def _plan(self, scope: SearchScope, asked: NDArray[np.int64], size: ScopeSize) -> Plan:
        """Which lists lead to the candidates. A filter has no part in the statistics."""
        every = PostingChoice([(0, place) for place in range(len(asked))])
        if size.passages <= CANDIDATES:
            return Plan(asked, size, np.zeros(len(asked), np.int64), every.whole, every, CANDIDATES)
        known = await self._known.of(scope.collections, size.passages)
        if known is None:
            lists = [(level, place) for level in range(len(LEVELS)) for place in range(len(asked))]
            lengths = np.split(await self._count(scope, asked, lists), len(LEVELS))
        else:
            short = tables.short(asked)
            lengths = [known.of(short ^ tables.level_salt(level), size.passages) for level in range(len(LEVELS))]
        usual = choice = choose_postings(lengths, CANDIDATES, MIN_CANDIDATES)
        most = CANDIDATES
        if scope.where:
            most = int(CANDIDATES * min(MAX_WIDEN_FACTOR, size.passages / max(1, size.kept)))
            if size.kept <= CANDIDATES:
                choice = every
            elif size.kept <= MAX_FILTERED_PASSAGES:
                inside = [np.ceil(each * (size.kept / size.passages)).astype(np.int64) for each in lengths]
                choice = choose_postings(inside, CANDIDATES, MIN_CANDIDATES)
            else:
                choice = choose_postings(lengths, most, MIN_CANDIDATES)
        return Plan(asked, size, lengths[0], usual.whole, choice, most)

    async def _few(
        self, scope: SearchScope, plan: Plan, asked: Mapping[int, int], limit: int
    ) -> tuple[CandidateScoring, Hits]:
        """The best of the few passages that a condition leaves, all of which are read."""
        lists = (*plan.choice.followed, *plan.choice.sampled)
        exact, rows = await asyncio.gather(
            self._exact(scope, plan),
            self._read(scope, *_ask(_KEPT, scope, _keys(scope, plan.terms, lists))),
        )
        judging = plan.judging(asked, exact)
        return judging, await asyncio.to_thread(judging.judge, rows, limit)

    async def _many(
        self, scope: SearchScope, plan: Plan, asked: Mapping[int, int], limit: int
    ) -> tuple[CandidateScoring, Hits]:
        """The best of the passages that lists lead to. Those that can be worth most are read first, and then whoever
        can still be worth as much as the last of the best."""
        exact, lists = await asyncio.gather(
            self._exact(scope, plan) if scope.where else _none(), self._lists(scope, plan)
        )
        judging, ids, most = await asyncio.to_thread(plan.order, asked, lists, exact)
        # The last of the best is worth no more than the last of those that can be worth most: these are read anyway.
        end = max(FIRST_READ_FACTOR * limit, int(np.count_nonzero(most >= most[:limit].min(initial=np.inf))))
        rows = await self._bags(ids[:end])
        hits = await asyncio.to_thread(judging.judge, rows, limit)
        least = hits.scores[-1] if 0 < limit == len(hits.ids) else 0.0
        if (enough := int(np.count_nonzero(most >= least))) > end:
            rows += await self._bags(ids[end:enough])
            hits = await asyncio.to_thread(judging.judge, rows, limit)
        return judging, hits

    async def _lists(self, scope: SearchScope, plan: Plan) -> list[bytes]:
        """The ids of the passages on each list that is followed, and of some on those that are too long."""
        choice = plan.choice
        args: list[Any] = [_keys(scope, plan.terms, choice.followed), *_steps(scope)]
        if choice.sampled:
            args += len(choice.followed), _keys(scope, plan.terms, choice.sampled), plan.most
        rows = await self._read(scope, *_ask(_LISTED, scope, *args, sample=_SAMPLE if choice.sampled else ""))
        found = {row["place"]: row["passages"] for row in rows}
        return [found.get(place, b"") for place in range(len(choice.followed) + 1)]

    async def _bags(self, ids: NDArray[np.int64]) -> list[Row]:
        asked: Any = ids.tolist()
        return await self._db.scan(_BAGS, asked) if asked else []

    async def _exact(self, scope: SearchScope, plan: Plan) -> NDArray[np.int64]:
        """How many passages have each term whose whole list is followed, whatever a condition leaves of them."""
        return await self._count(scope, plan.terms, [(0, place) for place in plan.whole])

    async def _count(self, scope: SearchScope, asked: NDArray[np.int64], lists: Lists) -> NDArray[np.int64]:
        """How many passages some lists lead to."""
        counts = np.zeros(len(lists), np.int64)
        names: Any = list(scope.collections)
        keys: Any = _keys(scope, asked, lists)
        for row in await self._db.scan(_FREQUENCY, names, keys, *_steps(scope)) if keys else ():
            counts[row["place"]] = row["passages"]
        return counts

    async def _scan(self, scope: SearchScope, model: str, vector: NDArray[np.float32], limit: int) -> list[Row]:
        return await self._read(scope, *_near(scope, model, vector, limit, is_walk=False))

    async def _read(self, scope: SearchScope, sql: str, *args: Any) -> list[Row]:
        """The rows of a statement about a scope; what a condition leaves of it is looked up."""

        async def look_up(tx: Transaction) -> list[Row]:
            await tx.fetch(_LOOKING_UP)
            return await tx.fetch(sql, *args)

        return await self._db.write(look_up) if scope.where else await self._db.scan(sql, *args)

    async def _walk(
        self, scope: SearchScope, model: str, vector: NDArray[np.float32], limit: int, reach: int
    ) -> list[Row]:
        async def walk(tx: Transaction) -> list[Row]:
            await tx.fetch(_SETTINGS, str(min(reach, 1_000)))
            return await tx.fetch(*_near(scope, model, vector, limit, is_walk=True))

        return await self._db.write(walk)  # a transaction, for its settings end with it

    async def _whole_graphs(self) -> frozenset[str]:
        if (known := self._graphs.get(None)) is not None:
            return known
        rows = await self._db.fetch(_GRAPHS)
        return self._graphs.put(None, frozenset(row["name"] for row in rows if row["is_whole"]), TRUSTED)


def _ask(sql: str, scope: SearchScope, *args: Any, **parts: Any) -> tuple[Any, ...]:
    """A statement whose first parameter is the collections, with the scope's condition in it, and its parameters."""
    own = 1 + len(args)
    where = _PARAMETER.sub(lambda match: f"${int(match[1]) + own}", scope.where)
    return sql.format(where=f"({where or 'true'})", **parts), list(scope.collections), *args, *scope.args


def _keys(scope: SearchScope, asked: NDArray[np.int64], lists: Lists) -> list[int]:
    """What lists are called, in every collection of a scope: one list after the other, filled up to whole steps."""
    mixers = np.array([tables.collection_salt(name) for name in scope.collections], np.int32)
    mixers = np.pad(mixers, (0, _steps(scope)[0] - len(mixers)), "edge")  # what is there twice is found once
    terms = tables.short(asked)
    names = [terms[place] ^ tables.level_salt(level) for level, place in lists]
    return np.bitwise_xor.outer(np.array(names, np.int32), mixers).ravel().tolist()


def _steps(scope: SearchScope) -> tuple[int, int]:
    """How many names a list has, and how many of them are followed at a time."""
    together = min(TOGETHER, len(scope.collections))
    return -(-len(scope.collections) // together) * together, together


def _near(scope: SearchScope, model: str, vector: NDArray[np.float32], limit: int, *, is_walk: bool) -> tuple[Any, ...]:
    """The statement for the vectors nearest to one: `is_walk` has it name what a graph is over, and sort by nothing
    that a graph does not know."""
    dimension = len(vector)
    stored = f"CAST(v.vector AS halfvec({dimension}))" if is_walk else "v.vector"
    # A subquery, for PostgreSQL would otherwise read the text anew for every row it compares.
    distance = f"{stored} <=> (SELECT CAST(CAST($2 AS text) AS halfvec({dimension})))"
    literal = orjson.dumps(np.ascontiguousarray(vector, np.float32), option=orjson.OPT_SERIALIZE_NUMPY).decode()
    order = "distance" if is_walk else "distance, v.passage_id"
    parts = {"distance": distance, "order": order, "dimension": dimension, "limit": limit, "model": _quoted(model)}
    return _ask(_NEAR, scope, literal, _families(scope.collections), **parts)


def _families(collections: Sequence[str]) -> Any:
    return list(dict.fromkeys(map(tables.family, collections)))


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


def _graph_name(model: str, dimension: int) -> str:
    return f"vectors_near_{hashlib.sha256(model.encode()).hexdigest()[:16]}_{dimension}"


def _nothing() -> tuple[NDArray[np.int64], NDArray[np.float32], NDArray[np.int64]]:
    return np.empty(0, np.int64), np.empty(0, np.float32), np.empty(0, np.int64)


async def _none() -> None:
    """What is to be had without asking."""


def _column(rows: Sequence[Row], name: str) -> NDArray[np.int64]:
    return np.fromiter((row[name] for row in rows), np.int64, len(rows))


async def maintain(db: Database) -> list[str]:
    """What has to be done in the background now and then: the collections counted and the graphs built. One process at
    a time does it; searches and writes go on meanwhile."""
    async with db.lock("index"):
        return [*await term_counts.count(db), *await _build_graphs(db)]


async def compare(db: Database) -> list[str]:
    """Where what is kept for searching differs from the passages it was made of, a sentence for each kind."""
    counted = [(text, (await db.scan(sql))[0][0]) for text, sql in _DIFFERENCES.items()]
    return [f"{count} {text}" for text, count in counted if count]


async def _build_graphs(db: Database) -> list[str]:
    """Build the graphs of models that have come to many vectors, and drop those that are broken or of no use."""
    rows = await db.scan(_MODELS, SCANNED // 2)  # a graph stays until its model has come down to half
    useful = {_graph_name(row["model"], row["dimension"]): row for row in rows}
    there = {row["name"]: row["is_whole"] for row in await db.fetch(_GRAPHS)}
    for name, is_whole in there.items():
        if name not in useful or not is_whole:
            await db.scan(f"DROP INDEX CONCURRENTLY {name}")
    missing = {
        name: row
        for name, row in useful.items()
        if row["passages"] >= SCANNED and row["dimension"] <= MAX_GRAPH_DIMENSIONS and not there.get(name)
    }
    for name, row in missing.items():
        await db.scan(_BUILD.format(name=name, dimension=row["dimension"], model=_quoted(row["model"])))
    return list(missing)
