"""Both databases give the same results for the same sources.

By words: the same passages, with scores that differ by no more than a thousandth (in fact by the last digits of a
float32), and those of the naive reference. By vectors: the same passages, except for score
differences below the precision of the embedded index's 8 bits a number; at least 95 of 100, on average, with scores
that differ by no more than `QUANTISED`.
"""

import json
import os
import shutil
from collections.abc import AsyncIterator, Iterable
from dataclasses import dataclass
from functools import lru_cache
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from almanac.db.connect import connect
from almanac.search.analysis import analyser
from almanac.search.index.embedded import compaction, keyword_scan
from almanac.search.index.embedded.embedded_index import EmbeddedIndex
from almanac.search.index.postgres.postgres_index import PostgresIndex
from almanac.search.index.protocol import Hits, SearchIndex, SearchScope
from tests.conftest import Cluster
from tests.search.reference import Reference, assert_agrees
from tests.search.shelf import MODEL, Shelf, open_shelf, terms, turn

SETS = Path(os.environ.get("ALMANAC_DATA", "data"))
SOME = ("base:1", "base:2", "base:3", "base:4", "base:5")
SCOPES = [
    SearchScope(SOME),
    SearchScope(("base:2",)),
    SearchScope(("base:1", "base:4")),
    SearchScope(SOME, "s.folder_id = $1 OR s.folder_id > $2", (1, 4)),
    SearchScope(("base:3",), "s.folder_id <> $1", (2,)),
    SearchScope(SOME, "s.id % $1 = 3", (20,)),
]
ALIKE = 1e-3  # of a score by words, relatively
QUANTISED = 4e-3  # of a cosine


@dataclass
class Pair:
    """The two indexes, one for each kind of database."""

    embedded: EmbeddedIndex
    postgres: PostgresIndex
    shelves: tuple[Shelf, Shelf]
    folder: Path

    @property
    def indexes(self) -> tuple[SearchIndex, SearchIndex]:
        return self.embedded, self.postgres

    async def words(self, scope: SearchScope, asked: list[int]) -> None:
        """Compare the keyword results of both with each other and with the reference."""
        one, other = [await index.keyword_hits(scope, asked, 10) for index in self.indexes]
        assert (one.passages, one.frequencies) == (other.passages, other.frequencies)
        assert one.average == pytest.approx(other.average)
        everything = await Reference(self.shelves[0].db).words(scope, asked)
        for found in (one, other):
            assert_agrees(found, everything, 10, ALIKE)
        assert overlap(one, other) == 1

    async def vectors(self, scope: SearchScope, vector: NDArray[np.float32]) -> float:
        """The same by vectors; return the number of common passages among the ten best."""
        one, other = [await index.vector_hits(scope, MODEL, vector, 10) for index in self.indexes]
        everything = await Reference(self.shelves[1].db).vectors(scope, MODEL, vector)
        assert_agrees(one, everything, 10, QUANTISED)
        assert_agrees(other, everything, 10, ALIKE)
        return overlap(one, other)


def overlap(one: Hits, other: Hits) -> float:
    ids = set(one.ids.tolist())
    return len(ids & set(other.ids.tolist())) / len(ids) if ids else 1.0


@pytest.fixture
async def pair(postgres_cluster: Cluster, sqlite_template: Path, tmp_path: Path) -> AsyncIterator[Pair]:
    shutil.copy(sqlite_template, tmp_path / "almanac.db")
    url = postgres_cluster.take()
    sqlite, postgres = await connect(f"sqlite:///{tmp_path / 'almanac.db'}"), await connect(url)
    embedded = EmbeddedIndex(sqlite, tmp_path / "index")
    yield Pair(
        embedded, PostgresIndex(postgres), (await open_shelf(sqlite), await open_shelf(postgres)), tmp_path / "index"
    )
    await embedded.close()
    await sqlite.close()
    await postgres.close()
    postgres_cluster.drop(url)


@pytest.mark.parametrize("is_compacted", [True, False])
async def test_both_databases_find_the_same_generated_documents(
    pair: Pair, is_compacted: bool, monkeypatch: pytest.MonkeyPatch
):
    if not is_compacted:
        monkeypatch.setattr(keyword_scan, "MIN_FILTERED_RATIO", 1)  # so that terms are looked up in any filtered rows
    for shelf in pair.shelves:
        await shelf.fill(300, SOME)
        for name in ("3", "40", "77"):
            await shelf.change(name, is_live=False)
        await shelf.change("5", collection="base:4")
        await shelf.remove("6")
    if is_compacted:
        await compaction.rebuild(pair.shelves[0].db, pair.folder)
    asking, overlaps = pair.shelves[0], list[float]()
    for scope in SCOPES:
        for length in (1, 3, 8):
            await pair.words(scope, asking.question(length))
        overlaps += [await pair.vectors(scope, vector) for vector in turn(asking.rng, 3, 32)]
    assert np.mean(overlaps) >= 0.95


async def test_both_databases_find_the_same_scientific_papers(pair: Pair):
    if not (SETS / "scifact").is_dir():
        pytest.skip("SciFact is not there: ALMANAC_DATA names the folder of the sets")
    papers = list(islice(lines("corpus"), 1000))
    for shelf in pair.shelves:
        for start in range(0, len(papers), 50):
            texts = [f"{paper['title']}\n{paper['text']}" for paper in papers[start : start + 50]]
            await shelf.put(str(start), texts)
            await shelf.embed(str(start), np.stack([project(text) for text in texts]))
    overlaps: list[float] = []
    for claim in islice(lines("queries"), 25):
        await pair.words(SearchScope(("base:1",)), terms(claim["text"]))
        overlaps.append(await pair.vectors(SearchScope(("base:1",)), project(claim["text"])))
    assert np.mean(overlaps) >= 0.95


def lines(name: str) -> Iterable[dict[str, Any]]:
    with (SETS / "scifact" / f"{name}.jsonl").open(encoding="utf-8") as file:
        yield from map(json.loads, file)


def project(text: str, dimension: int = 256) -> NDArray[np.float32]:
    """The vector of a text as the sum of a fixed vector for each term."""
    total = np.zeros(dimension)
    for term in analyser.terms_of(text):
        total += _direction(analyser.term_hash(term), dimension)
    return (total / (np.linalg.norm(total) or 1)).astype(np.float32)


@lru_cache(100_000)
def _direction(hash: int, dimension: int) -> NDArray[np.float64]:
    return np.random.default_rng(abs(hash)).standard_normal(dimension)
