"""Convert files in several processes, each file in the next free one, and measure the time.

Standard input holds the order, standard output gets the result. The module does not import Almanac, because every peer
has an environment of its own. Starting the processes and importing the peer are not counted.
"""

import json
import resource
import sys
import time
from collections.abc import Callable
from multiprocessing import get_context

Reader = Callable[[str], int]  # a file's path to the number of characters found in it


def run(read: Reader) -> None:
    """Read the files that standard input names."""
    order = json.load(sys.stdin)
    # Spawned, not forked: native code may have threads, which a fork would lose.
    with get_context("spawn").Pool(order["processes"], _keep, (read,)) as pool:
        pool.map(_measure, order["warm"] * order["processes"], chunksize=len(order["warm"]))
        began = time.perf_counter()
        files = list(pool.imap_unordered(_measure, order["files"]))
        seconds = time.perf_counter() - began
        pool.close()
        pool.join()
    peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024
    json.dump({"seconds": seconds, "peak_bytes": peak, "files": files}, sys.stdout)


_kept: list[Reader] = []


def _keep(read: Reader) -> None:
    _kept.append(read)


def _measure(path: str) -> dict[str, object]:
    began, cpu = time.perf_counter(), time.process_time()
    error = ""
    characters = 0
    try:
        characters = _kept[0](path)
    except Exception as failure:  # noqa: BLE001 - any error of the peer; the file counts as failed
        error = type(failure).__name__
    spent = {"seconds": time.perf_counter() - began, "cpu_seconds": time.process_time() - cpu}
    return {"path": path, "characters": characters, "error": error, **spent}
