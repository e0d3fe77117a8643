"""Pictures: the job that reads what is written in a picture that was attached to something, so that it is found by it.

It is read as a document that is a picture would be: in a confined child. One that cannot be read, or has nothing
written in it, is found by what is said of it.
"""

import asyncio

import structlog

from almanac.catalogue import attachments, prose
from almanac.core.database import Database
from almanac.jobs.queue import Job
from almanac.jobs.worker import Effect
from almanac.knowledge.files import Files
from almanac.knowledge.parsers.nursery import Nursery
from almanac.knowledge.parsers.parsed import Unreadable
from almanac.knowledge.parsers.reading import unpack
from almanac.knowledge.passages import Splitter

_log = structlog.get_logger("almanac.pictures")


class ReadPicture:
    """The handler of picture jobs."""

    def __init__(self, db: Database, files: Files, nursery: Nursery) -> None:
        self._db = db
        self._files = files
        self._nursery = nursery

    async def __call__(self, job: Job) -> Effect | None:
        """Read the picture of a job; done twice, it does no harm."""
        id = str(job.payload["attachment"])
        found = await attachments.known(self._db, id)
        path = self._files.path(found.file_name) if found and found.file_name else None
        if found is None or path is None or not path.exists():
            return None
        try:
            outcome = await self._nursery.parse(path, found.name, Splitter().as_options())
            text = (await asyncio.to_thread(unpack, outcome.result)).text[: prose.MOST]
        except Unreadable as error:
            _log.info("picture_not_read", attachment=id, code=error.code)
            return None
        return lambda tx: attachments.note_text(tx, id, text)
