"""The agent over HTTP: the messages of WeKnora's document, tasks, and errors."""

import json
import threading
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

import httpx2
import pytest

from almanac.assist import agent as agents
from almanac.assist import agent_tasks
from almanac.core import clock
from almanac.core.database import Database
from almanac.core.errors import Unavailable
from almanac.core.settings import Settings
from tests.live_server import Running, running, settings_for
from tests.surfaces.weknora.conftest import Library
from tests.surfaces.weknora.stand_ins import EXAMPLE_REQUEST, EXAMPLE_RESPONSE, KEY, Answer, StandIn, said, standing_in
from tests.surfaces.wire import audit_of
from tests.waiting import wait_until
from tests.web.api import Api

LAMP = "What does the lamp burn?"


def events(answer: httpx2.Response) -> list[dict[str, Any]]:
    assert answer.headers["content-type"].startswith("text/event-stream")
    lines = [line for line in answer.text.splitlines() if line.startswith("data: ")]
    return [json.loads(line.removeprefix("data: ")) for line in lines]


def searches(answer: dict[str, Any]) -> list[tuple[str, str, float]]:
    return [(each["query"], each["search_mode"], each["min_score"]) for each in answer["metadata"]["searches"]]


# Answers


def test_a_message_is_answered_from_the_bases_with_citations(library: Library):
    answer = library.message(LAMP).json()
    assert answer.keys() == {"response", "sessionId", "citations", "metadata"}
    assert answer["response"].startswith("The lamp in the hall burns whale oil and is lit at dusk. [1]\n")
    [cited] = answer["citations"]
    assert (cited["number"], cited["knowledge_title"], cited["knowledge_filename"]) == (1, "Lamps", "lamps.md")
    assert cited["quote"] in answer["response"]
    assert {"lamp", "burns"} <= {each.lower() for each in cited["highlights"]}
    assert searches(answer) == [(LAMP, "hybrid", 0.5)]
    assert answer["metadata"]["model"] == "extractive"
    assert answer["metadata"]["processingTimeMs"] >= 0


def test_a_context_may_be_plain_or_under_a_name_of_its_own_and_needs_no_address(library: Library):
    token, base = library.live.token, library.base
    for context in (
        {"api_key": token, "kb_ids": [base]},
        {"weknora": {"api_key": token, "kb_ids": [str(base)], "weknora_base_url": library.live.url + "/"}},
        {"api_key": token, "kb_ids": [base], "project": "whatever else an agent is told"},
    ):
        answer = library.live.http.post("/a2a/weknora/messages", json={"message": LAMP, "context": context})
        assert "whale oil" in answer.json()["response"]


def test_a_token_in_the_headers_will_do_and_then_all_it_may_read_is_searched(library: Library):
    body = {"message": LAMP}
    headers = {"authorization": f"Bearer {library.live.token}"}
    assert "whale oil" in library.live.http.post("/a2a/weknora/messages", json=body, headers=headers).json()["response"]
    nobody = library.live.new_token("reader without bases", kind="agent")
    answer = library.live.http.post("/a2a/weknora/messages", json=body, headers={"x-api-key": nobody}).json()
    assert answer["citations"] == []


def test_nobody_is_answered_without_a_good_key(library: Library):
    http = library.live.http
    refused: list[tuple[Any, dict[str, str]]] = [
        ({"message": LAMP}, {}),
        ({"message": LAMP, "context": {"api_key": "wg-nobody", "kb_ids": [library.base]}}, {}),
        ({"message": LAMP, "context": {"api_key": library.live.token}}, {"authorization": "Bearer wg-nobody"}),
        ([], {}),
        ("text", {}),
    ]
    for body, headers in refused:
        assert http.post("/a2a/weknora/messages", json=body, headers=headers).status_code == 401
    assert http.post("/a2a/weknora/messages", content=b"{" * 70_000).status_code == 413


def test_a_revoked_or_narrow_key_searches_nothing(library: Library):
    headers = {"authorization": f"Bearer {library.live.token}"}
    context = {"api_key": "wg-nobody", "kb_ids": [library.base]}
    body = {"message": LAMP, "context": context}
    answer = library.live.http.post("/a2a/weknora/messages", json=body, headers=headers).json()
    assert answer["response"].startswith("Search failed: 401 - No valid token")
    context["api_key"] = library.live.new_token("agent", scope=["memory:read"])
    answer = library.live.http.post("/a2a/weknora/messages", json=body, headers=headers).json()
    assert answer["response"].startswith("Search failed: 403 - ")
    stranger = library.live.new_token("stranger", org="elsewhere", admin=True)
    assert library.message(LAMP, context={"api_key": stranger}).json()["response"].startswith("Search failed: 404 - ")


def test_no_bases_chosen_leaves_the_agent_without_its_tool(library: Library):
    for none in ([], [""]):
        answer = library.message(LAMP, context={"kb_ids": none}).json()
        assert (answer["response"], answer["citations"]) == (agents.NOTHING_CHOSEN, [])
        assert answer["metadata"]["searches"] == []


@pytest.mark.parametrize(
    "wrong",
    [
        {"message": ""},
        {"message": " "},
        {"message": "x" * 4001},
        {"message": 1},
        {"sessionId": ""},
        {"sessionId": "x" * 129},
        {"sessionMode": "other"},
        {"context": {"kb_ids": "7"}},
        {"nonsense": 1},
    ],
)
def test_what_is_no_message_is_refused(library: Library, wrong: dict[str, Any]):
    body = {"message": LAMP, "context": {"api_key": library.live.token, "kb_ids": [library.base]}, **wrong}
    headers = {"authorization": f"Bearer {library.live.token}"}
    answer = library.live.http.post("/a2a/weknora/messages", json=body, headers=headers)
    assert (answer.status_code, answer.json()["code"]) == (400, "bad_request")


def test_an_agent_that_is_not_there_is_not_found(library: Library):
    headers = {"authorization": f"Bearer {library.live.token}"}
    for path in ("/a2a/nobody/messages", "/a2a/nobody"):
        assert library.live.http.post(path, headers=headers, json={"message": "x"}).status_code == 404
    assert library.live.http.get("/a2a/nobody/.well-known/agent-card.json").status_code == 404


# Retries


def test_where_the_threshold_leaves_nothing_the_agent_looks_below_it_and_says_so(library: Library):
    answer = library.message("Is anything said of turns or of dusk or of mornings in the harbour town?").json()
    tried = searches(answer)
    assert tried[0][2] == 0.5
    assert 1 < len(tried) <= 4
    assert [threshold for _, _, threshold in tried[1:]] == sorted([each[2] for each in tried[1:]], reverse=True)
    assert answer["response"].startswith(agents.NOT_DIRECTLY)
    assert answer["citations"]


def test_a_question_of_two_parts_is_taken_apart(library: Library):
    question = "Who does the polishing of bearings in Bremen; how many turns in Spain are there?"
    tried = [query for query, _, _ in searches(library.message(question).json())]
    assert tried[0] == question
    assert "Who does the polishing of bearings in Bremen" in tried


def test_an_agent_searches_no_more_often_than_the_settings_say(new_sqlite: Callable[[], str], tmp_path: Path):
    with running(settings_for(new_sqlite(), tmp_path, agent_searches=1, agent_names="one,two")) as live:
        context = {"api_key": live.token}
        answer = live.http.post("/a2a/two/messages", json={"message": "anything at all", "context": context}).json()
        assert len(answer["metadata"]["searches"]) == 1
        assert answer["response"].splitlines()[0] == agents.NOTHING_FOUND
        assert "- Try different keywords or rephrase your query" in answer["response"]


# Conversations


def test_a_question_that_follows_is_understood_by_those_before_it(library: Library):
    first = library.message("When is the bearing of the pump P-40 oiled?").json()
    assert "every spring" in first["response"]
    second = library.message("And who does it?", sessionId=first["sessionId"]).json()
    assert second["sessionId"] == first["sessionId"]
    assert second["metadata"]["resolvedQuestion"] == "And who does it? (bearing pump P-40 oiled)"
    assert "The foreman does the oiling himself." in second["response"]
    third = library.message("What about the lamp in the hall?", sessionId=first["sessionId"]).json()
    assert "whale oil" in third["response"]


def test_a_session_is_begun_anew_on_request_and_is_its_caller_s_own(library: Library):
    session = library.message("When is the bearing of the pump P-40 oiled?").json()["sessionId"]
    anew = library.message("And who does it?", sessionId=session, sessionMode="new").json()
    assert anew["sessionId"] != session
    assert anew["metadata"]["resolvedQuestion"] == "And who does it?"
    kept = library.message("And who does it?", sessionId=session, sessionMode="reuse").json()
    assert kept["metadata"]["resolvedQuestion"] != "And who does it?"
    other = library.live.new_token("another", admin=True)
    theirs = library.message("And who does it?", sessionId=session, context={"api_key": other}).json()
    assert theirs["metadata"]["resolvedQuestion"] == "And who does it?"


def test_what_was_said_is_forgotten_after_its_time(library: Library):
    session = library.message(LAMP).json()["sessionId"]

    async def count(db: Database) -> int:
        rows = await db.fetch("SELECT count(*) AS n FROM agent_tasks WHERE session_id = $1", session)
        return rows[0]["n"]

    async def age(db: Database) -> None:
        sql = "UPDATE agent_tasks SET created_at = 0, state = 'working', updated_at = 0 WHERE session_id = $1"
        await db.write(lambda tx: tx.execute(sql, session))
        await db.write(lambda tx: agent_tasks.prune(tx, clock.now() - clock.DAY))

    assert library.live.run(count) == 1
    library.live.run(age)
    assert library.live.run(count) == 0


# Streams, tasks, and stopping them


def test_progress_and_answer_are_streamed(library: Library):
    for answer in (
        library.message(LAMP, query="?stream=true"),
        library.message(LAMP, stream=True),
        library.live.http.post(
            "/a2a/weknora/messages",
            json={"message": LAMP, "context": {"kb_ids": [library.base]}},
            headers={"accept": "text/event-stream", "authorization": f"Bearer {library.live.token}"},
        ),
    ):
        told = events(answer)
        assert told[0]["type"] == "task"
        states = [each["state"] for each in told if each["type"] == "status"]
        assert states == ["analysing", "searching", "searched", "answering"]
        assert "".join(each["text"] for each in told if each["type"] == "text") == told[-1]["response"]
        assert (told[-1]["type"], told[-1]["sessionId"]) == ("done", told[0]["sessionId"])
        assert told[-1]["citations"][0]["knowledge_title"] == "Lamps"


def test_a_task_can_be_looked_at_by_its_sender_alone(library: Library):
    live = library.live
    answer = library.message(LAMP).json()
    path = f"/a2a/weknora/tasks/{answer['metadata']['taskId']}"
    mine = live.http.get(path, headers={"x-api-key": live.token}).json()
    assert (mine["status"], mine["response"], mine["citations"]) == (
        "completed",
        answer["response"],
        answer["citations"],
    )
    other = {"x-api-key": live.new_token("another", admin=True)}
    assert live.http.get(path, headers=other).status_code == 404
    assert live.http.delete(path, headers=other).status_code == 404
    assert live.http.get("/a2a/weknora/tasks/unknown", headers={"x-api-key": live.token}).status_code == 404
    over = live.http.delete(path, headers={"x-api-key": live.token})
    assert (over.status_code, over.json()["code"]) == (409, "task_finished")


def test_an_answer_is_withheld_from_a_caller_who_may_no_longer_read_its_base(library: Library):
    live = library.live
    reader = live.new_token("borrower", scope=["search:read"])
    elsewhere = live.new_token("borrower", scope=["search:read"], bases=[library.base + 1])
    owner = Api(live, live.token)
    owner.ask("PUT", f"/bases/{library.base}/shares", 204, json={"user": "borrower", "role": "Reporter"})

    def ask(token: str, text: str, **more: Any) -> Any:
        return live.http.post(
            "/a2a/weknora/messages", json={"message": text, **more}, headers={"x-api-key": token}
        ).json()

    def look(token: str, task: str) -> tuple[str, str, int]:
        told = live.http.get(f"/a2a/weknora/tasks/{task}", headers={"x-api-key": token}).json()
        return told["status"], told["response"], len(told["citations"])

    answer = ask(reader, LAMP)
    assert "whale oil" in answer["response"]
    task, session = answer["metadata"]["taskId"], answer["sessionId"]
    assert look(reader, task) == ("completed", answer["response"], 1)
    assert look(elsewhere, task) == ("completed", agent_tasks.WITHHELD, 0)
    body = {"jsonrpc": "2.0", "id": 1, "method": "GetTask", "params": {"id": task}}
    told = live.http.post("/a2a/weknora", json=body, headers={"x-api-key": elsewhere}).json()
    [artifact] = told["result"]["artifacts"]
    assert artifact["parts"] == [{"text": agent_tasks.WITHHELD, "mediaType": "text/plain"}]
    # An earlier turn that is withheld does not resolve a follow-up question.
    assert (
        ask(reader, "And when is it lit?", sessionId=session)["metadata"]["resolvedQuestion"] != "And when is it lit?"
    )
    again = ask(elsewhere, "And when is it lit?", sessionId=session)
    assert again["metadata"]["resolvedQuestion"] == "And when is it lit?"
    owner.ask("DELETE", f"/bases/{library.base}/shares", 204, params={"user": "borrower"})
    assert look(reader, task) == ("completed", agent_tasks.WITHHELD, 0)


def test_a_follow_up_with_another_user_s_key_reads_as_that_user(library: Library):
    live = library.live
    headers = {"x-api-key": live.new_token("front end", scope=["search:read"])}
    context = {"api_key": live.token, "kb_ids": [library.base]}

    def ask(text: str, **more: Any) -> Any:
        body = {"message": text, "context": context, **more}
        return live.http.post("/a2a/weknora/messages", json=body, headers=headers).json()

    answer = ask(LAMP)
    follow_up = "And when is it lit?"
    assert ask(follow_up, sessionId=answer["sessionId"])["metadata"]["resolvedQuestion"] != follow_up
    told = live.http.get(f"/a2a/weknora/tasks/{answer['metadata']['taskId']}", headers=headers).json()
    assert told["response"] == agent_tasks.WITHHELD  # the front end itself may not read the base


@pytest.fixture
def slow(library: Library) -> Iterator[tuple[Library, Running, StandIn]]:
    """A server that may search at a slow endpoint."""
    with standing_in(StandIn([Answer(pause=30)])) as endpoint:
        settings = settings_for(library.live.settings.store_url, library.live.settings.home, fetch_allow="127.0.0.1")
        with second(library, settings) as live:
            yield library, live, endpoint


@contextmanager
def second(library: Library, settings: Settings) -> Generator[Running]:
    """A second server with the database of the first one."""
    with running(settings, token=library.live.token) as live:
        yield live


def test_a_message_is_stopped_by_its_task_in_whatever_process_it_is_worked_on(
    slow: tuple[Library, Running, StandIn],
):
    library, live, endpoint = slow
    body = {"message": LAMP, "context": {"api_key": KEY, "kb_ids": ["kb1"], "weknora_base_url": endpoint.url}}
    headers = {"authorization": f"Bearer {library.live.token}"}
    answers: list[httpx2.Response] = []
    thread = threading.Thread(
        target=lambda: answers.append(live.http.post("/a2a/weknora/messages?stream=true", json=body, headers=headers))
    )
    thread.start()
    wait_until(lambda: endpoint.requests)

    async def newest(db: Database) -> str:
        return (await db.fetch("SELECT id FROM agent_tasks ORDER BY number DESC LIMIT 1"))[0]["id"]

    path = f"/a2a/weknora/tasks/{library.live.run(newest)}"
    assert library.live.http.get(path, headers=headers).json()["status"] == "working"
    assert library.live.http.delete(path, headers=headers).json()["status"] == "canceled"  # by the other server
    thread.join(timeout=10)
    assert not thread.is_alive()
    last = events(answers[0])[-1]
    assert (last["type"], last["code"]) == ("error", "cancelled")
    assert library.live.http.get(path, headers=headers).json()["status"] == "canceled"


def test_whoever_hangs_up_has_cancelled(slow: tuple[Library, Running, StandIn]):
    library, live, endpoint = slow
    body = {"message": "hang up", "context": {"api_key": KEY, "kb_ids": ["kb1"], "weknora_base_url": endpoint.url}}
    headers = {"authorization": f"Bearer {library.live.token}", "x-request-id": "hung-up"}
    with pytest.raises(httpx2.ReadTimeout):
        live.http.post("/a2a/weknora/messages", json=body, headers=headers, timeout=0.5)

    async def state(db: Database) -> str:
        rows = await db.fetch("SELECT state FROM agent_tasks WHERE question = 'hang up' ORDER BY number DESC LIMIT 1")
        return rows[0]["state"]

    wait_until(lambda: live.run(state), lambda found: found == "canceled")
    [row] = audit_of(live, "hung-up")
    assert row["outcome"] == "cancelled"


def state_of(live: Running, question: str) -> str:
    async def read(db: Database) -> str:
        sql = "SELECT state FROM agent_tasks WHERE question = $1 ORDER BY number DESC LIMIT 1"
        return (await db.fetch(sql, question))[0]["state"]

    return live.run(read)


def test_who_cannot_look_whether_a_message_was_stopped_has_not_stopped_it(slow: tuple[Library, Running, StandIn]):
    library, live, endpoint = slow
    body = {"message": "look away", "context": {"api_key": KEY, "kb_ids": ["k"], "weknora_base_url": endpoint.url}}

    async def unable(*_: Any) -> bool:
        raise Unavailable()

    with patch("almanac.assist.agent_tasks.is_cancelled", unable):
        answer = live.http.post("/a2a/weknora/messages", json=body, headers={"x-api-key": library.live.token})
    assert (answer.status_code, answer.json()["code"]) == (503, "unavailable")
    assert state_of(live, "look away") == "failed"


def test_a_message_that_fails_before_it_is_worked_on_is_not_being_worked_on(library: Library):
    with patch("almanac.web.agents.event_stream.EventStream.send", side_effect=Unavailable()):
        library.message("fails early", query="?stream=true")
    wait_until(lambda: state_of(library.live, "fails early"), lambda found: found == "failed")


def test_an_agent_that_takes_too_long_is_stopped(slow: tuple[Library, Running, StandIn]):
    library, _, endpoint = slow
    options = {"fetch_allow": "127.0.0.1", "agent_seconds": 1}
    settings = settings_for(library.live.settings.store_url, library.live.settings.home, **options)
    body = {"message": LAMP, "context": {"api_key": KEY, "kb_ids": ["kb1"], "weknora_base_url": endpoint.url}}
    with second(library, settings) as live:
        answer = live.http.post("/a2a/weknora/messages", json=body, headers={"x-api-key": library.live.token})
        assert (answer.status_code, answer.json()["code"]) == (504, "deadline_exceeded")


# External addresses


@pytest.mark.parametrize(
    ("address", "text"),
    [
        ("http://127.0.0.1:8009", "Search error: 127.0.0.1 is not a public host."),
        ("http://169.254.169.254", "Search error: 169.254.169.254 is not a public host."),
        ("http://[::1]:8000", "Search error: ::1 is not a public host."),
        ("http://0x7f.1", "Search error: 127.0.0.1 is not a public host."),
        ("https://10.0.0.7", "Search error: 10.0.0.7 is not a public host."),
    ],
)
def test_an_address_inside_is_not_searched_at(library: Library, address: str, text: str):
    headers = {"authorization": f"Bearer {library.live.token}"}
    body = {"message": LAMP, "context": {"api_key": KEY, "kb_ids": ["kb1"], "weknora_base_url": address}}
    answer = library.live.http.post("/a2a/weknora/messages", json=body, headers=headers)
    assert answer.json()["response"].startswith(text)


def test_what_is_no_address_is_refused_and_our_own_token_goes_nowhere(library: Library):
    headers = {"authorization": f"Bearer {library.live.token}"}

    def status(**context: Any) -> int:
        body = {"message": LAMP, "context": context}
        return library.live.http.post("/a2a/weknora/messages", json=body, headers=headers).status_code

    assert status(api_key=KEY, kb_ids=["kb1"], weknora_base_url="file:///etc/passwd") == 422
    assert status(api_key=KEY, kb_ids=["kb1"], weknora_base_url="http://user:pass@example.org") == 422
    assert status(kb_ids=["kb1"], weknora_base_url="https://example.org") == 400
    assert status(api_key=KEY, weknora_base_url="https://example.org") == 400
    for key in (library.live.token, f" {library.live.token} ", "schlüssel", "a\nb"):
        assert status(api_key=key, kb_ids=["kb1"], weknora_base_url="https://example.org") == 400


def test_a_token_in_the_context_alone_is_not_sent_elsewhere(slow: tuple[Library, Running, StandIn]):
    library, live, endpoint = slow
    context = {"api_key": library.live.token, "kb_ids": ["kb1"], "weknora_base_url": endpoint.url}
    for given in (context, {"weknora": context}, {**context, "weknora": {"weknora_base_url": endpoint.url}}):
        answer = live.http.post("/a2a/weknora/messages", json={"message": LAMP, "context": given})
        assert (answer.status_code, answer.json()["code"]) == (400, "bad_request")
        assert "needs a token of this server in the headers" in answer.json()["error"]
        assert "not sent to the other server" in answer.json()["error"]
    assert endpoint.requests == []


def test_our_own_address_is_searched_in_process_as_the_holder_of_the_key(library: Library):
    live = library.live
    other = live.new_token("owner of the key", admin=True)
    headers = {"authorization": f"Bearer {live.token}", "x-request-id": f"two-keys-{live.port}"}
    body = {
        "message": LAMP,
        "context": {"api_key": other, "kb_ids": [library.base], "weknora_base_url": f"{live.url}/"},
    }
    shared = live.http.post("/a2a/weknora/messages", json=body, headers=headers).json()
    assert shared["citations"] or shared["response"].startswith("Search failed: 404")
    rows = audit_of(live, f"two-keys-{live.port}", 2)
    assert {(row["tool"], row["actor"]) for row in rows} == {
        ("knowledge_search", "owner of the key"),
        ("send_message", "admin"),
    }


def test_an_endpoint_elsewhere_that_an_operator_allows_is_searched_with_the_key_of_the_message(
    slow: tuple[Library, Running, StandIn],
):
    library, live, endpoint = slow
    endpoint.answers[:] = [Answer(503), said(EXAMPLE_RESPONSE)]
    body = {"message": "搜索查询", "context": {"api_key": KEY, "kb_ids": ["kb1"], "weknora_base_url": endpoint.url}}
    answer = live.http.post("/a2a/weknora/messages", json=body, headers={"x-api-key": library.live.token})
    assert answer.json()["response"].startswith("文档内容片段 [1]")
    assert answer.json()["citations"][0]["knowledge_id"] == "doc_id"
    assert [header["authorization"] for header in endpoint.headers] == [f"Bearer {KEY}"] * 2
    assert endpoint.requests == [{**EXAMPLE_REQUEST, "knowledge_base_ids": ["kb1"]}] * 2
    real = {"message": "搜索查询", "context": {"weknora": body["context"], "is_real_weknora": True}}
    live.http.post("/a2a/weknora/messages", json=real, headers={"x-api-key": library.live.token})
    assert endpoint.requests[-1]["query"] == endpoint.requests[-1]["question"]
    assert [header.get("x-api-key") for header in endpoint.headers] == [None, None, KEY]
    assert library.live.token not in json.dumps([endpoint.headers, endpoint.requests])
