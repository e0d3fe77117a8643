"""The files of an ingest: all files below the given paths, and the files that are left out, with the reason."""

import hashlib
import os
import stat
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from almanac.cli.support.output import printable_line
from almanac.files.file_store import format_size
from almanac.knowledge.parsers.parsed_file import UnreadableFile

_OWN_DATA = "the data of Almanac itself"
_READ_BYTES = 1 << 20

Stamp = tuple[int, int, int]  # time of change, size, inode: it differs if the content differs


@dataclass(frozen=True, slots=True)
class FoundFile:
    """A file to add; with a problem, a file or folder that cannot be read."""

    path: Path
    folder: str  # of the base
    name: str
    label: str  # for reports
    stamp: Stamp = (0, 0, 0)
    problem: str = ""
    code: str = "unreadable"  # of the problem

    @property
    def base_path(self) -> str:
        """The path of the document in the base."""
        return base_path(self.folder, self.name)

    @property
    def size(self) -> int:
        """The size in bytes at the time of the walk."""
        return self.stamp[1]


@dataclass(frozen=True, slots=True)
class SkippedFile:
    """A file or folder that is left out."""

    label: str
    reason: str


@dataclass(frozen=True, slots=True)
class WalkResult:
    """The files below the given paths."""

    found: list[FoundFile]
    skipped: list[SkippedFile]


def walk(paths: Sequence[Path], folder: str, avoid: Path) -> WalkResult:
    """Return every file below the paths, in order. Files keep their folders, below `folder` of the base."""
    result = WalkResult([], [])
    targets: dict[tuple[str, str], FoundFile] = {}
    for path in paths:
        for file in _files_below(path, folder.strip("/"), avoid.resolve()):
            if isinstance(file, SkippedFile):
                result.skipped.append(file)
                continue
            if file.problem:
                result.found.append(file)
                continue
            target = (file.folder, file.name.strip())
            first = targets.setdefault(target, file)
            if first is file:
                result.found.append(file)
            elif first.path.resolve() != file.path.resolve():
                problem = "Another of these files has this folder and name; give it a --folder of its own."
                result.found.append(FoundFile(file.path, *target, file.label, file.stamp, problem))
    return result


@contextmanager
def open_file(path: Path) -> Generator[tuple[int, int]]:
    """Open a file and return its descriptor and size. Pipes and devices are refused, because reading them may block."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOFOLLOW)
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise OSError(0, "It is not a file")
        yield descriptor, status.st_size
    finally:
        os.close(descriptor)


def check_size(size: int, max_bytes: int) -> None:
    """Refuse a file that cannot become a document because of its size."""
    if not size:
        raise UnreadableFile("empty", "The file is empty.")
    if size > max_bytes:
        raise UnreadableFile("too_large", f"The file is larger than the limit of {format_size(max_bytes)}.")


def sha256(descriptor: int) -> str:
    """Return the hash of an open file, as the file store computes it."""
    digest, offset = hashlib.sha256(), 0
    while data := os.pread(descriptor, _READ_BYTES, offset):
        digest.update(data)
        offset += len(data)
    return digest.hexdigest()


def base_path(folder: str, name: str) -> str:
    """Return a path in a base: names without outer white space, as folders and documents have them."""
    return "/".join(part.strip() for part in f"{folder}/{name}".split("/") if part.strip())


def _files_below(path: Path, folder: str, avoid: Path) -> Iterator[FoundFile | SkippedFile]:
    try:
        root = path.resolve(strict=True)
    except (OSError, RuntimeError) as error:  # RuntimeError: a cycle of links
        yield FoundFile(path, folder, path.name, printable_line(str(path)), problem=_problem(path, error))
        return
    if not root.is_dir():
        yield _found_file(path, root, folder, path.name)
        return
    if root == avoid:
        yield SkippedFile(printable_line(str(path)), _OWN_DATA)
        return
    waiting = [(path, folder)]
    while waiting:
        current, target = waiting.pop()
        try:
            entries = sorted(os.scandir(current), key=lambda entry: entry.name)
        except OSError as error:
            label = printable_line(str(current))
            yield FoundFile(
                current, target, current.name, label, problem=f"The folder cannot be read: {error.strerror}."
            )
            continue
        folders: list[tuple[Path, str]] = []
        for entry in entries:
            if reason := _skip_reason(entry, root, avoid):
                yield SkippedFile(printable_line(entry.path), reason)
            elif not entry.is_dir(follow_symlinks=False):
                path = Path(entry.path)
                yield _found_file(path, path.resolve() if entry.is_symlink() else path, target, entry.name)
            elif not _is_text(entry.name):
                yield _misnamed(Path(entry.path), target, "folder")
            else:
                folders.append((Path(entry.path), f"{target}/{entry.name}".strip("/")))
        waiting += reversed(folders)


def _skip_reason(entry: "os.DirEntry[str]", root: Path, avoid: Path) -> str:
    """Return why an entry is left out, or an empty text."""
    if entry.name.startswith("."):
        return "hidden"
    if entry.is_symlink():
        return _link_skip_reason(Path(entry.path), root, avoid)
    if entry.is_dir(follow_symlinks=False):
        return _OWN_DATA if Path(entry.path).resolve() == avoid else ""
    return "" if entry.is_file(follow_symlinks=False) else "not a file"


def _link_skip_reason(path: Path, root: Path, avoid: Path) -> str:
    try:
        target = path.resolve(strict=True)
    except (OSError, RuntimeError):
        return "a link that leads nowhere"
    if not target.is_relative_to(root) or target.is_relative_to(avoid):
        return "a link that leads out of the folder"
    if any(part.startswith(".") for part in target.relative_to(root).parts):
        return "a link to something hidden"
    if target.is_dir():
        return "a link to another folder here"
    return "" if target.is_file() else "not a file"


def _found_file(path: Path, real_path: Path, folder: str, name: str) -> FoundFile:
    if not _is_text(name):
        return _misnamed(path, folder, "file")
    label = printable_line(str(path))
    try:
        status = real_path.stat()
    except OSError as error:
        return FoundFile(real_path, folder, name, label, problem=_problem(real_path, error))
    return FoundFile(real_path, folder, name, label, (status.st_mtime_ns, status.st_size, status.st_ino))


def _misnamed(path: Path, folder: str, kind: str) -> FoundFile:
    problem = f"The name is not valid UTF-8; rename the {kind}."
    return FoundFile(path, folder, path.name, printable_line(str(path)), problem=problem, code="bad_request")


def _is_text(name: str) -> bool:
    """Whether a name is valid Unicode; on a disk it may be any bytes."""
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True


def _problem(path: Path, error: OSError | RuntimeError) -> str:
    is_broken_link = path.is_symlink() and not isinstance(error, PermissionError)
    if is_broken_link or not isinstance(error, OSError):
        return "The link leads nowhere."
    return f"The file cannot be read: {error.strerror}."
