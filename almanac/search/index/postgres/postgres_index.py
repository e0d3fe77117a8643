"""The index in PostgreSQL. Both retrievers run SQL over its own tables, so results are always up to date.

Keywords. The posting lists of a GIN index lead to candidates: every passage that contains one of the rarer terms of the
query, or contains one of its common terms often. The candidates that can be among the best (`candidates.py`) are scored
from their stored terms, with the same BM25 as in the embedded index. In a scope of up to `MAX_CANDIDATES` passages,
every list is read and the result is exact. One exception: posting keys have 32 bits, so that among very many
collections a list may contain a few foreign passages and look slightly longer than it is. In a larger scope, the lists
lead to about as many candidates. A passage is missed only if it contains none but very common terms, each of them
rarely, and the weights of terms that are too common to read rest on counts that may be out of date (`term_counts.py`).
If the query has only such terms, an arbitrary sample of the passages with one of them is scored. If a filter leaves few
passages, the lists are not read: the terms of these passages are read instead.

Measured on synthetic text (term frequencies as in natural language, independent words; sixty queries each of one, two,
four and eight words, without the sixty most common words): of the ten best passages, none was missed among 10,000
passages; among 50,000, one of 600 was missed, by a query of eight words.

Vectors. A scope of up to `MAX_SCANNED_VECTORS` passages is scanned exactly. A larger scope is searched through a graph,
once `maintain` has built one for the model; until then it is scanned too.
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
from almanac.core.fair_slots import compute
from almanac.search.analysis import analyser
from almanac.search.index import tables
from almanac.search.index.caching import RefreshingCache, SharedTask
from almanac.search.index.postgres import term_counts
from almanac.search.index.postgres.candidates import CandidatePlan, CandidateScoring, ScopeSize
from almanac.search.index.postgres.term_counts import PostingChoice, PostingLists, TermCountCache, choose_postings
from almanac.search.index.protocol import Coverage, Hits, KeywordHits, PassageVectors, SearchScope
from almanac.search.index.tables import LEVEL_MIN_VALUES
from almanac.search.ranking import bm25

MAX_CANDIDATES = 4_000  # passages on the lists that a search reads; in a scope with no more, every list is read
MIN_CANDIDATES = 1_000  # with fewer, longer lists are read
COLLECTIONS_AT_ONCE = 64  # whose lists of a term are read in one index scan
FIRST_READ_FACTOR = 3  # times the limit: candidates whose terms are read first
MAX_WIDEN_FACTOR = 8  # times as many candidates are read if a filter leaves few of them
MAX_FILTERED_PASSAGES = 20_000  # if a filter leaves no more, the terms of all of them are read
MAX_SCANNED_VECTORS = 50_000  # in a larger scope, a graph is searched
MIN_EF_SEARCH = 200  # neighbours that a graph search keeps: more improve recall and take longer
MAX_EF_SEARCH = 1_000  # the maximum of pgvector
MAX_GRAPH_DIMENSIONS = 4_000  # supported by pgvector for a graph of half-precision vectors
LARGE_SCOPE_CACHE_SECONDS = 10.0  # for the size and the coverage of a scope of more than MAX_CANDIDATES passages

_PARAMETER = re.compile(r"\$(\d+)")
_SIZE = """
SELECT CAST(coalesce(sum(s.passages), 0) AS bigint) AS passages, CAST(coalesce(sum(s.length), 0) AS bigint) AS length
FROM sources s WHERE s.collection = ANY($1) AND s.is_live = 1 AND {where}
"""
_LISTS = """
SELECT m.place, string_agg(int8send(m.passage_id), '') AS passages
FROM (SELECT (first - 1) / $3 AS place, passage_id, source_id FROM matching($2, $4){sample}) m
    JOIN sources s ON s.id = m.source_id
WHERE s.collection = ANY($1) AND s.is_live = 1 AND {where} GROUP BY m.place
"""
_SAMPLE = " UNION ALL SELECT CAST($5 AS integer), passage_id, source_id FROM some_matching($6, $7)"
_FILTERED = """
SELECT p.id, p.source_id, p.words
FROM sources s JOIN terms t ON t.source_id = s.id JOIN passages p ON p.id = t.passage_id
WHERE s.collection = ANY($1) AND s.is_live = 1 AND t.terms && $2 AND p.words IS NOT NULL AND {where}
"""
_LIST_LENGTHS = """
SELECT (m.first - 1) / $3 AS place, count(*) AS passages FROM matching($2, $4) m
    JOIN sources s ON s.id = m.source_id
WHERE s.collection = ANY($1) AND s.is_live = 1 GROUP BY 1
"""
_WORDS = "SELECT id, source_id, words FROM passages WHERE id = ANY($1) AND words IS NOT NULL"
_VECTORS = """
SELECT passage_id, halfvec_send(vector) AS sent FROM vectors
WHERE model = $1 AND vector_dims(vector) = $2 AND passage_id = ANY($3)
"""
_VECTOR_HEADER = 2  # numbers of two bytes that `halfvec_send` writes before those of the vector
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
SELECT c.relname AS name, i.indisvalid AS is_valid FROM pg_class c JOIN pg_index i ON i.indexrelid = c.oid
WHERE i.indrelid = CAST('vectors' AS regclass) AND starts_with(c.relname, 'vectors_near_')
"""
_GRAPH_SETTINGS = """
SELECT set_config('hnsw.ef_search', $1, true), set_config('hnsw.iterative_scan', 'relaxed_order', true),
    set_config('enable_sort', 'off', true), set_config('enable_seqscan', 'off', true), set_config('jit', 'off', true)
"""
# The cost on a solid-state disk. With the default of 4, the planner reads all sources for a filter that leaves 1 %.
_LOOKUP_SETTINGS = "SELECT set_config('random_page_cost', '1.1', true)"
_MODELS = """
SELECT m.model, m.passages, (SELECT vector_dims(v.vector) FROM vectors v WHERE v.model = m.model LIMIT 1) AS dimension
FROM (SELECT model, count(*) AS passages FROM vectors GROUP BY model) m WHERE m.passages >= $1
"""
_BUILD_GRAPH = """
CREATE INDEX CONCURRENTLY {name} ON vectors USING hnsw (CAST(vector AS halfvec({dimension})) halfvec_cosine_ops)
WHERE model = {model}
"""
_DIFFERENCES = {
    "passages are missing from the term table": """
        SELECT count(*) FROM passages p LEFT JOIN terms t ON t.passage_id = p.id
        WHERE p.words IS NOT NULL AND t.passage_id IS NULL""",
    "passages in the term table have not been analysed": """
        SELECT count(*) FROM terms t JOIN passages p ON p.id = t.passage_id WHERE p.words IS NULL""",
    "passages in the term table have a wrong collection or source": """
        SELECT count(*) FROM terms t JOIN passages p ON p.id = t.passage_id JOIN sources s ON s.id = p.source_id
        WHERE t.collection <> s.collection OR t.source_id <> s.id""",
    "vectors have a wrong collection or source": """
        SELECT count(*) FROM vectors v JOIN passages p ON p.id = v.passage_id JOIN sources s ON s.id = p.source_id
        WHERE v.collection <> substring(s.collection FROM '^[^:]*(?::[^:]*)?') OR v.source_id <> s.id""",
    "sources have a wrong number of passages": """
        SELECT count(*) FROM sources s WHERE s.passages <>
            (SELECT count(*) FROM passages p WHERE p.source_id = s.id AND p.words IS NOT NULL)""",
}


class PostgresIndex:
    """The index of one database."""

    holds_interpreter_lock = False  # the database server searches

    def __init__(self, db: Database) -> None:
        self._db = db
        self._term_counts = TermCountCache(db)
        self._sizes = RefreshingCache[ScopeSize]()
        self._shared = SharedTask()
        self._counting: dict[SearchScope, asyncio.Task[int]] = {}
        self._coverages = RefreshingCache[Coverage]()
        self._graphs = RefreshingCache[frozenset[str]]()

    async def keyword_hits(self, scope: SearchScope, terms: Sequence[int], limit: int) -> KeywordHits:
        distinct = np.array(list(dict.fromkeys(terms)), np.int64)
        size = await self._size(scope)
        if not len(distinct) or not size.passages:
            none = np.empty(0, np.int64)
            return KeywordHits(none, none.astype(np.float32), none, size.passages, size.average, (0,) * len(terms))
        plan = await self._plan(scope, distinct, size)
        is_small = scope.where and size.matching <= MAX_FILTERED_PASSAGES
        search = self._search_filtered if is_small else self._search_lists
        scoring, hits = await search(scope, plan, Counter(terms), limit)
        frequencies = dict(zip(distinct.tolist(), scoring.frequencies.tolist(), strict=True))
        by_term = tuple(frequencies[term] for term in terms)
        return KeywordHits(hits.ids, hits.scores, hits.sources, size.passages, size.average, by_term)

    async def vector_hits(
        self, scope: SearchScope, model: str, vector: NDArray[np.float32], limit: int, ef_search: int | None = None
    ) -> Hits:
        size = await self._size(scope)
        if size.matching > MAX_SCANNED_VECTORS and _graph_name(model, len(vector)) in await self._valid_graphs():
            settings = _GRAPH_SETTINGS, str(min(ef_search or max(MIN_EF_SEARCH, 2 * limit), MAX_EF_SEARCH))
            rows = await self._read_with(settings, _near(scope, model, vector, limit, is_graph=True))
        else:
            rows = await self._read(scope, *_near(scope, model, vector, limit, is_graph=False))
        ids, sources = _column(rows, "passage_id"), _column(rows, "source_id")
        scores = 1 - np.fromiter((row["distance"] for row in rows), np.float64, len(rows))
        scores = np.nan_to_num(scores).astype(np.float32)  # the distance of a zero vector is not a number
        order = np.lexsort((ids, -scores))
        return Hits(ids[order], scores[order], sources[order])

    async def keyword_scores(self, hits: Hits, terms: Sequence[int], statistics: KeywordHits) -> NDArray[np.float32]:
        ids: Any = hits.ids.tolist()
        words = {row["id"]: row["words"] for row in await self._db.fetch(_WORDS, ids)}
        counts, lengths = analyser.occurrences([words.get(id, b"") for id in ids], np.array(terms, np.int64))
        idfs = np.array([bm25.idf(statistics.passages, each) for each in statistics.frequencies], np.float64)
        return bm25.score(counts, lengths, statistics.average, idfs)

    async def passage_vectors(self, model: str, size: int, ids: Sequence[int]) -> PassageVectors:
        wanted: Any = list(ids)
        rows = await self._db.fetch(_VECTORS, model, size, wanted)
        numbers = np.frombuffer(b"".join([row["sent"] for row in rows]), ">f2").reshape(-1, _VECTOR_HEADER + size)
        return PassageVectors.of(_column(rows, "passage_id"), numbers[:, _VECTOR_HEADER:])

    async def coverage(self, collections: Sequence[str], model: str) -> Coverage:
        """Return the coverage. That of a large scope is cached for some seconds."""
        names: Any = list(collections)

        async def count() -> tuple[Coverage, float]:
            row = (await self._db.scan(_COVERAGE, names, model, _families(collections)))[0]
            return Coverage(row["passages"], row["embedded"]), _cache_seconds(row["passages"])

        return await self._coverages.get_or_load((tuple(collections), model), count)

    async def close(self) -> None:
        """Cancel background tasks. The database stays open."""
        await self._sizes.close()
        await self._coverages.close()
        for task in (counting := list(self._counting.values())):
            task.cancel()
        await asyncio.gather(*counting, return_exceptions=True)

    async def _size(self, scope: SearchScope) -> ScopeSize:
        """Return the size of a scope. That of large collections is cached for some seconds."""
        unfiltered = SearchScope(scope.collections)

        async def count() -> tuple[ScopeSize, float]:
            row = (await self._db.scan(*_statement(_SIZE, unfiltered)))[0]
            average = row["length"] / row["passages"] if row["passages"] else 0.0
            return ScopeSize(row["passages"], average, row["passages"]), _cache_seconds(row["passages"])

        size = await self._sizes.get_or_load(unfiltered, count)
        return replace(size, matching=await self._matching(scope)) if scope.where else size

    async def _matching(self, scope: SearchScope) -> int:
        """Count the passages that match the filter of a scope. Both retrievers share one query for it. The count
        decides only how to search, so it may be slightly out of date."""
        if (counting := self._counting.get(scope)) is None or counting.cancelling():
            counting = self._counting[scope] = asyncio.create_task(self._count_matching(scope))
            counting.add_done_callback(partial(self._forget, scope))
        return await self._shared.wait(counting)

    def _forget(self, scope: SearchScope, counting: asyncio.Task[int]) -> None:
        if self._counting.get(scope) is counting:
            del self._counting[scope]

    async def _count_matching(self, scope: SearchScope) -> int:
        return (await self._read(scope, *_statement(_SIZE, scope)))[0]["passages"]

    async def _plan(self, scope: SearchScope, terms: NDArray[np.int64], size: ScopeSize) -> CandidatePlan:
        """Choose the posting lists to read. The statistics do not depend on the filter."""
        all_lists = PostingChoice([(0, term) for term in range(len(terms))])
        if size.passages <= MAX_CANDIDATES:
            none = np.zeros(len(terms), np.int64)
            return CandidatePlan(terms, size, none, all_lists.whole, all_lists, MAX_CANDIDATES)
        lengths = await self._list_lengths(scope, terms, size.passages)
        choice = unfiltered = choose_postings(lengths, MAX_CANDIDATES, MIN_CANDIDATES)
        most = MAX_CANDIDATES
        if scope.where:
            most = int(MAX_CANDIDATES * min(MAX_WIDEN_FACTOR, size.passages / max(1, size.matching)))
            if size.matching <= MAX_CANDIDATES:
                choice = all_lists
            elif size.matching <= MAX_FILTERED_PASSAGES:
                share = size.matching / size.passages
                filtered = [np.ceil(each * share).astype(np.int64) for each in lengths]
                choice = choose_postings(filtered, MAX_CANDIDATES, MIN_CANDIDATES)
            else:
                choice = choose_postings(lengths, most, MIN_CANDIDATES)
        return CandidatePlan(terms, size, lengths[0], unfiltered.whole, choice, most)

    async def _list_lengths(
        self, scope: SearchScope, terms: NDArray[np.int64], passages: int
    ) -> Sequence[NDArray[np.int64]]:
        """Return the lengths of the lists of all terms, by level."""
        levels = range(len(LEVEL_MIN_VALUES))
        counts = await self._term_counts.of(scope.collections, passages)
        if counts is None:
            lists = [(level, term) for level in levels for term in range(len(terms))]
            return np.split(await self._count(scope, terms, lists), len(levels))
        short = tables.short_hashes(terms)
        return [counts.of(short ^ tables.level_salt(level), passages) for level in levels]

    async def _search_filtered(
        self, scope: SearchScope, plan: CandidatePlan, query: Mapping[int, int], limit: int
    ) -> tuple[CandidateScoring, Hits]:
        """Score all passages that match the filter."""
        keys = _keys(scope, plan.terms, (*plan.choice.followed, *plan.choice.sampled))
        counts, rows = await asyncio.gather(
            self._count_terms(scope, plan), self._read(scope, *_statement(_FILTERED, scope, keys))
        )
        scoring = plan.scoring(query, counts)
        return scoring, await compute(scoring.score, rows, limit)

    async def _search_lists(
        self, scope: SearchScope, plan: CandidatePlan, query: Mapping[int, int], limit: int
    ) -> tuple[CandidateScoring, Hits]:
        """Score the candidates with the highest possible scores first, and then those that can still reach the lowest
        score of the best."""
        counts: NDArray[np.int64] | None = None
        if scope.where:
            counts, lists = await asyncio.gather(self._count_terms(scope, plan), self._read_lists(scope, plan))
        else:
            lists = await self._read_lists(scope, plan)
        scoring, ids, highest = await compute(plan.order, query, lists, counts)
        # The final lowest score is at most the `limit`-th highest possible score, so all candidates that can reach the
        # latter are read in the first step.
        end = max(FIRST_READ_FACTOR * limit, int(np.count_nonzero(highest >= highest[:limit].min(initial=np.inf))))
        rows = await self._read_words(ids[:end])
        hits = await compute(scoring.score, rows, limit)
        lowest = hits.scores[-1] if 0 < limit == len(hits.ids) else 0.0
        if (enough := int(np.count_nonzero(highest >= lowest))) > end:
            rows += await self._read_words(ids[end:enough])
            hits = await compute(scoring.score, rows, limit)
        return scoring, hits

    async def _read_lists(self, scope: SearchScope, plan: CandidatePlan) -> list[bytes]:
        """Return the passage ids on each list that is read completely, and then a sample from the list that is too
        long."""
        choice = plan.choice
        args: list[Any] = [_keys(scope, plan.terms, choice.followed), *_key_counts(scope)]
        if choice.sampled:
            args += len(choice.followed), _keys(scope, plan.terms, choice.sampled), plan.sample_size
        rows = await self._read(scope, *_statement(_LISTS, scope, *args, sample=_SAMPLE if choice.sampled else ""))
        found = {row["place"]: row["passages"] for row in rows}
        return [found.get(number, b"") for number in range(len(choice.followed) + 1)]

    async def _read_words(self, ids: NDArray[np.int64]) -> list[Row]:
        wanted: Any = ids.tolist()
        return await self._db.scan(_WORDS, wanted) if wanted else []

    async def _count_terms(self, scope: SearchScope, plan: CandidatePlan) -> NDArray[np.int64]:
        """Count the passages that contain each counted term of the plan, without the filter."""
        return await self._count(scope, plan.terms, [(0, term) for term in plan.counted])

    async def _count(self, scope: SearchScope, terms: NDArray[np.int64], lists: PostingLists) -> NDArray[np.int64]:
        """Count the passages on posting lists."""
        counts = np.zeros(len(lists), np.int64)
        names: Any = list(scope.collections)
        keys: Any = _keys(scope, terms, lists)
        for row in await self._db.scan(_LIST_LENGTHS, names, keys, *_key_counts(scope)) if keys else ():
            counts[row["place"]] = row["passages"]
        return counts

    async def _read(self, scope: SearchScope, *statement: Any) -> list[Row]:
        """Run a statement about a scope, with settings for looking up rows if the scope has a filter."""
        return await (self._read_with([_LOOKUP_SETTINGS], statement) if scope.where else self._db.scan(*statement))

    async def _read_with(self, settings: Sequence[Any], statement: Sequence[Any]) -> list[Row]:
        """Run a statement in a transaction, so that the settings end with it."""

        async def read(tx: Transaction) -> list[Row]:
            await tx.fetch(*settings)
            return await tx.fetch(*statement)

        return await self._db.write(read)

    async def _valid_graphs(self) -> frozenset[str]:
        if (known := self._graphs.get(None)) is not None:
            return known
        valid = frozenset(row["name"] for row in await self._db.fetch(_GRAPHS) if row["is_valid"])
        return self._graphs.put(None, valid, LARGE_SCOPE_CACHE_SECONDS)


def _cache_seconds(passages: int) -> float:
    return LARGE_SCOPE_CACHE_SECONDS if passages > MAX_CANDIDATES else 0.0


def _statement(sql: str, scope: SearchScope, *args: Any, **parts: Any) -> tuple[Any, ...]:
    """Return a statement with the filter of a scope, and its parameters. The first parameter is the collections."""
    own = 1 + len(args)
    where = _PARAMETER.sub(lambda match: f"${int(match[1]) + own}", scope.where)
    return sql.format(where=f"({where or 'true'})", **parts), list(scope.collections), *args, *scope.args


def _keys(scope: SearchScope, terms: NDArray[np.int64], lists: PostingLists) -> list[int]:
    """Return the keys of posting lists in every collection of a scope, one list after the other. The keys of each list
    are padded to a multiple of the number that one index scan reads."""
    salts = np.array([tables.collection_salt(name) for name in scope.collections], np.int32)
    salts = np.pad(salts, (0, _key_counts(scope)[0] - len(salts)), "edge")  # a repeated key finds nothing twice
    short = tables.short_hashes(terms)
    keys = [short[term] ^ tables.level_salt(level) for level, term in lists]
    return np.bitwise_xor.outer(np.array(keys, np.int32), salts).ravel().tolist()


def _key_counts(scope: SearchScope) -> tuple[int, int]:
    """Return the number of keys of each list, and the number of keys that one index scan reads."""
    at_once = min(COLLECTIONS_AT_ONCE, len(scope.collections))
    return -(-len(scope.collections) // at_once) * at_once, at_once


def _near(
    scope: SearchScope, model: str, vector: NDArray[np.float32], limit: int, *, is_graph: bool
) -> tuple[Any, ...]:
    """Return the statement for the nearest vectors. For a graph, the expression is that of the graph's index, and the
    order is only the distance, because an index provides no other order."""
    dimension = len(vector)
    stored = f"CAST(v.vector AS halfvec({dimension}))" if is_graph else "v.vector"
    # In a subquery, because PostgreSQL would otherwise parse the text again for every row that it compares.
    distance = f"{stored} <=> (SELECT CAST(CAST($2 AS text) AS halfvec({dimension})))"
    literal = orjson.dumps(np.ascontiguousarray(vector, np.float32), option=orjson.OPT_SERIALIZE_NUMPY).decode()
    order = "distance" if is_graph else "distance, v.passage_id"
    parts = {"distance": distance, "order": order, "dimension": dimension, "limit": limit, "model": _quoted(model)}
    return _statement(_NEAR, scope, literal, _families(scope.collections), **parts)


def _families(collections: Sequence[str]) -> Any:
    return list(dict.fromkeys(map(tables.collection_family, collections)))


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


def _graph_name(model: str, dimension: int) -> str:
    return f"vectors_near_{hashlib.sha256(model.encode()).hexdigest()[:16]}_{dimension}"


def _column(rows: Sequence[Row], name: str) -> NDArray[np.int64]:
    return np.fromiter((row[name] for row in rows), np.int64, len(rows))


async def maintain(db: Database) -> list[str]:
    """Count terms and build graphs, if due; return the changed collections and graphs. One process does so at a time,
    while searches and writes continue."""
    async with db.lock("index"):
        return [*await term_counts.count(db), *await _build_graphs(db)]


async def compare(db: Database) -> list[str]:
    """Compare the tables of the index with the passages. Return a sentence for each kind of difference."""
    counted = [(text, (await db.scan(sql))[0][0]) for text, sql in _DIFFERENCES.items()]
    return [f"{count} {text}" for text, count in counted if count]


async def _build_graphs(db: Database) -> list[str]:
    """Build the graphs of models with many vectors, and drop invalid graphs and those of models with few vectors."""
    rows = await db.scan(_MODELS, MAX_SCANNED_VECTORS // 2)  # a graph is kept until its model has half as many vectors
    useful = {_graph_name(row["model"], row["dimension"]): row for row in rows}
    existing = {row["name"]: row["is_valid"] for row in await db.fetch(_GRAPHS)}
    for name, is_valid in existing.items():
        if name not in useful or not is_valid:
            await db.scan(f"DROP INDEX CONCURRENTLY {name}")
    missing = {
        name: row
        for name, row in useful.items()
        if row["passages"] >= MAX_SCANNED_VECTORS
        and row["dimension"] <= MAX_GRAPH_DIMENSIONS
        and not existing.get(name)
    }
    for name, row in missing.items():
        await db.scan(_BUILD_GRAPH.format(name=name, dimension=row["dimension"], model=_quoted(row["model"])))
    return list(missing)
