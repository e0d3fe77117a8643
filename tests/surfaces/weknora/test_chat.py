"""The agent with a language model behind stand-ins for the two APIs, and its fallback when the model fails."""

import asyncio
import json
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest

from almanac.app import check_settings
from almanac.core.settings import InvalidSetting, Settings
from tests.live_server import running, settings_for
from tests.surfaces.weknora.conftest import Library, stocked
from tests.surfaces.weknora.stand_ins import Answer, StandIn, speech, standing_in, tool_use

MODEL_KEY = "sk-model-key-that-nobody-may-see"


@contextmanager
def speaking(
    new_sqlite: Callable[[], str], home: Path, *answers: Answer, **options: Any
) -> Generator[tuple[Library, StandIn]]:
    """A server with a language model that sends prepared answers."""
    with standing_in(StandIn(list(answers))) as model:
        chosen = {
            "chat_provider": "openai",
            "chat_model": "small",
            "chat_url": f"{model.url}/v1",
            "chat_key": MODEL_KEY,
        }
        if options.get("chat_provider") == "anthropic":
            chosen["chat_url"] = model.url
        with running(settings_for(new_sqlite(), home, **{**chosen, **options})) as live:
            yield stocked(live), model


def test_a_model_searches_with_the_tool_reads_and_answers_with_citations(new_sqlite: Callable[[], str], tmp_path: Path):
    answers = (tool_use(query="lamp oil", top_k=3), speech("It burns ", "whale oil. [1]", " Trust me. [7]"))
    with speaking(new_sqlite, tmp_path, *answers) as (library, model):
        told = library.message("What does the lamp burn?", query="?stream=true").text
        events = [json.loads(line[6:]) for line in told.splitlines() if line.startswith("data: ")]
        done = events[-1]
        assert done["response"] == "It burns whale oil. [1] Trust me."  # passages that no search returned are not cited
        assert [each["knowledge_title"] for each in done["citations"]] == ["Lamps"]
        assert done["metadata"]["model"] == "small"
        assert [each["query"] for each in done["metadata"]["searches"]] == ["lamp oil"]
        assert [each["text"] for each in events if each["type"] == "text"] == [
            "It burns ",
            "whale oil. [1]",
            " Trust me. [7]",
        ]
        first, second = model.requests
        [tool] = first["tools"]
        assert tool["function"]["name"] == "weknora_search"
        assert tool["function"]["description"].startswith("Search knowledge bases")
        assert "whale oil" in second["messages"][-1]["content"]
        assert model.headers[0]["authorization"] == f"Bearer {MODEL_KEY}"
        everything = json.dumps(model.requests)
        assert library.live.token not in everything  # the model never sees the key


def test_a_conversation_is_told_to_the_model(new_sqlite: Callable[[], str], tmp_path: Path):
    answers = (
        tool_use(query="lamp"),
        speech("Whale oil. [1]"),
        tool_use(query="lamp lit when"),
        speech("At dusk. [1]"),
    )
    with speaking(new_sqlite, tmp_path, *answers) as (library, model):
        session = library.message("What does the lamp burn?").json()["sessionId"]
        assert library.message("And when is it lit?", sessionId=session).json()["response"] == "At dusk. [1]"
        said = [each["content"] for each in model.requests[2]["messages"] if each["role"] in ("user", "assistant")]
        assert said == ["What does the lamp burn?", "Whale oil. [1]", "And when is it lit?"]


def test_a_model_that_answers_without_searching_is_asked_again_with_what_a_search_found(
    new_sqlite: Callable[[], str], tmp_path: Path
):
    answers = (speech("I simply know: petrol."), speech("Whale oil."))
    with speaking(new_sqlite, tmp_path, *answers) as (library, model):
        answer = library.message("What does the lamp burn?").json()
        assert answer["response"].startswith("Whale oil.\n\nSources:\n[1] Lamps")
        assert answer["citations"][0]["knowledge_title"] == "Lamps"
        assert "burns whale oil" in model.requests[1]["messages"][-1]["content"]
        assert "tools" not in model.requests[1]


def test_a_model_searches_no_more_often_than_the_settings_say(new_sqlite: Callable[[], str], tmp_path: Path):
    answers = [*(tool_use(query=f"try {each}") for each in range(3)), speech("Nothing is said of it.")]
    with speaking(new_sqlite, tmp_path, *answers, agent_searches=2) as (library, model):
        answer = library.message("What does the lamp burn?").json()
        assert len(answer["metadata"]["searches"]) == 2
        assert "No more searches" in model.requests[3]["messages"][-1]["content"]


def test_a_model_may_ask_for_nonsense_and_say_what_cannot_be_stored(new_sqlite: Callable[[], str], tmp_path: Path):
    nonsense = (tool_use(query="  "), tool_use(query="a\0b"), tool_use(query="x", top_k=99), speech("Nul: \0. [1]"))
    with speaking(new_sqlite, tmp_path, *nonsense) as (library, model):
        answer = library.message("What does the lamp burn?").json()
        assert answer["response"] == "Nul: ."
        assert [each.get("failure", "").partition(":")[0] for each in answer["metadata"]["searches"]] == [
            "Search failed",
            "Search failed",
            "Search error",
        ]
        assert "Search failed: 400 - " in model.requests[1]["messages"][-1]["content"]


@pytest.mark.parametrize("failure", [Answer(500, b"{}"), Answer(401, b"{}"), Answer(200, b"nonsense", "text/plain")])
def test_a_model_that_fails_is_stood_in_for_by_extracts(new_sqlite: Callable[[], str], tmp_path: Path, failure: Answer):
    with speaking(new_sqlite, tmp_path, failure) as (library, _):
        answer = library.message("What does the lamp burn?").json()
        assert answer["response"].startswith("The lamp in the hall burns whale oil")
        assert answer["metadata"]["model"] == "extractive"


def events_of(text: str) -> list[dict[str, Any]]:
    return [json.loads(line[6:]) for line in text.splitlines() if line.startswith("data: ")]


def test_a_model_that_hangs_is_stood_in_for_while_there_is_time(new_sqlite: Callable[[], str], tmp_path: Path):
    with speaking(new_sqlite, tmp_path, Answer(pause=30), agent_seconds=3) as (library, model):
        answer = library.message("What does the lamp burn?").json()
        assert answer["response"].startswith("The lamp in the hall burns whale oil")
        assert answer["metadata"]["model"] == "extractive"
        assert model.requests


class Halting:
    """A model that searches, sends a few words, and then stops."""

    name = "halting"

    async def talk(self, instructions: str, history: Any, prompt: str, tool: Any = None) -> Any:
        await tool.run({"query": "lamp"})
        yield "It burns "
        await asyncio.Event().wait()

    async def close(self) -> None:
        """Nothing is open."""


def test_words_that_are_not_the_answer_are_taken_back(new_sqlite: Callable[[], str], tmp_path: Path):
    def halting(_: Settings) -> Halting:
        return Halting()

    options = settings_for(new_sqlite(), tmp_path, agent_seconds=3)
    with patch("almanac.app.open_chat", halting), running(options) as live:
        library = stocked(live)
        told = events_of(library.message("What does the lamp burn?", query="?stream=true").text)
        sent = {"message": {"parts": [{"text": "What does the lamp burn?"}]}}
        rpc = {"jsonrpc": "2.0", "id": 1, "method": "SendStreamingMessage", "params": sent}
        streamed = live.http.post("/a2a/weknora", json=rpc, headers={"x-api-key": live.token}).text
    kinds = [each["type"] for each in told]
    assert kinds.count("reset") == 1
    before, after = told[: kinds.index("reset")], told[kinds.index("reset") :]
    assert [each["text"] for each in before if each["type"] == "text"] == ["It burns "]
    assert "".join(each["text"] for each in after if each["type"] == "text") == told[-1]["response"]
    assert told[-1]["metadata"]["model"] == "extractive"
    updates = [each["result"].get("artifactUpdate") for each in events_of(streamed)]
    appended = [(each["artifact"]["parts"][0]["text"], each["append"]) for each in updates if each]
    assert appended[0] == ("It burns ", False)
    assert appended[1][1] is False  # replaces the words before


def test_anthropic_s_api_is_spoken_too(new_sqlite: Callable[[], str], tmp_path: Path):
    def events(*each: dict[str, Any]) -> Answer:
        body = "".join(f"event: {event['type']}\ndata: {json.dumps(event)}\n\n" for event in each)
        return Answer(body=body.encode(), kind="text/event-stream")

    def message(block: dict[str, Any], delta: dict[str, Any], reason: str) -> Answer:
        usage = {"input_tokens": 1, "output_tokens": 1}
        start: dict[str, Any] = {"id": "m", "type": "message", "role": "assistant", "model": "small", "content": [],
                 "stop_reason": None, "stop_sequence": None, "usage": usage}  # fmt: skip
        return events(
            {"type": "message_start", "message": start},
            {"type": "content_block_start", "index": 0, "content_block": block},
            {"type": "content_block_delta", "index": 0, "delta": delta},
            {"type": "content_block_stop", "index": 0},
            {"type": "message_delta", "delta": {"stop_reason": reason, "stop_sequence": None}, "usage": usage},
            {"type": "message_stop"},
        )

    used: dict[str, Any] = {"type": "tool_use", "id": "t1", "name": "weknora_search", "input": {}}
    answers = (
        message(used, {"type": "input_json_delta", "partial_json": '{"query": "lamp"}'}, "tool_use"),
        message({"type": "text", "text": ""}, {"type": "text_delta", "text": "Whale oil. [1]"}, "end_turn"),
    )
    with speaking(new_sqlite, tmp_path, *answers, chat_provider="anthropic") as (library, model):
        assert library.message("What does the lamp burn?").json()["response"] == "Whale oil. [1]"
        assert MODEL_KEY in (model.headers[0].get("x-api-key"), model.headers[0].get("authorization", "")[7:])
        assert {path.partition("?")[0] for path in model.paths} == {"/v1/messages"}


def test_settings_by_which_no_model_can_be_asked_are_refused_at_the_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    with pytest.raises(InvalidSetting, match="chat_model"):
        check_settings(settings_for("", tmp_path, chat_provider="openai"))

    def not_there(_: str) -> None:
        """Raise the error of a package that is not installed."""

    monkeypatch.setattr("importlib.util.find_spec", not_there)
    with pytest.raises(InvalidSetting, match="not installed"):
        check_settings(settings_for("", tmp_path, chat_provider="openai", chat_model="m"))
    with pytest.raises(InvalidSetting, match="chat_provider"):
        settings_for("", tmp_path, chat_provider="other")
