"""Our PDF parser and pypdfium2 alone, turn by turn on each file in one process: a machine's noise falls on both.

Standard input holds the files and how often to read each; standard output gets the CPU seconds, ours and then bare.
"""

import gc
import json
import sys
import time
from collections.abc import Callable
from statistics import median

import almanac_reader
import pypdfium2_reader

from almanac.sandbox.fork_server import GC_THRESHOLDS


def spend(read: Callable[[str], int], path: str) -> float:
    began = time.process_time()
    read(path)
    return time.process_time() - began


def compare(path: str, repeats: int) -> tuple[float, float]:
    pair = (almanac_reader.read, pypdfium2_reader.read)
    spent: tuple[list[float], list[float]] = ([], [])
    for repeat in range(repeats):
        for which in (0, 1) if repeat % 2 else (1, 0):  # they alternate, because the second one finds warm caches
            spent[which].append(spend(pair[which], path))
    return median(spent[0]), median(spent[1])


def main() -> None:
    order = json.load(sys.stdin)
    gc.freeze()
    gc.set_threshold(*GC_THRESHOLDS)  # as our children have it; the same for both
    compare(order["files"][0], 1)
    json.dump([compare(path, order["repeats"]) for path in order["files"]], sys.stdout)


if __name__ == "__main__":
    main()
