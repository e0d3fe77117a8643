"""Decompresses gzip in chunks of limited size, because a thousand compressed bytes can hold a million."""

import zlib
from collections.abc import Iterator

from almanac.net.errors import FetchFailed

CHUNK_BYTES = 65536


class Gunzip:
    """A decompressor for one response."""

    def __init__(self) -> None:
        self._member = zlib.decompressobj(wbits=31)
        self.is_incomplete = False

    def feed(self, chunk: bytes) -> Iterator[bytes]:
        """The decompressed content of the next bytes."""
        while chunk:
            if self._member.eof:
                self._member = zlib.decompressobj(wbits=31)
            try:
                content = self._member.decompress(chunk, CHUNK_BYTES)
            except zlib.error:
                raise FetchFailed("The response is not valid gzip.") from None
            yield content
            chunk = self._member.unused_data if self._member.eof else self._member.unconsumed_tail
        self.is_incomplete = not self._member.eof
