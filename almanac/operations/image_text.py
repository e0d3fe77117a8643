"""Pictures: the job that reads what is written in a picture that was attached to something, so that it is found by it.

It is read as a document that is a picture would be: in a confined child. One that cannot be read, or has nothing
written in it, is found by what is said of it.
"""

import asyncio

import structlog

from almanac.catalogue import attachments, entity_text
from almanac.core.database import Database
from almanac.jobs.queue import Job
from almanac.jobs.worker import Effect
from almanac.knowledge.files import FileStore
from almanac.knowledge.ingest.splitter import PassageSplitter
from almanac.knowledge.parsers.parse_file import unpack
from almanac.sandbox.errors import WorkRejected
from almanac.sandbox.pool import SandboxPool

_log = structlog.get_logger("almanac.pictures")


class RecogniseImageText:
    """The handler of picture jobs."""

    def __init__(self, db: Database, files: FileStore, nursery: SandboxPool) -> None:
        self._db = db
        self._files = files
        self._nursery = nursery

    async def __call__(self, job: Job) -> Effect | None:
        """Read the picture of a job; done twice, it does no harm."""
        id = str(job.payload["attachment"])
        found = await attachments.get_or_none(self._db, id)
        path = self._files.path(found.file_name) if found and found.file_name else None
        if found is None or path is None or not path.exists():
            return None
        try:
            outcome = await self._nursery.parse(path, found.name, PassageSplitter().as_options())
            text = (await asyncio.to_thread(unpack, outcome.result)).text[: entity_text.MAX_ENTITY_CHARS]
        except WorkRejected as error:
            _log.info("picture_not_read", attachment=id, code=error.code)
            return None
        return lambda tx: attachments.set_text(tx, id, text)
