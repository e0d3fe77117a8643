"""A surface: scopes, tokens, rate limits, and the audit trail."""

import hashlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import orjson
import pytest
from redis import Redis

from almanac.core import clock, scopes
from almanac.core.database import Database, Row, Transaction
from almanac.core.errors import Unauthorized
from almanac.identity import orgs, principals, tokens
from almanac.quotas import rate_limits
from tests.live_server import ERAS, LEGACY, MODERN, SURFACES, Running, running, settings_for
from tests.surfaces import trial
from tests.surfaces.trial import PATH, WATCHED
from tests.surfaces.wire import audit_of, beside, refused, settled
from tests.waiting import wait_until

BOTH = (*SURFACES, trial.SURFACE)
OPEN = ["echo", "fail", "crash", "slow", "count", "touch"]
UNAUTHORISED = (401, refused("unauthorized", Unauthorized().text))


def unknown(tool: str) -> str:
    return f"Unknown tool: {tool}. The tools you can call are those of tools/list."


@pytest.fixture(scope="module")
def live(shared_url: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    with running(settings_for(shared_url, tmp_path_factory.mktemp("home")), BOTH) as server:
        yield server


def listed(live: Running, token: str, era: str = LEGACY) -> list[str]:
    answer = live.rpc("tools/list", era=era, token=token, path=PATH).json()
    return [tool["name"] for tool in answer["result"]["tools"]]


def answer(live: Running, tool: str, **how: Any) -> tuple[int, Any]:
    how.setdefault("path", PATH)
    response = live.rpc("tools/call", {"name": tool, "arguments": {}}, **how)
    return response.status_code, response.json()


def token_id(live: Running, token: str) -> int:
    return live.call("whoami", token=token)["structuredContent"]["token"]["id"]


def one(row: Row | None) -> Row:
    assert row is not None
    return row


# --- scopes and restrictions -------------------------------------------------------------------------------


@pytest.mark.parametrize("era", ERAS)
@pytest.mark.parametrize(
    ("limits", "more"),
    [
        ({"scope": ["search:read"]}, []),
        ({"scope": ["memory:read"]}, ["recall"]),
        ({"scope": ["memory:write"]}, []),
        ({"scope": ["memory:read", "memory:write"]}, ["recall", "remember"]),
        ({}, ["recall", "remember"]),
        ({"admin": True}, ["recall", "remember", "govern"]),
        ({"admin": True, "scope": ["memory:read"]}, ["recall"]),
        ({"kind": "agent"}, ["recall", "remember"]),
    ],
    ids=str,
)
def test_what_a_token_may_not_call_is_neither_listed_nor_callable(
    live: Running, era: str, limits: dict[str, Any], more: list[str]
):
    token = live.new_token(f"of kind {'-'.join(['any', *sorted(limits)])}", **limits)
    assert listed(live, token, era) == OPEN + more
    for tool in ("recall", "remember", "govern"):
        before = WATCHED.count
        status, body = answer(live, tool, era=era, token=token)
        if tool in more:
            assert (status, body["result"]["isError"]) == (200, False)
        else:
            never = answer(live, "never-was", era=era, token=token)
            assert (status, body) == (never[0], json.loads(json.dumps(never[1]).replace("never-was", tool)))
            assert body["error"] == {
                "code": -32602,
                "message": unknown(tool),
            }
            assert status == (400 if era == MODERN else 200)
        assert WATCHED.count == before + (tool in more)


@pytest.mark.parametrize("era", ERAS)
def test_a_token_limited_to_some_tools_sees_only_those(live: Running, era: str):
    token = live.new_token("limited", tools=["count", "govern", "no_such_tool"])
    assert listed(live, token, era) == ["count"]
    assert answer(live, "count", era=era, token=token)[1]["result"]["isError"] is False
    assert answer(live, "echo", era=era, token=token)[1]["error"]["message"] == unknown("echo")
    assert answer(live, "govern", era=era, token=token)[1]["error"]["message"] == unknown("govern")
    assert live.rpc("tools/list", era=era, token=token).json()["result"]["tools"] == []
    assert answer(live, "whoami", era=era, token=token, path="/mcp")[1]["error"]["message"] == unknown("whoami")


def test_a_tool_the_sdk_calls_is_held_to_the_same_scopes(live: Running):
    # A `task` makes the endpoint pass the call to the SDK.
    token = live.new_token("handed over", scope=["search:read"])
    for tool, code in (("govern", -32602), ("never-was", -32602)):
        body = live.rpc("tools/call", {"name": tool, "task": {}}, token=token, path=PATH).json()
        assert body["error"] == {
            "code": code,
            "message": unknown(tool),
        }
    body = live.rpc("tools/call", {"name": "count", "task": {}}, token=token, path=PATH).json()
    assert body["result"]["structuredContent"] == {"done": True}


def test_an_administrator_who_is_one_no_longer_loses_the_scopes_at_once(live: Running):
    token = live.new_token("deposed", admin=True)
    assert "govern" in listed(live, token)
    live.run(lambda db: db.write(lambda tx: tx.execute("UPDATE principals SET is_admin = 0 WHERE name = 'deposed'")))
    assert "govern" not in listed(live, token)
    assert answer(live, "govern", token=token)[1]["error"]["code"] == -32602
    assert set(live.call("whoami", token=token)["structuredContent"]["scopes"]) == scopes.UNPRIVILEGED_SCOPES


# --- expired and revoked tokens ----------------------------------------------------------------------------


@pytest.mark.parametrize("era", ERAS)
def test_a_revocation_holds_from_the_very_next_call(live: Running, era: str):
    token = live.new_token("revoked")
    number = token_id(live, token)
    for _ in range(3):
        assert answer(live, "count", era=era, token=token)[0] == 200
    before = WATCHED.count
    live.run(lambda db: db.write(lambda tx: tokens.revoke(tx, number)))  # from its own connection
    assert answer(live, "count", era=era, token=token) == UNAUTHORISED
    assert live.rpc("tools/list", era=era, token=token).status_code == 401
    assert live.rpc("ping", token=token).status_code == 401
    assert WATCHED.count == before


def test_a_revocation_by_another_process_holds_in_every_server(live: Running):
    token = live.new_token("revoked elsewhere")
    number = token_id(live, token)
    with beside(live, BOTH) as other:
        assert [answer(server, "count", token=token)[0] for server in (live, other)] == [200, 200]
        settings = live.settings
        subprocess.run(
            [sys.executable, "-m", "almanac", "token", "revoke", str(number)],
            check=True,
            env=os.environ | {"ALMANAC_HOME": str(settings.home), "ALMANAC_DATABASE_URL": settings.database_url},
        )
        assert [answer(server, "count", token=token) for server in (live, other)] == [UNAUTHORISED, UNAUTHORISED]


def test_a_token_ends_at_its_moment(live: Running):
    ends = clock.now() + clock.SECOND
    token = live.new_token("brief", expires_at=ends)
    assert live.call("whoami", token=token)["structuredContent"]["token"]["expires_at"] == clock.format_timestamp(ends)
    last = wait_until(lambda: (clock.now(), answer(live, "count", token=token)), lambda seen: seen[1][0] != 200)
    assert last[1] == UNAUTHORISED
    assert ends - clock.SECOND // 2 < last[0] < ends + clock.SECOND // 2


def test_a_removed_users_tokens_end_and_a_namesake_does_not_inherit_them(live: Running):
    token = live.new_token("leaver")
    assert answer(live, "count", token=token)[0] == 200

    async def remove(tx: Transaction) -> None:
        await principals.remove(tx, await principals.get_by_name(tx, (await orgs.get_by_name(tx, "main")).id, "leaver"))

    live.run(lambda db: db.write(remove))
    assert answer(live, "count", token=token) == UNAUTHORISED
    fresh = live.new_token("leaver")
    assert answer(live, "count", token=fresh)[0] == 200
    assert answer(live, "count", token=token) == UNAUTHORISED


def test_another_organisations_token_acts_in_its_own_alone(live: Running):
    ours, theirs = live.new_token("maria"), live.new_token("maria", org="Acme")
    me, they = (live.call("whoami", token=token)["structuredContent"] for token in (ours, theirs))
    assert (me["organisation"]["name"], they["organisation"]["name"]) == ("main", "Acme")
    assert me["id"] != they["id"]
    assert they["organisation"]["id"] != me["organisation"]["id"]
    theirs_used = live.call("server_status", token=theirs)["structuredContent"]["usage_this_month"]
    assert theirs_used.get("tool_calls", 0) < 5  # a database that no other test here has used
    live.call("count", token=theirs, path=PATH, headers={"x-request-id": "theirs"})
    [row] = audit_of(live, "theirs")
    assert (row["org_id"], row["principal_id"], row["token_id"]) == (
        they["organisation"]["id"],
        they["id"],
        they["token"]["id"],
    )


# --- audit and metrics -------------------------------------------------------------------------------------


@pytest.mark.parametrize("era", ERAS)
def test_each_call_leaves_exactly_one_audit_row(live: Running, era: str):
    token = live.new_token("audited", kind="agent")
    me = live.call("whoami", token=token)["structuredContent"]
    wanted: list[tuple[str, dict[str, Any], str, str]] = [
        ("echo", {"number": 1}, "echo", "ok"),
        ("fail", {}, "fail", "not_found"),
        ("crash", {}, "crash", "internal_error"),
        ("echo", {"number": "1"}, "echo", "bad_request"),
        ("never-was", {}, "(unknown)", "unknown_tool"),
        ("govern", {}, "(unknown)", "unknown_tool"),
    ]
    begun = clock.now()
    for number, (tool, arguments, _, __) in enumerate(wanted):
        params = {"name": tool, "arguments": arguments}
        sent = {"x-request-id": f"one-{era}-{number}"}
        live.rpc("tools/call", params, era=era, token=token, path=PATH, headers=sent)
    live.rpc("tools/list", era=era, token=token, path=PATH, headers={"x-request-id": f"list-{era}"})
    rows = [row for row in settled(live) if str(row["request_id"]).startswith((f"one-{era}", f"list-{era}"))]
    assert [(row["request_id"], row["tool"], row["outcome"]) for row in rows] == [
        (f"one-{era}-{number}", tool, outcome) for number, (_, __, tool, outcome) in enumerate(wanted)
    ]
    for row in rows:
        assert (row["org_id"], row["principal_id"], row["token_id"], row["surface"]) == (
            me["organisation"]["id"],
            me["id"],
            me["token"]["id"],
            "trial",
        )
        assert begun <= row["at"] <= clock.now()
        assert 0 < row["duration_us"] < 10 * clock.SECOND


def test_the_trail_keeps_a_keyed_digest_and_never_the_arguments(live: Running):
    marker = "Zanzibar-4711"
    for name, arguments in {
        "a": {"number": 1, "text": marker},
        "b": {"text": marker, "number": 1},
        "c": {"number": 2, "text": marker},
        "d": {"number": 1, marker: "x"},
    }.items():
        live.call("touch", arguments, path=PATH, headers={"x-request-id": f"digest-{name}"})
    a, b, c, d = (audit_of(live, f"digest-{name}")[0] for name in "abcd")
    assert a["digest"] == b["digest"]  # the order of arguments does not matter
    assert len({a["digest"], c["digest"], d["digest"]}) == 3
    assert len(bytes.fromhex(a["digest"])) == 16
    plain = orjson.dumps({"number": 1, "text": marker}, option=orjson.OPT_SORT_KEYS)
    assert a["digest"] != hashlib.blake2b(plain, digest_size=16).hexdigest()
    assert not [row for row in settled(live) if marker in " ".join(map(str, tuple(cast("Any", row))))]


def test_nothing_in_the_data_folder_holds_an_argument_or_a_token(new_sqlite: Callable[[], str], tmp_path: Path):
    marker = "Zanzibar-4711"
    with running(settings_for(new_sqlite(), tmp_path / "home"), BOTH) as server:
        server.call("touch", {"number": 1, "text": marker}, path=PATH)
        server.call("touch", {"number": 1, marker: 1}, path=PATH)
        server.rpc("tools/call", {"name": marker}, path=PATH)
    # Only now: to close a file that SQLite has open in this process would drop its locks.
    database = Path(server.settings.store_url.removeprefix("sqlite:///"))
    files = [file for folder in (database.parent, tmp_path) for file in folder.rglob("*") if file.is_file()]
    assert database in files
    for secret in (marker.encode(), server.token.encode()):
        assert not [file for file in files if secret in file.read_bytes()]


def test_the_trail_names_what_a_call_touched(live: Running):
    live.call("touch", {"number": 7}, path=PATH, headers={"x-request-id": "touched"})
    live.call("count", path=PATH, headers={"x-request-id": "untouched"})
    assert audit_of(live, "touched")[0]["touched"] == "base:7 document:8"
    assert audit_of(live, "untouched")[0]["touched"] == ""


def test_calls_are_counted_for_their_organisation_and_month(live: Running):
    token = live.new_token("counter", org="Counted")

    def used() -> dict[str, int]:
        return live.call("server_status", token=token)["structuredContent"]["usage_this_month"]

    assert used() == {}
    for _ in range(4):
        live.call("count", token=token, path=PATH)
    live.rpc("tools/list", token=token)
    settled(live)
    assert used() == {"tool_calls": 5}
    settled(live)
    row = one(
        live.run(
            lambda db: db.fetch_one("SELECT u.* FROM usage u JOIN orgs o ON o.id = u.org_id AND o.name = 'Counted'")
        )
    )
    assert (row["period"], row["metric"], row["count"]) == (clock.month(clock.now()), "tool_calls", 6)


def test_a_tokens_last_use_is_noted(live: Running):
    token = live.new_token("user of tokens")

    async def last(db: Database) -> int | None:
        digest = hashlib.sha256(token.encode()).digest()
        return one(await db.fetch_one("SELECT last_used_at FROM tokens WHERE hash = $1", digest))["last_used_at"]

    assert live.run(last) is None
    begun = clock.now()
    live.call("count", token=token, path=PATH)
    settled(live)
    noted = live.run(last)
    assert noted is not None
    assert begun <= noted <= clock.now()


def test_what_was_called_last_is_written_when_the_server_stops(new_sqlite: Callable[[], str], tmp_path: Path):
    with running(settings_for(new_sqlite(), tmp_path), BOTH) as server:
        for _ in range(20):
            server.call("count", path=PATH)
    assert len(server.run(lambda db: db.fetch("SELECT 1 FROM audit"))) == 20


# --- rate limits -------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def limited(new_sqlite: Callable[[], str], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """Three requests a minute for each token, counted in memory."""
    settings = settings_for(new_sqlite(), tmp_path_factory.mktemp("limited"), rate_limit_calls=3)
    with running(settings, BOTH) as server:
        yield server


@pytest.mark.parametrize("era", ERAS)
def test_over_the_limit_a_call_is_a_tool_error_that_says_how_long_to_wait(limited: Running, era: str):
    token = limited.new_token(f"hasty {era}")
    before = WATCHED.count
    for _ in range(3):
        assert limited.call("count", era=era, token=token, path=PATH)["isError"] is False
    refused = limited.call("count", era=era, token=token, path=PATH, headers={"x-request-id": f"hasty-{era}"})
    assert refused["isError"] is True
    [content] = refused["content"]
    assert content["text"] in [
        f"rate_limited: Rate limit exceeded. Wait {n} s, then call again." for n in range(55, 61)
    ]
    assert WATCHED.count == before + 3
    [row] = audit_of(limited, f"hasty-{era}")
    assert (row["outcome"], row["tool"]) == ("rate_limited", "count")


@pytest.mark.parametrize(
    ("method", "era"), [("tools/list", LEGACY), ("tools/list", MODERN), ("ping", LEGACY), ("server/discover", MODERN)]
)
def test_over_the_limit_other_requests_are_refused_with_429(limited: Running, method: str, era: str):
    token = limited.new_token(f"hasty {method} {era}".replace("/", "-"))
    assert [limited.rpc(method, era=era, token=token).status_code for _ in range(4)] == [200, 200, 200, 429]
    answered = limited.rpc(method, era=era, token=token)
    wait = int(answered.headers["retry-after"])
    assert 55 <= wait <= 60
    assert answered.json() == refused("rate_limited", f"Rate limit exceeded. Wait {wait} s, then call again.")


def test_one_tokens_haste_is_not_anothers(limited: Running):
    hasty, calm = limited.new_token("pair"), limited.new_token("pair")
    for _ in range(5):
        limited.call("count", token=hasty, path=PATH)
    assert limited.call("count", token=hasty, path=PATH)["isError"] is True
    assert limited.call("count", token=calm, path=PATH)["isError"] is False


def test_a_refused_token_costs_nobody_anything(limited: Running):
    token = limited.new_token("bystander")
    for _ in range(10):
        limited.rpc("ping", token="wg-" + "A" * 43)
    assert limited.call("whoami", token=token)["structuredContent"]["rate_limit"]["remaining"] == 2


@pytest.mark.parametrize(
    "message",
    [
        {"id": 1, "method": "tools/call", "params": {}},
        {"id": 1, "method": "tools/call", "params": {"name": "count", "arguments": []}},
        {"method": "tools/call", "params": {"name": "count"}},
        {"id": 1, "method": "no/such"},
        {"method": "notifications/initialized"},
    ],
    ids=str,
)
def test_requests_that_come_to_nothing_count_too(limited: Running, message: dict[str, Any]):
    token = limited.new_token(f"flood {abs(hash(str(message)))}")
    sent = {"authorization": f"Bearer {token}"}
    statuses = [limited.post(json.dumps({"jsonrpc": "2.0", **message}), sent, PATH).status_code for _ in range(5)]
    assert statuses[3:] == [429, 429]


def test_a_limit_is_one_across_surfaces_and_methods(limited: Running):
    token = limited.new_token("everywhere")
    limited.rpc("ping", token=token)
    limited.call("count", token=token, path=PATH)
    assert limited.call("whoami", token=token)["structuredContent"]["rate_limit"]["remaining"] == 0
    assert limited.rpc("tools/list", token=token, path=PATH).status_code == 429


class Clock(SimpleNamespace):
    """A clock that the test sets."""

    now = 1_000_000.0

    def time(self) -> float:
        return self.now


@pytest.mark.parametrize(("strategy", "after"), [("fixed", 2), ("moving", 1)])
def test_windows_move_or_stay_as_the_setting_says(
    new_sqlite: Callable[[], str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, strategy: str, after: int
):
    hands = Clock()
    monkeypatch.setattr(rate_limits, "time", hands)
    settings = settings_for(
        new_sqlite(), tmp_path, rate_limit_calls=2, rate_limit_window_seconds=10, rate_limit_strategy=strategy
    )
    with running(settings, BOTH) as server:

        def passes() -> bool:
            return not server.call("count", path=PATH)["isError"]

        assert passes()
        hands.now += 8
        assert [passes(), passes()] == [True, False]
        hands.now += 2.5  # the first call was 10.5 s ago, the second 2.5 s
        assert [passes() for _ in range(3)].count(True) == after
        hands.now += 60
        assert [passes() for _ in range(3)] == [True, True, False]


# --- limits shared through Redis ---------------------------------------------------------------------------


class Store:
    """A Redis server that can be stopped and started."""

    def __init__(self, program: str) -> None:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port: int = probe.getsockname()[1]
        self._command = [program, "--port", str(self.port), "--bind", "127.0.0.1", "--save", "", "--appendonly", "no"]
        self.start()

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}/0"

    def start(self) -> None:
        self._process = subprocess.Popen(self._command, stdout=subprocess.DEVNULL)
        wait_until(self._answers)

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()

    def hold(self) -> None:
        self._process.send_signal(signal.SIGSTOP)

    def let_go(self) -> None:
        self._process.send_signal(signal.SIGCONT)

    def _answers(self) -> bool:
        with suppress(OSError), socket.create_connection(("127.0.0.1", self.port), timeout=1):
            return True
        return False


@pytest.fixture
def store() -> Iterator[Store]:
    program = shutil.which("redis-server")
    assert program is not None, "redis-server is needed: run make setup-test"
    store = Store(program)
    yield store
    store.kill()


@pytest.mark.parametrize("strategy", ["fixed", "moving"])
def test_two_servers_that_share_a_redis_share_the_limit(
    new_sqlite: Callable[[], str], tmp_path: Path, redis_url: str, strategy: str
):
    settings = settings_for(
        new_sqlite(), tmp_path, redis_url=redis_url, rate_limit_calls=4, rate_limit_strategy=strategy
    )
    with running(settings, BOTH) as first, beside(first, BOTH) as second:
        token = _unused_token(first, redis_url)
        answers = [server.call("count", token=token, path=PATH) for server in (first, second) * 3]
        assert [one["isError"] for one in answers] == [False] * 4 + [True] * 2
        assert answers[-1]["content"][0]["text"].startswith("rate_limited: Rate limit exceeded. Wait ")
        assert second.rpc("ping", token=token).status_code == 429
        keys = b" ".join(_ask(redis_url, "KEYS", "*"))
        assert b"almanac" in keys
        assert token.encode() not in keys


def _unused_token(server: Running, redis_url: str) -> str:
    # Limits are kept by the token's id, and other tests have used this Redis for other databases' tokens.
    _ask(redis_url, "FLUSHDB")
    return server.new_token("sharer")


def _ask(redis_url: str, *command: str) -> Any:
    with cast("Any", Redis).from_url(redis_url) as redis:
        return redis.execute_command(*command)


def test_a_shared_limit_comes_back_after_its_window(new_sqlite: Callable[[], str], tmp_path: Path, redis_url: str):
    settings = settings_for(
        new_sqlite(), tmp_path, redis_url=redis_url, rate_limit_calls=1, rate_limit_window_seconds=1
    )
    with running(settings, BOTH) as server:
        token = _unused_token(server, redis_url)
        wait_until(lambda: server.call("count", token=token, path=PATH)["isError"], lambda failed: not failed)
        assert server.call("count", token=token, path=PATH)["content"][0]["text"].endswith(
            ("Wait 1 s, then call again.", "Wait 2 s, then call again.")  # Redis counts whole seconds
        )
        wait_until(lambda: server.call("count", token=token, path=PATH)["isError"], lambda failed: not failed)


@pytest.mark.parametrize("outage", ["gone", "silent"])
def test_without_its_redis_nothing_runs_until_it_is_back(
    new_sqlite: Callable[[], str], tmp_path: Path, store: Store, outage: str
):
    settings = settings_for(new_sqlite(), tmp_path, redis_url=store.url)
    with running(settings, BOTH) as server:
        assert server.call("count", path=PATH)["isError"] is False
        before = WATCHED.count
        store.kill() if outage == "gone" else store.hold()
        try:
            for era in ERAS:
                begun = time.monotonic()
                refused = server.call("count", era=era, path=PATH, headers={"x-request-id": f"{outage}-{era}"})
                assert time.monotonic() - begun < 3
                assert (refused["isError"], refused["content"]) == (
                    True,
                    [
                        {
                            "type": "text",
                            "text": "rate_limit_unavailable: Rate limit service unavailable. Try again in a few "
                            "seconds; an operator can run 'almanac doctor'.",
                        }
                    ],
                )
            begun = time.monotonic()
            other = server.rpc("tools/list", path=PATH)
            assert time.monotonic() - begun < 3
            assert (other.status_code, other.json()["error"]["data"]["code"]) == (503, "rate_limit_unavailable")
            assert server.http.get("/health").status_code == 200
            assert WATCHED.count == before
        finally:
            store.start() if outage == "gone" else store.let_go()
        wait_until(lambda: server.call("count", path=PATH)["isError"], lambda failed: not failed)
        assert WATCHED.count == before + 1
        for era in ERAS:
            assert audit_of(server, f"{outage}-{era}")[0]["outcome"] == "rate_limit_unavailable"


def test_many_callers_at_once_get_no_more_than_the_limit(new_sqlite: Callable[[], str], tmp_path: Path, redis_url: str):
    settings = settings_for(new_sqlite(), tmp_path, redis_url=redis_url, rate_limit_calls=25)
    with running(settings, BOTH) as first, beside(first, BOTH) as second:
        token = _unused_token(first, redis_url)
        before = WATCHED.count
        passed: list[bool] = []

        def flood(server: Running) -> None:
            for _ in range(10):
                passed.append(not server.call("count", token=token, path=PATH)["isError"])

        callers = [threading.Thread(target=flood, args=(server,)) for server in (first, second) * 3]
        for caller in callers:
            caller.start()
        for caller in callers:
            caller.join()
        assert (passed.count(True), len(passed)) == (25, 60)
        assert WATCHED.count == before + 25
