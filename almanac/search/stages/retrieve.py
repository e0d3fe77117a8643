"""Retrieve: run keyword and vector search in a scope at the same time, and find titles that contain the query."""

import asyncio
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace

import numpy as np
import structlog
from numpy.typing import NDArray

from almanac.ai.embedder import Embedder
from almanac.ai.errors import BadModel, EmbeddingRefused, EmbeddingUnavailable, WrongDimension
from almanac.search.analysis import common_words
from almanac.search.index import tables, title_index
from almanac.search.index.protocol import Hits, KeywordHits, SearchScope
from almanac.search.query import ParsedQuery
from almanac.search.resources import ModelCollections, SearchResources, SearchRun

EMBEDDING_HEAD_START_SECONDS = 0.002  # enough for a model to begin computing
MAX_NON_LATIN_SHARE = 0.3  # of the letters of a query that a model of English can embed

_ENGLISH = frozenset(("en",))
_NO_HITS = Hits(np.empty(0, np.int64), np.empty(0, np.float32), np.empty(0, np.int64))
_NO_KEYWORD_HITS = KeywordHits(_NO_HITS.ids, _NO_HITS.scores, _NO_HITS.sources, 0, 0.0, ())

_NO_KEYWORDS = "The query has only common words or symbols, which keyword search ignores. Use mode 'hybrid'."
_SOME_WITHOUT_VECTORS = "Some passages have no vectors yet: only keyword search finds them."
_TRY_KEYWORDS = "Try again later, or use mode 'keyword'."

_log = structlog.get_logger("almanac.search")


@dataclass(frozen=True, slots=True)
class RetrievedHits:
    """The hits of all retrievers."""

    parsed: ParsedQuery
    keyword: KeywordHits
    vector: Hits
    title_ids: list[int]  # passages
    query_vectors: dict[str, NDArray[np.float32]]  # by model
    is_cut: bool  # a retriever may have more hits than it returned

    def sources(self) -> dict[int, int]:
        """The source of each passage that keyword or vector search found."""
        ids = self.keyword.ids.tolist() + self.vector.ids.tolist()
        return dict(zip(ids, self.keyword.sources.tolist() + self.vector.sources.tolist(), strict=True))


async def retrieve(
    resources: SearchResources, run: SearchRun, parsed: ParsedQuery, scope: SearchScope, depth: int
) -> RetrievedHits:
    """The best hits of each retriever in the scope, at most `depth` of each."""
    retrieval = _Retrieval(resources, run, parsed, scope, depth)
    vector, keyword, title_ids = await asyncio.gather(
        retrieval.vector_hits(), retrieval.keyword_hits(), retrieval.title_ids()
    )
    is_cut = max(len(keyword.ids), len(vector.ids)) >= depth
    return RetrievedHits(parsed, keyword, vector, title_ids, retrieval.query_vectors, is_cut)


@dataclass(frozen=True, slots=True)
class _Retrieval:
    """One run of keyword and vector search."""

    resources: SearchResources
    run: SearchRun
    parsed: ParsedQuery
    scope: SearchScope
    depth: int
    query_vectors: dict[str, NDArray[np.float32]] = field(default_factory=dict[str, NDArray[np.float32]])
    is_embedded: asyncio.Event = field(default_factory=asyncio.Event)  # or there is nothing to embed

    async def keyword_hits(self) -> KeywordHits:
        parsed, index = self.parsed, self.resources.index
        if "common_words" in parsed.retrievers:
            return await common_words.find(self.resources.db, self.scope, parsed.query.text, self.depth)
        if "keyword" not in parsed.retrievers:
            if parsed.query.mode == "keyword":
                self.run.notes.append(_NO_KEYWORDS)
            return _NO_KEYWORD_HITS
        if "vector" in parsed.retrievers and index.holds_interpreter_lock:
            await self._wait_for_embedding_start()
        begun = time.perf_counter()
        hits = await index.keyword_hits(self.scope, parsed.hashes, self.depth)
        self.run.record("words", begun)
        return hits

    async def title_ids(self) -> list[int]:
        if "title" not in self.parsed.retrievers:
            return []
        return await title_index.find(self.resources.db, self.scope, self.parsed.query.text, self.depth)

    async def _wait_for_embedding_start(self) -> None:
        """Give the embedding of the query a head start. The model computes in its own thread, but cannot begin while
        keyword search holds the interpreter lock."""
        with suppress(TimeoutError):
            async with asyncio.timeout(EMBEDDING_HEAD_START_SECONDS):
                await self.is_embedded.wait()

    async def vector_hits(self) -> Hits:
        try:
            return await self._vector_hits() if "vector" in self.parsed.retrievers else _NO_HITS
        finally:
            self.is_embedded.set()

    async def _vector_hits(self) -> Hits:
        models = await self.resources.models(self.scope.collections)
        without_model = models.pop("", None)
        if not models and not self._is_hybrid:
            self.run.notes.append(
                "No passage in the search scope has vectors yet. Try again later, or use mode 'hybrid'."
            )
        elif without_model and without_model.is_waiting:
            self.run.notes.append(_SOME_WITHOUT_VECTORS)
        hits = [await self._hits_of_model(*model) for model in models.items()]
        return _best([each for each in hits if each is not None], self.depth)

    async def _hits_of_model(self, model: str, served: ModelCollections) -> Hits | None:
        """The nearest passages in the collections of a model, or None if the query cannot be embedded."""
        embedder = self.resources.embedders.get(model)
        if embedder is None:
            self._note_skipped("Some passages have vectors of a model that this server does not have")
            return None
        if not self._can_embed(embedder) or (vector := await self._embed(embedder, model)) is None:
            return None
        begun = time.perf_counter()
        if served.is_waiting:
            await self._note_missing_vectors(model, served.collections)
        scope = replace(self.scope, collections=served.collections)
        hits = await self.resources.index.vector_hits(scope, model, vector, self.depth, self.parsed.query.ef_search)
        self.run.record("vectors", begun)
        if not len(hits.ids) and not scope.where:
            await self._note_other_dimension(model, served.collections, len(vector))
        return hits

    def _can_embed(self, embedder: Embedder) -> bool:
        if embedder.languages != _ENGLISH:
            return True
        text = self.parsed.query.text
        if self._is_hybrid and _is_non_latin(text):
            return False  # the hits would be no better than chance
        if not any(map(str.isalnum, text)):
            self.run.notes.append("The query contains no letters or digits. Use words.")
            return False
        return True

    async def _embed(self, embedder: Embedder, model: str) -> NDArray[np.float32] | None:
        begun = time.perf_counter()
        try:
            vector = await embedder.query(self.parsed.query.text)
        except (EmbeddingUnavailable, EmbeddingRefused, BadModel, WrongDimension) as error:
            _log.warning("query_not_embedded", model=model, error=type(error).__name__)
            self._note_skipped("The query could not be embedded")
            return None
        self.query_vectors[model] = vector
        self.run.record("embed", begun)
        self.is_embedded.set()
        return vector

    async def _note_missing_vectors(self, model: str, collections: tuple[str, ...]) -> None:
        if not self.parsed.query.profile.counts_missing_vectors:
            self.run.notes.append(_SOME_WITHOUT_VECTORS)
            return
        covered = await self.resources.index.coverage(collections, model)
        if (missing := covered.passages - covered.embedded) > 0:
            self.run.notes.append(
                f"{missing} of {covered.passages} passages have no vectors yet: only keyword search finds them."
            )

    async def _note_other_dimension(self, model: str, collections: tuple[str, ...], size: int) -> None:
        stored = [await tables.dimension(self.resources.db, name, model) for name in collections]
        if any(each not in (None, size) for each in stored):
            self._note_skipped("The model returns vectors of another size than the stored ones")

    @property
    def _is_hybrid(self) -> bool:
        return self.parsed.query.mode == "hybrid"

    def _note_skipped(self, reason: str) -> None:
        hint = ", so only keyword search was used." if self._is_hybrid else f". {_TRY_KEYWORDS}"
        self.run.notes.append(reason + hint)


def _is_non_latin(text: str) -> bool:
    letters = [character for character in text if character.isalpha()]
    return sum(letter > "\u02ff" for letter in letters) > MAX_NON_LATIN_SHARE * len(letters)


def _best(lists: Sequence[Hits], limit: int) -> Hits:
    """The best hits of several models. Their cosines are not the same measure, but there is no better one."""
    if len(lists) < 2:
        return lists[0] if lists else _NO_HITS
    ids, scores = np.concatenate([hits.ids for hits in lists]), np.concatenate([hits.scores for hits in lists])
    sources = np.concatenate([hits.sources for hits in lists])
    order = np.lexsort((ids, -scores))[:limit]
    return Hits(ids[order], scores[order], sources[order])
