"""An embedder: text in, vectors of length one out. Two of them are near each other where their texts mean the same."""

from collections.abc import Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

Vectors = NDArray[np.float32]


class Embedder(Protocol):
    """The seam: a model in this process (`local`), or one behind an endpoint (`remote`)."""

    @property
    def name(self) -> str:
        """What a collection records: all that changes the vectors (model, pooling, precision) is in it."""
        ...

    @property
    def dimension(self) -> int:
        """How long a vector is; 0 as long as an endpoint has not been asked."""
        ...

    @property
    def languages(self) -> frozenset[str]:
        """The languages it knows (`en`); empty where it knows many, or nobody can tell."""
        ...

    async def passages(self, texts: Sequence[str]) -> Vectors:
        """A row for each text, in their order."""
        ...

    async def query(self, text: str) -> Vectors:
        """The vector to look for passages with. It is shared: not to be written to."""
        ...

    async def close(self) -> None:
        """Let go of threads and connections."""
        ...


def normalise(rows: Vectors) -> Vectors:
    """The same directions at length one; what has no direction stays zero."""
    lengths = np.linalg.norm(rows, axis=-1, keepdims=True)
    return (rows / np.where(lengths > 0, lengths, 1)).astype(np.float32, copy=False)


def clean(text: str, most: int) -> str:
    """The beginning of a text, without half characters, which no tokeniser and no wire takes."""
    return text[:most].encode("utf-8", "replace").decode()
