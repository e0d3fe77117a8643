"""The system calls that a child may make, as a program that the kernel runs before each call (seccomp).

A profile names the groups of calls that one kind of work needs. The filter allows these, some only with harmless
arguments. It answers every other call with ENOSYS, as a kernel without that call does: libraries have a second way for
such a kernel, and less often for a call that exists but fails. A call that only an attack makes kills the process.
The numbers are those of x86_64 and aarch64; other processors have no filter.
"""

import errno
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from types import MappingProxyType

# Name: number on x86_64 and on aarch64, where the call exists.
Calls = Mapping[str, tuple[int | None, int | None]]

# Memory, time, and facts about the process and the machine.
COMPUTING: Calls = MappingProxyType(
    {
        "mmap": (9, 222), "munmap": (11, 215), "mprotect": (10, 226), "mremap": (25, 216), "brk": (12, 214),
        "madvise": (28, 233), "getrandom": (318, 278),
        "clock_gettime": (228, 113), "clock_getres": (229, 114), "clock_nanosleep": (230, 115), "nanosleep": (35, 101),
        "gettimeofday": (96, 169), "time": (201, None), "times": (100, 153), "getrusage": (98, 165),
        "getpid": (39, 172), "getppid": (110, 173), "gettid": (186, 178), "getuid": (102, 174), "geteuid": (107, 175),
        "getgid": (104, 176), "getegid": (108, 177), "getrlimit": (97, 163), "uname": (63, 160),
        "sysinfo": (99, 179), "getcpu": (309, 168), "sched_get_priority_max": (146, 125),
        "sched_get_priority_min": (147, 126),
        "rt_sigaction": (13, 134), "rt_sigprocmask": (14, 135), "rt_sigreturn": (15, 139), "sigaltstack": (131, 132),
        "restart_syscall": (219, 128), "exit": (60, 93), "exit_group": (231, 94),
    }
)  # fmt: skip

# Threads of this process. `clone` is in CHECKED.
THREADS: Calls = MappingProxyType(
    {
        "futex": (202, 98), "set_robust_list": (273, 99), "set_tid_address": (218, 96), "rseq": (334, 293),
        "sched_yield": (24, 124),
    }
)  # fmt: skip

# Reading files, and writing to open descriptors. `open` and `openat` are in CHECKED. A filter cannot read a path: the
# private root (private_root.py) and Landlock limit the files.
FILES: Calls = MappingProxyType(
    {
        "read": (0, 63), "readv": (19, 65), "pread64": (17, 67), "preadv": (295, 69), "write": (1, 64),
        "writev": (20, 66), "pwrite64": (18, 68), "pwritev": (296, 70), "lseek": (8, 62), "ftruncate": (77, 46),
        "fadvise64": (221, 223), "close": (3, 57), "close_range": (436, 436), "dup": (32, 23), "dup2": (33, None),
        "dup3": (292, 24), "fstat": (5, 80), "newfstatat": (262, 79), "stat": (4, None), "lstat": (6, None),
        "statx": (332, 291), "access": (21, None), "faccessat": (269, 48), "faccessat2": (439, 439),
        "readlink": (89, None), "readlinkat": (267, 78), "getdents64": (217, 61), "getcwd": (79, 17),
    }
)  # fmt: skip

# Event loops of runtimes, which wake themselves over a pipe or a pair of sockets.
EVENTS: Calls = MappingProxyType(
    {
        "poll": (7, None), "ppoll": (271, 73), "select": (23, None), "pselect6": (270, 72), "epoll_create": (213, None),
        "epoll_create1": (291, 20), "epoll_ctl": (233, 21), "epoll_wait": (232, None), "epoll_pwait": (281, 22),
        "eventfd2": (290, 19), "pipe": (22, None), "pipe2": (293, 59), "sendto": (44, 206), "recvfrom": (45, 207),
        "shutdown": (48, 210), "getsockname": (51, 204), "getsockopt": (55, 209),
    }
)  # fmt: skip

# Refused unless their arguments are harmless: see `_checks`.
CHECKED: Calls = MappingProxyType(
    {
        "clone": (56, 220), "socketpair": (53, 199), "open": (2, None), "openat": (257, 56), "fcntl": (72, 25),
        "ioctl": (16, 29), "prctl": (157, 167), "prlimit64": (302, 261), "sched_getaffinity": (204, 123),
        "kill": (62, 129), "tgkill": (234, 131),
    }
)  # fmt: skip

# No parser and no library below one makes these calls. They inspect or control other processes, change privileges, or
# reach rarely used code of the kernel.
KILLED: Calls = MappingProxyType(
    {
        "ptrace": (101, 117), "process_vm_readv": (310, 270), "process_vm_writev": (311, 271), "kcmp": (312, 272),
        "process_madvise": (440, 440), "process_mrelease": (448, 448), "pidfd_open": (434, 434),
        "pidfd_getfd": (438, 438), "pidfd_send_signal": (424, 424), "migrate_pages": (256, 238),
        "move_pages": (279, 239), "rt_sigqueueinfo": (129, 138), "rt_tgsigqueueinfo": (297, 240),
        "setuid": (105, 146), "setgid": (106, 144), "setreuid": (113, 145), "setregid": (114, 143),
        "setresuid": (117, 147), "setresgid": (119, 149), "setgroups": (116, 159), "setfsuid": (122, 151),
        "setfsgid": (123, 152), "capset": (126, 91), "unshare": (272, 97), "setns": (308, 268), "chroot": (161, 51),
        "pivot_root": (155, 41), "mount": (165, 40), "umount2": (166, 39), "move_mount": (429, 429),
        "open_tree": (428, 428), "fsopen": (430, 430), "fsconfig": (431, 431), "fsmount": (432, 432),
        "fspick": (433, 433), "mount_setattr": (442, 442), "open_by_handle_at": (304, 265),
        "bpf": (321, 280), "perf_event_open": (298, 241), "userfaultfd": (323, 282), "add_key": (248, 217),
        "request_key": (249, 218), "keyctl": (250, 219), "modify_ldt": (154, None), "iopl": (172, None),
        "ioperm": (173, None), "syslog": (103, 116), "acct": (163, 89), "reboot": (169, 142), "swapon": (167, 224),
        "swapoff": (168, 225), "init_module": (175, 105), "finit_module": (313, 273), "delete_module": (176, 106),
        "kexec_load": (246, 104), "kexec_file_load": (320, 294), "settimeofday": (164, 170),
        "clock_settime": (227, 112), "adjtimex": (159, 171), "clock_adjtime": (305, 266), "sethostname": (170, 161),
        "setdomainname": (171, 162), "quotactl": (179, 60), "quotactl_fd": (443, 443), "vhangup": (153, 58),
    }
)  # fmt: skip

# The calls of each kind of work. `CHECKED` and `KILLED` apply to every profile.
PROFILES: Mapping[str, tuple[Calls, ...]] = MappingProxyType(
    {"parsers": (COMPUTING, THREADS, FILES, EVENTS), "queries": (COMPUTING, THREADS, FILES)}
)

_ALLOW = 0x7FFF0000
_KILL = 0x80000000
_ERROR = 0x00050000

# Instructions of the classic Berkeley packet filter.
_LOAD = 0x20
_JUMP = 0x05
_IF_EQUAL = 0x15
_IF_AT_LEAST = 0x35
_IF_ANY_BIT = 0x45
_AND = 0x54
_RETURN = 0x06
_MAX_CONDITIONAL_JUMP = 255

_CLONE_THREAD = 0x00010000
_CLONE_NAMESPACES = 0x7E020000
_REFUSED_OPEN_FLAGS = 0o10001103  # O_WRONLY, O_RDWR, O_CREAT, O_TRUNC, O_PATH
_AF_UNIX = 1
_SOCK_STREAM = 1  # a datagram socket could send to any address without a connection
_SOCK_TYPE_MASK = 0xF
_F_SETFL = 4
_FCNTL_COMMANDS = (0, 1, 2, 3, 1030)  # F_DUPFD, F_GETFD, F_SETFD, F_GETFL, F_DUPFD_CLOEXEC
_O_ASYNC = 0o20000  # the kernel would send signals to the owner of the descriptor
_IOCTL_COMMANDS = (0x5401, 0x5413, 0x541B, 0x5421, 0x5450, 0x5451)  # TCGETS, TIOCGWINSZ, FIONREAD, FIONBIO, FIO(N)CLEX
_NAMING_OPTIONS = (15, 16, 0x53564D41)  # PR_SET_NAME, PR_GET_NAME and PR_SET_VMA: names of threads and memory

_PID_PLACEHOLDER = 0xFEEDFACE  # no process has this id, and the filter contains this number nowhere else

Instruction = tuple[int, int, int, int]  # code, jump if true, jump if false, value
Block = list[Instruction]  # it ends with a return


@dataclass(frozen=True, slots=True)
class Machine:
    """A type of processor."""

    audit: int  # its number in the kernel's audit
    column: int  # its column in the tables above


MACHINES: Mapping[str, Machine] = MappingProxyType(
    {"x86_64": Machine(0xC000003E, 0), "aarch64": Machine(0xC00000B7, 1), "arm64": Machine(0xC00000B7, 1)}
)


def assemble(machine: Machine, profile: str, pid: int) -> bytes:
    """The filter for the process with this id, in the kernel's format: 8 bytes for each instruction."""
    return prepare(machine, profile).replace(_pack(_is_process(_PID_PLACEHOLDER)), _pack(_is_process(pid)))


@cache
def prepare(machine: Machine, profile: str) -> bytes:
    """The filter with a placeholder for the process id. The fork server makes it once, before it forks children."""
    return b"".join(map(_pack, _instructions(machine, profile)))


def _pack(instruction: Instruction) -> bytes:
    return struct.pack("=HBBI", *instruction)


def _is_process(pid: int) -> Instruction:
    return _IF_EQUAL, 0, 1, pid


def _instructions(machine: Machine, profile: str) -> Iterator[Instruction]:
    yield _LOAD, 0, 0, 4  # the type of processor
    yield _IF_EQUAL, 1, 0, machine.audit
    yield _RETURN, 0, 0, _KILL
    yield _LOAD, 0, 0, 0  # the number of the call
    yield from _search(list(_ranges(_blocks(machine, profile))))


def _blocks(machine: Machine, profile: str) -> dict[int, Block]:
    """The instructions for each call that does not seem absent, by its number."""
    checks = _checks()
    blocks: dict[int, Block] = {}
    for calls, block in (*((group, [_return(_ALLOW)]) for group in PROFILES[profile]), (KILLED, [_return(_KILL)])):
        blocks |= dict.fromkeys(_numbers(calls, machine), block)
    for name, row in CHECKED.items():
        if (number := row[machine.column]) is not None:
            blocks[number] = checks[name]
    return blocks


def _ranges(blocks: dict[int, Block]) -> Iterator[tuple[int, Block]]:
    """The first number of each range of calls with the same instructions. Calls without instructions seem absent."""
    absent, last = [_error(errno.ENOSYS)], None
    for number in sorted({0, *blocks, *(number + 1 for number in blocks)}):
        block = blocks.get(number, absent)
        if block != last:
            yield number, block
        last = block


def _search(ranges: list[tuple[int, Block]]) -> Block:
    """Find the range of a number by halving. The kernel interprets the filter for every call when it is attached."""
    if len(ranges) == 1:
        return ranges[0][1]
    middle = len(ranges) // 2
    low, high = _search(ranges[:middle]), _search(ranges[middle:])
    if len(low) <= _MAX_CONDITIONAL_JUMP:
        return [(_IF_AT_LEAST, len(low), 0, ranges[middle][0]), *low, *high]
    return [(_IF_AT_LEAST, 0, 1, ranges[middle][0]), (_JUMP, 0, 0, len(low)), *low, *high]


def _checks() -> dict[str, Block]:
    """The checks of arguments, by the name of the call."""
    allow, refuse = _return(_ALLOW), _error(errno.EPERM)
    is_self = _is_process(_PID_PLACEHOLDER)
    may_open, may_not_open = (_IF_ANY_BIT, 0, 1, _REFUSED_OPEN_FLAGS), _error(errno.EACCES)
    own_signals = [_argument(0), is_self, allow, refuse]  # abort() sends its own process a signal
    # A null third argument only reads the limits; otherwise it points to new limits. Process 0 is the caller.
    no_new_limits = [
        _argument(2), (_IF_EQUAL, 1, 0, 0), refuse, _argument(2, high=True), (_IF_EQUAL, 1, 0, 0), refuse,
    ]  # fmt: skip
    return {
        "clone": [
            _argument(0), (_IF_ANY_BIT, 1, 0, _CLONE_THREAD), refuse,
            (_IF_ANY_BIT, 0, 1, _CLONE_NAMESPACES), refuse, allow,
        ],
        "kill": own_signals,
        "tgkill": own_signals,
        "open": [_argument(1), may_open, may_not_open, allow],
        "openat": [_argument(2), may_open, may_not_open, allow],
        "socketpair": [
            _argument(0), (_IF_EQUAL, 1, 0, _AF_UNIX), refuse,
            _argument(1), (_AND, 0, 0, _SOCK_TYPE_MASK), (_IF_EQUAL, 0, 1, _SOCK_STREAM), allow, refuse,
        ],
        "fcntl": [
            _argument(1), (_IF_EQUAL, 0, 4, _F_SETFL),
            _argument(2), (_IF_ANY_BIT, 0, 1, _O_ASYNC), refuse, allow,
            *_if_one_of(_FCNTL_COMMANDS, allow, refuse),
        ],
        "ioctl": [_argument(1), *_if_one_of(_IOCTL_COMMANDS, allow, refuse)],
        "prctl": [_argument(0), *_if_one_of(_NAMING_OPTIONS, allow, refuse)],
        "prlimit64": [*no_new_limits, *_if_self(allow, refuse)],
        # A libc asks about each new thread by its id, and takes ENOSYS for "no such feature".
        "sched_getaffinity": _if_self(allow, _error(errno.ENOSYS)),
    }  # fmt: skip


def _if_one_of(values: tuple[int, ...], then: Instruction, otherwise: Instruction) -> Block:
    comparisons = [(_IF_EQUAL, len(values) - i, 0, value) for i, value in enumerate(values)]
    return [*comparisons, otherwise, then]


def _if_self(then: Instruction, otherwise: Instruction) -> Block:
    """Whether the first argument is this process, by its id or as 0."""
    return [_argument(0), (_IF_EQUAL, 1, 0, 0), _is_process(_PID_PLACEHOLDER), then, otherwise]


def _argument(index: int, *, high: bool = False) -> Instruction:
    """Load half of an argument. Both processors store the low half first."""
    return _LOAD, 0, 0, 16 + 8 * index + 4 * high


def _return(answer: int) -> Instruction:
    return _RETURN, 0, 0, answer


def _error(number: int) -> Instruction:
    return _return(_ERROR | number)


def _numbers(calls: Calls, machine: Machine) -> Iterator[int]:
    yield from (number for row in calls.values() if (number := row[machine.column]) is not None)
