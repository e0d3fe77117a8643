"""The system calls that a child may not make, as a program that the kernel runs before each call (seccomp).

The filter refuses the network, other processes, programs, writing to the file system, more privileges, and rarely used
features of the kernel. Everything else is allowed, because native libraries and their runtimes use more calls than a
list could name. The numbers are those of x86_64 and aarch64; other processors have no filter.
"""

import errno
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from types import MappingProxyType

# Name: number on x86_64, and on aarch64 where the call exists.
REFUSED: Mapping[str, tuple[int, int | None]] = MappingProxyType(
    {
        # the network, and memory that outlives its descriptor
        "socket": (41, 198), "connect": (42, 203), "bind": (49, 200), "listen": (50, 201),
        "accept": (43, 202), "accept4": (288, 242),
        "memfd_create": (319, 279), "memfd_secret": (447, 447), "shmget": (29, 194), "shmat": (30, 196),
        "shmctl": (31, 195), "msgget": (68, 186), "semget": (64, 190), "mq_open": (240, 180), "mq_unlink": (241, 181),
        # other processes
        "fork": (57, None), "vfork": (58, None), "execve": (59, 221), "execveat": (322, 281), "ptrace": (101, 117),
        "process_vm_readv": (310, 270), "process_vm_writev": (311, 271), "process_madvise": (440, 440),
        "process_mrelease": (448, 448), "kcmp": (312, 272), "pidfd_open": (434, 434), "pidfd_getfd": (438, 438),
        "pidfd_send_signal": (424, 424), "tkill": (200, 130), "migrate_pages": (256, 238), "move_pages": (279, 239),
        # more privileges and limits
        "setrlimit": (160, 164), "unshare": (272, 97), "setns": (308, 268), "capset": (126, 91),
        "setuid": (105, 146), "setgid": (106, 144), "setreuid": (113, 145), "setregid": (114, 143),
        "setresuid": (117, 147), "setresgid": (119, 149), "setgroups": (116, 159), "setfsuid": (122, 151),
        "setfsgid": (123, 152), "personality": (135, 92), "seccomp": (317, 277),
        # rarely used features of the kernel
        "bpf": (321, 280), "perf_event_open": (298, 241), "userfaultfd": (323, 282), "io_uring_setup": (425, 425),
        "io_uring_enter": (426, 426), "io_uring_register": (427, 427), "keyctl": (250, 219), "add_key": (248, 217),
        "request_key": (249, 218), "fanotify_init": (300, 262), "modify_ldt": (154, None), "vmsplice": (278, 75),
        "iopl": (172, None), "ioperm": (173, None), "syslog": (103, 116), "acct": (163, 89), "reboot": (169, 142),
        "init_module": (175, 105), "finit_module": (313, 273), "delete_module": (176, 106),
        "kexec_load": (246, 104), "kexec_file_load": (320, 294), "swapon": (167, 224), "swapoff": (168, 225),
        "quotactl": (179, 60), "quotactl_fd": (443, 443),
        # the file system
        "mount": (165, 40), "umount2": (166, 39), "move_mount": (429, 429), "open_tree": (428, 428),
        "fsopen": (430, 430), "fsconfig": (431, 431), "fsmount": (432, 432), "fspick": (433, 433),
        "mount_setattr": (442, 442), "pivot_root": (155, 41), "chroot": (161, 51), "open_by_handle_at": (304, 265),
        "creat": (85, None), "truncate": (76, 45), "rename": (82, None), "renameat": (264, 38),
        "renameat2": (316, 276), "link": (86, None), "linkat": (265, 37), "symlink": (88, None),
        "symlinkat": (266, 36), "unlink": (87, None), "unlinkat": (263, 35), "mkdir": (83, None),
        "mkdirat": (258, 34), "rmdir": (84, None), "mknod": (133, None), "mknodat": (259, 33),
        "chmod": (90, None), "fchmod": (91, 52), "fchmodat": (268, 53), "chown": (92, None), "fchown": (93, 55),
        "lchown": (94, None), "fchownat": (260, 54), "utime": (132, None), "utimes": (235, None),
        "futimesat": (261, None), "utimensat": (280, 88), "setxattr": (188, 5), "lsetxattr": (189, 6),
        "fsetxattr": (190, 7), "removexattr": (197, 14), "lremovexattr": (198, 15), "fremovexattr": (199, 16),
    }
)  # fmt: skip

# The arguments of these calls lie in memory, which a filter cannot read. If they seem absent, a libc uses older calls.
ABSENT: Mapping[str, tuple[int, int | None]] = MappingProxyType({"clone3": (435, 435), "openat2": (437, 437)})

# Refused unless their arguments are harmless: see `_checks`.
CHECKED: Mapping[str, tuple[int, int | None]] = MappingProxyType(
    {
        "clone": (56, 220), "socketpair": (53, 199), "open": (2, None), "openat": (257, 56), "prctl": (157, 167),
        "prlimit64": (302, 261), "kill": (62, 129), "tgkill": (234, 131), "rt_sigqueueinfo": (129, 138),
        "rt_tgsigqueueinfo": (297, 240),
    }
)  # fmt: skip

# Calls from this number on are newer than this list and seem absent. The numbers of the other x86 interface are higher.
FIRST_UNKNOWN = 451

_ALLOW = 0x7FFF0000
_KILL = 0x80000000
_ERROR = 0x00050000

# Instructions of the classic Berkeley packet filter.
_LOAD = 0x20
_IF_EQUAL = 0x15
_IF_AT_LEAST = 0x35
_IF_ANY_BIT = 0x45
_AND = 0x54
_RETURN = 0x06

_CLONE_THREAD = 0x00010000
_WRITE_FLAGS = 0o1103  # O_WRONLY, O_RDWR, O_CREAT, O_TRUNC
_AF_UNIX = 1
_SOCK_STREAM = 1  # a datagram socket could send to any address without a connection
_SOCK_TYPE_MASK = 0xF
_NAMING_OPTIONS = (15, 16, 0x53564D41)  # PR_SET_NAME, PR_GET_NAME and PR_SET_VMA: names of threads and memory

_PID_PLACEHOLDER = 0xFEEDFACE  # no process has this id, and the filter contains this number nowhere else

Instruction = tuple[int, int, int, int]  # code, jump if true, jump if false, value


@dataclass(frozen=True, slots=True)
class Machine:
    """A type of processor."""

    audit: int  # its number in the kernel's audit
    column: int  # its column in the tables above


MACHINES: Mapping[str, Machine] = MappingProxyType(
    {"x86_64": Machine(0xC000003E, 0), "aarch64": Machine(0xC00000B7, 1), "arm64": Machine(0xC00000B7, 1)}
)


def assemble(machine: Machine, pid: int) -> bytes:
    """The filter for the process with this id, in the kernel's format: 8 bytes for each instruction."""
    return prepare(machine).replace(_pack(_is_process(_PID_PLACEHOLDER)), _pack(_is_process(pid)))


@cache
def prepare(machine: Machine) -> bytes:
    """The filter with a placeholder for the process id. The fork server makes it once, before it forks children."""
    return b"".join(map(_pack, _instructions(machine, _PID_PLACEHOLDER)))


def _pack(instruction: Instruction) -> bytes:
    return struct.pack("=HBBI", *instruction)


def _is_process(pid: int) -> Instruction:
    return _IF_EQUAL, 0, 1, pid


def _instructions(machine: Machine, pid: int) -> Iterator[Instruction]:
    yield _LOAD, 0, 0, 4  # the type of processor
    yield _IF_EQUAL, 1, 0, machine.audit
    yield _RETURN, 0, 0, _KILL
    yield _LOAD, 0, 0, 0  # the number of the call
    yield _IF_AT_LEAST, 0, 1, FIRST_UNKNOWN
    yield _error(errno.ENOSYS)
    for number in _numbers(ABSENT, machine):
        yield from _if_call(number, [_error(errno.ENOSYS)])
    for number in _numbers(REFUSED, machine):
        yield from _if_call(number, [_error(errno.EPERM)])
    for name, check in _checks(pid):
        number = CHECKED[name][machine.column]
        if number is not None:
            yield from _if_call(number, check)
    yield _RETURN, 0, 0, _ALLOW


def _checks(pid: int) -> Iterator[tuple[str, list[Instruction]]]:
    """The checks of arguments, by the name of the call."""
    allow, refuse = (_RETURN, 0, 0, _ALLOW), _error(errno.EPERM)
    yield "clone", [_argument(0), (_IF_ANY_BIT, 0, 1, _CLONE_THREAD), allow, refuse]
    for name in ("kill", "tgkill", "rt_sigqueueinfo", "rt_tgsigqueueinfo"):  # abort() sends its own process a signal
        yield name, [_argument(0), _is_process(pid), allow, refuse]
    for name, flags in (("open", 1), ("openat", 2)):
        yield name, [_argument(flags), (_IF_ANY_BIT, 0, 1, _WRITE_FLAGS), _error(errno.EACCES), allow]
    yield (
        "socketpair",
        [
            _argument(0), (_IF_EQUAL, 1, 0, _AF_UNIX), refuse,
            _argument(1), (_AND, 0, 0, _SOCK_TYPE_MASK), (_IF_EQUAL, 0, 1, _SOCK_STREAM), allow, refuse,
        ],
    )  # fmt: skip
    naming = [(_IF_EQUAL, len(_NAMING_OPTIONS) - i, 0, option) for i, option in enumerate(_NAMING_OPTIONS)]
    yield "prctl", [_argument(0), *naming, refuse, allow]
    # Reading the limits is harmless; the third argument points to new limits.
    low, high = (_argument(2), (_IF_EQUAL, 1, 0, 0), refuse), (_argument(2, high=True), (_IF_EQUAL, 1, 0, 0), refuse)
    yield "prlimit64", [*low, *high, allow]


def _if_call(number: int, then: list[Instruction]) -> Iterator[Instruction]:
    yield _IF_EQUAL, 0, len(then), number
    yield from then


def _argument(index: int, *, high: bool = False) -> Instruction:
    """Load half of an argument. Both processors store the low half first."""
    return _LOAD, 0, 0, 16 + 8 * index + 4 * high


def _error(number: int) -> Instruction:
    return _RETURN, 0, 0, _ERROR | number


def _numbers(calls: Mapping[str, tuple[int, int | None]], machine: Machine) -> Iterator[int]:
    yield from (number for row in calls.values() if (number := row[machine.column]) is not None)
