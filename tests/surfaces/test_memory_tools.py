"""Storing, searching and revising notes on /mcp, over HTTP."""

import uuid
from datetime import UTC, datetime
from typing import Any

import pytest

from tests.live_server import ERAS, Running
from tests.surfaces.test_knowledge_tools import refused
from tests.surfaces.test_search_tools import held


@pytest.fixture
def ada(server: Running) -> str:
    return server.new_token("ada", kind="agent")


@pytest.fixture
def bob(server: Running) -> str:
    return server.new_token("bob", kind="agent")


def ask(server: Running, tool: str, token: str, era: str = ERAS[0], **arguments: Any) -> Any:
    result = server.call(tool, arguments, token=token, era=era)
    assert not result["isError"], result["content"]
    held(server, tool, result["structuredContent"])
    return result["structuredContent"]


def remember(server: Running, token: str, body: str, title: str = "A note", **more: Any) -> str:
    return ask(server, "remember", token, title=title, body=body, **more)["id"]


@pytest.mark.parametrize("era", ERAS)
def test_what_one_agent_remembers_another_recalls(server: Running, ada: str, bob: str, era: str):
    stored = ask(server, "remember", ada, era, title="Pump", body="It runs hot.", tags=["Pump Room"], task="T-1")
    assert (stored["embedding"], stored["may_contradict"]) == ("pending", [])
    [note] = ask(server, "recall", bob, era, query="hot", tags=["pump-room"], task="T-1")["notes"]
    assert (note["id"], note["author"], note["text"], note["rank_score"]) == (stored["id"], "ada", "It runs hot.", 0.5)
    whole = ask(server, "recall", bob, era, id=stored["id"])
    assert whole["trust"] == "untrusted"
    assert whole["notes"][0]["tasks"] == ["T-1"]
    assert [each["id"] for each in whole["history"]] == [stored["id"]]


def test_a_revision_takes_the_place_of_a_note_and_names_what_rests_on_it(server: Running, ada: str, bob: str):
    old = remember(server, ada, "Deploys on Friday.", tags=["ops"])
    resting = remember(server, bob, "So we freeze on Thursday.", "Freeze", cites=[old])
    revised = ask(server, "revise", ada, id=old, body="Deploys on Monday.")
    assert revised["cited_by"] == [{"id": resting, "title": "Freeze"}]
    assert revised["head"] == revised["id"]
    [note] = ask(server, "recall", ada, query="deploys monday", tags=["ops"])["notes"]
    assert (note["id"], note["title"]) == (revised["id"], "A note")
    assert len(ask(server, "recall", ada, query="deploys", past=True)["notes"]) == 2
    history = ask(server, "recall", ada, id=old)["history"]
    assert [(each["id"], each["superseded_by"]) for each in history] == [(old, revised["id"]), (revised["id"], None)]
    other = remember(server, bob, "Deploys are continuous.")
    assert ask(server, "revise", bob, id=revised["id"], by=other)["head"] == other


def test_what_was_known_at_a_moment_is_recalled(server: Running, ada: str):
    old = remember(server, ada, "Deploys on Friday.")
    then = datetime.now(UTC).isoformat()
    ask(server, "revise", ada, id=old, body="Deploys on Monday.")
    [note] = ask(server, "recall", ada, query="deploys", as_of=then)["notes"]
    assert (note["id"], note["superseded_by"]) == (old, None)
    whole = ask(server, "recall", ada, id=old, as_of=then)
    assert whole["notes"][0]["superseded_by"] is None
    assert [each["id"] for each in whole["history"]] == [old]
    assert refused(server, "recall", token=ada, id=old, as_of="2020-01-01").startswith("not_found: ")


def test_a_note_may_contradict_anothers(server: Running, ada: str, bob: str):
    first = remember(server, ada, "Deploys of billing happen on Mondays.", "Deploys")
    told = ask(server, "remember", bob, title="Deploys", body="Deploys of billing happen on Fridays.")
    [hint] = told["may_contradict"]
    assert (hint["id"], hint["author"]) == (first, "ada")


def test_the_same_token_gives_the_same_note(server: Running, ada: str):
    token = str(uuid.uuid4())
    assert remember(server, ada, "One.", client_token=token) == remember(server, ada, "Two.", client_token=token)


@pytest.mark.parametrize(
    ("tool", "arguments", "said"),
    [
        ("remember", {"title": "T", "body": "B", "confidence": 101}, "confidence: "),
        ("remember", {"title": "T" * 201, "body": "B"}, "title: "),
        ("remember", {"title": "T", "body": "B", "tags": ["x"] * 17}, "tags: "),
        ("remember", {"title": "T", "body": "B", "cites": ["7"]}, "cites: "),
        ("remember", {"title": "T", "body": "B", "client_token": "7"}, "client_token: "),
        ("remember", {"title": "T", "body": "B", "expires_at": "2020-01-01"}, "expires_at: "),
        ("recall", {}, "Give a query, or the id of a note."),
        ("recall", {"query": "q", "limit": 51}, "limit: "),
        ("recall", {"query": "q", "as_of": "then"}, "as_of: "),
        ("revise", {"id": str(uuid.uuid4())}, "Give the body"),
        ("revise", {"id": str(uuid.uuid4()), "body": "B", "by": str(uuid.uuid4())}, "Give the body"),
        ("revise", {"id": "7", "body": "B"}, "id: "),
    ],
)
def test_what_cannot_be_is_refused_with_the_fix(
    server: Running, ada: str, tool: str, arguments: dict[str, Any], said: str
):
    assert refused(server, tool, token=ada, **arguments).startswith(f"bad_request: {said}")


def test_a_token_is_shown_only_what_its_scopes_allow(server: Running):
    def names(token: str) -> set[str]:
        tools = server.rpc("tools/list", token=token).json()["result"]["tools"]
        return {tool["name"] for tool in tools} & {"remember", "recall", "revise"}

    assert names(server.new_token("reader", scope=["memory:read"])) == {"recall"}
    assert names(server.new_token("writer", scope=["memory:write"])) == {"remember", "revise"}
    assert names(server.new_token("other", scope=["knowledge:write"])) == set()
