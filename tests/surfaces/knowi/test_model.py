"""The language model: what it receives, and which tools use it."""

import json
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path

from almanac.audit import agent_executions, trail
from almanac.audit.agent_executions import AgentExecution
from tests.live_server import Running, running, settings_for
from tests.surfaces.knowi.caller import Caller, caller
from tests.surfaces.weknora.stand_ins import Answer, StandIn, speech, standing_in, tool_use
from tests.waiting import wait_until

MODEL_KEY = "sk-model-key-that-nobody-may-see"


@contextmanager
def speaking(
    new_sqlite: Callable[[], str], home: Path, *answers: Answer
) -> Generator[tuple[Running, Caller, StandIn, str]]:
    """A server with a recording model, a caller, and the id of a document about a pump."""
    with standing_in(StandIn(list(answers))) as model:
        chosen = {
            "chat_provider": "openai",
            "chat_model": "small",
            "chat_url": f"{model.url}/v1",
            "chat_key": MODEL_KEY,
        }
        with running(settings_for(new_sqlite(), home, embedding=False, **chosen)) as live:
            someone = Caller(live, live.new_token("ada"))
            id = someone.ingest("pump.md", "# Pump\n\nThe pump is oiled every month.")
            live.work(embed=False)
            yield live, someone, model, id


def test_a_model_answers_with_citations_that_are_in_the_documents(new_sqlite: Callable[[], str], tmp_path: Path):
    answers = (tool_use(query="pump oiled"), speech("Every month. [1] Trust me. [7]"))
    with speaking(new_sqlite, tmp_path, *answers) as (_, someone, _model, id):
        data = someone.data("knowi_ask_document", {"question": "How often is the pump oiled?", "documentIds": [id]})
        assert (data["answer"], data["answeredBy"]) == ("Every month. [1] Trust me.", "small")
        assert [(each["documentId"], each["quote"]) for each in data["citations"]] == [
            (id, "The pump is oiled every month.")
        ]


def test_a_citation_whose_document_has_changed_meanwhile_is_not_shown(new_sqlite: Callable[[], str], tmp_path: Path):
    with speaking(new_sqlite, tmp_path, speech("x")) as (live, someone, model, id):
        replies = [tool_use(query="pump oiled"), speech("Every month. [1]")]

        def answer(_: object) -> Answer:
            if len(replies) == 1:  # after the search, before the answer
                someone.ingest("pump.md", "# Pump\n\nNothing is known of the pump any more.")
                live.work(embed=False)
            return replies.pop(0)

        model.make = answer
        data = someone.data("knowi_ask_document", {"question": "How often is the pump oiled?", "documentIds": [id]})
        assert data["citations"] == []
        assert "Every month" not in data["answer"]


def test_a_model_receives_the_question_and_readable_passages_and_no_secret(
    new_sqlite: Callable[[], str], tmp_path: Path
):
    answers = (tool_use(query="pump oiled", min_score=0.0), speech("Every month. [1]"))
    with speaking(new_sqlite, tmp_path, *answers) as (live, someone, model, _):
        caller(live, "eve", org="acme").ingest("foreign.md", "The pump of Acme is oiled with treasure.")
        ben = caller(live, "ben")
        base = live.http.post("/api/v1/bases", json={"name": "Own"}, headers=ben.headers).json()["id"]
        sent = {"name": "private.md", "content": "The pump of Ben is oiled with rum."}
        live.http.post(f"/api/v1/bases/{base}/documents", json=sent, headers=ben.headers)
        live.work(embed=False)
        someone.data("knowi_ask_document", {"question": "How often is the pump oiled?"})
        received = json.dumps([model.requests, model.paths])
        assert "How often is the pump oiled?" in received
        assert "oiled every month" in received
        secrets = (someone.token, live.token, MODEL_KEY, str(live.settings.home), "sqlite")
        for hidden in (*secrets, "treasure", "Acme", "rum"):
            assert hidden not in received, hidden
        assert "sh-" not in received


def test_the_other_tools_ask_no_model(new_sqlite: Callable[[], str], tmp_path: Path):
    with speaking(new_sqlite, tmp_path, speech("x")) as (_, someone, model, id):
        someone.data("knowi_list_documents")
        someone.data("knowi_delete_document", {"documentId": id, "confirm": True})
        dataset = someone.data("knowi_push_data", {"datasetName": "Sales", "rows": [{"a": 1}]})["datasetId"]
        someone.data("knowi_get_data", {"datasetId": dataset})
        someone.data("knowi_get_details", {"assetType": "dataset", "assetId": dataset})
        someone.data("knowi_delete", {"assetType": "dataset", "assetId": dataset, "confirm": True})
        assert model.requests == []


def test_extracts_answer_if_the_model_does_not(new_sqlite: Callable[[], str], tmp_path: Path):
    with speaking(new_sqlite, tmp_path, Answer(500)) as (_, someone, _model, id):
        data = someone.data("knowi_ask_document", {"question": "How often is the pump oiled?", "documentIds": [id]})
        assert data["answeredBy"] == "extractive"
        assert "The pump is oiled every month. [1]" in data["answer"]


def executions(live: Running, number: int) -> list[AgentExecution]:
    """Wait for a number of agent executions and return them, newest first."""
    return wait_until(lambda: live.run(agent_executions.find), lambda found: len(found) >= number)


def test_an_answer_in_which_a_model_took_part_is_an_agent_execution(new_sqlite: Callable[[], str], tmp_path: Path):
    answers = (tool_use(query="pump oiled"), speech("Every month. [1]"), Answer(500))
    with speaking(new_sqlite, tmp_path, *answers) as (live, someone, _model, id):
        someone.data("knowi_ask_document", {"question": "How often is it oiled?", "documentIds": [id]})
        someone.refused("knowi_ask_document", {"question": "What of this one?", "documentIds": ["77001"]})
        someone.data("knowi_ask_document", {"question": "How often, if the model fails?", "documentIds": [id]})
        failed, answered = executions(live, 2)
    assert (answered.actor, answered.surface, answered.tool) == ("ada", "knowi", "knowi_ask_document")
    assert (answered.prompt, answered.outcome) == ("How often is it oiled?", "ok")
    assert "Every month. [1]" in (answered.answer or "")
    assert f"document:{id}" in answered.touched
    assert failed.prompt == "How often, if the model fails?"  # the model received it


def test_an_answer_without_a_model_is_no_agent_execution(live: Running):
    someone = caller(live, "edith")
    id = someone.ingest("pump.md", "The pump is oiled every month.")
    live.work(embed=False)
    someone.data("knowi_ask_document", {"question": "How often is the pump oiled?", "documentIds": [id]})
    wait_until(lambda: live.run(lambda db: trail.find(db, user="edith", tool="knowi_ask_document")))
    assert live.run(agent_executions.find) == []
