"""What came of a file: the result its child wrote, or the reason it can give none.

Unreadable
  parse_timeout      out of processor or wall time
  memory_limit       out of memory
  output_too_large   more text than anyone could use
  too_complex        nested too deeply
  parser_crashed     stopped by a signal, by an error nobody expected, or without a word
  and what the parser itself said: encrypted, corrupt, empty …
"""

import json
import os
import re
import signal
from dataclasses import dataclass
from typing import Any, cast

import structlog

from almanac.sandbox.child import ExitCode, ExitReport
from almanac.sandbox.confinement import MIB, SandboxLimits
from almanac.sandbox.errors import WorkRejected

# How much of what a child said is looked at: its reports and last words are short.
MAX_STDERR_BYTES = 16_384

_STARVED = re.compile(rb"memory allocation of|bad_alloc|out of memory|cannot allocate memory", re.IGNORECASE)
_CODE = re.compile(r"[a-z][a-z_]{0,39}")
_NAME = re.compile(r"\w{1,60}")
_PLACE = re.compile(r"[\w.]{1,60}:\d{1,6}")
_MESSAGE_LENGTH = 500

_log = structlog.stdlib.get_logger("almanac.parsers")


@dataclass(frozen=True, slots=True)
class SandboxResult:
    """What a child made of a file, and what that took."""

    result: bytes
    peak_bytes: int
    seconds: float
    cpu_seconds: float


def read_result(verdict: ExitReport, output: int, limits: SandboxLimits) -> SandboxResult:
    """The result in the output; or `Unreadable`."""
    ending = os.waitstatus_to_exitcode(verdict.status)
    if verdict.late or _spent(verdict, ending, limits):
        raise _too_slow(limits)
    if ending == ExitCode.DONE:
        result = os.pread(output, os.fstat(output).st_size, 0)
        return SandboxResult(result, verdict.peak_bytes, verdict.seconds, verdict.cpu_seconds)
    if ending < 0:
        raise _stopped(verdict, -ending, output, limits)
    raise _failure_from_exit_code(ending, output, limits)


def _spent(verdict: ExitReport, ending: int, limits: SandboxLimits) -> bool:
    """Whether the kernel ended it for using the processor too long. It kills those that do not heed its signal."""
    return ending == -signal.SIGXCPU or (ending == -signal.SIGKILL and verdict.cpu_seconds >= limits.cpu_seconds)


def _stopped(verdict: ExitReport, number: int, output: int, limits: SandboxLimits) -> WorkRejected:
    if number == signal.SIGKILL:  # from outside, such as the system short of memory: not this file's fault for sure
        return WorkRejected(
            "parser_crashed", "The parser was killed while it read the file. Try again.", retryable=True
        )
    # Native code aborts when an allocation fails, often without a word; a buffer that doubles fails at half the limit.
    if verdict.peak_bytes >= limits.memory_bytes // 2 or _STARVED.search(_hear(output)):
        return _too_big(limits)
    try:
        name = signal.Signals(number).name
    except ValueError:  # one of the nameless real-time signals
        name = f"signal {number}"
    advice = "It may be damaged: open it in the program it was made with, save it anew and add it again."
    return WorkRejected("parser_crashed", f"The parser crashed on this file ({name}). {advice}")


def _failure_from_exit_code(ending: int, output: int, limits: SandboxLimits) -> WorkRejected:
    match ending:
        case ExitCode.OUT_OF_MEMORY:
            return _too_big(limits)
        case ExitCode.TOO_LARGE:
            size = limits.output_bytes // MIB
            return WorkRejected(
                "output_too_large", f"The file holds more than {size} MiB of text. Split it and add the parts."
            )
        case ExitCode.TOO_DEEP:
            return WorkRejected("too_complex", "The file is nested too deeply to be read. Flatten it and add it again.")
        case ExitCode.UNREADABLE:
            return _quoted(_words(output))
        case ExitCode.FAILED:
            return _failed(_words(output))
        case ExitCode.UNCONFINED:
            _log.error("a parser could not be confined, and read nothing")
            return WorkRejected("parser_crashed", "The parser could not be confined. Try again.", retryable=True)
        case _:
            return WorkRejected("parser_crashed", "The parser ended on this file without a result.")


def _quoted(words: dict[str, Any]) -> WorkRejected:
    code, message = words.get("code"), words.get("message")
    if not isinstance(code, str) or not isinstance(message, str) or not _CODE.fullmatch(code):
        return _failed({})
    return WorkRejected(code, message[:_MESSAGE_LENGTH], retryable=words.get("retryable") is True)


def _failed(words: dict[str, Any]) -> WorkRejected:
    """An error in a parser. Its message is not passed on, since it may quote the file; its place is in the log."""
    error, where = str(words.get("error", "")), str(words.get("where", ""))
    known = error if _NAME.fullmatch(error) else "unknown error"
    _log.warning("a parser failed", error=known, where=where if _PLACE.fullmatch(where) else "")
    return WorkRejected("parser_crashed", f"The parser failed on this file ({known}). It may be damaged.")


def _too_slow(limits: SandboxLimits) -> WorkRejected:
    spent = f"{limits.wall_seconds:g} s, or {limits.cpu_seconds} s of processor time"
    return WorkRejected("parse_timeout", f"Reading the file took longer than {spent}. Split it and add the parts.")


def _too_big(limits: SandboxLimits) -> WorkRejected:
    size = limits.memory_bytes // MIB
    return WorkRejected(
        "memory_limit", f"Reading the file takes more than {size} MiB of memory. Split it and add the parts."
    )


def _hear(output: int) -> bytes:
    """The last of what it wrote."""
    return os.pread(output, MAX_STDERR_BYTES, max(0, os.fstat(output).st_size - MAX_STDERR_BYTES))


def _words(output: int) -> dict[str, Any]:
    try:
        words = json.loads(os.pread(output, MAX_STDERR_BYTES, 0))
    except (ValueError, RecursionError):
        return {}
    return cast(dict[str, Any], words) if isinstance(words, dict) else {}
