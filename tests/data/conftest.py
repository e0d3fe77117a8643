"""Fixtures of the tests of datasets."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from almanac.core.database import Database
from tests.data.warehouse import Warehouse, open_warehouse


@pytest.fixture
async def warehouse(database: Database, tmp_path: Path) -> AsyncIterator[Warehouse]:
    """People with datasets, on each of the two databases."""
    made = await open_warehouse(database, tmp_path / "home")
    yield made
    made.files.close()
