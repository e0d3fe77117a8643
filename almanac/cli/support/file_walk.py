"""The disk: which files below some paths are to be taken in, which are left out, and why."""

import os
import re
import stat
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

_UNSHOWABLE = re.compile(r"[\x00-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")
_OURS = "the data of Almanac itself"

Stamp = tuple[int, int, int]


@dataclass(frozen=True, slots=True)
class FoundFile:
    """A file to take in; or, with a problem, a place that could not be looked at."""

    path: Path
    folder: str  # of the base: where it goes
    name: str
    label: str  # as it is shown
    stamp: Stamp = (0, 0, 0)  # another one whenever the content is another
    problem: str = ""
    code: str = "unreadable"  # of the problem


@dataclass(frozen=True, slots=True)
class Skipped:
    """Something that is left out."""

    label: str
    reason: str


@dataclass(frozen=True, slots=True)
class WalkResult:
    """What there was."""

    found: list[FoundFile]
    skipped: list[Skipped]


def walk(paths: Sequence[Path], folder: str, avoid: Path) -> WalkResult:
    """Every file below the paths, in order; what lies in a given folder goes to the same place below `folder`."""
    tour = WalkResult([], [])
    taken: dict[tuple[str, str], FoundFile] = {}
    for path in paths:
        for each in _below(path, folder.strip("/"), avoid.resolve()):
            if isinstance(each, Skipped):
                tour.skipped.append(each)
                continue
            if each.problem:
                tour.found.append(each)
                continue
            place = (each.folder, each.name.strip())
            first = taken.setdefault(place, each)
            if first is each:
                tour.found.append(each)
            elif first.path.resolve() != each.path.resolve():
                problem = "Another of these files has this folder and name; give it a --folder of its own."
                tour.found.append(FoundFile(each.path, *place, each.label, each.stamp, problem))
    return tour


def shown(text: str) -> str:
    """A name as it can be printed: file names may hold anything, also what a terminal obeys."""
    return _UNSHOWABLE.sub("�", text)


@contextmanager
def opened(path: Path) -> Generator[tuple[int, int]]:
    """A file to read, as descriptor and size. Never one that would make us wait, as a pipe does."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOFOLLOW)
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise OSError(0, "It is not a file")
        yield descriptor, status.st_size
    finally:
        os.close(descriptor)


def _below(path: Path, folder: str, avoid: Path) -> Iterator[FoundFile | Skipped]:
    try:
        root = path.resolve(strict=True)
    except (OSError, RuntimeError) as error:  # the latter for links in a circle
        yield FoundFile(path, folder, path.name, shown(str(path)), problem=_problem(path, error))
        return
    if not root.is_dir():
        yield _found(path, root, folder, path.name)
        return
    if root == avoid:
        yield Skipped(shown(str(path)), _OURS)
        return
    waiting = [(path, folder)]
    while waiting:
        here, place = waiting.pop()
        try:
            entries = sorted(os.scandir(here), key=lambda entry: entry.name)
        except OSError as error:
            label = shown(str(here))
            yield FoundFile(here, place, here.name, label, problem=f"The folder cannot be read: {error.strerror}.")
            continue
        folders: list[tuple[Path, str]] = []
        for entry in entries:
            if reason := _reason(entry, root, avoid):
                yield Skipped(shown(entry.path), reason)
            elif not entry.is_dir(follow_symlinks=False):
                path = Path(entry.path)
                yield _found(path, path.resolve() if entry.is_symlink() else path, place, entry.name)
            elif not _is_text(entry.name):
                yield _misnamed(Path(entry.path), place, "folder")
            else:
                folders.append((Path(entry.path), f"{place}/{entry.name}".strip("/")))
        waiting += reversed(folders)


def _reason(entry: "os.DirEntry[str]", root: Path, avoid: Path) -> str:
    """Why something is left out; empty for what is not."""
    if entry.name.startswith("."):
        return "hidden"
    if entry.is_symlink():
        return _reason_of_link(Path(entry.path), root, avoid)
    if entry.is_dir(follow_symlinks=False):
        return _OURS if Path(entry.path).resolve() == avoid else ""
    return "" if entry.is_file(follow_symlinks=False) else "not a file"


def _reason_of_link(path: Path, root: Path, avoid: Path) -> str:
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


def _found(path: Path, real: Path, folder: str, name: str) -> FoundFile:
    if not _is_text(name):
        return _misnamed(path, folder, "file")
    label = shown(str(path))
    try:
        status = real.stat()
    except OSError as error:
        return FoundFile(real, folder, name, label, problem=_problem(real, error))
    return FoundFile(real, folder, name, label, (status.st_mtime_ns, status.st_size, status.st_ino))


def _misnamed(path: Path, folder: str, kind: str) -> FoundFile:
    problem = f"The name is not valid UTF-8; rename the {kind}."
    return FoundFile(path, folder, path.name, shown(str(path)), problem=problem, code="bad_request")


def _is_text(name: str) -> bool:
    """Whether a name can be written down anywhere else; to a disk it is only bytes."""
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True


def _problem(path: Path, error: OSError | RuntimeError) -> str:
    is_dead = path.is_symlink() and not isinstance(error, PermissionError)
    if is_dead or not isinstance(error, OSError):
        return "The link leads nowhere."
    return f"The file cannot be read: {error.strerror}."
