"""The agent by the A2A protocol: its card, and the protocol's own client."""

import asyncio
import json
from typing import Any
from unittest.mock import patch

import httpx
import httpx2
import pytest
from a2a.client import ClientConfig, ClientFactory
from a2a.client.card_resolver import A2ACardResolver, parse_agent_card
from a2a.types import CancelTaskRequest, GetTaskRequest, Message, Part, Role, SendMessageRequest
from google.protobuf.json_format import MessageToDict

from almanac.core.errors import AlmanacError, Cancelled, DeadlineExceeded, Unavailable
from tests.surfaces.weknora.conftest import Library

LAMP = "What does the lamp burn?"


def rpc(library: Library, method: Any, params: Any, **headers: str) -> httpx2.Response:
    body = {"jsonrpc": "2.0", "id": 7, "method": method, "params": params}
    sent = {"authorization": f"Bearer {library.live.token}", **headers}
    return library.live.http.post("/a2a/weknora", json=body, headers=sent)


def message(text: str, **more: Any) -> dict[str, Any]:
    return {"message": {"messageId": "m1", "role": "ROLE_USER", "parts": [{"text": text}], **more}}


def test_the_card_is_at_the_well_known_path_and_below_each_agent_s_own(library: Library):
    http = library.live.http
    card = http.get("/.well-known/agent-card.json").json()
    assert http.get("/a2a/weknora/.well-known/agent-card.json").json() == card
    read = parse_agent_card(dict(card))
    [interface] = read.supported_interfaces
    assert interface.url == f"{library.live.settings.url}/a2a/weknora"
    assert (interface.protocol_binding, interface.protocol_version) == ("JSONRPC", "1.0")
    assert read.capabilities.streaming
    assert not read.capabilities.push_notifications
    assert library.live.token not in json.dumps(card)


def through_the_client(library: Library, text: str, *, streaming: bool, **more: Any) -> list[dict[str, Any]]:
    """Our answer, as parsed by the protocol's own client."""

    async def go() -> list[dict[str, Any]]:
        headers = {"authorization": f"Bearer {library.live.token}"}
        async with httpx.AsyncClient(headers=headers, timeout=30, verify=False) as http:
            card = await A2ACardResolver(http, library.live.url).get_agent_card()
            card.supported_interfaces[0].url = f"{library.live.url}/a2a/weknora"  # tests listen on a port of their own
            client = ClientFactory(ClientConfig(httpx_client=http, streaming=streaming)).create(card)
            asked = Message(message_id="m1", role=Role.ROLE_USER, parts=[Part(text=text)])
            asked.metadata.update({"kb_ids": [str(library.base)], **more})
            seen = [MessageToDict(each) async for each in client.send_message(SendMessageRequest(message=asked))]
            task_id = next(each["task"]["id"] for each in seen if "task" in each)
            kept = await client.get_task(GetTaskRequest(id=task_id))
            seen.append({"kept": MessageToDict(kept)})
            with pytest.raises(Exception, match="cannot be cancelled"):
                await client.cancel_task(CancelTaskRequest(id=task_id))
            return seen

    return asyncio.run(go())


def test_the_protocol_s_own_client_is_answered(library: Library):
    sent, kept = through_the_client(library, LAMP, streaming=False)
    [artifact] = sent["task"]["artifacts"]
    assert artifact["parts"][0]["text"].startswith("The lamp in the hall burns whale oil")
    assert artifact["parts"][1]["data"]["citations"][0]["knowledge_title"] == "Lamps"
    assert sent["task"]["status"]["state"] == "TASK_STATE_COMPLETED"
    assert kept["kept"]["artifacts"] == sent["task"]["artifacts"]


def test_the_protocol_s_own_client_is_streamed_to(library: Library):
    seen = through_the_client(library, LAMP, streaming=True)
    kinds = [next(iter(each)) for each in seen]
    assert kinds[0] == "task"
    assert set(kinds[1:-1]) == {"statusUpdate", "artifactUpdate"}
    *_, whole, last, _ = seen
    assert whole["artifactUpdate"]["lastChunk"]
    assert whole["artifactUpdate"]["artifact"]["parts"][0]["text"].startswith("The lamp in the hall burns whale oil")
    assert last["statusUpdate"]["status"]["state"] == "TASK_STATE_COMPLETED"
    said = [each["statusUpdate"]["status"] for each in seen if "statusUpdate" in each]
    assert any("Searching for" in status.get("message", {}).get("parts", [{}])[0].get("text", "") for status in said)


def test_a_context_is_a_conversation(library: Library):
    first = rpc(library, "SendMessage", message("When is the bearing of the pump P-40 oiled?")).json()["result"]["task"]
    again = rpc(library, "SendMessage", message("And who does it?", contextId=first["contextId"])).json()["result"][
        "task"
    ]
    assert again["contextId"] == first["contextId"]
    assert "foreman" in again["artifacts"][0]["parts"][0]["text"]


def test_a_key_in_the_metadata_will_do(library: Library):
    body = {"jsonrpc": "2.0", "id": "x", "method": "SendMessage", "params": message(LAMP)}
    post = library.live.http.post
    assert post("/a2a/weknora", json=body).status_code == 401
    body["params"] = message(LAMP, metadata={"weknora": {"api_key": library.live.token, "kb_ids": [library.base]}})
    assert "whale oil" in post("/a2a/weknora", json=body).text
    body["params"] = {**message(LAMP), "metadata": {"api_key": library.live.token}}
    assert "whale oil" in post("/a2a/weknora", json=body).text


@pytest.mark.parametrize(
    ("method", "params", "code"),
    [
        ("GetTask", {"id": "unknown"}, -32001),
        ("CancelTask", {"id": "unknown"}, -32001),
        ("GetTask", {}, -32602),
        ("SendMessage", {}, -32602),
        ("SendMessage", {"message": {"parts": [{"url": "https://example.org"}]}}, -32005),
        ("SendMessage", {"message": {"parts": [{"text": "x" * 4001}]}}, -32005),
        ("ListTasks", {}, -32004),
        ("message/send", {}, -32601),
        ("", {}, -32600),
        ("SendMessage", [], -32602),
        ("SendMessage", "text", -32602),
        (7, {}, -32600),
        ("SendMessage", message(LAMP, metadata={"weknora_base_url": "https://example.org"}), -32602),
        ("SendMessage", message(LAMP, metadata={"weknora_base_url": "file:///etc/passwd", "kb_ids": [1]}), -32603),
    ],
)
def test_a_failure_has_the_protocol_s_number(library: Library, method: Any, params: Any, code: int):
    answer = rpc(library, method, params)
    assert (answer.status_code, answer.json()["error"]["code"]) == (200, code)


@pytest.mark.parametrize(("body", "code"), [(b"{", -32700), (b"", -32600), (b"[]", -32600), (b'"x"', -32600)])
def test_a_body_that_is_no_request_is_refused_in_the_form_of_json_rpc(library: Library, body: bytes, code: int):
    headers = {"authorization": f"Bearer {library.live.token}", "content-type": "application/json"}
    answer = library.live.http.post("/a2a/weknora", content=body, headers=headers)
    told = answer.json()
    assert (answer.status_code, told["jsonrpc"], told["id"], told["error"]["code"]) == (200, "2.0", None, code)


def test_both_places_for_metadata_count_and_the_message_s_own_comes_first(library: Library):
    body: dict[str, Any] = {"jsonrpc": "2.0", "id": 1, "method": "SendMessage"}
    post = library.live.http.post
    own = message(LAMP, metadata={"kb_ids": [library.base]})
    body["params"] = {**own, "metadata": {"weknora": {"api_key": library.live.token}, "kb_ids": []}}
    assert "whale oil" in post("/a2a/weknora", json=body).text
    body["params"] = {**message(LAMP, metadata={"api_key": "wg-nobody"}), "metadata": {"api_key": library.live.token}}
    assert post("/a2a/weknora", json=body).status_code == 401
    body["params"], body["context"] = message(LAMP), {"api_key": library.live.token}  # not read here
    assert post("/a2a/weknora", json=body).status_code == 401


@pytest.mark.parametrize(
    ("fails", "state"), [(Cancelled, "CANCELED"), (DeadlineExceeded, "FAILED"), (Unavailable, "FAILED")]
)
def test_a_message_that_is_stopped_ends_its_stream_with_its_state(
    library: Library, fails: type[AlmanacError], state: str
):
    async def fail(*_: Any) -> Any:
        raise fails()

    with patch("almanac.web.agents.conversation._answer_in_time", fail):
        told = rpc(library, "SendStreamingMessage", message(LAMP)).text
        silent = rpc(library, "SendMessage", message(LAMP))
    events = [json.loads(line[6:])["result"] for line in told.splitlines() if line.startswith("data: ")]
    status = events[-1]["statusUpdate"]["status"]
    assert status["state"] == f"TASK_STATE_{state}"
    assert status["message"]["parts"][0]["text"] == fails().text
    kept = rpc(library, "GetTask", {"id": events[0]["task"]["id"]}).json()["result"]
    assert kept["status"]["state"] == f"TASK_STATE_{state}"
    assert (silent.status_code, silent.json()["error"]["code"], silent.json()["id"]) == (200, -32603, 7)


def test_another_version_of_the_protocol_is_not_spoken(library: Library):
    assert rpc(library, "SendMessage", message(LAMP), **{"a2a-version": "0.3"}).json()["error"]["code"] == -32009
    assert "result" in rpc(library, "SendMessage", message(LAMP), **{"a2a-version": "1.0"}).json()
