"""SQLite's WAL index: shared memory that every commit changes.

Its header holds a counter of transactions, the length of the log and two salts (https://sqlite.org/walformat.html,
section 2.1). Every commit, by any process, changes the header before it ends, so an unchanged header proves that there
was no commit. Reading it is a memory access; `PRAGMA data_version` takes and releases locks by system calls.
"""

import mmap
import os
import threading
from dataclasses import dataclass
from pathlib import Path

_HEADER = slice(8, 48)  # from the change counter to the checksum; a read during a change differs from the one before

# One entry for each file by device and inode, because SQLite may replace the file by another of the same name. When any
# descriptor of a file is closed, POSIX drops all locks of the process on it, including those of SQLite. The file is
# therefore closed only after the last connection to it.
_open: dict[tuple[int, int], "_Shared"] = {}
_lock = threading.Lock()


@dataclass
class _Shared:
    memory: mmap.mmap
    descriptor: int
    users: int


class WalIndex:
    """The header of a database's WAL index. Open it while a connection is open; close it after all connections."""

    def __init__(self, database: Path) -> None:
        with _lock:
            self._key, shared = _share(f"{database}-shm")
            shared.users += 1
            self._memory = shared.memory

    def version(self) -> bytes:
        """A value that changes with each commit by any process."""
        return self._memory[_HEADER]

    def close(self) -> None:
        """Release the file. The last user closes it."""
        with _lock:
            shared = _open[self._key]
            shared.users -= 1
            if not shared.users:
                del _open[self._key]
                shared.memory.close()
                os.close(shared.descriptor)


def _share(path: str) -> tuple[tuple[int, int], _Shared]:
    known = _key(os.stat(path))
    if known in _open:
        return known, _open[known]
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    key = _key(os.fstat(descriptor))
    if key not in _open:  # it is in `_open` if the file was just replaced; this descriptor then stays open, see above
        _open[key] = _Shared(mmap.mmap(descriptor, _HEADER.stop, prot=mmap.PROT_READ), descriptor, 0)
    return key, _open[key]


def _key(status: os.stat_result) -> tuple[int, int]:
    return status.st_dev, status.st_ino
