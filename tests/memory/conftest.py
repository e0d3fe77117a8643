"""Fixtures of the memory tests."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from almanac.core.database import Database
from almanac.search.backends import open_search
from tests.live_server import settings_for
from tests.memory.agent_memory import AgentMemory, open_memory


@pytest.fixture
async def memory(database: Database, database_url: str, tmp_path: Path) -> AsyncIterator[AgentMemory]:
    """Agents with notes, on each of the two databases."""
    async with open_search(settings_for(database_url, tmp_path / "home"), database) as search:
        yield await open_memory(database, search)
