"""The commands: their output, and their one-line errors."""

import asyncio
import json
import os
import re
import shutil
import socket
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, TypeVar

import pytest

from almanac.app import SURFACES
from almanac.audit.agent_executions import AgentExecutionEntry
from almanac.audit.trail import AuditEntry, AuditTrail
from almanac.core import clock, scopes
from almanac.core.database import Database
from almanac.db import migrate
from almanac.db.connect import connect
from almanac.identity import clients, tokens
from almanac.identity.clients import InvalidClient
from almanac.jobs import queue
from almanac.surfaces import contracts
from tests.cli.conftest import Almanac
from tests.cli.program import Answer
from tests.jobs.stored import get_stored_job
from tests.quotas.test_rate_limits import free_port

T = TypeVar("T")

COMMANDS = [
    *("serve", "worker", "stdio", "migrate", "doctor", "contracts", "audit", "audit.executions"),
    *("org.add", "org.list", "user.add", "user.list", "user.remove", "agent.add", "agent.list", "agent.remove"),
    *("group.add", "group.list", "group.member", "group.leave", "token.add", "token.list", "token.revoke"),
    *("client.add", "client.list", "client.revoke"),
    *("jobs.list", "jobs.retry", "jobs.discard"),
]
LISTS = ["org.list", "user.list", "agent.list", "group.list", "token.list", "client.list", "jobs.list"]
FOR_PROGRAMS = ["migrate", "doctor", "contracts", "audit", "audit.executions", "client.add", *LISTS]
OPTIONS = {
    "serve": "--host --port --home --workers",
    "stdio": "--token",
    "user.add": "--org --admin",
    "agent.add": "--org",
    "group.add": "--org",
    "group.member": "--role",
    "token.add": "--kind --scope --base --tool --expires",
    "contracts": "--check",
    "audit": "--user --tool --since",
}
TOOLS = {tool.name for surface in SURFACES for tool in surface.operations}
LATEST_MIGRATION = migrate.bundled_migrations()[-1].version
TOKEN = re.compile(r"(wg|ag|ak|mcp)-[A-Za-z0-9_-]{43}\n")


def with_database(work: Callable[[Database], Awaitable[T]]) -> T:
    """Run a coroutine function with the database of the commands."""

    async def go() -> T:
        db = await connect(os.environ["ALMANAC_DATABASE_URL"], pool_size=1)
        try:
            return await work(db)
        finally:
            await db.close()

    return asyncio.run(go())


def rows(answer: Answer) -> list[dict[str, Any]]:
    assert (answer.code, answer.err) == (0, "")
    return json.loads(answer.out)


# Help


@pytest.mark.parametrize("path", COMMANDS)
def test_every_command_has_help_that_teaches(almanac: Almanac, path: str):
    answer = almanac(*path.split("."), "--help")
    assert (answer.code, answer.err) == (0, "")
    shown = " ".join(answer.out.split())
    assert "Example:" in shown
    assert re.search(rf"Example:.*almanac {path.replace('.', ' ')}\b", shown)
    for option in OPTIONS.get(path, "").split():
        assert option in shown
    assert ("--json" in shown) is (path in FOR_PROGRAMS)


def test_the_names_of_arguments_are_alike_and_a_flag_takes_nothing(almanac: Almanac):
    wanted = {
        "user.add": "{NAME}", "org.add": "{NAME}", "kb.add": "{NAME}", "token.add": "{USER}", "token.list": "{USER}",
        "token.revoke": "{TOKEN_ID}", "group.member": "{GROUP} {USER}", "group.leave": "{GROUP} {USER}",
        "docs": "{KB}", "read": "{DOC_ID}", "jobs.retry": "{JOB_ID}", "kb.trash": "[KB]",
    }  # fmt: skip
    for path, arguments in wanted.items():
        shown = almanac(*path.split("."), "--help").out
        assert f"almanac {path.replace('.', ' ')} [OPTIONS] {arguments} " in shown
        assert "<bool>" not in shown
    assert "<bool>" not in almanac("token", "--help").out


def test_help_fills_the_width_of_a_narrow_terminal(almanac: Almanac, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("COLUMNS", "80")
    shown = almanac("ingest", "--help").out
    begun = [line.strip() for line in shown[shown.index("An unchanged file is") :].splitlines()]
    *lines, _ = begun[: begun.index("")]
    assert len(lines) > 2
    assert min(map(len, lines)) > 60


def test_a_value_out_of_range_names_its_option(almanac: Almanac):
    assert almanac("serve", "--port", "99999").complaint() == "port (from option --port) must be at most 65535."
    assert almanac("serve", "--workers", "0").complaint() == "workers (from option --workers) must be at least 1."


def test_help_alone_lists_every_command(almanac: Almanac):
    shown = almanac("--help").out
    for path in COMMANDS:
        assert path.partition(".")[0] in shown


@pytest.mark.parametrize(
    "arguments",
    [["fly"], ["token"], ["token", "fly"], ["serve", "--wings"], ["token", "revoke", "one"], ["user", "add"],
     ["group", "member", "a", "b"], ["serve", "--port", "http"]],
)  # fmt: skip
def test_a_mistyped_command_is_told_so_with_exit_code_2(almanac: Almanac, arguments: list[str]):
    answer = almanac(*arguments)
    assert answer.code == 2
    assert "Usage:" in answer.out + answer.err
    assert "Traceback" not in answer.err


# People


def test_people_are_added_listed_and_removed(peopled: Almanac):
    added = peopled("user", "add", "boss", "--admin")
    assert (added.code, added.err) == (0, "")
    assert re.fullmatch(r"\d+\n", added.out)
    users = rows(peopled("user", "list", "--json"))
    assert [(user["name"], user["admin"]) for user in users] == [("boss", True), ("maria", False)]
    assert str(users[0]["id"]) == added.out.strip()
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", users[0]["created"])
    assert [agent["name"] for agent in rows(peopled("agent", "list", "--json"))] == ["bot"]
    removed = peopled("user", "remove", "boss")
    assert (removed.code, removed.out, removed.err) == (0, "", "")
    assert peopled("agent", "remove", "bot").code == 0
    assert [user["name"] for user in rows(peopled("user", "list", "--json"))] == ["maria"]
    assert rows(peopled("agent", "list", "--json")) == []


def test_tables_are_for_people(peopled: Almanac):
    shown = peopled("user", "list")
    head, maria = shown.out.splitlines()
    assert head.split() == ["id", "name", "admin", "created"]
    assert maria.split()[1] == "maria"
    empty = peopled("group", "list")
    assert (empty.code, empty.out, empty.err) == (0, "", "No group yet: almanac group add NAME\n")


def test_organisations_have_ids_and_each_command_can_name_one(peopled: Almanac):
    second = peopled("org", "add", "Other Ltd")
    assert re.fullmatch(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}\n", second.out)
    assert [org["name"] for org in rows(peopled("org", "list", "--json"))] == ["Acme", "Other Ltd"]
    assert peopled("user", "list").complaint() == "There is more than one organisation. Say which one with --org NAME."
    assert peopled("user", "add", "maria", "--org", "Other Ltd").code == 0
    for org in ("Acme", "Other Ltd"):
        assert [user["name"] for user in rows(peopled("user", "list", "--org", org, "--json"))] == ["maria"]


def test_groups_have_members_with_roles(peopled: Almanac):
    assert peopled("group", "add", "research", "--display-name", "Research [lab]").code == 0
    assert peopled("group", "member", "research", "maria", "--role", "developer").code == 0
    assert peopled("group", "member", "research", "bot", "--role", "Reporter").code == 0
    (group,) = rows(peopled("group", "list", "--json"))
    assert (group["name"], group["display name"], group["members"]) == ("research", "Research [lab]", 2)
    assert "Research [lab]" in peopled("group", "list").out
    assert peopled("group", "leave", "research", "maria").out == "maria is no longer in research\n"
    assert peopled("group", "leave", "research", "maria").complaint() == "'maria' is not in the group 'research'."
    assert rows(peopled("group", "list", "--json"))[0]["members"] == 1


# Tokens


@pytest.mark.parametrize(
    ("arguments", "prefix"),
    [
        (["maria"], "wg-"),
        (["bot"], "ag-"),
        (["maria", "--kind", "access"], "ak-"),
        (["maria", "--kind", "mcp"], "mcp-"),
        (["maria", "--kind", "mcp", "--expires", "30d"], "mcp-"),
        (["maria", "--scope", "search:read", "--scope", "knowledge:read", "--base", "1", "--tool", "whoami",
          "--expires", "30d"], "wg-"),
    ],
)  # fmt: skip
def test_a_new_token_is_alone_on_standard_output(peopled: Almanac, arguments: list[str], prefix: str):
    assert peopled("kb", "add", "Manuals", "--owner", "maria").out == "1\n"
    answer = peopled("token", "add", *arguments)
    assert (answer.code, answer.err) == (0, "")
    assert TOKEN.fullmatch(answer.out)
    assert answer.out.startswith(prefix)
    actor = with_database(lambda db: tokens.resolve(db, answer.out.strip()))
    assert actor is not None
    assert actor.name == arguments[0]


def test_tokens_are_listed_with_all_that_is_known_of_them_and_revoked_by_id(peopled: Almanac):
    bases = [peopled("kb", "add", name, "--owner", "maria").out.strip() for name in ("Pumps", "Valves")]
    assert bases == ["1", "2"]
    secret = peopled("token", "add", "maria", "--scope", "search:read", "--base", "1", "--base", "2",
                     "--tool", "whoami", "--expires", "12h").out.strip()  # fmt: skip
    listed = peopled("token", "list", "maria", "--json")
    assert secret[8:] not in listed.out
    (token,) = rows(listed)
    assert (token["kind"], token["state"], token["begins"]) == ("user", "active", f"{secret[:7]}…")
    assert (token["scopes"], token["bases"], token["tools"]) == (["search:read"], [1, 2], ["whoami"])
    assert token["last used"] is None
    actor = with_database(lambda db: tokens.resolve(db, secret))
    assert actor is not None
    assert actor.expires_at is not None
    assert abs(actor.expires_at - clock.now() - 12 * clock.HOUR) < clock.MINUTE
    assert "search:read" in peopled("token", "list", "maria").out
    revoked = peopled("token", "revoke", str(token["id"]))
    assert (revoked.code, revoked.out, revoked.err) == (0, f"token {token['id']} is revoked\n", "")
    assert with_database(lambda db: tokens.resolve(db, secret)) is None
    assert rows(peopled("token", "list", "maria", "--json"))[0]["state"] == "revoked"
    assert "no active token" in peopled("token", "revoke", str(token["id"])).complaint()


def test_a_client_is_printed_once_listed_without_its_secret_and_revoked(peopled: Almanac):
    sent = json.loads(peopled("client", "add", "maria", "--json").out)
    assert sent.keys() == {"clientId", "clientSecret"}
    lines = peopled("client", "add", "maria").out.splitlines()
    assert [line.partition(": ")[0] for line in lines] == ["clientId", "clientSecret"]
    listed = peopled("client", "list", "maria", "--json")
    assert sent["clientSecret"] not in listed.out
    assert [row["state"] for row in rows(listed)] == ["active", "active"]
    assert rows(listed)[1]["client id"] == sent["clientId"]
    revoked = peopled("client", "revoke", sent["clientId"])
    assert (revoked.code, revoked.out) == (0, f"client {sent['clientId']} is revoked\n")
    assert [row["state"] for row in rows(peopled("client", "list", "maria", "--json"))] == ["active", "revoked"]
    with pytest.raises(InvalidClient):
        with_database(lambda db: clients.authenticate(db, sent["clientId"], sent["clientSecret"]))


def test_a_token_that_lasts_for_ages_can_still_be_listed(peopled: Almanac):
    answer = peopled("token", "add", "maria", "--expires", "999999999h")
    if answer.code:
        assert "999999999h" in answer.complaint()
    assert "Traceback" not in peopled("token", "list", "maria").err


def test_a_token_is_not_limited_to_a_base_that_its_holder_cannot_have(peopled: Almanac):
    peopled("org", "add", "Other")
    peopled("user", "add", "pia", "--org", "Other")
    assert peopled("kb", "add", "Pia's", "--owner", "pia", "--org", "Other").out == "1\n"
    assert peopled("kb", "add", "Gone", "--owner", "maria", "--org", "Acme").out == "2\n"
    assert peopled("kb", "remove", "2", "--yes").code == 0
    for base in ("1", "2", "999", "0", str(2**63)):
        answer = peopled("token", "add", "maria", "--org", "Acme", "--base", base)
        assert answer.complaint() == f"There is no knowledge base {base}. See 'almanac kb list'."
    assert rows(peopled("token", "list", "maria", "--org", "Acme", "--json")) == []
    assert TOKEN.fullmatch(peopled("token", "add", "pia", "--org", "Other", "--base", "1").out)


# Errors


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        ("token add nobody", "There is no user or agent named 'nobody' in this organisation."
         " Use the exact name; 'almanac user list' and 'almanac agent list' show all."),
        ("token list nobody", "There is no user or agent named 'nobody' in this organisation."
         " Use the exact name; 'almanac user list' and 'almanac agent list' show all."),
        ("user remove nobody", "There is no user or agent named 'nobody' in this organisation."
         " Use the exact name; 'almanac user list' and 'almanac agent list' show all."),
        ("user add maria", "There is already a user or agent named 'maria' in this organisation. Choose another name."),
        ("agent add maria", "There is already a user or agent named 'maria' in this organisation."
         " Choose another name."),
        ("org add Acme", "There is already an organisation named 'Acme'. Choose another name."),
        ("user list --org Nowhere", "There is no organisation named 'Nowhere'. See 'almanac org list'."),
        ("user add a/b", "'a/b' cannot be the name of a user. Use 1 to 100 letters, digits, spaces and . _ @ + -,"
         " beginning with a letter or digit."),
        ("user remove bot", "'bot' is not a user. Use 'almanac agent remove bot'."),
        ("agent remove maria", "'maria' is not an agent. Use 'almanac user remove maria'."),
        ("token add maria --kind golden", "There is no token kind 'golden'. The kinds are: user, agent, access, mcp."),
        ("token add maria --kind agent", "'maria' is a user, so it cannot hold a token of kind 'agent'."
         " Leave --kind out, or use access."),
        ("token add bot --kind user", "'bot' is an agent, so it cannot hold a token of kind 'user'."
         " Leave --kind out, or use access."),
        ("token add bot --kind mcp", "'bot' is an agent, and an MCP token belongs to a user."
         " Leave --kind out: the tokens of an agent work at every MCP endpoint."),
        ("token add maria --kind mcp --expires 29d",
         "An MCP token works for 30 to 365 days. Give --expires from 30d to 365d."),
        ("token add maria --kind mcp --expires 366d",
         "An MCP token works for 30 to 365 days. Give --expires from 30d to 365d."),
        ("token add maria --kind mcp --scope search:read", "An MCP token has all rights of its user, so --scope, --base"
         " and --tool cannot limit it. Leave them out, or use --kind access."),
        ("client add bot", "'bot' is an agent, and a client logs in as a user."
         " An agent has tokens of its own: almanac token add AGENT."),
        ("client revoke cl-1", "There is no active client 'cl-1'. See 'almanac client list USER'."),
        ("token add maria --scope fly", f"Unknown scope fly. The scopes are: {', '.join(scopes.SCOPES)}."),
        ("token add maria --scope admin", "'maria' is not an administrator, so their token cannot have the scope admin."
         " Leave it out, or make the user with --admin."),
        ("token add maria --expires tomorrow", "'tomorrow' is not a length of time; write a number and a unit,"
         " such as 90s, 15m, 1h, 30d or 2w."),
        ("token revoke 4711", "There is no active token with id 4711. See 'almanac token list USER'."),
        ("group member none maria --role Owner",
         "There is no group named 'none'. Use its exact name; 'almanac group list' shows all."),
        ("audit --since yesterday", "'yesterday' is not a length of time; write a number and a unit,"
         " such as 90s, 15m, 1h, 30d or 2w."),
        ("jobs list --state lost", "There is no state 'lost'. The states are: queued, running, done, dead."),
        ("jobs discard 4711", "There is no dead job with id 4711. See 'almanac jobs list'."),
        ("token add maria --tool fly", f"There is no tool fly. The tools are: {', '.join(sorted(TOOLS))}."),
        (
            "jobs retry 4711",
            "There is no dead job with id 4711 that could run again. "
            "See 'almanac jobs list'; another job with its key may be waiting.",
        ),
        ("user remove [/bold]", "There is no user or agent named '[/bold]' in this organisation."
         " Use the exact name; 'almanac user list' and 'almanac agent list' show all."),
    ],
)  # fmt: skip
def test_what_cannot_be_done_is_one_line_that_names_the_fix(peopled: Almanac, arguments: str, complaint: str):
    assert peopled(*arguments.split()).complaint() == complaint


def test_an_unknown_role_is_one_line_with_the_roles_there_are(peopled: Almanac):
    peopled("group", "add", "research")
    complaint = peopled("group", "member", "research", "maria", "--role", "Boss").complaint()
    assert complaint == (
        "There is no role 'Boss'. The roles are: Owner, Maintainer, Developer, Reporter, RestrictedAnalyst."
    )


@pytest.mark.parametrize("arguments", ["token add maria --expires 999999999w", "audit --since 999999999w"])
def test_a_length_of_time_beyond_all_measure_is_one_line(peopled: Almanac, arguments: str):
    answer = peopled(*arguments.split())
    assert "Traceback" not in answer.err
    if answer.code:
        assert "999999999w" in answer.complaint()


@pytest.mark.parametrize(
    ("variable", "value"),
    [("ALMANAC_PORT", "many"), ("ALMANAC_DATABASE_URL", "mysql://u:hunter2@h/d"), ("ALMANAC_CONFIG", "/no/such.toml")],
)
def test_a_bad_setting_is_one_line_whatever_the_command(
    almanac: Almanac, monkeypatch: pytest.MonkeyPatch, variable: str, value: str
):
    monkeypatch.setenv(variable, value)
    for arguments in (["org", "list"], ["doctor"], ["migrate"]):
        complaint = almanac(*arguments).complaint()
        assert "hunter2" not in complaint
        assert variable in complaint or variable.removeprefix("ALMANAC_").lower() in complaint


def test_a_database_that_cannot_be_reached_is_one_line_without_its_password(
    almanac: Almanac, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("ALMANAC_DATABASE_URL", f"postgresql://u:hunter2@127.0.0.1:{free_port()}/d")
    complaint = almanac("org", "list").complaint()
    assert complaint.startswith("The database cannot be reached or is busy.")
    assert "hunter2" not in complaint


def test_a_home_that_cannot_be_used_is_one_line(almanac: Almanac, tmp_path: Path):
    (tmp_path / "file").write_text("not a folder")
    complaint = almanac("org", "list", "--home", str(tmp_path / "file")).complaint()
    assert str(tmp_path / "file") in complaint


# Locations


def test_the_home_option_beats_the_environment_and_a_new_home_is_made(almanac: Almanac, tmp_path: Path):
    assert almanac("migrate").out == f"schema version {LATEST_MIGRATION}\n"
    assert (tmp_path / "home" / "almanac.db").exists()
    assert json.loads(almanac("migrate", "--json", "--home", str(tmp_path / "a" / "b")).out) == {
        "version": LATEST_MIGRATION
    }
    assert (tmp_path / "a" / "b" / "almanac.db").exists()
    assert (tmp_path / "a" / "b" / "almanac.db").stat().st_mode & 0o077 == 0


def test_migrate_brings_an_empty_database_to_this_version(
    almanac: Almanac, empty_database_url: str, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("ALMANAC_DATABASE_URL", empty_database_url)
    for _ in range(2):
        answer = almanac("migrate")
        assert (answer.code, answer.out, answer.err) == (0, f"schema version {LATEST_MIGRATION}\n", "")
    assert rows(almanac("org", "list", "--json")) == []


def test_a_database_of_a_newer_version_is_refused_in_one_line(peopled: Almanac):
    insert = "INSERT INTO migrations (version, name, checksum, applied_at) VALUES (9999, 'future', 'x', 0)"
    with_database(lambda db: db.write(lambda tx: tx.execute(insert)))
    complaint = peopled("migrate").complaint()
    assert "9999_future.sql" in complaint
    assert "install that version" in complaint


# Doctor


def test_the_doctor_shows_each_setting_with_its_source_and_every_check(
    peopled: Almanac, monkeypatch: pytest.MonkeyPatch, redis_url: str
):
    monkeypatch.setenv("REDIS_URL", redis_url)
    monkeypatch.setenv("ALMANAC_SECRET", "hunter2-hunter2-hunter2-hunter2-hunter2")
    answer = peopled("doctor", "--json")
    assert (answer.code, answer.err) == (0, "")
    assert "hunter2" not in answer.out
    report = json.loads(answer.out)
    checks = {check["check"]: check for check in report["checks"]}
    assert list(checks) == [
        *("plan", "database", "redis", "models", "parsers", "home", "disk", "clock"),
        *("words", "vectors", "index", "jobs", "files"),
    ]
    assert all(check["ok"] and check["state"] == "ok" for check in checks.values())
    assert f"schema version {LATEST_MIGRATION}" in checks["database"]["detail"]
    settings = {setting["setting"]: setting for setting in report["settings"]}
    assert settings["port"] == {"setting": "port", "value": "8000", "from": "default"}
    assert settings["redis_url"] == {"setting": "redis_url", "value": "(set)", "from": "environment REDIS_URL"}
    assert settings["secret"] == {"setting": "secret", "value": "(set)", "from": "environment ALMANAC_SECRET"}
    table = peopled("doctor")
    assert table.code == 0
    for name in (*settings, *checks):
        assert re.search(rf"^{name} ", table.out, re.MULTILINE), name
    assert "hunter2" not in table.out


def test_the_doctor_before_the_first_start_makes_nothing(almanac: Almanac, tmp_path: Path):
    answer = almanac("doctor", "--json")
    assert answer.code == 0
    assert "not there yet" in json.loads(answer.out)["checks"][1]["detail"]
    assert not (tmp_path / "home").exists()


@pytest.mark.parametrize("as_json", [True, False])
def test_the_doctor_fails_when_redis_cannot_be_reached(
    almanac: Almanac, monkeypatch: pytest.MonkeyPatch, as_json: bool
):
    monkeypatch.setenv("REDIS_URL", f"redis://127.0.0.1:{free_port()}/0")
    answer = almanac("doctor", *(["--json"] if as_json else []))
    assert answer.code == 1
    if as_json:
        checks = {check["check"]: check for check in json.loads(answer.out)["checks"]}
        assert {name for name, check in checks.items() if not check["ok"]} == {"redis"}
        assert checks["redis"]["detail"] == ("Redis cannot be reached. Check REDIS_URL and that the server is running.")
    else:
        assert re.search(r"^redis +problem +Redis cannot be reached", answer.out, re.MULTILINE)


def test_the_doctor_fails_when_the_database_cannot_be_reached_and_checks_the_rest_all_the_same(
    almanac: Almanac, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("ALMANAC_DATABASE_URL", f"postgresql://u:hunter2@127.0.0.1:{free_port()}/d")
    answer = almanac("doctor", "--json")
    assert answer.code == 1
    assert "hunter2" not in answer.out + answer.err
    checks = {check["check"]: check["ok"] for check in json.loads(answer.out)["checks"]}
    assert checks == {
        "plan": True,
        "database": False,
        "redis": True,
        "models": True,
        "parsers": True,
        "home": True,
        "disk": True,
        "clock": False,
    }


def test_the_doctor_fails_when_a_migration_waits(peopled: Almanac):
    with_database(
        lambda db: db.write(lambda tx: tx.execute(f"DELETE FROM migrations WHERE version = {LATEST_MIGRATION}"))
    )
    answer = peopled("doctor", "--json")
    assert answer.code == 1
    database = json.loads(answer.out)["checks"][1]
    assert database["detail"] == "1 migration(s) to apply. Run 'almanac migrate'."


# Audit and jobs


def test_the_audit_trail_is_read_by_caller_tool_and_time(peopled: Almanac):
    async def write(db: Database) -> None:
        people = await db.fetch("SELECT id, org_id, name FROM principals ORDER BY id")
        trail, now = AuditTrail(db), clock.now()
        for row, tool, age in ((0, "whoami", 0), (0, "search", 2 * clock.HOUR), (1, "whoami", clock.MINUTE)):
            who = people[row]
            trail.add(
                AuditEntry(
                    now - age, who["org_id"], who["id"], 1, "almanac", tool, "ok", 1500, "d", "base:1 base:2", "r"
                )
            )
        await trail.flush()

    with_database(write)

    def found(*filters: str) -> list[str]:
        return [f"{line['actor']} {line['tool']}" for line in rows(peopled("audit", *filters, "--json"))]

    assert found() == ["maria whoami", "bot whoami", "maria search"]
    assert found("--user", "maria") == ["maria whoami", "maria search"]
    assert found("--tool", "whoami", "--user", "bot") == ["bot whoami"]
    assert found("--since", "1h") == ["maria whoami", "bot whoami"]
    assert found("--limit", "1") == ["maria whoami"]
    line = rows(peopled("audit", "--limit", "1", "--json"))[0]
    assert line["touched"] == ["base:1", "base:2"]
    assert line["at"].endswith("Z")
    head, first, *_ = peopled("audit").out.splitlines()
    assert head.split() == ["at", "who", "surface", "tool", "outcome", "ms", "touched"]
    assert first.split()[1:] == ["maria", "almanac", "whoami", "ok", "1.5", "base:1", "base:2"]
    none = peopled("audit", "--user", "nobody")
    assert (none.code, none.out, none.err) == (0, "", "No calls found.\n")


def test_agent_executions_are_read_with_their_prompts_and_answers(peopled: Almanac):
    async def write(db: Database) -> None:
        people = await db.fetch("SELECT id, org_id, name FROM principals ORDER BY id")
        trail, now = AuditTrail(db), clock.now()
        for row, tool, age in ((0, "knowi_do", 0), (1, "knowi_ask", 2 * clock.HOUR)):
            who = people[row]
            trail.add_execution(
                AgentExecutionEntry(
                    now - age, who["org_id"], who["id"], "knowi", tool, "ok", "Chart\nsales", "Done. " * 50, 1500,
                    "widget:1", "r"
                )
            )  # fmt: skip
        await trail.flush()

    with_database(write)

    def found(*filters: str) -> list[str]:
        return [f"{line['actor']} {line['tool']}" for line in rows(peopled("audit", "executions", *filters, "--json"))]

    assert found() == ["maria knowi_do", "bot knowi_ask"]
    assert found("--user", "bot") == ["bot knowi_ask"]
    assert found("--tool", "knowi_do", "--limit", "1") == found("--since", "1h") == ["maria knowi_do"]
    line = rows(peopled("audit", "executions", "--limit", "1", "--json"))[0]
    assert (line["prompt"], line["answer"], line["touched"]) == ("Chart\nsales", "Done. " * 50, ["widget:1"])
    shown = peopled("audit", "executions").out
    assert "Chart sales" in shown
    assert "Done. Done." in shown
    assert "…" in shown
    none = peopled("audit", "executions", "--user", "nobody")
    assert (none.code, none.out, none.err) == (0, "", "No executions found.\n")


def test_dead_jobs_are_listed_and_can_be_tried_again(peopled: Almanac):
    async def kill(db: Database) -> int:
        id = await db.write(lambda tx: queue.add(tx, "import", {"file": "a"}))
        (job,) = await queue.claim(db, "w", ["import"], limit=1, lease=clock.MINUTE)
        assert await queue.mark_dead(db, job, "ValueError: not [/a] table, nor [red]one[/red]")
        return id

    id = with_database(kill)
    (job,) = rows(peopled("jobs", "list", "--json"))
    assert (job["id"], job["kind"], job["attempts"]) == (id, "import", 1)
    assert "not [/a] table, nor [red]one[/red]" in peopled("jobs", "list").out
    retried = peopled("jobs", "retry", str(id))
    assert (retried.code, retried.out, retried.err) == (0, "", "")
    assert peopled("jobs", "list").err == "No dead jobs.\n"
    assert [job["id"] for job in rows(peopled("jobs", "list", "--state", "queued", "--json"))] == [id]
    assert "no dead job" in peopled("jobs", "retry", str(id)).complaint()


def test_a_dead_job_can_be_discarded_for_good(peopled: Almanac):
    async def kill(db: Database) -> int:
        id = await db.write(lambda tx: queue.add(tx, "import", {}))
        (job,) = await queue.claim(db, "w", ["import"], limit=1, lease=clock.MINUTE)
        assert await queue.mark_dead(db, job, "no use")
        return id

    id = with_database(kill)
    discarded = peopled("jobs", "discard", str(id))
    assert (discarded.code, discarded.out, discarded.err) == (0, "", "")
    assert with_database(lambda db: get_stored_job(db, id)) is None


# Contracts


def test_the_contracts_equal_what_is_served_and_writing_them_changes_nothing(almanac: Almanac):
    answer = almanac("contracts", "--check")
    assert (answer.code, answer.out, answer.err) == (0, f"{len(SURFACES)} contract(s) equal the served tools\n", "")


def test_a_contract_that_differs_is_named_and_can_be_written_anew(
    almanac: Almanac, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    for surface in SURFACES:
        (tmp_path / surface.name).mkdir()
        if surface.missing_tools:  # such a contract is only written by hand
            shutil.copy(contracts.path(surface), tmp_path / surface.name)
    monkeypatch.setattr(contracts, "SURFACES_FOLDER", tmp_path)
    complete = [surface for surface in SURFACES if not surface.missing_tools]
    missing = almanac("contracts", "--check")
    lines = [f"{surface.name}: {', '.join(tool.name for tool in surface.operations)}\n" for surface in complete]
    assert (missing.code, missing.out) == (1, "".join(lines))
    written = almanac("contracts")
    files = [f"{tmp_path / surface.name / 'contract.json'}\n" for surface in complete]
    assert (written.code, written.out) == (0, "".join(files))
    assert almanac("contracts", "--check").code == 0
    tools = json.loads((tmp_path / "almanac" / "contract.json").read_text())
    tools[0]["description"] += "!"
    (tmp_path / "almanac" / "contract.json").write_text(json.dumps(tools))
    changed = almanac("contracts", "--check")
    assert (changed.code, changed.out) == (1, "almanac: whoami\n")
    tools[0]["description"] = tools[0]["description"][:-1]
    (tmp_path / "almanac" / "contract.json").write_text(json.dumps(tools[::-1]))
    assert almanac("contracts", "--check").out == "almanac: (order)\n"
    as_json = almanac("contracts", "--check", "--json")
    assert (as_json.code, json.loads(as_json.out)) == (1, {"differing": {"almanac": ["(order)"]}})


# Refused starts


def test_more_server_processes_need_postgresql_and_redis(
    almanac: Almanac, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    assert almanac("serve", "--workers", "2").complaint() == (
        "--workers needs PostgreSQL: with SQLite only one process can write."
        " Set ALMANAC_DATABASE_URL, or use one worker."
    )
    monkeypatch.setenv("ALMANAC_DATABASE_URL", f"postgresql://127.0.0.1:{free_port()}/d")
    assert almanac("serve", "--workers", "2").complaint() == (
        "--workers needs Redis: without it, each process would count rate limits separately. Set REDIS_URL."
    )
    assert not (tmp_path / "home").exists()


@pytest.mark.parametrize("secret", ["changeme" * 4, "a" * 64, "my-secret-key-my-secret-key-my-secret-key"])
@pytest.mark.parametrize("variable", ["ALMANAC_SECRET", "SECRET_KEY"])
def test_a_public_bind_with_a_weak_secret_is_refused_and_says_why(
    almanac: Almanac, monkeypatch: pytest.MonkeyPatch, secret: str, variable: str, tmp_path: Path
):
    monkeypatch.setenv(variable, secret)
    complaint = almanac("serve", "--host", "0.0.0.0", "--port", "0").complaint()
    assert complaint.startswith("Refusing to listen on 0.0.0.0: ALMANAC_SECRET is a default or too easy to guess.")
    assert "openssl rand" in complaint
    assert secret not in complaint
    assert not (tmp_path / "home").exists()


def test_a_port_in_use_is_one_line(almanac: Almanac):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        assert almanac("serve", "--port", str(port)).complaint() == (
            f"Cannot listen on 127.0.0.1 port {port}: Address already in use."
            " Choose another port with --port, or stop the program that uses it."
        )


@pytest.mark.parametrize(
    ("arguments", "named"),
    [(["--port", "99999"], "99999"), (["--port", "-1"], "port"), (["--host", "no.such.host.invalid"], "no.such.host")],
)
def test_an_address_that_cannot_be_is_one_line(almanac: Almanac, arguments: list[str], named: str):
    complaint = almanac("serve", *arguments).complaint()
    assert named in complaint or "port" in complaint


def test_stdio_without_a_good_token_is_one_line(almanac: Almanac):
    almanac("org", "add", "Acme")
    complaint = almanac("stdio", "--token", "wg-" + "A" * 43).complaint()
    assert complaint.startswith("No valid token came with this request.")
    assert "almanac token add USER" in complaint
    assert "AAAA" not in complaint
