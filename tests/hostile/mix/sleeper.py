"""A program that only sleeps and wakes: its late awakenings are the machine's noise, not the server's.

    python sleeper.py

At each line on standard input it prints the longest delay since the line before, in milliseconds.
"""

import sys
import threading
import time

SLEEP_SECONDS = 0.005

longest = 0.0


def sleep() -> None:
    global longest
    pause = threading.Event()
    while True:
        began = time.perf_counter()
        pause.wait(SLEEP_SECONDS)
        longest = max(longest, time.perf_counter() - began - SLEEP_SECONDS)


threading.Thread(target=sleep, daemon=True).start()
for _ in sys.stdin:
    print(f"{1000 * longest:.1f}", flush=True)
    longest = 0.0
