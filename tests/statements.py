"""The statements that a piece of work runs, for tests of timing: equal statements take equal time."""

import re
from collections.abc import Awaitable, Callable
from typing import Any

Statement = tuple[str, int]  # SQL without numbers, and the number of rows

_RUN = frozenset({"fetch", "fetch_one", "scan", "execute", "execute_many"})


class Recorder:
    """A database or a transaction that records its statements."""

    def __init__(self, inner: Any, statements: list[Statement]) -> None:
        self._inner = inner
        self._statements = statements

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._inner, name)
        if name not in _RUN:
            return method

        async def run(sql: str, *args: Any) -> Any:
            result: Any = await method(sql, *args)
            rows = len(result) if name in ("fetch", "scan") else result if name == "execute" else result is not None
            self._statements.append((re.sub(r"\d+", "N", sql), int(rows)))
            return result

        return run

    async def write(self, body: Callable[[Any], Awaitable[Any]]) -> Any:
        async def recorded(tx: Any) -> Any:
            return await body(Recorder(tx, self._statements))

        return await self._inner.write(recorded)
