"""Server-sent events: an answer that is sent while it is written."""

import asyncio
import contextlib
from collections.abc import AsyncGenerator
from typing import Any

import orjson

from almanac.net.http_exchange import HttpExchange


class EventStream:
    """Sends an answer as server-sent events. Comments keep the connection alive between events."""

    KEEPALIVE_SECONDS = 15.0

    def __init__(self, exchange: HttpExchange) -> None:
        self._exchange = exchange
        self._lock = asyncio.Lock()

    @contextlib.asynccontextmanager
    async def open(self) -> AsyncGenerator["EventStream"]:
        """Start the answer; end it when the block ends."""
        exchange = self._exchange
        exchange.is_answered = True
        headers = [
            (b"content-type", b"text/event-stream; charset=utf-8"),
            (b"cache-control", b"no-cache"),
            (b"x-accel-buffering", b"no"),
            (b"x-request-id", exchange.request_id.encode()),
        ]
        await exchange.send({"type": "http.response.start", "status": 200, "headers": headers})
        keepalive = asyncio.create_task(self._keep_alive())
        try:
            yield self
        finally:
            keepalive.cancel()
            await asyncio.gather(keepalive, return_exceptions=True)
            await exchange.send({"type": "http.response.body", "body": b""})

    async def send(self, value: Any) -> None:
        """Send one event."""
        await self._write(b"data: " + orjson.dumps(value) + b"\n\n")

    async def _keep_alive(self) -> None:
        while True:
            await asyncio.sleep(self.KEEPALIVE_SECONDS)
            await self._write(b": working\n\n")

    async def _write(self, body: bytes) -> None:
        async with self._lock:
            await self._exchange.send({"type": "http.response.body", "body": body, "more_body": True})
