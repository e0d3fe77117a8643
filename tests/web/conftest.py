"""Servers shared by the tests of REST."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import Cluster
from tests.live_server import Running, running, settings_for
from tests.web.api import Api


@pytest.fixture(scope="module", params=["sqlite", "postgres"])
def shared(
    request: pytest.FixtureRequest, sqlite_template: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Running]:
    """A server for a file, on a database of each kind."""
    home = tmp_path_factory.mktemp("home")
    if request.param == "sqlite":
        shutil.copy(sqlite_template, home / "almanac.db")
        with running(settings_for(f"sqlite:///{home / 'almanac.db'}", home)) as live:
            yield live
        return
    cluster: Cluster = request.getfixturevalue("postgres_cluster")
    url = cluster.take()
    with running(settings_for(url, home)) as live:
        yield live
    cluster.drop(url)


@pytest.fixture
def api(shared: Running) -> Api:
    """The administrator's requests to it."""
    return Api(shared, shared.token)
