"""Compaction in a separate process, so that the operating system gets its memory back when the process ends.

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
    remedy = "Search results are correct without them. The log contains the reason."


async def run(db: Database, url: str, folder: Path) -> None:
    """Start the process and wait for it, if compaction is due."""
    if not await compaction.is_due(db, folder):
        return
    # In a session of its own, the process survives a Ctrl-C that stops the worker. The next compaction cleans up after
    # any other interruption.
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
