"""`almanac` with a watch over the event loop of its server: the program that the hostile mix runs.

    WATCH_FILE=stalls.jsonl python watched_server.py serve --port 0

A beat is due on the event loop every few milliseconds. A late beat is a stall: another caller's request would have
waited as long. Each stall has three figures. `wall` is the delay of the beat. `ready` is the part of it in which the
loop's thread was ready to run and the operating system ran other threads or programs (from `/proc`;
0 where the kernel does not count it). `cpu` is the processor time of the loop's thread. `wall - ready` is the part that
the server causes: it computes on the loop, or waits for the interpreter, a lock or the disk.

The file has one JSON object per line, for each longer stall, with the stacks of the threads that were seen meanwhile.
"""

import asyncio
import gc
import json
import os
import sys
import threading
import time
import traceback
from collections import Counter
from pathlib import Path
from types import FrameType
from typing import Any

from almanac import app
from almanac.cli import main

BEAT_SECONDS = 0.005
STALL_SECONDS = 0.025  # a longer delay is written down
LOOK_SECONDS = 0.01  # between two looks at the stacks during a stall
MAX_FRAMES = 12


class LoopWatch:
    """Measures the delays of a beat on the running event loop."""

    def __init__(self, file: Path) -> None:
        self._file = file.open("a", buffering=1)
        self._loop = asyncio.get_running_loop()
        self._thread_id = threading.get_ident()
        self._schedstat = _open_schedstat()
        self._stacks: Counter[str] = Counter()
        self._collecting = self._collected = 0.0  # seconds of the garbage collector
        self._due = self._read = (0.0, 0.0, 0.0)
        self._generation = 0  # of the latest collection

    def start(self) -> None:
        """Begin to beat."""
        gc.callbacks.append(self._note_collection)
        self._schedule()
        threading.Thread(target=self._look, daemon=True, name="watch").start()

    def _schedule(self) -> None:
        self._collected = 0.0
        self._read = (time.perf_counter(), time.thread_time(), self._ready_seconds())
        self._loop.call_later(BEAT_SECONDS, self._beat)

    def _beat(self) -> None:
        began, cpu, ready = self._read
        delay = time.perf_counter() - began - BEAT_SECONDS
        if delay > STALL_SECONDS:
            found = {
                "at": time.time(),
                "wall": 1000 * delay,
                "ready": 1000 * min(delay, self._ready_seconds() - ready),
                "cpu": 1000 * (time.thread_time() - cpu),
                "gc": 1000 * self._collected,
                "generation": self._generation,
                "stacks": self._stacks.most_common(4),
            }
            self._file.write(json.dumps(found) + "\n")
        self._stacks = Counter()
        self._schedule()

    def _look(self) -> None:
        """Note the stacks of all threads while a beat is late."""
        pause = threading.Event()
        while not pause.wait(LOOK_SECONDS):
            if time.perf_counter() - self._read[0] > BEAT_SECONDS + LOOK_SECONDS:
                for thread, frame in sys._current_frames().items():  # pyright: ignore[reportPrivateUsage]
                    if thread != threading.get_ident() and (stack := _summary(frame)):
                        self._stacks[("loop: " if thread == self._thread_id else "thread: ") + stack] += 1

    def _ready_seconds(self) -> float:
        return int(os.pread(self._schedstat, 100, 0).split()[1]) / 1e9 if self._schedstat is not None else 0.0

    def _note_collection(self, phase: str, info: dict[str, Any]) -> None:
        self._generation = info["generation"]
        if phase == "start":
            self._collecting = time.perf_counter()
        else:
            self._collected += time.perf_counter() - self._collecting


def _open_schedstat() -> int | None:
    try:
        return os.open(f"/proc/self/task/{threading.get_native_id()}/schedstat", os.O_RDONLY)
    except OSError:
        return None


def _summary(frame: FrameType) -> str:
    """The innermost functions of a stack; nothing for a thread that waits for work."""
    frames = traceback.extract_stack(frame)
    names = [f"{Path(each.filename).stem}:{each.lineno} {each.name}" for each in frames[-MAX_FRAMES:]]
    innermost = f"{Path(frames[-1].filename).name}:{frames[-1].name}"
    return "" if innermost in IDLE else " > ".join(names)


IDLE = ("threading.py:wait", "thread.py:_worker", "sqlite_writer.py:_receive", "runners.py:run", "__init__.py:run")

create_unwatched_app = app.from_environment


def create_watched_app() -> app.Application:
    """The application of `almanac.app:from_environment`, with a watch over the loop that will serve it."""
    LoopWatch(Path(os.environ["WATCH_FILE"])).start()
    return create_unwatched_app()


if __name__ == "__main__":
    app.from_environment = create_watched_app
    main()
