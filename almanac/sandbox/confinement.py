"""The confinement of a child process: it may compute and read its files and the interpreter's files, nothing else.

On Linux, in this order: a user of its own where the server runs as a superuser, no core dumps, no new privileges and
none of a superuser's, limits of memory, processor time, output and descriptors, files opened only for reading and only
below a few folders (Landlock, kernel 5.13), and only the system calls of its kind of work (seccomp, see
syscall_filter.py). The child ends when its parent does. It starts in the private root of the fork server
(private_root.py).

Without Landlock, the child can read every file that its user may read. On a processor that syscall_filter.py does not
know, it can use the network. `detect_kernel_features` reports both. Other systems have the limits only.
"""

import ctypes
import os
import platform
import resource
import signal
import struct
import sys
import sysconfig
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from almanac.sandbox import syscall_filter
from almanac.sandbox.system_calls import check, libc, system_call

MIB = 1024 * 1024

# Libraries that are loaded late, fonts, time zones, and the facts about the processor that runtimes read.
READABLE_PATHS = (
    "/lib", "/lib64", "/usr/lib", "/usr/lib64", "/usr/local/lib", "/etc/ld.so.cache", "/usr/share/fonts",
    "/usr/local/share/fonts", "/etc/fonts", "/usr/share/zoneinfo", "/etc/localtime", "/dev/null", "/dev/urandom",
    "/proc/cpuinfo", "/proc/meminfo", "/sys/devices/system/cpu",
)  # fmt: skip

# The user and group of a child: this number and the process id. systemd leaves the ids from here to 0x7FFD_FFFF free.
FIRST_CHILD_USER = 0x7000_0000
MAX_PROCESS_ID = 1 << 22

_PR_SET_PDEATHSIG = 1
_PR_SET_DUMPABLE = 4
_PR_SET_KEEPCAPS = 8
_PR_GET_SECCOMP = 21
_PR_SET_SECCOMP = 22
_PR_SET_NO_NEW_PRIVS = 38
_SECCOMP_MODE_FILTER = 2
_CAPABILITIES_VERSION = 0x20080522  # two words for each set
_CAP_DAC_READ_SEARCH = 1 << 2
_CAPS_TO_CHANGE_USER = (
    1 << 5 | 1 << 6 | 1 << 7
)  # CAP_KILL, because the server kills its children; CAP_SETGID, CAP_SETUID

_LANDLOCK_CREATE, _LANDLOCK_ADD, _LANDLOCK_RESTRICT = 444, 445, 446  # the same on every processor
_LANDLOCK_VERSION = 1
_LANDLOCK_PATH = 1
_READ_FILE, _READ_FOLDER = 1 << 2, 1 << 3
# Version of Landlock and the rights that it can refuse from then on: the first set, then moving, truncating, and
# commands to devices.
_FILE_RIGHTS = ((1, (1 << 13) - 1), (2, 1 << 13), (3, 1 << 14), (5, 1 << 15))


@dataclass(frozen=True, slots=True)
class SandboxLimits:
    """The limits of one child."""

    memory_bytes: int = 1024 * MIB  # of address space, the interpreter and the code of the work included
    cpu_seconds: int = 60
    wall_seconds: float = 120
    output_bytes: int = 256 * MIB
    open_files: int = 64  # twice the files of a request, and some for threads, pipes and archives
    profile: str = "parsers"  # of system calls: a key of `syscall_filter.PROFILES`


@dataclass(frozen=True, slots=True)
class KernelFeatures:
    """The means of confinement that the kernel offers."""

    seccomp: bool
    landlock: int  # its version, 0 for none
    users: bool = False  # whether each child can have a user of its own
    readable: tuple[tuple[str, int], ...] = ()  # paths that a child may read, with the Landlock rights to them


class _FilterProgram(ctypes.Structure):
    _fields_ = (("length", ctypes.c_ushort), ("instructions", ctypes.c_char_p))


def detect_kernel_features() -> KernelFeatures:
    """The features of this system; the kernel may lack them, and a container may withhold them."""
    if sys.platform != "linux":
        return KernelFeatures(seccomp=False, landlock=0)
    has_filter = platform.machine() in syscall_filter.MACHINES
    size, flags = ctypes.c_size_t(0), ctypes.c_uint(_LANDLOCK_VERSION)
    version = max(0, libc.syscall(ctypes.c_long(_LANDLOCK_CREATE), None, size, flags))
    readable = tuple((str(path), _rights_to(path)) for path in readable_paths() if path.exists())
    has_users = version > 0 and _can_change_user()  # without Landlock, a child could not open the files of others
    return KernelFeatures(has_filter and libc.prctl(_PR_GET_SECCOMP) >= 0, version, has_users, readable)


class Confinement:
    """Confines this process irrevocably, in three steps. It must have one thread until the last one."""

    def __init__(self, limits: SandboxLimits, kernel: KernelFeatures, parent: int) -> None:
        """Drop privileges, set limits, and prepare the list of readable files."""
        self._profile = limits.profile
        self._kernel = kernel
        if sys.platform == "linux":
            _drop_privileges(kernel)
            exit_with_parent(parent)
        _set_limits(limits)
        self._ruleset = _create_ruleset(kernel) if kernel.landlock else None

    def restrict_files(self, files: Sequence[int]) -> None:
        """From now on, read only the files of these descriptors and the interpreter's."""
        if count_threads() > 1:  # the kernel confines only the calling thread and those that it starts later
            raise RuntimeError("a child started threads before its confinement")
        if self._ruleset is not None:
            for descriptor in files:
                _permit(self._ruleset, descriptor, _READ_FILE)
            system_call(_LANDLOCK_RESTRICT, ctypes.c_int(self._ruleset), ctypes.c_uint(0))
            os.close(self._ruleset)

    def complete(self) -> None:
        """From now on, make only the system calls of the profile."""
        if self._kernel.seccomp:
            _filter_system_calls(self._profile)


def count_threads() -> int:
    """The threads of this process; on Linux also the native ones."""
    tasks = Path("/proc/self/task")
    return len(os.listdir(tasks)) if tasks.exists() else threading.active_count()


def exit_with_parent(parent: int) -> None:
    """Ask the kernel to kill this process when its parent ends."""
    if sys.platform == "linux":
        _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # the parent ended before the request
        os._exit(1)


def readable_paths() -> Iterator[Path]:
    """The folders of this package, the interpreter and its libraries, and the files that runtimes need."""
    yield Path(__file__).parent.parent
    yield from (Path(sysconfig.get_path(name)) for name in ("stdlib", "platstdlib"))
    yield from (Path(path) for path in sys.path if Path(path).name in ("site-packages", "dist-packages"))
    yield from map(Path, READABLE_PATHS)


def _rights_to(path: Path) -> int:
    return _READ_FILE | _READ_FOLDER if path.is_dir() else _READ_FILE


def _can_change_user() -> bool:
    """Whether this process may give its children users of their own, and these exist in its user namespace."""
    effective, _ = _capabilities()
    maps = (Path("/proc/self", name).read_text("ascii").splitlines() for name in ("uid_map", "gid_map"))
    return effective & _CAPS_TO_CHANGE_USER == _CAPS_TO_CHANGE_USER and all(any(map(_has_users, each)) for each in maps)


def _has_users(mapping: str) -> bool:
    first, _, count = map(int, mapping.split())
    return first <= FIRST_CHILD_USER and first + count >= FIRST_CHILD_USER + MAX_PROCESS_ID


def _capabilities() -> tuple[int, int]:
    """The effective and the permitted capabilities of this process, the first 32 of each."""
    sets = (ctypes.c_uint32 * 6)()
    check(libc.capget((ctypes.c_uint32 * 2)(_CAPABILITIES_VERSION, 0), sets))
    return sets[0], sets[1]


def _drop_privileges(kernel: KernelFeatures) -> None:
    """Refuse new privileges, change the user, and drop the capabilities of a superuser; other users have none."""
    _prctl(_PR_SET_NO_NEW_PRIVS, 1)
    if kernel.users:
        user = FIRST_CHILD_USER + os.getpid()
        _prctl(_PR_SET_KEEPCAPS, 1)
        os.setgroups([])
        os.setresgid(user, user, user)
        os.setresuid(user, user, user)
    _prctl(_PR_SET_DUMPABLE, 0)
    _, permitted = _capabilities()
    # The file and the interpreter may belong to another user. Landlock limits the readable paths anyway.
    kept = permitted & (_CAP_DAC_READ_SEARCH if kernel.landlock else 0)
    header = (ctypes.c_uint32 * 2)(_CAPABILITIES_VERSION, 0)
    check(libc.capset(header, (ctypes.c_uint32 * 6)(kept, kept)))


def _set_limits(limits: SandboxLimits) -> None:
    _lower_limit(resource.RLIMIT_CORE, 0)
    _lower_limit(resource.RLIMIT_NOFILE, limits.open_files)
    _lower_limit(resource.RLIMIT_FSIZE, limits.output_bytes)
    # The soft limit sends a signal, which the process can ignore. The hard limit kills it a second later.
    _lower_limit(resource.RLIMIT_CPU, limits.cpu_seconds, limits.cpu_seconds + 1)
    _lower_limit(resource.RLIMIT_AS, limits.memory_bytes)


def _lower_limit(kind: int, soft: int, hard: int | None = None) -> None:
    current_hard = resource.getrlimit(kind)[1]
    limits = (soft, soft if hard is None else hard)
    if current_hard != resource.RLIM_INFINITY:
        limits = (min(limits[0], current_hard), min(limits[1], current_hard))
    resource.setrlimit(kind, limits)


def _create_ruleset(kernel: KernelFeatures) -> int:
    version = kernel.landlock
    rights = sum(bits for since, bits in _FILE_RIGHTS if version >= since)
    # Files; then TCP and abstract sockets, which seccomp refuses too.
    attributes = struct.pack("=QQQ", rights, 0b11 if version >= 4 else 0, 0b11 if version >= 6 else 0)
    ruleset = system_call(_LANDLOCK_CREATE, attributes, ctypes.c_size_t(len(attributes)), ctypes.c_uint(0))
    for path, rights in kernel.readable:
        _permit_below(ruleset, path, rights)
    return ruleset


def _permit_below(ruleset: int, path: str, rights: int) -> None:
    descriptor = os.open(path, os.O_PATH | os.O_CLOEXEC)
    try:
        _permit(ruleset, descriptor, rights)
    finally:
        os.close(descriptor)


def _permit(ruleset: int, descriptor: int, rights: int) -> None:
    rule = struct.pack("=Qi", rights, descriptor)
    system_call(_LANDLOCK_ADD, ctypes.c_int(ruleset), ctypes.c_int(_LANDLOCK_PATH), rule, ctypes.c_uint(0))


def prepare_filter(profile: str) -> None:
    """Make the filter of system calls once, for all children."""
    if platform.machine() in syscall_filter.MACHINES:
        syscall_filter.prepare(syscall_filter.MACHINES[platform.machine()], profile)


def _filter_system_calls(profile: str) -> None:
    code = syscall_filter.assemble(syscall_filter.MACHINES[platform.machine()], profile, os.getpid())
    program = _FilterProgram(len(code) // 8, code)
    _prctl(_PR_SET_SECCOMP, _SECCOMP_MODE_FILTER, ctypes.byref(program))


def _prctl(option: int, value: int, pointer: Any = None) -> None:
    zero = ctypes.c_ulong(0)
    check(libc.prctl(ctypes.c_int(option), ctypes.c_ulong(value), pointer or zero, zero, zero))
