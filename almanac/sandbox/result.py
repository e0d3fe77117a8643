"""The outcome of a child process: the result that it wrote, or the reason why there is none."""

import json
import os
import re
import signal
from typing import Any, cast

import structlog

from almanac.sandbox.child import ExitCode, ExitReport
from almanac.sandbox.confinement import MIB, SandboxLimits
from almanac.sandbox.errors import WorkRejected

# Reports of a child and the end of its standard error are read up to this size: both are short.
MAX_STDERR_BYTES = 16_384
MAX_MESSAGE_CHARS = 500

_FAILED_ALLOCATION = re.compile(rb"memory allocation of|bad_alloc|out of memory|cannot allocate memory", re.IGNORECASE)
_CODE = re.compile(r"[a-z][a-z_]{0,39}")
_ERROR_NAME = re.compile(r"\w{1,60}")
_CODE_LINE = re.compile(r"[\w.]{1,60}:\d{1,6}")

_log = structlog.stdlib.get_logger("almanac.sandbox")


def check_result(report: ExitReport, output: int, limits: SandboxLimits) -> None:
    """Raise `WorkRejected` if the output file does not contain a result."""
    exit_code = os.waitstatus_to_exitcode(report.status)
    if report.late or _used_up_cpu_time(report, exit_code, limits):
        raise WorkRejected("timeout", f"{limits.wall_seconds:g} s, or {limits.cpu_seconds} s of processor time")
    if exit_code == ExitCode.DONE:
        return
    if exit_code < 0:
        raise _failure_from_signal(report, -exit_code, output, limits)
    raise _failure_from_exit_code(exit_code, output, limits)


def _used_up_cpu_time(report: ExitReport, exit_code: int, limits: SandboxLimits) -> bool:
    """The kernel sends SIGXCPU at the limit. A process that ignores it is killed a second later."""
    return exit_code == -signal.SIGXCPU or (exit_code == -signal.SIGKILL and report.cpu_seconds >= limits.cpu_seconds)


def _failure_from_signal(report: ExitReport, number: int, output: int, limits: SandboxLimits) -> WorkRejected:
    if number == signal.SIGKILL:  # sent from outside, for example because the system is short of memory
        return WorkRejected("interrupted", "killed from outside", retryable=True)
    if number == signal.SIGSYS:
        _log.error("a child process was killed for a system call that only an attack makes")
        return WorkRejected("crashed", "SIGSYS")
    # Native code aborts when an allocation fails, often without a message. A buffer that doubles fails at half the
    # limit.
    if report.peak_bytes >= limits.memory_bytes // 2 or _FAILED_ALLOCATION.search(_read_end(output)):
        return _out_of_memory(limits)
    try:
        return WorkRejected("crashed", signal.Signals(number).name)
    except ValueError:  # a real-time signal, which has no name
        return WorkRejected("crashed", f"signal {number}")


def _failure_from_exit_code(exit_code: int, output: int, limits: SandboxLimits) -> WorkRejected:
    match exit_code:
        case ExitCode.OUT_OF_MEMORY:
            return _out_of_memory(limits)
        case ExitCode.OUTPUT_TOO_LARGE:
            return WorkRejected("output_limit", f"{limits.output_bytes // MIB} MiB")
        case ExitCode.NESTED_TOO_DEEPLY:
            return WorkRejected("recursion_limit", "nested too deeply")
        case ExitCode.REJECTED:
            return _failure_from_rejection(_read_report(output))
        case ExitCode.FAILED:
            return _failure_from_error(_read_report(output))
        case ExitCode.UNCONFINED:
            _log.error("a child process could not be confined, so it did not open the file")
            return WorkRejected("interrupted", "could not be confined", retryable=True)
        case _:
            return WorkRejected("crashed", "no result")


def _failure_from_rejection(report: dict[str, Any]) -> WorkRejected:
    code, message = report.get("code"), report.get("message")
    if not isinstance(code, str) or not isinstance(message, str) or not _CODE.fullmatch(code):
        return _failure_from_error({})
    return WorkRejected(code, message[:MAX_MESSAGE_CHARS], retryable=report.get("retryable") is True)


def _failure_from_error(report: dict[str, Any]) -> WorkRejected:
    """An unexpected error in the work. The child omits its message, which may quote the file; the line is logged."""
    error, line = str(report.get("error", "")), str(report.get("line", ""))
    name = error if _ERROR_NAME.fullmatch(error) else "unknown error"
    _log.warning("sandboxed work failed", error=name, line=line if _CODE_LINE.fullmatch(line) else "")
    return WorkRejected("crashed", name)


def _out_of_memory(limits: SandboxLimits) -> WorkRejected:
    return WorkRejected("memory_limit", f"{limits.memory_bytes // MIB} MiB")


def _read_end(output: int) -> bytes:
    """The last bytes of the standard error of native code."""
    return os.pread(output, MAX_STDERR_BYTES, max(0, os.fstat(output).st_size - MAX_STDERR_BYTES))


def _read_report(output: int) -> dict[str, Any]:
    try:
        report = json.loads(os.pread(output, MAX_STDERR_BYTES, 0))
    except (ValueError, RecursionError):
        return {}
    return cast(dict[str, Any], report) if isinstance(report, dict) else {}
