"""A gateway with a shop's catalogue behind it."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.catalogue.sample_catalogue import call_of, import_sample
from tests.live_server import Running, running, settings_for
from tests.surfaces.gateway.caller import Caller


def stock(live: Running, org: str | None = None) -> None:
    """Fill a server's catalogue, and compute its vectors."""

    async def work(db: object) -> None:
        call = await (call_of(db) if org is None else call_of(db, org))  # pyright: ignore[reportArgumentType]
        await import_sample(call)

    live.run(work)
    live.work()


@pytest.fixture(scope="module")
def shop(shared_url: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """A server with a full catalogue, for a whole file, on a database of each kind."""
    home: Path = tmp_path_factory.mktemp("home")
    with running(settings_for(shared_url, home)) as live:
        stock(live)
        yield live


@pytest.fixture
def caller(shop: Running) -> Caller:
    """A caller connected to it."""
    return Caller.connect(shop)
