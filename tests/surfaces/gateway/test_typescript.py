"""The TypeScript SDK's client runs the examples of the document against a full catalogue."""

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from scripts import conformance
from tests.live_server import Running
from tests.surfaces.gateway.caller import PATH

SCRIPT = Path(__file__).parent / "client.cjs"


def run(live: Running, key: str, header: str = "x-api-key") -> dict[str, Any]:
    node = conformance.ensure_node()
    command = [str(node), str(SCRIPT), str(conformance.MODULES), f"{live.url}{PATH}", key, header]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.stdout, done.stderr
    return json.loads(done.stdout)


@pytest.mark.parametrize("header", ["x-api-key", "x-access-key", "authorization"])
def test_the_examples_of_the_document_work(shop: Running, header: str):
    said = run(shop, shop.token, header)
    assert "error" not in said
    assert said["session"]
    assert len(said["tools"]) == 4
    results = said["results"]
    assert all([part["type"] for part in result["content"]] == ["text"] for result in results)
    texts = [json.loads(result["content"][0]["text"]) for result in results]
    assert len(texts[0]) == 5
    assert {each["metadata"]["name"] for each in texts[1]} == {"PowerJet 1800", "Brook 1400"}
    assert texts[2]["_id"] == "68dfc8fd5e40fe1ae99c6b5b"
    assert results[3]["isError"] is True
    assert texts[3] == {"formErrors": ["At least one of id or name must be provided"], "fieldErrors": {}}
    assert [each["name"] for each in texts[4]] == ["Products", "Support Policies"]
    assert texts[5]["status"] == "ok"


def test_a_client_is_told_what_is_wrong_with_its_key(shop: Running):
    assert "Invalid API key" in run(shop, "ak-wrong")["error"]
