"""Fixtures of the memory tests."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from almanac.core.database import Database
from almanac.search.backends import open_search
from tests.house import settings_for
from tests.memory.circle import Circle, gather


@pytest.fixture
async def circle(database: Database, database_url: str, tmp_path: Path) -> AsyncIterator[Circle]:
    """Agents with notes, on each of the two databases."""
    async with open_search(settings_for(database_url, tmp_path / "home"), database) as search:
        yield await gather(database, search)
