"""A surface for tests only: tools that echo, fail, wait, or need a scope."""

import asyncio
import threading
import time
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel, Field

from almanac.core.arguments import Arguments
from almanac.core.errors import NotFound
from almanac.operations.context import RequestContext
from almanac.operations.operation import NoArguments, Operation
from almanac.surfaces.surface import Surface

PATH = "/trial"


class Echo(Arguments):
    number: int
    flag: bool = False
    text: str | None = None
    items: list[int] = Field(default_factory=list[int])


class Echoed(BaseModel):
    number: int
    flag: bool
    text: str | None
    items: list[int]


@dataclass(slots=True)
class Done:
    done: bool = True


class Slow(Arguments):
    seconds: float


class Watched:
    """A record of the calls of `slow` and `count`."""

    def __init__(self) -> None:
        self.begun = threading.Event()
        self.cancelled_at: float | None = None
        self.count = 0


WATCHED = Watched()


async def echo(_: RequestContext, given: Echo) -> Echoed:
    return Echoed(**given.model_dump())


async def fail(_: RequestContext, __: NoArguments) -> Done:
    raise NotFound("There is no such thing.", remedy="Look elsewhere.")


async def crash(_: RequestContext, __: NoArguments) -> Done:
    raise RuntimeError("the secret plan")


async def slow(_: RequestContext, given: Slow) -> Done:
    WATCHED.begun.set()
    try:
        await asyncio.sleep(given.seconds)
    except asyncio.CancelledError:
        WATCHED.cancelled_at = time.monotonic()
        raise
    return Done()


async def count(_: RequestContext, __: NoArguments) -> Done:
    WATCHED.count += 1
    return Done()


async def touch(call: RequestContext, given: Echo) -> Done:
    call.record_access("base", given.number)
    call.record_access("document", given.number + 1)
    return Done()


def _tool(name: str, run: Any, arguments: type[BaseModel] = NoArguments, *scopes: str) -> Operation:
    answer = Echoed if run is echo else Done
    return Operation(name, f"Tries {name}", run, arguments, answer, frozenset(scopes))


SURFACE = Surface(
    name="trial",
    path=PATH,
    title="Trial",
    operations=(
        _tool("echo", echo, Echo),
        _tool("fail", fail),
        _tool("crash", crash),
        _tool("slow", slow, Slow),
        _tool("count", count),
        _tool("touch", touch, Echo),
        _tool("recall", count, NoArguments, "memory:read"),
        _tool("remember", count, NoArguments, "memory:read", "memory:write"),
        _tool("govern", count, NoArguments, "admin"),
    ),
)
