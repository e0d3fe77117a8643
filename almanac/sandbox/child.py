"""A child process of the fork server. It waits for a request, confines itself, runs the work, writes the result.

A request consists of descriptors: an output file without a name, and the files to read. The output first contains the
name and the options. While the work runs, the standard error of native code goes there. At the end it contains only the
result. The parent does not trust the result: a hostile file may have taken control of the child.

Before the request, the child runs only code of its own and prepares as much of the confinement as it can. It reads
nothing of the request before the confinement is complete.
"""

import errno
import json
import os
import signal
import socket
import sys
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path
from typing import Any, BinaryIO, NoReturn

from almanac.sandbox.confinement import Confinement, KernelFeatures, SandboxLimits
from almanac.sandbox.descriptors import RequestReceiver
from almanac.sandbox.errors import WorkRejected

# A function that runs in a child: the paths of its files, and the name and the options of the request; it returns the
# result, or None if it has written the result to `open_output()`.
Work = Callable[[list[Path], str, dict[str, Any]], bytes | None]

STDERR, OUTPUT, FIRST_FILE = 2, 3, 4


@dataclass(frozen=True, slots=True)
class SandboxedWork:
    """The code that a child runs."""

    run: Work
    prepare: Callable[[], None]  # called before the request, so that less is left to do then


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


def path_of_file(index: int) -> Path:
    """The path at which a child reads a file of its request."""
    return Path("/proc/self/fd" if sys.platform == "linux" else "/dev/fd") / str(FIRST_FILE + index)


def run_child(
    requests: socket.socket, work: SandboxedWork, limits: SandboxLimits, kernel: KernelFeatures, parent: int
) -> NoReturn:
    """Everything between fork and exit."""
    exit_code = ExitCode.UNCONFINED
    try:
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        os.setsid()
        _keep_descriptors(os.open(os.devnull, os.O_RDWR), [requests.detach()])
        confinement = Confinement(limits, kernel, parent)
        work.prepare()
        output, *files = _wait_for_request()
        confinement.restrict_files(files)
        _keep_descriptors(0, [output, *files])
        os.dup2(OUTPUT, STDERR, inheritable=False)
        confinement.complete()
        exit_code = _run(work.run, len(files))
    finally:
        os._exit(exit_code)  # after any error too: no code of the fork server may run in the child


def _wait_for_request() -> list[int]:
    """Receive the first request over the one descriptor that was kept."""
    receiver = RequestReceiver(socket.socket(fileno=OUTPUT))
    while (request := receiver.receive()) is None:
        pass
    return request


def _keep_descriptors(null: int, descriptors: list[int]) -> None:
    """Give these descriptors the numbers from 3, connect the standard streams to `null`, and close all others."""
    # The copies get higher numbers than the descriptors in use, so that none is closed before it is copied.
    for number, descriptor in enumerate([os.dup(each) for each in (null, null, null, *descriptors)]):
        os.dup2(descriptor, number, inheritable=False)
    os.closerange(OUTPUT + len(descriptors), os.sysconf("SC_OPEN_MAX"))


def _run(work: Work, file_count: int) -> ExitCode:
    try:
        request = json.loads(_take_request())
        files = [path_of_file(index) for index in range(file_count)]
        result = work(files, request["name"], request["options"])
        if result is not None:
            _write(result)
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


def open_output() -> BinaryIO:
    """The output as an empty file, for a large result. Text to standard error is discarded from then on."""
    os.dup2(0, STDERR)
    os.ftruncate(OUTPUT, 0)
    os.lseek(OUTPUT, 0, os.SEEK_SET)
    return open(OUTPUT, "wb", closefd=False)


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
