"""Queries about processes, for tests that kill them."""

import os
import select
from pathlib import Path


def children_of(pid: int) -> list[int]:
    """The living children of a process."""
    children: list[int] = []
    for folder in Path("/proc").iterdir():
        if not folder.name.isdigit():
            continue
        try:
            state, parent = (folder / "stat").read_text("utf-8", "replace").rpartition(")")[2].split()[:2]
        except (FileNotFoundError, ProcessLookupError):
            continue
        if int(parent) == pid and state != "Z":
            children.append(int(folder.name))
    return children


def fork_server_of(worker: int) -> int:
    """The process id of a worker's fork server."""
    (server,) = [pid for pid in children_of(worker) if b"fork_server" in Path(f"/proc/{pid}/cmdline").read_bytes()]
    return server


def open_descriptors(pid: int) -> int:
    return len(os.listdir(f"/proc/{pid}/fd"))


def ends_within(pid: int, seconds: float) -> bool:
    """Whether a process ends in time."""
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    try:
        return bool(select.select([descriptor], [], [], seconds)[0])
    finally:
        os.close(descriptor)


def cpu_ticks(pid: int) -> int:
    """The processor time that a process has used, in hundredths of a second."""
    try:
        parts = Path(f"/proc/{pid}/stat").read_text("utf-8", "replace").rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return 0
    return int(parts[11]) + int(parts[12])
