"""Servers shared by the tests of a file."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.live_server import Running, running, settings_for


@pytest.fixture(scope="module")
def live(shared_url: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """A server, on each kind of database."""
    home: Path = tmp_path_factory.mktemp("home")
    with running(settings_for(shared_url, home, embedding=False, fetch_allow=("127.0.0.1",))) as server:
        yield server
