"""A clean stop: calls in flight finish or get an error, and each has an audit row."""

import asyncio
import sqlite3
import threading
from collections.abc import Callable
from pathlib import Path

import httpx2
import uvicorn

from almanac.app import create_app
from almanac.db.connect import connect
from almanac.identity import first_start
from almanac.net.http_server import ServerConfig
from tests.live_server import request, settings_for
from tests.surfaces import trial
from tests.surfaces.trial import PATH, WATCHED
from tests.waiting import wait_until

GRACE = 1


class Stopping:
    """A server that is stopped during one slow call."""

    def __init__(self, database: Path, home: Path, seconds: float) -> None:
        settings = settings_for(f"sqlite:///{database}", home, shutdown_grace_seconds=GRACE)
        self.database = database
        self.answer: httpx2.Response | None = None
        self._token = asyncio.run(_first_token(f"sqlite:///{database}"))
        config = ServerConfig(create_app(settings, (trial.SURFACE,)), settings, port=0, timeout_graceful_shutdown=GRACE)
        self._server = uvicorn.Server(config)
        serving = threading.Thread(target=self._server.run)
        serving.start()
        wait_until(lambda: self._server.started, seconds=60)
        calling = threading.Thread(target=self._call, args=(seconds,))
        calling.start()
        assert WATCHED.begun.wait(5)
        self._server.should_exit = True
        calling.join(10)
        serving.join(10)
        assert not serving.is_alive()

    def outcomes(self) -> list[str]:
        with sqlite3.connect(self.database) as connection:
            rows = connection.execute("SELECT outcome FROM audit WHERE tool = 'slow'").fetchall()
        connection.close()
        return [row[0] for row in rows]

    def _call(self, seconds: float) -> None:
        WATCHED.begun.clear()
        port = self._server.servers[0].sockets[0].getsockname()[1]
        message, headers = request("tools/call", {"name": "slow", "arguments": {"seconds": seconds}})
        headers |= {"authorization": f"Bearer {self._token}", "accept": "application/json"}
        self.answer = httpx2.post(f"http://127.0.0.1:{port}{PATH}", json=message, headers=headers, timeout=10)


async def _first_token(url: str) -> str | None:
    db = await connect(url)
    token = await first_start.create_first_admin(db)
    await db.close()
    return token


def test_a_call_in_flight_is_finished_and_accounted_for(new_sqlite: Callable[[], str], tmp_path: Path):
    stopping = Stopping(Path(new_sqlite().removeprefix("sqlite:///")), tmp_path, seconds=0.5)
    assert stopping.answer is not None
    assert stopping.answer.json()["result"]["structuredContent"] == {"done": True}
    assert stopping.outcomes() == ["ok"]


def test_a_call_that_outlasts_the_grace_is_told_and_accounted_for(new_sqlite: Callable[[], str], tmp_path: Path):
    stopping = Stopping(Path(new_sqlite().removeprefix("sqlite:///")), tmp_path, seconds=8)
    assert stopping.answer is not None
    assert stopping.answer.status_code == 503
    assert stopping.answer.json()["error"]["message"].startswith("The server is stopping")
    assert stopping.outcomes() == ["cancelled"]
