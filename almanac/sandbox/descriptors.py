"""Requests as lists of file descriptors, sent over a stream socket.

The kernel limits the descriptors of one message, so a request may take several. Each message has two bytes: whether it
is the first and the last of its request, and the number of its descriptors.
"""

import os
import socket
from collections.abc import Iterator, Sequence

MAX_DESCRIPTORS_PER_MESSAGE = 250  # the kernel allows 253

_FIRST, _LAST = 1, 2

Message = tuple[bytes, Sequence[int]]


def messages_for(descriptors: Sequence[int]) -> Iterator[Message]:
    """The messages of a request, for `socket.send_fds`."""
    starts = range(0, len(descriptors), MAX_DESCRIPTORS_PER_MESSAGE)
    for start in starts:
        part = descriptors[start : start + MAX_DESCRIPTORS_PER_MESSAGE]
        flags = (_FIRST if start == starts[0] else 0) | (_LAST if start == starts[-1] else 0)
        yield bytes((flags, len(part))), part


class RequestReceiver:
    """Receives requests over a socket. The caller owns the received descriptors."""

    def __init__(self, stream: socket.socket) -> None:
        self._stream = stream
        self._received: list[int] = []
        self._complete = True

    def receive(self) -> list[int] | None:
        """Read one message. Return the request that it completes, if any; raise EOFError at the end of the stream.

        A request that arrives only in part is closed and left out: the sender gave up, or this process has too many
        descriptors open.
        """
        try:
            header, descriptors, _, _ = socket.recv_fds(self._stream, 2, MAX_DESCRIPTORS_PER_MESSAGE)
        except ConnectionResetError:
            header, descriptors = b"", []
        if len(header) != 2:
            raise EOFError
        flags, count = header
        if flags & _FIRST:
            self._close_received()
        self._received += descriptors
        self._complete = self._complete and len(descriptors) == count
        if not flags & _LAST:
            return None
        if not self._complete:
            self._close_received()
            return None
        request, self._received = self._received, []
        return request

    def _close_received(self) -> None:
        for descriptor in self._received:
            os.close(descriptor)
        self._received, self._complete = [], True
