"""LanceDB, embedded: one table with an HNSW index, its own full-text index and one on the collection."""
# It is not installed beside our pins, so its types are unknown here.
# pyright: reportMissingImports=false, reportUnknownVariableType=false, reportUnknownMemberType=false
# pyright: reportUnknownArgumentType=false

from collections.abc import Iterator, Sequence
from typing import Any

import lancedb
import numpy as np
import pyarrow as pa
import search_asking
from lancedb.index import FTS, Bitmap, HnswSq
from search_asking import TOP
from search_corpus import DIMENSION, Corpus, Question

_AT_ONCE = 20_000
_PARTITION = 250_000  # vectors in each graph


def _batches(corpus: Corpus, schema: Any) -> Iterator[Any]:
    described = corpus.described()
    for part in corpus.batches(_AT_ONCE):
        flat = pa.array(corpus.vectors[part].astype(np.float32).ravel())
        vectors = pa.FixedSizeListArray.from_arrays(flat, DIMENSION)
        numbers = pa.array(range(part.start, part.stop), pa.int64())
        columns = [numbers, pa.array(corpus.homes[part]), pa.array(described[part]), vectors]
        yield pa.RecordBatch.from_arrays(columns, schema=schema)


def build(corpus: Corpus, place: str) -> None:
    schema = pa.schema(
        [
            ("number", pa.int64()),
            ("collection", pa.int64()),
            ("text", pa.string()),
            ("vector", pa.list_(pa.float32(), DIMENSION)),
        ]
    )
    table = lancedb.connect(place).create_table("passages", _batches(corpus, schema), schema=schema)
    parts = max(1, corpus.size // _PARTITION)
    table.create_index("vector", config=HnswSq(distance_type="cosine", num_partitions=parts))
    table.create_index("text", config=FTS())
    table.create_index("collection", config=Bitmap())


class Lance:
    """The table, open."""

    def __init__(self, place: str) -> None:
        self._table = lancedb.connect(place).open_table("passages")
        self._parts = max(1, self._table.count_rows() // _PARTITION)

    def ask(self, leg: str, question: Question) -> Sequence[int]:
        query = self._whole(question) if leg == "whole" else self._table.search(question.vector)
        query = query.distance_type("cosine").nprobes(self._parts).limit(TOP)
        if question.collection is not None:
            query = query.where(f"collection = {question.collection}", prefilter=True)
        return query.select(["number"]).to_arrow()["number"].to_pylist()

    def _whole(self, question: Question) -> Any:
        """Both legs, joined as it does by itself: by reciprocal ranks."""
        return self._table.search(query_type="hybrid").vector(question.vector).text(question.text.rstrip("?"))


if __name__ == "__main__":
    search_asking.run(build, search_asking.size_of, Lance)
