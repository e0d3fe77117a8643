"""After a run with every kind of failure, the process has written no key anywhere."""

import io
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import structlog

from almanac.core.database import Database
from tests.live_server import running, settings_for
from tests.surfaces.weknora.stand_ins import EXAMPLE_RESPONSE, KEY, Answer, StandIn, said, speech, standing_in

ECHOED = ("id", "content", "knowledge_id", "knowledge_title", "knowledge_filename", "match_type")
MODEL_KEY = "sk-model-key-that-nobody-may-see"


def tables(live: Any) -> str:
    """The content of the tables with requests and results."""

    async def read(db: Database) -> list[Any]:
        names = ("audit", "agent_tasks", "jobs")
        return [list(map(dict, await db.fetch(f"SELECT * FROM {each}"))) for each in names]

    return repr(live.run(read))


def test_no_key_is_in_logs_traces_errors_or_tables(
    new_sqlite: Callable[[], str], tmp_path: Path, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
):
    caplog.set_level(logging.DEBUG)
    written = io.StringIO()
    structlog.configure(logger_factory=structlog.PrintLoggerFactory(written), cache_logger_on_first_use=False)
    answers = [
        said({"error": f"who is {KEY}?"}, 401),
        Answer(500, KEY.encode(), "text/plain"),
        Answer(200, KEY.encode()),
        said({"results": KEY}),
        Answer(pause=5),
        said({"error": "x" * 480 + KEY}, 400),  # at the place where errors are cut
        Answer(500, b"x" * 480 + KEY.encode(), "text/plain"),
        said({"results": [{**EXAMPLE_RESPONSE["results"][0], **dict.fromkeys(ECHOED, f"It is {KEY}.")}]}),
    ]
    models = [Answer(500, MODEL_KEY.encode()), Answer(401, KEY.encode()), Answer(200, b"{}"), speech("It is so. [1]")]
    try:
        with standing_in(StandIn(answers)) as endpoint, standing_in(StandIn(models)) as model:
            settings = settings_for(
                new_sqlite(), tmp_path, fetch_allow="127.0.0.1", weknora_timeout_seconds=0.5, weknora_tries=1,
                chat_provider="openai", chat_model="m", chat_url=f"{model.url}/v1", chat_key=MODEL_KEY,
                log_level="debug",
            )  # fmt: skip
            with running(settings) as live:
                seen = [repr(settings)]
                addresses = [endpoint.url, "http://127.0.0.1:8009", "http://169.254.169.254", "nonsense", live.url]
                for turn in range(12):
                    context = {"api_key": KEY, "kb_ids": ["kb1"]}
                    context["weknora_base_url"] = addresses[max(0, turn - 7)]
                    body = {"message": f"Ask {turn}", "context": context, "stream": turn % 2 == 0}
                    for headers in ({"x-api-key": live.token}, {}):
                        answer = live.http.post("/a2a/weknora/messages", json=body, headers=headers)
                        seen.append(answer.text + repr(answer.headers))
                sent = {"parts": [{"text": "x"}], "metadata": {"api_key": KEY, "kb_ids": [7]}}
                rpc = {"jsonrpc": "2.0", "id": 1, "method": "SendMessage", "params": {"message": sent}}
                seen.append(live.http.post("/a2a/weknora", json=rpc, headers={"x-api-key": live.token}).text)
                search = {"question": "x", "knowledge_base_ids": [1]}
                for headers in ({"x-api-key": KEY}, {"authorization": f"Bearer {KEY}"}):
                    seen.append(live.http.post("/api/v1/knowledge-search", json=search, headers=headers).text)
                seen += [live.http.get("/metrics").text, live.http.get("/.well-known/agent-card.json").text]
                seen.append(tables(live))
                assert {header.get("authorization") for header in endpoint.headers} == {f"Bearer {KEY}"}  # it was used
                token = live.token
    finally:
        structlog.reset_defaults()
    everything = "\n".join([*seen, written.getvalue(), caplog.text, *capfd.readouterr()])
    assert "chat_failed" in everything
    assert "It is [key]." in everything  # a result that holds the key was found
    assert KEY not in everything
    assert KEY[:20] not in everything  # nor the part of it before a cut
    assert MODEL_KEY not in everything
    assert token not in everything
