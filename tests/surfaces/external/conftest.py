"""A server with the surface enabled and a small organisation, for all files, on each kind of database."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from almanac.external import set_external_knowledge_auth_handler, set_external_knowledge_creator_resolver
from tests.conftest import Cluster
from tests.live_server import Running, running, settings_for
from tests.surfaces.external.caller import NO_LIMITS, Caller, Town, found


@pytest.fixture(scope="session", params=["sqlite", "postgres"])
def town_url(request: pytest.FixtureRequest, new_sqlite: Callable[[], str]) -> Iterator[str]:
    if request.param == "sqlite":
        yield new_sqlite()
        return
    cluster: Cluster = request.getfixturevalue("postgres_cluster")
    url = cluster.take()
    yield url
    cluster.drop(url)


@pytest.fixture(scope="session")
def live(town_url: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    options = {**NO_LIMITS, "api_prefix": "/api"}
    with running(settings_for(town_url, tmp_path_factory.mktemp("home"), **options)) as server:
        yield server


@pytest.fixture(scope="session")
def town(live: Running) -> Town:
    made = live.run(lambda db: found(live, db))
    live.work()
    return made


@pytest.fixture
def ada(town: Town) -> Caller:
    return town.caller("ada")


@pytest.fixture
def bob(town: Town) -> Caller:
    """A caller with a base that tests may change."""
    return town.caller("bob")


@pytest.fixture(autouse=True)
def own_handlers() -> Iterator[None]:
    """Restore the handlers that a test replaces."""
    yield
    set_external_knowledge_auth_handler(None)
    set_external_knowledge_creator_resolver(None)


@pytest.fixture
def sqlite_home(tmp_path: Path, sqlite_template: Path) -> str:
    """The URL of a new SQLite database, for tests that do not depend on the kind."""
    path = tmp_path / "almanac.db"
    path.write_bytes(sqlite_template.read_bytes())
    return f"sqlite:///{path}"
