"""A command that updates a stored object changes exactly the values that it names.

`tests/web/test_updates.py` checks the same for REST routes and MCP tools.
"""

import asyncio
import json
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy
from typer.main import get_command

from almanac.cli import build
from almanac.core.database import Row
from almanac.db.connect import connect
from tests.catalogue.sample_catalogue import FILE, POWERJET
from tests.cli.conftest import Almanac
from tests.operations.test_agent_coverage import commands

State = dict[str, Any]

# The columns that name a row, and those that follow from other values.
TABLES = {
    "grants": (("thing_kind", "thing_id", "principal_id", "group_id"), ("id", "created_at")),
    "members": (("group_id", "principal_id"), ()),
    "allowances": (("org_id", "metric"), ()),
    "documents": (("id",), ("blob_id", "size", "generation", "updated_at", "index_status")),
    "entities": (("id",), ("folded", "updated_at")),
    "notes": (("number",), ()),
    "datasets": (("id",), ("folded", "updated_at")),
    "row_rules": (("dataset_id", "principal_id", "group_id"), ("id", "creator_id", "created_at")),
}
DOCUMENT = {"tags": '["pump"]', "metadata": '{"year": 2024}', "is_enabled": 0}
NOTE_ID = "0b9f2a52-5c3f-4e6e-9f0e-3b8f1b0f6c11"

ROLE = st.sampled_from(["Owner", "Maintainer", "Developer", "Reporter", "RestrictedAnalyst"])
NAME = st.from_regex(r"[a-z]{6,12}", fullmatch=True)
TEXT = st.sampled_from(["", "Oil it.", "Forty turns a minute."])


@dataclass
class Workplace:
    """The command line, beside the folder of the files that commands read."""

    almanac: Almanac
    folder: Path

    def run(self, *arguments: str) -> None:
        answer = self.almanac(*arguments)
        assert answer.code == 0, answer.err

    def load(self, name: str, value: Any, *arguments: str) -> None:
        path = self.folder / name
        path.write_text(json.dumps(value) + "\n")
        self.run(*(str(path) if argument == "FILE" else argument for argument in arguments))

    def fetch(self, sql: str) -> list[Row]:
        async def run() -> list[Row]:
            db = await connect(os.environ["ALMANAC_DATABASE_URL"], pool_size=1)
            try:
                if sql.startswith("SELECT"):
                    return list(await db.fetch(sql))
                await db.write(lambda tx: tx.execute(sql))
                return []
            finally:
                await db.close()

        return asyncio.run(run())

    def key(self, target: str) -> str:
        """The key of the one row of a table, as in `state`."""
        [row] = self.fetch(target)
        [table] = [
            table for table, (key, _) in TABLES.items() if f"FROM {table}" in target and list(key) == list(dict(row))
        ]
        return f"{table} {list(dict(row).values())}"

    def state(self) -> State:
        """All rows that the commands can change, by table and key."""
        return {
            f"{table} {[row[name] for name in key]}": {
                name: row[name] for name in dict(row) if name not in (*key, *ignored)
            }
            for table, (key, ignored) in TABLES.items()
            for row in self.fetch(f"SELECT * FROM {table}")
        }


@dataclass(frozen=True)
class Update:
    """A command, the values that it can change, how a test runs it, and the row and the columns that then differ."""

    command: str
    fields: Mapping[str, SearchStrategy[Any]]
    apply: Callable[[Workplace, State], None]
    target: str  # selects the key of the row
    changes: Callable[[State, State], State] = lambda row, named: named


def share_base(at: Workplace, named: State) -> None:
    at.run("kb", "share", "Pumps", "--user", "bot", "--role", named["role"])


def share_catalogue(at: Workplace, named: State) -> None:
    at.run("catalogue", "share", "--user", "bot", "--role", named["role"], "--org", "Acme")


def describe_dataset(at: Workplace, named: State) -> None:
    [row] = at.fetch("SELECT min(id) AS id FROM datasets")
    options = [f"--{'rename' if name == 'name' else name}={value}" for name, value in named.items()]
    if options:
        at.run("data", "describe", str(row["id"]), *options, "--org", "Acme")


def share_dataset(at: Workplace, named: State) -> None:
    at.run("data", "share", "Orders", "--user", "bot", "--role", named["role"], "--org", "Acme")


def set_rule(at: Workplace, named: State) -> None:
    hidden = [f"--hide={name}" for name in named["hidden"]]
    at.run("data", "rule", "Orders", "--user", "bot", "--where", named["condition"], *hidden, "--org", "Acme")


def stored_rule(row: State, named: State) -> State:
    return {"condition": named["condition"], "hidden": json.dumps(named["hidden"], separators=(",", ":"))}


def set_member(at: Workplace, named: State) -> None:
    at.run("group", "member", "research", "bot", "--role", named["role"], "--org", "Acme")


def set_quota(at: Workplace, named: State) -> None:
    number = named["most"]
    at.run("quota", "set", "knowledge_stored", "unlimited" if number is None else str(number), "--org", "Acme")


def ingest(at: Workplace, named: State) -> None:
    (at.folder / "pump.md").write_text(named["content"])
    at.run("ingest", "Pumps", str(at.folder / "pump.md"), "--no-wait")


def import_entity(at: Workplace, named: State) -> None:
    stored = {"_id": POWERJET, "name": "PowerJet 1800", "category": "Products/Washers/Electric"}
    [row] = at.fetch(f"SELECT name FROM entities WHERE id = '{POWERJET}'")
    at.load("e.jsonl", {**stored, "name": row["name"], **named}, "catalogue", "import", "FILE", "--org", "Acme")


def stored_entity(row: State, named: State) -> State:
    return {
        name: json.dumps(value, separators=(",", ":")) if name == "tags" else value for name, value in named.items()
    }


def import_note(at: Workplace, named: State) -> None:
    at.load(
        "n.jsonl",
        {"id": NOTE_ID, "title": "T", "body": "B", **named},
        "memory",
        "import",
        "FILE",
        "--user",
        "bot",
        "--org",
        "Acme",
    )


def nothing(row: State, named: State) -> State:
    return {}


ROLES = {"role": ROLE}
ENTITY = {
    "name": NAME,
    "description": TEXT,
    "details": TEXT,
    "source": TEXT,
    "sku": NAME,
    "status": st.sampled_from(["draft", "active", "archived"]),
    "tags": st.lists(NAME, max_size=3, unique=True),
}
_GRANT = """SELECT thing_kind, thing_id, principal_id, group_id FROM grants g JOIN principals p ON p.id = g.principal_id
    WHERE p.name = 'bot' AND thing_kind = """
UPDATES = [
    Update("kb share", ROLES, share_base,
           f"{_GRANT} 'base' AND thing_id = (SELECT CAST(id AS TEXT) FROM bases WHERE name = 'Pumps')"),
    Update("catalogue share", ROLES, share_catalogue, f"{_GRANT} 'catalogue'"),
    Update("group member", ROLES, set_member,
           """SELECT group_id, principal_id FROM members m JOIN groups g ON g.id = m.group_id JOIN principals p
              ON p.id = m.principal_id WHERE g.name = 'research' AND p.name = 'bot'"""),
    Update("quota set", {"most": st.none() | st.integers(0, 10**15 - 1)}, set_quota,
           "SELECT org_id, metric FROM allowances a JOIN orgs o ON o.id = a.org_id WHERE o.name = 'Acme'"),
    Update("ingest", {"content": st.sampled_from(["Oil it.\n", "Oil it daily.\n"])}, ingest,
           "SELECT id FROM documents WHERE name = 'pump.md'", nothing),
    Update("data describe", {"name": NAME, "description": TEXT}, describe_dataset,
           "SELECT id FROM datasets WHERE id = (SELECT min(id) FROM datasets)"),
    Update("data share", ROLES, share_dataset,
           f"{_GRANT} 'dataset' AND thing_id = (SELECT CAST(id AS TEXT) FROM datasets WHERE name = 'Orders')"),
    Update("data rule", {"condition": st.sampled_from(["n > 1", "n < 9"]),
                         "hidden": st.lists(st.sampled_from(["n", "m"]), max_size=2, unique=True)}, set_rule,
           """SELECT dataset_id, principal_id, group_id FROM row_rules r JOIN principals p ON p.id = r.principal_id
              JOIN datasets d ON d.id = r.dataset_id WHERE p.name = 'bot' AND d.name = 'Orders'""", stored_rule),
    Update("catalogue import", ENTITY, import_entity, f"SELECT id FROM entities WHERE id = '{POWERJET}'",
           stored_entity),
    Update("memory import", {"title": NAME, "body": NAME}, import_note, "SELECT number FROM notes", nothing),
]  # fmt: skip
OPTIONAL = {"catalogue import", "memory import", "data describe"}  # the others need their value

# The commands that change no values of a stored object.
ADDS = {f"{noun} add" for noun in ("org", "user", "agent", "group", "token", "client", "kb", "category")} | {
    "data push"
}
REMOVES = {"user remove", "agent remove", "group leave", "token revoke", "client revoke", "kb remove", "kb restore",
           "doc remove", "doc restore", "jobs discard", "data remove", "data restore"}  # fmt: skip
RUNS = {"serve", "worker", "stdio", "migrate", "retry", "jobs retry", "index rebuild", "bench retrieval"}
READS = {"search", "docs", "read", "doctor", "audit", "contracts", "org list", "user list", "agent list", "group list",
         "token list", "client list", "kb list", "kb shares", "kb trash", "catalogue export", "category list",
         "index status", "data list", "data show", "data query", "data verify", "data export", "data versions",
         "data trash", "data shares", "data rules", "audit executions", "memory export", "quota list",
         "jobs list"}  # fmt: skip


@pytest.fixture
def at(peopled: Almanac, tmp_path: Path) -> Workplace:
    """Two of everything: a command that changes the wrong one is noticed."""
    at = Workplace(peopled, tmp_path)
    for base in ("Pumps", "Valves"):
        at.run("kb", "add", base, "--owner", "maria")
    for group in ("research", "sales"):
        at.run("group", "add", group)
    at.run("org", "add", "Other")
    for name in ("maria", "bot"):
        at.run("kb", "share", "Pumps", "--user", name, "--role", "Reporter")
        at.run("kb", "share", "Valves", "--user", name, "--role", "Reporter")
        at.run("catalogue", "share", "--user", name, "--org", "Acme")
        at.run("group", "member", "research", name, "--role", "Reporter", "--org", "Acme")
        at.run("group", "member", "sales", name, "--role", "Reporter", "--org", "Acme")
    for org in ("Acme", "Other"):
        at.run("quota", "set", "knowledge_stored", "10", "--org", org)
    (tmp_path / "valve.md").write_text("Shut it.\n")
    at.run("ingest", "Pumps", str(tmp_path / "valve.md"), "--no-wait")
    ingest(at, {"content": "Oil it.\n"})
    at.fetch("UPDATE documents SET " + ", ".join(f"{name} = '{value}'" for name, value in DOCUMENT.items()))
    at.run("catalogue", "import", str(FILE), "--org", "Acme")
    import_note(at, {})
    for name in ("Orders", "Invoices"):
        at.load("rows.ndjson", {"n": 1, "m": 2}, "data", "push", name, "FILE", "--user", "maria", "--org", "Acme")
        for user in ("maria", "bot"):
            at.run("data", "share", name, "--user", user, "--role", "Reporter", "--org", "Acme")
            at.run("data", "rule", name, "--user", user, "--where", "n > 0", "--org", "Acme")
    return at


def named_values(update: Update) -> SearchStrategy[State]:
    fields = dict(update.fields)
    return st.fixed_dictionaries({}, optional=fields) if update.command in OPTIONAL else st.fixed_dictionaries(fields)


@pytest.mark.parametrize("update", UPDATES, ids=lambda update: update.command)
def test_a_command_changes_exactly_the_values_that_it_names(at: Workplace, update: Update):
    @settings(max_examples=8, deadline=None, database=None, suppress_health_check=[HealthCheck.too_slow])
    @given(named=named_values(update))
    def check(named: State) -> None:
        key, before = at.key(update.target), at.state()
        update.apply(at, named)
        changed = update.changes(before[key], named)
        assert changed.keys() <= before[key].keys()
        assert at.state() == {**before, key: {**before[key], **changed}}

    check()


def test_every_command_is_checked_or_changes_no_value():
    listed = {update.command for update in UPDATES} | ADDS | REMOVES | RUNS | READS
    assert sorted(commands(get_command(build()))) == sorted(listed)
