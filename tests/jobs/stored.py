"""The stored row of a job, for tests."""

import json
from typing import Any

from almanac.core.database import Reader


class StoredJob:
    """A row of the table `jobs`, with its columns as attributes."""

    def __init__(self, row: Any) -> None:
        self._row = row

    def __getattr__(self, column: str) -> Any:
        return json.loads(self._row["payload"]) if column == "payload" else self._row[column]


async def get_stored_job(db: Reader, id: int) -> StoredJob | None:
    row = await db.fetch_one("SELECT * FROM jobs WHERE id = $1", id)
    return None if row is None else StoredJob(row)
