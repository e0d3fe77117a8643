"""Servers that a whole file shares."""

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.conftest import Cluster


@pytest.fixture(scope="session")
def new_sqlite(sqlite_template: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[[], str]:
    """Gives the URL of another fresh, migrated SQLite database each time."""

    def make() -> str:
        path = tmp_path_factory.mktemp("shared") / "almanac.db"
        shutil.copy(sqlite_template, path)
        return f"sqlite:///{path}"

    return make


@pytest.fixture(scope="module", params=["sqlite", "postgres"])
def shared_url(request: pytest.FixtureRequest, new_sqlite: Callable[[], str]) -> Iterator[str]:
    """A fresh, migrated database for a whole file, of each kind."""
    if request.param == "sqlite":
        yield new_sqlite()
        return
    cluster: Cluster = request.getfixturevalue("postgres_cluster")
    url = cluster.take()
    yield url
    cluster.drop(url)
