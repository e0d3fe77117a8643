"""The floor of the external bench: a Starlette handler that reads the same rows and sends them as JSON.

No token, no permission, no limit, no audit, no contract: the tools cause all time beyond this. `BARE_STORE` is the
URL of the database, `BARE_QUERIES` the statements of each read.
"""

import json
import os
import sqlite3
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

import asyncpg  # pyright: ignore[reportMissingTypeStubs]
import orjson
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

STORE = os.environ["BARE_STORE"]
QUERIES: dict[str, list[str]] = json.loads(os.environ["BARE_QUERIES"])

Fetch = Callable[[str], Awaitable[Sequence[Sequence[Any]]]]


def plain(value: Any) -> Any:
    return value.hex() if isinstance(value, bytes) else str(value)


async def read(request: Request) -> Response:
    rows = [[list(row) for row in await request.state.fetch(sql)] for sql in QUERIES[request.path_params["what"]]]
    return Response(orjson.dumps(rows, default=plain), media_type="application/json")


@asynccontextmanager
async def lifespan(_: Starlette) -> AsyncGenerator[dict[str, Fetch]]:
    if STORE.startswith("sqlite:"):
        connection = sqlite3.connect(f"file:{STORE.removeprefix('sqlite:///')}?mode=ro", uri=True)

        async def from_file(sql: str) -> Sequence[Sequence[Any]]:
            return connection.execute(sql).fetchall()

        yield {"fetch": from_file}
        connection.close()
        return
    pool: Any = await asyncpg.create_pool(STORE, min_size=1, max_size=10)  # pyright: ignore[reportUnknownMemberType]

    async def from_server(sql: str) -> Sequence[Sequence[Any]]:
        return await pool.fetch(sql)

    yield {"fetch": from_server}
    await pool.close()


app = Starlette(routes=[Route("/{what}", read)], lifespan=lifespan)
