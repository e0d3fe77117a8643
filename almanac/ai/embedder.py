"""The protocol of an embedder, which turns texts into vectors of length one. Similar texts have near vectors."""

from collections.abc import Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

Vectors = NDArray[np.float32]


class Embedder(Protocol):
    """A model in this process (`bundled`) or at an endpoint (`remote`)."""

    @property
    def name(self) -> str:
        """The name that a collection stores. It contains all that affects the vectors: model, pooling, precision."""
        ...

    @property
    def dimension(self) -> int:
        """The dimension of the vectors; 0 before the first response of an endpoint."""
        ...

    @property
    def languages(self) -> frozenset[str]:
        """The languages of the model (`en`); empty if there are many or they are unknown."""
        ...

    async def passages(self, texts: Sequence[str]) -> Vectors:
        """One row for each text, in their order."""
        ...

    async def query(self, text: str) -> Vectors:
        """The vector of a query. It is cached and must not be changed."""
        ...

    async def close(self) -> None:
        """Release threads and connections."""
        ...


def normalise(rows: Vectors) -> Vectors:
    """The vectors scaled to length one. Zero vectors stay zero."""
    lengths = np.linalg.norm(rows, axis=-1, keepdims=True)
    return (rows / np.where(lengths > 0, lengths, 1)).astype(np.float32, copy=False)


def clean(text: str, max_chars: int) -> str:
    """The beginning of a text without surrogates, which tokenisers and UTF-8 do not accept."""
    return text[:max_chars].encode("utf-8", "replace").decode()
