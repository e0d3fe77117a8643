"""A child of the nursery: reads one file, confined, writes what it made of it, and ends.

It holds two descriptors: the file, and an output without a name. The output brings the request; while the parser
works it takes what native code says on its standard error; in the end it holds the result alone. Nobody trusts
what is in it.
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

Work = Callable[[Path, str, dict[str, Any]], bytes]

STDERR, SOURCE, OUTPUT = 2, 3, 4


class ExitCode(IntEnum):
    """Exit statuses of a child that came to its own end. 0 is not among them: any library can exit with it."""

    DONE = 40  # the output holds the result
    UNREADABLE = 41  # the output holds what the parser said of the file
    FAILED = 42  # the output holds which error the parser did not expect
    OUT_OF_MEMORY = 43
    TOO_LARGE = 44
    TOO_DEEP = 45
    UNCONFINED = 46  # and so it read nothing


@dataclass(frozen=True, slots=True)
class ExitReport:
    """The kernel's words on a child that has ended."""

    status: int  # as wait() gives it
    peak_bytes: int  # resident, the parsers' code included
    cpu_seconds: float
    seconds: float
    late: bool  # killed at the deadline


def run_child(
    source: int, output: int, work: Work, limits: SandboxLimits, means: KernelFeatures, parent: int
) -> NoReturn:
    """All that happens between fork and exit."""
    ending = ExitCode.UNCONFINED
    try:
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        os.setsid()
        _keep_only(source, output)
        confine(limits, means, parent, SOURCE)
        ending = _work(work)
    finally:
        os._exit(ending)  # nothing of the nursery may run here, whatever was raised


def _keep_only(source: int, output: int) -> None:
    """Close every descriptor but these two, and say nothing to anyone."""
    # The new places are above those in use, so that nothing is closed before it is copied.
    kept = [os.dup(source), os.dup(output), os.open(os.devnull, os.O_RDWR)]
    for place, descriptor in enumerate((kept[2], kept[2], kept[1], kept[0], kept[1])):
        os.dup2(descriptor, place, inheritable=False)
    os.closerange(OUTPUT + 1, os.sysconf("SC_OPEN_MAX"))


def _work(work: Work) -> ExitCode:
    try:
        request = json.loads(_take_request())
        content = Path("/proc/self/fd" if sys.platform == "linux" else "/dev/fd") / str(SOURCE)
        _write(work(content, request["name"], request["options"]))
        return ExitCode.DONE
    except WorkRejected as error:
        _report({"code": error.code, "message": error.message, "retryable": error.retryable})
        return ExitCode.UNREADABLE
    except MemoryError:
        return ExitCode.OUT_OF_MEMORY
    except RecursionError:
        return ExitCode.TOO_DEEP
    except BaseException as error:  # noqa: BLE001 - a panic in native code is not an Exception
        if isinstance(error, OSError) and error.errno == errno.EFBIG:
            return ExitCode.TOO_LARGE
        _report({"error": type(error).__name__, "where": _where(error)})
        return ExitCode.FAILED


def _take_request() -> bytes:
    request = os.pread(OUTPUT, os.fstat(OUTPUT).st_size, 0)
    os.ftruncate(OUTPUT, 0)
    os.lseek(OUTPUT, 0, os.SEEK_SET)
    return request


def _write(result: bytes) -> None:
    """Put the result in place of whatever was said on standard error."""
    os.dup2(0, STDERR)
    os.ftruncate(OUTPUT, 0)
    view, written = memoryview(result), 0
    while written < len(view):
        written += os.pwrite(OUTPUT, view[written:], written)


def _report(words: dict[str, Any]) -> None:
    _write(json.dumps(words).encode())


def _where(error: BaseException) -> str:
    """The line that raised it: a place in code. The message stays behind, since it may quote the file."""
    frames = traceback.extract_tb(error.__traceback__)
    return f"{Path(frames[-1].filename).name}:{frames[-1].lineno}" if frames else ""
