"""Chroma, embedded: vectors and documents in one of its collections; metadata holds our collection. It has no BM25."""
# It is not installed beside our pins, so its types are unknown here.
# pyright: reportMissingImports=false, reportUnknownVariableType=false, reportUnknownMemberType=false
# pyright: reportUnknownArgumentType=false

from collections.abc import Sequence
from typing import Any

import chromadb
import numpy as np
import search_asking
from chromadb.config import Settings
from search_asking import TOP
from search_corpus import Corpus, Question

_AT_ONCE = 5_000


def _client(place: str) -> Any:
    return chromadb.PersistentClient(place, Settings(anonymized_telemetry=False))


def build(corpus: Corpus, place: str) -> None:
    configuration: dict[str, Any] = {"hnsw": {"space": "cosine"}}
    made = _client(place).create_collection("passages", configuration=configuration, embedding_function=None)
    described = corpus.described()
    for part in corpus.batches(_AT_ONCE):
        made.add(
            ids=[str(number) for number in range(part.start, part.stop)],
            embeddings=corpus.vectors[part].astype(np.float32),
            documents=described[part],
            metadatas=[{"collection": home} for home in corpus.homes[part].tolist()],
        )


class Chroma:
    """The collection, open."""

    def __init__(self, place: str) -> None:
        self._collection = _client(place).get_collection("passages", embedding_function=None)

    def ask(self, leg: str, question: Question) -> Sequence[int]:
        where = None if question.collection is None else {"collection": question.collection}
        found = self._collection.query(query_embeddings=[question.vector], n_results=TOP, where=where, include=[])
        return [int(each) for each in found["ids"][0]]


if __name__ == "__main__":
    search_asking.run(build, search_asking.size_of, Chroma)
