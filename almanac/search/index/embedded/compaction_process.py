"""Compaction in a process of its own, so that the memory it needs for a while is the system's again when it ends.

python -m almanac.search.index.embedded.compaction_process URL FOLDER
"""

import asyncio
import sys
from pathlib import Path

from almanac.core.database import Database
from almanac.core.errors import AlmanacError
from almanac.db.connect import connect
from almanac.search.index.embedded import compaction


class CompactionFailed(AlmanacError):
    """The files of the index could not be written."""

    code = "compaction_failed"
    status = 500
    remedy = "Searches are right without them. What the process wrote to the log says why."


async def run(db: Database, url: str, folder: Path) -> None:
    """Compact, if it is worth it."""
    if not await compaction.is_due(db, folder):
        return
    # A session of its own: what stops the worker from a terminal does not cut this short. What does is undone by the
    # next one.
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-P", "-s", "-m", __name__, url, str(folder), stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.DEVNULL, start_new_session=True,
    )  # fmt: skip
    try:
        status = await process.wait()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    if status:
        raise CompactionFailed()


async def _compact(url: str, folder: Path) -> None:
    db = await connect(url)
    try:
        await compaction.compact(db, folder)
    finally:
        await db.close()


if __name__ == "__main__":
    asyncio.run(_compact(sys.argv[1], Path(sys.argv[2])))
