"""Fixtures for the tests of the knowledge package."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from almanac.core.database import Database
from tests.knowledge.workspace import Workspace, open_workspace


@pytest.fixture
async def workspace(database: Database, tmp_path: Path) -> AsyncIterator[Workspace]:
    """A knowledge base with its file store, on both databases."""
    workspace = await open_workspace(database, tmp_path / "home")
    yield workspace
    workspace.files.close()
