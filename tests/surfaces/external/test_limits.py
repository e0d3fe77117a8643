"""Rate limits: every limit of the document, its dimension, its order, its keys, and refusals without Redis."""

import asyncio
import hashlib
import re
import threading
import time
from collections import Counter
from collections.abc import Generator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import fields
from pathlib import Path
from typing import Any

import httpx2
import pytest

from almanac.core.database import Database
from almanac.core.settings import InvalidSetting, Settings, environment_names
from almanac.core.settings_loader import load
from almanac.knowledge import bases
from almanac.net import client_address
from almanac.search.engine import SearchEngine
from tests.cli.program import Server, serving
from tests.live_server import LEGACY, Running, request, running, settings_for
from tests.quotas.test_rate_limits import free_port, private_redis, redis_client
from tests.surfaces.external.caller import HEADER, NO_LIMITS, PATH, Caller, acting, failed, found
from tests.waiting import wait_until

pytestmark = pytest.mark.xdist_group("external")

LONG = 10**9  # seconds: no window ends while a test runs
LIMITED = failed("rate_limited", "Rate limit exceeded")
UNAVAILABLE = failed("rate_limit_unavailable", "Rate limit service unavailable")
WINDOWS = {item.name: LONG for item in fields(Settings) if item.name.startswith("external_") and "window" in item.name}

# As the document has them.
DEFAULTS = {
    "RATE_LIMIT_ENABLED": True,
    "RATE_LIMIT_REQUESTS": 120,
    "RATE_LIMIT_WINDOW_SECONDS": 60,
    "SEARCH_RATE_LIMIT_ENABLED": True,
    "SEARCH_RATE_LIMIT_REQUESTS": 30,
    "SEARCH_RATE_LIMIT_WINDOW_SECONDS": 60,
    "DOWNLOAD_RATE_LIMIT_ENABLED": True,
    "DOWNLOAD_PREAUTH_IP_RATE_LIMIT_REQUESTS": 300,
    "DOWNLOAD_PREAUTH_IP_RATE_LIMIT_WINDOW_SECONDS": 60,
    "DOWNLOAD_PREAUTH_DOCUMENT_RATE_LIMIT_REQUESTS": 60,
    "DOWNLOAD_PREAUTH_DOCUMENT_RATE_LIMIT_WINDOW_SECONDS": 60,
    "DOWNLOAD_RATE_LIMIT_REQUESTS": 20,
    "DOWNLOAD_RATE_LIMIT_WINDOW_SECONDS": 60,
}


@pytest.mark.parametrize("name", DEFAULTS)
def test_every_documented_setting_has_its_documented_default_and_can_be_set(name: str):
    variable = f"EXTERNAL_KNOWLEDGE_MCP_{name}"
    [item] = [item for item in fields(Settings) if variable in environment_names(item)]
    assert getattr(load({}).settings, item.name) == DEFAULTS[name]
    given, expected = ("false", False) if DEFAULTS[name] is True else ("7", 7)
    assert getattr(load({variable: given}).settings, item.name) == expected


@contextmanager
def serve(database: str, home: Path, **options: Any) -> Generator[Running]:
    """A server with no limits but those named, in windows that do not end."""
    with running(settings_for(database, home, **{**NO_LIMITS, **WINDOWS, "embedding": False, **options})) as server:
        yield server


def listing(server: Running, token: str, **headers: str) -> httpx2.Response:
    message, sent = request("tools/list", {}, era=LEGACY)
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return server.http.post(PATH, json=message, headers={**sent, "authorization": f"Bearer {token}", **named})


# --- the transport -----------------------------------------------------------------------------------------


def test_the_transport_is_limited_by_address_whatever_is_asked(sqlite_home: str, tmp_path: Path):
    on = {"external_rate_limit_enabled": True, "external_rate_limit_requests": 3}
    with serve(sqlite_home, tmp_path / "home", **on) as server:
        other = server.new_token("other")
        for _ in range(5):  # an unauthenticated caller is refused before any count
            assert listing(server, "wg-nobody").status_code == 401
        assert [listing(server, token).status_code for token in (server.token, other, server.token)] == [200] * 3
        for token in (server.token, other):
            response = listing(server, token)
            assert (response.status_code, response.json()) == (429, LIMITED)
            assert "retry-after" not in response.headers
        call = Caller(server, server.token).post("tools/call", {"name": "wegent_kb_list_nodes", "arguments": {}})
        assert (call.status_code, call.json()) == (429, LIMITED)
        assert server.http.get("/mcp/knowledge-external").status_code == 200
        assert server.http.get("/mcp/knowledge-external/health").status_code == 200


def test_the_transport_is_limited_by_token_from_whatever_address(sqlite_home: str, tmp_path: Path):
    on = {
        "external_rate_limit_enabled": True, "external_rate_limit_requests": 2, "trusted_proxies": "127.0.0.0/8",
    }  # fmt: skip
    with serve(sqlite_home, tmp_path / "home", **on) as server:
        other = server.new_token("other")
        addresses = ("192.0.2.1", "192.0.2.2", "192.0.2.3")
        codes = [listing(server, server.token, x_forwarded_for=address).status_code for address in addresses]
        assert codes == [200, 200, 429]
        assert listing(server, other, x_forwarded_for="192.0.2.4").status_code == 200


def test_who_is_calling_is_the_peer_and_no_header_unless_a_proxy_is_trusted(sqlite_home: str, tmp_path: Path):
    on = {"external_rate_limit_enabled": True, "external_rate_limit_requests": 2}
    with serve(sqlite_home, tmp_path / "home", **on) as server:
        tokens = [server.new_token(f"user-{number}") for number in range(3)]
        codes = [
            listing(server, token, x_forwarded_for=f"192.0.2.{number}").status_code
            for number, token in enumerate(tokens)
        ]
        assert codes == [200, 200, 429]


@pytest.mark.parametrize(
    ("peer_address", "trusted", "forwarded", "expected"),
    [
        ("10.0.0.1", (), "192.0.2.9", "10.0.0.1"),
        ("10.0.0.1", ("10.0.0.0/8",), None, "10.0.0.1"),
        ("10.0.0.1", ("10.0.0.0/8",), "192.0.2.9", "192.0.2.9"),
        ("10.0.0.1", ("10.0.0.0/8",), "198.51.100.1, 192.0.2.9, 10.0.0.2", "192.0.2.9"),
        ("10.0.0.1", ("10.0.0.0/8",), "10.0.0.3, 10.0.0.2", "10.0.0.3"),
        ("10.0.0.1", ("10.0.0.0/8",), "nonsense, 10.0.0.2", "10.0.0.2"),
        ("10.0.0.1", ("10.0.0.0/8",), "192.0.2.9, junk", "10.0.0.1"),
        ("192.0.2.7", ("10.0.0.0/8",), "198.51.100.1", "192.0.2.7"),
        ("::1", ("::1/128",), "2001:db8::5", "2001:db8::5"),
        ("::ffff:10.0.0.1", ("10.0.0.0/8",), "192.0.2.9", "192.0.2.9"),
    ],
)
def test_the_caller_is_the_last_address_that_is_no_trusted_proxy(
    peer_address: str, trusted: tuple[str, ...], forwarded: str | None, expected: str
):
    headers = [(b"x-forwarded-for", forwarded.encode())] if forwarded is not None else []
    assert client_address.client_address({"client": (peer_address, 1), "headers": headers}, trusted) == expected
    assert client_address.client_address({"client": None, "headers": headers}, ()) == "unknown"


def test_a_proxy_that_is_no_network_is_refused_at_the_start():
    with pytest.raises(InvalidSetting, match="trusted_proxies"):
        client_address.read_networks(("proxy.internal",))


def test_the_server_s_own_limit_is_not_this_surface_s(sqlite_home: str, tmp_path: Path):
    with serve(sqlite_home, tmp_path / "home", rate_limit_calls=1) as server:
        caller = Caller(server, server.token)
        assert [caller.bases()["total"] for _ in range(3)] == [0, 0, 0]
        assert [listing(server, server.token).status_code for _ in range(3)] == [200] * 3


# --- search ------------------------------------------------------------------------------------------------


def test_searches_are_limited_by_user_once_their_arguments_are_good(sqlite_home: str, tmp_path: Path):
    on = {"external_search_rate_limit_enabled": True, "external_search_rate_limit_requests": 2}
    with serve(sqlite_home, tmp_path / "home", **on) as server:
        first, second = (Caller(server, server.new_token("ada")) for _ in range(2))
        for _ in range(4):
            assert first.search(query="", knowledge_base_ids=[1])["code"] == "bad_request"
        missing = failed("not_found", "No accessible knowledge bases found")
        assert first.search(query="x", knowledge_base_ids=[999]) == missing
        assert second.search(query="x", knowledge_base_ids=[999]) == missing
        for caller in (first, second):  # two tokens, one user
            assert caller.search(query="x", knowledge_base_ids=[999]) == LIMITED
        assert first.bases()["total"] == 0
        assert Caller(server, server.token).search(query="x", knowledge_base_ids=[999]) == missing


# --- downloads ---------------------------------------------------------------------------------------------


@contextmanager
def with_documents(database: str, home: Path, **options: Any) -> Generator[tuple[Caller, list[str]]]:
    """Ada, and credentials for the documents 1 and 2."""
    with serve(database, home, **options) as server:
        town = server.run(lambda db: found(server, db))
        ada = town.caller("ada")
        tokens = [
            ada.download(document_id=town[name], disposition="attachment")["headers"][HEADER]
            for name in ("guide", "page")
        ]
        yield ada, tokens


def test_downloads_are_limited_by_address_then_by_address_and_document_before_the_token_is_looked_at(
    sqlite_home: str, tmp_path: Path
):
    on = {
        "external_download_rate_limit_enabled": True,
        "external_download_preauth_ip_rate_limit_requests": 5,
        "external_download_preauth_document_rate_limit_requests": 2,
        "external_download_rate_limit_requests": 0,
    }
    with with_documents(sqlite_home, tmp_path / "home", **on) as (ada, (guide, page)):
        assert [ada.fetch(1, "junk").status_code for _ in range(3)] == [401, 401, 429]
        assert ada.fetch(1, guide).json() == LIMITED  # a good credential does not help
        assert ada.fetch(2, page).status_code == 200
        response = ada.fetch(2, page)  # the sixth from this address
        assert (response.status_code, response.json()) == (429, LIMITED)
        assert "retry-after" not in response.headers


def test_downloads_are_limited_by_user_and_document_once_the_token_is_good(sqlite_home: str, tmp_path: Path):
    on = {"external_download_rate_limit_enabled": True, "external_download_rate_limit_requests": 2}
    with with_documents(sqlite_home, tmp_path / "home", **on) as (ada, (guide, page)):
        assert [ada.fetch(1, "junk").status_code for _ in range(4)] == [401] * 4
        assert [ada.fetch(1, guide).status_code for _ in range(3)] == [200, 200, 429]
        assert ada.fetch(2, page).status_code == 200


def test_limits_that_are_switched_off_or_nought_limit_nothing(sqlite_home: str, tmp_path: Path):
    with with_documents(
        sqlite_home,
        tmp_path / "home",
        external_rate_limit_enabled=True,
        external_rate_limit_requests=0,
        external_download_preauth_ip_rate_limit_requests=1,
        redis_url=f"redis://127.0.0.1:{free_port()}",  # no call reaches it
    ) as (ada, (guide, _)):
        assert [ada.fetch(1, guide).status_code for _ in range(4)] == [200] * 4


# --- the content of Redis ----------------------------------------------------------------------------------


def test_keys_in_redis_have_the_documented_form_and_hold_hashes_of_addresses_and_tokens(
    sqlite_home: str, tmp_path: Path, redis_url: str
):
    own = redis_url.rpartition("/")[0] + "/12"
    with redis_client(own) as client:
        client.flushdb()
        options = {**dict.fromkeys(NO_LIMITS, True), "redis_url": own}
        with with_documents(sqlite_home, tmp_path / "home", **options) as (ada, (guide, _)):
            ada.search(query="pump", knowledge_base_ids=[1])
            assert ada.fetch(1, guide).status_code == 200
            user = ada.live.run(lambda db: _id_of(db, ada))
        keys = {key.decode() for key in client.scan_iter("external_kb_mcp:*")}
        lives = {client.ttl(key) for key in keys}
        client.flushdb()

    def hashed(text: str) -> str:
        return hashlib.sha256(text.encode()).hexdigest()[:32]

    address, window = f"ip:{hashed('127.0.0.1')}", int(time.time() // LONG)
    assert keys == {
        f"external_kb_mcp:rate:{space}:{dimension}:{window}"
        for space, dimension in (
            ("transport", address),
            ("transport", f"token:{hashed(ada.token)}"),
            ("search", f"user:{user}"),
            ("download_preauth_ip", address),
            ("download_preauth_document", f"{address}:document:1"),
            ("download", f"user:{user}:document:1"),
        )
    }
    assert all(LONG - 60 < life <= LONG + 1 for life in lives)
    assert not any(ada.token in key or guide in key or "127.0.0.1" in key for key in keys)


async def _id_of(db: Database, caller: Caller) -> int:
    return (await acting(db, caller)).actor.id


# --- no Redis ----------------------------------------------------------------------------------------------


def test_without_redis_everything_is_refused_before_any_costly_work(
    sqlite_home: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    async def never(*_: Any, **__: Any) -> Any:
        raise AssertionError("work was done")

    away = {"redis_url": f"redis://127.0.0.1:{free_port()}"}
    with with_documents(sqlite_home, tmp_path / "home", **away) as (ada, (guide, _)):
        for name in ("external_search_rate_limit_enabled", "external_download_rate_limit_enabled"):
            _switch(ada.live, name)
        monkeypatch.setattr(SearchEngine, "search", never)
        monkeypatch.setattr(bases, "get_many", never)
        assert ada.search(query="pump", knowledge_base_ids=[1]) == UNAVAILABLE
        response = ada.fetch(1, guide)
        assert (response.status_code, response.json()) == (503, UNAVAILABLE)
        _switch(ada.live, "external_rate_limit_enabled")
        response = listing(ada.live, ada.token)
        assert (response.status_code, response.json()) == (503, UNAVAILABLE)
        assert ada.post("tools/call", {"name": "wegent_kb_list_nodes", "arguments": {}}).status_code == 503
        assert ada.live.http.get("/mcp/knowledge-external/health").status_code == 200


def _switch(live: Running, name: str) -> None:
    """Switch a limit on in a running server."""
    object.__setattr__(live.settings, name, True)


# --- many at once ------------------------------------------------------------------------------------------


async def rush(urls: list[str], token: str | list[str], number: int) -> Counter[int]:
    """Send a number of requests at once, to the servers in turn; return the statuses."""
    message, headers = request("tools/list", {}, era=LEGACY)
    tokens = [token] * len(urls) if isinstance(token, str) else token

    async def one(http: httpx2.AsyncClient, turn: int) -> int:
        sent = {**headers, "authorization": f"Bearer {tokens[turn % len(urls)]}", "accept": "application/json"}
        return (await http.post(urls[turn % len(urls)] + PATH, json=message, headers=sent)).status_code

    async with httpx2.AsyncClient(timeout=60, limits=httpx2.Limits(max_connections=50), verify=False) as http:
        return Counter(await asyncio.gather(*(one(http, turn) for turn in range(number))))


@pytest.mark.parametrize("store", ["memory", "redis"])
def test_of_fifty_racing_callers_exactly_as_many_pass_as_the_limit_says(
    sqlite_home: str, tmp_path: Path, redis_url: str, store: str
):
    own = redis_url.rpartition("/")[0] + "/13"
    with redis_client(own) as client:
        client.flushdb()
        options = {"external_rate_limit_enabled": True, "external_rate_limit_requests": 20}
        with serve(sqlite_home, tmp_path / "home", redis_url=own if store == "redis" else "", **options) as server:
            assert asyncio.run(rush([server.url], server.token, 50)) == {200: 20, 429: 30}


def test_two_server_processes_on_one_redis_share_a_limit_exactly(tmp_path: Path, redis_url: str):
    own = redis_url.rpartition("/")[0] + "/14"
    settings = {
        "EXTERNAL_KNOWLEDGE_MCP_ENABLED": "true",
        "EXTERNAL_KNOWLEDGE_MCP_RATE_LIMIT_REQUESTS": "30",
        "EXTERNAL_KNOWLEDGE_MCP_RATE_LIMIT_WINDOW_SECONDS": str(LONG),
        "ALMANAC_JOB_WORKERS": "0",
        "ALMANAC_EMBEDDING": "false",
        "REDIS_URL": own,
    }
    with redis_client(own) as client:
        client.flushdb()
        with ExitStack() as stack, ThreadPoolExecutor() as threads:
            starts = [serving(tmp_path / name / "home", lines=4, settings=settings) for name in ("one", "two")]
            futures = [threads.submit(stack.enter_context, start) for start in starts]
            servers: list[Server] = [future.result() for future in futures]
            urls, tokens = [server.url for server in servers], [server.token for server in servers]
            assert asyncio.run(rush(urls, tokens, 50)) == {200: 30, 429: 20}  # by address, which is the same
        client.flushdb()


def test_when_redis_is_killed_mid_load_calls_are_refused_as_uncounted_and_then_taken_again(
    sqlite_home: str, tmp_path: Path
):
    port = free_port()
    options = {"external_rate_limit_enabled": True, "external_rate_limit_requests": 10**9}
    with serve(sqlite_home, tmp_path / "home", redis_url=f"redis://127.0.0.1:{port}", **options) as server:
        seen: list[tuple[float, int, Any]] = []
        stop = threading.Event()

        def load() -> None:
            with httpx2.Client(base_url=server.url, timeout=30, verify=False) as http:
                message, headers = request("tools/list", {}, era=LEGACY)
                while not stop.is_set():
                    response = http.post(
                        PATH, json=message, headers={**headers, "authorization": f"Bearer {server.token}"}
                    )
                    seen.append((time.monotonic(), response.status_code, response.json()))

        callers = [threading.Thread(target=load) for _ in range(4)]
        with private_redis(port, tmp_path):
            for caller in callers:
                caller.start()
            wait_until(lambda: sum(code == 200 for _, code, _ in seen) >= 40, seconds=30)
        gone = time.monotonic()
        wait_until(lambda: sum(code == 503 for _, code, _ in seen) >= 40, seconds=30)
        with private_redis(port, tmp_path):
            back = time.monotonic()
            wait_until(lambda: sum(at > back and code == 200 for at, code, _ in seen) >= 40, seconds=30)
            stop.set()
            for caller in callers:
                caller.join()
        assert {code for _, code, _ in seen} == {200, 503}
        assert all(said == UNAVAILABLE for _, code, said in seen if code == 503)
        assert not any(code == 200 for at, code, _ in seen if gone + 1 < at < back)


def test_the_guide_says_plainly_where_the_limiter_counts():
    guide = Path(__file__).parents[3] / "docs" / "how-to" / "connect-an-external-caller.md"
    text = re.sub(r"\s+", " ", guide.read_text("utf-8"))
    assert "Without `REDIS_URL` each server process counts for itself, in memory" in text
    for name in DEFAULTS:
        assert f"`EXTERNAL_KNOWLEDGE_MCP_{name}`" in text
    assert "allowlist" in text
