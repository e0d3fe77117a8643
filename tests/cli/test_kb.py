"""The knowledge base commands: from a folder of files to readable documents."""

import asyncio
import json
import os
import pty
import re
import shlex
import shutil
import signal
import subprocess
import sys
from collections.abc import Awaitable, Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar

import pytest

from almanac.cli.support import operator_call, progress
from almanac.cli.support.ingest import file_walk, ingest_report
from almanac.cli.support.ingest.ingest_run import IngestFile, IngestRun
from almanac.core.call import Actor, Call
from almanac.core.database import Database, Transaction
from almanac.db import migrate
from almanac.db.connect import connect
from almanac.files.file_store import format_size
from almanac.identity import orgs, principals
from almanac.knowledge import bases, folders
from tests.cli.conftest import Almanac
from tests.cli.program import PATIENCE, Answer, command, environment, run, serving
from tests.cli.test_commands import with_database
from tests.waiting import wait_until

T = TypeVar("T")

CORPUS = Path(__file__).parent.parent / "knowledge" / "corpus" / "files"
COMMANDS = [
    *("kb.add", "kb.list", "kb.share", "kb.shares", "kb.remove", "kb.restore", "kb.trash"),
    *("ingest", "docs", "read", "retry", "doc.remove", "doc.restore"),
]
FOR_PROGRAMS = ["kb.list", "kb.shares", "kb.trash", "ingest", "docs", "read", "retry"]
OPTIONS = {
    "kb.add": "--owner --org --group --organization --description",
    "kb.list": "--user --org",
    "kb.share": "--user --group --role --withdraw",
    "kb.remove": "--yes",
    "kb.restore": "--folder",
    "ingest": "--folder --watch --prune --dry-run --wait --no-wait",
    "docs": "--tree --status",
    "read": "--page --offset --limit",
    "retry": "--wait --no-wait",
    "doc.remove": "--yes",
}
SUMMARY = re.compile(r"(\d+) files?: ")


@pytest.fixture
def library(peopled: Almanac) -> Almanac:
    """The commands, with an empty knowledge base: number 1, Maria's."""
    assert peopled("kb", "add", "Pump manuals", "--owner", "maria").out == "1\n"
    return peopled


@pytest.fixture
def manuals(tmp_path: Path) -> Path:
    """A folder with a few small files."""
    return fill(tmp_path / "manuals", {"index.md": "# Index\n\nAll pumps.", "pumps/p1.md": "# P1\n\nForty rpm.",
                                       "pumps/p2.txt": "P2 leaks.", "prices.csv": "pump,price\np1,40\n"})  # fmt: skip


def fill(folder: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text, "utf-8")
    return folder


def ingested(answer: Answer) -> dict[str, Any]:
    assert answer.err == ""
    return json.loads(answer.out)


def outcomes(report: dict[str, Any]) -> dict[str, tuple[str | None, str]]:
    return {Path(file["path"]).name: (file["outcome"], file["status"]) for file in report["files"]}


def counts(almanac: Almanac) -> list[int]:
    """The number of documents of the only base, and how many of them wait or have failed."""
    _, line = almanac("kb", "list").out.splitlines()
    return [int(number) for number in line.split() if number.isdigit()][-3:]


def items(answer: Answer) -> list[dict[str, Any]]:
    assert answer.code == 0, answer
    return json.loads(answer.out)["items"]


def listed(almanac: Almanac, base_id: int = 1) -> dict[str, dict[str, Any]]:
    return {f"{doc['path']}/{doc['name']}".strip("/"): doc for doc in items(almanac("docs", str(base_id), "--json"))}


def change(sql: str) -> None:
    with_database(lambda db: db.write(lambda tx: tx.execute(sql)))


def test_an_ingest_changes_nothing_but_the_content(peopled: Almanac, tmp_path: Path):
    def stored() -> list[list[Any]]:
        columns = ("name", "tags", "metadata", "folder_id", "is_enabled")
        rows = with_database(lambda db: db.fetch(f"SELECT {', '.join(columns)} FROM documents ORDER BY id"))
        return [[row[column] for column in columns] for row in rows]

    assert peopled("kb", "add", "Pumps", "--owner", "maria").code == 0
    folder = fill(tmp_path / "in", {"pump.md": "Forty turns.", "cat.md": "A cat sleeps."})
    assert peopled("ingest", "1", str(folder), "--no-wait").code == 0
    change("""UPDATE documents SET tags = '["oil"]', metadata = '{"year":2024}', is_enabled = 0""")
    before = stored()
    fill(folder, {"cat.md": "A cat purrs."})
    report = json.loads(peopled("ingest", "1", str(folder), "--no-wait", "--json").out)
    assert (report["replaced"], report["unchanged"]) == (1, 1)
    assert stored() == before


# Help


@pytest.mark.parametrize("path", COMMANDS)
def test_every_command_about_knowledge_has_help_that_teaches(almanac: Almanac, path: str):
    answer = almanac(*path.split("."), "--help")
    assert (answer.code, answer.err) == (0, "")
    shown = " ".join(answer.out.split())
    assert re.search(rf"Example:.*almanac {path.replace('.', ' ')}\b", shown)
    for option in OPTIONS.get(path, "").split():
        assert option in shown
    assert ("--json" in shown) is (path in FOR_PROGRAMS)


def test_the_examples_of_the_help_run_one_after_the_other(peopled: Almanac, manuals: Path):
    def example(path: str) -> Answer:
        shown = " ".join(peopled(*path.split("."), "--help").out.replace("│", " ").split())
        found = re.search(r"Example: almanac (.*?)(?: [╭─]|$)", shown)
        assert found, shown
        answer = peopled(*shlex.split(found[1].rstrip(". ")))
        assert answer.code == 0, (found[1], answer)
        return answer

    assert example("kb.add").out == "1\n"
    assert "Pump manuals" in example("kb.list").out
    example("kb.share")
    assert example("kb.shares").out.split() == ["kind", "name", "role", "agent", "bot", "Reporter"]
    assert SUMMARY.match(example("ingest").out)
    assert "engineering/" in example("docs").out
    assert example("read").out.strip()
    example("retry")
    example("doc.remove")
    assert "document" in example("kb.trash").out
    example("doc.restore")
    example("kb.remove")
    example("kb.restore")
    assert len(listed(peopled)) == 4


# Bases


def test_a_new_base_prints_its_id_alone_and_belongs_to_whom_it_should(peopled: Almanac):
    peopled("group", "add", "research")
    mine = peopled("kb", "add", "Mine", "--owner", "maria", "--description", "What Maria knows")
    assert (mine.code, mine.out, mine.err) == (0, "1\n", "")
    assert peopled("kb", "add", "Ours", "--owner", "maria", "--group", "research").out == "2\n"
    assert peopled("kb", "add", "All", "--owner", "bot", "--organization").out == "3\n"
    found = {base["name"]: base for base in items(peopled("kb", "list", "--json"))}
    assert [(base["level"], base["owner"], base["group"]) for base in found.values()] == [
        ("organization", "bot", None), ("group", "maria", "research"), ("personal", "maria", None),
    ]  # fmt: skip
    assert found["Mine"]["description"] == "What Maria knows"
    assert found["Mine"]["documents"] == 0
    assert [base["name"] for base in items(peopled("kb", "list", "--user", "bot", "--json"))] == ["All"]
    head, *lines = peopled("kb", "list").out.splitlines()
    assert head.split() == ["id", "name", "level", "owner", "group", "documents", "queued", "failed"]
    assert [line.split()[-3:] for line in lines] == [["0", "0", "0"]] * 3


def test_a_second_base_of_the_same_name_is_made_and_said_to_be_one(peopled: Almanac):
    peopled("group", "add", "research")
    assert peopled("kb", "add", "100% Pumps", "--owner", "maria").err == ""
    for options in (
        ["--owner", "bot"],
        ["--owner", "maria", "--group", "research"],
        ["--owner", "bot", "--organization"],
    ):
        answer = peopled("kb", "add", "100% Pumps", *options)
        assert (answer.code, answer.err) == (0, "")
    assert peopled("kb", "add", "100% Pumps and more", "--owner", "maria").err == ""
    again = peopled("kb", "add", " 100%  Pumps", "--owner", "maria")
    assert (again.code, again.out) == (0, "6\n")
    assert again.err == "There is already a knowledge base named '100% Pumps' (id 1); added another.\n"
    again = peopled("kb", "add", "100% Pumps", "--owner", "bot", "--group", "research")
    assert again.out == "7\n"
    assert "(id 3)" in again.err
    again = peopled("kb", "add", "100% Pumps", "--owner", "maria", "--organization")
    assert "(id 4)" in again.err
    peopled("kb", "remove", "2", "--yes")
    assert peopled("kb", "add", "100% Pumps", "--owner", "bot").err == "", "one in the trash is no clash"


def test_bases_of_two_organisations_are_kept_apart(library: Almanac, manuals: Path):
    library("org", "add", "Other")
    library("user", "add", "pia", "--org", "Other")
    assert library("kb", "add", "Pia's", "--owner", "pia", "--org", "Other").out == "2\n"
    assert "Say which one with --org NAME" in library("kb", "list").complaint()
    assert [base["name"] for base in items(library("kb", "list", "--org", "Other", "--json"))] == ["Pia's"]
    assert (
        "There is no user or agent named 'bot'" in library("kb", "share", "2", "--user", "bot", "--role", "Owner").err
    )
    assert library("ingest", "2", str(manuals), "--no-wait").code == 0
    assert len(listed(library, 2)) == 4


def test_a_base_is_shared_by_role_and_the_role_is_taken_back(library: Almanac):
    library("group", "add", "research")
    for arguments in ("--user bot --role reporter", "--group research --role Developer", "--user bot --role Developer"):
        shared = library("kb", "share", "1", *arguments.split())
        assert (shared.code, shared.out, shared.err) == (0, "", "")
    assert items(library("kb", "shares", "1", "--json")) == [
        {"kind": "agent", "name": "bot", "role": "Developer"},
        {"kind": "group", "name": "research", "role": "Developer"},
    ]
    assert library("kb", "share", "1", "--user", "bot", "--withdraw").code == 0
    assert [share["name"] for share in items(library("kb", "shares", "1", "--json"))] == ["research"]


def test_a_removed_base_is_in_the_trash_and_comes_back_whole(library: Almanac, manuals: Path):
    library("ingest", "1", str(manuals), "--no-wait")
    assert library("kb", "remove", "1").complaint() == (
        "Removing needs a confirmation, and there is no terminal to ask. Repeat it with --yes."
    )
    removed = library("kb", "remove", "1", "--yes")
    assert (removed.code, removed.out, removed.err) == (0, "", "")
    assert items(library("kb", "list", "--json")) == []
    assert "There is no knowledge base 1" in library("docs", "1").complaint()
    assert "There is no knowledge base 1" in library("ingest", "1", str(manuals)).complaint()
    (gone,) = items(library("kb", "trash", "--json"))
    assert (gone["id"], gone["name"], gone["removed_at"] is None) == (1, "Pump manuals", False)
    assert library("kb", "trash").out.splitlines()[1].startswith("base  1   Pump manuals  20")
    assert library("kb", "restore", "1").code == 0
    assert library("kb", "trash").err == "The trash is empty.\n"
    assert len(listed(library)) == 4
    assert library("kb", "restore", "1").complaint() == (
        "Knowledge base 1 is not in the trash. See 'almanac kb trash'."
    )


def test_documents_are_removed_and_restored_one_by_one(library: Almanac, manuals: Path):
    library("ingest", "1", str(manuals), "--no-wait")
    first, second, *_ = (str(doc["id"]) for doc in items(library("docs", "1", "--json")))
    assert "Repeat it with --yes" in library("doc", "remove", first).complaint()
    assert library("doc", "remove", first, second, "--yes").code == 0
    assert len(listed(library)) == 2
    gone = items(library("kb", "trash", "1", "--json"))
    assert {(row["kind"], str(row["id"])) for row in gone} == {("document", first), ("document", second)}
    assert library("doc", "restore", first, second).code == 0
    assert len(listed(library)) == 4
    assert library("kb", "trash", "1").err == "The trash is empty.\n"


def test_a_folder_comes_back_from_the_trash_of_its_base(library: Almanac, manuals: Path):
    library("kb", "add", "Other", "--owner", "maria")
    library("ingest", "1", str(manuals), "--no-wait")

    async def remove(db: Database) -> None:
        call = await operator_call.call_for_base(db, 1)
        (row,) = await db.fetch("SELECT id FROM folders WHERE name = 'pumps'")
        await db.write(lambda tx: folders.remove(call, tx, row["id"], contents="delete"))

    with_database(remove)
    assert sorted(listed(library)) == ["index.md", "prices.csv"]
    (gone,) = items(library("kb", "trash", "1", "--json"))
    assert (gone["kind"], gone["name"]) == ("folder", "pumps")
    wrong = library("kb", "restore", "2", "--folder", str(gone["id"])).complaint()
    assert wrong == f"There is no folder {gone['id']} in the trash of knowledge base 2. See 'almanac kb trash 2'."
    restored = library("kb", "restore", "1", "--folder", str(gone["id"]))
    assert (restored.code, restored.out, restored.err) == (0, "", "")
    assert sorted(listed(library)) == ["index.md", "prices.csv", "pumps/p1.md", "pumps/p2.txt"]
    assert "in the trash of" in library("kb", "restore", "1", "--folder", str(gone["id"])).complaint()


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        ("kb add X --owner nobody", "There is no user or agent named 'nobody' in this organisation."),
        (
            "kb add X --owner maria --group g --organization",
            "A knowledge base belongs to a group or to the organisation.",
        ),
        ("kb add X --owner maria --group none", "There is no group named 'none'."),
        ("kb share 1 --user bot", "Give either --role or --withdraw."),
        ("kb share 1 --user bot --role Owner --withdraw", "Give either --role or --withdraw."),
        ("kb share 1 --role Owner", "A role is given to one user or one group."),
        ("kb share 1 --user bot --role Boss", "There is no role 'Boss'."),
        ("kb share 1 --user bot --withdraw", "Knowledge base 1 is not shared with 'bot'."),
        ("kb share 77 --user bot --role Owner", "There is no knowledge base 77. See 'almanac kb list'."),
        ("kb remove 77 --yes", "There is no knowledge base 77."),
        ("kb trash 77", "There is no knowledge base 77."),
        ("ingest 77 .", "There is no knowledge base 77."),
        (
            "ingest 1 . --folder a/b/../c",
            "--folder: '..' cannot be the name of a folder. Use names of 1 to 255 characters with slashes between them,"
            " and no '..'.",
        ),
        (f"ingest 1 . --folder {'/'.join('d' * 101)}", "--folder: Folders can be 100 deep and no deeper."),
        (
            "kb restore 1 --folder 77",
            "There is no folder 77 in the trash of knowledge base 1. See 'almanac kb trash 1'.",
        ),
        (f"kb restore 1 --folder {2**63}", f"There is no folder {2**63} in the trash of knowledge base 1."),
        ("docs 77", "There is no knowledge base 77."),
        ("docs 0", "There is no knowledge base 0."),
        (f"docs {2**63}", f"There is no knowledge base {2**63}."),
        (f"read {2**63}", f"There is no document {2**63}."),
        ("docs 1 --status lost", "There is no status 'lost'. The statuses are: queued,"),
        ("docs 1 --status failed --tree", "A tree shows every document."),
        ("retry 77", "There is no knowledge base 77."),
        ("read 77", "There is no document 77. See 'almanac docs KB'."),
        ("doc remove 77 --yes", "There is no document 77."),
        ("doc restore 77", "There is no document 77."),
    ],
)
def test_what_cannot_be_done_with_knowledge_is_one_line_that_names_the_fix(
    library: Almanac, arguments: str, complaint: str
):
    assert library(*arguments.split()).complaint().startswith(complaint)


@pytest.mark.parametrize("arguments", ["kb add", "kb add X", "kb share", "ingest 1", "docs", "read one"])
def test_a_mistyped_command_about_knowledge_is_told_so_with_exit_code_2(almanac: Almanac, arguments: str):
    answer = almanac(*arguments.split())
    assert answer.code == 2
    assert "Traceback" not in answer.err


# Files on the disk


def walked(*paths: Path, folder: str = "", home: Path = Path("/nowhere")) -> tuple[list[str], dict[str, str]]:
    tour = file_walk.walk(paths, folder, home)
    places = [f"{each.folder}/{each.name}{'!' if each.problem else ''}".strip("/") for each in tour.found]
    return places, {Path(each.label).name: each.reason for each in tour.skipped}


def test_a_folder_is_walked_in_order_and_hidden_and_strange_things_are_left_out(tmp_path: Path):
    root = fill(tmp_path / "root", {"b.md": "b", "a/z.md": "z", "a/deep/x.md": "x", ".git/config": "no", ".env": "no"})
    fill(tmp_path, {"secret.md": "secret", "elsewhere/s.md": "s"})
    (root / "out.md").symlink_to(tmp_path / "secret.md")
    (root / "aside").symlink_to(tmp_path / "elsewhere")
    (root / "gone.md").symlink_to(root / "nothing")
    (root / "loop").symlink_to(root / "loop")
    (root / "again").symlink_to(root / "a")
    (root / "same.md").symlink_to(root / "b.md")
    (root / "env.md").symlink_to(root / ".env")
    os.mkfifo(root / "pipe")
    places, skipped = walked(root, folder="/top/")
    assert places == ["top/b.md", "top/same.md", "top/a/z.md", "top/a/deep/x.md"]
    assert skipped == {
        ".git": "hidden",
        ".env": "hidden",
        "out.md": "a link that leads out of the folder",
        "aside": "a link that leads out of the folder",
        "gone.md": "a link that leads nowhere",
        "loop": "a link that leads nowhere",
        "again": "a link to another folder here",
        "env.md": "a link to something hidden",
        "pipe": "not a file",
    }


def test_what_is_named_itself_is_taken_even_if_hidden_or_a_link(tmp_path: Path):
    fill(tmp_path, {".env": "yes", "real.md": "yes", ".notes/n.md": "n"})
    (tmp_path / "link.md").symlink_to(tmp_path / "real.md")
    places, skipped = walked(tmp_path / ".env", tmp_path / "link.md", tmp_path / ".notes")
    assert (places, skipped) == ([".env", "link.md", "n.md"], {})


def test_our_own_data_is_never_taken_in(tmp_path: Path):
    root = fill(tmp_path / "root", {"a.md": "a", "almanac-data/almanac.db": "data"})
    assert walked(root, home=root / "almanac-data") == (["a.md"], {"almanac-data": "the data of Almanac itself"})
    assert walked(root, home=root) == ([], {"root": "the data of Almanac itself"})


def test_two_files_for_one_place_are_not_put_over_one_another(tmp_path: Path):
    first = fill(tmp_path / "first", {"readme.md": "one"})
    second = fill(tmp_path / "second", {"readme.md": "two", "more.md": "more"})
    assert walked(first, second, first / "readme.md")[0] == ["readme.md", "more.md", "readme.md!"]


def test_names_are_shown_without_what_a_terminal_obeys(tmp_path: Path):
    (tmp_path / "a\x1b[2Jb\n.md").write_text("x")
    (tmp_path / os.fsdecode(b"caf\xe9.md")).write_text("x")
    labels = [each.label for each in file_walk.walk([tmp_path], "", Path("/nowhere")).found]
    assert [Path(label).name for label in labels] == ["a�[2Jb�.md", "caf�.md"]


def test_a_name_that_is_no_text_is_a_failure_of_that_file_or_folder_alone(tmp_path: Path):
    bad = os.fsdecode(b"bad\xff\xfename.txt")
    root = fill(tmp_path / "root", {"good.md": "x", bad: "x", os.fsdecode(b"fold\xe9r/inside.md"): "x"})
    found = {
        each.name: (each.code, each.problem) for each in file_walk.walk([root, root / bad], "", Path("/none")).found
    }
    assert found == {
        "good.md": ("unreadable", ""),
        bad: ("bad_request", "The name is not valid UTF-8; rename the file."),
        os.fsdecode(b"fold\xe9r"): ("bad_request", "The name is not valid UTF-8; rename the folder."),
    }


def test_a_path_that_is_not_there_is_a_failure_among_others(tmp_path: Path):
    fill(tmp_path, {"there.md": "x", "more/a.md": "x"})
    (tmp_path / "dead.md").symlink_to(tmp_path / "nothing")
    (tmp_path / "circle").symlink_to(tmp_path / "circle")
    names = ("gone.md", "there.md/below.md", "dead.md", "circle", "there.md", "more", "else/gone.md")
    tour = file_walk.walk([tmp_path / name for name in names], "", Path("/none"))
    assert [(each.label.removeprefix(f"{tmp_path}/"), each.problem) for each in tour.found] == [
        ("gone.md", "The file cannot be read: No such file or directory."),
        ("there.md/below.md", "The file cannot be read: Not a directory."),
        ("dead.md", "The link leads nowhere."),
        ("circle", "The link leads nowhere."),
        ("there.md", ""),
        ("more/a.md", ""),
        ("else/gone.md", "The file cannot be read: No such file or directory."),
    ]


def test_a_pipe_in_the_place_of_a_file_does_not_make_us_wait(tmp_path: Path):
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(OSError, match="not a file"), file_walk.open_file(tmp_path / "pipe"):
        pass


# Ingest


def test_a_folder_becomes_documents_that_can_be_listed_and_read(library: Almanac, manuals: Path):
    answer = library("ingest", "1", str(manuals), "--folder", "engineering")
    assert answer.code == 0, answer
    assert re.fullmatch(r"4 files: 4 read; 4 files in \d+\.\d s, \d+\.\d files/s\n", answer.out)
    found = listed(library)
    assert sorted(found) == [
        f"engineering/{name}" for name in ("index.md", "prices.csv", "pumps/p1.md", "pumps/p2.txt")
    ]
    assert {doc["index_status"] for doc in found.values()} == {"success"}
    text = library("read", str(found["engineering/pumps/p1.md"]["id"]))
    assert (text.code, text.err) == (0, "")
    assert text.out.splitlines()[-1] == "Forty rpm."
    assert counts(library) == [4, 0, 0]


def test_the_same_file_again_is_left_alone_and_a_changed_one_replaced(library: Almanac, manuals: Path):
    first = ingested(library("ingest", "1", str(manuals), "--json"))
    assert (first["added"], first["unchanged"], first["pages"]) == (4, 0, 0)
    before = listed(library)
    again = ingested(library("ingest", "1", str(manuals), "--json"))
    assert (again["added"], again["replaced"], again["unchanged"], again["failed"]) == (0, 0, 4, 0)
    assert listed(library) == before
    (manuals / "pumps" / "p1.md").write_text("# P1\n\nFifty rpm.")
    changed = ingested(library("ingest", "1", str(manuals), "--json"))
    assert outcomes(changed)["p1.md"] == ("replaced", "success")
    assert (changed["replaced"], changed["unchanged"]) == (1, 3)
    after = listed(library)
    assert after["pumps/p1.md"]["id"] == before["pumps/p1.md"]["id"]
    assert library("read", str(after["pumps/p1.md"]["id"])).out.splitlines()[-1] == "Fifty rpm."
    (manuals / "index.md").unlink()
    assert ingested(library("ingest", "1", str(manuals), "--json"))["unchanged"] == 3
    assert "index.md" in listed(library), "what was removed from the disk stays"


def test_every_command_finds_a_knowledge_base_by_its_name(library: Almanac, manuals: Path):
    name = "Pump manuals"
    assert library("ingest", name, str(manuals)).code == 0
    assert len(items(library("docs", name, "--json"))) == 4
    assert library("docs", name, "--tree").out.startswith("Pump manuals\n")
    assert library("retry", name).out == "0 files: nothing to do\n"
    assert library("search", "leaks", "--user", "maria", "--kb", name, "--mode", "keyword").out.count("p2.txt") == 1
    assert library("index", "rebuild", "--kb", name).code == 0
    assert library("token", "add", "maria", "--base", name).code == 0
    assert library("token", "list", "maria", "--json").out.count('"bases": [1]') == 1
    assert library("kb", "share", name, "--user", "bot", "--role", "Reporter").code == 0
    assert len(items(library("kb", "shares", name, "--json"))) == 1
    assert items(library("kb", "trash", name, "--json")) == []
    assert library("kb", "remove", name, "--yes").code == 0
    assert library("docs", name).complaint() == "There is no knowledge base 'Pump manuals'. See 'almanac kb list'."
    assert library("kb", "restore", name).code == 0
    library("kb", "add", name, "--owner", "maria")
    assert library("docs", name).complaint() == "2 knowledge bases are named 'Pump manuals'. Use an id: 1, 2."
    assert library("org", "add", "Other").code == 0
    assert library("user", "add", "eve", "--org", "Other").code == 0
    assert library("kb", "add", "Theirs", "--owner", "eve", "--org", "Other").code == 0
    refused = library("token", "add", "maria", "--org", "Acme", "--base", "Theirs").complaint()
    assert refused.startswith("There is no knowledge base 'Theirs'."), "of another organisation"


def test_prune_removes_and_renames_the_documents_of_removed_and_renamed_files(library: Almanac, manuals: Path):
    fill(manuals, {"copy/p1.md": "# P1\n\nForty rpm."})  # the content of another file
    assert library("ingest", "1", str(manuals), "--folder", "all").code == 0
    other = fill(manuals.parent / "other", {"elsewhere.md": "# Not in the folder"})
    assert library("ingest", "1", str(other)).code == 0
    before = listed(library)
    (manuals / "index.md").unlink()
    (manuals / "new").mkdir()
    (manuals / "pumps" / "p1.md").rename(manuals / "new" / "p1.md")
    (manuals / "copy" / "p1.md").rename(manuals / "second.md")
    (manuals / "pumps" / "p2.txt").rename(manuals / "pumps" / "p2.md")  # another parser reads this ending
    preview = library("ingest", "1", str(manuals), "--folder", "all", "--prune", "--dry-run")
    assert (preview.code, preview.err) == (0, "")
    assert preview.out.splitlines() == [
        "renamed all/copy/p1.md -> all/second.md",
        "renamed all/pumps/p1.md -> all/new/p1.md",
        "removed all/index.md",
        "removed all/pumps/p2.txt",
        f"added {manuals / 'pumps/p2.md'}",
        "Dry run, nothing is changed: 1 added, 3 unchanged, 2 renamed, 2 removed",
    ]
    assert listed(library) == before
    answer = library("ingest", "1", str(manuals), "--folder", "all", "--prune", "--json")
    report = ingested(answer)
    assert (report["added"], report["unchanged"], report["renamed"], report["removed"]) == (1, 3, 2, 2)
    after = listed(library)
    assert sorted(after) == [*("all/new/p1.md", "all/prices.csv", "all/pumps/p2.md", "all/second.md", "elsewhere.md")]
    assert after["all/new/p1.md"]["id"] == before["all/pumps/p1.md"]["id"]
    assert after["all/second.md"]["id"] == before["all/copy/p1.md"]["id"]
    removed = {item["name"] for item in items(library("kb", "trash", "1", "--json"))}
    assert removed == {"index.md", "p2.txt"}
    assert library("ingest", "1", str(manuals), "--folder", "all", "--prune").out == "4 files: 4 unchanged\n"


def test_prune_keeps_every_document_while_the_disk_cannot_be_read(library: Almanac, manuals: Path, tmp_path: Path):
    assert library("ingest", "1", str(manuals)).code == 0
    (tmp_path / "empty").mkdir()
    unmounted = library("ingest", "1", str(tmp_path / "empty"), "--prune")
    assert (unmounted.code, unmounted.err.splitlines()[0]) == (0, "Nothing is removed: the folders contain no files.")
    (manuals / "index.md").unlink()
    fill(manuals, {os.fsdecode(b"bad\xff.md"): "not a name"})
    broken = library("ingest", "1", str(manuals), "--prune")
    assert broken.code == 1
    assert broken.err.splitlines()[0] == "Nothing is removed while a file or folder cannot be read."
    assert len(listed(library)) == 4
    assert "Name only folders." in library("ingest", "1", str(manuals / "prices.csv"), "--prune").complaint()
    assert "Name only folders." in library("ingest", "1", str(tmp_path / "gone"), "--prune").complaint()


def test_a_dry_run_lists_the_changes_and_makes_none(library: Almanac, manuals: Path, monkeypatch: pytest.MonkeyPatch):
    library("ingest", "1", str(manuals))
    before = listed(library)
    monkeypatch.setenv("ALMANAC_MAX_FILE_BYTES", "2048")
    fill(manuals, {"index.md": "# Changed", "fox.md": "A fox.", "empty.txt": "", "huge.txt": "x" * 3000})
    (manuals / "prices.csv").unlink()
    preview = library("ingest", "1", str(manuals), "--dry-run", "--json")
    assert preview.code == 1, "two files would fail"
    report = ingested(preview)
    assert report["dry_run"] is True
    told = {Path(change["path"]).name: (change["action"], change["reason"]) for change in report["changes"]}
    assert told == {
        "index.md": ("replaced", None),
        "fox.md": ("added", None),
        "empty.txt": ("failed", "The file is empty."),
        "huge.txt": ("failed", "The file is larger than the limit of 2 KiB."),
    }
    assert (report["unchanged"], report["removed"]) == (2, 0)
    assert listed(library) == before
    assert "--watch" in library("ingest", "1", str(manuals), "--dry-run", "--watch").complaint()


def test_files_that_cannot_be_taken_or_read_fail_with_a_reason_and_stop_nothing(
    library: Almanac, manuals: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("ALMANAC_MAX_FILE_BYTES", "2048")
    fill(manuals, {"empty.txt": "", "huge.txt": "x" * 3000, "bad.pdf": "%PDF-1.7 rubbish", "a\x1b.md": "escape",
                   ".hidden": "x"})  # fmt: skip
    answer = library("ingest", "1", str(manuals))
    assert answer.code == 1
    *table, last = answer.out.splitlines()
    assert last.startswith("9 files: 4 read, 1 kept but not readable, 1 skipped, 3 not taken; 4 files in ")
    assert "The file is larger than the limit of 2 KiB." in answer.out
    assert table[0].split() == ["file", "code", "message"]
    told = {
        Path(line.split("  ")[0]).name: line.split("  ")[-1 if "md" not in line else 1].strip() for line in table[1:]
    }
    assert set(told) == {"empty.txt", "huge.txt", "bad.pdf", "a�.md"}
    for name, code in {"empty.txt": "empty", "huge.txt": "too_large", "bad.pdf": "corrupt"}.items():
        assert re.search(rf"{re.escape(name)} +{code} +\w", answer.out)
    for name in told:
        assert (answer.out + answer.err).count(name) == 1
    assert f"skipped {manuals / '.hidden'}: hidden" in answer.err
    assert {name: doc["index_status"] for name, doc in listed(library).items()} == {
        "index.md": "success", "prices.csv": "success", "pumps/p1.md": "success", "pumps/p2.txt": "success",
        "bad.pdf": "failed",
    }  # fmt: skip
    (failed,) = items(library("docs", "1", "--status", "failed", "--json"))
    code, _, message = failed["failure"].partition(": ")
    assert code == "corrupt"
    assert failed["failure"] in library("docs", "1").out
    assert counts(library)[2] == 1
    unread = library("read", str(failed["id"])).complaint()
    assert unread == f"Document {failed['id']} could not be read: {message} (corrupt)"


def test_one_path_that_cannot_be_read_stops_no_other(
    library: Almanac, manuals: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    def refuse(_: object, mode: int) -> bool:
        return mode != os.R_OK

    monkeypatch.setattr(os, "access", refuse)  # a privileged user can read every file
    bad = fill(tmp_path, {os.fsdecode(b"bad\xff\xfename.txt"): "x"}) / os.fsdecode(b"bad\xff\xfename.txt")
    (tmp_path / "dead.md").symlink_to(tmp_path / "nothing")
    answer = library("ingest", "1", str(tmp_path / "gone.md"), str(bad), str(tmp_path / "dead.md"), str(manuals))
    assert answer.code == 1, answer
    _, *table, last = answer.out.splitlines()
    assert [re.split(r"  +", line.removeprefix(f"{tmp_path}/").strip()) for line in table] == [
        ["gone.md", "unreadable", "The file cannot be read: No such file or directory."],
        ["bad��name.txt", "bad_request", "The name is not valid UTF-8; rename the file."],
        ["dead.md", "unreadable", "The link leads nowhere."],
    ]
    assert last.startswith("7 files: 4 read, 3 not taken; 4 files in ")


def test_a_folder_that_cannot_be_named_is_blamed_before_anything_is_done(library: Almanac, manuals: Path):
    assert "'..'" in library("ingest", "1", str(manuals), "--folder", "a/../b").complaint()
    assert library("docs", "1", "--tree").out == "Pump manuals\n"


def test_pages_are_counted_where_there_are_any(library: Almanac, manuals: Path, tmp_path: Path):
    one = tmp_path / "one"
    one.mkdir()
    shutil.copy(CORPUS / "report.pdf", one)
    alone = library("ingest", "1", str(one)).out
    assert re.fullmatch(r"1 file: 1 read; 2 pages in \d+\.\d s, \d+\.\d pages/s\n", alone)
    shutil.copy(CORPUS / "report.pdf", manuals)
    mixed = library("ingest", "1", str(manuals), "--folder", "all").out
    assert re.fullmatch(r"5 files: 5 read; 2 pages and 4 files without pages in \d+\.\d s, \d+\.\d pages/s\n", mixed)
    assert library("ingest", "1", str(manuals), "--folder", "all").out == "5 files: 5 unchanged\n"
    report = ingested(library("ingest", "1", str(manuals), "--folder", "again", "--json"))
    pages = {Path(file["path"]).name: file["pages"] for file in report["files"]}
    assert pages == {"index.md": 0, "p1.md": 0, "p2.txt": 0, "prices.csv": 0, "report.pdf": 2}
    assert {doc["name"]: doc["page_count"] or 0 for doc in listed(library).values()} == pages


def test_the_speed_is_left_out_while_nothing_has_been_read(library: Almanac):
    async def work(db: Database) -> None:
        ingest_run = IngestRun(
            await operator_call.call_for_base(db, 1), 1, [IngestFile("a.md"), IngestFile("b.md")], done=1
        )
        ingest_run.began -= 10
        assert progress.stage_line(progress.parsing_stage(ingest_run)) == "1 of 2 files"
        ingest_run.files.pop()
        ingest_run.pages = 25
        assert re.fullmatch(r"1 of 1 file, 2\.[45] pages/s", progress.stage_line(progress.parsing_stage(ingest_run)))
        ingest_run.failures.append(ingest_run.files[0])
        assert progress.stage_line(progress.parsing_stage(ingest_run)).endswith(" pages/s, 1 failed")
        ingest_run.pages = 1
        assert ingest_report.summary(ingest_run, 2).endswith("; 1 page in 10.0 s, 0.1 pages/s")

    with_database(work)


def test_whoever_is_interrupted_is_told_how_it_goes_on(library: Almanac, capsys: pytest.CaptureFixture[str]):
    async def work(db: Database) -> None:
        queued, left = IngestFile("a.md", "added", "queued", 1), IngestFile("b.md")
        for pieces in ([queued], [queued, queued, left], [left], []):
            ingest_report.print_report(
                IngestRun(await operator_call.call_for_base(db, 1), 1, pieces), [], is_stopped=True
            )

    capsys.readouterr()
    with_database(work)
    told = capsys.readouterr()
    assert told.out.splitlines() == [
        "1 file: 1 queued", "3 files: 2 queued, 1 not reached", "1 file: 1 not reached", "0 files: nothing to do"
    ]  # fmt: skip
    assert told.err.splitlines() == [
        "Stopped; a running server parses 1 queued file; run the command again to go on.",
        "Stopped; a running server parses 2 queued files; run the command again to go on.",
        "Stopped; run the command again to go on.",
    ]


@pytest.mark.parametrize(
    ("size", "text"), [(1000, "1000 bytes"), (1536, "1.5 KiB"), (512 << 20, "512 MiB"), (3 << 30, "3 GiB")]
)
def test_sizes_are_written_for_people(size: int, text: str):
    assert format_size(size) == text


def test_a_file_that_failed_is_tried_again_with_the_next_ingest(library: Almanac, tmp_path: Path):
    file = fill(tmp_path / "in", {"bad.pdf": "%PDF-1.7 rubbish"})
    assert outcomes(ingested(library("ingest", "1", str(file), "--json"))) == {"bad.pdf": ("added", "failed")}
    again = library("ingest", "1", str(file), "--json")
    assert again.code == 1
    assert outcomes(ingested(again)) == {"bad.pdf": ("retried", "failed")}


def test_without_waiting_documents_stay_queued_until_somebody_reads_them(library: Almanac, manuals: Path):
    answer = library("ingest", "1", str(manuals), "--no-wait")
    assert (answer.code, answer.out) == (0, "4 files: 4 queued\n")
    assert answer.err == "Queued: a running server or 'almanac worker' parses them.\n"
    assert counts(library)[1] == 4
    (first, *_) = listed(library).values()
    assert library("read", str(first["id"])).complaint() == (
        f"Document {first['id']} has not been read yet: it is queued. "
        "Wait for a worker, or run 'almanac ingest' or 'almanac worker'."
    )
    waited = library("ingest", "1", str(manuals))
    assert waited.out.startswith("4 files: 4 read; 4 files in ")
    assert waited.err.startswith("0 of 4 passages embedded. Keyword search finds them all; ")
    after = ingested(library("ingest", "1", str(manuals), "--json"))
    assert set(outcomes(after).values()) == {("unchanged", "success")}
    assert counts(library)[1] == 0


def test_failed_documents_are_read_again_on_request(library: Almanac, manuals: Path):
    library("ingest", "1", str(manuals))
    reason = '{"stage":"system","code":"x","message":"m","retryable":true,"generation":1,"occurred_at":1}'
    change(f"UPDATE documents SET index_status = 'failed', failure = '{reason}' WHERE name LIKE 'p%'")
    waiting = library("retry", "1", "--no-wait")
    assert (waiting.code, waiting.out) == (0, "3 files: 3 queued\n")
    change(f"UPDATE documents SET index_status = 'failed', failure = '{reason}' WHERE name LIKE 'p%'")
    answer = library("retry", "1", "--json")
    assert answer.code == 0
    assert outcomes(ingested(answer)) == dict.fromkeys(("prices.csv", "p1.md", "p2.txt"), ("retried", "success"))
    assert "pumps/p1.md" in answer.out
    assert items(library("docs", "1", "--status", "failed", "--json")) == []
    nothing = library("retry", "1")
    assert (nothing.code, nothing.out) == (0, "0 files: nothing to do\n")


def test_a_document_that_nobody_will_read_is_not_waited_for(library: Almanac, manuals: Path):
    library("ingest", "1", str(manuals), "--no-wait")
    change("UPDATE jobs SET state = 'dead', finished_at = 1 WHERE kind = 'ingest'")
    answer = library("ingest", "1", str(manuals), "--json")
    assert answer.code == 1
    report = ingested(answer)
    assert {file["failure"]["code"] for file in report["files"]} == {"processing_failed"}


def test_the_json_of_an_ingest_says_what_became_of_each_file(library: Almanac, manuals: Path):
    fill(manuals, {".hidden": "x"})
    report = ingested(library("ingest", "1", str(manuals), "--json"))
    assert {key: report[key] for key in ("base", "added", "failed", "queued", "left", "skipped", "pages")} == {
        "base": 1, "added": 4, "failed": 0, "queued": 0, "left": 0, "skipped": 1, "pages": 0,
    }  # fmt: skip
    assert report["left_out"] == [{"path": str(manuals / ".hidden"), "reason": "hidden"}]
    ids = {doc["id"] for doc in listed(library).values()}
    assert {file["document_id"] for file in report["files"]} == ids
    assert {file["path"] for file in report["files"]} == {
        str(manuals / name) for name in ("index.md", "prices.csv", "pumps/p1.md", "pumps/p2.txt")
    }


# Reading


def test_a_document_is_read_by_page_by_stretch_and_whole(library: Almanac):
    assert library("ingest", "1", str(CORPUS / "report.pdf")).code == 0
    report = json.loads(library("read", "1", "--json").out)
    assert (report["document"]["page_count"], report["total"]) == (2, len(report["text"]))
    assert (report["offset"], report["next_offset"], report["page"]) == (0, None, None)
    whole = library("read", "1")
    assert whole.err.splitlines() == ["— page 1 —", "— page 2 —"]
    assert whole.out.replace("\n", "") == report["text"].replace("\n", "")
    second = library("read", "1", "--page", "2")
    assert second.err == "— page 2 —\n"
    page = json.loads(library("read", "1", "--page", "2", "--json").out)
    assert (page["page"], page["text"]) == (2, report["text"][page["offset"] :])
    assert second.out.strip() == page["text"].strip()
    some = json.loads(library("read", "1", "--offset", "10", "--limit", "25", "--json").out)
    assert (some["offset"], some["text"], some["next_offset"]) == (10, report["text"][10:35], 35)
    across = library("read", "1", "--offset", str(page["offset"] - 5), "--limit", "10")
    assert across.err.splitlines() == ["— page 1 —", "— page 2 —"]
    beyond = library("read", "1", "--offset", "1000000")
    assert (beyond.code, beyond.out) == (0, "")
    assert library("read", "1", "--page", "3").complaint() == ("Document 1 has the pages 1 to 2. Choose one of them.")


def test_a_text_longer_than_is_read_at_once_is_printed_whole(
    library: Almanac, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("ALMANAC_EMBEDDING", "false")
    text = "\n".join(f"Line {number} of a long text, with words." for number in range(8000))
    fill(tmp_path / "in", {"long.txt": text})
    library("ingest", "1", str(tmp_path / "in"))
    assert library("read", "1").out == text + "\n"
    assert "has no pages" in library("read", "1", "--page", "1").complaint()


def test_the_tree_shows_folders_statuses_and_what_is_broken(library: Almanac, manuals: Path):
    fill(manuals, {"bad.pdf": "%PDF-1.7 rubbish"})
    library("ingest", "1", str(manuals))
    whole = library("docs", "1", "--tree")
    assert (whole.code, whole.err) == (0, "")
    lines = whole.out.splitlines()
    assert lines[0] == "Pump manuals"
    assert lines[1].endswith("pumps/")
    assert any(re.search(r"bad\.pdf  #\d+  failed: corrupt$", line) for line in lines)
    assert sum(line.endswith("success") for line in lines) == 4
    change("UPDATE folders SET parent_id = 4711")
    broken = library("docs", "1", "--tree")
    assert broken.code == 0
    assert re.fullmatch(r"Warning: Folder \d+ references missing parent 4711\n", broken.err)
    assert "pumps/  (its folder is missing)" in broken.out
    as_json = json.loads(library("docs", "1", "--tree", "--json").out)
    assert len(as_json["warnings"]) == 1
    (pumps,) = (node for node in as_json["items"] if node["kind"] == "folder")
    assert pumps["is_orphan"]
    assert {node["name"] for node in as_json["items"] if node["folder_id"] == pumps["id"]} == {"p1.md", "p2.txt"}
    assert listed(library)["pumps/p1.md"]["index_status"] == "success"


# Commands as processes


def at(url: str, work: Callable[[Database], Awaitable[T]]) -> T:
    """Use a database without the seconds of starting a process."""

    async def go() -> T:
        db = await connect(url, pool_size=1)
        try:
            await migrate.apply(db)
            return await work(db)
        finally:
            await db.close()

    return asyncio.run(go())


def url_of(home: Path, settings: Mapping[str, str]) -> str:
    home.mkdir(exist_ok=True)
    return settings.get("ALMANAC_DATABASE_URL", f"sqlite:///{home / 'almanac.db'}")


def founded(home: Path, **settings: str) -> Path:
    """Create a home with an organisation, Maria and her base, number 1."""

    async def work(db: Database) -> None:
        async def found(tx: Transaction) -> None:
            org = await orgs.add(tx, "Acme")
            maria = await principals.add(tx, org.id, "user", "maria")
            actor = Actor(maria.id, "maria", "user", org.id, "Acme", False, 0, "user", frozenset())
            assert (await bases.add(Call(actor, db, "test"), tx, "Notes")).id == 1

        await db.write(found)

    at(url_of(home, settings), work)
    return home


def notes(folder: Path, number: int) -> Path:
    return fill(folder, {f"part{each % 7}/note{each:03}.md": f"# Note {each}\n\nWords." for each in range(number)})


def begun(home: Path, *arguments: str, **settings: str) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        command(*arguments),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=home.parent,
        env=environment(home, settings),
    )


def statuses(home: Path, **settings: str) -> list[str]:
    """The index statuses of the documents outside the trash."""
    sql = "SELECT index_status FROM documents WHERE removed_at IS NULL"
    return [row["index_status"] for row in at(url_of(home, settings), lambda db: db.fetch(sql))]


@pytest.fixture
def store(database_url: str) -> Iterator[dict[str, str]]:
    """Settings for either database, with a short lease so that another worker soon takes over jobs."""
    yield {"ALMANAC_DATABASE_URL": database_url, "ALMANAC_JOB_LEASE_SECONDS": "1"}


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_an_interrupted_ingest_goes_on_where_it_was(tmp_path: Path, store: dict[str, str], number: signal.Signals):
    home = founded(tmp_path / "data", **store)
    folder = notes(tmp_path / "notes", 120)
    with begun(home, "ingest", "1", str(folder), **store) as process:
        wait_until(lambda: process.poll() is not None or "success" in statuses(home, **store), seconds=PATIENCE)
        process.send_signal(number)
        out, err = process.communicate(timeout=60)
    if number == signal.SIGINT:
        assert process.returncode == 130, err
        assert "Traceback" not in err
        assert SUMMARY.match(out)
        assert err.splitlines()[-1].startswith("Stopped; ")
        assert err.splitlines()[-1].endswith("run the command again to go on.")
    assert statuses(home, **store).count("success") < 120, "it was too quick to be interrupted"
    rest = run(home, "ingest", "1", str(folder), "--json", **store)
    assert rest.code == 0, rest.err
    report = json.loads(rest.out)
    assert (len(report["files"]), report["failed"], report["queued"], report["left"]) == (120, 0, 0, 0)
    assert statuses(home, **store) == ["success"] * 120


def test_what_is_changed_or_added_while_watching_is_brought_in(tmp_path: Path):
    home = founded(tmp_path / "data")
    folder = fill(tmp_path / "notes", {"a.md": "first", "b.md": "second"})
    with begun(home, "ingest", "1", str(folder), "--watch", "--json") as process:
        assert process.stdout is not None
        first = json.loads(process.stdout.readline())
        assert (first["added"], first["failed"]) == (2, 0)
        fill(folder, {"new/c.md": "third", "bad.pdf": "%PDF-1.7 rubbish"})
        told: dict[str, tuple[str | None, str]] = {}
        while len(told) < 2:
            told |= outcomes(json.loads(process.stdout.readline()))
        assert told == {"c.md": ("added", "success"), "bad.pdf": ("added", "failed")}
        fill(folder, {"a.md": "first, changed", "bad.pdf": "no PDF at all"})
        told = {}
        while len(told) < 2:
            told |= outcomes(json.loads(process.stdout.readline()))
        assert told == {"a.md": ("replaced", "success"), "bad.pdf": ("replaced", "success")}
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=30)
        assert (process.returncode, out, err) == (0, "", "")
    assert statuses(home) == ["success"] * 4


def test_what_is_renamed_or_removed_while_watching_is_pruned(tmp_path: Path, store: dict[str, str]):
    home = founded(tmp_path / "data", **store)
    folder = fill(tmp_path / "notes", {"a.md": "first", "b.md": "second"})
    with begun(home, "ingest", "1", str(folder), "--watch", "--prune", "--json", **store) as process:
        assert process.stdout is not None
        assert json.loads(process.stdout.readline())["added"] == 2
        (folder / "a.md").rename(folder / "c.md")
        (folder / "b.md").unlink()
        told: set[tuple[str, str | None, str]] = set()
        while len(told) < 2:
            report = json.loads(process.stdout.readline())
            told |= {(each["action"], each["before"], each["path"]) for each in report["changes"]}
        assert told == {("renamed", "a.md", "c.md"), ("removed", None, "b.md")}
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=30)
        assert (process.returncode, err) == (0, "")
    assert statuses(home, **store) == ["success"]


def test_the_worker_of_a_server_reads_what_was_only_queued(tmp_path: Path):
    with serving(tmp_path / "data") as server:
        home = tmp_path / "data"
        assert run(home, "kb", "add", "Notes", "--owner", "admin").out == "1\n"
        queued = run(home, "ingest", "1", str(notes(tmp_path / "notes", 5)), "--no-wait")
        assert queued.code == 0
        wait_until(lambda: statuses(home) == ["success"] * 5, seconds=PATIENCE)
        beside = run(home, "ingest", "1", str(notes(tmp_path / "notes", 30)), "--json")
        assert beside.code == 0, beside.err
        assert (json.loads(beside.out)["added"], json.loads(beside.out)["unchanged"]) == (25, 5)
        assert statuses(home) == ["success"] * 30
        assert server.stop() == 0


def on_a_terminal(home: Path, *arguments: str, typed: str = "") -> tuple[int, str]:
    """Run a command in a terminal; return the exit status and the output."""
    ours, theirs = pty.openpty()
    env = environment(home, {"TERM": "xterm", "COLUMNS": "120"})
    with subprocess.Popen(
        command(*arguments), stdin=theirs, stdout=theirs, stderr=theirs, cwd=home.parent, env=env
    ) as process:
        os.close(theirs)
        os.write(ours, typed.encode())
        shown = b""
        try:
            while piece := os.read(ours, 65536):
                shown += piece
        except OSError:
            pass  # the error at the end of a terminal
        os.close(ours)
        return process.wait(30), shown.decode("utf-8", "replace")


def test_on_a_terminal_there_is_a_bar_and_removing_asks_first(tmp_path: Path):
    home = founded(tmp_path / "data")
    folder = fill(notes(tmp_path / "notes", 3), {"bad.pdf": "%PDF-1.7 rubbish"})
    code, shown = on_a_terminal(home, "ingest", "1", str(folder))
    plain = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", shown)
    assert code == 1
    assert re.search(r"Reading\s+━+\s+4/4 files\s+\d+\.\d files/s\s+1 failed\s+0:00:\d\d", plain)
    assert re.search(r"^file +code +message", plain, re.MULTILINE)
    assert "4 files: 3 read, 1 kept but not readable; 3 files in" in plain

    code, shown = on_a_terminal(home, "kb", "remove", "1", typed="n\n")
    assert code == 1
    assert "Remove the knowledge base 'Notes'? It can be restored for 30 days." in shown
    assert len(statuses(home)) == 4
    code, shown = on_a_terminal(home, "doc", "remove", "1", typed="y\n")
    assert (code, len(statuses(home))) == (0, 3)


def test_a_text_cannot_give_orders_to_the_terminal_that_shows_it(tmp_path: Path):
    home = founded(tmp_path / "data")
    assert run(home, "ingest", "1", str(notes(tmp_path / "notes", 1))).code == 0

    poison = "UPDATE reading_parts SET text = $1"
    at(url_of(home, {}), lambda db: db.write(lambda tx: tx.execute(poison, "# N \x1b[2J \u202eW.\n")))
    assert "\x1b[2J \u202eW" in run(home, "read", "1").out, "a pipe gets what is stored"
    code, shown = on_a_terminal(home, "read", "1")
    assert code == 0
    assert "# N �[2J �W." in shown
    assert "\x1b[2J" not in shown
    assert "\u202e" not in shown


def test_the_command_line_does_not_load_the_parsers(tmp_path: Path):
    script = (
        "import sys, almanac.cli; print([m for m in ('kreuzberg', 'pypdfium2', 'python_calamine') if m in sys.modules])"
    )
    shown = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=True)
    assert shown.stdout == "[]\n"


@pytest.mark.parametrize("name", ["kb", "token", "user", "jobs", "ingest", "docs", "worker"])
def test_a_command_does_not_load_the_server(name: str):
    script = (
        f"import sys, typer.main, almanac.cli; typer.main.get_command(almanac.cli.build({name!r}));"
        "print([m for m in ('mcp', 'uvicorn', 'starlette.applications', 'redis') if m in sys.modules])"
    )
    shown = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=True)
    assert shown.stdout == "[]\n"


# The tutorials


def blocks(page: str) -> list[tuple[str, str]]:
    """The commands of a tutorial, each with the output in the text."""
    found = re.findall(r"^```(sh|text)\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    commands: list[tuple[str, str]] = []
    for kind, text in found:
        if kind == "sh":
            commands.append((text, ""))
        else:
            commands[-1] = (commands[-1][0], text)
    return commands


def likened(output: str, home: Path) -> str:
    """The output without the parts that differ between runs: numbers and column widths."""
    plain = output.replace(str(home), "~")
    return re.sub(r"[ \t]+", " ", re.sub(r"\d[\d.:TZ-]*", "N", plain)).replace(" \n", "\n").strip()


@pytest.mark.parametrize("name", ["first-server", "folder-to-agent"])
def test_a_tutorial_runs_as_it_is_written(tmp_path: Path, name: str):
    page = (Path(__file__).parent.parent.parent / "docs" / "tutorial" / f"{name}.md").read_text("utf-8")
    start, *rest = blocks(page)
    assert start[0].startswith("make serve")
    home = tmp_path / "almanac-tutorial"
    with serving(home) as server:
        own = Path(command()[0]).parent
        script = "set -e\n" + "".join(
            f"{text}\necho '=== {number}'\n" for number, (text, _) in enumerate(rest) if "claude mcp add" not in text
        )
        script = script.replace("http://127.0.0.1:8010", server.url).replace("$PWD/.venv/bin", str(own))
        script = re.sub(r'(almanac ingest "\$KB".*)', r"\1 || true", script)
        shown = subprocess.run(
            ["bash", "-c", script], capture_output=True, text=True, timeout=300, cwd=tmp_path,
            env={**environment(home, {}), "HOME": str(tmp_path)},
        )  # fmt: skip
        assert shown.returncode == 0, shown.stderr
    printed = re.split(r"^=== (\d+)\n", shown.stdout, flags=re.MULTILINE)
    outputs = {int(number): text for text, number in zip(printed[::2], printed[1::2], strict=False)}
    for number, (_, expected) in enumerate(rest):
        if expected:
            assert likened(outputs[number], tmp_path) == likened(expected, tmp_path)
    assert not (tmp_path / "manuals").exists()


def test_the_guide_to_uploads_runs_as_it_is_written(tmp_path: Path):
    root = Path(__file__).parent.parent.parent
    page = (root / "docs" / "how-to" / "upload-documents.md").read_text("utf-8")
    for name in ("tests", "README.md"):
        (tmp_path / name).symlink_to(root / name)
    with serving(tmp_path / "data") as server:
        script = "set -e\n" + "".join(f"{text}\necho; echo '==='\n" for text, _ in blocks(page))
        script = script.replace("http://127.0.0.1:8000", server.url).replace("curl -s ", "curl -sf -w '\\n' ")
        script = script.replace(".venv/bin/almanac", str(Path(command()[0]).parent / "almanac"))
        shown = subprocess.run(
            ["bash", "-c", script], capture_output=True, text=True, timeout=120, cwd=tmp_path,
            env=environment(tmp_path / "data", {}),
        )  # fmt: skip
        assert shown.returncode == 0, (shown.stdout, shown.stderr)
    answers = [[json.loads(line) for line in part.splitlines() if line] for part in shown.stdout.split("===\n")]
    care, (read,), (again,), nodes, pages, (sent,), (changed,) = (answer for answer in answers if answer)
    assert care[0]["outcome"] == "added"
    assert (read["index_status"], read["tags"], read["metadata"]) == ("success", ["pump", "2024"], {"site": "Oslo"})
    assert again["count"] == 0
    assert [{node["name"] for node in level["items"]} for level in nodes] == [{"pump.pdf", "care.md"}] * 2
    assert pages[0]["page"] == 2
    assert (sent["document"]["id"], sent["outcome"]) == (read["id"], "unchanged")
    assert changed["outcome"] == "replaced"
    assert (tmp_path / "back.pdf").read_bytes() == (root / "README.md").read_bytes()
