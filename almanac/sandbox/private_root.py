"""A root folder that contains only the files that a child may read, and shows nothing of the rest of the system.

Landlock refuses to open a file, but not to observe it: `stat` and the error of `open` still tell whether a path exists.
So the fork server moves into a mount namespace of its own, with read-only views of the readable paths at their places.
Its children inherit the namespace. A superuser may do this everywhere except in most containers, another user where
the system allows user namespaces.
"""

import ctypes
import os
import stat
import struct
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

from almanac.sandbox.system_calls import check, libc, system_call

PROC = Path("/proc")  # the content of the file is opened below /proc/self/fd
MOUNT_POINT = "/tmp"  # noqa: S108 - the root is assembled here, in a mount that only this process sees

_CLONE_NEWNS, _CLONE_NEWUSER = 0x00020000, 0x10000000
_MS_NOSUID, _MS_NODEV, _MS_NOEXEC, _MS_BIND, _MS_REC, _MS_PRIVATE = 1 << 1, 1 << 2, 1 << 3, 1 << 12, 1 << 14, 1 << 18
_MNT_DETACH = 2
_MOUNT_SETATTR = 442  # the same on every processor; since kernel 5.12
_MOUNT_ATTR_RDONLY, _MOUNT_ATTR_NOSUID = 1, 2
_AT_FDCWD, _AT_RECURSIVE = -100, 0x8000


def enter(readable: Iterable[Path]) -> bool:
    """Move this process, which has one thread, into a private root. Return False where the system refuses that."""
    if sys.platform != "linux":
        return False
    paths = [*_outermost([PROC, *readable])]
    if not _is_possible(paths):
        return False
    _enter(paths)
    return True


def _outermost(paths: Iterable[Path]) -> Iterator[Path]:
    """The existing paths and the targets of links among them, without those below another one."""
    existing = {each for path in paths if path.exists() for each in (path.absolute(), path.resolve())}
    yield from (path for path in sorted(existing) if existing.isdisjoint(path.parents))


def _is_possible(paths: list[Path]) -> bool:
    """Try it in a child, because a process cannot leave a half-made root again."""
    pid = os.fork()
    if pid == 0:
        exit_code = 1
        try:
            _enter(paths)
            exit_code = 0
        finally:
            os._exit(exit_code)
    return os.waitpid(pid, 0)[1] == 0


def _enter(paths: list[Path]) -> None:
    _unshare_mounts()
    _set_attributes("/", propagation=_MS_PRIVATE)  # it fails before kernel 5.12, where `hidepid` would be global
    descriptors = [(path, os.open(path, os.O_PATH | os.O_CLOEXEC)) for path in paths]
    _mount("tmpfs", MOUNT_POINT, "tmpfs", _MS_NOSUID | _MS_NODEV, "mode=0755,size=1m")
    for path, descriptor in descriptors:
        target = Path(MOUNT_POINT + str(path))
        if stat.S_ISDIR(os.fstat(descriptor).st_mode):  # not by the path, which may lie below the mount point
            target.mkdir(parents=True, exist_ok=True)
        else:
            target.parent.mkdir(parents=True, exist_ok=True)
            target.touch()
        if path != PROC or not _mount_proc(str(target)):
            _mount(f"/proc/self/fd/{descriptor}", str(target), None, _MS_BIND | _MS_REC)
        os.close(descriptor)
    _set_attributes(MOUNT_POINT, _MOUNT_ATTR_RDONLY | _MOUNT_ATTR_NOSUID)
    os.chdir(MOUNT_POINT)
    check(libc.pivot_root(b".", b"."))  # the old root now covers the new one
    check(libc.umount2(b".", _MNT_DETACH))
    os.chdir("/")


def _unshare_mounts() -> None:
    try:
        check(libc.unshare(_CLONE_NEWNS))
    except PermissionError:
        user, group = os.geteuid(), os.getegid()
        check(libc.unshare(_CLONE_NEWNS | _CLONE_NEWUSER))
        for name, content in (
            ("setgroups", "deny"),
            ("uid_map", f"{user} {user} 1"),
            ("gid_map", f"{group} {group} 1"),
        ):
            Path("/proc/self", name).write_text(content, "ascii")


def _mount_proc(target: str) -> bool:
    """Mount a /proc that hides the processes of other users. It takes a superuser."""
    try:
        _mount("proc", target, "proc", _MS_NOSUID | _MS_NODEV | _MS_NOEXEC, "hidepid=2")
    except OSError:
        return False
    return True


def _mount(source: str, target: str, kind: str | None, flags: int, options: str | None = None) -> None:
    texts = [None if text is None else text.encode() for text in (source, target, kind, options)]
    check(libc.mount(texts[0], texts[1], texts[2], ctypes.c_ulong(flags), texts[3]))


def _set_attributes(path: str, added: int = 0, propagation: int = 0) -> None:
    attributes = struct.pack("=QQQQ", added, 0, propagation, 0)
    system_call(
        _MOUNT_SETATTR, ctypes.c_int(_AT_FDCWD), path.encode(), ctypes.c_uint(_AT_RECURSIVE), attributes,
        ctypes.c_size_t(len(attributes)),
    )  # fmt: skip
