"""The bare engines: usearch for vectors and tantivy for words, with nothing around them.

usearch has no filters, so the collection that is searched alone has a graph of its own, which is the best case. tantivy
has one index, in which the collection is one more term to match.
"""
# Neither is installed beside our pins, so their types are unknown here.
# pyright: reportMissingImports=false, reportUnknownVariableType=false, reportUnknownMemberType=false
# pyright: reportUnknownArgumentType=false, reportMissingTypeStubs=false, reportUnknownParameterType=false

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import search_asking
import tantivy
import usearch.index as usearch
from search_asking import DEPTH
from search_corpus import DIMENSION, Corpus, Question

_HEAP = 256 * 1024 * 1024


def _graph() -> Any:
    return usearch.Index(ndim=DIMENSION, metric="cos", dtype="f16")


def _schema() -> Any:
    builder = tantivy.SchemaBuilder()
    builder.add_unsigned_field("number", stored=True, fast=True)
    builder.add_unsigned_field("collection", indexed=True)
    builder.add_text_field("text", tokenizer_name="en_stem")
    return builder.build()


def build(corpus: Corpus, place: str) -> None:
    folder = Path(place)
    inside = np.flatnonzero(corpus.homes == 0)
    for name, numbers in (("one", inside), ("all", np.arange(corpus.size))):
        graph = _graph()
        graph.add(numbers.astype(np.uint64), corpus.vectors[numbers])
        graph.save(str(folder / f"{name}.usearch"))
    words = folder / "words"
    words.mkdir()
    schema = _schema()
    index = tantivy.Index(schema, path=str(words))
    writer = index.writer(_HEAP)
    for number, (text, home) in enumerate(zip(corpus.described(), corpus.homes.tolist(), strict=True)):
        # By the schema: otherwise numbers are taken for signed ones and the writer crashes.
        told = {"number": number, "collection": home, "text": text}
        writer.add_document(tantivy.Document.from_dict(told, schema))
    writer.commit()
    writer.wait_merging_threads()


class Bare:
    """Both engines, open."""

    def __init__(self, place: str) -> None:
        folder = Path(place)
        self._graphs = {scope: _graph() for scope in ("one", "all")}
        for scope, graph in self._graphs.items():
            graph.load(str(folder / f"{scope}.usearch"))
        self._words = tantivy.Index.open(str(folder / "words"))
        self._searcher = self._words.searcher()

    def ask(self, leg: str, question: Question) -> Sequence[int]:
        if leg == "words":
            return self._match(question)
        if leg == "vectors":
            return self._near(question)
        self._match(question)
        return self._near(question)  # both run; joining their results is not part of an engine

    def _near(self, question: Question) -> Sequence[int]:
        graph = self._graphs["all" if question.collection is None else "one"]
        return graph.search(question.vector, DEPTH).keys.tolist()

    def _match(self, question: Question) -> Sequence[int]:
        query, _ = self._words.parse_query_lenient(question.text, ["text"])
        if question.collection is not None:
            here = tantivy.Query.term_query(self._words.schema, "collection", question.collection)
            here = tantivy.Query.const_score_query(here, 0.0)
            query = tantivy.Query.boolean_query([(tantivy.Occur.Must, here), (tantivy.Occur.Must, query)])
        hits = self._searcher.search(query, DEPTH, count=False).hits
        return self._searcher.fast_field_values("number", [address for _, address in hits])


if __name__ == "__main__":
    search_asking.run(build, search_asking.size_of, Bare)
