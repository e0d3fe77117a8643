"""The query batcher, with a model that waits for the test."""

import asyncio

import numpy as np
import pytest

from almanac.ai import query_batcher
from almanac.ai.embedder import Vectors
from almanac.ai.query_batcher import QueryBatcher
from almanac.core.fair_slots import ORG_ID
from tests.waiting import until


class Model:
    """Returns the length of each text when the test allows it."""

    def __init__(self) -> None:
        self.may = asyncio.Event()
        self.may.set()
        self.asked: list[list[str]] = []
        self.failure: Exception | None = None

    async def embed(self, texts: list[str]) -> Vectors:
        self.asked.append(texts)
        await self.may.wait()
        if self.failure:
            raise self.failure
        return np.array([[len(text)] for text in texts], np.float32)

    async def is_asked(self, times: int) -> None:
        await until(lambda: len(self.asked) >= times)


async def test_what_arrives_while_the_model_is_busy_goes_together_and_once():
    model = Model()
    model.may.clear()
    asked = QueryBatcher(model.embed)
    first = asyncio.create_task(asked.get("a"))
    await model.is_asked(1)
    others = [asyncio.create_task(asked.get(text)) for text in ("a", "bb", "ccc", "bb")]
    await asyncio.sleep(0)
    model.may.set()
    assert [float(vector[0]) for vector in await asyncio.gather(first, *others)] == [1, 1, 2, 3, 2]
    assert model.asked == [["a"], ["bb", "ccc"]]


async def test_no_more_go_together_than_the_most(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(query_batcher, "MAX_BATCH_QUERIES", 3)
    model = Model()
    asked = QueryBatcher(model.embed)
    texts = ["x" * length for length in range(8)]
    assert [float(row[0]) for row in await asyncio.gather(*map(asked.get, texts))] == list(range(8))
    assert [len(batch) for batch in model.asked] == [3, 3, 2]


async def test_what_was_asked_longest_ago_is_forgotten_first(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(query_batcher, "MAX_CACHED_VECTORS", 2)
    model = Model()
    asked = QueryBatcher(model.embed)
    for text in ("a", "bb", "a", "ccc", "a", "bb"):
        await asked.get(text)
    assert model.asked == [["a"], ["bb"], ["ccc"], ["bb"]]


async def test_two_organisations_share_neither_a_cached_nor_a_running_vector():
    model = Model()
    asked = QueryBatcher(model.embed)

    async def ask(org: str) -> Vectors:
        ORG_ID.set(org)
        return await asked.get("a")

    model.may.clear()
    first = asyncio.create_task(ask("acme"))
    await model.is_asked(1)
    others = [asyncio.create_task(ask(org)) for org in ("other", "third", "acme")]
    await asyncio.sleep(0)
    model.may.set()
    assert [float(vector[0]) for vector in await asyncio.gather(first, *others)] == [1, 1, 1, 1]
    for org in ("acme", "other", "third", "fourth"):
        await asyncio.create_task(ask(org))
    assert model.asked == [["a"], ["a", "a"], ["a"]]


async def test_who_gives_up_does_not_take_the_answer_from_others():
    model = Model()
    model.may.clear()
    asked = QueryBatcher(model.embed)
    hasty, patient = asyncio.create_task(asked.get("a")), asyncio.create_task(asked.get("a"))
    await model.is_asked(1)
    hasty.cancel()
    model.may.set()
    assert (await patient)[0] == 1
    assert hasty.cancelled()
    assert len(model.asked) == 1


async def test_a_failure_reaches_everyone_and_is_not_remembered():
    model = Model()
    model.failure = ConnectionError("gone")
    asked = QueryBatcher(model.embed)
    found = await asyncio.gather(asked.get("a"), asked.get("bb"), return_exceptions=True)
    assert [type(each) for each in found] == [ConnectionError, ConnectionError]
    model.failure = None
    assert (await asked.get("a"))[0] == 1


async def test_closing_tells_whoever_still_waits():
    model = Model()
    model.may.clear()
    asked = QueryBatcher(model.embed)
    waiting = asyncio.create_task(asked.get("a"))
    await model.is_asked(1)
    await asked.close()
    with pytest.raises(asyncio.CancelledError):
        await waiting
