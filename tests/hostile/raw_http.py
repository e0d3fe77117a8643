"""A client that sends bytes unchanged and reports every answer that the server sends on the connection."""

import socket
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass

LONGEST_WAIT_SECONDS = 20
HEAD_END = b"\r\n\r\n"


@dataclass(frozen=True)
class Answer:
    """One HTTP response."""

    status: int
    headers: dict[str, str]
    body: bytes


class RawConnection:
    """A TCP connection to a server."""

    def __init__(self, port: int, source: str = "127.0.0.1", receive_buffer: int = 0) -> None:
        self.socket = socket.socket()
        if receive_buffer:
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        self.socket.settimeout(LONGEST_WAIT_SECONDS)
        self.socket.bind((source, 0))
        self.socket.connect(("127.0.0.1", port))
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._received = b""

    def __enter__(self) -> "RawConnection":
        return self

    def __exit__(self, *_: object) -> None:
        self.socket.close()

    def send(self, data: bytes) -> None:
        """Send bytes. A connection that the server has closed is no error: its answers tell the reason."""
        with suppress(ConnectionError):
            self.socket.sendall(data)

    def read_answer(self) -> Answer | None:
        """The next final response; None if the server has closed the connection."""
        while (head := self._read_head()) is not None:
            lines = head.decode("latin-1").split("\r\n")
            status = int(lines[0].split(" ")[1])
            if status == 100:
                continue
            headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines[1:])}
            return Answer(status, headers, self._read_body(headers))
        return None

    def read_answers(self) -> list[Answer]:
        """All responses until the server closes the connection."""
        answers: list[Answer] = []
        while (answer := self.read_answer()) is not None:
            answers.append(answer)
        return answers

    def is_closed(self) -> bool:
        """Wait until the server closes the connection; False if it sends something before."""
        return not self._received and not self._receive()

    def _read_head(self) -> bytes | None:
        while HEAD_END not in self._received:
            if not self._receive():
                assert not self._received, f"the server closed the connection within {self._received!r}"
                return None
        head, _, self._received = self._received.partition(HEAD_END)
        return head

    def _read_body(self, headers: dict[str, str]) -> bytes:
        if headers.get("transfer-encoding") == "chunked":
            body = b""
            while size := int(self._read_line(), 16):
                body += self._read(size + 2)[:-2]
            self._read_line()
            return body
        if "content-length" not in headers and headers.get("connection") == "close":
            while self._receive():
                pass
            return self._read(len(self._received))
        return self._read(int(headers.get("content-length", "0")))

    def _read_line(self) -> bytes:
        while b"\r\n" not in self._received:
            assert self._receive(), "the server closed the connection within a chunk"
        line, _, self._received = self._received.partition(b"\r\n")
        return line

    def _read(self, size: int) -> bytes:
        while len(self._received) < size:
            assert self._receive(), "the server closed the connection within a body"
        data, self._received = self._received[:size], self._received[size:]
        return data

    def _receive(self) -> bool:
        try:
            data = self.socket.recv(65536)
        except ConnectionError:
            return False
        self._received += data
        return bool(data)


def request(method: str = "GET", path: str = "/health", *headers: str, body: bytes = b"") -> bytes:
    """The bytes of a request."""
    return "\r\n".join([f"{method} {path} HTTP/1.1", "Host: 127.0.0.1", *headers, "", ""]).encode("latin-1") + body


def exchange(port: int, segments: Sequence[bytes]) -> list[Answer]:
    """Send segments, each after the answer to the one before, and return all answers until the server closes."""
    with RawConnection(port) as connection:
        connection.send(segments[0])
        answers: list[Answer] = []
        for segment in segments[1:]:
            answer = connection.read_answer()
            if answer is None:
                return answers
            answers.append(answer)
            connection.send(segment)
        return answers + connection.read_answers()
