"""A child process of the fork server: it confines itself, runs the work on one file, writes the result and exits.

It holds two descriptors: the file, and an output file without a name. The output first contains the request. While the
work runs, the standard error of native code goes there. At the end it contains only the result. The parent does not
trust the result: a hostile file may have taken control of the child.
"""

import errno
import json
import os
import signal
import sys
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path
from typing import Any, NoReturn

from almanac.sandbox.confinement import KernelFeatures, SandboxLimits, confine
from almanac.sandbox.errors import WorkRejected

# A function that runs in a child: the path of the file, its name and the options of the request; it returns the result.
Work = Callable[[Path, str, dict[str, Any]], bytes]

STDERR, SOURCE, OUTPUT = 2, 3, 4


class ExitCode(IntEnum):
    """Exit codes of a child that ended by itself. 0 is not one of them: any library can exit with it."""

    DONE = 40  # the output contains the result
    REJECTED = 41  # the output contains the code and the message of a `WorkRejected`
    FAILED = 42  # the output contains the name of an unexpected error and the line that raised it
    OUT_OF_MEMORY = 43
    OUTPUT_TOO_LARGE = 44
    NESTED_TOO_DEEPLY = 45
    UNCONFINED = 46  # the confinement failed, so the work did not run


@dataclass(frozen=True, slots=True)
class ExitReport:
    """The kernel's record of a child that ended."""

    status: int  # as wait() returns it
    peak_bytes: int  # of resident memory, the code of the work included
    cpu_seconds: float
    seconds: float
    late: bool  # killed at the deadline


def run_child(
    source: int, output: int, work: Work, limits: SandboxLimits, kernel: KernelFeatures, parent: int
) -> NoReturn:
    """Everything between fork and exit."""
    exit_code = ExitCode.UNCONFINED
    try:
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        os.setsid()
        _close_other_descriptors(source, output)
        confine(limits, kernel, parent, SOURCE)
        exit_code = _run(work)
    finally:
        os._exit(exit_code)  # after any error too: no code of the fork server may run in the child


def _close_other_descriptors(source: int, output: int) -> None:
    """Keep only these two descriptors, and connect the standard streams to /dev/null and to the output."""
    # The copies get higher numbers than the descriptors in use, so that none is closed before it is copied.
    source, output, null = os.dup(source), os.dup(output), os.open(os.devnull, os.O_RDWR)
    for number, descriptor in enumerate((null, null, output, source, output)):
        os.dup2(descriptor, number, inheritable=False)
    os.closerange(OUTPUT + 1, os.sysconf("SC_OPEN_MAX"))


def _run(work: Work) -> ExitCode:
    try:
        request = json.loads(_take_request())
        content = Path("/proc/self/fd" if sys.platform == "linux" else "/dev/fd") / str(SOURCE)
        _write(work(content, request["name"], request["options"]))
        return ExitCode.DONE
    except WorkRejected as error:
        _write_report({"code": error.code, "message": error.message, "retryable": error.retryable})
        return ExitCode.REJECTED
    except MemoryError:
        return ExitCode.OUT_OF_MEMORY
    except RecursionError:
        return ExitCode.NESTED_TOO_DEEPLY
    except BaseException as error:  # noqa: BLE001 - a panic in native code is not an Exception
        if isinstance(error, OSError) and error.errno == errno.EFBIG:
            return ExitCode.OUTPUT_TOO_LARGE
        _write_report({"error": type(error).__name__, "line": _line_of(error)})
        return ExitCode.FAILED


def _take_request() -> bytes:
    request = os.pread(OUTPUT, os.fstat(OUTPUT).st_size, 0)
    os.ftruncate(OUTPUT, 0)
    os.lseek(OUTPUT, 0, os.SEEK_SET)
    return request


def _write(result: bytes) -> None:
    """Replace the text that native code wrote to standard error with the result."""
    os.dup2(0, STDERR)
    os.ftruncate(OUTPUT, 0)
    view, written = memoryview(result), 0
    while written < len(view):
        written += os.pwrite(OUTPUT, view[written:], written)


def _write_report(report: dict[str, Any]) -> None:
    _write(json.dumps(report).encode())


def _line_of(error: BaseException) -> str:
    """The line of code that raised an error. The message is left out, because it may quote the file."""
    frames = traceback.extract_tb(error.__traceback__)
    return f"{Path(frames[-1].filename).name}:{frames[-1].lineno}" if frames else ""
