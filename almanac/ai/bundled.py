"""The embedder in this process, with the model of the package or one in a folder of the home.

All computation runs in threads. Queries have one thread; passages have the number in the settings. On Linux the threads
for passages have a low priority, so that searches stay fast while many passages are embedded.
"""

import asyncio
import os
import sys
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from functools import cache, partial
from pathlib import Path
from typing import TypeVar

import numpy as np

from almanac.ai.cpu import cpu_count
from almanac.ai.embedder import Vectors
from almanac.ai.encoder import Encoder, Model, ModelFolder, batch, restore
from almanac.ai.query_batcher import QueryBatcher

DEFAULT = ModelFolder(Path(__file__).parent / "models" / "bge-small-en-v1.5")
BACKGROUND_NICENESS = 10
TEXTS_PER_TOKENISATION = 128

T = TypeVar("T")

_load_lock = threading.Lock()


class BundledEmbedder:
    """An embedder that computes in this process. The model is loaded at its first use, once per process."""

    def __init__(self, model: Model = DEFAULT, threads: int = 0) -> None:
        self._model = model
        self._about = model.describe()
        self._passage_threads = ThreadPoolExecutor(threads or cpu_count(), "embed", _lower_priority)
        self._query_thread = ThreadPoolExecutor(1, "embed-query")
        self._queries = QueryBatcher(self._embed_queries)

    @property
    def name(self) -> str:
        return self._about.name

    @property
    def dimension(self) -> int:
        return self._about.dimension

    @property
    def languages(self) -> frozenset[str]:
        return self._about.languages

    async def query(self, text: str) -> Vectors:
        return await self._queries.get(text)

    async def passages(self, texts: Sequence[str]) -> Vectors:
        if not texts:
            return np.empty((0, self.dimension), np.float32)
        encoder = await self._run(self._passage_threads, partial(_load_once, self._model))
        starts = range(0, len(texts), TEXTS_PER_TOKENISATION)
        groups = [texts[start : start + TEXTS_PER_TOKENISATION] for start in starts]
        prefix = self._about.passage_prefix
        tokenised = await self._run_all([partial(encoder.tokenise, group, prefix) for group in groups])
        rows = [row for group in tokenised for row in group]
        batches = batch([len(row) for row in rows])
        computed = await self._run_all([partial(encoder.run, [rows[place] for place in each]) for each in batches])
        return restore(batches, computed)

    async def close(self) -> None:
        await self._queries.close()
        for threads in (self._query_thread, self._passage_threads):
            threads.shutdown(wait=False, cancel_futures=True)

    async def _embed_queries(self, texts: list[str]) -> Vectors:
        return await self._run(self._query_thread, partial(_embed, self._model, texts, self._about.query_prefix))

    async def _run(self, threads: Executor, work: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(threads, work)

    async def _run_all(self, works: Sequence[Callable[[], T]]) -> list[T]:
        return await asyncio.gather(*(self._run(self._passage_threads, work) for work in works))


def _embed(model: Model, texts: list[str], prefix: str) -> Vectors:
    return _load_once(model).embed(texts, prefix)


def _load_once(model: Model) -> Encoder:
    with _load_lock:  # otherwise two threads could load the model at the same time
        return _load(model)


@cache
def _load(model: Model) -> Encoder:
    return model.load()


def _lower_priority() -> None:
    if sys.platform == "linux":  # on other systems a thread has no niceness of its own
        thread = threading.get_native_id()
        os.setpriority(os.PRIO_PROCESS, thread, max(BACKGROUND_NICENESS, os.getpriority(os.PRIO_PROCESS, thread)))
