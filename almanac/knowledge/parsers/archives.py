"""ZIP archives and OLE2 compound files, read within limits.

Entry names are only looked up and never used as paths: nothing is ever written from an archive. The claimed size of an
entry is checked before it is read, and its real size while it is read.
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

MAX_UNPACKED_BYTES = 500_000_000  # of all entries together
MAX_ENTRIES = 50_000
MAX_RATIO = 200  # of unpacked to packed bytes; XML of one repeated word reaches 100
MIN_BYTES_FOR_RATIO = 50_000_000  # smaller archives may have any ratio
MAX_PART_BYTES = 50_000_000  # of an entry that is parsed as a whole
MAX_MIMETYPE_BYTES = 200
CHUNK_BYTES = 1 << 18

ENCRYPTED = "The file is protected by a password. Save it without one and add it again."
BROKEN = (
    "The file is damaged and cannot be opened. Open it in the program that made it, save it again and add that copy."
)
ZIP_BOMB_MESSAGE = "The file unpacks to far more than its own size, so it was not parsed."

_LOCAL_HEADER = re.compile(rb"PK\x03\x04.{22}(..)(..)", re.DOTALL)
# Offsets in a compound file: in its header, the size of sectors and the sector of the directory; in a directory entry,
# the first sector of a stream.
_SECTOR_SHIFT_OFFSET, _DIRECTORY_OFFSET, _FIRST_SECTOR_OFFSET = 30, 48, 116
_MIN_REGULAR_STREAM_BYTES, _SMALL_SECTOR_BYTES = 4096, 64
_STREAM_HEAD_BYTES = 512
_ERRORS_OF_DAMAGED_ARCHIVES = (
    zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, struct.error, ValueError, OSError,
)  # fmt: skip


@dataclass(slots=True)
class Archive:
    """An open ZIP archive. All reading counts towards one limit."""

    file: zipfile.ZipFile
    size: int
    entries: dict[str, zipfile.ZipInfo] = field(default_factory=dict[str, zipfile.ZipInfo])
    unpacked: int = 0

    def has(self, name: str) -> bool:
        return name in self.entries

    def names(self) -> list[str]:
        return list(self.entries)

    def read(self, name: str, max_bytes: int = MAX_PART_BYTES) -> bytes:
        """The content of an entry; empty if there is none."""
        return b"".join(self.stream(name, max_bytes)) if name in self.entries else b""

    def stream(self, name: str, max_bytes: int = MAX_UNPACKED_BYTES) -> Iterator[bytes]:
        """The content of an entry in chunks."""
        entry = self.entries[name]
        if entry.flag_bits & 0x1:
            raise UnreadableFile("encrypted", ENCRYPTED)
        if entry.file_size > max_bytes:
            raise UnreadableFile("too_large", ZIP_BOMB_MESSAGE)
        try:
            with self.file.open(entry) as content:
                yield from self._chunks(content)
        except _ERRORS_OF_DAMAGED_ARCHIVES:
            raise UnreadableFile("corrupt", BROKEN) from None

    def _chunks(self, content: IO[bytes]) -> Iterator[bytes]:
        while chunk := content.read(CHUNK_BYTES):
            self.unpacked += len(chunk)
            if is_zip_bomb(self.unpacked, self.size):
                raise UnreadableFile("too_large", ZIP_BOMB_MESSAGE)
            yield chunk

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.file.close()


def is_zip_bomb(unpacked: int, packed: int) -> bool:
    """Whether an archive unpacks to more bytes than any genuine document."""
    return unpacked > MAX_UNPACKED_BYTES or (unpacked > MIN_BYTES_FOR_RATIO and unpacked > packed * MAX_RATIO)


def open_archive(path: Path) -> Archive:
    """Open an archive whose directory stays within the limits."""
    try:
        size = path.stat().st_size
        file = zipfile.ZipFile(path)
    except _ERRORS_OF_DAMAGED_ARCHIVES:
        raise UnreadableFile("corrupt", BROKEN) from None
    entries = {entry.filename: entry for entry in file.infolist() if not entry.is_dir()}
    if len(file.infolist()) > MAX_ENTRIES or is_zip_bomb(sum(entry.file_size for entry in entries.values()), size):
        file.close()
        raise UnreadableFile("too_large", ZIP_BOMB_MESSAGE)
    return Archive(file, size, entries)


def list_archive(content: bytes | Path) -> tuple[str, list[str]]:
    """The text of the entry `mimetype`, and the names of all entries.

    They are read from the directory of a file, and of bytes from the entries that begin in them.
    """
    if isinstance(content, bytes):
        return _list_head(content)
    with open_archive(content) as archive:
        mimetype = archive.read("mimetype", MAX_MIMETYPE_BYTES)
        return mimetype.decode("ascii", "replace").strip(), archive.names()


def _list_head(head: bytes) -> tuple[str, list[str]]:
    names: list[str] = []
    mimetype = ""
    for header in _LOCAL_HEADER.finditer(head):
        name_size, extra_size = struct.unpack("<HH", header[1] + header[2])
        name = head[header.end() : header.end() + name_size]
        names.append(name.decode("utf-8", "replace"))
        if name == b"mimetype":
            start = header.end() + name_size + extra_size
            mimetype = head[start : start + 100].split(b"PK", 1)[0].decode("ascii", "replace").strip()
    return mimetype, names


def has_stream(content: bytes | Path, name: str) -> bool:
    """Whether a compound file has a stream of this name."""
    with _open_content(content) as opened:
        return _find_entry(opened, name) >= 0


def read_stream_head(content: bytes | Path, name: str) -> bytes:
    """The first bytes of a stream of a compound file, up to 512; empty if there is no such stream."""
    with _open_content(content) as opened:
        entry = _find_entry(opened, name)
        if entry < 0:
            return b""
        try:
            start, size = _locate_stream(opened, entry)
        except struct.error:  # the file is truncated
            return b""
        return opened[start : start + min(size, _STREAM_HEAD_BYTES)]


def _locate_stream(content: bytes | mmap.mmap, entry: int) -> tuple[int, int]:
    """The offset and the size of a stream. Small streams lie within the stream of the root, the first entry."""
    shift = min(struct.unpack_from("<H", content, _SECTOR_SHIFT_OFFSET)[0], 16)
    sector, size = struct.unpack_from("<II", content, entry + _FIRST_SECTOR_OFFSET)
    if size >= _MIN_REGULAR_STREAM_BYTES:
        return (sector + 1) << shift, size
    (directory,) = struct.unpack_from("<I", content, _DIRECTORY_OFFSET)
    (root,) = struct.unpack_from("<I", content, ((directory + 1) << shift) + _FIRST_SECTOR_OFFSET)
    # The sectors of the root's stream are nearly always consecutive.
    return ((root + 1) << shift) + sector * _SMALL_SECTOR_BYTES, size


def _find_entry(content: bytes | mmap.mmap, name: str) -> int:
    """The offset of the directory entry of a stream, or -1. An entry starts with the name padded with NULs to 64 bytes,
    its length and a type.

    Searching for these bytes instead of following the chain of sectors makes hostile chains harmless.
    """
    encoded = name.encode("utf-16-le")
    return content.find(encoded.ljust(64, b"\x00") + struct.pack("<HB", len(encoded) + 2, 2))


@contextmanager
def _open_content(content: bytes | Path) -> Generator[bytes | mmap.mmap]:
    if isinstance(content, bytes):
        yield content
        return
    with content.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapped:
        yield mapped
