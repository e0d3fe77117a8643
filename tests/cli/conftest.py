"""The command line in this process, for tests that need no process of their own."""

import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from almanac.cli import main
from almanac.cli.server import serve
from almanac.cli.support import startup
from almanac.core.settings import Settings
from tests.cli.program import OURS, Answer

Almanac = Callable[..., Answer]


@pytest.fixture
def almanac(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Iterator[Callable[..., Answer]]:
    """Run a command like the program; only the home folder is set."""
    before = dict(os.environ)
    for name in [name for name in os.environ if OURS.match(name)]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("ALMANAC_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.chdir(tmp_path)
    for module in (startup, serve):  # it would capture the logs of all later tests
        monkeypatch.setattr(module, "configure_logs", _leave_logs)

    def run(*arguments: str) -> Answer:
        monkeypatch.setattr(sys, "argv", ["almanac", *arguments])
        capsys.readouterr()
        code = 0
        try:
            main()
        except SystemExit as end:
            code = end.code if isinstance(end.code, int) else 0 if end.code is None else 1
        printed = capsys.readouterr()
        return Answer(code, printed.out, printed.err)

    yield run
    monkeypatch.undo()
    os.environ.clear()  # `serve` passes its options on through the environment
    os.environ.update(before)


@pytest.fixture
def peopled(almanac: Almanac, database_url: str, monkeypatch: pytest.MonkeyPatch) -> Almanac:
    """As `almanac`, on either database, with an organisation, a user and an agent."""
    monkeypatch.setenv("ALMANAC_DATABASE_URL", database_url)
    for arguments in (["org", "add", "Acme"], ["user", "add", "maria"], ["agent", "add", "bot"]):
        assert almanac(*arguments).code == 0
    return almanac


def _leave_logs(_: Settings) -> None:
    """Replaces the configuration of the logs."""
