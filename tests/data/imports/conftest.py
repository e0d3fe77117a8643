"""Fixtures of the tests of imports."""

from collections.abc import AsyncIterator

import pytest

from almanac.data.engine import open_data
from tests.data.imports.importing import Importing
from tests.data.warehouse import Warehouse


@pytest.fixture
async def importing(warehouse: Warehouse) -> AsyncIterator[Importing]:
    """Imports files, on each of the two databases."""
    async with open_data(warehouse.files, b"key") as engine:
        yield Importing(warehouse, engine)
