"""Fixtures of the identity tests."""

import pytest

from almanac.core.database import Database
from tests.identity.people import Town, settle


@pytest.fixture
async def town(database: Database) -> Town:
    """Two organisations, on both databases."""
    return await settle(database)
