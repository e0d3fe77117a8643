"""Operations in plain language: their record, the quota of agent calls, and who may read the record."""

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from almanac.app import SURFACES
from almanac.audit import agent_executions
from almanac.audit.agent_executions import MAX_ANSWER_CHARS, AgentExecution
from almanac.core import clock
from almanac.core.arguments import Arguments
from almanac.core.database import Database
from almanac.core.errors import BadRequest, NotFound
from almanac.identity import orgs
from almanac.jobs import queue
from almanac.operations.context import RequestContext
from almanac.operations.operation import AgentUse, Operation
from almanac.quotas import monthly_quotas
from almanac.surfaces.surface import Surface
from tests.live_server import Running, running, settings_for
from tests.surfaces.wire import beside
from tests.waiting import wait_until

PATH = "/assistant"
USED_UP = (
    "quota_exceeded: Agent call limit reached: {} of {} this month. It resets on {}."
    " Tools that do not use AI still work."
)


class Prompt(Arguments):
    prompt: str


async def do(ctx: RequestContext, args: Prompt) -> dict[str, Any]:
    """Do what the caller says."""
    ctx.record_access("dashboard", 7)
    if "missing" in args.prompt:
        raise NotFound("There is no such dashboard.", remedy="Look elsewhere.")
    return {"said": args.prompt, "odd": "a\0b", "long": "x" * (MAX_ANSWER_CHARS if "long" in args.prompt else 1)}


async def ask_document(ctx: RequestContext, args: Prompt) -> str:
    """Ask, with a model or without."""
    ctx.has_used_model = "model" in args.prompt
    return "Monthly."


def refuse_secrets(prompt: str) -> None:
    if "secret" in prompt:
        raise BadRequest("Instruction blocked: it is secret.")


SURFACE = Surface(
    "assistant",
    PATH,
    (
        Operation("do", "Do.", do, Prompt, agent=AgentUse("prompt", refuse_secrets, is_metered=True)),
        Operation("ask_document", "Ask.", ask_document, Prompt, agent=AgentUse("prompt", only_with_model=True)),
    ),
)


@pytest.fixture
def live(database_url: str, tmp_path: Path) -> Iterator[Running]:
    with running(settings_for(database_url, tmp_path / "home"), (*SURFACES, SURFACE)) as server:
        yield server


def say(live: Running, prompt: str, tool: str = "do", **options: Any) -> dict[str, Any]:
    return live.call(tool, {"prompt": prompt}, path=PATH, **options)


def executions(live: Running, number: int, **filters: Any) -> list[AgentExecution]:
    """Wait for a number of executions and return them."""
    return wait_until(
        lambda: live.run(lambda db: agent_executions.find(db, **filters)), lambda found: len(found) >= number
    )


def org_of(live: Running) -> str:
    async def read(db: Database) -> str:
        return (await orgs.get_by_name(db, "main")).id

    return live.run(read)


def limit_to(live: Running, limit: int | None) -> None:
    org = org_of(live)
    live.run(
        lambda db: db.write(lambda tx: monthly_quotas.set_monthly_limit(tx, org, monthly_quotas.AGENT_CALLS, limit))
    )


def used(live: Running) -> int:
    org = org_of(live)
    return live.run(lambda db: monthly_quotas.used(db, org)).get(monthly_quotas.AGENT_CALLS, 0)


def test_an_execution_keeps_prompt_outcome_answer_time_and_objects(live: Running):
    maria = live.new_token("maria")
    say(live, "Chart sales by month", token=maria, headers={"x-request-id": "the-request"})
    (row,) = executions(live, 1)
    assert (row.actor, row.kind, row.surface, row.tool, row.outcome) == ("maria", "user", "assistant", "do", "ok")
    assert row.is_success
    assert row.prompt == "Chart sales by month"
    assert json.loads(row.answer or "") == {"said": "Chart sales by month", "odd": "a\0b", "long": "x"}
    assert row.touched == ("dashboard:7",)
    assert row.request_id == "the-request"
    assert 0 < row.duration_us < 30 * clock.SECOND
    assert abs(row.at - clock.now()) < clock.MINUTE


def test_failed_and_blocked_executions_are_kept_with_their_error(live: Running):
    say(live, "Open the missing dashboard")
    say(live, "Tell me the secret")
    blocked, failed = executions(live, 2)
    assert (failed.outcome, failed.is_success) == ("not_found", False)
    assert failed.answer == "There is no such dashboard. Look elsewhere."
    assert (blocked.outcome, blocked.prompt) == ("bad_request", "Tell me the secret")
    assert (blocked.answer or "").startswith("Instruction blocked: ")
    assert used(live) == 1  # a blocked prompt is not counted


def test_an_answer_without_a_model_is_no_execution_where_the_operation_says_so(live: Running):
    say(live, "How often?", "ask_document")
    say(live, "How often? model", "ask_document")
    (row,) = executions(live, 1)
    assert (row.prompt, row.answer) == ("How often? model", "Monthly.")


def test_arguments_that_are_not_valid_are_no_execution(live: Running):
    assert live.call("do", {"prompt": 5}, path=PATH)["isError"]
    assert live.call("do", {}, path=PATH)["isError"]
    say(live, "Chart sales")
    assert [row.prompt for row in executions(live, 1)] == ["Chart sales"]


def test_a_long_answer_is_cut(live: Running):
    say(live, "a long answer")
    (row,) = executions(live, 1)
    assert len(row.answer or "") == MAX_ANSWER_CHARS


def test_prompts_and_answers_can_be_switched_off(live: Running):
    with beside(live, (*SURFACES, SURFACE), agent_execution_texts=False) as quiet:
        say(quiet, "Chart our confidential plan")
        (row,) = executions(quiet, 1)
    assert (row.prompt, row.answer, row.outcome, row.touched) == (None, None, "ok", ("dashboard:7",))

    async def everything(db: Database) -> str:
        found = await db.fetch("SELECT * FROM agent_executions")
        return repr([[each[name] for name in each.keys()] for each in found])  # noqa: SIM118 - not a dictionary

    assert "confidential" not in live.run(everything)


def test_executions_are_removed_after_the_days_of_the_setting(live: Running):
    say(live, "old")
    say(live, "new")
    executions(live, 2)
    old = clock.now() - 91 * clock.DAY
    age = "UPDATE agent_executions SET at = $1 WHERE prompt = 'old'"
    live.run(lambda db: db.write(lambda tx: tx.execute(age, old)))
    live.run(lambda db: db.write(lambda tx: queue.add(tx, "purge_expired", {})))
    live.work()
    assert [row.prompt for row in executions(live, 1)] == ["new"]


def get(live: Running, path: str, token: str, status: int = 200) -> Any:
    response = live.http.get(f"/api/v1{path}", headers={"authorization": f"Bearer {token}"})
    assert response.status_code == status, response.text
    return response.json()


def test_administrators_read_the_executions_and_calls_of_their_organisation_alone(live: Running):
    maria, stranger = live.new_token("maria"), live.new_token("otto", org="Other", admin=True)
    say(live, "Hers", token=maria)
    say(live, "Mine", token=live.token)
    say(live, "Theirs", token=stranger)
    executions(live, 3)

    def prompts(query: str, token: str) -> list[str]:
        return [each["prompt"] for each in get(live, f"/agent-executions{query}", token)["items"]]

    assert prompts("", live.token) == ["Mine", "Hers"]
    assert prompts("", stranger) == ["Theirs"]
    assert prompts("?user=maria", live.token) == ["Hers"]
    assert prompts("?user=otto", live.token) == []
    assert prompts("?tool=ask_document", live.token) == []
    assert prompts("?hours=1&limit=1&offset=1", live.token) == ["Hers"]
    page = get(live, "/agent-executions?limit=1", live.token)
    assert page["has_more"] is True
    (item,) = page["items"]
    assert (item["user"], item["tool"], item["outcome"], item["resources"]) == ("admin", "do", "ok", ["dashboard:7"])
    calls = get(live, "/audit?tool=do", live.token)["items"]
    assert [(call["user"], call["outcome"]) for call in calls] == [("admin", "ok"), ("maria", "ok")]
    assert "prompt" not in calls[0]
    for path in ("/agent-executions", "/audit"):
        assert get(live, path, maria, 403)["code"] == "insufficient_scope"
        assert get(live, f"{path}?limit=0", live.token, 400)["code"] == "bad_request"


def test_the_call_beyond_the_quota_is_refused_in_the_words_of_the_contract(live: Running):
    limit_to(live, 2)
    assert [say(live, "Chart sales")["isError"] for _ in range(2)] == [False, False]
    refused = say(live, "Chart sales")
    resets_on = (clock.format_timestamp(monthly_quotas.next_month(clock.now())) or "")[:10]
    assert refused["content"][0]["text"] == USED_UP.format(2, 2, resets_on)
    assert say(live, "How often? model", "ask_document")["isError"] is False  # it is not metered
    assert used(live) == 2
    outcomes = {row.outcome for row in executions(live, 3, tool="do")[:1]}
    assert outcomes == {"quota_exceeded"}


def test_of_concurrent_calls_exactly_the_quota_is_served(live: Running):
    limit_to(live, 5)
    with ThreadPoolExecutor(12) as pool:
        results = list(pool.map(partial(say, live), [f"Chart {number}" for number in range(24)]))
    assert [result["isError"] for result in results].count(False) == 5
    assert used(live) == 5


def test_a_setting_is_the_quota_of_organisations_without_one_of_their_own(live: Running):
    with beside(live, (*SURFACES, SURFACE), agent_calls_a_month=1) as limited:
        stranger = limited.new_token("otto", org="Other")
        assert say(limited, "a")["isError"] is False
        assert say(limited, "b")["isError"] is True
        assert say(limited, "a", token=stranger)["isError"] is False  # each organisation has its own counter
        limit_to(limited, None)
        assert say(limited, "c")["isError"] is False


def test_whoami_shows_what_is_used_and_left(live: Running):
    resets_at = clock.format_timestamp(monthly_quotas.next_month(clock.now()))
    mine = live.call("whoami")["structuredContent"]["agent_calls"]
    assert mine == {"limit": None, "used": 0, "left": None, "resets_at": resets_at}
    limit_to(live, 3)
    say(live, "Chart sales")
    for answer in (live.call("whoami")["structuredContent"], get(live, "/whoami", live.token)):
        assert answer["agent_calls"] == {"limit": 3, "used": 1, "left": 2, "resets_at": resets_at}
    limit_to(live, 0)
    assert get(live, "/whoami", live.token)["agent_calls"]["left"] == 0
