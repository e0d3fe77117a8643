"""What this process may use of the machine it runs on."""

import os
import sys


def cpu_count() -> int:
    """How many processors it may run on, which in a container may be fewer than there are."""
    return len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1
