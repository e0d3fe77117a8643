"""The processors that this process may use."""

import os
import sys


def cpu_count() -> int:
    """The number of processors for this process. A container may have fewer than the machine."""
    return len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1
