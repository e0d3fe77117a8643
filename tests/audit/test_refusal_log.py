"""Requests without a valid token leave a line in the log, and not too many."""

from pathlib import Path

import pytest
from structlog.testing import capture_logs

from almanac.audit import refusal_log
from almanac.audit.refusal_log import RefusalLog
from tests.live_server import running, settings_for


def test_a_refused_token_is_logged_with_the_address_and_without_the_token(database_url: str, tmp_path: Path) -> None:
    settings = settings_for(database_url, tmp_path / "home", trusted_proxies=("127.0.0.0/8",))
    token = "wg-guessed"
    paths = ["/mcp", "/mcp/memory", "/gateway/mcp", "/api/v1/search", "/knowledge-base/retrieve", "/a2a/weknora"]
    with capture_logs() as logs, running(settings) as live:
        for number, path in enumerate(paths):
            for _ in range(3):
                headers = {
                    "x-api-key": token, "authorization": f"Bearer {token}", "accept": "application/json",
                    "x-forwarded-for": f"203.0.113.{number}",
                }  # fmt: skip
                assert live.http.post(path, json={}, headers=headers).status_code == 401, path
        body = {"key": token, "scope": "knowledge-base"}
        assert live.http.post("/keys/verify", json=body, headers={"x-forwarded-for": "203.0.113.99"}).status_code == 401
    refused = [line for line in logs if line["event"] == "credential_refused"]
    assert [line["address"] for line in refused] == [
        *(f"203.0.113.{number}" for number in range(len(paths))),
        "203.0.113.99",
    ]
    assert [line["not_logged"] for line in refused] == [0, *[2] * len(paths)]
    assert {line["log_level"] for line in refused} == {"warning"}
    assert token not in str(logs)


def test_many_addresses_do_not_fill_the_log(monkeypatch: pytest.MonkeyPatch) -> None:
    seconds = 6000.0
    monkeypatch.setattr(refusal_log.time, "monotonic", lambda: seconds)
    log = RefusalLog()
    with capture_logs() as lines:
        for number in range(1000):
            log.record(f"2001:db8::{number:x}", "rest", "r")
        assert len(lines) == refusal_log.MAX_LINES_PER_WINDOW
        seconds += refusal_log.WINDOW_SECONDS
        log.record("2001:db8::1", "rest", "r")
    assert lines[-1]["not_logged"] == 1000 - refusal_log.MAX_LINES_PER_WINDOW
