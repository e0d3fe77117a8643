"""The program as a process: starting, stopping, crashes, and several processes."""

import ctypes
import json
import os
import re
import signal
import socket
import subprocess
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx2
import pytest

from tests.cli.program import (
    PATIENCE,
    Answer,
    Server,
    children,
    command,
    environment,
    facts,
    is_alive,
    run,
    serving,
    until_ready,
    wait_until_gone,
    workers,
)
from tests.conftest import Cluster
from tests.waiting import wait_until
from tests.web.test_health import key, samples

TOKEN = re.compile(r"wg-[A-Za-z0-9_-]{43}")


def test_a_first_start_shows_a_token_once_and_a_stop_is_clean_and_takes_the_worker_along(tmp_path: Path):
    home = tmp_path / "data"
    with serving(home, lines=4) as server:
        at, token, connect, paste = server.said
        assert re.fullmatch(r"Almanac is at http://127\.0\.0\.1:\d+\n", at)
        assert re.fullmatch(
            r"First token \(administrator 'admin'; shown once, keep it safe\): wg-[A-Za-z0-9_-]{43}\n", token
        )
        assert connect == "Connect Claude Code with:\n"
        assert paste == (
            f"  claude mcp add --transport http almanac {server.url}/mcp"
            f' --header "Authorization: Bearer {server.token}"\n'
        )
        first = server.token
        me = facts(server.call("whoami", first))
        assert (me["name"], me["organisation"]["name"], me["is_admin"]) == ("admin", "main", True)
        assert server.call("whoami", "wg-" + "A" * 43).status_code == 401
        assert (home / "secret").stat().st_mode & 0o077 == 0
        (worker,) = workers(server.process.pid)

        # Another start at the same port says so; commands work beside a running server.
        port = server.url.rpartition(":")[2]
        in_use = run(home, "serve", "--port", port)
        assert in_use.complaint().startswith(f"Cannot listen on 127.0.0.1 port {port}: Address already in use.")
        made = run(home, "token", "add", "admin", "--expires", "1h")
        assert (made.code, made.err) == (0, "")
        assert TOKEN.fullmatch(made.out.strip())
        assert made.out.count("\n") == 1
        assert facts(server.call("whoami", made.out.strip()))["name"] == "admin"

        assert server.stop() == 0
        wait_until_gone(5, worker)
        rest = server.process.stdout.read() if server.process.stdout else ""
        assert rest == ""
        assert first not in server.errors
        logged = [json.loads(line) for line in server.errors.splitlines()]
        assert [line["event"] for line in logged if line["event"] in ("serving", "stopping")] == ["serving", "stopping"]

    kept = (home / "secret").read_text()
    with serving(home) as server:
        at, endpoint = server.said
        assert endpoint == f"MCP endpoint: {server.url}/mcp   (make a token with: almanac token add USER)\n"
        assert not TOKEN.search(at + endpoint)
        assert facts(server.call("whoami", first))["name"] == "admin"
        assert (home / "secret").read_text() == kept
        (worker,) = workers(server.process.pid)
        os.kill(server.process.pid, signal.SIGKILL)
        server.process.wait()
        wait_until_gone(5, worker)  # it does not outlive a killed server

    audit = run(home, "audit", "--json", "--tool", "whoami")
    assert audit.code == 0
    assert len(json.loads(audit.out)) >= 2, "what was called before the clean stop is all there"


def test_a_worker_that_dies_is_started_again(tmp_path: Path):
    with serving(tmp_path / "data") as server:
        (worker,) = workers(server.process.pid)
        os.kill(worker, signal.SIGKILL)
        wait_until_gone(5, worker)
        again = wait_until(lambda: set(workers(server.process.pid)) - {worker}, seconds=15)
        assert len(again) == 1
        assert "job_worker_died" in server.errors
        assert server.stop() == 0
        wait_until_gone(5, *again)


def test_a_public_bind_is_refused_with_a_weak_secret_and_accepted_with_a_generated_one(tmp_path: Path):
    weak = run(tmp_path / "data", "serve", "--host", "0.0.0.0", "--port", "0", ALMANAC_SECRET="changeme" * 4)
    assert weak.complaint().startswith("Refusing to listen on 0.0.0.0: ALMANAC_SECRET is a default or too easy")
    assert not (tmp_path / "data").exists()
    with serving(tmp_path / "data", "--host", "0.0.0.0", settings={"ALMANAC_JOB_WORKERS": "0"}) as server:
        assert server.url.startswith("http://127.0.0.1:")
        assert facts(server.call("whoami", server.token))["name"] == "admin"
        assert len((tmp_path / "data" / "secret").read_text()) >= 43
        assert children(server.process.pid) == {}
        server.process.send_signal(signal.SIGINT)
        assert server.process.wait(20) == 0


def test_a_home_that_cannot_be_written_is_one_line(tmp_path: Path):
    home = tmp_path / "data"
    home.mkdir()
    for is_empty in (True, False):
        home.chmod(0o700)
        assert is_empty or run(home, "migrate").code == 0
        home.chmod(0o500)
        for arguments in (["serve", "--port", "0"], ["migrate"], ["worker"], ["stdio", "--token", "wg-x"]):
            done = subprocess.run(
                command(*arguments), capture_output=True, text=True, timeout=90, cwd=tmp_path,
                env=environment(home, {}), preexec_fn=_drop_write_override,
            )  # fmt: skip
            complaint = Answer(done.returncode, done.stdout, done.stderr).complaint()
            assert complaint.startswith(f"The home folder {home} cannot be written."), complaint
    home.chmod(0o700)


def _drop_write_override() -> None:
    """Let file permissions apply to root as well: without CAP_DAC_OVERRIDE after the exec."""
    ctypes.CDLL(None).prctl(24, 1)  # PR_CAPBSET_DROP; another user than root may not and need not


def test_a_misspelt_variable_and_an_unreachable_redis_are_warned_of_at_the_start(tmp_path: Path):
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        url = f"redis://127.0.0.1:{closed.getsockname()[1]}/0"
        chosen = {"REDIS_URL": url, "ALMANAC_PROT": "1", "ALMANAC_JOB_WORKERS": "0"}
        with serving(tmp_path / "data", settings=chosen) as server:
            warnings = [line for line in map(json.loads, server.errors.splitlines()) if line["level"] == "warning"]
    assert [(line.get("variable"), line.get("did_you_mean")) for line in warnings] == [
        ("ALMANAC_PROT", "ALMANAC_PORT"),
        (None, None),
    ]
    assert warnings[1]["event"].startswith("redis cannot be reached")


def test_a_worker_beside_a_server_leaves_the_warning_of_a_misspelt_variable_to_it(tmp_path: Path):
    assert "ALMANAC_PROT" in run(tmp_path / "data", "org", "add", "Acme", ALMANAC_PROT="1").err
    worker = subprocess.run(
        command("worker", "--with-parent"),
        env=environment(tmp_path / "data", {"ALMANAC_PROT": "1"}),
        stdin=subprocess.DEVNULL,  # a parent that has ended
        capture_output=True,
        text=True,
        timeout=90,
        cwd=tmp_path,
    )
    assert (worker.returncode, worker.stderr) == (0, "")


def test_settings_come_from_a_file_the_environment_and_options_and_reach_the_worker(
    tmp_path: Path, postgres_cluster: Cluster
):
    url = postgres_cluster.take()
    (tmp_path / "almanac.toml").write_text('rate_limit_calls = 7\njob_workers = 1\nlog_level = "warning"\n')
    chosen = {"ALMANAC_DATABASE_URL": url, "ALMANAC_RATE_LIMIT_WINDOW_SECONDS": "33"}
    with serving(tmp_path / "data", settings=chosen) as server:
        limit = facts(server.call("whoami", server.token))["rate_limit"]
        assert (limit["limit"], limit["window_seconds"]) == (7, 33)
        assert not (tmp_path / "data" / "almanac.db").exists()
        (worker,) = workers(server.process.pid)
        environ = Path(f"/proc/{worker}/environ").read_bytes()
        assert url.encode() in environ
        assert server.stop() == 0
        wait_until_gone(5, worker)
        assert server.errors == ""
    postgres_cluster.drop(url)


def test_two_server_processes_share_limits_metrics_and_revocations(
    tmp_path: Path, postgres_cluster: Cluster, redis_url: str
):
    url = postgres_cluster.take()
    settings = {
        "ALMANAC_DATABASE_URL": url,
        "REDIS_URL": redis_url.rpartition("/")[0] + "/12",
        "ALMANAC_RATE_LIMIT_CALLS": "60",
        "ALMANAC_DATABASE_POOL_SIZE": "3",
    }
    with serving(tmp_path / "data", "--workers", "2", settings=settings) as server, ExitStack() as stack:
        admin = server.token
        made = run(tmp_path / "data", "token", "add", "admin", **settings)
        token = made.out.strip()

        # Both serve: the request ids of each process have their own prefix.
        ours = _one_client_for_each_process(server, admin, stack)
        assert len(ours) == 2

        # Both processes share the limit of 60 calls.
        with ThreadPoolExecutor(8) as pool:
            calls = [pool.submit(server.call, "whoami", token, ours[number % 2]) for number in range(80)]
            outcomes = [call.result().json()["result"]["isError"] for call in calls]
        assert (outcomes.count(False), outcomes.count(True)) == (60, 20)

        # The metrics of each cover both.
        for client in ours:
            found = samples(client.get(f"{server.url}/metrics").text)
            limited = key("almanac_calls_total", surface="almanac", tool="whoami", outcome="rate_limited")
            assert found[limited] == 20
            assert found[key("almanac_calls_total", surface="almanac", tool="whoami", outcome="ok")] >= 60
            seconds = key("almanac_call_seconds_count", surface="almanac", tool="whoami")
            assert found[seconds] == sum(
                value for (name, labels), value in found.items()
                if name == "almanac_calls_total" and dict(labels)["tool"] == "whoami"
            )  # fmt: skip

        # A revocation takes effect at once in both.
        fresh = run(tmp_path / "data", "token", "add", "admin", **settings).out.strip()
        (id, *_) = [facts(server.call("whoami", fresh, client))["token"]["id"] for client in ours]
        assert run(tmp_path / "data", "token", "revoke", str(id), **settings).code == 0
        assert [server.call("whoami", fresh, client).status_code for client in ours] == [401, 401]

        below = children(server.process.pid)
        assert server.stop() == 0
        wait_until_gone(10, *below)
    postgres_cluster.drop(url)


def test_server_and_worker_processes_import_nothing_from_the_current_folder(
    tmp_path: Path, postgres_cluster: Cluster, redis_url: str
):
    url = postgres_cluster.take()
    settings = {"ALMANAC_DATABASE_URL": url, "REDIS_URL": redis_url, "ALMANAC_JOB_WORKERS": "1"}
    settings["ALMANAC_DATABASE_POOL_SIZE"] = "2"
    marker = tmp_path / "imported"
    with serving(tmp_path / "data", "--workers", "2", settings=settings) as server:
        trap = f"open({str(marker)!r}, 'a').write(__name__)"
        for name in ("almanac", "multiprocessing", "structlog"):
            (tmp_path / name).mkdir()
            (tmp_path / name / "__init__.py").write_text(trap)
        first = children(server.process.pid)
        assert len(first) >= 3
        assert workers(server.process.pid)
        for pid in first:
            os.kill(pid, signal.SIGKILL)
        wait_until_gone(10, *first)
        wait_until(lambda: len(children(server.process.pid)) >= 3 or marker.exists(), seconds=PATIENCE)
        assert workers(server.process.pid)
        until_ready(server)
        assert not marker.exists(), marker.read_text()
    postgres_cluster.drop(url)


def test_server_processes_do_not_outlive_a_killed_parent(tmp_path: Path, postgres_cluster: Cluster, redis_url: str):
    url = postgres_cluster.take()
    settings = {"ALMANAC_DATABASE_URL": url, "REDIS_URL": redis_url, "ALMANAC_DATABASE_POOL_SIZE": "2"}
    with serving(tmp_path / "data", "--workers", "2", settings=settings) as server:
        below = children(server.process.pid)
        assert len(below) >= 2
        os.kill(server.process.pid, signal.SIGKILL)
        server.process.wait()
        try:
            wait_until_gone(10, *below)  # otherwise they would hold the port
        finally:
            for pid in filter(is_alive, below):
                os.kill(pid, signal.SIGKILL)
    postgres_cluster.drop(url)


def test_the_program_speaks_plainly_when_run_as_a_process(tmp_path: Path):
    home = tmp_path / "data"
    helped = run(home, "--help")
    assert (helped.code, helped.err) == (0, "")
    assert "almanac serve" in helped.out
    unknown = run(home, "token", "add", "nobody")
    assert unknown.complaint() == (
        f"There is no Almanac in {home}. "
        "Name its folder with --home or ALMANAC_HOME, or start one there with 'almanac serve'."
    )
    assert not home.exists()  # a query creates nothing
    elsewhere = run(home, "org", "list", "--home", "almanac-data").complaint()
    assert elsewhere.startswith(f"There is no Almanac in {tmp_path / 'almanac-data'}. ")


def _one_client_for_each_process(server: Server, token: str, stack: ExitStack) -> list[httpx2.Client]:
    found: dict[str, httpx2.Client] = {}
    ends = time.monotonic() + 20
    while len(found) < 2 and time.monotonic() < ends:
        batch = [stack.enter_context(httpx2.Client(timeout=30)) for _ in range(8)]
        with ThreadPoolExecutor(8) as pool:
            names = [pool.submit(_process_of, server, client) for client in batch]
        for client, name in zip(batch, names, strict=True):
            found.setdefault(name.result(), client)
    return list(found.values())


def _process_of(server: Server, client: httpx2.Client) -> str:
    refused = server.call("whoami", "nobody's", client)
    assert refused.status_code == 401
    return refused.headers["x-request-id"].partition("-")[0]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_stdio_server_told_to_stop_leaves_its_rows_and_goes(tmp_path: Path, number: signal.Signals):
    home = tmp_path / "data"
    for words in (("org", "add", "main"), ("user", "add", "maria")):
        assert run(home, *words).code == 0
    token = run(home, "token", "add", "maria").out.strip()
    process = subprocess.Popen(
        command("stdio", "--token", token),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env=environment(home, {}),
        cwd=tmp_path,
    )
    with process:
        assert process.stdin is not None
        assert process.stdout is not None
        for message in STDIO_CALL:
            process.stdin.write(json.dumps(message).encode() + b"\n")
        process.stdin.flush()
        answers = [json.loads(process.stdout.readline()) for _ in range(2)]
        assert answers[1]["result"]["structuredContent"]["name"] == "maria"
        process.send_signal(number)
        assert process.wait(10) == 0
    assert [row["tool"] for row in json.loads(run(home, "audit", "--json").out)] == ["whoami"]


def test_a_first_start_that_fails_has_used_up_no_token(tmp_path: Path):
    home = tmp_path / "data"
    home.mkdir()
    # Opening the database works and serving fails: this process listens on the port.
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        failed = run(home, "serve", "--port", str(taken.getsockname()[1]))
    assert failed.code == 1
    assert "wg-" not in failed.out  # nothing was created yet
    with serving(home, lines=4) as server:
        assert "wg-" in "".join(server.said)


STDIO_CALL: list[dict[str, Any]] = [
    {
        "jsonrpc": "2.0",
        "id": 1,
        "method": "initialize",
        "params": {
            "protocolVersion": "2025-11-25",
            "capabilities": {},
            "clientInfo": {"name": "test", "version": "1"},
        },
    },
    {"jsonrpc": "2.0", "method": "notifications/initialized"},
    {"jsonrpc": "2.0", "id": 2, "method": "tools/call", "params": {"name": "whoami", "arguments": {}}},
]
