"""The index commands: status, rebuild, the doctor's checks, and waiting ingests."""

import json
import os
import random
import re
import signal
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from almanac.cli.support import progress
from almanac.cli.support.ingest import ingest_report
from almanac.cli.support.ingest.ingest_run import IngestFile, IngestRun
from almanac.cli.support.operator_call import call_for_base
from almanac.core import clock
from almanac.core.database import Database
from almanac.jobs import queue
from almanac.search.index.protocol import Coverage
from almanac.search.jobs import embed_passages, embed_queue
from tests.cli.conftest import Almanac
from tests.cli.program import Answer, run, serving
from tests.cli.test_commands import with_database
from tests.cli.test_kb import change, fill, items
from tests.live_server import settings_for, work_off
from tests.waiting import until

TEXTS = {"pump.md": "# Pump\n\nForty turns a minute.", "cat.md": "# Cat\n\nA cat sleeps."}


@pytest.fixture
def library(peopled: Almanac, tmp_path: Path) -> Almanac:
    """The commands, with two ingested and embedded documents in Maria's base, number 1."""
    assert peopled("kb", "add", "Notes", "--owner", "maria").code == 0
    assert peopled("ingest", "1", str(fill(tmp_path / "in", TEXTS)), "--wait").code == 0
    return peopled


def forget_vector() -> None:
    """Remove the vector of one passage, and set its source's status accordingly."""
    change("DELETE FROM vectors WHERE passage_id = (SELECT min(passage_id) FROM vectors)")
    change("UPDATE sources SET is_embedded = 0, version = version + 1 WHERE id = (SELECT min(id) FROM sources)")


def forget_words() -> None:
    """Undo the analysis of one passage, as after a migration."""
    if with_database(dialect) == "postgres":
        change("DELETE FROM terms WHERE passage_id = (SELECT max(id) FROM passages)")
        change("UPDATE sources SET passages = 0, length = 0 WHERE id = (SELECT max(source_id) FROM passages)")
    change("UPDATE passages SET words = NULL WHERE id = (SELECT max(id) FROM passages)")
    change("UPDATE sources SET version = version + 1")


def choose_far_model(monkeypatch: pytest.MonkeyPatch) -> None:
    """Choose an unreachable model, with a short timeout."""
    monkeypatch.setenv("ALMANAC_EMBEDDING_URL", "http://127.0.0.1:9/v1")
    monkeypatch.setenv("ALMANAC_EMBEDDING_MODEL", "far")

    def uniform(*_: float) -> float:
        return 0.001

    monkeypatch.setattr(random, "uniform", uniform)  # of the pauses


def damage() -> None:
    """Remove a document from the index."""
    if with_database(dialect) == "sqlite":
        change("DELETE FROM changes WHERE source_id = (SELECT min(id) FROM sources)")
    else:
        change("DELETE FROM terms WHERE source_id = (SELECT min(id) FROM sources)")


async def dialect(db: Database) -> str:
    return db.dialect


def checks(answer: Answer) -> dict[str, tuple[str, str]]:
    return {check["check"]: (check["state"], check["detail"]) for check in json.loads(answer.out)["checks"]}


# Status


@pytest.mark.parametrize(("path", "options"), [("status", "--home --json"), ("rebuild", "--words --vectors --kb")])
def test_the_commands_about_the_index_have_help_that_teaches(almanac: Almanac, path: str, options: str):
    answer = almanac("index", path, "--help")
    assert answer.code == 0
    assert "Example:" in answer.out
    for option in options.split():
        assert option in answer.out


def test_the_status_tells_how_far_each_base_is(library: Almanac):
    forget_vector()
    forget_words()
    found = json.loads(library("index", "status", "--json").out)
    (base,) = found["collections"]
    assert (base["name"], base["collection"]) == ("Notes", "base:1")
    assert (base["passages"], base["embedded"], base["unread"], base["next_model"]) == (2, 1, 1, None)
    assert base["model"].startswith("bge-small")
    table = library("index", "status")
    assert table.code == 0
    assert re.search(r"^base:1 +Notes +2 +1 +1 +bge-small", table.out, re.MULTILINE)
    said = table.out.splitlines()[-1]
    assert re.fullmatch(r"0 bytes in 0 files; \d+ changes in no file yet|[\d.]+ .+ in tables and indexes", said)


def test_the_status_of_nothing_is_told(peopled: Almanac):
    answer = peopled("index", "status")
    assert answer.code == 0
    assert "Nothing has been indexed yet." in answer.err


# Rebuild


def test_a_rebuild_says_what_it_did_and_search_finds_the_same_after(library: Almanac):
    before = library("search", "cat", "--user", "maria", "--json").out
    assert library("index", "rebuild").out == "index rebuilt\n"
    whole = library("index", "rebuild", "--words", "--vectors")
    assert whole.code == 0
    assert whole.out == (
        "2 passages analysed, 0 of them with other words than before; 2 passages embedded; index rebuilt\n"
    )
    assert library("search", "cat", "--user", "maria", "--json").out == before
    assert checks(library("doctor", "--json"))["index"][0] == "ok"


def test_a_rebuild_of_words_analyses_what_was_analysed_otherwise(library: Almanac):
    with_database(lambda db: db.write(lambda tx: tx.execute("UPDATE passages SET words = $1", b"\x00" * 9)))
    change("UPDATE sources SET version = version + 1")
    assert json.loads(library("index", "rebuild", "--json").out)["analysed"] == 0
    assert "cat" not in library("search", "cat", "--user", "maria", "--mode", "keyword").out.lower()
    did = json.loads(library("index", "rebuild", "--words", "--json").out)
    assert (did["analysed"], did["changed"], did["is_renewed"]) == (2, 2, True)
    assert "cat" in library("search", "cat", "--user", "maria", "--mode", "keyword").out.lower()


def test_a_rebuild_of_vectors_changes_over_to_the_model_of_the_settings_and_completes_what_lacks_some(
    library: Almanac,
):
    change("UPDATE collections SET model = 'another'")
    change("UPDATE vectors SET model = 'another'")
    change("UPDATE sources SET version = version + 1")
    did = json.loads(library("index", "rebuild", "--vectors", "--json").out)
    assert (did["embedded"], did["waiting"]) == (2, 0)
    (base,) = json.loads(library("index", "status", "--json").out)["collections"]
    assert (base["model"][:9], base["embedded"], base["next_model"]) == ("bge-small", 2, None)
    forget_vector()
    did = json.loads(library("index", "rebuild", "--vectors", "--kb", "1", "--json").out)
    assert (did["embedded"], did["waiting"]) == (2, 0)
    assert checks(library("doctor", "--json"))["vectors"] == ("ok", "2 passages, all embedded")


def test_a_rebuild_of_one_base_leaves_others_alone(library: Almanac, tmp_path: Path):
    assert library("kb", "add", "More", "--owner", "maria").out == "2\n"
    assert library("ingest", "2", str(fill(tmp_path / "more", {"dog.md": "A dog barks."})), "--wait").code == 0
    answer = library("index", "rebuild", "--kb", "2", "--words", "--vectors")
    assert answer.out == (
        "1 passage analysed, 0 of them with other words than before; 1 passage embedded; index rebuilt\n"
    )
    assert checks(library("doctor", "--json"))["index"][0] == "ok"


def test_a_base_that_is_not_there_cannot_be_rebuilt(library: Almanac):
    assert library("index", "rebuild", "--kb", "9").complaint() == (
        "There is no knowledge base 9. See 'almanac kb list'."
    )


def test_a_model_that_cannot_be_reached_leaves_everything_as_it_was(library: Almanac, monkeypatch: pytest.MonkeyPatch):
    choose_far_model(monkeypatch)
    answer = library("index", "rebuild", "--vectors")
    assert answer.code == 0
    assert answer.out.splitlines()[-1] == "index rebuilt"
    assert answer.err.endswith("2 passages wait to be embedded; see 'almanac doctor'.\n")
    assert checks(library("doctor", "--json"))["models"][0] == "problem"
    monkeypatch.delenv("ALMANAC_EMBEDDING_URL")
    monkeypatch.delenv("ALMANAC_EMBEDDING_MODEL")
    found = library("search", "cat", "--user", "maria", "--mode", "vector", "--json")
    assert len(json.loads(found.out)["results"]) == 2


def test_ctrl_c_stops_a_rebuild_between_two_batches_and_nothing_is_broken(
    library: Almanac, monkeypatch: pytest.MonkeyPatch
):
    embed = embed_passages.replace_vectors

    async def embed_and_interrupt(*given: Any) -> None:
        await embed(*given)
        os.kill(os.getpid(), signal.SIGINT)
        await until(lambda: signal.getsignal(signal.SIGINT) is signal.default_int_handler)  # it has been handled

    monkeypatch.setattr(embed_passages, "BATCH_SIZE", 1)
    monkeypatch.setattr(embed_passages, "replace_vectors", embed_and_interrupt)
    answer = library("index", "rebuild", "--vectors")
    assert (answer.code, answer.out) == (130, "1 passage embedded\n")
    assert answer.err == "Stopped; finished work is kept. Run the command again to do the rest.\n"
    assert library("doctor").code == 0


def test_a_rebuild_runs_beside_a_server_that_finds_everything_meanwhile(tmp_path: Path):
    home = tmp_path / "data"
    with serving(home) as server:
        assert run(home, "kb", "add", "Notes", "--owner", "admin").out == "1\n"
        assert run(home, "ingest", "1", str(fill(tmp_path / "in", TEXTS))).code == 0
        rebuilt = run(home, "index", "rebuild", "--words", "--vectors")
        assert rebuilt.code == 0, rebuilt.err
        answer = run(home, "doctor", "--json")
        assert answer.code == 0, answer.out
        assert server.stop() == 0


# Doctor


def test_the_doctor_warns_of_what_a_worker_has_still_to_do(library: Almanac):
    forget_vector()
    forget_words()
    with_database(lambda db: db.write(lambda tx: queue.add(tx, "ingest", {})))
    change("UPDATE jobs SET state = 'dead', finished_at = 1 WHERE kind = 'ingest'")
    answer = library("doctor", "--json")
    found = checks(answer)
    assert answer.code == 0
    assert found["words"][0] == "warning"
    assert found["words"][1].startswith("1 passage cannot be found by words yet. A worker does this")
    assert found["vectors"][0] == "warning"
    assert found["vectors"][1].startswith("1 of 2 passages embedded in base:1. A worker does this")
    assert found["jobs"][0] == "warning"
    assert re.fullmatch(r"\d jobs? given up\. See 'almanac jobs list'; retry or discard them\.", found["jobs"][1])


def test_the_doctor_finds_an_index_that_differs_from_the_store_and_names_the_cure(library: Almanac):
    damage()
    answer = library("doctor", "--json")
    assert answer.code == 1
    state, detail = checks(answer)["index"]
    assert state == "problem"
    assert detail.startswith("The index does not agree with the database: ")
    assert detail.endswith("Run 'almanac index rebuild'; searches go on meanwhile.")
    assert library("index", "rebuild").code == 0
    assert checks(library("doctor", "--json"))["index"] == ("ok", "agrees with the database")


@pytest.mark.parametrize(
    ("harm", "said"),
    [
        ("DELETE FROM sources WHERE owner_id = '1'", "documents that it lacks (1)"),
        ("UPDATE sources SET is_live = 0", "documents whose visibility or folder differs (1, 2)"),
        ("UPDATE documents SET is_enabled = 0 WHERE id = 2", "documents whose visibility or folder differs (2)"),
        ("UPDATE documents SET base_id = 2 WHERE id = 2", "documents whose visibility or folder differs (2)"),
        ("UPDATE sources SET owner_id = '99' WHERE owner_id = '1'",
         "documents that it lacks (1); documents that no longer exist (99)"),
    ],
)  # fmt: skip
def test_the_doctor_compares_documents_with_what_search_knows_of_them(
    library: Almanac, tmp_path: Path, harm: str, said: str
):
    assert library("kb", "add", "Other", "--owner", "maria").code == 0
    change(harm)
    answer = library("doctor", "--json")
    assert answer.code == 1
    state, detail = checks(answer)["index"]
    assert state == "problem"
    assert said in detail
    assert json.loads(library("index", "rebuild", "--json").out)["mended"] == len(re.findall(r"\d+", said))
    settings = settings_for(os.environ["ALMANAC_DATABASE_URL"], tmp_path / "home")
    with_database(lambda db: work_off(db, settings))
    assert checks(library("doctor", "--json"))["index"] == ("ok", "agrees with the database")


def test_the_doctor_names_files_of_the_index_that_are_gone(library: Almanac, tmp_path: Path):
    assert library("index", "rebuild").code == 0
    found = list((tmp_path / "home").glob("index/*.segment"))
    if not found:  # PostgreSQL has none
        return
    found[0].write_bytes(b"nothing that can be read")
    answer = library("doctor", "--json")
    state, detail = checks(replace(answer, out=answer.out.splitlines()[-1]))["index"]  # after the logs
    assert (state, found[0].name in detail) == ("problem", True)
    assert "index files are missing or damaged" in detail
    assert library("index", "rebuild").code == 0
    assert checks(library("doctor", "--json"))["index"] == ("ok", "agrees with the database")


def test_the_doctor_misses_a_file_that_is_gone(library: Almanac, tmp_path: Path):
    (file, *_) = (tmp_path / "home" / "files").glob("[0-9a-f][0-9a-f]/*")
    file.unlink()
    answer = library("doctor", "--json")
    assert answer.code == 1
    assert checks(answer)["files"] == (
        "problem",
        "The home folder lacks 1 file that documents need. Restore it from a backup, or upload those documents again.",
    )


def test_the_doctor_refuses_a_model_that_is_not_the_one_it_should_be(
    almanac: Almanac, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("ALMANAC_EMBEDDING_MODEL", "mine")
    prefixes = {"query_prefix": "", "passage_prefix": ""}
    hashes = {"model.onnx": "0", "tokenizer.json": "0"}
    about: dict[str, Any] = {"name": "mine", "dimension": 2, "limit": 8, "pooling": "cls", "languages": []}
    about |= {"padding": 0, "sha256": hashes, **prefixes}
    fill(tmp_path / "home" / "models" / "mine",
         {"description.json": json.dumps(about), "model.onnx": "x", "tokenizer.json": "{}"})  # fmt: skip
    answer = almanac("doctor", "--json")
    assert answer.code == 1
    state, detail = checks(answer)["models"]
    assert state == "problem"
    assert detail.startswith("A file of the embedding model does not match its hash.")


# Progress


def test_bases_are_listed_with_how_many_passages_are_embedded_while_not_all_are(library: Almanac):
    assert library("kb", "add", "Empty", "--owner", "maria").code == 0
    assert "embedded" not in library("kb", "list").out
    assert [(base["passages"], base["embedded"]) for base in items(library("kb", "list", "--json"))] == [
        (None, None)
    ] * 2
    forget_vector()
    table = library("kb", "list").out.splitlines()
    assert table[0].split()[-1] == "embedded"
    assert [line.split()[-1] for line in table[1:]] == ["0", "1/2"]
    listed = {base["name"]: (base["passages"], base["embedded"]) for base in items(library("kb", "list", "--json"))}
    assert listed == {"Empty": (None, None), "Notes": (2, 1)}


def test_an_ingest_ends_when_words_are_found_and_waits_for_vectors_on_request(library: Almanac, tmp_path: Path):
    more = fill(tmp_path / "more", {"dog.md": "A dog barks.", "owl.md": "An owl hoots."})
    answer = library("ingest", "1", str(more))
    assert answer.code == 0
    assert answer.err == (
        "2 of 4 passages embedded. Keyword search finds them all; a running server or 'almanac worker' embeds the "
        "rest.\n"
    )
    words = library("search", "owl hoots", "--user", "maria", "--kb", "1", "--mode", "keyword", "--json")
    assert len(json.loads(words.out)["results"]) == 1
    waited = json.loads(library("ingest", "1", str(fill(more, {"fox.md": "A fox."})), "--wait", "--json").out)
    assert (waited["added"], waited["passages"], waited["embedded"]) == (1, 5, 5)
    assert waited["embedding_seconds"] >= 0
    queued = json.loads(library("ingest", "1", str(fill(more, {"cow.md": "A cow."})), "--no-wait", "--json").out)
    assert (queued["queued"], queued["passages"], queued["embedded"]) == (1, 5, 5)
    assert queued["embedding_seconds"] is None
    assert "exclude each other" in library("ingest", "1", str(more), "--wait", "--no-wait").complaint()


def test_an_ingest_waits_for_vectors_while_another_base_is_embedded(library: Almanac, tmp_path: Path):
    assert library("kb", "add", "Second", "--owner", "maria").out == "2\n"

    async def postpone(db: Database) -> None:  # as a worker does that is embedding another base
        await db.write(lambda tx: embed_queue.enqueue(tx, "base:2", clock.now() + embed_queue.BUSY_RETRY_DELAY))

    with_database(postpone)
    folder = fill(tmp_path / "more", {"dog.md": "A dog barks."})
    report = json.loads(library("ingest", "2", str(folder), "--wait", "--json").out)
    assert (report["added"], report["passages"], report["embedded"]) == (1, 1, 1)


def test_a_search_by_meaning_names_the_passages_without_vectors(library: Almanac, tmp_path: Path):
    assert library("kb", "add", "Second", "--owner", "maria").out == "2\n"
    added = library("ingest", "2", str(fill(tmp_path / "more", {"dog.md": "A dog barks."})), "--no-wait")
    assert added.code == 0
    settings = settings_for(os.environ["ALMANAC_DATABASE_URL"], tmp_path / "home")
    with_database(lambda db: work_off(db, replace(settings, embedding=False)))
    search = ("search", "dog", "--user", "maria", "--mode", "vector", "--json")
    both = json.loads(library(*search).out)
    assert both["notes"] == ["Some passages have no vectors yet: only keyword search finds them."]
    second = json.loads(library(*search, "--kb", "2").out)
    assert second["notes"] == ["No passage in the search scope has vectors yet. Try again later, or use mode 'hybrid'."]


def test_an_ingest_does_not_wait_for_a_model_that_cannot_be_reached(
    library: Almanac, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    assert library("kb", "add", "Far", "--owner", "maria").out == "2\n"
    choose_far_model(monkeypatch)
    answer = library("ingest", "2", str(fill(tmp_path / "more", {"dog.md": "A dog barks."})), "--wait")
    assert answer.code == 0
    assert answer.err.splitlines()[-1] == (
        "0 of 1 passage embedded; see 'almanac doctor'. Keyword search finds them all; a running server or "
        "'almanac worker' embeds the rest."
    )
    found = library("search", "dog", "--user", "maria", "--kb", "2", "--json")
    assert len(json.loads(found.out.splitlines()[-1])["results"]) == 1


def test_whoever_stops_waiting_for_vectors_is_told_that_words_are_found_already(
    library: Almanac, capsys: pytest.CaptureFixture[str]
):
    async def work(db: Database) -> None:
        ingest_run = IngestRun(
            await call_for_base(db, 1), 1, [IngestFile("a.md", "added", "success", 1, was_parsed=True)]
        )
        for covered in (Coverage(1024, 312), Coverage(5, 5), None):
            ingest_run.coverage = covered
            ingest_report.print_report(ingest_run, [], is_stopped=True)

    with_database(work)
    assert capsys.readouterr().err.splitlines() == [
        "Stopped; 312 of 1,024 passages embedded. Keyword search finds them all; a running server or "
        "'almanac worker' embeds the rest.",
    ]


def test_the_report_names_the_time_that_vectors_take_beside_that_of_reading(library: Almanac):
    async def work(db: Database) -> None:
        ingest_run = IngestRun(await call_for_base(db, 1), 1, [IngestFile("a.md")], done=1, pages=20)
        ingest_run.began -= 100
        ingest_run.ended = ingest_run.began + 10
        assert progress.rate(ingest_run) == "2.0 pages/s"
        ingest_run.embedded = ingest_run.ended + 402
        assert ingest_report.summary(ingest_run, 0).endswith("; 20 pages in 10.0 s, 2.0 pages/s; embedding in 402.0 s")
        assert ingest_report.to_json(ingest_run, [])["embedding_seconds"] == 402

    with_database(work)
    assert progress.stage_line(progress.embedding_stage(Coverage(1024, 312))) == "312 of 1,024 passages embedded"
