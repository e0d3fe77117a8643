"""Files that hold other files: ZIP archives and OLE2 compound files, read within limits.

The name of an entry is a word to look up and never a path: nothing is ever written from an archive. What an entry
claims to unpack to is checked before it is read, and what it does unpack to while it is.
"""

import mmap
import re
import struct
import zipfile
import zlib
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Self

from almanac.knowledge.parsers.parsed_file import UnreadableFile

MOST_BYTES = 500_000_000  # that an archive may unpack to
MOST_ENTRIES = 50_000
MOST_RATIO = 200  # of the bytes it unpacks to, to its own; XML of one repeated word reaches 100
RATIO_COUNTS_FROM = 50_000_000  # a small archive may be as dense as it likes
CHUNK = 1 << 18

ENCRYPTED = "The file is protected by a password; save it without one and add it again."
BROKEN = "The file is damaged and cannot be opened; open it where it was made, save it again and add that."
ZIP_BOMB_MESSAGE = "The file unpacks to far more than its own size; it is not read."

_LOCAL = re.compile(rb"PK\x03\x04.{22}(..)(..)", re.DOTALL)
# Of a compound file: where its header says how large its sectors are and which has the directory, and where an entry
# of that says which sector a stream begins in.
_SECTOR_SHIFT, _DIRECTORY, _SECTOR = 30, 48, 116
_SMALL, _SMALL_SECTOR = 4096, 64
_FAILURES = (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, struct.error, ValueError, OSError)


@dataclass(frozen=True, slots=True)
class Listing:
    """What an archive says is in it."""

    mimetype: str = ""  # what its `mimetype` entry says
    names: tuple[str, ...] = ()


@dataclass(slots=True)
class Archive:
    """An open ZIP archive. Everything read from it counts against one limit."""

    file: zipfile.ZipFile
    size: int
    entries: dict[str, zipfile.ZipInfo] = field(default_factory=dict[str, zipfile.ZipInfo])
    unpacked: int = 0

    def has(self, name: str) -> bool:
        return name in self.entries

    def names(self) -> list[str]:
        return list(self.entries)

    def read(self, name: str, most: int = MOST_BYTES) -> bytes:
        """All of an entry; a missing one is empty."""
        return b"".join(self.stream(name, most)) if name in self.entries else b""

    def stream(self, name: str, most: int = MOST_BYTES) -> Iterator[bytes]:
        """An entry piece by piece."""
        entry = self.entries[name]
        if entry.flag_bits & 0x1:
            raise UnreadableFile("encrypted", ENCRYPTED)
        if entry.file_size > most:
            raise UnreadableFile("too_large", ZIP_BOMB_MESSAGE)
        try:
            with self.file.open(entry) as opened:
                yield from self._pieces(opened)
        except _FAILURES:
            raise UnreadableFile("corrupt", BROKEN) from None

    def _pieces(self, opened: IO[bytes]) -> Iterator[bytes]:
        while piece := opened.read(CHUNK):
            self.unpacked += len(piece)
            if is_zip_bomb(self.unpacked, self.size):
                raise UnreadableFile("too_large", ZIP_BOMB_MESSAGE)
            yield piece

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.file.close()


def is_zip_bomb(unpacked: int, packed: int) -> bool:
    """Whether an archive unpacks to more than any honest one."""
    return unpacked > MOST_BYTES or (unpacked > RATIO_COUNTS_FROM and unpacked > packed * MOST_RATIO)


def open_archive(path: Path) -> Archive:
    """An archive whose directory promises nothing out of bounds."""
    try:
        size = path.stat().st_size
        file = zipfile.ZipFile(path)
    except _FAILURES:
        raise UnreadableFile("corrupt", BROKEN) from None
    entries = {entry.filename: entry for entry in file.infolist() if not entry.is_dir()}
    if len(file.infolist()) > MOST_ENTRIES or is_zip_bomb(sum(e.file_size for e in entries.values()), size):
        file.close()
        raise UnreadableFile("too_large", ZIP_BOMB_MESSAGE)
    return Archive(file, size, entries)


def list_archive(content: bytes | Path) -> Listing:
    """What is in an archive: from its directory, or from as much of it as there is."""
    if isinstance(content, bytes):
        return _list_head(content)
    with open_archive(content) as archive:
        mimetype = archive.read("mimetype", most=200) if archive.has("mimetype") else b""
        return Listing(mimetype.decode("ascii", "replace").strip(), tuple(archive.names()))


def _list_head(head: bytes) -> Listing:
    names: list[str] = []
    mimetype = ""
    for found in _LOCAL.finditer(head):
        name_size, extra_size = struct.unpack("<HH", found[1] + found[2])
        name = head[found.end() : found.end() + name_size]
        names.append(name.decode("utf-8", "replace"))
        if name == b"mimetype":
            begin = found.end() + name_size + extra_size
            mimetype = head[begin : begin + 100].split(b"PK", 1)[0].decode("ascii", "replace").strip()
    return Listing(mimetype, tuple(names))


def has_stream(content: bytes | Path, name: str) -> bool:
    """Whether a compound file has a stream of this name."""
    with _contents(content) as found:
        return _entry(found, name) >= 0


def stream_head(content: bytes | Path, name: str) -> bytes:
    """The first bytes of a stream of a compound file, up to 512; of a missing one none."""
    with _contents(content) as found:
        entry = _entry(found, name)
        if entry < 0:
            return b""
        try:
            start, size = _place(found, entry)
        except struct.error:  # cut short
            return b""
        return found[start : start + min(size, 512)]


def _place(content: bytes | mmap.mmap, entry: int) -> tuple[int, int]:
    """Where a stream begins, and its size. Small ones lie side by side in a stream of the root, the first entry."""
    shift = min(struct.unpack_from("<H", content, _SECTOR_SHIFT)[0], 16)
    sector, size = struct.unpack_from("<II", content, entry + _SECTOR)
    if size >= _SMALL:
        return (sector + 1) << shift, size
    (directory,) = struct.unpack_from("<I", content, _DIRECTORY)
    (shelf,) = struct.unpack_from("<I", content, ((directory + 1) << shift) + _SECTOR)
    return ((shelf + 1) << shift) + sector * _SMALL_SECTOR, size  # sectors of that stream nearly always stand in order


def _entry(content: bytes | mmap.mmap, name: str) -> int:
    """Where the entry of a stream is, or -1: a name padded with NULs to 64 bytes, its length and a kind.

    Looking for that instead of following the chain of sectors leaves a hostile chain nothing to do.
    """
    encoded = name.encode("utf-16-le")
    return content.find(encoded.ljust(64, b"\x00") + struct.pack("<HB", len(encoded) + 2, 2))


@contextmanager
def _contents(content: bytes | Path) -> Generator[bytes | mmap.mmap]:
    if isinstance(content, bytes):
        yield content
        return
    with content.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapped:
        yield mapped
