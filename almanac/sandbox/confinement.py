"""What a child that reads a hostile file may do: compute, read that file and the interpreter's own, and nothing else.

On Linux, in this order: no core dumps, no new rights and none that a superuser has, limits of memory, processor time,
output and descriptors, no file opened but for reading and only below a few folders (Landlock, kernel 5.13), and no
network, programs or processes (seccomp, see syscalls.py). It ends when its parent does.

A kernel without Landlock leaves the child able to read what its user may read; a processor that syscalls.py does not
know, able to use the network. `survey` says so. On other systems there are the limits only.
"""

import ctypes
import os
import platform
import resource
import signal
import struct
import sys
import sysconfig
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from almanac.sandbox import syscall_filter

MIB = 1024 * 1024

# Descriptors that a runtime's threads, pipes and archives need.
OPEN_FILES = 64

# Libraries that are loaded late, fonts, time zones, and what runtimes ask about the processor.
READABLE = (
    "/lib", "/lib64", "/usr/lib", "/usr/lib64", "/usr/local/lib", "/etc/ld.so.cache", "/usr/share/fonts",
    "/usr/local/share/fonts", "/etc/fonts", "/usr/share/zoneinfo", "/etc/localtime", "/dev/null", "/dev/urandom",
    "/proc/cpuinfo", "/proc/meminfo", "/sys/devices/system/cpu",
)  # fmt: skip

_PR_SET_PDEATHSIG = 1
_PR_SET_DUMPABLE = 4
_PR_GET_SECCOMP = 21
_PR_SET_SECCOMP = 22
_PR_SET_NO_NEW_PRIVS = 38
_SECCOMP_MODE_FILTER = 2
_CAPABILITIES = 0x20080522  # the version that has two words for each set
_CAP_DAC_READ_SEARCH = 1 << 2

_LANDLOCK_CREATE, _LANDLOCK_ADD, _LANDLOCK_RESTRICT = 444, 445, 446  # on every machine
_LANDLOCK_VERSION = 1
_LANDLOCK_PATH = 1
_READ_FILE, _READ_FOLDER = 1 << 2, 1 << 3
# By version of Landlock, from which it can refuse: all of the first, then moving, truncating, and commanding devices.
_FILE_RIGHTS = ((1, (1 << 13) - 1), (2, 1 << 13), (3, 1 << 14), (5, 1 << 15))

_libc = ctypes.CDLL(None, use_errno=True)


@dataclass(frozen=True, slots=True)
class SandboxLimits:
    """What one file may cost."""

    memory_bytes: int = 1024 * MIB  # of address space, the interpreter and the parsers' code included
    cpu_seconds: int = 60
    wall_seconds: float = 120
    output_bytes: int = 256 * MIB


@dataclass(frozen=True, slots=True)
class KernelFeatures:
    """What the system has to confine with."""

    seccomp: bool
    landlock: int  # its version, 0 for none
    readable: tuple[tuple[str, int], ...] = ()  # where files may be read, and whether folders listed


class _Program(ctypes.Structure):
    _fields_ = (("length", ctypes.c_ushort), ("instructions", ctypes.c_char_p))


def detect_kernel_features() -> KernelFeatures:
    """What there is here; a kernel may lack it and a container may withhold it."""
    if sys.platform != "linux":
        return KernelFeatures(seccomp=False, landlock=0)
    known = platform.machine() in syscall_filter.MACHINES
    if known:
        syscall_filter.prepare(syscall_filter.MACHINES[platform.machine()])
    size, asked = ctypes.c_size_t(0), ctypes.c_uint(_LANDLOCK_VERSION)
    version = _libc.syscall(ctypes.c_long(_LANDLOCK_CREATE), None, size, asked)
    readable = tuple((str(path), _rights_to(path)) for path in readable_paths() if path.exists())
    return KernelFeatures(known and _libc.prctl(_PR_GET_SECCOMP) >= 0, max(version, 0), readable)


def confine(limits: SandboxLimits, means: KernelFeatures, parent: int, source: int) -> None:
    """Confine this process for good. It may read what the descriptor `source` is open on."""
    if sys.platform == "linux":
        _give_up_rights(means)
        exit_with_parent(parent)
    _limit(limits)
    if means.landlock:
        _shut_files(means, source)
    if means.seccomp:
        _filter_calls()


def exit_with_parent(parent: int) -> None:
    """End when the parent does."""
    if sys.platform == "linux":
        _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # it went before it could be asked
        os._exit(1)


def readable_paths() -> Iterator[Path]:
    """Where the interpreter and its libraries are, and what else a parser may look at."""
    yield Path(__file__).parent.parent
    yield from (Path(sysconfig.get_path(each)) for each in ("stdlib", "platstdlib"))
    yield from (Path(each) for each in sys.path if Path(each).name in ("site-packages", "dist-packages"))
    yield from map(Path, READABLE)


def _rights_to(path: Path) -> int:
    return _READ_FILE | _READ_FOLDER if path.is_dir() else _READ_FILE


def _give_up_rights(means: KernelFeatures) -> None:
    """Those of a superuser, which others do not have to begin with."""
    _prctl(_PR_SET_DUMPABLE, 0)
    _prctl(_PR_SET_NO_NEW_PRIVS, 1)
    header, sets = (ctypes.c_uint32 * 2)(_CAPABILITIES, 0), (ctypes.c_uint32 * 6)()
    _check(_libc.capget(header, sets))
    # The file and the interpreter may be another user's. Where Landlock says what can be read, this adds nothing.
    kept = _CAP_DAC_READ_SEARCH if means.landlock else 0
    _check(_libc.capset(header, (ctypes.c_uint32 * 6)(sets[0] & kept, sets[1] & kept)))


def _limit(limits: SandboxLimits) -> None:
    _lower(resource.RLIMIT_CORE, 0)
    _lower(resource.RLIMIT_NOFILE, OPEN_FILES)
    _lower(resource.RLIMIT_FSIZE, limits.output_bytes)
    # A second later it is killed, had it chosen to ignore the signal.
    _lower(resource.RLIMIT_CPU, limits.cpu_seconds, limits.cpu_seconds + 1)
    _lower(resource.RLIMIT_AS, limits.memory_bytes)


def _lower(kind: int, soft: int, hard: int | None = None) -> None:
    ceiling = resource.getrlimit(kind)[1]
    ends = (soft, soft if hard is None else hard)
    if ceiling != resource.RLIM_INFINITY:
        ends = (min(ends[0], ceiling), min(ends[1], ceiling))
    resource.setrlimit(kind, ends)


def _shut_files(means: KernelFeatures, source: int) -> None:
    version = means.landlock
    rights = sum(bits for since, bits in _FILE_RIGHTS if version >= since)
    # Files; then TCP and abstract sockets, which seccomp refuses too.
    asked = struct.pack("=QQQ", rights, 0b11 if version >= 4 else 0, 0b11 if version >= 6 else 0)
    ruleset = _syscall(_LANDLOCK_CREATE, asked, ctypes.c_size_t(len(asked)), ctypes.c_uint(0))
    try:
        _permit(ruleset, source, _READ_FILE)
        for path, rights in means.readable:
            _permit_below(ruleset, path, rights)
        _syscall(_LANDLOCK_RESTRICT, ctypes.c_int(ruleset), ctypes.c_uint(0))
    finally:
        os.close(ruleset)


def _permit_below(ruleset: int, path: str, rights: int) -> None:
    descriptor = os.open(path, os.O_PATH | os.O_CLOEXEC)
    try:
        _permit(ruleset, descriptor, rights)
    finally:
        os.close(descriptor)


def _permit(ruleset: int, descriptor: int, rights: int) -> None:
    rule = struct.pack("=Qi", rights, descriptor)
    _syscall(_LANDLOCK_ADD, ctypes.c_int(ruleset), ctypes.c_int(_LANDLOCK_PATH), rule, ctypes.c_uint(0))


def _filter_calls() -> None:
    code = syscall_filter.assemble(syscall_filter.MACHINES[platform.machine()], os.getpid())
    program = _Program(len(code) // 8, code)
    _prctl(_PR_SET_SECCOMP, _SECCOMP_MODE_FILTER, ctypes.byref(program))


def _prctl(option: int, value: int, pointer: Any = None) -> None:
    zero = ctypes.c_ulong(0)
    _check(_libc.prctl(ctypes.c_int(option), ctypes.c_ulong(value), pointer or zero, zero, zero))


def _syscall(number: int, *arguments: Any) -> int:
    return _check(_libc.syscall(ctypes.c_long(number), *arguments))


def _check(result: int) -> int:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return result
