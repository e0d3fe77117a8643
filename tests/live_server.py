"""A server for tests: the real application under uvicorn on a free port, with a client and access to its database."""

import asyncio
import json
import socket
import threading
from collections.abc import Awaitable, Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

import httpx2
import uvicorn

from almanac import reactions
from almanac.app import SURFACES, create_app
from almanac.core import clock
from almanac.core.database import Database, Transaction
from almanac.core.settings import Settings
from almanac.core.settings_loader import load
from almanac.db.connect import connect
from almanac.identity import clients, first_start, orgs, principals, tokens
from almanac.jobs import queue
from almanac.jobs.worker import Worker
from almanac.net.http_server import ServerConfig
from almanac.surfaces.surface import Surface
from tests.waiting import until_stored, wait_until

T = TypeVar("T")

LEGACY = "2025-11-25"
MODERN = "2026-07-28"
ERAS = (LEGACY, MODERN)


@dataclass
class Running:
    """A running server with a client."""

    settings: Settings
    port: int
    token: str  # of the first administrator
    http: httpx2.Client

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def run(self, work: Callable[[Database], Awaitable[T]]) -> T:
        """Run a coroutine function with a connection of its own to the server's database."""

        async def connected() -> T:
            db = await connect(self.settings.store_url, pool_size=2)
            try:
                return await work(db)
            finally:
                await db.close()

        return asyncio.run(connected())

    def new_token(
        self, name: str, *, kind: str = "user", admin: bool = False, org: str = first_start.ORG, **limits: Any
    ) -> str:
        """A token with the limits of `tokens.issue`. The user or agent is created if necessary."""

        async def body(tx: Transaction) -> str:
            try:
                owner = await orgs.get_by_name(tx, org)
            except Exception:
                owner = await orgs.add(tx, org)
            try:
                holder = await principals.get_by_name(tx, owner.id, name)
            except Exception:
                holder = await principals.add(tx, owner.id, kind, name, is_admin=admin)
            return (await tokens.issue(tx, holder, **limits))[0]

        return self.run(lambda db: db.write(body))

    def new_mcp_token(self, name: str, org: str = first_start.ORG) -> str:
        """The MCP token of an existing user."""

        async def body(tx: Transaction) -> str:
            owner = await orgs.get_by_name(tx, org)
            return (await tokens.issue_mcp_token(tx, await principals.get_by_name(tx, owner.id, name)))[0]

        return self.run(lambda db: db.write(body))

    def new_client(self, name: str, org: str = first_start.ORG) -> dict[str, str]:
        """The body of a login of a new client of an existing user."""

        async def body(tx: Transaction) -> tuple[str, str]:
            owner = await orgs.get_by_name(tx, org)
            return await clients.add(tx, await principals.get_by_name(tx, owner.id, name))

        id, secret = self.run(lambda db: db.write(body))
        return {"clientId": id, "clientSecret": secret}

    def work(self, *, embed: bool = True) -> None:
        """Run all queued jobs, as a worker process would. Without `embed`, passages get no vectors."""
        settings = self.settings if embed else replace(self.settings, embedding=False)
        self.run(lambda db: work_off(db, settings))

    def post(
        self, content: bytes | str, headers: Mapping[str, str] | None = None, path: str = "/mcp"
    ) -> httpx2.Response:
        """Send a body unchanged, with a valid token unless the headers contain another."""
        all_headers = {
            "authorization": f"Bearer {self.token}",
            "content-type": "application/json",
            "accept": "application/json, text/event-stream",
            **(headers or {}),
        }
        return self.http.post(path, content=content, headers=all_headers)

    def rpc(
        self,
        method: str,
        params: Mapping[str, Any] | None = None,
        *,
        era: str = LEGACY,
        token: str | None = None,
        path: str = "/mcp",
        id: Any = 1,
        headers: Mapping[str, str] | None = None,
    ) -> httpx2.Response:
        """Send a valid request of either protocol era."""
        message, protocol_headers = request(method, params, era=era, id=id)
        protocol_headers["authorization"] = f"Bearer {token or self.token}"
        return self.post(json.dumps(message), {**protocol_headers, **(headers or {})}, path)

    def call(self, tool: str, arguments: Mapping[str, Any] | None = None, **options: Any) -> dict[str, Any]:
        """Call a tool and return its result. The options are those of `rpc`."""
        response = self.rpc("tools/call", {"name": tool, "arguments": arguments or {}}, **options)
        assert response.status_code == 200, response.text
        return response.json()["result"]


async def work_off(db: Database, settings: Settings) -> None:
    """Run a worker until no job is queued or running."""
    stop = asyncio.Event()
    async with reactions.open_job_handlers(db, settings) as handlers:
        worker = asyncio.create_task(Worker(db, handlers, poll=clock.SECOND // 50).run(stop))
        await until_stored(lambda: queue.counts(db), lambda n: not (n["queued"] or n["running"]), seconds=120)
        stop.set()
        await worker


def request(
    method: str, params: Mapping[str, Any] | None = None, *, era: str = LEGACY, id: Any = 1
) -> tuple[dict[str, Any], dict[str, str]]:
    """A JSON-RPC message and its HTTP headers."""
    body = dict(params or {})
    headers = {"mcp-protocol-version": era}
    if era == MODERN:
        body["_meta"] = {
            "io.modelcontextprotocol/protocolVersion": MODERN,
            "io.modelcontextprotocol/clientCapabilities": {},
            **body.get("_meta", {}),
        }
        headers["mcp-method"] = method
        if method == "tools/call":
            headers["mcp-name"] = str(body.get("name", ""))
    return {"jsonrpc": "2.0", "id": id, "method": method, "params": body}, headers


def settings_for(database_url: str, home: Path, **options: Any) -> Settings:
    """Settings for a test, from the arguments only and not from the environment."""
    return load({}, None, {"home": home, "database_url": database_url, "rate_limit_calls": 100_000, **options}).settings


@contextmanager
def running(settings: Settings, surfaces: Sequence[Surface] = SURFACES, token: str | None = None) -> Generator[Running]:
    """Serve the real application within the block. Without a token, the database must be new; the first administrator
    is created."""
    listener = socket.socket()
    listener.bind(("127.0.0.1", 0))
    port = listener.getsockname()[1]
    token = token or asyncio.run(_first_token(settings))
    config = ServerConfig(create_app(settings, surfaces), settings)
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
    thread.start()
    try:
        assert wait_until(lambda: server.started or not thread.is_alive(), seconds=60)
        assert server.started, "the server did not start"
        # The server has no TLS, and loading certificates takes longer than most tests.
        with httpx2.Client(base_url=f"http://127.0.0.1:{port}", timeout=30, verify=False) as http:
            yield Running(settings, port, token, http)
    finally:
        server.should_exit = True
        thread.join()
        listener.close()


async def _first_token(settings: Settings) -> str:
    db = await connect(settings.store_url, pool_size=1)
    try:
        token = await first_start.create_first_admin(db)
    finally:
        await db.close()
    assert token is not None
    return token
