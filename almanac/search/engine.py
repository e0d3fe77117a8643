"""Search: from a question to the passages that answer it, best first, each with how likely it does.

Both legs, words and vectors, look inside the scope and nowhere else, at the same time. What they find is judged
together (`rank.py`), and of what is good enough a page is read and shown.
"""

import asyncio
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
import structlog
from numpy.typing import NDArray

from almanac.ai.embedder import Embedder
from almanac.ai.errors import BadModel, EmbeddingRefused, EmbeddingUnavailable, WrongDimension
from almanac.core.database import Database, Row
from almanac.core.errors import BadRequest
from almanac.search import citations
from almanac.search.analysis import common_words, highlights, title_match
from almanac.search.filters import source_filter
from almanac.search.index import tables
from almanac.search.index.protocol import Hits, KeywordHits, PassageVectors, SearchIndex, SearchScope
from almanac.search.passage import passage_from_row
from almanac.search.query import MODES, SearchQuery, SearchResponse, SearchResult
from almanac.search.ranking import features
from almanac.search.ranking.features import CandidateScorer, ParsedQuery, RankedPassage

MAX_QUERY_CHARS = 4_000  # characters of a question
MAX_RESULT_DEPTH = 500  # passages, counted from the best, that can be paged through
MIN_HITS_PER_RETRIEVER = (
    100  # passages each leg brings, at least; twice the deepest, where a page begins beyond what they brought
)

MAX_DIVERSITY_ROUNDS = 5  # at what is beyond sources that leave no room for others
EMBEDDING_HEAD_START_SECONDS = 0.002  # seconds, within which a model begins to compute
_ENGLISH = frozenset(("en",))
_NOTHING = Hits(np.empty(0, np.int64), np.empty(0, np.float32), np.empty(0, np.int64))
_NO_WORDS = KeywordHits(_NOTHING.ids, _NOTHING.scores, _NOTHING.sources, 0, 0.0, ())
_ROWS = """
SELECT p.*, s.kind AS source_kind, s.owner_id, s.collection, s.title
FROM passages p JOIN sources s ON s.id = p.source_id WHERE p.id IN ({ids})
"""

_MODELS = """
SELECT c.name, c.model,
    (SELECT 1 FROM sources s WHERE s.collection = c.name AND s.is_embedded = 0 LIMIT 1) IS NOT NULL AS is_waiting
FROM collections c WHERE c.name IN ({names}) ORDER BY c.name
"""  # not EXISTS, for which PostgreSQL may read what waits in all other collections besides

_log = structlog.get_logger("almanac.search")


class ModelCollections(NamedTuple):
    """The collections that are searched by the vectors of a model, and whether some of their passages lack theirs."""

    collections: tuple[str, ...]
    is_waiting: bool


class SearchEngine:
    """Searches over one index. Create it once for a process; what it is asked may come from many callers at a time."""

    def __init__(self, db: Database, index: SearchIndex, embedders: Mapping[str, Embedder]) -> None:
        self.db = db
        self.index = index
        self._embedders = embedders  # by the names that collections record

    async def search(self, question: SearchQuery) -> SearchResponse:
        """The passages that answer a question best. Whoever asks has seen to it that the caller may search there."""
        check(question)
        if not question.collections:
            return SearchResponse(())
        return await _Finding(self, question).answer()

    async def models(self, collections: Sequence[str]) -> dict[str, ModelCollections]:
        """Which collections a model serves, by its name; the empty name for those that have no vectors yet."""
        rows = await self.db.fetch(_MODELS.format(names=_numbers(len(collections))), *collections)
        found: dict[str, list[Row]] = {}
        for row in rows:
            found.setdefault(row["model"], []).append(row)
        return {
            model: ModelCollections(tuple(row["name"] for row in rows), any(row["is_waiting"] for row in rows))
            for model, rows in found.items()
        }

    async def rows(self, ids: Sequence[int]) -> dict[int, Row]:
        """Passages with their sources, by id; those that are gone by now are left out."""
        if not ids:
            return {}
        wanted = _padded(ids)
        rows = await self.db.fetch(_ROWS.format(ids=_numbers(len(wanted))), *wanted)
        return {row["id"]: row for row in rows}

    def embedder(self, model: str) -> Embedder | None:
        """What makes vectors of a model, where this process has it."""
        return self._embedders.get(model)


def check(question: SearchQuery) -> None:
    """Refuse a question that cannot be asked, saying what can."""
    if not question.text.strip():
        raise BadRequest("The question is empty.", remedy="Say what you are looking for, in a few words or a sentence.")
    if len(question.text) > MAX_QUERY_CHARS:
        raise BadRequest(
            f"The question is longer than {MAX_QUERY_CHARS} characters.", remedy="Ask for one thing at a time."
        )
    if question.mode not in MODES:
        raise BadRequest(f"There is no mode {question.mode!r}.", remedy=f"The modes are: {', '.join(MODES)}.")
    if question.limit < 1 or question.offset < 0 or question.offset + question.limit > MAX_RESULT_DEPTH:
        raise BadRequest(
            f"Only the best {MAX_RESULT_DEPTH} passages can be paged through.",
            remedy=f"Keep offset and limit together within {MAX_RESULT_DEPTH}, or narrow the search.",
        )
    if not 0 <= question.min_score <= 1:
        raise BadRequest("'min_score' is between 0 and 1.")


class _Finding:
    """One search under way: what it has found so far, how long each stage took, what each left over."""

    def __init__(self, search: SearchEngine, question: SearchQuery) -> None:
        self._search = search
        self._question = question
        self._asked: ParsedQuery = features.parse_text(question.text)
        collections = tuple(sorted(set(question.collections)))
        self._scope: SearchScope = SearchScope(
            collections, *source_filter.resolve(question.filter, collections=collections)
        )
        # The same for all pages, else each would be of a ranking of its own.
        self._depth, self._enough = max(MIN_HITS_PER_RETRIEVER, 2 * question.limit), question.limit
        self._is_cut = False  # whether there may be more than the legs have brought
        self._notes: list[str] = []
        self._vector_of: dict[str, NDArray[np.float32]] = {}  # the question's, by model
        self._sources: dict[int, int] = {}  # of the passages found
        self._rows: dict[int, Row] = {}  # passages whose text was looked at
        self._is_embedded = asyncio.Event()  # or nothing is embedded
        self._timings: dict[str, float] = {}
        self._counts: dict[str, int] = {}

    async def answer(self) -> SearchResponse:
        question = self._question
        shown, until = self._diverse(await self._candidates()), question.offset + question.limit
        is_last = bool(shown) and shown[-1].score < question.min_score
        if until >= len(shown) and self._is_cut and not is_last:
            shown = await self._deeper(shown)
        good = [each for each in shown if each.score >= question.min_score][:MAX_RESULT_DEPTH]
        begun = time.perf_counter()
        page, has_more = await self._show(good)
        found = tuple(self._found(each, self._rows[each.id]) for each in page)
        self._stage("show", begun, diverse=len(shown), above_min_score=len(good), returned=len(found))
        if not question.explain:
            return SearchResponse(found, tuple(dict.fromkeys(self._notes)), has_more)
        return SearchResponse(found, tuple(dict.fromkeys(self._notes)), has_more, self._timings, self._counts)

    async def _deeper(self, shown: list[RankedPassage]) -> list[RankedPassage]:
        """What was shown, then what is found by looking further: nothing comes again on a later page, and nothing there
        is said to be likelier than what came before."""
        self._depth, self._enough = 2 * MAX_RESULT_DEPTH, MAX_RESULT_DEPTH
        before, least = {each.id for each in shown}, shown[-1].score if shown else 1.0
        sources = self._sources
        others = [each for each in await self._candidates() if each.id not in before]
        self._sources = sources | self._sources
        return self._diverse([*shown, *(each._replace(score=min(each.score, least)) for each in others)])

    async def _candidates(self) -> list[RankedPassage]:
        """What both legs find, the best first."""
        question = self._question
        begun = time.perf_counter()
        titled = await self._titled()
        words, vectors = await self._legs()
        self._stage("legs", begun, words=len(words.ids), vectors=len(vectors.ids))
        begun = time.perf_counter()
        self._sources = _sources(words, vectors)
        if question.by_ranks:
            self._rows = await self._search.rows(list(dict.fromkeys((*self._sources, *titled))))
            self._sources = {id: row["source_id"] for id, row in self._rows.items()}
            titled += [
                id
                for id in words.ids.tolist()
                if id in self._rows and title_match.has(self._rows[id]["title"], question.text)
            ]
        ids = list(self._sources)
        judge = CandidateScorer(
            self._asked, words, vectors, await self._stored(ids), await self._weighed(words), self._sources, titled
        )
        self._stage("read", begun, fused=len(judge.ids))
        begun = time.perf_counter()
        candidates = await self._rank(judge)
        if question.graded and judge.curve:
            candidates = [each._replace(score=features.grade(judge.curve, each.score)) for each in candidates]
        self._stage("rank", begun)
        return candidates

    async def _legs(self) -> tuple[KeywordHits, Hits]:
        """What both legs find; looked for again without the sources that leave no room for others."""
        vectors, words = await asyncio.gather(self._vectors(), self._words())
        self._is_cut = max(len(words.ids), len(vectors.ids)) >= self._depth
        scope = self._scope
        for _ in range(MAX_DIVERSITY_ROUNDS):
            if not (crowding := self._crowded_sources(words, vectors)):
                break
            beyond = f"s.id NOT IN ({', '.join(map(str, crowding))})"
            self._scope = replace(scope, where=f"({scope.where}) AND {beyond}" if scope.where else beyond)
            further, others = await asyncio.gather(self._vectors(), self._words())
            self._is_cut = max(len(others.ids), len(further.ids)) >= self._depth
            words = replace(words, **_joined(words, others))
            vectors = replace(vectors, **_joined(vectors, further))
        self._scope = scope
        return words, vectors

    def _crowded_sources(self, words: KeywordHits, vectors: Hits) -> list[int]:
        """The sources that have their share already, if with it there is not enough to show."""
        most = self._question.max_per_source
        if not most or not self._is_cut:
            return []
        taken = Counter(_sources(words, vectors).values())
        is_enough = sum(min(most, number) for number in taken.values()) > self._enough
        return [] if is_enough else [source for source, number in taken.items() if number >= most]

    async def _words(self) -> KeywordHits:
        if self._question.mode == "vector" or not self._asked.terms:
            if self._question.by_ranks and self._question.mode != "vector":
                return await common_words.find(self._search.db, self._scope, self._question.text, self._depth)
            if self._question.mode == "keyword":
                self._notes.append("There is no word in the question that is looked for: use mode 'hybrid'.")
            return _NO_WORDS
        if self._question.mode == "hybrid" and self._search.index.holds_interpreter_lock:
            await self._wait_for_embedding_start()
        begun = time.perf_counter()
        found = await self._search.index.keyword_hits(self._scope, self._asked.hashes, self._depth)
        self._stage("words", begun)
        return found

    async def _wait_for_embedding_start(self) -> None:
        """Let a question that has to be embedded go first. A model computes beside us, but it cannot begin while words
        are looked for, which keeps the interpreter busy."""
        with suppress(TimeoutError):
            async with asyncio.timeout(EMBEDDING_HEAD_START_SECONDS):
                await self._is_embedded.wait()

    async def _titled(self) -> list[int]:
        if not self._question.by_ranks or self._question.mode == "vector":
            return []
        return await title_match.find(self._search.db, self._scope, self._question.text, self._depth)

    async def _vectors(self) -> Hits:
        try:
            return await self._nearest()
        finally:
            self._is_embedded.set()

    async def _nearest(self) -> Hits:
        if self._question.mode == "keyword":
            return _NOTHING
        models = await self._search.models(self._scope.collections)
        if (bare := models.pop("", None)) and bare.is_waiting and self._question.mode == "hybrid":
            self._notes.append("Some of what was searched has no vectors yet and is found by words only.")
        if self._question.mode == "vector" and not models:
            self._notes.append("Nothing here has vectors yet: ask again later, or search with mode 'hybrid'.")
        found = [hits for model, served in models.items() if (hits := await self._near(model, served)) is not None]
        return _merged(found, self._depth)

    async def _near(self, model: str, served: ModelCollections) -> Hits | None:
        """What a model finds in those collections that use it; None where it cannot be asked."""
        embedder = self._search.embedder(model)
        if embedder is None:
            self._notes.append(f"Some of what was searched has vectors of a model that is not there{self._instead}.")
            return None
        if self._asked.is_unspaced and self._question.mode == "hybrid" and embedder.languages == _ENGLISH:
            return None  # what it would find is no better than chance
        if not any(map(str.isalnum, self._question.text)) and embedder.languages == _ENGLISH:
            self._notes.append("There is nothing in the question that can be looked for: ask in words.")
            return None
        try:
            begun = time.perf_counter()
            vector = self._vector_of[model] = await embedder.query(self._question.text)
            self._stage("embed", begun)
            self._is_embedded.set()
        except (EmbeddingUnavailable, EmbeddingRefused, BadModel, WrongDimension) as error:
            _log.warning("query_not_embedded", model=model, error=type(error).__name__)
            self._notes.append(f"The question could not be embedded{self._instead}.")
            return None
        begun = time.perf_counter()
        if served.is_waiting:
            await self._note_missing_vectors(model, served.collections)
        found = await self._search.index.vector_hits(
            replace(self._scope, collections=served.collections), model, vector, self._depth, self._question.ef_search
        )
        self._stage("vectors", begun)
        if not len(found.ids) and not self._scope.where:
            await self._tell_misfits(model, served.collections, len(vector))
        return found

    async def _tell_misfits(self, model: str, collections: tuple[str, ...], size: int) -> None:
        sizes = [await tables.dimension(self._search.db, name, model) for name in collections]
        if any(each not in (None, size) for each in sizes):
            self._notes.append(f"The model gives vectors of another size than are here{self._instead}.")

    @property
    def _instead(self) -> str:
        if self._question.mode == "vector":
            return ": ask again later, or use mode 'keyword'"
        return ", so it was searched for by words only"

    async def _note_missing_vectors(self, model: str, collections: tuple[str, ...]) -> None:
        """Note how many passages lack vectors. They are counted only where some do, for among millions that takes time;
        among notes, some of which are always new, it is not worth it."""
        if self._question.by_ranks:
            self._notes.append("Some of what was searched has no vectors yet and is found by words only.")
            return
        covered = await self._search.index.coverage(collections, model)
        if covered.embedded < covered.passages:
            self._notes.append(
                f"{covered.passages - covered.embedded} of {covered.passages} passages have no vectors yet and"
                " are found by words only."
            )

    async def _weighed(self, words: KeywordHits) -> dict[int, float]:
        """What their words are worth, also of those that the words leg left behind others."""
        weights: dict[int, float] = dict(zip(words.ids.tolist(), words.scores.tolist(), strict=True))
        if words.frequencies and (others := {id: each for id, each in self._sources.items() if id not in weights}):
            ids, sources = np.fromiter(others, np.int64), np.fromiter(others.values(), np.int64)
            hits = Hits(ids, np.zeros(len(ids), np.float32), sources)
            found = await self._search.index.keyword_scores(hits, self._asked.hashes, words)
            weights |= zip(others, found.tolist(), strict=True)
        return weights

    async def _stored(self, ids: Sequence[int]) -> list[tuple[PassageVectors, NDArray[np.float32]]]:
        """For each model the candidates' vectors, also of those that the vectors leg left behind others."""
        index = self._search.index
        return [
            (await index.passage_vectors(model, len(asked), ids), asked) for model, asked in self._vector_of.items()
        ]

    async def _rank(self, judge: CandidateScorer) -> list[RankedPassage]:
        if self._question.by_ranks:
            return judge.by_ranks(self._rows, rerank=self._question.rerank)
        if self._question.mode == "vector":
            return judge.rank_by_vectors()
        if not self._vector_of:
            return judge.rank_by_keywords()
        if not self._question.rerank:
            return judge.fuse_by_score()
        self._rows = await self._search.rows(judge.rerank_ids())
        try:
            return judge.rerank_by_text(self._rows)
        except (ArithmeticError, IndexError, ValueError) as error:  # an answer in plainer order is better than none
            _log.error("rerank_failed", error=type(error).__name__)
            self._notes.append("Reranking failed; this is the order before it.")
            return judge.fuse_by_score()

    def _diverse(self, candidates: list[RankedPassage]) -> list[RankedPassage]:
        """What is left when no source has more than its share."""
        most = self._question.max_per_source
        if not most:
            return candidates
        shown, taken = list[RankedPassage](), Counter[int]()
        for each in candidates:
            taken[source := self._sources[each.id]] += 1
            if taken[source] <= most:
                shown.append(each)
        return shown

    async def _show(self, candidates: list[RankedPassage]) -> tuple[list[RankedPassage], bool]:
        """The page that was asked for, and whether there are more. Whoever is gone by now leaves no gap."""
        start, until = self._question.offset, self._question.offset + self._question.limit
        while True:
            page = candidates[start:until]
            self._rows |= await self._search.rows([each.id for each in page if each.id not in self._rows])
            gone = {each.id for each in page} - self._rows.keys()
            if not gone:
                return page, until < len(candidates)
            candidates = [each for each in candidates if each.id not in gone]

    def _found(self, candidate: RankedPassage, row: Row) -> SearchResult:
        passage = passage_from_row(row)
        return SearchResult(
            passage_id=candidate.id,
            kind=row["source_kind"],
            owner_id=row["owner_id"],
            collection=row["collection"],
            title=row["title"],
            text=passage.text,
            score=round(candidate.score, 4),
            legs=candidate.legs,
            headings=passage.headings,
            page=passage.page,
            boxes=passage.boxes,
            start=passage.start,
            end=passage.end,
            hash=citations.passage_hash(passage.text),
            highlights=highlights.find(passage.text, self._asked.terms),
        )

    def _stage(self, name: str, begun: float, **counts: int) -> None:
        self._timings[name] = round(1000 * (time.perf_counter() - begun), 3)
        self._counts.update(counts)


def _joined(hits: Hits, others: Hits) -> dict[str, Any]:
    """What both found, the first first."""
    new = ~np.isin(others.ids, hits.ids)
    names = ("ids", "scores", "sources")
    return {name: np.append(getattr(hits, name), getattr(others, name)[new]) for name in names}


def _sources(*found: Hits) -> dict[int, int]:
    """The sources of passages, by their ids."""
    return {id: source for hits in found for id, source in zip(hits.ids.tolist(), hits.sources.tolist(), strict=True)}


def _padded(ids: Sequence[int]) -> list[int]:
    """Ids, the last of them repeated: so that there are few lengths of lists, and a statement serves again."""
    return [*ids, *[ids[-1]] * ((1 << (len(ids) - 1).bit_length()) - len(ids))]


@lru_cache
def _numbers(count: int) -> str:
    return ", ".join(f"${number}" for number in range(1, count + 1))


def _merged(found: Sequence[Hits], limit: int) -> Hits:
    """The best of what several models found. Their cosines are not the same measure; it is the best there is."""
    if len(found) < 2:
        return found[0] if found else _NOTHING
    ids, scores = np.concatenate([each.ids for each in found]), np.concatenate([each.scores for each in found])
    sources = np.concatenate([each.sources for each in found])
    order = np.lexsort((ids, -scores))[:limit]
    return Hits(ids[order], scores[order], sources[order])
