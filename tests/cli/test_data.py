"""The commands of datasets: from a file of rows to a verified answer."""

import csv
import io
import json
import re
import subprocess
from pathlib import Path
from typing import Any

import duckdb
import pytest

from almanac.cli.data import dataset_export
from tests.cli.conftest import Almanac
from tests.cli.program import Answer, command, environment, serving
from tests.cli.test_kb import blocks

COMMANDS = [
    *("list", "show", "push", "query", "verify", "versions", "describe", "remove", "restore", "trash"),
    *("share", "shares", "rule", "rules", "export"),
]
FOR_PROGRAMS = ["list", "show", "push", "query", "verify", "versions", "describe", "trash", "shares", "rule", "rules"]
OPTIONS = {
    "push": "--strategy --keys --date-field --keep-for --idempotency-key --user --org",
    "query": "--dataset --c9ql --limit --as-of --csv --receipt --user --org",
    "describe": "--rename --field --description --label --unit --synonym --type --user",
    "rule": "--user --group --where --hide --lift",
    "share": "--user --group --role --withdraw",
    "remove": "--yes",
    "export": "--as-of --user",
}
ORDERS = [
    {"city": "Graz", "amount": 10, "region": "south", "margin": 1.5},
    {"city": "Wien", "amount": 20, "region": "east", "margin": 2.5},
    {"city": "Graz", "amount": 30, "region": "south", "margin": 3.5},
]
TOTALS = "SELECT city, sum(amount) AS total FROM Orders GROUP BY city ORDER BY city"


@pytest.fixture
def orders(peopled: Almanac, tmp_path: Path) -> Almanac:
    """The commands, with the dataset Orders, Maria's."""
    assert push(peopled, tmp_path, "Orders", ORDERS, "--user", "maria").code == 0
    return peopled


def push(almanac: Almanac, folder: Path, name: str, rows: list[dict[str, Any]], *options: str) -> Answer:
    (folder / "rows.ndjson").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return almanac("data", "push", name, str(folder / "rows.ndjson"), *options)


def printed(answer: Answer) -> Any:
    assert answer.code == 0, answer
    return json.loads(answer.out)


def queried(almanac: Almanac, sql: str, *options: str) -> list[dict[str, Any]]:
    return printed(almanac("data", "query", sql, "--json", *options))["rows"]


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_of_datasets_has_help_that_teaches(almanac: Almanac, name: str):
    answer = almanac("data", name, "--help")
    assert (answer.code, answer.err) == (0, "")
    shown = " ".join(answer.out.split())
    assert re.search(rf"Example:.*almanac data {name}\b", shown)
    for option in ("--org", *OPTIONS.get(name, "").split()):
        assert option in shown
    assert ("--json" in shown) is (name in FOR_PROGRAMS)


# Push


def test_lines_and_an_array_are_pushed(peopled: Almanac, tmp_path: Path):
    answer = push(peopled, tmp_path, "Orders", ORDERS, "--user", "maria")
    assert answer.out == "Orders (new): 3 rows pushed; version 1 has 3 rows\n"
    (tmp_path / "more.json").write_text(json.dumps([{"city": "Linz", "amount": 2.5}], indent=2))
    done = printed(peopled("data", "push", "orders", str(tmp_path / "more.json"), "--json"))
    assert done["widened"] == [{"field": "amount", "before": "integer", "now": "decimal"}]
    assert (done["created"], done["pushed"], done["rows"], done["version"]) == (False, 1, 4, 2)
    assert queried(peopled, "SELECT count(*) AS n FROM Orders") == [{"n": 4}]


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        ('{"a": 1}\n{"a": \n', "Line 2 is not JSON"),
        ('{"a": 1}\n7\n', "Line 2 is not a JSON object."),
        ("[{}, 7]", "Row 2 is not a JSON object."),
        ("[1", "The array is not JSON"),
        ("", "There are no rows."),
    ],
)
def test_what_are_no_rows_is_refused_and_nothing_is_stored(
    peopled: Almanac, tmp_path: Path, content: str, complaint: str
):
    (tmp_path / "bad").write_text(content)
    answer = peopled("data", "push", "Bad", str(tmp_path / "bad"), "--user", "maria")
    assert answer.complaint().startswith(complaint)
    assert printed(peopled("data", "list", "--json"))["items"] == []


def test_a_missing_file_and_a_dataset_without_an_owner_are_explained(peopled: Almanac, tmp_path: Path):
    missing = peopled("data", "push", "Orders", str(tmp_path / "none"), "--user", "maria").complaint()
    assert missing == f"The file '{tmp_path / 'none'}' cannot be read: No such file or directory."
    unowned = push(peopled, tmp_path, "Orders", ORDERS).complaint()
    assert unowned == "There is no dataset 'Orders'. To create it, name its owner with --user USER."


def test_large_input_is_pushed_in_parts_and_a_repeat_with_the_key_stores_nothing(peopled: Almanac, tmp_path: Path):
    rows = [{"n": number} for number in range(50_001)]
    how = ("--user", "maria", "--strategy", "replace", "--idempotency-key", "monday")
    answer = push(peopled, tmp_path, "Numbers", rows, *how)
    assert answer.out == "Numbers (new): 50,001 rows pushed; version 2 has 50,001 rows\n"
    assert answer.err.splitlines() == [
        "The rows are pushed in parts; each is a version of its own.",
        "Part 1: 50,000 rows, version 1",
        "Part 2: 1 row, version 2",
    ]
    assert printed(push(peopled, tmp_path, "Numbers", rows, *how, "--json"))["repeated"] is True
    assert queried(peopled, "SELECT count(*) AS n, sum(n) AS total FROM Numbers") == [
        {"n": 50_001, "total": 50_000 * 50_001 // 2}
    ]


def test_a_failure_in_a_later_part_tells_how_many_rows_are_stored(peopled: Almanac, tmp_path: Path):
    lines = ['{"n": 1}'] * 50_000 + ["7"]
    (tmp_path / "rows").write_text("\n".join(lines))
    answer = peopled("data", "push", "Numbers", str(tmp_path / "rows"), "--user", "maria")
    assert answer.code == 1
    assert answer.err.splitlines()[0] == "50,000 rows of the parts before are stored."
    assert answer.err.splitlines()[1].startswith("Error: Line 50001 is not a JSON object.")


def test_rows_are_replaced_by_keys_and_dropped_by_date(orders: Almanac, tmp_path: Path):
    upsert = ("--strategy", "upsert", "--keys", "city", "--keys", "amount")
    push(orders, tmp_path, "Orders", [{"city": "Graz", "amount": 10, "margin": 9.5}], *upsert)
    assert queried(orders, "SELECT margin FROM Orders WHERE city = 'Graz' ORDER BY amount") == [
        {"margin": 9.5},
        {"margin": 3.5},
    ]
    days = [{"day": "2001-01-01"}, {"day": "2999-01-01"}]
    expire = ("--strategy", "expire", "--date-field", "day", "--keep-for", "90d")
    assert push(orders, tmp_path, "Days", days, "--user", "maria", *expire).code == 0
    assert queried(orders, "SELECT day FROM Days") == [{"day": "2999-01-01"}]
    assert "'append', 'replace'" in push(orders, tmp_path, "Orders", ORDERS, "--strategy", "merge").err


# Query and verify


def test_a_query_prints_a_table_csv_or_json(orders: Almanac):
    table = orders("data", "query", TOTALS, "--user", "maria")
    assert [line.split() for line in table.out.splitlines()] == [["city", "total"], ["Graz", "40"], ["Wien", "20"]]
    as_csv = orders("data", "query", TOTALS, "--csv")
    assert list(csv.reader(io.StringIO(as_csv.out))) == [["city", "total"], ["Graz", "40"], ["Wien", "20"]]
    answer = printed(orders("data", "query", TOTALS, "--user", "maria", "--json"))
    assert answer["rows"] == [{"city": "Graz", "total": 40}, {"city": "Wien", "total": 20}]
    assert [field["name"] for field in answer["fields"]] == ["city", "total"]
    assert (answer["total_rows"], answer["returned_rows"], answer["truncated"]) == (2, 2, None)


def test_c9ql_asks_one_dataset(orders: Almanac):
    c9ql = "select city, sum(amount) as total group by city order by city"
    answer = printed(orders("data", "query", "--dataset", "Orders", "--c9ql", c9ql, "--user", "maria", "--json"))
    assert answer["rows"] == [{"city": "Graz", "total": 40}, {"city": "Wien", "total": 20}]
    assert "Give either sql, or dataset and c9ql." in orders("data", "query", TOTALS, "--c9ql", c9ql).complaint()


def test_a_limited_answer_says_so(orders: Almanac):
    answer = orders("data", "query", "SELECT amount FROM Orders", "--limit", "2", "--csv")
    assert answer.out == "amount\n10\n20\n"
    assert answer.err.startswith("The answer has 2 of 3 rows")


def test_an_older_state_is_queried_by_its_time(orders: Almanac, tmp_path: Path):
    [first] = printed(orders("data", "versions", "Orders", "--json"))["items"]
    push(orders, tmp_path, "Orders", [{"city": "Linz", "amount": 2}])
    count = "SELECT count(*) AS n FROM Orders"
    assert queried(orders, count) == [{"n": 4}]
    assert queried(orders, count, "--as-of", first["at"]) == [{"n": 3}]


def test_terminals_get_no_control_characters_and_programs_the_exact_value(orders: Almanac, tmp_path: Path):
    push(orders, tmp_path, "Odd", [{"text": "\x1b[31m[red]"}], "--user", "maria")
    assert orders("data", "query", "SELECT text FROM Odd").out.splitlines()[1] == "\ufffd[31m[red]"
    assert orders("data", "query", "SELECT text FROM Odd", "--csv").out == "text\n\x1b[31m[red]\n"
    assert queried(orders, "SELECT text FROM Odd") == [{"text": "\x1b[31m[red]"}]


def test_a_wrong_query_names_the_nearest_field(orders: Almanac):
    complaint = orders("data", "query", "SELECT amuont FROM Orders", "--user", "maria").complaint()
    assert "amuont" in complaint
    assert "amount" in complaint


def test_a_receipt_is_verified_and_lists_later_changes(
    orders: Almanac, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    asked = orders("data", "query", TOTALS, "--user", "maria", "--receipt")
    receipt = asked.err.strip()
    assert receipt not in asked.out
    shown = orders("data", "verify", receipt, "--user", "maria").out.splitlines()
    assert shown[:2] == ["Confirmed.", f"Query: {TOTALS}"]
    assert shown[-1] == "Read: Orders, version 1, 3 rows"
    push(orders, tmp_path, "Orders", [{"city": "Linz", "amount": 2}])
    verified = printed(orders("data", "verify", receipt, "--user", "maria", "--json"))
    assert verified["confirmed"] is True
    assert [change["version"] for change in verified["changes_since"]] == [2]
    answer = orders("data", "query", TOTALS, "--json").out
    monkeypatch.setattr("sys.stdin", io.StringIO(answer))
    assert orders("data", "verify", "-").out.startswith("Confirmed.\n")


def test_a_result_that_is_not_confirmed_fails(orders: Almanac):
    receipt = printed(orders("data", "query", TOTALS, "--user", "maria", "--json"))["receipt"]
    assert orders("data", "rule", "Orders", "--user", "bot", "--where", "amount > 10").code == 0
    answer = orders("data", "verify", receipt, "--user", "bot")
    assert answer.code == 1
    assert answer.out.startswith("Not confirmed: You see other rows")
    assert "no receipt of this server" in orders("data", "verify", receipt[:-4] + "AAAA").complaint()


# Export


@pytest.mark.parametrize("extension", ["csv", "ndjson", "parquet"])
def test_the_rows_that_a_user_sees_are_exported(orders: Almanac, tmp_path: Path, extension: str):
    assert orders("data", "rule", "Orders", "--user", "bot", "--where", "amount < 30", "--hide", "margin").code == 0
    file = tmp_path / f"orders.{extension}"
    assert orders("data", "export", "Orders", str(file), "--user", "bot").out == f"{file}: 2 rows\n"
    read = {"csv": "read_csv", "ndjson": "read_ndjson", "parquet": "read_parquet"}[extension]
    found = duckdb.execute(f"SELECT * FROM {read}('{file}')")
    assert [column[0] for column in found.description or ()] == ["city", "amount", "region"]
    assert found.fetchall() == [("Graz", 10, "south"), ("Wien", 20, "east")]
    assert list(tmp_path.glob(".*")) == []


@pytest.mark.parametrize("extension", ["csv", "ndjson", "parquet"])
def test_pages_of_an_export_are_one_file_of_one_version(
    peopled: Almanac, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, extension: str
):
    monkeypatch.setattr(dataset_export, "PAGE_ROWS", 300)
    kinds = [{"n": n, "text": f"=1+{n}", "day": "2026-01-31", "list": [n], "record": {"a": n}} for n in range(1000)]
    push(peopled, tmp_path, "Kinds", [*kinds, {"n": 1000}], "--user", "maria")
    file = tmp_path / f"kinds.{extension}"
    assert peopled("data", "export", "Kinds", str(file)).out == f"{file}: 1,001 rows\n"
    read = {"csv": "read_csv", "ndjson": "read_ndjson", "parquet": "read_parquet"}[extension]
    columns = 'n, "text", CAST(day AS VARCHAR) AS day, CAST("list" AS VARCHAR) AS "list"'
    found = duckdb.execute(f"SELECT {columns} FROM {read}('{file}')").fetchall()
    assert found == [*((n, f"=1+{n}", "2026-01-31", f"[{n}]") for n in range(1000)), (1000, None, None, None)]


@pytest.mark.parametrize("extension", ["csv", "ndjson", "parquet"])
def test_a_dataset_without_rows_is_exported(orders: Almanac, tmp_path: Path, extension: str):
    assert push(orders, tmp_path, "Orders", [], "--strategy", "replace_even_if_empty").code == 0
    file = tmp_path / f"orders.{extension}"
    assert orders("data", "export", "Orders", str(file)).out == f"{file}: 0 rows\n"
    assert file.exists()


def test_a_failed_export_leaves_no_file(orders: Almanac, tmp_path: Path):
    assert "The extensions are: .csv" in orders("data", "export", "Orders", str(tmp_path / "orders.doc")).complaint()
    missing = orders("data", "export", "Orders", str(tmp_path / "none" / "orders.csv")).complaint()
    assert "No such file or directory" in missing
    early = orders("data", "export", "Orders", str(tmp_path / "o.csv"), "--as-of", "2001-01-01T00:00:00Z")
    assert "no version from" in early.err
    assert [path for path in tmp_path.iterdir() if path.suffix == ".csv" or path.name.startswith(".")] == []


# Rules and shares


def test_a_rule_limits_what_a_user_sees(orders: Almanac):
    rule = ("--where", "region = 'south'", "--hide", "margin")
    done = printed(orders("data", "rule", "Orders", "--user", "bot", *rule, "--json"))
    assert done == {"kind": "agent", "name": "bot", "condition": "region = 'south'", "hidden": ["margin"]}
    assert queried(orders, "SELECT * FROM Orders", "--user", "bot") == [
        {"city": "Graz", "amount": 10, "region": "south"},
        {"city": "Graz", "amount": 30, "region": "south"},
    ]
    [seen] = printed(orders("data", "list", "--user", "bot", "--json"))["items"]
    assert (seen["rows"], "margin" in [field["name"] for field in seen["fields"]]) == (None, False)
    assert "margin" not in orders("data", "show", "Orders", "--user", "bot").out
    assert "margin" in orders("data", "rules", "Orders").out
    assert len(queried(orders, "SELECT * FROM Orders", "--user", "maria")) == 3
    assert orders("data", "rule", "Orders", "--user", "bot", "--lift").code == 0
    assert len(queried(orders, "SELECT * FROM Orders", "--user", "bot")) == 3
    assert orders("data", "rules", "Orders").err.startswith("No rule")


def test_a_rule_that_cannot_be_applied_is_refused(orders: Almanac):
    assert "regoin" in orders("data", "rule", "Orders", "--user", "bot", "--where", "regoin = 'south'").complaint()
    assert "There is no field" in orders("data", "rule", "Orders", "--user", "bot", "--hide", "profit").complaint()
    both = orders("data", "rule", "Orders", "--user", "bot", "--lift", "--hide", "margin").complaint()
    assert both == "Give either --lift or a rule."
    assert printed(orders("data", "rules", "Orders", "--json"))["items"] == []


def test_a_role_permits_pushing(orders: Almanac, tmp_path: Path):
    assert "Developer" in push(orders, tmp_path, "Orders", ORDERS, "--user", "bot").complaint()
    assert orders("data", "share", "Orders", "--user", "bot", "--role", "Developer").code == 0
    assert push(orders, tmp_path, "Orders", ORDERS, "--user", "bot").code == 0
    assert printed(orders("data", "shares", "Orders", "--json"))["items"] == [
        {"kind": "user", "name": "maria", "role": "Owner"},
        {"kind": "agent", "name": "bot", "role": "Developer"},
    ]
    assert orders("data", "share", "Orders", "--user", "bot", "--withdraw").code == 0
    assert push(orders, tmp_path, "Orders", ORDERS, "--user", "bot").code == 1


# Descriptions, versions and the trash


def test_a_field_is_described(orders: Almanac, tmp_path: Path):
    field = ("--field", "Amount", "--label", "Revenue", "--unit", "EUR", "--synonym", "sales", "--synonym", "turnover")
    assert orders("data", "describe", "Orders", *field, "--description", "Net", "--type", "integer").code == 0
    assert orders("data", "describe", "Orders", "--description", "One row for each order").code == 0
    shown = printed(orders("data", "show", "Orders", "--json"))
    [amount] = [each for each in shown["fields"] if each["name"] == "amount"]
    assert shown["description"] == "One row for each order"
    assert (amount["label"], amount["unit"], amount["synonyms"]) == ("Revenue", "EUR", ["sales", "turnover"])
    assert (amount["description"], amount["declared"]) == ("Net", True)
    assert "amount" in push(orders, tmp_path, "Orders", [{"amount": 2.5}]).complaint()
    assert orders("data", "describe", "Orders", "--field", "amount", "--type", "any").code == 0
    assert push(orders, tmp_path, "Orders", [{"amount": 2.5}]).code == 0
    assert orders("data", "describe", "Orders", "--rename", "Sales").code == 0
    assert orders("data", "show", "Sales").out.startswith("Sales: 4 rows, version 2, of maria\n")


def test_a_description_without_a_field_or_a_change_is_refused(orders: Almanac):
    complaint = orders("data", "describe", "Orders", "--unit", "EUR").complaint()
    assert complaint == "A label, unit, synonym or type is that of a field. Name it with --field."
    assert orders("data", "describe", "Orders").complaint().startswith("There is nothing to change.")
    assert "There is no field" in orders("data", "describe", "Orders", "--field", "x", "--unit", "EUR").complaint()


def test_an_older_version_becomes_current_again(orders: Almanac, tmp_path: Path):
    push(orders, tmp_path, "Orders", [{"city": "Linz"}], "--strategy", "replace")
    assert orders("data", "restore", "Orders", "1").out == "Version 3 has the rows of version 1 (3 rows).\n"
    assert queried(orders, "SELECT count(*) AS n FROM Orders") == [{"n": 3}]
    changes = [each["change"] for each in printed(orders("data", "versions", "Orders", "--json"))["items"]]
    assert changes == ["restore", "replace", "append"]
    assert "has no version 9" in orders("data", "restore", "Orders", "9").complaint()


def test_a_removed_dataset_is_restored_by_its_name(orders: Almanac):
    assert "confirmation" in orders("data", "remove", "Orders").complaint()
    assert orders("data", "remove", "Orders", "--yes").code == 0
    assert "There is no dataset 'Orders'" in orders("data", "show", "Orders").complaint()
    assert orders("data", "list").err.startswith("No dataset yet")
    assert [each["name"] for each in printed(orders("data", "trash", "--json"))["items"]] == ["Orders"]
    assert orders("data", "restore", "orders").code == 0
    assert orders("data", "show", "Orders").out.startswith("Orders: 3 rows")
    complaint = orders("data", "restore", "Orders").complaint()
    assert complaint == "There is no dataset 'Orders' in the trash. See 'almanac data trash'."


def test_another_organisation_has_none_of_it(orders: Almanac):
    assert orders("org", "add", "Other").code == 0
    assert printed(orders("data", "list", "--org", "Other", "--json"))["items"] == []
    for arguments in (["show", "Orders"], ["show", "1"], ["versions", "1"], ["remove", "1", "--yes"], ["rules", "1"]):
        assert "There is no dataset" in orders("data", *arguments, "--org", "Other").complaint()
    assert "Orders" in orders("data", "query", "SELECT * FROM Orders", "--org", "Other").complaint()


def test_the_guide_to_datasets_runs_as_it_is_written(tmp_path: Path):
    page = (Path(__file__).parents[2] / "docs" / "how-to" / "keep-data.md").read_text("utf-8")
    home = tmp_path / "data"
    with serving(home) as server:
        script = "set -e\n" + "".join(f"{text}\necho; echo '==='\n" for text, _ in blocks(page))
        script = script.replace("http://127.0.0.1:8000", server.url).replace("curl -s ", "curl -sf ")
        script = script.replace(".venv/bin/almanac", str(Path(command()[0]).parent / "almanac"))
        shown = subprocess.run(
            ["bash", "-c", script], capture_output=True, text=True, timeout=240, cwd=tmp_path,
            env=environment(home, {}),
        )  # fmt: skip
        assert shown.returncode == 0, (shown.stdout, shown.stderr)
    pushed, asked, rest, ruled, verified, _, exported = shown.stdout.split("\n===\n")[:-1]
    assert pushed.startswith("Orders (new): 3 rows pushed; version 1 has 3 rows\n")
    assert '"widened":[{"field":"amount","before":"integer","now":"decimal"}]' in pushed
    assert asked.splitlines()[1].split() == ["Graz", "40.0"]
    assert json.loads(rest)["rows"] == [{"orders": 4}]
    assert [line.split() for line in ruled.splitlines()[1:4]] == [
        ["city", "region", "amount", "day"],
        ["Graz", "south", "10.0", "2026-10-01"],
        ["Graz", "south", "30.0", "2026-10-02"],
    ]
    assert verified.startswith("Confirmed.\n")
    assert exported.strip() == "orders.parquet: 3 rows"
