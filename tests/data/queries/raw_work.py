"""SQL that goes straight to the engine in a child of the query pool, as if the check of the tree did not exist."""

import os
import socket
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import duckdb
import orjson

from almanac.data.queries import query_work

preload = query_work.preload
prepare = query_work.prepare


def run_raw(files: list[Path], name: str, options: dict[str, Any]) -> bytes:
    """Lock the connection as for a query; then run each statement, and return its rows or the name of its error."""
    [connection] = query_work._connections  # pyright: ignore[reportPrivateUsage]
    query_work._lock(connection, files, options)  # pyright: ignore[reportPrivateUsage]
    answers: list[Any] = []
    for statement in options["statements"]:
        try:
            cursor = connection.execute(statement.replace("{file}", str(files[0])))
            answers.append([list(map(repr, row)) for row in cursor.fetchmany(5)])
        except (duckdb.Error, MemoryError) as error:
            answers.append(type(error).__name__)
    return orjson.dumps(answers)


def run_threads(files: list[Path], name: str, options: dict[str, Any]) -> bytes:
    """What a thread of the engine may do: it has the confinement of the thread that started it."""
    [connection] = query_work._connections  # pyright: ignore[reportPrivateUsage]
    query_work._lock(connection, files, options)  # pyright: ignore[reportPrivateUsage]
    answers: list[str] = []

    def attack() -> None:
        attempts: tuple[Callable[[], Any], ...] = (
            lambda: os.open(options["secret"], os.O_RDONLY),
            lambda: os.open(files[0], os.O_RDWR),
            socket.socket,
        )
        for attempt in attempts:
            try:
                attempt()
                answers.append("it worked")
            except OSError as error:
                answers.append(type(error).__name__)

    thread = threading.Thread(target=attack)
    thread.start()
    thread.join()
    return orjson.dumps(answers)
