"""One entity of the catalogue: the value and the SELECT that reads it."""

from dataclasses import dataclass
from typing import Any

import orjson

from almanac.core.database import Row
from almanac.db.sql import from_row

SELECT = """
SELECT e.*, c.id AS category_id, c.name AS category_name, a.key AS alias_key FROM entities e
JOIN categories c ON c.number = e.category LEFT JOIN vocabulary a ON a.id = c.alias_id
"""


@dataclass(frozen=True, slots=True)
class Entity:
    """One product, policy or other object that the catalogue describes."""

    id: str
    org_id: str
    category: int
    category_id: str
    category_name: str
    alias_key: str | None  # of its category
    name: str
    description: str
    details: str
    source: str
    sku: str
    status: str
    tags: tuple[str, ...]
    metadata: dict[str, Any]
    created_at: int
    updated_at: int


def entity_from_row(row: Row) -> Entity:
    """The entity in a row of `SELECT`."""
    tags, metadata = tuple(orjson.loads(row["tags"])), orjson.loads(row["metadata"])
    return from_row(Entity, row, tags=tags, metadata=metadata)
