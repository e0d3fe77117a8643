"""Notes and quotas at the command line."""

import json
import uuid
from pathlib import Path

from tests.cli.conftest import Almanac


def test_notes_come_in_go_out_and_come_in_again(peopled: Almanac, tmp_path: Path):
    file = tmp_path / "notes.jsonl"
    first, second = str(uuid.uuid4()), str(uuid.uuid4())
    lines = [
        {"id": first, "title": "Day", "body": "Friday.", "supersededBy": second},
        {"id": second, "title": "Day", "body": "Monday.", "author": "maria"},
    ]
    file.write_text("\n".join(map(json.dumps, lines)) + "\n\n", "utf-8")
    answer = peopled("memory", "import", str(file), "--user", "maria", "--json")
    assert answer.code == 0, answer
    assert json.loads(answer.out) == [{"stored": 2, "known": 0, "linked": 1, "refused": 0}]
    shown = peopled("memory", "export")
    exported = [json.loads(line) for line in shown.out.splitlines()]
    assert [(line["id"], line["supersededBy"]) for line in exported] == [(first, second), (second, None)]
    file.write_text(shown.out + "not a note\n", "utf-8")
    answer = peopled("memory", "import", str(file), "--user", "maria", "--json")
    assert answer.code == 1
    assert json.loads(answer.out) == [{"stored": 0, "known": 2, "linked": 0, "refused": 1}]
    assert answer.err.strip() == "line 3: It is not JSON."


def test_a_quota_is_settled_and_shown(peopled: Almanac):
    def listed() -> list[dict[str, str | int]]:
        return json.loads(peopled("quota", "list", "--json").out)

    agent_calls = {"metric": "agent_calls", "most": "unlimited", "used": 0, "left": "unlimited"}
    notes = {"metric": "knowledge_stored", "most": "unlimited", "used": 0, "left": "unlimited"}
    assert listed() == [notes, agent_calls]
    assert peopled("quota", "set", "knowledge_stored", "250").code == 0
    assert peopled("quota", "set", "agent_calls", "0").code == 0
    assert listed() == [notes | {"most": 250, "left": 250}, agent_calls | {"most": 0, "left": 0}]
    assert peopled("quota", "set", "knowledge_stored", "unlimited").code == 0
    assert listed()[0]["most"] == "unlimited"
    assert peopled("quota", "set", "knowledge_stored", "many").complaint().startswith("'many' is not a number of uses.")
    assert peopled("quota", "set", "pages", "5").complaint().startswith("There is no quota 'pages'.")
