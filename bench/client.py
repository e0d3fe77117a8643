"""The transport bench's client: it writes its requests out beforehand and reads as little as it can.

A client that parsed more would be slower than the fastest servers and would measure itself.
"""

import asyncio
import http.client
import json
import os
import re
import subprocess
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, cast

from contestants import BenchFailed, Contestant, Running, cpu_ticks
from mcp_types import CLIENT_CAPABILITIES_META_KEY, PROTOCOL_VERSION_META_KEY
from rich.console import Console

ERAS = {"legacy": "2025-11-25", "modern": "2026-07-28"}
CONNECTIONS = (1, 16)
TICK_MS = 1000 / os.sysconf("SC_CLK_TCK")
ERROR = re.compile(rb'"error":|"isError": ?true')
CONTENT_LENGTH = re.compile(rb"\r\ncontent-length: *(\d+)", re.IGNORECASE)


def call_body(contestant: Contestant, era: str, request_id: int) -> bytes:
    params: dict[str, Any] = {"name": contestant.tool, "arguments": contestant.arguments}
    if era == "modern":
        params["_meta"] = {PROTOCOL_VERSION_META_KEY: ERAS[era], CLIENT_CAPABILITIES_META_KEY: {}}
    return rpc("tools/call", params, request_id)


def rpc(method: str, params: Mapping[str, Any], request_id: int | None = None) -> bytes:
    message: dict[str, Any] = {"jsonrpc": "2.0", "method": method, "params": params}
    if request_id is not None:
        message["id"] = request_id
    return json.dumps(message, separators=(",", ":")).encode()


def headers_for(running: Running, era: str, token: str | None) -> dict[str, str]:
    headers = {
        "host": f"127.0.0.1:{running.port}",
        "content-type": "application/json",
        "accept": "application/json, text/event-stream",
        "mcp-protocol-version": ERAS[era],
    }
    if token:
        headers["authorization"] = f"Bearer {token}"
    if era == "modern":
        headers |= {"mcp-method": "tools/call", "mcp-name": running.contestant.tool}
    elif running.contestant.speaks_mcp:
        headers |= handshake(running, headers)
    return headers


def handshake(running: Running, headers: Mapping[str, str]) -> dict[str, str]:
    """Open a session of the legacy era; return the session header if the server has sessions."""
    params = {
        "protocolVersion": ERAS["legacy"],
        "capabilities": {},
        "clientInfo": {"name": "bench", "version": "1"},
    }
    status, answer, body = post(running, headers, rpc("initialize", params, 0))
    if status != 200:
        raise BenchFailed(f"{running.contestant.name} refused initialize with {status}: {body[:300]!r}")
    session = answer.get("mcp-session-id")
    kept = {"mcp-session-id": session} if session else {}
    post(running, {**headers, **kept}, rpc("notifications/initialized", {}))
    return kept


def post(running: Running, headers: Mapping[str, str], body: bytes) -> tuple[int, http.client.HTTPMessage, bytes]:
    connection = http.client.HTTPConnection("127.0.0.1", running.port, timeout=30)
    try:
        connection.request("POST", running.contestant.path, body, dict(headers))
        response = connection.getresponse()
        return response.status, response.headers, response.read()
    finally:
        connection.close()


def prepare(running: Running, console: Console) -> None:
    """The serialised requests of each era that the server supports, after one correct answer to each."""
    contestant = running.contestant
    token = read_token(contestant) if contestant.token_command else None
    for era in ERAS:
        headers = headers_for(running, era, token)
        status, _, body = post(running, headers, call_body(contestant, era, 1))
        if status == 400:  # how a server rejects this protocol version
            console.print(f"{contestant.name} does not serve {ERAS[era]}: {body[:200]!r}")
            continue
        if status != 200 or not is_right(body, contestant):
            raise BenchFailed(f"{contestant.name}, {era}: HTTP {status} {body[:500]!r}")
        # An id of its own for each connection: a server may refuse two calls in flight with one id.
        bodies = [call_body(contestant, era, number) for number in range(1, max(CONNECTIONS) + 1)]
        running.requests[era] = [raw_request(contestant.path, headers, body) for body in bodies]


def read_token(contestant: Contestant) -> str:
    env = {**os.environ, **contestant.env}
    done = subprocess.run(contestant.token_command, env=env, capture_output=True, text=True)
    if done.returncode != 0:
        raise BenchFailed(f"{contestant.name}: no token: {done.stderr[-1000:]}")
    return done.stdout.strip()


def raw_request(path: str, headers: Mapping[str, str], body: bytes) -> bytes:
    lines = [f"{name}: {value}" for name, value in headers.items()]
    head = "\r\n".join([f"POST {path} HTTP/1.1", *lines, f"content-length: {len(body)}"])
    return head.encode() + b"\r\n\r\n" + body


def whole_body(answer: bytes) -> bytes | None:
    """The answer's body, once it is complete. A chunked body keeps its chunk sizes."""
    head, mark, body = answer.partition(b"\r\n\r\n")
    if not mark:
        return None
    if length := CONTENT_LENGTH.search(head):
        return body if len(body) >= int(length[1]) else None
    # JSON and SSE never hold a line that is a lone 0, so this is the chunk that ends the body.
    return body if body.endswith(b"\r\n0\r\n\r\n") else None


def is_right(body: bytes, contestant: Contestant) -> bool:
    return contestant.expected.encode() in body and bool(ERROR.search(body)) == contestant.is_refused


class Caller(asyncio.Protocol):
    """One persistent connection that sends requests one after another until the time is up."""

    transport: asyncio.Transport
    sent: float
    until: float

    def __init__(self, request: bytes, contestant: Contestant) -> None:
        self.request, self.contestant = request, contestant
        self.answer = b""
        self.latencies: list[float] = []
        self.finished: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # A cast: uvloop's transports are not subclasses of asyncio's.
        self.transport = cast(asyncio.Transport, transport)

    def start(self, until: float) -> None:
        self.until = until
        self.ask()

    def ask(self) -> None:
        self.sent = time.perf_counter()
        self.transport.write(self.request)

    def data_received(self, data: bytes) -> None:
        self.answer += data
        body = whole_body(self.answer)
        if body is None:
            return
        now = time.perf_counter()
        self.latencies.append(now - self.sent)
        if not self.answer.startswith(b"HTTP/1.1 200 ") or not is_right(body, self.contestant):
            self.fail(f"wrong answer: {self.answer[:500]!r}")
            return
        self.answer = b""
        if now < self.until:
            self.ask()
        elif not self.finished.done():
            self.finished.set_result(None)

    def connection_lost(self, exc: Exception | None) -> None:
        self.fail(f"connection lost: {exc}, {self.answer[:200]!r}")

    def fail(self, reason: str) -> None:
        if not self.finished.done():
            self.finished.set_exception(BenchFailed(reason))


@dataclass(frozen=True)
class Sample:
    """One round of one server, era and number of connections. Times are milliseconds."""

    requests_per_s: float
    p50_ms: float
    p99_ms: float
    cpu_ms: float
    cpu_with_children_ms: float
    client_cpu_ms: float


async def load(running: Running, era: str, connections: int, seconds: float) -> Sample:
    callers = [await connect(running, request) for request in running.requests[era][:connections]]
    own, family = cpu_ticks(running.pid)
    client, start = time.process_time(), time.perf_counter()
    for caller in callers:
        caller.start(start + seconds)
    try:
        await asyncio.wait_for(asyncio.gather(*(caller.finished for caller in callers)), seconds + 30)
    except (BenchFailed, TimeoutError) as failure:
        raise BenchFailed(f"{running.contestant.name}, {era}, {connections}: {failure!r}") from None
    elapsed, client = time.perf_counter() - start, time.process_time() - client
    own_after, family_after = cpu_ticks(running.pid)
    for caller in callers:
        caller.transport.close()
    latencies = sorted(latency * 1000 for caller in callers for latency in caller.latencies)
    calls = len(latencies)
    return Sample(
        calls / elapsed,
        latencies[calls // 2],
        latencies[calls * 99 // 100],
        (own_after - own) * TICK_MS / calls,
        (family_after - family) * TICK_MS / calls,
        client * 1000 / calls,
    )


async def connect(running: Running, request: bytes) -> Caller:
    loop = asyncio.get_running_loop()
    _, caller = await loop.create_connection(lambda: Caller(request, running.contestant), "127.0.0.1", running.port)
    return caller
