"""Servers shared by the tests of a file."""

from collections.abc import Callable, Iterator

import pytest

from tests.conftest import Cluster


@pytest.fixture(scope="module", params=["sqlite", "postgres"])
def shared_url(request: pytest.FixtureRequest, new_sqlite: Callable[[], str]) -> Iterator[str]:
    """A new, migrated database for a file, of each kind."""
    if request.param == "sqlite":
        yield new_sqlite()
        return
    cluster: Cluster = request.getfixturevalue("postgres_cluster")
    url = cluster.take()
    yield url
    cluster.drop(url)
