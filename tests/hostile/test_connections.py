"""Limits of connections: the size and number of headers, the time of each phase, and the number of connections."""

import json
import os
import re
import resource
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Generator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from almanac.net import http_server
from almanac.net.connection_table import RESERVED_FILES, raise_open_files_limit
from almanac.net.http_server import MAX_HEADERS, MAX_LINGER_BYTES, MIN_BYTES_PER_SECOND
from tests.hostile.conftest import LIMITS, SHORT_SECONDS
from tests.hostile.raw_http import LONGEST_WAIT_SECONDS, Answer, RawConnection, exchange, request
from tests.hostile.smuggling import CHUNKED, chunk
from tests.live_server import Running, running, settings_for
from tests.surfaces import trial

ANOTHER_PEER = "127.0.0.2"
HALF_OPEN = b"GET /health HTTP/1.1\r\nX: "
LONG = 10**8  # bytes that no test sends completely


def check_health(port: int, source: str = ANOTHER_PEER) -> None:
    with RawConnection(port, source) as connection:
        connection.send(request())
        answer = connection.read_answer()
        assert answer is not None
        assert answer.status == 200


def flood(port: int, begin: bytes, block: bytes) -> tuple[Answer | None, int]:
    """Send blocks until the server answers; return the answer and the number of bytes."""
    with RawConnection(port) as connection:
        connection.send(begin)
        sent = 0
        while sent < LONG and not select.select([connection.socket], [], [], 0)[0]:
            connection.send(block)
            sent += len(block)
        return connection.read_answer(), sent


@contextmanager
def server_with(new_sqlite: Callable[[], str], tmp_path: Path, **options: object) -> Generator[Running]:
    with running(settings_for(new_sqlite(), tmp_path / "home", **options)) as live:
        yield live


# Size


@pytest.mark.parametrize(
    ("begin", "block"),
    [
        pytest.param(request()[:-2], b"X: " + b"a" * 100 + b"\r\n", id="many headers"),
        pytest.param(request()[:-2] + b"X: ", b"a" * 1000, id="one long header"),
        pytest.param(request()[:-2], b"a" * 1000, id="one long header name"),
        pytest.param(b"GET /", b"a" * 1000, id="a long path"),
        pytest.param(b"", b"\r\n" * 500, id="empty lines"),
        pytest.param(request("POST", "/keys/verify", CHUNKED) + b"1;", b"a" * 1000, id="a chunk extension"),
        pytest.param(
            request("POST", "/keys/verify", CHUNKED), b"1;" + b"a" * 100 + b"\r\nx\r\n", id="many chunk extensions"
        ),
        pytest.param(
            request("POST", "/keys/verify", CHUNKED) + b"0\r\n", b"X: " + b"a" * 100 + b"\r\n", id="many trailers"
        ),
        pytest.param(request("POST", "/keys/verify", CHUNKED) + b"0\r\nX: ", b"a" * 1000, id="one long trailer"),
    ],
)
def test_endless_headers_are_refused_early(hostile_server: Running, begin: bytes, block: bytes):
    answer, sent = flood(hostile_server.port, begin, block)
    assert answer is not None
    assert answer.status == 431
    assert json.loads(answer.body)["code"] == "headers_too_large"
    # The buffers of both ends hold a few megabytes.
    assert sent < MAX_LINGER_BYTES + 16 * 1024 * 1024
    check_health(hostile_server.port)


def test_75_megabytes_of_headers_do_not_delay_others(hostile_server: Running):
    with RawConnection(hostile_server.port) as connection:
        connection.send(request()[:-2])
        block = b"".join(b"X-%d: %s\r\n" % (number, b"a" * 50) for number in range(16_000))
        for _ in range(75):
            connection.send(block)
            check_health(hostile_server.port)
        answer = connection.read_answer()
        assert answer is None or answer.status == 431


def test_the_number_of_headers_is_limited(hostile_server: Running):
    def status(number: int) -> int:
        headers = [f"X-{each}: a" for each in range(number)]
        return exchange(hostile_server.port, [request("GET", "/health", *headers, "Connection: close")])[0].status

    assert status(MAX_HEADERS - 2) == 200  # beside Host and Connection
    assert status(MAX_HEADERS - 1) == 431


def test_headers_may_be_as_long_as_the_limit(hostile_server: Running):
    size = hostile_server.settings.max_header_bytes - 100
    assert (
        exchange(hostile_server.port, [request("GET", "/health", "Connection: close", f"X: {'a' * size}")])[0].status
        == 200
    )


@pytest.mark.parametrize("is_chunked", [False, True])
def test_a_long_body_is_not_counted_as_headers(hostile_server: Running, is_chunked: bool):
    body = b" " * 200_000 + b'{"jsonrpc": "2.0", "id": 1, "method": "ping"}'
    headers = (
        f"Authorization: Bearer {hostile_server.token}",
        "Content-Type: application/json",
        "Accept: application/json, text/event-stream",
    )
    if is_chunked:
        chunks = b"".join(chunk(body[start : start + 1]) for start in range(len(body))) + b"0\r\n\r\n"
        ping = request("POST", "/mcp", *headers, CHUNKED, body=chunks)
    else:
        ping = request("POST", "/mcp", *headers, f"Content-Length: {len(body)}", body=body)
    with RawConnection(hostile_server.port) as connection:
        for each in (ping, b"\r\n" + request(), ping):
            connection.send(each)
            answer = connection.read_answer()
            assert answer is not None
            assert answer.status == 200


# Time


@pytest.mark.parametrize("begin", [b"G", HALF_OPEN, request()[:-2]], ids=["method", "header", "last line"])
def test_headers_must_arrive_in_time(hostile_server: Running, begin: bytes):
    with RawConnection(hostile_server.port) as connection:
        connection.send(begin)
        [answer] = connection.read_answers()
        assert answer.status == 408
        assert json.loads(answer.body)["code"] == "request_timeout"


def test_a_slow_loris_gains_no_time(hostile_server: Running):
    with RawConnection(hostile_server.port) as connection:
        connection.send(HALF_OPEN)
        answer = drip(connection)
        assert answer is not None
        assert answer.status == 408


@pytest.mark.parametrize("path", ["/keys/verify", "/mcp", "/api/v1/bases"])
@pytest.mark.parametrize("framing", ["Content-Length: 10000", CHUNKED])
def test_a_body_must_arrive_in_time(hostile_server: Running, path: str, framing: str):
    token = f"Authorization: Bearer {hostile_server.token}"
    with RawConnection(hostile_server.port) as connection:
        connection.send(request("POST", path, framing, token, "Content-Type: application/json"))
        answer = drip(connection, b"1\r\n \r\n" if framing == CHUNKED else b" ")
        assert answer is not None
        assert answer.status == 408
        assert connection.is_closed()


def test_a_body_that_nobody_reads_must_arrive_in_time(hostile_server: Running):
    with RawConnection(hostile_server.port) as connection:
        connection.send(request("POST", "/mcp", "Content-Length: 10000"))
        answer = connection.read_answer()
        assert answer is not None
        assert answer.status == 401
        assert drip(connection) is None


def test_a_client_that_waits_for_100_continue_is_not_late(hostile_server: Running):
    body = b'{"key": "a"}'
    headers = ("Expect: 100-continue", f"Content-Length: {len(body)}", "Content-Type: application/json")
    with RawConnection(hostile_server.port) as connection:
        connection.send(request("POST", "/keys/verify", *headers))
        assert connection.socket.recv(100) == b"HTTP/1.1 100 Continue\r\n\r\n"
        connection.send(body)
        answer = connection.read_answer()
        assert answer is not None
        assert answer.status == 401


def test_idle_connections_are_closed(new_sqlite: Callable[[], str], tmp_path: Path):
    with (
        server_with(new_sqlite, tmp_path, idle_timeout_seconds=SHORT_SECONDS) as live,
        RawConnection(live.port) as silent,
        RawConnection(live.port) as used,
    ):
        used.send(request())
        assert used.read_answer() is not None
        assert silent.is_closed()
        assert used.is_closed()


def drip(connection: RawConnection, piece: bytes = b"a") -> Answer | None:
    """Send one piece at a time, until the server answers or closes the connection."""
    while not select.select([connection.socket], [], [], SHORT_SECONDS / 10)[0]:
        connection.send(piece)
    return connection.read_answer()


def slow_call(seconds: float, token: str) -> bytes:
    call = {
        "jsonrpc": "2.0",
        "id": 1,
        "method": "tools/call",
        "params": {"name": "slow", "arguments": {"seconds": seconds}},
    }
    body = json.dumps(call).encode()
    headers = (f"Authorization: Bearer {token}", f"Content-Length: {len(body)}", "Content-Type: application/json")
    return request("POST", trial.PATH, *headers, "Accept: application/json, text/event-stream", body=body)


def test_a_late_request_does_not_cancel_those_before(
    monkeypatch: pytest.MonkeyPatch, new_sqlite: Callable[[], str], tmp_path: Path
):
    monkeypatch.setattr(http_server, "LINGER_SECONDS", 0.1)
    settings = settings_for(new_sqlite(), tmp_path, header_timeout_seconds=0.2)
    with running(settings, (trial.SURFACE,)) as live:
        answers = exchange(live.port, [slow_call(SHORT_SECONDS, live.token) + request() * 2 + HALF_OPEN])
        assert [answer.status for answer in answers] == [200, 200, 200]
        assert json.loads(answers[0].body)["result"]["structuredContent"] == {"done": True}
        assert [answer.headers.get("connection") for answer in answers] == [None, None, "close"]


def test_a_late_body_does_not_cancel_the_requests_before(new_sqlite: Callable[[], str], tmp_path: Path):
    settings = settings_for(new_sqlite(), tmp_path, body_timeout_seconds=0.2)
    with running(settings, (trial.SURFACE,)) as live:
        late = request("POST", "/trial", "Content-Length: 10000")
        answers = exchange(live.port, [slow_call(SHORT_SECONDS, live.token) + request() + late])
        assert [answer.status for answer in answers] == [200, 200]


def test_a_refused_client_that_keeps_the_connection_is_cut_off(
    monkeypatch: pytest.MonkeyPatch, new_sqlite: Callable[[], str], tmp_path: Path
):
    monkeypatch.setattr(http_server, "LINGER_SECONDS", 0.1)
    with server_with(new_sqlite, tmp_path, **LIMITS) as live:
        for begin in (b"not HTTP\r\n", request("POST", "/keys/verify", CHUNKED) + b"not a chunk"):
            with RawConnection(live.port) as connection:
                connection.send(begin)
                answer = connection.read_answer()
                assert answer is not None
                assert answer.status == 400
                wait_for_reset(connection, select.POLLHUP)


# Answers


FILE_BYTES = 32 * 1024 * 1024  # more than the buffers of both ends


def add_file(live: Running) -> tuple[str, dict[str, str]]:
    """Upload a file; return the path and the headers of its download."""
    http = live.http
    http.headers["authorization"] = f"Bearer {live.token}"
    base = http.post("/api/v1/bases", json={"name": "Files"}).json()["id"]
    upload = http.post(f"/api/v1/bases/{base}/documents", files={"file": ("a.txt", b"a" * FILE_BYTES, "text/plain")})
    download = http.post(f"/api/v1/documents/{upload.json()['document']['id']}/download", json={}).json()
    return download["url"].removeprefix(live.settings.url), download["headers"]


def begin_download(connection: RawConnection, path: str, headers: dict[str, str]) -> None:
    connection.send(request("GET", path, *(f"{name}: {value}" for name, value in headers.items())))
    assert connection.socket.recv(15) == b"HTTP/1.1 200 OK"


def test_a_download_whose_reader_stalls_is_ended(new_sqlite: Callable[[], str], tmp_path: Path):
    with server_with(new_sqlite, tmp_path, **LIMITS) as live:
        path, headers = add_file(live)
        with RawConnection(live.port, receive_buffer=4096) as stalled:
            begin_download(stalled, path, headers)
            assert live.http.get("/health").status_code == 200
            wait_for_reset(stalled)
        # A reader that reads gets all of it.
        assert len(live.http.get(path, headers=headers).content) == FILE_BYTES
    # The server has stopped, so it does not count the download as a request in progress.


def test_a_download_that_is_read_more_slowly_than_the_minimum_rate_is_ended(
    new_sqlite: Callable[[], str], tmp_path: Path
):
    with server_with(new_sqlite, tmp_path, **LIMITS) as live:
        path, headers = add_file(live)
        with (
            RawConnection(live.port, receive_buffer=4096) as slow,
            RawConnection(live.port, receive_buffer=4096) as steady,
        ):
            for connection in (slow, steady):
                begin_download(connection, path, headers)
            # A step takes at least a tenth of a second, so the slow reader stays below the minimum rate.
            steps = read_until_reset({slow: MIN_BYTES_PER_SECOND // 20, steady: 40 * MIN_BYTES_PER_SECOND})
            assert steps > 5  # it was reading all the time
            assert steady.socket.recv(1) == b"a"


def read_until_reset(readers: dict[RawConnection, int]) -> int:
    """Read from connections, so many bytes in each step, until the server ends the first of them and no other; return
    the number of steps."""
    first, poll, deadline = next(iter(readers)), select.poll(), time.monotonic() + LONGEST_WAIT_SECONDS
    for connection in readers:
        poll.register(connection.socket, select.POLLRDHUP)
    steps = 0
    while not (ended := poll.poll(100)):
        assert time.monotonic() < deadline, "the server does not end the connection"
        for connection, step in readers.items():
            connection.socket.recv(step)
        steps += 1
    assert [number for number, _ in ended] == [first.socket.fileno()]
    return steps


def wait_for_reset(connection: RawConnection, events: int = select.POLLRDHUP) -> None:
    """Wait until the server ends the connection, without reading from it."""
    poll = select.poll()
    poll.register(connection.socket, events)
    assert poll.poll(1000 * LONGEST_WAIT_SECONDS), "the server does not end the connection"


# Number


@contextmanager
def half_open(port: int, number: int, begin: bytes = HALF_OPEN) -> Generator[list[RawConnection]]:
    raise_open_files_limit(2 * number)
    with ExitStack() as stack:
        connections = [stack.enter_context(RawConnection(port)) for _ in range(number)]
        for connection in connections:
            connection.send(begin)
        yield connections


def test_1100_half_open_requests_stop_nobody(new_sqlite: Callable[[], str], tmp_path: Path):
    with server_with(new_sqlite, tmp_path) as live, half_open(live.port, 1100) as connections:
        check_health(live.port)
        check_health(live.port, "127.0.0.1")  # it replaces the oldest one
        assert connections[0].is_closed()
        connections[-1].send(b"a\r\nHost: 127.0.0.1\r\n\r\n")
        answer = connections[-1].read_answer()
        assert answer is not None
        assert answer.status == 200


def test_requests_in_progress_are_not_replaced(new_sqlite: Callable[[], str], tmp_path: Path):
    begin = request("POST", "/keys/verify", "Content-Length: 12", "Content-Type: application/json")
    with (
        server_with(new_sqlite, tmp_path, max_connections_per_peer=5) as live,
        half_open(live.port, 5, begin) as connections,
    ):
        with RawConnection(live.port) as refused:
            [answer] = refused.read_answers()
            assert answer.status == 503
            assert json.loads(answer.body)["code"] == "too_many_connections"
        check_health(live.port)
        for connection in connections:
            connection.send(b'{"key": "a"}')
            answer = connection.read_answer()
            assert answer is not None
            assert answer.status == 401
        check_health(live.port, "127.0.0.1")  # it replaces one that is idle now


def test_trusted_proxies_have_no_limit_of_their_own(new_sqlite: Callable[[], str], tmp_path: Path):
    options = {"max_connections_per_peer": 5, "trusted_proxies": "127.0.0.1/32"}
    begin = request("POST", "/keys/verify", "Content-Length: 12")
    with server_with(new_sqlite, tmp_path, **options) as live, half_open(live.port, 20, begin):
        check_health(live.port, "127.0.0.1")


def test_the_total_is_taken_from_the_peer_with_most_connections(new_sqlite: Callable[[], str], tmp_path: Path):
    with (
        server_with(new_sqlite, tmp_path, max_connections=10) as live,
        RawConnection(live.port, ANOTHER_PEER) as other,
        half_open(live.port, 20) as connections,
    ):
        other.send(request())
        answer = other.read_answer()
        assert answer is not None
        assert answer.status == 200
        assert connections[0].is_closed()
        check_health(live.port, "127.0.0.3")


def test_a_server_with_few_files_serves_fewer_connections(tmp_path: Path):
    files = RESERVED_FILES + 100
    command = f'ulimit -n {files}; exec "{sys.executable}" -m almanac serve --port 0 --home "$0"'
    program = subprocess.Popen(
        ["sh", "-c", command, tmp_path / "home"],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env={**os.environ, "ALMANAC_JOB_WORKERS": "0"},
    )
    try:
        assert program.stdout is not None
        address = re.search(r":(\d+)$", program.stdout.readline().strip())
        assert address is not None
        port = int(address[1])
        with half_open(port, 1100):
            check_health(port)
            check_health(port, "127.0.0.1")
    finally:
        program.send_signal(signal.SIGTERM)
        program.communicate(timeout=30)


def test_the_server_raises_its_limit_of_open_files():
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    hard = before[1]
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(before[0], 1024), hard))
        raise_open_files_limit(2000)
        assert resource.getrlimit(resource.RLIMIT_NOFILE) == (min(2000 + RESERVED_FILES, hard), hard)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
