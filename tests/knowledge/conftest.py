"""What the tests of the knowledge slice stand on."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from almanac.core.database import Database
from tests.knowledge.library import Library, found


@pytest.fixture
async def library(database: Database, tmp_path: Path) -> AsyncIterator[Library]:
    """A knowledge base and whatever a test puts into it, on both databases."""
    made = await found(database, tmp_path / "home")
    yield made
    made.files.close()
