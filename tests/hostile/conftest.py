"""A server for hostile clients, with short time limits."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.live_server import Running, running, settings_for

# Time limits that end a test soon and are long enough for a busy machine.
SHORT_SECONDS = 1.0
LIMITS = {f"{name}_timeout_seconds": SHORT_SECONDS for name in ("header", "body", "write")}


@pytest.fixture(scope="module")
def hostile_server(new_sqlite: Callable[[], str], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """The whole application over HTTP with short time limits. Its limits do not depend on the database."""
    home: Path = tmp_path_factory.mktemp("home")
    with running(settings_for(new_sqlite(), home, **LIMITS)) as live:
        yield live
