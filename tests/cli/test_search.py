"""Searching and measuring at the command line."""

import json
import re
import shlex
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from almanac.ai.bundled import DEFAULT
from tests.cli.conftest import Almanac
from tests.cli.program import Answer, command, environment, run, serving
from tests.cli.test_commands import with_database
from tests.cli.test_kb import blocks, fill

FILES = {
    "pumps.md": "# Pump P-40\n\n## Care\n\nOil the bearing every spring, and after each flood.\n",
    "lamps.md": "# Lamps\n\nThe lamp burns whale oil.\n",
}


@pytest.fixture
def library(peopled: Almanac, tmp_path: Path) -> Almanac:
    """The commands, with an ingested knowledge base of Maria's."""
    assert peopled("kb", "add", "Manuals", "--owner", "maria").out == "1\n"
    assert peopled("ingest", "1", str(fill(tmp_path / "manuals", FILES)), "--wait").code == 0
    return peopled


def found(answer: Answer) -> list[dict[str, Any]]:
    assert answer.code == 0, answer
    return json.loads(answer.out)["results"]


def test_the_help_teaches_and_its_example_runs(library: Almanac):
    shown = " ".join(library("search", "--help").out.replace("│", " ").split())
    for option in ("--user", "--kb", "--mode", "--top-k", "--json", "--explain"):
        assert option in shown
    example = re.search(r"Example: almanac (.*?)(?: [╭─]|$)", shown)
    assert example
    answer = library(*shlex.split(example[1].rstrip(". ")))
    assert answer.code == 0
    assert "Pump P-40 › Care" in answer.out


def test_a_result_shows_its_score_its_place_and_the_words(library: Almanac):
    answer = library("search", "bearing flood", "--user", "maria", "--mode", "keyword")
    assert answer.code == 0
    heading, snippet = answer.out.splitlines()[:2]
    assert re.fullmatch(r"[01]\.\d\d  Pump P-40 › Care  document:\d+", heading)
    assert "Oil the bearing every spring" in snippet
    assert "\x1b" not in answer.out  # no terminal


def test_programs_get_json(library: Almanac):
    answer = library("search", "bearing", "--user", "maria", "--kb", "1", "--mode", "keyword", "--top-k", "1", "--json")
    [best] = found(answer)
    assert (best["title"], best["base_id"], best["headings"]) == ("Pump P-40", 1, ["Pump P-40", "Care"])
    assert best["text"][slice(*best["highlights"][0])] == "bearing"
    assert best["url"].endswith(f"/api/v1/documents/{best['id'].removeprefix('document:')}")
    assert 0 < best["score"] <= 1
    assert len(best["hash"]) == 32
    assert best["boxes"] == []


def test_nothing_found_is_no_failure_and_is_said(library: Almanac):
    answer = library("search", "xylophone", "--user", "maria", "--mode", "keyword")
    assert (answer.code, answer.out) == (0, "")
    assert answer.err.splitlines()[-1] == "Nothing found."
    assert found(library("search", "xylophone", "--user", "maria", "--mode", "keyword", "--json")) == []


def test_somebody_finds_what_they_may_read_and_no_more(library: Almanac):
    answer = library("search", "oil", "--user", "bot")
    assert (answer.code, answer.out) == (0, "")
    assert "There is no knowledge base that you may read." in answer.err
    assert library("search", "oil", "--user", "bot", "--kb", "1").complaint() == (
        "There is no knowledge base 1, or you may not see it. Use an id from a list or a search."
    )
    assert library("kb", "share", "1", "--user", "bot", "--role", "Reporter").code == 0
    assert len(found(library("search", "oil", "--user", "bot", "--mode", "keyword", "--json"))) == 2
    assert library("kb", "remove", "1", "--yes").code == 0
    assert found(library("search", "oil", "--user", "maria", "--json")) == []


def test_a_search_explains_itself(library: Almanac):
    answer = library("search", "oil", "--user", "maria", "--explain")
    assert re.search(r"^returned: \d+ passages$", answer.out, re.MULTILINE)
    assert re.search(r": \d+\.\d ms$", answer.out, re.MULTILINE)
    answer = json.loads(library("search", "oil", "--user", "maria", "--explain", "--json").out)
    assert answer["explanation"]["passages"]["returned"] == len(answer["results"])
    assert answer["explanation"]["milliseconds"]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["oil", "--user", "nobody"], "There is no user or agent named 'nobody' in this organisation."),
        (["oil", "--user", "maria", "--mode", "magic"], "mode: Input should be 'hybrid', 'vector' or 'keyword'."),
        ([" ", "--user", "maria"], "query: has no words."),
        (
            ["oil", "--user", "maria", "--kb", str(2**70)],
            "base_ids.0: is not an id: use one that a list or a search returned.",
        ),
    ],
)
def test_what_cannot_be_searched_is_one_line_that_says_why(library: Almanac, arguments: list[str], said: str):
    assert library("search", *arguments).complaint().startswith(said)


def test_a_document_cannot_write_to_the_terminal(library: Almanac, tmp_path: Path):
    evil = fill(tmp_path / "evil", {"evil.md": "# Evil \u202e name\n\nA wrench \u009b31m and \u2066 more.\n"})
    assert library("ingest", "1", str(evil), "--wait").code == 0
    shown = library("search", "wrench", "--user", "maria", "--mode", "keyword").out
    assert "wrench" in shown
    assert not re.search("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]", shown)


def test_no_stored_name_can_write_to_the_terminal(library: Almanac):
    """New names are refused; these are from an earlier version."""
    evil = "Pumps\u009b31m\x1b]0;x\x07\u202egpj.exe"
    for table in ("bases", "documents"):
        sql = f"UPDATE {table} SET name = $1 WHERE id = (SELECT min(id) FROM {table})"
        with_database(lambda db, sql=sql: db.write(lambda tx: tx.execute(sql, evil)))
    unprintable = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")
    for arguments in (["kb", "list"], ["docs", "1"], ["docs", "1", "--tree"]):
        shown = library(*arguments)
        assert "Pumps" in shown.out + shown.err, arguments
        assert not unprintable.search(shown.out + shown.err), arguments
    for arguments in (["kb", "list", "--json"], ["docs", "1", "--json"]):
        shown = library(*arguments)
        assert not unprintable.search(shown.out), arguments
        assert evil in [item["name"] for item in json.loads(shown.out)["items"]], "a program reads the exact name"


def test_a_long_passage_is_shown_around_the_words(library: Almanac, tmp_path: Path):
    text = "word " * 120 + "the needle lies here " + "word " * 120
    assert library("ingest", "1", str(fill(tmp_path / "long", {"long.txt": text})), "--wait").code == 0
    snippet = library("search", "needle", "--user", "maria", "--mode", "keyword").out.splitlines()[1]
    assert (snippet[0], snippet[-1]) == ("…", "…")
    assert "the needle lies here" in snippet
    assert len(snippet) < 320


def test_a_search_works_beside_a_running_server(tmp_path: Path):
    home = tmp_path / "data"
    files = fill(tmp_path / "manuals", FILES)
    with serving(home):
        assert run(home, "kb", "add", "Manuals", "--owner", "admin").out == "1\n"
        assert run(home, "ingest", "1", str(files), "--wait").code == 0
        answer = run(home, "search", "How often is the bearing oiled?", "--user", "admin", "--json")
    assert found(answer)[0]["title"] == "Pump P-40"


def test_the_guide_to_search_runs_as_it_is_written(tmp_path: Path):
    page = (Path(__file__).parent.parent.parent / "docs" / "how-to" / "search.md").read_text("utf-8")
    home = tmp_path / "data"
    with serving(home) as server:
        script = "set -e\n" + "".join(f"{text}\necho; echo '==='\n" for text, _ in blocks(page))
        script = script.replace("http://127.0.0.1:8000", server.url).replace("curl -s ", "curl -sf -w '\\n' ")
        script = script.replace(".venv/bin/almanac", str(Path(command()[0]).parent / "almanac"))
        shown = subprocess.run(
            ["bash", "-c", script], capture_output=True, text=True, timeout=240, cwd=tmp_path,
            env=environment(home, {}),
        )  # fmt: skip
        assert shown.returncode == 0, (shown.stdout, shown.stderr)
    answers = [part.strip() for part in shown.stdout.split("===\n") if part.strip()]
    asked, narrowed, fetched, verified, told, measured = answers
    assert json.loads(asked)["results"][0]["headings"][-1] == "Care"
    assert [each["title"] for each in json.loads(narrowed)["results"]] == ["Pump P-40"]
    assert json.loads(fetched)["result"]["structuredContent"]["title"] == "Pump P-40"
    assert json.loads(verified)["outcome"] == "unchanged"
    assert re.match(r"[01]\.\d\d  Pump P-40 › Care  document:1\n", told)
    assert json.loads(measured)["recall@10"] == 1.0


# Measuring

CORPUS = [
    {"_id": "a", "title": "Pumps", "text": "Oil the bearing every spring.", "conv": "x"},
    {"_id": "b", "title": "Lamps", "text": "The lamp burns whale oil.", "conv": "x"},
    {"_id": 3, "text": "The bearing of the ship was north.", "conv": "y"},
    {"_id": "d", "title": "", "text": "", "conv": "y"},
]
QUERIES = [
    {"_id": "1", "text": "bearing", "conv": "x"},
    {"_id": "2", "text": "whale", "conv": "x"},
    {"_id": "3", "text": "bearing", "conv": "y"},
    {"_id": "4", "text": "nobody has judged this", "conv": "y"},
]
QRELS = [
    {"query-id": "1", "corpus-id": "a", "score": 1},
    {"query-id": "2", "corpus-id": "b", "score": 2},
    {"query-id": "2", "corpus-id": "gone", "score": 1},
    {"query-id": "3", "corpus-id": "3", "score": 1},
    {"query-id": "of another split", "corpus-id": "3", "score": 1},
]


def write(folder: Path, **files: Any) -> Path:
    folder.mkdir(exist_ok=True)
    for name, rows in {"corpus": CORPUS, "queries": QUERIES, "qrels": QRELS, **files}.items():
        if rows is not None:
            lines = [line if isinstance(line, str) else json.dumps(line) for line in rows]
            (folder / f"{name}.jsonl").write_text("\n".join(lines) + "\n", "utf-8")
    return folder


def test_retrieval_is_measured_on_a_set_each_query_in_its_own_part(almanac: Almanac, tmp_path: Path):
    answer = almanac("bench", "retrieval", str(write(tmp_path / "set")), "--mode", "keyword", "--json")
    assert answer.code == 0, answer
    told: Mapping[str, Any] = json.loads(answer.out)
    assert (told["set"], told["mode"], told["documents"], told["queries"]) == ("set", "keyword", 4, 3)
    assert told["recall@10"] == told["recall@100"] == round((1 + 0.5 + 1) / 3, 4)
    assert told["ndcg@10"] == pytest.approx((1 + 2 / (2 + 0.63093) + 1) / 3, abs=1e-3)
    assert 0 <= told["calibration_error"] <= 1
    assert 0 < told["p50_ms"] <= told["p99_ms"]
    assert told["queries_per_second"] > 0
    assert not (tmp_path / "home").exists()  # existing homes are kept


def test_retrieval_is_measured_with_a_model_of_the_home(
    almanac: Almanac, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    kept = tmp_path / "home" / "models" / "mine"
    shutil.copytree(DEFAULT.path, kept)
    monkeypatch.setenv("ALMANAC_EMBEDDING_MODEL", "mine")
    answer = almanac("bench", "retrieval", str(write(tmp_path / "set")), "--mode", "vector", "--json")
    assert answer.code == 0, answer
    assert json.loads(answer.out)["recall@100"] == round((1 + 0.5 + 1) / 3, 4)
    assert (kept / "model.onnx").exists()
    monkeypatch.setenv("ALMANAC_EMBEDDING_MODEL", "another")
    assert "no embedding model of this name" in almanac("bench", "retrieval", str(tmp_path / "set")).err


def test_a_measurement_is_a_table_for_people_and_can_be_cut_short(almanac: Almanac, tmp_path: Path):
    folder = str(write(tmp_path / "set"))
    answer = almanac("bench", "retrieval", folder, "--mode", "keyword", "--limit-queries", "1")
    names, values = (line.split() for line in answer.out.splitlines())
    assert dict(zip(names, values, strict=True)) | {"queries": "1", "ndcg@10": "1.0"} == dict(
        zip(names, values, strict=True)
    )


@pytest.mark.parametrize(
    ("files", "said"),
    [
        ({"qrels": None}, "qrels.jsonl cannot be read: No such file or directory."),
        ({"corpus": [*CORPUS, "{"]}, "corpus.jsonl, line 5: it is not JSON."),
        ({"queries": [[1]]}, "queries.jsonl, line 1: it is not a JSON object."),
        ({"corpus": [{"text": "x"}]}, "corpus.jsonl, line 1: it needs '_id', and texts as 'text' and 'title'."),
        ({"corpus": [{"_id": "1", "text": 5}]}, "corpus.jsonl, line 1: it needs '_id'"),
        ({"corpus": [CORPUS[0], CORPUS[0]]}, "corpus.jsonl, line 2: an earlier line has this '_id'."),
        ({"queries": [{"_id": "1", "text": " "}]}, "queries.jsonl, line 1: 'text' is empty."),
        ({"queries": [{"_id": "1", "text": "x", "conv": "z"}]}, "queries.jsonl, line 1: no document has this 'conv'."),
        ({"qrels": [QRELS[0], {"query-id": "1", "score": 1}]}, "qrels.jsonl, line 2: it needs 'query-id'"),
        ({"qrels": [{**QRELS[0], "score": "1"}]}, "qrels.jsonl, line 1: it needs 'query-id'"),
        ({"qrels": []}, "There is nothing to measure."),
        ({"corpus": []}, "queries.jsonl, line 1: no document has this 'conv'."),
    ],
)
def test_a_set_that_is_broken_says_in_which_file_and_line(
    almanac: Almanac, tmp_path: Path, files: dict[str, Any], said: str
):
    complaint = almanac("bench", "retrieval", str(write(tmp_path / "set", **files)), "--json").complaint()
    assert complaint.startswith(said)
    assert str(tmp_path) not in complaint
