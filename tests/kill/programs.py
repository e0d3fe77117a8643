"""Starts, kills and stops programs, and reads their database, for the kill tests."""

import asyncio
import socket
import subprocess
import sys
from collections.abc import Awaitable, Callable, Mapping
from typing import TypeVar

from almanac.core.database import Database
from almanac.db.connect import connect

T = TypeVar("T")

LEASE_SECONDS = 2.0


class Program:
    """A Python module that runs as a process and can be killed and started again."""

    def __init__(self, environment: Mapping[str, str], module: str, *arguments: str) -> None:
        self._command = [sys.executable, "-m", module, *arguments]
        self._environment = environment
        self.kills = 0
        self.start()

    def start(self) -> None:
        self._process = subprocess.Popen(self._command, env=self._environment, stdout=subprocess.DEVNULL)

    @property
    def pid(self) -> int:
        return self._process.pid

    def kill(self) -> None:
        assert self._process.poll() is None, "the program stopped by itself"
        self._process.kill()
        self._process.wait()
        self.kills += 1

    def stop(self) -> None:
        self._process.terminate()
        self._process.wait(30)


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def with_database(url: str, work: Callable[[Database], Awaitable[T]]) -> T:
    """Run a coroutine function with a connection of its own to the database."""

    async def run() -> T:
        db = await connect(url, pool_size=2)
        try:
            return await work(db)
        finally:
            await db.close()

    return asyncio.run(run())
