"""Raw requests that no HTTP client would send, and audit rows, for several files."""

import json
import socket
import uuid
from collections.abc import Generator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from almanac.core.database import Database, Row
from almanac.surfaces.surface import Surface
from tests.live_server import MODERN, SURFACES, Running, running
from tests.waiting import wait_until

T = TypeVar("T")

SERVER_INFO = {"io.modelcontextprotocol/serverInfo": {"name": "almanac", "title": "Almanac", "version": "0.1.0"}}


@dataclass(frozen=True)
class Answer:
    """The answer before the server closed the connection."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


def exchange(port: int, raw: bytes) -> Answer:
    """Send bytes as they are and read until the server closes, so that a second answer would be seen."""
    # A server that refuses a request need not read the rest, and its TCP reset can overtake the answer.
    got = _attempt(port, raw) or _attempt(port, raw) or _attempt(port, raw)
    head, _, body = got.partition(b"\r\n\r\n")
    first, *lines = head.decode("latin-1").split("\r\n")
    headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
    return Answer(int(first.split()[1]), headers, body)


def _attempt(port: int, raw: bytes) -> bytes:
    got = bytearray()
    with socket.create_connection(("127.0.0.1", port), timeout=10) as connection, suppress(ConnectionError):
        with suppress(ConnectionError):
            connection.sendall(raw)
        while part := connection.recv(65536):
            got += part
    return bytes(got)


def http(
    body: bytes = b"",
    *,
    first: bytes = b"POST /mcp HTTP/1.1",
    without: tuple[str, ...] = (),
    more: tuple[bytes, ...] = (),
    length: bool = True,
    **headers: bytes,
) -> bytes:
    """A valid request by default: `headers` replace the usual ones, `more` are added lines.

    `@TOKEN@` stands for the administrator's token.
    """
    usual = {
        "host": b"127.0.0.1",
        "authorization": b"Bearer @TOKEN@",
        "content_type": b"application/json",
        "accept": b"application/json",
        "connection": b"close",
    }
    if length and body:
        usual["content_length"] = b"%d" % len(body)
    kept = {name: value for name, value in (usual | headers).items() if name not in without}
    lines = [first, *(name.replace("_", "-").encode() + b": " + value for name, value in kept.items()), *more]
    return b"\r\n".join(lines) + b"\r\n\r\n" + body


def rpc(method: str = "tools/call", params: Any = None, *, id: Any = 1) -> bytes:
    """A message; by default a call of `whoami`."""
    if params is None:
        params = {"name": "whoami", "arguments": {}} if method == "tools/call" else {}
    return json.dumps({"jsonrpc": "2.0", "id": id, "method": method, "params": params}).encode()


def modern(
    method: str = "tools/call",
    params: Mapping[str, Any] | None = None,
    *,
    meta: Any = None,
    without: tuple[str, ...] = (),
    **headers: bytes,
) -> bytes:
    """A request of the modern era, valid by default."""
    if params is None:
        params = {"name": "whoami", "arguments": {}} if method == "tools/call" else {}
    if meta is None:
        meta = {
            "io.modelcontextprotocol/protocolVersion": MODERN,
            "io.modelcontextprotocol/clientCapabilities": {},
        }
    usual = {"mcp_protocol_version": MODERN.encode(), "mcp_method": method.encode()}
    if method == "tools/call":
        usual["mcp_name"] = str(params.get("name", "")).encode()
    sent: dict[str, Any] = {**usual, **headers}
    return http(rpc(method, {**params, "_meta": meta}), without=without, **sent)


@contextmanager
def beside(live: Running, surfaces: tuple[Surface, ...] = SURFACES, **options: Any) -> Generator[Running]:
    """A second server with the database of a running one."""
    with running(replace(live.settings, **options), surfaces, live.token) as other:
        yield other


def audit_of(live: Running, request_id: str, rows: int = 1) -> list[Row]:
    """Wait for a number of audit rows of a request, and return them."""

    async def read(db: Database) -> list[Row]:
        sql = "SELECT a.*, p.name AS actor FROM audit a JOIN principals p ON p.id = a.principal_id"
        return await db.fetch(f"{sql} WHERE a.request_id = $1 ORDER BY a.id", request_id)

    return wait_until(lambda: live.run(read), lambda found: len(found) >= rows)


def settled(live: Running) -> list[Row]:
    """Every audit row, after all calls that were answered before this one are written."""
    mark = uuid.uuid4().hex
    assert live.call("whoami", headers={"x-request-id": mark})["isError"] is False
    audit_of(live, mark)
    return live.run(lambda db: db.fetch("SELECT * FROM audit ORDER BY id"))


def failed(code: int, message: str, *, id: Any = None, data: Any = None) -> dict[str, Any]:
    error: dict[str, Any] = {"code": code, "message": message}
    return {"jsonrpc": "2.0", "id": id, "error": error if data is None else {**error, "data": data}}


def refused(code: str, text: str) -> dict[str, Any]:
    """An error of the endpoint itself: a JSON-RPC error that a client shows to its model."""
    return failed(-32000, text, data={"code": code})
