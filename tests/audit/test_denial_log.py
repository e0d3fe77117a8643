"""Denied access leaves a line in the log with the user and the object, and not too many."""

import pytest
from structlog.testing import capture_logs

from almanac.audit import denial_log
from almanac.audit.denial_log import DenialLog
from almanac.core.database import Database
from tests.identity.people import Town, settle


@pytest.fixture
async def town(database: Database) -> Town:
    return await settle(database)


async def test_a_denial_is_logged_with_the_user_and_the_object(town: Town):
    maria = await town.add("maria")
    call = town.call(await town.actor(maria))
    with capture_logs() as lines:
        DenialLog().record(call, "document", 52)
    (line,) = lines
    assert line == {
        "event": "access_denied", "log_level": "warning", "user": maria.id, "user_name": "maria",
        "org": town.acme.id, "resource": "document 52", "request_id": "a-request", "not_logged": 0,
    }  # fmt: skip


async def test_many_denials_of_one_user_neither_fill_the_log_nor_hide_those_of_another(
    town: Town, monkeypatch: pytest.MonkeyPatch
):
    seconds = 6000.0
    monkeypatch.setattr(denial_log.time, "monotonic", lambda: seconds)
    maria = town.call(await town.actor(await town.add("maria")))
    eva = town.call(await town.actor(await town.add("eva")))
    log = DenialLog()
    with capture_logs() as lines:
        for number in range(1_000):
            log.record(maria, "dashboard", number)
        log.record(eva, "dashboard", "x" * 1_000)
        assert [line["user_name"] for line in lines] == ["maria"] * denial_log.MAX_LINES_PER_WINDOW + ["eva"]
        assert len(lines[-1]["resource"]) < 120
        seconds += denial_log.WINDOW_SECONDS
        log.record(maria, "dashboard", 1)
    assert lines[-1]["not_logged"] == 1_000 - denial_log.MAX_LINES_PER_WINDOW
