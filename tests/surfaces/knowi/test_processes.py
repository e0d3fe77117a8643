"""Sessions across two processes of the real program, on PostgreSQL."""

from pathlib import Path
from typing import Any

import httpx2

from tests.cli import program
from tests.conftest import Cluster
from tests.surfaces.knowi.caller import PATH


def test_two_server_processes_on_postgresql_share_sessions(postgres_cluster: Cluster, tmp_path: Path):
    url = postgres_cluster.take()
    options = {"ALMANAC_DATABASE_URL": url}
    with (
        program.serving(tmp_path / "one", lines=4, settings=options) as one,
        program.serving(tmp_path / "two", lines=2, settings=options) as two,
    ):
        headers = {"authorization": f"Bearer {one.token}"}

        def send(server: program.Server, method: str, session: str = "") -> httpx2.Response:
            message: dict[str, Any] = {"jsonrpc": "2.0", "id": 1, "method": method, "params": {}}
            named = {**headers, "mcp-session-id": session} if session else headers
            return httpx2.post(server.url + PATH, json=message, headers=named, timeout=30)

        def active(server: program.Server) -> int:
            return httpx2.get(f"{server.url}{PATH}/health", timeout=30).json()["activeSessions"]

        session = send(one, "initialize").headers["mcp-session-id"]
        assert send(two, "tools/list", session).headers["mcp-session-id"] == session
        assert active(one) == active(two) == 1
        httpx2.delete(two.url + PATH, headers={**headers, "mcp-session-id": session}, timeout=30)
        assert active(one) == active(two) == 0
        renewed = send(one, "tools/list", session)
        assert renewed.status_code == 200
        assert renewed.headers["mcp-session-id"] != session
        assert send(two, "ping", renewed.headers["mcp-session-id"]).headers["mcp-session-id"] != session
    postgres_cluster.drop(url)
