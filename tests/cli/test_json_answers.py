"""The output of commands with --json: the answer of the operation that does the same, or a form of its own for a
reason."""

import json
from collections.abc import Callable, Iterator, Mapping
from operator import itemgetter
from pathlib import Path
from typing import Any

import httpx2
import pytest
from typer.main import get_command

from almanac.cli import build
from almanac.operations.table import OPERATIONS
from tests.cli.program import Server, run, serving
from tests.cli.test_kb import CORPUS, fill

URL = "http://127.0.0.1:8000"  # of the server in the output of commands, which do not know its port


class Operation(str):
    """The operation whose answer the command prints."""


class Reason(str):
    """Why the command has a form of its own."""


ACCOUNTS = Reason("No operation shows or changes accounts.")
PROCESS = Reason("It is about the machine and its processes, which no operation reaches.")
MANY_FILES = Reason("It follows many documents, each through several calls, until a worker has parsed them.")
IMPORT = Reason("It counts the records of a file; REST has another form for its contract, or none.")

JSON_COMMANDS: Mapping[str, Operation | Reason] = {
    "search": Operation("search"),
    "docs": Operation("list_documents"),  # with --tree: browse
    "read": Operation("read_document"),
    "kb list": Operation("list_bases"),
    "kb shares": Operation("list_shares"),
    "kb trash": Operation("list_trash"),  # without a base: list_bases
    "data list": Operation("list_datasets"),
    "data trash": Operation("list_datasets"),
    "data show": Operation("get_dataset"),
    "data versions": Operation("list_dataset_versions"),
    "data push": Operation("push_data"),
    "data query": Operation("query_data"),
    "data verify": Operation("verify_result"),
    "data describe": Operation("change_dataset"),
    "data rule": Operation("set_row_rule"),
    "data rules": Operation("list_row_rules"),
    "data shares": Reason("No operation lists the roles on a dataset."),
    "ingest": MANY_FILES,
    "retry": MANY_FILES,
    "category list": Reason("It is a table with indented names; browse_categories nests the whole tree."),
    "catalogue import": IMPORT,
    "memory import": IMPORT,
    "quota list": Reason("It lists one organisation's quotas, also those that server_status does not report."),
    "audit executions": Reason("It lists those of every organisation; REST lists those of one, in pages."),
    **dict.fromkeys(
        ("org list", "user list", "agent list", "group list", "token list", "client list", "client add"), ACCOUNTS
    ),
    **dict.fromkeys(("migrate", "doctor", "jobs list", "index status", "index rebuild"), PROCESS),
    **dict.fromkeys(("contracts", "bench retrieval"), PROCESS),
}


def json_commands(group: Any, path: str = "") -> Iterator[str]:
    """The full names of all commands with --json."""
    for name, command in group.commands.items():
        if hasattr(command, "commands"):
            yield from json_commands(command, f"{path}{name} ")
        elif any("--json" in parameter.opts for parameter in command.params):
            yield path + name


def test_every_command_with_json_prints_an_operation_or_has_a_reason():
    assert sorted(JSON_COMMANDS) == sorted(json_commands(get_command(build())))
    operations = {value for value in JSON_COMMANDS.values() if isinstance(value, Operation)}
    assert operations <= {operation.name for operation in OPERATIONS}


@pytest.fixture(scope="module")
def printed_and_answered(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., tuple[Any, Any]]]:
    """Run a command beside a server, send a request to the server, and return both answers."""
    home = tmp_path_factory.mktemp("json") / "home"
    files = fill(home.parent / "manuals", {"a/pump.md": "# Pump\n\nOil it monthly.", "z.md": "Top.", "b/x.txt": "X."})
    with serving(home) as server:
        _fill(home, files)

        def both(command: list[str], method: str, path: str, **how: Any) -> tuple[Any, Any]:
            printed = run(home, *command, "--json")
            assert printed.code == 0, printed
            return json.loads(printed.out.replace(URL, server.url)), _ask(server, method, path, **how)

        yield both


def _fill(home: Path, files: Path) -> None:
    rows = home.parent / "orders.ndjson"
    rows.write_text('{"city": "Graz", "amount": 12.5}\n')
    run(home, "user", "add", "maria")
    run(home, "kb", "add", "Theirs", "--owner", "maria")
    for arguments in (
        ["kb", "add", "Manuals", "--owner", "admin"],
        ["ingest", "2", str(files), "--wait"],
        ["ingest", "2", str(CORPUS / "report.pdf"), "--wait"],
        ["kb", "share", "2", "--user", "maria", "--role", "Reporter"],
        ["kb", "add", "Gone", "--owner", "admin"],
        ["kb", "remove", "3", "--yes"],
        ["doc", "remove", "1", "--yes"],
        ["data", "push", "Orders", str(rows), "--user", "admin"],
        ["data", "rule", "Orders", "--user", "maria", "--where", "amount > 1"],
    ):
        answer = run(home, *arguments)
        assert answer.code == 0, answer


def _ask(server: Server, method: str, path: str, **how: Any) -> Any:
    headers = {"authorization": f"Bearer {server.token}"}
    answer = httpx2.request(method, f"{server.url}/api/v1{path}", headers=headers, timeout=30, **how)
    assert answer.status_code == 200, answer.text
    return answer.json()


@pytest.mark.parametrize(
    ("command", "method", "path", "body"),
    [
        (["kb", "list", "--user", "admin"], "GET", "/bases?owner=admin", None),
        (["kb", "shares", "2"], "GET", "/bases/2/shares", None),
        (["kb", "trash", "2"], "GET", "/bases/2/trash", None),
        (["kb", "trash"], "GET", "/bases?removed=true", None),
        (["docs", "2", "--tree"], "GET", "/bases/2/nodes?recursive=true", None),
        (["docs", "2", "--status", "success"], "GET", "/bases/2/documents?status=success", None),
        (["read", "2"], "GET", "/documents/2/content?limit=100000", None),
        (["read", "4", "--page", "2"], "GET", "/documents/4/content?page=2", None),
        (["read", "4", "--offset", "10", "--limit", "9"], "GET", "/documents/4/content?offset=10&limit=9", None),
        (
            ["search", "oil", "--user", "admin", "--top-k", "2"],
            "POST",
            "/search",
            {"query": "oil", "limit": 2, "highlight": True},
        ),
        (["data", "list"], "GET", "/datasets?limit=500", None),
        (["data", "show", "Orders"], "GET", "/datasets/1", None),
        (["data", "versions", "Orders"], "GET", "/datasets/1/versions", None),
        (["data", "rules", "Orders"], "GET", "/datasets/1/rules", None),
    ],
)
def test_the_output_is_the_answer_of_the_operation(
    printed_and_answered: Callable[..., tuple[Any, Any]], command: list[str], method: str, path: str, body: Any
):
    printed, answered = printed_and_answered(command, method, path, **({"json": body} if body else {}))
    if command[0] == "docs" and "--tree" not in command:
        answered["items"].sort(key=itemgetter("path", "name"))  # people read them by folder
    assert printed == answered
    assert printed.get("items") or printed.get("results") or printed.get("text") or printed.get("fields")


def test_pages_of_documents_continue_after_the_last_id(printed_and_answered: Callable[..., tuple[Any, Any]]):
    printed, first = printed_and_answered(["docs", "2"], "GET", "/bases/2/documents?limit=2")
    assert (len(first["items"]), first["has_more"]) == (2, True)
    after = first["items"][-1]["id"]
    _, last = printed_and_answered(["docs", "2"], "GET", f"/bases/2/documents?limit=2&after={after}")
    assert last["has_more"] is False
    listed = first["items"] + last["items"]
    assert sorted(item["id"] for item in listed) == sorted(item["id"] for item in printed["items"])
    assert len(listed) == len(printed["items"])
