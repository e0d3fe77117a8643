"""The agent with a real, very small language model behind OpenAI's API."""

import os
import shutil
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.live_server import running, settings_for
from tests.surfaces.weknora.conftest import Library, stocked

PYTHON = os.environ.get("ALMANAC_TEST_LLM", "")


@pytest.fixture(scope="module")
def model_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    program = Path(__file__).parent / "serve.py"
    with (
        (tmp_path_factory.mktemp("llm") / "log").open("w") as log,
        subprocess.Popen(
            [PYTHON, str(program), str(port)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True
        ) as server,
    ):
        assert server.stdout is not None
        yield f"{server.stdout.readline().strip()}/v1"
        server.terminate()


@pytest.fixture(scope="module")
def library(model_url: str, sqlite_template: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Library]:
    options = {"chat_provider": "openai", "chat_model": "smollm2", "chat_url": model_url, "agent_seconds": 900}
    home = tmp_path_factory.mktemp("home")
    shutil.copy(sqlite_template, home / "almanac.db")
    with running(settings_for(f"sqlite:///{home / 'almanac.db'}", home, **options)) as live:
        live.http.timeout = 900
        yield stocked(live)


def test_a_small_model_answers_in_its_own_words_with_citations(library: Library):
    answer = library.message("What does the lamp in the hall burn?").json()
    assert answer["metadata"]["model"] == "smollm2"
    assert answer["metadata"]["searches"]
    assert answer["citations"][0]["knowledge_title"] == "Lamps"
    assert len(answer["response"]) > 10


def test_the_answer_is_streamed_while_the_model_writes(library: Library):
    events = library.message("What does the lamp in the hall burn?", query="?stream=true").text
    assert events.count('"type":"text"') > 3
    assert '"type":"done"' in events
