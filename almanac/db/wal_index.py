"""SQLite's WAL index: the shared memory in which every commit, by any process, shows.

Its header holds a counter of transactions, the length of the log and two salts (https://sqlite.org/walformat.html,
section 2.1). A commit is not over before it has changed the header, so whoever finds the header as it was knows that
nothing has been committed. Looking costs a comparison in memory, where `PRAGMA data_version` takes and returns locks by
system calls.
"""

import mmap
import os
import threading
from dataclasses import dataclass
from pathlib import Path

_HEADER = slice(8, 48)  # from the change counter to the checksum; a torn look differs from the look before

# One for each file, by its identity, since SQLite may have removed it and made another of the same name. POSIX drops a
# process's locks on a file when any descriptor of it is closed, SQLite's own locks among them, so the file is closed
# only after the last of our connections to it.
_open: dict[tuple[int, int], "_Shared"] = {}
_lock = threading.Lock()


@dataclass
class _Shared:
    memory: mmap.mmap
    descriptor: int
    users: int


class WalIndex:
    """A look at the header of one database's WAL index. Open it while a connection is open, close it after all are."""

    def __init__(self, database: Path) -> None:
        with _lock:
            self._key, shared = _share(f"{database}-shm")
            shared.users += 1
            self._memory = shared.memory

    def version(self) -> bytes:
        """Another value after any commit by anyone."""
        return self._memory[_HEADER]

    def close(self) -> None:
        """Let go of it."""
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
    if key not in _open:  # it is, if the file was replaced just now; the second descriptor then stays open, see above
        _open[key] = _Shared(mmap.mmap(descriptor, _HEADER.stop, prot=mmap.PROT_READ), descriptor, 0)
    return key, _open[key]


def _key(status: os.stat_result) -> tuple[int, int]:
    return status.st_dev, status.st_ino
